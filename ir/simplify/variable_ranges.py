"""The ranges of variables, from the statements that bind them: at one place, or in a whole kernel.

A scope learns from one binder after the other and is valid at each of them. Passes ask for the values that a kernel's
variable may have wherever it is visible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from convgen.ir import expr as x
from convgen.ir.latest import Latest
from convgen.ir.mutate import free_vars
from convgen.ir.program import Kernel
from convgen.ir.simplify.bounds import WIDTH, Bounds, Range, definition, hull, modulo_by_minimum, type_range, within
from convgen.ir.stmt import ExitIf, For, Let, Stmt


class Scope:
    """The ranges of variables, in order of their binders; a variable bound twice has the hull of both ranges.

    `bounds` is valid at every point for the variables visible there, so one scope may serve a whole kernel.
    """

    def __init__(self, width: int = WIDTH, ranges: Mapping[x.Var, Range] | None = None) -> None:
        self.ranges: dict[Any, Range] = dict(ranges or {})
        self.definitions: dict[x.Var, x.Expr] = {}  # variables that exactly one let binds
        self.bounds = Bounds(self.ranges, width, self.definitions)

    def bind(self, var: x.Var, range: Range) -> None:
        """Add `range` to the values of `var`; a variable that is bound already has no one definition any more."""
        known = self.ranges.get(var)
        if known is None:
            self.ranges[var] = range
            return
        was_defined = self.definitions.pop(var, None) is not None
        if was_defined or not within(range, known):
            self.ranges[var] = hull(range, known)
            self.refresh()

    def refresh(self) -> None:
        """Drop conclusions from ranges that have changed."""
        self.bounds = Bounds(self.ranges, self.bounds.width, self.definitions)

    def let(self, var: x.Var, *values: x.Expr) -> None:
        """Learn that `var` has the value of one of `values`; variables without integers are ignored."""
        if var.type.elem.is_float:
            return
        if len(values) == 1 and var not in self.ranges:
            self.definitions[var] = values[0]
        self.bind(var, hull(*map(self.bounds, values)))

    def kernel(self, k: Kernel) -> None:
        """Bind the kernel's group ids and subgroup number; of sizes, the host's promise is known."""
        for var, count in zip((*k.group_ids, k.subgroup), (*k.grid, k.subgroups)):
            self.bind(var, (0, (self.bounds(count)[1] if isinstance(count, x.Expr) else count) - 1))

    def loop(self, s: For) -> None:
        """Bind the variable and the carried values of a loop that runs at least once.

        A carried value is an initial value or a yield of the body for any carried value: so slot numbers that rotate by
        `%` stay small. A value with bounded growth grows once an iteration. Counted digits, which wrap by a select
        or a minimum, are tried with the range from the initial value (at most 0) to below their radix, which is kept if
        the body preserves it.
        """
        self.bind(s.var, loop_range(self.bounds, s))
        carried = [
            (var, self.bounds(init), value)
            for var, init, value in zip(s.carried, s.inits, s.yields)
            if not var.type.elem.is_float
        ]
        if not carried:
            return
        trial = self._trial(s, {})
        ranges = {var: hull(init, trial.bounds(value)) for var, init, value in carried}
        again = max(0, self.bounds(s.end)[1] - self.bounds(s.begin)[0] - 1)  # iterations after the first
        digits: dict[Any, Range] = {}
        for var, init, named in carried:
            value = definition(named, trial.definitions)
            wraps = modulo_by_minimum(value, trial.definitions)
            if isinstance(value, x.Select) or wraps:
                digits[var] = min(0, init[0]), max(init[1], wraps[1] - 1) if wraps else ranges[var][1]
            elif growth := _growth(trial, value, var):
                grown = init[0] + min(0, growth[0]) * again, init[1] + max(0, growth[1]) * again
                ranges[var] = grown if within(grown, type_range(var.type.elem)) else ranges[var]
        if any(digits[var] != ranges[var] for var in digits):
            trial = self._trial(s, digits)
            if all(within(trial.bounds(value), digits[var]) for var, _, value in carried if var in digits):
                ranges |= digits
        for var, range in ranges.items():
            self.bind(var, range)

    def _trial(self, s: For, assumed: Mapping[x.Var, Range]) -> Scope:
        """Return the ranges in a loop's body for carried values in `assumed` ranges, others in those of their types.

        A loop in another arm of a branch may have bound these variables: its ranges say nothing of this loop.
        """
        carried = frozenset(s.carried)
        ranges = {v: known for v, known in self.ranges.items() if v not in carried}
        trial = Scope(self.bounds.width, {**ranges, **assumed})
        trial.visit(s.body)
        return trial

    def results(self, s: For) -> None:
        """Bind the results of a loop, after its body was visited."""
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


def _growth(scope: Scope, e: x.Expr, v: x.Var) -> Range | None:
    """Return the range by which a sum, through lets, exceeds its term `v`; None if `v` is not a term."""
    if e is v:
        return 0, 0
    if isinstance(e, x.Var):
        return _growth(scope, scope.definitions[e], v) if e in scope.definitions else None
    if isinstance(e, x.Add | x.Sub):
        sides = ((e.a, e.b), (e.b, e.a)) if isinstance(e, x.Add) else ((e.a, e.b),)
        for term, other in sides:
            if found := _growth(scope, term, v):
                low, high = scope.bounds(other)
                more = (low, high) if isinstance(e, x.Add) else (-high, -low)
                return found[0] + more[0], found[1] + more[1]
    return None


def loop_range(ranges: Bounds, s: For) -> Range:
    """Return the values of a loop's variable within its body."""
    first = ranges(s.begin)[0]
    return first, max(first, ranges(s.end)[1] - 1)


def exits_of(body: Stmt) -> Iterator[ExitIf]:
    """Yield the statements that leave the loop whose body this is."""
    if isinstance(body, ExitIf):
        yield body
    for s in () if isinstance(body, For) else body.bodies:
        yield from exits_of(s)


class VarRanges(Mapping[Any, Range]):
    """The ranges of a kernel's integer variables, computed on demand.

    Variables that depend only on lets and loop counters are resolved alone; values that depend on loop-carried values
    need a walk over the whole kernel.
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
        """Return the lets and loops that bind each variable, numbered in program order."""
        binders: dict[x.Var, list[tuple[int, Let | For]]] = {}
        ahead, number = [self.kernel.body], 0
        while ahead:
            s = ahead.pop()
            if isinstance(s, (Let, For)):
                number += 1
                for v in (*s.binds, *s.binds_within):
                    binders.setdefault(v, []).append((number, s))
            ahead += reversed(s.bodies)
        return binders

    def _find(self, v: x.Var) -> None:
        """Find the range of one variable from the binders that it depends on; walk the kernel if a loop carries it."""
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


_latest = Latest(VarRanges)


def var_ranges(k: Kernel) -> VarRanges:
    """Return the ranges of a kernel's integer variables, each valid wherever its variable is visible.

    Kernel arguments and loaded values may be anything their types allow and are not listed.
    """
    return _latest(k)


def of_same_ranges(new: Kernel, old: Kernel) -> Kernel:
    """Return `new` and reuse the ranges of `old` for it; the caller vouches that its variables have the same ranges."""
    return _latest.handed_on(new, old)
