"""Lower exchanges between lanes to register moves, cross-lane moves or a round trip through shared memory.

If every lane has its elements already, registers are reordered. If an element is in another lane of the subgroup, in
one register for all lanes, `FromLane` fetches it. Everything else goes through a scratch tile: between barriers if the
exchange crosses subgroups (`stmt.Exchange.crosses_subgroups`), else through a part of the tile that no other subgroup
accesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from convgen.ir import stmt as st
from convgen.ir.expr import Expr, FromLane, Lane, Pack, Shuffle, Slice, Var, const, eq, lift, var
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import rewrite
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.simplify.simplify import simplify
from convgen.ir.types import Type, vector
from convgen.passes.clone import Cloner
from convgen.passes.messages.exchange_sources import Sources, sources
from convgen.passes.messages.scratch_tiles import in_two_dims, replicas, scratch_tile, whole, with_copies

_ZERO = const(0)

#: Layouts of a store and of a load, and the scratch tile that they share.
_Trip = tuple[Fragment, Fragment, Shared]


class _Scratch:
    """The scratch tiles of a kernel."""

    def __init__(self) -> None:
        #: by shape and, unless the exchange crosses subgroups, by the subgroup digits of their parts
        self.tiles: dict[tuple[Shared, Any], Shared] = {}
        self.trips: dict[tuple[Fragment, Fragment, Type, bool], _Trip] = {}  #: by layouts, type, crosses subgroups


def exchange(kernel: Kernel, facts: TargetFacts) -> Kernel:
    """Lower all reductions and redistributions; scratch tiles are added to the kernel's shared tiles."""
    scratch = _Scratch()
    cloner = Cloner(kernel)

    def lower(s: st.Exchange) -> st.Stmt:
        return _Lowering(kernel, facts, cloner, scratch, s).run()

    body = rewrite(kernel.body, {st.Reduce: lower, st.Redistribute: lower})
    return evolve(kernel, shared=(*kernel.shared, *scratch.tiles.values()), body=body)


class _Lowering:
    """Builds the statements of one exchange; `value` is the current value, `layout` its distribution."""

    def __init__(
        self, kernel: Kernel, facts: TargetFacts, cloner: Cloner, scratch: _Scratch, node: st.Exchange
    ) -> None:
        self.kernel, self.facts, self.cloner, self.scratch, self.node = kernel, facts, cloner, scratch, node
        self.elem: Type = node.value.type.elem
        self.out: list[st.Stmt] = []
        self.layout = node.of
        self.value: Expr = node.value if isinstance(node.value, Var) else self.let(node.value)

    def let(self, value: Expr) -> Var:
        bound = var(self.node.var.name, value.type)
        self.out.append(st.Let(bound, value))
        return bound

    def site(self) -> st.Site:
        assert self.node.site is not None
        return self.cloner.site(evolve(self.node.site, comment=self.node.var.name))

    def run(self) -> st.Stmt:
        if isinstance(self.node, st.Reduce):
            self.reduce(self.node.dim, st.REDUCTIONS[self.node.op])
        else:
            self.redistribute(self.node.layout, crosses=self.node.crosses_subgroups)
        return st.block(*self.out, st.Let(self.node.var, _relabelled(self.value)))

    # ------------------------------------------------------------ reductions

    def reduce(self, dim: str, op: type[Any]) -> None:
        """Reduce digit by digit in the order of `Fragment.reduction`; subgroup digits move to registers first."""
        while digits := self.layout.reduction(dim):
            d = digits[0][1]
            if d.space == Space.SUBGROUP:
                self.redistribute(_in_registers(self.layout, dim), crosses=True)
                continue
            parts = self.register_parts(d) if d.space == Space.REGISTER else self.lane_parts(d, dim)
            total = parts[0]
            for part in parts[1:]:
                total = self.let(self.operation(op, total, part))
            self.value, self.layout = total, _dropped(self.layout, d)
        self.layout = self.layout.without(dim)

    def operation(self, op: type[Any], a: Expr, b: Expr) -> Expr:
        """Apply `op` to vectors of whole words, padded with repeated elements that are dropped afterwards."""
        count = a.type.lanes
        whole = -(-count * self.elem.bits // 32) * 32 // self.elem.bits
        if count in (1, whole):
            result: Expr = op(a, b)
            return result
        filled = (*range(count), *[count - 1] * (whole - count))
        wide = self.let(op(self.let(Shuffle(a, filled)), self.let(Shuffle(b, filled))))
        return picked(wide, range(count))

    def register_parts(self, d: Digit) -> list[Expr]:
        """Return the registers for each value of a register digit."""
        registers = np.arange(self.layout.registers)
        return [
            self.let(picked(self.value, registers[registers // d.stride % d.size == i].tolist())) for i in range(d.size)
        ]

    def lane_parts(self, d: Digit, dim: str) -> list[Expr]:
        """Return a lane's own value and its partner's; or the values of all lanes along the digit, in order."""
        if d.size == 2 and self.flips(d, dim):
            return [self.value, self.let(FromLane(self.value, Lane() ^ d.stride))]
        others = [o for o in self.layout.factored(Space.LANE).digits if o.space == Space.LANE and o != d]
        base: Expr = _ZERO
        for o in others:
            base = base + Lane() // o.stride % o.size * o.stride
        return [self.let(FromLane(self.value, base + i * d.stride)) for i in range(d.size)]

    def flips(self, d: Digit, dim: str) -> bool:
        """Return whether flipping one bit of the lane's number flips the digit and changes no other coordinate."""
        lanes = np.arange(self.kernel.width)
        other = lanes ^ d.stride
        if d.stride & (d.stride - 1) or (other >= len(lanes)).any():
            return False
        here, there = (self.layout.partial(Space.LANE, n) for n in (lanes, other))
        moved = np.broadcast_to(here[dim] - there[dim], lanes.shape)
        step = next(step for step, o in self.layout.factored(Space.LANE).stepped() if o == d)
        return bool((abs(moved) == step).all()) and all(
            np.array_equal(here[k], there[k]) for k in self.layout.dims if k != dim
        )

    # ------------------------------------------------------------ redistributions

    def redistribute(self, to: Fragment, *, crosses: bool) -> None:
        """Redistribute the value as `to` by the cheapest method."""
        places = None if crosses else sources(self.layout, to, self.kernel.width, self.kernel.subgroups)
        if places is not None and places.stay:
            self.value = self.let(picked(self.value, places.registers))
        elif places is not None and self.facts.permutes:
            self.value = self.from_lanes(places)
        else:
            self.through_memory(self.layout, to, crosses=crosses)
        self.layout = to

    def from_lanes(self, places: Sources) -> Expr:
        """Fetch elements that share a source lane together, in whole words."""
        per_word = max(1, DWORD // self.elem.bytes)
        parts: list[Expr] = []
        place: dict[int, int] = {}
        by_lane = sorted(range(len(places.lanes)), key=lambda r: places.lanes[r])
        for lanes, group in groupby(by_lane, key=lambda r: places.lanes[r]):
            wanted = list(group)
            words = sorted({places.registers[r] // per_word for r in wanted})
            taken = [n for w in words for n in range(w * per_word, (w + 1) * per_word) if n < self.layout.registers]
            start = sum(p.type.lanes for p in parts)
            place.update((r, start + taken.index(places.registers[r])) for r in wanted)
            part = self.let(picked(self.value, taken))
            stays = lanes == tuple(range(len(lanes)))
            parts.append(part if stays else self.let(FromLane(part, simplify(places.lane(wanted[0])))))
        joined = self.let(Pack(vector(self.elem, sum(p.type.lanes for p in parts)), tuple(parts)))
        return self.let(picked(joined, [place[r] for r in range(len(place))]))

    def through_memory(self, of: Fragment, to: Fragment, *, crosses: bool) -> None:
        """Store as `of`, load as `to`; one of several subgroups with equal parts stores, or each has its own tile."""
        key = of, to, self.elem, crosses
        trip = self.scratch.trips.get(key)
        if trip is None:
            trip = self.scratch.trips[key] = self.trip(of, to, crosses=crosses)
        stored, loaded, tile = trip
        store: st.Stmt = st.StoreShared(tile, _ZERO, _relabelled(self.value), stored, self.site())
        loaded_value = var(self.node.var.name, vector(self.elem, to.registers))
        load = st.LoadShared(loaded_value, tile, _ZERO, loaded, self.site())
        if crosses and replicas(of := whole(of), self.kernel.subgroups):
            first = lift(of.place(of.coords(self.kernel.subgroup, 0, 0)).get(Space.SUBGROUP, 0), _ZERO)
            store = st.If(eq(first, self.kernel.subgroup), store, st.empty)
        self.out += [st.Barrier(self.site()), store, st.Barrier(self.site()), load] if crosses else [store, load]
        self.value = loaded_value

    def trip(self, of: Fragment, to: Fragment, *, crosses: bool) -> _Trip:
        """Return layouts in a scratch tile, and the tile; exchanges with equal needs and parts share one."""
        of, to = whole(of), whole(to)
        stored, loaded = in_two_dims(of, to)
        if not crosses:
            copies = replicas(of, self.kernel.subgroups)
            stored, loaded = with_copies(stored, copies), with_copies(loaded, copies)
        tile, tiles = scratch_tile("scratch", self.elem, stored, loaded, self.facts), self.scratch.tiles
        parts = None if crosses else stored.canonical(Space.SUBGROUP)
        return stored, loaded, tiles.setdefault((tile, parts), evolve(tile, name=f"scratch_{len(tiles)}"))


def _relabelled(value: Expr) -> Expr:
    """Return the value as a slice of all its elements, whose distribution the verifier does not trace."""
    return Slice(value, 0, value.type.lanes)


def picked(value: Expr, registers: Sequence[int]) -> Expr:
    """Return some elements of a vector."""
    count = len(registers)
    if list(registers) == list(range(registers[0], registers[0] + count)):
        return value if count == value.type.lanes else Slice(value, registers[0], count)
    return Shuffle(value, tuple(registers))


def _dropped(f: Fragment, d: Digit) -> Fragment:
    """Return the layout without a digit of prime size."""
    fine = f.factored(d.space)
    return evolve(fine, digits=tuple(o for o in fine.digits if o != d)).renumbered(Space.REGISTER)


def _in_registers(f: Fragment, dim: str) -> Fragment:
    """Move the subgroup digits along a dim to registers, such that they are reduced from the smallest stride on."""
    fine = f.factored(Space.SUBGROUP)
    moved = [d for _, d in fine.reduction(dim) if d.space == Space.SUBGROUP]
    stride = dict.fromkeys(moved, f.registers)
    for n, d in enumerate(moved):
        stride[d] *= prod(other.size for other in moved[n + 1 :])
    digits = (evolve(d, space=Space.REGISTER, stride=stride[d]) if d in stride else d for d in fine.digits)
    return evolve(fine, digits=tuple(digits))
