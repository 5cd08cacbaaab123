"""Run converged subgroups (which take one path through a kernel): control flow, barriers and exchanges."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import numpy as np

from convgen.ir import expr as x
from convgen.ir import stmt as s
from convgen.ir.evaluate import Array, InterpError, SurfaceValue, Value, check_inside
from convgen.ir.expr import Expr, Var
from convgen.ir.interp_exchange import ExchangeSource, exchanged
from convgen.ir.interp_lanes import Group, Lanes
from convgen.ir.interp_messages import MESSAGES
from convgen.ir.interp_shared import SharedTile
from convgen.ir.interp_tensors import TENSORS
from convgen.ir.interp_tiles import TILES
from convgen.ir.layout.memory import Global, Shared
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.stmt import Stmt
from convgen.ir.text import show

ExitValues = tuple[Value | SurfaceValue, ...] | None  #: results of the loop that a statement left; None if it left none


class Stop(Enum):
    """The reason why a subgroup waits."""

    BARRIER = "for all subgroups of the workgroup"
    EXCHANGE = "for subgroups that read its operands, as in a matrix instruction of several subgroups"
    SLOT = "for copies into a slot of a ring, or for its release"


Run = Generator[Stop, None, ExitValues]


class Diverged(Exception):
    """Raised where converged subgroups would take different branches."""


class Converged(Lanes):
    """Subgroups that take one path: all subgroups of some workgroups, or a single one.

    A single subgroup reads operands of the other subgroups of its workgroup, `peers`.
    """

    def __init__(
        self,
        k: Kernel,
        members: Sequence[tuple[Group, int]],
        values: Mapping[Var, int],
        memory: Mapping[Global, Array],
        shared: Mapping[Shared, SharedTile],
    ) -> None:
        super().__init__(k, members, values, memory, shared)
        self.ev.team = self._team
        self.is_alone = len(members) == 1
        self.peers: Sequence[Converged] = (self,)  #: all subgroups of the workgroup, if each runs alone
        self.offered: dict[Node, tuple[Value, ...]] = {}  #: by statement or product: operands that other subgroups read

    def _team(self, product: x.Mma) -> Sequence[tuple[Value, ...]]:
        """Return the operands (a, b) of a product in each subgroup of this subgroup's team."""
        spans = product.op.atom.spans
        if spans == 1:
            return [(self.ev(product.a), self.ev(product.b))]
        if not self.is_alone:
            if product not in self.offered or len({*self.numbers}) % spans:
                raise Diverged
            return [self.offered[product]]
        (number,) = self.numbers
        first = number - number % spans
        team = [peer.offered.get(product) for peer in self.peers[first : first + spans]]
        if len(team) < spans or None in team:
            raise InterpError(f"a product of {spans} subgroups that subgroup {number} executes without the others")
        return [operands for operands in team if operands is not None]

    def decision(self, e: Expr, what: str) -> int:
        """Return the integer that a branch or loop depends on; raises Diverged if subgroups disagree."""
        per_lane = self.ev.uniform(e, what)
        if (per_lane != per_lane[0]).any():
            raise Diverged
        return int(per_lane[0])

    def run(self, node: Stmt) -> Run:
        """Run a statement; yield where it waits. Return the innermost loop's results if the statement leaves it."""
        match node:
            case s.Block(stmts):
                for inner in stmts:
                    exit_values = yield from self.run(inner)
                    if exit_values is not None:
                        return exit_values
            case s.For():
                yield from self.loop(node)
            case s.If(cond, then, other):
                with _noting_place(node, f"if {show(cond)}"):
                    holds = self.decision(cond, "a branch")
                return (yield from self.run(then if holds else other))
            case s.ExitIf(cond, values):
                with _noting_place(node):
                    if self.decision(cond, "a loop's exit"):
                        return tuple(map(self.ev.bound, values))
            case s.Arrive():
                pass  # the verifier rejects shared-memory accesses before the wait
            case s.Barrier():
                yield Stop.BARRIER
            case s.AcquireSlot() | s.AwaitSlot():
                yield from self.slot(node)
            case s.Let(_, x.Mma(op=op) as product) if op.atom.spans > 1:
                yield from self.together(node, product, (product.a, product.b), lambda: self.let(node))
            case s.Exchange() if node.crosses_subgroups:
                yield from self.together(node, node, (node.value,), lambda: self.exchange(node))
            case _:
                with _noting_place(node):
                    _MEANINGS[type(node)](self, node)
        return None

    def slot(self, node: s.AcquireSlot | s.AwaitSlot) -> Generator[Stop]:
        """Wait until a slot of a ring is empty, or filled. Subgroups in step have no roles."""
        if not self.is_alone:
            raise Diverged
        with _noting_place(node):
            number, phase = (int(self.ev.uniform(e, "a slot or phase")[0]) for e in (node.slot, node.phase))
            check_inside(np.array(number), node.ring.cols, "slot", f"ring {node.ring.name}")
            ring = self.shared[node.ring].ring
        passes = ring.is_empty if isinstance(node, s.AcquireSlot) else ring.is_filled
        while not passes(number, phase):
            yield Stop.SLOT
        with _noting_place(node):
            if isinstance(node, s.AcquireSlot):
                ring.acquire(number, node.bytes)
            else:
                ring.awaited(number, self.numbers[0])

    def together(self, node: Stmt, key: Node, operands: Sequence[Expr], take: Callable[[], None]) -> Generator[Stop]:
        """Offer `operands` to other subgroups under `key`; call `take` once all subgroups have offered theirs."""
        with _noting_place(node):
            self.offered[key] = tuple(map(self.ev, operands))
        if self.is_alone:
            yield Stop.EXCHANGE
        with _noting_place(node):
            take()
        if self.is_alone:
            yield Stop.EXCHANGE  # until all subgroups have read the offered operands
        del self.offered[key]

    def loop(self, node: s.For) -> Run:
        with _noting_place(node, f"loop {node.label}"):
            begin, end = (self.decision(e, "a loop's bound") for e in (node.begin, node.end))
            values: tuple[Value | SurfaceValue, ...] = tuple(map(self.ev.bound, node.inits))
        for i in range(begin, end):
            self.ev.forget()
            self.bind(node.var, self.ev.full(node.var.type, i))
            for var, value in zip(node.carried, values):
                self.bind(var, value)
            exit_values = yield from self.run(node.body)
            if exit_values is not None:
                values = exit_values
                break
            with _noting_place(node, f"yield of loop {node.label}"):
                values = tuple(map(self.ev.bound, node.yields))
        self.ev.forget()
        for var, value in zip(node.results, values):
            self.bind(var, value)
        return None

    def let(self, node: s.Let) -> None:
        self.bind(node.var, self.ev.bound(node.value))

    def exchange(self, node: s.Exchange) -> None:
        """Bind each lane's elements, read from its own subgroup or, if the exchange crosses subgroups, from all."""
        values, first = [self.ev(node.value)], np.arange(len(self.numbers))
        if node.crosses_subgroups and self.is_alone:
            offered = [peer.offered.get(node) for peer in self.peers]
            if None in offered:
                raise InterpError(
                    f"an exchange between subgroups in which subgroup {offered.index(None)} does not take part"
                )
            values, first = [value for (value,) in filter(None, offered)], np.zeros(1, np.int64)
        elif node.crosses_subgroups:
            first = first - np.array(self.numbers)
        crosses = node.crosses_subgroups
        source = ExchangeSource(values, node.of, self.ev.width, self.numbers, first * self.ev.width, crosses)
        self.bind(node.var, exchanged(node, source))


#: Semantics of statements that neither branch nor wait.
_MEANINGS: dict[type[Stmt], Callable[[Converged, Any], None]] = {
    s.Let: Converged.let,
    s.Reduce: Converged.exchange,
    s.Redistribute: Converged.exchange,
    **TILES,
    **MESSAGES,
    **TENSORS,
}


@contextmanager
def _noting_place(node: Stmt, text: str | None = None) -> Iterator[None]:
    """Add a note to an InterpError that says at which statement it arose."""
    try:
        yield
    except InterpError as e:
        e.add_note(f"at {text or show(node)}")
        raise
