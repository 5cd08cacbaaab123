"""Statements of the message level: each is one memory instruction.

Its address is (surface, varying offset, uniform offset, immediate), or one flat 64-bit address a lane with a mask, or
the place of a rectangle in a plane.
"""

from __future__ import annotations

from convgen.ir.expr import Expr
from convgen.ir.layout.memory import Global, Plane, Rectangle, Shared
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.node import node, role
from convgen.ir.stmt_base import Effect, Load, Site, Stmt, Store
from convgen.ir.tile_stmts import LoadPart


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
class LoadFactor(LoadPart):
    """Load a part that only products with `MmaAtom.in_shared` use: they read it where it stands.

    `address` is uniform: the byte of the slot at which the rows of the subgroup's team begin, before the swizzle.
    """

    form = "{var} = factor {tile}[{slot}] from {row}, {col} on at {address} as {layout}"
    level, needs = "message", "shared_factors"
    address: Expr = role("read_address")


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
