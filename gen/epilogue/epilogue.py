"""What becomes of a sum of products before it is stored.

An epilogue is a list of steps. It is applied once to each element of the result, by whoever holds the whole sum: the
product's kernel where K is in one slice, else the kernel that sums the slices. Where slices add to the result one by
one, the kernel that fills it beforehand applies it to zero, which only sums allow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import ClassVar

import attrs

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Shuffle
from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, TensorDim, View
from convgen.ir.record import define, evolve, frozen
from convgen.ir.types import Type, vector


class Step(ABC):
    """One step; sums are distributed as `layout`, whose first two dims are N and M and begin at the coordinates.

    Where there are several products, the last coordinate is the number of this one.
    """

    #: Whether it needs no more room than the sums, all of which may take it together.
    is_light: ClassVar[bool] = False

    @property
    def operands(self) -> tuple[tuple[str, View], ...]:
        """The tensors that it reads beside the sums, by name."""
        return ()

    @property
    def reads(self) -> tuple[Global, ...]:
        """The buffers that it needs."""
        return tuple(view.memory for _, view in self.operands)

    def is_sum(self, acc: Type) -> bool:
        """Whether it is the addition of something to sums of this type, so that sums may be added behind it."""
        return False

    def load(self, reader: Reader, layout: Fragment) -> Held:
        """What it reads for them: an element for each of their registers, in its own type."""
        return tuple(reader.read(name, view, layout) for name, view in self.operands)

    @abstractmethod
    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        """The sums behind this step."""


class Addend(Step):
    """A step that adds a term to sums; they may begin with it in place of zero."""

    def is_sum(self, acc: Type) -> bool:
        return True

    @abstractmethod
    def term(self, elem: Type, held: Held) -> Expr:
        """What it adds to sums of type `elem`."""

    def apply(self, k: KernelBuilder, total: Expr, held: Held) -> Expr:
        return total + self.term(total.type.elem, held)


@frozen
class Epilogue:
    """The steps from the accumulator to the store, in order."""

    steps: tuple[Step, ...]

    @property
    def reads(self) -> tuple[Global, ...]:
        return tuple(buffer for step in self.steps for buffer in step.reads)

    def may_precede_sums(self, acc: Type) -> bool:
        """Whether slices may add their sums of this type to what it made of zero."""
        return all(step.is_sum(acc) for step in self.steps)

    def begun(self) -> tuple[Addend | None, Epilogue]:
        """With which term the sums may begin, and the steps that are left then."""
        match self.steps:
            case Addend() as first, *others:
                return first, Epilogue(tuple(others))
        return None, self

    @property
    def is_light(self) -> bool:
        return all(step.is_light for step in self.steps)

    def load(self, reader: Reader, layout: Fragment) -> tuple[Held, ...]:
        """What the steps read for sums distributed as `layout`."""
        return tuple(step.load(reader, layout) for step in self.steps)

    def apply(self, k: KernelBuilder, total: Expr, held: Sequence[Held]) -> Expr:
        """What is to be stored in place of the sums `total`, of what was loaded for them."""
        for step, own in zip(self.steps, held, strict=True):
            total = step.apply(k, total, own)
        return total


@frozen
class Broadcast:
    """A tensor beside sums: each lane has an element once, and `order` says which one each register takes."""

    held: Expr
    order: tuple[int, ...]

    @property
    def words(self) -> int:
        """Registers that it takes."""
        return -(-self.held.type.lanes * self.held.type.elem.bits // 32)

    def piece(self, first: int, count: int) -> Broadcast:
        """What so many registers take, from one on."""
        return evolve(self, order=self.order[first : first + count])

    def as_type(self, elem: Type, made: Callable[[Expr], Expr] = lambda x: x, seen: Type | None = None) -> Expr:
        """What is made of it, as another type, for each register; integers `seen` with or without a sign."""
        lanes = self.held.type.lanes
        found = self.held.to(vector(seen, lanes)) if seen else self.held
        return Shuffle(made(found.to(vector(elem, lanes))), self.order)


Held = tuple[Broadcast, ...]


@define
class Reader:
    """Loads what stands beside sums whose fragments begin at the coordinates (N, M, and that of the product).

    What fragments that are read in one scope have in common is loaded once, so long as there is room to keep it.
    """

    k: KernelBuilder
    at: Sequence[Expr | int]
    room: int = 0  #: registers; of a lane, for what is kept
    _kept: dict[tuple[str, View, Fragment], Broadcast] = attrs.Factory(dict)

    def read(self, name: str, view: View, layout: Fragment) -> Broadcast:
        """What a view has for each register of `layout`."""
        sides = {axis for t in view.index for axis in axes_of(view, t) if axis < 2}
        few, order = along(layout, [layout.dims[n] for n in sides])
        key = name, view, few
        if key in self._kept:
            return Broadcast(self._kept[key].held, order)
        held = self.k.load_view(name, view, self.at[: len(view.axes)], few, "load", view.memory.name)
        found = Broadcast(held, order)
        if len(sides) < len(layout.dims[:2]) and found.words <= self.room:
            self.room -= found.words
            self._kept[key] = found
        return found

    def fresh(self, held: Iterable[Broadcast]) -> int:
        """Registers that these take, but for what is kept."""
        return sum(b.words for b in held if all(b.held is not kept.held for kept in self._kept.values()))


def axes_of(view: View, t: TensorDim) -> list[int]:
    """The axes of a view on which a coordinate depends."""
    names = {name for name, _ in t.terms}
    return [n for n, dims in enumerate(view.axes) if names.intersection(d.name for d in dims)]


def along(layout: Fragment, dims: Collection[str]) -> tuple[Fragment, tuple[int, ...]]:
    """The layout, over its first two dims, of what differs along `dims` only: without the registers of all others.

    With it, for each register of `layout` the one that belongs to it.
    """
    own = tuple(d for d in layout.digits if d.space not in (Space.REGISTER, Space.FIXED) or d.dim in dims)
    few = Fragment(layout.dims, own).renumbered(Space.REGISTER)

    order = layout.shared_order(few, lambda coords: tuple(int(at) for dim, at in coords.items() if dim in dims))
    return evolve(few, dims=layout.dims[:2]), order
