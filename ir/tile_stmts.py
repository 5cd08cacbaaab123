"""Statements of the tile level: whole fragments move between views, shared tiles, registers and lanes.

The pass `lower_tiles` replaces them by messages (`ir.message_stmts`).
"""

from __future__ import annotations

from typing import ClassVar

from convgen.ir.checks import check_range
from convgen.ir.error import UserError
from convgen.ir.expr import Add, And, Binary, Expr, Max, Min, Mul, Or
from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, Shared, View
from convgen.ir.node import family, node, role
from convgen.ir.stmt_base import Effect, Load, Site, Stmt, Store
from convgen.ir.types import Type, f32, f64, s32, u32, vector

_MOST_STEP = 1 << 24  #: rows; bounds what IR text may ask for
_MOST_STAGES = 64  #: blocks of one copy in flight in registers; bounds what IR text may ask for


@node
class LoadView(Load):
    """Bind `var` to the tile of `view` at `coords` (one start per axis), distributed as `layout`.

    The dims of `layout` stand for the axes of the view in order. Elements outside the view are zero.
    """

    form, level = "{var} = load {view}[{coords}] as {layout}", "tile"
    view: View = role(Effect.READS)
    coords: tuple[Expr, ...]
    layout: Fragment
    site: Site


@node
class LoadRuns(LoadView):
    """Load the tile of a `RunView` in whole words, which also hold elements outside it; `Trim` extracts the tile."""

    form = "{var} = load runs of {view}[{coords}] as {layout}"


@node
class Trim(Load):
    """Bind `var` to the tile of `view` at `coords`, extracted from `value`, which `LoadRuns` loaded for that layout."""

    form, level = "{var} = trim {value} to {view}[{coords}] as {layout}", "tile"
    view: View = role(Effect.SHAPES)
    coords: tuple[Expr, ...]
    value: Expr
    layout: Fragment


@node
class Prefetch(Stmt):
    """Prefetch the tile of `view` at `coords` into the caches; changes no value."""

    form, level = "prefetch {view}[{coords}] as {layout}", "tile"
    view: View = role(Effect.PREFETCHES)
    coords: tuple[Expr, ...]
    layout: Fragment
    site: Site


@node
class StoreView(Store):
    """Store the fragment `value` to the tile of `view` at `coords`; elements outside the view are dropped."""

    form, level = "store {view}[{coords}] = {value} as {layout}", "tile"
    view: View = role(Effect.WRITES)
    coords: tuple[Expr, ...]
    value: Expr
    layout: Fragment
    site: Site


@node
class AtomicView(StoreView):
    """Combine each element of the tile of `view` with that of `value` by `op`, atomically in the whole grid.

    `op` is a key of `ATOMICS`.
    """

    form, updates = "atomic {op} {view}[{coords}], {value} as {layout}", True
    op: str


@node
class LoadAt(Load):
    """Gather: bind `var` to the elements of `buffer` numbered by `offsets`; zero where `mask` does not hold.

    Offsets, mask and `var` are distributed as `layout`.
    """

    form, level = "{var} = gather {buffer}[{offsets}]{mask: if |true} as {layout}", "tile"
    buffer: Global = role(Effect.READS)
    offsets: Expr = role("offsets")
    mask: Expr = role("exists")
    layout: Fragment
    site: Site


@node
class StoreAt(Store):
    """Scatter: store each element of `value` to the element of `buffer` numbered by `offsets`, where `mask` holds."""

    form, level = "scatter {buffer}[{offsets}]{mask: if |true} = {value} as {layout}", "tile"
    buffer: Global = role(Effect.WRITES)
    offsets: Expr = role("offsets")
    mask: Expr = role("exists")
    value: Expr
    layout: Fragment
    site: Site


@node
class AtomicAt(StoreAt):
    """Combine elements of `buffer` with `value` by `op`, atomically in the whole grid; each replica counts."""

    form, updates = "scatter atomic {op} {buffer}[{offsets}]{mask: if |true}, {value} as {layout}", True
    op: str


@family
class TileCopy(Stmt):
    """Copy the tile of `view` at `coords` to slot `slot` of `tile`."""

    level: ClassVar[str] = "tile"
    tile: Shared = role(Effect.WRITES)
    slot: Expr
    view: View = role(Effect.READS)
    coords: tuple[Expr, ...]


@node
class Copy(TileCopy):
    """Copy through registers, distributed as `layout`.

    `buffer_shared` splits it into a load and a store. Between them a lane's registers are in the order of `loaded`,
    which suits global memory; the store reorders them to `layout`. The tile's element type may be wider than the
    view's. `flip` is XORed into each element, and into the zeros of missing elements: 0x80 converts u8 to s8 minus 128.
    In a pipelined loop `stages` blocks are in flight in registers.
    """

    form = (
        "copy {tile}[{slot}] = {view}[{coords}] as {layout}"
        "{loaded:, loaded as |layout}{flip:, flipped by |0}, stages {stages}"
    )
    loaded: Fragment
    layout: Fragment
    site: Site
    flip: int
    stages: int

    def infer(self) -> None:
        self.loaded.order_of(self.layout)
        check_range(self.stages, 1, _MOST_STAGES, "stages of a copy:")
        check_range(self.flip, 0, (1 << self.tile.elem.bits) - 1, "bits that a copy flips:")


@node
class DirectCopy(TileCopy):
    """Copy to all of a slot without registers.

    A message writes `width` bytes a lane to contiguous places, in lane order; messages are distributed over subgroups
    round-robin. The places are fixed, so the tile's layout and swizzle decide which element each lane loads.
    """

    form, needs = "copy {tile}[{slot}] = {view}[{coords}] directly, {width} bytes a lane", "direct_widths"
    width: int
    site: Site

    def infer(self) -> None:
        check_range(self.width, self.tile.elem.bytes, self.tile.chunk, "bytes of a lane in a direct copy:")


@node
class TensorCopy(TileCopy):
    """Copy to all of a slot by bulk copies of a tensor, which the first subgroup starts; the tile is in panels.

    Tiles begin at multiples of `step` rows. The copies land before the next barrier. `split_roles` gives them to a role
    that hands over the slots of `ring`.
    """

    form, needs = "copy {tile}[{slot}] = {view}[{coords}] as tensor by {step} rows in {ring}", "roles"
    step: int
    ring: Shared = role(Effect.SHAPES)
    site: Site

    def infer(self) -> None:
        check_range(self.step, 1, _MOST_STEP, "rows from a tile to the next:")


@node
class LoadShared(Load):
    """Bind `var` to slot `slot` of a shared tile, distributed as `layout` (its dims are row and column)."""

    form, level = "{var} = load {tile}[{slot}] as {layout}", "tile"
    tile: Shared = role(Effect.READS)
    slot: Expr
    layout: Fragment
    site: Site


@node
class LoadPart(LoadShared):
    """Load the part of a slot that begins at row `row` and column `col`; parts may overlap, as windows do."""

    form = "{var} = load {tile}[{slot}] from {row}, {col} on as {layout}"
    row: int
    col: int


@node
class StoreShared(Store):
    """Store the fragment `value` to slot `slot` of a shared tile."""

    form, level = "store {tile}[{slot}] = {value} as {layout}", "tile"
    tile: Shared = role(Effect.WRITES)
    slot: Expr
    value: Expr
    layout: Fragment
    site: Site


#: Atomic operations by name, and the element types that each takes.
ATOMICS: dict[str, tuple[Type, ...]] = {
    "add": (f32, f64, s32, u32), "min": (f32, f64, s32, u32), "max": (f32, f64, s32, u32),
    "and": (s32, u32), "or": (s32, u32), "xor": (s32, u32),
}  # fmt: skip

#: Reductions: the operation on two elements, by its name in statements.
REDUCTIONS: dict[str, type[Binary]] = {"add": Add, "mul": Mul, "min": Min, "max": Max, "and": And, "or": Or}


@family
class Exchange(Load):
    """Bind `var` to a fragment whose elements come from other lanes; `value` is distributed as `of`."""

    level: ClassVar[str] = "tile"
    value: Expr
    of: Fragment

    @property
    def layout(self) -> Fragment:
        """Return the distribution of the bound fragment."""
        raise NotImplementedError

    @property
    def crosses_subgroups(self) -> bool:
        """Return whether subgroups need elements of other subgroups: then all subgroups of a workgroup take part."""
        raise NotImplementedError

    def infer(self) -> None:
        source, result = (vector(self.value.type.elem, f.registers) for f in (self.of, self.layout))
        if (self.value.type, self.var.type) != (source, result):
            given = f"given {self.value.type} as {self.of} and {self.var.type} as {self.layout}"
            raise UserError(f"{type(self).__name__.lower()}: {given}, wanted {source} and {result}")
        if result.elem.bits < 8:
            raise UserError(f"{type(self).__name__.lower()}: given elements of {result.elem}, wanted at least 8 bits")


@node
class Reduce(Exchange):
    """Reduce a fragment along `dim` by `op`; bind `var` to the fragment without that dim.

    Every lane with elements of a sum gets the sum. docs/ir.md, "Exchanges", gives the order of operations.
    """

    form = "{var} = reduce {op} of {value} along {dim} of {of}"
    dim: str
    op: str
    site: Site

    @property
    def layout(self) -> Fragment:
        return self.of.without(self.dim)

    @property
    def crosses_subgroups(self) -> bool:
        return any(d.space == Space.SUBGROUP and d.size > 1 for d in self.of.of(self.dim))

    def infer(self) -> None:
        if self.op not in REDUCTIONS or self.dim not in self.of.dims:
            wanted = f"one of {', '.join(REDUCTIONS)} along one of {', '.join(self.of.dims)}"
            raise UserError(f"reduce: given {self.op} along {self.dim}, wanted {wanted}")
        if any(d.space == Space.FIXED for d in self.of.of(self.dim)):
            raise UserError(f"reduce: given {self.of}, which is a part along {self.dim}, wanted all of it")
        super().infer()


@node
class Redistribute(Exchange):
    """Bind `var` to the tile `value`, distributed as `layout`."""

    form = "{var} = redistribute {value} of {of} as {layout}"
    layout: Fragment
    site: Site

    @property
    def crosses_subgroups(self) -> bool:
        return not self.of.prime_digits(Space.SUBGROUP) <= self.layout.prime_digits(Space.SUBGROUP)

    def infer(self) -> None:
        of, to = self.of, self.layout
        if (of.dims, of.shape, of.canonical(Space.FIXED)) != (to.dims, to.shape, to.canonical(Space.FIXED)):
            raise UserError(f"redistribute: given {of} and {to}, wanted two layouts of one tile")
        super().infer()
