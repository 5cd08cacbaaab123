"""Masks: the existence of elements, as bit words and as conditions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from itertools import accumulate
from operator import and_, or_

from convgen.ir.expr import Expr, const, eq, lift, maximum, minimum, select
from convgen.ir.layout.digits import times
from convgen.ir.record import frozen
from convgen.ir.simplify.extents import divisor, lower_bound, never_less
from convgen.ir.sizes import Extent
from convgen.ir.types import bool_, s32, u32
from convgen.passes.messages.access import Position, TileAccess, coordinate, divide
from convgen.passes.messages.linear import ZERO, Halo, LinearDim

#: A varying offset beyond any surface; adding any uniform and immediate offset keeps it out of range.
OUT_OF_RANGE = -(1 << 31)

_K = 1  #: the reduced axis (K), if a view has more than one axis

#: Most positions of a dimension whose halo is stored as one bit each (shifts must stay below 32).
MASK_BITS = 31

ONES = const(0xFFFFFFFF, u32)
_WORD_BITS = 32
_TOP = const(1 << _WORD_BITS - 1, u32)
TRUE = const(True, bool_)


#: Dims whose position may leave its range, and for each whether the surface's bounds check then catches the offset. If
#: it does, the whole position must be in the varying offset, the only part that is bounds-checked.
Leaving = Sequence[tuple[LinearDim, bool]]


@frozen
class Bits:
    """A word whose bit 31-n is set if there is no element at place `n` of the first `count`, and the place."""

    word: Expr
    place: Expr
    count: int

    @property
    def at_sign(self) -> Expr:
        """Return the word shifted so that its sign bit is the bit of the place."""
        return self.word << self.place


Tests = tuple[list[Bits], list[Expr]]  #: the existence of an element: bit words and conditions


class Masks:
    """The existence tests of one access. `is_moved`: its surface does not begin with the view.

    For `trimmed` halos only messages that are outside as a whole are tested: loads trim the rest.
    """

    def __init__(self, access: TileAccess, *, is_moved: bool, trimmed: Collection[Halo] = ()) -> None:
        self.trimmed = trimmed
        self.access, self.view, self.bounds, self.is_moved = access, access.view, access.bounds, is_moved

    def tests(self, positions: Mapping[str, Position], leaving: Leaving, outside: Sequence[Expr] = ()) -> Tests:
        """Return the tests for the existence of an element; `outside` are conditions of a whole message."""
        words: list[Bits] = []
        conditions = [*outside]
        tested: list[str] = []
        for halo in self.view.halos:
            if halo in self.trimmed:
                continue
            tap = self._tap(halo, positions)
            if tap is None:
                conditions.append(coordinate(halo.const, halo.terms, positions).to(u32) < const(halo.size, u32))
            else:
                tested.append(tap[0].name)
                words.append(self._halo_word(halo, *tap, positions))
        for dim, value in ((d, positions[d.name].value) for d, is_caught in leaving if not is_caught):
            if dim.exact is None and self._fits_word(value) and not self.access.is_invariant_or_lane(value):
                words += [] if dim.name in tested else [self._bits(ONES >> const(dim.size, u32), value)]
            elif self.bounds(value)[0] < 0:
                conditions.append(value.to(u32) < lift(dim.extent, ZERO).to(u32))
            else:
                conditions.append(self._inside(dim, positions[dim.name]))
        return words, conditions

    def _inside(self, dim: LinearDim, at: Position) -> Expr:
        """Return whether a position exists; uniformly if lanes stay within a run that exists, or not, as a whole."""
        if dim.exact is not None:
            run = math.gcd(divisor(at.uniform, self.access.values), divisor(dim.exact, {}))
            low, high = self.bounds(at.varying + at.const)
            if low >= 0 and high < run:
                return at.uniform < dim.exact
        return at.value < dim.extent

    def mask(self, words: list[Bits], conditions: list[Expr]) -> Expr:
        """Return the condition that the element exists. Loop-invariant conditions come first."""
        tests = sorted(conditions, key=lambda c: not self.access.is_invariant_or_lane(c))
        tests += map(_none_is_set, _packed(words))
        return _all(tests) if tests else TRUE

    def masked(self, offset: Expr, words: list[Bits], conditions: list[Expr]) -> Expr:
        """Return `offset`, out of range in lanes without an element. Loop-invariant conditions come first."""
        invariant = [c for c in conditions if self.access.is_invariant_or_lane(c)]
        changing = [c for c in conditions if not self.access.is_invariant_or_lane(c)]
        signs = [bits.at_sign for bits in words]
        if invariant and not self.access.is_invariant_or_lane(offset):
            signs.append(select(_all(invariant), const(0, u32), _TOP))
        else:
            for condition in invariant:
                offset = select(condition, offset, OUT_OF_RANGE)
        if signs:
            offset = (reduce(or_, signs) & _TOP).to(s32) | offset
        return select(_all(changing), offset, OUT_OF_RANGE) if changing else offset

    def leaving(self, positions: Mapping[str, Position]) -> Leaving:
        """Return the dims whose position may leave its range, and whether the bounds check catches it."""
        dims = ((n, d) for dims in self.view.axes for n, d in enumerate(dims))
        return [(d, self._is_caught(d, positions)) for n, d in dims if self._may_leave(d, n, positions[d.name])]

    def _may_leave(self, d: LinearDim, number: int, at: Position) -> bool:
        """Return whether dim number `number` of its axis may leave its range."""
        if number and d.size == d.padded:
            return False  # the dim is a remainder, always in range
        low, high = self.bounds(at.value)
        return low < 0 or high >= lower_bound(d.extent)

    def _is_caught(self, d: LinearDim, positions: Mapping[str, Position]) -> bool:
        """Return whether an offset past a dim's end is past the surface's, if the whole position is varying."""
        # A displaced message may begin below its position.
        is_surface = not (self.access.facts.flat or self.is_moved or self.trimmed)
        at = positions[d.name]
        low, high = self.bounds(at.value)
        if not is_surface or d.reversed or low < 0:
            return False
        begin = self._begin(d, positions)
        last = self.view.memory.length - begin
        fits = isinstance(d.stride, int) and isinstance(last, int) and high * d.stride + last < -OUT_OF_RANGE
        alone = begin == self.view.base and self._is_alone(at)
        return (alone or fits) and never_less(times(d.stride, d.extent), last)

    def _is_alone(self, at: Position) -> bool:
        """Return whether the whole position is in the varying offset anyway."""
        return at.uniform is ZERO or self.access.is_invariant(at.uniform)

    def _begin(self, d: LinearDim, positions: Mapping[str, Position]) -> Extent:
        """Return the first byte, in varying offsets, of the view's elements at a dim's first position."""
        checked = all(self._is_alone(positions[name]) for name in self._counting if name in positions)
        return self._inside_halos if checked and d.name not in self._counting else self.view.base

    @cached_property
    def _counting(self) -> frozenset[str]:
        """Return the dims that occur in halos' coordinates."""
        return frozenset(name for halo in self.view.halos for name, _ in halo.terms)

    @cached_property
    def _inside_halos(self) -> Extent:
        """Return the first byte of the view inside its halos, which are tested independently of the dims.

        Returns the view's base if a step of a halo's coordinate is not one number of bytes for each of its dims.
        """
        dims = [each for axis in self.view.axes for each in axis]
        begin, strides = self.view.base, {each.name: each.stride for each in dims}
        apart = len(self._counting) == sum(len(halo.terms) for halo in self.view.halos)
        if not apart or any(each.reversed for each in dims):
            return begin
        for halo in self.view.halos:
            steps = {
                divmod(stride, coef) if isinstance(stride, int) and coef > 0 else (0, 1)
                for name, coef in halo.terms
                if (stride := strides.get(name)) is not None
            }
            if len(steps) != 1 or any(rest for _, rest in steps):
                return self.view.base
            begin = begin - halo.const * steps.pop()[0]
        return begin

    def _tap(self, halo: Halo, positions: Mapping[str, Position]) -> tuple[LinearDim, int] | None:
        """Return the only dim along K in a halo's coordinate, and its step; None if one bit a tap does not suffice.

        Further axes are a batch, or filter taps with sums of their own: these change rarely, so their conditions need
        no bit words.
        """
        moving = {d.name: d for d in self.view.axes[: _K + 1][-1]}
        taps = [(moving[n], c) for n, c in halo.terms if n in moving and n in positions]
        if len(taps) != 1 or taps[0][1] < 1:
            return None
        dim, step = taps[0]
        return (dim, step) if dim.size <= MASK_BITS and self._fits_word(positions[dim.name].value) else None

    def _fits_word(self, position: Expr) -> bool:
        """Return whether a word has a bit for each value of a position."""
        low, high = self.bounds(position)
        return low >= 0 and high <= MASK_BITS

    def _bits(self, word: Expr, position: Expr) -> Bits:
        """Return the word with a position that fits it."""
        return Bits(word, position.to(u32), self.bounds(position)[1] + 1)

    def _halo_word(self, halo: Halo, tap: LinearDim, step: int, positions: Mapping[str, Position]) -> Bits:
        """Return a loop-invariant word with a bit for each tap that is outside or beyond its dim, and the tap."""
        terms = [(n, c) for n, c in halo.terms if n in positions and n != tap.name]
        origin, place = coordinate(halo.const, terms, positions), positions[tap.name].value
        places = self.bounds(place)[1] + 1
        return self._bits(outside(origin, *self.bounds(origin), step, tap.size, halo.size, places), place)


@lru_cache(maxsize=2**8)
def outside(origin: Expr, low: int, high: int, step: int, taps: int, size: int, places: int) -> Expr:
    """Return a word with bit 31-t set if tap t is outside or does not exist, for t below `places`.

    The coordinate of tap t is `origin` + step * t, with `origin` in [low, high]; it is inside from 0 to below `size`.
    """
    return _by_table(origin, low, high, taps, size, places) if step == 1 else _by_ends(origin, step, taps, size)


def _by_table(origin: Expr, low: int, high: int, taps: int, size: int, places: int) -> Expr:
    """Build the word by shifting a constant with one bit for each possible coordinate to the coordinate of tap 0.

    If the coordinates exceed a word, all origins for which every tap is inside count as one.
    """
    skipped, first = 0, low
    if high - low + taps > _WORD_BITS:
        skipped, first = size - taps, min(low, 0)
        if max(high - skipped, 0) - first + taps > _WORD_BITS:
            return _by_ends(origin, 1, taps, size)
    if not skipped:
        place = origin - first
    elif high <= skipped:
        place = minimum(origin - first, -first)
    elif first == 0:
        place = maximum(origin - skipped, 0)
    else:
        place = origin - first - minimum(maximum(origin, 0), skipped)
    empty = (n for n in range(_WORD_BITS) if not 0 <= first + n < size - skipped)
    word = const(_word(empty), u32) << place.to(u32)
    return word | const(_word(range(taps, places)), u32) if places > taps else word


def _word(places: Iterable[int]) -> int:
    """Return a word with bit 31-n set for each place n."""
    return sum(1 << _WORD_BITS - 1 - n for n in places)


def _by_ends(origin: Expr, step: int, taps: int, size: int) -> Expr:
    """Build the word from ones before the first inside tap and behind the last one."""
    first = minimum(maximum(divide(const(step - 1) - origin, step), 0), taps)
    end = minimum(maximum(divide(const(size - 1) - origin, step) + 1, 0), taps)
    return ~(ONES >> first.to(u32)) | (ONES >> end.to(u32))


def _packed(words: Iterable[Bits]) -> Sequence[Sequence[Bits]]:
    """Return the words in groups that fit into one word."""
    packs: list[list[Bits]] = []
    for bits in words:
        for pack in packs:
            if sum(each.count for each in pack) + bits.count <= _WORD_BITS:
                pack.append(bits)
                break
        else:
            packs.append([bits])
    return packs


def _none_is_set(pack: Sequence[Bits]) -> Expr:
    """Return whether no word has its bit set at its place, as one test of all words packed side by side.

    The places are mostly uniform and equal for many accesses; the packed words are loop-invariant.
    """
    if len(pack) == 1:
        return eq(pack[0].word & _TOP >> pack[0].place, 0)
    begins = list(accumulate((bits.count for bits in pack), initial=0))
    words = ((bits.word & ~(ONES >> const(bits.count, u32))) >> begin for bits, begin in zip(pack, begins))
    asked = ((_TOP >> begin) >> bits.place for bits, begin in zip(pack, begins))
    return eq(reduce(or_, words) & reduce(or_, asked), 0)


def _all(conditions: Sequence[Expr]) -> Expr:
    return reduce(and_, conditions)
