"""mbarriers: phases, counts and order, each rule broken by one change to a clean kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from convgen.backends.nvidia.sim import SimulatorError
from convgen.backends.simulation import SimReport
from tests.backends.nvidia.sim import hopper

Run = Callable[..., SimReport]
DECLARED, LOADS = hopper.pointers(1)
OPTIONS: dict[str, Any] = {"block": (64, 1, 1), "shared": 4096}

INIT = """
    mov.u32 %r1, s; setp.eq.u32 %p1, %r0, 0; and.b32 %r9, %r0, 31; setp.eq.u32 %p9, %r9, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], {full};
    @%p1 mbarrier.init.shared::cta.b64 [%r1+8], {empty};
    @%p1 fence.mbarrier_init.release.cluster;
    bar.sync 0;
"""
#: Warp 0 stores words and arrives on `full`; warp 1 waits, reads and arrives on `empty`; three rounds of one slot.
RING = (
    INIT
    + """
    shl.b32 %r2, %r9, 2; add.u32 %r3, %r1, %r2; mov.u32 %r4, 0; mov.u32 %r10, 1; mov.u32 %r11, 0;
    setp.gt.u32 %p2, %r0, 31; @%p2 bra CONSUME;
PRODUCE:
WAIT_EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+8], %r10; @!%p3 bra WAIT_EMPTY;
    add.u32 %r5, %r4, %r9; st.shared.b32 [%r3+128], %r5;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
    xor.b32 %r10, %r10, 1; add.u32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 3; @%p4 bra PRODUCE;
    bra DONE;
CONSUME:
WAIT_FULL: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], %r11, 1000; @!%p3 bra WAIT_FULL;
    xor.b32 %r6, %r2, 124; add.u32 %r6, %r6, %r1; ld.shared.b32 %r7, [%r6+128];
    bar.warp.sync -1;
    @%p9 mbarrier.arrive.shared::cta.b64 _, [%r1+8];
    xor.b32 %r11, %r11, 1; mad.lo.u32 %r8, %r4, 32, %r9; mul.wide.u32 %rd1, %r8, 4; add.u64 %rd2, %a0, %rd1;
    st.global.b32 [%rd2], %r7;
    add.u32 %r4, %r4, 1; setp.lt.u32 %p4, %r4, 3; @%p4 bra CONSUME;
DONE:
"""
)


def ring(full: int = 32, empty: int = 1) -> str:
    """Return the kernel of a ring with counts of arrivals."""
    body = RING.replace("{full}", str(full)).replace("{empty}", str(empty))
    return hopper.kernel(LOADS + body, DECLARED, target="sm_90")


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_ring_passes_words_on(run: Run, order: str) -> None:
    out = np.zeros((3, 32), np.uint32)
    report = run(ring(), out, wave_order=order, **OPTIONS)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert (out == np.arange(31, -1, -1) + np.arange(3)[:, None]).all()


@pytest.mark.parametrize(
    ("cut", "instead", "found"),
    [
        ("b64 [%r1], 32;", "b64 [%r1], 33;", {"mbarrier"}),
        ("b64 [%r1], 32;", "b64 [%r1], 31;", {"mbarrier"}),
        ("b64 [%r1], 32;", "b64 [%r1], 16;", {"mbarrier"}),
        ("b64 [%r1], 32;", "b64 [%r1], 0;", {"mbarrier"}),
        ("b64 [%r1+8], 1;", "b64 [%r1+8], 2;", {"mbarrier"}),
        ("b64 [%r1+8], 1;", "b64 [%r1], 1;", {"mbarrier"}),
        ("bar.sync 0;", "", {"mbarrier"}),
        ("bar.sync 0;", "bar.warp.sync -1;", {"mbarrier"}),
        ("[%r3+128], %r5;", "[%r3], %r5;", {"mbarrier"}),
        ("[%r6+128];", "[%r6];", {"mbarrier"}),
        ("@!%p3 bra WAIT_EMPTY;", "", {"shared-race"}),
        ("@!%p3 bra WAIT_FULL;", "", {"shared-race"}),
        ("mbarrier.arrive.shared::cta.b64 _, [%r1];", "", {"mbarrier"}),
        ("@%p9 mbarrier.arrive.shared::cta.b64 _, [%r1+8];", "", {"mbarrier"}),
        ("    bar.warp.sync -1;\n    @%p9", "    @%p9", {"shared-race"}),
        ("    st.shared.b32 [%r3+128], %r5;\n    mbarrier.arrive.shared::cta.b64 _, [%r1];",
         "    mbarrier.arrive.shared::cta.b64 _, [%r1]; st.shared.b32 [%r3+128], %r5;", {"shared-race"}),
        ("mbarrier.arrive.shared::cta.b64 _, [%r1];", "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%r1];",
         {"shared-race"}),
        ("try_wait.parity.shared::cta.b64 %p3, [%r1], ", "try_wait.parity.relaxed.cta.shared::cta.b64 %p3, [%r1], ",
         {"shared-race"}),
        ("mbarrier.arrive.shared::cta.b64 _, [%r1];",
         "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 4;", {"mbarrier"}),
        ("xor.b32 %r11, %r11, 1;", "", {"shared-race"}),
        ("mov.u32 %r11, 0;", "mov.u32 %r11, 2;", {"operand"}),
        ("mov.u32 %r10, 1; mov.u32 %r11, 0;", "mov.u32 %r10, 0; mov.u32 %r11, 0;", {"mbarrier"}),
        ("bra DONE;", "@%p9 mbarrier.arrive.shared::cta.b64 _, [%r1+16]; bra DONE;", {"mbarrier"}),
        ("bra DONE;", "@%p9 mbarrier.arrive.shared::cta.b64 _, [%r1+4]; bra DONE;", {"misaligned"}),
        ("bra DONE;", "@%p9 mbarrier.inval.shared.b64 [%r1]; @%p9 mbarrier.arrive.shared.b64 _, [%r1]; bra DONE;",
         {"mbarrier"}),
        ("mbarrier.arrive.shared::cta.b64 _, [%r1];",
         "mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd9, [%r1], 1;", {"mbarrier"}),
    ],
)  # fmt: skip
def test_rings_and_each_of_their_changes(run: Run, cut: str, instead: str, found: set[str]) -> None:
    ptx = ring()
    if cut.startswith("    st.shared"):
        cut = "st.shared.b32 [%r3+128], %r5;\n    mbarrier.arrive.shared::cta.b64 _, [%r1];"
    got = hopper.judged(run, ptx, cut, instead, np.zeros((3, 32), np.uint32), **OPTIONS)
    assert found <= got, got


def test_a_parity_two_phases_off_is_found(run: Run) -> None:
    """Warp 1 waits for the first phase only after the third has begun, with nobody to tell it of the second."""
    body = (
        INIT.replace("{full}", "1").replace("{empty}", "1")
        + """
    setp.gt.u32 %p2, %r0, 31; @%p2 bra LATE;
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%r1]; @%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];
    bra DONE;
LATE:
    mov.u32 %r4, 0;
SPIN: add.u32 %r4, %r4, 1; setp.lt.u32 %p5, %r4, 5000; @%p5 bra SPIN;
W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0; @!%p3 bra W;
DONE:
"""
    )
    report = run(hopper.kernel(body, ""), **OPTIONS)
    assert {finding.kind for finding in report.findings} == {"mbarrier"}
    assert "waits by parity for phase 0" in report.findings[0].message
    assert "which is in phase 2" in report.findings[0].message


def test_states_tell_phases(run: Run) -> None:
    body = (
        LOADS
        + INIT.replace("{full}", "64").replace("{empty}", "3")
        + """
    mbarrier.arrive.shared::cta.b64 %rd1, [%r1];
    mbarrier.pending_count.b64 %r2, %rd1;
W:  mbarrier.test_wait.shared::cta.b64 %p3, [%r1], %rd1; @!%p3 bra W;
    @%p1 mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd4, [%r1+8], 2;
    bar.sync 0;
    @%p1 mbarrier.arrive_drop.shared.b64 %rd5, [%r1+8];
    @%p1 mbarrier.arrive.shared.b64 %rd6, [%r1+8], 2;
    mul.wide.u32 %rd2, %r0, 4; add.u64 %rd3, %a0, %rd2; st.global.b32 [%rd3], %r2;
    @%p1 mbarrier.inval.shared.b64 [%r1]; @%p1 mbarrier.init.shared.b64 [%r1], 1;
"""
    )
    out = np.zeros(64, np.uint32)
    report = run(hopper.kernel(body, DECLARED), out, **OPTIONS)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert set(out.tolist()) == set(range(1, 65))
    again = "mbarrier.arrive.shared.b64 %rd7, [%r1];"
    test = f"{again} bar.sync 0; mbarrier.test_wait.shared.b64 %p3, [%r1], %rd1; @%p1 mbarrier.arrive_drop"
    stale = body.replace("bar.sync 0;\n    @%p1 mbarrier.arrive_drop", test)
    assert "mbarrier" in {f.kind for f in run(hopper.kernel(stale, DECLARED), out, **OPTIONS).findings}


def test_an_object_ends_behind_the_waits_of_all_threads(run: Run) -> None:
    body = (
        INIT.replace("{full}", "64").replace("{empty}", "3")
        + """
    mbarrier.arrive.shared::cta.b64 _, [%r1];
W:  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0; @!%p3 bra W;
    bar.sync 0;
    @%p1 mbarrier.inval.shared.b64 [%r1];
"""
    )
    ptx = hopper.kernel(body, "")
    assert hopper.judged(run, ptx, "bra W;\n    bar.sync 0;", "bra W;", **OPTIONS) == {"shared-race"}


BYTES = (
    INIT.replace("{full}", "1").replace("{empty}", "1")
    + """
    @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 64;
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%r1];
    @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 48;
    @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 16;
W:  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0; @!%p3 bra W;
"""
)


@pytest.mark.parametrize(
    ("cut", "instead"),
    [
        ("[%r1], 48;", "[%r1], 32;"),
        ("[%r1], 48;", "[%r1], 64;"),
        ("[%r1], 64;", "[%r1], 1048640;"),
        ("[%r1], 48;", "[%r1], 1048641;"),
        ("@%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 16;", ""),
        ("@%p1 mbarrier.arrive", "mbarrier.arrive"),
    ],
)
def test_bytes_complete_a_phase(run: Run, cut: str, instead: str) -> None:
    assert "mbarrier" in hopper.judged(run, hopper.kernel(BYTES, ""), cut, instead, **OPTIONS)


def test_an_object_ends_without_pending_bytes(run: Run) -> None:
    early = hopper.edited(BYTES, "@%p1 mbarrier.arrive", "@%p1 mbarrier.inval.shared.b64 [%r1]; ret; mbarrier.arrive")
    report = run(hopper.kernel(early, ""), **OPTIONS)
    assert [(f.kind, "64 bytes are pending" in f.message) for f in report.findings] == [("mbarrier", True)]


def test_counts_of_arrivals_have_a_limit(run: Run) -> None:
    kinds: set[str]
    for count, kinds in (((1 << 20) - 1, set()), (1 << 20, {"mbarrier"})):
        ptx = hopper.kernel(INIT.replace("{full}", str(count)).replace("{empty}", "1"), "")
        assert {finding.kind for finding in run(ptx, **OPTIONS).findings} == kinds


COPIES = (
    INIT
    + """
    shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2; cvt.u64.u32 %rd1, %r2; add.u64 %rd2, %a0, %rd1;
    cp.async.ca.shared.global [%r3+128], [%rd2], 4;
    cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];
W:  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0; @!%p3 bra W;
    xor.b32 %r4, %r2, 252; add.u32 %r4, %r4, %r1; ld.shared.b32 %r5, [%r4+128];
    st.global.b32 [%rd2+256], %r5;
"""
)


@pytest.mark.parametrize("early", [False, True])
def test_mbarriers_count_copies_of_lanes(run: Run, early: bool) -> None:
    ptx = hopper.kernel(LOADS + COPIES.replace("{full}", "64").replace("{empty}", "1"), DECLARED)
    out = np.arange(128, dtype=np.uint32)
    report = run(ptx, out, early=early, **OPTIONS)
    assert not report.findings, "\n".join(map(str, report.findings))
    assert (out[64:] == out[:64][::-1]).all()
    alone = hopper.edited(ptx, "W:  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0; @!%p3 bra W;", "")
    found = {f.kind for f in run(alone, out, early=early, **OPTIONS).findings}
    assert found & {"cp-async", "shared-race"}
    one = hopper.edited(ptx.replace(".noinc", ""), "b64 [%r1], 64;", "b64 [%r1], 1;")
    counted = hopper.edited(one, "W:", "@%p1 mbarrier.arrive.shared.b64 _, [%r1]; bar.sync 0;\nW:")
    assert not run(counted, out, early=early, **OPTIONS).findings


def test_targets_without_waits_are_refused(run: Run) -> None:
    with pytest.raises(SimulatorError, match="sm_90 or later"):
        run(ring().replace(".target sm_90", ".target sm_80"), np.zeros((3, 32), np.uint32), **OPTIONS)
