"""Random tile programs: the same before and after each pass and on the simulator, and what numpy says.

A program that a target cannot do is refused in one line; few are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, note, settings

from convgen.backends import target as targets
from convgen.ir.error import DoesNotFit, Unsupported, UserError
from convgen.ir.verify import verify
from tests import arithmetic as ar
from tests.strategies import FIXED, SWEEP
from tests.tile.programs import Program, memory, programs
from tests.tile.reference import within

pytestmark = pytest.mark.in_turn(2)

TARGETS = ("gfx90a", "gfx942", "gfx950", "xehpc", "xehpg", "sm_90")
MANY = 60  #: programs of a target in a sweep


def refusal(check: Callable[[], None]) -> str | None:
    """Why a check was refused, without numbers, or None."""
    try:
        check()
    except (UserError, Unsupported, DoesNotFit) as error:
        return re.sub(r"\d+", "#", str(error).partition("wanted ")[2] or str(error))
    return None


def check(program: Program, target: str) -> None:
    """Bit for bit the same on interpreter and simulator, and within what numpy says."""
    to, traced = targets.get(target), program.traced()
    note(f"{target}\n{traced}")
    kernel, out = traced.kernel(to.facts), traced.tensors[-1]
    stages = ar.after_passes(kernel, to.facts)
    emitted = to.emit([kernel, *stages.values()][-1])
    code, data = to.assemble(to.module([emitted])), program.data(1)
    assert code is not None
    held = memory(program, data, out)
    found = ar.interpreted(kernel, held)["y"].view(out.elem.numpy)
    before = kernel
    for name, after in stages.items():
        if after is not before:
            again = ar.interpreted(verify(after), held)["y"].view(out.elem.numpy)
            assert not ar.differing(again, found, out.elem).any(), name
        before = after
    ar.clean(to.simulate(code, [ar.launch(kernel, emitted)], held))
    differ = ar.differing(held["y"].view(out.elem.numpy), found, out.elem)
    assert not differ.any(), (held["y"].view(out.elem.numpy)[differ][:4], found[differ][:4])
    wanted = program.wanted(data, out)
    right = within(found.reshape(out.shape), wanted)
    assert right.all(), (np.argwhere(~right)[0], found.reshape(out.shape)[~right][0], wanted.low[~right][0])


@pytest.mark.parametrize("target", TARGETS)
def test_random_programs(target: str) -> None:
    @settings(FIXED, max_examples=4)
    @given(programs(targets.get(target).facts))
    def run(program: Program) -> None:
        refusal(lambda: check(program, target))

    run()


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_many_random_programs(target: str, record_property: Callable[[str, object], None]) -> None:
    refused: Counter[str | None] = Counter()

    @settings(SWEEP, max_examples=MANY)
    @given(programs(targets.get(target).facts))
    def run(program: Program) -> None:
        refused[refusal(lambda: check(program, target))] += 1

    run()
    assert not any("\n" in reason for reason in refused if reason)
    assert refused[None] > 0.8 * refused.total(), refused
    for reason, count in refused.items():
        record_property("row", f"{target}: {count} random tile programs, {reason or 'all well'}")
