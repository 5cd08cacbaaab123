"""Selection of scalar-typed expressions: one lane for uniform values, all lanes for varying ones, flags for bools.

Integers have 32 bits, addresses 64.
"""

from __future__ import annotations

from typing import Protocol

from convgen.backends.intel.emitter import XeEmitter
from convgen.backends.intel.isa import Literal, Null, Region, region
from convgen.backends.machine.instruction import BasicBlock, Imm, Operand, Reg, VirtualRegister
from convgen.backends.machine.scalars import Scalars, plain, strip
from convgen.ir import expr as x
from convgen.ir.error import Unsupported
from convgen.ir.fused import Fused
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.rules import wrapped
from convgen.ir.text import in_short
from convgen.ir.types import AnyType, Kind, Type, s16
from convgen.ir.uniform import Uniformity
from convgen.ir.votes import AllLanes

#: node class -> (mnemonic for signed, for unsigned)
_ALU: dict[type[x.Expr], tuple[str, str]] = {
    x.Add: ("add", "add"),
    x.And: ("and", "and"),
    x.Or: ("or", "or"),
    x.Xor: ("xor", "xor"),
    x.Shl: ("shl", "shl"),
    x.Shr: ("asr", "shr"),
}
CONDITIONS: dict[type[x.Expr], str] = {x.Lt: "lt", x.Le: "le", x.Eq: "eq", x.Ne: "ne", x.Min: "lt", x.Max: "ge"}
#: A condition with its operands exchanged.
SWAPPED = {"lt": "gt", "le": "ge", "eq": "eq", "ne": "ne"}
_U16 = (1 << 16) - 1


class OtherTypes(Protocol):
    """The evaluator of values other than integers of at least 32 bits."""

    def converted(self, e: x.Expr) -> Reg:
        """Return a conversion from or to a float, a narrow integer or a bool."""

    def value(self, e: x.Expr) -> tuple[Reg, ...]:
        """Return the registers of a packed value, or of a value from other lanes."""

    def compared(self, e: x.Comparison) -> Reg:
        """Return the flags of a comparison of two floats or narrow integers."""


class XeScalars(Scalars):
    """Evaluates integers, addresses and bools."""

    out: XeEmitter
    elements: OtherTypes  #: evaluator of all other values

    def __init__(self, out: XeEmitter, uniform: Uniformity, bounds: Bounds) -> None:
        super().__init__(out, uniform, bounds)
        self.pointers: dict[str, Reg] = {}  # buffer -> register of its address
        #: A block, and upper half of a 64-bit sum in it (register, word, element) -> register with that half plus one.
        self.next_in: tuple[BasicBlock, dict[tuple[VirtualRegister, int, int], Reg]] = out.block, {}

    def value(self, e: x.Expr) -> Operand:
        operand = super().value(e)
        if isinstance(operand, Region) and operand.signs:
            return self.out.alu("mov", operand.type, operand)
        return self._from_halves(operand, Imm(0)) if _is_half(operand, e) else operand

    def named(self, e: x.Expr) -> Operand:
        """Return the value as a variable keeps it: if cheaper, negated, or without an upper half of zeros.

        A comparison that gives one or zero is kept negated: the instruction writes minus one.
        """
        out = self.out
        match strip(e):
            case x.Select(x.Comparison() as cond, x.Const(_, 1), x.Const(_, 0)) if _is_wide_integer(cond.a.type):
                uniform = self.uniform(cond)
                truth = out.new("s" if uniform else "v")
                self._compare(cond, 1 if uniform else out.lanes, into=region(truth, "d"))
                return self.negated(truth, "d")
            case x.Cast(_, a) if (e.type.bits, a.type.bits) == (64, 32) and not self._may_be_negative(a):
                if not out.generation.long_alu:
                    low = self.value(a)
                    is_own = isinstance(low, Reg) and not isinstance(strip(a), x.Var)
                    return low if is_own else out.alu("mov", "ud", low)
        return super().value(e)

    def _computed(self, e: x.Expr) -> Operand:
        """Return the operand of an expression, by its class and then by the bits of its type."""
        match e:
            case x.Const():
                if e.type.elem.is_bool:
                    return _in_all_lanes(e)
                return Imm(e.bits) if e.type.bits <= 32 else self._wide_constant(e)
            case x.AddressOf(buffer):
                return self.pointers[buffer.name]
            case x.Uniform(x.FromLane(a, x.Const(_, lane))) if e.type.bits == 32:
                return self._word_of(a, lane)
            case x.Uniform(a) if not e.type.elem.is_bool:
                return self._first_lane(self.value(a))
            case x.FromLane() | x.Pack() if e.type.bits == 32:
                (register,) = self.elements.value(e)
                return self._first_lane(register) if self.uniform(e) else register
            case x.Cast() | x.Saturate() if not e.type.elem.is_bool and not _is_wide_integer(e.a.type):
                register = self.elements.converted(e)
                return self._first_lane(register) if self.uniform(e) else register
        if e.type.elem.is_bool:
            return self.mask_in_scalar(e)
        if not isinstance(e.type, Type) or e.type.bits not in (32, 64):
            raise Unsupported(f"given an expression of type {e.type}, wanted integers of 32 or 64 bits: {in_short(e)}")
        return self._wide(e) if e.type.bits == 64 else self._narrow(e)

    def _word_of(self, e: x.Expr, lane: int) -> Operand:
        """Return the word of one lane as an operand of all lanes."""
        o = self.value(e)
        return o if not isinstance(o, Reg) or self.out.is_uniform(o) else region(o, "", lane, 0)

    def _first_lane(self, o: Operand) -> Operand:
        if not isinstance(o, Reg) or self.out.is_uniform(o):
            return o
        dst = self.out.new("s", o.count)
        for word in range(o.count):
            self.out.emit("mov", (region(dst.words(word, 1), "ud"),), (region(o, "ud", word, 0),))
        return dst

    # ------------------------------------------------------------ 32 bits

    def _narrow(self, e: x.Expr) -> Reg:
        """Return a register with an integer of 32 bits."""
        out = self.out
        unsigned = e.type.elem.kind is Kind.UNSIGNED
        kind = "ud" if unsigned else "d"
        match e:
            case x.Cast() if e.a.type.bits == 64:
                return self._low(self.value(e.a))
            case Fused("mad16", factor, half, addend):
                sources = (_short(self._addend(addend)), self._addend(factor), self._low_half(self.value(half)))
                return out.alu("mad", kind, *sources)
            case Fused("add3"):
                addends = [_short(self._addend(addend)) for addend in e.children()]
                return out.alu("add3", kind, *sorted(addends, key=_is_immediate))
            case x.Mul():
                return self._multiply(e, kind)
            case x.MulHi():
                return self.product(self.value(e.a), self.value(e.b), "ud", high=True)
            case x.Add():
                return out.alu("add", kind, *map(self._addend, e.children()))
            case x.Sub():
                return out.alu("add", kind, self.value(e.a), self.negated(self.value(e.b), kind))
            case x.Min() | x.Max():
                a, b = self.value(e.a), self.value(e.b)
                return out.alu("sel", kind, a, b, condition=CONDITIONS[type(e)])
            case x.Shl(a, x.And(by, x.Const(_, 31))) | x.Shr(a, x.And(by, x.Const(_, 31))):
                # The engine ignores all other bits of the shift count: Programmer's Reference Manuals, Shift Left.
                return out.alu(_ALU[type(e)][unsigned], kind, self.value(a), self.value(by))
            case x.Binary() if type(e) in _ALU:
                return out.alu(_ALU[type(e)][unsigned], kind, self.value(e.a), self.value(e.b))
            case x.Not():
                return out.alu("not", kind, self.value(e.a))
            case x.Select():
                chosen, other = self.value(e.a), self.value(e.b)
                uniform = self.uniform(e)
                condition = self.condition(e.cond) if uniform else self.mask(e.cond)
                return self._select(condition, chosen, other, kind, uniform)
        raise Unsupported(f"given {type(e).__name__}, wanted an operation the vector engine has: {in_short(e)}")

    def _addend(self, e: x.Expr) -> Operand:
        """Return a value to be added or multiplied, perhaps with a sign modifier."""
        match strip(e):
            case x.Sub(x.Const(_, 0), a) if not isinstance(a, x.Const):
                return self.negated(self.value(a), "d")
        return self.named(e)

    def negated(self, o: Operand, type: str) -> Operand:
        """Return the operand with a sign modifier that negates it."""
        if isinstance(o, Imm):
            return Imm(-o.value)
        source = self.out.source(o, type)
        assert isinstance(source, Region)
        return region(source, type, source.sub, source.stride, signs="-")

    def _select(
        self,
        mask: Reg,
        chosen: Operand,
        other: Operand,
        type: str,
        uniform: bool,
        into: Region | None = None,
        *,
        partial: bool = False,
    ) -> Reg:
        """Return `chosen` where the mask holds and `other` elsewhere, in a new register or in the destination `into`.

        `sel` takes an immediate only as its second source. `partial` says that `into` is not all of its register.
        """
        out = self.out
        dst = into or out.new("s" if uniform else "v")
        first, second = out.source(chosen, type), out.source(other, type)
        is_swapped = isinstance(first, Literal) and not isinstance(second, Literal)
        if is_swapped:
            first, second = second, first
        if isinstance(first, Literal):
            first = out.source(out.constant(first), type)
        out.emit(
            "sel", (into or region(dst, type),), (first, second), lanes=1 if uniform else out.lanes, predicate=mask,
            partial=partial, modifiers=("unless",) if is_swapped else (),
        )  # fmt: skip
        return dst

    def _multiply(self, e: x.Mul, type: str) -> Reg:
        """Multiply; 32 by 16 bits is one instruction."""
        a, b = self.value(e.a), self.value(e.b)
        for factor, narrow, of in ((a, b, e.b), (b, a, e.a)):
            low, high = self.bounds(of)
            if low >= 0 and high <= _U16 and not isinstance(factor, Imm):
                return self.out.alu("mul", type, factor, self._low_half(narrow))
        return self.product(a, b, type)

    def _low_half(self, o: Operand) -> Operand:
        """Return the lower 16 bits of each element."""
        if isinstance(o, Imm):
            return Literal(o.value & _U16, "uw")
        source = self.out.source(o, "ud")
        assert isinstance(source, Region)
        return region(source, "uw", source.sub * 2, source.stride * 2)

    def product(self, a: Operand, b: Operand, type: str, high: bool = False, into: Reg | None = None) -> Reg:
        """Return the product of 32-bit factors: through the accumulator, 16 bits at a time."""
        out = self.out
        if isinstance(a, Imm):
            a = out.constant(Literal(a.value & 0xFFFFFFFF, "ud"))
        if isinstance(b, Imm):
            b = out.constant(Literal(b.value & 0xFFFFFFFF, "ud"))
        lanes = 1 if out.is_uniform(a) and out.is_uniform(b) and into is None else out.lanes
        partial = out.accumulator(type)
        out.emit("mul", (partial,), (out.source(a, type), self._low_half(b)), lanes=lanes)
        name = "mach" if high else out.generation.low_product
        dst = into or out.new("s" if lanes == 1 else "v")
        sources = (out.source(a, type), out.source(b, type))
        options = out.generation.carry_option if high else ()
        out.emit(name, (region(dst, type),), sources, lanes=lanes, modifiers=options)
        return dst

    # ------------------------------------------------------------ 64 bits

    def _wide_constant(self, e: x.Const) -> Reg:
        dst = self.out.new("s", 2)
        for word in (0, 1):
            value = e.bits >> 32 * word & 0xFFFFFFFF
            self.out.emit("mov", (region(dst.words(word, 1), "ud"),), (Literal(value, "ud"),))
        return dst

    def _wide(self, e: x.Expr) -> Operand:
        match e:
            case x.Add(a, b):
                return self._add_wide(a, b)
            case x.Sub(a, x.Const() as b):
                return self._add_wide(a, x.const(-b.bits % (1 << 64), b.dtype))
            case x.Cast(_, a) if a.type.bits == 32:
                return self._extended(a)
            case x.Cast(_, a) if a.type.bits == 64:
                return self._whole(a)
            case x.Mul(a, b):
                factors = self._halves(b), self._halves(a)
                for (low, high), other in (factors, factors[::-1]):
                    if high == Imm(0):
                        return self._product_wide(other, low)
        raise Unsupported(f"given {type(e).__name__}, wanted an operation on addresses: {in_short(e)}")

    def _product_wide(self, factor: tuple[Operand, Operand], by: Operand) -> Reg:
        """Return a 64-bit value, given as halves, times a non-negative value of 32 bits."""
        below, above = factor
        low, high = (self.product(below, by, "ud", high=h) for h in (False, True))
        if above != Imm(0):
            high = self.out.alu("add", "ud", high, self.product(above, by, "ud"))
        return self._from_halves(low, high)

    def _extended(self, a: x.Expr) -> Reg:
        """Return a 32-bit value as 64 bits."""
        value = self.value(a)
        if self.out.generation.long_alu and self.out.is_uniform(value):
            return self.out.alu("mov", "q", self.out.source(value, "d" if a.type.elem.kind is Kind.SIGNED else "ud"))
        return self._from_halves(value, self._sign(a, value))

    def _sign(self, a: x.Expr, value: Operand) -> Operand:
        """Return the upper half of a 32-bit value that is extended to 64 bits."""
        return self.out.alu("asr", "d", value, Imm(31)) if self._may_be_negative(a) else Imm(0)

    def _may_be_negative(self, e: x.Expr) -> bool:
        return e.type.elem.kind is Kind.SIGNED and self.bounds(e)[0] < 0

    def _from_halves(self, low: Operand, high: Operand) -> Reg:
        out, scalar = self.out, all(map(self.out.is_uniform, (low, high)))
        dst = out.new("s" if scalar else "v", 2)
        for word, half in enumerate((low, high)):
            lanes = 1 if scalar else out.lanes
            out.emit(
                "mov", (_half(dst, word),), (out.source(half, "ud"),), lanes=lanes, partial=word > 0 and not scalar
            )
        return dst

    def _add_wide(self, a: x.Expr, b: x.Expr) -> Reg:
        out = self.out
        if isinstance(a, x.Const):
            a, b = b, a
        if out.generation.long_alu:
            return out.alu("add", "q", self._summand(a), self._summand(b))
        return self._add_halves(self._halves(a), self._halves(b))

    def _summand(self, e: x.Expr) -> Operand:
        """Return a 64-bit addend for native 64-bit addition; a 32-bit value is extended as it is read."""
        out = self.out
        if isinstance(e, x.Const) and -(1 << 31) <= (number := _signed(e.bits)) < 1 << 31:
            return Literal(number, "d")
        if not isinstance(e, x.Cast) or e.a.type.bits != 32:
            return self.value(e)
        kind, value = "d" if e.a.type.elem.kind is Kind.SIGNED else "ud", self.value(e.a)
        if not isinstance(value, Reg):
            return self._from_halves(value, self._sign(e.a, value))
        if out.is_uniform(value):
            return out.source(value, kind)
        spread = out.new("v", 2)  # each lane's element must be at the same offset of a qword (Mesa, brw_eu_validate.c)
        out.emit("mov", (region(spread, "ud", 0, 2),), (out.source(value, "ud"),), lanes=out.lanes)
        return region(spread, kind, 0, 2)

    def _halves(self, e: x.Expr) -> tuple[Operand, Operand]:
        """Return the lower and upper 32 bits of a 64-bit value."""
        if isinstance(e, x.Const):
            return Imm(e.bits & 0xFFFFFFFF), Imm(e.bits >> 32 & 0xFFFFFFFF)
        if isinstance(e, x.Cast) and e.a.type.bits == 32:
            value = self.value(e.a)
            return value, self._sign(e.a, value)
        whole, (least, most) = self.named(e), self.bounds(e)
        assert isinstance(whole, Reg)
        if _is_half(whole, e):
            return whole, Imm(0)
        low, high = whole.words(0, 1), whole.words(1, 1)
        if whole.bank != "s":
            low, high = region(whole, "ud", 0, 2), region(whole, "ud", 1, 2)
        return low, Imm(0) if least >= 0 and most < 1 << 32 else high

    def _whole(self, e: x.Expr) -> Reg:
        """Return a 64-bit value in registers, not as an immediate."""
        whole = self.value(e)
        assert isinstance(whole, Reg)
        return whole

    def add_in_place(self, v: x.Var, e: x.Expr) -> bool:
        """Add to a carried 64-bit value in place, half by half; return whether that was possible.

        Its old lower half, and its upper half plus one, are not read again.
        """
        to = self.env[v]
        if not isinstance(e, x.Add) or e.a is not v or not isinstance(to, Reg) or to.count < 2:
            return False
        if self.out.generation.long_alu or not isinstance(e.b, x.Const):
            return False
        self._add_halves(self._halves(e.a), self._halves(e.b), to)
        block, next_of = self.next_in
        self.next_in = block, {key: value for key, value in next_of.items() if key[0] is not to.vreg}
        return True

    def _add_halves(self, a: tuple[Operand, Operand], b: tuple[Operand, Operand], into: Reg | None = None) -> Reg:
        """Add 64-bit values without a 64-bit adder: the upper half is one more if the lower halves overflow.

        Overflow of an unsigned sum is the carry (nGEN, `eadd`; IGC, documentation/visa/instructions/ADD3O.md).
        """
        out, scalar = self.out, all(map(self.out.is_uniform, (*a, *b)))
        bank, lanes = ("s", 1) if scalar else ("v", out.lanes)
        dst, carry = into or out.new(bank, 2), out.new("f")
        first, second = sorted((out.source(o, "ud") for o in (a[0], b[0])), key=_is_immediate)
        if isinstance(first, Literal):
            first = out.source(out.constant(first), "ud")
        out.emit("add", (_half(dst, 0),), (first, second), lanes=lanes, condition="ov", flag=carry)
        highs = [o for o in (a[1], b[1]) if o != Imm(0)]
        high = out.alu("add", "d", *highs) if len(highs) == 2 else next(iter(highs), Imm(0))
        self._select(carry, self._one_more(high), high, "d", scalar, _half(dst, 1), partial=not scalar)
        return dst

    def _one_more(self, high: Operand) -> Operand:
        """Return an upper half plus one, computed once for all sums of a block."""
        if isinstance(high, Imm):
            return Imm(high.value + 1)
        block, next_of = self.next_in
        if block is not self.out.block:
            next_of = {}
            self.next_in = self.out.block, next_of
        assert isinstance(high, Reg)
        key = high.vreg, high.first, getattr(high, "sub", 0)
        if key not in next_of:
            next_of[key] = self.out.alu("add", "d", high, Imm(1))
        return next_of[key]

    def _low(self, o: Operand) -> Reg:
        assert isinstance(o, Reg)
        return o.words(0, 1) if o.bank == "s" else self.out.alu("mov", "ud", region(o, "ud", 0, 2))

    # ------------------------------------------------------------ bools

    def mask(self, e: x.Expr) -> Reg:
        """Return a bool as a flag register with one bit a lane, all equal if it is uniform."""
        e = plain(strip(e))
        out = self.out
        match e:
            case x.Const():
                return self._flags("mov", _in_all_lanes(e))
            case x.Var():
                return self._flags("mov", self.env[e])
            case x.Comparison():
                return self._compare(e, out.lanes)
            case x.And(a, b) | x.Or(a, b) | x.Xor(a, b):
                # Evaluate the operand that needs most flag registers first, while none is live for the other.
                first, second = sorted((a, b), key=_flags_at_once, reverse=True)
                bits = {operand: self._bits(operand) for operand in (first, second)}
                return self._flags(_ALU[type(e)][0], bits[a], bits[b])
            case x.Not(a):
                return self._flags("not", self._bits(a))
            case x.Uniform(a):
                return self.mask(a)
            case AllLanes(a):
                return self._agreed(a, out.lanes)
        raise Unsupported(f"given {type(e).__name__}, wanted a comparison or logic: {in_short(e)}")

    def _bits(self, e: x.Expr) -> Operand:
        """Return a bool as an operand of logic on whole masks."""
        e = plain(strip(e))
        return self.env[e] if isinstance(e, x.Var) else self.mask(e)

    def mask_in_scalar(self, e: x.Expr) -> Reg:
        """Return a bool in a scalar register: flag registers are few, so variables do not stay in them."""
        bits = self.mask(e)
        dst = self.out.new("s")
        self.out.emit("mov", (region(dst, "ud"),), (region(bits, "uw", 0, 0),))
        return dst

    def condition(self, e: x.Expr) -> Reg:
        """Return a uniform bool in the first bit of a flag register."""
        e = plain(strip(e))
        if isinstance(e, AllLanes):
            return self._agreed(e.a, 1)
        return self._compare(e, 1) if isinstance(e, x.Comparison) else self.mask(e)

    def _agreed(self, e: x.Expr, lanes: int) -> Reg:
        """Return `lanes` equal flags: whether a bool holds in all lanes."""
        mask, every = self.mask_in_scalar(e), (1 << self.out.lanes) - 1
        bits = self.out.alu("and", "ud", mask, Imm(every))
        return self.out.compare("eq", "ud", bits, Imm(every), lanes)

    def _compare(self, e: x.Comparison, lanes: int, into: Region | None = None) -> Reg:
        unsigned = e.a.type.elem.kind is not Kind.SIGNED
        if not _is_wide_integer(e.a.type):
            return self.elements.compared(e)
        if e.a.type.bits == 64 and not self.out.generation.long_alu:
            raise Unsupported(f"given a comparison of 64 bits, wanted one of 32: {in_short(e)}")
        tested = self._bit_test(e, lanes) if into is None else None
        if tested is not None:
            return tested
        kind = ("uq" if unsigned else "q") if e.a.type.bits == 64 else ("ud" if unsigned else "d")
        a, b = self.value(e.a), self.value(e.b)
        name = CONDITIONS[type(e)]
        if isinstance(a, Imm) and not isinstance(b, Imm):
            a, b, name = b, a, SWAPPED[name]
        return self.out.compare(name, kind, a, b, lanes, into)

    def _bit_test(self, e: x.Comparison, lanes: int) -> Reg | None:
        """Return the flags of `a & b` compared with zero, which `and` sets itself; None for other comparisons."""
        if not (isinstance(e, x.Eq | x.Ne) and isinstance(e.b, x.Const) and e.b.bits == 0 and e.b.type.bits == 32):
            return None
        bits = strip(e.a)
        if not isinstance(bits, x.And):
            return None
        out, flag = self.out, self.out.new("f")
        sources = sorted((out.source(self.value(a), "ud") for a in bits.children()), key=_is_immediate)
        out.emit("and", (Null("ud"),), sources, lanes=lanes, condition=CONDITIONS[type(e)], flag=flag)
        return flag

    def _flags(self, name: str, *src: Operand) -> Reg:
        flag = self.out.new("f")
        sources = [region(o, "uw", 0, 0) if isinstance(o, Reg) else self.out.source(o, "uw") for o in src]
        self.out.emit(name, (region(flag, "uw"),), sources)
        return flag


def _flags_at_once(e: x.Expr) -> int:
    """Return how many flag registers a bool needs if its operands are evaluated in the best order."""
    match plain(strip(e)):
        case x.Var():
            return 0
        case x.And(a, b) | x.Or(a, b) | x.Xor(a, b):
            most, least = sorted(map(_flags_at_once, (a, b)), reverse=True)
            return max(1, most + (most == least))
        case x.Not(a):
            return max(1, _flags_at_once(a))
    return 1


def _is_wide_integer(type: AnyType) -> bool:
    """Return whether `XeScalars` computes with values of this type."""
    return isinstance(type, Type) and type.is_int and type.bits >= 32


def _in_all_lanes(e: x.Const) -> Imm:
    """Return a constant bool as its register holds it: one bit a lane."""
    return Imm(-e.bits & 0xFFFF)


def _is_half(o: Operand, e: x.Expr) -> bool:
    """Return whether an operand is the lower half of a 64-bit value with a zero upper half."""
    return e.type.bits == 64 and isinstance(o, Reg) and o.count == 1


def _half(whole: Reg, word: int) -> Region:
    """Return half of a 64-bit value as a destination: scalars have adjacent dwords, lanes have theirs in a qword."""
    return region(whole.words(word, 1), "ud") if whole.bank == "s" else region(whole, "ud", word, 2)


def _short(o: Operand) -> Operand:
    """Return an operand of a three-source instruction, whose immediates have 16 bits."""
    return Literal(wrapped(o.value, s16), "w") if isinstance(o, Imm) else o


def _is_immediate(o: Operand) -> bool:
    return isinstance(o, Literal)


def _signed(bits: int) -> int:
    """Return a 64-bit pattern as a signed number."""
    return (bits + (1 << 63)) % (1 << 64) - (1 << 63)
