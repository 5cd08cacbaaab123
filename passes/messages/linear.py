"""Views in linear form: every dimension with one stride in bytes, adjacent ones merged where memory allows.

The address of a view element is `base + sum(dim * stride)`; the element exists if all dims are in range and every
halo's coordinate is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from convgen.ir.error import Unsupported
from convgen.ir.expr import Expr, const
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import plus, times
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, RunView, View
from convgen.ir.layout.tags import LETTERS
from convgen.ir.record import evolve, frozen
from convgen.ir.simplify.extents import is_multiple
from convgen.ir.sizes import Extent

ZERO = const(0)

WORD = 4  #: bytes; granule by which runs are displaced and trimmed
MOST_EDGES = 1 << 16  #: combinations of positions; most that are enumerated to find which runs an edge cuts; chosen

WHOLE_MESSAGE = 16  #: bytes; dims at least this long need not be merged to get wide messages


@frozen
class LinearDim:
    """One dimension of an axis: `size` positions exist, it takes `padded`, `stride` bytes apart.

    A `reversed` dim runs against memory: position 0 has the highest address, `stride` is still positive. `exact` is the
    number of positions in a launch if the host sets it.
    """

    name: str
    size: int
    padded: int
    stride: Extent
    reversed: bool = False
    exact: Expr | None = None

    @property
    def extent(self) -> Extent:
        """Return the positions that exist in a launch."""
        return self.size if self.exact is None else self.exact


@frozen
class Halo:
    """A masked tensor coordinate: the element exists where `0 <= sum(coef * dim) + const < size`."""

    size: int
    terms: tuple[tuple[str, int], ...]
    const: int

    def merged(self, outer: str, inner: LinearDim, elem_bytes: int) -> Halo | None:
        """Return the condition after `inner` is merged into `outer`; None if it cannot be expressed, or should not be.

        With r = outer * n + inner: 0 <= rest + outer < size exactly where 0 <= n * rest + r < n * size. If a run of
        `inner` is a whole message, the dims stay apart: a mask then has one bit a position of `outer`. Where the
        condition has both dims, it has r.
        """
        coefs = dict(self.terms)
        if inner.name in coefs:
            if coefs.get(outer) != coefs[inner.name] * inner.size:
                return None
            joined = ((outer if name == inner.name else name, coef) for name, coef in self.terms if name != outer)
            return Halo(self.size, tuple(joined), self.const)
        if outer not in coefs:
            return self
        if coefs[outer] != 1 or inner.size * elem_bytes % WHOLE_MESSAGE == 0:
            return None
        n = inner.size
        terms = tuple((name, 1 if name == outer else coef * n) for name, coef in self.terms)
        return Halo(self.size * n, terms, self.const * n)

    def is_constant_over(self, dim: str, run: int) -> bool:
        """Return whether each aligned run of positions along `dim` is entirely inside or entirely outside."""
        coefs = dict(self.terms)
        rest = [coef for name, coef in self.terms if name != dim]
        return dim not in coefs or (coefs[dim] == 1 and not any(v % run for v in (self.size, self.const, *rest)))


@frozen(cache_hash=True)
class LinearView:
    """A view in linear form: `axes` have their dims outermost first, `base` is the byte offset of index 0.

    `base` is negative with left padding. With 4-bit elements everything counts half bytes: plans use such views,
    lowering replaces them by views of pairs.
    """

    memory: Global
    axes: tuple[tuple[LinearDim, ...], ...]
    base: int
    halos: tuple[Halo, ...]
    has_runs: bool = False  #: whether messages may load more than what exists, to be trimmed afterwards
    skew: int = 0  #: bytes; from `base`, which is word-aligned in a view with runs, to index 0

    @property
    def whole(self) -> LinearView:
        """Return the view for messages that load only existing elements."""
        return evolve(self, has_runs=False) if self.has_runs else self

    @property
    def is_skewed(self) -> bool:
        """Return whether runs may begin inside words."""
        found = (d.stride for dims in self.axes for d in dims if d is not self._unit)
        return not all(is_multiple(n, WORD) for n in (*found, self.skew))

    @property
    def _unit(self) -> LinearDim | None:
        return None if self.unit_axis is None else self.axes[self.unit_axis][-1]

    def extent(self, axis: int) -> int:
        return math.prod(d.padded for d in self.axes[axis])

    @property
    def unit_axis(self) -> int | None:
        """Return the axis whose innermost dim is contiguous in memory, preferably one with several positions."""
        inner = [dims[-1] for dims in self.axes]
        found = [a for a, d in enumerate(inner) if d.stride == self.memory.elem.bytes and not d.reversed]
        return next((a for a in found if inner[a].size > 1), found[0] if found else None)

    def has_chunks(self, axis: int, facts: TargetFacts) -> bool:
        """Return whether messages bring whole chunks of neighbours along an axis."""
        elems = facts.chunk_bytes // self.memory.elem.bytes
        return self.unit_axis == axis and self.makes_messages(elems, facts.message_alignment)

    def makes_messages(self, run: int, alignment: int = 4) -> bool:
        """Return whether aligned runs of `run` positions of the unit axis are contiguous, aligned, and exist whole.

        Messages begin at multiples of `alignment` bytes, or of their own width if that is less. With runs, also
        whether trimming makes up for partial existence.
        """
        if self.unit_axis is None:
            return run == 1
        inner, elem = self.axes[self.unit_axis][-1], self.memory.elem
        align = min(2 * alignment, run) if elem.bits == 4 else min(alignment, run * elem.bytes)
        others = (d.stride for dims in self.axes for d in dims if d is not inner)
        whole = is_multiple(inner.extent, run) and inner.padded % run == 0
        together = all(h.is_constant_over(inner.name, run) for h in self.halos)
        if whole and together and all(is_multiple(s, align) for s in (*others, self.base, self.skew)):
            return True
        return self.has_runs and inner.padded % run == 0 and self._trims(inner, run)

    def message_elements(self, together: int) -> int:
        """Return the elements of a message of whole words, given `together` neighbours in a lane; 1 if none fits."""
        run = WHOLE_MESSAGE // self.memory.elem.bytes
        while run > 1 and (together % run or not self.makes_messages(run)):
            run //= 2
        return run if run * self.memory.elem.bytes >= WORD else 1

    def loaded_elements(self, registers: int, together: int) -> int:
        """Return the elements that messages load for `registers`; runs that begin inside words have an extra word."""
        run = self.message_elements(together)
        more = WORD // self.memory.elem.bytes if run > 1 and self.is_skewed else 0
        return registers // run * (run + more)

    def edges(self, run: int) -> tuple[Halo, ...]:
        """Return the conditions that may cut a run of length `run` short, those on the unit dim alone first.

        If the dim ends inside its last run, that run is moved back: any condition on the dim may then cut it.
        """
        assert self.unit_axis is not None
        inner = self.axes[self.unit_axis][-1]
        own = (Halo(inner.size, ((inner.name, 1),), 0),) if inner.size % run else ()
        cuts = (h for h in self.halos if inner.name in dict(h.terms))
        found = (*own, *(h for h in cuts if own or not h.is_constant_over(inner.name, run)))
        return tuple(sorted(found, key=lambda h: len(h.terms)))

    def positions(self, names: Iterable[str]) -> int:
        """Return the number of combinations of positions along some dims."""
        return math.prod(d.size for dims in self.axes for d in dims if d.name in names)

    def _trims(self, inner: LinearDim, run: int) -> bool:
        """Return whether runs can be moved to where all their words exist, and what does not exist trimmed."""
        elem = self.memory.elem.bytes
        sized = any(d.exact is not None for dims in self.axes for d in dims)
        if self.memory.elem.bits < 8 or elem > WORD or run * elem % WORD or sized or self.memory.bytes % WORD:
            return False
        edges = self.edges(run)
        ends = all(dict(h.terms)[inner.name] == 1 and h.size >= run for h in edges)
        moving = [h for h in edges if len(h.terms) > 1]
        steps = (c for h in moving for name, c in h.terms if name != inner.name)
        words = all(c * elem % WORD == 0 for c in (*steps, *(h.size for h in moving)))
        names = {name for h in moving for name, _ in h.terms}
        return ends and (words or self.is_skewed) and self.positions(names) <= MOST_EDGES


@lru_cache(maxsize=2**10)
def linearize(view: View) -> LinearView:
    """Return the linear form of a view; Unsupported if a block of its layout ends inside one dim."""
    _check_blocks(view)
    size = view.memory.elem.bytes
    of_dim: dict[str, Extent] = {}
    for n, t in enumerate(view.index):
        for name, coef in t.terms:
            of_dim[name] = plus(times(view.step(n, coef), size), of_dim.get(name, 0))
    halos = [Halo(t.size, t.terms, t.const) for t in view.index if t.masked]
    axes = []
    for dims in view.axes:
        merged: list[LinearDim] = []
        for d in dims:
            stride = of_dim.get(d.name, 0)
            is_reversed = isinstance(stride, int) and stride < 0
            dim = LinearDim(
                d.name, d.size, d.padded, times(stride, -1) if is_reversed else stride, is_reversed, d.exact
            )
            last = merged[-1] if merged else None
            if last and _run_on(last, dim):
                through = [h.merged(last.name, dim, size) for h in halos]
                if all(through):
                    halos = [h for h in through if h]
                    merged[-1] = _merged(last, dim)
                    continue
            merged.append(dim)
        kept = [d for d in merged if d.padded != 1 or d.size != 1]
        axes.append(tuple(kept or merged[-1:]))
    base = sum(size * _number(view.step(n, t.const), view) for n, t in enumerate(view.index) if t.const)
    base -= sum((d.size - 1) * _number(d.stride, view) for dims in axes for d in dims if d.reversed)
    runs = isinstance(view, RunView)
    skew = base % WORD if runs else 0
    return LinearView(view.memory, tuple(axes), base - skew, tuple(halos), runs, skew)


def loads_runs(view: LinearView, layout: Fragment) -> bool:
    """Return whether messages load runs, which may contain elements that do not exist."""
    return view.has_runs and view.message_elements(_neighbours(view, layout)) > 1


def loaded_elements(view: RunView, layout: Fragment) -> int:
    """Return the elements a lane that messages load for a tile of a view with runs."""
    linear = linearize(view)
    return linear.loaded_elements(layout.registers, _neighbours(linear, layout))


def _neighbours(view: LinearView, layout: Fragment) -> int:
    """Return the neighbours along the view's unit axis in a lane's registers.

    1 if the fragment has no dim for that axis, as for the axis of groups: the tile then has one position along it.
    """
    axis = view.unit_axis
    return 1 if axis is None or axis >= len(layout.dims) else layout.contiguous(layout.dims[axis])


def _check_blocks(view: View) -> None:
    """Raise Unsupported unless each block digit of a coordinate is a sum of whole dims."""
    sizes = {d.name: d.size for dims in view.axes for d in dims}
    for letter, t in zip(LETTERS, view.index):
        terms = [(coef, sizes[name]) for name, coef in t.terms if sizes[name] > 1]
        for end, digit in view.layout.digits.stepped():
            if digit.dim != letter or end == 1 or digit.size == 1:  # past the last block nothing exists
                continue
            finer = sum((size - 1) * coef for coef, size in terms if coef < end)
            if t.const or finer >= end or any(coef < 0 or (coef > end and coef % end) for coef, _ in terms):
                given = f"given {view.memory.name} of layout {view.layout.tag}, a block of which ends within a dim"
                raise Unsupported(f"{given} of its view, wanted it to end between two", rule="blocked-layout")


def _run_on(outer: LinearDim, inner: LinearDim) -> bool:
    """Return whether two dims are contiguous in memory and can be counted as one."""
    if outer.reversed or inner.reversed or inner.exact is not None or inner.size != inner.padded:
        return False
    after: Extent = times(inner.stride, inner.size)
    return outer.stride == after


def _merged(outer: LinearDim, inner: LinearDim) -> LinearDim:
    n = inner.size
    exact = None if outer.exact is None else outer.exact * n
    return LinearDim(outer.name, outer.size * n, outer.padded * n, inner.stride, exact=exact)


def _number(extent: Extent, view: View) -> int:
    if isinstance(extent, int):
        return extent
    raise Unsupported(f"given {view.memory.name} with a shift of {extent}, wanted a number", rule="size")


def add_exprs(a: Expr, b: Expr) -> Expr:
    """Return a sum, without zero addends."""
    if a is ZERO:
        return b
    return a if b is ZERO else a + b
