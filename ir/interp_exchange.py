"""The semantics of exchanges between lanes: each element is fetched from the place that its layout gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import numpy as np

from convgen.ir.evaluate import Array, Value, coordinates, operate
from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import frozen
from convgen.ir.stmt import REDUCTIONS, Exchange, Redistribute, Reduce
from convgen.ir.types import Type


@frozen(eq=False)
class ExchangeSource:
    """A fragment in the registers of some subgroups, and the subgroups that read elements from it."""

    values: Sequence[Value]  #: registers; all lanes, subgroup by subgroup
    layout: Fragment  #: distribution of `values`
    width: int  #: lanes of a subgroup
    numbers: tuple[int, ...]  #: numbers of the reading subgroups
    #: for each reading subgroup, the index in `values` of its first lane; of subgroup 0's if elements cross subgroups
    first: Array
    crosses_subgroups: bool

    def at(self, coords: Mapping[str, Array]) -> Value:
        """Return the elements at these coordinates, `[lanes, registers]` each."""
        place = self.layout.place(coords)
        row = np.repeat(self.first, self.width)[:, None] + place.get(Space.LANE, 0)
        if self.crosses_subgroups:
            row = row + place.get(Space.SUBGROUP, 0) * self.width
        register = place.get(Space.REGISTER, 0)
        data = np.concatenate([v.data for v in self.values])[row, register]
        if all(v.poison is None for v in self.values):
            return Value(data)
        return Value(data, np.concatenate([v.mask for v in self.values])[row, register])


def exchanged(node: Exchange, source: ExchangeSource) -> Value:
    """Return the value that `node` binds in the reading subgroups."""
    coords = dict(zip(node.layout.dims, coordinates(node.layout, source.numbers, source.width)))
    match node:
        case Reduce():
            return _reduced(node, source, coords)
        case Redistribute():
            return source.at(coords)
    raise NotImplementedError(type(node).__name__)


def _reduced(node: Reduce, source: ExchangeSource, coords: Mapping[str, Array]) -> Value:
    """Reduce digit by digit; along each digit from the first element to the last."""
    elem: Type = node.value.type.elem
    shape = (source.width * len(source.numbers), node.layout.registers)
    parts = {p: source.at({**coords, node.dim: np.full(shape, p)}) for p in range(node.of.extent(node.dim))}
    kind = REDUCTIONS[node.op]
    for step, d in node.of.reduction(node.dim):
        runs = {p: [parts[p + i * step] for i in range(d.size)] for p in parts if p // step % d.size == 0}
        parts = {p: reduce(lambda a, b: operate(kind, a, b, elem), run) for p, run in runs.items()}
    return parts[0]
