"""Signals of barriers wait for fences: arithmetic that stands between does, where any follows."""

from __future__ import annotations

import pytest

from convgen.backends.intel.barriers import delay_signals
from convgen.backends.intel.isa import MATH, OPCODES, XeInstruction, message, region
from convgen.backends.intel.physical import Physical
from convgen.backends.intel.scoreboard import Scoreboard
from convgen.backends.intel.syncs import carry_waits
from convgen.backends.intel.tables import GENERATIONS
from convgen.backends.machine.allocate import Allocation
from convgen.backends.machine.instruction import BasicBlock, Function, Reg, VirtualRegister

R = [Reg(VirtualRegister(n, "v", 1, f"r{n}"), 0, 1) for n in range(6)]


def made(word: str) -> XeInstruction:
    """Each has registers of its own; `use` reads what `alu` writes."""
    match word:
        case "fence":
            return XeInstruction(OPCODES["fence"], (R[0],), (R[1],))
        case "signal":
            return XeInstruction(OPCODES["signal"], (), (R[1],))
        case "load":
            return XeInstruction(message("load", "slm", 4), (R[2],), (R[3],), lanes=8)
        case "math":
            return XeInstruction(OPCODES["math.inv"], (region(R[2], "f"),), (region(R[3], "f"),), lanes=8)
    to, at = (R[5], R[4]) if word == "use" else (R[4], R[3])
    return XeInstruction(OPCODES["mov"], (region(to, "ud"),), (region(at, "ud"),), lanes=8)


def function(text: str) -> Function:
    return Function("f", [BasicBlock("entry", [*map(made, text.split()), XeInstruction(OPCODES["eot"], (), (R[1],))])])


def names(f: Function) -> str:
    kinds = {"send.slm": "fence", "send.gtwy": "signal", "mov": "alu", "math.inv": MATH, "sync.nop": "sync"}
    return " ".join(kinds.get(i.op.name, "load") for i in [*f.instructions()][:-1])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("alu fence signal alu alu", "alu fence alu signal alu"),
        ("fence signal", "fence signal"),  # nothing follows
        ("fence signal load alu", "fence signal load alu"),  # messages keep their order
        ("fence signal math", "fence signal math"),  # sets a token itself
        ("alu signal alu", "alu signal alu"),  # waits for no fence
        ("fence signal alu fence signal alu", "fence alu signal fence alu signal"),
    ],
)
def test_arithmetic_goes_between_a_fence_and_its_signal(before: str, after: str) -> None:
    assert names(delay_signals(function(before))) == after


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("fence signal alu", "fence alu signal"),  # the wait is carried
        ("fence signal load", "fence sync signal load"),
        ("fence signal", "fence sync signal"),
    ],
)
def test_signals_wait_for_their_fences(text: str, wanted: str) -> None:
    generation = GENERATIONS["xehpg"]
    physical = Physical(Allocation({r.vreg: n for n, r in enumerate(R)}, {}), generation.lanes, 0)
    scored = Scoreboard(delay_signals(function(text)), physical, generation, 16).run()
    done = carry_waits(scored, generation)
    assert names(done) == wanted
    fence, waiting = [*done.instructions()][:2]
    assert isinstance(fence, XeInstruction)
    assert isinstance(waiting, XeInstruction)
    assert f"{fence.annotations[-1]}.dst" in waiting.annotations
