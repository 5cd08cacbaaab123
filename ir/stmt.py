"""Statements of both levels. A block's lets and loads are visible to the statements after them in that block.

Tile level: whole fragments move between views, shared tiles and registers. Message level: one statement is one memory
instruction, its address split into (surface, varying offset, uniform offset, immediate), or one flat 64-bit address a
lane with a mask. The pass `lower_tiles` replaces tile-level statements; classes without a level belong to both.

Each class declares what its statements bind and access, and their text; `ir.stmt_base` explains the declarations.
"""

from __future__ import annotations

from typing import ClassVar

from convgen.ir.checks import check_name, check_range
from convgen.ir.error import UserError
from convgen.ir.expr import Add, And, Binary, Expr, Max, Min, Mul, Or, Var
from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, Plane, Rectangle, Shared, View
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.node import family, node, role
from convgen.ir.ring import AcquireSlot as AcquireSlot
from convgen.ir.ring import AwaitSlot as AwaitSlot
from convgen.ir.ring import ReleaseSlot as ReleaseSlot
from convgen.ir.ring import StartRing as StartRing
from convgen.ir.ring import TakeRegisters as TakeRegisters
from convgen.ir.stmt_base import Effect as Effect
from convgen.ir.stmt_base import Load as Load
from convgen.ir.stmt_base import Site as Site
from convgen.ir.stmt_base import Stmt as Stmt
from convgen.ir.stmt_base import Store as Store
from convgen.ir.types import Type, bool_, f32, f64, s32, u32, vector

_MOST_STEP = 1 << 24  #: rows; bounds what IR text may ask for
_MOST_STAGES = 64  #: blocks of one copy in flight in registers; bounds what IR text may ask for


@node
class Block(Stmt):
    """Statements in order."""

    stmts: tuple[Stmt, ...]


@node
class Let(Stmt):
    """Bind `var` to `value` for the rest of the block."""

    var: Var
    value: Expr

    def infer(self) -> None:
        if self.var.type is not self.value.type:
            raise UserError(f"let {self.var.name}: {self.var.type} = {self.value.type}")


@node
class For(Stmt):
    """`for var in [begin, end)`: both bounds uniform, evaluated once.

    `carried` are bound to `inits` at first and to `yields` after each iteration; `results` take the final values and
    are visible after the loop. `label` names the loop in text and for passes.
    """

    var: Var
    begin: Expr
    end: Expr
    carried: tuple[Var, ...]
    inits: tuple[Expr, ...]
    body: Stmt
    yields: tuple[Expr, ...]
    results: tuple[Var, ...]
    label: str

    def infer(self) -> None:
        check_name(self.label, "loop")
        for group in (self.inits, self.yields, self.results):
            if [e.type for e in group] != [e.type for e in self.carried]:
                raise UserError(f"loop {self.label}: carried types {[e.type for e in group]} do not match")

    @property
    def binds(self) -> tuple[Var, ...]:
        return self.results

    @property
    def binds_within(self) -> tuple[Var, ...]:
        return (self.var, *self.carried)

    @property
    def operands(self) -> tuple[Expr, ...]:
        return (self.begin, self.end, *self.inits)


@node
class If(Stmt):
    """Run `then` or `other`; the condition is uniform."""

    cond: Expr
    then: Stmt
    other: Stmt

    def infer(self) -> None:
        if self.cond.type is not bool_:
            raise UserError(f"if: condition of type {self.cond.type}")


@node
class ExitIf(Stmt):
    """Leave the innermost loop where the uniform `cond` holds; its results become `values`."""

    form = "exit_if {cond}{values: with |}"
    cond: Expr
    values: tuple[Expr, ...]


@node
class Barrier(Stmt):
    """All subgroups of the workgroup arrive; shared memory written before is visible after."""

    form = "barrier"
    site: Site


@node
class Arrive(Stmt):
    """The first half of a barrier: this subgroup's earlier accesses to shared memory are complete.

    Its `Wait` follows in the same block, with no access to shared memory between the two (`ordered_by_barriers`).
    """

    form, level, needs = "arrive", "message", "split_barriers"
    site: Site


@node
class Wait(Barrier):
    """The second half of a barrier: all subgroups have arrived."""

    form, level, needs = "wait", "message", "split_barriers"


@node
class Ticket(Load):
    """Bind `var` to the number of tickets taken before in this round: an atomic increment of `buffer[index]`.

    A subgroup takes one ticket. The last of the `turns` tickets of a round resets the count to 0. A ticket acquires and
    releases in the whole grid: the subgroup sees all global stores that precede the earlier tickets of the round.
    """

    form, needs = "{var} = ticket {buffer}[{index}] of {turns}", "tickets"
    updates, is_uniform = True, True
    buffer: Global = role(Effect.WRITES)
    index: Expr
    turns: Expr
    site: Site


@node
class Acquire(Stmt):
    """Make visible to this subgroup the global stores that precede tickets it knows of, whoever took them.

    Needed by a subgroup that learns of another subgroup's ticket, through shared memory for instance. In a kernel
    without an `Acquire` a ticket itself acquires; in a kernel with one, only the `Acquire` does.
    """

    form, needs = "acquire", "tickets"
    site: Site


# ---------------------------------------------------------------- tile level


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
class LoadFactor(LoadPart):
    """Load a part that only products with `MmaAtom.in_shared` use: they read it where it stands.

    `address` is uniform: the byte of the slot at which the rows of the subgroup's team begin, before the swizzle.
    """

    form = "{var} = factor {tile}[{slot}] from {row}, {col} on at {address} as {layout}"
    level, needs = "message", "shared_factors"
    address: Expr = role("read_address")


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


# ---------------------------------------------------------------- message level


@node
class GlobalLoad(Load):
    """Bind `var` to its type's bytes at `varying + uniform + imm` of `surface`; outside its extent they are zero."""

    form = "{var} = global {buffer}[{varying}, {uniform}, {imm}] in {surface}"
    level, needs = "message", "checks_bounds"
    buffer: Global = role(Effect.READS)
    surface: Expr = role("surface")
    varying: Expr = role("offset")
    uniform: Expr = role("step")
    imm: int
    site: Site


@node
class GlobalStore(Store):
    """Store `value` at `varying + uniform + imm` of `surface`; outside its extent it is dropped."""

    form = "global {buffer}[{varying}, {uniform}, {imm}] in {surface} = {value}"
    level, needs = "message", "checks_bounds"
    buffer: Global = role(Effect.WRITES)
    surface: Expr = role("surface")
    varying: Expr = role("offset")
    uniform: Expr = role("step")
    imm: int
    value: Expr
    site: Site


@node
class GlobalAtomic(GlobalStore):
    """Combine the elements there with `value` by `op`, each atomically; outside the surface's extent do nothing."""

    form, updates = "global atomic {op} {buffer}[{varying}, {uniform}, {imm}] in {surface}, {value}", True
    op: str


@node
class FlatLoad(Load):
    """Bind `var` to its type's bytes at each lane's 64-bit `address` where `mask` holds; elsewhere they are zero."""

    form, level, needs = "{var} = flat {buffer}[{address}]{mask: if |true}", "message", "flat"
    buffer: Global = role(Effect.READS)
    address: Expr = role("address")
    mask: Expr = role("exists")
    site: Site


@node
class PartialLoad(FlatLoad):
    """Load like `FlatLoad`, but leave the bytes undefined where `mask` does not hold."""

    form = "{var} = partial {buffer}[{address}]{mask: if |true}"


@node
class FlatStore(Store):
    """Store `value` at each lane's 64-bit `address` where `mask` holds."""

    form, level, needs = "flat {buffer}[{address}]{mask: if |true} = {value}", "message", "flat"
    buffer: Global = role(Effect.WRITES)
    address: Expr = role("address")
    mask: Expr = role("exists")
    value: Expr
    site: Site


@node
class FlatAtomic(FlatStore):
    """Combine the elements at `address` with `value` by `op`, each atomically, where `mask` holds."""

    form, updates = "flat atomic {op} {buffer}[{address}]{mask: if |true}, {value}", True
    op: str


@node
class FlatPrefetch(Stmt):
    """Prefetch the cache line of `address` where `mask` holds."""

    form, level, needs = "prefetch flat {buffer}[{address}]{mask: if |true}", "message", "prefetch"
    buffer: Global = role(Effect.PREFETCHES)
    address: Expr = role("address")
    mask: Expr = role("exists")
    site: Site


@node
class PlaneLoad(Load):
    """Bind `var` to the rectangle `shape` at row `y` and column `x` of a plane; elements outside the plane are zero.

    `x` counts `Rectangle.grain` bytes. The plane is moved by `shift` bytes. `x`, `y` and `shift` are uniform.
    """

    form, level, needs = "{var} = plane {plane}[{x}, {y}]{shift: at |0} as {shape}", "message", "planes"
    plane: Plane = role(Effect.READS)
    shift: Expr = role("shift")
    shape: Rectangle
    x: Expr = role("x")
    y: Expr = role("y")
    site: Site


@node
class PlanePrefetch(Stmt):
    """Prefetch the rectangle that a `PlaneLoad` with these operands would load."""

    form, level, needs = "prefetch plane {plane}[{x}, {y}]{shift: at |0} as {shape}", "message", "planes"
    plane: Plane = role(Effect.PREFETCHES)
    shift: Expr = role("shift")
    shape: Rectangle
    x: Expr = role("x")
    y: Expr = role("y")
    site: Site


@node
class PlaneStore(Store):
    """Store `value` to the rectangle that a `PlaneLoad` would load; elements outside the plane are dropped."""

    form, level, needs = "plane {plane}[{x}, {y}]{shift: at |0} as {shape} = {value}", "message", "planes"
    plane: Plane = role(Effect.WRITES)
    shift: Expr = role("shift")
    shape: Rectangle
    x: Expr = role("x")
    y: Expr = role("y")
    value: Expr
    site: Site


@node
class SharedRead(Load):
    """Bind `var` to its type's bytes at `address + imm` bytes from the start of `tile`."""

    form, level = "{var} = shared {tile}[{address}, {imm}]", "message"
    tile: Shared = role(Effect.READS)
    address: Expr = role("read_address")
    imm: int
    site: Site


@node
class SharedWrite(Store):
    """Store `value` at `address + imm` bytes from the start of `tile`."""

    form, level = "shared {tile}[{address}, {imm}] = {value}", "message"
    tile: Shared = role(Effect.WRITES)
    address: Expr = role("write_address")
    imm: int
    value: Expr
    site: Site


@node
class FilledWrite(SharedWrite):
    """Store `value` where `mask` holds, and zeros elsewhere."""

    form, needs = "filled {tile}[{address}, {imm}] = {value}{mask: if |true}", "flat"
    mask: Expr = role("exists")


class DirectMessage(Stmt):
    """Copy `width` bytes a lane from global memory to `tile` without registers.

    Lane l writes at `place + imm + l * width` bytes from the start of the tile; `place` is uniform.
    """

    __slots__ = ()
    tile: Shared
    place: Expr
    imm: int
    width: int


@node
class DirectLoad(DirectMessage):
    """Load from `varying + uniform` of `surface`; write zeros where the source is outside the surface's extent."""

    form = "direct {tile}[{place}, {imm}] = {buffer}[{varying}, {uniform}] in {surface}, {width} bytes a lane"
    level, needs = "message", "surface_direct"
    buffer: Global = role(Effect.READS)
    surface: Expr = role("surface")
    varying: Expr = role("offset")
    uniform: Expr = role("step")
    tile: Shared = role(Effect.WRITES)
    place: Expr = role("write_address")
    imm: int
    width: int
    site: Site


@node
class FlatDirectLoad(DirectMessage):
    """Load from each lane's 64-bit `address` where `mask` holds; write zeros elsewhere."""

    form = "direct {tile}[{place}, {imm}] = flat {buffer}[{address}]{mask: if |true}, {width} bytes a lane"
    level, needs = "message", "flat_direct"
    buffer: Global = role(Effect.READS)
    address: Expr = role("address")
    mask: Expr = role("exists")
    tile: Shared = role(Effect.WRITES)
    place: Expr = role("write_address")
    imm: int
    width: int
    site: Site


@node
class TensorLoad(Stmt):
    """Start one bulk copy of the elements that `tensor` takes of `buffer` at `coords`, into a slot of a tile in panels.

    `place` is the byte of the slot at which the copy's first element stands; `coords` and `offsets` are those of
    `TensorMap`, innermost dimension first. The copy counts towards the bytes for which the ring's slot was acquired.
    """

    form = "tensor {tile}[{slot}, {place}] = {buffer}[{coords}]{offsets: moved by |} of {tensor} in {ring}"
    level, needs = "message", "roles"
    tile: Shared = role(Effect.WRITES)
    slot: Expr
    place: int
    buffer: Global = role(Effect.READS)
    tensor: TensorMap
    coords: tuple[Expr, ...]
    offsets: tuple[Expr, ...]
    ring: Shared = role(Effect.SHAPES)
    site: Site


FlatMessage = FlatLoad | FlatStore | FlatDirectLoad  #: messages with an address for each lane that move data


@node
class BlockRead(SharedRead):
    """Bind `var` to dwords that lie side by side across the lanes, at a uniform address.

    Dword w of lane l is at `address + imm + 4 * (w * width + l)`.
    """

    form, needs = "{var} = block {tile}[{address}, {imm}]", "block_bytes"


TRANSPOSED_LANES = 16  #: lanes; a transposing read exchanges elements within such groups


@node
class TransposedRead(SharedRead):
    """Read four 16-bit elements a lane at `address + imm`, and transpose them within each group of 16 lanes.

    The 64 elements that a group reads, in lane order, form a 4 x 16 matrix; lane l of the group gets its column l.
    """

    form, needs = "{var} = transposed {tile}[{address}, {imm}]", "transposed_reads"


@node
class MatrixRead(SharedRead):
    """Bind `var` to four dwords a lane: lane l gets dword l % 4 of row l / 4 of each of four 8 x 4 matrices of dwords.

    Row r of matrix i is the 16 bytes at lane 8 i + r's `address + imm`.
    """

    form, needs = "{var} = matrices {tile}[{address}, {imm}]", "matrix_reads"


@node
class TransposedMatrixRead(MatrixRead):
    """Bind `var` to eight 16-bit elements a lane: lane l gets column l / 4 of two rows of each of four 8 x 8 matrices.

    The rows are 2 (l % 4) and the next one. Row r of matrix i is the 16 bytes at lane 8 i + r's `address + imm`.
    """

    form = "{var} = transposed matrices {tile}[{address}, {imm}]"


@node
class BlockWrite(SharedWrite):
    """Store `value` with its dwords side by side across the lanes, as `BlockRead` reads them."""

    form, needs = "block {tile}[{address}, {imm}] = {value}", "block_bytes"


def block(*stmts: Stmt) -> Stmt:
    """Return one statement that runs these; nested blocks are flattened."""
    flat: list[Stmt] = []
    for s in stmts:
        if isinstance(s, Block):
            flat += s.stmts
        else:
            flat.append(s)
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


empty = Block(())


def stmts_of(s: Stmt) -> tuple[Stmt, ...]:
    """Return the statements of a block, or the only statement of a body that is no block."""
    return s.stmts if isinstance(s, Block) else (s,)


def ordered_by_barriers(s: Stmt) -> bool:
    """Return whether a statement may not stand between `Arrive` and `Wait`: shared accesses, barriers, control flow."""
    return isinstance(s, (Barrier, Arrive, For, If, ExitIf)) or any(isinstance(m, Shared) for m in s.memory())
