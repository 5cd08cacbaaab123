"""The tile of a workgroup whose lanes compute whole channels and positions (`mma=fma:...`), and its distribution.

Each lane has neighbouring channels along N and a block of neighbouring positions. It multiplies and adds by itself, or
blocks of lanes with neighbouring positions of one group share a matrix instruction.
"""

from __future__ import annotations

from collections.abc import Sequence

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import BlockAtom
from convgen.ir.record import evolve, frozen
from convgen.ir.types import scalar
from convgen.plan.config import Config, LanePart
from convgen.plan.copies import divide
from convgen.problem.conv import Conv, Direction
from convgen.problem.matmul import Problem


@frozen
class LaneTile:
    """Distribution of a workgroup's tile over lanes and subgroups, which stand along positions and N."""

    lane_part: LanePart
    lanes: tuple[int, int]  #: along positions and N
    subgroups: tuple[int, int]  #: along positions and N
    #: matrix instruction on blocks of lanes, None for multiply-adds; a block has neighbouring positions
    atom: BlockAtom | None = None

    @property
    def positions(self) -> int:
        """Return the positions that the workgroup computes at a time."""
        return self.lanes[0] * self.subgroups[0] * self.lane_part.positions

    @property
    def n(self) -> int:
        return self.lanes[1] * self.subgroups[1] * self.lane_part.channels

    @classmethod
    def of(cls, problem: Problem, config: Config, lane: LanePart, facts: TargetFacts) -> LaneTile:
        """Return the lane tile of a config; DoesNotFit unless its tile divides evenly."""
        tile_m, tile_n, tile_k = config.tile
        _, waves_n = config.waves
        lanes_n = divide("tile N over subgroups x the channels of a lane", tile_n, waves_n * lane.channels)
        lanes_m = divide("lanes over those along N", facts.subgroup_size, lanes_n)
        tile = cls(lane, (lanes_m, lanes_n), config.waves, _atom(problem, lane, facts))
        if lane.atom:
            divide("lanes along positions over those of a block", lanes_m, lane.atom[0])
        name, positions = ("K", tile_k) if sums_weights(problem) else ("M", tile_m)
        if positions != tile.positions:
            raise DoesNotFit(f"tile {name} of {positions}, wanted {tile.positions}: the positions of all lanes")
        return tile

    def fragment(self, dims: tuple[str, ...], registers: Sequence[tuple[str, int]], along_m: bool) -> Fragment:
        """Return a fragment over `dims`: first the dim along N, then the dim along positions, then others.

        `registers` are (dim, neighbours of a lane), innermost first. Neighbouring lanes are neighbours along positions
        if memory is contiguous along these (`along_m`) or lanes form blocks, else along N.
        """
        n, m, *_ = dims
        order = ((m, 0), (n, 1)) if along_m or self.atom else ((n, 1), (m, 0))
        digits = [(dim, size, Space.REGISTER) for dim, size in registers]
        digits += [(dim, self.lanes[side], Space.LANE) for dim, side in order]
        digits += [(dim, self.subgroups[side], Space.SUBGROUP) for dim, side in order]
        unit_digits = tuple(Digit(dim, size, space, 1) for dim, size, space in digits)
        return Fragment(dims, _stacked(unit_digits))

    def image(self, along_m: bool) -> Fragment:
        """Return the layout of an image's tile over N and positions; the rows of a lane follow one another."""
        row = ("n", self.lane_part.channels), ("m", self.lane_part.columns)
        registers = (*(reversed(row) if along_m else row), ("m", self.lane_part.rows))
        return self.fragment(("n", "m"), registers, along_m)


def sums_weights(problem: Problem) -> bool:
    """Whether the result is the gradient of weights, so that sums run over positions."""
    return isinstance(problem, Conv) and problem.direction in (Direction.BWD_W, Direction.BWD_WB)


def _atom(problem: Problem, lane: LanePart, facts: TargetFacts) -> BlockAtom | None:
    """Return the matrix instruction of a lane's part, None for multiply-adds; DoesNotFit where the target lacks it."""
    if lane.atom is None:
        return None
    for atom in blocks(problem, facts):
        if atom.shape == lane.atom:
            return atom
    kinds = " and ".join(dict.fromkeys(t.dtype for t in problem.factors))
    raise DoesNotFit(f"mma={lane}: {facts.name} has no such matrix instruction of blocks for {kinds} in this direction")


def blocks(problem: Problem, facts: TargetFacts) -> tuple[BlockAtom, ...]:
    """Return the matrix instructions on blocks of lanes that suit a problem's types."""
    if sums_weights(problem):
        return ()
    types = {scalar(t.dtype) for t in problem.factors}
    return tuple(atom for atom in facts.blocks if types == {atom.elem} and atom.acc.name == problem.acc_type)


def _stacked(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    """Return the digits with strides in each space stacked in order, without digits of size 1."""
    strides: dict[str, int] = {}
    stacked = []
    for d in digits:
        stacked.append(evolve(d, stride=strides.get(d.space, 1)))
        strides[d.space] = strides.get(d.space, 1) * d.size
    return tuple(d for d in stacked if d.size > 1)
