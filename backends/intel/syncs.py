"""Merge stand-alone token waits into arithmetic, which has room for one token each, or into other waits.

A message sets a token and cannot wait for another; matrix instructions mostly cannot, either. Arithmetic that computes
a message's payload stands directly before the message and can wait in its place, which saves a stand-alone wait and
moves the wait up by a few instructions only. `Generation.carried` says which token waits an instruction can carry
beside a distance in its own pipe (IGA 1.1.0, by trial).

Remaining waits that are close together are merged into the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from convgen.backends.intel.isa import Literal, XeInstruction
from convgen.backends.intel.scoreboard import SYNCS, type_pipe, waiting
from convgen.backends.intel.tables import Generation
from convgen.backends.machine.instruction import Function, Instruction, Unit

_REACH = 4  #: instructions by which a wait may move up (assumed)
_MERGED_ACROSS = 8  #: instructions between two stand-alone waits that are merged, at most (assumed)
_MASKS = {name: what for what, name in SYNCS.items()}


def carry_waits(function: Function, generation: Generation) -> Function:
    """Return the function with fewer stand-alone waits; every token is still waited for."""
    return function.rewritten(lambda _, block: _merged(_carried(block.instructions, generation)))


def _carried(instructions: Iterable[Instruction], generation: Generation) -> list[XeInstruction]:
    """Return a block's instructions, each after those of its waits that neither it nor arithmetic before it carries."""
    carrying = _Carrying()
    placed = carrying.placed
    syncs: list[XeInstruction] = []  # waits before the next instruction
    for i in instructions:
        assert isinstance(i, XeInstruction)
        if _waits(i):
            syncs.append(i)
            continue
        first = len(placed)
        placed.append(i)
        carrying.early |= {a.split(".")[0]: (first, first) for a in i.annotations if a.endswith(".src")}
        near = (first, *_arithmetic_before(placed, first))
        remaining = []
        for sync in sorted(syncs, key=lambda sync: len(_waits(sync))):
            waits = _waits(sync)
            carriers = [n for n in near if _has_room(placed[n], waits[0], generation)]
            if len(waits) > len(carriers):
                remaining.append(sync)
                continue
            for n, wait in zip(carriers, waits):
                carrying.carry(n, wait, first)
        placed[first:first] = remaining
        syncs = []
    return placed + syncs


class _Carrying:
    """The instructions of a block so far, some of which carry waits."""

    def __init__(self) -> None:
        self.placed: list[XeInstruction] = []
        #: Token -> index of the instruction that waits for its sources, and the index where that is needed.
        self.early: dict[str, tuple[int, int]] = {}

    def carry(self, n: int, wait: str, needed: int) -> None:
        """Let instruction `n` carry a wait that instruction `needed` needs; drop an earlier wait that it implies."""
        self._annotate(n, *(a.lstrip("FILM") for a in self.placed[n].annotations), wait)
        token, what = wait.split(".")
        if what == "src":
            self.early[token] = n, needed
            return
        at, wanted = self.early.pop(token, (n, n))
        if n != at and n <= wanted:  # a finished instruction has read its sources
            self._annotate(at, *(a for a in self.placed[at].annotations if a != f"{token}.src"))

    def _annotate(self, n: int, *annotations: str) -> None:
        self.placed[n] = self.placed[n].annotated(*annotations)


def _merged(instructions: Iterable[XeInstruction]) -> list[XeInstruction]:
    """Return the instructions with stand-alone waits merged into earlier ones nearby."""
    placed: list[XeInstruction] = []
    last: dict[str, int] = {}  # kind (dst or src) -> index of its last stand-alone wait
    for i in instructions:
        waits = [wait.split(".") for wait in _waits(i)]
        if not waits:
            placed.append(i)
            continue
        kind, at = waits[0][1], last.get(waits[0][1], -_MERGED_ACROSS)
        between = placed[at:] if len(placed) - at <= _MERGED_ACROSS else []
        since = {a for other in between for a in other.annotations}
        early = [token for token, _ in waits if between and token not in since]
        late = [token for token, _ in waits if token not in early]
        if early:
            placed[at] = waiting([*(wait.split(".")[0] for wait in _waits(placed[at])), *early], kind)
        if late:
            last[kind] = len(placed)
            placed.append(waiting(late, kind))
    return placed


def _waits(i: XeInstruction) -> list[str]:
    """Return the tokens of a stand-alone wait, as annotations; empty for other instructions."""
    if i.op.name == "sync.nop":
        return [a for a in i.annotations if a.startswith("$")]
    if i.op.name in _MASKS:
        (mask,) = i.src
        bits = int(mask.value) if isinstance(mask, Literal) else 0
        return [f"${n}.{_MASKS[i.op.name]}" for n in range(bits.bit_length()) if bits >> n & 1]
    return []


def _arithmetic_before(placed: list[XeInstruction], end: int) -> Iterator[int]:
    """Yield the indices of up to `_REACH` in-order instructions before `end`, the last first.

    It stops at an instruction that sets a token: before it, that token is not to be waited for yet.
    """
    for n in range(end - 1, max(end - 1 - _REACH, -1), -1):
        if placed[n].op.unit is not Unit.VALU or any(a[0] == "$" and "." not in a for a in placed[n].annotations):
            return
        yield n


def _has_room(i: XeInstruction, wait: str, generation: Generation) -> bool:
    """Return whether an instruction can also carry this token wait."""
    if i.op.unit is not Unit.VALU or not i.annotations:
        return i.op.unit is Unit.VALU
    own = all(a[0] == type_pipe(i, generation) for a in i.annotations)
    return own and wait.partition(".")[2] in generation.carried
