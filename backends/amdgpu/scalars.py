"""Selection of scalar-typed expressions: SALU for uniform values, VALU for varying ones, masks for varying bools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from convgen.backends.amdgpu.emitter import AmdEmitter
from convgen.backends.amdgpu.isa import is_inline
from convgen.backends.machine.instruction import Imm, Operand, Reg
from convgen.backends.machine.scalars import Scalars, plain, strip
from convgen.ir import expr as x
from convgen.ir.error import Unsupported
from convgen.ir.fused import Fused
from convgen.ir.text import in_short
from convgen.ir.types import AnyType, Kind, Type
from convgen.ir.votes import AllLanes

#: node class -> (SALU mnemonic for signed, for unsigned)
_SALU: dict[type[x.Expr], tuple[str, str]] = {
    x.Add: ("s_add_i32", "s_add_u32"),
    x.Sub: ("s_sub_i32", "s_sub_i32"),
    x.Mul: ("s_mul_i32", "s_mul_i32"),
    x.MulHi: ("s_mul_hi_u32", "s_mul_hi_u32"),
    x.And: ("s_and_b32", "s_and_b32"),
    x.Or: ("s_or_b32", "s_or_b32"),
    x.Xor: ("s_xor_b32", "s_xor_b32"),
    x.Shl: ("s_lshl_b32", "s_lshl_b32"),
    x.Shr: ("s_ashr_i32", "s_lshr_b32"),
    x.Min: ("s_min_i32", "s_min_u32"),
    x.Max: ("s_max_i32", "s_max_u32"),
}
_SALU_COMPARE: dict[type[x.Expr], tuple[str, str]] = {
    x.Lt: ("s_cmp_lt_i32", "s_cmp_lt_u32"),
    x.Le: ("s_cmp_le_i32", "s_cmp_le_u32"),
    x.Eq: ("s_cmp_eq_u32", "s_cmp_eq_u32"),
    x.Ne: ("s_cmp_lg_u32", "s_cmp_lg_u32"),
}
#: node class -> (VALU mnemonic for signed, for unsigned, operands swapped)
VALU: dict[type[x.Expr], tuple[str, str, bool]] = {
    x.Add: ("v_add_u32", "v_add_u32", False),
    x.Sub: ("v_sub_u32", "v_sub_u32", False),
    x.MulHi: ("v_mul_hi_u32", "v_mul_hi_u32", False),
    x.And: ("v_and_b32", "v_and_b32", False),
    x.Or: ("v_or_b32", "v_or_b32", False),
    x.Xor: ("v_xor_b32", "v_xor_b32", False),
    x.Shl: ("v_lshlrev_b32", "v_lshlrev_b32", True),
    x.Shr: ("v_ashrrev_i32", "v_lshrrev_b32", True),
    x.Min: ("v_min_i32", "v_min_u32", False),
    x.Max: ("v_max_i32", "v_max_u32", False),
}
_VALU_COMPARE: dict[type[x.Expr], tuple[str, str]] = {
    x.Lt: ("v_cmp_lt_i32", "v_cmp_lt_u32"),
    x.Le: ("v_cmp_le_i32", "v_cmp_le_u32"),
    x.Eq: ("v_cmp_eq_u32", "v_cmp_eq_u32"),
    x.Ne: ("v_cmp_ne_u32", "v_cmp_ne_u32"),
}
_FUSED = {
    "add3": "v_add3_u32",
    "mad24": "v_mad_u32_u24",
    "lshl_add": "v_lshl_add_u32",
    "lshl_or": "v_lshl_or_b32",
    "and_or": "v_and_or_b32",
    "or3": "v_or3_b32",
    "align": "v_alignbit_b32",
}
LOGIC: dict[type[x.Expr], str] = {x.And: "s_and_b64", x.Or: "s_or_b64", x.Xor: "s_xor_b64"}
_U24 = (1 << 24) - 1


class OtherTypes(Protocol):
    """The evaluator of values other than 32-bit integers and bools."""

    def converted(self, e: x.Cast | x.Saturate) -> Reg:
        """Return a conversion from or to such a value."""

    def compared(self, e: x.Comparison) -> Callable[[int, Reg | None], Reg]:
        """Return a function that gives the mask of each element of a comparison."""

    def value(self, e: x.Expr) -> tuple[Reg, ...]:
        """Return the registers of a packed value, or of a value from other lanes."""


class AmdScalars(Scalars):
    """Evaluates 32-bit integer and bool expressions."""

    out: AmdEmitter
    elements: OtherTypes  #: evaluator of all other values

    def _computed(self, e: x.Expr) -> Operand:
        match e:
            case x.Const():
                return Imm(e.bits)
            case x.Uniform(a):
                return self.out.salu_from_lane(self.value(a))
            case x.FromLane() | x.Pack() if e.type.bits == 32:
                (register,) = self.elements.value(e)
                return self.out.salu_from_lane(register) if self.uniform(e) else register
            case x.Saturate() | x.Cast() if not e.type.elem.is_bool and e.type.bits == 32:
                register = self.elements.converted(e)
                return self.out.salu_from_lane(register) if self.uniform(e) else register
        if not isinstance(e.type, Type) or (e.type.bits != 32 and not e.type.is_bool):
            raise Unsupported(f"given an expression of type {e.type}, wanted 32-bit integers: {in_short(e)}")
        return self._uniform(e) if self.uniform(e) else self._varying(e)

    # ------------------------------------------------------------ uniform

    def _uniform(self, e: x.Expr) -> Operand:
        unsigned = e.type.elem.kind is Kind.UNSIGNED
        if e.type.elem.is_bool:
            return self._or_zero(e, Imm(1), "s_cselect_b32", 1)
        match e:
            case x.Add(addend, x.Select(cond, x.Const(_, 1), x.Const(_, 0))):  # a carry, which s_addc adds from scc
                kept = self.value(addend)
                self.condition(cond)
                return self.out.salu("s_addc_u32", kept, Imm(0))
            case Fused("lshl_add", a, x.Const(_, places), c):
                return self.out.salu(f"s_lshl{places}_add_u32", self.value(a), self.value(c))
            case x.Binary() if type(e) in _SALU:
                return self.out.salu(_SALU[type(e)][unsigned], self.value(e.a), self.value(e.b))
            case x.Not():
                return self.out.salu("s_not_b32", self.value(e.a))
            case x.Select():
                chosen, other = self.value(e.a), self.value(e.b)
                self.condition(e.cond)
                return self.out.salu("s_cselect_b32", chosen, other)
        raise Unsupported(f"given {type(e).__name__}, wanted an operation the scalar unit has: {in_short(e)}")

    def _or_zero(self, e: x.Expr, chosen: Operand, name: str, size: int) -> Reg:
        """Return `chosen` where a uniform bool holds, else zero.

        For a conjunction, each condition selects from the previous result: two instructions per condition.
        """
        e = plain(strip(e))
        if isinstance(e, x.And):
            return self._or_zero(e.b, self._or_zero(e.a, chosen, name, size), name, size)
        self.condition(e)
        return self.out.salu(name, chosen, Imm(0), size=size)

    def condition(self, e: x.Expr) -> None:
        """Leave a uniform bool in scc."""
        e = plain(strip(e))
        if isinstance(e, AllLanes):
            self.out.scalar_compare("s_cmp_eq_u64", self.mask(e.a), Imm(-1))
        elif isinstance(e, x.Comparison) and not _is_word(e.a.type):
            self.out.scalar_compare("s_cmp_lg_u64", self.mask(e), Imm(0))
        elif isinstance(e, x.Comparison):
            a, b = self.value(e.a), self.value(e.b)
            unsigned = e.a.type.elem.kind is Kind.UNSIGNED
            self.out.scalar_compare(_SALU_COMPARE[type(e)][unsigned], a, b)
        elif type(e) in LOGIC:
            a, b = map(self.value, e.children())
            self.out.salu(_SALU[type(e)][0], a, b)  # scc = (result != 0)
        elif isinstance(e, x.Not):
            self.out.scalar_compare("s_cmp_eq_u32", self.value(e.a), Imm(0))
        else:
            self.out.scalar_compare("s_cmp_lg_u32", self.value(e), Imm(0))

    # ------------------------------------------------------------ varying

    def _varying(self, e: x.Expr) -> Reg:
        if e.type.elem.is_bool:
            return self.mask(e)
        match e:
            case Fused():
                return self.out.valu(_FUSED[e.name], self.value(e.a), self.value(e.b), self.value(e.c))
            case x.Mul():
                return self._multiply(e)
            case x.Binary() if type(e) in VALU:
                signed, unsigned, swapped = VALU[type(e)]
                name = unsigned if e.type.elem.kind is Kind.UNSIGNED else signed
                a, b = self.value(e.a), self.value(e.b)
                return self.out.valu(name, *((b, a) if swapped else (a, b)))
            case x.Not():
                return self.out.valu("v_not_b32", self.value(e.a))
            case x.Select():
                chosen, other = self.value(e.a), self.value(e.b)
                return self._select(self.mask(e.cond), chosen, other)
        raise Unsupported(f"given {type(e).__name__}, wanted an operation the vector unit has: {in_short(e)}")

    def _multiply(self, e: x.Mul) -> Reg:
        """Multiply; the 24-bit multiplier is four times as fast as the 32-bit one (CDNA3 ISA 7, VALU rates)."""
        a, b = self.value(e.a), self.value(e.b)
        fast = self.fits_u24(e.a, e.b)
        return self.out.valu("v_mul_u32_u24", b, a) if fast else self.out.valu("v_mul_lo_u32", a, b)

    def _select(self, mask: Reg, chosen: Operand, other: Operand) -> Reg:
        """Select lane by lane. The mask is the one scalar operand: values are vector registers or inline constants."""
        dst = self.out.new("v")
        self.out.emit("v_cndmask_b32", (dst,), (self._in_lanes(other), self._in_lanes(chosen), mask))
        return dst

    def _in_lanes(self, v: Operand) -> Operand:
        """Return an inline constant or a vector register."""
        if not isinstance(v, Imm):
            return self.out.move_to_vector(v)
        return v if is_inline(v.value) else self.out.in_lanes(v.value)

    def mask(self, e: x.Expr) -> Reg:
        """Return a varying bool: one bit a lane in a scalar pair."""
        e = plain(strip(e))
        if isinstance(e, x.Var):
            held = self.env[e]
            if isinstance(held, Reg) and held.count == 2:
                return held
        if isinstance(e, x.Comparison) and not _is_word(e.a.type):
            return self.elements.compared(e)(0, None)
        if self.uniform(e):
            return self._or_zero(e, Imm(-1), "s_cselect_b64", 2)
        match e:
            case x.Comparison():
                a, b = self.value(e.a), self.value(e.b)
                unsigned = e.a.type.elem.kind is Kind.UNSIGNED
                return self.out.valu(_VALU_COMPARE[type(e)][unsigned], a, b, bank="s", size=2)
            case x.And(a, b) | x.Or(a, b) | x.Xor(a, b):
                return self.out.salu(LOGIC[type(e)], self.mask(a), self.mask(b), size=2)
            case x.Not(a):
                return self.out.salu("s_not_b64", self.mask(a), size=2)
        raise Unsupported(f"given {type(e).__name__}, wanted a comparison or logic: {in_short(e)}")

    def fits_u24(self, *es: x.Expr) -> bool:
        """Return whether all values are provably in [0, 2^24)."""
        return all(self.bounds(e)[0] >= 0 and self.bounds(e)[1] <= _U24 for e in es)


def _is_word(type: AnyType) -> bool:
    """Return whether `AmdScalars` computes with values of this type."""
    return isinstance(type, Type) and (type.is_bool or (type.is_int and type.bits == 32))
