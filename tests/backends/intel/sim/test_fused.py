"""Fused pairs of threads on xehpg: a scalar branch at which the two of a pair part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.backends.intel.sim import Adversary

START = """
(W) mov (2|M0) r6.0<1>:ud r4.0<1;1,0>:ud
(W) and (1|M0) r7.0<1>:ud r0.2<0;1,0>:ud 0xFF:ud
(W) shl (1|M0) r8.0<1>:ud r7.0<0;1,0>:ud 2:w {I@1}
(W) mov (1|M0) r20.0<1>:ud 1:w
(W) add (1|M0) r6.0<1>:ud r6.0<0;1,0>:ud r8.0<0;1,0>:ud {I@2}
"""
SCALAR = """
(W) cmp (1|M0) (lt)f0.0 null<1>:ud r7.0<0;1,0>:ud LIMIT:w
(W&f0.0) jmpi SKIP {A@1}
(W) mov (1|M0) r20.0<1>:ud 2:w
SKIP:
"""
CHANNELS = """
(W) cmp (8|M0) (lt)f0.0 null<1>:ud r7.0<0;1,0>:ud LIMIT:w
(f0.0) goto (8|M0) SKIP SKIP {A@1}
(W) mov (1|M0) r20.0<1>:ud 2:w
SKIP:
join (8|M0) OUT
OUT:
"""
END = "(W) store.ugm.d32x1t.a64 (1|M0) [r6:1] r20:1 {A@1,$2}\n"


def execute(sim: Any, platform: str, branch: str, limit: int, **options: Any) -> tuple[Any, list[int]]:
    out = np.zeros(4, np.uint32)
    items = 4 * {"xehpg": 8, "xehpc": 16}[platform]
    body = START + branch.replace("LIMIT", str(limit)) + END
    return sim.run(platform, body, {"out": out}, workgroup=items, **options), out.tolist()


@pytest.mark.parametrize("limit", [1, 3])
def test_a_pair_parts_at_a_scalar_jump(sim: Any, limit: int) -> None:
    report, _ = execute(sim, "xehpg", SCALAR, limit)
    assert sim.kinds(report) == ["fused-branch"]
    (finding,) = report.findings
    assert f"only one of threads {limit & ~1} and {limit | 1}, a fused pair" in finding.message
    assert "jmpi" in finding.instruction


def test_other_pairs_may_part(sim: Any) -> None:
    report, out = execute(sim, "xehpg", SCALAR, 2)
    assert not report.findings
    assert out == [1, 1, 2, 2]


def test_pairs_part_at_branches_of_channels(sim: Any) -> None:
    """A thread with no channel left executes nothing, instructions without a mask included."""
    report, out = execute(sim, "xehpg", CHANNELS, 1)
    assert not report.findings
    assert out == [1, 2, 2, 2]


def test_threads_of_xehpc_are_not_fused(sim: Any) -> None:
    report, out = execute(sim, "xehpc", SCALAR, 1)
    assert not report.findings
    assert out == [1, 2, 2, 2]


#: Each thread draws a ticket from its own counter; who draws the last of two workgroups' goes on.
TICKET = """
(W) mov (1|M0) r21.0<1>:ud 1:w
(W) atomic_iadd.ugm.d32.a64 (1|M0) r22:1 [r6:1] r21:1 {A@1,$1}
(W) cmp (1|M0) (eq)f0.0 null<1>:ud r22.0<0;1,0>:ud 0:w {$1.dst}
(W&f0.0) jmpi SKIP {A@1}
(W) mov (1|M0) r20.0<1>:ud 2:w
SKIP:
"""


@pytest.mark.parametrize(("options", "kinds"), [({}, []), ({"adversary": Adversary()}, ["fused-branch"])])
def test_the_threads_of_a_pair_draw_different_tickets(sim: Any, options: Any, kinds: list[str]) -> None:
    """Atomic operations of two workgroups may meet in one order for a thread, in the other for its partner."""
    report = sim.run("xehpg", START + TICKET, {"out": np.zeros(4, np.uint32)}, workgroup=16, grid=(2, 1, 1), **options)
    assert sim.kinds(report) == kinds
