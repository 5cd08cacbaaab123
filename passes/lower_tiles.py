"""Lower tile level to message level: views and shared tiles become addresses, masks and single messages.

Requires: copies split into loads and stores (`buffer_shared`). Ensures: no access to a view or fragment is left; whole
fragments remain only as operands of `mma`. Element-wise work on a stored fragment is done message by message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from convgen.ir import stmt as st
from convgen.ir.error import Unsupported, VerifyError
from convgen.ir.expr import (
    Binary,
    Cast,
    Const,
    Expr,
    Pack,
    Saturate,
    Shuffle,
    Slice,
    Splat,
    Surface,
    Var,
    eq,
    lift,
    select,
    temporary,
    var,
)
from convgen.ir.facts import TargetFacts
from convgen.ir.floats import Approximate, Fma
from convgen.ir.layout.digits import plus
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, Shared, Swizzle
from convgen.ir.mma_operands import shared_factors
from convgen.ir.mutate import Mutator, postorder
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.bounds import Bounds
from convgen.ir.simplify.variable_ranges import var_ranges
from convgen.ir.types import AnyType, VectorType, s32, u8, vector
from convgen.passes.buffer_shared import reordered
from convgen.passes.clone import Cloner
from convgen.passes.messages.access import LoopInvariants, TileAccess, element, is_of_elements
from convgen.passes.messages.direct_copies import places_of
from convgen.passes.messages.linear import WORD, ZERO, LinearView, linearize
from convgen.passes.messages.masks import OUT_OF_RANGE
from convgen.passes.messages.ownership import private_tiles
from convgen.passes.messages.packed_views import bytes_of, check_whole_bytes, fragment_of_bytes, half
from convgen.passes.messages.planes import PlaneMessage, plane_messages, wide_rows
from convgen.passes.messages.planner import GlobalMessage, global_messages, trims
from convgen.passes.messages.shared import Arrangement, SharedMessage, shared_messages
from convgen.passes.messages.tensor_copies import tensor_route

#: operations computed per stored message, unless a branch separates them from the store
_SLICED = (Cast, Saturate, Splat, Binary, Fma, Shuffle)

_MOST_BYTES = 1 << 31  #: bytes; buffers with elements accessed by number are smaller, as byte offsets are s32

#: Builds a store or an atomic operation from a buffer, its address operands, a value and a site.
_On = Callable[..., st.Stmt]

_Access = TypeVar("_Access", st.LoadView, st.Prefetch)


def lower_tiles(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Replace every tile access by messages; raises Unsupported where offsets cannot fit.

    Buffers of 4-bit elements that views access become buffers of bytes.
    """
    lowering = _Lowering(kernel, facts)
    body = lowering(kernel.body)
    return evolve(kernel, body=body, params=tuple(lowering.in_pairs.get(p, p) for p in kernel.params))


class _Lowering(Mutator):
    def __init__(self, kernel: Kernel, facts: TargetFacts) -> None:
        super().__init__()
        self.kernel, self.facts = kernel, facts
        self.bounds = Bounds(var_ranges(kernel), kernel.width)
        self.cloner = Cloner(kernel)
        self.invariants = LoopInvariants(*kernel.group_ids, kernel.subgroup)
        self.private = private_tiles(kernel)
        self.factors = shared_factors(kernel.body)
        self.values: dict[Var, Expr] = {}
        self.depth = 0
        self.branches = 0  # nesting depth of branches around the statement being lowered
        self.branches_around: dict[Var, int] = {}
        self.light: dict[Expr, bool] = {}
        self.in_pairs: dict[Global | Var, Global] = {}  # buffers of 4-bit elements as bytes

    # ------------------------------------------------------------ structure

    def Let(self, s: st.Let) -> st.Stmt:
        self.values[s.var], self.branches_around[s.var] = s.value, self.branches
        if not self.depth and not isinstance(s.var.type, VectorType):
            self.invariants.add(s.var)
        return s

    def For(self, s: st.For) -> st.Stmt:
        self.depth += 1
        body = self.mutate(s.body)
        self.depth -= 1
        return evolve(s, body=body)

    def If(self, s: st.If) -> st.Stmt:
        self.branches += 1
        then, other = self.mutate(s.then), self.mutate(s.other)
        self.branches -= 1
        return evolve(s, then=then, other=other)

    def Copy(self, s: st.Copy) -> st.Stmt:
        raise VerifyError(f"lower_tiles: copy into {s.tile.name} was not split into load and store")

    def DirectCopy(self, s: st.DirectCopy) -> st.Stmt:
        """Lower a direct copy: a lane's place in shared memory is fixed, so the tile's layout decides what it loads."""
        tile, k = s.tile, self.kernel
        if s.width not in self.facts.direct_widths:
            raise Unsupported(f"given a direct copy of {s.width} bytes a lane, wanted one that {self.facts.name} has")
        layout = places_of(tile.digits, tile.elem, s.width, k.width, k.subgroups)
        access = self._access(s.coords, linearize(s.view), layout, tile)
        address = k.subgroup * (k.width * s.width)
        slot = s.slot.bits if isinstance(s.slot, Const) else 0
        if not isinstance(s.slot, Const):
            address = address + s.slot * tile.slot_bytes
        out: list[st.Stmt] = []
        for n, m in enumerate(global_messages(access, s.width)):
            if m.count * tile.elem.bytes != s.width:
                contiguous = m.count * tile.elem.bytes
                raise Unsupported(
                    f"given a direct copy of {s.width} bytes a lane, of which {contiguous} are contiguous in memory"
                )
            to = slot * tile.slot_bytes + n * s.width * k.width * k.subgroups
            place = tile, address, to, s.width, self._slot_site(s)
            if self.facts.flat:
                out.append(st.FlatDirectLoad(m.surface.buffer, m.address, m.mask, *place))
            else:
                out.append(st.DirectLoad(m.surface.buffer, m.surface, m.varying, m.uniform, *place))
        return st.block(*out)

    def TensorCopy(self, s: st.TensorCopy) -> st.Stmt:
        """Lower a copy by bulk copies, which the first subgroup starts."""
        loads = [
            st.TensorLoad(
                s.tile, s.slot, m.place, s.view.memory, m.map, m.coords, m.offsets, s.ring, self._slot_site(s)
            )
            for m in tensor_route(s.view, s.tile, s.step).messages(s.coords)
        ]
        return st.If(eq(self.kernel.subgroup, 0), st.block(*loads), st.empty)

    # ------------------------------------------------------------ views

    def _global(self, s: Any, widest: int | None = None) -> Iterator[GlobalMessage]:
        """Yield the messages of an access to a view that are not rectangles."""
        view = linearize(s.view)
        view = view if isinstance(s, st.LoadRuns) else view.whole
        return global_messages(self._access(s.coords, view, s.layout), widest)

    def _access(
        self, coords: tuple[Expr, ...], view: LinearView, layout: Fragment, places: Shared | None = None
    ) -> TileAccess:
        known = self.facts, self.bounds, self.invariants, self.values
        return TileAccess(view, coords, layout.over(len(coords)), self.kernel.subgroup, *known, places)

    def LoadView(self, s: st.LoadView) -> st.Stmt:
        loaded = self._paired(s)
        elem = loaded.view.memory.elem
        return _packed(
            s.var,
            (
                self._load(_part(s.var, m.start, vector(elem, m.count)), m, self.cloner.site(s.site))
                for m in self._tile_messages(loaded)
            ),
        )

    LoadRuns = LoadView

    def Trim(self, s: st.Trim) -> st.Stmt:
        runs = trims(self._access(s.coords, linearize(s.view), s.layout), s.value)
        return _packed(s.var, (st.Let(_part(s.var, n, run.type), run) for n, run in enumerate(runs)))

    def Prefetch(self, s: st.Prefetch) -> st.Stmt:
        return st.block(*(self._prefetch(m, self.cloner.site(s.site)) for m in self._tile_messages(self._paired(s))))

    def _paired(self, s: _Access) -> _Access:
        """Return the access in pairs if elements have 4 bits, else unchanged."""
        if s.view.memory.elem.bits != 4:
            return s
        check_whole_bytes(s.view)
        found = bytes_of(s.view)
        assert found is not None
        view, axis = found
        self.in_pairs[s.view.memory] = view.memory
        coords = tuple(half(c, self.values) if n == axis else c for n, c in enumerate(s.coords))
        # neighbours may lie along an axis that the fragment covers at one position
        whole = s.layout.over(len(s.coords))
        layout = fragment_of_bytes(whole, whole.dims[axis], s.view.memory.elem)
        changed: dict[str, Any] = {"view": view, "coords": coords, "layout": layout}
        if isinstance(s, st.LoadView):
            changed["var"] = var(s.var.name, vector(u8, layout.registers))
        return evolve(s, **changed)

    def _prefetch(self, m: GlobalMessage | PlaneMessage, site: st.Site) -> st.Stmt:
        if isinstance(m, PlaneMessage):
            return st.PlanePrefetch(m.plane, m.shift, m.shape, m.x, m.y, site)
        if not self.facts.flat:
            raise Unsupported(f"given a prefetch of {m.surface.buffer.name}, wanted a target with prefetch messages")
        return st.FlatPrefetch(m.surface.buffer, m.address, m.mask, site)

    def _tile_messages(self, s: st.LoadView | st.Prefetch) -> Iterable[GlobalMessage | PlaneMessage]:
        """Return the messages that load a tile: rectangles if they cover all of it."""
        return self._rectangles(s, stores=False) or self._global(s)

    def _rectangles(self, s: st.LoadView | st.StoreView | st.Prefetch, *, stores: bool) -> list[PlaneMessage]:
        return plane_messages(self._access(s.coords, linearize(s.view), s.layout), stores=stores)

    def _load(self, v: Var, m: GlobalMessage | PlaneMessage, site: st.Site) -> st.Load:
        if isinstance(m, PlaneMessage):
            return st.PlaneLoad(v, m.plane, m.shift, m.shape, m.x, m.y, site)
        if self.facts.flat:
            return st.FlatLoad(v, m.surface.buffer, m.address, m.mask, site)
        return st.GlobalLoad(v, m.surface.buffer, m.surface, m.varying, m.uniform, m.imm, site)

    def StoreView(self, s: st.StoreView) -> st.Stmt:
        """Lower a store to a view: to rectangles if possible, else to messages along memory."""
        s = self._in_wide_rows(s)
        rectangles = self._rectangles(s, stores=True)
        if not rectangles:
            s = self._along_memory(s)
            return self._stores(s, (st.GlobalStore, st.FlatStore), self._global(s))
        values = ((m, self._slice(s.value, m.start, m.count)) for m in rectangles)
        return st.block(
            *(
                st.PlaneStore(m.plane, m.shift, m.shape, m.x, m.y, value, self.cloner.site(s.site))
                for m, value in values
            )
        )

    def _in_wide_rows(self, s: st.StoreView) -> st.StoreView:
        """Return the store with registers ordered for rectangles of more columns, if those are larger."""
        return _in_order(s, wide_rows(linearize(s.view), s.layout, self.facts))

    def _along_memory(self, s: st.StoreView) -> st.StoreView:
        """Return the store with registers ordered so that a lane's contiguous elements share a message."""
        axis = linearize(s.view).unit_axis
        if axis is None or axis >= len(s.layout.dims):
            return s
        dim = s.layout.dims[axis]
        layout = s.layout.along(dim)
        return s if layout.contiguous(dim) == s.layout.contiguous(dim) else _in_order(s, layout)

    def AtomicView(self, s: st.AtomicView) -> st.Stmt:
        one = self._global(s, s.view.memory.elem.bytes)
        return self._stores(s, (partial(st.GlobalAtomic, op=s.op), partial(st.FlatAtomic, op=s.op)), one)

    def _stores(self, s: st.StoreView, how: tuple[_On, _On], messages: Iterable[GlobalMessage]) -> st.Stmt:
        on_surface, on_address = how
        out: list[st.Stmt] = []
        for m in messages:
            value, site = self._slice(s.value, m.start, m.count), self.cloner.site(s.site)
            if self.facts.flat:
                out.append(on_address(m.surface.buffer, m.address, m.mask, value, site))
            else:
                out.append(on_surface(m.surface.buffer, m.surface, m.varying, m.uniform, m.imm, value, site))
        return st.block(*out)

    def _slice(self, e: Expr, start: int, count: int) -> Expr:
        return self._taken(e, range(start, start + count))

    def _taken(self, e: Expr, order: Sequence[int]) -> Expr:
        """Return some elements of a fragment in an order, applying element-wise operations to these only.

        A variable bound outside the branch of the use is not recomputed, and parts of words are permuted after the
        operations that make them.
        """
        start, count = order[0], len(order)
        together = [*order] == [*range(start, start + count)]
        match e:
            case Cast(_, a) | Saturate(_, a) if together or a.type.elem.bits >= 8 * WORD:
                return type(e)(vector(e.type.elem, count), self._taken(a, order))
            case Splat(dtype, a):
                return Splat(vector(dtype.elem, count), a)
            case Binary(a, b):
                return type(e)(self._taken(a, order), self._taken(b, order))
            case Fma(a, b, c):
                return Fma(*(self._taken(each, order) for each in (a, b, c)))
            case Shuffle(a, inner):
                return self._taken(a, [inner[n] for n in order])
            case Var() if self._is_light(e) and self.branches_around[e] == self.branches:
                return self._taken(self.values[e], order)
        return Slice(e, start, count) if together else Shuffle(e, tuple(order))

    def _is_light(self, v: Var) -> bool:
        """Return whether recomputing a variable's value for each message is cheap: it has no approximate function."""
        value = self.values.get(v)
        if not isinstance(value, _SLICED):
            return False
        if value not in self.light:
            self.light[value] = not any(isinstance(e, Approximate) for e in postorder(value))
        return self.light[value]

    # ------------------------------------------------------------ elements by number

    def LoadAt(self, s: st.LoadAt) -> st.Stmt:
        place, surface = self._numbered(s), _all_of(s.buffer)

        def load(n: int) -> st.Load:
            part = _part(s.var, n, vector(s.buffer.elem, 1))
            return st.GlobalLoad(part, s.buffer, surface, _word(place.var, n), ZERO, 0, self.cloner.site(s.site))

        return st.block(place, _packed(s.var, map(load, range(s.layout.registers))))

    def StoreAt(self, s: st.StoreAt) -> st.Stmt:
        place = self._numbered(s)
        kind: _On = partial(st.GlobalAtomic, op=s.op) if isinstance(s, st.AtomicAt) else st.GlobalStore
        out: list[st.Stmt] = [place]
        for n in range(s.layout.registers):
            at, value = _word(place.var, n), self._slice(s.value, n, 1)
            out.append(kind(s.buffer, _all_of(s.buffer), at, ZERO, 0, value, self.cloner.site(s.site)))
        return st.block(*out)

    AtomicAt = StoreAt

    def _numbered(self, s: st.LoadAt | st.StoreAt) -> st.Let:
        """Bind the byte offsets of elements, out of range where the mask does not hold."""
        if s.buffer.bytes >= _MOST_BYTES:
            given = f"given elements by number of {s.buffer.name}, which has {s.buffer.bytes} bytes"
            raise Unsupported(f"{given}, wanted less than 2^31", rule="size")
        at = select(s.mask, s.offsets * s.buffer.elem.bytes, OUT_OF_RANGE)
        return st.Let(temporary(at.type), at)

    # ------------------------------------------------------------ shared tiles

    def _shared(self, s: st.LoadShared | st.StoreShared) -> Iterator[SharedMessage]:
        k = self.kernel
        base, reads = k.shared_base(s.tile), not isinstance(s, st.StoreShared)
        start = (s.row, s.col) if isinstance(s, st.LoadPart) else (0, 0)
        return shared_messages(s.tile, s.slot, s.layout, k.subgroup, k.subgroups, self.facts, base, start, reads=reads)

    def _slot_site(self, s: Any) -> st.Site:
        """Return a new site with the accessed slot; -1 in an overlay, whose slots are not those of its region.

        Where a variable has the slot, the site may know it relative to the iteration.
        """
        slot = s.slot.bits if isinstance(s.slot, Const) else s.site.slot
        slot = slot if s.tile.region == s.tile.name else -1
        return self.cloner.slot_site(s.site, slot, private=s.tile in self.private)

    def LoadShared(self, s: st.LoadShared) -> st.Stmt:
        if s.var in self.factors:
            return self._factor(s)

        def read(m: SharedMessage) -> st.Load:
            part = _part(s.var, m.start, vector(s.tile.elem, m.count))
            return _READS[m.arrangement](part, s.tile, m.address, m.imm, self._slot_site(s))

        return _packed(s.var, map(read, self._shared(s)))

    LoadPart = LoadShared

    def _factor(self, s: st.LoadShared) -> st.Stmt:
        """Return the load of a factor that products read in shared memory, with the place of the team's first row."""
        team = self.factors[s.var].spans
        first = s.layout.coords(self.kernel.subgroup // team * team, ZERO, ZERO)
        start = (s.row, s.col) if isinstance(s, st.LoadPart) else (0, 0)
        row, col = (plus(at, n) for at, n in zip(first.values(), start))
        address = lift(evolve(s.tile, swizzle=Swizzle()).address(0, row, col), ZERO)
        return st.LoadFactor(s.var, s.tile, s.slot, s.layout, self._slot_site(s), *start, address)

    def StoreShared(self, s: st.StoreShared) -> st.Stmt:
        out: list[st.Stmt] = []
        for m in self._shared(s):
            value = self._slice(s.value, m.start, m.count)
            write = st.BlockWrite if m.arrangement is Arrangement.BLOCK else st.SharedWrite
            out.append(write(s.tile, m.address, m.imm, value, self._slot_site(s)))
        return st.block(*out)


_READS = {
    Arrangement.LANE: st.SharedRead,
    Arrangement.BLOCK: st.BlockRead,
    Arrangement.TRANSPOSED: st.TransposedRead,
    Arrangement.MATRIX: st.MatrixRead,
    Arrangement.TRANSPOSED_MATRIX: st.TransposedMatrixRead,
}


def _part(whole: Var, number: int, type: AnyType) -> Var:
    return var(f"{whole.name}_{number}", type)


def _packed(whole: Var, parts: Iterable[st.Load | st.Let]) -> st.Stmt:
    """Return statements that bind the parts of a variable, and a let that packs these."""
    stmts = list(parts)
    return st.block(*stmts, st.Let(whole, Pack(whole.type, tuple(s.var for s in stmts))))


def _in_order(s: st.StoreView, layout: Fragment) -> st.StoreView:
    """Return the store with each lane's elements in the order of another layout."""
    if s.layout == layout:
        return s
    order = s.layout.order_of(layout)
    coords = tuple(Pack(c.type, tuple(element(c, n) for n in order)) if is_of_elements(c) else c for c in s.coords)
    return evolve(s, coords=coords, value=reordered(s.value, s.layout, layout), layout=layout)


def _all_of(buffer: Global) -> Surface:
    return Surface(buffer, ZERO, lift(buffer.length, ZERO))


def _word(e: Expr, n: int) -> Expr:
    """Return element `n` of a vector as a 32-bit integer."""
    return Pack(s32, (Slice(e, n, 1),))
