"""Loads of local memory have their results before others may store there, read from the text of kernels.

A store, or a fence, may overtake an earlier load on DG2 and Ponte Vecchio (IGC, `hasSLMWARIssue`). The text is followed
by a reader of its own: which tokens loads have set, and which lines wait for their results.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from convgen.backends.intel.isa import XeInstruction
from convgen.backends.machine.instruction import Access
from tests.backends.intel import kept

_SIGNAL = "0x02000004"
_SET = re.compile(r"\$(\d+)(?![\d.])")
_WAITED = re.compile(r"\$(\d+)\.dst")
_Line = tuple[str, XeInstruction]
_Flying = frozenset[tuple[int, Access]]  #: tokens of loads whose results nobody has waited for
_Stores = frozenset[Access]


def options(line: str) -> str:
    found = re.search(r"\{([^}]*)\}", line.partition("//")[0])
    return found[1] if found else ""


def done(line: str) -> set[int]:
    """The tokens of which a line waits for the results, or for everything by setting them again."""
    body = line.partition("//")[0]
    if "sync.allwr" in body:
        operand = body.split()[-1]
        return set(range(32)) if operand == "null" else {n for n in range(32) if int(operand, 16) >> n & 1}
    return {int(n) for found in (_WAITED, _SET) for n in found.findall(options(line))}


def follow(block: Sequence[_Line], flying: _Flying, behind: Mapping[str, _Stores], wrong: list[str]) -> _Flying:
    """The loads in flight behind a block; `behind` tells the stores that others may do, by the signal's line."""
    for line, i in block:
        flying = frozenset((token, load) for token, load in flying if token not in done(line))
        is_local = i.access is not None and i.access.space == "shared"
        if ".slm" in line and is_local and "load" in line.split("//")[0]:
            assert i.access is not None
            (token,) = map(int, _SET.findall(options(line)))
            flying |= {(token, i.access)}
        elif is_local and i.access is not None:
            wrong += (line for _, load in flying if load.conflicts(i.access))
        elif _SIGNAL in line:
            stores = behind[line_of(i)]
            wrong += (line for _, load in flying for s in stores if load.conflicts(s) and not load.private)
    return flying


def line_of(i: XeInstruction) -> str:
    return str(id(i))


def stores_behind(blocks: Sequence[Sequence[_Line]], follows: Sequence[Sequence[int]]) -> dict[str, _Stores]:
    """By signal the stores between it and the next signals, on all paths: a fixed point from the end."""
    entry: list[_Stores] = [frozenset()] * len(blocks)
    found: dict[str, _Stores] = {}
    changed = True
    while changed:
        changed = False
        for n in reversed(range(len(blocks))):
            ahead: _Stores = frozenset().union(*(entry[s] for s in follows[n]))
            for line, i in reversed(blocks[n]):
                if _SIGNAL in line:
                    found[line_of(i)] = ahead
                    ahead = frozenset()
                elif i.access is not None and i.access.space == "shared" and i.access.write:
                    ahead |= {i.access}
            changed |= ahead != entry[n]
            entry[n] = ahead
    return found


@pytest.mark.parametrize(("target", "problem", "config"), kept.cases("xehpg", "xehpc"))
def test_nobody_overwrites_what_a_load_in_flight_reads(target: str, problem: str, config: str) -> None:
    for made, printed in kept.emitted(target, problem, config):
        code = printed.code
        follows = [[*code.successors(n)] for n in range(len(code.blocks))]
        blocks = [lines for _, lines in kept.blocks(made, printed)]
        behind = stores_behind(blocks, follows)
        entry: list[_Flying | None] = [frozenset(), *[None] * (len(blocks) - 1)]
        wrong, pending = list[str](), [0]
        while pending:
            n = pending.pop()
            flying = entry[n]
            assert flying is not None
            left = follow(blocks[n], flying, behind, wrong)
            for s in follows[n]:
                known = entry[s]
                if known is None or not left <= known:
                    entry[s] = left | (known or frozenset())
                    pending.append(s)
        assert not wrong
