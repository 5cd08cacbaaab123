"""Statements of both levels. A block's lets and loads are visible to the statements after them in that block.

Tile level: whole fragments move between views, shared tiles and registers. Message level: one statement is one
instruction's movement, its address split into (surface, varying offset, uniform offset, immediate), or one flat 64-bit
address a lane with a mask. The pass `lower_tiles` goes from the first to the second; all else belongs to both.
"""

from __future__ import annotations

import attrs

from convgen.ir.checks import check_name
from convgen.ir.error import UserError
from convgen.ir.expr import Expr, Var
from convgen.ir.fragment import Fragment
from convgen.ir.memory import Plane, Rectangle, Shared, View
from convgen.ir.node import Node, node
from convgen.ir.types import bool_


@attrs.frozen(cache_hash=True)
class Site:
    """What tells two equal statements apart, and what people and later passes want to know of one.

    `number` is unique in a kernel (renewed by unrolling); `stage` names the phase for the reader and the pipeliner.
    """

    number: int
    stage: str = ""
    comment: str = ""
    slot: int = -1  #: which slot of a shared tile is touched; -1 if not known
    private: bool = False  #: no other subgroup touches what this touches in shared memory

    def __attrs_post_init__(self) -> None:
        if self.stage:
            check_name(self.stage, "stage")
        if not self.comment.isprintable():
            raise UserError(f"given the comment {ascii(self.comment)[:60]}, wanted one line that can be printed")


class Stmt(Node):
    __slots__ = ()

    def __str__(self) -> str:
        from convgen.ir.text import show

        return show(self)

    def __repr__(self) -> str:
        return str(self)


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

    cond: Expr
    values: tuple[Expr, ...]


@node
class Barrier(Stmt):
    """All subgroups of the workgroup arrive; shared memory written before is visible after."""

    site: Site


@node
class Arrive(Stmt):
    """The first half of a barrier: this subgroup's accesses to shared memory before it are done.

    The next statement of its block that concerns shared memory is its `Wait`.
    """

    site: Site


@node
class Wait(Barrier):
    """The second half of a barrier: all subgroups have arrived."""


# ---------------------------------------------------------------- tile level


@node
class LoadView(Stmt):
    """Bind `var` to the tile of `view` at `coords` (one start per axis), distributed as `layout`.

    The dims of `layout` stand for the axes of the view in order. Elements outside the view are zero.
    """

    var: Var
    view: View
    coords: tuple[Expr, ...]
    layout: Fragment
    site: Site


@node
class Prefetch(Stmt):
    """Bring the tile of `view` at `coords` nearer, as what will soon be loaded; it changes no value."""

    view: View
    coords: tuple[Expr, ...]
    layout: Fragment
    site: Site


@node
class StoreView(Stmt):
    """Store the fragment `value` to the tile of `view` at `coords`; elements outside the view are dropped."""

    view: View
    coords: tuple[Expr, ...]
    value: Expr
    layout: Fragment
    site: Site


@node
class AddView(StoreView):
    """Add the fragment `value` to the tile of `view`, element by element, each addition atomic in the whole grid."""


@node
class Copy(Stmt):
    """Bring the tile of `view` at `coords` into slot `slot` of `tile`, the work split over the workgroup as `layout`.

    One statement with a load and a store stage: lowered through registers, or to an asynchronous message. On the way
    each lane's registers stand as `loaded`, which may order them in another way: as memory does.
    """

    tile: Shared
    slot: Expr
    view: View
    coords: tuple[Expr, ...]
    loaded: Fragment
    layout: Fragment
    site: Site

    def infer(self) -> None:
        self.loaded.order_of(self.layout)


@node
class LoadShared(Stmt):
    """Bind `var` to slot `slot` of a shared tile, distributed as `layout` (its dims are row and column)."""

    var: Var
    tile: Shared
    slot: Expr
    layout: Fragment
    site: Site


@node
class StoreShared(Stmt):
    """Store the fragment `value` to slot `slot` of a shared tile."""

    tile: Shared
    slot: Expr
    value: Expr
    layout: Fragment
    site: Site


# ---------------------------------------------------------------- message level


@node
class GlobalLoad(Stmt):
    """Bind `var` to its type's bytes at `varying + uniform + imm` of `surface`; outside its extent they are zero."""

    var: Var
    surface: Expr
    varying: Expr
    uniform: Expr
    imm: int
    site: Site


@node
class GlobalStore(Stmt):
    """Store `value` at `varying + uniform + imm` of `surface`; outside its extent it is dropped."""

    surface: Expr
    varying: Expr
    uniform: Expr
    imm: int
    value: Expr
    site: Site


@node
class GlobalAdd(GlobalStore):
    """Add `value` to what stands there, each element atomically; outside the surface it is dropped."""


@node
class FlatLoad(Stmt):
    """Bind `var` to its type's bytes at each lane's 64-bit `address` where `mask` holds; elsewhere they are zero."""

    var: Var
    address: Expr
    mask: Expr
    site: Site


@node
class FlatStore(Stmt):
    """Store `value` at each lane's 64-bit `address` where `mask` holds."""

    address: Expr
    mask: Expr
    value: Expr
    site: Site


@node
class FlatAdd(FlatStore):
    """Add `value` to what stands there, each element atomically, where `mask` holds."""


@node
class FlatPrefetch(Stmt):
    """Bring nearer the memory around `address`, where `mask` holds."""

    address: Expr
    mask: Expr
    site: Site


@node
class PlaneLoad(Stmt):
    """Bind `var` to the rectangle `shape` of a plane that begins at row `y` and at `x` of its grains.

    Both are uniform. What lies outside the plane is zero.
    """

    var: Var
    plane: Plane
    shape: Rectangle
    x: Expr
    y: Expr
    site: Site


@node
class PlanePrefetch(Stmt):
    """Bring nearer what `PlaneLoad` would load."""

    plane: Plane
    shape: Rectangle
    x: Expr
    y: Expr
    site: Site


@node
class PlaneStore(Stmt):
    """Store `value` to the rectangle that `PlaneLoad` would load; what lies outside the plane is dropped."""

    plane: Plane
    shape: Rectangle
    x: Expr
    y: Expr
    value: Expr
    site: Site


@node
class SharedRead(Stmt):
    """Bind `var` to its type's bytes at `address + imm` bytes from the start of `tile`."""

    var: Var
    tile: Shared
    address: Expr
    imm: int
    site: Site


@node
class SharedWrite(Stmt):
    """Store `value` at `address + imm` bytes from the start of `tile`."""

    tile: Shared
    address: Expr
    imm: int
    value: Expr
    site: Site


@node
class BlockRead(SharedRead):
    """Bind `var` to dwords that lie side by side across the lanes, at a uniform address.

    Dword w of lane l is at `address + imm + 4 * (w * width + l)`.
    """


@node
class BlockWrite(SharedWrite):
    """Store `value` with its dwords side by side across the lanes, as `BlockRead` reads them."""


#: The statements of the message level that bind what memory holds.
MESSAGE_LOADS = (GlobalLoad, FlatLoad, PlaneLoad, SharedRead)


def block(*stmts: Stmt) -> Stmt:
    """The statements as one, nested blocks flattened."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.stmts if isinstance(s, Block) else (s,))
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


empty = Block(())
