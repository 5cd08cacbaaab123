"""Atomic operations on device memory: values against a loop over lanes, bounds, and what they may race with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.amdgpu.sim import simulate
from convgen.ir.error import AssemblerError

Array = npt.NDArray[Any]
CELLS, IN_RANGE = 32, 24
EXEC = 0xFFFF_FFF0_FFFF_FFFF
SENTINEL = 0xFFFFFFFF
#: s[4:5] memory, s[8:11] its descriptor, v1 (v[14:15]) the offset (address) of cell lane % 32, v[4:7] the lane's data.
SETUP = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[12:13], s[0:1], 0x10
  v_lshlrev_b32_e32 v3, 4, v0
  v_and_b32_e32 v1, 31, v0
  v_lshlrev_b32_e32 v1, {shift}, v1
  v_mov_b32_e32 v10, -1
  v_mov_b32_e32 v11, -1
  s_waitcnt lgkmcnt(0)
  global_load_dwordx4 v[4:7], v3, s[6:7]
  s_mov_b32 s8, s4
  s_and_b32 s9, s5, 0xffff
  s_movk_i32 s10, {records}
  s_mov_b32 s11, 0x27000
  v_mov_b32_e32 v15, s5
  v_add_co_u32_e32 v14, vcc, s4, v1
  s_nop 1
  v_addc_co_u32_e32 v15, vcc, 0, v15, vcc
  s_waitcnt vmcnt(0)
  s_mov_b32 exec_lo, {low}
  s_mov_b32 exec_hi, {high}
  {atomic}
  s_mov_b64 exec, -1
  s_waitcnt vmcnt(0) lgkmcnt(0)
  global_store_dwordx2 v3, v[{result}:{last}], s[12:13]
"""


def packed(dtype: Any) -> Callable[[int, int], int]:
    def add(old: int, new: int) -> int:
        pair = [np.array([x], np.uint32).view(dtype).astype(np.float32) for x in (old, new)]
        return int((pair[0] + pair[1]).astype(dtype).view(np.uint32)[0])

    return add


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


def integers(bits: int) -> dict[str, Callable[[int, int], int]]:
    mask = (1 << bits) - 1
    return {
        "add": lambda old, new: old + new & mask,
        "sub": lambda old, new: old - new & mask,
        "smin": lambda old, new: min(signed(old, bits), signed(new, bits)) & mask,
        "umin": min,
        "smax": lambda old, new: max(signed(old, bits), signed(new, bits)) & mask,
        "umax": max,
        "and": lambda old, new: old & new,
        "or": lambda old, new: old | new,
        "xor": lambda old, new: old ^ new,
        "inc": lambda old, new: 0 if old >= new else old + 1,
        "dec": lambda old, new: new if old == 0 or old > new else old - 1,
        "swap": lambda old, new: new,
    }


def real(dtype: Any, word: Any, function: Callable[[Any, Any], Any]) -> Callable[[int, int], int]:
    def apply(old: int, new: int) -> int:
        x, y = (np.array([value], word).view(dtype) for value in (old, new))
        return int(function(x, y).astype(dtype).view(word)[0])

    return apply


#: Meaning and bytes by the mnemonic's suffix.
MEANING: dict[str, tuple[Callable[[int, int], int], int]] = {
    **{name: (function, 4) for name, function in integers(32).items()},
    **{f"{name}_x2": (function, 8) for name, function in integers(64).items()},
    "cmpswap": (lambda old, new: new, 4),
    "cmpswap_x2": (lambda old, new: new, 8),
    "add_f32": (real(np.float32, np.uint32, np.add), 4),
    "add_f64": (real(np.float64, np.uint64, np.add), 8),
    "min_f64": (real(np.float64, np.uint64, np.minimum), 8),
    "max_f64": (real(np.float64, np.uint64, np.maximum), 8),
    "pk_add_f16": (packed(np.float16), 4),
    "pk_add_bf16": (packed(ml_dtypes.bfloat16), 4),
}
INTEGER = [*(name for name in MEANING if "_f" not in name and "bf16" not in name)]
F64 = ["add_f64", "min_f64", "max_f64"]
#: What exists where (LLVM 22's assembler).
EXISTS = {
    ("gfx90a", "buffer"): [*INTEGER, *F64, "add_f32", "pk_add_f16"],
    ("gfx90a", "global"): [*INTEGER, *F64, "add_f32", "pk_add_f16"],
    ("gfx90a", "flat"): [*INTEGER, *F64],
    ("gfx942", "buffer"): [*INTEGER, *F64, "add_f32", "pk_add_f16"],
    ("gfx942", "global"): [*INTEGER, *F64, "add_f32", "pk_add_f16", "pk_add_bf16"],
    ("gfx942", "flat"): [*INTEGER, *F64, "add_f32", "pk_add_f16", "pk_add_bf16"],
    ("gfx950", "buffer"): [*INTEGER, *F64, "add_f32", "pk_add_f16", "pk_add_bf16"],
    ("gfx950", "global"): [*INTEGER, *F64, "add_f32", "pk_add_f16", "pk_add_bf16"],
    ("gfx950", "flat"): [*INTEGER, *F64, "add_f32", "pk_add_f16", "pk_add_bf16"],
}


def values(what: str, size: int, count: int, seed: int) -> Array:
    """Random words, or small numbers where the operation is one of floating point, as unsigned integers."""
    rng = np.random.default_rng(seed)
    word = np.uint32 if size == 4 else np.uint64
    numbers = rng.integers(-8, 9, 2 * count)
    if "bf16" in what:
        return numbers.astype(ml_dtypes.bfloat16).view(np.uint32)
    if "f16" in what:
        return numbers.astype(np.float16).view(np.uint32)
    if "f32" in what or "f64" in what:
        return numbers[:count].astype(np.float32 if size == 4 else np.float64).view(word)
    if "cmpswap" in what:
        return rng.integers(0, 3, count).astype(word)
    return rng.integers(0, np.iinfo(word).max, count, dtype=word)


def text(space: str, what: str, size: int, cache: str) -> tuple[str, int]:
    """The instruction and the register that its result goes to."""
    words = size // 4
    count = words * (2 if "cmpswap" in what else 1)
    data = "v4" if count == 1 else f"v[4:{3 + count}]"
    target = "v10, " if words == 1 else "v[10:11], "
    if space == "buffer":
        return f"buffer_atomic_{what} {data}, v1, s[8:11], 0 offen {cache}", 4
    tail = {"global": f"v1, {data}, s[4:5]", "flat": f"v[14:15], {data}"}[space]
    return f"{space}_atomic_{what} {target if cache else ''}{tail} {cache}", 10


@pytest.mark.parametrize("returning", [False, True])
@pytest.mark.parametrize(("arch", "space"), EXISTS)
def test_values(sim: Any, arch: str, space: str, returning: bool) -> None:
    """Two lanes share each cell, some are inactive, and a descriptor leaves out the last cells."""
    kernels, launches, wanted = {}, [], {}
    buffers: dict[str, Array] = {}
    cache = ("glc" if arch == "gfx90a" else "sc0") if returning else ""
    for what in EXISTS[arch, space]:
        function, size = MEANING[what]
        atomic, result = text(space, what, size, cache)
        kernels[what] = sim.Source(
            SETUP.format(
                shift=2 if size == 4 else 3,
                records=IN_RANGE * size,
                low=hex(EXEC & 0xFFFFFFFF),
                high=hex(EXEC >> 32),
                atomic=atomic,
                result=result,
                last=result + 1,
            )
        )
        memory, data, comparand = (values(what, size, n, seed) for n, seed in ((CELLS, 1), (64, 2), (64, 3)))
        per_lane = np.zeros((64, 16), np.uint8)
        per_lane[:, :size] = data.view(np.uint8).reshape(64, -1)
        per_lane[:, size : 2 * size] = comparand.view(np.uint8).reshape(64, -1)
        out = np.zeros((64, 16), np.uint8)
        buffers |= {f"m {what}": memory.view(np.uint8).copy(), f"d {what}": per_lane.reshape(-1), f"o {what}": out}
        launches.append(sim.launch(what, [f"m {what}", f"d {what}", f"o {what}"]))
        old: Array = np.zeros(64, memory.dtype)
        for lane in range(64):
            cell = lane % CELLS
            if not EXEC >> lane & 1 or (space == "buffer" and cell >= IN_RANGE):
                continue
            old[lane] = memory[cell]
            if "cmpswap" not in what or old[lane] == comparand[lane]:
                memory[cell] = function(int(memory[cell]), int(data[lane]))
        wanted[what] = (memory, old, data)
    flat = {name: buffer.reshape(-1) for name, buffer in buffers.items()}
    report = simulate(sim.assemble(arch, kernels), launches, flat)
    assert not report.findings, str(report.findings[0])
    active = np.array([bool(EXEC >> lane & 1) for lane in range(64)])
    for what, (memory, old, data) in wanted.items():
        np.testing.assert_array_equal(flat[f"m {what}"].view(memory.dtype), memory, what)
        if returning:
            got = flat[f"o {what}"].reshape(64, 16)[:, : memory.itemsize].copy().view(memory.dtype)[:, 0]
            idle = data if space == "buffer" else np.full(64, -1, np.int64).astype(memory.dtype)
            np.testing.assert_array_equal(got, np.where(active, old, idle), what)


def test_table_is_complete(sim: Any) -> None:
    """The instructions that EXISTS leaves out do not assemble."""
    for (arch, space), names in EXISTS.items():
        for what in set(MEANING) - set(names):
            with pytest.raises(AssemblerError):
                sim.assemble(arch, {"k": sim.Source(text(space, what, MEANING[what][1], "")[0])})


#: s[4:5] the memory, v2 = 0, v9 = 1, s2 the workgroup; two workgroups, or two waves of one.
RACES = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_mov_b32_e32 v2, 0
  v_mov_b32_e32 v9, 1
  v_lshrrev_b32_e32 v1, 6, v0
  s_nop 1
  v_readfirstlane_b32 s3, v1
  s_nop 4
  s_waitcnt lgkmcnt(0)
"""
ADD, STORE = "global_atomic_add v2, v9, s[4:5]\n", "global_store_dword v2, v9, s[4:5]\n"
LOAD = "global_load_dword v4, v2, s[4:5]\n s_waitcnt vmcnt(0)\n"
ONE_FIRST = "s_cmp_eq_u32 {who}, 0\n s_cbranch_scc0 1f\n {first} s_branch 2f\n 1: {second} 2:\n s_waitcnt vmcnt(0)\n"


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        (ADD, ADD, []),
        (ADD, STORE, ["global-race"]),
        (STORE, ADD, ["global-race"]),
        (ADD, LOAD, ["global-visibility"]),
    ],
)
@pytest.mark.parametrize("who", ["s2", "s3"])
def test_races(sim: Any, first: str, second: str, kinds: list[str], order: str, who: str) -> None:
    """Of two workgroups (s2) or two waves of one (s3). A load that comes first sees nothing amiss."""
    body = RACES + ONE_FIRST.format(who=who, first=first, second=second)
    shape = {"grid": 2} if who == "s2" else {"workgroup": 128}
    memory = np.zeros(64, np.uint32)
    report = sim.run("gfx942", sim.Source(body), {"m": memory, "o": np.zeros(4, np.uint32)}, wave_order=order, **shape)
    found = sim.kinds(report)
    assert found in ([kinds] if second != LOAD else [kinds, []])
    if not kinds:
        assert memory[0] == 128


#: One lane adds 1 in a loop of compare-and-swap that begins with a plain load, as LLVM has it where it needs one.
SWAP_LOOP = """s_mov_b64 exec, 1
  global_load_dword v5, v2, s[4:5] offset:{guess}
  3: s_waitcnt vmcnt(0)
  v_add_u32_e32 v4, v5, v9
  global_atomic_cmpswap v4, v2, v[4:5], s[4:5] {returns}
  s_waitcnt vmcnt(0)
  v_cmp_ne_u32_e32 vcc, v4, v5
  v_mov_b32_e32 v5, v4
  s_cbranch_vccnz 3b
"""


@pytest.mark.parametrize(("arch", "returns"), [("gfx90a", "glc"), ("gfx942", "sc0")])
@pytest.mark.parametrize(("guess", "kinds"), [(0, []), (4, ["global-visibility"])])
def test_a_first_guess_may_be_stale(sim: Any, arch: str, returns: str, guess: int, kinds: list[str]) -> None:
    """That of another place may not: nothing finds out."""
    first = "s_mov_b64 exec, 1\n" + ADD + ADD.replace("\n", " offset:4\n")
    body = RACES + ONE_FIRST.format(who="s2", first=first, second=SWAP_LOOP.format(guess=guess, returns=returns))
    memory = np.zeros(64, np.uint32)
    report = sim.run(arch, sim.Source(body), {"m": memory, "o": np.zeros(4, np.uint32)}, grid=2)
    assert sim.kinds(report) == kinds
    assert memory[0] == 2


#: The same where the guess reaches the loop through scratch, as at -O0.
FAR_GUESS = SWAP_LOOP.replace("v5, v2, s[4:5] offset", "v8, v2, s[4:5] offset").replace(
    "\n  3:",
    "\n  s_waitcnt vmcnt(0)\n  scratch_store_dword off, v8, off\n"
    + 40 * "  s_nop 0\n"
    + "  scratch_load_dword v5, off, off\n  3:",
)
SCRATCH = ".amdhsa_private_segment_fixed_size 16\n .amdhsa_enable_private_segment 1"


@pytest.mark.parametrize(("guess", "kinds"), [(0, []), (4, ["global-visibility"])])
def test_a_first_guess_from_afar(sim: Any, guess: int, kinds: list[str]) -> None:
    first = "s_mov_b64 exec, 1\n" + ADD + ADD.replace("\n", " offset:4\n")
    body = RACES + ONE_FIRST.format(who="s2", first=first, second=FAR_GUESS.format(guess=guess, returns="sc0"))
    memory = np.zeros(64, np.uint32)
    source = sim.Source(body, directives=SCRATCH)
    report = sim.run("gfx942", source, {"m": memory, "o": np.zeros(4, np.uint32)}, grid=2)
    assert sim.kinds(report) == kinds
    assert memory[0] == 2


def test_a_swap_that_fails_writes_nothing(sim: Any) -> None:
    """A workgroup may store where another's compare-and-swap has found something else than it expected."""
    swap = "v_mov_b32_e32 v10, 1\n v_mov_b32_e32 v11, {}\n global_atomic_cmpswap v2, v[10:11], s[4:5]\n"
    for expected, kinds in ((7, []), (0, ["global-race"])):
        body = RACES + ONE_FIRST.format(who="s2", first=swap.format(expected), second=STORE)
        buffers = {"m": np.zeros(64, np.uint32), "o": np.zeros(4, np.uint32)}
        assert sim.kinds(sim.run("gfx942", sim.Source(body), buffers, grid=2)) == kinds


def test_load_race_is_seen_in_one_order(sim: Any) -> None:
    found = []
    for order in ("forward", "reverse"):
        body = RACES + ONE_FIRST.format(who="s2", first=ADD, second=LOAD)
        buffers = {"m": np.zeros(64, np.uint32), "o": np.zeros(4, np.uint32)}
        found += sim.kinds(sim.run("gfx942", sim.Source(body), buffers, grid=2, wave_order=order))
    assert "global-visibility" in found


ORDERED = {
    "own, waited for": (ADD + "s_waitcnt vmcnt(0)\n" + LOAD, "s_waitcnt vmcnt(0)\n", "global-visibility"),
    "own store, then update": (STORE + "s_waitcnt vmcnt(0)\n" + ADD, "s_waitcnt vmcnt(0)\n", "global-race"),
    "own update, then store": (ADD + "s_waitcnt vmcnt(0)\n" + STORE, "s_waitcnt vmcnt(0)\n", "global-race"),
    "barrier between waves": (ADD + "s_waitcnt vmcnt(0)\n s_barrier\n" + LOAD, "s_barrier\n", "global-visibility"),
    "wait before the barrier": (
        ADD + "s_waitcnt vmcnt(0)\n s_barrier\n" + LOAD,
        "s_waitcnt vmcnt(0)\n",
        "global-visibility",
    ),
}


@pytest.mark.parametrize("name", ORDERED)
def test_order(sim: Any, name: str) -> None:
    """With the wait and barrier clean, without one of them not."""
    body, line, kind = ORDERED[name]
    waves = 2 if "barrier" in name else 1
    for text_, kinds in ((body, []), (body.replace(line, "", 1), [kind])):
        buffers = {"m": np.zeros(64, np.uint32), "o": np.zeros(4, np.uint32)}
        report = sim.run("gfx90a", sim.Source(RACES + text_), buffers, workgroup=64 * waves)
        assert sim.kinds(report) == kinds


def test_later_launches_see_updates(sim: Any) -> None:
    """What a launch updated, the next one loads, stores and updates again."""
    kernels = {
        "add": sim.Source(RACES + ADD),
        "load": sim.Source(RACES + LOAD + "s_load_dword s20, s[4:5], 0x0\n global_store_dword v2, v4, s[6:7]"),
        "store": sim.Source(RACES + STORE),
    }
    memory, out = np.zeros(64, np.uint32), np.zeros(4, np.uint32)
    order = ("add", "load", "add", "store", "add")
    launches = [sim.launch(name, ["m", "o"], grid=3 if name == "add" else 1) for name in order]
    report = simulate(sim.assemble("gfx950", kernels), launches, {"m": memory.view(np.uint8), "o": out.view(np.uint8)})
    assert not report.findings, str(report.findings[0])
    assert (out[0], memory[0]) == (192, 193)


def test_scalar_load_of_an_update(sim: Any) -> None:
    body = RACES + ADD + "s_waitcnt vmcnt(0)\n s_load_dword s20, s[4:5], 0x0\n s_waitcnt lgkmcnt(0)"
    buffers = {"m": np.zeros(64, np.uint32), "o": np.zeros(4, np.uint32)}
    assert not sim.run("gfx942", sim.Source(body), buffers).findings
    assert sim.kinds(sim.run("gfx942", sim.Source(body), buffers, grid=2)) == ["global-visibility"]


def test_read_only_and_misaligned(sim: Any) -> None:
    memory = np.zeros(64, np.uint32)
    memory.flags.writeable = False
    buffers = {"m": memory, "o": np.zeros(4, np.uint32)}
    assert sim.kinds(sim.run("gfx942", sim.Source(RACES + ADD), buffers)) == ["read-only"]
    wide = "v_mov_b32_e32 v10, 0\n v_mov_b32_e32 v11, 0\n global_atomic_add_x2 v2, v[10:11], s[4:5] offset:{}"
    for offset, kinds in ((8, []), (4, ["misaligned"])):
        buffers = {"m": np.zeros(64, np.uint32), "o": np.zeros(4, np.uint32)}
        assert sim.kinds(sim.run("gfx942", sim.Source(RACES + wide.format(offset)), buffers)) == kinds


def test_undefined_memory(sim: Any) -> None:
    """Adding to memory that was never written is a finding; storing first, or swapping, is not."""
    swap = ADD.replace("atomic_add", "atomic_swap")
    for body, kinds in ((ADD, ["poison"]), (STORE + "s_waitcnt vmcnt(0)\n" + ADD, []), (swap + ADD, [])):
        buffers = {"m": np.zeros(64, np.uint32), "o": np.zeros(4, np.uint32)}
        report = sim.run("gfx942", sim.Source(RACES + body), buffers, uninitialised={"m"})
        assert sim.kinds(report) == kinds


@pytest.mark.parametrize(
    ("arch", "bits"), [("gfx90a", "glc slc scc"), ("gfx942", "sc0 sc1 nt"), ("gfx950", "sc0 sc1 nt")]
)
def test_cache_bits(sim: Any, arch: str, bits: str) -> None:
    """Every combination of cache bits loads and stores the same."""
    names = bits.split()
    sources = []
    for mask in range(1 << len(names)):
        chosen = " ".join(name for number, name in enumerate(names) if mask >> number & 1)
        body = f"global_load_dword v4, v2, s[4:5] {chosen}\n s_waitcnt vmcnt(0)\n"
        body += f"v_add_u32_e32 v4, 1, v4\n global_store_dword v2, v4, s[4:5] {chosen}\n s_waitcnt vmcnt(0)"
        sources.append(sim.Source(RACES + body))
    sim.prepare(arch, sources)
    for source in sources:
        memory = np.full(64, 6, np.uint32)
        report = sim.run(arch, source, {"m": memory, "o": np.zeros(4, np.uint32)})
        assert not report.findings
        assert memory[0] == 7
