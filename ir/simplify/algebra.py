"""Equalities of expressions: rules where an equality is one line, functions where it is an algorithm.

Every equality holds under wraparound: sums and products by constants are modulo 2^bits, and equalities that need exact
integers (division, order) apply only where it is proved that nothing wraps. Float arithmetic is not reordered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convgen.ir import expr as x
from convgen.ir import sizes
from convgen.ir.expr import Const, Splat
from convgen.ir.floats import EXACT, Abs, Ceil, Floor, Fma, Neg, Round
from convgen.ir.simplify.bounds import FULL
from convgen.ir.simplify.division import quotient, remainder
from convgen.ir.simplify.identities import TABLES
from convgen.ir.simplify.operand_order import CanonicalOrder
from convgen.ir.simplify.proof import Knowledge
from convgen.ir.simplify.rounds import USES, RootUnchanged
from convgen.ir.simplify.rules import Rewrites, make, number
from convgen.ir.simplify.sums import LinearForms, Terms, build, normal_sum, peel
from convgen.ir.types import Kind, Type, VectorType

_WORD = 0xFFFFFFFF

_FOLD: dict[type[x.Expr], Callable[[int, int], int]] = {
    x.Add: int.__add__,
    x.Sub: int.__sub__,
    x.Mul: int.__mul__,
    x.MulHi: lambda a, b: (a & _WORD) * (b & _WORD) >> 32,
    x.Div: int.__floordiv__,
    x.Mod: int.__mod__,
    x.Min: min,
    x.Max: max,
    x.And: int.__and__,
    x.Or: int.__or__,
    x.Xor: int.__xor__,
    x.Shl: int.__lshift__,
    x.Shr: int.__rshift__,
    x.Lt: int.__lt__,
    x.Le: int.__le__,
    x.Eq: int.__eq__,
    x.Ne: int.__ne__,
}

_FACTS = 2 * USES  #: bit: an equality has consulted facts

#: Operators that a range of a single value turns into a constant where neither rules nor algorithms do.
_MAY_COLLAPSE = frozenset((x.Div, x.Mod, x.MulHi, x.Shr, x.Var, sizes.Size, sizes.HostValue, x.Lane))


class Notes:
    """Memos that depend on no facts and last for a whole run: linear forms, operand order, use counts."""

    def __init__(self) -> None:
        self.linear, self.order = LinearForms(), CanonicalOrder()
        self.settled: set[x.Expr] = set()  #: expressions that no equality changes, whatever facts and use counts
        self.uses: dict[x.Expr, int] = {}


class Algebra:
    """Applies equalities to one node with simplified operands, at a place where `facts` hold."""

    def __init__(self, facts: Knowledge, notes: Notes, root_unchanged: RootUnchanged) -> None:
        self._facts, self.notes, self.root_unchanged = facts, notes, root_unchanged
        self._consulted = 0  #: bits of what equalities have consulted so far: _FACTS, USES

    @property
    def facts(self) -> Knowledge:
        self._consulted |= _FACTS
        return self._facts

    def __call__(self, e: x.Expr) -> x.Expr:
        """Return an expression equal to `e`, `e` itself if no equality applies."""
        kind, is_number = type(e), FULL[e.type] is not None
        if kind is Const:
            return e
        if is_number and (kind in _MAY_COLLAPSE or e in self._facts.ranges):
            lo, hi = self._facts.bounds(e)
            if lo == hi:
                self._consulted |= _FACTS
                return make(lo, e.type)
        before, self._consulted = self._consulted, 0
        if e not in self.notes.settled:
            new = self._integer(e) if is_number else self._float(e)
            if new is e and not self._consulted:
                self.notes.settled.add(e)
            elif new is e:
                self.root_unchanged[e] = self._consulted & USES
            else:
                self.root_unchanged.pop(e, None)
            e = new
        self._consulted |= before | _FACTS  # the enclosing node consulted this one, which facts may make a constant
        return e

    def _integer(self, e: x.Expr) -> x.Expr:
        """Apply all equalities to an expression of integers or bools."""
        kind = type(e)
        if kind in _FOLD:
            prepared = self._prepared(e)
            if prepared is not e:
                return prepared if type(prepared) is Const else self(prepared)
        rewrite = _REWRITES[kind]
        new = rewrite(self, e) if rewrite else None
        if new is None and (algorithm := _ALGORITHMS.get(kind)):
            new = algorithm(self, e)
        return e if new is None else new

    def _prepared(self, e: Any) -> x.Expr:
        """Fold constants of a binary operator, or move a constant to the right of a commutative one."""
        a, b = e.a, e.b
        right = b.bits if type(b) is Const else number(b) if type(b) is Splat else None
        left = a.bits if type(a) is Const else number(a) if type(a) is Splat else None
        if left is not None and right is not None:
            return _folded(e, left, right)
        if e.commutes and (left is not None or (right is None and self.notes.order.before(b, a))):
            return type(e)(b, a)  # type: ignore[no-any-return]
        return e  # type: ignore[no-any-return]

    def _float(self, e: x.Expr) -> x.Expr:
        """Apply equalities to a float expression: moves, selects, signs, and exact folding of constants."""
        kind = type(e)
        if kind in _EXACT and (known := _constant(e)) is not None:
            return known
        for f in (_REWRITES[kind], _ALGORITHMS.get(kind)) if kind in _MOVES else ():
            if f and (new := f(self, e)) is not None:
                return new
        return e

    # ------------------------------------------------------------ queries of rules

    def proves(self, cond: x.Expr) -> bool:
        """Return whether a condition always holds at this place."""
        return self.facts.decided(cond) is True

    def cannot_wrap(self, e: x.Expr) -> bool:
        """Return whether the operation at the root gives its exact result."""
        return self.facts.bounds.cannot_wrap(e)

    # Decisions about sharing use the counts from the beginning of the round, so that equal expressions are treated
    # alike; a node made since then counts as unknown until the next round.

    def is_sole_use(self, e: x.Expr) -> bool:
        """Return whether only one node is known to use `e`, so that it may be taken apart."""
        self._consulted |= USES
        return self.notes.uses.get(e) == 1

    def is_known_unused(self, e: x.Expr, operand: x.Expr) -> bool:
        """Return whether `e`, whose `operand` is counted, is known to be computed nowhere."""
        self._consulted |= USES
        return operand in self.notes.uses and e not in self.notes.uses

    def sum(self, terms: Terms, const: int, like: x.Expr) -> x.Expr:
        """Return the sum as an expression of the type of `like`, modulo 2^bits."""
        return build(self, terms, const, like)


def _folded(e: Any, a: int, b: int) -> x.Expr:
    if e.a.type.elem.is_float:
        return e  # type: ignore[no-any-return]
    if isinstance(e, (x.Div, x.Mod)) and b == 0:
        return e  # division by zero stays an error
    if isinstance(e, (x.Shl, x.Shr)) and not 0 <= b < e.type.elem.bits:
        return e
    return make(int(_FOLD[type(e)](a, b)), e.type)


def _constant(e: x.Expr) -> x.Expr | None:
    """Return the value of an operation whose operands are constants, equal in every element."""
    if not all(type(c.a if type(c) is Splat else c) is Const for c in e.children()):
        return None
    from convgen.ir.evaluate import Evaluator  # imported late: few kernels need it

    value = Evaluator(1)(e).data.ravel()[:1]
    elem = e.type.elem
    found = Const(elem, int(value.view(f"u{value.itemsize}")[0]))
    return found if e.type is elem else Splat(e.type, found)  # type: ignore[arg-type]


# ---------------------------------------------------------------- algorithms


def _product(s: Algebra, e: x.Mul) -> x.Expr | None:
    """Return x * c1 + c0 * c1 for (x + c0) * c1, unless it could newly wrap or the sum has other uses."""
    c = number(e.b)
    rest, sign, offset = peel(e.a)
    if c is None or rest is None or sign != 1 or not offset or not s.is_sole_use(e.a):
        return None
    product = s(x.Mul(rest, e.b))
    if s.cannot_wrap(product) or not s.cannot_wrap(e):
        return s(s.sum({product: 1}, offset * c, e))
    return None


def _exclusive(s: Algebra, e: x.Xor) -> x.Expr | None:
    """Return (a ^ b) ^ c for (a ^ c) ^ b: values that differ by a constant then share a ^ b."""
    for inner, other in ((e.a, e.b), (e.b, e.a)):
        if isinstance(inner, x.Xor) and number(inner.b) is not None and number(other) is None:
            return s(x.Xor(s(x.Xor(inner.a, other)), inner.b))
    return None


def _comparison(s: Algebra, e: x.Comparison) -> x.Expr | None:
    if e.a.type.elem.is_float:
        return _constant(e)
    known = s.facts.decided(e)
    return None if known is None else make(known, e.type)


def _extremum(s: Algebra, e: x.Min | x.Max) -> x.Expr | None:
    """Decide min and max of operands whose order is known."""
    lo, hi = s.facts.difference(e.a, e.b)
    if hi <= 0 or lo >= 0:
        return e.a if (hi <= 0) == isinstance(e, x.Min) else e.b
    return None


def _select(s: Algebra, e: x.Select) -> x.Expr | None:
    cond = number(e.cond)
    if cond is not None:
        return e.a if cond else e.b
    if e.cond.type is e.type and (number(e.a), number(e.b)) == (1, 0):
        return e.cond
    return None


def _repeated(s: Algebra, e: x.Unary) -> x.Expr | None:
    """Cancel repeated sign changes and repeated rounding."""
    match e, e.a:
        case Neg(), Neg(a):
            return a
        case Abs(), Neg(a) | Abs(a):
            return s(Abs(a))
        case ((Floor() | Ceil() | Round()), (Floor() | Ceil() | Round())):
            return e.a
    return None


def _cast(s: Algebra, e: x.Cast) -> x.Expr | None:
    if e.type is e.a.type:
        return e.a
    inner = e.a
    if e.type.elem.is_float or inner.type.elem.is_float:
        return None
    known = number(inner)
    if known is not None:
        return make(int(known != 0) if e.type.elem.is_bool else known, e.type)
    if isinstance(inner, x.Cast) and not inner.a.type.elem.is_float and not inner.type.elem.is_bool:
        return _cast_again(s, e, inner)
    return None


def _cast_again(s: Algebra, e: x.Cast, inner: x.Cast) -> x.Expr | None:
    """Drop the inner of two casts if it keeps the value, or all bits that the outer one takes.

    An unsigned cast of equal width before a widening stays: without it, the fact that nothing is sign-extended might
    not be provable again.
    """
    source, middle, to = (t.elem for t in (inner.a.type, inner.type, e.type))
    unsigned = middle.kind is Kind.UNSIGNED and middle.bits == source.bits < to.bits
    if (s.cannot_wrap(inner) and not unsigned) or (to.is_int and source.is_int and to.bits <= middle.bits):
        return s(x.Cast(e.type, inner.a))
    return None


def _slice(s: Algebra, e: x.Slice) -> x.Expr | None:
    if e.type is e.a.type:
        return e.a
    match e.a:
        case Splat(_, a) if isinstance(e.type, VectorType):
            return Splat(e.type, a)
        case x.Slice(a, start, _):
            return s(x.Slice(a, start + e.start, e.count))
    return None


def _pack(s: Algebra, e: x.Pack) -> x.Expr | None:
    match e.parts:
        case (part,) if part.type is e.type:
            return part
        case (Splat(_, Const(elem, bits)),) if isinstance(e.type, Type) and e.type.is_int:
            mask = (1 << elem.bits) - 1
            return make(sum((bits & mask) << at for at in range(0, e.type.bits, elem.bits)), e.type)
    return None


_REWRITES = Rewrites(*TABLES)

_ALGORITHMS: dict[type[x.Expr], Callable[[Algebra, Any], x.Expr | None]] = {
    **dict.fromkeys((x.Add, x.Sub), lambda s, e: normal_sum(s, s.notes.linear, e)),
    x.Mul: _product,
    x.Div: quotient,
    **dict.fromkeys((x.Mod, x.And), remainder),
    x.Xor: _exclusive,
    **dict.fromkeys((x.Lt, x.Le, x.Eq, x.Ne), _comparison),
    **dict.fromkeys((x.Min, x.Max), _extremum),
    x.Select: _select,
    **dict.fromkeys(EXACT, _repeated),
    x.Cast: _cast,
    x.Uniform: lambda s, e: e.a if isinstance(e.a, Const) else None,
    x.Slice: _slice,
    x.Shuffle: lambda s, e: e.a if e.order == tuple(range(e.a.type.lanes)) else None,
    x.Pack: _pack,
}

#: Float operations whose rules and algorithms hold (_MOVES), and those that round once, as folding does (_EXACT).
_MOVES = frozenset((x.Select, x.Cast, x.Uniform, x.Slice, x.Shuffle, x.Pack, *EXACT))
_EXACT = frozenset((x.Add, x.Sub, x.Mul, x.Min, x.Max, Fma, *EXACT))
