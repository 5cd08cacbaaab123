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
from convgen.tile.trace import Convert, Load, Loop, Map, Product, Said, Shape, Store, Trace, Value

_MOST_IN_VECTORS = 64  #: registers; accumulators of a lane that leave enough vector registers to the rest


@attrs.frozen
class Spread:
    """A layout of a value, whose dims stand for the value's `axes` in this order."""

    layout: Fragment
    axes: tuple[int, ...]

    def __str__(self) -> str:
        return str(self.layout)


@attrs.frozen
class Options:
    """How a kernel's workgroups are made."""

    subgroups: tuple[int, int]  #: along M and N of products
    slots: int = 2  #: buffers in shared memory of what products share
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
    factors: dict[Value, Product] = attrs.field(factory=dict)  #: loads of which products take fragments

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
        spread = [v for v in reversed(values) if isinstance(v, Map)]
        for v in values:
            self._rest(v, alike, said)
        for each in spread:
            for v in each.args:
                if v.shape != each.shape:
                    self._narrower(v, each, alike)

    def _set(self, value: Value, layout: Spread, alike: _Alike) -> None:
        for other in alike.group(value):
            if self.of.setdefault(other, layout) != layout:
                raise Unsupported(
                    f"given a block of {_x(value.shape)} that is wanted as {layout} and as {self.of[other]}, "
                    "wanted one distribution: blocks are not brought from one to another yet",
                    rule="tile-redistribution",
                )

    def _product(self, value: Product, alike: _Alike) -> None:
        tile = self.tiles[value] = self._tile(value)
        self._set(value, Spread(tile.d, (1, 0)), alike)
        self._set(value.a, Spread(tile.b, (0, 1)), alike)
        self._set(value.b, Spread(tile.a, (1, 0)), alike)
        for factor in (value.a, value.b):
            for v in alike.group(factor):
                if isinstance(v, Load):
                    self.factors[v] = value

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
            if self.options.mma and _x(shape) != self.options.mma:
                continue
            try:
                tile = mma_tile(atom, Config((m, n, k), self.options.subgroups, shape), self.facts.chunk_bytes)
            except DoesNotFit as error:
                why = str(error)
                continue
            held = tile.d.registers * atom.acc.bytes // 4
            many = self.facts.accumulators and held > _MOST_IN_VECTORS
            return attrs.evolve(tile, separate_accumulators=(self.options.acc or ("a" if many else "v")) == "a")
        given = f"given tile_mma of {m}x{k} by {k}x{n} on {_x(self.options.subgroups)} subgroups"
        raise UserError(f"{given}, wanted one that {self.facts.name} has instructions for: {why}")

    def _rest(self, value: Value, alike: _Alike, said: list[Said]) -> None:
        """A value that no product says anything of, unless it is narrower than one that it is combined with."""
        group = alike.group(value)
        if value in self.of or any(
            isinstance(each, Map) and each.shape != value.shape and group.keys() & set(each.args) for each in said
        ):
            return
        tensors = [v.tile.tensor for v in group if isinstance(v, Load)]
        tensors += [each.tile.tensor for each in said if isinstance(each, Store) and each.value in group]
        strides = tensors[0].layout.strides() if tensors else ()
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

    def _narrower(self, value: Value, whole: Value, alike: _Alike) -> None:
        """One that is the same all along some dims of another."""
        layout, axes = self.of[whole].layout, self.of[whole].axes
        kept = {dim for dim, n in zip(layout.dims, axes) if value.shape[n] > 1}
        own = tuple(d for d in layout.digits if d.dim in kept)
        self._set(value, Spread(Fragment(layout.dims, own).renumbered(Space.REGISTER), axes), alike)


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


def _x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
