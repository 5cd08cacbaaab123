"""IREE's NestedLayout: a vector distributed over subgroups, batches, outers, threads and elements, in digits.

Each dimension of the vector has five digits, the levels, innermost first: `element`, `thread`, `outer`, `batch` and
`subgroup`. Elements, outers and batches are registers of a thread. A thread's index is a digit of its number in the
workgroup, not of its lane, and a subgroup's index is a digit of `thread // subgroup_size`:

    index[i] = number // stride[i] % tile[i]

All threads with an element's indices own it: threads whose numbers have equal indices are replicas. Operations on a
layout work on its digits; those that read levels back from digits explain why a result may have none.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

import attrs

from convgen.ir.error import UserError
from convgen.ir.layout import attribute
from convgen.ir.layout.digits import Digit, Digits, Index, Space, Straddles, stacked
from convgen.ir.layout.distribution import Distribution
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.nested_levels import LEVELS, REGISTER_LEVELS, STRIDED_LEVELS, fields_of, levels_of
from convgen.ir.layout.tags import LETTERS
from convgen.ir.record import as_dict, frozen

_NAME = "iree_vector_ext.nested_layout"
_MOST = 1 << 24  #: positions of a vector; also an upper bound of strides
_ANY = 1 << 48  #: exceeds any digit's stride times its size

#: levels in the order of packed shapes
_PACKED_LEVELS = ("subgroup", "batch", "outer", "thread", "element")

Ints = tuple[int, ...]


@frozen
class Place:
    """The place of an element: an index along each dimension in every level."""

    subgroup: Ints
    batch: Ints
    outer: Ints
    thread: Ints
    element: Ints


def _ints(values: Sequence[int]) -> Ints:
    return tuple(values)


def _names(rank: int) -> tuple[str, ...]:
    if rank > len(LETTERS):
        raise UserError(f"given a layout of {rank} dimensions, wanted at most {len(LETTERS)}")
    return tuple(LETTERS[:rank])


@attrs.frozen(cache_hash=True)  # whose converters type checkers know
class NestedLayout:
    """A vector's distribution: one size a dimension for each level, and strides of subgroups and threads.

    Dimension i has `subgroup_tile[i] * batch_tile[i] * outer_tile[i] * thread_tile[i] * element_tile[i]` positions. A
    tile of 1 gets the stride 0, so that equal layouts compare equal.

    Raises UserError if fields differ in rank, sizes are not positive, or strides lose elements: a stride is 0 with a
    tile above 1, or is not a multiple of the positions that the smaller strides fill.
    """

    subgroup_tile: Ints = attrs.field(converter=_ints)
    batch_tile: Ints = attrs.field(converter=_ints)
    outer_tile: Ints = attrs.field(converter=_ints)
    thread_tile: Ints = attrs.field(converter=_ints)
    element_tile: Ints = attrs.field(converter=_ints)
    subgroup_strides: Ints = attrs.field(converter=_ints)
    thread_strides: Ints = attrs.field(converter=_ints)

    def __attrs_post_init__(self) -> None:
        _names(self.rank)
        for name, values in self._fields().items():
            if len(values) != self.rank:
                rank = f"given {name} of rank {len(values)}, wanted {self.rank} as of batch_tile"
                raise UserError(f"all fields must have the same rank as the layout: {rank}")
            least = 0 if name.endswith("_strides") else 1
            if not all(type(n) is int and least <= n < _MOST for n in values):
                raise UserError(f"given {name} {list(values)}, wanted integers from {least} and less than {_MOST}")
        if prod(self.shape) > _MOST:
            raise UserError(f"given a layout of {' x '.join(map(str, self.shape))}, wanted at most {_MOST} positions")
        for level in STRIDED_LEVELS:
            strides = tuple(0 if size == 1 else n for n, size in zip(self.strides(level), self.tile(level)))
            object.__setattr__(self, f"{level}_strides", strides)
            self._check_basis(level)

    def _check_basis(self, level: str) -> None:
        """Raise UserError unless each index of a level is a digit of the level's number."""
        given = f"given {level}_tile {list(self.tile(level))} and {level}_strides {list(self.strides(level))}"
        end = 1
        for stride, size, dim in sorted(zip(self.strides(level), self.tile(level), range(self.rank))):
            if size == 1:
                continue
            if stride == 0:
                raise UserError(
                    f"{level}: tile > 1 with stride 0 loses elements: {given}, wanted a stride from 1 at dim {dim}"
                )
            if stride % end:
                wanted = f"wanted a multiple of {end}, which the smaller strides fill, at dim {dim}"
                raise UserError(f"{level}: no delinearisation basis: {given}, {wanted}")
            end = stride * size

    # ------------------------------------------------------------ text

    @classmethod
    def parse(cls, text: str) -> NestedLayout:
        """Parse a layout from IREE's text; the name and the brackets may be left out. Raises UserError."""
        return cls(**attribute.read(text, _NAME, tuple(f.name for f in attrs.fields(cls))))

    def __str__(self) -> str:
        return attribute.written(_NAME, self._fields())

    def _fields(self) -> dict[str, Ints]:
        return as_dict(self, recurse=False)

    # ------------------------------------------------------------ shapes

    @property
    def rank(self) -> int:
        return len(self.batch_tile)

    @property
    def dims(self) -> tuple[str, ...]:
        """Return the names of the dimensions, as in memory tags."""
        return _names(self.rank)

    def tile(self, level: str) -> Ints:
        """Return the sizes of a level."""
        found: Ints = getattr(self, f"{level}_tile")
        return found

    def strides(self, level: str) -> Ints:
        """Return the strides of `subgroup` or `thread`."""
        found: Ints = getattr(self, f"{level}_strides")
        return found

    def _product(self, levels: Collection[str]) -> Ints:
        return tuple(map(prod, zip(*(self.tile(level) for level in levels))))

    @property
    def shape(self) -> Ints:
        """Return the vector's shape."""
        return self._product(LEVELS)

    @property
    def packed_shape(self) -> Ints:
        """Return the vector's shape by levels: all dimensions of subgroups, batches, outers, threads, elements."""
        return tuple(n for level in _PACKED_LEVELS for n in self.tile(level))

    @property
    def distributed_shape(self) -> Ints:
        """Return the shape of a thread's part: all dimensions of batches, outers, elements."""
        return self.batch_tile + self.outer_tile + self.element_tile

    @property
    def unpacked_shape(self) -> Ints:
        """Return the shape of a thread's part as a vector of the layout's rank."""
        return self._product(REGISTER_LEVELS)

    def check_shape(self, shape: Sequence[int | None], *, padded: bool = False) -> None:
        """Raise UserError unless a vector has the layout's shape; None stands for a dynamic size.

        With `padded`, a size may be smaller than the layout's.
        """
        if len(shape) != self.rank:
            raise UserError(f"Rank of vector ({len(shape)}) does not match rank of layout ({self.rank}).")
        for dim, (size, wanted) in enumerate(zip(shape, self.shape)):
            if size is not None and (size > wanted if padded else size != wanted):
                shown = "[" + ", ".join("?" if n is None else str(n) for n in shape) + "]"
                expected = f"Dimension expected by layout: {wanted} actual: {size}"
                raise UserError(f"Vector shape: {shown} does not match the layout ({self}) at dim {dim}. {expected}")

    # ------------------------------------------------------------ digits

    def _level(self, level: str) -> tuple[Digit, ...]:
        """Return the digits of a level, one a dimension; strides count the level's numbers."""
        if level in REGISTER_LEVELS:
            inner_first = list(zip(self.dims, self.tile(level)))[::-1]
            return stacked(level, inner_first)[::-1]
        return tuple(Digit(dim, n, level, s) for dim, n, s in zip(self.dims, self.tile(level), self.strides(level)))

    @property
    def levels(self) -> Digits:
        """Return the split of coordinates into a number for each level; registers run fastest along the last dim."""
        return Digits(self.dims, tuple(d for level in LEVELS for d in self._level(level)))

    @property
    def digits(self) -> Digits:
        """Return the split of coordinates into numbers of registers, threads and subgroups."""
        registers = stacked(Space.REGISTER, ((level, prod(self.tile(level))) for level in REGISTER_LEVELS))
        threads, subgroups = Digit("thread", _ANY, Space.THREAD, 1), Digit("subgroup", _ANY, Space.SUBGROUP, 1)
        return self.levels.then(Digits(LEVELS, (*registers, threads, subgroups)))

    def fragment(self, subgroup_size: int, dims: Sequence[str] = ()) -> Fragment:
        """Return the layout as a fragment over lanes; `dims` renames dimensions, registers follow `distributed_shape`.

        Raises UserError if a thread's index is not whole digits of its lane and subgroup.
        """
        split = Digit(Space.THREAD, subgroup_size, Space.LANE, 1), Digit(Space.THREAD, _ANY, Space.SUBGROUP, 1)
        lanes = Digits((Space.THREAD,), split)
        ends = [size * stride for size, stride in zip(self.thread_tile, self.thread_strides) if size > 1]
        try:
            digits = self.digits.then(lanes)
            whole = all(max(end, subgroup_size) % min(end, subgroup_size) == 0 for end in ends)
        except Straddles:
            whole = False
        if not whole:
            raise UserError(
                f"given thread_tile {list(self.thread_tile)} and thread_strides {list(self.thread_strides)}, wanted"
                f" indices that are digits of a lane of {subgroup_size} and of a subgroup"
            )
        if digits.overlap(Space.SUBGROUP):
            raise UserError(
                f"given {self} in subgroups of {subgroup_size}, wanted thread strides that do not overlap subgroups"
            )
        named = digits.renamed(dict(zip(self.dims, dims)))
        return Fragment(named.dims, named.digits)

    @classmethod
    def of(cls, fragment: Fragment, subgroup_size: int) -> NestedLayout:
        """Return the layout in which each thread holds the fragment's elements.

        Its registers have the fragment's order if levels can express it; else `Fragment.order_of` gives the
        permutation. Raises UserError if the fragment's digits are not levels.
        """
        return cls(**fields_of(levels_of(fragment, subgroup_size), f"given the fragment {fragment}"))

    # ------------------------------------------------------------ forward and inverse

    def coord(
        self,
        thread: Index,
        subgroup_size: int,
        batch: Sequence[Index] | None = None,
        outer: Sequence[Index] | None = None,
        element: Sequence[Index] | None = None,
    ) -> tuple[Index, ...]:
        """Return the coordinates of an element that a thread of the workgroup holds; missing indices are 0."""
        numbers: dict[str, Index] = {"thread": thread, "subgroup": thread // subgroup_size}
        for level, index in zip(("batch", "outer", "element"), (batch, outer, element)):
            if index is not None and self.rank:
                numbers[level] = Digits(self.dims, self._level(level)).place(dict(zip(self.dims, index)))[level]
        at = self.levels.coordinates(numbers)
        return tuple(at[dim] for dim in self.dims)

    def place(self, coord: Sequence[Index]) -> Place:
        """Return the index of an element in each level; `coord` must be in range."""
        numbers = self.levels.place(dict(zip(self.dims, coord)))

        def index(level: str) -> tuple[Index, ...]:
            at = Digits(self.dims, self._level(level)).coordinates({level: numbers.get(level, 0)})
            return tuple(at[dim] for dim in self.dims)

        return Place(*map(index, _PACKED_LEVELS))

    def on(self, subgroup_size: int, threads: int) -> Distribution:
        """Return the owners in a workgroup of `threads` threads; whether they suffice is not checked."""
        return Distribution(self.digits, threads, lambda n: {Space.THREAD: n, Space.SUBGROUP: n // subgroup_size})

    def check_workgroup(self, subgroup_size: int, threads: int) -> None:
        """Raise UserError unless these threads own all elements, and `subgroup_tile` divides their subgroups."""
        given = f"given {threads} threads in subgroups of {subgroup_size}"
        used, there = prod(self.subgroup_tile), -(-threads // subgroup_size)
        if threads % subgroup_size:
            raise UserError(f"{given}, wanted whole subgroups")
        if there % used:
            tile = list(self.subgroup_tile)
            raise UserError(f"{given}, wanted a multiple of the {used} subgroups of subgroup_tile {tile}")
        if not self.on(subgroup_size, threads).covers:
            raise UserError(f"{given}, wanted an owner for each element of {self}")

    def least_threads(self, subgroup_size: int) -> int:
        """Return the fewest threads that reach each index, in whole subgroups that `subgroup_tile` divides."""
        spans = {space: self.digits.span(space) for space in (Space.THREAD, Space.SUBGROUP)}
        subgroups = max(-(-spans[Space.THREAD] // subgroup_size), spans[Space.SUBGROUP])
        used = prod(self.subgroup_tile)
        return -(-subgroups // used) * used * subgroup_size

    # ------------------------------------------------------------ other layouts

    def _composed(self, map_: Digits, what: str) -> NestedLayout:
        """Return the layout of a vector whose coordinates `map_` splits into this layout's."""
        try:
            digits = map_.then(self.levels)
        except Straddles:
            raise UserError(f"{what} of {self}, wanted one that splits its levels into whole digits") from None
        return NestedLayout(**fields_of(digits, f"{what} of {self}"))

    def apply(self, results: Sequence[int | None]) -> NestedLayout:
        """Return the layout of a vector whose dimension i is this layout's dimension `results[i]` (an affine map).

        A result of None is a new dimension of one position.
        """
        if not all(n is None or 0 <= n < self.rank for n in results):
            raise UserError(
                f"given an affine map to {list(results)}, wanted dimensions of a layout of rank {self.rank}"
            )
        dims = _names(len(results))
        named = [(dim, n) for dim, n in zip(dims, results) if n is not None]
        digits = tuple(Digit(dim, self.shape[n], self.dims[n], 1) for dim, n in named)
        return self._composed(Digits(dims, digits), f"given an affine map to {list(results)}")

    def project(self, dropped: Collection[int]) -> NestedLayout:
        """Return the layout without these dimensions."""
        if not set(dropped) <= set(range(self.rank)):
            raise UserError(f"given dimensions {sorted(dropped)}, wanted some of a layout of rank {self.rank}")
        return self.apply([n for n in range(self.rank) if n not in dropped])

    def permute(self, permutation: Sequence[int]) -> NestedLayout:
        """Return the layout whose dimension i is this layout's dimension `permutation[i]`."""
        if sorted(permutation) != list(range(self.rank)):
            raise UserError(f"given {list(permutation)}, wanted a permutation of {self.rank} dimensions")
        return self.apply(permutation)

    def reshape(self, shape: Sequence[int]) -> NestedLayout:
        """Return the layout of the vector reshaped, in row-major order.

        Raises UserError unless, along each new dimension, levels go from element to subgroup and strides continue.
        """
        if prod(shape) != prod(self.shape) or min(shape, default=1) < 1:
            raise UserError(f"given the shape {list(shape)}, wanted {prod(self.shape)} positions as of {self}")
        what = f"given the shape {list(shape)}"
        dims = _names(len(shape))
        new = Digits(dims, stacked("flat", list(zip(dims, shape))[::-1]))
        old = Digits(self.dims, stacked("flat", list(zip(self.dims, self.shape))[::-1]))
        try:
            map_ = new.then(old.inverse())
        except Straddles:
            raise UserError(f"{what} of {self}, wanted one that splits or joins whole dimensions") from None
        return self._composed(map_, what)
