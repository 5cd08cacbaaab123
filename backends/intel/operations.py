"""Operations on the elements of vectors, as rows: which instruction does what to which element type.

An operation that has no row for a type is computed in a wider one, from which the result is rounded or wrapped as it
would have been: IGC, too, rounds halves to whole numbers as floats. Mnemonics: Programmer's Reference Manuals of
Alchemist and Ponte Vecchio, "Instruction Set Reference".
"""

from __future__ import annotations

from convgen.ir.expr import Add, Expr, Max, Min, Mul, MulHi, Shl, Shr, Sub, Unary
from convgen.ir.floats import Ceil, Cos, Exp2, Floor, Log2, Rcp, Round, Rsqrt, Sin, Sqrt
from convgen.ir.types import Kind, Type, bf16, f16, f32, s8, s16, s32, u8, u16, u32

#: element type -> IGA's name
TYPES: dict[Type, str] = {
    f16: "hf",
    bf16: "bf",
    f32: "f",
    s8: "b",
    u8: "ub",
    s16: "w",
    u16: "uw",
    s32: "d",
    u32: "ud",
}
_INTEGERS = (s16, u16, s32, u32)
_NAMES: dict[type[Expr], str] = {Add: "add", Sub: "sub", Mul: "mul", Min: "min", Max: "max"}

#: Of two operands, by operation and element type, as `Elements` knows them.
BINARY: dict[tuple[type[Expr], Type], str] = {
    **{(o, t): name for o, name in _NAMES.items() for t in (f16, f32, *_INTEGERS)},
    **{(Shl, t): "shl" for t in _INTEGERS},
    **{(Shr, t): "shr" if t.kind is Kind.UNSIGNED else "asr" for t in _INTEGERS},
    **dict.fromkeys([(MulHi, s32), (MulHi, u32)], "mulhi"),
}
COMMUTES = frozenset(("add", "mul", "min", "max"))
#: Of two operands: the condition by which `sel` takes the first; and what makes the sign of a zero of the signs of two.
EXTREMA = {"min": ("lt", "or"), "max": ("ge", "and")}

#: Of one f32, as which halves are computed. Sines and cosines want radians, of at most 32767 half turns (Intel,
#: documentation of ESIMD's math).
UNARY: dict[type[Unary], str] = {
    Floor: "rndd",
    Ceil: "rndu",
    Round: "rnde",
    Exp2: "math.exp",
    Log2: "math.log",
    Rcp: "math.inv",
    Sqrt: "math.sqt",
    Rsqrt: "math.rsqt",
    Sin: "math.sin",
    Cos: "math.cos",
}
WIDER: dict[Type, Type] = {s8: s32, u8: u32, bf16: f32}
#: Which type each conversion reaches first. One `mov` goes there, rounding to nearest even; what is wider, or has more
#: digits, holds what counts (of sums past 2^24 a half is infinite anyhow). Of integers to narrower ones those that
#: saturate; bits that wrap need no conversion. Of floats to integers those that are rounded before.
CONVERSIONS: dict[tuple[Type, Type], Type] = {
    **{(s32, to): to for to in (s8, u8)},
    **{(f32, to): to for to in (s32, u32)},
    **{(of, to): to for of, to in ((f32, f16), (f16, f32), (f32, bf16), (bf16, f32), (s32, f32), (u32, f32))},
    **{(of, to): to for of in (s8, u8, s16, u16) for to in (s32, u32)},
    **{(of, to): s32 for of in (s8, u8) for to in (s16, u16)},
    **{(of, f32): s32 for of in (s8, u8, s16, u16)},
    **{(of, f16): f32 for of in (bf16, s8, u8, s16, u16, s32, u32)},
    **{(of, bf16): f32 for of in (f16, s8, u8, s16, u16)},
}
