"""Who holds which element of each value: given by the products, and from there to all that is reckoned with them.

Values that are combined element by element are distributed alike. What a product makes is distributed as its matrix
instructions make it, its factors as they take them; where nothing says anything, rows lie along the lanes as wide as
messages are.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

import attrs

from convgen.ir.error import DoesNotFit, Unsupported, UserError
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import MmaTile
from convgen.plan.config import Config
from convgen.plan.plan import mma_tile
from convgen.tile.trace import (
    Convert,
    Gather,
    Load,
    Loop,
    Map,
    Product,
    Reduced,
    Said,
    Scatter,
    Shape,
    Store,
    Trace,
    Value,
    sized,
)

_MOST_IN_VECTORS = 64  #: registers; accumulators of a lane that leave enough vector registers to the rest


@attrs.frozen
class Spread:
    """A layout of a value, whose dims stand for the value's `axes` in this order."""

    layout: Fragment
    axes: tuple[int, ...]

    @property
    def by_axis(self) -> Fragment:
        """The layout with dims that are named by the value's, in their order."""
        names = {dim: f"d{n}" for dim, n in zip(self.layout.dims, self.axes)}
        return attrs.evolve(self.layout.renamed(names), dims=tuple(sorted(names.values())))

    def __str__(self) -> str:
        return str(self.layout)


@attrs.frozen
class Options:
    """How a kernel's workgroups are made."""

    subgroups: tuple[int, int]  #: along M and N of products
    slots: int | None = None  #: buffers in shared memory of what products share; None: as many as fit, two at most
    mma: str = ""  #: NxMxK of the matrix instruction; the target's first that fits if nothing is said
    acc: str = ""  #: "v" or "a", see docs/config.md; by the count of accumulators if nothing is said


def statements(said: list[Said]) -> Iterator[Said]:
    """All, those of loops behind the loop."""
    for each in said:
        yield each
        if isinstance(each, Loop):
            yield from statements(each.body)


@attrs.define
class Layouts:
    """The layouts of a kernel's values on a target; `tiles` are those of its products."""

    trace: Trace
    facts: TargetFacts
    options: Options
    of: dict[Value, Spread] = attrs.field(factory=dict)
    tiles: dict[Product, MmaTile] = attrs.field(factory=dict)
    factors: set[Value] = attrs.field(factory=set)  #: loads of which products take fragments

    def __attrs_post_init__(self) -> None:
        said = list(statements(self.trace.said))
        alike = _Alike()
        for each in said:
            match each:
                case Map():
                    for v in each.args:
                        if v.shape == each.shape:
                            alike.join(each, v)
                case Convert():
                    alike.join(each, each.of)
                case Gather() | Scatter():
                    for v in each.args:
                        alike.join(each.args[0], v)
                    if isinstance(each, Gather):
                        alike.join(each, each.indices)
                case Product() if each.acc:
                    alike.join(each, each.acc)
                case Loop():
                    for _, first, last in each.carried:
                        if first.shape == last.shape:
                            alike.join(first, last)
        values = [each for each in said if isinstance(each, Value)]
        for each in values:
            if isinstance(each, Product):
                self._product(each, alike)
        edges = list(_narrower(values))
        self._follow(edges, alike)
        for value in sorted(values, key=lambda v: -prod(v.shape)):
            if value not in self.of:
                self._default(value, alike, said)
                self._follow(edges, alike)

    def _follow(self, edges: list[tuple[Value, Value]], alike: _Alike) -> None:
        """What is the same all along some dims of another is distributed as that is, where nothing else is wanted."""
        changed = True
        while changed:
            changed = False
            for narrow, whole in edges:
                if whole in self.of and narrow not in self.of:
                    self._set(narrow, self.along(narrow, whole), alike)
                    changed = True

    def along(self, narrow: Value, whole: Value) -> Spread:
        """The layout in which a value can be repeated along the dims that it has one position of."""
        layout, axes = self.of[whole].layout, self.of[whole].axes
        kept = {dim for dim, n in zip(layout.dims, axes) if narrow.shape[n] > 1}
        own = tuple(d for d in layout.digits if d.dim in kept)
        return Spread(Fragment(layout.dims, own).renumbered(Space.REGISTER), axes)

    def _set(self, value: Value, layout: Spread, alike: _Alike) -> None:
        for other in alike.group(value):
            if self.of.setdefault(other, layout) != layout:
                raise Unsupported(
                    f"given a block of {sized(value.shape)} that is wanted as {layout} and as {self.of[other]}, "
                    "wanted one distribution: blocks are not brought from one to another yet",
                    rule="tile-redistribution",
                )

    def _product(self, value: Product, alike: _Alike) -> None:
        tile = self.tiles[value] = self._tile(value)
        self._set(value, Spread(tile.d, (1, 0)), alike)
        for factor, spread in ((value.a, Spread(tile.b, (0, 1))), (value.b, Spread(tile.a, (1, 0)))):
            if factor in self.of:
                continue  # it is brought from one distribution to the other
            self._set(factor, spread, alike)
            self.factors.update(v for v in alike.group(factor) if isinstance(v, Load))

    def _tile(self, value: Product) -> MmaTile:
        (m, k), n = value.a.shape, value.b.shape[1]
        types = value.b.elem, value.a.elem, value.elem
        atoms = [a for a in self.facts.atoms if (a.a_elem, a.b_elem, a.acc) == types and not a.rounds_to]
        if not atoms:
            given = f"given tile_mma of {value.a.elem} by {value.b.elem} into {value.elem}"
            raise Unsupported(f"{given}, wanted types that {self.facts.name} multiplies", rule="tile-types")
        why = f"no matrix instruction {self.options.mma}"
        for atom in atoms:
            shape = (atom.n, atom.m, atom.k)
            if self.options.mma and sized(shape) != self.options.mma:
                continue
            try:
                tile = mma_tile(atom, Config((m, n, k), self.options.subgroups, shape), self.facts.chunk_bytes)
            except DoesNotFit as error:
                why = str(error)
                continue
            held = tile.d.registers * atom.acc.bytes // 4
            many = self.facts.accumulators and held > _MOST_IN_VECTORS
            return attrs.evolve(tile, separate_accumulators=(self.options.acc or ("a" if many else "v")) == "a")
        given = f"given tile_mma of {m}x{k} by {k}x{n} on {sized(self.options.subgroups)} subgroups"
        raise UserError(f"{given}, wanted one that {self.facts.name} has instructions for: {why}")

    def _default(self, value: Value, alike: _Alike, said: list[Said]) -> None:
        """A value that no product says anything of."""
        group = alike.group(value)
        moves = [[s[v.dim(n)] for n in range(len(v.shape))] for v in group if isinstance(v, Load)
                 for s in [v.tile.tensor.layout.strides()]]  # fmt: skip
        moves += [[s.tile.tensor.layout.strides()[n] for n in s.tile.kept]
                  for s in said if isinstance(s, Store) and s.value in group]  # fmt: skip
        strides = moves[0] if moves else []
        along = next((n for n, s in enumerate(strides) if s == 1 and value.shape[n] > 1), len(value.shape) - 1)
        bits = max(v.elem.bits for v in group)
        self._set(value, self.in_rows(value.shape, along, max(1, 8 * self.facts.chunk_bytes // bits)), alike)

    def in_rows(self, shape: Shape, along: int, wide: int) -> Spread:
        """Registers, lanes and then subgroups along one dim, then along the others, as far as they go."""
        order = [along, *(n for n in reversed(range(len(shape))) if n != along)]
        left, digits = dict(enumerate(shape)), []

        def take(space: Space, count: int, stride: int, dims: list[int]) -> None:
            for n in dims:
                size = gcd(left[n], count)
                if size > 1:
                    digits.append(Digit(f"d{n}", size, space, stride))
                    left[n], count, stride = left[n] // size, count // size, stride * size

        take(Space.REGISTER, wide, 1, [along])
        held = prod(d.size for d in digits)
        take(Space.LANE, self.facts.subgroup_size, 1, order)
        take(Space.SUBGROUP, prod(self.options.subgroups), 1, order[1:] + order[:1])
        take(Space.REGISTER, prod(left.values()), held, order)
        return Spread(Fragment(tuple(f"d{n}" for n in range(len(shape))), tuple(digits)), tuple(range(len(shape))))


def _narrower(values: list[Value]) -> Iterator[tuple[Value, Value]]:
    """Values of one position along some dims of others that they are combined with, or made of; the last ones first."""
    for each in reversed(values):
        if isinstance(each, Map):
            yield from ((v, each) for v in each.args if v.shape != each.shape)
        if isinstance(each, Reduced):
            yield each, each.of


class _Alike:
    """Groups of values that are distributed alike."""

    def __init__(self) -> None:
        self._groups: dict[Value, dict[Value, None]] = {}

    def group(self, value: Value) -> dict[Value, None]:
        return self._groups.setdefault(value, {value: None})

    def join(self, a: Value, b: Value) -> None:
        one, other = self.group(a), self.group(b)
        if one is not other:
            one |= other
            self._groups.update(dict.fromkeys(other, one))
