"""Read PTX text: directives, variables, kernels and their instructions with resolved names.

Sections are those of the PTX ISA document: "Syntax", "State Spaces, Types, and Variables", "Instruction Operands".
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from convgen.backends.nvidia.sim.ptx_calls import inline
from convgen.backends.nvidia.sim.ptx_text import (
    Address,
    Instruction,
    Inverted,
    Kernel,
    Literal,
    Module,
    Name,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    TensorAddress,
    Variable,
    Vector,
    literal,
    literal_bits,
)
from convgen.backends.nvidia.sim.ptx_tokens import Cursor, Token
from convgen.backends.nvidia.sim.ptx_types import bytes_of, is_type
from convgen.backends.sim.errors import SimulatorError, reading
from convgen.ir.record import evolve

_HEADER = re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*\.version\s", re.S)
_LIMITS = (".maxntid", ".reqntid", ".maxnreg", ".minnctapersm", ".reqnctapercluster")
_MOST_REGISTERS = 1 << 17
_MOST_BYTES = 1 << 28  #: bytes of a variable


def is_ptx(content: bytes) -> bool:
    """Return whether bytes begin as PTX does: comments, then .version."""
    return _HEADER.match(content) is not None


@lru_cache(maxsize=16)
def parse(content: bytes) -> Module:
    """Return the module of a PTX file. Raises SimulatorError for text that is not PTX."""
    text = content.rstrip(b"\0").decode("latin-1")
    if content.startswith(b"\x7fELF"):
        raise SimulatorError("given a cubin, whose machine code (SASS) is not simulated; wanted the .ptx text of it")
    if not is_ptx(content):
        raise SimulatorError("given text without .version at its start, wanted PTX")
    with reading("the PTX"):
        return _Reader(text).module()


class _Declared(NamedTuple):
    """The part of a declaration that its variables share."""

    type: str
    width: int  #: elements of a vector, or 1
    align: int  #: bytes; 0: that of the type
    is_pointer: bool


class _Reader(Cursor):
    """Reads a file from its first token to its last."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.result = Module()
        #: Name -> register, or name in the kernel of a label or variable; one scope a block, inner blocks last.
        self.scopes: list[dict[str, Register | str]] = []
        self.blocks = 0  #: inner blocks begun, which number their names

    # -- module -------------------------------------------------------------------------------------------------------

    def module(self) -> Module:
        """Read all directives."""
        result = self.result
        result.lines = [0, *(match.end() for match in re.finditer("\n", self.text))]
        while self.at < len(self.tokens):
            word = self.take().text
            if word == ".version":
                self.take()
            elif word == ".target":
                result.target = self.listed(self.take)[0].text
            elif word == ".address_size":
                if self.integer() != 64:
                    raise self.wrong(".address_size 64")
            elif word in (".visible", ".extern", ".weak", ".common"):
                continue
            elif word == ".entry":
                self.kernel()
            elif word == ".func":
                self.function()
            elif word in (".global", ".const", ".shared"):
                external = self.tokens[self.at - 2].text == ".extern" if self.at > 1 else False
                for variable in self.declaration(word[1:], external=external):
                    result.variables[variable.name] = variable
            elif word in (".file", ".loc"):
                self.skip_line()
            elif word == ".section":
                self.skip_to("{")
                self.skip_to("}")
            elif word in (".pragma", ".alias"):
                self.skip_to(";")
            else:
                raise self.wrong("a directive", self.taken)
        for kernel in result.kernels.values():
            inline(result, kernel, ())
        return result

    def function(self) -> None:
        """Read a device function; of a declaration without a body only the name is kept.

        Raises SimulatorError for parameters in registers.
        """
        start = self.taken.at
        parameters = self.parameters() if self.accept("(") else []
        name = self.take().text
        parameters += self.parameters() if self.accept("(") else []
        self.result.functions.setdefault(name, None)
        while self.peek() not in ("{", ";"):
            self.take()
        if self.accept(";"):
            return
        kernel = Kernel(name, start, tuple(parameters))
        self.scopes = [{}]
        kernel.variables.update({variable.name: evolve(variable, space="local") for variable in parameters})
        self.take("{")
        self.body(kernel)
        _reach_next(kernel.code)
        self.result.functions[name] = kernel

    def parameters(self) -> list[Variable]:
        """Read parameters up to the closing bracket, with their offsets."""
        variables: list[Variable] = []
        end = 0
        while not self.accept(")"):
            if self.peek() == ".reg":
                raise self.wrong("parameters in .param")
            self.take(".param")
            (variable,) = self.declaration("param")
            end = -(-end // variable.align) * variable.align
            variables.append(evolve(variable, offset=end))
            end += variable.size
            self.accept(",")
        return variables

    def declaration(self, space: str, *, external: bool = False) -> list[Variable]:
        """Read variables of a state space, up to the semicolon (or the comma or bracket behind a parameter)."""
        declared = self.declared()
        if space == "param":
            return [self.variable(space, declared, external=external)]
        variables = self.listed(lambda: self.variable(space, declared, external=external))
        self.take(";")
        return variables

    def declared(self) -> _Declared:
        """Read the words between a declaration's state space and its names."""
        type_, width, align, is_pointer = "", 1, 0, False
        while self.peek().startswith("."):
            word = self.take().text[1:]
            if word == "align":
                align = self.integer()
            elif word == "ptr":
                is_pointer = True
                if self.peek() in (".global", ".shared", ".const", ".local"):
                    self.take()
                if self.accept(".align"):
                    self.integer()
            elif word in ("v2", "v4"):
                width = int(word[1:])
            elif word == "attribute":
                self.skip_to(")")
            elif is_type(word):
                type_ = word
            else:
                raise self.wrong("a type", self.taken)
        if not type_:
            raise self.wrong("a type")
        return _Declared(type_, width, align, is_pointer)

    def variable(self, space: str, declared: _Declared, *, external: bool) -> Variable:
        """Read the name of a variable, its dimensions and its initialiser."""
        name = self.take().text
        natural = bytes_of(declared.type) * declared.width
        size, has_size, is_array = natural, True, False
        while self.accept("["):
            is_array = True
            if self.peek() == "]":
                has_size, size = False, 0
            else:
                size *= self.integer()
            self.take("]")
        if not 0 <= size <= _MOST_BYTES:
            raise self.wrong(f"a variable of at most {_MOST_BYTES} bytes")
        content = self.initial(declared.type) if self.accept("=") else None
        if content is None and space in ("global", "const") and not external:
            content = b""  # PTX ISA, Initializers: variables without one start as zeros
        if content is not None:
            size = max(size, len(content))
            content = content.ljust(size, b"\0")
        return Variable(
            name,
            space,
            declared.align or natural,
            size,
            content,
            dynamic=not has_size and content is None,
            is_pointer=declared.is_pointer,
            type="b8" if is_array else declared.type,
        )

    def initial(self, type_: str) -> bytes:
        """Read an initialiser as bytes."""
        if self.accept("{"):
            parts = []
            while not self.accept("}"):
                parts.append(self.initial(type_))
                self.accept(",")
            return b"".join(parts)
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if token.kind != "number":
            raise self.wrong("a number, for addresses as initialisers are not simulated", token)
        bits = literal_bits(literal(token.text), type_, negative=sign < 0)
        return bits.to_bytes(bytes_of(type_), "little")

    # -- kernels ------------------------------------------------------------------------------------------------------

    def kernel(self) -> None:
        """Read a kernel with its body."""
        start = self.taken.at
        name = self.take().text
        kernel = Kernel(name, start)
        self.scopes = [{}]
        parameters = self.parameters() if self.accept("(") else []
        kernel.parameters = tuple(parameters)
        kernel.param_bytes = max((variable.offset + variable.size for variable in parameters), default=0)
        kernel.variables.update({variable.name: variable for variable in parameters})
        while self.peek() not in ("{", ";"):
            directive = self.take().text
            if directive in _LIMITS:
                sizes = self.listed(self.integer)
                kernel.limits[directive[1:]] = (*sizes, 1, 1)[:3]  # type: ignore[assignment]
            elif self.tokens[self.at].kind == "number":
                self.listed(self.integer)
            elif directive == ".pragma":
                self.skip_to(";")
        if self.accept(";"):
            return
        self.take("{")
        self.body(kernel)
        _reach_next(kernel.code)
        self.result.kernels[name] = kernel

    def body(self, kernel: Kernel) -> None:
        """Read statements up to the closing brace of a block."""
        while True:
            token = self.take()
            word = token.text
            if word == "}":
                return
            if word == "{":
                self.blocks += 1
                self.scopes.append(self.names_ahead())
                self.body(kernel)
                self.scopes.pop()
            elif word == ".reg":
                self.registers(kernel)
            elif word in (".shared", ".local", ".param"):
                for variable in self.declaration(word[1:]):
                    self.place(kernel, variable)
            elif word in (".loc", ".file"):
                self.skip_line()
            elif word == ".pragma":
                self.skip_to(";")
            elif word == ".branchtargets":
                raise self.wrong("a label ahead of .branchtargets", token)
            elif word == ";":
                continue
            elif self.peek() == ":" and token.kind == "word":
                self.take()
                self.label(kernel, word)
            else:
                self.instruction(kernel, token)

    def names_ahead(self) -> dict[str, Register | str]:
        """Return the labels of the block that begins: they hide outer ones."""
        depth, place, labels = 0, self.at, {}
        while place < len(self.tokens):
            text = self.tokens[place].text
            if text == "{":
                depth += 1
            elif text == "}":
                if not depth:
                    break
                depth -= 1
            elif (
                not depth
                and self.tokens[place].kind == "word"
                and place + 1 < len(self.tokens)
                and self.tokens[place + 1].text == ":"
                and self.tokens[place - 1].text in ("{", "}", ";", ":")
            ):
                labels[text] = f"{text}@{self.blocks}"
            place += 1
        return labels  # type: ignore[return-value]

    def lookup(self, name: str) -> Register | str | None:
        """Return what a name stands for in the innermost block that declares it."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def label(self, kernel: Kernel, name: str) -> None:
        """Place a label, or read the table of targets behind it."""
        resolved_name = self.resolved(name)
        if self.accept(".branchtargets"):
            kernel.tables[resolved_name] = tuple(self.listed(lambda: self.resolved(self.take().text)))
            self.take(";")
        elif self.peek() == ".callprototype":
            self.skip_to(";")
        else:
            kernel.labels[resolved_name] = len(kernel.code)

    def resolved(self, name: str) -> str:
        """Return the name in the kernel of a label or variable; a name that no block declares is its own."""
        meaning = self.lookup(name)
        return meaning if isinstance(meaning, str) else name

    def registers(self, kernel: Kernel) -> None:
        """Read a declaration of registers."""
        type_ = ""
        while self.peek().startswith("."):
            word = self.take().text[1:]
            if word in ("v2", "v4"):
                raise self.wrong("scalar registers, for vector registers are not simulated", self.taken)
            type_ = word
        if type_ != "pred" and not is_type(type_):
            raise self.wrong("the type of registers", self.taken)
        for name in chain.from_iterable(self.listed(lambda: self.register_names(kernel))):
            self.scopes[-1][name] = Register(len(kernel.registers), type_)
            kernel.registers.append(type_)
            kernel.names.append(name)
        self.take(";")

    def register_names(self, kernel: Kernel) -> list[str]:
        """Read a name, or `name<count>`, which stands for `name0` to `name(count - 1)`."""
        name = self.take().text
        if not self.accept("<"):
            return [name]
        count = self.integer()
        self.take(">")
        if len(kernel.registers) + count > _MOST_REGISTERS:
            raise self.wrong(f"at most {_MOST_REGISTERS} registers")
        return [f"{name}{number}" for number in range(count)]

    def place(self, kernel: Kernel, variable: Variable) -> None:
        """Take a variable of a kernel's body."""
        unique_name = variable.name if len(self.scopes) == 1 else f"{variable.name}@{self.blocks}"
        if variable.space in ("local", "param"):  # parameters of a call live in memory of the thread
            offset = -(-kernel.local_bytes // variable.align) * variable.align
            kernel.local_bytes = offset + variable.size
            variable = evolve(variable, offset=offset, space="local")
        self.scopes[-1][variable.name] = unique_name
        kernel.variables[unique_name] = evolve(variable, name=unique_name)

    def instruction(self, kernel: Kernel, first: Token) -> None:
        """Read an instruction with its guard."""
        guard = None
        token = first
        if first.text == "@":
            negated = self.accept("!")
            predicate = self.take()
            register = self.lookup(predicate.text)
            if not isinstance(register, Register):
                raise self.wrong("a predicate", predicate)
            guard = register, negated
            token = self.take()
        if token.kind != "word":
            raise self.wrong("an instruction", token)
        name, *modifiers = token.text.split(".")
        operands = [] if self.peek() == ";" else self.listed(lambda: self.operand(kernel))
        end = self.take(";").at + 1
        if "param" in modifiers and any(self.is_local(kernel, operand) for operand in operands):
            modifiers = ["local" if modifier == "param" else modifier for modifier in modifiers]
        shown = " ".join(self.text[first.at : end - 1].split())
        kernel.code.append(Instruction(name, tuple(modifiers), tuple(operands), guard, shown, first.at, end - first.at))

    @staticmethod
    def is_local(kernel: Kernel, operand: Operand) -> bool:
        """Return whether an operand addresses a parameter of a call, or of a device function."""
        base = operand.base if isinstance(operand, Address) else None
        return (
            isinstance(base, Symbol) and base.name in kernel.variables and kernel.variables[base.name].space == "local"
        )

    def operand(self, kernel: Kernel) -> Operand:
        """Read one operand."""
        first = self.simple(kernel)
        if self.accept("|"):
            return Pair(first, self.simple(kernel))
        return first

    def simple(self, kernel: Kernel) -> Operand:
        """Read an operand that is not a pair."""
        token = self.take()
        text = token.text
        if text == "{":
            return Vector(self.items(kernel, "}"))
        if text == "[":
            return self.address(kernel)
        if text == "(":
            items = self.items(kernel, ")")
            return items[0] if len(items) == 1 and isinstance(items[0], Literal) else Vector(items)
        if text == "!":
            register = self.lookup(self.take().text)
            if not isinstance(register, Register):
                raise self.wrong("a predicate", self.taken)
            return Inverted(register)
        if text in "-~" and self.tokens[self.at].kind == "number":
            value = literal(self.take().text)
            if text == "~":
                return Literal("int", ~value.bits)
            signs = {"int": -value.bits, "f32": value.bits ^ 1 << 31, "f64": value.bits ^ 1 << 63}
            return Literal(value.kind, signs[value.kind])
        if token.kind == "number":
            return literal(text)
        if token.kind != "word":
            raise self.wrong("an operand", token)
        return self.named(kernel, text)

    def items(self, kernel: Kernel, end: str) -> tuple[Operand, ...]:
        """Read operands up to the mark `end`."""
        items = []
        while not self.accept(end):
            items.append(self.operand(kernel))
            self.accept(",")
        return tuple(items)

    def named(self, kernel: Kernel, text: str) -> Operand:
        """Return the operand that a word stands for."""
        if text == "_":
            return Sink()
        meaning = self.lookup(text)
        if isinstance(meaning, Register):
            return meaning
        resolved_name = self.resolved(text)
        if resolved_name in kernel.variables or resolved_name in self.result.variables:
            return Symbol(resolved_name, self.offset())
        if text.startswith("%") and meaning is None:
            return Special(text)
        if text == "WARP_SZ":
            return Literal("int", 32)
        return Name(resolved_name)

    def offset(self) -> int:
        """Read `+ n` or `- n` behind a symbol, if it is there."""
        if self.accept("+"):
            return self.integer()
        return self.integer() if self.peek() == "-" else 0

    def address(self, kernel: Kernel) -> Operand:
        """Read an address up to its closing bracket."""
        token = self.tokens[self.at]
        if token.kind == "number" or token.text == "-":
            offset = self.integer()
            self.take("]")
            return Address(None, offset)
        base = self.named(kernel, self.take().text)
        if isinstance(base, Symbol):
            result = Address(Symbol(base.name), base.offset)
        elif isinstance(base, Register):
            result = Address(base, self.offset())
        else:
            raise self.wrong("a register or a variable in brackets", token)
        if self.accept(","):
            self.take("{")
            vector = Vector(self.items(kernel, "}"))
            self.take("]")
            return TensorAddress(result, vector)
        self.take("]")
        return result


def _reach_next(code: list[Instruction]) -> None:
    """Let each instruction but the last reach to the next one in the text."""
    for index, instruction in enumerate(code[:-1]):
        size = code[index + 1].address - instruction.address
        code[index] = evolve(instruction, size=max(size, 1))
