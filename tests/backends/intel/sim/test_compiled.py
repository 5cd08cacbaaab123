"""Kernels of Intel's OpenCL compiler: exact results without findings.

Their compiler predates the workaround for the defect that `errata` looks for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.intel.sim import CodeObject, simulate
from convgen.backends.simulation import KernelArg, LaunchRequest, SimReport

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
    given = {"c": c, "s": s, "i": i, "q": q, "h": h, "f": f}
    wide = i.astype(I64)
    ones = np.array([value.bit_count() for value in bits(i)])
    zeros = np.array([32 - value.bit_length() for value in bits(i)])
    turned = np.array([(value << 5 | value >> 27) & 0xFFFFFFFF for value in bits(i)])
    chosen = (wide & ~0xFF0) | (number & 0xFF0)
    i_out = (ones + zeros * (wide * 12345 >> 32) + turned + chosen).astype(I32)
    third, tiny = np.float32(1 / 3), np.float32(0.001)
    f_out = np.sqrt(f) + f * third + np.floor(f) + f + i_out.astype(np.float32)
    wanted = {
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
        buffers = {"a": tiles, "b": pairs, "c": np.zeros((32, columns), np.float32)}
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
    v = random().integers(-1000, 1000, n).astype(I32)
    local = np.zeros((4, 8), I64)
    sums = [np.zeros(8, I64) for _ in range(4)]
    for group in range(4):
        mine = v[64 * group : 64 * group + 64].astype(I64)
        np.add.at(sums[group], mine & 7, mine)
    del local
    # sums and maxima meet in any order unless the maxima change nothing: keep them apart
    v = np.where(v < 0, v, -1 - v).astype(I32)
    sums = np.zeros((4, 8), I64)
    for group in range(4):
        for x in v[64 * group : 64 * group + 64].astype(I64):
            sums[group, x & 7] += x
    a = np.zeros(16 + n, I32)
    a[11], a[12] = 0, 0
    u = np.array([0, 2**32 - 1, 2**32 - 1, 0, 0, 0, 0], U32)
    wanted_a, wanted_u = a.copy(), u.copy()
    wanted_a[8], wanted_a[9] = min(0, v.min()), max(0, v.max())
    wanted_a[10], wanted_a[11] = n, np.bitwise_or.reduce(v)
    wanted_a[12], wanted_a[13] = np.bitwise_xor.reduce(v), -v.sum()
    wanted_a[16:] = 2
    unsigned = v.view(U32)
    wanted_u[0], wanted_u[1], wanted_u[2] = unsigned.max(), unsigned.min(), np.bitwise_and.reduce(unsigned)
    for lane in range(4):
        wanted_u[3 + lane] = unsigned[lane] | 1
    return Case(("a", "u", "f", "i"), {"a": a, "u": u, "f": np.zeros(4, np.float32), "i": v}, {"a": wanted_a, "u": wanted_u})


CASES: Mapping[str, Callable[[], Case]] = {
    "arithmetic saxpy": saxpy,
    "arithmetic reduce": reduce,
    "arithmetic mixed": mixed,
    "matrix16 mma": matrix(16),
    "matrix8 mma": matrix(8),
    "breadth control": control,
}


def arguments(code: CodeObject, kernel: str, case: Case) -> tuple[KernelArg, ...]:
    """The arguments where .ze_info wants them."""
    found = []
    for item in code.kernel(kernel).payload:
        if item.size and item.kind in ("arg_bypointer", "buffer_address", "arg_byvalue"):
            value = case.arguments[item.index]
            found.append(KernelArg(item.offset, item.size if isinstance(value, bytes) else 8, value))
    return tuple(found)


def execute(folder: Any, file: str, kernel: str, device: str, case: Case, **options: Any) -> SimReport:
    binary = (folder / f"{file}_{device}.bin").read_bytes()
    given = arguments(CodeObject.load(binary), kernel, case)
    request = LaunchRequest(kernel, (case.groups, 1, 1), (case.items, 1, 1), given, lds_bytes=case.slm)
    raw = {name: data.view(np.uint8).reshape(-1) for name, data in case.buffers.items()}
    return simulate(binary, [request], raw, errata=False, **options)


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("device", ["pvc", "dg2"])
@pytest.mark.parametrize("name", CASES)
def test_compiled(sim: Any, name: str, device: str, order: str) -> None:
    file, kernel = name.split()
    if not (sim.compiled / f"{file}_{device}.bin").exists():
        pytest.skip("not for this device")
    case = CASES[name]()
    report = execute(sim.compiled, file, kernel, device, case, wave_order=order)
    assert not report.findings, "\n".join(map(str, report.findings))
    for buffer, wanted in case.wanted.items():
        np.testing.assert_array_equal(case.buffers[buffer], wanted, err_msg=buffer)
