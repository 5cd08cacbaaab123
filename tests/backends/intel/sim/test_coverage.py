"""Which instructions of a kernel a run executed."""

from __future__ import annotations

from typing import Any

import numpy as np


def test_a_jump_that_all_threads_take_leaves_instructions_unexecuted(sim: Any) -> None:
    """What lies behind the end of the thread is no place of the kernel."""
    text = """
(W) mov (1|M0) r9.0<1>:ud 1:ud
(W) cmp (1|M0) (eq)f0.0 null<1>:ud r9.0<0;1,0>:ud 1:ud {I@1}
(W&f0.0) jmpi L_behind
(W) mov (1|M0) r9.1<1>:ud 2:ud
(W) mov (1|M0) r9.2<1>:ud 3:ud
L_behind:
"""
    report = sim.run("xehpc", text, {"out": np.zeros(16, np.int32)}, workgroup=16)
    (found,) = report.coverage
    assert found.places - found.executed == 2
    assert [place.pc for place in found.missed] == [128, 144]  # behind a prologue of five instructions
    assert found.missed[0].instruction.lstrip().startswith("(W)")
