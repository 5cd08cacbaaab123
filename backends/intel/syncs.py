"""Waits for tokens that stand by themselves are carried by arithmetic, which has room for one token each, or joined.

A message sets a token and cannot wait for another, a matrix instruction mostly neither; but what makes a message's
payload stands directly before it, and waits as well. So hardly anything is waited for too early, and an instruction
less is issued. Beside a distance in the own pipe there is room for what the generation says (IGA 1.1.0, by trial).

Of those that are left, one does what others close behind it would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from convgen.backends.intel.isa import Literal, XeInstruction
from convgen.backends.intel.scoreboard import SYNCS, type_pipe, waiting
from convgen.backends.intel.tables import Generation
from convgen.backends.machine.instruction import Function, Instruction, Unit

_REACH = 4  #: instructions that may wait for a token earlier than needed
_JOINED = 8  #: the same, of those between two that only wait
_MASKS = {name: what for what, name in SYNCS.items()}


def carry_waits(function: Function, generation: Generation) -> Function:
    """The function with fewer instructions that only wait; what they waited for still is waited for."""
    return function.rewritten(lambda _, block: _joined(_carried(block.instructions, generation)))


def _carried(instructions: Iterable[Instruction], generation: Generation) -> list[XeInstruction]:
    """A block's instructions, each behind those waits that neither it nor arithmetic before it carries."""
    done: list[XeInstruction] = []
    syncs: list[XeInstruction] = []  # that stand before the next instruction
    early: dict[str, tuple[int, int]] = {}  # by token: where its sources are waited for, and where that is wanted
    for i in instructions:
        assert isinstance(i, XeInstruction)
        if _waits(i):
            syncs.append(i)
            continue
        first = len(done)
        done.append(i)
        near = (first, *_arithmetic_before(done, first))
        left = []
        for sync in sorted(syncs, key=lambda sync: len(_waits(sync))):
            waits = _waits(sync)
            carriers = [n for n in near if _has_room(done[n], waits[0], generation)]
            if len(waits) > len(carriers):
                left.append(sync)
                continue
            for n, wait in zip(carriers, waits):
                done[n] = done[n].annotated(*(a.lstrip("FILM") for a in done[n].annotations), wait)
                token, what = wait.split(".")
                if what == "src":
                    early[token] = n, first
                    continue
                at, wanted = early.pop(token, (n, n))
                if at < n <= wanted:  # what has its result has read its sources
                    done[at] = done[at].annotated(*(a for a in done[at].annotations if a != f"{token}.src"))
        done[first:first] = left
        syncs = []
    return done + syncs


def _joined(instructions: Iterable[XeInstruction]) -> list[XeInstruction]:
    """The instructions, of which one that only waits also waits for what others near it would, if it can."""
    done: list[XeInstruction] = []
    last: dict[str, int] = {}  # the place of the last that waits for results, or for sources
    for i in instructions:
        waits = [wait.split(".") for wait in _waits(i)]
        if not waits:
            done.append(i)
            continue
        what, at = waits[0][1], last.get(waits[0][1], -_JOINED)
        between = done[at:] if len(done) - at <= _JOINED else []
        since = {a for other in between for a in other.annotations}
        early = [token for token, _ in waits if between and token not in since]
        late = [token for token, _ in waits if token not in early]
        if early:
            done[at] = waiting([*(wait.split(".")[0] for wait in _waits(done[at])), *early], what)
        if late:
            last[what] = len(done)
            done.append(waiting(late, what))
    return done


def _waits(i: XeInstruction) -> list[str]:
    """The tokens that an instruction does nothing but wait for, as annotations."""
    if i.op.name == "sync.nop":
        return [a for a in i.annotations if a.startswith("$")]
    if i.op.name in _MASKS:
        (mask,) = i.src
        bits = int(mask.value) if isinstance(mask, Literal) else 0
        return [f"${n}.{_MASKS[i.op.name]}" for n in range(bits.bit_length()) if bits >> n & 1]
    return []


def _arithmetic_before(done: list[XeInstruction], end: int) -> Iterator[int]:
    """The places of up to so many instructions of in-order pipes that end there, the last one first.

    They set no token: before one that does, it is not to be waited for yet.
    """
    for n in range(end - 1, max(end - 1 - _REACH, -1), -1):
        if done[n].op.unit is not Unit.VALU or any(a[0] == "$" and "." not in a for a in done[n].annotations):
            return
        yield n


def _has_room(i: XeInstruction, wait: str, generation: Generation) -> bool:
    """Whether an instruction can wait for a token like that, too."""
    if i.op.unit is not Unit.VALU or not i.annotations:
        return i.op.unit is Unit.VALU
    own = all(a[0] == type_pipe(i, generation) for a in i.annotations)
    return own and wait.partition(".")[2] in generation.carried
