"""Loads, stores, blocks and atomic operations: what they move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.intel.sim import Unsupported

Array = npt.NDArray[Any]
#: r5 is the address of `in`, r6 of `out`; r8 (two registers) holds lane numbers times four, r10 64-bit addresses of in.
START = {
    "xehpc": """
(W) mov (1|M0) r5.0<1>:uq r4.0<0;1,0>:uq
(W) mov (1|M0) r6.0<1>:uq r4.1<0;1,0>:uq
(W) mov (8|M0) r7.0<1>:uw 0x76543210:uv
(W) add (8|M0) r7.8<1>:uw r7.0<1;1,0>:uw 8:uw {I@1}
(W) shl (16|M0) r8.0<1>:ud r7.0<1;1,0>:uw 2:w {I@1}
(W) mov (8|M0) r10.0<2>:ud r8.0<1;1,0>:ud {I@1}
(W) mov (8|M0) r10.1<2>:ud 0x0:ud
(W) mov (8|M0) r11.0<2>:ud r8.8<1;1,0>:ud
(W) mov (8|M0) r11.1<2>:ud 0x0:ud
(W) sync.nop null {I@1}
(W) add (8|M0) r12.0<1>:uq r10.0<1;1,0>:uq r4.1<0;1,0>:uq {I@2}
(W) add (8|M0) r13.0<1>:uq r11.0<1;1,0>:uq r4.1<0;1,0>:uq {I@2}
(W) add (8|M0) r10.0<1>:uq r10.0<1;1,0>:uq r4.0<0;1,0>:uq
(W) add (8|M0) r11.0<1>:uq r11.0<1;1,0>:uq r4.0<0;1,0>:uq
(W) sync.nop null {A@1}
""",
    "xehpg": """
(W) mov (2|M0) r5.0<1>:ud r4.0<1;1,0>:ud
(W) mov (2|M0) r6.0<1>:ud r4.2<1;1,0>:ud
(W) mov (8|M0) r7.0<1>:uw 0x76543210:uv
(W) shl (8|M0) r8.0<1>:ud r7.0<1;1,0>:uw 2:w {I@1}
(W) mov (8|M0) r9.0<1>:ud 0x0:ud
(W) add (8|M0) r20.0<1>:ud r8.0<1;1,0>:ud r4.0<0;1,0>:ud {I@2}
(W) add (8|M0) r21.0<1>:ud r8.0<1;1,0>:ud r4.2<0;1,0>:ud
(W) sync.nop null {A@1}
(W) mov (8|M0) r10.0<2>:ud r20.0<1;1,0>:ud
(W) mov (8|M0) r10.1<2>:ud r4.1<0;1,0>:ud
(W) mov (8|M0) r12.0<2>:ud r21.0<1;1,0>:ud
(W) mov (8|M0) r12.1<2>:ud r4.3<0;1,0>:ud
(W) sync.nop null {A@1}
""",
}
N = {"xehpc": 16, "xehpg": 8}


def execute(sim: Any, platform: str, body: str, given: Array, size: int = 1024, **options: Any) -> tuple[Any, Array]:
    out = np.zeros(size, np.uint8)
    report = sim.run(platform, START[platform] + body, {"in": given, "out": out}, **options)
    return report, out


def numbers(size: int) -> Array:
    values: Array = np.random.default_rng(2).integers(0, 256, size).astype(np.uint8)
    return values


@pytest.mark.parametrize("platform", N)
@pytest.mark.parametrize(("kind", "vector"), [("d8u32", 1), ("d16u32", 1), ("d32", 1), ("d32", 2), ("d32", 4)])
def test_gather_and_scatter(sim: Any, platform: str, kind: str, vector: int) -> None:
    """Lane n loads at 4 n, and stores there what it has loaded; overlapping stores go by lanes."""
    n, given = N[platform], numbers(256)
    suffix = f"x{vector}" if vector > 1 else ""
    body = (
        f"load.ugm.{kind}{suffix}.a64 ({n}|M0) r20:{vector} [r10:2] {{$1}}\n"
        f"store.ugm.{kind}.a64 ({n}|M0) [r12:2] r{19 + vector}:1 {{$1}}\n"
    )
    report, out = execute(sim, platform, body, given)
    assert not report.findings, "\n".join(map(str, report.findings))
    words = given.view(np.uint32)[vector - 1 : vector - 1 + n]
    mask = {"d8u32": 0xFF, "d16u32": 0xFFFF}.get(kind, 0xFFFFFFFF)
    np.testing.assert_array_equal(out.view(np.uint32)[:n], words & mask)
    assert not out[4 * n :].any()


@pytest.mark.parametrize("platform", N)
def test_narrow_stores_need_the_bytes_that_they_store(sim: Any, platform: str) -> None:
    n = N[platform]
    written = f"mov ({n}|M0) r30.0<4>:ub r8.0<4;1,0>:ub\n(W) sync.nop null {{A@1}}\n"
    for kind, findings in (("d8u32", []), ("d16u32", ["poison"])):
        body = f"{written}store.ugm.{kind}.a64 ({n}|M0) [r12:2] r30:1 {{$1}}\n"
        report, _ = execute(sim, platform, body, numbers(64))
        assert sim.kinds(report) == findings


@pytest.mark.parametrize("platform", N)
def test_long_elements(sim: Any, platform: str) -> None:
    """d64 needs addresses of eight bytes; lanes that are switched off keep their registers and memory."""
    n, given = N[platform], numbers(256)
    body = (
        f"(W) mov (1|M0) f0.0<1>:ud 0x5:ud\n(W) sync.nop null {{A@1}}\n"
        f"(f0.0) load.ugm.d32.a64 ({n}|M0) r20:1 [r10:2] {{$1}}\n"
        f"(f0.0) store.ugm.d32.a64 ({n}|M0) [r12:2] r20:1 {{$1}}\n"
    )
    report, out = execute(sim, platform, body, given)
    assert not report.findings
    want = np.zeros(n, np.uint32)
    want[[0, 2]] = given.view(np.uint32)[[0, 2]]
    np.testing.assert_array_equal(out.view(np.uint32)[:n], want)
    report, _ = execute(sim, platform, f"load.ugm.d64.a64 ({n}|M0) r20:2 [r10:2] {{$1}}\n", given)
    assert sim.kinds(report) == ["misaligned"]


def test_local_memory(sim: Any) -> None:
    """Narrow, vector and block accesses to local memory see each other's bytes."""
    given = numbers(256)
    body = """
(W) load.ugm.d32x64t.a64 (1|M0) r20:4 [r5:1] {$1}
(W) mov (1|M0) r30.0<1>:ud 0x0:ud
(W) store.slm.d32x64t.a32 (1|M0) [r30:1] r20:4 {A@1,$1}
load.slm.d32x4.a32 (16|M0) r40:4 [r8:1] {$2}
load.slm.d8u32.a32 (16|M0) r45:1 [r8:1] {$3}
(W) sync.allwr null
(W) mov (16|M0) r44.0<1>:ud r45.0<1;1,0>:ud
(W) store.ugm.d32x64t.a64 (1|M0) [r6:1] r41:4 {A@1,$4}
"""
    report, out = execute(sim, "xehpc", body, given, source=sim.Source("", slm=256))
    assert not report.findings, "\n".join(map(str, report.findings))
    words, got = given.view(np.uint32), out.view(np.uint32)[:64].reshape(4, 16)
    for row in range(3):
        np.testing.assert_array_equal(got[row], words[row + 1 : row + 17])
    np.testing.assert_array_equal(got[3], words[:16] & 0xFF)


def test_bank_conflicts(sim: Any) -> None:
    """Sixteen lanes at a stride of 128 bytes meet in one of the 32 banks."""
    body = """
(W) shl (16|M0) r9.0<1>:ud r8.0<1;1,0>:ud {shift}:w
(W) mov (16|M0) r20.0<1>:ud 0x0:ud
store.slm.d32.a32 (16|M0) [r9:1] r20:1 {{A@1,$1}}
"""
    for shift, cycles in ((0, 0), (1, 0), (2, 1), (5, 15)):
        report, _ = execute(sim, "xehpc", body.format(shift=shift), numbers(256), source=sim.Source("", slm=4096))
        assert not report.findings
        assert report.counters.get("slm_conflict_cycles", 0) == cycles, shift


def test_prefetch(sim: Any) -> None:
    """A load without a destination changes nothing and may lie anywhere."""
    report, out = execute(sim, "xehpc", "load.ugm.d32.a64 (16|M0) null [r10:2] {$1}\n", numbers(256))
    assert not report.findings
    assert report.counters["prefetch_bytes"] == 64
    assert not out.any()


@pytest.mark.parametrize("name", ["load", "store"])
def test_typed_messages_are_refused(sim: Any, name: str) -> None:
    """Their addresses are coordinates, which no surface state here describes."""
    operands = {"load": "r20 [r10:2]", "store": "[r12:2] r8"}[name]
    with pytest.raises(Unsupported, match="typed"):
        execute(sim, "xehpc", f"{name}.tgm.d32.a64 (16|M0) {operands} {{$1}}\n", numbers(256))


ATOMICS: dict[str, Callable[[Array, Array], Array]] = {
    "atomic_iadd": lambda old, new: old + new,
    "atomic_umax": np.maximum,
    "atomic_smin": lambda old, new: np.minimum(old.view(np.int32), new.view(np.int32)).view(np.uint32),
    "atomic_xor": lambda old, new: old ^ new,
    "atomic_fadd": lambda old, new: (old.view(np.float32) + new.view(np.float32)).view(np.uint32),
}


@pytest.mark.parametrize("platform", N)
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics(sim: Any, platform: str, name: str) -> None:
    """Each lane updates its dword of `in` with its four times its number and stores what was there."""
    n, given = N[platform], numbers(256)
    given.view(np.float32)[:n] = np.arange(n) * 1.5
    before = given.view(np.uint32).copy()
    body = f"{name}.ugm.d32.a64 ({n}|M0) r20:1 [r10:2] r8:1 {{$1}}\nstore.ugm.d32.a64 ({n}|M0) [r12:2] r20:1 {{$1}}\n"
    report, out = execute(sim, platform, body, given)
    assert not report.findings, "\n".join(map(str, report.findings))
    np.testing.assert_array_equal(out.view(np.uint32)[:n], before[:n])
    np.testing.assert_array_equal(
        given.view(np.uint32)[:n], ATOMICS[name](before[:n], 4 * np.arange(n, dtype=np.uint32))
    )


def test_atomics_meet(sim: Any) -> None:
    """All lanes of all workgroups add to one dword."""
    given, out = np.zeros(256, np.uint8), np.zeros(64, np.uint8)
    body = START["xehpc"] + (
        "(W) mov (8|M0) r10.0<1>:uq r4.0<0;1,0>:uq\n(W) mov (8|M0) r11.0<1>:uq r4.0<0;1,0>:uq\n"
        "atomic_iadd.ugm.d32.a64 (16|M0) null:0 [r10:2] r8:1 {A@1,$1}\n"
    )
    report = sim.run("xehpc", body, {"in": given, "out": out}, grid=(5, 1, 1))
    assert not report.findings, "\n".join(map(str, report.findings))
    assert given.view(np.uint32)[0] == 5 * 4 * sum(range(16))


def block(size: int, w: int, h: int, count: int, x: int, y: int, *, width: int, height: int, pitch: int) -> str:
    """The description of a block of the surface at r4.0:uq, in r30."""
    shape = (count - 1) << 16 | (h - 1) << 8 | (w - 1)
    fields = (width - 1, height - 1, pitch - 1, x & 0xFFFFFFFF, y & 0xFFFFFFFF, shape)
    moves = [f"(W) mov (1|M0) r30.{2 + at}<1>:ud 0x{value:x}:ud" for at, value in enumerate(fields)]
    return "\n".join(["(W) mov (1|M0) r30.0<1>:uq r4.0<0;1,0>:uq", *moves]) + "\n"


BLOCKS = [
    ("d16", 16, 8, 1, 4, 2),
    ("d16", 16, 8, 2, 0, 0),
    ("d16", 16, 8, 1, -6, -3),
    ("d16", 16, 8, 1, 26, 13),
    ("d16v", 16, 16, 1, 4, 1),
    ("d16v", 16, 16, 2, 0, 4),
    ("d8", 32, 8, 1, 8, 0),
    ("d8v", 16, 32, 1, 4, 3),
    ("d32", 8, 8, 1, 2, 2),
    ("d32", 16, 4, 1, 3, 1),
    ("d32t", 8, 8, 1, 3, 2),
    ("d32t", 4, 16, 1, 3, 2),
]


@pytest.mark.parametrize(("kind", "w", "h", "count", "x", "y"), BLOCKS)
def test_block_loads(sim: Any, kind: str, w: int, h: int, count: int, x: int, y: int) -> None:
    """A block of a surface 64 or 80 bytes wide and 18 high; what lies outside reads as 0."""
    size = {"d8": 1, "d16": 2, "d32": 4}[kind.rstrip("vt")]
    dtype = f"u{size}"
    width, height, pitch = 64, 18, 96
    given = numbers(pitch * height)
    surface = given.reshape(height, pitch)[:, :width].copy().view(dtype)
    padded = np.zeros((height + 64, surface.shape[1] + 128), dtype)
    padded[32 : 32 + height, 64 : 64 + surface.shape[1]] = surface
    parts = []
    for number in range(count):
        left = 64 + x + number * w
        part = padded[32 + y : 32 + y + h, left : left + w]
        if kind.endswith("v"):
            each = 4 // size
            part = part.reshape(h // each, each, w).transpose(0, 2, 1)
        elif kind.endswith("t"):
            part = part.T
        parts.append(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
    want = np.concatenate(parts)
    registers = len(want) // 64
    body = (
        block(size, w, h, count, x, y, width=width, height=height, pitch=pitch)
        + f"(W) load_block2d.ugm.{kind}.a64 (1|M0) r40:{registers} [r30:1] {{A@1,$1}}\n(W) sync.nop null {{$1.dst}}\n"
    )
    for at in range(0, registers, 8):
        some = min(8, registers - at)
        body += f"(W) store.ugm.d64x{8 * some}t.a64 (1|M0) [r6:1] r{40 + at}:{some} {{A@1,$2}}\n"
        body += "(W) sync.nop null {$2.dst}\n(W) add (1|M0) r6.0<1>:uq r6.0<0;1,0>:uq 0x200:uw\n"
    report, out = execute(sim, "xehpc", body, given)
    assert not report.findings, "\n".join(map(str, report.findings))
    np.testing.assert_array_equal(out[: len(want)], want)


@pytest.mark.parametrize(("x", "y"), [(0, 0), (8, 3), (12, 14), (-4, -2)])
def test_block_store(sim: Any, x: int, y: int) -> None:
    """Writes outside the surface are dropped."""
    width, height, pitch = 64, 16, 96
    given = numbers(pitch * height)
    before = given.copy()
    body = "(W) mov (1|M0) r5.0<1>:uq r4.1<0;1,0>:uq\n(W) load.ugm.d64x64t.a64 (1|M0) r40:8 [r5:1] {I@1,$1}\n"
    body += block(4, 16, 8, 1, x, y, width=width, height=height, pitch=pitch)
    body += "(W) sync.nop null {A@1}\n(W) store_block2d.ugm.d32.a64 (1|M0) [r30:1] r40:8 {$1}\n"
    data = np.arange(256, dtype=np.uint32).view(np.uint8).copy()
    report = sim.run("xehpc", START["xehpc"] + body, {"in": given, "out": data})
    assert not report.findings, "\n".join(map(str, report.findings))
    want = before.reshape(height, pitch).view(np.uint32)
    for row in range(8):
        for column in range(16):
            if 0 <= y + row < height and 0 <= x + column < width // 4:
                want[y + row, x + column] = 16 * row + column
    np.testing.assert_array_equal(given.reshape(height, pitch).view(np.uint32), want)


#: Type 0x10 of dc1 with 8 addresses of 64 bits: (bits 13:8, bytes of an element, elements, registers returned).
SCATTERED = {
    "byte": (0x0, 1, 1, 1),
    "two bytes": (0x4, 2, 1, 1),
    "dword": (0x1, 4, 1, 1),
    "two dwords": (0x5, 4, 2, 2),
}


@pytest.mark.parametrize("name", SCATTERED)
def test_scattered_reads_of_the_old_data_port(sim: Any, name: str) -> None:
    control, size, count, registers = SCATTERED[name]
    descriptor = 2 << 25 | registers << 20 | 0x10 << 14 | control << 8 | 0xFF
    body = f"""
(W) mov (8|M0) r20.0<1>:ud 0x0:ud
(W) mov (8|M0) r21.0<1>:ud 0x0:ud
(W) sync.nop null {{A@1}}
send.dc1 (8|M0) r20 r10 null:0 0x0 0x{descriptor:08X} {{$5}}
(W) sync.nop null {{$5.dst}}
(W) store.ugm.d32x16t.a64 (1|M0) [r6:1] r20:2 {{A@1,$6}}
"""
    given = numbers(256)
    report, out = execute(sim, "xehpg", body, given)
    assert not report.findings, [str(finding) for finding in report.findings]
    wanted = np.zeros(64, np.uint8)
    step = max(size, 4)  # bytes of a lane's element in registers
    for element in range(count):
        for lane in range(8):
            at, to = 4 * lane + element * size, 32 * element + step * lane
            wanted[to : to + size] = given[at : at + size]
    assert np.array_equal(out[:64], wanted)


#: A 16-byte block from the address in r30, or nothing by the flag.
PREDICATED_BLOCK = """
(W) mov (8|M0) r20.0<1>:ud 0x7:ud
(W) mov (1|M0) f0.0<1>:ud {flag}:ud
{header}
(W) sync.nop null {{A@1}}
{wait}
(W&f0.0) send.dc1 (8|M0) r20 r30 null:0 0x0 0x021D00FF {{$5}}
(W) sync.nop null {{$5.dst}}
(W) store.ugm.d32x8t.a64 (1|M0) [r6:1] r20:1 {{A@1,$6}}
"""
HEADER = "(W) mov (2|M0) r30.0<1>:ud r5.0<1;1,0>:ud"


@pytest.mark.parametrize(("flag", "header", "moved"), [("0x0", "", 0), ("0xFF", HEADER, 16)])
def test_predicated_blocks_of_the_old_data_port(sim: Any, flag: str, header: str, moved: int) -> None:
    """A block that the flag switches off needs no address, and counts no bytes."""
    given = numbers(64)
    body = PREDICATED_BLOCK.format(flag=flag, header=header, wait="")
    report, out = execute(sim, "xehpg", body, given)
    assert not report.findings, [str(finding) for finding in report.findings]
    assert report.counters["global_read_bytes"] == 64 + moved  # of them 64 of the prologue
    wanted = np.full(8, 7, np.uint32).view(np.uint8)
    wanted[:moved] = given[:moved]
    assert np.array_equal(out[:32], wanted)


def test_blocks_of_the_old_data_port_wait_for_their_flag(sim: Any) -> None:
    late = "(W) mov (1|M0) f0.0<1>:ud 0xFF:ud"
    report, _ = execute(sim, "xehpg", PREDICATED_BLOCK.format(flag="0x0", header=HEADER, wait=late), numbers(64))
    assert sim.kinds(report) == ["distance"]


@pytest.mark.parametrize(
    "message", ["send.gtwy (1|M0) null r3 null:0 0x0 0x02000004", "send.slm (1|M0) r18 r0 null:0 0x0 0x0210011F"]
)
def test_predicated_barriers_and_fences_are_refused(sim: Any, message: str) -> None:
    """They would order only some threads, and none at all where the flag is off."""
    with pytest.raises(Unsupported, match="predicate"):
        execute(sim, "xehpg", f"(W) mov (1|M0) f0.0<1>:ud 0x0:ud\n(W&f0.0) {message} {{A@1,$5}}\n", numbers(64))
