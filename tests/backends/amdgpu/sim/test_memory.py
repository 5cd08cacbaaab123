"""Loads, stores, LDS and atomics: values, bounds, bank conflicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.amdgpu.sim import simulate
from convgen.backends.amdgpu.sim.archs import ARCHS
from convgen.backends.amdgpu.sim.banks import bank_conflicts

Array = npt.NDArray[Any]
LANE = np.arange(64)
#: s[4:5], s[6:7]: in and out; s[8:11] and s[12:15] their descriptors of s3 bytes; v1 = 4 * lane.
PROLOGUE = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
  s_mov_b32 s8, s4
  s_and_b32 s9, s5, 0xffff
  s_movk_i32 s10, {records}
  s_mov_b32 s11, 0x27000
"""
STORE = "\n s_waitcnt vmcnt(0) lgkmcnt(0)\n global_store_dwordx4 v3, v[4:7], s[6:7]\n"


def execute(
    sim: Any, body: str, data: Array, *, arch: str = "gfx942", records: int = 1024, lds: int = 4096
) -> tuple[Any, Array]:
    """Run a body that leaves its result in v[4:7]; gives the report and the words by lane."""
    out = np.zeros((64, 4), np.uint32)
    text = PROLOGUE.format(records=records) + "v_lshlrev_b32_e32 v3, 4, v0\n"
    text += "\n".join(f"v_mov_b32_e32 v{r}, 0" for r in range(4, 8)) + "\n" + body + STORE
    report = sim.run(arch, sim.Source(text, lds=lds), {"in": data.copy(), "out": out})
    return report, out


def clean(sim: Any, body: str, data: Array, **options: Any) -> Array:
    report, out = execute(sim, body, data, **options)
    assert not report.findings, str(report.findings[0])
    return out


WORDS = np.random.default_rng(5).integers(0, 1 << 32, 256, np.uint32)
BYTES = WORDS.view(np.uint8)

NARROW = {
    "buffer_load_ubyte v4, v0, s[8:11], 0 offen": BYTES[:64].astype(np.uint32),
    "buffer_load_sbyte v4, v0, s[8:11], 0 offen": BYTES[:64].view(np.int8).astype(np.int32).view(np.uint32),
    "v_lshlrev_b32_e32 v2, 1, v0\n buffer_load_ushort v4, v2, s[8:11], 0 offen": BYTES.view(np.uint16)[:64].astype(
        np.uint32
    ),
    "v_lshlrev_b32_e32 v2, 1, v0\n global_load_sshort v4, v2, s[4:5]": BYTES.view(np.int16)[:64]
    .astype(np.int32)
    .view(np.uint32),
    "global_load_dword v4, v1, s[4:5] offset:8": WORDS[2:66],
    "buffer_load_dword v4, off, s[8:11], 0 offset:12": np.full(64, WORDS[3]),
    "s_mov_b32 s20, 16\n buffer_load_dword v4, v1, s[8:11], s20 offen offset:4": WORDS[5:69],
    "v_mov_b32_e32 v8, s4\n v_mov_b32_e32 v9, s5\n flat_load_dword v4, v[8:9] offset:4": np.full(64, WORDS[1]),
    "s_load_dword s20, s[4:5], 0x8\n s_waitcnt lgkmcnt(0)\n v_mov_b32_e32 v4, s20": np.full(64, WORDS[2]),
    "s_buffer_load_dword s20, s[8:11], 0x4\n s_waitcnt lgkmcnt(0)\n v_mov_b32_e32 v4, s20": np.full(64, WORDS[1]),
    "s_buffer_load_dword s20, s[8:11], 0x400\n s_waitcnt lgkmcnt(0)\n v_mov_b32_e32 v4, s20": np.zeros(64, np.uint32),
}


@pytest.mark.parametrize("body", NARROW)
def test_loads(sim: Any, body: str) -> None:
    np.testing.assert_array_equal(clean(sim, body, WORDS)[:, 0], NARROW[body])


def test_buffer_bounds_word_by_word(sim: Any) -> None:
    """Lanes beyond num_records read 0, also with an offset that is negative as a signed number; words count singly."""
    body = "v_lshlrev_b32_e32 v2, 4, v0\n buffer_load_dwordx4 v[4:7], v2, s[8:11], 0 offen"
    want = np.zeros(256, np.uint32)
    want[: 200 // 4] = WORDS[: 200 // 4]
    np.testing.assert_array_equal(clean(sim, body, WORDS, records=200), want.reshape(64, 4))
    body = "v_subrev_u32_e32 v2, 16, v1\n buffer_load_dword v4, v2, s[8:11], 0 offen"
    want = np.append(np.zeros(4, np.uint32), WORDS[:60])
    np.testing.assert_array_equal(clean(sim, body, WORDS)[:, 0], want)


def test_dropped_stores_and_strides(sim: Any) -> None:
    body = "s_mov_b32 s8, s6\n s_and_b32 s9, s7, 0xffff\n s_mov_b32 s10, 128\n"
    body += "buffer_store_dword v0, v1, s[8:11], 0 offen\n s_waitcnt vmcnt(0)\n s_endpgm"
    _, out = execute(sim, body, WORDS)
    want = np.zeros(256, np.uint32)
    want[:32] = np.arange(32)
    np.testing.assert_array_equal(out.ravel(), want)
    body = "s_or_b32 s9, s9, 0x80000\n buffer_load_dword v4, v0, s[8:11], 0 idxen offset:4"
    np.testing.assert_array_equal(clean(sim, body, WORDS)[:, 0], WORDS[1:129:2])


@pytest.mark.parametrize(("offset", "kind"), [("-16", []), ("16", ["buffer-soffset"])])
def test_soffset_in_range_either_way(sim: Any, offset: str, kind: list[str]) -> None:
    """A scalar offset that carries some lane over the end makes the outcome ambiguous."""
    body = f"s_mov_b32 s20, 16\n v_add_u32_e32 v2, {offset}, v1\n v_max_i32_e32 v2, 0, v2\n"
    report, _ = execute(sim, body + "buffer_load_dword v4, v2, s[8:11], s20 offen", WORDS[:72], records=272)
    assert sim.kinds(report) == kind


def test_addresses_and_descriptors_that_change_in_a_loop(sim: Any) -> None:
    """What an instruction remembers of its registers holds no longer than their words."""
    body = """
      v_add_u32_e32 v2, 100, v0
      ds_write_b32 v1, v0
      ds_write_b32 v1, v2 offset:256
      v_mov_b32_e32 v8, v1
      s_mov_b32 s20, 0
      s_waitcnt lgkmcnt(0)
    again:
      ds_read_b32 v9, v8
      buffer_load_dword v10, v1, s[8:11], 0 offen
      s_waitcnt vmcnt(0) lgkmcnt(0)
      v_lshl_add_u32 v4, v4, 8, v9
      v_lshl_add_u32 v5, v5, 4, v10
      v_xor_b32_e32 v8, 0x100, v8
      s_lshr_b32 s10, s10, 3
      s_add_i32 s20, s20, 1
      s_cmp_lt_i32 s20, 3
      s_cbranch_scc1 again
    """
    got = clean(sim, body, LANE.astype(np.uint32) & 15)
    np.testing.assert_array_equal(got[:, 0], (LANE << 16) + (LANE + 100 << 8) + LANE)
    word = LANE & 15
    np.testing.assert_array_equal(got[:, 1], (word << 8) + (word * (LANE < 32) << 4) + word * (LANE < 4))


def test_lds_widths(sim: Any) -> None:
    """Every width writes what every other width reads."""
    want = WORDS.reshape(64, 4)
    load = "global_load_dwordx4 v[12:15], v3, s[4:5]\n s_waitcnt vmcnt(0)\n"
    writes = {
        "b128": "ds_write_b128 v3, v[12:15]",
        "b96+b32": "ds_write_b96 v3, v[12:14]\n ds_write_b32 v3, v15 offset:12",
        "b64": "ds_write_b64 v3, v[12:13]\n ds_write_b64 v3, v[14:15] offset:8",
        "write2": "ds_write2_b64 v3, v[12:13], v[14:15] offset1:1",
        "write2 b32": "ds_write2_b32 v3, v12, v13 offset1:1\n ds_write2_b32 v3, v14, v15 offset0:2 offset1:3",
    }
    reads = {
        "b128": "ds_read_b128 v[4:7], v3",
        "read2": "ds_read2_b64 v[4:7], v3 offset1:1",
        "b96": "ds_read_b96 v[4:6], v3\n ds_read_b32 v7, v3 offset:12",
    }
    for write in writes.values():
        for read in reads.values():
            np.testing.assert_array_equal(clean(sim, load + write + "\n" + read, WORDS), want)


def test_lds_st64_and_halves(sim: Any) -> None:
    body = (
        "ds_write2st64_b32 v1, v0, v1 offset1:2\n ds_read_b32 v4, v1 offset:512\n ds_read2st64_b32 v[6:7], v1 offset1:2"
    )
    got = clean(sim, body, WORDS)
    np.testing.assert_array_equal(got[:, 0], 4 * LANE)
    np.testing.assert_array_equal(got[:, 2], LANE)
    body = """v_lshlrev_b32_e32 v2, 1, v0
      v_lshlrev_b32_e32 v10, 16, v0
      ds_write_b16_d16_hi v2, v10
      ds_write_b8 v0, v0 offset:256
      ds_read_u16 v4, v2
      ds_read_u8 v5, v0 offset:256
      ds_read_u16 v6, v2
      ds_read_b32 v7, v1 offset:256"""
    body = body.replace("ds_read_b32 v7, v1 offset:256", "ds_read_i8 v7, v0 offset:256")
    got = clean(sim, body, WORDS)
    np.testing.assert_array_equal(got.T, [LANE, LANE, LANE, LANE])


def test_lds_address_wraps(sim: Any) -> None:
    """A base below zero, and an offset that makes up for it."""
    body = "v_subrev_u32_e32 v2, 64, v1\n ds_write_b32 v1, v0\n ds_read_b32 v4, v2 offset:64"
    np.testing.assert_array_equal(clean(sim, body, WORDS)[:, 0], LANE)


def test_agpr_destinations(sim: Any) -> None:
    body = (
        PROLOGUE.format(records=256)
        + """ds_write_b32 v1, v0
      s_waitcnt lgkmcnt(0)
      ds_read_b32 a3, v1
      buffer_load_dword a4, v1, s[8:11], 0 offen
      s_waitcnt vmcnt(0) lgkmcnt(0)
      v_accvgpr_mov_b32 a5, a3
      v_accvgpr_read_b32 v2, a5
      global_store_dword v1, v2, s[6:7]
      global_store_dword v1, a4, s[6:7] offset:256"""
    )
    out = np.zeros(128, np.uint32)
    report = sim.run("gfx90a", sim.Source(body, agprs=8, lds=256), {"in": WORDS[:64].copy(), "out": out})
    assert not report.findings, str(report.findings[0])
    np.testing.assert_array_equal(out, np.append(LANE, WORDS[:64]))


@pytest.mark.parametrize(
    ("arch", "suffix", "words"), [("gfx90a", "dword", 1), ("gfx942", "dword", 1), ("gfx950", "dwordx4", 4)]
)
def test_lds_dma(sim: Any, arch: str, suffix: str, words: int) -> None:
    """Lanes land one after the other behind M0; lanes out of range write zeros."""
    body = f"""s_movk_i32 m0, 0x100
      v_mul_u32_u24_e32 v2, {4 * words}, v0
      buffer_load_{suffix} v2, s[8:11], 0 offen lds
      s_waitcnt vmcnt(0)
      ds_read_b32 v4, v1 offset:256"""
    got = clean(sim, body, WORDS, arch=arch, records=160)[:, 0]
    np.testing.assert_array_equal(got, np.where(LANE < 40, WORDS[:64], 0))


def test_transposed_read(sim: Any) -> None:
    """Each 16 lanes hold a 4 x 16 matrix of halves, 8 bytes a lane; lane l gets column l."""
    body = "v_lshlrev_b32_e32 v2, 3, v0\n global_load_dwordx2 v[8:9], v2, s[4:5]\n s_waitcnt vmcnt(0)\n"
    body += "ds_write_b64 v2, v[8:9]\n ds_read_b64_tr_b16 v[4:5], v2"
    got = clean(sim, body, WORDS, arch="gfx950")
    halves = WORDS.view(np.uint16)[:256].reshape(4, 4, 16).swapaxes(1, 2).reshape(64, 4)
    np.testing.assert_array_equal(got[:, :2], np.ascontiguousarray(halves).view(np.uint32))


@pytest.mark.parametrize(("bits", "words"), [(4, 2), (6, 3), (8, 2)])
def test_transposed_reads_of_parts_of_bytes(sim: Any, bits: int, words: int) -> None:
    """The fields of 16 lanes one after the other are rows of 16; lane l gets field l of each row."""
    body = f"v_mul_u32_u24_e32 v2, {4 * words}, v0\n v_lshlrev_b32_e32 v9, 4, v0\n"
    for word in range(words):
        body += f"global_load_dword v{12 + word}, v2, s[4:5] offset:{4 * word}\n"
    body += "s_waitcnt vmcnt(0)\n" + "".join(f"ds_write_b32 v2, v{12 + w} offset:{4 * w}\n" for w in range(words))
    got = clean(sim, f"{body} ds_read_b{32 * words}_tr_b{bits} v[4:{3 + words}], v2", WORDS, arch="gfx950")
    for group in range(4):
        whole = sum(int(w) << 32 * n for n, w in enumerate(WORDS[16 * words * group : 16 * words * (group + 1)]))
        for lane in range(16):
            fields = [whole >> bits * (16 * row + lane) & ((1 << bits) - 1) for row in range(32 * words // bits)]
            want = sum(field << bits * row for row, field in enumerate(fields))
            assert sum(int(w) << 32 * n for n, w in enumerate(got[16 * group + lane, :words])) == want


ATOMICS = {
    "global_atomic_add v2, v0, s[4:5]": np.uint32(WORDS[0] + np.uint32(LANE.sum())),
    "buffer_atomic_umax v0, v2, s[8:11], 0 offen": max(WORDS[0], np.uint32(63)),
    "v_cvt_f32_u32_e32 v8, v0\n global_atomic_add_f32 v2, v8, s[4:5]": None,
    "v_mov_b32_e32 v8, 0x3c003c00\n global_atomic_pk_add_f16 v2, v8, s[4:5]": None,
    "ds_write_b32 v2, v2\n ds_add_u32 v2, v0\n ds_read_b32 v4, v2\n s_waitcnt lgkmcnt(0)\n"
    "buffer_store_dword v4, off, s[8:11], 0": np.uint32(LANE.sum()),
}


@pytest.mark.parametrize("body", ATOMICS)
def test_atomics(sim: Any, body: str) -> None:
    data = WORDS.copy()
    start = 0 if ATOMICS[body] is None else data[0]
    data[0] = start
    text = PROLOGUE.format(records=1024) + "v_mov_b32_e32 v2, 0\n" + body
    report = sim.run("gfx942", sim.Source(text, lds=64), {"in": data, "out": np.zeros(4, np.uint32)})
    assert not report.findings, str(report.findings[0])
    want = ATOMICS[body]
    if "f32" in body:
        assert data[:1].view(np.float32)[0] == LANE.sum()
    elif "f16" in body:
        np.testing.assert_array_equal(data[:1].view(np.float16), [64, 64])
    else:
        assert data[0] == want


def test_atomic_returns_old_value(sim: Any) -> None:
    body = "v_mov_b32_e32 v2, 0\n v_mov_b32_e32 v9, 1\n global_atomic_add v4, v2, v9, s[4:5] sc0"
    data = np.zeros(4, np.uint32)
    np.testing.assert_array_equal(clean(sim, body, data)[:, 0], LANE)


def test_uninitialised_buffer(sim: Any) -> None:
    """A workspace that starts undefined may be loaded once it was stored, not before."""
    load = PROLOGUE.format(records=256) + "buffer_load_dword v2, v1, s[8:11], 0 offen\n s_waitcnt vmcnt(0)\n"
    load += "global_store_dword v1, v2, s[6:7]"
    store = PROLOGUE.format(records=256) + "buffer_store_dword v0, v1, s[8:11], 0 offen"
    code = sim.assemble("gfx942", {"load": sim.Source(load), "store": sim.Source(store)})

    def run(*kernels: str) -> tuple[Any, Array]:
        out = np.zeros(64, np.uint32)
        buffers = {"work": np.zeros(256, np.uint8), "out": out.view(np.uint8)}
        launches = [sim.launch(kernel, ["work", "out"]) for kernel in kernels]
        return simulate(code, launches, buffers, uninitialised={"work"}), out

    assert sim.kinds(run("load")[0]) == ["poison"]
    report, out = run("store", "load")
    assert not report.findings
    np.testing.assert_array_equal(out, LANE)


def brute_force(banks: int, phases: Any, word: Array, width: int) -> int:
    total = 0
    for phase in phases:
        used: dict[int, set[int]] = {}
        for lane in phase:
            for k in range(width):
                used.setdefault((word[lane] + k) % banks, set()).add(word[lane] + k)
        total += max(len(words) for words in used.values()) - 1
    return total


def test_conflicts_of_transposed_reads_are_counted(sim: Any) -> None:
    """Lanes 128 bytes apart: 32 lanes a phase, in two of 32 pairs of banks."""
    body = "v_lshlrev_b32_e32 v2, 7, v0\n ds_read_b64_tr_b16 v[4:5], v2"
    report, _ = execute(sim, body, WORDS, arch="gfx950", lds=8192)
    assert report.counters["lds_bank_conflict_cycles"] == 2 * 15


@pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)
def test_bank_conflicts(arch: Any) -> None:
    """Against a count word by word, for aligned accesses of power-of-two widths."""
    rng = np.random.default_rng(2)
    for (what, size), phases in arch.banks.items():
        width = size // 4
        if width == 3:
            continue
        for stride in (1, 2, 4, 8, 17, 32, 33):
            word = (LANE * stride + rng.integers(0, 2)) * width
            got = bank_conflicts(phases, word[None], width, np.ones((1, 64), np.bool_))
            assert got == brute_force(phases.banks, phases.phases, word, width), (what, size, stride)


def test_counters(sim: Any) -> None:
    body = "v_lshlrev_b32_e32 v2, 7, v0\n ds_write_b32 v2, v0\n ds_read_b32 v4, v2\n v_mov_b32_e32 v8, 0"
    report, _ = execute(sim, body, WORDS, lds=8192)
    assert report.instructions["ds_read"] == report.instructions["ds_write"] == 1
    assert report.instructions["vmem_store"] == 1
    assert report.counters["lds_read_bytes"] == report.counters["lds_write_bytes"] == 256
    assert report.counters["global_write_bytes"] == 1024
    assert report.counters["lds_bank_conflict_cycles"] == 2 * 2 * 31
