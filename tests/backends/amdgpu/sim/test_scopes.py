"""Workgroups that wait for each other: locks, semaphores, counters at agent scope, and what lacks one of the parts."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from convgen.ir.record import as_dict


@attrs.frozen
class Target:
    """How a target spells acquire, release, an atomic load and an atomic store."""

    acquire: str
    release: str
    load: str
    store: str
    returns: str


TARGETS = {
    "gfx90a": Target("buffer_wbinvl1_vol", "", "glc", "", "glc"),
    "gfx942": Target("buffer_inv sc1", "buffer_wbl2 sc1", "sc1", "sc1", "sc0"),
    "gfx950": Target("buffer_inv sc1", "buffer_wbl2 sc1", "sc1", "sc1", "sc0"),
}
#: s[4:5] = data, s[6:7] = words that are waited for, zeros at first; one lane does the work.
START = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_mov_b32_e32 v1, 0
  v_mov_b32_e32 v2, 1
  v_mov_b32_e32 v6, s2
  v_lshlrev_b32_e32 v7, 2, v6
  s_mov_b64 exec, 1
  s_waitcnt lgkmcnt(0)
"""
LOCK = """
.Ltry:
  global_atomic_swap v3, v1, v2, s[6:7] {returns}
  s_waitcnt vmcnt(0) ; taken
  v_cmp_eq_u32_e32 vcc, 0, v3
  s_cbranch_vccz .Ltry
  {acquire}
  global_load_dword v4, v1, s[4:5]
  s_waitcnt vmcnt(0)
  v_add_u32_e32 v4, 1, v4
  global_store_dword v1, v4, s[4:5]
  {release}
  s_waitcnt vmcnt(0) ; written
  global_atomic_swap v1, v1, s[6:7]
"""
#: Each workgroup but the last waits for the next one's flag, then adds one to what that one stored.
CHAIN = """
  s_add_u32 s8, s2, 1
  s_cmp_eq_u32 s8, {groups}
  v_mov_b32_e32 v4, 0
  s_cbranch_scc1 .Lfirst
.Lwait:
  global_load_dword v3, v7, s[6:7] offset:4 {load}
  {sleep}
  s_waitcnt vmcnt(0) ; arrived
  v_cmp_eq_u32_e32 vcc, 0, v3
  s_cbranch_vccnz .Lwait
  {acquire}
  global_load_dword v4, v7, s[4:5] offset:4
  s_waitcnt vmcnt(0)
.Lfirst:
  v_add_u32_e32 v4, 1, v4
  global_store_dword v7, v4, s[4:5]
  {release}
  s_waitcnt vmcnt(0) ; written
  global_store_dword v7, v2, s[6:7] {store}
"""
#: All store, the one that arrives last adds up.
LAST = """
  v_add_u32_e32 v4, 10, v6
  global_store_dword v7, v4, s[4:5] offset:4
  {release}
  s_waitcnt vmcnt(0) ; written
  global_atomic_add v3, v1, v2, s[6:7] {returns}
  s_waitcnt vmcnt(0) ; arrived
  v_mov_b32_e32 v8, {groups}
  v_add_u32_e32 v3, 1, v3
  v_cmp_eq_u32_e32 vcc, v8, v3
  s_cbranch_vccz .Lend
  {acquire}
  v_mov_b32_e32 v5, 0
  v_mov_b32_e32 v8, 0
  s_mov_b32 s8, {groups}
.Lsum:
  global_load_dword v9, v8, s[4:5] offset:4
  v_add_u32_e32 v8, 4, v8
  s_waitcnt vmcnt(0)
  v_add_u32_e32 v5, v5, v9
  s_sub_u32 s8, s8, 1
  s_cmp_lg_u32 s8, 0
  s_cbranch_scc1 .Lsum
  global_store_dword v1, v5, s[4:5]
.Lend:
"""


def spelled(body: str, arch: str, **words: Any) -> str:
    """A body in a target's words, without lines that it has not."""
    lines = (START + body).format(**as_dict(TARGETS[arch]), **words).splitlines()
    return "\n".join(line.partition(";")[0] for line in lines if line.strip())


def run(sim: Any, arch: str, text: str, grid: int, **options: Any) -> tuple[Any, Any]:
    data, flags = np.zeros(grid + 1, np.uint32), np.zeros(grid + 1, np.uint32)
    report = sim.run(arch, sim.Source(text, vgprs=16), {"data": data, "flags": flags}, grid=grid, **options)
    return report, data


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("arch", TARGETS)
def test_a_lock(sim: Any, arch: str, order: str) -> None:
    report, data = run(sim, arch, spelled(LOCK, arch), 12, wave_order=order)
    assert not report.findings, str(report.findings[0])
    assert data[0] == 12


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize(("groups", "sleep"), [(20, "s_sleep 1"), (6, ""), (140, "s_sleep 1")])
def test_a_chain(sim: Any, arch: str, order: str, groups: int, sleep: str) -> None:
    """Also where the workgroups waited for come later than those that a batch holds."""
    text = spelled(CHAIN, arch, groups=groups, sleep=sleep)
    report, data = run(sim, arch, text, groups, wave_order=order)
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(data[:groups], groups - np.arange(groups))


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("groups", [7, 140])
def test_the_last_to_arrive(sim: Any, arch: str, order: str, groups: int) -> None:
    report, data = run(sim, arch, spelled(LAST, arch, groups=groups), groups, wave_order=order)
    assert not report.findings, str(report.findings[0])
    assert data[0] == sum(10 + group for group in range(groups))


#: (protocol, line) that are left out, one by one.
PARTS = [
    (LOCK, "{acquire}"),
    (LOCK, "{release}"),
    (LOCK, "s_waitcnt vmcnt(0) ; written"),
    (LOCK, "s_waitcnt vmcnt(0) ; taken"),
    (LOCK, "global_atomic_swap v3, v1, v2, s[6:7] {returns}"),
    (CHAIN, "{acquire}"),
    (CHAIN, "{release}"),
    (CHAIN, "s_waitcnt vmcnt(0) ; written"),
    (CHAIN, "s_waitcnt vmcnt(0) ; arrived"),
    (CHAIN, "{load}"),
    (CHAIN, "{store}"),
    (LAST, "{acquire}"),
    (LAST, "{release}"),
    (LAST, "s_waitcnt vmcnt(0) ; written"),
    (LAST, "s_waitcnt vmcnt(0) ; arrived"),
]


def without(arch: str, body: str, part: str) -> str | None:
    """The kernel without a part of it; None on a target that has no such part."""
    assert part in body
    whole, less = (spelled(text, arch, groups=5, sleep="") for text in (body, body.replace(part, "")))
    return less if less != whole else None


SHORTENED = [
    pytest.param(arch, less, id=f"{arch} {n} {part}")
    for arch in TARGETS
    for n, (body, part) in enumerate(PARTS)
    if (less := without(arch, body, part)) is not None
]


@pytest.mark.parametrize(("arch", "less"), SHORTENED)
def test_each_part_is_needed(sim: Any, arch: str, less: str) -> None:
    report, _ = run(sim, arch, less, 5, max_findings=1)
    assert report.findings
    assert {f.kind for f in report.findings} <= {
        "global-visibility",
        "global-race",
        "wait-count",
        "poison",
        "no-progress",
    }


def test_a_release_covers_what_came_before_it(sim: Any) -> None:
    """A store behind the writeback is not released by it."""
    late = LAST.replace("  {release}\n", "  {release}\n  global_store_dword v7, v4, s[4:5] offset:4\n")
    report, _ = run(sim, "gfx942", spelled(late, "gfx942", groups=5), 5)
    assert {f.kind for f in report.findings} == {"global-visibility"}


def test_an_acquire_covers_what_was_observed_before_it(sim: Any) -> None:
    """One that comes before the lock is taken knows of nothing."""
    early = LOCK.replace("  {acquire}\n", "").replace(".Ltry:\n", ".Ltry:\n  {acquire}\n")
    report, _ = run(sim, "gfx942", spelled(early, "gfx942"), 5)
    assert "global-visibility" in {f.kind for f in report.findings}


def test_an_atomic_operation_elsewhere_orders_nothing(sim: Any) -> None:
    """Each workgroup counts at a place of its own, so the last, which reads, learns of no other's release."""
    apart = LAST.replace("global_atomic_add v3, v1,", "global_atomic_add v3, v7,")
    apart = apart.replace("v_mov_b32_e32 v8, {groups}", "v_mov_b32_e32 v8, {groups} - 1")
    apart = apart.replace("v_add_u32_e32 v3, 1, v3\n", "").replace("vcc, v8, v3", "vcc, v8, v6")
    report, data = run(sim, "gfx942", spelled(apart, "gfx942", groups=5), 5)
    assert "global-visibility" in {f.kind for f in report.findings}
    assert data[0] == sum(10 + group for group in range(5))


WORKGROUP = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_mov_b32_e32 v1, 0
  v_mov_b32_e32 v2, 1
  v_lshlrev_b32_e32 v5, 2, v0
  v_add_u32_e32 v4, s2, v0
  s_waitcnt lgkmcnt(0)
  s_cmp_eq_u32 s2, 0
  s_cbranch_scc0 .Lreader
  global_store_dword v5, v4, s[4:5]
  s_waitcnt vmcnt(0) ; stored
  s_barrier
  v_readfirstlane_b32 s8, v0
  s_cmp_eq_u32 s8, 0
  s_cbranch_scc0 .Lend
  buffer_wbl2 sc1
  s_waitcnt vmcnt(0)
  global_atomic_add v1, v2, s[6:7]
  s_branch .Lend
.Lreader:
  v_readfirstlane_b32 s8, v0
  s_cmp_eq_u32 s8, 0
  s_cbranch_scc0 .Lready
.Lwait:
  s_sleep 1
  global_load_dword v3, v1, s[6:7] sc1
  s_waitcnt vmcnt(0)
  v_cmp_eq_u32_e32 vcc, 0, v3
  s_cbranch_vccnz .Lwait
  buffer_inv sc1
.Lready:
  s_barrier
  global_load_dword v4, v5, s[4:5]
  s_waitcnt vmcnt(0)
.Lend:
"""


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_one_wave_releases_and_acquires_for_its_workgroup(sim: Any, order: str) -> None:
    """Behind a barrier, on either side; without it, or without the others' waits, nothing is known."""

    def kinds(text: str) -> set[str]:
        buffers = {"data": np.zeros(256, np.uint32), "flags": np.zeros(1, np.uint32)}
        body = "\n".join(line.partition(";")[0] for line in text.splitlines())
        report = sim.run("gfx942", sim.Source(body), buffers, grid=2, workgroup=256, wave_order=order)
        return set(sim.kinds(report))

    assert not kinds(WORKGROUP)
    delay = "  s_movk_i32 s9, 99\n.Lslow:\n  s_sleep 1\n  s_sub_u32 s9, s9, 1\n  s_cmp_lg_u32 s9, 0\n"
    delay = f"  s_cbranch_scc1 .Lwait\n{delay}  s_cbranch_scc1 .Lslow\n  s_branch .Lready\n"
    late = WORKGROUP.replace(".Lready:\n  s_barrier\n", ".Lready:\n").replace("  s_cbranch_scc0 .Lready\n", delay)
    assert kinds(late) == {"global-visibility"}
    for part in ("  s_waitcnt vmcnt(0) ; stored\n", ".Lready:\n  s_barrier\n"):
        without = WORKGROUP.replace(part, part.replace("  s_barrier\n", "") if "barrier" in part else "")
        assert "global-visibility" in kinds(without)


@pytest.mark.parametrize("sleep", ["", "s_sleep 1"])
def test_what_never_comes_is_one_finding(sim: Any, sleep: str) -> None:
    body = (
        START
        + f".Lwait:\n global_load_dword v3, v1, s[6:7] sc1\n {sleep}\n s_waitcnt vmcnt(0)\n"
        + ("v_cmp_eq_u32_e32 vcc, 0, v3\n s_cbranch_vccnz .Lwait\n buffer_inv sc1")
    )
    report, _ = run(sim, "gfx942", body, 200)
    (found,) = report.findings
    assert found.kind == "no-progress"
    assert "waits for ever" in found.message


def test_one_that_counts_while_it_waits_runs_away(sim: Any) -> None:
    """Each state is new, so nothing proves that it waits for ever; the limit ends it."""
    body = (
        START
        + ".Lwait:\n s_add_u32 s9, s9, 1\n s_sleep 1\n global_load_dword v3, v1, s[6:7] sc1\n"
        + (" s_waitcnt vmcnt(0)\n v_cmp_eq_u32_e32 vcc, 0, v3\n s_cbranch_vccnz .Lwait\n buffer_inv sc1")
    )
    report, _ = run(
        sim, "gfx942", body.replace("v_mov_b32_e32 v1", "s_mov_b32 s9, 0\n v_mov_b32_e32 v1"), 2, max_instructions=500
    )
    assert [f.kind for f in report.findings] == ["runaway"]


def test_a_count_in_local_memory_is_progress(sim: Any) -> None:
    """Wave 1 counts in LDS between sleeps, its registers as before each time."""
    body = """
  v_mov_b32_e32 v1, 0
  v_mov_b32_e32 v2, 1
  v_mov_b32_e32 v3, 0
  ds_write_b32 v1, v1
  s_waitcnt lgkmcnt(0)
.Lnext:
  s_sleep 1
  ds_read_b32 v3, v1
  s_waitcnt lgkmcnt(0)
  v_add_u32_e32 v3, 1, v3
  ds_write_b32 v1, v3
  v_cmp_gt_u32_e32 vcc, 9, v3
  v_mov_b32_e32 v3, 0
  s_waitcnt lgkmcnt(0)
  s_cbranch_vccnz .Lnext
"""
    assert not sim.run("gfx942", sim.Source(body, lds=64), {"a": np.zeros(1, np.uint32)}).findings


def test_a_long_loop_is_no_deadlock(sim: Any) -> None:
    """Two parts of a wave's workgroup that run long beside each other, with nothing of memory changing."""
    body = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_readfirstlane_b32 s8, v0
  v_mov_b32_e32 v1, 0
  s_mov_b32 s9, 30000
  s_cmp_eq_u32 s8, 0
  s_cbranch_scc1 .Lother
.Lone:
  s_sub_u32 s9, s9, 1
  s_cmp_lg_u32 s9, 0
  s_cbranch_scc1 .Lone
  s_branch .Lend
.Lother:
  s_sub_u32 s9, s9, 1
  s_cmp_lg_u32 s9, 0
  s_cbranch_scc1 .Lother
.Lend:
  s_barrier
"""
    assert not sim.run("gfx942", body, {"a": np.zeros(1, np.uint32)}, workgroup=128).findings
