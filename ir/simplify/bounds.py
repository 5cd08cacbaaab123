"""Interval analysis: between which integers an expression's value lies, for every lane and every element.

Ranges are inclusive and sound under wraparound: where an operation's exact interval leaves the type, the value may have
wrapped and the range is the type's. A bool is an integer in [0, 1]. What is an error by docs/ir.md (division by zero, a
shift out of range) has no value and so widens no range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from convgen.ir import expr as x
from convgen.ir import sizes
from convgen.ir.fused import Fused
from convgen.ir.mutate import free_vars, statements
from convgen.ir.program import Kernel
from convgen.ir.stmt import ExitIf, For, Let, Stmt
from convgen.ir.types import AnyType, Type, u32
from convgen.ir.votes import AllLanes

Range = tuple[int, int]

WIDTH = 64  #: lanes of a subgroup unless said otherwise: the widest of all targets


def type_range(type: Type) -> Range:
    """All values of an integer or bool type."""
    return type.min, type.max


class _FullRanges(dict[AnyType, Range | None]):
    """All values of the elements of a type, worked out once a type; None for floats."""

    def __missing__(self, type: AnyType) -> Range | None:
        self[type] = None if type.elem.is_float else type_range(type.elem)
        return self[type]


FULL = _FullRanges()


def hull(*ranges: Range) -> Range:
    """The smallest range that holds all of `ranges`."""
    if len(ranges) == 1:
        return ranges[0]
    least, most = zip(*ranges)
    return min(least), max(most)


def meet(a: Range, b: Range) -> Range:
    """The values in both; `a` where there are none, as in code that never runs."""
    lo, hi = max(a[0], b[0]), min(a[1], b[1])
    return (lo, hi) if lo <= hi else a


def within(inner: Range, outer: Range) -> bool:
    """Whether every value of `inner` lies in `outer`."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


class Bounds:
    """The ranges of expressions, given those of variables; a variable that `env` lacks has its type's range.

    Each node is looked at once, so `env` may gain variables that no expression asked about yet, and nothing else.
    """

    def __init__(self, env: Mapping[Any, Range], width: int = WIDTH) -> None:
        """`env` holds the ranges of variables, and what more is known of other expressions."""
        self.env, self.width = env, width
        self._memo: dict[x.Expr, Range] = {}
        self._never_wraps: dict[x.Expr, bool] = {}

    def __call__(self, e: x.Expr) -> Range:
        """The range of an expression of integer or bool elements; ValueError for others."""
        known = self._memo.get(e)
        if known is None:
            full, exact = FULL[e.type], self.exact(e)
            if full is None:
                raise ValueError(f"bounds: an expression of type {e.type}")
            known = exact if full[0] <= exact[0] and exact[1] <= full[1] else full
            if e in self.env:
                known = meet(known, self.env[e])
            self._memo[e] = known
        return known

    def exact(self, e: x.Expr) -> Range:
        """The range of the operation at the root as if it could not wrap; the operands may have wrapped."""
        rule = _RULES.get(type(e))
        return rule(self, e) if rule else type_range(e.type.elem)

    def cannot_wrap(self, e: x.Expr) -> bool:
        """Whether the operation at the root provably gives its exact result."""
        known = self._never_wraps.get(e)
        if known is None:
            known = self._never_wraps[e] = within(self.exact(e), type_range(e.type.elem))
        return known


def bounds(e: x.Expr, env: Mapping[x.Var, Range], width: int = WIDTH) -> Range:
    """The range of `e`, given those of its variables, in subgroups of `width` lanes."""
    return Bounds(env, width)(e)


# ---------------------------------------------------------------- operators


def _corners(f: Callable[[int, int], int], a: Range, b: Range) -> Range:
    """The range of an `f` that is monotone in each operand."""
    values = (f(a[0], b[0]), f(a[0], b[1]), f(a[1], b[0]), f(a[1], b[1]))
    return min(values), max(values)


def _signed_parts(b: Range) -> Iterator[Range]:
    """The negative and the positive part of a divisor's range."""
    if b[0] < 0:
        yield b[0], min(b[1], -1)
    if b[1] > 0:
        yield max(b[0], 1), b[1]


def _div(a: Range, b: Range, full: Range) -> Range:
    parts = [_corners(int.__floordiv__, a, part) for part in _signed_parts(b)]
    return hull(*parts) if parts else full


def _mod(a: Range, b: Range, full: Range) -> Range:
    if b[0] == b[1] != 0 and a[0] // b[0] == a[1] // b[0]:
        return a[0] % b[0], a[1] % b[0]
    parts = []
    for lo, hi in _signed_parts(b):
        if lo > 0:
            inside = a[0] >= 0 and a[1] < lo
            parts.append(a if inside else (0, min(hi - 1, a[1]) if a[0] >= 0 else hi - 1))
        else:
            inside = hi < a[0] and a[1] <= 0
            parts.append(a if inside else (max(lo + 1, a[0]) if a[1] <= 0 else lo + 1, 0))
    return hull(*parts) if parts else full


def _bits(a: Range, b: Range) -> Range:
    """What any bitwise operation stays within: the two's complement numbers as wide as the wider operand."""
    width = max((n if n >= 0 else ~n).bit_length() for n in (*a, *b))
    return -(1 << width) if min(a[0], b[0]) < 0 else 0, (1 << width) - 1


def _and(a: Range, b: Range, full: Range) -> Range:
    if a[0] == a[1] and b[0] == b[1]:
        return (a[0] & b[0],) * 2
    upper = [r[1] for r in (a, b) if r[0] >= 0]
    return (0, min(upper)) if upper else _bits(a, b)


def _or(a: Range, b: Range, full: Range) -> Range:
    if a[0] == a[1] and b[0] == b[1]:
        return (a[0] | b[0],) * 2
    lo, hi = _bits(a, b)
    return (max(a[0], b[0]), min(hi, a[1] + b[1])) if lo == 0 else (lo, hi)


def _xor(a: Range, b: Range, full: Range) -> Range:
    if a[0] == a[1] and b[0] == b[1]:
        return (a[0] ^ b[0],) * 2
    lo, hi = _bits(a, b)
    return (0, min(hi, a[1] + b[1])) if lo == 0 else (lo, hi)


def _shift(a: Range, b: Range, full: Range, f: Callable[[int, int], int]) -> Range:
    bits = (full[1] - full[0]).bit_length()
    amounts = max(b[0], 0), min(b[1], bits - 1)
    return _corners(f, a, amounts) if amounts[0] <= amounts[1] else full


def _mulhi(a: Range, b: Range, full: Range) -> Range:
    if min(a[0], b[0]) < 0:
        return full
    return a[0] * b[0] >> 32, a[1] * b[1] >> 32


_ARITHMETIC: dict[type[x.Expr], Callable[[Range, Range, Range], Range]] = {
    x.Add: lambda a, b, full: (a[0] + b[0], a[1] + b[1]),
    x.Sub: lambda a, b, full: (a[0] - b[1], a[1] - b[0]),
    x.Mul: lambda a, b, full: _corners(int.__mul__, a, b),
    x.MulHi: _mulhi,
    x.Div: _div,
    x.Mod: _mod,
    x.Max: lambda a, b, full: (max(a[0], b[0]), max(a[1], b[1])),
    x.And: _and,
    x.Or: _or,
    x.Xor: _xor,
    x.Shl: lambda a, b, full: _shift(a, b, full, int.__lshift__),
    x.Shr: lambda a, b, full: _shift(a, b, full, int.__rshift__),
}


def _truth(always: bool, never: bool) -> Range:
    return int(always), int(not never)


_COMPARISONS: dict[type[x.Expr], Callable[[Range, Range], Range]] = {
    x.Lt: lambda a, b: _truth(a[1] < b[0], a[0] >= b[1]),
    x.Le: lambda a, b: _truth(a[1] <= b[0], a[0] > b[1]),
    x.Eq: lambda a, b: _truth(a[0] == a[1] == b[0] == b[1], a[1] < b[0] or b[1] < a[0]),
    x.Ne: lambda a, b: _truth(a[1] < b[0] or b[1] < a[0], a[0] == a[1] == b[0] == b[1]),
}


def _arithmetic(ranges: Bounds, e: Any) -> Range:
    full = FULL[e.type]
    assert full is not None
    return _ARITHMETIC[type(e)](ranges(e.a), ranges(e.b), full)


def _comparison(ranges: Bounds, e: Any) -> Range:
    if e.a.type.elem.is_float:
        return 0, 1
    return _COMPARISONS[type(e)](ranges(e.a), ranges(e.b))


def _not(ranges: Bounds, e: x.Not) -> Range:
    lo, hi = ranges(e.a)
    ones = sum(type_range(e.type.elem))  # the complement of x: -1 - x signed, max - x unsigned and bool
    return ones - hi, ones - lo


def _select(ranges: Bounds, e: x.Select) -> Range:
    cond = ranges(e.cond)
    if cond[0] == cond[1]:
        return ranges(e.a if cond[0] else e.b)
    low, high = ranges(e.b)
    if isinstance(e.cond, x.Le) and e.cond.b is e.b:  # what it is otherwise is less than what it was compared with
        high = max(low, min(high, ranges(e.cond.a)[1] - 1))
    return hull(ranges(e.a), (low, high))


def _turned_over(e: x.Expr) -> tuple[x.Expr, int] | None:
    """t and r if an expression is the smaller one, without a sign, of t and t - r: of t below 2r the rest by r."""
    e = e.a if isinstance(e, x.Cast) else e
    if not isinstance(e, x.Min) or e.type.elem is not u32:
        return None
    return next(((t, r) for t, left in ((e.a, e.b), (e.b, e.a)) if (r := _less(t, left))), None)


def _less(a: x.Expr, b: x.Expr) -> int:
    """By which constant, from 1, the second of two words is less than the first, modulo 2^32; else 0."""
    if isinstance(a, x.Cast) and isinstance(b, x.Cast):
        a, b = a.a, b.a
    match b:
        case x.Add(t, x.Const(_, more)) if t is a:
            return -more % (1 << 32)
        case x.Sub(t, x.Const(_, less)) if t is a:
            return less % (1 << 32)
    return 0


def _minimum(ranges: Bounds, e: x.Min) -> Range:
    a, b = ranges(e.a), ranges(e.b)
    low, high = min(a[0], b[0]), min(a[1], b[1])
    if (found := _turned_over(e)) and ranges(found[0])[1] < 2 * found[1]:
        high = min(high, found[1] - 1)
    return low, high


def _cast(ranges: Bounds, e: x.Conversion) -> Range:
    full = type_range(e.type.elem)
    if e.a.type.elem.is_float:
        return full
    lo, hi = ranges(e.a)
    if e.type.elem.is_bool:
        return _truth(lo > 0 or hi < 0, lo == hi == 0)
    return lo, hi


def _saturate(ranges: Bounds, e: x.Saturate) -> Range:
    (low, high), (least, most) = _cast(ranges, e), type_range(e.type.elem)
    return max(least, min(low, most)), max(least, min(high, most))


def _same(ranges: Bounds, e: Any) -> Range:
    return ranges(e.a)


_RULES: dict[type[x.Expr], Callable[[Bounds, Any], Range]] = {
    x.Const: lambda ranges, e: (int(e.bits), int(e.bits)),
    x.Var: lambda ranges, e: ranges.env.get(e) or type_range(e.type.elem),
    sizes.Size: lambda ranges, e: e.range,
    sizes.HostValue: lambda ranges, e: ranges.env.get(e) or type_range(e.type.elem),
    x.Lane: lambda ranges, e: (0, ranges.width - 1),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys((x.Uniform, x.Splat, x.Slice, x.Shuffle, x.FromLane, AllLanes), _same),
    x.Min: _minimum,
    x.Not: _not,
    x.Select: _select,
    Fused: lambda ranges, e: ranges(e.meaning),
    x.Cast: _cast,
    x.Saturate: _saturate,
}


# ---------------------------------------------------------------- statements


class Scope:
    """The ranges of variables as their binders are met; a variable bound twice has the hull of both.

    `bounds` holds at every point for the variables visible there, so one scope may serve a whole kernel.
    """

    def __init__(self, width: int = WIDTH, ranges: Mapping[x.Var, Range] | None = None) -> None:
        self.ranges: dict[Any, Range] = dict(ranges or {})
        self.bounds = Bounds(self.ranges, width)

    def bind(self, var: x.Var, range: Range) -> None:
        """`var` takes values of `range` from here on (as well as those it had)."""
        known = self.ranges.get(var)
        if known is None:
            self.ranges[var] = range
        elif not within(range, known):
            self.ranges[var] = hull(range, known)
            self.refresh()

    def refresh(self) -> None:
        """Forget what was concluded from ranges that have changed."""
        self.bounds = Bounds(self.ranges, self.bounds.width)

    def let(self, var: x.Var, *values: x.Expr) -> None:
        """`var` takes the value of one of `values`; a variable that holds no integers is passed over."""
        if not var.type.elem.is_float:
            self.bind(var, hull(*map(self.bounds, values)))

    def kernel(self, k: Kernel) -> None:
        """Bind what a kernel binds on entry, save its arguments: of sizes is known what the host promises."""
        for var, count in zip((*k.group_ids, k.subgroup), (*k.grid, k.subgroups)):
            self.bind(var, (0, (self.bounds(count)[1] if isinstance(count, x.Expr) else count) - 1))

    def loop(self, s: For) -> None:
        """Bind the variable and the carried values of a loop that runs at least once.

        A carried value is one of the inits or a yield of the body, whatever it was before: so slot numbers that
        rotate by `%` stay small. What grows does so once an iteration. Digits that are counted up, from zero or less,
        are no less, and stay below their radix, if they do so wherever they are.
        """
        self.bind(s.var, loop_range(self.bounds, s))
        carried = [
            (var, self.bounds(init), value)
            for var, init, value in zip(s.carried, s.inits, _spelled_out(s))
            if not var.type.elem.is_float
        ]
        if not carried:
            return
        trial = self._trial(s, {})
        found = {var: hull(init, trial.bounds(value)) for var, init, value in carried}
        again = max(0, self.bounds(s.end)[1] - self.bounds(s.begin)[0] - 1)  # iterations behind the first
        digits: dict[Any, Range] = {}
        for var, init, value in carried:
            turned = _turned_over(value)
            if isinstance(value, x.Select) or turned:
                digits[var] = min(0, init[0]), max(init[1], turned[1] - 1) if turned else found[var][1]
            elif growth := _growth(trial.bounds, value, var):
                grown = init[0] + min(0, growth[0]) * again, init[1] + max(0, growth[1]) * again
                found[var] = grown if within(grown, type_range(var.type.elem)) else found[var]
        if any(digits[var] != found[var] for var in digits):
            trial = self._trial(s, digits)
            if all(within(trial.bounds(value), digits[var]) for var, _, value in carried if var in digits):
                found |= digits
        for var, range in found.items():
            self.bind(var, range)

    def _trial(self, s: For, assumed: Mapping[x.Var, Range]) -> Scope:
        """The ranges in a loop's body where carried values are in some, and else anywhere."""
        trial = Scope(self.bounds.width, {**self.ranges, **assumed})
        trial.visit(s.body)
        return trial

    def results(self, s: For) -> None:
        """Bind what a loop leaves behind, after its body was visited."""
        exits = list(exits_of(s.body))
        for i, var in enumerate(s.results):
            self.let(var, s.inits[i], s.yields[i], *(e.values[i] for e in exits))

    def visit(self, s: Stmt) -> None:
        """Bind all variables that a statement and its parts bind."""
        if isinstance(s, Let):
            self.let(s.var, s.value)
        if isinstance(s, For):
            self.loop(s)
        for inner in s.bodies:
            self.visit(inner)
        if isinstance(s, For):
            self.results(s)


def _spelled_out(s: For) -> Iterator[x.Expr]:
    """What a loop's body yields, without a name where it has one."""
    named = {e for e in s.yields if isinstance(e, x.Var)}
    lets = statements(s.body) if named else ()
    values = {each.var: each.value for each in lets if isinstance(each, Let) and each.var in named}
    yield from (values.get(e, e) if isinstance(e, x.Var) else e for e in s.yields)


def _growth(ranges: Bounds, e: x.Expr, v: x.Var) -> Range | None:
    """By how much a sum exceeds one of its terms; None if it is no term."""
    if e is v:
        return 0, 0
    if isinstance(e, x.Add | x.Sub):
        sides = ((e.a, e.b), (e.b, e.a)) if isinstance(e, x.Add) else ((e.a, e.b),)
        for term, other in sides:
            if found := _growth(ranges, term, v):
                low, high = ranges(other)
                more = (low, high) if isinstance(e, x.Add) else (-high, -low)
                return found[0] + more[0], found[1] + more[1]
    return None


def loop_range(ranges: Bounds, s: For) -> Range:
    """The values of a loop's variable within its body."""
    first = ranges(s.begin)[0]
    return first, max(first, ranges(s.end)[1] - 1)


def exits_of(body: Stmt) -> Iterator[ExitIf]:
    """The statements that leave the loop whose body this is."""
    if isinstance(body, ExitIf):
        yield body
    for s in () if isinstance(body, For) else body.bodies:
        yield from exits_of(s)


class VarRanges(Mapping[Any, Range]):
    """The ranges of a kernel's integer variables, each found when it is asked for.

    What lets make of one another, and of counters of loops, is found by these alone; what depends on values that a loop
    carries takes a walk through the kernel.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._scope = Scope(kernel.width)
        self._scope.kernel(kernel)
        self._is_whole = False

    def get(self, v: Any, default: Any = None) -> Any:
        if not self._is_whole and v not in self._scope.ranges:
            self._find(v)
        return self._scope.ranges.get(v, default)

    def __getitem__(self, v: x.Var) -> Range:
        if (found := self.get(v)) is None:
            raise KeyError(v)
        return found  # type: ignore[no-any-return]

    def __contains__(self, v: object) -> bool:
        return isinstance(v, x.Var) and self.get(v) is not None

    def __iter__(self) -> Iterator[x.Var]:
        self._walk()
        return iter(self._scope.ranges)

    def __len__(self) -> int:
        self._walk()
        return len(self._scope.ranges)

    def __repr__(self) -> str:
        return repr(dict(self))

    @cached_property
    def _binders(self) -> Mapping[x.Var, list[tuple[int, Let | For]]]:
        """The lets and loops that bind a variable, with numbers in the order in which they do."""
        found: dict[x.Var, list[tuple[int, Let | For]]] = {}
        ahead, number = [self.kernel.body], 0
        while ahead:
            s = ahead.pop()
            if isinstance(s, (Let, For)):
                number += 1
                for v in (*s.binds, *s.binds_within):
                    found.setdefault(v, []).append((number, s))
            ahead += reversed(s.bodies)
        return found

    def _find(self, v: x.Var) -> None:
        needed: dict[int, tuple[x.Var, Let | For]] = {}
        todo = [v]
        while todo:
            v = todo.pop()
            for number, s in self._binders.get(v, ()):
                if isinstance(s, For) and v is not s.var:
                    return self._walk()
                if number not in needed:
                    needed[number] = v, s
                    todo += [u for e in ((s.begin, s.end) if isinstance(s, For) else (s.value,)) for u in free_vars(e)]
        scope = self._scope
        for v, s in [needed[number] for number in sorted(needed) if needed[number][0] not in scope.ranges]:
            if isinstance(s, For):
                scope.bind(v, loop_range(scope.bounds, s))
            else:
                scope.let(v, s.value)
        return None

    def _walk(self) -> None:
        if not self._is_whole:
            self._scope = Scope(self.kernel.width)
            self._scope.kernel(self.kernel)
            self._scope.visit(self.kernel.body)
            self._is_whole = True


_latest: dict[Kernel, VarRanges] = {}  #: the ranges of the kernel that somebody asked about last


def var_ranges(k: Kernel) -> VarRanges:
    """The ranges of a kernel's integer variables, each valid wherever its variable is visible.

    Kernel arguments and loaded values may be anything their types allow and are not listed.
    """
    if k not in _latest:
        _latest.clear()
        _latest[k] = VarRanges(k)
    return _latest[k]


def of_same_ranges(new: Kernel, old: Kernel) -> Kernel:
    """`new`, whose variables are those of `old` and hold the same, so that they need not be looked at again."""
    ranges = var_ranges(old)
    _latest.clear()
    _latest[new] = ranges
    return new
