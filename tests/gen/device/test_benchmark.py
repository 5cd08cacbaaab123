"""Times of kernels on a device: what is counted, flushed and told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.backends.amdgpu import hip
from convgen.device.benchmark import Benchmark
from convgen.ir.error import UserError
from convgen.problem.matmul import parse_problem
from convgen.run import reference
from tests.gen.device.standin import StandIn
from tests.gen.device.test_load import compiled, right, same
from tests.gen.test_hand_written import saxpy

FORWARD = "--dir=FWD_D --dt=f16 mb1ic16ih6oc16kh3ph1"
ROOM = 1 << 16


def test_calls_are_timed(standin: StandIn) -> None:
    kernel = cg.load(compiled(FORWARD))
    found = kernel.benchmark(warmup=2, repeats=5, flush_bytes=ROOM)
    assert len(standin.launches) == 7
    assert len(found.times) == 5
    assert all(time > 0 for time in found.times)
    assert found.cold
    assert found.bytes == 2 * (16 * 36 + 16 * 16 * 9 + 16 * 36)
    assert found.flop == 2 * 16 * 36 * 16 * 9
    assert found.predicted is not None
    assert 1 < found.predicted < 100
    assert not standin.findings


@pytest.mark.parametrize(("cold", "flushed"), [(True, 3), (False, 0)])
def test_caches_are_flushed_before_each_call(
    cold: bool, flushed: int, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    fills = list[tuple[int, int]]()
    fill = hip.Device.fill

    def counted(device: hip.Device, address: int, size: int, byte: int, stream: int) -> None:
        fills.append((len(standin.launches), size))
        fill(device, address, size, byte, stream)

    monkeypatch.setattr(hip.Device, "fill", counted)
    kernel = cg.load(compiled(FORWARD))
    kernel.benchmark(warmup=1, repeats=2, cold=cold, flush_bytes=ROOM, predict=False)
    assert fills == [(number, ROOM) for number in range(flushed)]
    assert len(standin.launches) == 3


def test_what_is_given_is_used(standin: StandIn) -> None:
    code = compiled("--dir=FWD_D --dt=f16 --runtime_dims_masks=1 mb3ic16ih5oc16kh3ph1")
    kernel, other = cg.load(code), parse_problem("--dir=FWD_D --dt=f16 mb2ic16ih5oc16kh3ph1")
    inputs = reference.fill(other)
    held: dict[str, Any] = {name: kernel.put(name, array) for name, array in inputs.items()}
    held["dst"] = kernel.put("dst", np.zeros((2, 16, 5, 5), np.float16))
    stream = kernel.device.new_stream()
    found = kernel.benchmark(warmup=0, repeats=1, cold=False, predict=False, stream=stream, **held)
    assert (found.cold, found.predicted) == (False, None)
    assert found.flop == 2 * 2 * 16 * 25 * 16 * 9
    assert [launch.stream for launch in standin.launches] == [stream]
    assert same(held["dst"].numpy(), right(other, inputs)["dst"])
    kernel.device.end_stream(stream)


def test_products_and_kernels_by_hand(standin: StandIn) -> None:
    product = cg.load(compiled("--dt=f16 --runtime_dims_masks=3:3 96x64:64x80"))
    small: dict[str, Any] = {"src": np.ones((32, 32), np.float16), "wei": np.ones((32, 48), np.float16)}
    assert product.benchmark(warmup=0, repeats=1, cold=False, **small).flop == 2 * 32 * 32 * 48
    kernel = cg.load(cg.compile(saxpy(), scalars={"n": 3}))
    found = kernel.benchmark(warmup=0, repeats=1, cold=False, x=np.ones(256, np.int32), y=np.ones(256, np.int32))
    assert (found.flop, found.teraflops) == (None, None)
    assert found.bytes == 4 * 256 * 3  # y is read and written


def test_reports() -> None:
    found = Benchmark("k", "hip:0 (G)", (4.0, 2.0, 30.0), True, 8000, 12_000_000, 2.0)
    assert (found.median, found.gigabytes, found.teraflops) == (4.0, 2.0, 3.0)
    assert str(found).splitlines() == [
        "k on hip:0 (G), cold caches",
        "  median     4.00 us (2.00 to 30.00 in 3 calls)",
        "  GB/s       2.0",
        "  TFLOP/s    3.000",
        "  predicted  2.00 us: 4.0 GB/s, 6.000 TFLOP/s",
    ]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"repeats": 0}, "given repeats=0, wanted 1 to 1000000"),
        ({"warmup": -1}, "given warmup=-1, wanted 0 to 1000000"),
        ({"src": None}, "given no wei, wanted src, wei"),
    ],
)
def test_wrong_uses(given: dict[str, Any], wanted: str, standin: StandIn) -> None:
    with pytest.raises(UserError) as error:
        cg.load(compiled(FORWARD)).benchmark(**given)
    assert str(error.value) == wanted
