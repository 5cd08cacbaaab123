"""Floating-point instructions (PTX ISA, Floating Point; Half Precision Floating Point; Comparison and Selection).

Results are rounded as the instruction says; those of approximate functions, to which the document allows an error, are
rounded to nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from convgen.backends.nvidia.sim.operands import computed, numbers_of, source, target
from convgen.backends.nvidia.sim.ptx_text import Instruction, Operand, Pair
from convgen.backends.nvidia.sim.ptx_types import TYPES, UNSIGNED, bits_of
from convgen.backends.nvidia.sim.rounding import FORMATS, decode, encode, rounded
from convgen.backends.nvidia.sim.state import WarpGroup
from convgen.backends.nvidia.sim.step import Context, Step, unsupported
from convgen.backends.sim.numbers import fma_f32, fma_f64, to_odd, two_sum
from convgen.backends.sim.wave_arrays import Array, Bools

Function = Callable[..., Array]
_DIRECTED = ("rz", "rm", "rp")


#: Instruction -> function; it is computed in f64.
APPROXIMATE: Mapping[str, Function] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "rcp": lambda x: 1.0 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "div": lambda x, y: x / y,
}


def flushed(value: Array) -> Array:
    """Replace subnormal numbers of f32 by zeros of their sign (PTX ISA, .ftz)."""
    small = np.abs(value) < np.float32(2.0**-126)
    return np.where(small, np.copysign(value.dtype.type(0), value), value) if small.any() else value


def saturated(value: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes 0 (PTX ISA, .sat)."""
    return np.where(np.isnan(value), value.dtype.type(0), np.clip(value, value.dtype.type(0), value.dtype.type(1)))


def canonical(value: Array, name: str) -> Array:
    """Return the bits of results, NaNs as the canonical NaN of the format."""
    raw = np.asarray(value)
    bits = np.ascontiguousarray(raw).reshape(raw.shape).view(UNSIGNED[8 * raw.dtype.itemsize])
    nan = np.isnan(raw)
    return np.where(nan, bits.dtype.type(FORMATS[name].nan), bits) if np.count_nonzero(nan) else bits


def minimum(a: Array, b: Array) -> Array:
    """Return the lesser number; a NaN loses, and -0 is less than +0 (PTX ISA, min)."""
    result = np.fmin(a, b)
    zero = (a == 0) & (b == 0)
    return np.where(zero, np.where(np.signbit(a), a, b), result) if np.count_nonzero(zero) else result


def maximum(a: Array, b: Array) -> Array:
    """Return the greater number; a NaN loses, and +0 exceeds -0 (PTX ISA, max)."""
    result = np.fmax(a, b)
    zero = (a == 0) & (b == 0)
    return np.where(zero, np.where(np.signbit(a), b, a), result) if np.count_nonzero(zero) else result


def _propagating(function: Function) -> Function:
    """Return a minimum or maximum that is NaN if an operand is (.NaN)."""
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.asarray(a).dtype.type(np.nan), function(a, b))


def _signed_by(function: Function) -> Function:
    """Return a minimum or maximum of magnitudes whose sign is the product of the operands' signs (.xorsign.abs)."""

    def apply(a: Array, b: Array) -> Array:
        sign = np.where(np.signbit(a) ^ np.signbit(b), -1.0, 1.0).astype(np.asarray(a).dtype)
        return np.asarray(np.copysign(function(np.abs(a), np.abs(b)), sign))

    return apply


# ---------------------------------------------------------------- exact sums and products


def _exact(name: str, values: Sequence[Array]) -> Array:
    """Return add, sub, mul or fma of f64 copies of narrow numbers, rounded to odd in f64."""
    wide = [np.asarray(value, np.float64) for value in values]
    if name == "mul":
        return np.asarray(wide[0] * wide[1])
    if name == "add":
        return to_odd(*two_sum(wide[0], wide[1]))
    if name == "sub":
        return to_odd(*two_sum(wide[0], -wide[1]))
    return to_odd(*two_sum(np.asarray(wide[0] * wide[1]), wide[2]))


_SUMS: Mapping[str, Function] = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}


def _single(name: str, mode: str) -> Function:
    """Return an operation on f32 with a rounding mode."""
    if mode == "rn":
        return fma_f32 if name == "fma" else _SUMS[name]
    return lambda *values: rounded(_signed_zero(name, mode, values), FORMATS["f32"], mode).astype(np.float32)


def _signed_zero(name: str, mode: str, values: Sequence[Array]) -> Array:
    """Return the exact result; an exact zero of a sum of opposite numbers is -0 when rounding down (IEEE 754, 6.3)."""
    result = _exact(name, values)
    if mode == "rm" and name != "mul":
        operands = [np.asarray(v, np.float64) for v in values]
        first = operands[0] * operands[1] if name == "fma" else operands[0]
        last = -operands[1] if name == "sub" else operands[-1]
        cancels = (result == 0) & (first != 0) | ((first == 0) & (last == 0) & (np.signbit(first) != np.signbit(last)))
        result = np.where(cancels & (result == 0), -0.0, result)
    return result


def _double(name: str, mode: str) -> Function:
    """Return an operation on f64 with a rounding mode; `fma` rounds to nearest only."""
    nearest = fma_f64 if name == "fma" else _SUMS[name]
    if mode == "rn":
        return nearest

    def directed(*values: Array) -> Array:
        total = np.asarray(nearest(*values))
        if name == "mul":
            remainder = fma_f64(values[0], values[1], -total)
        else:
            remainder = two_sum(values[0], values[1] if name == "add" else -values[1])[1]
        low, high = np.nextafter(total, -np.inf), np.nextafter(total, np.inf)
        down = np.where(remainder < 0, low, total)
        up = np.where(remainder > 0, high, total)
        if mode == "rm":
            return down
        return up if mode == "rp" else np.where(total > 0, down, np.where(total < 0, up, total))

    return directed


def _narrow(name: str, kind: str, mode: str) -> Function:
    """Return an operation on the bits of f16 or bf16 with one rounding; returns bits."""
    format_ = FORMATS[kind]

    def apply(*raw: Array) -> Array:
        values = [decode(value, kind) for value in raw]
        return encode(rounded(_exact(name, values), format_, mode), kind)

    return apply


def packed(function: Function) -> Function:
    """Apply a function of 16-bit numbers to both halves of words."""
    shift = np.uint32(16)

    def apply(*words: Array) -> Array:
        raw = [np.asarray(word).view(np.uint32) for word in words]
        low = function(*(word.astype(np.uint16) for word in raw))
        high = function(*((word >> shift).astype(np.uint16) for word in raw))
        return np.asarray(low).astype(np.uint32) | (np.asarray(high).astype(np.uint32) << shift)

    return apply


def _on_bits(function: Function, kind: str, *, flush: bool = False) -> Function:
    """Apply a function of f32 numbers to bits of a 16-bit format; its result needs one rounding."""

    def apply(*raw: Array) -> Array:
        values = [decode(value, kind) for value in raw]
        if flush:
            values = [flushed16(value, kind) for value in values]
        result = np.asarray(function(*values))
        return encode(rounded(result, FORMATS[kind], "rn"), kind)

    return apply


def flushed16(value: Array, kind: str) -> Array:
    """Replace numbers that are subnormal in a 16-bit format by zeros of their sign."""
    small = np.abs(value) < 2.0 ** FORMATS[kind].least
    return np.where(small, np.copysign(np.float32(0), value), value) if small.any() else value


# ---------------------------------------------------------------- compiling


_ARITHMETIC = {"add": 2, "sub": 2, "mul": 2, "fma": 3, "mad": 3}


def compile_float(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a floating-point instruction; None for other instructions."""
    types = instruction.types
    if not types or TYPES[types[-1]].kind != "f":
        return None
    kind, name = types[-1], instruction.name
    mode = next((m for m in instruction.modifiers if m in ("rn", *_DIRECTED)), "rn")
    if name in _ARITHMETIC:
        return _arithmetic(instruction, context, "fma" if name == "mad" else name, kind, mode)
    if name in ("min", "max", "neg", "abs", "copysign"):
        return _selecting(instruction, context, kind)
    if name in APPROXIMATE:
        return _function(instruction, context, kind, mode)
    if name == "testp":
        return _tested(instruction, context, kind)
    return None


def _arithmetic(instruction: Instruction, context: Context, name: str, kind: str, mode: str) -> Step:
    count = _ARITHMETIC[name]
    base = kind.removesuffix("x2")
    if len(set(instruction.types)) > 1:  # mixed precision of sm_100: add.f32.f16
        raise unsupported(instruction, "two types")
    if bits_of(base) == 16:
        return _computed16(instruction, context, _modified16(_narrow(name, base, mode), instruction, base), kind, count)
    if kind == "f32x2":
        raise unsupported(instruction)
    if name == "fma" and kind == "f64" and mode != "rn":
        raise unsupported(instruction, f"fma.{mode}.f64")
    operation = _single(name, mode) if kind == "f32" else _double(name, mode)
    return computed(context, instruction, _modified(operation, instruction, kind), [kind] * count, kind)


def _computed16(instruction: Instruction, context: Context, function: Function, kind: str, count: int) -> Step:
    """Return the step of a function of the bits of `count` 16-bit numbers, or of each half of words of two."""
    bits = f"b{bits_of(kind)}"
    function = packed(function) if TYPES[kind].packed == 2 else function
    return computed(context, instruction, function, [bits] * count, bits)


def _modified(function: Function, instruction: Instruction, kind: str) -> Function:
    """Add .ftz and .sat to a function of f32 or f64 numbers, and canonical NaNs."""
    flush, saturate = instruction.has("ftz") and kind == "f32", instruction.has("sat")

    def apply(*values: Array) -> Array:
        if flush:
            values = tuple(flushed(value) for value in values)
        result = np.asarray(function(*values))
        if flush:
            result = flushed(result)
        if saturate:
            result = saturated(result)
        return canonical(result, kind)

    return apply


def _modified16(function: Function, instruction: Instruction, kind: str) -> Function:
    """Add .ftz, .sat and .relu to a function of 16-bit numbers as bits."""
    flush, saturate, relu = instruction.has("ftz"), instruction.has("sat"), instruction.has("relu")
    if not (flush or saturate or relu):
        return function

    def apply(*raw: Array) -> Array:
        if flush:
            raw = tuple(encode(flushed16(decode(value, kind), kind), kind) for value in raw)
        result = decode(function(*raw), kind)
        if flush:
            result = flushed16(result, kind)
        if saturate:
            result = saturated(result)
        if relu:
            result = np.where(np.isnan(result), result, np.where(result > 0, result, np.float32(0)))
        return encode(result, kind)

    return apply


def _selecting(instruction: Instruction, context: Context, kind: str) -> Step:
    """Return the step of min, max, neg, abs or copysign."""
    name = instruction.name
    base = kind.removesuffix("x2")
    if name in ("neg", "abs"):
        return _sign(instruction, context, kind)
    if name == "copysign":  # PTX ISA, copysign: the sign of a, the magnitude of b
        return computed(context, instruction, lambda a, b: np.copysign(b, a), [kind] * 2, kind)
    function: Function = minimum if name == "min" else maximum
    if instruction.has("xorsign"):
        function = _signed_by(function)
    if instruction.has("NaN"):
        function = _propagating(function)
    count = len(instruction.operands) - 1
    if count == 3:
        two = function
        function = lambda a, b, c: two(two(a, b), c)  # noqa: E731
    if base in ("f32", "f64"):
        return computed(context, instruction, _modified(function, instruction, kind), [kind] * count, kind)
    return _computed16(instruction, context, _modified16(_on_bits(function, base), instruction, base), kind, count)


def _sign(instruction: Instruction, context: Context, kind: str) -> Step:
    """Return the step of neg or abs, which change the sign bit only, and flush if asked."""
    bits, name = bits_of(kind), instruction.name
    sign = 0x80008000 if TYPES[kind].packed == 2 else 1 << (bits - 1)
    flush = instruction.has("ftz") and kind == "f32"

    def apply(a: Array) -> Array:
        if flush:
            a = flushed(a.view(np.float32)).view(np.uint32)
        mask = a.dtype.type(sign)
        return np.asarray(a ^ mask if name == "neg" else a & ~mask)

    return computed(context, instruction, apply, [f"b{bits}"], f"b{bits}")


_EXACT: Mapping[str, Function] = {
    "rcp": lambda x: np.asarray(x).dtype.type(1) / x,
    "sqrt": np.sqrt,
    "div": lambda x, y: x / y,
}


def _function(instruction: Instruction, context: Context, kind: str, mode: str) -> Step:
    """Return the step of rcp, sqrt, div or an approximate function."""
    name = instruction.name
    function = APPROXIMATE[name]
    base = kind.removesuffix("x2")
    count = 2 if name == "div" else 1
    if base in ("f16", "bf16"):
        narrow = _on_bits(
            lambda *v: function(*(np.asarray(x, np.float64) for x in v)), base, flush=instruction.has("ftz")
        )
        return _computed16(instruction, context, narrow, kind, count)
    if mode in _DIRECTED:
        if kind != "f32":
            raise unsupported(instruction, f"{name}.{mode}.{kind}")
        return computed(context, instruction, _modified(_divided(name, mode), instruction, kind), [kind] * count, kind)
    if kind == "f64" or (name in ("div", "sqrt", "rcp") and instruction.has("rn")):
        exact = _EXACT.get(name, function)
        return computed(context, instruction, _modified(exact, instruction, kind), [kind] * count, kind)
    if name in ("sin", "cos"):
        wide = function
        function = lambda x: np.where(np.isinf(x), np.nan, wide(x))  # noqa: E731

    def approximate(*values: Array) -> Array:
        return np.asarray(function(*(np.asarray(value, np.float64) for value in values))).astype(np.float32)

    return computed(context, instruction, _modified(approximate, instruction, kind), [kind] * count, kind)


def _divided(name: str, mode: str) -> Function:
    """Return div, rcp or sqrt of f32 with directed rounding: the remainder's sign tells where the quotient lies."""

    def apply(*values: Array) -> Array:
        wide = [np.asarray(value, np.float64) for value in values]
        if name == "sqrt":
            root = np.sqrt(wide[0])
            remainder = fma_f64(-root, root, wide[0])
            return rounded(to_odd(root, np.where(np.isfinite(root), remainder, 0)), FORMATS["f32"], mode).astype(
                np.float32
            )
        a, b = (np.asarray(1.0), wide[0]) if name == "rcp" else wide
        result = np.asarray(a / b)
        remainder = fma_f64(-result, b, a) * np.where(b < 0, -1.0, 1.0)
        remainder = np.where(np.isfinite(result) & np.isfinite(remainder), remainder, 0)
        return rounded(to_odd(result, remainder), FORMATS["f32"], mode).astype(np.float32)

    return apply


_CLASSES: Mapping[str, Callable[[Array], Array]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
    "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny),
}


def _tested(instruction: Instruction, context: Context, kind: str) -> Step:
    test = next(m for m in instruction.modifiers if m in _CLASSES)
    return computed(context, instruction, _CLASSES[test], [kind], "pred")


# ---------------------------------------------------------------- comparisons

_ORDERED: Mapping[str, Function] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b) if a.dtype.kind == "f" else a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b,
    "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b,
    "hs": lambda a, b: a >= b,
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_COMBINED: Mapping[str, Function] = {"and": lambda p, q: p & q, "or": lambda p, q: p | q, "xor": lambda p, q: p ^ q}
_UNSIGNED_ONLY = frozenset("lo ls hi hs".split())


def compile_comparison(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of setp, set, selp or slct; None for other instructions."""
    if instruction.name not in ("setp", "set", "selp", "slct"):
        return None
    if instruction.name in ("selp", "slct"):
        return _selected(instruction, context)
    write = _written_flags(instruction, context) if instruction.name == "setp" else _written_value(instruction, context)
    flags, combined = _compared(instruction, context), _combined(instruction, context)
    numbers = numbers_of(*instruction.operands[1:])

    def run(g: WarpGroup) -> None:
        low, high = flags(g)
        if high is None and instruction.name == "setp":
            high = ~low
        write(g, combined(g, low), None if high is None else combined(g, high), g.undefined(numbers))

    return Step(instruction, "alu", run)


def _compared(instruction: Instruction, context: Context) -> Callable[[WarpGroup], tuple[Array, Array | None]]:
    """Return the comparison of operands 1 and 2: flags [rows, lanes], of packed types also those of upper halves."""
    kind = instruction.types[-1]
    comparison = next((m for m in instruction.modifiers if m in _ORDERED), None)
    if comparison is None:
        raise unsupported(instruction)
    if comparison in _UNSIGNED_ONLY and TYPES[kind].kind == "s":
        kind = f"u{bits_of(kind)}"
    base, compare = kind.removesuffix("x2"), _ORDERED[comparison]
    flush, narrow, is_packed = instruction.has("ftz"), base in ("f16", "bf16"), TYPES[kind].packed == 2
    reads = [
        source(context, instruction, o, f"b{bits_of(kind)}" if narrow else kind) for o in instruction.operands[1:3]
    ]

    def compared(values: Sequence[Array]) -> Array:
        a, b = (decode(value, base) for value in values) if narrow else values
        if flush and base == "f32":
            a, b = flushed(a), flushed(b)
        return np.asarray(compare(a, b))

    def flags(g: WarpGroup) -> tuple[Array, Array | None]:
        values = [read(g) for read in reads]
        if not (narrow and is_packed):
            return compared(values), None
        high = [(value >> np.uint32(16)).astype(np.uint16) for value in values]
        return compared([value.astype(np.uint16) for value in values]), compared(high)

    return flags


def _combined(instruction: Instruction, context: Context) -> Callable[[WarpGroup, Array], Array]:
    """Return the function that combines flags with the predicate of operand 3 (.and, .or, .xor), if there is one."""
    name = next((m for m in instruction.modifiers if m in _COMBINED), None)
    if name is None:
        return lambda g, flags: flags
    join, predicate = _COMBINED[name], source(context, instruction, instruction.operands[3], "pred")
    return lambda g, flags: np.asarray(join(flags, predicate(g)))


_WriteFlags = Callable[[WarpGroup, Array, Array | None, Bools | None], None]


def _written_flags(instruction: Instruction, context: Context) -> _WriteFlags:
    """Return the function that writes setp's flags to p, and those of its upper half or inverted comparison to q."""
    first = instruction.operands[0]
    both: tuple[Operand, ...] = (first.first, first.second) if isinstance(first, Pair) else (first,)
    writes = [target(context, instruction, operand, "pred") for operand in both]

    def write(g: WarpGroup, low: Array, high: Array | None, poison: Bools | None) -> None:
        for put, flags in zip(writes, (low, high), strict=False):
            assert flags is not None
            put(g, flags, poison)

    return write


def _written_value(instruction: Instruction, context: Context) -> _WriteFlags:
    """Return the function that writes flags of set as numbers, 1.0 or all ones; upper halves' flags to upper halves."""
    result = instruction.types[0]
    put = target(context, instruction, instruction.operands[0], f"b{bits_of(result)}")
    one: Mapping[str, int] = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80, "f16x2": 0x3C00, "bf16x2": 0x3F80}
    true = one.get(result, (1 << (16 if instruction.types[-1].endswith("x2") else bits_of(result))) - 1)

    def write(g: WarpGroup, low: Array, high: Array | None, poison: Bools | None) -> None:
        value = np.where(low, np.uint32(true), np.uint32(0))
        if high is not None:
            value = value | np.where(high, np.uint32(true << 16), np.uint32(0))
        put(g, value.astype(UNSIGNED[bits_of(result)]), poison)

    return write


def _selected(instruction: Instruction, context: Context) -> Step:
    """Return the step of selp or slct: an undefined value that is not selected does no harm."""
    kind = f"b{bits_of(instruction.types[0])}"
    operands = instruction.operands
    reads = [source(context, instruction, o, kind) for o in operands[1:3]]
    numbers = [numbers_of(o) for o in operands[1:]]
    write = target(context, instruction, operands[0], kind)
    if instruction.name == "selp":
        choose: Function = source(context, instruction, operands[3], "pred")
    else:
        third = source(context, instruction, operands[3], instruction.types[-1])
        flush = instruction.has("ftz")
        choose = lambda g: (flushed(third(g)) if flush else third(g)) >= 0  # noqa: E731

    def run(g: WarpGroup) -> None:
        flags = choose(g)
        a, b = (read(g) for read in reads)
        first, second, which = (g.undefined(some) for some in numbers)
        poison = which
        if first is not None or second is not None:
            chosen = np.where(flags, False if first is None else first, False if second is None else second)
            poison = chosen if which is None else chosen | which
        write(g, np.where(flags, a, b), poison)

    return Step(instruction, "alu", run)
