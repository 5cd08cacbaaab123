"""The rules of well-formed statements: each checks one statement and returns a complaint or None."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from convgen.ir import expr as x
from convgen.ir import stmt as s
from convgen.ir.expr import Const
from convgen.ir.layout.digits import Digits, Space, times
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import (
    COL,
    MOST_BYTES,
    ROW,
    Global,
    Plane,
    RectangleOrder,
    RunView,
    Shared,
    SizedView,
    View,
)
from convgen.ir.layout.shared_panels import span_of
from convgen.ir.mma_operands import shared_factors
from convgen.ir.ring import ring_of
from convgen.ir.simplify.extents import extent_complaint, never_less
from convgen.ir.stmt import Stmt
from convgen.ir.text import show
from convgen.ir.types import AnyType, Type, VectorType, bf16, bool_, f16, f32, s32, surface, u64, vector

if TYPE_CHECKING:
    from convgen.ir.verify import Checker

_MOST_TURNS = 1 << 30  #: turns of a round of tickets: counts are s32
MESSAGE_BYTES = (1, 2, 4, 8, 12, 16, 32)  #: bytes that one message may move for a lane


class AnyLayout:
    """The distribution of a value whose elements are all equal: it suits every layout."""


ANY_LAYOUT: Final = AnyLayout()
KnownLayout = Fragment | AnyLayout | None  #: distribution of a value, as far as known; None if unknown


def common_layout(distributions: Iterable[KnownLayout]) -> KnownLayout:
    """Return the distribution of an element-wise operation on values with these distributions."""
    kinds = dict.fromkeys(d for d in distributions if d is not ANY_LAYOUT)
    return next(iter(kinds)) if len(kinds) == 1 else None if kinds else ANY_LAYOUT


Rule = Callable[["Checker", Any], "str | None"]


def belongs(c: Checker, n: Stmt) -> str | None:
    foreign = c.level and n.level and n.level != c.level
    return f"{type(n).__name__} does not belong to the {c.level} level" if foreign else None


def declared(c: Checker, n: Stmt) -> str | None:
    for m in n.memory():
        if isinstance(m, Shared) and m not in c.kernel.shared:
            return f"shared tile {m.name} is not one of the kernel's"
        if isinstance(m, Global) and m not in c.kernel.params:
            return f"buffer {m.name} is not an argument of the kernel"
    return None


def site(c: Checker, n: Stmt) -> str | None:
    if n.site is None:
        return None
    number = n.site.number
    if number in c.sites:
        return f"two statements have site {number}"
    c.sites[number] = None
    return None


def split_barriers(c: Checker, n: Stmt) -> str | None:
    """Check that no shared-memory access and no change of block is between arriving at a barrier and waiting."""
    begun, c.arrived = c.arrived, isinstance(n, s.Arrive) or (c.arrived and not isinstance(n, s.Wait))
    if isinstance(n, s.Wait):
        return None if begun else "a wait at a barrier without an arrival"
    concerned = begun and s.ordered_by_barriers(n)
    return f"{type(n).__name__} between arrival and wait at a barrier" if concerned else None


def uniform(*fields: str) -> Rule:
    """Return a rule: these operands are uniform integers or bools."""

    def rule(c: Checker, n: Any) -> str | None:
        for name in fields:
            value = getattr(n, name)
            for e in value if isinstance(value, tuple) else (value,):
                if not isinstance(e.type, Type) or e.type.is_float:
                    return f"{name} {show(e)} is {e.type}, not an integer"
                if not c.uniform(e):
                    return f"{name} {show(e)} differs between lanes"
        return None

    return rule


def _offset(field: str) -> Rule:
    """Return a rule: this operand is one integer a lane."""

    def rule(c: Checker, n: Any) -> str | None:
        e = getattr(n, field)
        return None if isinstance(e.type, Type) and e.type.is_int else f"{field} {show(e)} is {e.type}, not an integer"

    return rule


def _loop_types(c: Checker, n: s.For) -> str | None:
    types = n.var.type, n.begin.type, n.end.type
    given = f"loop variable, first and last bound are of types {', '.join(map(str, types))}"
    return f"{given}, wanted one type" if len(set(types)) > 1 else None


def _exit(c: Checker, n: s.ExitIf) -> str | None:
    if n.cond.type is not bool_:
        return f"exit_if: a condition of type {n.cond.type}"
    if not c.loops:
        return "exit_if outside a loop"
    given, wanted = [v.type for v in n.values], [v.type for v in c.loops[-1].results]
    return f"exit_if: given values of types {given}, wanted {wanted}" if given != wanted else None


def _coordinates(c: Checker, n: Any) -> str | None:
    """Check that a tile begins at uniform coordinates, except along axes behind its fragment's.

    There each element may have a position of its own, in a vector with as many as the fragment has registers.
    """
    layout = n.loaded if isinstance(n, s.Copy) else None if isinstance(n, s.DirectCopy) else n.layout
    for axis, e in enumerate(n.coords):
        if isinstance(e.type, VectorType) and e.type.elem is s32:
            if axis < (2 if layout is None else len(layout.dims)):
                return f"coords {show(e)} differs between elements along axis {axis}, a dim of the fragment"
            if layout is not None and e.type.lanes != layout.registers:
                return f"coords {show(e)} is {e.type}, wanted {vector(s32, layout.registers)}"
        elif not isinstance(e.type, Type) or e.type.is_float:
            return f"coords {show(e)} is {e.type}, not an integer"
        elif not c.uniform(e):
            return f"coords {show(e)} differs between lanes"
    return None


def _view(c: Checker, n: Any) -> str | None:
    """Check that a view's axes, index, layout and extents fit one another and the statement's coordinates."""
    view: View = n.view
    if not all(view.axes):
        return f"the view of {view.memory.name} has an axis without dims"
    names = [d.name for axis in view.axes for d in axis]
    if len(set(names)) < len(names):
        return f"the view of {view.memory.name} has two dims of one name: {', '.join(names)}"
    unknown = [name for t in view.index for name, _ in t.terms if name not in names]
    if unknown:
        return f"the view of {view.memory.name} has no dim {unknown[0]}"
    if tuple(t.size for t in view.index) != view.layout.dims:
        return f"the view of {view.memory.name} indexes {[t.size for t in view.index]}, its layout {view.layout.dims}"
    dims = 2 if isinstance(n, (s.DirectCopy, s.TensorCopy)) else len(n.layout.dims)
    if len(n.coords) != len(view.axes) or dims > len(view.axes):
        return f"{len(n.coords)} coordinates and {dims} fragment dims for {len(view.axes)} axes"
    inner = [d.name for axis in view.axes for d in axis[1:] if d.exact is not None]
    if inner:
        return f"the view of {view.memory.name} has {inner[0]} positions of an inner dim, wanted a number"
    params = c.kernel.params
    complaints = [extent_complaint(d.extent, params, 0, d.size) for axis in view.axes for d in axis]
    if isinstance(view, SizedView):
        if len(view.apart) != len(view.index):
            return f"the view of {view.memory.name} has {len(view.apart)} strides for {len(view.index)} dims"
        complaints += [extent_complaint(apart, params, 0, MOST_BYTES) for apart in view.apart]
    return next(filter(None, complaints), None)


def _fragment(c: Checker, n: Any) -> str | None:
    """Check that the layout fits the workgroup and the shared tile, if there is one."""
    layout: Fragment = n.layout
    elem = n.memory()[0].elem
    if elem.is_by_bytes:
        return f"a fragment of {elem}, wanted one of the bytes that pack such elements"
    if elem.bits == 4 and not isinstance(n, s.LoadView | s.Prefetch | s.Copy):
        return f"a fragment of {elem}, which has no address of its own; wanted messages"
    tile = getattr(n, "tile", None)
    complaint = _fits(c, layout)
    if tile is None or complaint:
        return complaint
    row, col = (n.row, n.col) if isinstance(n, s.LoadPart) else (0, 0)
    if len(layout.shape) != 2 or layout.shape[0] + row > tile.rows or layout.shape[1] + col > tile.cols:
        return f"a fragment of {layout.shape} does not fit shared tile {tile.name} of {tile.rows} x {tile.cols}"
    return None


def _runs(c: Checker, n: s.LoadRuns | s.Trim) -> str | None:
    """Check that the view has runs, and that its messages load at least the tile that `Trim` extracts from them."""
    elem, registers = n.view.memory.elem, n.layout.registers
    if not isinstance(n.view, RunView):
        return f"runs of {n.view.memory.name}, whose view is not one with runs"
    given = n.value.type if isinstance(n, s.Trim) else n.var.type
    if given.elem is not elem or given.lanes < registers:
        return f"runs of {n.view.memory.name} as {given}, wanted at least {registers} of {elem}"
    if isinstance(n, s.Trim) and n.var.type is not vector(elem, registers):
        return f"runs of {n.view.memory.name} trimmed to {n.var.type}, wanted {vector(elem, registers)}"
    return _fits(c, n.layout)


def _fits(c: Checker, layout: Fragment) -> str | None:
    """Check that the kernel has as many lanes and subgroups as the layout needs."""
    for space, have in ((Space.LANE, c.kernel.width), (Space.SUBGROUP, c.kernel.subgroups)):
        need = max((d.stride * d.size for d in layout.digits if d.space is space and d.size > 1), default=1)
        if need > have:
            return f"fragment {layout} needs {need} {space.name.lower()}s, the kernel has {have}"
    return None


def _exchanged(c: Checker, n: s.Exchange) -> str | None:
    """Check that the value is distributed as the statement declares; names of dims may differ."""
    layout = c.distribution(n.value)
    if isinstance(layout, Fragment) and len(layout.dims) == len(n.of.dims):
        layout = layout.renamed(dict(zip(layout.dims, n.of.dims)))
    if isinstance(layout, Fragment) and layout != n.of:
        return f"a value distributed as {layout} is exchanged as {n.of}"
    return _fits(c, n.of) or _fits(c, n.layout)


def _reducible(c: Checker, n: s.Reduce) -> str | None:
    elem = n.value.type.elem
    takes = elem.is_int if n.op in ("and", "or") else elem.is_int or elem.is_float
    return None if takes and not elem.is_storage else f"a reduction by {n.op} of {elem}"


def _moved(c: Checker, n: Any) -> str | None:
    given = c.distribution(n.value) if isinstance(n, s.Store) else n.layout
    if isinstance(given, Fragment) and given != n.layout:
        return f"a value distributed as {given} is stored as {n.layout}"
    wanted = vector(n.memory()[0].elem, n.layout.registers)
    return None if n.moved is wanted else f"a fragment of type {n.moved}, wanted {wanted}"


def _indexed(c: Checker, n: s.LoadAt | s.StoreAt) -> str | None:
    """Check that each element has its own offset and mask."""
    count = n.layout.registers
    if n.offsets.type is not vector(s32, count) or n.mask.type is not vector(bool_, count):
        return f"offsets of {n.offsets.type} and a mask of {n.mask.type}, wanted {vector(s32, count)} and as many bools"
    for e in (n.offsets, n.mask):
        given = c.distribution(e)
        if isinstance(given, Fragment) and given != n.layout:
            return f"{show(e)} is distributed as {given}, wanted {n.layout}"
    return None


def _ticket(c: Checker, n: Any) -> str | None:
    known = n.turns.bits if isinstance(n.turns, Const) else 1
    if n.var.type is not s32 or n.buffer.elem is not s32 or n.turns.type is not s32 or not 1 <= known <= _MOST_TURNS:
        return f"a ticket of type {n.var.type} of {n.turns} from counts of {n.buffer.elem}"
    return None


def _part(c: Checker, n: s.LoadPart) -> str | None:
    """Check that a part has the strides of the part at (0, 0), and that the swizzle moves no chunk out of it."""
    tile, swizzle = n.tile, n.tile.swizzle
    # The swizzle permutes chunks within groups of `mask` + 1 along a line, by the line's number modulo `period`.
    along, line = (n.row, n.col) if tile.is_transposed else (n.col, n.row)
    leads_out = swizzle.mask and (along % (tile.chunk // tile.elem.bytes * (swizzle.mask + 1)) or line % swizzle.period)
    evenly = all(
        _is_even(tile.digits, dim, first, count)
        for dim, first, count in zip((ROW, COL), (n.row, n.col), n.layout.shape)
    )
    part = f"a part of shared tile {tile.name} from row {n.row}, column {n.col} on"
    if n.row < 0 or n.col < 0:
        return f"{part} begins outside the tile"
    if not evenly:
        return f"{part} has other strides than the part from 0, 0 on"
    in_place = n.var in shared_factors(c.kernel.body)  # each element's address decides the swizzle
    return f"{part} has chunks that the swizzle moves out of it" if leads_out and not in_place else None


def _factor(c: Checker, n: s.LoadFactor) -> str | None:
    """Check that products read the fragment where it stands."""
    if n.var in shared_factors(c.kernel.body):
        return None
    return f"{n.var.name} is used by no product that reads shared memory"


@lru_cache(maxsize=2**10)
def _is_even(digits: Digits, dim: str, first: int, count: int) -> bool:
    """Return whether `count` positions from `first` on have the strides in memory of those from 0 on."""
    at = np.arange(count)
    near, far = (digits.place({**dict.fromkeys(digits.dims, 0), dim: begin + at}) for begin in (0, first))
    moved = np.atleast_1d(far.get(Space.MEMORY, 0) - near.get(Space.MEMORY, 0))
    return bool((moved == moved[0]).all())


def _atomic(c: Checker, n: Any) -> str | None:
    elem, takes = n.value.type.elem, s.ATOMICS.get(n.op)
    if takes is None:
        return f"the atomic operation {n.op}, wanted one of {', '.join(s.ATOMICS)}"
    return None if elem in takes else f"atomic {n.op} of {elem}, wanted {', '.join(map(str, takes))}"


def _copied(c: Checker, n: s.Copy) -> str | None:
    to, elem = n.tile.elem, n.view.memory.elem
    flips = n.flip and to.is_int and elem.is_int and to.bits == elem.bits
    rounds = elem is f32 and to in (f16, bf16)
    if not (to.holds(elem) or flips or rounds):
        return f"copy of {elem} into a shared tile of {to}, which cannot represent all its values"
    return None


def _direct(c: Checker, n: s.DirectCopy) -> str | None:
    """Check that whole messages of all subgroups fill the slot, with elements of the view's type."""
    tile, elem = n.tile, n.view.memory.elem
    if elem is not tile.elem or elem.bits < 8:
        return f"direct copy of {elem} into a shared tile of {tile.elem}; direct copies do not convert"
    if tile.swizzle.mask and tile.chunk & (tile.chunk - 1):
        return f"direct copy into {tile.name}, swizzled by chunks of {tile.chunk} bytes, wanted a power of two"
    if tile.swizzle.mask and tile.swizzle.mask >= tile.chunks:
        line = "columns" if tile.is_transposed else "rows"
        given = f"direct copy into {tile.name}, whose swizzle exchanges chunks of different {line}"
        return f"{given}, wanted one within {line}"
    each = n.width * c.kernel.width * c.kernel.subgroups
    if not tile.is_dense or tile.slot_bytes % each:
        return (
            f"direct copy into {tile.name}, slots of {tile.slot_bytes} bytes, wanted multiples of {each} without gaps"
        )
    if n.width % elem.bytes or tile.chunk % n.width:
        given = f"direct copy into {tile.name} by {n.width} bytes a lane"
        return f"{given}, wanted a multiple of {elem.bytes} and a divisor of the chunk, {tile.chunk}"
    return None


def _tensor_copy(c: Checker, n: s.TensorCopy) -> str | None:
    """Check that a tile in panels takes the view's elements unchanged, and has a ring with as many slots."""
    if n.view.memory.elem is not n.tile.elem or not span_of(n.tile):
        given = f"a copy of {n.view.memory.elem} as tensor into {n.tile.name}"
        return f"{given}, wanted a tile in panels with elements of this type"
    return _ring_of(n)


def _tensor_load(c: Checker, n: s.TensorLoad) -> str | None:
    """Check that a bulk copy lies within the slot, has a coordinate for each dimension and names its own buffer."""
    tensor, end = n.tensor, n.place + n.tensor.bytes
    if n.place < 0 or end > n.tile.slot_bytes:
        return f"a bulk copy to bytes {n.place} to {end} of a slot of {n.tile.name}, which has {n.tile.slot_bytes}"
    offsets = len(tensor.dims) - 2 if tensor.kind == "im2col" else 0
    if (len(n.coords), len(n.offsets)) != (len(tensor.dims), offsets):
        return f"a bulk copy with {len(n.coords)} coordinates and {len(n.offsets)} offsets of {tensor}"
    return _ring_of(n) if tensor.buffer == n.buffer.name else f"a tensor map of {tensor.buffer} for {n.buffer.name}"


def _ring_of(n: s.TensorCopy | s.TensorLoad) -> str | None:
    fits = n.ring.cols == n.tile.slots
    return None if fits else f"ring {n.ring.name} of {n.ring.cols} slots for {n.tile.name}, which has {n.tile.slots}"


def _ring(c: Checker, n: Any) -> str | None:
    return None if n.ring == ring_of(n.ring.name, n.ring.cols) else f"shared tile {n.ring.name}, wanted a ring"


def _direct_message(c: Checker, n: s.DirectMessage) -> str | None:
    wrong = n.width not in MESSAGE_BYTES or n.imm < 0
    return f"a direct load of {n.width} bytes a lane to {n.imm}" if wrong else None


def _surface(c: Checker, n: Any) -> str | None:
    if n.surface.type is not surface or not c.uniform(n.surface):
        return f"{show(n.surface)} is not a surface that all lanes share"
    if isinstance(n.surface, x.Surface) and n.surface.buffer is not n.buffer:
        return f"a surface of {n.surface.buffer.name}, of a message that accesses {n.buffer.name}"
    return None


def _message(c: Checker, n: Any) -> str | None:
    type: AnyType = n.moved
    if type.elem.is_bool or type.bits % 8 or type.bits // 8 not in MESSAGE_BYTES:
        return f"a message of {type}, {type.bits} bits a lane; wanted {', '.join(map(str, MESSAGE_BYTES))} bytes"
    return _immediate(c, n)


def _immediate(c: Checker, n: Any) -> str | None:
    base = c.kernel.shared_base(n.tile) if isinstance(n, (s.SharedRead, s.SharedWrite)) else 0
    return f"a negative immediate {n.imm}" if base + getattr(n, "imm", 0) < 0 else None


def _block(c: Checker, n: Any) -> str | None:
    type: AnyType = n.moved
    whole = not type.elem.is_bool and type.bits % 32 == 0
    return None if whole else f"a block of {type}, {type.bits} bits a lane; wanted whole dwords"


def _transposed_read(c: Checker, n: Any) -> str | None:
    type: AnyType = n.moved
    fits = type.elem.bits == 16 and type.bits == 64
    return None if fits else f"a transposed read of {type}, wanted four elements of 16 bits"


def _plane(c: Checker, n: Any) -> str | None:
    plane: Plane = n.plane
    complaints = [extent_complaint(e, c.kernel.params, 0, MOST_BYTES) for e in (plane.width, plane.height, plane.pitch)]
    if any(complaints):
        return next(filter(None, complaints))
    end = times(plane.height - 1, plane.pitch) + plane.base + plane.width
    inside = plane.base >= 0 and never_less(plane.memory.length, end)
    if not inside or not never_less(plane.pitch, plane.width):
        return f"a plane of {plane.memory.name}, which is not within its buffer"
    return None


def _rectangle(c: Checker, n: s.PlaneLoad | s.PlaneStore) -> str | None:
    shape, type = n.shape, n.moved
    width, elem = c.kernel.width, type.elem.bytes
    if type.elem.is_bool or type.bits % 32:
        return f"a rectangle of {type}, {type.bits} bits a lane; wanted whole dwords"
    if isinstance(n, s.PlaneLoad) and shape.order is RectangleOrder.COLUMN_A_LANE and shape.cols > width:
        return f"a load of {shape.cols} columns, one a lane; wanted at most {width}"
    if shape.size != width * type.lanes or shape.layout(width, elem).registers != type.lanes:
        what = f"{shape.rows} x {shape.cols}, {shape.order.value}"
        return f"a rectangle of {what}, for {type}; wanted the elements of {width} lanes"
    return None


def _flat(c: Checker, n: Any) -> str | None:
    if n.address.type is not u64:
        return f"address {show(n.address)} is {n.address.type}, wanted u64"
    return _masked(c, n)


def _masked(c: Checker, n: Any) -> str | None:
    return None if n.mask.type is bool_ else f"mask {show(n.mask)} is {n.mask.type}, wanted bool"


def _matrices(c: Checker, n: Any) -> str | None:
    whole = not n.moved.elem.is_bool and n.moved.bits == 4 * 32 and c.kernel.width == 32
    return None if whole else f"a read of matrices of {n.moved}, wanted four dwords a lane of 32 lanes"


def _of_halves(c: Checker, n: Any) -> str | None:
    halves = n.moved.elem.bits == 16
    return None if halves else f"a transposing read of matrices of {n.moved}, wanted elements of 16 bits"


STATEMENTS: dict[type[Stmt], tuple[Rule, ...]] = {
    s.For: (uniform("begin", "end"), _loop_types),
    s.If: (uniform("cond"),),
    s.ExitIf: (uniform("cond"), _exit),
    s.LoadView: (_view, _coordinates, _fragment, _moved),
    s.LoadRuns: (_view, uniform("coords"), _fragment, _runs),
    s.Trim: (_view, uniform("coords"), _runs),
    s.Prefetch: (_view, _coordinates, _fragment),
    s.StoreView: (_view, _coordinates, _fragment, _moved),
    s.AtomicView: (_view, _coordinates, _fragment, _moved, _atomic),
    s.LoadAt: (_fragment, _moved, _indexed),
    s.StoreAt: (_fragment, _moved, _indexed),
    s.AtomicAt: (_fragment, _moved, _indexed, _atomic),
    s.Copy: (_view, _coordinates, uniform("slot"), _fragment, _copied),
    s.DirectCopy: (_view, _coordinates, uniform("slot"), _direct),
    s.TensorCopy: (_view, uniform("coords", "slot"), _tensor_copy),
    s.TensorLoad: (uniform("slot", "coords", "offsets"), _tensor_load),
    s.StartRing: (_ring,),
    s.AcquireSlot: (_ring, uniform("slot", "phase")),
    s.AwaitSlot: (_ring, uniform("slot", "phase")),
    s.ReleaseSlot: (_ring, uniform("slot")),
    s.LoadShared: (uniform("slot"), _fragment, _moved),
    s.LoadPart: (uniform("slot"), _fragment, _moved, _part),
    s.LoadFactor: (uniform("slot"), uniform("address"), _fragment, _moved, _part, _factor),
    s.StoreShared: (uniform("slot"), _fragment, _moved),
    s.Reduce: (_exchanged, _reducible),
    s.Redistribute: (_exchanged,),
    s.Ticket: (uniform("index"), uniform("turns"), _ticket),
    s.Acquire: (),
    s.GlobalLoad: (_surface, _offset("varying"), uniform("uniform"), _message),
    s.GlobalStore: (_surface, _offset("varying"), uniform("uniform"), _message),
    s.GlobalAtomic: (_surface, _offset("varying"), uniform("uniform"), _message, _atomic),
    s.FlatLoad: (_flat, _message),
    s.PartialLoad: (_flat, _message),
    s.FlatStore: (_flat, _message),
    s.FlatPrefetch: (_flat,),
    s.FlatAtomic: (_flat, _message, _atomic),
    s.PlaneLoad: (_plane, uniform("shift", "x", "y"), _rectangle),
    s.PlaneStore: (_plane, uniform("shift", "x", "y"), _rectangle),
    s.PlanePrefetch: (_plane, uniform("shift", "x", "y")),
    s.DirectLoad: (_surface, _offset("varying"), uniform("uniform", "place"), _direct_message),
    s.FlatDirectLoad: (_flat, uniform("place"), _direct_message),
    s.SharedRead: (_offset("address"), _message),
    s.SharedWrite: (_offset("address"), _message),
    s.FilledWrite: (_offset("address"), _masked, _message),
    s.BlockRead: (uniform("address"), _block, _immediate),
    s.TransposedRead: (_offset("address"), _transposed_read, _immediate),
    s.MatrixRead: (_offset("address"), _matrices, _immediate),
    s.TransposedMatrixRead: (_offset("address"), _matrices, _immediate, _of_halves),
    s.BlockWrite: (uniform("address"), _block, _immediate),
}
