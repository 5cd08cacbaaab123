"""Epilogues: the steps between a sum of products and its store.

An epilogue is a list of steps, applied once to each element of the result by the kernel that has the whole sum: the
product's kernel where K is in one slice, else the kernel that reduces the slices. Where slices add to the result
atomically, the kernel that fills the result beforehand applies it to zero, which is correct only for additions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar

import attrs

from convgen.ir.build import Coordinate, Index, KernelBuilder, OfElements
from convgen.ir.error import DoesNotFit
from convgen.ir.expr import Expr, Shuffle
from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, TensorDim, View
from convgen.ir.record import define, evolve, frozen
from convgen.ir.types import Type, vector


class Step(ABC):
    """One step of an epilogue, on sums distributed as `layout`, whose first two dims are N and M.

    The layout begins at the reader's coordinates. If there are several products, the last coordinate is the number of
    the product.
    """

    #: Whether the step needs no more registers than the sums, so that all sums may take it together.
    is_light: ClassVar[bool] = False

    @property
    def operands(self) -> tuple[tuple[str, View], ...]:
        """Return the tensors that the step reads beside the sums, by name."""
        return ()

    @property
    def reads(self) -> tuple[Global, ...]:
        """Return the buffers that the step needs."""
        return tuple(view.memory for _, view in self.operands)

    def may_precede_sums(self, acc: Type) -> bool:
        """Whether slices may add their sums of this type after the step: it only adds, or changes nothing."""
        return False

    def load(self, reader: Reader, layout: Fragment) -> Loaded:
        """Load the step's inputs: for each tensor an element for each register of the sums, in its own type."""
        return tuple(reader.read(name, view, layout) for name, view in self.operands)

    @abstractmethod
    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        """Return the sums after this step."""


class Grouping(Step):
    """A step on groups of neighbouring elements: each must lie within what a subgroup has of the sums at a time."""

    @property
    @abstractmethod
    def views_written(self) -> tuple[View, ...]:
        """Return views of the further results that it stores, by the axes of the result."""

    @abstractmethod
    def suits(self, layout: Fragment) -> bool:
        """Whether each group lies within the registers and lanes of a subgroup with this layout."""

    @abstractmethod
    def apply_to(self, k: KernelBuilder, total: Expr, layout: Fragment, at: Sequence[Expr | int]) -> Expr:
        """Return the sums, which are distributed as `layout` and begin at coordinates `at`, after this step."""

    def layout_after(self, layout: Fragment) -> Fragment:
        """Return the distribution of the values that the step returns, by default that of the sums."""
        return layout

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        raise AssertionError("a step on groups wants a layout")


class Addend(Step):
    """A step that adds a term to sums; the sums may start from the term instead of zero."""

    def may_precede_sums(self, acc: Type) -> bool:
        return True

    @abstractmethod
    def term(self, elem: Type, loaded: Loaded) -> Expr:
        """Return the term that the step adds to sums of type `elem`."""

    def apply(self, k: KernelBuilder, total: Expr, loaded: Loaded) -> Expr:
        return total + self.term(total.type.elem, loaded)


@frozen
class Epilogue:
    """The steps from the accumulator to the store, in order."""

    steps: tuple[Step, ...]

    @property
    def reads(self) -> tuple[Global, ...]:
        return tuple(buffer for step in self.steps for buffer in step.reads)

    def may_precede_sums(self, acc: Type) -> bool:
        """Whether slices may add their sums of this type to the epilogue of zero."""
        return all(step.may_precede_sums(acc) for step in self.steps)

    def first_addend(self) -> tuple[Addend | None, Epilogue]:
        """Return the first step if sums may start from its term instead of zero, else None, and the remaining steps."""
        match self.steps:
            case Addend() as first, *others:
                return first, Epilogue(tuple(others))
        return None, self

    @property
    def is_light(self) -> bool:
        return all(step.is_light for step in self.steps)

    def load(self, reader: Reader, layout: Fragment) -> tuple[Loaded, ...]:
        """Load the inputs of all steps for sums distributed as `layout`."""
        return tuple(step.load(reader, own) for step, own in zip(self.steps, self._layouts(layout)))

    def layout_after(self, layout: Fragment) -> Fragment:
        """Return the distribution of the values to store, for sums distributed as `layout`."""
        return self._layouts(layout)[-1]

    def _layouts(self, layout: Fragment) -> list[Fragment]:
        """Return the distribution of the values before each step, and of those after the last one."""
        layouts = [layout]
        for step in self.steps:
            layouts.append(step.layout_after(layouts[-1]) if isinstance(step, Grouping) else layouts[-1])
        return layouts

    @property
    def groupings(self) -> tuple[Grouping, ...]:
        """Return the steps on groups of elements."""
        return tuple(step for step in self.steps if isinstance(step, Grouping))

    @property
    def writes(self) -> tuple[Global, ...]:
        """Return the buffers of results beside the one that is stored after all steps."""
        return tuple(view.memory for step in self.groupings for view in step.views_written)

    def parts(self, layout: Fragment, most: int) -> tuple[Fragment, ...]:
        """Return a layout in parts of at most `most` registers a lane, or more where a group needs them.

        Raises DoesNotFit where no parts hold groups whole.
        """
        if not self.groupings:
            return layout.parts(most)
        suiting = [n for n in layout.part_sizes if all(s.suits(layout.parts(n)[0]) for s in self.groupings)]
        if not suiting:
            wanted = "wanted groups of the result, which share a computed scale or a gate, within a subgroup's tile"
            raise DoesNotFit(wanted)
        return layout.parts(max((n for n in suiting if n <= most), default=min(suiting)))

    def apply(
        self,
        k: KernelBuilder,
        total: Expr,
        loaded: Sequence[Loaded],
        layout: Fragment | None = None,
        at: Sequence[Expr | int] = (),
    ) -> Expr:
        """Return the values to store for the sums `total`, given the inputs `loaded`.

        Steps on groups need the layout of the sums and the coordinates at which they begin.
        """
        for step, own in zip(self.steps, loaded, strict=True):
            if isinstance(step, Grouping):
                assert layout is not None
                total, layout = step.apply_to(k, total, layout, at), step.layout_after(layout)
            else:
                total = step.apply(k, total, own)
        return total


@frozen
class Broadcast:
    """A tensor broadcast over sums: each lane holds an element once, and `order` gives each register's element."""

    elements: Expr  #: a lane's elements, each once
    order: tuple[int, ...]

    @property
    def words(self) -> int:
        """Return the registers of a lane that it takes: dwords, rounded up."""
        return -(-self.elements.type.lanes * self.elements.type.elem.bits // 32)

    def piece(self, first: int, count: int) -> Broadcast:
        """Return the broadcast for `count` registers from `first` on."""
        return evolve(self, order=self.order[first : first + count])

    def as_type(self, elem: Type, function: Callable[[Expr], Expr] = lambda x: x, read_as: Type | None = None) -> Expr:
        """Return `function` of each register's element, converted to `elem`.

        `read_as`, s8 or u8, reinterprets 8-bit integers before the conversion.
        """
        lanes = self.elements.type.lanes
        stored = self.elements.to(vector(read_as, lanes)) if read_as else self.elements
        return Shuffle(function(stored.to(vector(elem, lanes))), self.order)


Loaded = tuple[Broadcast, ...]  #: loaded inputs of a step, in registers


@define
class Reader:
    """Loads tensors beside sums whose fragments begin at the coordinates (N, M, and the number of the product).

    Fragments that are read in one scope share a load where they can, as long as there is room to keep it.
    """

    k: KernelBuilder
    at: Sequence[Expr | int]
    room: int = 0  #: registers; of a lane, for kept loads
    rows: Mapping[str, OfElements] = attrs.Factory(dict)  #: coordinates of each element, by the dim of their axis
    _kept: dict[tuple[str, View, Fragment], Broadcast] = attrs.Factory(dict)

    def read(self, name: str, view: View, layout: Fragment) -> Broadcast:
        """Return a view's element for each register of `layout`; keep a broadcast load if it fits in `room`."""
        sides = {axis for t in view.index for axis in axes_of(view, t) if axis < 2} | self._numbered_sides(view)
        distinct, order = along(layout, [layout.dims[n] for n in sides])
        key = name, view, distinct
        if key in self._kept:
            return Broadcast(self._kept[key].elements, order)
        elements = self.k.load_view(
            name, view, coordinates(view, self.at, self.rows), distinct, "load", view.memory.name
        )
        broadcast = Broadcast(elements, order)
        if len(sides) < len(layout.dims[:2]) and broadcast.words <= self.room:
            self.room -= broadcast.words
            self._kept[key] = broadcast
        return broadcast

    def _numbered_sides(self, view: View) -> set[int]:
        """Return the axes of the sums along which rows of a view are numbered."""
        rows = self.rows.get(view.axes[-1][0].name)
        return {rows.axis} if rows else set()

    def fresh(self, broadcasts: Iterable[Broadcast]) -> int:
        """Return the registers of a lane that these broadcasts take, without those of loads that the reader keeps."""
        kept = [broadcast.elements for broadcast in self._kept.values()]
        return sum(b.words for b in broadcasts if all(b.elements is not elements for elements in kept))


def coordinates(view: View, at: Sequence[Index], rows: Mapping[str, OfElements]) -> tuple[Coordinate, ...]:
    """Return the coordinates at which a tile of a view begins; the elements of a last axis in `rows` have their own."""
    last = rows.get(view.axes[-1][0].name)
    return tuple(at[: len(view.axes)]) if last is None else (*at[: len(view.axes) - 1], last)


def axes_of(view: View, t: TensorDim) -> list[int]:
    """Return the axes of a view on which a coordinate depends."""
    names = {name for name, _ in t.terms}
    return [n for n, dims in enumerate(view.axes) if names.intersection(d.name for d in dims)]


def is_in_order(view: View, axis: int, t: TensorDim) -> bool:
    """Return whether positions along an axis of a view are those of a tensor's coordinate, without padding between."""
    steps: dict[str, int] = {}
    step = 1
    for d in reversed(view.axes[axis]):
        steps |= {d.name: step} if d.padded > 1 else {}
        step *= d.padded
    return {name: n for name, n in t.terms if name in steps} == steps


def along(layout: Fragment, dims: Collection[str]) -> tuple[Fragment, tuple[int, ...]]:
    """Return a layout of the registers that differ along `dims`, and each register's counterpart in it.

    The returned layout has the first two dims of `layout`.
    """
    digits = tuple(d for d in layout.digits if d.space not in (Space.REGISTER, Space.FIXED) or d.dim in dims)
    distinct = Fragment(layout.dims, digits).renumbered(Space.REGISTER)

    order = layout.broadcast_order(distinct, lambda coords: tuple(at for dim, at in coords.items() if dim in dims))
    return evolve(distinct, dims=layout.dims[:2]), order
