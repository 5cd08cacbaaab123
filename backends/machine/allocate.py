"""Register allocation without spills: exact live ranges, aligned tuples, first fit.

Positions count 2 per instruction: operands are read at 2n and results written at 2n + 1 (2n for early clobbers), so a
result may take the register of an operand that dies. A live range is a bit set of positions, so other registers can use
its holes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from convgen.backends.machine.instruction import Function, Instruction, VirtualRegister
from convgen.ir.error import DoesNotFit
from convgen.ir.record import frozen


@frozen
class Bank:
    """A register file: words [first, limit), and the alignment of tuples by size."""

    limit: int
    alignment: Mapping[int, int]  #: words; tuple size -> alignment; larger tuples as the largest listed
    first: int = 0
    period: int = 0  #: words; modulus of preferred places (`VirtualRegister.residue`); 0: no preference
    is_strict: bool = True  #: whether tuples take only their preferred places
    #: Whether the largest tuples are placed first, so that smaller ones fill gaps; else tuples go by first use.
    largest_first: bool = False
    pinned_only: int = 0  #: words; the last ones, which only pinned registers take

    def align(self, size: int) -> int:
        for least, alignment in self._by_size:
            if size >= least:
                return alignment
        return 1

    @cached_property
    def _by_size(self) -> Sequence[tuple[int, int]]:
        """Return sizes with their alignment, the largest first."""
        return sorted(self.alignment.items(), reverse=True)


@frozen(eq=False)
class Allocation:
    """The first physical word of each virtual register, and the number of words of each bank in use."""

    base: Mapping[VirtualRegister, int]
    used: Mapping[str, int]


def allocate(
    function: Function, banks: Mapping[str, Bank], live: Mapping[VirtualRegister, int] | None = None
) -> Allocation:
    """Place every virtual register of these banks. Raises DoesNotFit if a bank is too small.

    `live` are the live ranges, if known already.
    """
    live = {v: at for v, at in (Liveness(function).ranges() if live is None else live).items() if v.bank in banks}
    occupied: dict[str, list[int]] = {name: [0] * bank.limit for name, bank in banks.items()}
    base: dict[VirtualRegister, int] = {}
    used = dict.fromkeys(banks, 0)

    def put(v: VirtualRegister, at: int) -> None:
        base[v] = at
        used[v.bank] = max(used[v.bank], at + v.size)
        words, mask = occupied[v.bank], live[v]
        for word in range(at, at + v.size):
            words[word] |= mask

    # Pinned registers first; then by size if the bank wants that, then by first position, larger tuples first.
    def key(v: VirtualRegister) -> tuple[bool, int, int, int, int]:
        return v.fixed is None, -v.size * banks[v.bank].largest_first, live[v] & -live[v], -v.size, v.number

    for v in sorted(live, key=key):
        bank = banks[v.bank]
        if v.fixed is not None:
            put(v, v.fixed % bank.limit)
            continue
        at = _place(v, live[v], bank, occupied[v.bank])
        if at is None:
            free = f"bank {v.bank} has no {v.size} free words of {bank.limit} for {v.name or v}"
            raise DoesNotFit(free, short_of=v.bank)
        put(v, at)
    return Allocation(base, used)


def _place(v: VirtualRegister, mask: int, bank: Bank, words: Sequence[int]) -> int | None:
    """Return the first free preferred place of a register, else the first that it may take; None if there is none."""
    free = words[: max(0, bank.limit - bank.pinned_only)] if bank.pinned_only else words
    if bank.period and v.residue is not None:
        at = _first_fit(free, mask, v.size, bank.period, bank.first + (v.residue - bank.first) % bank.period)
        if at is not None or bank.is_strict:
            return at
    step = bank.align(v.size)
    return _first_fit(free, mask, v.size, step, -(-bank.first // step) * step)


def _first_fit(words: Sequence[int], mask: int, size: int, step: int, first: int) -> int | None:
    """Return the first place with `size` words free wherever `mask` is set, else None.

    Places are `first` plus multiples of `step`.
    """
    begin = first  # start of the run of free words
    for end, taken in enumerate(words[first:], first + 1):
        if taken & mask:
            begin = end
        elif end - begin >= size:
            at = first - (first - begin) // step * step
            if end - at == size:
                return at
    return None


class Liveness:
    """The positions at which the virtual registers of a function hold values that are still needed."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self._steps = _steps(function)
        self._live_out = self._solve()
        self._ranges: dict[int, dict[VirtualRegister, int]] = {}  # by `hold`

    def _solve(self) -> list[dict[VirtualRegister, None]]:
        """Return the registers that are live at the end of each block: a fixed point over loops."""
        blocks = self.function.blocks
        successors = [self.function.successors(index) for index in range(len(blocks))]
        needed, begun = zip(*map(_summary, self._steps))
        live_in: list[dict[VirtualRegister, None]] = [{} for _ in blocks]
        changed = True
        while changed:
            changed = False
            for index in reversed(range(len(blocks))):
                now = {v: None for s in successors[index] for v in live_in[s] if v not in begun[index]}
                now.update(needed[index])
                if now.keys() != live_in[index].keys():
                    live_in[index], changed = now, True
        return [{v: None for s in then for v in live_in[s]} for then in successors]

    @cached_property
    def starts(self) -> Sequence[int]:
        """Return the first position of each block, and the end of the last."""
        return [0, *accumulate(2 * len(block.instructions) for block in self.function.blocks)]

    def ranges(self, *, hold: int = 0) -> Mapping[VirtualRegister, int]:
        """Return the positions at which each register is live, as bits.

        With `hold`, sources stay live for up to `hold` instructions within the block, as far as `Opcode.holds` says.
        """
        if hold not in self._ranges:
            self._ranges[hold] = self._find_ranges(hold)
        return self._ranges[hold]

    def _find_ranges(self, hold: int) -> dict[VirtualRegister, int]:
        ranges: dict[VirtualRegister, int] = {}
        start = 0
        for b, steps, live_out in zip(self.function.blocks, self._steps, self._live_out):
            end = start + 2 * len(steps)
            opened = dict.fromkeys(live_out, end)
            at = end
            for i, step in zip(reversed(b.instructions), reversed(steps)):
                at -= 2
                for v in step.written:
                    opened.setdefault(v, at + 2)
                for v in step.begun:
                    begin = at if i.early_clobber else at + 1
                    ranges[v] = ranges.get(v, 0) | _span(begin, opened.pop(v))
                last = min(end, at + 1 + 2 * min(i.op.holds, hold)) if hold else at + 1
                for v in step.read:
                    opened.setdefault(v, last)
            for v, until in opened.items():
                ranges[v] = ranges.get(v, 0) | _span(start, until)
            start = end
        return dict(sorted(ranges.items(), key=lambda item: item[0].number))


def _span(begin: int, end: int) -> int:
    return ((1 << (end - begin)) - 1) << begin


class _Step(NamedTuple):
    """The registers of one instruction."""

    read: list[VirtualRegister]
    written: list[VirtualRegister]
    begun: list[VirtualRegister]  #: registers in which a new value starts


def _steps(function: Function) -> list[list[_Step]]:
    """Return the registers of each block's instructions.

    A value starts with a definition of the whole tuple, or with the first definition of a tuple that is built in parts.
    """
    seen: set[VirtualRegister] = set()
    steps = []
    for block in function.blocks:
        steps.append([_step(i, seen) for i in block.instructions])
        _begin_in_parts(block.instructions, steps[-1])
    return steps


def _step(i: Instruction, seen: set[VirtualRegister]) -> _Step:
    """Return the registers of an instruction; `seen` are the registers defined before it."""
    read = [r.vreg for r in i.uses()]
    written: list[VirtualRegister] = []
    begun: list[VirtualRegister] = []
    for r in i.defs():
        v = r.vreg
        written.append(v)
        if (r.count == v.size or v not in seen) and v not in read and v not in begun:
            begun.append(v)
    seen.update(written)
    return _Step(read, written, begun)


def _begin_in_parts(code: Sequence[Instruction], steps: Sequence[_Step]) -> None:
    """Start a new value where a tuple is rebuilt: all its parts are written before one is read."""
    built: dict[VirtualRegister, tuple[_Step, int]] = {}  # first writer, and the words written so far, as bits
    for i, step in zip(code, steps):
        if built:
            for v in (*step.read, *step.begun):
                built.pop(v, None)
        if len(step.written) == len(step.begun):
            continue
        for r in i.defs():
            v = r.vreg
            if v not in step.read and v not in step.begun:
                first, words = built.get(v, (step, 0))
                words |= ((1 << r.count) - 1) << r.first
                built[v] = first, words
                if words + 1 == 1 << v.size:
                    first.begun.append(v)
                    del built[v]


def _summary(steps: Sequence[_Step]) -> tuple[dict[VirtualRegister, None], set[VirtualRegister]]:
    """Return the registers that are live into a block by its own reads, and those in which it starts values."""
    needed: dict[VirtualRegister, None] = {}
    all_begun: set[VirtualRegister] = set()
    for read, written, begun in reversed(steps):
        for v in written:
            needed[v] = None
        for v in begun:
            del needed[v]
        all_begun.update(begun)
        for v in read:
            needed[v] = None
    return needed, all_begun
