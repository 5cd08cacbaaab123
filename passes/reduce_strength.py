"""Strength reduction: divisions and remainders of a loop counter become digits that the loop carries.

`(a*i + x + b) // D` and `(a*i + x + b) // D % d`, with constants and a loop-invariant `x`, are digits of a mixed-radix
number that grows by `a` each iteration. For each `x` the digits of the number with the smallest `b` are carried,
advanced by additions and compares; the digits of other numerators are derived from these. Divisors whose multiples do
not divide one another are left alone.

If an instruction can read one lane's word for all lanes and several numerators share a uniform `x`, each numerator gets
a lane: one advance then serves all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import pairwise, zip_longest
from math import gcd
from operator import add
from typing import Self, TypeVar

import attrs

from convgen.ir.expr import (
    Add,
    Cast,
    Const,
    Div,
    Expr,
    FromLane,
    Lane,
    Mod,
    Uniform,
    Var,
    const,
    eq,
    minimum,
    select,
    var,
)
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import free_vars, postorder, rewrite, statements, substitute
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.extents import divisor
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.stmt import For, Let, Stmt, block
from convgen.ir.types import s32, u32
from convgen.ir.uniform import uniformity
from convgen.passes.counting import Counting, carrying
from convgen.passes.messages.linear import ZERO, add_exprs

N = TypeVar("N", int, Expr)


def reduce_strength(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Replace divisions of loop counters by constants with digits that the loop carries; message level.

    The ranges of carried digits are unknown, so a loop that divides a value computed from them stays unchanged.
    """
    bounds = Bounds(var_ranges(kernel), kernel.width)

    def lanes(loop: For, invariant: Expr) -> int:
        """Return how many numbers may have one lane each; 0 if their invariant part is not uniform."""
        shared = facts.lane_words and all(map(uniformity(kernel), (invariant, loop.begin)))
        return kernel.width if shared else 0

    def reduced(loop: For) -> Stmt:
        new = _reduce(loop, bounds, partial(lanes, loop))
        return loop if _divides_carried(new, loop) else new

    return evolve(kernel, body=rewrite(kernel.body, {For: reduced}))


def _divides_carried(new: Stmt, old: For) -> bool:
    """Return whether `new` still divides, by no power of two, a value computed from variables only `new` carries."""
    inside = statements(new)
    unknown = {v for s in inside if isinstance(s, For) and s.var is old.var for v in s.carried if v not in old.carried}
    parts = postorder(*[e for s in inside for e in s.operands]) if unknown else []
    divided = [e.a for e in parts if isinstance(e, Div | Mod) and not _is_power_of_two(e.b)]
    for s in inside if divided else ():
        if isinstance(s, Let) and not unknown.isdisjoint(free_vars(s.value)):
            unknown.add(s.var)
    return any(not unknown.isdisjoint(free_vars(e)) for e in divided)


def _is_power_of_two(e: Expr) -> bool:
    return isinstance(e, Const) and e.bits & (e.bits - 1) == 0


@frozen
class _Quotient:
    """`(a * counter + invariant + b) // weight`, `% modulus` unless None, times `scale`, plus `rest`, minus `less`.

    `invariant` and `less` are loop-invariant expressions.
    """

    a: int
    invariant: Expr
    b: int
    weight: int
    modulus: int | None
    scale: int = 1
    rest: int = 0
    less: Expr = ZERO

    def reduced(self) -> _Quotient:
        """Return an equal quotient without the factors that `a` shares with the divisors, so that more have one `a`."""
        if self.invariant is not ZERO:
            return self
        shared = gcd(self.a, self.weight)
        q = evolve(self, a=self.a // shared, b=self.b // shared, weight=self.weight // shared)
        if q.weight > 1 or q.modulus is None:
            return q
        shared = gcd(q.a, q.modulus)
        return evolve(q, a=q.a // shared, b=q.b // shared, modulus=q.modulus // shared, scale=shared, rest=q.b % shared)

    def rebased(self, invariant: Expr, added: Expr, starts: Collection[int]) -> _Quotient | None:
        """Return an equal quotient of a number with another invariant part: `invariant`, which is its own plus `added`.

        Its `b` is one of `starts` if possible. None unless `added` is a multiple of the largest boundary.
        """
        period = self.boundaries[-1]
        if divisor(added, {}) % period or (self.scale, self.rest) != (1, 0):
            return None
        b = next((b for b in sorted(starts) if (b - self.b) % period == 0), self.b)
        less = ZERO if self.modulus else added // self.weight + (b - self.b) // self.weight
        return evolve(self, invariant=invariant, b=b, less=less)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Return the numbers at which the quotient increments or the remainder wraps; at the last one both happen."""
        return (self.weight,) if self.modulus is None else (self.weight, self.weight * self.modulus)


class _Loop(Counting):
    """The numerators of divisions in one loop."""

    def quotient(self, e: Expr) -> _Quotient | None:
        """Return a division or remainder by constants as a quotient; None for other expressions."""
        if not isinstance(e, (Div, Mod)) or e.type is not s32 or not isinstance(e.b, Const) or e.b.bits < 1:
            return None
        inner, weight = self.numerator(e.a)
        if isinstance(e, Div):
            weight *= e.b.bits
        affine = self.affine(inner)
        if affine is None or affine.a < 1:
            return None
        if affine.b + self.bounds(affine.invariant)[0] < 0:
            return None
        return _Quotient(
            affine.a, affine.invariant, affine.b, weight, e.b.bits if isinstance(e, Mod) else None
        ).reduced()

    def numerator(self, e: Expr) -> tuple[Expr, int]:
        """Return a nested quotient by constants as (numerator, divisor): x // c + s is (x + c * s) // c."""
        match e:
            case Div(x, Const(_, by)) if by > 0:
                inner, weight = self.numerator(x)
                return inner, weight * by
            case Add(x, y):
                for quotient, rest in ((x, y), (y, x)):
                    inner, weight = self.numerator(quotient)
                    if weight > 1 and self.is_invariant(rest):
                        return inner + rest * weight, weight
        return e, 1


@frozen
class _CounterDigits:
    """A mixed-radix number: digit i counts `weights[i]`; all but the last stay below `weights[i + 1] // weights[i]`.

    The digits are followed by whole quotients, `number // w` for each `w` of `wholes`.
    """

    weights: tuple[int, ...]
    wholes: tuple[int, ...] = ()

    def starting(self, begin: Expr, growth: int, invariant: Expr, start: int) -> tuple[Expr, ...]:
        """Return the digits of `begin * growth + invariant + start`, as constants if it is constant."""
        if isinstance(begin, Const) and invariant is ZERO:
            return tuple(map(const, self.of(begin.bits * growth + start)))
        first = const(begin.bits * growth) if isinstance(begin, Const) else begin * growth
        return self.of(add_exprs(add_exprs(first, invariant), const(start)))

    def of(self, number: N) -> tuple[N, ...]:
        """Return the digits of a number from 0 on."""
        quotients = [number // weight if weight > 1 else number for weight in self.weights]
        digits = [
            each % (following // weight) if following else each
            for each, weight, following in zip_longest(quotients, self.weights, self.weights[1:])
        ]
        return tuple(digits + [quotients[self.weights.index(weight)] for weight in self.wholes])

    def lower_digits(self, at: int) -> int:
        """Return the number of digits with less weight than the digit, or the whole quotient, at position `at`."""
        count = len(self.weights)
        return at if at < count else self.weights.index(self.wholes[at - count])

    def advance(self, digits: Sequence[Expr], by: int) -> tuple[Expr, ...]:
        """Return the digits of the number plus a constant.

        A digit that grows by at most one becomes zero when it wraps. Any other digit is then below twice its radix; the
        digit minus its radix is negative unless it wraps, so the unsigned minimum of the two is the new digit, and the
        sign is the carry minus one. This takes no condition register, of which there are few.
        """
        wholes = dict(zip(self.wholes, digits[len(self.weights) :]))
        out: list[Expr] = []
        carry: tuple[Expr, int] | None = None  # expression and constant; their sum is the carry
        for i, (weight, digit, step) in enumerate(zip(self.weights, digits, self.of(by))):
            if weight in wholes:
                wholes[weight] = _plus(wholes[weight], by // weight, carry)
            most = step + (carry is not None)  # largest increment
            total = _plus(digit, step, carry)
            carry = None
            if most and i + 1 < len(self.weights):
                radix = self.weights[i + 1] // weight
                wrapped = total - radix
                if most == 1:
                    carry = select(total >= radix, const(1), 0), 0
                    total = select(total >= radix, const(0), total)
                else:
                    carry = wrapped >> (s32.bits - 1), 1
                    total = Cast(s32, minimum(Cast(u32, total), Cast(u32, wrapped)))
            out.append(total)
        return *out, *wholes.values()

    def value(self, digits: Sequence[Expr], q: _Quotient) -> Expr:
        """Return the quotient from the digits."""
        if q.modulus is None and q.weight in self.wholes:
            total = digits[len(self.weights) + self.wholes.index(q.weight)]
        else:
            end = None if q.modulus is None else q.weight * q.modulus
            terms = [d * (p // q.weight) if p > q.weight else d for d, p in zip(digits, self.weights) if q.weight <= p]
            within = [t for t, p in zip(terms, (p for p in self.weights if q.weight <= p)) if end is None or p < end]
            total = reduce(add, within) if within else const(0)
        total = total * q.scale if q.scale > 1 else total
        total = total + q.rest if q.rest else total
        return total if q.less is ZERO else total - q.less


def _plus(digit: Expr, step: int, carry: tuple[Expr, int] | None) -> Expr:
    """Return the sum of a digit, a constant and the carry from the digits below."""
    step += carry[1] if carry else 0
    total = digit + step if step else digit
    return total + carry[0] if carry else total


def _chain(quotients: Sequence[_Quotient]) -> tuple[int, ...] | None:
    """Return the boundaries of all quotients if each divides the next, else None."""
    weights = sorted({1, *(weight for q in quotients for weight in q.boundaries)})
    return tuple(weights) if all(b % a == 0 for a, b in pairwise(weights)) else None


def _families(quotients: Mapping[Expr, _Quotient]) -> dict[tuple[int, Expr], dict[Expr, _Quotient]]:
    """Group quotients by growth and invariant part: numbers in a group differ by constants."""
    found: dict[tuple[int, Expr], dict[Expr, _Quotient]] = {}
    for e, q in quotients.items():
        found.setdefault((q.a, q.invariant), {})[e] = q
    return found


def _joined(quotients: Mapping[Expr, _Quotient]) -> Mapping[Expr, _Quotient]:
    """Return the quotients, with groups merged if one's numbers are the other's plus a multiple of all boundaries."""
    families, out = _families(quotients), dict(quotients)
    moved: set[tuple[int, Expr]] = set()
    for (growth, invariant), family in families.items():
        for (other_growth, other_invariant), others in families.items():
            if other_growth != growth or (growth, other_invariant) in moved:
                continue
            added = _difference(other_invariant, invariant)
            if added is None:
                continue
            starts = {q.b for q in others.values()}
            rebased = {e: new for e, q in family.items() if (new := q.rebased(other_invariant, added, starts))}
            if len(rebased) == len(family) and _chain([*others.values(), *rebased.values()]):
                out |= rebased
                moved.add((growth, invariant))
                break
    return out


def _difference(a: Expr, b: Expr) -> Expr | None:
    """Return the addends of `a` without those of `b`; None if `b` has another addend, or no addend is left."""
    rest = list(_addends(a))
    for addend in _addends(b):
        if addend not in rest:
            return None
        rest.remove(addend)
    return reduce(add_exprs, rest) if rest else None


def _addends(e: Expr) -> Iterator[Expr]:
    match e:
        case Add(a, b):
            yield from _addends(a)
            yield from _addends(b)
        case _ if e is not ZERO:
            yield e


def _reduce(loop: For, bounds: Bounds, lanes: Callable[[Expr], int]) -> Stmt:
    """Replace the quotients of a loop's counter by digits that the loop carries."""
    if bounds(loop.begin)[0] < 0:
        return loop
    inside = _Loop(loop, bounds)
    quotients: dict[Expr, _Quotient] = {}
    for e in postorder(loop.body):
        q = inside.quotient(e) if isinstance(e, Expr) else None
        if q is not None and isinstance(e, Expr):
            quotients[e] = q
    replaced: dict[Expr, Expr] = {}
    numbers: list[_Number] = []
    for (growth, invariant), family in _families(_joined(quotients)).items():
        weights = _chain(list(family.values()))
        if weights is None:
            continue
        starts = sorted({q.b for q in family.values()})
        wholes = {q.weight for q in family.values() if q.modulus is None and q.weight != weights[-1]}
        digits = _CounterDigits(weights, tuple(sorted(wholes)))
        kind = _NumberOfLanes if 1 < len(starts) <= lanes(invariant) else _Number
        number = kind.counting(loop, digits, growth, invariant, starts)
        for e, q in family.items():
            replaced[e] = number.digits.value(number.ahead(q.b - starts[0]), q)
        numbers.append(number)
    if not replaced:
        return loop
    body = substitute(loop.body, replaced)
    old_yields = tuple(substitute(y, replaced) for y in loop.yields)
    used = {v for v in postorder(body, *old_yields) if isinstance(v, Var)}
    lets = [let for number in numbers for let in number.lets(used)]
    return carrying(loop, block(*lets, body), old_yields, [each for number in numbers for each in number.carried(used)])


@frozen(eq=False)
class _Number:
    """`counter * growth + invariant + start` as carried digits, and the digits of numbers ahead of it by constants."""

    digits: _CounterDigits
    growth: int
    now: tuple[Var, ...]
    inits: tuple[Expr, ...]
    #: digits of the other numbers, by their distance from the carried one
    further: dict[int, tuple[Var, ...]] = attrs.field(factory=dict, init=False)

    @classmethod
    def counting(cls, loop: For, digits: _CounterDigits, growth: int, invariant: Expr, starts: Sequence[int]) -> Self:
        """Return the number with the smallest start."""
        now = tuple(var(f"{loop.var.name}_{p}s") for p in (*digits.weights, *digits.wholes))
        return cls(digits, growth, now, digits.starting(loop.begin, growth, invariant, starts[0]))

    def ahead(self, by: int) -> Sequence[Expr]:
        """Return the digits of the number plus the constant `by`."""
        if not by:
            return self.now
        return self.further.setdefault(by, tuple(var(d.name) for d in self.now))

    def lets(self, used: Collection[Var]) -> Iterator[Let]:
        """Yield lets for the used digits of numbers ahead."""
        for by, names in self.further.items():
            values = self.digits.advance(self.now, by)
            # Highest digit first: its carry also decides whether the lower digit wraps.
            yield from (Let(name, value) for name, value in reversed([*zip(names, values)]) if name in used)

    def carried(self, used: Collection[Var]) -> Iterator[tuple[Var, Expr, Expr]]:
        """Yield (variable, initial value, next value) for the digits that are needed to advance."""
        all_digits = list(zip(self.now, self.inits, self.digits.advance(self.now, self.growth)))
        wanted = {at for names in (self.now, *self.further.values()) for at, name in enumerate(names) if name in used}
        count = len(self.digits.weights)
        needed = max((self.digits.lower_digits(at) + (at < count) for at in wanted), default=0)
        yield from (all_digits[at] for at in range(count, len(all_digits)) if at in wanted)
        # Highest digit first: it needs the lower ones before their update.
        yield from reversed(all_digits[:needed])


@frozen(eq=False)
class _NumberOfLanes(_Number):
    """Numbers with one lane each; unused lanes hold the first number."""

    #: lane of each number, by its distance from the first
    lanes: dict[int, Const] = attrs.field(factory=dict, init=False)

    @classmethod
    def counting(cls, loop: For, digits: _CounterDigits, growth: int, invariant: Expr, starts: Sequence[int]) -> Self:
        ahead: Expr = ZERO
        for lane, start in list(enumerate(starts))[1:]:
            ahead = select(eq(Lane(), lane), const(start - starts[0]), ahead)
        counting = super().counting(loop, digits, growth, add_exprs(invariant, ahead), starts)
        counting.lanes.update((start - starts[0], const(lane)) for lane, start in enumerate(starts))
        return counting

    def ahead(self, by: int) -> Sequence[Expr]:
        return [Uniform(FromLane(digit, self.lanes[by])) for digit in self.now]
