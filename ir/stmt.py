"""Statements of both levels. A block's lets and loads are visible to the statements after them in that block.

Tile level: whole fragments move between views, shared tiles and registers. Message level: one statement is one
instruction's movement, its address split into (surface, varying offset, uniform offset, immediate), or one flat 64-bit
address a lane with a mask. The pass `lower_tiles` goes from the first to the second; all else belongs to both.

Each class says what its statements bind, access and look like; `ir.rows` tells how to read it.
"""

from __future__ import annotations

from typing import ClassVar

from convgen.ir.checks import check_name, check_range
from convgen.ir.error import UserError
from convgen.ir.expr import Add, And, Binary, Expr, Max, Min, Mul, Or, Var
from convgen.ir.layout.digits import Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Global, Plane, Rectangle, Shared, View
from convgen.ir.node import family, node, role
from convgen.ir.rows import Effect as Effect
from convgen.ir.rows import Load as Load
from convgen.ir.rows import Site as Site
from convgen.ir.rows import Stmt as Stmt
from convgen.ir.rows import Store as Store
from convgen.ir.types import Type, bool_, f32, f64, s32, u32, vector

_MOST_STAGES = 64  #: blocks that a copy holds on their way


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
    """The first half of a barrier: this subgroup's accesses to shared memory before it are done.

    The next statement of its block that concerns shared memory is its `Wait`.
    """

    form, level, needs = "arrive", "message", "split_barriers"
    site: Site


@node
class Wait(Barrier):
    """The second half of a barrier: all subgroups have arrived."""

    form, level, needs = "wait", "message", "split_barriers"


@node
class Ticket(Load):
    """Bind `var` to how many subgroups took a ticket of this round before, by the count in element `index` of `buffer`.

    Taken once a subgroup, atomically in the whole grid; a round has `turns`, the last of which leaves a zero. Whoever
    takes a ticket sees what the others had stored to global memory before they took the earlier ones of the round.
    """

    form, needs = "{var} = ticket {buffer}[{index}] of {turns}", "tickets"
    updates, is_uniform = True, True
    buffer: Global = role(Effect.WRITES)
    index: Expr
    turns: Expr
    site: Site


@node
class Acquire(Stmt):
    """From here on this subgroup sees what was stored before a ticket that it knows to be taken, by whomever.

    One that has learnt from another subgroup what that has drawn needs it. In a kernel without any, whoever takes a
    ticket sees all that; in one with some, behind these only.
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
    """The same of a `RunView`, as messages bring it: only a `Trim` makes the tile of it."""

    form = "{var} = load runs of {view}[{coords}] as {layout}"


@node
class Trim(Load):
    """Bind `var` to the tile of `view` at `coords`, of which a `LoadRuns` of the same layout has brought `value`."""

    form, level = "{var} = trim {value} to {view}[{coords}] as {layout}", "tile"
    view: View = role(Effect.SHAPES)
    coords: tuple[Expr, ...]
    value: Expr
    layout: Fragment


@node
class Prefetch(Stmt):
    """Bring the tile of `view` at `coords` nearer, as what will soon be loaded; it changes no value."""

    form, level = "prefetch {view}[{coords}] as {layout}", "tile"
    view: View = role(Effect.NEARS)
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
    """Each element of the tile of `view` becomes `op` of itself and that of `value`, atomically in the whole grid.

    `op` is a key of `ATOMICS`.
    """

    form, updates = "atomic {op} {view}[{coords}], {value} as {layout}", True
    op: str


@node
class LoadAt(Load):
    """Bind `var` to the elements of `buffer` whose numbers the fragment `offsets` has; zero where `mask` does not hold.

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
    """Store each element of the fragment `value` to the one of `buffer` that `offsets` says, where `mask` holds."""

    form, level = "scatter {buffer}[{offsets}]{mask: if |true} = {value} as {layout}", "tile"
    buffer: Global = role(Effect.WRITES)
    offsets: Expr = role("offsets")
    mask: Expr = role("exists")
    value: Expr
    layout: Fragment
    site: Site


@node
class AtomicAt(StoreAt):
    """Each element becomes `op` of itself and `value`'s, atomically in the whole grid; replicas take part as well."""

    form, updates = "scatter atomic {op} {buffer}[{offsets}]{mask: if |true}, {value} as {layout}", True
    op: str


@node
class Copy(Stmt):
    """Bring the tile of `view` at `coords` into slot `slot` of `tile`, the work split over the workgroup as `layout`.

    One statement with a load and a store stage: lowered through registers, or to an asynchronous message. On the way
    each lane's registers stand as `loaded`, which may order them in another way: as memory does. The tile's elements
    may be of another type, which holds all numbers of the view's. `flip` is what each element is combined with by
    exclusive or, zeros in place of missing ones as well: 0x80 makes s8 of u8, less 128. In a loop that is pipelined
    `stages` blocks are held in registers on their way.
    """

    level = "tile"
    form = (
        "copy {tile}[{slot}] = {view}[{coords}] as {layout}"
        "{loaded:, loaded as |layout}{flip:, flipped by |0}, stages {stages}"
    )
    tile: Shared = role(Effect.WRITES)
    slot: Expr
    view: View = role(Effect.READS)
    coords: tuple[Expr, ...]
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
class DirectCopy(Stmt):
    """Bring the tile of `view` at `coords` into slot `slot` of `tile` without registers, all of the slot.

    Each message of a subgroup fills places that follow one another, `width` bytes a lane in the order of the lanes;
    messages are dealt to subgroups in turn. So which element a lane brings is what the tile has at its place.
    """

    form, level = "copy {tile}[{slot}] = {view}[{coords}] directly, {width} bytes a lane", "tile"
    needs = "direct_widths"
    tile: Shared = role(Effect.WRITES)
    slot: Expr
    view: View = role(Effect.READS)
    coords: tuple[Expr, ...]
    width: int
    site: Site

    def infer(self) -> None:
        check_range(self.width, self.tile.elem.bytes, self.tile.chunk, "bytes of a lane in a direct copy:")


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
    """The same of the part of a slot that begins at row `row` and column `col`: windows on one tile may overlap."""

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


#: What an atomic operation does with what stands in memory, by name, and the types of elements that it takes.
ATOMICS: dict[str, tuple[Type, ...]] = {
    "add": (f32, f64, s32, u32), "min": (f32, f64, s32, u32), "max": (f32, f64, s32, u32),
    "and": (s32, u32), "or": (s32, u32), "xor": (s32, u32),
}  # fmt: skip

#: What a reduction does with two elements, by the name under which statements have it.
REDUCTIONS: dict[str, type[Binary]] = {"add": Add, "mul": Mul, "min": Min, "max": Max, "and": And, "or": Or}


@family
class Exchange(Load):
    """Binds `var` to a fragment whose elements lanes have from one another; `value` is distributed as `of`."""

    level: ClassVar[str] = "tile"
    value: Expr
    of: Fragment

    @property
    def layout(self) -> Fragment:
        """How what it binds is distributed."""
        raise NotImplementedError

    @property
    def meet(self) -> bool:
        """Whether subgroups need elements from one another, so that all of a workgroup take part together."""
        raise NotImplementedError

    def infer(self) -> None:
        held, made = (vector(self.value.type.elem, f.registers) for f in (self.of, self.layout))
        if (self.value.type, self.var.type) != (held, made):
            given = f"given {self.value.type} as {self.of} and {self.var.type} as {self.layout}"
            raise UserError(f"{type(self).__name__.lower()}: {given}, wanted {held} and {made}")
        if made.elem.bits < 8:
            raise UserError(f"{type(self).__name__.lower()}: given elements of {made.elem}, wanted such of whole bytes")


@node
class Reduce(Exchange):
    """Bind `var` to the fragment without `dim`: all its elements along `dim` as one, by the reduction `op`.

    Every lane that held some of them has the result.
    """

    form = "{var} = reduce {op} of {value} along {dim} of {of}"
    dim: str
    op: str
    site: Site

    @property
    def layout(self) -> Fragment:
        return self.of.without(self.dim)

    @property
    def meet(self) -> bool:
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
    """Bind `var` to the same tile, distributed as `layout`."""

    form = "{var} = redistribute {value} of {of} as {layout}"
    layout: Fragment
    site: Site

    @property
    def meet(self) -> bool:
        return not self.of.places(Space.SUBGROUP) <= self.layout.places(Space.SUBGROUP)

    def infer(self) -> None:
        of, to = self.of, self.layout
        if (of.dims, of.shape, of.owners(Space.FIXED)) != (to.dims, to.shape, to.owners(Space.FIXED)):
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
    """What stands there becomes `op` of itself and `value`, each element atomically; outside the surface nothing."""

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
    """As a flat load, but elsewhere the bytes are undefined."""

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
    """What stands there becomes `op` of itself and `value`, each element atomically, where `mask` holds."""

    form, updates = "flat atomic {op} {buffer}[{address}]{mask: if |true}, {value}", True
    op: str


@node
class FlatPrefetch(Stmt):
    """Bring nearer the memory around `address`, where `mask` holds."""

    form, level, needs = "prefetch flat {buffer}[{address}]{mask: if |true}", "message", "prefetch"
    buffer: Global = role(Effect.NEARS)
    address: Expr = role("address")
    mask: Expr = role("exists")
    site: Site


@node
class PlaneLoad(Load):
    """Bind `var` to the rectangle `shape` of a plane that begins at row `y` and at `x` of its grains.

    The plane begins `shift` bytes further on than it says. All three are uniform. What lies outside the plane is zero.
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
    """Bring nearer what `PlaneLoad` would load."""

    form, level, needs = "prefetch plane {plane}[{x}, {y}]{shift: at |0} as {shape}", "message", "planes"
    plane: Plane = role(Effect.NEARS)
    shift: Expr = role("shift")
    shape: Rectangle
    x: Expr = role("x")
    y: Expr = role("y")
    site: Site


@node
class PlaneStore(Store):
    """Store `value` to the rectangle that `PlaneLoad` would load; what lies outside the plane is dropped."""

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


@node
class DirectLoad(Stmt):
    """Bring `width` bytes a lane from `varying + uniform` of `surface` into `tile`; outside its extent they are zero.

    Those of lane l go to `place + imm + l * width`, from the start of the tile; the place is uniform.
    """

    form = "direct {tile}[{place}, {imm}] = {buffer}[{varying}, {uniform}] in {surface}, {width} bytes a lane"
    level, needs = "message", "direct_widths"
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
class FlatDirectLoad(Stmt):
    """Copy `width` bytes a lane from its 64-bit `address` into `tile` where `mask` holds; elsewhere write zeros.

    The bytes of lane l go to `place + imm + l * width`, from the start of the tile; the place is uniform.
    """

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
class BlockRead(SharedRead):
    """Bind `var` to dwords that lie side by side across the lanes, at a uniform address.

    Dword w of lane l is at `address + imm + 4 * (w * width + l)`.
    """

    form, needs = "{var} = block {tile}[{address}, {imm}]", "block_bytes"


TURNED = 16  #: lanes; that turn together what they have read


@node
class TurnedRead(SharedRead):
    """Bind `var` to four 16-bit elements that neighbouring lanes have read, as many as `TURNED`.

    Each reads four at its `address + imm`. In the order of the lanes these are four runs, of one element for each of
    them: each lane gets those of its own number, in the order of the runs.
    """

    form, needs = "{var} = turned {tile}[{address}, {imm}]", "turned_reads"


@node
class MatrixRead(SharedRead):
    """Bind `var` to four dwords a lane: lane l gets dword l % 4 of row l / 4 of each of four 8 x 4 matrices of dwords.

    Row r of matrix i is the 16 bytes at lane 8 i + r's `address + imm`.
    """

    form, needs = "{var} = matrices {tile}[{address}, {imm}]", "matrix_reads"


@node
class TurnedMatrixRead(MatrixRead):
    """Bind `var` to eight 16-bit elements a lane: lane l gets column l / 4 of two rows of each of four 8 x 8 matrices.

    The rows are 2 (l % 4) and the next one. Row r of matrix i is the 16 bytes at lane 8 i + r's `address + imm`.
    """

    form = "{var} = turned matrices {tile}[{address}, {imm}]"


@node
class BlockWrite(SharedWrite):
    """Store `value` with its dwords side by side across the lanes, as `BlockRead` reads them."""

    form, needs = "block {tile}[{address}, {imm}] = {value}", "block_bytes"


def block(*stmts: Stmt) -> Stmt:
    """The statements as one, nested blocks flattened."""
    flat: list[Stmt] = []
    for s in stmts:
        if isinstance(s, Block):
            flat += s.stmts
        else:
            flat.append(s)
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


empty = Block(())


def ordered_by_barriers(s: Stmt) -> bool:
    """Whether it accesses shared memory or ends a run of statements: none such stands between a barrier's halves."""
    return isinstance(s, (Barrier, Arrive, For, If, ExitIf)) or any(isinstance(m, Shared) for m in s.memory())
