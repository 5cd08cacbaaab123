"""Kernels of Intel's OpenCL compiler: exact results without findings.

Their compiler leaves distances out (`trust_igc`), and is older than some of the workarounds (`OLDER_THAN`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.intel.sim import Adversary, CodeObject, simulate
from convgen.backends.simulation import KernelArg, LaunchRequest, Scrutiny, SimReport

Array = npt.NDArray[Any]
I32, U32, I64 = np.int32, np.uint32, np.int64


@attrs.frozen
class Case:
    """What a kernel is called with and what it must leave: {buffer: expected}."""

    arguments: tuple[str | bytes, ...]  #: buffer names, scalars
    buffers: Mapping[str, Array]
    wanted: Mapping[str, Array]
    groups: int = 4
    items: int = 64
    slm: int = 0
    grid: tuple[int, int, int] | None = None


def i32(value: int) -> bytes:
    return struct.pack("<i", value)


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def saxpy() -> Case:
    rng, n = random(), 1000
    x, y = (rng.integers(-50, 50, n).astype(np.float32) for _ in range(2))
    return Case(("y", "x", struct.pack("<f", 2), i32(n)), {"y": y.copy(), "x": x}, {"y": 2 * x + y}, 16)


def reduce() -> Case:
    data = random().integers(-1000, 1000, 777).astype(I32)
    parts = np.zeros(5, I64)
    for start in range(0, 777, 256):
        for group in range(4):
            parts[1 + group] += data[start + 64 * group : start + 64 * group + 64].sum()
    parts[0] = data.sum()
    return Case(("o", "i", i32(777)), {"o": np.zeros(5, I32), "i": data}, {"o": parts.astype(I32)})


def bits(values: Array) -> list[int]:
    return [int(value) & 0xFFFFFFFF for value in values]


def mixed() -> Case:
    rng, n, number = random(), 256, 0x12345
    c, s = rng.integers(-128, 128, n).astype(np.int8), rng.integers(-30000, 30000, n).astype(np.int16)
    i, q = rng.integers(-(2**31), 2**31, n).astype(I32), rng.integers(-(2**60), 2**60, n)
    h, f = rng.normal(size=n).astype(np.float16), (rng.random(n) * 100).astype(np.float32)
    given: dict[str, Array] = {"c": c, "s": s, "i": i, "q": q, "h": h, "f": f}
    wide = i.astype(I64)
    ones = np.array([value.bit_count() for value in bits(i)])
    zeros = np.array([32 - value.bit_length() for value in bits(i)])
    turned = np.array([(value << 5 | value >> 27) & 0xFFFFFFFF for value in bits(i)])
    chosen = (wide & ~0xFF0) | (number & 0xFF0)
    i_out = (ones + zeros * (wide * 12345 >> 32) + turned + chosen).astype(I32)
    third, tiny = np.float32(1 / 3), np.float32(0.001)
    f_out = np.sqrt(f) + f * third + np.floor(f) + f + i_out.astype(np.float32)
    wanted: dict[str, Array] = {
        "c": (c.astype(int) * 3 + s).astype(np.int8),
        "s": (np.trunc(s / 7).astype(int) + np.fmod(wide, 13)).astype(np.int16),
        "q": q * wide + (q >> 3) - np.arange(n),
        "i": i_out,
        "h": (h * np.float16(2.5)).astype(np.float16) + f.astype(np.float16),
        "f": f_out + np.exp2(f * tiny) + np.minimum(f, np.float32(1)),
    }
    return Case((*given, i32(number)), {name: data.copy() for name, data in given.items()}, wanted)


def matrix(columns: int) -> Callable[[], Case]:
    def case() -> Case:
        rng, depth = random(), 64
        a = rng.integers(-4, 5, (32, depth)).astype(np.float16)
        b = rng.integers(-4, 5, (depth, columns)).astype(np.float16)
        tiles = np.ascontiguousarray(a.reshape(4, 8, depth // 16, 16).transpose(0, 2, 1, 3))
        pairs = np.ascontiguousarray(b.reshape(depth // 2, 2, columns).transpose(0, 2, 1))
        product = a.astype(np.float32) @ b.astype(np.float32)
        buffers: dict[str, Array] = {"a": tiles, "b": pairs, "c": np.zeros((32, columns), np.float32)}
        return Case(("a", "b", "c", i32(depth)), buffers, {"c": product}, items=columns)

    return case


def control() -> Case:
    data = random().integers(1, 5000, 256).astype(I32)

    def one(x: int, limit: int) -> int:
        steps = 0
        while x > 1:
            if x % 3 == 0:
                x //= 3
                if x == 7:
                    break
            elif x & 1:
                x, steps = 3 * x + 1, steps + 2
                continue
            else:
                x >>= 1
            steps += 1
            if steps > limit:
                break
        kind = steps & 3
        steps = {0: steps + 100, 1: steps * 3, 2: (steps ^ 0x55) - 7, 3: steps - 7}[kind]
        return steps * 1000 + (x & 255)

    wanted = np.array([one(int(x), 60) for x in data], I32)
    return Case(("o", "i", i32(60)), {"o": np.zeros(256, I32), "i": data}, {"o": wanted})


def atomics() -> Case:
    n = 256
    v = -1 - random().integers(0, 1000, n).astype(I32)
    a, u = np.zeros(16 + n, I32), np.array([0, 2**32 - 1, 2**32 - 1, 0, 0, 0, 0], U32)
    wanted_a, wanted_u = a.copy(), u.copy()
    wanted_a[8], wanted_a[9], wanted_a[10] = v.min(), 0, n
    wanted_a[11], wanted_a[12], wanted_a[13] = np.bitwise_or.reduce(v), np.bitwise_xor.reduce(v), -v.sum()
    wanted_a[16:] = 2
    wanted_a[:8] = [v[(v & 7) == bank].sum() - 4 * 5000 for bank in range(8)]
    wanted_a[14] = a[14] = -5000
    wanted_a[14] = v.max()
    unsigned = v.view(U32)
    wanted_u[0], wanted_u[1], wanted_u[2] = unsigned.max(), unsigned.min(), np.bitwise_and.reduce(unsigned)
    wanted_u[3:] = np.arange(7, 11)
    buffers: dict[str, Array] = {"a": a, "u": u, "f": np.zeros(4, np.float32), "i": v}
    return Case(("a", "u", "f", "i"), buffers, {"a": wanted_a, "u": wanted_u})


def numbers() -> Case:
    rng, n = random(), 256
    x = rng.integers(-(2**31), 2**31, n + 1).astype(I32)
    f = (rng.normal(size=n + 1) * 3).astype(np.float32)
    a, b = x[:-1].astype(I64), x[1:].astype(I64) | 1
    ua, ub = a & 0xFFFFFFFF, b & 0xFFFFFFFF
    g, h = f[:-1], f[1:]
    f64 = g.astype(np.float64)

    def clip(values: Array, low: int, high: int) -> Array:
        return np.clip(values, low, high)

    def raw(values: Array) -> Array:
        return values.astype(np.float32).view(I32).astype(I64)

    quotient = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    low = [(int(value) | 256) & -(int(value) | 256) for value in a]
    columns = [
        clip(a + b, -(2**31), 2**31 - 1),
        np.where(ua > ub, ua - ub, 0),
        (ua.astype(np.uint64) * ub.astype(np.uint64) >> np.uint64(32)).astype(I64),
        (a + b) >> 1,
        (a + b + 1) >> 1,
        np.abs(a - b),
        quotient,
        (ua ^ 85) % ub,
        np.array([value.bit_length() - 1 for value in low]),
        clip(np.trunc((g * np.float32(1e9)).astype(np.float64)), -(2**31), 2**31 - 1).astype(I64),
        clip(np.trunc(f64), 0, 255).astype(I64),
        clip(np.rint((h * np.float32(1000)).astype(np.float64)), -32768, 32767).astype(I64),
        raw(f64 * h + 1.5),
        raw(np.trunc(g)),
        raw(np.rint(g)),
        raw(np.ceil(h)),
        raw(np.minimum(g, h)),
        raw(np.clip(g, -1, 1)),
        np.where(g < h, 3, 5),
        raw(np.copysign(g, h)),
        np.trunc((g.astype(np.float16) * h.astype(np.float16)).astype(np.float64)).astype(I64),
        np.array([int(value & 0xFFFFFFFFFFFFFFFF).bit_count() for value in (a << 7).tolist()]),
        raw(1 / f64),
        (a << 16) | (b & 0xFFFF),
    ]
    wanted = np.stack(columns, axis=1).astype(I32)
    return Case(("o", "i", "f"), {"o": np.zeros((n, 24), I32), "i": x, "f": f}, {"o": wanted})


def longs() -> Case:
    rng, n = random(), 256
    data = rng.integers(-(2**63), 2**63 - 1, n + 1)
    data[::3] >>= 40
    x, y = data[:-1], data[1:]
    ux, uy, shift = x.view(np.uint64), y.view(np.uint64), y & 63
    turned = (ux << np.uint64(13) | ux >> np.uint64(51)).view(I64)
    columns = [
        x + y,
        x - y,
        x * y,
        x << shift,
        x >> shift,
        (ux >> shift.astype(np.uint64)).view(I64),
        np.minimum(x, y),
        np.maximum(ux, uy).view(I64),
        (x & y) ^ ~x,
        turned + y.astype(I32),
    ]
    buffers: dict[str, Array] = {"o": np.zeros((n, 10), I64), "i": data}
    return Case(("o", "i"), buffers, {"o": np.stack(columns, axis=1)})


def chars() -> Case:
    rng, n = random(), 256
    c, u = rng.integers(-128, 128, (n, 4)).astype(np.int8), rng.integers(0, 256, (n, 4)).astype(np.uint8)
    s = rng.integers(-(2**15), 2**15, (n, 2)).astype(np.int16)
    buffers: dict[str, Array] = {"c": c.copy(), "u": u.copy(), "s": s.copy()}
    wanted: dict[str, Array] = {
        "c": np.clip(c.astype(int) + np.minimum(u, 127), -128, 127).astype(np.int8),
        "u": (u.astype(int) * 3 + c).astype(np.uint8),
        "s": (np.maximum(s, u[:, :2].astype(np.int16)).astype(int) - c[:, 2:3]).astype(np.int16),
    }
    return Case(("c", "u", "s"), buffers, wanted)


def memory() -> Case:
    rng, n = random(), 256
    data = rng.integers(-99, 99, (2 * n, 4)).astype(np.float32)
    eight = data.reshape(n, 8)
    byte, short = rng.integers(0, 256, n).astype(np.uint8), rng.integers(0, 2**16, (n, 2)).astype(np.uint16)
    shorts = short.copy()
    shorts[:, 1] = short[:, 0] * np.uint16(5)
    wanted: dict[str, Array] = {"o": data[:n] * 2 + eight[:, [7, 3, 1, 0]], "b": byte + np.uint8(1), "s": shorts}
    buffers: dict[str, Array] = {"o": np.zeros((n, 4), np.float32), "i": data, "b": byte.copy(), "s": short.copy()}
    return Case(("o", "i", "b", "s"), buffers, wanted)


def subgroups() -> Case:
    n = 256
    data = random().integers(-1000, 1000, (n // 16, 16)).astype(I32)
    lane = np.arange(16)
    before = np.cumsum(data, axis=1) - data
    wanted = data[:, (lane * 7 + 3) & 15] + 10 * data[:, lane ^ 5] + 100 * data.sum(axis=1, keepdims=True)
    wanted = wanted + data[:, 3:4] + before + lane
    return Case(("o", "i"), {"o": np.zeros(n, I32), "i": data}, {"o": wanted.astype(I32).reshape(-1)})


def exchange() -> Case:
    n, lane = 64, np.arange(64)
    data = random().integers(-99, 99, (4, 4, n)).astype(np.float32)  # round, group, lane
    wanted = sum(data[r][:, (lane + 17) % n] * (r + 1) - data[r][:, n - 1 - lane] for r in range(4))
    buffers: dict[str, Array] = {"o": np.zeros((4, n), np.float32), "i": data}
    return Case(("o", "i", i32(0)), buffers, {"o": np.asarray(wanted)}, slm=4 * n)


def globalbar() -> Case:
    data = random().integers(-99, 99, (4, 64)).astype(I32)
    return Case(("o", "i"), {"o": np.zeros((4, 64), I32), "i": data}, {"o": data[:, np.arange(64) ^ 33] * 3 + 1})


def meeting(counts: int) -> Callable[[], Case]:
    """Workgroups that read what others stored, behind an atomic operation that releases and acquires."""

    def case() -> Case:
        given = random().integers(-1000, 1000, 256).astype(I32)
        none: dict[str, Array] = {
            "values": np.zeros(256, I32),
            "sums": np.zeros(64, I32),
            "counts": np.zeros(counts, I32),
        }
        sums = given.reshape(4, 64).sum(axis=0).astype(I32)
        wanted = {"values": given, "sums": sums, "counts": np.full(counts, 4, I32)}
        return Case((*none, "given"), {**none, "given": given}, wanted)

    return case


def doubles() -> Case:
    data = random().integers(-999, 999, 257) / 8
    x, y = data[:-1], data[1:]
    columns = [x * y + 1, x * y - x, np.where(x < y, np.floor(x), -y), np.trunc(x) + y]
    return Case(("o", "i"), {"o": np.zeros((256, 4)), "i": data}, {"o": np.stack(columns, axis=1)})


def division() -> Case:
    """IEEE division and square root in f32 and f64."""
    rng, n = random(), 256
    f, e = rng.normal(size=n + 1).astype(np.float32), rng.normal(size=n + 1)
    buffers: dict[str, Array] = {"o": np.zeros(2 * n, np.float32), "i": f, "d": np.zeros(n), "e": e}
    wanted: dict[str, Array] = {"o": np.concatenate((f[:-1] / f[1:], np.sqrt(f[:-1] * f[:-1]))), "d": e[:-1] / e[1:]}
    return Case(("o", "i", "d", "e"), buffers, wanted)


def tiles(values: Array, rows: int, columns: int) -> Array:
    """A matrix as tiles of rows x columns, tile row by tile row."""
    m, n = values.shape
    return np.ascontiguousarray(values.reshape(m // rows, rows, n // columns, columns).transpose(0, 2, 1, 3))


def tiled(columns: int) -> Callable[[], Case]:
    """Eight matrix operations a subgroup and step, B through local memory in two buffers."""

    def case() -> Case:
        rng, m, n, depth = random(), 256, 4 * columns, 96
        a, b = rng.integers(-4, 5, (m, depth)).astype(np.float16), rng.integers(-4, 5, (depth, n)).astype(np.float16)
        pairs = tiles(b, 16, columns).reshape(depth // 16, 4, 8, 2, columns).transpose(0, 1, 2, 4, 3)
        buffers: dict[str, Array] = {
            "a": tiles(a, 8, 16),
            "b": np.ascontiguousarray(pairs),
            "c": np.zeros((m // 8, 4, 8, columns), np.float32),
        }
        product = tiles(a.astype(np.float32) @ b.astype(np.float32), 8, columns)
        return Case(("a", "b", "c", i32(depth), i32(n)), buffers, {"c": product}, items=4 * columns, grid=(2, 2, 1))

    return case


def blocks() -> Case:
    """A product by 2-D block messages, with edges that stick out of the matrices."""
    rng, m, n, depth = random(), 44, 56, 72
    a, b = rng.integers(-4, 5, (m, depth)).astype(np.float16), rng.integers(-4, 5, (depth, n)).astype(np.float16)
    buffers: dict[str, Array] = {"a": a, "b": b, "c": np.zeros((m, n), np.float32)}
    product = a.astype(np.float32) @ b.astype(np.float32)
    return Case(("a", "b", "c", i32(m), i32(n), i32(depth)), buffers, {"c": product}, items=16, grid=(6, 4, 1))


def byte_matrix() -> Case:
    rng, m, depth = random(), 32, 128
    a = rng.integers(-128, 128, (m, depth)).astype(np.int8)
    b = rng.integers(0, 256, (depth, 16)).astype(np.uint8)
    quads = b.reshape(depth // 32, 8, 4, 16).transpose(0, 1, 3, 2)
    buffers: dict[str, Array] = {
        "a": tiles(a, 8, 32),
        "b": np.ascontiguousarray(quads),
        "c": np.zeros((m, 16), I32),
    }
    product = 2 * (a.astype(I32) @ b.astype(I32)) + 5
    return Case(("a", "b", "c", i32(depth)), buffers, {"c": product}, items=16)


def turns() -> Case:
    x = random().integers(-1000, 1000, 256).astype(I32)
    lane, wanted = np.arange(64), np.zeros((4, 64), I32)
    for k in range(4):
        s = x.reshape(4, 64) + k
        wanted += s[:, lane ^ 1] + 3 * s[:, lane ^ 17] + 5 * s[:, 63 - lane]
    return Case(("o", "i", b"\0\0\0\0"), {"o": np.zeros(256, I32), "i": x}, {"o": wanted.reshape(-1)}, slm=256)


def overtake() -> Case:
    x = random().integers(-1000, 1000, 256).astype(I32)
    left = (x + 3 + 21 * (x & 1)).reshape(4, 64)
    wanted = left[:, np.arange(64) ^ 32].reshape(-1)
    return Case(("o", "i", b"\0\0\0\0"), {"o": np.zeros(256, I32), "i": x}, {"o": wanted}, slm=256)


def counters() -> Case:
    x = random().integers(-1000, 1000, 256).astype(I32)
    lane, wanted = np.arange(64), []
    for part in x.reshape(4, 64):
        sums = np.array([part[part & 7 == bank].sum() for bank in range(8)], I32)
        wanted.append(sums[lane & 7] + 2 * sums[(lane + 1) & 7])
    return Case(("o", "i", b"\0\0\0\0"), {"o": np.zeros(256, I32), "i": x}, {"o": np.concatenate(wanted)}, slm=256)


def apart(width: int) -> Callable[[], Case]:
    def case() -> Case:
        rng, n = random(), 7
        i = rng.integers(0, 1000, 64).astype(I32)

        def one(g: int) -> int:
            x, t = int(i[g]), int(i[g // width * width]) & 15
            if t > 7:
                x += int(i[g ^ 1])
                x = x * 3 if t > 11 else x - int(i[g ^ 2])
            else:
                for k in range(t):
                    x = x * 5 + int(i[(g + k) & 63])
            return (x ^ 0x55) + 21 * t

        wanted = np.array([one(g) for g in range(64)]).astype(np.uint32).view(I32)
        return Case(("o", "i", i32(n)), {"o": np.zeros(64, I32), "i": i}, {"o": wanted}, groups=1)

    return case


def masked(columns: int) -> Callable[[], Case]:
    """Products behind loads of some lanes, by lane: a register is a column of A's or of B's fragment."""

    def case() -> Case:
        rng, steps, each = random(), 3, 16 // columns
        rows = (4 + steps) * columns
        a = rng.integers(-2, 3, (rows, 8, each)).astype(np.float16)
        b = rng.integers(-2, 3, (rows, 8, 2)).astype(np.float16)
        flags = rng.integers(0, 8, rows).astype(I32)
        wanted = np.zeros((4 * columns, 8), np.float32)
        for group in range(4):
            mine = np.arange(group * columns, (group + 1) * columns)
            acc = np.zeros((8, columns), np.float32)
            for k in range(steps):
                at = mine + k * columns
                left = (a[at] * (flags[at] > 3)[:, None, None]).transpose(1, 0, 2).reshape(8, 16).astype(np.float32)
                right = b[at].transpose(1, 2, 0).reshape(16, columns).astype(np.float32)
                acc = acc + left @ right
                acc = acc + (flags[mine] > 5)
                second = b[at].transpose(1, 0, 2).reshape(8, 16).astype(np.float32) if columns == 8 else left
                acc = acc + second @ right
            wanted[mine] = acc.T
        buffers: dict[str, Array] = {"a": a, "b": b, "c": np.zeros((4 * columns, 8), np.float32), "f": flags}
        return Case(("a", "b", "c", "f", i32(steps)), buffers, {"c": wanted}, items=columns)

    return case


CASES: Mapping[str, Callable[[], Case]] = {
    "arithmetic saxpy": saxpy,
    "arithmetic reduce": reduce,
    "arithmetic mixed": mixed,
    "matrix16 mma": matrix(16),
    "matrix8 mma": matrix(8),
    "breadth control": control,
    "breadth atomics": atomics,
    "breadth numbers": numbers,
    "breadth longs": longs,
    "breadth chars": chars,
    "breadth memory": memory,
    "groups subgroups": subgroups,
    "groups exchange": exchange,
    "groups globalbar": globalbar,
    "meeting meeting": meeting(64),
    "gathering gathering": meeting(1),
    "doubles doubles": doubles,
    "division divide": division,
    "tiles tiled": tiled(16),
    "tiles8 tiled": tiled(8),
    "blocks blocks": blocks,
    "tiles bytes": byte_matrix,
    "shared turns": turns,
    "shared overtake": overtake,
    "shared counters": counters,
    "masked8 mma": masked(8),
    "masked16 mma": masked(16),
}
#: Kinds of defects of dg2 that ocloc 22.43 is older than; it works round the others. Of pvc it works round none.
OLDER_THAN = ("dpas-suppression", "end-suppression")


def arguments(code: CodeObject, kernel: str, case: Case) -> tuple[KernelArg, ...]:
    """The arguments where .ze_info wants them."""
    found = []
    for item in code.kernel(kernel).payload:
        if item.size and item.kind in ("arg_bypointer", "buffer_address", "arg_byvalue"):
            value = case.arguments[item.index]
            raw = value if isinstance(value, str) else value.ljust(item.size, b"\0")
            found.append(KernelArg(item.offset, item.size, raw))
    return tuple(found)


def execute(folder: Any, file: str, kernel: str, device: str, case: Case, **options: Any) -> SimReport:
    binary = (folder / f"{file}_{device}.bin").read_bytes()
    given = arguments(CodeObject.load(binary), kernel, case)
    request = LaunchRequest(kernel, case.grid or (case.groups, 1, 1), (case.items, 1, 1), given, shared_bytes=case.slm)
    raw = {name: data.view(np.uint8).reshape(-1) for name, data in case.buffers.items()}
    allowed = Scrutiny(allow=OLDER_THAN)
    return simulate(binary, [request], raw, errata=device == "dg2", trust_igc=True, scrutiny=allowed, **options)


COMPILED = Path(__file__).parents[3] / "data" / "intel"
FOR_DEVICES = [(n, d) for n in CASES for d in ("pvc", "dg2") if (COMPILED / f"{n.split()[0]}_{d}.bin").exists()]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("order", ["forward", "reverse", "adversarial"])
@pytest.mark.parametrize(("name", "device"), FOR_DEVICES)
def test_compiled(name: str, device: str, order: str) -> None:
    file, kernel = name.split()
    case = CASES[name]()
    how: dict[str, Any] = {"adversary": Adversary(1)} if order == "adversarial" else {"wave_order": order}
    report = execute(COMPILED, file, kernel, device, case, **how)
    assert not report.findings, "\n".join(map(str, report.findings))
    for name, wanted in case.wanted.items():
        np.testing.assert_array_equal(case.buffers[name], wanted, err_msg=name)


@pytest.mark.parametrize("order", ["forward", "adversarial"])
@pytest.mark.parametrize("device", ["pvc", "dg2"])
def test_subgroups_part(device: str, order: str) -> None:
    """The two of a fused pair part at branches of channels, in loops and in branches that nest."""
    binary = (COMPILED / f"shared_{device}.bin").read_bytes()
    case = apart(CodeObject.load(binary).kernel("apart").simd)()
    how: dict[str, Any] = {"adversary": Adversary()} if order == "adversarial" else {}
    report = execute(COMPILED, "shared", "apart", device, case, **how)
    assert not report.findings, "\n".join(map(str, report.findings))
    np.testing.assert_array_equal(case.buffers["o"], case.wanted["o"])
