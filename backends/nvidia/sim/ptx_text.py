"""Records of PTX text: operands, instructions, variables, kernels and modules, as `ptx_reader` reads them.

Sections are those of the PTX ISA document: "Syntax", "State Spaces, Types, and Variables", "Instruction Operands".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import TypeAlias

import attrs

from convgen.backends.nvidia.sim.ptx_types import bytes_of, is_type
from convgen.backends.sim.errors import SimulatorError
from convgen.ir.record import define, frozen

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
class TensorAddress:
    """An operand in brackets with coordinates: the address of a tensor map, and a vector."""

    address: Address
    coordinates: Vector


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


Operand: TypeAlias = (
    Register | Literal | Special | Symbol | Vector | Address | TensorAddress | Pair | Inverted | Sink | Name
)


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

    def is_in(self, *spaces: str) -> bool:
        """Return whether the opcode names any of some state spaces, also as a part of one, such as shared::cta."""
        return any(modifier.partition("::")[0] in spaces for modifier in self.modifiers)

    @property
    def vector(self) -> int:
        """Return the elements of a load or store: those of a vector, else 1."""
        return next((int(m[1:]) for m in self.modifiers if m in ("v2", "v4", "v8")), 1)

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
    is_pointer: bool = False  #: whether the text declares a parameter as .ptr
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
    limits: dict[str, tuple[int, int, int]] = attrs.field(factory=dict)  #: directive, such as maxntid -> its numbers
    param_bytes: int = 0
    local_bytes: int = 0


@define(eq=False)
class Module:
    """The variables and kernels of a PTX file."""

    target: str = ""
    variables: dict[str, Variable] = attrs.field(factory=dict)
    kernels: dict[str, Kernel] = attrs.field(factory=dict)
    #: Device functions as kernels, their results first among the parameters; None where the body is elsewhere.
    functions: dict[str, Kernel | None] = attrs.field(factory=dict)
    lines: list[int] = attrs.field(factory=list)  #: offsets of the starts of lines


# ---------------------------------------------------------------- constants


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


# ---------------------------------------------------------------- registers


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
    elif isinstance(operand, TensorAddress):
        yield from registers_of(operand.address)
        yield from registers_of(operand.coordinates)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)
    elif isinstance(operand, Inverted):
        yield operand.register
