"""Element-wise vector operations as rows: (operation, element type) -> instruction.

An operation without a row for a type is computed in a wider type; the result is then rounded or wrapped to the type.
IGC, too, rounds f16 to integral values as floats. Mnemonics: Programmer's Reference Manuals of Alchemist and Ponte
Vecchio, "Instruction Set Reference".
"""

from __future__ import annotations

from convgen.ir.expr import Add, Expr, Max, Min, Mul, MulHi, Shl, Shr, Sub, Unary
from convgen.ir.floats import Ceil, Cos, Exp2, Floor, Log2, Rcp, Round, Rsqrt, Sin, Sqrt
from convgen.ir.types import Kind, Type, bf16, f16, f32, s8, s16, s32, u8, u16, u32

#: element type -> IGA's name
TYPES: dict[Type, str] = {f16: "hf", bf16: "bf", f32: "f", s8: "b", u8: "ub", s16: "w", u16: "uw", s32: "d", u32: "ud"}
_INTEGERS = (s16, u16, s32, u32)
_NAMES: dict[type[Expr], str] = {Add: "add", Sub: "sub", Mul: "mul", Min: "min", Max: "max"}

#: Operations on two operands, by operation and element type; names are those of `Elements`.
BINARY: dict[tuple[type[Expr], Type], str] = {
    **{(o, t): name for o, name in _NAMES.items() for t in (f16, f32, *_INTEGERS)},
    **{(Shl, t): "shl" for t in _INTEGERS},
    **{(Shr, t): "shr" if t.kind is Kind.UNSIGNED else "asr" for t in _INTEGERS},
    **dict.fromkeys([(MulHi, s32), (MulHi, u32)], "mulhi"),
}
COMMUTES = frozenset(("add", "mul", "min", "max"))
#: Minimum and maximum: the condition by which `sel` takes the first operand, and the logic that gives the sign of a
#: zero from both signs.
EXTREMA = {"min": ("lt", "or"), "max": ("ge", "and")}

#: Operations on one f32; f16 is computed as f32. Sines and cosines take radians, at most 32767 half turns (Intel,
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
#: (source, destination) -> type that the first `mov` converts to, rounding to nearest even. The intermediate type is
#: wider or more precise, so only one step rounds (integers beyond 2^24 overflow f16 anyway). Integers to narrower
#: integers: saturating conversions only, since wrapping needs no conversion. Floats to integers: after rounding to an
#: integral value.
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
