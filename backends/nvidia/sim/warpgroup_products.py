"""wgmma's products in flight: their registers, their order, and what all warps of a warpgroup do together.

PTX ISA, wgmma.fence, wgmma.mma_async, wgmma.commit_group, wgmma.wait_group. Accumulators of a product, and registers of
A, belong to it until a wait_group that covers its group; only products of equal shape may share accumulators in flight.
Registers that other instructions have accessed need a wgmma.fence ahead of a product. A group is complete once all
warps of the warpgroup have executed its products, so a wait lets a warp go on only then, and what it may see afterwards
includes that the products have read shared memory.

The simulator writes results when the product executes, for no instruction may read them before the wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convgen.backends.nvidia.sim.ptx_text import Instruction
from convgen.backends.nvidia.sim.state import WARPGROUP, Flight, WarpGroup
from convgen.backends.nvidia.sim.step import Step
from convgen.backends.sim.wave_arrays import Array, Bools
from convgen.ir.record import define, evolve

KIND = "wgmma"


@define(eq=False)
class _FirstWarp:
    """A product as the first warp of its warpgroup has executed it; the others must execute it with equal operands."""

    instruction: Instruction
    operands: tuple[int, ...]  #: descriptors and scale-d
    warp: int
    warps: int = 0  #: warps that have executed it


class Products:
    """The products that each warp of a batch has executed."""

    def __init__(self, slots: int, waves: int) -> None:
        self.waves = waves
        self.issued: Array = np.zeros((slots, waves), np.int64)
        #: By slot, warpgroup and number of the product, until all warps have executed it.
        self._first: dict[tuple[int, int, int], _FirstWarp] = {}

    # -- issue --------------------------------------------------------------------------------------------------------

    def warpgroups(self, g: WarpGroup, step: Step) -> dict[tuple[int, int, int], list[int]]:
        """Return the rows of each product that a group executes, by slot, warpgroup and number of the product."""
        result: dict[tuple[int, int, int], list[int]] = {}
        for row, (slot, warp) in enumerate(zip(g.slot.tolist(), g.wave.tolist(), strict=True)):
            warpgroup = warp // WARPGROUP
            if WARPGROUP * (warpgroup + 1) > self.waves:
                finding = f"warp {warp} belongs to a warpgroup of fewer than {WARPGROUP} warps"
                g.env.reporter.add("divergence", finding, step.instruction, g, row)
            result.setdefault((slot, warpgroup, int(self.issued[slot, warp])), []).append(row)
        return result

    def issue(
        self, g: WarpGroup, step: Step, key: tuple[int, int, int], rows: Sequence[int], operands: Sequence[Array]
    ) -> tuple[int, ...]:
        """Count a product of some warps; report warps of one warpgroup that execute different ones.

        `operands` are the descriptors and scale-d by row; returns those of the first row.
        """
        by_row = [tuple(int(operand[row]) for operand in operands) for row in rows]
        for row, operands_of_row in zip(rows, by_row, strict=True):
            self.issued[g.slot[row], g.wave[row]] += 1
            first = self._first.setdefault(key, _FirstWarp(step.instruction, operands_of_row, int(g.wave[row])))
            first.warps += 1
            if first.instruction.address != step.instruction.address:
                finding = f"warp {first.warp} of its warpgroup executes `{first.instruction.text}`"
                g.env.reporter.add("divergence", finding, step.instruction, g, row)
            elif first.operands != operands_of_row:
                finding = f"warp {first.warp} of its warpgroup executes it with other descriptors or another scale-d"
                g.env.reporter.add("divergence", finding, step.instruction, g, row)
        if self._first[key].warps >= WARPGROUP:
            del self._first[key]
        return by_row[0]

    @staticmethod
    def check_registers(g: WarpGroup, step: Step, flight: Flight) -> None:
        """Report a product whose registers lack a wgmma.fence, or belong to another product in flight."""
        names = g.env.names
        bare = g.touched & (flight.results | flight.factors)
        if bare:
            name = names[(bare & -bare).bit_length() - 1]
            finding = f"{name} was accessed by other instructions with no wgmma.fence since"
            if g.touched < 0:
                finding = "no wgmma.fence stands ahead of the kernel's first product"
            g.env.reporter.add(KIND, finding, step.instruction, g)
        for earlier in g.landed:
            changed = flight.factors & earlier.results | flight.results & earlier.factors
            changed |= flight.results & earlier.results if flight.shape != earlier.shape else 0
            if changed:
                name = names[(changed & -changed).bit_length() - 1]
                finding = f"{name} was of a product of another shape, or another operand, with no wgmma.fence since"
                g.env.reporter.add(KIND, finding, step.instruction, g)
        for earlier in g.flights:
            clash = flight.factors & earlier.results | flight.results & earlier.factors
            if flight.accumulators != earlier.accumulators or flight.shape != earlier.shape:
                clash |= flight.results & earlier.results
            if clash:
                name = names[(clash & -clash).bit_length() - 1]
                finding = f"{name} belongs to a product in flight with other registers or of another shape"
                g.env.reporter.add(KIND, finding, step.instruction, g)
                return

    # -- groups -------------------------------------------------------------------------------------------------------

    @staticmethod
    def commit(g: WarpGroup) -> None:
        """Put the products since the last commit into a group."""
        g.fly(tuple(evolve(flight, age=flight.age + 1) for flight in g.flights))

    @staticmethod
    def remaining(g: WarpGroup, allowed: int) -> tuple[Flight, ...]:
        """Return the products that a wait for all but `allowed` groups leaves in flight."""
        return tuple(flight for flight in g.flights if flight.age < allowed)

    def complete(self, g: WarpGroup, running: int) -> Bools:
        """Return by row whether all warps of its warpgroup have executed all but its last `running` products."""
        needed = self.issued[g.slot, g.wave] - running
        first = g.wave // WARPGROUP * WARPGROUP
        others = np.minimum(first[:, None] + np.arange(WARPGROUP), self.waves - 1)
        return np.asarray((self.issued[g.slot[:, None], others] >= needed[:, None]).all(axis=1))

    def land(self, g: WarpGroup, running: tuple[Flight, ...]) -> None:
        """End all products of a group of warps but those that go on `running`."""
        seen = g.env.local.seen
        agent = g.env.waves + g.wave // WARPGROUP
        done = self.issued[g.slot, g.wave] - len(running)
        seen[g.slot, g.wave, agent] = np.maximum(seen[g.slot, g.wave, agent], done)
        ended = (evolve(flight, age=0) for flight in g.flights[: len(g.flights) - len(running)])
        g.landed = tuple(dict.fromkeys((*g.landed, *ended)))
        g.fly(running)


def check_access(g: WarpGroup, instruction: Instruction, registers: int) -> None:
    """Report an instruction other than a product that accesses registers (a set of bits) of products in flight."""
    hit = registers & g.in_flight
    name = g.env.names[(hit & -hit).bit_length() - 1]
    finding = f"accesses {name} of a product in flight, with no wgmma.wait_group that covers it"
    if any(flight.age < 0 and (flight.results | flight.factors) & hit for flight in g.flights):
        finding = f"accesses {name} of a product that no wgmma.commit_group has committed"
    g.env.reporter.add(KIND, finding, instruction, g)


def check_end(g: WarpGroup, instruction: Instruction, lanes: Bools) -> None:
    """Report threads that end with products in flight."""
    if g.flights and lanes.any():
        uncommitted = sum(flight.age < 0 for flight in g.flights)
        finding = f"ends with {len(g.flights)} products in flight, {uncommitted} of them not committed"
        g.env.reporter.at_first(KIND, finding, instruction, g, lanes)
