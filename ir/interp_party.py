"""Subgroups that take the same path through a kernel, and how they wait for and exchange with other subgroups."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import numpy as np

from convgen.ir import expr as x
from convgen.ir import stmt as s
from convgen.ir.evaluate import Array, InterpError, SurfaceValue, Value
from convgen.ir.expr import Expr, Var
from convgen.ir.interp_exchange import Held, exchanged
from convgen.ir.interp_lanes import Group, Lanes
from convgen.ir.interp_messages import MESSAGES
from convgen.ir.interp_shared import SharedTile
from convgen.ir.interp_tiles import TILES
from convgen.ir.layout.memory import Global, Shared
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.stmt import Stmt
from convgen.ir.text import show

Left = tuple[Value | SurfaceValue, ...] | None  # the values with which a statement left its loop; None if it did not


class Stop(Enum):
    """The reason why a subgroup waits."""

    BARRIER = "for all of the workgroup"
    MEETING = "for those that need what it has, as in a matrix instruction of several subgroups"


Run = Generator[Stop, None, Left]


class Parted(Exception):
    """Subgroups that ran in step take different branches."""


class Party(Lanes):
    """Subgroups that take one path: all of some workgroups, or one alone; then `peers` are those of its workgroup."""

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
        self.peers: Sequence[Party] = (self,)  # all subgroups of the workgroup, if each runs alone
        self.offered: dict[Node, tuple[Value, ...]] = {}  # operands that other subgroups read, too

    def _team(self, product: x.Mma) -> Sequence[tuple[Value, ...]]:
        """Return the operands (a, b) of a product in each subgroup of this subgroup's team."""
        spans = product.op.atom.spans
        if spans == 1:
            return [(self.ev(product.a), self.ev(product.b))]
        if not self.is_alone:
            if product not in self.offered or len({*self.numbers}) % spans:
                raise Parted
            return [self.offered[product]]
        (number,) = self.numbers
        first = number - number % spans
        team = [peer.offered.get(product) for peer in self.peers[first : first + spans]]
        if len(team) < spans or None in team:
            raise InterpError(f"a product of {spans} subgroups that subgroup {number} executes without the others")
        return [operands for operands in team if operands is not None]

    def decision(self, e: Expr, what: str) -> int:
        """Return the integer that a branch or loop depends on; raise Parted if subgroups disagree."""
        found = self.ev.uniform(e, what)
        if (found != found[0]).any():
            raise Parted
        return int(found[0])

    def run(self, node: Stmt) -> Run:
        """Run a statement: yield where it waits, return the values with which it leaves the innermost loop."""
        match node:
            case s.Block(stmts):
                for inner in stmts:
                    left = yield from self.run(inner)
                    if left is not None:
                        return left
            case s.For():
                yield from self.loop(node)
            case s.If(cond, then, other):
                with _located(node, f"if {show(cond)}"):
                    holds = self.decision(cond, "a branch")
                return (yield from self.run(then if holds else other))
            case s.ExitIf(cond, values):
                with _located(node):
                    if self.decision(cond, "a loop's exit"):
                        return tuple(map(self.ev.bound, values))
            case s.Arrive():
                pass  # the verifier rejects shared-memory accesses before the wait
            case s.Barrier():
                yield Stop.BARRIER
            case s.Let(_, x.Mma(op=op) as product) if op.atom.spans > 1:
                yield from self.together(node, product, (product.a, product.b), lambda: self.let(node))
            case s.Exchange() if node.meet:
                yield from self.together(node, node, (node.value,), lambda: self.exchange(node))
            case _:
                with _located(node):
                    _MEANINGS[type(node)](self, node)
        return None

    def together(self, node: Stmt, key: Node, operands: Sequence[Expr], take: Callable[[], None]) -> Generator[Stop]:
        """Offer operands to other subgroups under `key`; `take` computes from all of them once they are offered."""
        with _located(node):
            self.offered[key] = tuple(map(self.ev, operands))
        if self.is_alone:
            yield Stop.MEETING
        with _located(node):
            take()
        if self.is_alone:
            yield Stop.MEETING  # until all subgroups have read the offered operands
        del self.offered[key]

    def loop(self, node: s.For) -> Run:
        with _located(node, f"loop {node.label}"):
            begin, end = (self.decision(e, "a loop's bound") for e in (node.begin, node.end))
            values: tuple[Value | SurfaceValue, ...] = tuple(map(self.ev.bound, node.inits))
        for i in range(begin, end):
            self.ev.forget()
            self.bind(node.var, self.ev.full(node.var.type, i))
            for var, value in zip(node.carried, values):
                self.bind(var, value)
            left = yield from self.run(node.body)
            if left is not None:
                values = left
                break
            with _located(node, f"yield of loop {node.label}"):
                values = tuple(map(self.ev.bound, node.yields))
        self.ev.forget()
        for var, value in zip(node.results, values):
            self.bind(var, value)
        return None

    def let(self, node: s.Let) -> None:
        self.bind(node.var, self.ev.bound(node.value))

    def exchange(self, node: s.Exchange) -> None:
        """Bind each lane's elements, read from its own subgroup or, if `node.meet`, from the whole workgroup."""
        values, first = [self.ev(node.value)], np.arange(len(self.numbers))
        if node.meet and self.is_alone:
            offered = [peer.offered.get(node) for peer in self.peers]
            if None in offered:
                raise InterpError(
                    f"an exchange between subgroups in which subgroup {offered.index(None)} does not take part"
                )
            values, first = [value for (value,) in filter(None, offered)], np.zeros(1, np.int64)
        elif node.meet:
            first = first - np.array(self.numbers)
        held = Held(values, node.of, self.ev.width, self.numbers, first * self.ev.width, node.meet)
        self.bind(node.var, exchanged(node, held))


#: Semantics of statements that neither branch nor wait.
_MEANINGS: dict[type[Stmt], Callable[[Party, Any], None]] = {
    s.Let: Party.let,
    s.Reduce: Party.exchange,
    s.Redistribute: Party.exchange,
    **TILES,
    **MESSAGES,
}


@contextmanager
def _located(node: Stmt, text: str | None = None) -> Iterator[None]:
    """Add a note to an InterpError that says at which statement it arose."""
    try:
        yield
    except InterpError as e:
        e.add_note(f"at {text or show(node)}")
        raise
