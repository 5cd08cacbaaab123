"""The linear normal form: sums as terms times integers, merged, ordered and rebuilt at least cost.

Every sum has exactly one such form modulo 2^bits. The form merges equal terms, moves constants to the right end and
groups addends; a sum keeps its shape where that gains nothing, since other nodes may share its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from convgen.ir.expr import Add, And, Const, Div, Expr, Lane, Mma, Mod, Mul, Shl, Sub, Uniform, Var
from convgen.ir.simplify.rules import make, number

Terms = Mapping[Expr, int]  #: a sum of expressions times integers, in order of appearance
Linear = tuple[Terms, int]  #: terms and a constant

NOTHING: Linear = ({}, 0)

_SUMS, _PRODUCTS = (Add, Sub), (Mul, Shl)

Simplify = Callable[[Expr], Expr]


def add_scaled(a: Linear, b: Linear, factor: int) -> Linear:
    """Return a + b * factor."""
    (terms, const), (more, further) = a, b
    const += further * factor
    if not more or (not terms and factor == 1):
        return more or terms, const
    total = dict(terms)
    for term, n in more.items():
        if found := total.get(term, 0) + n * factor:
            total[term] = found
        else:
            total.pop(term, None)
    return total, const


def parts(e: Expr) -> tuple[tuple[Expr, int], ...]:
    """Return the operands of a sum, or of a product by a constant, with their factors."""
    kind = type(e)
    if kind is Add:
        return (e.a, 1), (e.b, 1)  # type: ignore[attr-defined]
    if kind is Sub:
        return (e.a, 1), (e.b, -1)  # type: ignore[attr-defined]
    if isinstance(e, Mul) and (factor := number(e.b)) is not None:
        return ((e.a, factor),)
    if isinstance(e, Shl) and (amount := number(e.b)) is not None and 0 <= amount < e.type.elem.bits:
        return ((e.a, 1 << amount),)
    return ()


class LinearForms:
    """Linear forms modulo 2^bits; they depend on no facts, so one memo serves all scopes."""

    def __init__(self) -> None:
        self._memo: dict[Expr, Linear] = {}

    def __call__(self, e: Expr) -> Linear:
        known = self._memo.get(e)
        if known is None:
            known = self._memo[e] = self._decide(e)
        return known

    def _decide(self, e: Expr) -> Linear:
        if (n := number(e)) is not None:
            return {}, n
        operands = parts(e)
        if not operands:
            return {e: 1}, 0
        total = NOTHING
        for part, factor in operands:
            total = add_scaled(total, self(part), factor)
        return total

    def opened(self, e: Expr, wanted: Terms) -> Linear:
        """Return the linear form of `e`, opened only as far as the `wanted` terms require."""
        if e in wanted or wanted.keys().isdisjoint(self(e)[0]):
            return ({e: 1}, 0) if number(e) is None else self(e)
        total = NOTHING
        for part, factor in parts(e):
            total = add_scaled(total, self.opened(part, wanted), factor)
        return total


# ---------------------------------------------------------------- one addition


def normal_sum(s: Simplify, linear: LinearForms, e: Add | Sub) -> Expr | None:
    """Merge terms that both sides share, and move constants to the right end of the sum."""
    (a, sign_a, const_a), (b, sign_b, const_b) = peel(e.a), peel(e.b)
    sign = -1 if type(e) is Sub else 1
    if a is None or b is None:
        sides = [(x, n) for x, n in ((a, sign_a), (b, sign * sign_b)) if x is not None]
        terms, const = dict(sides), 0
    else:
        shared = _merging(linear(a)[0], linear(b)[0])
        if not shared and not const_a and not const_b and unit(b)[1] >= 0:
            return None
        terms, const = _merged(linear, shared, (a, sign_a), (b, sign * sign_b))
    new = build(s, terms, const + const_a + sign * const_b, e)
    return None if new is e else new


def peel(e: Expr) -> tuple[Expr | None, int, int]:
    """Return (x, sign, constant) such that `e` is x * sign + constant; x is None for a constant."""
    if isinstance(e, (Add, Sub)):
        sign = -1 if isinstance(e, Sub) else 1
        if (n := number(e.b)) is not None:
            return e.a, 1, sign * n
        if (n := number(e.a)) is not None:
            return e.b, sign, n
        return e, 1, 0
    n = number(e)
    return (e, 1, 0) if n is None else (None, 1, n)


def unit(e: Expr) -> tuple[Expr, int]:
    """Return (x, n) such that `e` is x * n."""
    if type(e) is Mul and (n := number(e.b)) is not None:
        return e.a, n
    return e, 1


def _pairs(terms: Terms) -> list[tuple[Expr, Div, Expr]]:
    """Return terms `x % c` and `x // c` whose factors recombine to x; with x = y // d also `y // (d * c)`."""
    remainders = [(t, *r) for t in terms if (r := _remainder(t)) is not None]
    if not remainders:
        return []
    quotients = {(t.a, number(t.b)): t for t in terms if type(t) is Div}
    pairs = []
    for t, dividend, c in remainders:
        div = quotients.get((dividend, c))
        if div is None and isinstance(dividend, Div) and (d := number(dividend.b) or 0) > 0:
            div = quotients.get((dividend.a, d * c))
        if div is not None and terms[div] == terms[t] * c:
            pairs.append((t, div, dividend))
    return pairs


def _remainder(e: Expr) -> tuple[Expr, int] | None:
    """Return (x, c) such that `e` is x % c with c > 0, written as `%` or as a mask of low bits."""
    if type(e) is Mod and (c := number(e.b) or 0) > 0:
        return e.a, c
    if type(e) is And and (mask := number(e.b) or 0) > 0 and mask & (mask + 1) == 0:
        return e.a, mask + 1
    return None


def _merging(a: Terms, b: Terms) -> dict[Expr, int]:
    """Return the terms of two sums that merge with each other."""
    common: list[Expr] = [] if a.keys().isdisjoint(b) else [t for t in a if t in b]
    pairs = _pairs({**a, **b}) if not common else _pairs(add_scaled((a, 0), (b, 0), 1)[0])
    return dict.fromkeys((*common, *(t for pair in pairs for t in pair[:2])), 1)


def _merged(
    linear: LinearForms, shared: Terms, a: tuple[Expr, int], b: tuple[Expr, int]
) -> tuple[dict[Expr, int], int]:
    """Return a[0] * a[1] + b[0] * b[1], opened only as far as merging the shared terms requires."""
    (unit_a, n), (unit_b, m) = unit(a[0]), unit(b[0])
    if unit_a is unit_b:
        return {unit_a: n * a[1] + m * b[1]}, 0
    if not shared:
        return {a[0]: a[1], b[0]: b[1]}, 0
    opened, const = add_scaled(
        add_scaled(NOTHING, linear.opened(a[0], shared), a[1]), linear.opened(b[0], shared), b[1]
    )
    terms = dict(opened)
    for remainder, quotient, dividend in _pairs(terms):  # x // c * c + x % c == x
        if remainder in terms and quotient in terms:
            terms[dividend] = terms.get(dividend, 0) + terms.pop(remainder)
            del terms[quotient]
    return terms, const


def build(s: Simplify, terms: Terms, const: int, like: Expr) -> Expr:
    """Return the sum as an expression, modulo 2^bits: added terms first, the constant last."""
    half = 1 << (like.type.elem.bits - 1)
    factors = [(t, (n + half) % (2 * half) - half) for t, n in terms.items()]
    total: Expr | None = None
    for t, n in factors:
        if n > 0:
            total = _scaled(s, t, n) if total is None else _simplified(s, Add(total, _scaled(s, t, n)), like)
    for t, n in factors:
        if n < 0 and total is None and n != -1 and not const:
            total = _scaled(s, t, n)
        elif n < 0:
            start = make(const, like.type) if total is None else total
            const = 0 if total is None else const
            total = _simplified(s, Sub(start, _scaled(s, t, -n)), like)
    return make(const, like.type) if total is None else _offset(total, const, like)


def _simplified(s: Simplify, e: Expr, like: Expr) -> Expr:
    """Return `e` simplified, unless it is the sum being rewritten."""
    return e if e is like else s(e)


def _offset(e: Expr, n: int, like: Expr) -> Expr:
    """Return e + n, with `-` if the type is unsigned and n negative."""
    type = like.type.elem
    n = (n + (1 << type.bits - 1)) % (1 << type.bits) - (1 << type.bits - 1)
    if n < 0 and type.min == 0:
        return Sub(e, make(-n, e.type))
    return Add(e, make(n, e.type)) if n else e


def _scaled(s: Simplify, e: Expr, factor: int) -> Expr:
    return e if factor == 1 else s(Mul(e, make(factor, e.type)))


# ---------------------------------------------------------------- whole sums, grouped


class Home(NamedTuple):
    """A place of computation: the depth of the loop nest, and whether per lane or once a subgroup."""

    depth: int = 0
    varying: bool = False

    @property
    def weight(self) -> int:
        """Return the cost of one operation at this home; a uniform one outside all loops costs 1.

        Chosen: a loop counts as 16 iterations, an operation of all lanes as 4 uniform ones.
        """
        return (4 if self.varying else 1) << (4 * self.depth)


_OUTSIDE = Home()


class Homes:
    """The homes of expressions, given homes or values of variables.

    Variables without either are uniform and outside all loops.
    """

    def __init__(self, of_var: Mapping[Var, Home | Expr] | None = None) -> None:
        self.of_var = {} if of_var is None else of_var
        self._memo: dict[Expr, Home] = {}

    def __call__(self, e: Expr) -> Home:
        known = self._memo.get(e)
        if known is None:
            known = self._memo[e] = self._decide(e)
        return known

    def _decide(self, e: Expr) -> Home:
        if isinstance(e, Var):
            found = self.of_var.get(e, _OUTSIDE)
            return found if isinstance(found, Home) else self(found)
        depth, varying = 0, isinstance(e, (Lane, Mma))
        for inner in map(self, e.children()):
            depth, varying = max(depth, inner.depth), varying or inner.varying
        return Home(depth, varying and not isinstance(e, Uniform))


class Grouping:
    """Rebuilds sums with addends of one home first and common factors taken out, if that costs less.

    `uses` counts the references to each node; a shared node is one addend. As new sums may share nodes, too, `compared`
    collects their nodes.
    """

    def __init__(self, homes: Homes, uses: Mapping[Expr, int], compared: dict[Expr, set[Expr]]) -> None:
        self.homes, self.uses, self.compared = homes, uses, compared

    def __call__(self, s: Simplify, e: Expr) -> Expr:
        """Return an equal sum that costs less, or `e`."""
        if not _may_regroup(e):
            return e
        addends: list[tuple[Expr, int]] = []
        self._flatten(e, 1, addends)
        if not self._may_gain(addends):
            return e
        const = sum(n * k for t, n in addends if (k := number(t)) is not None)
        terms: dict[Expr, int] = {}
        for t, n in addends:
            if number(t) is None:
                terms[t] = terms.get(t, 0) + n
        new = self._grouped(s, terms, const, e)
        if new is e:
            return e
        cost, parts_of_new = self._cost(new, terms)
        self.compared.setdefault(e, set()).update(parts_of_new)
        return new if cost < self._cost(e, terms)[0] else e

    def _may_gain(self, addends: list[tuple[Expr, int]]) -> bool:
        """Return whether two addends share a factor, or three or more have different homes."""
        factors = [abs(n) for t, n in addends if abs(n) != 1]
        return len(factors) > len(set(factors)) or (len(addends) > 2 and len({self.homes(t) for t, _ in addends}) > 1)

    def _flatten(self, e: Expr, factor: int, out: list[tuple[Expr, int]]) -> None:
        """Collect the addends of `e` times `factor`; operands with other uses stay whole."""
        operands = parts(e)
        if len(operands) == 2:
            for part, n in operands:
                if self.uses.get(part) == 1:
                    self._flatten(part, factor * n, out)
                else:
                    out.append((part, factor * n))
        elif operands and operands[0][1] > 1:
            out.append((operands[0][0], factor * operands[0][1]))
        else:
            out.append((e, factor))

    def _grouped(self, s: Simplify, terms: Terms, const: int, like: Expr) -> Expr:
        """Rebuild a sum from its terms: factored within each home, outermost home first."""
        homes: dict[Home, dict[Expr, int]] = {}
        for t in sorted(terms, key=self.homes):
            homes.setdefault(self.homes(t), {})[t] = terms[t]
        addends: dict[Expr, int] = {}
        for members in homes.values():
            addends.update(_factored(s, members, like))
        if len(homes) == len(addends) == 2:  # one product of each home: they may have a common factor
            a, b = homes
            if a.depth == b.depth:
                addends = _factored(s, addends, like)
        return build(s, addends, const, like)

    def _cost(self, e: Expr, leaves: Terms) -> tuple[int, set[Expr]]:
        """Return the cost of the operations between `e` and the leaves, and the set of these operations."""
        cost, seen, stack = 0, {e}, [e]
        while stack:
            node = stack.pop()
            if node in leaves or (node is not e and self.uses.get(node, 1) > 1):
                continue
            operands = [c for c in node.children() if c not in seen]
            cost += 0 if isinstance(node, (Const, Var, Lane)) else self.homes(node).weight
            seen.update(operands)
            stack.extend(operands)
        return cost, seen


def _may_regroup(e: Expr) -> bool:
    """Return whether a sum may have three addends, or two products."""
    a, b = map(type, e.children())
    return a in _SUMS or b in _SUMS or (a in _PRODUCTS and b in _PRODUCTS)


def _factored(s: Simplify, terms: Terms, like: Expr) -> dict[Expr, int]:
    """Return the sum of `terms` in fewer addends: terms of one factor are summed first, then these sums."""
    by_factor: dict[int, dict[Expr, int]] = {}
    for t, n in terms.items():
        by_factor.setdefault(abs(n), {})[t] = 1 if n > 0 else -1
    sums: dict[Expr, int] = {}
    for factor, group in by_factor.items():
        sign = -1 if all(n < 0 for n in group.values()) else 1
        sums[build(s, {t: n * sign for t, n in group.items()}, 0, like)] = factor * sign
    if len(sums) == 1:
        return sums
    sign = -1 if all(n < 0 for n in sums.values()) else 1
    return {build(s, {t: n * sign for t, n in sums.items()}, 0, like): sign}
