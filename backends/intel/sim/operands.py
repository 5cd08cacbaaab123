"""Source operands: read regions and apply modifiers; undefined bytes are read along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from operator import or_

import ml_dtypes
import numpy as np

from convgen.backends.intel.sim.decode import SIZES, Instruction, Operand, Region
from convgen.backends.intel.sim.register_file import byte_bits
from convgen.backends.intel.sim.state import ThreadGroup
from convgen.backends.intel.sim.step import Context, unsupported
from convgen.backends.sim.wave_arrays import Array, Bools, any_along
from convgen.ir.record import define

FLOATS = frozenset(("hf", "bf", "f", "df", "vf"))
#: The view of registers that holds a type.
VIEWS: Mapping[str, str] = {
    "ub": "u1",
    "b": "i1",
    "uw": "u2",
    "w": "i2",
    "ud": "u4",
    "d": "i4",
    "uq": "u8",
    "q": "i8",
    "hf": "f2",
    "bf": "u2",
    "f": "f4",
    "df": "f8",
}
Get = Callable[[ThreadGroup], Array]
KEEPS_DENORMALS = {"df": 1 << 6, "f": 1 << 7, "hf": 1 << 10}  #: bits of cr0.0; where clear, denormals become zeros
TINY = {"hf": 2.0**-14, "f": 2.0**-126, "df": 2.0**-1022}  #: the least normal numbers


def is_signed(type_: str) -> bool:
    """Return whether an integer type has a sign."""
    return type_ in ("b", "w", "d", "q", "v")


@define(eq=False)
class Reader:
    """A source ready to be read: numbers [threads, lanes or 1] in the working type, and where they come from."""

    get: Get
    undefined: Callable[[ThreadGroup], Bools | None]
    bits: int = 0  #: register bytes that it reads, as a bit set
    type: str = ""
    constant: bool = False
    raw: Get | None = None  #: the data as it stands in registers
    marks: Callable[[ThreadGroup], Array | None] | None = None  #: its poison, byte by byte


def element_bytes(operand: Operand, lanes: int, start: int, *, destination: bool = False) -> Array:
    """Return the byte offset of each lane's element."""
    return np.asarray(start + _steps(operand.region, lanes, destination) * operand.size)


@lru_cache(maxsize=1 << 10)
def _steps(region: Region | None, lanes: int, destination: bool) -> Array:
    """Return the distance of each lane's element from the first, in elements."""
    lane = np.arange(lanes)
    if region is None:
        return lane
    if destination:
        return lane * region.horizontal
    width = max(region.width, 1)
    return lane // width * region.vertical + lane % width * region.horizontal


@lru_cache(maxsize=1 << 10)
def _bits(region: Region | None, lanes: int, size: int) -> int:
    """Return the register bytes of a source that begins at byte 0, as a bit set."""
    return reduce(or_, (byte_bits(place, size) for place in (_steps(region, lanes, False) * size).tolist()))


def working(type_: str, raw: Array) -> Array:
    """Return register data as numbers of the working types: int64, float32 or float64."""
    if type_ == "bf":
        return np.asarray(np.asarray(raw, np.uint16).view(ml_dtypes.bfloat16).astype(np.float32))
    if type_ == "hf":
        return raw.astype(np.float32)
    if type_ in ("f", "df"):
        return raw
    if type_ == "uq":
        return raw.view(np.int64)
    return raw.astype(np.int64)


def _modified(get: Get, operand: Operand, *, logical: bool) -> Get:
    """Return a source with its modifiers; on logic instructions the sign means complement."""
    absolute, negate = operand.absolute, operand.negate
    if absolute and negate:
        return lambda g: -np.abs(get(g))
    if absolute:
        return lambda g: np.abs(get(g))
    if negate and logical:
        return lambda g: ~get(g)
    if negate:
        return lambda g: -get(g)
    return get


def _flushed(get: Get, type_: str) -> Get:
    """Return a source whose denormals are zeros unless cr0 keeps them."""
    bit = KEEPS_DENORMALS.get(type_)
    if bit is None:
        return get

    def flushed(g: ThreadGroup) -> Array:
        values = get(g)
        return values if g.control & bit else flush(values, TINY[type_])

    return flushed


def flush(values: Array, smallest: float) -> Array:
    """Replace numbers below `smallest`, the least normal one, by zeros of their sign."""
    return np.where(np.abs(values) < smallest, np.copysign(values.dtype.type(0), values), values)


def source(
    operand: Operand, lanes: int, instruction: Instruction, context: Context, *, logical: bool = False
) -> Reader:
    """Return a reader of a source of `lanes` elements."""
    if operand.kind == "imm":
        values = immediate(operand, lanes, _word_steps(instruction))
        if operand.negate or operand.absolute:
            raise unsupported(instruction, "modifier on an immediate")
        return Reader(lambda g: values, lambda g: None, type=operand.type, constant=True)
    if operand.type not in VIEWS and operand.kind in ("reg", "indirect"):
        raise unsupported(instruction, f"type {operand.type}")
    if operand.kind == "indirect":
        return _indirect_source(operand, lanes, instruction, context, logical=logical)
    if operand.kind != "reg":
        raise unsupported(instruction, f"{operand.kind} source")
    if operand.file == "f":
        return _flag_source(operand, context)
    if operand.file == "ce":
        return Reader(_channel_enables, lambda g: None, type=operand.type)
    return _register_source(operand, lanes, context, logical=logical)


def _register_source(operand: Operand, lanes: int, context: Context, *, logical: bool) -> Reader:
    """Return a reader of general registers, accumulators, or other architecture registers, at a known place."""
    layout = context.layout
    start = layout.start(operand.file, operand.reg, operand.sub * operand.size)
    places = element_bytes(operand, lanes, start)
    first, end = int(places.min()), int(places.max()) + operand.size
    if end > layout.end(operand.file):
        context.fault("register-range", f"source reaches beyond {operand.file}{layout.registers - 1}")
        return Reader(lambda g: np.zeros((g.count, 1), np.int64), lambda g: None, type=operand.type)
    if first % operand.size:
        context.fault("region", f"source is not aligned to its type {operand.type}")
    bits = _bits(operand.region, lanes, operand.size) << start
    units = layout.units(first, end - first)
    index = _index(places // operand.size)
    view, size, type_ = VIEWS[operand.type], operand.size, operand.type

    def get(g: ThreadGroup) -> Array:
        return working(type_, g.views[view][:, index])

    def undefined(g: ThreadGroup) -> Bools | None:
        if not g.dirty & units:
            return None
        poison: Bools = g.poisons[size][:, index] != 0
        return poison if poison.any() else None

    def marks(g: ThreadGroup) -> Array | None:
        if not g.dirty & units:
            return None
        poison = g.poisons[size][:, index]
        return poison.copy() if poison.any() else None

    got = _modified(_flushed(get, type_), operand, logical=logical)
    return Reader(got, undefined, bits, type_, raw=lambda g: g.views[view][:, index], marks=marks)


def _index(elements: Array) -> slice | Array:
    """Return element numbers as a slice if they are evenly spaced, of one element if all are equal."""
    first = int(elements[0])
    if len(elements) == 1 or (elements == first).all():
        return slice(first, first + 1)
    step = int(elements[1]) - first
    if step > 0 and (np.diff(elements) == step).all():
        return slice(first, int(elements[-1]) + 1, step)
    return elements


def _word_steps(instruction: Instruction) -> int:
    """Return the words from lane to lane of a destination."""
    dst = instruction.dst
    if dst is None or not dst.type or dst.region is None:
        return 1
    return max(dst.region.horizontal * dst.size // 2, 1)


def immediate(operand: Operand, lanes: int, steps: int = 1) -> Array:
    """Return an immediate's number, [1, 1], or [1, lanes] for a packed vector.

    An integer vector has a number for each word of the destination, of which lanes `steps` words apart take every
    `steps`-th (IGC interleaves the numbers for a destination of dwords: fixDstAlignmentWithVectorImm).
    """
    type_, value = operand.type, operand.value
    if type_ in ("v", "uv"):
        nibbles = [(value >> (4 * (steps * lane % 8))) & 15 for lane in range(lanes)]
        if type_ == "v":
            nibbles = [nibble - 16 if nibble > 7 else nibble for nibble in nibbles]
        return np.array([nibbles], np.int64)
    if type_ == "vf":
        return np.array([[_tiny_float(value >> (8 * (lane % 4)) & 0xFF) for lane in range(lanes)]], np.float32)
    size = SIZES[type_]
    raw = np.frombuffer((value & ((1 << (8 * size)) - 1)).to_bytes(size, "little"), f"<{VIEWS[type_]}")
    return working(type_, raw.reshape(1, 1))


def _tiny_float(bits: int) -> float:
    """Decode a restricted 8-bit float: sign, 3 bits of exponent (bias 3), 4 of mantissa; 0 is zero."""
    if bits & 0x7F == 0:
        return 0.0
    size = (1 + (bits & 15) / 16) * 2.0 ** ((bits >> 4 & 7) - 3)
    return -size if bits & 0x80 else size


def _flag_source(operand: Operand, context: Context) -> Reader:
    """Return a reader of flag registers."""
    first = operand.reg * 32 + operand.sub * operand.size * 8
    count = operand.size * 8

    def undefined(g: ThreadGroup) -> Bools | None:
        if not g.flags_dirty:
            return None
        poison = any_along(g.flag_poison[:, first : first + count], 1, keepdims=True)
        return poison if poison.any() else None

    def raw(g: ThreadGroup) -> Array:
        packed = np.packbits(g.flags[:, first : first + count], axis=1, bitorder="little")
        return packed.view(VIEWS[operand.type])

    def marks(g: ThreadGroup) -> Array | None:
        if not g.flags_dirty:
            return None
        poison = np.packbits(g.flag_poison[:, first : first + count], axis=1, bitorder="little")
        return poison.view(f"u{operand.size}") if poison.any() else None

    start = context.layout.start("f", operand.reg, operand.sub * operand.size)
    bits = byte_bits(start, operand.size)
    return Reader(lambda g: working(operand.type, raw(g)), undefined, bits, operand.type, raw=raw, marks=marks)


def _channel_enables(g: ThreadGroup) -> Array:
    packed = np.packbits(g.mask, axis=1, bitorder="little")
    return packed.view("<u4").astype(np.int64)


def address_bits(operand: Operand, lanes: int, context: Context) -> int:
    """Return the bytes of a0 that an indirect operand reads."""
    region = operand.region
    count = lanes // region.width if region is not None and region.vertical < 0 else 1
    return byte_bits(context.layout.start("a", 0, 2 * operand.sub), 2 * count)


def indirect_places(operand: Operand, lanes: int, instruction: Instruction, g: ThreadGroup) -> Array:
    """Return the byte offset of each [thread, lane] of an operand addressed through a0; report undefined addresses."""
    start = g.layout.address + 2 * operand.sub
    region = operand.region
    lanes_of_address = (
        region.width if region is not None and region.vertical < 0 else lanes
    )  # lanes that share an address
    count = -(-lanes // lanes_of_address)
    if g.dirty & g.layout.units(start, 2 * count):
        bad = any_along(g.poison[:, start : start + 2 * count], 1)
        g.env.reporter.at_first("poison", "the register address is undefined", instruction, g, bad)
    base = g.views["u2"][:, start // 2 : start // 2 + count].astype(np.int64) + operand.value
    within = element_bytes(operand, lanes, 0)
    if region is not None and region.vertical < 0:
        within = np.arange(lanes) % lanes_of_address * region.horizontal * operand.size
    places = within[None] + np.repeat(base, lanes_of_address, axis=1)
    limit = g.layout.acc - operand.size
    bad = any_along((places < 0) | (places > limit), 1)
    if bad.any():
        g.env.reporter.at_first("register-range", "the register address leaves the register file", instruction, g, bad)
        places = np.clip(places, 0, limit)
    return places


def _report_unfinished_writes(g: ThreadGroup, instruction: Instruction, places: Array, size: int) -> None:
    """Report elements at some places that an earlier instruction may still write."""
    bits = 0
    for place in np.unique(places).tolist():
        bits |= byte_bits(place, size)
    board = g.score.board
    index = next((s.index for s in board.steps if s is not None and s.instruction.address == instruction.address), -1)
    for kind, message in board.indirect(g.score, index, bits):
        g.env.reporter.add(kind, message, instruction, g)


def _indirect_source(
    operand: Operand, lanes: int, instruction: Instruction, context: Context, *, logical: bool
) -> Reader:
    """Return a reader of registers addressed through a0, which the scoreboard checks when they are read."""
    size, type_ = operand.size, operand.type

    def get(g: ThreadGroup) -> Array:
        places = indirect_places(operand, lanes, instruction, g)
        _report_unfinished_writes(g, instruction, places, size)
        rows = np.arange(g.count)[:, None]
        return working(type_, g.views[VIEWS[type_]][rows, places // size])

    def undefined(g: ThreadGroup) -> Bools | None:
        places = indirect_places(operand, lanes, instruction, g)
        found: Bools = g.poisons[size][np.arange(g.count)[:, None], places // size] != 0
        return found if found.any() else None

    got = _modified(_flushed(get, type_), operand, logical=logical)
    return Reader(got, undefined, address_bits(operand, lanes, context), type_)
