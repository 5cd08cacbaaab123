"""Every rewrite rule proved by an SMT solver: for all values of its operands, not only those that random tests meet.

Without products, quotients and remainders on 32-bit integers, with them on narrow ones, signed and unsigned. Folding is
that of docs/rules.md: what is made of constants is computed without wrapping, and wrapped at the end.
"""

from __future__ import annotations

import importlib
from typing import Any

import attrs
import pytest

from convgen.ir import expr as x
from convgen.ir.expr import Const, Expr, Var
from convgen.ir.mutate import postorder
from convgen.ir.simplify.identities import TABLES
from convgen.ir.simplify.rules import Exact, Fits, Rule, Rules, c0, c1
from convgen.ir.simplify.rules import x as X
from convgen.ir.simplify.rules import y as Y
from convgen.ir.types import bool_

z3: Any = importlib.import_module("z3")  # it has no types
RULES = [rule for table in TABLES for rule in table.rules]
_HARD = (x.Mul, x.Div, x.Mod)
_NARROW, _WIDE = 5, 32  #: bits of the operands
_SECONDS = 30


@attrs.define
class Meaning:
    """Expressions as terms of bit vectors of `room` bits, which also hold results that do not fit the type.

    `assumed` collects what holds because its contrary is an error.
    """

    bits: int
    signed: bool
    assumed: list[Any] = attrs.field(factory=list)
    leaves: dict[Var, Any] = attrs.field(factory=dict)

    @property
    def room(self) -> int:
        """Bits that hold any product, shifted value or sum of two."""
        return 2 * self.bits + 3

    def number(self, value: int) -> Any:
        return z3.BitVecVal(value, self.room)

    @property
    def ends(self) -> tuple[int, int]:
        """Least and greatest value of the type."""
        return (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.signed else (0, (1 << self.bits) - 1)

    def in_range(self, term: Any) -> Any:
        """Whether a value is one of the type."""
        low, high = self.ends
        return z3.And(term >= low, term <= high)

    def wrapped(self, term: Any) -> Any:
        """The value of the type with the same low bits."""
        low = z3.Extract(self.bits - 1, 0, term)
        return (z3.SignExt if self.signed else z3.ZeroExt)(self.room - self.bits, low)

    def of(self, e: Expr) -> Any:
        """The value of an expression of the rule."""
        return self.wrapped(self.exactly(e)) if is_folded(e) else self._value(e)

    def exactly(self, e: Expr) -> Any:
        """The value without wrapping at the root; of constants without any wrapping."""
        inner = self.exactly if is_folded(e) else self.of
        return self._operate(e, *(inner(c) for c in e.children() if isinstance(c, Expr)))

    def _value(self, e: Expr) -> Any:
        made = self.exactly(e)
        return made if z3.is_bool(made) else self.wrapped(made)

    def _leaf(self, v: Var) -> Any:
        if v not in self.leaves:
            if v.type is bool_:
                self.leaves[v] = z3.Bool(v.name)
            else:
                term = self.leaves[v] = z3.BitVec(v.name, self.room)
                self.assumed.append(self.in_range(term))
        return self.leaves[v]

    def _operate(self, e: Expr, *of: Any) -> Any:
        match e:
            case Var():
                return self._leaf(e)
            case Const():
                return z3.BoolVal(bool(e.bits)) if e.type is bool_ else self.number(self._constant(e))
            case x.Add():
                return of[0] + of[1]
            case x.Sub():
                return of[0] - of[1]
            case x.Mul():
                return of[0] * of[1]
            case x.Div() | x.Mod():
                return self._divided(e, *of)
            case x.Shl() | x.Shr():
                self.assumed.append(z3.And(of[1] >= 0, of[1] < self.bits))
                return of[0] << of[1] if isinstance(e, x.Shl) else of[0] >> of[1]
            case x.And() | x.Or() | x.Xor():
                if z3.is_bool(of[0]):
                    return {x.And: z3.And, x.Or: z3.Or, x.Xor: z3.Xor}[type(e)](*of)
                return (
                    of[0] & of[1] if isinstance(e, x.And) else of[0] | of[1] if isinstance(e, x.Or) else of[0] ^ of[1]
                )
            case x.Not():
                return z3.Not(of[0]) if z3.is_bool(of[0]) else ~of[0]
            case x.Min():
                return z3.If(of[0] < of[1], of[0], of[1])
            case x.Max():
                return z3.If(of[0] < of[1], of[1], of[0])
            case x.Select():
                return z3.If(*of)
            case x.Uniform():
                return of[0]
            case x.Eq():
                return of[0] == of[1]
            case x.Ne():
                return of[0] != of[1]
            case x.Lt():
                return of[0] < of[1]
            case x.Le():
                return of[0] <= of[1]
        raise NotImplementedError(type(e).__name__)

    def _constant(self, e: Const) -> int:
        """-1 stands for all ones."""
        return e.bits if self.signed or e.bits >= 0 else e.bits + (1 << self.bits)

    def _divided(self, e: Expr, a: Any, b: Any) -> Any:
        """Towards minus infinity; a zero divisor is an error, which a rule may assume not to happen."""
        self.assumed.append(b != 0)
        quotient, rest = a / b, z3.SRem(a, b)
        lower = z3.And(rest != 0, (rest < 0) != (b < 0))
        if isinstance(e, x.Div):
            return z3.If(lower, quotient - 1, quotient)
        return z3.If(lower, rest + b, rest)

    def condition(self, c: Expr | Exact | Fits) -> Any:
        """Whether a condition of a rule holds."""
        if isinstance(c, (Exact, Fits)):
            return self.in_range(self.exactly(c.expr))
        if is_made_of_constants(c):
            return self._operate(c, *(self.exactly(o) for o in c.children() if isinstance(o, Expr)))
        return self.of(c)


def is_made_of_constants(e: Expr) -> bool:
    """Whether all leaves are numbers that the rule knows when it fires."""
    return not any(isinstance(n, Var) and not n.name.startswith("c") for n in postorder(e))


def is_folded(e: Expr) -> bool:
    return is_made_of_constants(e) and not isinstance(e, (Var, Const)) and e.type is not bool_


def counterexample(rule: Rule, bits: int, signed: bool) -> Any:
    """Values for which the two sides differ though the conditions hold; None if there are none."""
    meaning = Meaning(bits, signed)
    left, right = meaning.of(rule.left), meaning.of(rule.right)
    held = [meaning.condition(c) for c in rule.conditions]
    solver = z3.Solver()
    solver.set("timeout", 1000 * _SECONDS)
    solver.add(*meaning.assumed, *held, left != right)
    found = solver.check()
    assert found != z3.unknown, "the solver gives up"
    return solver.model() if found == z3.sat else None


def is_hard(rule: Rule) -> bool:
    sides = (rule.left, rule.right, *(c if isinstance(c, Expr) else c.expr for c in rule.conditions))
    return any(isinstance(n, _HARD) for side in sides for n in postorder(side))


@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_proof(rule: Rule, signed: bool) -> None:
    bits = _NARROW if is_hard(rule) else _WIDE
    assert counterexample(rule, bits, signed) is None


WRONG = Rules(
    ("lt.offset", X + c0 < c1, c1 - c0 > X),  # wraps
    ("div.of_product", (X * Y) // Y, X),  # wraps
    ("le.factor", X * c0 <= c1, c1 // c0 > X, c0 > 0, Exact(X * c0)),
    ("mod.of_mod", (X % c0) % c1, X % c1, c1 > 0),
    ("shr.none", X >> 1, X),
)


@pytest.mark.parametrize("rule", WRONG.rules, ids=lambda rule: rule.name)
def test_what_is_wrong_is_found(rule: Rule) -> None:
    assert counterexample(rule, _NARROW, True) is not None
