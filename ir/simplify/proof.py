"""Facts at one place of a program: ranges, congruences, let values, and sums that are not negative.

Facts come from binders (lets, loops, the kernel's grid) and from conditions. They are scoped: `child()` knows all that
its parent knows and may learn more, as in an arm of an `if`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import gcd

from convgen.ir.expr import And, Cast, Comparison, Div, Eq, Expr, Le, Lt, Mod, Ne, Not, Or, Uniform, Var
from convgen.ir.simplify.bounds import WIDTH, Range, intersection
from convgen.ir.simplify.congruence import ANYTHING, Congruence, Congruences, conjunction, disjunction
from convgen.ir.simplify.rules import number
from convgen.ir.simplify.sums import NOTHING, Linear, add_scaled, parts
from convgen.ir.simplify.variable_ranges import Scope
from convgen.ir.stmt import For
from convgen.ir.types import bool_

_NARROWINGS = 2  #: passes over an inequality's terms, each with the ranges that the last pass narrowed; chosen


class Knowledge(Scope):
    """The facts that hold at one place."""

    def __init__(self, width: int = WIDTH, ranges: Mapping[Var, Range] | None = None) -> None:
        super().__init__(width, ranges)
        #: of variables, and of expressions about which conditions say more
        self.congruences: dict[Expr, Congruence] = {}
        self.values: dict[Var, Expr] = {}  #: the lets in scope
        self.inequalities: list[Linear] = []  #: exact sums known to be at least 0
        self.congruence = Congruences(self.bounds, self.congruences)
        self._terms: dict[Expr, Linear] = {}

    def refresh(self) -> None:
        """Drop conclusions after a fact changed about an expression that was analysed already."""
        super().refresh()
        self.congruence = Congruences(self.bounds, self.congruences)
        self._terms.clear()

    def child(self) -> Knowledge:
        """Return a copy of these facts that can learn more without changing them."""
        new = Knowledge(self.bounds.width, self.ranges)
        new.congruences.update(self.congruences)
        new.values.update(self.values)
        new.inequalities.extend(self.inequalities)
        return new

    def let(self, var: Var, *values: Expr) -> None:
        """Learn that `var` has the value of one of `values`."""
        if var.type.elem.is_float:
            return
        rebound = var in self.ranges
        super().let(var, *values)
        self.values.pop(var, None)
        if rebound:
            self.congruences.pop(var, None)
            self.refresh()
            return
        congruence = reduce(disjunction, map(self.congruence, values))
        if congruence != ANYTHING:
            self.congruences[var] = congruence
        if len(values) == 1:
            self.values[var] = values[0]

    def loop(self, s: For) -> None:
        """Learn the facts that hold in the body of a loop that runs at least once."""
        super().loop(s)
        for low, high in ((s.begin, s.var), (s.var, s.end)):
            if number(low) is None and number(high) is None:
                gap = add_scaled(self.terms(high), self.terms(low), -1)
                self.inequalities.append(gap if high is s.var else add_scaled(gap, ({}, -1), 1))

    def results(self, s: For) -> None:
        """Bind the results of a loop, and drop what held only in its body, as the loop may not have run."""
        super().results(s)
        self.inequalities = [sum for sum in self.inequalities if s.var not in sum[0]]

    # ------------------------------------------------------------ exact sums

    def terms(self, e: Expr) -> Linear:
        """Return `e` as an exact integer sum of terms and a constant; operations that may wrap are terms."""
        known = self._terms.get(e)
        if known is None:
            known = self._terms[e] = self._opened(e)
        return known

    def _opened(self, e: Expr) -> Linear:
        if (n := number(e)) is not None:
            return {}, n
        operands = parts(e)
        if not operands or not self.bounds.cannot_wrap(e):
            return {e: 1}, 0
        total = NOTHING
        for part, factor in operands:
            total = add_scaled(total, self.terms(part), factor)
        return total

    def resolved(self, sum: Linear) -> Linear:
        """Return the sum with let-bound variables replaced by their values."""
        terms, const = sum
        total: Linear = {}, const
        for t, n in terms.items():
            value = self.values.get(t) if isinstance(t, Var) else None
            total = add_scaled(total, ({t: 1}, 0) if value is None else self.resolved(self.terms(value)), n)
        return total

    def range_of_terms(self, sum: Linear) -> Range:
        """Return the exact range of a sum from the ranges of its terms alone."""
        terms, const = sum
        lo = hi = const
        for term, factor in terms.items():
            least, most = self.bounds(term)
            lo += least * factor if factor > 0 else most * factor
            hi += most * factor if factor > 0 else least * factor
        return lo, hi

    def range_of_sum(self, sum: Linear) -> Range:
        """Return the exact range of a sum from all facts."""
        known = self.range_of_terms(sum)
        if not self.values.keys().isdisjoint(sum[0]):
            known = intersection(known, self.range_of_terms(self.resolved(sum)))
        for inequality in self.inequalities:
            if not inequality[0].keys().isdisjoint(sum[0]):
                least = self.range_of_terms(add_scaled(sum, inequality, -1))[0]  # sum >= sum - inequality
                most = -self.range_of_terms(add_scaled(add_scaled(NOTHING, sum, -1), inequality, -1))[0]
                known = intersection(known, (least, max(most, least)))
        return known

    def difference(self, a: Expr, b: Expr) -> Range:
        """Return the exact range of a - b."""
        return self.range_of_sum(add_scaled(self.terms(a), self.terms(b), -1))

    def congruence_of_sum(self, sum: Linear) -> Congruence:
        """Return the congruence of a sum."""
        terms, const = sum
        modulus, remainder = 0, const
        for t, n in terms.items():
            m, r = self.congruence(t)
            modulus, remainder = gcd(modulus, m * n), remainder + r * n
        return modulus, remainder % modulus if modulus else remainder

    # ------------------------------------------------------------ conditions

    def decided(self, cond: Expr) -> bool | None:
        """Return whether a condition on integers always (True) or never (False) holds; None if unknown."""
        if (n := number(cond)) is not None:
            return bool(n)
        if cond in self.ranges and self.ranges[cond][0] == self.ranges[cond][1]:
            return bool(self.ranges[cond][0])
        if not isinstance(cond, Comparison) or cond.a.type.elem.is_float:
            return None
        gap = add_scaled(self.terms(cond.a), self.terms(cond.b), -1)
        lo, hi = self.range_of_sum(gap)
        if isinstance(cond, Lt):
            return True if hi < 0 else False if lo >= 0 else None
        if isinstance(cond, Le):
            return True if hi <= 0 else False if lo > 0 else None
        equal = True if lo == hi == 0 else False if lo > 0 or hi < 0 or self._never_zero(gap) else None
        return equal if equal is None or isinstance(cond, Eq) else not equal

    def _never_zero(self, sum: Linear) -> bool:
        return any(self.congruence_of_sum(form)[1] != 0 for form in (sum, self.resolved(sum)))

    def assume(self, cond: Expr, truth: bool = True) -> None:
        """Learn that `cond` holds (or, if not `truth`, does not hold) from here on."""
        if number(cond) is not None or cond.type is not bool_:
            return
        self.ranges[cond] = (int(truth), int(truth))
        self.refresh()
        match cond:
            case Not(a):
                self.assume(a, not truth)
            case And(a, b):
                self._assume_both(a, b, True, truth)
            case Or(a, b):
                self._assume_both(a, b, False, not truth)
            case Lt(a, b) | Le(a, b) if a.type.elem.is_int:
                strict = int(isinstance(cond, Lt) == truth)
                low, high = (a, b) if truth else (b, a)
                self._learn_at_least_zero(
                    add_scaled(add_scaled(self.terms(high), self.terms(low), -1), ({}, -1), strict)
                )
            case Eq(a, b) | Ne(a, b) if a.type.elem.is_int:
                same = isinstance(cond, Eq) == truth
                self.ranges[Eq(a, b)], self.ranges[Ne(a, b)] = (int(same),) * 2, (int(not same),) * 2
                (self._learn_zero if same else self._learn_not_zero)(add_scaled(self.terms(a), self.terms(b), -1))

    def _assume_both(self, a: Expr, b: Expr, each: bool, all: bool) -> None:
        """Learn that `a` and `b` are both `each` or, if not `all`, that at least one of them is not."""
        if all:
            self.assume(a, each)
            self.assume(b, each)
        elif self.decided(a) is each:
            self.assume(b, not each)
        elif self.decided(b) is each:
            self.assume(a, not each)

    def _learn_at_least_zero(self, sum: Linear) -> None:
        """Learn that an exact sum is not negative."""
        for form in (sum, self.resolved(sum)):
            self.inequalities.append(form)
            for _ in range(_NARROWINGS):
                for t, n in form[0].items():
                    _, hi = self.range_of_terms(add_scaled(form, ({t: n}, 0), -1))
                    self._narrow(t, (-(hi // n), None) if n > 0 else (None, hi // -n))
            if form[0].keys() == self.resolved(form)[0].keys():
                break

    def _learn_zero(self, sum: Linear) -> None:
        """Learn that an exact sum is zero."""
        self._learn_at_least_zero(sum)
        self._learn_at_least_zero(add_scaled(NOTHING, sum, -1))
        terms, const = sum
        for t, n in terms.items():
            if abs(n) == 1:
                m, r = self.congruence_of_sum(({k: -n * f for k, f in terms.items() if k is not t}, -n * const))
                self._learn_congruence(t, (m, r))

    def _learn_not_zero(self, sum: Linear) -> None:
        """Learn that a sum is not zero: a range that ends at zero ends one before it."""
        lo, hi = self.range_of_sum(sum)
        if lo == 0:
            self._learn_at_least_zero(add_scaled(sum, ({}, -1), 1))
        if hi == 0:
            self._learn_at_least_zero(add_scaled(add_scaled(NOTHING, sum, -1), ({}, -1), 1))

    def _narrow(self, e: Expr, limits: tuple[int | None, int | None]) -> None:
        """Learn limits of `e`; they also limit the dividend of a quotient, and the operand of a copy."""
        known = self.bounds(e)
        lo, hi = (known[i] if limit is None else limit for i, limit in enumerate(limits))
        new = intersection(known, (lo, hi)) if lo <= hi else known
        if new == known:
            return
        self.ranges[e] = new
        self.refresh()
        if isinstance(e, Div) and (c := number(e.b) or 0) > 0:
            self._narrow(e.a, (new[0] * c, new[1] * c + c - 1))
        elif isinstance(e, Uniform) or (isinstance(e, Cast) and e.a.type.elem.is_int and self.bounds.cannot_wrap(e)):
            self._narrow(e.a, new)

    def _learn_congruence(self, e: Expr, congruence: Congruence) -> None:
        """Learn a congruence of `e`; it also holds for the dividend of a remainder."""
        if congruence[0] == 1:
            return
        self.congruences[e] = conjunction(self.congruence(e), congruence)
        self.refresh()
        if isinstance(e, Mod) and (c := number(e.b) or 0) > 0 and (m := gcd(congruence[0], c)) != 1:
            self._learn_congruence(e.a, (m, congruence[1] % m))
