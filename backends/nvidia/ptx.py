"""PTX text: registers by kind, instructions with their purpose as a comment, and the frame of a kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from convgen.ir.layout.tensor_map import MAP_ALIGN, MAP_BYTES
from convgen.ir.record import define
from convgen.ir.stmt import Stmt
from convgen.ir.types import Type, bool_

KINDS = {"r": "b32", "rd": "b64", "h": "b16", "p": "pred"}  #: kind of register -> its type, as mnemonics have it
_COLUMN = 72  #: where comments begin


@define
class Writer:
    """The body of a kernel as it is selected: instructions on virtual registers."""

    lines: list[str] = attrs.field(factory=list)
    counts: Counter[str] = attrs.field(factory=Counter)  #: registers of each kind
    labels: int = 0  #: how many there are
    file: int = 0  #: number of the IR listing in the module's `.file` table; 0: the text gets no line information
    line_of: Mapping[Stmt, int] = attrs.field(factory=dict)  #: line of each statement in that listing, from 1
    line: int = 0  #: line of the statement that is being selected
    _written_line: int = 0  #: line of the last `.loc`

    def begin(self, statement: Stmt) -> int:
        """Attribute instructions from now on to a statement of the IR; return the line of the statement around it."""
        before, self.line = self.line, self.line_of.get(statement, self.line)
        return before

    def new(self, kind: str = "r") -> str:
        """Return a fresh register: `r` 32 bits, `rd` 64 bits, `h` 16 bits, `p` a predicate."""
        self.counts[kind] += 1
        return f"%{kind}{self.counts[kind]}"

    def label(self, name: str) -> str:
        """Return a fresh label."""
        self.labels += 1
        return f"{name}_{self.labels}"

    def emit(self, text: str, comment: str = "") -> None:
        """Append one instruction, behind a `.loc` if its statement is another one."""
        if self.file and self.line not in (0, self._written_line):
            self._written_line = self.line
            self.lines.append(f"    .loc {self.file} {self.line} 0")
        line = f"    {text};"
        self.lines.append(f"{line:<{_COLUMN - 1}} // {comment}" if comment else line)

    def remark(self, begin: int, comment: str) -> None:
        """Comment the last line, if one was appended after the first `begin` and it has no comment."""
        if len(self.lines) > begin and "//" not in self.lines[-1]:
            self.lines[-1] = f"{self.lines[-1]:<{_COLUMN - 1}} // {comment}"

    def place(self, label: str) -> None:
        """Append a label."""
        self.lines.append(f"{label}:")

    def op(self, mnemonic: str, *sources: str, kind: str = "r", comment: str = "") -> str:
        """Append an instruction with one result, and return its register."""
        result = self.new(kind)
        self.emit(f"{mnemonic} {', '.join((result, *sources))}", comment)
        return result


def kind_of(elem: Type) -> str:
    """Return the kind of register that holds an element, or a word of elements."""
    if elem is bool_:
        return "p"
    return "rd" if elem.bits == 64 else "r"


def braces(registers: Sequence[str]) -> str:
    """Return one register, or several as a vector operand."""
    return registers[0] if len(registers) == 1 else vector_of(registers)


def vector_of(registers: Sequence[str]) -> str:
    """Return registers as a vector operand, which one register may be, too."""
    return "{" + ", ".join(registers) + "}"


def at(register: str, offset: int) -> str:
    """Return an address with an immediate offset, in bytes."""
    return f"{register}+{offset}" if offset else register


def map_parameter(number: int) -> str:
    """Return the name of the parameter with a kernel's tensor map `number`: with a $, which no name in the IR has."""
    return f"map${number}"


def _parameter(name: str, size: int) -> str:
    """Return the declaration of a parameter of `size` bytes: a number, or a tensor map."""
    return f".param .align {MAP_ALIGN} .b8 {name}[{size}]" if size == MAP_BYTES else f".param .b{8 * size} {name}"


def kernel_text(
    name: str,
    parameters: Sequence[tuple[str, int]],
    threads: int,
    writer: Writer,
    header: Sequence[str] = (),
    resident: int = 0,
) -> str:
    """Return a kernel: entry, registers and body. `parameters` are names and bytes.

    ptxas limits registers so that `resident` workgroups fit on an SM; 0: it may take as many as a workgroup has.
    """
    listed = ",\n".join(f"    {_parameter(*parameter)}" for parameter in parameters)
    registers = [f"    .reg .{KINDS[kind]} %{kind}<{count + 1}>;" for kind, count in sorted(writer.counts.items())]
    return "\n".join(
        [
            *(f"// {line}" for line in header),
            f".visible .entry {name}(",
            listed,
            f") .maxntid {threads}, 1, 1{f' .minnctapersm {resident}' * bool(resident)}",
            "{",
            *registers,
            *writer.lines,
            "}",
            "",
        ]
    )


def module_text(target: str, version: str, kernels: Sequence[str], listings: Sequence[str] = ()) -> str:
    """Return a module of several kernels, which share one name for dynamic shared memory; `version` is of PTX.

    `listings` are the files that `.loc` lines point into, numbered from 1.
    """
    head = [f".version {version}", f".target {target}", ".address_size 64", ""]
    head += [f'.file {number} "{name}"' for number, name in enumerate(listings, 1)]
    return "\n".join([*head, ".extern .shared .align 1024 .b8 shared_memory[];", "", *kernels])
