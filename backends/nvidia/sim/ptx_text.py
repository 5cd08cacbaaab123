"""Read PTX text: directives, variables, kernels and their instructions with resolved names.

Sections are those of the PTX ISA document: "Syntax", "State Spaces, Types, and Variables", "Instruction Operands".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import attrs

from convgen.backends.nvidia.sim.ptx_types import bytes_of, is_type
from convgen.backends.sim.errors import SimulatorError, reading
from convgen.ir.record import define, evolve, frozen

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<string>"[^"\n]*")
    |(?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|[0-9]+U?)
    |(?P<word>[%$_A-Za-z.](?:[\w$.%]|::)*)
    |(?P<mark>[{}()\[\];,:!@|+\-<>=*&~/])""",
    re.S | re.X,
)
_MOST_REGISTERS = 1 << 17
_MOST_BYTES = 1 << 28  #: bytes of a variable
_HEADER = re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*\.version\s", re.S)


class Token(NamedTuple):
    """A word, number, string or mark, and its byte offset in the text."""

    kind: str
    text: str
    at: int


# ---------------------------------------------------------------- operands


@frozen
class Register:
    """A virtual register: its number in the kernel, and its declared type."""

    number: int
    type: str


@frozen
class Literal:
    """A constant: `bits` as written, of kind "int", "f32" or "f64"."""

    kind: str
    bits: int


@frozen
class Special:
    """A special register such as %tid.x."""

    name: str


@frozen
class Symbol:
    """The address of a variable, plus an offset in bytes."""

    name: str
    offset: int = 0


@frozen
class Vector:
    """Operands in braces."""

    items: tuple[Operand, ...]


@frozen
class Address:
    """An operand in brackets: a base, if any, and an offset in bytes."""

    base: Register | Symbol | None
    offset: int


@frozen
class Pair:
    """Two destinations `d|p`."""

    first: Operand
    second: Operand


@frozen
class Inverted:
    """A predicate behind `!`."""

    register: Register


@frozen
class Sink:
    """The operand `_`, which takes a result that nobody reads."""


@frozen
class Name:
    """A label, a function, or a table of labels."""

    name: str


Operand: TypeAlias = Register | Literal | Special | Symbol | Vector | Address | Pair | Inverted | Sink | Name


@frozen(eq=False)
class Instruction:
    """One instruction. `address` is the byte offset in the text, `size` reaches to the next instruction."""

    name: str  #: opcode up to the first dot
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None  #: predicate, and whether it is negated
    text: str
    address: int
    size: int

    def has(self, *modifiers: str) -> bool:
        """Return whether the opcode has any of some modifiers."""
        return any(modifier in self.modifiers for modifier in modifiers)

    @property
    def types(self) -> tuple[str, ...]:
        """Return the types among the modifiers, in order."""
        return tuple(modifier for modifier in self.modifiers if is_type(modifier))


@frozen
class Variable:
    """A variable: state space, alignment and size in bytes; `content` is None where it starts undefined."""

    name: str
    space: str
    align: int
    size: int
    content: bytes | None = None
    offset: int = 0  #: bytes from the start of its space, where the text fixes it
    dynamic: bool = False  #: whether the launch gives its size
    is_pointer: bool = False  #: of parameters: whether the text says so
    type: str = "b8"


@define(eq=False)
class Kernel:
    """A kernel: parameters, variables, and code with labels as indices of instructions."""

    name: str
    address: int
    parameters: tuple[Variable, ...] = ()
    registers: list[str] = attrs.field(factory=list)  #: types by number
    names: list[str] = attrs.field(factory=list)  #: names by number
    variables: dict[str, Variable] = attrs.field(factory=dict)  #: shared, local and parameters, by resolved name
    code: list[Instruction] = attrs.field(factory=list)
    labels: dict[str, int] = attrs.field(factory=dict)
    tables: dict[str, tuple[str, ...]] = attrs.field(factory=dict)  #: targets of brx.idx
    limits: dict[str, tuple[int, int, int]] = attrs.field(factory=dict)  #: maxntid, reqntid
    param_bytes: int = 0
    local_bytes: int = 0


@define(eq=False)
class Module:
    """The variables and kernels of a PTX file."""

    target: str = ""
    version: str = ""
    variables: dict[str, Variable] = attrs.field(factory=dict)
    kernels: dict[str, Kernel] = attrs.field(factory=dict)
    #: Device functions as kernels, their results first among the parameters; None where the body is elsewhere.
    functions: dict[str, Kernel | None] = attrs.field(factory=dict)
    lines: list[int] = attrs.field(factory=list)  #: offsets of the starts of lines


def is_ptx(content: bytes) -> bool:
    """Return whether bytes begin as PTX does: comments, then .version."""
    return _HEADER.match(content) is not None


def tokens(text: str) -> list[Token]:
    """Split PTX into tokens. Raises SimulatorError at a character that PTX lacks."""
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            raise SimulatorError(f"given {text[at : at + 10]!r} in line {line} of the PTX, wanted PTX")
        if match.lastgroup != "space":
            found.append(Token(str(match.lastgroup), match.group(), at))
        at = match.end()
    return found


def literal(text: str) -> Literal:
    """Return the constant that a number token stands for."""
    lower = text.lower()
    if lower.startswith("0f") and len(text) == 10:
        return Literal("f32", int(text[2:], 16))
    if lower.startswith("0d") and len(text) == 18:
        return Literal("f64", int(text[2:], 16))
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?(e[-+]?[0-9]+)?", lower) and not lower.isdigit():
        return Literal("f64", struct.unpack("<Q", struct.pack("<d", float(text)))[0])
    digits = lower.rstrip("u")
    if digits.startswith("0b"):
        return Literal("int", int(digits[2:], 2))
    if len(digits) > 1 and digits[0] == "0" and digits.isdigit():
        return Literal("int", int(digits, 8))
    return Literal("int", int(digits, 0))


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


class _Reader:
    """Reads the tokens of a file from first to last."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.at = 0
        self.result = Module()
        self.scopes: list[dict[str, Register | str]] = []  # names of a kernel, inner blocks last
        self.blocks = 0

    # -- tokens -------------------------------------------------------------------------------------------------------

    def peek(self, ahead: int = 0) -> str:
        """Return the text of a coming token; "" behind the end."""
        place = self.at + ahead
        return self.tokens[place].text if place < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> Token:
        """Return the next token, which must be `wanted` if that is given."""
        if self.at >= len(self.tokens):
            raise SimulatorError("given PTX that ends within a statement, wanted a whole file")
        token = self.tokens[self.at]
        if wanted is not None and token.text != wanted:
            raise self.wrong(f"{wanted!r}", token)
        self.at += 1
        return token

    def accept(self, wanted: str) -> bool:
        """Take the next token if it is `wanted`."""
        if self.peek() != wanted:
            return False
        self.at += 1
        return True

    def wrong(self, wanted: str, token: Token | None = None) -> SimulatorError:
        """Return the error for an unexpected token."""
        where = token or self.tokens[min(self.at, len(self.tokens) - 1)]
        line = self.text.count("\n", 0, where.at) + 1
        return SimulatorError(f"given {where.text!r} in line {line} of the PTX, wanted {wanted}")

    def integer(self) -> int:
        """Take an integer constant."""
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if token.kind != "number":
            raise self.wrong("a number", token)
        value = literal(token.text)
        if value.kind != "int":
            raise self.wrong("an integer", token)
        return sign * value.bits

    def skip_to(self, *ends: str) -> None:
        """Take tokens up to one of `ends`, which is taken too."""
        while self.take().text not in ends:
            pass

    def skip_line(self) -> None:
        """Take the rest of a directive that ends with its line."""
        end = self.text.find("\n", self.tokens[self.at - 1].at)
        while self.at < len(self.tokens) and (end < 0 or self.tokens[self.at].at < end):
            self.at += 1

    # -- module -------------------------------------------------------------------------------------------------------

    def module(self) -> Module:
        """Read all directives."""
        result = self.result
        result.lines = [0, *(match.end() for match in re.finditer("\n", self.text))]
        while self.at < len(self.tokens):
            word = self.take().text
            if word == ".version":
                result.version = self.take().text
            elif word == ".target":
                result.target = self.take().text
                while self.accept(","):
                    self.take()
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
                raise self.wrong("a directive", self.tokens[self.at - 1])
        for kernel in result.kernels.values():
            inline(result, kernel, ())
        return result

    def function(self) -> None:
        """Read a device function, or skip one whose parameters are registers; its name stays known."""
        start = self.tokens[self.at - 1].at
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
        self.finish(kernel)
        self.result.functions[name] = kernel

    def parameters(self) -> list[Variable]:
        """Read parameters up to the closing bracket, with their offsets."""
        found: list[Variable] = []
        end = 0
        while not self.accept(")"):
            if self.peek() == ".reg":
                raise self.wrong("parameters in .param")
            self.take(".param")
            (variable,) = self.declaration("param")
            end = -(-end // variable.align) * variable.align
            found.append(evolve(variable, offset=end))
            end += variable.size
            self.accept(",")
        return found

    def declaration(self, space: str, *, external: bool = False) -> list[Variable]:
        """Read variables of a state space, up to the semicolon (or the comma or bracket behind a parameter)."""
        align, type_, pointer, width = 0, "", False, 1
        while self.peek().startswith("."):
            word = self.take().text[1:]
            if word == "align":
                align = self.integer()
            elif word == "ptr":
                pointer = True
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
                raise self.wrong("a type", self.tokens[self.at - 1])
        if not type_:
            raise self.wrong("a type")
        found = []
        while True:
            name = self.take().text
            size, dynamic, is_array = bytes_of(type_) * width, False, False
            while self.accept("["):
                is_array = True
                if self.peek() == "]":
                    dynamic, size = True, 0
                else:
                    size *= self.integer()
                self.take("]")
            if not 0 <= size <= _MOST_BYTES:
                raise self.wrong(f"a variable of at most {_MOST_BYTES} bytes")
            content = self.initial(type_) if self.accept("=") else None
            if content is None and space in ("global", "const") and not external:
                content = b""  # PTX ISA, Initializers: variables without one start as zeros
            if content is not None:
                size = max(size, len(content))
                content = content.ljust(size, b"\0")
            natural = bytes_of(type_) * width
            found.append(
                Variable(
                    name, space, align or natural, size, content, 0, dynamic and content is None, pointer,
                    "b8" if is_array else type_,
                )
            )  # fmt: skip
            if space == "param" or not self.accept(","):
                break
        if space != "param":
            self.take(";")
        return found

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
        start = self.tokens[self.at - 1].at
        name = self.take().text
        kernel = Kernel(name, start)
        self.scopes = [{}]
        parameters = self.parameters() if self.accept("(") else []
        kernel.parameters = tuple(parameters)
        kernel.param_bytes = max((variable.offset + variable.size for variable in parameters), default=0)
        kernel.variables.update({variable.name: variable for variable in parameters})
        while self.peek() not in ("{", ";"):
            directive = self.take().text
            if directive in (".maxntid", ".reqntid"):
                sizes = [self.integer()]
                while self.accept(","):
                    sizes.append(self.integer())
                kernel.limits[directive[1:]] = (*sizes, 1, 1)[:3]  # type: ignore[assignment]
            elif self.tokens[self.at].kind == "number":
                self.integer()
                while self.accept(","):
                    self.integer()
            elif directive == ".pragma":
                self.skip_to(";")
        if self.accept(";"):
            return
        self.take("{")
        self.body(kernel)
        self.finish(kernel)
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
        depth, place, found = 0, self.at, {}
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
                found[text] = f"{text}@{self.blocks}"
            place += 1
        return found  # type: ignore[return-value]

    def lookup(self, name: str) -> Register | str | None:
        """Return what a name stands for in the innermost block that declares it."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def label(self, kernel: Kernel, name: str) -> None:
        """Place a label, or read the table of targets behind it."""
        found = self.lookup(name)
        own = found if isinstance(found, str) else name
        if self.peek() == ".branchtargets":
            self.take()
            targets = [self.take().text]
            while self.accept(","):
                targets.append(self.take().text)
            self.take(";")
            kernel.tables[own] = tuple(self.resolved(target) for target in targets)
        elif self.peek() == ".callprototype":
            self.skip_to(";")
        else:
            kernel.labels[own] = len(kernel.code)

    def resolved(self, name: str) -> str:
        found = self.lookup(name)
        return found if isinstance(found, str) else name

    def registers(self, kernel: Kernel) -> None:
        """Read a declaration of registers."""
        type_ = ""
        while self.peek().startswith("."):
            word = self.take().text[1:]
            if word in ("v2", "v4"):
                raise self.wrong("scalar registers, for vector registers are not simulated", self.tokens[self.at - 1])
            type_ = word
        if type_ != "pred" and not is_type(type_):
            raise self.wrong("the type of registers", self.tokens[self.at - 1])
        while True:
            name = self.take().text
            names = [name]
            if self.accept("<"):
                count = self.integer()
                self.take(">")
                if len(kernel.registers) + count > _MOST_REGISTERS:
                    raise self.wrong(f"at most {_MOST_REGISTERS} registers")
                names = [f"{name}{number}" for number in range(count)]
            for each in names:
                self.scopes[-1][each] = Register(len(kernel.registers), type_)
                kernel.registers.append(type_)
                kernel.names.append(each)
            if not self.accept(","):
                break
        self.take(";")

    def place(self, kernel: Kernel, variable: Variable) -> None:
        """Take a variable of a kernel's body."""
        own = variable.name if len(self.scopes) == 1 else f"{variable.name}@{self.blocks}"
        if variable.space in ("local", "param"):  # parameters of a call live in memory of the thread
            offset = -(-kernel.local_bytes // variable.align) * variable.align
            kernel.local_bytes = offset + variable.size
            variable = evolve(variable, offset=offset, space="local")
        self.scopes[-1][variable.name] = own
        kernel.variables[own] = evolve(variable, name=own)

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
        operands = []
        if self.peek() != ";":
            operands.append(self.operand(kernel))
            while self.accept(","):
                operands.append(self.operand(kernel))
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
            items = []
            while not self.accept("}"):
                items.append(self.operand(kernel))
                self.accept(",")
            return Vector(tuple(items))
        if text == "[":
            return self.address(kernel)
        if text == "(":
            items = []
            while not self.accept(")"):
                items.append(self.operand(kernel))
                self.accept(",")
            return items[0] if len(items) == 1 and isinstance(items[0], Literal) else Vector(tuple(items))
        if text == "!":
            register = self.lookup(self.take().text)
            if not isinstance(register, Register):
                raise self.wrong("a predicate", self.tokens[self.at - 1])
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

    def named(self, kernel: Kernel, text: str) -> Operand:
        """Return the operand that a word stands for."""
        if text == "_":
            return Sink()
        found = self.lookup(text)
        if isinstance(found, Register):
            return found
        own = found if isinstance(found, str) else text
        if own in kernel.variables or own in self.result.variables:
            return Symbol(own, self.offset())
        if text.startswith("%") and found is None:
            return Special(text)
        if text == "WARP_SZ":
            return Literal("int", 32)
        return Name(own)

    def offset(self) -> int:
        """Read `+ n` or `- n` behind a symbol, if it is there."""
        if self.peek() == "+":
            self.take()
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
        if self.peek() != "]":
            raise self.wrong("']', for tensors and textures are not simulated")
        self.take("]")
        return result

    def finish(self, kernel: Kernel) -> None:
        """Let each instruction reach to the next one, and place the shared variables of the body."""
        code = kernel.code
        for index, instruction in enumerate(code[:-1]):
            size = code[index + 1].address - instruction.address
            code[index] = evolve(instruction, size=max(size, 1))


# ---------------------------------------------------------------- calls


def inline(module: Module, caller: Kernel, stack: tuple[str, ...]) -> None:
    """Replace calls of device functions by their bodies; calls of other functions, and recursive ones, stay."""
    if not any(instruction.name == "call" for instruction in caller.code):
        return
    old, caller.code = caller.code, []
    place = []
    for instruction in old:
        place.append(len(caller.code))
        callee = _callee(module, instruction)
        if callee is None or callee.name in (*stack, caller.name):
            caller.code.append(instruction)
            continue
        inline(module, callee, (*stack, caller.name))
        _paste(caller, callee, instruction)
    place.append(len(caller.code))
    caller.labels = {name: index if name.startswith("<") else place[index] for name, index in caller.labels.items()}


def _callee(module: Module, instruction: Instruction) -> Kernel | None:
    """Return the function that an instruction calls, if its body is there."""
    if instruction.name != "call":
        return None
    name = next((operand.name for operand in instruction.operands if isinstance(operand, Name)), "")
    return module.functions.get(name)


def _paste(caller: Kernel, callee: Kernel, call: Instruction) -> None:
    """Append a function's body, with registers, variables and labels of its own."""
    tag = f"<{len(caller.labels)}>"
    passed = [item for operand in call.operands if isinstance(operand, Vector) for item in operand.items]
    names = {v.name: item.name for v, item in zip(callee.parameters, passed, strict=False) if isinstance(item, Symbol)}
    if len(names) != len(callee.parameters):
        raise SimulatorError(f"given `{call.text}`, wanted {len(callee.parameters)} parameters for {callee.name}")
    base, shift = len(caller.registers), -(-caller.local_bytes // 16) * 16
    for variable in callee.variables.values():
        if variable.name not in names:
            names[variable.name] = own = tag + variable.name
            caller.variables[own] = evolve(variable, name=own, offset=variable.offset + shift)
    caller.local_bytes = shift + callee.local_bytes
    caller.registers += callee.registers
    caller.names += callee.names
    end, start = f"{tag}end", len(caller.code)
    if call.guard is not None:
        register, negated = call.guard
        skip = evolve(call, name="bra", modifiers=(), operands=(Name(end),), guard=(register, not negated))
        caller.code.append(skip)
        start += 1

    def moved(operand: Operand) -> Operand:
        if isinstance(operand, Register):
            return evolve(operand, number=operand.number + base)
        if isinstance(operand, Symbol):
            return evolve(operand, name=names.get(operand.name, operand.name))
        if isinstance(operand, Name):
            return Name(tag + operand.name) if operand.name in own_names else operand
        if isinstance(operand, Vector):
            return Vector(tuple(map(moved, operand.items)))
        if isinstance(operand, Pair):
            return Pair(moved(operand.first), moved(operand.second))
        if isinstance(operand, Inverted):
            return Inverted(evolve(operand.register, number=operand.register.number + base))
        if isinstance(operand, Address) and operand.base is not None:
            inner = moved(operand.base)
            assert isinstance(inner, Register | Symbol)
            return Address(inner, operand.offset)
        return operand

    own_names = {*callee.labels, *callee.tables}
    for instruction in callee.code:
        operands = tuple(map(moved, instruction.operands))
        guard = instruction.guard
        if guard is not None:
            guard = evolve(guard[0], number=guard[0].number + base), guard[1]
        copy = evolve(instruction, operands=operands, guard=guard)
        if instruction.name == "ret":
            copy = evolve(copy, name="bra", modifiers=(), operands=(Name(end),))
        caller.code.append(copy)
    caller.labels.update({tag + name: start + index for name, index in callee.labels.items()})
    caller.tables.update({tag + name: tuple(tag + t for t in targets) for name, targets in callee.tables.items()})
    caller.labels[end] = len(caller.code)


def literal_bits(value: Literal, type_: str, *, negative: bool = False) -> int:
    """Return the bits of a constant in a type; `negative` inverts its sign. Raises SimulatorError."""
    size = bytes_of(type_)
    mask = (1 << 8 * size) - 1
    if value.kind == "int":
        if type_[0] == "f" and size >= 4:
            code = "<d" if size == 8 else "<f"
            number = float(-value.bits if negative else value.bits)
            return int.from_bytes(struct.pack(code, number), "little")
        return (-value.bits if negative else value.bits) & mask
    if value.kind == "f32" and size == 4:
        return value.bits ^ (1 << 31 if negative else 0)
    if value.kind == "f64" and size == 8:
        return value.bits ^ (1 << 63 if negative else 0)
    code, width = ("<f", 4) if value.kind == "f32" else ("<d", 8)
    number = float(struct.unpack(code, value.bits.to_bytes(width, "little"))[0]) * (-1 if negative else 1)
    if size not in (4, 8):
        raise SimulatorError(f"given a floating-point constant for .{type_}, wanted .f32 or .f64")
    try:
        return int.from_bytes(struct.pack("<d" if size == 8 else "<f", number), "little")
    except OverflowError:
        raise SimulatorError(f"given the constant {number} for .{type_}, wanted one that fits") from None


def registers_of(operand: Operand) -> Iterator[Register]:
    """Yield the registers that an operand names."""
    if isinstance(operand, Register):
        yield operand
    elif isinstance(operand, Vector):
        for item in operand.items:
            yield from registers_of(item)
    elif isinstance(operand, Address):
        if isinstance(operand.base, Register):
            yield operand.base
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)
    elif isinstance(operand, Inverted):
        yield operand.register
