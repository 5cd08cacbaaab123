"""Layouts of a tile kernel's values: products decide theirs, which propagate to values that are combined with them.

Values that are combined element by element have one layout. A product has the layout of its matrix instructions'
result, its factors those of their inputs. Without constraints, each lane holds as many contiguous elements as the
widest message, and lanes run along rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import gcd, prod

import attrs

from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import MmaTile
from convgen.ir.record import define, evolve, frozen
from convgen.ir.types import Type
from convgen.plan.atoms import mma_tile
from convgen.plan.config import Config
from convgen.tile.lane_products import FmaTile, fma_tile
from convgen.tile.tiles import Shape, Tile, sized
from convgen.tile.trace import (
    Convert,
    Gather,
    Load,
    Loop,
    Map,
    Product,
    Redistributed,
    Reduced,
    Scatter,
    Statement,
    Store,
    Trace,
    Value,
)
from convgen.tile.xetile_maps import Maps

_MOST_IN_VECTORS = 64  #: registers; most accumulators of a lane that still leave enough vector registers


@frozen
class Spread:
    """A layout of a value; the layout's dims stand for the value's `axes` in this order."""

    layout: Fragment
    axes: tuple[int, ...]

    @property
    def by_axis(self) -> Fragment:
        """Return the layout with dims named d0, d1, ... after the value's axes, in their order."""
        names = {dim: f"d{n}" for dim, n in zip(self.layout.dims, self.axes)}
        return evolve(self.layout.renamed(names), dims=tuple(sorted(names.values())))

    def __str__(self) -> str:
        return str(self.layout)


@frozen
class Options:
    """The options of a kernel's workgroups."""

    subgroups: tuple[int, int]  #: along M and N of products
    #: buffers in shared memory for factors that products share; None: as many as fit, two at most
    slots: int | None = None
    mma: str = ""  #: NxMxK of the matrix instruction, or "fma"; empty: the target's first that fits
    acc: str = ""  #: "v" or "a", see docs/config.md; empty: by the number of accumulators
    by_steps: bool = False  #: whether a product reads its fragments for one instruction's K at a time


def all_statements(suite: list[Statement]) -> Iterator[Statement]:
    """Yield all statements; those of a loop's body follow the loop."""
    for statement in suite:
        yield statement
        if isinstance(statement, Loop):
            yield from all_statements(statement.body)


@define
class Layouts:
    """The layouts of a kernel's values on a target; `tiles` are the instruction tiles of its products.

    They are given in this order: explicit maps; results and factors of products; values combined with one of these;
    values that are stored or redistributed by maps; broadcast values; defaults, largest values first. A value takes the
    first layout that reaches it; where another is required, it is redistributed.
    """

    trace: Trace
    facts: TargetFacts
    options: Options
    of: dict[Value, Spread] = attrs.field(factory=dict)
    tiles: dict[Product, MmaTile | FmaTile] = attrs.field(factory=dict)
    factors: set[Value] = attrs.field(factory=set)  #: loads from which products take fragments

    def __attrs_post_init__(self) -> None:
        statements = list(all_statements(self.trace.statements))
        values = [statement for statement in statements if isinstance(statement, Value)]
        products = [value for value in values if isinstance(value, Product)]
        preferred = list(self._given(statements))
        explicit = list(self.of)
        for product in products:
            self._instructed(product)
        groups, neighbours = self._joined(statements)
        narrower = list(_narrower(values))
        for product in products:
            self._grant(neighbours[product], product, groups)
            self._factors(product, groups)
        for value in explicit:
            self._grant(neighbours[value], value, groups)
        for value, layout in preferred:
            if value not in self.of:
                self._set(value, layout, groups)
        self._follow(narrower, groups)
        for product in products:
            if product not in self.tiles:
                self._product_of_lanes(product, groups, statements)
                self._follow(narrower, groups)
        for value in sorted(values, key=lambda v: -prod(v.shape)):
            if value not in self.of:
                self._default(value, groups, statements)
                self._follow(narrower, groups)

    def _joined(self, statements: list[Statement]) -> tuple[_Groups, dict[Value, list[Value]]]:
        """Return groups of values with one layout and, for each value with a layout, the values combined with it."""
        groups, neighbours = _Groups(), defaultdict[Value, list[Value]](list)
        for a, b in _together(statements):
            if a in self.of or b in self.of:
                neighbours[a].append(b)
                neighbours[b].append(a)
            else:
                groups.join(a, b)
        return groups, neighbours

    def _grant(self, values: list[Value], like: Value, groups: _Groups) -> None:
        """Give values without a layout that of a value they are combined with."""
        for value in values:
            if like in self.of and value not in self.of:
                self._set(value, self.of[like], groups)

    def _given(self, statements: list[Statement]) -> Iterator[tuple[Value, Spread]]:
        """Record explicit layouts; yield values that are stored or redistributed by maps, with those layouts."""
        for statement in statements:
            match statement:
                case Load(maps=Maps() as maps, tile=tile, transposed=transposed):
                    self.of[statement] = self.mapped(maps, tile.shape, statement.elem, transposed=transposed)
                case Redistributed(maps=maps):
                    self.of[statement] = self.mapped(maps, statement.shape, statement.elem)
                    yield statement.of, self.of[statement]
                case Store(tile, value) if tile.maps:
                    yield value, self.mapped(tile.maps, tile.shape, value.elem)

    def mapped(self, maps: Maps, shape: Shape, elem: Type, *, transposed: bool = False) -> Spread:
        """Return the layout of a block, or of its transpose, by a kernel's maps."""
        wide = max(1, 8 * self.facts.chunk_bytes // elem.bits)
        fragment = maps.fragment((shape[0], shape[1]), self.facts.subgroup_size, prod(self.options.subgroups), wide)
        return Spread(fragment, (1, 0) if transposed else (0, 1))

    def of_prefetch(self, tile: Tile) -> Spread:
        """Return the distribution of a prefetch over lanes."""
        if tile.maps:
            return self.mapped(tile.maps, tile.shape, tile.tensor.elem)
        return self.in_rows(tile.shape, len(tile.shape) - 1, 1)

    def _follow(self, narrower: list[tuple[Value, Value]], groups: _Groups) -> None:
        """Give broadcast values that have no layout yet the layout of the value with which they are combined."""
        changed = True
        while changed:
            changed = False
            for narrow, whole in narrower:
                if whole in self.of and narrow not in self.of:
                    self._set(narrow, self.along(narrow, whole), groups)
                    changed = True

    def along(self, narrow: Value, whole: Value) -> Spread:
        """Return the layout in which a value can be broadcast along the dims in which it has one position."""
        layout, axes = self.of[whole].layout, self.of[whole].axes
        kept = {dim for dim, n in zip(layout.dims, axes) if narrow.shape[n] > 1}
        own = tuple(d for d in layout.digits if d.dim in kept)
        return Spread(Fragment(layout.dims, own).renumbered(Space.REGISTER), axes)

    def _set(self, value: Value, layout: Spread, groups: _Groups) -> None:
        self.of |= dict.fromkeys(groups.group(value), layout)

    def _instructed(self, value: Product) -> None:
        """Give a product the layout of a matrix instruction's result, if one fits."""
        tile = self._tile(value)
        if tile is not None:
            self.tiles[value] = tile
            self.of[value] = Spread(tile.d, (1, 0))

    def _factors(self, value: Product, groups: _Groups) -> None:
        """Give factors that have no layout yet that of a matrix instruction's inputs; the others are redistributed."""
        tile = self.tiles.get(value)
        if not isinstance(tile, MmaTile):
            return
        for factor, spread in ((value.a, Spread(tile.b, (0, 1))), (value.b, Spread(tile.a, (1, 0)))):
            if factor not in self.of:
                self._set(factor, spread, groups)
                self.factors.update(v for v in groups.group(factor) if isinstance(v, Load))

    def _product_of_lanes(self, value: Product, groups: _Groups, statements: list[Statement]) -> None:
        """Give the factors of a product of lanes their layouts; replicated ones are loaded once and redistributed."""
        if value not in self.of:
            self._default(value, groups, statements)
        size = self.facts.subgroup_size, prod(self.options.subgroups)
        tile = self.tiles[value] = fma_tile(self.of[value].by_axis, value.a.shape[1], *size)
        for factor, layout in ((value.a, tile.a), (value.b, tile.b)):
            if factor not in self.of and not layout.has_replicas(*size):
                self._set(factor, Spread(layout, (0, 1)), groups)

    def _tile(self, value: Product) -> MmaTile | None:
        """Return the tile of a matrix instruction; None where none fits, or `fma` is asked for."""
        if self.options.mma == "fma":
            return None
        (m, k), n = value.a.shape, value.b.shape[1]
        types = value.b.elem, value.a.elem, value.elem
        atoms = [a for a in self.facts.atoms if (a.a_elem, a.b_elem, a.acc) == types and not a.rounds_to]
        why = f"no matrix instruction {self.options.mma}"
        for atom in atoms:
            shape = (atom.n, atom.m, atom.k)
            if self.options.mma and sized(shape) != self.options.mma:
                continue
            try:
                tile = mma_tile(atom, Config((m, n, k), self.options.subgroups, shape), self.facts, atom.acc)
            except DoesNotFit as error:
                why = str(error)
                continue
            registers = tile.d.registers * atom.acc.bytes // 4
            prefers_accumulators = self.facts.accumulators and registers > _MOST_IN_VECTORS
            pack = 1 if self.options.by_steps else tile.pack
            separate = (self.options.acc or ("a" if prefers_accumulators else "v")) == "a"
            return evolve(tile, pack=pack, separate_accumulators=separate)
        if not self.options.mma:
            return None
        given = f"given tile_mma of {m}x{k} by {k}x{n} on {sized(self.options.subgroups)} subgroups"
        raise UserError(f"{given}, wanted one that {self.facts.name} has instructions for: {why}")

    def _default(self, value: Value, groups: _Groups, statements: list[Statement]) -> None:
        """Give a value that no product constrains a default layout, along memory if it is loaded or stored."""
        group_of_value = groups.group(value)
        strides_of_accesses = [[s[v.dim(n)] for n in range(len(v.shape))] for v in group_of_value if isinstance(v, Load)
                 for s in [v.tile.tensor.layout.strides()]]  # fmt: skip
        strides_of_accesses += [[s.tile.tensor.layout.strides()[n] for n in s.tile.kept]
                  for s in statements if isinstance(s, Store) and s.value in group_of_value]  # fmt: skip
        strides = strides_of_accesses[0] if strides_of_accesses else []
        along = next((n for n, s in enumerate(strides) if s == 1 and value.shape[n] > 1), len(value.shape) - 1)
        bits = max(v.elem.bits for v in group_of_value)
        self._set(value, self.in_rows(value.shape, along, max(1, 8 * self.facts.chunk_bytes // bits)), groups)

    def in_rows(self, shape: Shape, along: int, wide: int) -> Spread:
        """Return a layout with registers, lanes and subgroups along one dim, then along the others.

        A message has `wide` registers, or fewer so that each lane of the workgroup has elements.
        """
        while wide > 1 and prod(shape) < wide * self.facts.subgroup_size * prod(self.options.subgroups):
            wide //= 2
        order = [along, *(n for n in reversed(range(len(shape))) if n != along)]
        sizes, digits = dict(enumerate(shape)), []

        def place(space: Space, count: int, stride: int, dims: list[int]) -> None:
            for n in dims:
                size = gcd(sizes[n], count)
                if size > 1:
                    digits.append(Digit(f"d{n}", size, space, stride))
                    sizes[n], count, stride = sizes[n] // size, count // size, stride * size

        place(Space.REGISTER, wide, 1, [along])
        registers_of_message = prod(d.size for d in digits)
        place(Space.LANE, self.facts.subgroup_size, 1, order)
        place(Space.SUBGROUP, prod(self.options.subgroups), 1, order[1:] + order[:1])
        place(Space.REGISTER, prod(sizes.values()), registers_of_message, order)
        return Spread(Fragment(tuple(f"d{n}" for n in range(len(shape))), tuple(digits)), tuple(range(len(shape))))


def _together(statements: list[Statement]) -> Iterator[tuple[Value, Value]]:
    """Yield pairs of values that must have one layout."""
    for statement in statements:
        match statement:
            case Map():
                yield from ((statement, v) for v in statement.args if v.shape == statement.shape)
            case Convert():
                yield statement, statement.of
            case Gather() | Scatter():
                yield from ((statement.args[0], v) for v in statement.args[1:])
                if isinstance(statement, Gather):
                    yield statement, statement.indices
            case Product() if statement.acc is not None:
                yield statement, statement.acc
            case Loop():
                yield from ((first, last) for _, first, last in statement.carried if first.shape == last.shape)


def _narrower(values: list[Value]) -> Iterator[tuple[Value, Value]]:
    """Yield (value of size 1 along some dims, value it is combined with or reduced from), the last ones first."""
    for each in reversed(values):
        if isinstance(each, Map):
            yield from ((v, each) for v in each.args if v.shape != each.shape)
        if isinstance(each, Reduced):
            yield each, each.of


class _Groups:
    """Groups of values with one layout."""

    def __init__(self) -> None:
        self._groups: dict[Value, dict[Value, None]] = {}

    def group(self, value: Value) -> dict[Value, None]:
        return self._groups.setdefault(value, {value: None})

    def join(self, a: Value, b: Value) -> None:
        one, other = self.group(a), self.group(b)
        if one is not other:
            one |= other
            self._groups.update(dict.fromkeys(other, one))
