"""Fuse pairs of integer operations that the target does in one instruction.

Only operations with a single use are fused, so the pass follows `place_lets`. The scalar unit may lack forms of the
vector unit; uniform expressions then stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from convgen.ir import expr as x
from convgen.ir.expr import Add, And, Cast, Const, Expr, Mul, Or, Shl, Sub, Var, Xor, const
from convgen.ir.facts import TargetFacts
from convgen.ir.fused import Fused
from convgen.ir.mutate import Mutator, postorder, rewrite, substitute
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.rules import make, number, wrapped
from convgen.ir.simplify.variable_ranges import of_same_ranges, var_ranges
from convgen.ir.stmt import Block, Let, Stmt, block
from convgen.ir.types import AnyType, Type, s32
from convgen.ir.uniform import uniformity

#: (root, operand fused into it) -> fused forms; the root's other operand comes last.
_FUSIONS: dict[type[Expr], dict[type[Expr], tuple[str, ...]]] = {
    Add: {Shl: ("lshl_add", "mad16"), Mul: ("lshl_add", "mad24", "mad16"), Add: ("add3",)},
    Or: {And: ("and_or",), Shl: ("lshl_or",), Or: ("or3",)},
}

#: Most bits of the unsigned factors, as `ir.fused` requires.
_FACTOR_BITS = {"mad24": (24, 24), "mad16": (32, 16)}

#: Operations modulo 2^bits: their operands, instead of the result, may be cast between integers of one width.
_MODULAR = (Add, Sub, Mul, And, Or, Xor, Shl)


def peephole(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Use the target's fused instructions, and shifts for multiplications of varying values by powers of two."""
    return of_same_ranges(evolve(kernel, body=_Peephole(kernel, facts).fused(kernel.body)), kernel)


class _Peephole(Mutator):
    def __init__(self, kernel: Kernel, facts: TargetFacts) -> None:
        super().__init__()
        self.facts = facts
        self.uniform = uniformity(kernel)
        self.bounds = Bounds(var_ranges(kernel), kernel.width)

    def fused(self, body: Stmt) -> Stmt:
        return self(self._unnamed(body) if "add3" in self.facts.uniform_fused else body)

    def _unnamed(self, body: Stmt) -> Stmt:
        """Inline uniform sums of two operands that other sums of two then take in as a third operand."""
        users = self._users(body)
        values: dict[Var, Expr] = {}
        for let in _innermost_lets(body):
            if self._is_taken_in(let, users) and values.keys().isdisjoint(let.value.children()):
                values[let.var] = let.value

        def without(b: Block) -> Stmt:
            return block(*(s for s in b.stmts if not isinstance(s, Let) or s.var not in values))

        return substitute(rewrite(body, {Block: without}), values)

    def _users(self, body: Stmt) -> Mapping[Node, list[Node]]:
        """Return the operations and statements that use each value, directly or through same-width integer casts."""
        users: defaultdict[Node, list[Node]] = defaultdict(list)
        for n in reversed(postorder(body)):
            for c in (*n.operands, *n.yields) if isinstance(n, Stmt) else n.children():
                users[c] += users[n] if isinstance(n, Cast) and self._is_free(n) else [n]
        return users

    def _is_taken_in(self, let: Let, users: Mapping[Node, list[Node]]) -> bool:
        """Return whether sums of two use a let, and at most one other user, which then adds in place of the let."""
        if not self._is_short(let.value) or not self.uniform(let.value):
            return False
        uses, has_constant = users[let.var], any(isinstance(c, Const) for c in let.value.children())
        sums = [n for n in uses if self._is_short(n, of_variables=has_constant) and not any(map(_is_sum, users[n]))]
        return 0 < len(sums) >= len(uses) - 1

    def _is_short(self, n: Node, of_variables: bool = False) -> bool:
        """Return whether `n` is a sum, of two variables or of one and a constant, that a third operand may join."""
        if not _is_sum(n) or not all(isinstance(c, Var | Const) for c in n.children()):
            return False
        constants = [c for c in n.children() if isinstance(c, Const)]
        return not constants or (not of_variables and all(map(self._is_addend, constants)))

    def Add(self, e: x.Add | x.Or) -> Expr:
        return self._fuse(self.descend(e))

    Or = Add

    def Sub(self, e: x.Sub) -> Expr:
        new = self.descend(e)
        fused = self._fuse(self._sum(new))
        return fused if isinstance(fused, Fused) else new

    def Mul(self, e: x.Mul) -> Expr:
        new = self.descend(e)
        return _shifted(new) if isinstance(new, x.Binary) and not self.uniform(new) else new

    def Cast(self, e: x.Cast) -> Expr:
        """Move free conversions to the leaves, where they do not separate two operations."""
        new = self.descend(e)
        if self._is_free(new) and isinstance(new.a, _MODULAR):
            moved = type(new.a)(_retyped(new.dtype, new.a.a), _retyped(new.dtype, new.a.b))
            return self._fuse(moved) if isinstance(moved, (Add, Or)) else moved
        return new

    def _fuse(self, e: Expr) -> Expr:
        if isinstance(e, (Add, Or)) and _is_word(e):
            for name, inner, other in self._forms(e):
                operands = self._operands(name, inner, other) if self._has(name, e, inner) else None
                if operands is not None:
                    return Fused(name, *operands)
        return e

    def _forms(self, e: x.Add | x.Or) -> Iterator[tuple[str, x.Binary, Expr]]:
        """Yield the fused forms of an operation: name, the operand fused into it, and the other operand."""
        a, b = map(self._sum, (e.a, e.b))
        for kind, names in _FUSIONS[type(e)].items():
            for inner, remaining in ((a, e.b), (b, e.a)):
                if isinstance(inner, kind) and isinstance(inner, x.Binary):
                    for name in names:
                        taken = _shifted(inner) if name == "lshl_add" else inner
                        if name != "lshl_add" or isinstance(taken, Shl):
                            yield name, taken, remaining

    def _sum(self, e: Expr) -> Expr:
        """Return a difference as a sum with a negated operand, if fused operands may be negated."""
        if not isinstance(e, Sub) or not self.facts.fused_signs or not _is_word(e) or number(e.a) == 0:
            return e
        return Add(e.a, _negative(e.b))

    def _has(self, name: str, e: Expr, inner: x.Binary) -> bool:
        """Return whether the target fuses both operations on the unit that computes them.

        A uniform operand that is shifted may be fused into a varying sum: an instruction can read one uniform word.
        """
        places = number(inner.b) if isinstance(inner, Shl) else None
        if self.uniform(e) and name == "lshl_add" and places is not None:
            return 0 < places <= self.facts.uniform_shifts
        in_lanes = not self.uniform(e) and (not self.uniform(inner) or places is not None)
        return name in (self.facts.fused if in_lanes else self.facts.uniform_fused)

    def _operands(self, name: str, inner: x.Binary, other: Expr) -> tuple[Expr, Expr, Expr] | None:
        """Return the operands of the fused form; None if one of them is out of its range."""
        if not self._is_addend(other):
            return None
        if name not in _FACTOR_BITS:
            operands = inner.a, inner.b, other
            constants = sum(number(o) is not None for o in operands)
            return operands if all(map(self._is_addend, operands)) and (constants < 2 or name != "add3") else None
        for factors in _factors(inner):
            if all(self._is_below(f, bits) for f, bits in zip(factors, _FACTOR_BITS[name])):
                return *factors, other
        return None

    def _is_addend(self, e: Expr) -> bool:
        """Return whether `e` fits an immediate operand, if it is a constant."""
        half = 1 << self.facts.fused_imm_bits - 1
        return (known := number(e)) is None or -half <= wrapped(known, s32) < half

    def _is_below(self, e: Expr, bits: int) -> bool:
        """Return whether a factor is unsigned and has at most `bits` bits; 32 allows any word."""
        low, high = self.bounds(e)
        return bits == 32 or (low >= 0 and high < 1 << bits)

    @staticmethod
    def _is_free(e: x.Cast) -> bool:
        to, of = e.dtype, e.a.type
        return isinstance(to, Type) and isinstance(of, Type) and to.is_int and of.is_int and to.bits == of.bits


def _innermost_lets(body: Stmt) -> Iterator[Let]:
    """Yield the lets of blocks without loops and branches, whose uses run as often as the let itself."""
    for n in postorder(body):
        if isinstance(n, Block) and not any(s.bodies for s in n.stmts):
            yield from (s for s in n.stmts if isinstance(s, Let))


def _is_sum(n: Node) -> bool:
    return isinstance(n, (Add, Sub)) and _is_word(n)


def _is_word(e: Expr) -> bool:
    return isinstance(e.type, Type) and e.type.is_int and e.type.bits == 32


def _shifted(e: x.Binary) -> x.Binary:
    """Return a product with a power of two as a shift."""
    if not isinstance(e, Mul) or not _is_word(e) or not isinstance(e.b, Const) or e.b.bits < 2:
        return e
    power = e.b.bits.bit_length() - 1
    return Shl(e.a, const(power, e.b.dtype)) if e.b.bits == 1 << power else e


def _negative(e: Expr) -> Expr:
    """Return an operand negated; of a product, one factor is negated, as instructions can negate it when reading."""
    if isinstance(e, Mul):
        return _negative(e.a) * e.b
    return -e if (known := number(e)) is None else make(wrapped(-known, e.type.elem), e.type)


def _factors(e: Expr) -> list[tuple[Expr, Expr]]:
    """Return the factors of a product, in both orders, or of a shift by a constant."""
    match e:
        case Mul(a, b):
            return [(a, b), (b, a)]
        case Shl(a, Const(dtype, places)) if 0 <= places < dtype.bits - 1:
            return [(a, const(1 << places, dtype))]
    return []


def _retyped(dtype: AnyType, e: Expr) -> Expr:
    """Return a free conversion; a constant is converted at once, as instruction selection looks for constants."""
    return Cast(dtype, e) if (known := number(e)) is None else make(known, dtype)
