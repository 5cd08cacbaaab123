"""Selection of exchanges between lanes: moves of regions, which read and write lanes at fixed strides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from convgen.backends.intel.isa import region
from convgen.backends.intel.scalars import XeScalars
from convgen.backends.machine.instruction import Reg
from convgen.backends.machine.lanes import lanes_read
from convgen.ir.error import Unsupported
from convgen.ir.expr import FromLane
from convgen.ir.record import frozen


@frozen
class _Move:
    """A move of `count` lanes: destination lanes begin at `to`, `step` apart, source lanes at `of`, `stride` apart."""

    count: int
    to: int
    step: int
    of: int
    stride: int

    @property
    def written(self) -> range:
        return range(self.to, self.to + self.count * self.step, self.step)

    def agrees(self, lanes: Sequence[int]) -> bool:
        """Return whether each lane that the move writes gets the word of the lane that `lanes` has for it."""
        brought = [self.of + n * self.stride for n in range(self.count)]
        return self.written[-1] < len(lanes) and [lanes[n] for n in self.written] == brought


def from_lanes(scalars: XeScalars, words: Sequence[Reg], e: FromLane) -> Reg:
    """Return a tuple of the words of other lanes."""
    out = scalars.out
    lanes = lanes_read(e.lane, out.lanes, scalars.lets)
    if lanes is None or e.type.elem.bits > 32:
        wanted = "elements of up to 32 bits from lanes that follow from the lane's own number"
        raise Unsupported(f"given {e.type} from lane {e.lane}, wanted {wanted}")
    dst = out.new("v", len(words))
    for n, word in enumerate(words):
        for m in _moves(lanes):
            to, of = region(dst.words(n, 1), "ud", m.to, m.step), region(word, "ud", m.of, m.stride)
            out.emit("mov", (to,), (of,), lanes=m.count, partial=m.to > 0)
    return dst


@lru_cache(maxsize=2**8)
def _moves(lanes: tuple[int, ...]) -> tuple[_Move, ...]:
    """Return moves that together give every lane its word, each with as many lanes as possible."""
    served: dict[int, None] = {}
    moves = []
    for to in range(len(lanes)):
        if to not in served:
            most = max(_beginning(lanes, to), key=lambda m: m.count if served.keys().isdisjoint(m.written) else 0)
            served.update(dict.fromkeys(most.written))
            moves.append(most)
    return tuple(moves)


def _beginning(lanes: tuple[int, ...], to: int) -> Iterator[_Move]:
    """Yield the moves whose first lane is `to`, with the strides of regions (PRM, "Register Region Parameters")."""
    yield _Move(1, to, 1, lanes[to], 0)
    count = 2
    while count <= len(lanes):
        every = (_Move(count, to, step, lanes[to], stride) for step in (1, 2, 4) for stride in (0, 1, 2, 4, 8))
        yield from (m for m in every if m.agrees(lanes))
        count *= 2
