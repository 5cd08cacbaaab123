"""A small builder for hand-written kernels: it makes variables, numbers sites and nests statements.

A workgroup of one subgroup multiplies A[n, k] by B[m, k], both 32 x 64, into C[n, m]:

>>> from convgen.ir import types as t
>>> from convgen.ir.build import KernelBuilder, matrix
>>> from convgen.ir.layout.digits import Digit, Space
>>> from convgen.ir.layout.fragment import Fragment
>>> from convgen.ir.layout.mma import MmaAtom, MmaTile
>>> def operand(row):
...     digits = Digit(row, 16, Space.LANE, 1), Digit("k", 4, Space.REGISTER, 1), Digit("k", 4, Space.LANE, 16)
...     return Fragment((row, "k"), digits)
>>> d_digits = Digit("n", 4, Space.REGISTER, 1), Digit("n", 4, Space.LANE, 16), Digit("m", 16, Space.LANE, 1)
>>> d = Fragment(("n", "m"), d_digits)
>>> atom = MmaAtom("mma", 16, 16, 16, t.f16, t.f16, t.f32, operand("n"), operand("m"), d, 4)
>>> tile = MmaTile(atom, tiles_n=2, tiles_m=2, steps=1)

>>> k = KernelBuilder("gemm")
>>> a = matrix(k.buffer("a", t.f16, 32 * 64), 32, 64)
>>> b = matrix(k.buffer("b", t.f16, 32 * 64), 32, 64)
>>> c = matrix(k.buffer("c", t.f32, 32 * 32), 32, 32)
>>> with k.loop("kb", 0, 4, acc=k.zeros(tile.acc_type)) as loop:
...     fa = k.load_view("fa", a, (0, loop.var * 16), tile.a)
...     fb = k.load_view("fb", b, (0, loop.var * 16), tile.b)
...     loop.yields(k.mma("product", tile, loop["acc"], fa, fb))
>>> k.store_view(c, (0, 0), loop.result("acc"), tile.d)
>>> kernel = k.done()
>>> print(kernel)
kernel gemm(a: f16[2048], b: f16[2048], c: f32[1024]):
  grid 1 x 1 x 1 as group_x, group_y, group_z
  1 subgroups of 64 lanes as subgroup
  view a = [row32, col64] -> a[row, col] as 32x64:ab
  view b = [row32, col64] -> b[row, col] as 32x64:ab
  view c = [row32, col32] -> c[row, col] as 32x32:ab
  instruction mma: 16 x 16 x 16, f16 x f16 to f32, 4 clocks, a n16l1 k4r1 k4l16, b m16l1 k4r1 k4l16, d n4r1 n4l16 m16l1
  product mma: 2 x 2 x 1 of mma
  for kb in [0, 4) carrying (acc.6: f32x16 = 0.0) -> acc.7:
    fa: f16x8 = load a[0, kb * 16] as n16l1 n2r4 n1s1 k4r1 k4l16 k1r4  # 1
    fb: f16x8 = load b[0, kb * 16] as m16l1 m2r4 m1s1 k4r1 k4l16 k1r4  # 2
    product: f32x16 = mma.mma(acc.6, fa, fb)
    yield product
  store c[0, 0] = acc.7 as n4r1 n4l16 n2r4 n1s1 m16l1 m2r8 m1s1  # 3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from convgen.ir import expr as x
from convgen.ir import sizes
from convgen.ir import stmt as s
from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Var
from convgen.ir.layout.argument import Argument
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.memory import Dim, Global, Shared, Swizzle, TensorDim, View, row_major
from convgen.ir.layout.mma import MmaTile
from convgen.ir.layout.tags import Layout
from convgen.ir.layout.turns import Share, Turns
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.sizes import Extent
from convgen.ir.suites import Index as Index
from convgen.ir.suites import Loop as Loop
from convgen.ir.suites import Suites, lifted
from convgen.ir.types import AnyType, Type, VectorType, bool_, s32, vector


class OfElements(Protocol):
    """A coordinate that differs between the elements of a tile, along one of the tile's axes."""

    axis: int

    def of(self, layout: Fragment) -> Expr:
        """Return the coordinate of each element of a fragment, as a vector with one for each register."""


Coordinate = Index | OfElements


def matrix(memory: Global, rows: int, cols: int) -> View:
    """Return a row-major matrix as a view with axes row and col; elements of a tile beyond its edges read as zero."""
    dims = (Dim("row", rows, rows),), (Dim("col", cols, cols),)
    index = TensorDim(rows, (("row", 1),)), TensorDim(cols, (("col", 1),))
    return View(memory, Layout.dense((rows, cols), (0, 1)), dims, index)


class KernelBuilder(Suites):
    """Collect the statements of one kernel; methods that bind a value return its variable.

    `grid` counts workgroups along x, y and z; a workgroup has `subgroups` subgroups of `width` lanes. Compilation
    refuses a meaningless kernel: it raises `UserError` with the statement concerned.

    Arguments that several methods share: `coords` is the element at which a tile begins, one number for each axis of
    the view, or along an axis behind the fragment's a coordinate of each element; `layout` is the fragment that assigns
    elements to lanes and registers, so a variable or `value` has as many elements as the layout has registers; `slot`
    selects one copy of a multi-slot shared tile; `stage` and `comment` appear in the assembly.
    """

    def __init__(
        self,
        name: str,
        grid: tuple[int, int, int] = (1, 1, 1),
        subgroups: int = 1,
        width: int = 64,
        subgroup: str | None = "subgroup",
    ) -> None:
        super().__init__()
        self.name, self.grid, self.subgroups, self.width = name, grid, subgroups, width
        self.launched: tuple[Extent, ...] = ()
        self.group = tuple(self.var(f"group_{axis}") for axis in "xyz")
        self.has_subgroup = False  #: whether the subgroup number has a name
        if subgroup is not None:
            self.name_subgroup(subgroup)
        self.params: list[Global | Var] = []
        self.tiles: list[Shared] = []

    # ------------------------------------------------------------ declarations

    def name_subgroup(self, name: str) -> Var:
        """Name the subgroup number (within its workgroup) if the constructor did not."""
        self.subgroup, self.has_subgroup = self.var(name), True
        return self.subgroup

    def buffer(self, name: str, elem: Type, elements: int) -> Global:
        """Declare a buffer argument of `elements` elements; the host passes its address."""
        buffer = Global(name, elem, -(-elements * elem.spacing // 8))
        self.params.append(buffer)
        return buffer

    def scalar(self, name: str, type: Type = s32) -> Var:
        """Declare a scalar argument."""
        self.params.append(v := self.var(name, type))
        return v

    def size(self, name: str, most: int, least: int = 1, multiple: int = 1) -> sizes.Size:
        """Declare an s32 argument that the host promises to be in [least, most] and a multiple of `multiple`."""
        self._ids += 1
        self.params.append(v := sizes.Size(name, self._ids, s32, least, most, multiple))
        return v

    def host_value(self, argument: Argument) -> Var:
        """Declare a scalar argument that the host computes from the expression in the launch record."""
        self._ids += 1
        value = sizes.HostValue(argument.name, self._ids, argument.type, argument.value, argument.expr or "")
        self.params.append(value)
        return value

    def shared(
        self,
        name: str,
        elem: Type,
        rows: int,
        cols: int,
        slots: int = 1,
        swizzle: Swizzle | None = None,
        pitch: int | None = None,
        chunk: int = 16,
    ) -> Shared:
        """Declare a shared tile of `slots` x rows x cols elements; `pitch` is bytes from row to row, dense if None.

        `swizzle` permutes the chunks of `chunk` bytes within each row.
        """
        digits = row_major(rows, cols, None if pitch is None else pitch // elem.bytes)
        self.tiles.append(tile := Shared(name, elem, rows, cols, digits, slots, swizzle or Swizzle(), chunk))
        return tile

    # ------------------------------------------------------------ statements

    @contextmanager
    def numbers_of(self, mapping: WorkgroupMapping) -> Iterator[Index]:
        """Run the suite once for each number that a persistent workgroup takes of a grid that mappings share."""
        with ExitStack() as around:
            yield self._share_of(mapping.turns, self.group[0], around).number

    @contextmanager
    def tile_of(self, mapping: WorkgroupMapping, number: Index | None = None) -> Iterator[dict[str, Index]]:
        """Run the suite once for each tile that the mapping assigns to a workgroup; workgroups without a tile skip it.

        With a `number` of `numbers_of`, run it for the tile of this number, if it is one of the mapping's.

        A persistent workgroup loops over its tiles, or shares of tiles, with a barrier in between. If several mappings
        share the grid, the suite runs in the workgroups of this mapping only: workgroups of earlier mappings must not
        reach it, and code for later mappings goes into an `otherwise`. Yields the tile's coordinates, the fields of its
        `Share`, with split-K its slice as `rank` and the number of slices as `sharers`, and `first`, the K grain at
        which the workgroup begins.
        """
        arguments = [self.host_value(a) for a in mapping.arguments]
        self.launched = mapping.launched
        with ExitStack() as around:
            own = self.group[0] if number is None else number
            if mapping.first is not None:
                own = self.let("number", own - mapping.first)
                around.enter_context(self.when(own < mapping.numbers))
            turns = mapping.turns
            share = self._share_of(turns, own, around) if number is None else turns.whole(own)
            tile = mapping.tile((share.number, *self.group[1:]), arguments)
            for cond in mapping.exists(tile):
                around.enter_context(self.when(cond))
            first = tile["k"] * mapping.turns.grains
            if mapping.uneven_grains:
                first, count = mapping.share_of_slice(tile["k"])
                first, share = self.let("first", first), evolve(share, end=self.let("count", count))
                for cond in share.exists:
                    around.enter_context(self.when(cond))
            slices = {"rank": tile["k"], "sharers": mapping.counts[3]} if mapping.counts[3] > 1 else {}
            yield {**tile, **dict(zip(Share.NAMES, share.values)), **slices, "first": first}

    def _share_of(self, turns: Turns, number: Index, around: ExitStack) -> Share:
        """Return the work of a workgroup: a tile or, if it persists, the share of each turn of a loop in `around`."""
        if turns.count == 1 and not turns.shared:
            return turns.whole(number)
        loop = around.enter_context(self.loop("tiles", 0, turns.count))
        around.callback(lambda: self.barrier("next_tile") if self.tiles else None)
        share = turns.share(loop.var, number)
        names = Share.NAMES if turns.shared else Share.NAMES[:1]
        share = Share(*map(self.let, names, share.values), *share.values[len(names) :], tiles=share.tiles)
        for cond in share.exists:
            around.enter_context(self.when(cond))
        return share

    def mma(self, name: str, tile: MmaTile, acc: Expr, a: Expr, b: Expr, *scales: Expr) -> Var:
        """Bind `acc + a * b` on whole fragments."""
        return self.let(name, x.Mma(tile, acc, a, b, scales))

    def zeros(self, type: VectorType) -> Expr:
        """Return a vector of zeros."""
        return x.zeros(type)

    def ticket(self, name: str, buffer: Global, index: Index, turns: Index, stage: str = "ticket") -> Var:
        """Bind the number of subgroups that took a ticket of this round earlier: see `stmt.Ticket`."""
        v = self.var(name)
        self.add(s.Ticket(v, buffer, lifted(index), lifted(turns), self.site(stage, buffer.name)))
        return v

    def acquire(self, stage: str = "ticket") -> None:
        """See what other subgroups stored before a ticket that is known to be taken: see `stmt.Acquire`."""
        self.add(s.Acquire(self.site(stage)))

    def load_view(
        self, name: str, view: View, coords: Sequence[Coordinate], layout: Fragment, stage: str = "", comment: str = ""
    ) -> Var:
        """Bind the tile of a view that begins at `coords`; elements outside the view are zero."""
        v = self.var(name, vector(view.memory.elem, layout.registers))
        self.add(s.LoadView(v, view, _indices(coords, layout), layout, self.site(stage, comment)))
        return v

    def store_view(
        self,
        view: View,
        coords: Sequence[Coordinate],
        value: Expr,
        layout: Fragment,
        stage: str = "",
        comment: str = "",
    ) -> None:
        """Store a tile to a view at `coords`; elements outside the view are dropped."""
        self.add(s.StoreView(view, _indices(coords, layout), value, layout, self.site(stage, comment)))

    def prefetch(
        self, view: View, coords: Sequence[Coordinate], layout: Fragment, stage: str = "prefetch", comment: str = ""
    ) -> None:
        """Prefetch a tile into the caches; `layout` distributes it over lanes."""
        self.add(s.Prefetch(view, _indices(coords, layout), layout, self.site(stage, comment)))

    def copy(
        self,
        tile: Shared,
        view: View,
        coords: Sequence[Coordinate],
        layout: Fragment,
        slot: Index = 0,
        stage: str = "",
        loaded: Fragment | None = None,
        comment: str = "",
        flip: int = 0,
        stages: int = 1,
    ) -> None:
        """Copy a tile of a view to a shared tile through registers; lanes store elements in the order of `layout`.

        They load them in the order of `loaded`, by default in the same one; each lane has the same elements in both.
        `flip` is a bit mask that the copy XORs into each element. `stages` is the number of blocks in registers in
        flight where the loop is pipelined.
        """
        site = self.site(stage, comment)
        loaded = loaded or layout
        self.add(s.Copy(tile, lifted(slot), view, _indices(coords, loaded), loaded, layout, site, flip, stages))

    def copy_directly(
        self,
        tile: Shared,
        view: View,
        coords: Sequence[Index],
        width: int,
        slot: Index = 0,
        stage: str = "",
        comment: str = "",
    ) -> None:
        """Copy a tile of a view to a shared tile without registers, by messages of `width` bytes a lane."""
        at = tuple(map(lifted, coords))
        self.add(s.DirectCopy(tile, lifted(slot), view, at, width, self.site(stage, comment)))

    def copy_as_tensor(
        self,
        tile: Shared,
        view: View,
        coords: Sequence[Index],
        step: int,
        ring: Shared,
        slot: Index = 0,
        stage: str = "",
        comment: str = "",
    ) -> None:
        """Copy a tile of a view to a shared tile in panels, by bulk copies into the slots of a ring.

        Tiles begin at multiples of `step` rows.
        """
        at = tuple(map(lifted, coords))
        self.add(s.TensorCopy(tile, lifted(slot), view, at, step, ring, self.site(stage, comment)))

    def atomic_view(
        self,
        op: str,
        view: View,
        coords: Sequence[Coordinate],
        value: Expr,
        layout: Fragment,
        stage: str = "",
        comment: str = "",
    ) -> None:
        """Combine the tile of a view at `coords` atomically with `value` by `op`, a key of `stmt.ATOMICS`."""
        self.add(s.AtomicView(view, _indices(coords, layout), value, layout, self.site(stage, comment), op))

    def load_shared(
        self, name: str, tile: Shared, layout: Fragment, slot: Index = 0, stage: str = "", comment: str = ""
    ) -> Var:
        """Bind one slot of a shared tile; the layout's dims are its rows and columns."""
        v = self.var(name, vector(tile.elem, layout.registers))
        self.add(s.LoadShared(v, tile, lifted(slot), layout, self.site(stage, comment)))
        return v

    def load_part(
        self, name: str, tile: Shared, layout: Fragment, start: tuple[int, int], stage: str = "", comment: str = ""
    ) -> Var:
        """Bind the part of slot 0 that begins at `start`, a row and a column."""
        v = self.var(name, vector(tile.elem, layout.registers))
        self.add(s.LoadPart(v, tile, lifted(0), layout, self.site(stage, comment), *start))
        return v

    def store_shared(
        self, tile: Shared, value: Expr, layout: Fragment, slot: Index = 0, stage: str = "", comment: str = ""
    ) -> None:
        """Store a fragment to one slot of a shared tile; the layout's dims are its rows and columns."""
        self.add(s.StoreShared(tile, lifted(slot), value, layout, self.site(stage, comment)))

    def reduce(
        self, name: str, value: Expr, layout: Fragment, dim: str, op: type[x.Binary], stage: str = ""
    ) -> tuple[Var, Fragment]:
        """Reduce along a dim (`op` is Add, Mul, Min, Max, And or Or); bind the result and return it with its layout."""
        names = {kind: name for name, kind in s.REDUCTIONS.items()}
        if op not in names:
            raise UserError(f"reduce: given {op.__name__}, wanted one of {', '.join(k.__name__ for k in names)}")
        reduced = layout.without(dim)
        v = self.var(name, vector(value.type.elem, reduced.registers))
        self.add(s.Reduce(v, value, layout, dim, names[op], self.site(stage)))
        return v, reduced

    def redistribute(self, name: str, value: Expr, of: Fragment, to: Fragment, stage: str = "") -> Var:
        """Bind a tile distributed as `of` in the distribution `to`, moving elements between lanes."""
        v = self.var(name, vector(value.type.elem, to.registers))
        self.add(s.Redistribute(v, value, of, to, self.site(stage)))
        return v

    @staticmethod
    def broadcast(value: Expr, of: Fragment, to: Fragment) -> Expr:
        """Return the value repeated along dims that only `to` has; no element moves between lanes.

        Raises UserError if a lane lacks an element that it needs.
        """
        wanted = to
        for dim in to.dims:
            wanted = wanted if dim in of.dims else wanted.without(dim)
        missing = [dim for dim in of.dims if dim not in to.dims]
        if (
            missing
            or of.shape != wanted.shape
            or of.canonical("lane", "subgroup") != wanted.canonical("lane", "subgroup")
        ):
            raise UserError(f"broadcast: given {of}, wanted {wanted}, as lanes need it for {to}; redistribute it first")
        return x.Shuffle(value, tuple(of.owner(to.coords(0, 0, r))[2] for r in range(to.registers)))

    def load_at(
        self, name: str, buffer: Global, offsets: Expr, layout: Fragment, mask: Expr | None = None, stage: str = ""
    ) -> Var:
        """Bind the elements of a buffer whose numbers stand in `offsets`; zero where the mask does not hold."""
        v = self.var(name, vector(buffer.elem, layout.registers))
        self.add(s.LoadAt(v, buffer, offsets, _every(mask, layout), layout, self.site(stage, buffer.name)))
        return v

    def store_at(
        self, buffer: Global, offsets: Expr, value: Expr, layout: Fragment, mask: Expr | None = None, stage: str = ""
    ) -> None:
        """Store each element to the element of a buffer whose number stands in `offsets`, where the mask holds."""
        self.add(s.StoreAt(buffer, offsets, _every(mask, layout), value, layout, self.site(stage, buffer.name)))

    def atomic_at(
        self,
        op: str,
        buffer: Global,
        offsets: Expr,
        value: Expr,
        layout: Fragment,
        mask: Expr | None = None,
        stage: str = "",
    ) -> None:
        """Combine the elements of a buffer at `offsets` atomically with `value` by `op`, where the mask holds."""
        self.add(s.AtomicAt(buffer, offsets, _every(mask, layout), value, layout, self.site(stage, buffer.name), op))

    def surface(self, buffer: Global, shift: Index = 0, extent: Index | None = None) -> x.Surface:
        """Return a window of a buffer, `extent` bytes from byte `shift` on; up to the buffer's end if None."""
        return x.Surface(buffer, lifted(shift), lifted(buffer.bytes - shift if extent is None else extent))

    def _window(self, surface: Expr, varying: Index, uniform: Index) -> tuple[Global, Expr, Expr, Expr]:
        """Return (buffer, surface, varying, uniform) of an access; a let may have bound the surface."""
        window = self._surfaces.get(surface, surface)
        if not isinstance(window, x.Surface):
            raise UserError(f"given {surface}, wanted a surface, or a variable that a let binds to one")
        return window.buffer, surface, lifted(varying), lifted(uniform)

    def global_load(
        self, name: str, type: AnyType, surface: Expr, varying: Index, uniform: Index = 0, imm: int = 0
    ) -> Var:
        """Bind a value of `type`, read at byte `varying + uniform + imm` of a surface; zero outside the surface.

        `varying` differs between lanes, `uniform` does not, `imm` is a constant. Raises UserError if `surface` is not a
        surface.
        """
        v = self.var(name, type)
        self.add(s.GlobalLoad(v, *self._window(surface, varying, uniform), imm, self.site()))
        return v

    def global_store(self, surface: Expr, value: Expr, varying: Index, uniform: Index = 0, imm: int = 0) -> None:
        """Store a value at byte `varying + uniform + imm` of a surface; dropped outside it.

        Raises UserError if `surface` is not a surface.
        """
        self.add(s.GlobalStore(*self._window(surface, varying, uniform), imm, value, self.site()))

    def global_atomic(
        self, op: str, surface: Expr, value: Expr, varying: Index, uniform: Index = 0, imm: int = 0
    ) -> None:
        """Combine the elements at byte `varying + uniform + imm` of a surface atomically with `value` by `op`.

        `op` is a key of `stmt.ATOMICS`. Raises UserError if `surface` is not a surface.
        """
        self.add(s.GlobalAtomic(*self._window(surface, varying, uniform), imm, value, self.site(), op))

    def shared_read(self, name: str, type: AnyType, tile: Shared, address: Index, imm: int = 0) -> Var:
        """Bind a value of `type` at `address + imm` bytes from the start of a shared tile."""
        v = self.var(name, type)
        self.add(s.SharedRead(v, tile, lifted(address), imm, self.site()))
        return v

    def shared_write(self, tile: Shared, value: Expr, address: Index, imm: int = 0) -> None:
        """Store a value at `address + imm` bytes from the start of a shared tile."""
        self.add(s.SharedWrite(tile, lifted(address), imm, value, self.site()))

    def done(self) -> Kernel:
        """Return the kernel, not yet verified; variables created by passes get higher ids."""
        x.reserve_ids(self._ids)
        body = s.block(*self._suites[0])
        size = self.grid, self.subgroups, self.width
        names = self.group, self.subgroup, tuple(self.tiles)
        return Kernel(self.name, tuple(self.params), *size, *names, body, self.launched)


def _indices(coords: Sequence[Coordinate], layout: Fragment) -> tuple[Expr, ...]:
    """Return the coordinates of a tile whose elements are distributed as `layout`."""
    return tuple(lifted(at) if isinstance(at, Expr | int) else at.of(layout) for at in coords)


def _every(mask: Expr | None, layout: Fragment) -> Expr:
    """Return the mask, or one that always holds if none is given."""
    return x.Splat(vector(bool_, layout.registers), x.const(True, bool_)) if mask is None else mask
