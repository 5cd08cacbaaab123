"""setmaxnreg and named barriers of kernels with roles, each rule broken by one change to a clean kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from convgen.backends.nvidia.sim import SimulatorError, Unsupported
from convgen.backends.simulation import SimReport
from tests.backends.nvidia.sim import hopper

Run = Callable[..., SimReport]

#: Three warpgroups: one gives registers back, two take some, which takes 504 of 512.
BUDGETS = """
    setp.lt.u32 %p1, %r0, 128; @%p1 bra PRODUCER;
    setmaxnreg.inc.sync.aligned.u32 232;
    bra DONE;
PRODUCER:
    setmaxnreg.dec.sync.aligned.u32 40;
DONE:
"""


@pytest.mark.parametrize(
    ("cut", "instead"),
    [
        ("u32 40;", "u32 48;"),
        ("u32 232;", "u32 240;"),
        ("setmaxnreg.dec.sync.aligned.u32 40;", ""),
        (".dec.sync.aligned.u32 40;", ".inc.sync.aligned.u32 40;"),
        (".inc.sync.aligned.u32 232;", ".dec.sync.aligned.u32 232;"),
        (".maxntid 384", ""),
        (".maxntid 384", ".maxntid 512"),
        (".maxntid 384", ".maxntid 384 .minnctapersm 2"),
        (".maxntid 384", ".maxntid 384 .maxnreg 128"),
        ("PRODUCER:", "PRODUCER: setp.lt.u32 %p2, %r0, 32; @%p2 bra DONE;"),
    ],
)
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_registers_of_warpgroups_come_from_one_pool(run: Run, cut: str, instead: str, order: str) -> None:
    ptx = hopper.kernel(BUDGETS, "", ".maxntid 384")
    assert hopper.judged(run, ptx, cut, instead, block=(384, 1, 1), wave_order=order) == {"setmaxnreg"}


def test_a_warpgroup_may_keep_its_registers(run: Run) -> None:
    kept = BUDGETS.replace("u32 40;", "u32 168;").replace("u32 232;", "u32 168;")
    assert not run(hopper.kernel(kept, "", ".maxntid 384"), block=(384, 1, 1)).findings


def test_registers_stay_within_the_file(run: Run) -> None:
    ptx = hopper.kernel(BUDGETS, "", ".maxntid 384")
    for count in ("20", "264", "44"):
        with pytest.raises(SimulatorError, match="multiple of 8 from 24 to 256"):
            run(ptx.replace("u32 40;", f"u32 {count};"), block=(384, 1, 1))
    part = ptx.replace("PRODUCER:", "PRODUCER: and.b32 %r1, %r0, 1; setp.eq.u32 %p2, %r1, 0; @%p2 bra DONE;")
    assert "divergence" in {finding.kind for finding in run(part, block=(384, 1, 1)).findings}


#: Two consumer warpgroups take turns at a word of shared memory by two named barriers, four turns in all.
TURNS = """
    mov.u32 %r1, s; shr.u32 %r2, %r0, 7; add.u32 %r3, %r2, 2; sub.u32 %r4, 3, %r2;
    mov.u32 %r5, 0; and.b32 %r6, %r0, 127; setp.eq.u32 %p1, %r6, 0; setp.eq.u32 %p2, %r2, 1;
    @!%p2 bra LOOP;
    bar.arrive 2, 256;
LOOP:
    bar.sync %r3, 256;
    @%p1 st.shared.b32 [%r1], %r2;
    bar.arrive %r4, 256;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 2; @%p3 bra LOOP;
    @%p2 bra DONE;
    bar.sync 2, 256;
DONE:
"""


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        ("bar.sync %r3, 256;", "", "barrier"),
        ("bar.arrive %r4, 256;", "", "barrier"),
        ("bar.arrive 2, 256;", "", "barrier"),
        ("bar.arrive %r4, 256;\n", "", "barrier"),
        ("    @%p1 st.shared.b32 [%r1], %r2;\n    bar.arrive %r4, 256;",
         "    bar.arrive %r4, 256; @%p1 st.shared.b32 [%r1], %r2;", "shared-race"),
    ],
)  # fmt: skip
def test_roles_take_turns_by_named_barriers(run: Run, cut: str, instead: str, kind: str) -> None:
    ptx = hopper.kernel(TURNS, "")
    found = hopper.judged(run, ptx, cut, instead, block=(256, 1, 1), shared=1024)
    assert kind in found


def test_values_are_those_of_the_last_turn(run: Run) -> None:
    declared, loads = hopper.pointers(1)
    ptx = hopper.kernel(
        loads + TURNS
        + "bar.sync 0; ld.shared.b32 %r7, [%r1]; @%p1 st.global.b32 [%a0], %r7;", declared,
    )  # fmt: skip
    out = np.full(1, 9, np.uint32)
    assert not run(ptx, out, block=(256, 1, 1), shared=1024).findings
    assert out[0] == 1


# ---------------------------------------------------------------- clusters of one

CLUSTER = """
    mov.u32 %r1, s; mapa.shared::cluster.u32 %r2, %r1, 0; getctarank.shared::cluster.u32 %r3, %r2;
    shl.b32 %r4, %r0, 2; add.u32 %r5, %r2, %r4; mov.u32 %r9, %cluster_nctarank;
    st.shared::cluster.b32 [%r5], %r0;
    barrier.cluster.arrive.release.aligned;
    barrier.cluster.wait.acquire.aligned;
    xor.b32 %r6, %r4, 252; add.u32 %r6, %r6, %r1; ld.shared.b32 %r7, [%r6];
    griddepcontrol.wait;
    elect.sync %r8|%p1, 0xffffffff;
    @%p1 add.u32 %r7, %r7, 1000;
    add.u32 %r7, %r7, %r8;
    cvt.u64.u32 %rd1, %r4; add.u64 %rd2, %a0, %rd1; st.global.b32 [%rd2], %r7;
    griddepcontrol.launch_dependents;
    barrier.cluster.arrive.relaxed.aligned;
    barrier.cluster.wait.aligned;
"""


def test_a_cluster_of_one_workgroup(run: Run) -> None:
    declared, loads = hopper.pointers(1)
    ptx = hopper.kernel(loads + CLUSTER, declared, ".explicitcluster .reqnctapercluster 1, 1, 1", target="sm_90")
    out = np.zeros(64, np.uint32)
    for order in ("forward", "reverse"):
        report = run(ptx, out, block=(64, 1, 1), shared=1024, wave_order=order)
        assert not report.findings, "\n".join(map(str, report.findings))
        assert (out == 63 - np.arange(64) + 1000 * (np.arange(64) % 32 == 0)).all()
    with pytest.raises(Unsupported, match="clusters of 2"):
        run(ptx.replace("1, 1, 1", "2, 1, 1"), out, block=(64, 1, 1), shared=1024)


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        ("barrier.cluster.wait.acquire.aligned;", "", "barrier"),
        ("barrier.cluster.arrive.release.aligned;", "", "barrier"),
        ("arrive.release.aligned;", "arrive.relaxed.aligned;", "shared-race"),
        ("%r1, 0;", "%r1, 1;", "operand"),
        ("0xffffffff;", "%r40;", "poison"),
        ("elect.sync", "setp.lt.u32 %p2, %r0, 16; @%p2 elect.sync", "member-mask"),
        ("barrier.cluster.arrive.release.aligned;",
         "setp.lt.u32 %p2, %r0, 16; @%p2 barrier.cluster.arrive.release.aligned;", "divergence"),
        ("barrier.cluster.arrive.release.aligned;",
         "setp.lt.u32 %p2, %r0, 32; @%p2 barrier.cluster.arrive.release.aligned; @!%p2 bra L; "
         "L: setp.lt.u32 %p3, %r0, 32; @!%p3 bra OUT;", "shared-race"),
    ],
)  # fmt: skip
def test_clusters_and_each_of_their_changes(run: Run, cut: str, instead: str, kind: str) -> None:
    declared, loads = hopper.pointers(1)
    ptx = hopper.kernel(loads + CLUSTER + "OUT:", declared, target="sm_90")
    found = hopper.judged(run, ptx, cut, instead, np.zeros(64, np.uint32), block=(64, 1, 1), shared=1024)
    assert kind in found


def test_threads_that_end_do_not_hold_up_the_cluster(run: Run) -> None:
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 ret; barrier.cluster.arrive; barrier.cluster.wait;"
    assert not run(hopper.kernel(body, ""), block=(64, 1, 1)).findings
    stuck = "setp.lt.u32 %p1, %r0, 32; @%p1 bra L; barrier.cluster.arrive; barrier.cluster.wait; L: bar.sync 0;"
    report = run(hopper.kernel(stuck, ""), block=(64, 1, 1))
    assert {finding.kind for finding in report.findings} == {"barrier"}
