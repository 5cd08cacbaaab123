"""Register headroom: which instructions may issue ahead of program order without exceeding the registers."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from convgen.backends.machine.allocate import Bank, Liveness
from convgen.backends.machine.instruction import Function, VirtualRegister
from convgen.ir.record import frozen

Words = npt.NDArray[np.int64]


@frozen(cache_hash=True)
class Value:
    """A value in a register, from one definition on, within a block; instructions count by program order."""

    register: VirtualRegister
    free: int  #: first instruction at which the register holds nothing else
    begun: int  #: instruction of the definition


class Headroom:
    """The free register words of a block in program order, by bank and instruction.

    An instruction that issues early takes words from then on, up to its place in program order.
    """

    def __init__(self, free: Mapping[str, Words], values: Sequence[Sequence[Value]]):
        """`values` are those that each instruction makes, or parts of them."""
        self.first = 0  #: first instruction in program order that has not issued
        self._free, self._values = free, values
        self._claimed: set[Value] = set()
        self._is_issued = [False] * len(values)

    def admits(self, n: int) -> bool:
        """Return whether the results of instruction `n` fit in registers up to its place."""
        return n == self.first or all((self._ahead(value) >= value.register.size).all() for value in self._unclaimed(n))

    def take(self, n: int) -> None:
        """Record that instruction `n` issues next."""
        for value in self._unclaimed(n):
            self._ahead(value)[:] -= value.register.size
            self._claimed.add(value)
        self._is_issued[n] = True
        while self.first < len(self._values) and self._is_issued[self.first]:
            self.first += 1

    def _unclaimed(self, n: int) -> Iterator[Value]:
        return (value for value in self._values[n] if value not in self._claimed)

    def _ahead(self, value: Value) -> Words:
        """Return the free words from the current instruction to the place where a value starts in program order."""
        return self._free[value.register.bank][max(self.first, value.free) : value.begun]


def headrooms(function: Function, banks: Mapping[str, Bank]) -> list[Headroom]:
    """Return the headroom of each block."""
    liveness = Liveness(function)
    runs = {v: _runs(at) for v, at in liveness.ranges().items() if v.bank in banks}
    taken = {name: np.zeros(liveness.starts[-1] + 1, np.int64) for name in banks}
    for v, edges in runs.items():
        taken[v.bank][edges[::2]] += v.size
        taken[v.bank][edges[1::2]] -= v.size
    free = {
        name: banks[name].limit - banks[name].first - np.cumsum(changes)[:-1].reshape(-1, 2).max(axis=1)
        for name, changes in taken.items()
    }
    result = []
    for block, start in zip(function.blocks, liveness.starts):
        first, end = start // 2, start // 2 + len(block.instructions)
        values = [
            [_value(v, runs[v], at, first) for v in dict.fromkeys(r.vreg for r in i.defs()) if v.bank in banks]
            for at, i in enumerate(block.instructions, first)
        ]
        result.append(Headroom({name: words[first:end] for name, words in free.items()}, values))
    return result


def _value(v: VirtualRegister, edges: Sequence[int], at: int, first: int) -> Value:
    """Return the value that instruction `at` makes in a register, or a part of it.

    `edges` are the positions (`allocate`) at which runs of the register's live range begin and end; `first` is the
    block's first instruction. The value's run is the last that begins up to the position of the instruction's results.
    """
    run = (bisect(edges, 2 * at + 1) - 1) // 2 * 2
    begun, previous_end = edges[run] // 2, edges[run - 1] if run else 0
    return Value(v, max(0, -(-previous_end // 2) - first), max(0, begun - first))


def _runs(at: int) -> list[int]:
    """Return the positions where runs of set bits begin and end, in order."""
    positions, edges = [], at ^ at << 1
    while edges:
        positions.append((edges & -edges).bit_length() - 1)
        edges &= edges - 1
    return positions
