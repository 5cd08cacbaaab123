"""Every width of loads, stores and copies to LDS, in every address space and on every target; sizes of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.amdgpu.sim import simulate

Array = npt.NDArray[Any]
TARGETS = ("gfx90a", "gfx942", "gfx950")
LANE = np.arange(64)
BYTES = np.random.default_rng(11).integers(0, 256, 64 * 16, np.uint8)
CELLS = BYTES.reshape(64, 16)
FILL = 0xEE
#: s[4:5], s[6:7]: in and out; s[8:11], s[12:15] their descriptors; v3 = 16 * lane; v[14:15], v[16:17] flat addresses.
PROLOGUE = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v3, 4, v0
  s_waitcnt lgkmcnt(0)
  s_mov_b32 s8, s4
  s_and_b32 s9, s5, 0xffff
  s_movk_i32 s10, 0x400
  s_mov_b32 s11, 0x27000
  s_mov_b32 s12, s6
  s_and_b32 s13, s7, 0xffff
  s_mov_b32 s14, s10
  s_mov_b32 s15, s11
  v_mov_b32_e32 v15, s5
  v_mov_b32_e32 v17, s7
  v_add_co_u32_e32 v14, vcc, s4, v3
  s_nop 1
  v_addc_co_u32_e32 v15, vcc, 0, v15, vcc
  v_add_co_u32_e32 v16, vcc, s6, v3
  s_nop 1
  v_addc_co_u32_e32 v17, vcc, 0, v17, vcc
"""
LOAD = {
    "buffer": "buffer_load_{what} {reg}, v3, s[8:11], 0 offen offset:{at}",
    "global": "global_load_{what} {reg}, v3, s[4:5] offset:{at}",
    "global64": "global_load_{what} {reg}, v[14:15], off offset:{at}",
    "flat": "flat_load_{what} {reg}, v[14:15] offset:{at}",
}
STORE = {
    "buffer": "buffer_store_{what} {reg}, v3, s[12:15], 0 offen offset:{at}",
    "global": "global_store_{what} v3, {reg}, s[6:7] offset:{at}",
    "global64": "global_store_{what} v[16:17], {reg}, off offset:{at}",
    "flat": "flat_store_{what} v[16:17], {reg} offset:{at}",
}
LDS_LOAD = {"ubyte_d16": "u8_d16", "sbyte_d16": "i8_d16", "short_d16": "u16_d16"}
DONE = "\n s_waitcnt vmcnt(0) lgkmcnt(0)\n"
SAVE = DONE + "global_store_dwordx4 v3, v[4:7], s[6:7]\n"
READ_ALL = "global_load_dwordx4 v[4:7], v3, s[4:5]" + DONE


def registers(count: int) -> str:
    return "v4" if count == 1 else f"v[4:{3 + count}]"


def execute(sim: Any, arch: str, body: str, *, lds: int = 4096, clean: bool = True) -> tuple[Any, Array]:
    """The bytes that a kernel leaves in a buffer of FILL, [lane, 16]."""
    out = np.full((64, 16), FILL, np.uint8)
    report = sim.run(arch, sim.Source(PROLOGUE + body, lds=lds), {"in": BYTES.copy(), "out": out})
    assert not clean or not report.findings, str(report.findings[0])
    return report, out


def outputs(sim: Any, arch: str, bodies: Mapping[str, str]) -> dict[str, Array]:
    """What each of some kernels leaves."""
    sim.prepare(arch, [sim.Source(PROLOGUE + body, lds=4096) for body in bodies.values()])
    return {name: execute(sim, arch, body)[1] for name, body in bodies.items()}


def extended(cells: Array, size: int, *, signed: bool) -> Array:
    dtype = {(1, False): np.uint8, (1, True): np.int8, (2, False): np.uint16, (2, True): np.int16}[size, signed]
    return np.ascontiguousarray(cells[:, :size]).view(dtype)[:, 0].astype(np.int32).view(np.uint32)


@pytest.mark.parametrize("space", LOAD)
@pytest.mark.parametrize("arch", TARGETS)
def test_loads(sim: Any, arch: str, space: str) -> None:
    zero = "\n".join(f"v_mov_b32_e32 v{r}, 0" for r in range(4, 8)) + "\n"
    wide = {what: 4 * words for words, what in enumerate(("dword", "dwordx2", "dwordx3", "dwordx4"), 1)}
    narrow = {"ubyte": (1, False), "sbyte": (1, True), "ushort": (2, False), "sshort": (2, True)}
    loads = {
        **{what: LOAD[space].format(what=what, reg=registers(size // 4), at=16 - size) for what, size in wide.items()},
        **{what: LOAD[space].format(what=what, reg="v4", at=6) for what in narrow},
    }
    found = outputs(sim, arch, {what: zero + load + SAVE for what, load in loads.items()})
    for what, size in wide.items():
        out = found[what]
        np.testing.assert_array_equal(out[:, :size], CELLS[:, 16 - size :], what)
        assert not out[:, size:].any()
    for what, (size, signed) in narrow.items():
        np.testing.assert_array_equal(
            found[what].view(np.uint32)[:, 0], extended(CELLS[:, 6:], size, signed=signed), what
        )


@pytest.mark.parametrize("space", STORE)
@pytest.mark.parametrize("arch", TARGETS)
def test_stores(sim: Any, arch: str, space: str) -> None:
    sizes = {"byte": 1, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
    upper = {"byte_d16_hi": 1, "short_d16_hi": 2}
    #: what -> (place in the cell, first byte stored, bytes)
    stored = {what: (16 - max(size, 4) + (2 if size < 4 else 0), 0, size) for what, size in sizes.items()}
    stored |= {what: (10, 2, size) for what, size in upper.items()}
    bodies = {
        what: READ_ALL + STORE[space].format(what=what, reg=registers(max(size // 4, 1)), at=at)
        for what, (at, _, size) in stored.items()
    }
    found = outputs(sim, arch, bodies)
    for what, (at, first, size) in stored.items():
        want = np.full((64, 16), FILL, np.uint8)
        want[:, at : at + size] = CELLS[:, first : first + size]
        np.testing.assert_array_equal(found[what], want, what)


@pytest.mark.parametrize("space", [*LOAD, "lds"])
@pytest.mark.parametrize("arch", TARGETS)
def test_half_register_loads(sim: Any, arch: str, space: str) -> None:
    """One half is the memory's; the other is neither what it was nor zero, because targets do not agree on it."""
    kinds = {"ubyte_d16": (1, False), "sbyte_d16": (1, True), "short_d16": (2, False)}
    olds = (0, 0x12345678)

    def load(what: str, half: str) -> str:
        if space != "lds":
            return "v_mov_b32_e32 v4, {old}\n" + LOAD[space].format(what=what + half, reg="v4", at=6)
        text = "ds_write_b128 v3, v[4:7]\n s_waitcnt lgkmcnt(0)\n v_mov_b32_e32 v4, {old}\n"
        return text + f"ds_read_{LDS_LOAD[what]}{half} v4, v3 offset:6"

    bodies = {
        f"{what}{half}_{old}": READ_ALL + load(what, half).replace("{old}", hex(old)) + SAVE
        for what in kinds
        for half in ("", "_hi")
        for old in olds
    }
    found = outputs(sim, arch, bodies)
    for what, (size, signed) in kinds.items():
        want = extended(CELLS[:, 6:], size, signed=signed).astype(np.uint16)
        for half in ("", "_hi"):
            halves = []
            for old in olds:
                both = np.ascontiguousarray(found[f"{what}{half}_{old}"][:, :4]).view(np.uint16)
                mine, other = (both[:, 1], both[:, 0]) if half else (both[:, 0], both[:, 1])
                np.testing.assert_array_equal(mine, want, what)
                halves.append(other)
                assert (other != (old & 0xFFFF if half else old >> 16)).all()
            assert halves[1].all()


@pytest.mark.parametrize(("words", "what"), [(2, "dwordx2"), (3, "dwordx3"), (4, "dwordx4")])
@pytest.mark.parametrize("arch", TARGETS)
def test_ends_inside_a_store(sim: Any, arch: str, words: int, what: str) -> None:
    """Words of a store beyond num_records are dropped one by one."""
    body = "s_movk_i32 s14, 0x204\n" + READ_ALL + STORE["buffer"].format(what=what, reg=registers(words), at=0)
    want = np.full((64, 16), FILL, np.uint8)
    want[:32, : 4 * words] = CELLS[:32, : 4 * words]
    want[32, :4] = CELLS[32, :4]
    np.testing.assert_array_equal(execute(sim, arch, body)[1], want)


#: Copies to LDS by target: mnemonic with its address, bytes a lane takes there, bytes it reads.
COPIES = {
    "gfx90a": [("buffer_load_dword v3, s[8:11], 0 offen offset:8 lds", 4)],
    "gfx942": [
        ("buffer_load_dword v3, s[8:11], 0 offen offset:8 lds", 4),
        ("global_load_lds_dword v3, s[4:5] offset:8", 4),
        ("global_load_lds_dword v[14:15], off offset:8", 4),
    ],
    "gfx950": [
        ("buffer_load_dword v3, s[8:11], 0 offen offset:8 lds", 4),
        ("buffer_load_dwordx3 v3, s[8:11], 0 offen offset:4 lds", 12),
        ("buffer_load_dwordx4 v3, s[8:11], 0 offen lds", 16),
        ("global_load_lds_dwordx3 v3, s[4:5] offset:4", 12),
        ("global_load_lds_dwordx4 v3, s[4:5]", 16),
    ],
}


@pytest.mark.parametrize(("arch", "copy", "size"), [(arch, *row) for arch, rows in COPIES.items() for row in rows])
def test_copies_to_lds(sim: Any, arch: str, copy: str, size: int) -> None:
    """Lane l lands at M0 + offset + l * size; inactive lanes leave their place alone; a wait brings the data."""
    at = int(copy.partition("offset:")[2].split()[0]) if "offset:" in copy else 0
    fill = "v_mov_b32_e32 v4, -1\n v_lshlrev_b32_e32 v2, 2, v0\n"
    fill += "\n".join(f"ds_write_b32 v2, v4 offset:{256 * k}" for k in range(6)) + "\n s_waitcnt lgkmcnt(0)\n"
    body = (
        fill
        + f"s_movk_i32 m0, 0x40\n s_mov_b32 exec_lo, 0xfffffff7\n {copy}\n s_mov_b64 exec, -1\n s_waitcnt vmcnt(0)\n"
    )
    read = "\n".join(f"ds_read_b32 v{4 + k}, v3 offset:{64 + at + 4 * k}" for k in range(4))
    body += f"v_mul_u32_u24_e32 v8, {size}, v0\n" + read.replace("v3 ", "v8 ") + SAVE
    _, out = execute(sim, arch, body)
    want = CELLS[:, at : at + size].copy()
    want[3] = 0xFF
    np.testing.assert_array_equal(out[:, :size], want)
    report, _ = execute(sim, arch, body.replace("s_waitcnt vmcnt(0)\nv_mul", "v_mul"), clean=False)
    assert report.findings


@pytest.mark.parametrize(("arch", "size"), [("gfx90a", 64 << 10), ("gfx942", 64 << 10), ("gfx950", 160 << 10)])
def test_size_of_lds(sim: Any, arch: str, size: int) -> None:
    """The last word of a full LDS is there; a workgroup cannot have more."""
    body = f"v_mov_b32_e32 v2, {hex(size - 256)}\n v_lshl_add_u32 v2, v0, 2, v2\n v_mov_b32_e32 v5, 0\n"
    body += "ds_write_b32 v2, v0\n ds_read_b32 v4, v2\n v_mov_b32_e32 v6, 0\n v_mov_b32_e32 v7, 0" + SAVE
    _, out = execute(sim, arch, body, lds=size)
    np.testing.assert_array_equal(out.view(np.uint32)[:, 0], LANE)
    report, _ = execute(
        sim, arch, body.replace("ds_read_b32 v4, v2", "ds_read_b32 v4, v2 offset:4"), lds=size, clean=False
    )
    assert sim.kinds(report) == ["lds-bounds"]
    report, _ = execute(sim, arch, body, lds=size + 512, clean=False)
    assert sim.kinds(report) == ["lds-size"]


#: A word behind 4 GiB, reached in each way; s[4:5] is the buffer and s[6:7] the output.
FAR = (4 << 30) + (1 << 20)
REACH = {
    "64-bit scalar base": "s_add_u32 s4, s4, {low}\n s_addc_u32 s5, s5, {high}\n global_load_dword v4, v2, s[4:5]",
    "64-bit address": "v_lshl_add_u64 v[8:9], v[14:15], 0, s[20:21]\n global_load_dword v4, v[8:9], off",
    "largest 32-bit offset": "s_add_u32 s4, s4, {rest}\n s_addc_u32 s5, s5, 0\n v_add_u32_e32 v2, -4, v2\n"
    "v_and_b32_e32 v2, -4, v2\n global_load_dword v4, v2, s[4:5]",
    "descriptor": "s_add_u32 s8, s4, {low}\n s_addc_u32 s9, s5, {high}\n s_and_b32 s9, s9, 0xffff\n"
    "buffer_load_dword v4, v2, s[8:11], 0 offen",
    "scalar load": "s_add_u32 s4, s4, {low}\n s_addc_u32 s5, s5, {high}\n s_load_dword s22, s[4:5], 0x0\n"
    "s_waitcnt lgkmcnt(0)\n v_mov_b32_e32 v4, s22",
}


def test_buffer_beyond_32_bits(sim: Any) -> None:
    """Address arithmetic is of 64 bits, and untouched memory is not looked at: the buffer exists on paper only."""
    try:
        memory = np.zeros(FAR + 4096, np.uint8)
    except MemoryError:
        pytest.skip("no address space for a buffer of 4 GiB")
    memory[FAR : FAR + 4].view(np.uint32)[0] = 0xC0FFEE
    numbers = {"low": hex(FAR & 0xFFFFFFFF), "high": FAR >> 32, "rest": hex(FAR - ((1 << 32) - 4))}
    setup = f"v_mov_b32_e32 v2, 0\n s_mov_b32 s20, {numbers['low']}\n s_mov_b32 s21, {numbers['high']}\n"
    setup += "v_mov_b32_e32 v14, s4\n v_mov_b32_e32 v15, s5\n"
    for name, reach in REACH.items():
        out = np.zeros((64, 4), np.uint32)
        body = setup + reach.format(**numbers) + "\n s_waitcnt vmcnt(0)\n global_store_dword v3, v4, s[6:7]"
        buffers = {"in": memory, "out": out.view(np.uint8).reshape(-1)}
        code = sim.assemble("gfx942", {"k": sim.Source(PROLOGUE + body)})
        report = simulate(code, [sim.launch("k", ["in", "out"])], buffers)
        assert not report.findings, (name, str(report.findings[0]))
        assert (out[:, 0] == 0xC0FFEE).all(), name
    store = setup + REACH["64-bit scalar base"].format(**numbers)
    store = store.replace("global_load_dword v4, v2,", "v_mov_b32_e32 v4, 5\n global_store_dword v2, v4,")
    code = sim.assemble("gfx942", {"k": sim.Source(PROLOGUE + store)})
    report = simulate(code, [sim.launch("k", ["in", "out"])], buffers, uninitialised={"in"})
    assert not report.findings
    assert memory[FAR] == 5
    assert report.seconds < 5
