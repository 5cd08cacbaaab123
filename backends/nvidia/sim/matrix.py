"""mma.sync, ldmatrix, stmatrix and movmatrix (PTX ISA, Warp Level Matrix Multiply-Accumulate Instructions).

Fragments, with g = lane / 4, t = lane % 4 and e elements in a register: element j of register i of A is
(g + 8 (i % 2), t e + j + 4 e (i / 2)), or (g, t e + j + 4 e i) for 8 rows; of B (t e + j + 4 e i, g); number i of C
and D is (g + 8 (i / 2), 2 t + i % 2).

`matrix_sums` adds the products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from convgen.backends.nvidia.sim.control import check_aligned
from convgen.backends.nvidia.sim.matrix_sums import multiplier
from convgen.backends.nvidia.sim.memory_access import addresses, load_shared, store_shared
from convgen.backends.nvidia.sim.operands import Putter, numbers_of, report_undefined, source, target, wrong
from convgen.backends.nvidia.sim.ptx_text import Instruction, Operand, Vector
from convgen.backends.nvidia.sim.ptx_types import TYPES
from convgen.backends.nvidia.sim.rounding import FORMATS, decode, encode, rounded
from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.sim.wave_arrays import Array, Bools, any_along
from convgen.ir.record import frozen

_SHAPES: Mapping[str, frozenset[tuple[int, int, int]]] = {  # by the type of A; "8": s8 and u8, "4": s4 and u4
    "f16": frozenset({(16, 8, 8), (16, 8, 16)}),
    "bf16": frozenset({(16, 8, 8), (16, 8, 16)}),
    "tf32": frozenset({(16, 8, 4), (16, 8, 8)}),
    "f64": frozenset({(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)}),
    "8": frozenset({(8, 8, 16), (16, 8, 16), (16, 8, 32)}),
    "4": frozenset({(8, 8, 32), (16, 8, 32), (16, 8, 64)}),
    "e4m3": frozenset({(16, 8, 16), (16, 8, 32)}),
    "e5m2": frozenset({(16, 8, 16), (16, 8, 32)}),
}


@frozen
class Fragment:
    """Places of a matrix's elements: register, element of the register and lane, as arrays [rows, columns]."""

    register: Array
    element: Array
    lane: Array
    registers: int


@lru_cache(maxsize=64)
def factor(rows: int, columns: int, per_register: int, *, second: bool) -> Fragment:
    """Return the fragment of A [m, k], or of the `second` factor B [k, n]; registers hold `per_register` elements."""
    lane = np.arange(LANES)
    group, thread = lane // 4, lane % 4
    registers = rows * columns // (LANES * per_register)
    shape = (rows, columns)
    register, element, lanes = (np.zeros(shape, np.int64) for _ in range(3))
    for i in range(registers):
        for j in range(per_register):
            if second:
                row, column = thread * per_register + j + 4 * per_register * i, group
            elif rows == 16:
                row, column = group + 8 * (i % 2), thread * per_register + j + 4 * per_register * (i // 2)
            else:
                row, column = group, thread * per_register + j + 4 * per_register * i
            register[row, column], element[row, column], lanes[row, column] = i, j, lane
    return Fragment(register, element, lanes, registers)


@lru_cache(maxsize=16)
def accumulator(rows: int) -> tuple[Array, Array]:
    """Return row and column of each number of C and D [numbers, lanes]."""
    lane, numbers = np.arange(LANES), rows * 8 // LANES
    number = np.arange(numbers)[:, None]
    return lane // 4 + 8 * (number // 2), 2 * (lane % 4) + number % 2


# ---------------------------------------------------------------- mma


def compile_matrix(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a matrix instruction; None for other instructions."""
    makers: Mapping[str, Callable[[Instruction, Context], Step]] = {
        "mma": _product,
        "ldmatrix": _load,
        "stmatrix": _store,
        "movmatrix": _move,
    }
    maker = makers.get(instruction.name)
    return None if maker is None else maker(instruction, context)


def items_of(instruction: Instruction, operand: Operand, count: int) -> Sequence[Operand]:
    """Return the registers of an operand, which are `count`. Raises SimulatorError for others."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise wrong(instruction, f"{len(items)} registers", str(count))
    return items


def shape_of(instruction: Instruction) -> tuple[int, int, int]:
    """Return m, n and k of the shape among the modifiers. Raises Unsupported if there is none."""
    for modifier in instruction.modifiers:
        if modifier.startswith("m") and "n" in modifier and modifier[1:2].isdigit():
            m, rest = modifier[1:].split("n")
            n, k = rest.split("k")
            return int(m), int(n), int(k)
    raise unsupported(instruction)


def _product(instruction: Instruction, context: Context) -> Step:
    """Return the step of mma.sync."""
    shape = m, n, k = shape_of(instruction)
    types = instruction.types
    if instruction.has("sp", "sp::ordered_metadata", "xor", "and", "block_scale") or len(types) != 4:
        raise unsupported(instruction, "sparse, scaled and one-bit products are not simulated")
    d_type, a_type, b_type, c_type = types
    family = {"s8": "8", "u8": "8", "s4": "4", "u4": "4"}.get(a_type, a_type)
    if shape not in _SHAPES.get(family, ()):
        raise unsupported(instruction, f"the shape m{m}n{n}k{k} of {a_type}")
    if not instruction.has("row") or not instruction.has("col"):
        raise wrong(instruction, "other layouts", ".row.col")
    width = 64 if a_type == "f64" else 32
    per_register = max(width // TYPES[a_type].bits, 1)
    first, second = factor(m, k, per_register, second=False), factor(k, n, per_register, second=True)
    results = m * n // LANES  # numbers of D that a lane holds
    count = results // 2 if d_type == "f16" else results
    operands = instruction.operands
    result_bits = {"f64": "b64"}.get(d_type, "b32")
    writes = [target(context, instruction, o, result_bits) for o in items_of(instruction, operands[0], count)]
    a_items = items_of(instruction, operands[1], first.registers)
    b_items = items_of(instruction, operands[2], second.registers)
    c_items = items_of(instruction, operands[3], results // 2 if c_type == "f16" else results)
    reads_a = [source(context, instruction, o, f"b{width}") for o in a_items]
    reads_b = [source(context, instruction, o, f"b{width}") for o in b_items]
    reads_c = [source(context, instruction, o, result_bits) for o in c_items]
    poisoned = [numbers_of(*items) for items in (a_items, b_items, c_items)]
    multiply = multiplier(a_type, b_type, saturates=instruction.has("satfinite"))
    where = accumulator(m)
    step = Step(instruction, "mma", lambda g: None)

    def run(g: WarpGroup) -> None:
        check_aligned(g, step, g.active, whole=True)
        a = gathered([read(g) for read in reads_a], first, a_type, g)
        b = gathered([read(g) for read in reads_b], second, b_type, g)
        c = accumulated([read(g) for read in reads_c], where, (m, n), c_type, g)
        d = multiply(a, b, c)
        poison = None
        if any(g.undefined(some) is not None for some in poisoned):
            poison = _spread_poison(g, (a_items, b_items, c_items), first, second, where, c_type)
        scatter(g, d, where, d_type, writes, poison)

    return step.running(run)


def gathered(registers: Sequence[Array], fragment: Fragment, kind: str, g: WarpGroup) -> Array:
    """Return a factor [warps, rows, columns] as numbers."""
    words = np.stack([np.broadcast_to(register, g.shape) for register in registers])
    bits = TYPES[kind].bits
    if bits >= 32:
        values = decode(words, kind)[:, None]
    else:
        raw = np.stack([words >> np.uint32(bits * j) for j in range(32 // bits)], axis=1)
        values = numbers_in(raw, kind)
    return np.moveaxis(values[fragment.register, fragment.element, :, fragment.lane], -1, 0)


def numbers_in(raw: Array, kind: str) -> Array:
    """Return the numbers in the low bits of words."""
    bits = TYPES[kind].bits
    if kind in ("s8", "s4"):
        up = np.uint32(32 - bits)
        return (raw << up).view(np.int32) >> np.int32(32 - bits)
    low = raw & np.uint32((1 << bits) - 1)
    return low.astype(np.int32) if kind in ("u8", "u4") else decode(low, kind)


def accumulated(
    registers: Sequence[Array], where: tuple[Array, Array], shape: tuple[int, int], kind: str, g: WarpGroup
) -> Array:
    """Return C [warps, rows, columns]: f32 or f64 numbers, or s32."""
    words = np.stack([np.broadcast_to(register, g.shape) for register in registers])
    if kind == "f16":
        halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=1)
        values = decode(halves.reshape(-1, *g.shape), "f16")
    else:
        values = words.view(np.int32) if kind == "s32" else decode(words, kind)
    result = np.empty((g.count, *shape), values.dtype)
    result[:, where[0], where[1]] = np.moveaxis(values, 1, 0)
    return result


def scatter(
    g: WarpGroup, d: Array, where: tuple[Array, Array], kind: str, writes: Sequence[Putter], poison: Bools | None
) -> None:
    """Write D [warps, rows, columns], and flags of undefined numbers, to registers; f16 in pairs."""
    values = np.moveaxis(d[:, where[0], where[1]], 0, 1)  # [numbers, warps, lanes]
    flags = None if poison is None else np.moveaxis(poison[:, where[0], where[1]], 0, 1)
    if kind == "f16":
        halves = encode(rounded(values, FORMATS["f16"], "rn"), "f16").astype(np.uint32)
        bits = halves[0::2] | (halves[1::2] << np.uint32(16))
        flags = None if flags is None else flags[0::2] | flags[1::2]
    elif kind == "s32":
        bits = values.view(np.uint32)
    else:
        bits = encode(values, kind)
    for number, write in enumerate(writes):
        write(g, bits[number], None if flags is None else flags[number])


def _spread_poison(
    g: WarpGroup,
    items: tuple[Sequence[Operand], ...],
    first: Fragment,
    second: Fragment,
    where: tuple[Array, Array],
    c_type: str,
) -> Bools:
    """Return flags [warps, m, n] of undefined results: an undefined factor spoils its row or column."""

    def flags(operands: Sequence[Operand]) -> Bools:
        return np.stack([g.flags(numbers_of(o)) for o in operands])

    a = any_along(np.moveaxis(flags(items[0])[first.register, :, first.lane], -1, 0), 2)
    b = any_along(np.moveaxis(flags(items[1])[second.register, :, second.lane], -1, 0), 1)
    c = flags(items[2])
    if c_type == "f16":
        c = np.repeat(c, 2, axis=0)
    result: Bools = a[:, :, None] | b[:, None, :]
    own = np.zeros(result.shape, np.bool_)
    own[:, where[0], where[1]] = np.moveaxis(c, 1, 0)
    return result | own


# ---------------------------------------------------------------- ldmatrix, stmatrix, movmatrix


def _count(instruction: Instruction) -> int:
    if not instruction.has("m8n8") or instruction.types[-1] != "b16":
        raise unsupported(instruction)
    return next((int(m[1:]) for m in instruction.modifiers if m in ("x1", "x2", "x4")), 1)


def _addressing(g: WarpGroup, step: Step, numbers: Sequence[int], count: int) -> Bools:
    """Return the lanes that hold the addresses of the rows of `count` matrices; report undefined addresses."""
    active = g.active
    lanes: Bools = active & (np.arange(LANES) < 8 * count)
    g.active = lanes
    report_undefined(g, step, numbers, "an address")
    g.active = active
    return lanes


def _load(instruction: Instruction, context: Context) -> Step:
    """ldmatrix: lane 8 i + r addresses row r of matrix i; a lane receives two elements of each matrix."""
    count = _count(instruction)
    items = items_of(instruction, instruction.operands[0], count)
    writes = [target(context, instruction, item, "b32") for item in items]
    where, numbers = addresses(context, instruction, instruction.operands[1]), numbers_of(instruction.operands[1])
    transposed = instruction.has("trans")
    lane = np.arange(LANES)
    step = Step(instruction, "ldmatrix", lambda g: None)

    def run(g: WarpGroup) -> None:
        check_aligned(g, step, g.active, whole=True)
        words, poison = load_shared(g, step, where(g), 16, _addressing(g, step, numbers, count))
        for i, write in enumerate(writes):
            if not transposed:
                at = lane % 4, slice(None), 8 * i + lane // 4
                flags = None if poison is None else np.moveaxis(poison[at], 0, -1)
                write(g, np.moveaxis(words[at], 0, -1), flags)
                continue
            low, high = (_half(words, i, 2 * (lane % 4) + j, lane // 4) for j in (0, 1))
            flags = None
            if poison is not None:
                spoiled = [np.moveaxis(poison[lane // 8, :, 8 * i + 2 * (lane % 4) + j], 0, -1) for j in (0, 1)]
                flags = spoiled[0] | spoiled[1]
            write(g, low | (high << np.uint32(16)), flags)

    return step.running(run)


def _half(words: Array, i: int, row: Array, column: Array) -> Array:
    """Return the 16-bit element (row, column) of matrix i, by lane [warps, lanes]."""
    word = np.moveaxis(words[column // 2, :, 8 * i + row], 0, -1)
    return word >> (16 * (column % 2)).astype(np.uint32) & np.uint32(0xFFFF)


def _store(instruction: Instruction, context: Context) -> Step:
    """stmatrix: the inverse of ldmatrix."""
    count = _count(instruction)
    items = items_of(instruction, instruction.operands[1], count)
    reads = [source(context, instruction, item, "b32") for item in items]
    parts = [numbers_of(item) for item in items]
    where, numbers = addresses(context, instruction, instruction.operands[0]), numbers_of(instruction.operands[0])
    transposed = instruction.has("trans")
    row, word = np.arange(8)[:, None], np.arange(4)
    step = Step(instruction, "st_shared", lambda g: None)

    def run(g: WarpGroup) -> None:
        check_aligned(g, step, g.active, whole=True)
        lanes = _addressing(g, step, numbers, count)
        words: Array = np.zeros((4, *g.shape), np.uint32)
        poison: Array = np.zeros((4, *g.shape), np.bool_)
        for i, (read, some) in enumerate(zip(reads, parts, strict=True)):
            data, flags = np.broadcast_to(read(g), g.shape), g.flags(some)
            at = slice(8 * i, 8 * i + 8)
            if transposed:  # a row in memory is a column of the lanes' matrix
                low, high = (_column(data, row, 2 * word + j) for j in (0, 1))
                words[:, :, at] = np.moveaxis(low | (high << np.uint32(16)), -1, 0)
                spoiled = flags[:, 4 * (2 * word) + row // 2] | flags[:, 4 * (2 * word + 1) + row // 2]
                poison[:, :, at] = np.moveaxis(spoiled, -1, 0)
            else:
                words[:, :, at] = np.moveaxis(data[:, 4 * row + word], -1, 0)
                poison[:, :, at] = np.moveaxis(flags[:, 4 * row + word], -1, 0)
        store_shared(g, step, where(g), 16, words, poison if poison.any() else None, lanes)

    return step.running(run)


def _column(data: Array, row: Array, column: Array) -> Array:
    """Return element (row, column) of the transposed matrix: lane 4 column + row / 2 has its rows 2 t and 2 t + 1."""
    word = data[:, 4 * column + row // 2]
    return word >> (16 * (row % 2)).astype(np.uint32) & np.uint32(0xFFFF)


def _move(instruction: Instruction, context: Context) -> Step:
    """movmatrix: the transposed matrix of a register."""
    if not instruction.has("trans"):
        raise unsupported(instruction)
    write = target(context, instruction, instruction.operands[0], "b32")
    read, numbers = source(context, instruction, instruction.operands[1], "b32"), numbers_of(instruction.operands[1])
    lane = np.arange(LANES)
    step = Step(instruction, "alu", lambda g: None)

    def run(g: WarpGroup) -> None:
        check_aligned(g, step, g.active, whole=True)
        data = np.broadcast_to(read(g), g.shape)
        low, high = (_column(data, lane // 4, 2 * (lane % 4) + j) for j in (0, 1))
        undefined = g.undefined(numbers)
        flags = None if undefined is None else np.broadcast_to(undefined.any(axis=1, keepdims=True), g.shape)
        write(g, low | (high << np.uint32(16)), flags)

    return step.running(run)
