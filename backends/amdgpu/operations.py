"""Element-wise vector operations as rows: (operation, element type) -> instruction.

An operation without a row for a type is computed in its `WIDER` type; the result is then rounded or wrapped to the
type. Mnemonics: CDNA3 ISA 12.
"""

from __future__ import annotations

from convgen.backends.amdgpu.scalars import VALU
from convgen.ir.expr import (
    Add,
    And,
    Comparison,
    Eq,
    Expr,
    Le,
    Lt,
    Max,
    Min,
    Mul,
    MulHi,
    Ne,
    Not,
    Or,
    Shl,
    Shr,
    Sub,
    Unary,
    Xor,
)
from convgen.ir.floats import Abs, Ceil, Cos, Exp2, Floor, Log2, Neg, Rcp, Round, Rsqrt, Sin, Sqrt
from convgen.ir.types import Kind, Type, bf16, f16, f32, f64, s8, s16, s32, u8, u16, u32

_INTEGERS = (s8, u8, s16, u16, s32, u32)
_HALVES = (s16, u16)

#: Two operands, by operation and element type: on all elements of a word, or on the two words of an f64; modifiers
#: follow. Also for one 16-bit element in the lower bits: zeros above stay zeros.
BINARY: dict[tuple[type[Expr], Type], str] = {
    (Add, f16): "v_pk_add_f16",
    (Sub, f16): "v_pk_add_f16 neg_lo:[0,1] neg_hi:[0,1]",
    (Mul, f16): "v_pk_mul_f16",
    (Min, f16): "v_pk_min_f16",
    (Max, f16): "v_pk_max_f16",
    **{(o, t): f"v_{n}_{t}" for t in (f32, f64) for o, n in ((Add, "add"), (Mul, "mul"), (Min, "min"), (Max, "max"))},
    (Sub, f32): "v_sub_f32",
    **{(o, t): VALU[o][:2][t.kind is Kind.UNSIGNED] for t in (s32, u32) for o in (Add, Sub, MulHi, Shl, Shr, Min, Max)},
    **dict.fromkeys([(Mul, s32), (Mul, u32)], "v_mul_lo_u32"),
    **{(o, t): VALU[o][0] for t in _INTEGERS for o in (And, Or, Xor)},
    **{(o, t): n for t in _HALVES for o, n in ((Add, "v_pk_add_u16"), (Mul, "v_pk_mul_lo_u16"))},
    **dict.fromkeys([(Sub, s16), (Sub, u16)], "v_pk_sub_i16"),
    **{(o, t): f"v_pk_{n}_{'iu'[t is u16]}16" for t in _HALVES for o, n in ((Min, "min"), (Max, "max"))},
    **dict.fromkeys([(Shl, s16), (Shl, u16)], "v_pk_lshlrev_b16"),
    (Shr, s16): "v_pk_ashrrev_i16",
    (Shr, u16): "v_pk_lshrrev_b16",
}
#: Instructions of `BINARY` with reversed operands.
REVERSED = frozenset(name for name in BINARY.values() if "rev_" in name)

#: Instructions of `BINARY` with a form for two words of each operand: gfx90a and later (CDNA3 ISA 12.11, V_PK_ADD_F32).
PAIRED = {"v_add_f32": "v_pk_add_f32", "v_mul_f32": "v_pk_mul_f32"}

#: One operand: one f16, f32 or f64.
UNARY: dict[type[Unary], str] = {
    Floor: "floor",
    Ceil: "ceil",
    Round: "rndne",
    Exp2: "exp",
    Log2: "log",
    Rcp: "rcp",
    Sqrt: "sqrt",
    Rsqrt: "rsq",
    Sin: "sin",
    Cos: "cos",
}
#: Operations whose operand counts revolutions and lies in -256 to 256 (CDNA3 ISA, V_SIN_F32); operands are reduced.
IN_REVOLUTIONS = (Sin, Cos)
#: Operations that change bits of each element: the instruction, and the bits.
BITWISE: dict[tuple[type[Unary], Kind], tuple[str, str]] = {
    (Neg, Kind.FLOAT): ("v_xor_b32", "sign"),
    (Abs, Kind.FLOAT): ("v_and_b32", "others"),
    **{(Not, kind): ("v_xor_b32", "all") for kind in (Kind.SIGNED, Kind.UNSIGNED)},
}
FUSED: dict[Type, str] = {f16: "v_pk_fma_f16", f32: "v_fma_f32", f64: "v_fma_f64"}

_RELATIONS = {Lt: "lt", Le: "le", Eq: "eq", Ne: "ne"}
_SUFFIXES = {s16: "i16", u16: "u16", s32: "i32", u32: "u32"}
COMPARE: dict[tuple[type[Comparison], Type], str] = {
    **{(o, t): f"v_cmp_{n}_{_SUFFIXES[t]}" for o, n in _RELATIONS.items() for t in _SUFFIXES},
    **{(o, t): f"v_cmp_{'neq' if o is Ne else n}_{t}" for o, n in _RELATIONS.items() for t in (f16, f32, f64)},
}

WIDER: dict[Type, Type] = {s8: s32, u8: u32, bf16: f32}
