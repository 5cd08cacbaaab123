"""Loads of local memory that a barrier does not order, and what an adversary makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.backends.intel.sim import Adversary
from convgen.backends.sim.local import SEVERAL, Lds, stamps_of

LANES = {"xehpc": 16, "xehpg": 8}
#: r5, r6: the addresses of `in` and `out`; r7 the thread, r8 its place and r9 its neighbour's, r15 a barrier's header.
START = """
(W) mov (2|M0) r5.0<1>:ud r4.0<1;1,0>:ud
(W) mov (2|M0) r6.0<1>:ud r4.2<1;1,0>:ud
(W) and (1|M0) r7.0<1>:ud r0.2<0;1,0>:ud 0xFF:ud
(W) shl (1|M0) r8.0<1>:ud r7.0<0;1,0>:ud 2:w {I@1}
(W) xor (1|M0) r9.0<1>:ud r8.0<0;1,0>:ud 8:w {I@1}
(W) add (1|M0) r11.0<1>:ud r7.0<0;1,0>:ud 100:w
(W) mov (1|M0) r15.2<1>:f 0.0:f
(W) mov (2|M0) r15.10<1>:ub r0.11<0;1,0>:ub {F@1}
(W) store.slm.d32x1t.a32 (1|M0) [r8:1] r7:1 {A@1,$3}
"""
FENCE = "(W) send.slm (1|M0) r28 r0 null:0 0x0 0x0210011F {$5}\n(W) mov (1|M0) null<1>:ud r28.0<0;1,0>:ud {$5.dst}\n"
BARRIER = "(W) send.gtwy (1|M0) null r15 null:0 0x0 0x02000004 {A@1,$6}\n(W) sync.bar null\n"
LOAD = "(W) load.slm.d32x1t.a32 (1|M0) r21:1 [r9:1] {$7}\n"
WAIT = "(W) sync.nop null {$7.dst}\n"
OVERWRITE = "(W) store.slm.d32x1t.a32 (1|M0) [r8:1] r11:1 {$8}\n"
#: What was read goes to 4 bytes of `out` for each thread.
END = """
(W) shl (1|M0) r3.0<1>:ud r7.0<0;1,0>:ud 2:w
(W) mov (1|M0) r20.0<1>:ud r21.0<0;1,0>:ud {$7.dst}
(W) add (1|M0) r6.0<1>:ud r6.0<0;1,0>:ud r3.0<0;1,0>:ud {I@2}
(W) store.ugm.d32x1t.a64 (1|M0) [r6:1] r20:1 {A@1,$2}
"""
#: Behind the first barrier each thread reads its neighbour's number, behind the second it overwrites its own.
OPEN = START + FENCE + BARRIER + LOAD + FENCE + BARRIER + OVERWRITE + END
CLOSED = START + FENCE + BARRIER + LOAD + WAIT + FENCE + BARRIER + OVERWRITE + END


def execute(sim: Any, platform: str, body: str, threads: int = 4, **options: Any) -> tuple[Any, list[int]]:
    out = np.zeros(threads, np.uint32)
    buffers = {"in": np.zeros(64, np.uint8), "out": out}
    source = sim.Source("", barriers=1, slm=64)
    report = sim.run(platform, body, buffers, workgroup=threads * LANES[platform], source=source, **options)
    return report, out.tolist()


@pytest.mark.parametrize("platform", LANES)
def test_a_fence_does_not_complete_loads(sim: Any, platform: str) -> None:
    report, _ = execute(sim, platform, OPEN)
    assert sim.kinds(report) == ["slm-race"]
    (finding,) = report.findings
    assert finding.message.startswith("overwrites what thread 2's `")
    assert "not waited for before the barrier, may still read" in finding.message
    assert "load.slm" in finding.message
    assert finding.subgroup == 0
    assert "hasSLMWARIssue" in finding.source.text
    assert not execute(sim, platform, CLOSED)[0].findings


@pytest.mark.parametrize("platform", LANES)
@pytest.mark.parametrize("seed", range(3))
def test_a_load_reads_as_late_as_its_wait(sim: Any, platform: str, seed: int) -> None:
    """Whoever is held behind its signal reads what others store behind the barrier."""
    _, out = execute(sim, platform, OPEN, adversary=Adversary(seed))
    assert out != [2, 3, 0, 1]
    assert set(out) <= {2, 3, 0, 1, 102, 103, 100, 101}
    report, out = execute(sim, platform, CLOSED, adversary=Adversary(seed))
    assert not report.findings
    assert out == [2, 3, 0, 1]
    assert execute(sim, platform, OPEN)[1] == [2, 3, 0, 1]


def test_several_loads_of_a_place_cross_a_barrier() -> None:
    """None of the readers is taken for the only one, whose own store would be no race."""
    memory = Lds(1, 64, 4)
    units, stamps = np.array([3, 3, 5]), stamps_of(np.full(3, 2), np.array([0, 1, 1]))[:, 0]
    memory.cross_barrier(units, stamps, "read")
    assert memory.read[3] & SEVERAL == SEVERAL
    assert memory.read[5] == stamps[2]
    memory.cross_barrier(units[2:], stamps[:1], "read")
    assert memory.read[5] & SEVERAL == SEVERAL


OWN = START + LOAD.replace("r9:1", "r8:1") + OVERWRITE + END
OWN_WAITED = START + LOAD.replace("r9:1", "r8:1") + WAIT + OVERWRITE + END
OTHER_BYTES = START + LOAD.replace("r9:1", "r8:1") + OVERWRITE.replace("r8:1", "r12:1") + END


@pytest.mark.parametrize("platform", LANES)
@pytest.mark.parametrize("threads", [1, 4])
def test_a_store_may_overtake_a_load_of_its_thread(sim: Any, platform: str, threads: int) -> None:
    report, out = execute(sim, platform, OWN, threads, adversary=Adversary())
    assert sim.kinds(report) == ["slm-race"]
    assert "the thread's own" in report.findings[0].message
    assert out == [100 + thread for thread in range(threads)]
    report, out = execute(sim, platform, OWN_WAITED, threads, adversary=Adversary())
    assert not report.findings
    assert out == list(range(threads))


@pytest.mark.parametrize("platform", LANES)
def test_a_store_may_overtake_loads_of_other_bytes(sim: Any, platform: str) -> None:
    elsewhere = "(W) add (1|M0) r12.0<1>:ud r8.0<0;1,0>:ud 32:w\n(W) sync.nop null {I@1}\n"
    report, out = execute(sim, platform, OTHER_BYTES.replace(START, START + elsewhere))
    assert not report.findings
    assert out == [0, 1, 2, 3]


@pytest.mark.parametrize("platform", LANES)
def test_an_atomic_operation_overtakes_like_a_store(sim: Any, platform: str) -> None:
    add = "(W) atomic_iadd.slm.d32.a32 (1|M0) null [r8:1] r11:1 {$8}\n"
    wrong, right = (text.replace(OVERWRITE, add) for text in (OWN, OWN_WAITED))
    assert sim.kinds(execute(sim, platform, wrong)[0]) == ["slm-race"]
    assert not execute(sim, platform, right)[0].findings


@pytest.mark.parametrize("platform", LANES)
def test_a_token_that_is_set_again_completes_the_load(sim: Any, platform: str) -> None:
    """IGC gives the fence the token of the loads, so that it waits for them."""
    again = OPEN.replace(LOAD + FENCE, LOAD + FENCE.replace("$5", "$7")).replace("{$7.dst}\n(W) add", "\n(W) add")
    report, out = execute(sim, platform, again, adversary=Adversary())
    assert not report.findings
    assert out == [2, 3, 0, 1]


@pytest.mark.parametrize("platform", LANES)
def test_global_loads_keep_their_order_with_stores_of_their_thread(sim: Any, platform: str) -> None:
    """IGC tracks no dependence between them through memory."""
    body = """
(W) mov (2|M0) r6.0<1>:ud r4.2<1;1,0>:ud
(W) mov (2|M0) r10.0<1>:ud r4.0<1;1,0>:ud
(W) mov (1|M0) r11.0<1>:ud 7:w
(W) load.ugm.d32x1t.a64 (1|M0) r20:1 [r10:1] {A@1,$1}
(W) store.ugm.d32x1t.a64 (1|M0) [r10:1] r11:1 {$3}
(W) store.ugm.d32x1t.a64 (1|M0) [r6:1] r20:1 {$1}
"""
    buffers = {"in": np.full(16, 5, np.uint32), "out": np.zeros(16, np.uint32)}
    report = sim.run(platform, body, buffers, adversary=Adversary())
    assert buffers["out"][0] == 5
    assert buffers["in"][0] == 7
    assert not report.findings


@pytest.mark.parametrize("platform", LANES)
def test_a_late_load_keeps_the_mask_of_its_issue(sim: Any, platform: str) -> None:
    """Flags and addresses may change before the wait."""
    body = """
(W) mov (2|M0) r6.0<1>:ud r4.2<1;1,0>:ud
(W) mov (2|M0) r10.0<1>:ud r4.0<1;1,0>:ud
(W) mov (1|M0) r20.0<1>:ud 9:w
(W) mov (1|M0) f0.0<1>:ud 1:w
(W) mov (1|M0) f1.0<1>:ud 0:w
(W) sync.nop null {A@1}
(W&f0.0) load.ugm.d32x1t.a64 (1|M0) r20:1 [r10:1] {A@1,$1}
(W) mov (1|M0) f0.0<1>:ud 0:w {$1.src}
(W) sync.nop null {A@1}
(W) store.ugm.d32x1t.a64 (1|M0) [r6:1] r20:1 {$1}
"""
    buffers = {"in": np.full(16, 5, np.uint32), "out": np.zeros(16, np.uint32)}
    report = sim.run(platform, body, buffers, adversary=Adversary(), errata=False)
    assert not report.findings
    assert buffers["out"][0] == 5
