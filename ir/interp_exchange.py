"""What exchanges between lanes mean: each element is looked up where the layout says that it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from convgen.ir.evaluate import Array, Mask, Value, operate
from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import frozen
from convgen.ir.stmt import REDUCTIONS, Exchange, Redistribute, Reduce
from convgen.ir.types import Type


@frozen(eq=False)
class Held:
    """A fragment in the registers of subgroups, and the subgroups that look for elements in it."""

    values: Sequence[Value]  #: registers, lane behind lane
    layout: Fragment
    width: int
    numbers: tuple[int, ...]  #: of the subgroups that look
    first: Array  #: for each of them, the row where its registers begin, or those of subgroup 0 if they meet
    meet: bool

    def at(self, coords: Mapping[str, Array]) -> Value:
        """The elements at coordinates, `[lanes, registers]` each."""
        place = self.layout.place(coords)
        row = np.repeat(self.first, self.width)[:, None] + place.get(Space.LANE, 0)
        if self.meet:
            row = row + place.get(Space.SUBGROUP, 0) * self.width
        register = place.get(Space.REGISTER, 0)
        data = np.concatenate([v.data for v in self.values])[row, register]
        if all(v.poison is None for v in self.values):
            return Value(data)
        return Value(data, np.concatenate([_poison(v) for v in self.values])[row, register])


def _poison(v: Value) -> Mask:
    return np.zeros(v.data.shape, np.bool_) if v.poison is None else v.poison


def exchanged(node: Exchange, held: Held) -> Value:
    """What `node` binds in the subgroups that look."""
    coords = _coords(node.layout, held)
    match node:
        case Reduce():
            return _reduced(node, held, coords)
        case Redistribute():
            return held.at(coords)
    raise NotImplementedError(type(node).__name__)


def _coords(layout: Fragment, held: Held) -> dict[str, Array]:
    """The coordinates of each (lane, register) of a layout in the subgroups that look."""
    lanes, registers = np.meshgrid(np.arange(held.width), np.arange(layout.registers), indexing="ij")
    at = [layout.coords(number, lanes, registers) for number in held.numbers]
    shape = lanes.shape
    return {dim: np.concatenate([np.broadcast_to(one[dim], shape) for one in at]) for dim in layout.dims}


def _reduced(node: Reduce, held: Held, coords: Mapping[str, Array]) -> Value:
    """Digit after digit; the elements along one of them from the first to the last."""
    elem: Type = node.value.type.elem
    shape = (held.width * len(held.numbers), node.layout.registers)
    parts = {p: held.at({**coords, node.dim: np.full(shape, p)}) for p in range(node.of.extent(node.dim))}
    kind = REDUCTIONS[node.op]
    for step, d in node.of.reduction(node.dim):
        runs = {p: [parts[p + i * step] for i in range(d.size)] for p in parts if p // step % d.size == 0}
        parts = {p: reduce(lambda a, b: operate(kind, a, b, elem), run) for p, run in runs.items()}
    return parts[0]
