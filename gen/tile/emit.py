"""IR of a tile kernel on a target: layouts are known, and factors that products share go through shared memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial, reduce
from math import prod

from convgen.ir.build import KernelBuilder
from convgen.ir.error import DoesNotFit, UserError
from convgen.ir.expr import Expr, Lane, Pack, Shuffle, Slice, Splat, Uniform, const, maximum, minimum, select, zeros
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Space, times
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.memory import Shared
from convgen.ir.layout.mma import MmaTile
from convgen.ir.layout.order import Order
from convgen.ir.mutate import free_vars
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.ring import ring_of
from convgen.ir.simplify.extents import upper_bound
from convgen.ir.sizes import Extent, Size
from convgen.ir.stmt import For, block
from convgen.ir.types import Type, VectorType, vector
from convgen.ir.verify import MOST_LANES
from convgen.plan.config import DIRECT, REGISTERS, TENSOR, Config
from convgen.plan.inputs import InputPath, ProductInput
from convgen.plan.wide_messages import load_wide, store_wide
from convgen.tile.edges import Section, sections
from convgen.tile.element_access import inside, once
from convgen.tile.lane_products import FmaTile, multiplied
from convgen.tile.layouts import Layouts, Options, ValueLayout, factor_layouts
from convgen.tile.places import Places
from convgen.tile.tiles import Index, Tensor, Tile
from convgen.tile.trace import (
    REDUCTIONS,
    Convert,
    Full,
    Gather,
    Grid,
    Load,
    Loop,
    Map,
    Positions,
    Prefetch,
    Product,
    Redistributed,
    Reduced,
    ScalarLoad,
    Scatter,
    Statement,
    Store,
    Trace,
    Transposed,
    Value,
    all_statements,
)

_WORD = 32  #: bits of a register in one lane


def emit(name: str, trace: Trace, tensors: Sequence[Tensor], options: Options, facts: TargetFacts) -> Kernel:
    """Return the kernel. Raises UserError or Unsupported, one line, for operations that the target lacks.

    Raises DoesNotFit where an instruction would read a factor in shared memory that no copy brings as it wants it.
    """
    return _Emitter(name, trace, tensors, options, facts).build()


class _Emitter:
    def __init__(
        self, name: str, trace: Trace, tensors: Sequence[Tensor], options: Options, facts: TargetFacts
    ) -> None:
        """Raise UserError for options that the target lacks."""
        self.trace, self.options, self.facts = trace, options, facts
        _check_scalars_are_read_only(trace)
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
        batch, rows, columns, _ = map(upper_bound, exact)
        self.mapping = WorkgroupMapping.sized((batch, rows, columns, 1), exact, Order.parse(grid.order))
        self.k = KernelBuilder(name, self.mapping.grid, subgroups, facts.subgroup_size)
        self.places = Places(tensors, trace.statements)
        self.k.params += self.places.memory.values()
        self.k.params += dict.fromkeys(size for t in tensors for size in t.shape if isinstance(size, Size))
        self.values: dict[Value, Expr] = {}
        self.shared: dict[Load, InputPath] = {}
        self.ring: Shared | None = None  #: the ring into whose slots bulk copies go
        self.in_ring: list[InputPath] = []  #: paths of earlier loops through the ring, whose tiles a loop may fill, too
        self.unread: list[Value] = []  #: loads whose fragments are in shared memory, read when they are first used

    def build(self) -> Kernel:
        with self.k.tile_of(self.mapping) as tile:
            self._define_offsets(tile)
            self._suite(self.trace.statements)
        self.k.tiles += [self.ring] if self.ring else []  # behind the tiles, whose starts are aligned
        return self.k.done()

    def _define_offsets(self, tile: dict[str, Index]) -> None:
        """Compute the offsets of this workgroup's block; `tile` has its number along M, N and all outer dims."""
        grid = self.trace.grid
        if grid is None:
            return
        numbers: list[Index] = [tile["m"], tile["n"]][-len(grid.counts) :]
        rest: Index = tile["batch"]
        for n, count in reversed(list(enumerate(grid.counts[:-2]))):
            if isinstance(count, int):
                numbers.insert(0, rest % count if count > 1 else 0)
                rest = rest // count if count > 1 else rest
            elif n:
                wanted = "wanted a number: before the last two dims, only the first may have a size known at launch"
                raise UserError(f"given {count} blocks along dim {n} of a grid, {wanted}")
            else:
                numbers.insert(0, rest)
        for var, number, count, length in zip(grid.offsets, numbers, grid.counts, grid.block):
            self.places.scalars[var] = at = self.k.let(var.name, number * length)
            self.places.ranges[at] = (0, (upper_bound(count) - 1) * length)
            self.places.multiples[at] = length

    # ------------------------------------------------------------ statements

    def _suite(self, suite: list[Statement]) -> None:
        for statement in suite:
            match statement:
                case Loop():
                    self._loop(statement)
                case Store():
                    self._store(statement)
                case Scatter():
                    self._scatter(statement)
                case ScalarLoad():
                    self._load_scalar(statement)
                case Prefetch(tile):
                    layout = self.layouts.of_prefetch(tile).on(tile.kept)
                    self.k.prefetch(self.places.view(tile, layout), self.places.at(tile, layout), layout.fragment)
                case Load() if statement in self.shared:
                    self.unread.append(statement)
                case Load() if path := self._path_to_slot(statement):
                    self.values[statement] = self._through_ring(statement, path)
                case Value():
                    self.values[statement] = self._emitted(statement)

    def _loop(self, loop: Loop) -> None:
        """Add a loop."""
        k, carried = self.k, loop.carried
        for value in list(self.unread):
            self._value(value)
        inits = [self._value(first) for _, first, _ in carried]
        names = [k.var(name.replace("[", "_").replace("]", ""), init.type) for (name, *_), init in zip(carried, inits)]
        results = [k.var(v.name, v.type) for v in names]
        before = dict(self.values)
        index = k.var(loop.var.name)
        self.values |= {first: v for (_, first, _), v in zip(carried, names)}
        with self.places.within(loop, index), k.suite() as body:
            self._copy_factors(loop.body)
            self._suite(loop.body)
            yields = tuple(self._in_layout_of(last, first) for _, first, last in carried)
        self.values = before
        state = tuple(names), tuple(inits), block(*body), yields, tuple(results)
        k.add(For(index, const(0), self.places.scalar(loop.trips), *state, "k_loop"))
        of = self.layouts.of
        self.values |= {last: self._moved(v, of[first], of[last]) for (_, first, last), v in zip(carried, results)}

    # ------------------------------------------------------------ shared memory

    def _copy_factors(self, body: list[Statement]) -> None:
        """Copy the factors of a loop body's products to shared memory, between barriers."""
        products = [value for value in body if isinstance(value, Product)]
        loads = [v for p in products for side in (p.b, p.a) for v in _loads(side, body)]
        in_place = self.layouts.in_place
        paths = {v: self._path(v, in_place.get(v, 0)) for v in dict.fromkeys(loads) if v in self.layouts.factors}
        copied = {load: path for load, path in paths.items() if path is not None}
        if not copied:
            return
        self.k.barrier("release")
        for statement in _scalars_of(copied, body):
            self._load_scalar(statement)
        free = list(self.in_ring)
        for load in copied:
            self._copy(load, self._with_tile(copied[load], free))
        self.k.barrier("publish")

    def _path_to_slot(self, load: Load) -> InputPath | None:
        """Return the path of a factor that is loaded outside loops through a slot of the ring.

        None if the ring holds no factor of its shape that is contiguous along the same dim, if bulk copies cannot bring
        it, or if the kernel stores to its tensor: the copy may come before the store.
        """
        if self.options.copy != TENSOR or load.maps or load in self.layouts.loops or load not in self.layouts.factors:
            return None
        if load.tile.tensor.name in _stored(self.trace):
            return None
        if not any(self._shape_in_slot(v) == self._shape_in_slot(load) for v in self.layouts.in_place):
            return None
        with suppress(DoesNotFit):
            return self._path(load, self._layout_of_load(load).fragment.shape[0])
        return None

    def _shape_in_slot(self, value: Value) -> tuple[object, ...]:
        """Return the rows and depth of a loaded factor, its type, and which of the two is contiguous in memory."""
        if not isinstance(value, Load):
            return ()
        layout = self._layout_of_load(value)
        contiguous = tuple(value.tile.tensor.strides[n] == 1 for n in layout.axes)
        return layout.fragment.shape, value.elem, contiguous

    def _through_ring(self, load: Load, path: InputPath) -> Expr:
        """Return a factor that a bulk copy brings to a slot of the ring, from which lanes read it at once.

        The copy starts as early as the ring has a slot: while a workgroup still computes its tile before.
        """
        k, fragment, name = self.k, self.layouts.of[load].fragment, load.tile.tensor.name
        path = self._with_tile(path, list(self.in_ring))
        assert path.tile is not None
        index, init = k.var("once"), zeros(vector(load.elem, fragment.registers))
        first, last = (k.var(f"{name}_frag", init.type) for _ in range(2))
        with k.suite() as body:
            k.barrier("release")
            self._copy(load, path)
            k.barrier("publish")
            read = k.load_shared(f"{name}_frag", path.tile, fragment, 0, "fragment", name)
        k.add(For(index, const(0), const(1), (first,), (init,), block(*body), (read,), (last,), "once"))
        return last

    def _with_tile(self, path: InputPath, free: list[InputPath]) -> InputPath:
        """Return a path with a tile of its own, or with a free one of an earlier loop, which is taken off `free`.

        A free tile that has held elements of this tensor comes first.
        """
        assert path.tile is not None
        for earlier in sorted(free, key=lambda earlier: earlier.view.memory is not path.view.memory):
            tile = earlier.tile
            assert tile is not None
            if evolve(path.tile, name=tile.name) == tile and path.step == earlier.step:
                free.remove(earlier)
                return evolve(path, tile=tile)
        path = self._with_unique_name(path)
        self.k.tiles += [path.tile] if path.tile else []
        self.in_ring += [path] if path.step else []
        return path

    def _copy(self, load: Load, path: InputPath) -> None:
        """Copy a load's block to shared memory."""
        self.shared[load] = path
        assert path.tile is not None
        at, name = self.places.at(load.tile, self._layout_of_load(load)), load.tile.tensor.name
        if path.step:
            self.ring = self.ring or ring_of("ring", path.tile.slots)
            self.k.copy_as_tensor(path.tile, path.view, at, path.step, self.ring, 0, "copy", name)
        elif path.copy is None:
            self.k.copy_directly(path.tile, path.view, at, path.direct_bytes, 0, "copy", name)
        else:
            self.k.copy(path.tile, path.view, at, path.copy.stored, 0, "copy", path.copy.loaded, name)

    def _path(self, load: Load, in_place: int) -> InputPath | None:
        """Return a load's path through shared memory; None without slots, or if no copy divides evenly.

        `in_place` is the number of rows that one instruction reads in shared memory; 0 if lanes load fragments.
        Copies take no registers where the target masks each lane's part of them. Raises DoesNotFit for a load without a
        path that an instruction reads in shared memory.
        """
        slots = self.options.slots
        if not slots:
            return None
        layout = self._layout_of_load(load)
        rows, depth = layout.fragment.shape
        # The path depends on the depth of the config's tile, on its subgroups and on its slots only.
        config = Config((rows, rows, depth), self.options.subgroups, (1, 1, 1), slots)
        view = self.places.view(load.tile, layout, depth)
        of_load = ProductInput(view, load.elem, layout.fragment, config, self.facts, in_place)
        if self.options.copy == TENSOR:
            self._check_starts(load.tile)
            return of_load.path(rows, TENSOR)
        direct = self.facts.flat_direct and self._starts_at_chunks(load.tile)
        for copy in (DIRECT, REGISTERS) if direct else (REGISTERS,):
            with suppress(DoesNotFit):
                return of_load.path(rows, copy)
        if in_place:
            raise DoesNotFit(f"no copy of {load.tile.tensor.name} to shared memory divides evenly")
        return None

    def _check_starts(self, tile: Tile) -> None:
        """Raise DoesNotFit for a tile that may start where bulk copies do not."""
        if not self._starts_at_chunks(tile):
            given = f"a tile of {tile.tensor.name} that may start anywhere along its contiguous dim"
            raise DoesNotFit(f"{given}, wanted starts at multiples of {self.facts.chunk_bytes} bytes")
        first = tile.kept[0]
        if tile.folded and self.places.multiple(self.places.begin(tile)[first]) % tile.shape[0]:
            given = (
                f"a tile of {tile.tensor.name} at one position along some dims, that may start anywhere along {first}"
            )
            raise DoesNotFit(f"{given}, wanted starts at multiples of its {tile.shape[0]} elements")

    def _starts_at_chunks(self, tile: Tile) -> bool:
        """Return whether a tile starts at whole chunks of memory along the dim that is contiguous there."""
        chunk = self.facts.chunk_bytes // tile.tensor.elem.bytes
        starts = zip(self.places.begin(tile), tile.tensor.strides)
        return not any(stride == 1 and self.places.multiple(start) % chunk for start, stride in starts)

    def _with_unique_name(self, path: InputPath) -> InputPath:
        """Return the path with another name of its tile if that is taken: a tensor may have several tiles."""
        assert path.tile is not None
        taken, name = {m.name for m in (*self.k.tiles, *self.k.params)}, path.tile.name
        names = itertools.chain([name], (f"{name}{n}" for n in itertools.count(1)))
        return evolve(path, tile=evolve(path.tile, name=next(n for n in names if n not in taken)))

    # ------------------------------------------------------------ values

    def _value(self, value: Value) -> Expr:
        if value in self.unread:
            self.unread.remove(value)
            self.values[value] = self._emitted(value)
        if value not in self.values:
            wanted = "wanted a name bound before it, so that the loop carries the block"
            raise UserError(f"given a block of a loop's body after the loop, {wanted}")
        return self.values[value]

    def _emitted(self, value: Value) -> Expr:
        k, wanted = self.k, self.layouts.of[value]
        fragment = wanted.fragment
        result_type = vector(value.elem, fragment.registers)
        match value:
            case Load() if value in self.shared:
                path = self.shared[value]
                assert path.tile is not None
                name = value.tile.tensor.name
                return k.load_shared(f"{name}_frag", path.tile, fragment, 0, "fragment", name)
            case Load():
                return self._load(value)
            case Gather():
                return self._gathered(value, result_type)
            case Redistributed(of=of):
                return self._in_layout(of, wanted)
            case Transposed(of=of):
                return self._in_layout(of, wanted.on((1, 0)))
            case Full(value=number):
                return Splat(result_type, const(number, value.elem))
            case Positions():
                return self._positions(value)
            case Convert(of=of, saturate=saturate):
                operand = self._in_layout(of, wanted)

                def convert(a: Expr) -> Expr:
                    return a.to(vector(value.elem, a.type.lanes), saturate=saturate)

                return self._elementwise("converted", convert, operand)
            case Map(name=name, function=function):
                operands = [self._operand(v, value) for v in value.operands]
                return self._elementwise(name, function, *operands)
            case Product():
                return self._product(value)
            case Reduced(of=of, axis=axis, kind=kind):
                return self._reduced(value, of, axis, kind)
        raise AssertionError(value)

    def _elementwise(self, name: str, function: Callable[..., Expr], *operands: float | Expr) -> Expr:
        """Apply a function to fragments, padded to whole words by repeating their last element."""
        result, count = function(*operands), max(e.type.lanes for e in operands if isinstance(e, Expr))
        fragments = [e for e in (*operands, result) if isinstance(e, Expr) and not e.type.elem.is_bool]
        if count == 1 or not any(e.type.bits % _WORD for e in fragments):
            return self.k.let(name, result)
        multiple = max(_WORD // e.type.elem.bits for e in fragments)
        order = (*range(count), *[count - 1] * (-count % multiple))
        padded = (self.k.let(name, Shuffle(e, order)) if isinstance(e, Expr) else e for e in operands)
        return self.k.let(name, Shuffle(self.k.let(name, function(*padded)), tuple(range(count))))

    def _operand(self, operand: Value | float | Expr, value: Map) -> float | Expr:
        """Return an operand of an element-wise function; a block of size 1 along a dim, or a scalar, is broadcast."""
        if isinstance(operand, Value):
            return self._broadcast(operand, value)
        if isinstance(operand, Expr):
            scalar = self.places.scalar(operand)
            return Splat(vector(scalar.type.elem, self.layouts.of[value].fragment.registers), scalar)
        return operand

    def _product(self, value: Product) -> Expr:
        k, op = self.k, self.layouts.tiles[value]
        acc = self._in_layout(value.acc, self.layouts.of[value]) if value.acc is not None else None
        if isinstance(op, FmaTile):
            a, b = (self._factor(v, f, value.elem) for v, f in ((value.a, op.a), (value.b, op.b)))
            return _relabelled(multiplied(k, op, a, b, acc))
        sums = zeros(op.acc_type) if acc is None else acc
        if self.options.by_steps and op.steps > 1 and not op.atom.in_shared:
            return self._product_by_steps(value, op, sums)
        layout_of_a, layout_of_b = factor_layouts(op)
        right, left = self._in_layout(value.b, layout_of_b), self._in_layout(value.a, layout_of_a)
        return k.mma("product", op, sums, right, left)

    def _product_by_steps(self, value: Product, op: MmaTile, sums: Expr) -> Expr:
        """Return a product whose factors are read from shared memory one step along K at a time."""
        step, (layout_of_a, layout_of_b) = evolve(op, steps=1), factor_layouts(op)
        for n in range(op.steps):
            right = self._step(value.b, layout_of_b, step.a, n, op)
            left = self._step(value.a, layout_of_a, step.b, n, op)
            sums = self.k.mma("product", step, sums, right, left)
        return sums

    def _step(self, factor: Value, whole: ValueLayout, fragment: Fragment, n: int, op: MmaTile) -> Expr:
        """Return the fragment of step `n` along K of a factor: read from shared memory now, or cut out of registers.

        `whole` is the factor's layout for all steps, `fragment` that of one.
        """
        if factor in self.unread and isinstance(factor, Load) and self.layouts.of[factor] == whole:
            tile, name = self.shared[factor].tile, factor.tile.tensor.name
            assert tile is not None
            return self.k.load_part(f"{name}_frag", tile, fragment, (0, n * op.atom.k), "fragment", name)
        registers = self._in_layout(factor, whole)
        of_step = (op.atom.a if fragment.dims == op.a.dims else op.atom.b).registers
        starts = range(n * of_step, whole.fragment.registers, op.steps * of_step)
        parts = tuple(Slice(registers, start, of_step) for start in starts)
        return Pack(vector(registers.type.elem, fragment.registers), parts)

    def _factor(self, factor: Value, fragment: Fragment, elem: Type) -> Expr:
        """Return a factor in the product's layout: converted while each element is in one lane, then redistributed."""
        elements = self._value(factor)
        if factor.elem is not elem:
            elements = self.k.let("factor", elements.to(vector(elem, elements.type.lanes)))
        return self._moved(elements, self.layouts.of[factor], ValueLayout(fragment, (0, 1)))

    def _gathered(self, value: Gather, result_type: VectorType) -> Expr:
        k, fragment, memory = self.k, self.layouts.of[value].fragment, self.places.memory[value.tensor.name]
        numbers = self._in_layout_of(value.indices, value)
        exists = inside(k, memory, numbers, self._in_layout_of(value.mask, value) if value.mask is not None else None)
        loaded = k.load_at(f"{memory.name}_at", memory, numbers, fragment, exists, "load")
        other = Splat(result_type, const(value.other, value.elem))
        return k.let("gathered", select(exists, loaded, other)) if value.other else loaded

    def _positions(self, value: Positions) -> Expr:
        fragment, dim = self.layouts.of[value].fragment, self.layouts.of[value].dim(value.axis)
        coordinates = (fragment.coords(self.k.subgroup, Lane(), r)[dim] for r in range(fragment.registers))
        parts = tuple(e if isinstance(e, Expr) else const(e) for e in coordinates)
        return self.k.let("positions", Pack(vector(value.elem, len(parts)), parts))

    def _reduced(self, value: Value, of: Value, axis: int, kind: str) -> Expr:
        layout = self.layouts.of[of]
        reduced, _ = self.k.reduce("reduced", self._value(of), layout.fragment, layout.dim(axis), REDUCTIONS[kind])
        return self._moved(_relabelled(reduced), self.layouts.along(value, of), self.layouts.of[value])

    def _in_layout_of(self, value: Value, other: Value) -> Expr:
        """Return a value in the layout of another."""
        return self._in_layout(value, self.layouts.of[other])

    def _in_layout(self, value: Value, wanted: ValueLayout) -> Expr:
        """Return a value in a given layout."""
        return self._moved(self._value(value), self.layouts.of[value], wanted)

    def _moved(self, elements: Expr, of: ValueLayout, to: ValueLayout) -> Expr:
        """Return elements redistributed from one layout to another."""
        if of == to or of.by_axis.canonical(*Space) == to.by_axis.canonical(*Space):
            return elements
        return _relabelled(self.k.redistribute("moved", _relabelled(elements), of.by_axis, to.by_axis))

    def _broadcast(self, value: Value, to: Value) -> Expr:
        """Return a value broadcast along the dims in which it has one position."""
        if value.shape == to.shape:
            return self._in_layout(value, self.layouts.of[to])
        layout, whole = self.layouts.along(value, to), self.layouts.of[to].fragment
        registers = (layout.fragment.owner(whole.coords(0, 0, r))[2] for r in range(whole.registers))
        return Shuffle(self._in_layout(value, layout), tuple(registers))

    # ------------------------------------------------------------ memory

    def _load(self, load: Load) -> Expr:
        """Return a block loaded from memory.

        Lanes exchange elements for wider loads, but not in loops, each iteration of which would repeat the exchange,
        and not where maps say which elements each lane loads.
        """
        tile, layout, name = load.tile, self._layout_of_load(load), f"{load.tile.tensor.name}_tile"
        tensor, at = tile.tensor, self.places.at(tile, layout)
        wide = self.options.wide and load.maps is None and load not in self.layouts.loops
        load_view: Callable[..., Expr] = partial(load_wide, self.k, self.facts) if wide else self.k.load_view
        parts: list[Expr] = []
        for part in self._sections(tile, layout):
            if part.outside:
                parts.append(Splat(vector(tensor.elem, part.fragment.registers), const(0, tensor.elem)))
            else:
                view = self.places.view(tile, layout, row=part.row)
                parts.append(load_view(name, view, at, part.fragment, "load", tensor.name))
        if len(parts) == 1:
            return parts[0]
        return self.k.let(name, Pack(vector(tensor.elem, layout.fragment.registers), tuple(parts)))

    def _load_scalar(self, load: ScalarLoad) -> None:
        """Bind a scalar to an element of a tensor; copies and what follows them load one each."""
        layout = ValueLayout(Fragment(tuple(f"d{n}" for n in load.tile.kept), ()), load.tile.kept)
        view, at, name = self.places.view(load.tile, layout), self.places.at(load.tile, layout), load.var.name
        loaded = self.k.load_view(name, view, at, layout.fragment, "load", load.tile.tensor.name)
        element = Uniform(Pack(loaded.type.elem, (Slice(loaded, 0, 1),)))
        self.places.scalars[load.var] = bound = self.k.let(name, minimum(maximum(element, 0), load.most))
        self.places.ranges[bound] = (0, load.most)

    def _store(self, store: Store) -> None:
        tile, name, wanted = store.tile, store.tile.tensor.name, self.layouts.of[store.value]
        if tile.maps:
            wanted = self.layouts.mapped(tile.maps, tile.shape, store.value.elem)
        value, layout = self._in_layout(store.value, wanted), wanted.on(tile.kept)
        at = self.places.at(tile, layout)
        if store.op:
            value = once(self.k, value, layout.fragment, store.op)
            view = self.places.view(tile, layout)
            self.k.atomic_view(store.op, view, at, value, layout.fragment, "store", name)
            return
        self._check_order(store, wanted)
        wide = self.options.wide and not tile.maps
        store_view = partial(store_wide, self.k, self.facts) if wide else self.k.store_view
        if store.ends:
            store_view(*self.places.until(tile, layout, store.ends), value, layout.fragment, "store", name)
            return
        for part in self._sections(tile, layout):
            if not part.outside:
                view, count = self.places.view(tile, layout, row=part.row), part.fragment.registers
                is_whole = count == layout.fragment.registers
                elements = value if is_whole else Slice(_relabelled(value), part.start, count)
                store_view(view, at, elements, part.fragment, "store", name)

    def _check_order(self, store: Store, stored: ValueLayout) -> None:
        """Raise UserError for a store to elements that another subgroup may still load.

        A subgroup's own accesses are in order. Copies to shared memory, and loads for sums that subgroups share, end
        before a barrier.
        """
        tensor, subgroups = store.tile.tensor, prod(self.options.subgroups)
        loads = [v for v in all_statements(self.trace.statements) if isinstance(v, Load) and v.tile.tensor is tensor]
        direct = [self.layouts.of[v] for v in loads if v not in self.shared and v not in self._before_reductions()]
        owners = min((layout.fragment.subgroups for layout in (*direct, stored)), default=subgroups)
        if direct and owners < subgroups:
            many = f"blocks whose elements {subgroups // owners} subgroups hold"
            given = f"given {tensor.name}, loaded and stored in {many}"
            wanted, line = "larger blocks, one subgroup, or another tensor to store to", self.trace.lines.get(store)
            raise UserError(f"{given}, wanted {wanted}, at store_tile{f' in {line}' if line else ''}")

    def _before_reductions(self) -> set[Value]:
        """Return the arguments, direct or not, of products by lanes whose K subgroups share.

        Such a product is ready only after a barrier, and so are all loads of its arguments.
        """
        ahead: list[Value] = [v for v, op in self.layouts.tiles.items() if isinstance(op, FmaTile) and op.shares_k]
        arguments: set[Value] = set()
        while ahead:
            ahead = [v for value in ahead for v in value.args if v not in arguments]
            arguments.update(ahead)
        return arguments

    def _sections(self, tile: Tile, layout: ValueLayout) -> list[Section]:
        """Return the block in sections along the dim that is contiguous in memory, if its start there is known."""
        tensor, begin = tile.tensor, self.places.begin(tile)
        for n, dim in zip(layout.axes, layout.fragment.dims):
            at, is_whole = begin[n], not (tile.folded and n == tile.kept[0])
            if tensor.is_known and tensor.strides[n] == 1 and is_whole and isinstance(at, int) and at >= 0:
                return sections(layout.fragment, dim, at, tensor.shape[n])
        return [Section(0, layout.fragment)]

    def _scatter(self, scatter: Scatter) -> None:
        k, fragment, memory = self.k, self.layouts.of[scatter.value].fragment, self.places.memory[scatter.tensor.name]
        numbers, value = self._in_layout_of(scatter.indices, scatter.value), self._value(scatter.value)
        mask = self._in_layout_of(scatter.mask, scatter.value) if scatter.mask is not None else None
        exists = inside(k, memory, numbers, mask)
        if scatter.op:
            value = once(k, value, fragment, scatter.op)
            k.atomic_at(scatter.op, memory, numbers, value, fragment, exists, "store")
        else:
            k.store_at(memory, numbers, value, fragment, exists, "store")

    def _layout_of_load(self, load: Load) -> ValueLayout:
        """Return the layout of a loaded value in terms of the tensor's dims."""
        return self.layouts.of[load].on(load.dims)


def _relabelled(elements: Expr) -> Expr:
    """Return a value under another name, which may have another layout of the same registers; no register moves."""
    return Shuffle(elements, tuple(range(elements.type.lanes)))


def _check_scalars_are_read_only(trace: Trace) -> None:
    """Raise UserError for a tensor from which scalars are loaded, maybe ahead of their place, and that is stored to."""
    stored = _stored(trace)
    for load in all_statements(trace.statements):
        if isinstance(load, ScalarLoad) and load.tile.tensor.name in stored:
            given = f"given a scalar of {load.tile.tensor.name}, which the kernel stores to"
            line = trace.lines.get(load)
            raise UserError(f"{given}, wanted a tensor it only loads, at load_scalar{f' in {line}' if line else ''}")


def _stored(trace: Trace) -> set[str]:
    """Return the names of the tensors that a kernel stores to."""
    suite = list(all_statements(trace.statements))
    stored = {s.tile.tensor.name for s in suite if isinstance(s, Store)}
    return stored | {s.tensor.name for s in suite if isinstance(s, Scatter)}


def _scalars_of(loads: Collection[Load], body: Sequence[Statement]) -> list[ScalarLoad]:
    """Return the loads of scalars in a body on which the places of other loads depend, in order."""
    pending, found = [load.tile for load in loads], set[ScalarLoad]()
    by_var = {s.var: s for s in body if isinstance(s, ScalarLoad)}
    while pending:
        tile = pending.pop()
        used = {v for at in tile.offsets if isinstance(at, Expr) for v in free_vars(at)}
        more = {by_var[v] for v in used if v in by_var} - found
        found |= more
        pending += [s.tile for s in more]
    return [s for s in by_var.values() if s in found]


def _tiles(counts: Sequence[Extent]) -> tuple[Extent, Extent, Extent]:
    """Return the batch, rows and columns of a grid."""
    *outer, rows, columns = (1, 1, *counts) if len(counts) < 2 else counts
    return reduce(times, outer, 1), rows, columns


def _loads(value: Value, body: list[Statement]) -> Iterator[Load]:
    """Yield the loads of a body from which a value is computed element by element."""
    if isinstance(value, Load) and value in body:
        yield value
    if isinstance(value, Map | Convert):
        for argument in value.args:
            yield from _loads(argument, body)
