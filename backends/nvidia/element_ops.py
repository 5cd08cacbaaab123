"""Operations on single elements, as rows: which instruction does what to which type; and conversions.

PTX ISA, "Integer Arithmetic Instructions", "Floating Point Instructions", "Half Precision Floating Point Instructions",
"cvt". Elements are in registers of 32 or 64 bits; f16 and bf16 in the low half of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from convgen.backends.nvidia.ptx import Writer
from convgen.ir import expr as x
from convgen.ir import floats
from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr
from convgen.ir.types import Type, bf16, bool_, f16, f32, f64

#: Operation -> mnemonic on integers, on floats; "" where there is none.
OPERATIONS: Mapping[type[Expr], tuple[str, str]] = {
    x.Add: ("add", "add.rn"),
    x.Sub: ("sub", "sub.rn"),
    x.Mul: ("mul.lo", "mul.rn"),
    x.MulHi: ("mul.hi", ""),
    x.Div: ("div", "div.rn"),
    x.Mod: ("rem", ""),
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
    floats.Exp2: ("", "ex2.approx"),
    floats.Log2: ("", "lg2.approx"),
    floats.Rcp: ("", "rcp.rn"),
    floats.Sqrt: ("", "sqrt.rn"),
    floats.Rsqrt: ("", "rsqrt.approx"),
    floats.Sin: ("", "sin.approx"),
    floats.Cos: ("", "cos.approx"),
}
_OF_TWO_TYPES = (floats.Floor, floats.Ceil, floats.Round)  #: mnemonics that name the type twice
#: Operations that have no form for f16, and are done in f32: their results are rounded once more.
_IN_F32 = (floats.Exp2, floats.Log2, floats.Rcp, floats.Sqrt, floats.Rsqrt, floats.Sin, floats.Cos, x.Div)
_COMPARISONS = (x.Lt, x.Le, x.Eq, x.Ne)


def apply(out: Writer, operation: type[Expr], of: Type, operands: Sequence[str]) -> str:
    """The result of an operation on elements of type `of`, in a register. Raises Unsupported for what PTX lacks."""
    integer, real = OPERATIONS[operation]
    name = real if of.is_float else integer
    if not name or of is bf16 or (of.is_float and of.bits < 16):
        raise Unsupported(
            f"given {operation.__name__} of {of}, wanted one of {'integers' if integer else 'f16, f32, f64'}"
        )
    if of is bool_:
        return _of_bools(out, operation, operands)
    if of is f16:
        return _of_halves(out, operation, name, operands)
    kind = "p" if operation in _COMPARISONS else "rd" if of.bits == 64 else "r"
    return out.op(f"{name}.{_suffix(operation, of)}", *operands, kind=kind)


def _suffix(operation: type[Expr], of: Type) -> str:
    if of.is_float:
        return f"{of.name}.{of.name}" if operation in _OF_TWO_TYPES else of.name
    bits = 64 if of.bits == 64 else 32
    if operation is x.Shl:
        return f"b{bits}"
    return f"{'s' if of.min < 0 else 'u'}{bits}"


def _of_bools(out: Writer, operation: type[Expr], operands: Sequence[str]) -> str:
    """Comparisons of predicates."""
    differ = out.op("xor.pred", *operands, kind="p")
    if operation is x.Ne:
        return differ
    if operation is x.Eq:
        return out.op("not.pred", differ, kind="p")
    raise Unsupported(f"given {operation.__name__} of bool, wanted a comparison for equality")


def _of_halves(out: Writer, operation: type[Expr], name: str, operands: Sequence[str]) -> str:
    if operation in _IN_F32 or operation in _OF_TWO_TYPES:
        wide = [convert(out, f16, f32, each) for each in operands]
        return convert(out, f32, f16, apply(out, operation, f32, wide))
    halves = [out.op("cvt.u16.u32", each, kind="h") for each in operands]
    if operation in _COMPARISONS:
        return out.op(f"{name}.f16", *halves, kind="p")
    return out.op("cvt.u32.u16", out.op(f"{name}.f16", *halves, kind="h"))


def convert(out: Writer, of: Type, to: Type, element: str, *, saturate: bool = False) -> str:
    """An element converted: integers wrap unless they saturate, floats to integers saturate, NaN becomes 0."""
    if of is bool_:
        return out.op("selp.b32", "1", "0", element)
    if of.is_int and to.is_int:
        return _between_integers(out, of, to, element, saturate=saturate)
    if of.is_int:
        return _from_integer(out, of, to, element)
    if to.is_int:
        source = element if of.bits >= 32 else convert(out, of, f32, element)
        name = (of if of.bits >= 32 else f32).name
        return out.op(f"cvt.rni.{to.name}.{name}", source, kind="rd" if to.bits == 64 else "r")
    return _between_floats(out, of, to, element, saturate=saturate)


def _between_integers(out: Writer, of: Type, to: Type, element: str, *, saturate: bool) -> str:
    wide = f"{'s' if of.min < 0 else 'u'}{64 if of.bits == 64 else 32}"
    if saturate and (of.min < to.min or of.max > to.max):
        return out.op(f"cvt.sat.{to.name}.{wide}", element, kind="rd" if to.bits == 64 else "r")
    if to.bits == 64 and of.bits < 64:
        return out.op(f"cvt.{'s64' if of.min < 0 else 'u64'}.{wide}", element, kind="rd")
    return out.op("cvt.u32.u64", element) if of.bits == 64 and to.bits < 64 else element


def _from_integer(out: Writer, of: Type, to: Type, element: str) -> str:
    wide = f"{'s' if of.min < 0 else 'u'}{64 if of.bits == 64 else 32}"
    if to.bits >= 32:
        return out.op(f"cvt.rn.{to.name}.{wide}", element, kind="rd" if to.bits == 64 else "r")
    if to is f16:
        return out.op("cvt.u32.u16", out.op(f"cvt.rn.f16.{wide}", element, kind="h"))
    if to is bf16:
        single = _from_integer(out, of, f32, element) if of.bits <= 16 else _single_odd(out, wide, element)
        return _between_floats(out, f32, bf16, single, saturate=False)
    raise Unsupported(f"given a conversion from {of} to {to}, wanted one to f16, bf16, f32 or f64")


def _single_odd(out: Writer, of: str, element: str) -> str:
    """Return a number of PTX type `of` as f32, rounded to odd, so that rounding again rounds once.

    An f32 that was cut toward zero and differs from the number gets its last bit set.
    """
    single = out.op(f"cvt.rz.f32.{of}", element)
    back = "cvt.f64.f32" if of == "f64" else f"cvt.rzi.{of}.f32"
    again = out.op(back, single, kind="rd" if of.endswith("64") else "r")
    differs = out.op(f"setp.ne.{of}", again, element, kind="p")
    return out.op("selp.b32", out.op("or.b32", single, "1"), single, differs)


def _between_floats(out: Writer, of: Type, to: Type, element: str, *, saturate: bool) -> str:
    if of is to:
        return element
    if of is bf16:
        wide = out.op("shl.b32", element, "16")
        return wide if to is f32 else convert(out, f32, to, wide, saturate=saturate)
    if of is f16:
        half = out.op("cvt.u16.u32", element, kind="h")
        wide = out.op("cvt.f32.f16", half)
        return wide if to is f32 else convert(out, f32, to, wide, saturate=saturate)
    if to.bits >= 32:
        rounding = "cvt.rn" if to.bits < of.bits else "cvt"
        return out.op(f"{rounding}.{to.name}.{of.name}", element, kind="rd" if to.bits == 64 else "r")
    if of is f64 and to is bf16:
        return _between_floats(out, f32, bf16, _single_odd(out, "f64", element), saturate=saturate)
    if to not in (f16, bf16):
        raise Unsupported(f"given a conversion from {of} to {to}, wanted one to f16, bf16, f32 or f64")
    if saturate:
        most = f"0f{_bits_of(float(to.max)):08X}"
        least = f"0f{_bits_of(-float(to.max)):08X}"
        element = out.op("max.NaN.f32", out.op("min.NaN.f32", element, most), least)
    return out.op("cvt.u32.u16", out.op(f"cvt.rn.{to.name}.f32", element, kind="h"))


def _bits_of(value: float) -> int:
    """The bits of a number as f32."""
    return int(np.float32(value).view(np.uint32))
