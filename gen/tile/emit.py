"""IR of a tile kernel on a target: layouts are known, and factors that products share go through shared memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial, reduce
from math import prod

from convgen.ir.build import KernelBuilder
from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Lane, Pack, Shuffle, Slice, Splat, Uniform, const, maximum, minimum, select, zeros
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Space, times
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.mma import MmaTile
from convgen.ir.layout.order import Order
from convgen.ir.mutate import free_vars
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.extents import upper_bound
from convgen.ir.sizes import Extent, Size
from convgen.ir.stmt import For, block
from convgen.ir.types import Type, VectorType, vector
from convgen.ir.verify import MOST_LANES
from convgen.plan.wide_messages import load_wide, store_wide
from convgen.tile.edges import Section, sections
from convgen.tile.element_access import inside, once
from convgen.tile.factor_copies import FactorCopies
from convgen.tile.lane_products import FmaTile, multiplied
from convgen.tile.layouts import Layouts, Options, ValueLayout, factor_layouts, stored_tensors
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
        self.copies = FactorCopies(self.k, self.layouts, self.places)
        self.unread: list[Value] = []  #: loads whose fragments are in shared memory, read when they are first used

    def build(self) -> Kernel:
        with self.k.tile_of(self.mapping) as tile:
            self._define_offsets(tile)
            self._suite(self.trace.statements)
        self.k.tiles += [self.copies.ring] if self.copies.ring else []  # behind the tiles, whose starts are aligned
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
                case Load() if statement in self.copies.tiles:
                    self.unread.append(statement)
                case Load() if path := self.copies.path_outside_loops(statement):
                    self.values[statement] = self.copies.read_once(statement, path)
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
        k.add(For(index, const(0), self.places.scalar(loop.trips), *state, "k_loop", False))
        of = self.layouts.of
        self.values |= {last: self._moved(v, of[first], of[last]) for (_, first, last), v in zip(carried, results)}

    # ------------------------------------------------------------ shared memory

    def _copy_factors(self, body: list[Statement]) -> None:
        """Copy the factors of a loop body's products to shared memory, between barriers."""
        products = [value for value in body if isinstance(value, Product)]
        loads = dict.fromkeys(v for p in products for side in (p.b, p.a) for v in _loads(side, body))
        paths = self.copies.paths_of(load for load in loads if load in self.layouts.factors)
        if not paths:
            return
        self.k.barrier("release")
        for statement in _scalars_of(paths, body):
            self._load_scalar(statement)
        self.copies.copy(paths)
        self.k.barrier("publish")

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
            case Load() if value in self.copies.tiles:
                name = value.tile.tensor.name
                return k.load_shared(f"{name}_frag", self.copies.tiles[value], fragment, 0, "fragment", name)
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
            tile, name = self.copies.tiles[factor], factor.tile.tensor.name
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
        tile, layout, name = load.tile, self.layouts.of_load(load), f"{load.tile.tensor.name}_tile"
        tensor, at = tile.tensor, self.places.at(tile, layout)
        wide = self.options.wide and load.maps is None and load not in self.layouts.loops
        load_view: Callable[..., Expr] = partial(load_wide, self.k, self.facts) if wide else self.k.load_view
        if load.ends:
            view, at = self.places.until(tile, layout, load.ends)
            return load_view(name, view, at, layout.fragment, "load", tensor.name)
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
        direct = [
            self.layouts.of[v] for v in loads if v not in self.copies.tiles and v not in self._before_reductions()
        ]
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


def _relabelled(elements: Expr) -> Expr:
    """Return a value under another name, which may have another layout of the same registers; no register moves."""
    return Shuffle(elements, tuple(range(elements.type.lanes)))


def _check_scalars_are_read_only(trace: Trace) -> None:
    """Raise UserError for a tensor from which scalars are loaded, maybe ahead of their place, and that is stored to."""
    stored = stored_tensors(trace)
    for load in all_statements(trace.statements):
        if isinstance(load, ScalarLoad) and load.tile.tensor.name in stored:
            given = f"given a scalar of {load.tile.tensor.name}, which the kernel stores to"
            line = trace.lines.get(load)
            raise UserError(f"{given}, wanted a tensor it only loads, at load_scalar{f' in {line}' if line else ''}")


def _scalars_of(loads: Collection[Load], body: Sequence[Statement]) -> list[ScalarLoad]:
    """Return the loads of scalars in a body on which the places of other loads depend, in order."""
    pending, found = [(*load.tile.offsets, *load.ends) for load in loads], set[ScalarLoad]()
    by_var = {s.var: s for s in body if isinstance(s, ScalarLoad)}
    while pending:
        used = {v for at in pending.pop() if isinstance(at, Expr) for v in free_vars(at)}
        more = {by_var[v] for v in used if v in by_var} - found
        found |= more
        pending += [s.tile.offsets for s in more]
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
