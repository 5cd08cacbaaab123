"""Register allocation without spills: exact live ranges, aligned tuples, first fit.

Positions count 2 per instruction: operands are read at 2n and results written at 2n + 1 (2n for early clobbers), so a
result may take the register of an operand that dies. A live range is a bit set of positions, so holes are free for
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from convgen.backends.machine.instruction import Function, Instruction, VirtualRegister
from convgen.ir.error import DoesNotFit


@attrs.frozen
class Bank:
    """A register file: its words [first, limit), and how a tuple of a size must be aligned."""

    limit: int
    alignment: Mapping[int, int]  #: words; by size of the tuple, larger ones as the largest listed
    first: int = 0
    period: int = 0  #: words; of the places that tuples prefer, 0 where none is better than another

    def align(self, size: int) -> int:
        return next((a for s, a in sorted(self.alignment.items(), reverse=True) if size >= s), 1)


@attrs.frozen
class Allocation:
    """First physical word of each virtual register, and how many words of each bank are used."""

    base: Mapping[VirtualRegister, int]
    used: Mapping[str, int]


def allocate(
    function: Function, banks: Mapping[str, Bank], live: Mapping[VirtualRegister, int] | None = None
) -> Allocation:
    """Place every virtual register of these banks; DoesNotFit if one is too small.

    `live` are the live ranges, if they are known already.
    """
    live = {v: at for v, at in (Liveness(function).ranges() if live is None else live).items() if v.bank in banks}
    occupied: dict[str, list[int]] = {name: [0] * bank.limit for name, bank in banks.items()}
    base: dict[VirtualRegister, int] = {}
    used = dict.fromkeys(banks, 0)

    def place(v: VirtualRegister, at: int) -> None:
        base[v] = at
        used[v.bank] = max(used[v.bank], at + v.size)
        for word in range(at, at + v.size):
            occupied[v.bank][word] |= live[v]

    # Pinned registers first; then by first position, larger tuples before smaller.
    def key(v: VirtualRegister) -> tuple[bool, int, int, int]:
        return v.fixed is None, live[v] & -live[v], -v.size, v.number

    for v in sorted(live, key=key):
        bank, words = banks[v.bank], occupied[v.bank]
        if v.fixed is not None:
            place(v, v.fixed % banks[v.bank].limit)
            continue
        step = bank.align(v.size)
        first = -(-bank.first // step) * step
        if bank.period and v.residue is not None:
            step, first = bank.period, bank.first + (v.residue - bank.first) % bank.period
        at = _first_fit(words, live[v], v.size, step, first)
        if at is None:
            raise DoesNotFit(f"bank {v.bank} has no {v.size} free words of {bank.limit} for {v.name or v}")
        place(v, at)
    return Allocation(base, used)


def _first_fit(words: Sequence[int], mask: int, size: int, step: int, first: int) -> int | None:
    """The first place, by steps from `first` on, from which `size` words are free wherever `mask` is set."""
    at = first
    while at + size <= len(words):
        for w in range(at + size - 1, at - 1, -1):
            if words[w] & mask:
                at = first - (first - w - 1) // step * step  # no start up to this word can do
                break
        else:
            return at
    return None


class Liveness:
    """Where the virtual registers of a function hold values that are still needed."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._kills = _kills(function)
        self._live_out = self._solve()
        self._ranges: dict[int, dict[VirtualRegister, int]] = {}  # by how long sources are held

    def _solve(self) -> list[set[VirtualRegister]]:
        """Words that are needed behind each block: a fixed point over loops."""
        blocks = self.function.blocks
        successors = [self.function.successors(index) for index in range(len(blocks))]
        live_in: list[set[VirtualRegister]] = [set() for _ in blocks]
        changed = True
        while changed:
            changed = False
            for index in reversed(range(len(blocks))):
                now = set().union(*(live_in[s] for s in successors[index]))
                for i in reversed(blocks[index].instructions):
                    now -= self._kills[i]
                    now |= {r.vreg for r in i.uses()}
                    now |= {r.vreg for r in i.defs()} - self._kills[i]
                if now != live_in[index]:
                    live_in[index], changed = now, True
        return [set().union(*(live_in[s] for s in then)) for then in successors]

    def ranges(self, *, hold: int = 0) -> Mapping[VirtualRegister, int]:
        """The positions at which each register is needed, as bits.

        Sources also count as needed for up to `hold` instructions as long as theirs holds them, within its block.
        """
        if hold not in self._ranges:
            self._ranges[hold] = self._find(hold)
        return self._ranges[hold]

    def _find(self, hold: int) -> dict[VirtualRegister, int]:
        ranges: dict[VirtualRegister, int] = {}
        start = 0
        for b, live_out in zip(self.function.blocks, self._live_out):
            end = start + 2 * len(b.instructions)
            opened = dict.fromkeys(live_out, end)
            for at, i in zip(reversed(range(start, end, 2)), reversed(b.instructions)):
                killed = self._kills[i]
                for r in i.defs():
                    opened.setdefault(r.vreg, at + 2)
                for v in dict.fromkeys(r.vreg for r in i.defs()):
                    if v in killed and v in opened:
                        begin = at if i.early_clobber else at + 1
                        ranges[v] = ranges.get(v, 0) | _span(begin, opened.pop(v))
                last = min(end, at + 1 + 2 * min(i.op.holds, hold))
                for r in i.uses():
                    opened.setdefault(r.vreg, last)
            for v, until in opened.items():
                ranges[v] = ranges.get(v, 0) | _span(start, until)
            start = end
        return dict(sorted(ranges.items(), key=lambda item: item[0].number))


def _span(begin: int, end: int) -> int:
    return ((1 << (end - begin)) - 1) << begin


def _kills(function: Function) -> dict[Instruction, frozenset[VirtualRegister]]:
    """Which definitions start a value anew: those of the whole tuple, and the first of a tuple built in parts."""
    seen: set[VirtualRegister] = set()
    out: dict[Instruction, frozenset[VirtualRegister]] = {}
    for i in function.instructions():
        read = {r.vreg for r in i.uses()}
        begun = [r.vreg for r in i.defs() if (r.whole and r.vreg not in read) or r.vreg not in seen]
        out[i] = frozenset(v for v in begun if v not in read)
        seen.update(r.vreg for r in i.defs())
    return out
