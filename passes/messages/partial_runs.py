"""Runs: messages of which only a part may exist, and the trimming to what exists.

A run that crosses an edge is displaced by whole words, forwards or backwards, so that all its words exist: no message
touches memory outside its buffer. Behind the load the words are moved back to their places, with zeros shifted in, and
elements of partly existing words are masked. Which runs an edge cuts, and by how many words, is found by enumerating
all positions; usually it is one number of words, so that one condition suffices.
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
from convgen.passes.messages.access import Position, TileAccess, coordinate
from convgen.passes.messages.linear import WORD, ZERO, Halo, add_exprs
from convgen.passes.messages.positions import Positions

_Ints = npt.NDArray[np.int64]


@frozen
class _Edge:
    """The effect of one halo on a message: by how many elements it is displaced, and where."""

    start: Expr  #: coordinate of the message's first element, after the displacements of earlier edges
    end: Expr  #: elements by which the message, so displaced, extends beyond the last existing one
    amounts: tuple[int, ...]  #: elements; all displacements that occur, forwards positive
    word: int  #: elements; granule of displacements

    @property
    def is_fixed(self) -> bool:
        return len(self.amounts) == 1

    @property
    def sides(self) -> Iterator[tuple[int, Expr, tuple[int, ...]]]:
        """Yield (direction, elements of the message outside, displacements in that direction)."""
        for sign, beyond in ((1, const(0) - self.start), (-1, self.end)):
            if amounts := tuple(sign * a for a in self.amounts if sign * a > 0):
                yield sign, beyond, amounts

    @property
    def displacement(self) -> Expr:
        """Return the displacement in elements."""
        if self.is_fixed:
            return const(self.amounts[0])
        total: Expr = ZERO
        for sign, beyond, amounts in self.sides:
            if len(amounts) == 1:
                total = add_exprs(total, select(beyond >= self.word, const(sign * amounts[0]), 0))
            else:
                total = add_exprs(total, _words(beyond, amounts, self.word) * (sign * self.word))
        return total

    def moved_back(self, words: list[Expr]) -> list[Expr]:
        """Return the words of a displaced message moved back to their places."""
        if self.is_fixed:
            return _moved(words, self.amounts[0] // self.word)
        for sign, beyond, amounts in self.sides:
            steps = sorted(amount // self.word for amount in amounts)
            bits = range(steps[-1].bit_length())
            if len(steps) <= len(bits):
                displaced, reached = words, 0
                for step in steps:
                    words = _selected(beyond >= reached + self.word, _moved(displaced, sign * step), words)
                    reached = step * self.word
                continue
            by = _words(beyond, amounts, self.word)
            for bit in bits:
                words = _selected((by >> bit & 1) > 0, _moved(words, sign << bit), words)
        return words


def _words(beyond: Expr, amounts: Sequence[int], word: int) -> Expr:
    """Return the words of a message that lie outside, given its elements outside and the displacements that occur."""
    return minimum(maximum(beyond, 0), max(amounts)) // word


@frozen
class Run:
    """One message: its edges, and the elements to be masked after moving back."""

    count: int  #: elements
    word: int  #: elements of a word
    edges: tuple[_Edge, ...]
    #: elements that may not exist though their word does: existence tests, () if they never exist
    missing: Mapping[int, tuple[Expr, ...]]
    outside: tuple[Expr, ...]  #: conditions; if one fails, no element of the message exists
    is_skewed: bool  #: whether the message may begin inside a word
    #: Whole words by which a skewed message may be ahead of its place, besides a part of a word.
    steps: tuple[int, ...]

    @property
    def fixed(self) -> int:
        """Return the displacement in elements that all lanes share."""
        return sum(e.amounts[0] for e in self.edges if e.is_fixed)

    @property
    def moves_back(self) -> bool:
        """Return whether the message may be displaced backwards."""
        return any(min(e.amounts) < 0 for e in self.edges)

    @property
    def varying(self) -> Expr:
        """Return the further displacement in elements, which may differ between lanes."""
        total: Expr = ZERO
        for edge in self.edges:
            total = total if edge.is_fixed else add_exprs(total, edge.displacement)
        return total

    def trimmed(self, value: Expr, at: Expr) -> Expr:
        """Return the message's elements, trimmed, from words loaded at byte `at` (or at the word containing it)."""
        elem = value.type.elem
        words: list[Expr] = [Pack(u32, (Slice(value, n, self.word),)) for n in range(0, value.type.lanes, self.word)]
        if self.is_skewed:
            words = self._aligned(words, at, elem.bits)
        else:
            for edge in reversed(self.edges):
                words = edge.moved_back(words)
        words = [self._masked(word, n * self.word) for n, word in enumerate(words)]
        return Pack(vector(elem, self.count), tuple(words))

    def _aligned(self, loaded: Sequence[Expr], at: Expr, bits: int) -> list[Expr]:
        """Return the words of a displaced run that begins inside a loaded word."""
        zero = const(0, u32)
        moved = add_exprs(self.varying, const(self.fixed)) if self.fixed else self.varying
        begin = at * 8 - moved * bits if moved is not ZERO else at * 8
        amount = (begin & 31).to(u32)
        padded = [zero, *loaded, zero]
        aligned: list[Expr] = [Fused("align", high, low, amount) for low, high in pairwise(padded)]
        nothing: list[Expr] = [zero] * len(padded)
        aligned = [*nothing, *aligned, *nothing]
        first, count = len(padded) + 1, self.count // self.word
        words = ((at & WORD - 1) * 8 - moved * bits) >> 5
        result = aligned[first + self.steps[0] :][:count]
        for step in self.steps[1:]:
            result = _selected(words >= step, aligned[first + step :][:count], result)
        return result

    def _masked(self, word: Expr, first: int) -> Expr:
        """Return a word with elements that do not exist cleared."""
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
    """Return words moved up by `by` places (down if negative), zeros shifted in."""
    zero = const(0, u32)
    return [words[n - by] if 0 <= n - by < len(words) else zero for n in range(len(words))]


def _selected(condition: Expr, a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
    return [p if p is q else select(condition, p, q) for p, q in zip(a, b)]


@frozen
class _EdgeEffects:
    """The effect of all edges on the messages at some positions."""

    amounts: tuple[tuple[int, ...], ...]  #: elements; displacements for each edge, () if an edge never cuts off a word
    grain: int  #: elements; granule of displacements
    steps: tuple[int, ...]
    #: Elements that may not exist though part of their word does, with the edges that cut them; () if they never exist.
    missing: Mapping[int, tuple[Halo, ...]]
    outside: tuple[Halo, ...]  #: edges beyond which some messages lie as a whole


@lru_cache(maxsize=2**8)
def _edge_effects(
    edges: tuple[Halo, ...], dims: tuple[tuple[str, range], ...], count: int, word: int, is_skewed: bool
) -> _EdgeEffects:
    """Return the effect of edges on messages of `count` elements at all combinations of positions along dims."""
    axes = np.meshgrid(*(np.asarray(places, np.int64) for _, places in dims), indexing="ij")
    grid = {name: axis for (name, _), axis in zip(dims, axes)}
    shape = axes[0].shape
    begins: list[_Ints] = [sum((grid[n] * c for n, c in h.terms if n in grid), np.full(shape, h.const)) for h in edges]
    exists = np.ones(shape, np.bool_)  # at least one element of the message
    for h, begin in zip(edges, begins):
        exists &= (begin > -count) & (begin < h.size)
    grain = 1 if is_skewed else word  # shifted messages can be displaced by any number of elements
    amounts: list[tuple[int, ...]] = []
    moved: _Ints = np.zeros(shape, np.int64)
    for h, begin in zip(edges, begins):
        start = begin + moved
        before, behind = (np.maximum(n, 0) // grain * grain for n in (-start, start + count - h.size))  # outside
        distinct = np.unique((before - behind)[exists])
        amounts.append(tuple(distinct.tolist()) if distinct.any() else ())
        if amounts[-1]:
            moved = moved + before - behind
    steps = {int(n - by) // word for by in np.unique(moved[exists]) for n in range(word)} or {0}
    absent = [list(_absent(h.size, begin, exists, count, word, is_skewed)) for h, begin in zip(edges, begins)]
    missing: dict[int, tuple[Halo, ...]] = {}
    for n in range(count):
        cutting = [(h, places[n]) for h, places in zip(edges, absent) if places[n].any()]
        if cutting:
            is_never = any(bool((places | ~exists).all()) for _, places in cutting)
            missing[n] = () if is_never else tuple(h for h, _ in cutting)
    outside = tuple(h for h, begin in zip(edges, begins) if ((begin <= -count) | (begin >= h.size)).any())
    return _EdgeEffects(tuple(amounts), grain, tuple(sorted(steps)), missing, outside)


def _absent(
    size: int, begin: _Ints, exists: npt.NDArray[np.bool_], count: int, word: int, is_skewed: bool
) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield, for each element, the positions at which it does not exist along an edge though its word is loaded."""
    for first in range(0, count, word):
        inside = [(begin + n >= 0) & (begin + n < size) for n in range(first, first + word)]
        # An aligned word is loaded only if part of it exists; shifted words are all loaded.
        is_loaded = exists if is_skewed else exists & np.any(inside, 0)
        for is_inside in inside[: count - first]:
            yield is_loaded & ~is_inside


class Runs:
    """The runs of an access, by the first register of their messages."""

    def __init__(self, access: TileAccess, positions: Positions) -> None:
        view, axis = access.view, access.view.unit_axis
        assert axis is not None
        together = access.layout.contiguous(access.layout.dims[axis])
        count = self.count = view.message_elements(together)
        self.loaded = view.loaded_elements(count, together)  #: elements; loaded by the messages of a run
        self.is_skewed = self.loaded > count
        self.access, self.positions, self.axis = access, positions, axis
        self.inner = view.axes[axis][-1]
        self.edges = view.edges(count)
        self.word = max(1, WORD // view.memory.elem.bytes)
        names = {name for h in self.edges for name, _ in h.terms}
        self.others = [d for dims in view.axes for d in dims if d.name in names and d is not self.inner]
        self.outermost = {dims[0].name for dims in view.axes}

    def at(self, register: int) -> dict[str, Position]:
        """Return the position along each dim; along the unit dim a number if all lanes and blocks share it."""
        found, inner = self.positions.of(register), self.inner
        if (place := self._place(register)) is not None:
            found[inner.name] = Position(ZERO, ZERO, place)
        return found

    def _place(self, register: int) -> int | None:
        """Return the message's start along the unit dim, if it is one number in all lanes and blocks."""
        name, layout = self.access.layout.dims[self.axis], self.access.layout
        spread = any(d.dim == name and d.space is not Space.REGISTER for d in layout.digits)
        if spread or self.positions.multiples[self.axis] % self.inner.padded:
            return None
        fixed: int = layout.partial(Space.REGISTER, register)[name]
        return fixed % self.inner.padded

    def of(self, register: int) -> Run:
        """Return the message that begins at `register`."""
        at, place = self.at(register), self._place(register)
        starts = range(0, self.inner.padded, self.count) if place is None else range(place, place + 1)
        dims = ((self.inner.name, starts), *((d.name, range(d.size)) for d in self.others))
        effects = _edge_effects(self.edges, dims, self.count, self.word, self.is_skewed)
        edges: list[_Edge] = []
        by: Expr = ZERO
        for h, amounts in zip(self.edges, effects.amounts):
            if amounts:
                start = add_exprs(coordinate(h.const, h.terms, at), by)
                edges.append(_Edge(start, start + (self.count - h.size), amounts, effects.grain))
                by = add_exprs(by, edges[-1].displacement)
        missing = {
            n: tuple((coordinate(h.const, h.terms, at) + n).to(u32) < const(h.size, u32) for h in cutting)
            for n, cutting in effects.missing.items()
        }
        outside = tuple(
            (coordinate(h.const, h.terms, at) + (self.count - 1)).to(u32) < const(h.size + self.count - 1, u32)
            for h in self.edges
            if h in effects.outside or self._is_open(h)
        )
        return Run(self.count, self.word, tuple(edges), missing, outside, self.is_skewed, effects.steps)

    def _is_open(self, h: Halo) -> bool:
        """Return whether positions along an edge continue beyond those enumerated."""
        return any(name in self.outermost and name != self.inner.name for name, _ in h.terms)
