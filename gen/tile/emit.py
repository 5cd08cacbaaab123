"""IR of a tile kernel on a target: layouts are known, and factors that products share go through shared memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from math import prod

from convgen.ir.build import KernelBuilder
from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.expr import Expr, Lane, Pack, Shuffle, Slice, Splat, const, select, zeros
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import times
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.mma import MmaTile
from convgen.ir.layout.order import Order
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.extents import most
from convgen.ir.sizes import Extent, Size
from convgen.ir.stmt import For, block
from convgen.ir.types import Type, VectorType, vector
from convgen.ir.verify import MOST_LANES
from convgen.plan.config import Config
from convgen.plan.inputs import InputPath, input_path
from convgen.tile.edges import Section, sections
from convgen.tile.lane_products import FmaTile, multiplied
from convgen.tile.layouts import Layouts, Options, Spread, statements
from convgen.tile.numbered import inside, once
from convgen.tile.places import Places
from convgen.tile.tiles import Index, Tensor, Tile
from convgen.tile.trace import (
    REDUCTIONS,
    Convert,
    Full,
    Gather,
    Grid,
    Laid,
    Load,
    Loop,
    Map,
    Positions,
    Prefetch,
    Product,
    Reduced,
    Said,
    Scatter,
    Store,
    Trace,
    Turned,
    Value,
)

WORD = 32  #: bits of a register in one lane


def emit(name: str, trace: Trace, tensors: Sequence[Tensor], options: Options, facts: TargetFacts) -> Kernel:
    """Return the kernel. Raises UserError or Unsupported, one line, for operations that the target lacks."""
    return _Emitter(name, trace, tensors, options, facts).build()


class _Emitter:
    def __init__(
        self, name: str, trace: Trace, tensors: Sequence[Tensor], options: Options, facts: TargetFacts
    ) -> None:
        self.trace, self.options, self.facts = trace, options, facts
        subgroups = prod(options.subgroups)
        if subgroups * facts.subgroup_size > MOST_LANES:
            given = f"given {subgroups} subgroups of {facts.subgroup_size} lanes on {facts.name}"
            raise UserError(f"{given}, wanted at most {MOST_LANES} lanes of a workgroup, at tile.kernel")
        if options.acc == "a" and not facts.accumulators:
            given = f"given acc='a' on {facts.name}"
            raise UserError(f"{given}, wanted v: it has no accumulation registers, at tile.kernel")
        self.layouts = Layouts(trace, facts, options)
        grid = trace.grid or Grid((), (), (), "rows")
        exact = *_tiles(grid.counts), 1
        batch, rows, columns, _ = map(most, exact)
        self.mapping = WorkgroupMapping.sized((batch, rows, columns, 1), exact, Order.parse(grid.order))
        self.k = KernelBuilder(name, self.mapping.grid, subgroups, facts.subgroup_size)
        self.places = Places(tensors, trace.said)
        self.k.params += self.places.memory.values()
        self.k.params += dict.fromkeys(size for t in tensors for size in t.shape if isinstance(size, Size))
        self.values: dict[Value, Expr] = {}
        self.shared: dict[Load, InputPath] = {}
        self.waiting: list[Value] = []  #: fragments in shared memory, read when they are first used
        self.carried_on: set[Value] = set()  #: values that the enclosing loops carry to their next iteration

    def build(self) -> Kernel:
        with self.k.tile_of(self.mapping) as tile:
            self._place(tile)
            self._suite(self.trace.said)
        return self.k.done()

    def _place(self, tile: dict[str, Index]) -> None:
        """Compute the offsets of this workgroup's block."""
        grid = self.trace.grid
        if grid is None:
            return
        numbers: list[Index] = [tile["m"], tile["n"]][-len(grid.counts) :]
        rest: Index = tile["batch"]
        outer = grid.counts[:-2]
        for n, count in reversed(list(enumerate(outer))):
            if isinstance(count, int):
                numbers.insert(0, rest % count if count > 1 else 0)
                rest = rest // count if count > 1 else rest
            elif n:
                raise UserError(f"given {count} blocks along dim {n} of a grid, wanted a number but for the first dim")
            else:
                numbers.insert(0, rest)
        for var, number, count, size in zip(grid.offsets, numbers, grid.counts, grid.shape):
            self.places.scalars[var] = at = self.k.let(var.name, number * size)
            self.places.ranges[at] = (0, (most(count) - 1) * size)

    # ------------------------------------------------------------ statements

    def _suite(self, said: list[Said]) -> None:
        for each in said:
            match each:
                case Loop():
                    self._loop(each, said)
                case Store():
                    self._store(each)
                case Scatter():
                    self._scatter(each)
                case Prefetch(tile):
                    spread = _of_tensor(tile, self.layouts.nearer(tile))
                    self.k.prefetch(self.places.view(tile, spread), self.places.at(tile, spread), spread.layout)
                case Load() if each in self.shared:
                    self.waiting.append(each)
                case Value():
                    self.values[each] = self._made(each)

    def _loop(self, loop: Loop, around: list[Said]) -> None:
        k = self.k
        used = {v for each in statements(loop.body) for v in _uses(each)}
        behind = around[around.index(loop) + 1 :]
        used |= {v for each in statements(behind) for v in _uses(each)}
        used |= self.carried_on
        carried = [(name, first, last) for name, first, last in loop.carried if first in used or last in used]
        for value in list(self.waiting):
            self._value(value)
        inits = [self._value(first) for _, first, _ in carried]
        names = [k.var(name.replace("[", "_").replace("]", ""), init.type) for (name, *_), init in zip(carried, inits)]
        results = [k.var(v.name, v.type) for v in names]
        outside = dict(self.values), set(self.carried_on)
        self.carried_on |= {last for *_, last in carried}
        index = k.var(loop.var.name)
        self.values |= {first: v for (_, first, _), v in zip(carried, names)}
        with self.places.within(loop, index), k.suite() as body:
            self._share(loop.body)
            self._suite(loop.body)
            yields = tuple(self._like(last, first) for _, first, last in carried)
        self.values, self.carried_on = outside
        state = tuple(names), tuple(inits), block(*body), yields, tuple(results)
        k.add(For(index, const(0), self.places.scalar(loop.trips), *state, "k_loop"))
        of = self.layouts.of
        found = [self._brought(v, of[first], of[last]) for (_, first, last), v in zip(carried, results)]
        self.values |= {last: v for (_, _, last), v in zip(carried, found)}

    # ------------------------------------------------------------ shared memory

    def _share(self, body: list[Said]) -> None:
        """Copy the factors of a loop body's products to shared memory, between barriers."""
        products = [each for each in body if isinstance(each, Product)]
        loads = [v for p in products for side in (p.b, p.a) for v in _loads(side, body)]
        ways = {load: self._operand(load) for load in dict.fromkeys(loads) if load in self.layouts.factors}
        shared = {load: way for load, way in ways.items() if way is not None}
        if not shared:
            return
        self.k.barrier("release")
        for load, way in shared.items():
            operand = self.shared[load] = self._tile_of_its_own(way)
            assert operand.tile is not None
            assert operand.copy is not None
            self.k.tiles.append(operand.tile)
            at, name = self.places.at(load.tile, self._loaded(load)), load.tile.tensor.name
            self.k.copy(operand.tile, operand.view, at, operand.copy.stored, 0, "copy", operand.copy.loaded, name)
        self.k.barrier("publish")

    def _operand(self, load: Load) -> InputPath | None:
        """Return a load's path through shared memory; None without slots, or if the copy does not divide evenly."""
        slots = self.options.slots
        if not slots:
            return None
        spread = self._loaded(load)
        rows, depth = spread.layout.shape
        config = Config((rows, rows, depth), self.options.subgroups, (1, 1, 1), slots)
        try:
            view = self.places.view(load.tile, spread, depth)
            return input_path(view, load.elem, rows, spread.layout, config, self.facts)
        except DoesNotFit:
            return None

    def _tile_of_its_own(self, made: InputPath) -> InputPath:
        """Return the operand with a tile of a free name: a tensor may pass through shared memory several times."""
        assert made.tile is not None
        taken, name = {m.name for m in (*self.k.tiles, *self.k.params)}, made.tile.name
        names = itertools.chain([name], (f"{name}{n}" for n in itertools.count(1)))
        free = next(each for each in names if each not in taken)
        return evolve(made, tile=evolve(made.tile, name=free))

    # ------------------------------------------------------------ values

    def _value(self, value: Value) -> Expr:
        if value in self.waiting:
            self.waiting.remove(value)
            self.values[value] = self._made(value)
        if value not in self.values:
            raise UserError("given a block that was made within a loop, wanted one that is carried, behind the loop")
        return self.values[value]

    def _made(self, value: Value) -> Expr:
        k, spread = self.k, self.layouts.of[value]
        layout = spread.layout
        held = vector(value.elem, layout.registers)
        match value:
            case Load() if value in self.shared:
                made = self.shared[value]
                assert made.tile is not None
                name = value.tile.tensor.name
                return k.load_shared(f"{name}_frag", made.tile, layout, 0, "fragment", name)
            case Load(tile=tile):
                return self._load(tile, self._loaded(value))
            case Gather():
                return self._gathered(value, held)
            case Laid(of=of):
                return self._as(of, spread)
            case Turned(of=of):
                axes = tuple(1 - n for n in spread.axes)
                return self._brought(self._value(of), self.layouts.of[of], evolve(spread, axes=axes))
            case Full(value=number):
                return Splat(held, const(number, value.elem))
            case Positions():
                return self._positions(value)
            case Convert(of=of, saturate=saturate):
                wide = self._as(of, spread)
                return self._elementwise("converted", lambda a: _converted(a, value.elem, saturate), wide)
            case Map(name=name, function=function):
                given = [self._operand_of(v, value) for v in value.operands]
                return self._elementwise(name, function, *given)
            case Product():
                return self._product(value)
            case Reduced(of=of, axis=axis, kind=kind):
                return self._reduced(value, of, axis, kind)
        raise AssertionError(value)

    def _elementwise(self, name: str, function: Callable[..., Expr], *given: float | Expr) -> Expr:
        """Apply a function to fragments; elements that do not fill whole words are padded with the last one for it."""
        found, count = function(*given), max(e.type.lanes for e in given if isinstance(e, Expr))
        narrow = [e for e in (*given, found) if isinstance(e, Expr) and not e.type.elem.is_bool]
        if count == 1 or not any(e.type.bits % WORD for e in narrow):
            return self.k.let(name, found)
        each = max(WORD // e.type.elem.bits for e in narrow)
        order = (*range(count), *[count - 1] * (-count % each))
        wide = (self.k.let(name, Shuffle(e, order)) if isinstance(e, Expr) else e for e in given)
        return self.k.let(name, Shuffle(self.k.let(name, function(*wide)), tuple(range(count))))

    def _operand_of(self, operand: Value | float | Expr, value: Map) -> float | Expr:
        """Return an operand of an element-wise function; a scalar is broadcast."""
        if isinstance(operand, Value):
            return self._spread(operand, value)
        if isinstance(operand, Expr):
            scalar = self.places.scalar(operand)
            return Splat(vector(scalar.type.elem, self.layouts.of[value].layout.registers), scalar)
        return operand

    def _product(self, value: Product) -> Expr:
        k, op = self.k, self.layouts.tiles[value]
        acc = self._as(value.acc, self.layouts.of[value]) if value.acc is not None else None
        if isinstance(op, FmaTile):
            a, b = (self._factor(v, f, value.elem) for v, f in ((value.a, op.a), (value.b, op.b)))
            return _unnamed(multiplied(k, op, a, b, acc))
        sums = zeros(op.acc_type) if acc is None else acc
        if self.options.by_steps and op.steps > 1:
            return self._product_by_steps(value, op, sums)
        right, left = self._as(value.b, Spread(op.a, (1, 0))), self._as(value.a, Spread(op.b, (0, 1)))
        return k.mma("product", op, sums, right, left)

    def _product_by_steps(self, value: Product, op: MmaTile, sums: Expr) -> Expr:
        """Return a product whose factors are read from shared memory one step along K at a time."""
        step = evolve(op, steps=1)
        right, left = ((value.b, Spread(op.a, (1, 0)), step.a), (value.a, Spread(op.b, (0, 1)), step.b))
        for n in range(op.steps):
            a, b = (self._step(*factor, n, op) for factor in (right, left))
            sums = self.k.mma("product", step, sums, a, b)
        return sums

    def _step(self, factor: Value, whole: Spread, layout: Fragment, n: int, op: MmaTile) -> Expr:
        """Return a factor's fragment for one step along K: read now, or a part of the registers with the factor."""
        if factor in self.waiting and isinstance(factor, Load) and self.layouts.of[factor] == whole:
            tile, name = self.shared[factor].tile, factor.tile.tensor.name
            assert tile is not None
            return self.k.load_part(f"{name}_frag", tile, layout, (0, n * op.atom.k), "fragment", name)
        held, each = self._as(factor, whole), layout.registers * op.steps
        count = (op.atom.a if layout.dims == op.a.dims else op.atom.b).registers
        parts = tuple(Slice(held, at + n * count, count) for at in range(0, whole.layout.registers, op.steps * count))
        del each
        return Pack(vector(held.type.elem, layout.registers), parts)

    def _factor(self, factor: Value, layout: Fragment, elem: Type) -> Expr:
        """Return a factor in the product's layout: converted while each element is in one lane, then redistributed."""
        held, own = self._value(factor), self.layouts.of[factor]
        if factor.elem is not elem:
            held = self.k.let("factor", held.to(vector(elem, held.type.lanes)))
        return self._brought(held, own, Spread(layout, (0, 1)))

    def _gathered(self, value: Gather, held: VectorType) -> Expr:
        k, layout, memory = self.k, self.layouts.of[value].layout, self.places.memory[value.tensor.name]
        numbers = self._like(value.indices, value)
        there = inside(k, memory, numbers, self._like(value.mask, value) if value.mask is not None else None)
        found = k.load_at(f"{memory.name}_at", memory, numbers, layout, there, "load")
        other = Splat(held, const(value.other, value.elem))
        return k.let("gathered", select(there, found, other)) if value.other else found

    def _positions(self, value: Positions) -> Expr:
        layout, axes = self.layouts.of[value].layout, self.layouts.of[value].axes
        dim = layout.dims[axes.index(value.axis)]
        held = (layout.coords(self.k.subgroup, Lane(), r)[dim] for r in range(layout.registers))
        parts = tuple(e if isinstance(e, Expr) else const(e) for e in held)
        return self.k.let("positions", Pack(vector(value.elem, len(parts)), parts))

    def _reduced(self, value: Value, of: Value, axis: int, kind: str) -> Expr:
        spread = self.layouts.of[of]
        dim = spread.layout.dims[spread.axes.index(axis)]
        found, _ = self.k.reduce("reduced", self._value(of), spread.layout, dim, REDUCTIONS[kind])
        made, wanted = self.layouts.along(value, of), self.layouts.of[value]
        return self._brought(_unnamed(found), made, wanted)

    def _like(self, value: Value, other: Value) -> Expr:
        """Return a value in the layout of another."""
        return self._as(value, self.layouts.of[other])

    def _as(self, value: Value, wanted: Spread) -> Expr:
        """Return a value in a given layout."""
        return self._brought(self._value(value), self.layouts.of[value], wanted)

    def _brought(self, held: Expr, of: Spread, to: Spread) -> Expr:
        if of == to:
            return held
        return _unnamed(self.k.redistribute("moved", _unnamed(held), of.by_axis, to.by_axis))

    def _spread(self, value: Value, to: Value) -> Expr:
        """Return a value broadcast along the dims in which it has one position."""
        if value.shape == to.shape:
            return self._as(value, self.layouts.of[to])
        wanted = self.layouts.along(value, to)
        held = self._as(value, wanted)
        few, whole = wanted.layout, self.layouts.of[to].layout
        return Shuffle(held, tuple(few.owner(whole.coords(0, 0, r))[2] for r in range(whole.registers)))

    # ------------------------------------------------------------ memory

    def _load(self, tile: Tile, spread: Spread) -> Expr:
        name, at = tile.tensor.name, self.places.at(tile, spread)
        parts: list[Expr] = []
        for part in self._sections(tile, spread):
            if part.size != 0:
                view = self.places.view(tile, spread, row=part.size)
                parts.append(self.k.load_view(f"{name}_tile", view, at, part.layout, "load", name))
            else:
                parts.append(Splat(vector(tile.tensor.elem, part.layout.registers), const(0, tile.tensor.elem)))
        if len(parts) == 1:
            return parts[0]
        return self.k.let(f"{name}_tile", Pack(vector(tile.tensor.elem, spread.layout.registers), tuple(parts)))

    def _store(self, said: Store) -> None:
        tile, wanted, name = said.tile, self.layouts.of[said.value], said.tile.tensor.name
        if tile.maps:
            wanted = self.layouts.mapped(tile.maps, tile.shape, said.value.elem)
        held, spread = self._as(said.value, wanted), _of_tensor(tile, wanted)
        at = self.places.at(tile, spread)
        if not said.op:
            self._update_in_order(said, wanted)
        if said.op:
            held = once(self.k, held, spread.layout, said.op)
            self.k.atomic_view(said.op, self.places.view(tile, spread), at, held, spread.layout, "store", name)
            return
        for part in self._sections(tile, spread):
            if part.size != 0:
                view, count = self.places.view(tile, spread, row=part.size), part.layout.registers
                value = held if count == spread.layout.registers else Slice(_unnamed(held), part.start, count)
                self.k.store_view(view, at, value, part.layout, "store", name)

    def _update_in_order(self, said: Store, stored: Spread) -> None:
        """Refuse a store to elements that another subgroup may still load.

        A subgroup's own accesses are in order. Copies to shared memory, and sums that subgroups share, are ready before
        a barrier.
        """
        tensor, subgroups = said.tile.tensor, prod(self.options.subgroups)
        loads = [v for v in statements(self.trace.said) if isinstance(v, Load) and v.tile.tensor is tensor]
        direct = [self.layouts.of[v] for v in loads if v not in self.shared and v not in self._met()]
        held = min((each.layout.subgroups for each in (*direct, stored)), default=subgroups)
        if direct and held < subgroups:
            many = f"blocks whose elements {subgroups // held} subgroups hold"
            given = f"given {tensor.name}, loaded and stored in {many}"
            wanted, line = "larger blocks, one subgroup, or another tensor to store to", self.trace.lines.get(said)
            raise UserError(f"{given}, wanted {wanted}, at store_tile{f' in {line}' if line else ''}")

    def _met(self) -> set[Value]:
        """The values that sums of products begin with or are made of whose K subgroups share."""
        ahead: list[Value] = [v for v, op in self.layouts.tiles.items() if isinstance(op, FmaTile) and op.meets]
        met: set[Value] = set()
        while ahead:
            ahead = [v for each in ahead for v in each.args if v not in met]
            met.update(ahead)
        return met

    def _sections(self, tile: Tile, spread: Spread) -> list[Section]:
        """Return the block in sections along the dim that is contiguous in memory, if its start there is known."""
        tensor, layout, begin = tile.tensor, spread.layout, self.places.begin(tile)
        for n, dim, stride in ((n, d, tensor.strides[n]) for n, d in zip(spread.axes, layout.dims)):
            alone = n != tile.kept[0] or len(tile.kept) == len(begin)
            at, size = begin[n], tensor.shape[n]
            if tensor.is_known and stride == 1 and alone and isinstance(at, int) and at >= 0:
                return sections(layout, dim, at, size)
        return [Section(0, layout)]

    def _scatter(self, said: Scatter) -> None:
        k, layout, memory = self.k, self.layouts.of[said.value].layout, self.places.memory[said.tensor.name]
        numbers, value = self._like(said.indices, said.value), self._value(said.value)
        there = inside(k, memory, numbers, self._like(said.mask, said.value) if said.mask is not None else None)
        if said.op:
            value = once(k, value, layout, said.op)
            k.atomic_at(said.op, memory, numbers, value, layout, there, "store")
        else:
            k.store_at(memory, numbers, value, layout, there, "store")

    def _loaded(self, load: Load) -> Spread:
        """Return the layout of a loaded value in terms of the tensor's dims."""
        spread = self.layouts.of[load]
        return evolve(spread, axes=tuple(load.dim(n) for n in spread.axes))


def _of_tensor(tile: Tile, spread: Spread) -> Spread:
    """Return a layout in terms of the tensor's dims."""
    return evolve(spread, axes=tuple(tile.kept[n] for n in spread.axes))


def _converted(held: Expr, elem: Type, saturate: bool) -> Expr:
    return held.to(vector(elem, held.type.lanes), saturate=saturate)


def _unnamed(held: Expr) -> Expr:
    """Return a value whose dims may be renamed from now on; no register moves."""
    return Shuffle(held, tuple(range(held.type.lanes)))


def _tiles(counts: Sequence[Extent]) -> tuple[Extent, Extent, Extent]:
    """Return the batch, rows and columns of a grid."""
    *outer, rows, columns = (1, 1, *counts) if len(counts) < 2 else counts
    return reduce(times, outer, 1), rows, columns


def _uses(said: Said) -> tuple[Value, ...]:
    match said:
        case Store() | Scatter() | Value():
            return said.args
        case Loop():
            return tuple(v for _, first, last in said.carried for v in (first, last))
    return ()


def _loads(value: Value, body: list[Said]) -> Iterator[Load]:
    """Yield the loads of a body from which a value is computed element by element."""
    if isinstance(value, Load) and value in body:
        yield value
    if isinstance(value, Map | Convert):
        for v in value.args:
            yield from _loads(v, body)
