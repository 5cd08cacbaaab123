"""Statements of both levels. A block's lets and loads are visible to the statements after them in that block.

Statements of the tile level (`ir.tile_stmts`) and of the message level (`ir.message_stmts`) have their names here, too;
those that this file defines belong to both levels. The pass `lower_tiles` replaces tile-level statements by messages.

Each class declares what its statements bind and access, and their text; `ir.stmt_base` explains the declarations.
"""

from __future__ import annotations

from convgen.ir.checks import check_name
from convgen.ir.error import UserError
from convgen.ir.expr import Const, Expr, Lt, Var
from convgen.ir.layout.memory import Global, Shared
from convgen.ir.message_stmts import *  # noqa: F403
from convgen.ir.node import node, role
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
from convgen.ir.tile_stmts import *  # noqa: F403
from convgen.ir.types import bool_


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

    The body of a `circular` loop names the slots of shared tiles, where they have several, relative to the iteration:
    slot r of an iteration (`Site.slot`) is slot r - 1 of the next one, modulo the slots of the tile, and slot r of the
    tile in the first iteration.
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
    circular: bool

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

    @property
    def runs(self) -> bool | None:
        """Return whether the loop has an iteration, None where constants do not say it."""
        if isinstance(self.begin, Const) and isinstance(self.end, Const):
            return self.begin.bits < self.end.bits
        return None


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


def if_it_runs(loop: For, s: Stmt) -> Stmt:
    """Return a statement for before or behind a loop that runs only if the loop has an iteration."""
    if loop.runs is None:
        return If(Lt(loop.begin, loop.end), s, empty)
    return s if loop.runs else empty


def stmts_of(s: Stmt) -> tuple[Stmt, ...]:
    """Return the statements of a block, or the only statement of a body that is no block."""
    return s.stmts if isinstance(s, Block) else (s,)


def ordered_by_barriers(s: Stmt) -> bool:
    """Return whether a statement may not stand between `Arrive` and `Wait`: shared accesses, barriers, control flow."""
    return isinstance(s, (Barrier, Arrive, For, If, ExitIf)) or any(isinstance(m, Shared) for m in s.memory())
