"""Layouts of a tile kernel's values: products decide theirs, which propagate to values that are combined with them.

Values that are combined element by element have one layout. A product has the layout of its matrix instructions'
result, its factors those of their inputs. Without constraints, each lane holds as many contiguous elements as the
widest message, and lanes run along rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from math import gcd, prod

import attrs

from convgen.choose.clocks import MOST_IN_VECTORS
from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import MmaAtom, MmaTile
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
    all_statements,
    arguments,
)
from convgen.tile.xetile_maps import Maps


@frozen
class ValueLayout:
    """A layout of a value: a fragment, whose dims stand for the value's `axes` in this order."""

    fragment: Fragment
    axes: tuple[int, ...]

    @property
    def by_axis(self) -> Fragment:
        """Return the fragment with dims named d0, d1, ... after the value's axes, sorted as text (d10 before d2)."""
        names = {dim: f"d{n}" for dim, n in zip(self.fragment.dims, self.axes)}
        return evolve(self.fragment.renamed(names), dims=tuple(sorted(names.values())))

    def on(self, dims: Sequence[int]) -> ValueLayout:
        """Return the layout with axis `n` standing for `dims[n]`, such as a tensor's dim."""
        return evolve(self, axes=tuple(dims[n] for n in self.axes))

    def dim(self, axis: int) -> str:
        """Return the fragment's dim that stands for an axis."""
        return self.fragment.dims[self.axes.index(axis)]


def factor_layouts(tile: MmaTile) -> tuple[ValueLayout, ValueLayout]:
    """Return the layouts of a product's factors a and b: the instruction's operands b, m x k, and a, n x k."""
    return ValueLayout(tile.b, (0, 1)), ValueLayout(tile.a, (1, 0))


@frozen
class Options:
    """The options of a kernel's workgroups."""

    subgroups: tuple[int, int]  #: along M and N of products
    #: buffers in shared memory for factors that products share; None: as many as fit, two at most
    slots: int | None = None
    mma: str = ""  #: NxMxK of the matrix instruction, or "fma"; empty: the target's first that fits
    acc: str = ""  #: "v" or "a", see docs/config.md; empty: by the number of accumulators
    copy: str = ""  #: "tensor": bulk copies bring factors into a ring of slots; empty: all lanes copy
    by_steps: bool = False  #: whether a product reads its fragments for one instruction's K at a time
    in_place: bool = True  #: whether instructions may read factors in shared memory
    wide: bool = True  #: whether lanes exchange elements, through shared memory, for wider loads and stores


def stored_tensors(trace: Trace) -> set[str]:
    """Return the names of the tensors that a kernel stores to."""
    suite = list(all_statements(trace.statements))
    stored = {s.tile.tensor.name for s in suite if isinstance(s, Store)}
    return stored | {s.tensor.name for s in suite if isinstance(s, Scatter)}


@define
class Layouts:
    """The layouts of a kernel's values on a target; `tiles` are the instruction tiles of its products.

    Layouts come from, in this order: explicit maps; results and factors of products; values combined with one of these;
    maps of stores and redistributions; values that a broadcast value is combined with; defaults, largest values first.
    A value takes the first layout that reaches it; where another is required, it is redistributed.
    """

    trace: Trace
    facts: TargetFacts
    options: Options
    of: dict[Value, ValueLayout] = attrs.field(factory=dict)  #: layout of each value
    tiles: dict[Product, MmaTile | FmaTile] = attrs.field(factory=dict)
    factors: set[Value] = attrs.field(factory=set)  #: loads from which products take fragments
    #: loads that instructions read in shared memory, with the rows of one instruction
    in_place: dict[Value, int] = attrs.field(factory=dict)
    _statements: list[Statement] = attrs.field(init=False)
    _groups: _Groups = attrs.field(init=False)
    loops: dict[Statement, Loop] = attrs.field(init=False)  #: the innermost loop around a statement
    _uses: Counter[Value] = attrs.field(init=False)  #: number of times that a value is an argument of statements
    #: (value of size 1 along some dims, value it is combined with or reduced from), the last ones first
    _narrower: list[tuple[Value, Value]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._statements, self._groups = list(all_statements(self.trace.statements)), _Groups()
        values = [statement for statement in self._statements if isinstance(statement, Value)]
        self.loops = {s: loop for loop in self._statements if isinstance(loop, Loop) for s in loop.body}
        self._uses = Counter(v for s in self._statements for v in arguments(s))
        self._narrower = list(_narrower(values))
        products = [value for value in values if isinstance(value, Product)]
        explicit = dict(self._explicit())
        self.of |= explicit
        for product in products:
            self._lay_out_by_instruction(product)
        neighbours = self._join_groups()
        for product in products:
            self._propagate(product, neighbours)
            self._lay_out_factors(product)
        for value in explicit:
            self._propagate(value, neighbours)
        for value, layout in self._preferred():
            if value not in self.of:
                self._set(value, layout)
        self._lay_out_narrower()
        for product in products:
            if product not in self.tiles:
                self._lay_out_by_lanes(product)
                self._lay_out_narrower()
        for value in sorted(values, key=lambda v: -prod(v.shape)):
            if value not in self.of:
                self._lay_out_by_default(value)
                self._lay_out_narrower()

    # ------------------------------------------------------------ explicit maps

    def _explicit(self) -> Iterator[tuple[Value, ValueLayout]]:
        """Yield the values that have maps of their own, with their layouts."""
        for statement in self._statements:
            match statement:
                case Load(maps=Maps() as maps, tile=tile, transposed=transposed):
                    yield statement, self.mapped(maps, tile.shape, statement.elem, transposed=transposed)
                case Redistributed(maps=maps):
                    yield statement, self.mapped(maps, statement.shape, statement.elem)

    def _preferred(self) -> Iterator[tuple[Value, ValueLayout]]:
        """Yield the values that are stored or redistributed by maps, with the layouts of these maps."""
        for statement in self._statements:
            match statement:
                case Redistributed(of=of):
                    yield of, self.of[statement]
                case Store(tile, value) if tile.maps:
                    yield value, self.mapped(tile.maps, tile.shape, value.elem)

    def mapped(self, maps: Maps, shape: Shape, elem: Type, *, transposed: bool = False) -> ValueLayout:
        """Return the layout of a block, or of its transpose, by a kernel's maps."""
        rows, columns = shape
        subgroups = prod(self.options.subgroups)
        fragment = maps.fragment(
            (rows, columns), self.facts.subgroup_size, subgroups, self._elements_of_message(elem.bits)
        )
        return ValueLayout(fragment, (1, 0) if transposed else (0, 1))

    def _elements_of_message(self, bits: int) -> int:
        """Return how many elements of so many bits a lane's widest message has."""
        return max(1, 8 * self.facts.chunk_bytes // bits)

    # ------------------------------------------------------------ propagation

    def _join_groups(self) -> dict[Value, list[Value]]:
        """Group values that must have one layout; return those combined with each value that has a layout already."""
        neighbours = defaultdict[Value, list[Value]](list)
        for a, b in _together(self._statements):
            if a in self.of or b in self.of:
                neighbours[a].append(b)
                neighbours[b].append(a)
            else:
                self._groups.join(a, b)
        return neighbours

    def _propagate(self, value: Value, neighbours: dict[Value, list[Value]]) -> None:
        """Give a value's layout, if it has one, to neighbours without."""
        for neighbour in neighbours[value]:
            if value in self.of and neighbour not in self.of:
                self._set(neighbour, self.of[value])

    def _lay_out_narrower(self) -> None:
        """Give broadcast values that have no layout yet the layout of the value with which they are combined."""
        changed = True
        while changed:
            changed = False
            for narrow, whole in self._narrower:
                if whole in self.of and narrow not in self.of:
                    self._set(narrow, self.along(narrow, whole))
                    changed = True

    def along(self, narrow: Value, whole: Value) -> ValueLayout:
        """Return the layout in which a value can be broadcast along the dims in which it has one position."""
        fragment, axes = self.of[whole].fragment, self.of[whole].axes
        kept = {dim for dim, n in zip(fragment.dims, axes) if narrow.shape[n] > 1}
        digits = tuple(d for d in fragment.digits if d.dim in kept)
        return ValueLayout(Fragment(fragment.dims, digits).renumbered(Space.REGISTER), axes)

    def _set(self, value: Value, layout: ValueLayout) -> None:
        """Give a layout to all values of a value's group."""
        self.of |= dict.fromkeys(self._groups.group(value), layout)

    # ------------------------------------------------------------ products

    def _lay_out_by_instruction(self, value: Product) -> None:
        """Give a product the layout of a matrix instruction's result, if one fits."""
        tile = self._tile(value)
        if tile is not None:
            self.tiles[value] = tile
            self.of[value] = ValueLayout(tile.d, (1, 0))
            self.in_place.update(_read_in_place(value, tile.atom))

    def _lay_out_factors(self, value: Product) -> None:
        """Give factors that have no layout yet that of a matrix instruction's inputs; the others are redistributed."""
        tile = self.tiles.get(value)
        if not isinstance(tile, MmaTile):
            return
        for factor, layout in zip((value.a, value.b), factor_layouts(tile)):
            if factor not in self.of:
                self._set(factor, layout)
                self.factors.update(v for v in self._groups.group(factor) if isinstance(v, Load))

    def _lay_out_by_lanes(self, value: Product) -> None:
        """Give the factors of a product of lanes their layouts; replicated ones are loaded once and redistributed."""
        if value not in self.of:
            self._lay_out_by_default(value)
        size = self.facts.subgroup_size, prod(self.options.subgroups)
        tile = self.tiles[value] = fma_tile(self.of[value].by_axis, value.a.shape[1], *size)
        for factor, fragment in ((value.a, tile.a), (value.b, tile.b)):
            if factor not in self.of and not fragment.has_replicas(*size):
                self._set(factor, ValueLayout(fragment, (0, 1)))

    def _tile(self, value: Product) -> MmaTile | None:
        """Return the tile of a matrix instruction; None where none fits, or `fma` is asked for."""
        if self.options.mma == "fma":
            return None
        (m, k), n = value.a.shape, value.b.shape[1]
        types = value.b.elem, value.a.elem, value.elem
        why = f"no matrix instruction {self.options.mma}"
        for atom, subgroups in self._instructions():
            size = atom.n, atom.m, atom.k
            suits = (atom.a_elem, atom.b_elem, atom.acc) == types and not (atom.rounds_to or atom.sum_bits)
            if not suits or self.options.mma not in ("", sized(size)) or not self._brings_factors(value, atom):
                continue
            try:
                tile = mma_tile(atom, Config((m, n, k), subgroups, size), self.facts, atom.acc)
            except DoesNotFit as error:
                why = str(error)
                continue
            pack = 1 if self.options.by_steps else tile.pack  # instructions whose elements of K lie together in a lane
            return evolve(tile, pack=pack, separate_accumulators=self._separates_accumulators(tile))
        if not self.options.mma:
            return None
        given = f"given tile_mma of {m}x{k} by {k}x{n} on {sized(self.options.subgroups)} subgroups"
        raise UserError(f"{given}, wanted one that {self.facts.name} has instructions for: {why}")

    def _instructions(self) -> Iterator[tuple[MmaAtom, tuple[int, int]]]:
        """Yield the target's instructions, each with subgroups along M and N as `mma_tile` counts them.

        Those that read factors in shared memory come first, the widest first: it reads the other factor least often.
        An instruction's subgroups are along N there; those along M may be a team's as well.
        """
        along_m, along_n = self.options.subgroups
        for atom in sorted(self.facts.atoms, key=lambda atom: -atom.n if atom.in_shared else 0):
            yield atom, (along_m, along_n)
            if atom.in_shared and along_m % atom.spans == 0:
                yield atom, (along_m // atom.spans, along_n * atom.spans)

    def _brings_factors(self, value: Product, atom: MmaAtom) -> bool:
        """Return whether all factors that an instruction reads in shared memory are loads that only it reads there."""
        factors, loop = _read_in_place(value, atom), self.loops.get(value)
        if not factors:
            return True
        if not self.options.in_place or self.options.slots == 0 or loop is None:
            return False
        return all(
            isinstance(v, Load) and v.maps is None and self._uses[v] == 1 and self.loops.get(v) is loop for v in factors
        )

    def _separates_accumulators(self, tile: MmaTile) -> bool:
        """Return whether accumulators live in registers of their own: as `acc` says, else where they are many."""
        registers = tile.d.registers * tile.atom.acc.bytes // 4
        if self.options.acc:
            return self.options.acc == "a"
        return bool(self.facts.accumulators) and registers > MOST_IN_VECTORS

    # ------------------------------------------------------------ defaults

    def of_load(self, load: Load) -> ValueLayout:
        """Return the layout of a loaded value in terms of the tensor's dims."""
        return self.of[load].on(load.dims)

    def of_prefetch(self, tile: Tile) -> ValueLayout:
        """Return the distribution of a prefetch over lanes."""
        if tile.maps:
            return self.mapped(tile.maps, tile.shape, tile.tensor.elem)
        return self.in_rows(tile.shape, len(tile.shape) - 1, 1)

    def _lay_out_by_default(self, value: Value) -> None:
        """Give a value that no product constrains a default layout, along memory if it is loaded or stored."""
        group = self._groups.group(value)
        strides = next(self._strides(group), [])
        along = next((n for n, s in enumerate(strides) if s == 1 and value.shape[n] > 1), len(value.shape) - 1)
        most = self._elements_of_message(max(v.elem.bits for v in group))
        self._set(value, self.in_rows(value.shape, along, most))

    def _strides(self, group: Collection[Value]) -> Iterator[list[int]]:
        """Yield the strides in memory along a group's axes, for each load, then for each store."""
        for value in group:
            if isinstance(value, Load):
                strides = value.tile.tensor.layout.strides()
                yield [strides[n] for n in value.dims]
        for statement in self._statements:
            if isinstance(statement, Store) and statement.value in group:
                strides = statement.tile.tensor.layout.strides()
                yield [strides[n] for n in statement.tile.kept]

    def in_rows(self, shape: Shape, along: int, message: int) -> ValueLayout:
        """Return a layout with registers, lanes and subgroups along one dim, then along the others.

        A message has `message` registers, or fewer so that each lane of the workgroup has elements.
        """
        subgroups = prod(self.options.subgroups)
        while message > 1 and prod(shape) < message * self.facts.subgroup_size * subgroups:
            message //= 2
        order = [along, *(n for n in reversed(range(len(shape))) if n != along)]
        sizes, digits = dict(enumerate(shape)), list[Digit]()

        def place(space: Space, count: int, stride: int, dims: list[int]) -> None:
            """Distribute what is left of some dims over `count` numbers of a space."""
            for n in dims:
                size = gcd(sizes[n], count)
                if size > 1:
                    digits.append(Digit(f"d{n}", size, space, stride))
                    sizes[n], count, stride = sizes[n] // size, count // size, stride * size

        place(Space.REGISTER, message, 1, [along])
        registers_of_message = prod(d.size for d in digits)
        place(Space.LANE, self.facts.subgroup_size, 1, order)
        place(Space.SUBGROUP, subgroups, 1, order[1:] + order[:1])
        place(Space.REGISTER, prod(sizes.values()), registers_of_message, order)
        axes = tuple(range(len(shape)))
        return ValueLayout(Fragment(tuple(f"d{n}" for n in axes), tuple(digits)), axes)


def _read_in_place(value: Product, atom: MmaAtom) -> dict[Value, int]:
    """Return the factors of a product that an instruction reads in shared memory, with the rows of one instruction."""
    if not atom.in_shared:
        return {}
    return {value.b: atom.n} if atom.b_in_registers else {value.b: atom.n, value.a: atom.m}


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
    for value in reversed(values):
        if isinstance(value, Map):
            yield from ((v, value) for v in value.args if v.shape != value.shape)
        if isinstance(value, Reduced):
            yield value, value.of


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
