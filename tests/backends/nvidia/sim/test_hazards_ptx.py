"""Each rule is broken by one change to a clean kernel, and the simulator names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from convgen.backends.nvidia.sim import SimulatorError, Unsupported
from convgen.backends.simulation import Scrutiny, SimReport

Run = Callable[..., SimReport]
Text = Callable[..., str]
I32, U32, F32 = np.int32, np.uint32, np.float32


def kinds(report: SimReport) -> set[str]:
    """Return the kinds of a report's findings."""
    return {finding.kind for finding in report.findings}


def judged(run: Run, ptx: str, cut: str, instead: str, *values: Any, **options: Any) -> set[str]:
    """Check that a kernel is clean, and return the kinds of findings of one in which `cut` is replaced."""
    assert ptx.count(cut) >= 1, cut
    clean = run(ptx, *(v.copy() if isinstance(v, np.ndarray) else v for v in values), **options)
    assert not clean.findings, "\n".join(map(str, clean.findings))
    return kinds(run(ptx.replace(cut, instead), *values, **options))


# ---------------------------------------------------------------- cp.async

COPY = """
    .shared .align 16 .b8 s[2048];
    mov.u32 %r1, s; shl.b32 %r2, %r0, 4; add.u32 %r3, %r1, %r2;
    cvt.u64.u32 %rd1, %r2; add.u64 %rd2, %a0, %rd1; add.u64 %rd3, %a1, %rd1;
    cp.async.cg.shared.global [%r3], [%rd2], 16;
    cp.async.commit_group;
    cp.async.commit_group;
    cp.async.wait_group 1;
    bar.sync 0;
    xor.b32 %r4, %r2, 1008; add.u32 %r5, %r1, %r4;
    ld.shared.v4.b32 {%r6, %r7, %r8, %r9}, [%r5];
    st.global.v4.b32 [%rd3], {%r6, %r7, %r8, %r9};
"""


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        ("cp.async.wait_group 1;", "", "cp-async"),
        ("cp.async.wait_group 1;", "cp.async.wait_group 2;", "cp-async"),
        ("cp.async.commit_group;\n    cp.async.commit_group;", "", "cp-async"),
        ("bar.sync 0;", "", "cp-async"),
        ("bar.sync 0;", "bar.warp.sync -1;", "shared-race"),
        ("[%rd2], 16;", "[%rd2+8], 16;", "misaligned"),
        ("[%r3], [%rd2]", "[%r3+8], [%rd2]", "misaligned"),
        ("[%rd2], 16;", "[%rd2], 16, %r2;", "operand"),
        ("[%rd2], 16;", "[%rd2+1024], 16;", "out-of-bounds"),
        ("[%r3], [%rd2]", "[%r3+2048], [%rd2]", "out-of-bounds"),
    ],
)
def test_copies_land_at_their_wait(run: Run, text: Text, cut: str, instead: str, kind: str) -> None:
    a, out = np.arange(256, dtype=U32), np.zeros(256, U32)
    found = judged(run, text(COPY, 2), cut, instead, a, out, block=(64, 1, 1))
    # without the barrier, warp 0 reads before warp 1 has issued its copies, or before they have landed
    assert kind in found or (kind == "cp-async" and "shared-race" in found)


def test_copies_read_their_source_as_late_as_the_wait(run: Run, text: Text) -> None:
    late = COPY.replace("cp.async.wait_group 1;", "st.global.b32 [%rd2], %r0; cp.async.wait_group 1;")
    a, out = np.arange(256, dtype=U32), np.zeros(256, U32)
    found = run(text(late, 2), a, out, block=(64, 1, 1))
    assert any(f.kind == "cp-async" and "changed before the wait" in f.message for f in found.findings)


def test_a_slot_is_not_filled_while_other_warps_read_it(run: Run, text: Text) -> None:
    again = COPY + "bar.sync 0; cp.async.cg.shared.global [%r3], [%rd2], 16; cp.async.wait_all;"
    a, out = np.arange(256, dtype=U32), np.zeros(256, U32)
    found = judged(run, text(again, 2), "bar.sync 0; cp", "cp", a, out, block=(64, 1, 1))
    assert found == {"shared-race"}


def test_copies_fill_with_zeros_what_they_do_not_read(run: Run, text: Text) -> None:
    partial = COPY.replace("[%rd2], 16;", "[%rd2], 16, %r10;").replace("cvt.u64", "and.b32 %r10, %r0, 15; cvt.u64", 1)
    a, out = np.arange(1, 257, dtype=U32), np.zeros(256, U32)
    assert not run(text(partial, 2), a, out, block=(64, 1, 1)).findings
    rows = a.view(np.uint8).reshape(64, 16).copy()
    rows[np.arange(16) >= (np.arange(64) % 16)[:, None]] = 0
    assert (out.view(np.uint8).reshape(64, 16) == rows[::-1]).all()
    ignoring = COPY.replace("[%rd2], 16;", "[%rd2], 16, %p1;").replace("cvt.u64", "setp.gt.u32 %p1, %r0, 9; cvt.u64", 1)
    assert not run(text(ignoring, 2), a, out, block=(64, 1, 1)).findings
    assert (out.reshape(64, 4)[::-1][:10] == a.reshape(64, 4)[:10]).all()
    assert not out.reshape(64, 4)[::-1][10:].any()


def test_a_cache_policy_stands_behind_the_size_of_the_source(run: Run, text: Text) -> None:
    hinted = COPY.replace("cp.async.cg.shared.global", "cp.async.cg.shared.global.L2::cache_hint")
    out = np.ones(256, U32)
    for operands, whole in (("[%rd2], 16, %rd4;", True), ("[%rd2], 16, %r10, %rd4;", False)):
        ptx = hinted.replace("[%rd2], 16;", operands).replace("cvt.u64", "mov.u32 %r10, 0; mov.b64 %rd4, 1; cvt.u64", 1)
        assert not run(text(ptx, 2), np.ones(256, U32), out, block=(64, 1, 1)).findings
        assert out.all() if whole else not out.any()


# ---------------------------------------------------------------- shared memory and barriers

EXCHANGE = """
    .shared .align 4 .b8 s[256];
    mov.u32 %r1, s; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;
    st.shared.b32 [%r3], %r0;
    {sync}
    xor.b32 %r4, %r2, {other}; add.u32 %r5, %r1, %r4;
    ld.shared.b32 %r6, [%r5];
    cvt.u64.u32 %rd1, %r2; add.u64 %rd2, %a0, %rd1; st.global.b32 [%rd2], %r6;
"""


def exchange(sync: str, other: int) -> str:
    """Return statements that pass words between lanes `other` bytes apart, with statements between store and load."""
    return EXCHANGE.replace("{sync}", sync).replace("{other}", str(other))


def test_warps_need_a_barrier(run: Run, text: Text) -> None:
    ptx = text(exchange("bar.sync 0;", 128), 1)
    assert not run(ptx, np.zeros(64, U32), block=(64, 1, 1)).findings
    report = run(ptx.replace("bar.sync 0;", "bar.warp.sync -1;"), np.zeros(64, U32), block=(64, 1, 1))
    assert kinds(report) == {"shared-race"}
    assert "lane" in report.findings[0].message


@pytest.mark.parametrize(
    "sync", ["bar.warp.sync -1;", "bar.sync 0;", "barrier.cta.sync 3;", "barrier.sync.aligned 1, 64;"]
)
def test_lanes_of_a_warp_need_one_too(run: Run, text: Text, sync: str) -> None:
    out = np.zeros(64, U32)
    assert judged(run, text(exchange(sync, 4), 1), sync, "", out, block=(64, 1, 1)) == {"lane-race"}
    run(text(exchange(sync, 4), 1), out, block=(64, 1, 1))
    assert (out == np.arange(64) ^ 1).all()


def test_a_read_must_be_over_before_the_next_store(run: Run, text: Text) -> None:
    ptx = text(exchange("bar.sync 0;", 128) + "bar.sync 1; st.shared.b32 [%r3], %r2;", 1)
    assert judged(run, ptx, "bar.sync 1;", "", np.zeros(64, U32), block=(64, 1, 1)) == {"shared-race"}


def test_a_lane_must_have_read_before_another_one_stores(run: Run, text: Text) -> None:
    ptx = text(exchange("bar.sync 0;", 4) + "bar.warp.sync -1; st.shared.b32 [%r3], %r2;", 1)
    assert judged(run, ptx, "bar.warp.sync -1;", "", np.zeros(64, U32), block=(64, 1, 1)) == {"lane-race"}


def test_warps_that_store_different_values_to_a_word_race(run: Run, text: Text) -> None:
    body = ".shared .align 4 .b8 s[4]; shr.u32 %r1, %r0, 5; and.b32 %r2, %r0, 0; st.shared.b32 [s], %r2;"
    assert judged(run, text(body, 0), "[s], %r2", "[s], %r1", block=(64, 1, 1)) == {"shared-race"}


NAMED = """
    .shared .align 4 .b8 s[128];
    mov.u32 %r1, s; and.b32 %r9, %r0, 31; shl.b32 %r2, %r9, 2; add.u32 %r3, %r1, %r2;
    setp.lt.u32 %p1, %r0, 32;
    @%p1 bra PRODUCER;
    bar.sync 1, 64;
    ld.shared.b32 %r6, [%r3];
    cvt.u64.u32 %rd1, %r2; add.u64 %rd2, %a0, %rd1; st.global.b32 [%rd2], %r6;
    bra DONE;
PRODUCER:
    st.shared.b32 [%r3], %r0;
    bar.arrive 1, 64;
DONE:
"""


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        ("bar.sync 1, 64;", "", "shared-race"),
        ("bar.arrive 1, 64;", "", "barrier"),
        ("bar.arrive 1, 64;", "bar.arrive 2, 64;", "barrier"),
        ("bar.arrive 1, 64;", "bar.arrive 1, 96;", "barrier"),
        (
            "st.shared.b32 [%r3], %r0;\n    bar.arrive 1, 64;",
            "bar.arrive 1, 64; st.shared.b32 [%r3], %r0;",
            "shared-race",
        ),
        ("bar.sync 1, 64;", "bar.sync 17, 64;", "barrier"),
        ("bar.sync 1, 64;", "bar.sync 1, 60;", "barrier"),
    ],
)
def test_producer_and_consumer_meet_at_a_named_barrier(run: Run, text: Text, cut: str, instead: str, kind: str) -> None:
    out = np.zeros(32, U32)
    assert kind in judged(run, text(NAMED, 1), cut, instead, out, block=(64, 1, 1))


def test_a_warp_that_never_arrives_is_a_deadlock(run: Run, text: Text) -> None:
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra L; bar.sync 0; L: bar.sync 1;"
    assert "barrier" in kinds(run(text(body, 0), block=(64, 1, 1)))
    leaving = "setp.lt.u32 %p1, %r0, 32; @%p1 ret; bar.sync 0;"
    assert not run(text(leaving, 0), block=(64, 1, 1)).findings


def test_atomic_operations_race_with_plain_accesses_only(run: Run, text: Text) -> None:
    body = """
    .shared .align 4 .b8 s[4];
    setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.b32 [s], 0;
    bar.sync 0;
    atom.shared.add.u32 %r1, [s], 1;
    bar.sync 1;
    @%p1 ld.shared.b32 %r2, [s];
    @%p1 st.global.b32 [%a0], %r2;
    """
    out = np.zeros(1, U32)
    for barrier in ("bar.sync 0;", "bar.sync 1;"):
        assert judged(run, text(body, 1), barrier, "", out.copy(), block=(64, 1, 1)) & {"shared-race", "lane-race"}
    run(text(body, 1), out, block=(64, 1, 1))
    assert out[0] == 64


def test_reductions_of_barriers(run: Run, text: Text) -> None:
    body = """
    setp.gt.u32 %p1, %r0, 40;
    barrier.cta.red.popc.aligned.u32 %r1, 0, %p1;
    bar.red.or.pred %p2, 1, %p1; bar.red.and.pred %p3, 2, !%p1;
    selp.b32 %r2, 1000, 0, %p2; add.u32 %r1, %r1, %r2; selp.b32 %r2, 5000, 0, %p3; add.u32 %r1, %r1, %r2;
    mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %a0, %rd1; st.global.b32 [%rd2], %r1;
    """
    out = np.zeros(64, U32)
    assert not run(text(body, 1), out, block=(64, 1, 1)).findings
    assert (out == 23 + 1000).all()


# ---------------------------------------------------------------- divergence

DIVERGING = """
    setp.lt.u32 %p1, %r0, 32;
    @!%p1 bra OUT;
    {aligned}
OUT:
"""
_MMA = (
    "mov.b32 %r1, 0; mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
    "{%f1, %f2, %f3, %f4}, {%r1, %r1}, {%r1}, {%f5, %f5, %f5, %f5};"
)


@pytest.mark.parametrize(
    "aligned",
    [
        f"mov.f32 %f5, 0f00000000; {_MMA}",
        ".shared .align 16 .b8 s[512]; and.b32 %r2, %r0, 31; shl.b32 %r2, %r2, 4; mov.u32 %r3, s; "
        "add.u32 %r2, %r2, %r3; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5, %r6, %r7, %r8}, [%r2];",
        "mov.b32 %r1, 0; movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1;",
        "bar.sync 0, 32;",
    ],
)
def test_aligned_instructions_want_whole_warps(run: Run, text: Text, aligned: str) -> None:
    ptx = text(DIVERGING.replace("{aligned}", aligned), 0)
    assert "divergence" in kinds(run(ptx.replace("%r0, 32", "%r0, 16"), block=(64, 1, 1)))
    assert "divergence" not in kinds(run(ptx, block=(64, 1, 1)))


def test_uniform_branches(run: Run, text: Text) -> None:
    ptx = text(DIVERGING.replace("{aligned}", "").replace("bra OUT", "bra.uni OUT"), 0)
    assert judged(run, ptx, "%r0, 32", "%r0, 16", block=(64, 1, 1)) == {"divergence"}


SHUFFLE = """
    setp.lt.u32 %p1, %r0, 16;
    @!%p1 bra REST;
    shfl.sync.down.b32 %r1, %r0, 1, 31, 0xffff;
    bra STORE;
REST:
    shfl.sync.idx.b32 %r1, %r0, 20, 31, 0xffff0000;
STORE:
    vote.sync.ballot.b32 %r2, %p1, -1;
    mul.wide.u32 %rd1, %r0, 8; add.u64 %rd2, %a0, %rd1; st.global.v2.b32 [%rd2], {%r1, %r2};
"""


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        ("0xffff;", "-1;", "member-mask"),
        ("0xffff;", "0x7fff;", "member-mask"),
        ("0xffff0000;", "-1;", "member-mask"),
        ("20, 31", "3, 31", "poison"),
    ],
)
def test_member_masks_name_the_lanes_that_execute(run: Run, text: Text, cut: str, instead: str, kind: str) -> None:
    trimmed = SHUFFLE.replace("down", "up")  # of which lane 0 keeps its own value
    assert kind in judged(run, text(trimmed, 1).replace("31, 0xffff;", "0, 0xffff;"), cut, instead, np.zeros(64, U32))


# ---------------------------------------------------------------- addresses

SIMPLE = """
    .shared .align 16 .b8 s[256];
    .local .align 8 .b8 l[16];
    mul.wide.u32 %rd1, %r0, 8; add.u64 %rd2, %a0, %rd1;
    ld.global.v2.b32 {%r1, %r2}, [%rd2];
    mov.u32 %r3, s; shl.b32 %r4, %r0, 3; add.u32 %r3, %r3, %r4;
    st.shared.v2.b32 [%r3], {%r1, %r2};
    st.local.b64 [l+8], %rd1; ld.local.b64 %rd3, [l+8];
    ld.shared.b64 %rd4, [%r3]; add.u64 %rd4, %rd4, %rd3;
    st.global.b64 [%rd2], %rd4;
"""


@pytest.mark.parametrize(
    ("cut", "instead", "kind"),
    [
        ("{%r1, %r2}, [%rd2];", "{%r1, %r2}, [%rd2+4];", "misaligned"),
        ("[%r3], {%r1, %r2}", "[%r3+4], {%r1, %r2}", "misaligned"),
        ("[%r3], {%r1, %r2}", "[%r3+8], {%r1, %r2}", "out-of-bounds"),
        ("[%rd2], %rd4", "[%rd2+8], %rd4", "out-of-bounds"),
        ("[%rd2], %rd4", "[%rd4], %rd4", "out-of-bounds"),
        ("st.local.b64 [l+8]", "st.local.b64 [l+16]", "out-of-bounds"),
        ("st.local.b64 [l+8]", "st.local.b64 [l+4]", "misaligned"),
        ("st.local.b64 [l+8]", "st.local.b64 [l]", "poison"),
        ("[%rd2], %rd4", "[%rd2], %rd20", "poison"),
        ("[%rd2], %rd4", "[%rd21], %rd4", "poison"),
        ("st.shared.v2.b32 [%r3], {%r1, %r2};", "", "poison"),
        ("ld.global.v2", "ld.global.nc.v2", "constant-cache"),
    ],
)
def test_addresses_and_undefined_values(run: Run, text: Text, cut: str, instead: str, kind: str) -> None:
    assert kind in judged(run, text(SIMPLE, 1), cut, instead, np.arange(64, dtype=U32))


def test_undefined_memory_and_predicates(run: Run, text: Text) -> None:
    ptx = text(SIMPLE, 1)
    assert kinds(run(ptx, np.zeros(64, U32), undefined=[0])) == {"poison"}
    guarded = text("@%p3 bra L; L:", 0)
    assert kinds(run(guarded)) == {"poison"}
    assert not run(guarded, scrutiny=Scrutiny(allow=["poison"])).findings


def test_a_buffer_may_be_read_only(run: Run, text: Text) -> None:
    a = np.arange(64, dtype=U32)
    a.setflags(write=False)
    assert kinds(run(text(SIMPLE, 1), a)) == {"read-only"}


def test_a_workgroup_has_so_much_shared_memory(run: Run, text: Text) -> None:
    assert kinds(run(text("", 0), shared=300_000)) == {"shared-size"}
    assert not run(text("", 0), shared=232_448).findings
    assert kinds(run(text("", 0).replace("sm_90", "sm_86"), shared=232_448)) == {"shared-size"}


# ---------------------------------------------------------------- workgroups

FLAG = """
    mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r0, 0; @%p1 ret;
    setp.eq.u32 %p2, %r1, 1; @%p2 bra READER;
    st.global.b32 [%a0], 7;
    fence.acq_rel.gpu;
    st.relaxed.gpu.global.b32 [%a1], 1;
    ret;
READER:
    ld.relaxed.gpu.global.b32 %r2, [%a1]; setp.eq.u32 %p3, %r2, 0; @%p3 bra READER;
    fence.acq_rel.gpu;   // acquires
    ld.global.b32 %r3, [%a0]; st.global.b32 [%a2], %r3;
"""


@pytest.mark.parametrize(
    ("cut", "instead"),
    [
        ("fence.acq_rel.gpu;\n    st", "st"),
        ("fence.acq_rel.gpu;   // acquires", ""),
        ("fence.acq_rel.gpu;\n    st", "fence.acq_rel.cta;\n    st"),
    ],
)
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_flag_releases_and_acquires(run: Run, text: Text, cut: str, instead: str, order: str) -> None:
    words = [np.zeros(1, U32) for _ in range(3)]
    found = judged(run, text(FLAG, 3), cut, instead, *words, grid=(2, 1, 1), wave_order=order)
    assert found == {"global-visibility"}


def test_scoped_accesses_release_and_acquire(run: Run, text: Text) -> None:
    ordered = (
        FLAG.replace("fence.acq_rel.gpu;\n    st.relaxed", "st.release")
        .replace("ld.relaxed", "ld.acquire")
        .replace("fence.acq_rel.gpu;   // acquires", "")
    )
    words = [np.zeros(1, U32) for _ in range(3)]
    found = judged(run, text(ordered, 3), "st.release", "st.relaxed", *words, grid=(2, 1, 1))
    assert found == {"global-visibility"}
    assert words[2][0] == 7


#: Lane 0 draws a ticket for its warp; the workgroup that comes last reads what the other one stored.
TICKET = """
    mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r0, 4; mul.wide.u32 %rd2, %r1, 128;
    xor.b32 %r1, %r1, 1; mul.wide.u32 %rd3, %r1, 128; add.u64 %rd4, %a0, %rd1;
    add.u64 %rd2, %rd4, %rd2; add.u64 %rd3, %rd4, %rd3; add.u64 %rd5, %a2, %rd1;
    STORE [%rd2], 7;
    bar.warp.sync -1;   // releases
    setp.ne.u32 %p1, %r0, 0; mov.b32 %r2, 0; @!%p1 atom.acq_rel.gpu.global.add.u32 %r2, [%a1], 1;
    shfl.sync.idx.b32 %r2, %r2, 0, 31, -1;
    bar.warp.sync -1;   // joins
    setp.eq.u32 %p3, %r2, 0; @%p3 ret;
    ld.global.b32 %r3, [%rd3]; st.global.b32 [%rd5], %r3;
"""
STORES = ("st.global.b32", "red.relaxed.gpu.global.add.u32")


def ticket(store: str = STORES[0]) -> str:
    return TICKET.replace("STORE", store)


def zeros() -> list[Any]:
    return [np.zeros(64, U32), np.zeros(1, U32), np.zeros(32, U32)]


@pytest.mark.parametrize(
    ("instead", "ordered"),
    [
        ("", False),
        ("shfl.sync.idx.b32 %r4, %r2, 0, 31, -1;", False),
        ("fence.acq_rel.gpu;", False),
        ("@%p1 bar.warp.sync -2;", False),
        ("bar.arrive 1, 64;", False),
        ("bar.sync 0;", True),
        ("ld.acquire.gpu.global.b32 %r4, [%a1];", True),
        ("ld.relaxed.gpu.global.b32 %r4, [%a1]; fence.acq_rel.gpu;", True),
    ],
)
@pytest.mark.parametrize("store", STORES)
def test_a_lane_acquires_for_itself_until_a_barrier(
    run: Run, text: Text, store: str, instead: str, *, ordered: bool
) -> None:
    cut = "bar.warp.sync -1;   // joins"
    found = judged(run, text(ticket(store), 3), cut, instead, *zeros(), grid=(2, 1, 1))
    assert found == (set() if ordered else {"global-visibility"})


def test_a_fence_of_other_lanes_acquires_nothing_that_lane_0_has_read(run: Run, text: Text) -> None:
    """Its own read and its own fence make an acquire pattern, others do not."""
    relaxed = ticket().replace("atom.acq_rel", "fence.acq_rel.gpu; @!%p1 atom.relaxed")
    late = relaxed.replace("bar.warp.sync -1;   // joins", "bar.warp.sync -1; fence.acq_rel.gpu;")
    early = relaxed.replace("bar.warp.sync -1;   // joins", "fence.acq_rel.gpu; bar.warp.sync -1;")
    assert not run(text(early, 3), *zeros(), grid=(2, 1, 1)).findings
    assert kinds(run(text(late, 3), *zeros(), grid=(2, 1, 1))) == {"global-visibility"}


@pytest.mark.parametrize(("readers", "lacks"), [("%p2 ret", False), ("%p2 bra READ", True)])
def test_a_barrier_joins_the_lanes_that_its_mask_names(run: Run, text: Text, readers: str, *, lacks: bool) -> None:
    """Lanes 0 to 15 meet; nothing is missing unless others read, too."""
    body = ticket().replace(
        "bar.warp.sync -1;   // joins",
        f"setp.eq.u32 %p3, %r2, 0; @%p3 ret; setp.gt.u32 %p2, %r0, 15; @{readers}; bar.warp.sync 65535; READ:",
    )
    assert bool(run(text(body, 3), *zeros(), grid=(2, 1, 1)).findings) is lacks


def test_a_flag_that_nobody_sets_is_waited_for_in_vain(run: Run, text: Text) -> None:
    never = text(FLAG.replace("st.relaxed.gpu.global.b32 [%a1], 1;", ""), 3)
    words = [np.zeros(1, U32) for _ in range(3)]
    assert kinds(run(never, *words, grid=(2, 1, 1))) == {"no-progress"}
    assert kinds(run(text("L: bra L;", 0), max_instructions=1000)) == {"runaway"}


@pytest.mark.parametrize(("reader", "order"), [(0, "forward"), (8, "reverse")])
def test_a_flag_of_a_workgroup_that_has_not_begun_is_waited_for(run: Run, text: Text, reader: int, order: str) -> None:
    body = f"setp.ne.u32 %p1, %r0, 0; @%p1 ret; setp.eq.u32 %p2, %r1, {reader}; @%p2 bra READER;"
    one_writer = f"mov.u32 %r1, %ctaid.x; {body} setp.ne.u32 %p1, %r1, {8 - reader}; @%p1 ret;"
    begun = FLAG[FLAG.index("    st.global") :]
    words = [np.zeros(1, U32) for _ in range(3)]
    assert not run(text(one_writer + begun, 3), *words, grid=(9, 1, 1), block=(1024, 1, 1), wave_order=order).findings
    assert words[2][0] == 7


def test_workgroups_and_warps_race_in_global_memory(run: Run, text: Text) -> None:
    body = "mov.u32 %r1, %ctaid.x; st.global.b32 [%a0], 5;"
    assert judged(run, text(body, 1), "5;", "%r1;", np.zeros(1, U32), grid=(2, 1, 1)) == {"global-race"}
    within = """
    mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %a0, %rd1; st.global.b32 [%rd2], %r0;
    bar.sync 0;
    xor.b32 %r2, %r0, 32; mul.wide.u32 %rd1, %r2, 4; add.u64 %rd2, %a0, %rd1; ld.global.b32 %r3, [%rd2];
    mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %a1, %rd1; st.global.b32 [%rd2], %r3;
    """
    out = np.zeros(64, U32)
    assert judged(run, text(within, 2), "bar.sync 0;", "", out.copy(), out, block=(64, 1, 1)) == {"global-visibility"}


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3];", "st.async"),
        ("fence.proxy.alias;", "proxies other than the async one"),
        ("call (%r1), f, (%r2);", "no recursion"),
        ("frobnicate.b32 %r1, %r2;", "is not simulated"),
        ("div.rz.f64 %d1, %d2, %d3;", "div.rz.f64"),
        ("fma.rm.f64 %d1, %d2, %d3, %d4;", "fma.rm.f64"),
        ("mov.u32 %r1, %frob;", "special register"),
    ],
)
def test_refusals_take_one_line(run: Run, text: Text, statement: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why) as caught:
        run(text(statement, 0))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ptx", "wanted"),
    [
        ("nothing", "PTX"),
        (".version 8.0\n.target sm_90\n.frob", "a directive"),
        (".version 8.0\n.entry k() { add.u32", "a whole file"),
        (".version 8.0\n.entry k() { bra X; }", "a label of kernel"),
        (".version 8.0\n.entry k() { .reg .b32 %r<2>; add.u64 %r0, %r1, %r1; }", "bits"),
        (".version 8.0\n.entry k() { .reg .b32 %r<2>; add.u32 %r0, %r1; }", "operands"),
        (".version 8.0 €", "wanted PTX"),
        (".version 8.0\n.entry k() { .branchtargets A, B; A: B: ret; }", "a label ahead of .branchtargets"),
    ],
)
def test_damaged_text_is_refused_in_one_line(run: Run, ptx: str, wanted: str) -> None:
    with pytest.raises((SimulatorError, Unsupported), match=wanted) as caught:
        run(ptx)
    assert "\n" not in str(caught.value)


def test_the_trap_of_an_assertion(run: Run, text: Text) -> None:
    assert judged(run, text("setp.gt.u32 %p1, %r0, 99; @%p1 trap;", 0), "99", "9") == {"trap"}


ARRIVING_APART = """
    setp.ge.u32 %p1, %r0, 24;
    setp.lt.u32 %p2, %r0, 32;
    and.pred %p1, %p1, %p2;
    @%p1 exit;
    setp.lt.u32 %p3, %r0, 12;
    @%p3 bra FIRST;
    barrier.sync 1, 64;
    bra DONE;
FIRST:
    barrier.sync 1, 64;
DONE:
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd2, %a0, %rd1;
    st.global.b32 [%rd2], 1;
"""


def test_ended_threads_count_once_all_others_of_their_warp_have_arrived(run: Run, text: Text) -> None:
    """24 of the first warp's threads arrive on two paths, 8 have ended; PTX ISA, barrier: the warp counts 32."""
    out = np.zeros(64, U32)
    assert not run(text(ARRIVING_APART, 1), out, block=(64, 1, 1)).findings
    assert out.sum() == 56


def test_a_warp_that_arrives_and_ends_counts_once(run: Run, text: Text) -> None:
    """Three warps: the first two arrive without waiting and end, the third waits for all 96 threads."""
    body = "setp.ge.u32 %p1, %r0, 64; @%p1 bra WAIT; bar.arrive 1, 96; bra DONE; WAIT: bar.sync 1, 96; DONE:"
    assert not run(text(body, 1), np.zeros(96, U32), block=(96, 1, 1)).findings
    lacking = body.replace("bar.arrive 1, 96;", "setp.ge.u32 %p2, %r0, 32; @%p2 bar.arrive 1, 96;")
    report = run(text(lacking, 1), np.zeros(96, U32), block=(96, 1, 1))
    assert "waits for ever: 64 threads of 96 have arrived" in report.findings[0].message
