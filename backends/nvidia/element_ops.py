"""Operations on single elements, as rows: which instruction does what to which type; and conversions.

PTX ISA, "Integer Arithmetic Instructions", "Floating Point Instructions", "Half Precision Floating Point Instructions",
"cvt". Elements are in registers of 32 or 64 bits; f16 and bf16 in the low half of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from convgen.backends.nvidia.packed import BYTES
from convgen.backends.nvidia.ptx import KINDS, Writer, kind_of
from convgen.ir import expr as x
from convgen.ir import floats
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr
from convgen.ir.types import Type, bf16, bool_, f8_e4m3, f8_e5m2, f16, f32, f64

#: Operation -> mnemonic on integers, on floats; "" where there is none.
OPERATIONS: Mapping[type[Expr], tuple[str, str]] = {
    x.Add: ("add", "add.rn"),
    x.Sub: ("sub", "sub.rn"),
    x.Mul: ("mul.lo", "mul.rn"),
    x.MulHi: ("mul.hi", ""),
    x.Min: ("min", "min"),
    x.Max: ("max", "max"),
    x.Shl: ("shl", ""),
    x.Shr: ("shr", ""),
    x.Lt: ("setp.lt", "setp.lt"),
    x.Le: ("setp.le", "setp.le"),
    x.Eq: ("setp.eq", "setp.eq"),
    x.Ne: ("setp.ne", "setp.neu"),
    floats.Fma: ("", "fma.rn"),
    floats.Neg: ("", "neg"),
    floats.Abs: ("", "abs"),
    floats.Floor: ("", "cvt.rmi"),
    floats.Ceil: ("", "cvt.rpi"),
    floats.Round: ("", "cvt.rni"),
    floats.Exp2: ("", "ex2.approx.ftz"),
    floats.Log2: ("", "lg2.approx.ftz"),
    # Largest errors in the PTX ISA: `ex2` 2 ulp, `lg2` 2^-22, `rcp` 1 ulp, `sqrt` 2^-23, `rsqrt` 2^-22.9 of the result,
    # `sin` and `cos` 2^-20.5. `ir.floats` allows as much; `tanh.approx`, 2^-11, is too far off. Without `.ftz`, ptxas
    # adds instructions for subnormal operands and results, which the IR lets a target flush.
    floats.Rcp: ("", "rcp.approx.ftz"),
    floats.Sqrt: ("", "sqrt.approx.ftz"),
    floats.Rsqrt: ("", "rsqrt.approx.ftz"),
    floats.Sin: ("", "sin.approx.ftz"),
    floats.Cos: ("", "cos.approx.ftz"),
}
_OF_ANGLES = (floats.Sin, floats.Cos)  #: operations whose operand is in radians in PTX, in turns in the IR
_TURN = 6.283185307179586  #: radians
_OF_TWO_TYPES = (floats.Floor, floats.Ceil, floats.Round)  #: mnemonics that name the type twice
#: Greatest f32 that rounds to the largest finite value of an 8-bit float.
_ROUNDED_DOWN = {f8_e4m3: 464.0, f8_e5m2: float(np.nextafter(np.float32(61440), np.float32(0)))}
_BEYOND = {f8_e4m3: 0x7F, f8_e5m2: 0x7C}  #: code of a greater number: NaN, or infinity where the type has one
_COMPARISONS = (x.Lt, x.Le, x.Eq, x.Ne)


def apply(out: Writer, operation: type[Expr], of: Type, operands: Sequence[str]) -> str:
    """Return the result of an operation on elements of type `of`, in a register. Raises Unsupported for what PTX lacks.

    An operation on f16 or bf16 that `packed` lacks is computed in f32 and rounded to 16 bits. The result is that of one
    rounding, since f32 has more than twice the mantissa bits (docs/ir.md).
    """
    integer, real = OPERATIONS[operation]
    name = real if of.is_float else integer
    if not name or (of.is_float and of.bits < 16):
        kinds = [*(["integers"] if integer else []), *(["f16, f32, f64"] if real else [])]
        raise Unsupported(f"given {operation.__name__} of {of}, wanted one of {', '.join(kinds)}")
    if of is bool_:
        return _of_bools(out, operation, operands)
    if of in (f16, bf16):
        return _of_halves(out, operation, of, name, operands)
    if operation in _OF_ANGLES:
        operands = [_radians(out, *operands)]
    if of.bits == 64 and operation in (x.Shl, x.Shr) and operands[1].startswith("%"):  # PTX counts in 32 bits
        operands = [operands[0], out.op("cvt.u32.u64", operands[1])]
    kind = "p" if operation in _COMPARISONS else kind_of(of)
    return out.op(f"{name}.{_suffix(operation, of)}", *operands, kind=kind)


def _suffix(operation: type[Expr], of: Type) -> str:
    if of.is_float:
        return f"{of.name}.{of.name}" if operation in _OF_TWO_TYPES else of.name
    if operation is x.MulHi:
        return "u32"  # the IR's product is unsigned
    return f"b{_wide(of)[1:]}" if operation is x.Shl else _wide(of)


def _radians(out: Writer, turns: str) -> str:
    """Return an angle in radians, of at most half a turn: whole turns are subtracted exactly."""
    whole = out.op("cvt.rni.f32.f32", turns)
    return out.op("mul.rn.f32", out.op("sub.rn.f32", turns, whole), _literal(f32, _TURN))


def _of_bools(out: Writer, operation: type[Expr], operands: Sequence[str]) -> str:
    """Return a comparison of predicates for equality. Raises Unsupported for other operations."""
    differ = out.op("xor.pred", *operands, kind="p")
    if operation is x.Ne:
        return differ
    if operation is x.Eq:
        return out.op("not.pred", differ, kind="p")
    raise Unsupported(f"given {operation.__name__} of bool, wanted a comparison for equality")


def _of_halves(out: Writer, operation: type[Expr], of: Type, name: str, operands: Sequence[str]) -> str:
    """Return an operation on f16 or bf16 that `packed` has no instruction for."""
    if of is f16 and operation in _COMPARISONS:
        return out.op(f"{name}.f16", *(out.op("cvt.u16.u32", each, kind="h") for each in operands), kind="p")
    result = apply(out, operation, f32, [convert(out, of, f32, each) for each in operands])
    return result if operation in _COMPARISONS else convert(out, f32, of, result)


def convert(out: Writer, of: Type, to: Type, element: str, *, saturate: bool = False) -> str:
    """Return an element converted as docs/ir.md, "Conversions", says: rounded at most once."""
    if of is bool_:
        one = 1 if to.is_int else int(np.asarray(1.0, to.numpy).view(f"u{to.bytes}"))
        return out.op(f"selp.{KINDS[kind_of(to)]}", hex(one), "0", element, kind=kind_of(to))
    if to is bool_:
        return _truth(out, of, element)
    if of.is_int and to.is_int:
        return _between_integers(out, of, to, element, saturate=saturate)
    if of.is_int:
        return _from_integer(out, of, to, element, saturate=saturate)
    if to.is_int:
        source = element if of.bits >= 32 else convert(out, of, f32, element)
        name = (of if of.bits >= 32 else f32).name
        return out.op(f"cvt.rni.{to.name}.{name}", source, kind=kind_of(to))
    return _between_floats(out, of, to, element, saturate=saturate)


def _wide(elem: Type) -> str:
    """Return the integer type of an integer element's register, to whose bits the element is extended."""
    return f"{'s' if elem.min < 0 else 'u'}{64 if elem.bits == 64 else 32}"


def _truth(out: Writer, of: Type, element: str) -> str:
    """Return whether a number is not zero; so NaN is true."""
    if of.is_int:
        return out.op(f"setp.ne.{_wide(of)}", element, "0", kind="p")
    if of.bits < 32:
        return _truth(out, f32, convert(out, of, f32, element))
    return out.op(f"setp.neu.{of.name}", element, "0d0000000000000000" if of is f64 else "0f00000000", kind="p")


def _between_integers(out: Writer, of: Type, to: Type, element: str, *, saturate: bool) -> str:
    if saturate and (of.min < to.min or of.max > to.max):
        return out.op(f"cvt.sat.{to.name}.{_wide(of)}", element, kind=kind_of(to))
    if to.bits == 64 and of.bits < 64:
        return out.op(f"cvt.{'s64' if of.min < 0 else 'u64'}.{_wide(of)}", element, kind="rd")
    return out.op("cvt.u32.u64", element) if of.bits == 64 and to.bits < 64 else element


def _from_integer(out: Writer, of: Type, to: Type, element: str, *, saturate: bool) -> str:
    if to.bits >= 32:
        return out.op(f"cvt.rn.{to.name}.{_wide(of)}", element, kind=kind_of(to))
    if to is f16:
        if saturate and max(-of.min, of.max) > to.largest:
            element = _limited(out, of, int(to.largest), element)
        return out.op("cvt.u32.u16", out.op(f"cvt.rn.f16.{_wide(of)}", element, kind="h"))
    if (to is bf16 or to in BYTES) and of.bits <= 32:
        exact = f32 if of.bits <= 16 else f64
        return convert(out, exact, to, _from_integer(out, of, exact, element, saturate=False), saturate=saturate)
    raise Unsupported(f"given a conversion from {of} to {to}, wanted one to f16, f32 or f64")


def _limited(out: Writer, of: Type, most: int, element: str) -> str:
    """Return an integer clamped to [-most, most]."""
    element = out.op(f"min.{_wide(of)}", element, str(most), kind=kind_of(of))
    return out.op(f"max.{_wide(of)}", element, str(-most), kind=kind_of(of)) if of.min < 0 else element


def _between_floats(out: Writer, of: Type, to: Type, element: str, *, saturate: bool) -> str:
    """Return a float as another float type, rounded once, by way of f32 or f16 where `cvt` lacks the pair."""
    if of is to and not saturate:
        return element
    if of is to and of.bits >= 32:
        return _clamped(out, to, to.largest, element)
    if of in (f16, bf16):
        return _between_floats(out, f32, to, _to_single(out, of, element), saturate=saturate)
    if of in BYTES:
        half = out.op(f"cvt.rn.f16x2.{BYTES[of]}", out.op("cvt.u16.u32", element, kind="h"))
        return _between_floats(out, f16, to, half, saturate=saturate)
    if to in BYTES:
        return _to_byte(out, to, _to_odd(out, element) if of is f64 else element, saturate=saturate)
    if to.bits < 16:
        raise Unsupported(f"given a conversion from {of} to {to}, wanted one to f16, bf16, f32 or f64")
    if to is f64:
        wide = out.op("cvt.f64.f32", element, kind="rd")
        return _clamped(out, f64, to.largest, wide) if saturate else wide
    if saturate:
        element = _clamped(out, of, to.largest, element)
    if to is f32:
        return out.op("cvt.rn.f32.f64", element)
    single = _to_odd(out, element) if of is f64 else element
    return out.op("cvt.u32.u16", out.op(f"cvt.rn.{to.name}.f32", single, kind="h"))


def _to_byte(out: Writer, to: Type, element: str, *, saturate: bool) -> str:
    """Return an f32 as an 8-bit float: the instruction saturates; without `saturate`, `_BEYOND` replaces its result."""
    byte = out.op("cvt.u32.u16", out.op(f"cvt.rn.satfinite.{BYTES[to]}.f32", "0f00000000", element, kind="h"))
    if saturate:
        return byte
    inside = out.op("setp.leu.f32", out.op("abs.f32", element), _literal(f32, _ROUNDED_DOWN[to]), kind="p")
    sign = out.op("and.b32", byte, "0x80")
    return out.op("selp.b32", byte, out.op("or.b32", sign, hex(_BEYOND[to])), inside)


def _to_single(out: Writer, of: Type, element: str) -> str:
    """Return an f16 or bf16 as f32, exactly."""
    if of is bf16:
        return out.op("shl.b32", element, "16")
    return out.op("cvt.f32.f16", out.op("cvt.u16.u32", element, kind="h"))


def _clamped(out: Writer, of: Type, most: float, element: str) -> str:
    """Return a float clamped to [-most, most]; NaN stays NaN."""
    limits = [_literal(of, limit) for limit in (most, -most)]
    if of is f32:
        return out.op("max.NaN.f32", out.op("min.NaN.f32", element, limits[0]), limits[1])
    inside = out.op("max.f64", out.op("min.f64", element, limits[0], kind="rd"), limits[1], kind="rd")
    ordered = out.op("setp.num.f64", element, element, kind="p")
    return out.op("selp.b64", inside, element, ordered, kind="rd")


def _to_odd(out: Writer, element: str) -> str:
    """Return an f64 rounded to odd in f32, last bit set if inexact: rounding that to fewer bits equals one rounding."""
    near = out.op("cvt.rz.f32.f64", element)
    differs = out.op("setp.ne.f64", out.op("cvt.f64.f32", near, kind="rd"), element, kind="p")
    return out.op("selp.b32", out.op("or.b32", near, "1"), near, differs)


def _literal(of: Type, value: float) -> str:
    """Return a constant of f32 or f64 (PTX ISA, "Floating-Point Constants")."""
    return f"0d{np.float64(value).view(np.uint64):016X}" if of is f64 else f"0f{np.float32(value).view(np.uint32):08X}"
