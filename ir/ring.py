"""Statements by which subgroups of two roles hand over slots of shared tiles: a producer fills them, consumers read.

A ring counts, for each slot, how often copies have filled it and consumers have released it. Uses of a slot alternate
between phase 0 and phase 1. A producer acquires a slot before it copies to it, and consumers await the copies. A slot
is empty at first, so its first acquisition does not wait. Roles are branches on the number of the subgroup; while they
run, no barrier of the workgroup may stand in them.
"""

from __future__ import annotations

from convgen.ir.checks import check_range
from convgen.ir.expr import Expr
from convgen.ir.layout.memory import Shared, Swizzle, row_major
from convgen.ir.node import node, role
from convgen.ir.stmt_base import Effect, Site, Stmt
from convgen.ir.types import u64

_MOST_CONSUMERS, _MOST_BYTES, _MOST_RUNNING, _MOST_REGISTERS = (
    1 << 10,
    1 << 20,
    7,
    1 << 10,
)  #: bound what IR text may ask for


def ring_of(name: str, slots: int) -> Shared:
    """Return the shared memory of a ring: a word for the copies into each slot, and one for its releases."""
    return Shared(name, u64, 2, slots, row_major(2, slots), 1, Swizzle(), u64.bytes)


@node
class StartRing(Stmt):
    """Make all slots of a ring empty; `consumers` subgroups release each slot. A barrier follows before its use."""

    form, needs = "start {ring} for {consumers} consumers", "roles"
    ring: Shared = role(Effect.WRITES)
    consumers: int
    site: Site

    def infer(self) -> None:
        check_range(self.consumers, 1, _MOST_CONSUMERS, "consumers of a ring:")


@node
class AcquireSlot(Stmt):
    """Wait until all consumers have released a slot since its last use; then `bytes` bytes of copies fill it."""

    form, needs = "acquire slot {ring}[{slot}] in phase {phase} for {bytes} bytes", "roles"
    ring: Shared = role(Effect.READS)
    slot: Expr
    phase: Expr
    bytes: int
    site: Site

    def infer(self) -> None:
        check_range(self.bytes, 1, _MOST_BYTES, "bytes of a slot:")


@node
class AwaitSlot(Stmt):
    """Wait until the copies have filled a slot: the subgroup may read it."""

    form, needs = "await slot {ring}[{slot}] in phase {phase}", "roles"
    ring: Shared = role(Effect.READS)
    slot: Expr
    phase: Expr
    site: Site


@node
class ReleaseSlot(Stmt):
    """Release a slot that this subgroup has awaited, once its products are done: all but those of `running` blocks."""

    form, needs = "release slot {ring}[{slot}], {running} running", "roles"
    ring: Shared = role(Effect.READS)
    slot: Expr
    running: int
    site: Site

    def infer(self) -> None:
        check_range(self.running, 0, _MOST_RUNNING, "blocks whose products run on:")


@node
class TakeRegisters(Stmt):
    """Give each lane of this subgroup's role `count` registers in place of `before`."""

    form, needs = "registers {count} in place of {before}", "roles"
    count: int
    before: int

    def infer(self) -> None:
        for count in (self.count, self.before):
            check_range(count, 1, _MOST_REGISTERS, "registers of a lane:")
