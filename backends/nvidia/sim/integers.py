"""Integer, logical and shift instructions (PTX ISA, Integer Arithmetic; Logic and Shift; Comparison and Selection)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.nvidia.sim.float_alu import packed
from convgen.backends.nvidia.sim.operands import computed, numbers_of, source, target
from convgen.backends.nvidia.sim.ptx_text import Instruction, Literal, Pair, Register
from convgen.backends.nvidia.sim.ptx_types import SIGNED, TYPES, UNSIGNED
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.sim.wave_arrays import Array
from convgen.ir.record import evolve

Function = Callable[..., Array]


def _bits(value: Array) -> int:
    return 8 * value.dtype.itemsize


def _wider(value: Array) -> type[np.generic]:
    table: Mapping[int, type[np.generic]] = SIGNED if value.dtype.kind == "i" else UNSIGNED
    return table[2 * _bits(value)]


def high_product(a: Array, b: Array) -> Array:
    """Return the upper half of the product of two integers of a type."""
    if _bits(a) < 64:
        wide = np.asarray(a).astype(_wider(a)) * np.asarray(b).astype(_wider(a))
        return np.asarray(wide >> wide.dtype.type(_bits(a))).astype(a.dtype)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x, y = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)
    xl, xh, yl, yh = x & low, x >> half, y & low, y >> half
    middle = xh * yl + (xl * yl >> half)
    other = xl * yh + (middle & low)
    result = xh * yh + (middle >> half) + (other >> half)
    if a.dtype.kind == "i":
        zero = np.uint64(0)
        result = result - np.where(np.asarray(a) < 0, y, zero) - np.where(np.asarray(b) < 0, x, zero)
    return np.asarray(result).view(a.dtype)


def wide_product(a: Array, b: Array) -> Array:
    """Return the whole product of two integers, twice as wide."""
    return np.asarray(np.asarray(a).astype(_wider(a)) * np.asarray(b).astype(_wider(a)))


def _saturated(function: Function) -> Function:
    def apply(a: Array, b: Array) -> Array:
        wide = function(np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64))
        return np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int32)

    return apply


def quotient(a: Array, b: Array) -> Array:
    """Return the quotient rounded toward zero; the divisor zero gives all ones, which PTX leaves open."""
    zero = np.asarray(b) == 0
    safe = np.where(zero, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return np.where(zero, ~a.dtype.type(0), a // safe)
    whole = a // safe
    result = whole + ((whole < 0) & (whole * safe != a)).astype(a.dtype)
    return np.asarray(np.where(zero, a.dtype.type(-1), result))


def remainder(a: Array, b: Array) -> Array:
    """Return the remainder with the sign of the dividend; the divisor zero gives the dividend."""
    zero = np.asarray(b) == 0
    safe = np.where(zero, b.dtype.type(1), b)
    return np.where(zero, a, a - quotient(a, safe) * safe)


def shift_left(a: Array, count: Array) -> Array:
    """shl: a << count; 0 for counts from the type's width on (PTX ISA, shl)."""
    width = np.uint32(_bits(a))
    amount = np.minimum(count, width - np.uint32(1)).astype(a.dtype)
    return np.asarray(np.where(count >= width, a.dtype.type(0), a << amount))


def shift_right(a: Array, count: Array) -> Array:
    """shr: a >> count; copies of the sign, or 0, for counts from the type's width on (PTX ISA, shr)."""
    width = np.uint32(_bits(a))
    amount = np.minimum(count, width - np.uint32(1)).astype(a.dtype)
    shifted = a >> amount
    if a.dtype.kind == "i":
        return np.asarray(shifted)
    return np.asarray(np.where(count >= width, a.dtype.type(0), shifted))


def funnel(left: bool, clamp: bool) -> Function:
    """shf: 32 bits of the 64-bit word {b, a}, shifted (PTX ISA, shf)."""

    def apply(a: Array, b: Array, count: Array) -> Array:
        amount = np.minimum(count, np.uint32(32)) if clamp else count & np.uint32(31)
        both = (np.asarray(b).astype(np.uint64) << np.uint64(32)) | a
        if left:
            return np.asarray(both << amount.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)
        return np.asarray(both >> amount.astype(np.uint64)).astype(np.uint32)

    return apply


def extract(a: Array, start: Array, length: Array) -> Array:
    """bfe: `length` bits from bit `start`, extended by the sign bit for signed types (PTX ISA, bfe)."""
    width = _bits(a)
    position, count = np.asarray(start & np.uint32(0xFF)), np.asarray(length & np.uint32(0xFF))
    unsigned = UNSIGNED[width]
    raw = np.asarray(a).view(unsigned)
    moved = np.where(position < width, raw >> np.minimum(position, width - 1).astype(unsigned), unsigned(0))
    mask = np.where(
        count >= width, ~unsigned(0), (unsigned(1) << np.minimum(count, width - 1).astype(unsigned)) - unsigned(1)
    )
    field = moved & mask
    if a.dtype.kind == "u":
        return np.asarray(field)
    last = np.minimum(position.astype(np.int64) + count - 1, width - 1)
    sign = (raw >> np.maximum(last, 0).astype(unsigned) & unsigned(1)).astype(np.bool_) & (count > 0)
    kept = np.where(position.astype(np.int64) + count > width, np.maximum(width - position.astype(np.int64), 0), count)
    above = np.where(kept >= width, unsigned(0), ~unsigned(0) << np.minimum(kept, width - 1).astype(unsigned))
    return np.where(sign, field | above, field).view(a.dtype)


def insert(a: Array, b: Array, start: Array, length: Array) -> Array:
    """bfi: the low `length` bits of a placed in b at bit `start` (PTX ISA, bfi)."""
    width = _bits(a)
    position, count = np.asarray(start & np.uint32(0xFF)), np.asarray(length & np.uint32(0xFF))
    kind = a.dtype.type
    ones = np.where(count >= width, ~kind(0), (kind(1) << np.minimum(count, width - 1).astype(kind)) - kind(1))
    amount = np.minimum(position, width - 1).astype(kind)
    inside = position < width
    mask = np.where(inside, ones << amount, kind(0))
    return np.asarray((b & ~mask) | (np.where(inside, a << amount, kind(0)) & mask))


def bit_mask(*, clamps: bool) -> Function:
    """bmsk: ones from bit `start` on, as many as `length`; both are clamped or taken modulo 32 (PTX ISA, bmsk)."""

    def mask(start: Array, length: Array) -> Array:
        first, count = (np.minimum(n, 32) if clamps else n & np.uint32(31) for n in (start, length))
        ends = np.minimum(first.astype(np.uint64) + count, 32)
        below, upto = ((np.uint64(1) << n.astype(np.uint64)) - np.uint64(1) for n in (first, ends))
        return np.asarray(upto & ~below).astype(np.uint32)

    return mask


def lop3(table: int) -> Function:
    """lop3: the function of three bits that a truth table states (PTX ISA, lop3)."""

    def apply(a: Array, b: Array, c: Array) -> Array:
        result: Array = np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c)), np.uint32)
        for row in range(8):
            if table >> row & 1:
                result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
        return result

    return apply


_PERMUTED: Mapping[str, tuple[tuple[int, ...], ...]] = {  # PTX ISA, prmt: bytes of the result by c[1:0], lowest first
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def permute(mode: str) -> Function:
    """prmt: four bytes chosen from eight; bit 3 of a selector copies the byte's sign bit."""

    def apply(a: Array, b: Array, c: Array) -> Array:
        eight_bytes = (np.asarray(b).astype(np.uint64) << np.uint64(32)) | a
        result: Array = np.zeros(np.broadcast_shapes(np.shape(eight_bytes), np.shape(c)), np.uint32)
        for place in range(4):
            if mode:
                rows = np.array([row[place] for row in _PERMUTED[mode]], np.uint64)
                picked, signs = rows[np.asarray(c) & np.uint32(3)], None
            else:
                selector = np.asarray(c) >> np.uint32(4 * place)
                picked, signs = (selector & np.uint32(7)).astype(np.uint64), (selector & np.uint32(8)) != 0
            byte = (eight_bytes >> (picked * np.uint64(8)) & np.uint64(0xFF)).astype(np.uint32)
            if signs is not None:
                byte = np.where(signs, np.where(byte & np.uint32(0x80), np.uint32(0xFF), np.uint32(0)), byte)
            result = result | (byte << np.uint32(8 * place))
        return result

    return apply


def _popcount(a: Array) -> Array:
    return np.bitwise_count(a).astype(np.uint32)


def _spread(a: Array) -> Array:
    """Copy the highest set bit to all bits below."""
    step = 1
    while step < _bits(a):
        a = a | (a >> a.dtype.type(step))
        step *= 2
    return a


def leading_zeros(a: Array) -> Array:
    """clz: zeros ahead of the highest set bit."""
    return np.uint32(_bits(a)) - _popcount(_spread(a))


def reverse(a: Array) -> Array:
    """brev: bits in reverse order."""
    kind, step = a.dtype.type, 1
    while step < _bits(a):
        pattern = sum(((1 << step) - 1) << at for at in range(0, _bits(a), 2 * step))
        mask = kind(pattern)
        a = ((a >> kind(step)) & mask) | ((a & mask) << kind(step))
        step *= 2
    return a


def find_leading(shift: bool) -> Function:
    """bfind: place of the highest bit that is not a copy of the sign, -1 if there is none."""

    def apply(a: Array) -> Array:
        raw = np.asarray(np.where(a < 0, ~a, a)).astype(a.dtype).view(UNSIGNED[_bits(a)])
        count = _popcount(_spread(raw))
        place = count - np.uint32(1)
        if shift:
            return np.where(count == 0, np.uint32(0xFFFFFFFF), np.uint32(_bits(a)) - count)
        return place

    return apply


def _parts(value: Array, bits: int, signed: bool) -> list[Array]:
    kind = (SIGNED if signed else UNSIGNED)[bits]
    raw = np.asarray(value).view(np.uint32)
    return [
        (raw >> np.uint32(place)).astype(UNSIGNED[bits]).view(kind).astype(np.int64) for place in range(0, 32, bits)
    ]


def dot(kinds: tuple[str, ...], halves: str = "") -> Function:
    """dp4a, dp2a: products of bytes (or halves and bytes) added to c, wrapped (PTX ISA, dp4a)."""

    def apply(a: Array, b: Array, c: Array) -> Array:
        small = _parts(b, 8, kinds[1][0] == "s")
        if halves:
            large = _parts(a, 16, kinds[0][0] == "s")
            small = small[:2] if halves == "lo" else small[2:]
        else:
            large = _parts(a, 8, kinds[0][0] == "s")
        total = np.asarray(c).astype(np.int64)
        for x, y in zip(large, small, strict=True):
            total = total + x * y
        return np.asarray(total).astype(np.uint64).astype(np.uint32)

    return apply


def _sad(a: Array, b: Array, c: Array) -> Array:
    return np.asarray(c + np.where(a < b, b - a, a - b).astype(c.dtype))


def _of_24_bits(function: Function) -> Function:
    """Apply a function to the low 24 bits (mul24, mad24)."""

    def apply(a: Array, b: Array, *rest: Array) -> Array:
        shift = np.uint32(8)
        low = [(np.asarray(v).view(np.uint32) << shift).view(a.dtype) >> a.dtype.type(8) for v in (a, b)]
        return function(*low, *rest)

    return apply


_BINARY: Mapping[str, Function] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "div": quotient,
    "rem": remainder,
    "min": np.minimum,
    "max": np.maximum,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
_UNARY: Mapping[str, Function] = {
    "neg": lambda a: np.asarray(-a.astype(np.int64) if a.dtype.itemsize < 8 else -a).astype(a.dtype),
    "abs": lambda a: np.where(a < 0, a.dtype.type(0) - a, a),
    "not": lambda a: ~a,
    "cnot": lambda a: (a == 0).astype(a.dtype),
}
_COUNTING: Mapping[str, Function] = {"popc": _popcount, "clz": leading_zeros}


def compile_integer(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of an integer or logical instruction; None for other instructions."""
    types = instruction.types
    if not types:
        return None
    kind = types[-1]
    if TYPES[kind].kind == "f":
        return None
    name = instruction.name
    if kind == "pred" and name in ("and", "or", "xor", "not"):
        function = _BINARY[name] if name != "not" else _UNARY["not"]
        return computed(context, instruction, function, ["pred"] * (len(instruction.operands) - 1), "pred")
    if instruction.has("cc") or name in ("addc", "subc", "madc"):
        return _carrying(instruction, context, kind)
    if TYPES[kind].packed > 1:
        return _pairwise(instruction, context, kind)
    if name in _BINARY:
        if instruction.has("sat"):
            return computed(context, instruction, _saturated(_BINARY[name]), [kind] * 2, kind)
        step = computed(context, instruction, _BINARY[name], [kind] * 2, kind)
        return _checking_divisor(step, context, kind) if name in ("div", "rem") else step
    if name in _UNARY:
        return computed(context, instruction, _UNARY[name], [kind], kind)
    if name in _COUNTING:
        return computed(context, instruction, _COUNTING[name], [f"u{TYPES[kind].bits}"], "u32")
    if name in ("mul", "mad", "mul24", "mad24"):
        return _product(instruction, context, kind)
    return _special_bits(instruction, context, kind)


def _product(instruction: Instruction, context: Context, kind: str) -> Step | None:
    """Return the step of mul or mad, of 24 bits as well; None for others."""
    name = instruction.name
    product: Function
    if instruction.has("wide"):
        product, result = wide_product, f"{kind[0]}{2 * TYPES[kind].bits}"
    elif instruction.has("hi"):
        product, result = high_product, kind
    elif instruction.has("lo"):
        product, result = (lambda a, b: a * b), kind
    else:
        return None
    if name.endswith("24"):
        if instruction.has("hi"):
            raise unsupported(instruction)
        product = _of_24_bits(product)
    if name.startswith("mul"):
        return computed(context, instruction, product, [kind] * 2, result)
    if instruction.has("sat"):

        def saturate(a: Array, b: Array, c: Array) -> Array:
            wide = np.asarray(product(a, b)).astype(np.int64) + np.asarray(c).astype(np.int64)
            return np.clip(wide, -(1 << 31), (1 << 31) - 1).astype(np.int32)

        return computed(context, instruction, saturate, [kind] * 3, result)
    return computed(context, instruction, lambda a, b, c: product(a, b) + c, [kind, kind, result], result)


def _special_bits(instruction: Instruction, context: Context, kind: str) -> Step | None:
    """Return the step of a shift, of an operation on fields of bits or of a permutation; None for others."""
    name = instruction.name
    unsigned = f"u{TYPES[kind].bits}"
    if name == "shl":
        return computed(context, instruction, shift_left, [unsigned, "u32"], unsigned)
    if name == "shr":
        return computed(context, instruction, shift_right, [kind, "u32"], kind)
    if name == "shf":
        function = funnel(instruction.has("l"), instruction.has("clamp"))
        return computed(context, instruction, function, ["u32"] * 3, "u32")
    if name == "bfe":
        return computed(context, instruction, extract, [kind, "u32", "u32"], kind)
    if name == "bfi":
        return computed(context, instruction, insert, [unsigned, unsigned, "u32", "u32"], unsigned)
    if name == "lop3":
        table = instruction.operands[-1]
        if instruction.has("and", "or") or not isinstance(table, Literal):
            raise unsupported(instruction)
        without_table = evolve(instruction, operands=instruction.operands[:-1])
        return computed(context, without_table, lop3(table.bits), ["u32"] * 3, "u32")
    if name == "prmt":
        mode = next((m for m in instruction.modifiers if m in _PERMUTED), "")
        return computed(context, instruction, permute(mode), ["u32"] * 3, "u32")
    if name == "brev":
        return computed(context, instruction, reverse, [unsigned], unsigned)
    if name == "bfind":
        return computed(context, instruction, find_leading(instruction.has("shiftamt")), [kind], "u32")
    if name == "sad":
        return computed(context, instruction, _sad, [kind] * 3, kind)
    if name in ("dp4a", "dp2a"):
        kinds = instruction.types
        halves = "" if name == "dp4a" else ("lo" if instruction.has("lo") else "hi")
        result = "s32" if "s32" in kinds else "u32"
        return computed(context, instruction, dot(kinds, halves), ["u32"] * 3, result)
    if name == "bmsk":
        return computed(context, instruction, bit_mask(clamps=instruction.has("clamp")), ["u32", "u32"], "u32")
    return None


def _checking_divisor(step: Step, context: Context, kind: str) -> Step:
    """Make the result undefined where the divisor is zero ("machine-specific", PTX ISA, div)."""
    instruction = step.instruction
    divisor = source(context, instruction, instruction.operands[2], kind)
    run, first = step.run, instruction.operands[0]
    if not isinstance(first, Register):
        return step

    def checked(g: WarpGroup) -> None:
        zero = np.broadcast_to(divisor(g) == 0, g.shape)
        run(g)
        if (zero & g.active).any():
            undefined = g.p[first.number]
            mine = zero & g.active
            g.p[first.number] = mine if undefined is None else undefined | mine

    step.run = checked
    return step


def _pairwise(instruction: Instruction, context: Context, kind: str) -> Step | None:
    """Return the step of add, sub, min or max of two 16-bit numbers in a word (sm_90); None for others."""
    name = instruction.name
    if name not in ("add", "sub", "min", "max"):
        return None
    half = (SIGNED if TYPES[kind].kind == "s" else UNSIGNED)[16]
    function = _BINARY[name]
    halves = packed(lambda a, b: np.asarray(function(a.view(half), b.view(half))).view(np.uint16))
    return computed(context, instruction, halves, [kind] * 2, kind)


def _carrying(instruction: Instruction, context: Context, kind: str) -> Step | None:
    """Return the step of add, sub or mad with the carry flag (PTX ISA, Extended-Precision Arithmetic), else None."""
    name, operands, carry = instruction.name, instruction.operands, context.carry
    unsigned = f"u{TYPES[kind].bits}"
    if isinstance(operands[0], Pair):
        raise unsupported(instruction)
    reads = [source(context, instruction, o, unsigned) for o in operands[1:]]
    high = source(context, instruction, operands[1], kind), source(context, instruction, operands[2], kind)
    write = target(context, instruction, operands[0], unsigned)
    takes, gives = name.endswith("c"), instruction.has("cc")
    numbers = numbers_of(*operands[1:]) + ((carry,) if takes else ())
    kind_ = UNSIGNED[TYPES[kind].bits]
    subtracts = name.startswith("sub")

    def run(g: WarpGroup) -> None:
        values = [np.broadcast_to(read(g), g.shape) for read in reads]
        if name.startswith("mad"):
            product = high_product(high[0](g), high[1](g)) if instruction.has("hi") else values[0] * values[1]
            values = [np.broadcast_to(np.asarray(product).view(kind_), g.shape), values[2]]
        bit = g.read(carry).astype(kind_) if takes else np.zeros(g.shape, kind_)
        a, b = values
        if subtracts:
            result = a - b - bit
            out = (a < b) | ((a == b) & (bit != 0))
        else:
            total = a + b
            result = total + bit
            out = (total < a) | (result < total)
        poison = g.undefined(numbers)
        write(g, result, poison)
        if gives:
            g.put(carry, out, poison)

    return Step(instruction, "alu", run)
