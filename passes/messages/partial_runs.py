"""Runs: messages of which only a part may exist, and what makes of them what exists.

A run that begins before an edge is loaded from so many words further on, and one that reaches past an edge from so many
further back, that all its words exist: no message touches what is outside a buffer. Behind the load the words are moved
back to where they belong, zeros after them, and what else of a word does not exist is masked. Which runs an edge cuts,
and by how many words, is found by looking at all positions; mostly it is one number, so that a condition does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import pairwise
from operator import and_

import numpy as np
import numpy.typing as npt

from convgen.ir.expr import Const, Expr, Pack, Slice, const, maximum, minimum, select
from convgen.ir.fused import Fused
from convgen.ir.layout.digits import Space
from convgen.ir.record import frozen
from convgen.ir.types import u32, vector
from convgen.passes.messages.access import Position, TileAccess, scale
from convgen.passes.messages.linear import WORD, ZERO, Halo, plus
from convgen.passes.messages.positions import Positions

_Ints = npt.NDArray[np.int64]


@frozen
class _Edge:
    """What one halo does to a message: by how many elements it is displaced, and where."""

    start: Expr  #: the coordinate of the message's first element, displaced by the edges before this one
    end: Expr  #: elements by which the message, displaced so, reaches past the last that exists
    amounts: tuple[int, ...]  #: elements; all displacements that there are, forwards positive
    word: int  #: elements by which messages are displaced at a time

    @property
    def is_fixed(self) -> bool:
        return len(self.amounts) == 1

    @property
    def sides(self) -> Iterator[tuple[int, Expr, tuple[int, ...]]]:
        """In which direction, by how many elements the message is outside, and the amounts by which it is moved."""
        for sign, beyond in ((1, const(0) - self.start), (-1, self.end)):
            if amounts := tuple(sign * a for a in self.amounts if sign * a > 0):
                yield sign, beyond, amounts

    @property
    def displacement(self) -> Expr:
        """In elements."""
        if self.is_fixed:
            return const(self.amounts[0])
        total: Expr = ZERO
        for sign, beyond, amounts in self.sides:
            if len(amounts) == 1:
                total = plus(total, select(beyond >= self.word, const(sign * amounts[0]), 0))
            else:
                total = plus(total, _words(beyond, amounts, self.word) * (sign * self.word))
        return total

    def back(self, words: list[Expr]) -> list[Expr]:
        """The words of a message that was displaced where they belong."""
        if self.is_fixed:
            return _moved(words, self.amounts[0] // self.word)
        for sign, beyond, amounts in self.sides:
            steps = sorted(amount // self.word for amount in amounts)
            bits = range(steps[-1].bit_length())
            if len(steps) <= len(bits):
                brought, reached = words, 0
                for step in steps:
                    words = _chosen(beyond >= reached + self.word, _moved(brought, sign * step), words)
                    reached = step * self.word
                continue
            by = _words(beyond, amounts, self.word)
            for bit in bits:
                words = _chosen((by >> bit & 1) > 0, _moved(words, sign << bit), words)
        return words


def _words(beyond: Expr, amounts: Sequence[int], word: int) -> Expr:
    return minimum(maximum(beyond, 0), max(amounts)) // word


@frozen
class Run:
    """One message: its edges, and the elements that are masked behind them."""

    count: int  #: elements
    word: int  #: elements of one
    edges: tuple[_Edge, ...]
    missing: Mapping[int, tuple[Expr, ...]]  #: elements that may not exist though their word does: tests, none if never
    outside: tuple[Expr, ...]  #: conditions without which nothing of it exists
    is_skewed: bool  #: whether it may begin within a word
    #: Words by which what is skewed may be further on than where it belongs, beside a part of one.
    steps: tuple[int, ...]

    @property
    def fixed(self) -> int:
        """Elements by which every lane's message is displaced."""
        return sum(e.amounts[0] for e in self.edges if e.is_fixed)

    @property
    def moves_back(self) -> bool:
        """Whether it may be displaced to where it begins sooner."""
        return any(min(e.amounts) < 0 for e in self.edges)

    @property
    def varying(self) -> Expr:
        """Elements by which a lane's is displaced besides."""
        total: Expr = ZERO
        for edge in self.edges:
            total = total if edge.is_fixed else plus(total, edge.displacement)
        return total

    def trimmed(self, value: Expr, at: Expr) -> Expr:
        """The message as it was to be, of the words that were brought from byte `at`, or from the word with that."""
        elem = value.type.elem
        words: list[Expr] = [Pack(u32, (Slice(value, n, self.word),)) for n in range(0, value.type.lanes, self.word)]
        if self.is_skewed:
            words = self._straight(words, at, elem.bits)
        else:
            for edge in reversed(self.edges):
                words = edge.back(words)
        words = [self._masked(word, n * self.word) for n, word in enumerate(words)]
        return Pack(vector(elem, self.count), tuple(words))

    def _straight(self, brought: Sequence[Expr], at: Expr, bits: int) -> list[Expr]:
        """The words of a run that begins within one of those that were brought, and was displaced."""
        zero = const(0, u32)
        moved = plus(self.varying, const(self.fixed)) if self.fixed else self.varying
        begin = at * 8 - moved * bits if moved is not ZERO else at * 8
        amount = (begin & 31).to(u32)
        padded = [zero, *brought, zero]
        aligned: list[Expr] = [Fused("align", high, low, amount) for low, high in pairwise(padded)]
        nothing: list[Expr] = [zero] * len(padded)
        aligned = [*nothing, *aligned, *nothing]
        first, count = len(padded) + 1, self.count // self.word
        words = ((at & WORD - 1) * 8 - moved * bits) >> 5
        found = aligned[first + self.steps[0] :][:count]
        for step in self.steps[1:]:
            found = _chosen(words >= step, aligned[first + step :][:count], found)
        return found

    def _masked(self, word: Expr, first: int) -> Expr:
        """A word without those of its elements that do not exist."""
        if isinstance(word, Const):
            return word
        bits, mask = 32 // self.word, const(0xFFFFFFFF, u32)
        kept: Expr = mask
        for n in range(self.word):
            if (tests := self.missing.get(first + n)) is None:
                continue
            without = const(0xFFFFFFFF ^ ((1 << bits) - 1 << n * bits), u32)
            kept = kept & (select(reduce(and_, tests), mask, without) if tests else without)
        return word if kept is mask else word & kept


def _moved(words: Sequence[Expr], by: int) -> list[Expr]:
    """Words so many places further up, or down, zeros behind them."""
    zero = const(0, u32)
    return [words[n - by] if 0 <= n - by < len(words) else zero for n in range(len(words))]


def _chosen(condition: Expr, these: Sequence[Expr], others: Sequence[Expr]) -> list[Expr]:
    return [a if a is b else select(condition, a, b) for a, b in zip(these, others)]


@frozen
class _Cut:
    """What edges leave of the messages at some positions, edge by edge."""

    amounts: tuple[tuple[int, ...], ...]  #: elements by which they are displaced, none by an edge that cuts no word off
    grain: int  #: elements by which they are displaced at a time
    steps: tuple[int, ...]
    #: The elements that may not exist though some of their word do, with the edges that cut them; none if never.
    missing: Mapping[int, tuple[Halo, ...]]
    outside: tuple[Halo, ...]  #: those outside which some messages are as a whole


@lru_cache(maxsize=2**8)
def _cut(edges: tuple[Halo, ...], dims: tuple[tuple[str, range], ...], count: int, word: int, is_skewed: bool) -> _Cut:
    """What they leave of messages of `count` elements at all combinations of positions along dims."""
    axes = np.meshgrid(*(np.asarray(places, np.int64) for _, places in dims), indexing="ij")
    grid = {name: axis for (name, _), axis in zip(dims, axes)}
    shape = axes[0].shape
    begins: list[_Ints] = [sum((grid[n] * c for n, c in h.terms if n in grid), np.full(shape, h.const)) for h in edges]
    there = np.ones(shape, np.bool_)
    for h, begin in zip(edges, begins):
        there &= (begin > -count) & (begin < h.size)
    grain = 1 if is_skewed else word  # what is shifted anyway can be displaced by any number
    amounts: list[tuple[int, ...]] = []
    moved: _Ints = np.zeros(shape, np.int64)
    for h, begin in zip(edges, begins):
        now = begin + moved
        before, behind = (np.maximum(n, 0) // grain * grain for n in (-now, now + count - h.size))
        found = np.unique((before - behind)[there])
        amounts.append(tuple(found.tolist()) if found.any() else ())
        if amounts[-1]:
            moved = moved + before - behind
    steps = {int(n - by) // word for by in np.unique(moved[there]) for n in range(word)} or {0}
    cuts = [list(_parts(h.size, begin, there, count, word, is_skewed)) for h, begin in zip(edges, begins)]
    missing: dict[int, tuple[Halo, ...]] = {}
    for n in range(count):
        cutting = [(h, cut[n]) for h, cut in zip(edges, cuts) if cut[n].any()]
        if cutting:
            is_never = any(bool((cut | ~there).all()) for _, cut in cutting)
            missing[n] = () if is_never else tuple(h for h, _ in cutting)
    outside = tuple(h for h, begin in zip(edges, begins) if ((begin <= -count) | (begin >= h.size)).any())
    return _Cut(tuple(amounts), grain, tuple(sorted(steps)), missing, outside)


def _parts(
    size: int, begin: _Ints, there: npt.NDArray[np.bool_], count: int, word: int, is_skewed: bool
) -> Iterator[npt.NDArray[np.bool_]]:
    """Of each element, where it does not exist along an edge though some of its word do."""
    for first in range(0, count, word):
        inside = [(begin + n >= 0) & (begin + n < size) for n in range(first, first + word)]
        # Of aligned words, none is brought that does not exist; what is shifted is brought whole.
        brought = there if is_skewed else there & np.any(inside, 0)
        for each in inside[: count - first]:
            yield brought & ~each


class Runs:
    """The runs of an access, by the register with which their messages begin."""

    def __init__(self, access: TileAccess, positions: Positions) -> None:
        view, axis = access.view, access.view.unit_axis
        assert axis is not None
        together = access.layout.contiguous(access.layout.dims[axis])
        count = self.count = view.run(together)
        self.held = view.held(count, together)  #: elements that messages bring of a run
        self.is_skewed = self.held > count
        self.access, self.positions, self.axis = access, positions, axis
        self.inner = view.axes[axis][-1]
        self.edges = view.edges(count)
        self.word = max(1, WORD // view.memory.elem.bytes)
        names = {name for h in self.edges for name, _ in h.terms}
        self.others = [d for dims in view.axes for d in dims if d.name in names and d is not self.inner]
        self.outermost = {dims[0].name for dims in view.axes}

    def at(self, register: int) -> dict[str, Position]:
        """The position along each dim, that along the unit dim without what is known of where tiles begin."""
        found, inner = self.positions.of(register), self.inner
        if (place := self._place(register)) is not None:
            found[inner.name] = Position(ZERO, ZERO, place)
        return found

    def _place(self, register: int) -> int | None:
        """Where along the unit dim a message begins, if that is the same in all lanes and blocks."""
        name, layout = self.access.layout.dims[self.axis], self.access.layout
        spread = any(d.dim == name and d.space is not Space.REGISTER for d in layout.digits)
        if spread or self.positions.multiples[self.axis] % self.inner.padded:
            return None
        fixed: int = layout.partial(Space.REGISTER, register)[name]
        return fixed % self.inner.padded

    def of(self, register: int) -> Run:
        """The message that begins there."""
        at, place = self.at(register), self._place(register)
        starts = range(0, self.inner.padded, self.count) if place is None else range(place, place + 1)
        dims = ((self.inner.name, starts), *((d.name, range(d.size)) for d in self.others))
        cut = _cut(self.edges, dims, self.count, self.word, self.is_skewed)
        edges: list[_Edge] = []
        by: Expr = ZERO
        for h, amounts in zip(self.edges, cut.amounts):
            if amounts:
                start = plus(self._coordinate(h, at), by)
                edges.append(_Edge(start, start + (self.count - h.size), amounts, cut.grain))
                by = plus(by, edges[-1].displacement)
        missing = {
            n: tuple((self._coordinate(h, at) + n).to(u32) < const(h.size, u32) for h in cutting)
            for n, cutting in cut.missing.items()
        }
        outside = tuple(
            (self._coordinate(h, at) + (self.count - 1)).to(u32) < const(h.size + self.count - 1, u32)
            for h in self.edges
            if h in cut.outside or self._is_open(h)
        )
        return Run(self.count, self.word, tuple(edges), missing, outside, self.is_skewed, cut.steps)

    def _is_open(self, h: Halo) -> bool:
        """Whether positions along an edge go on beyond those that are looked at."""
        return any(name in self.outermost and name != self.inner.name for name, _ in h.terms)

    def _coordinate(self, h: Halo, at: Mapping[str, Position]) -> Expr:
        total: Expr = const(h.const)
        for name, coef in h.terms:
            if name in at:
                total = plus(total, scale(at[name].value, coef))
        return total
