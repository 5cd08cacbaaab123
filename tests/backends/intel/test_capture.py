"""Zebins in Intel's own driver, without a GPU: it loads them and dispatches threads as we expect."""

from __future__ import annotations

import struct

import pytest

from convgen.backends.intel.assemble import assemble
from convgen.backends.intel.tables import FACTS
from convgen.backends.intel.zebin_devices import DEVICES
from tests.backends.intel.aub import Trace
from tests.backends.intel.capture import Capture, Launch, available, capture
from tests.backends.intel.listings import AXPY, renamed, second_kernel, section
from tests.conftest import with_debian_12

pytestmark = pytest.mark.skipif(not available(), reason="Intel's Level Zero driver is not installed")

FACTOR = struct.pack("<f", 1.5)
LAUNCHES = (
    Launch("axpy", (7, 2, 3), (4096, 8192, FACTOR)),
    Launch("other", (1, 5, 1), (65536, 64, struct.pack("<f", -2.0))),
)
PAYLOAD_BYTES = 32


def zebin(target: str) -> bytes:
    """Two kernels: the second has other facts."""
    other = second_kernel(AXPY[target], "other")
    for old, new in (("slm_bytes 0", "slm_bytes 8192"), ("barrier_count 0", "barrier_count 1")):
        other = renamed(other, f"//.{old}", f"//.{new}")
    group = "32 1 1" if target == "xehpc" else "16 1 1"
    other = renamed(other, f"//.workgroup {group}", "//.workgroup 32 2 2")
    built = assemble(AXPY[target] + renamed(other, "//.has_dpas no", "//.has_dpas yes"))
    assert built is not None
    return built


@pytest.fixture(scope="module", params=AXPY)
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def result(target: str) -> Capture:
    return capture(zebin(target), DEVICES[target].product, LAUNCHES)


@pytest.fixture(scope="module")
def trace(result: Capture) -> Trace:
    assert result.failure is None
    return Trace(result.aub)


@with_debian_12
def test_the_driver_reads_our_description(target: str, result: Capture) -> None:
    assert result.failure is None
    simd = DEVICES[target].simd_size
    axpy, other = result.kernels["axpy"], result.kernels["other"]
    assert (axpy["group_x"], axpy["group_y"], axpy["group_z"]) == (2 * simd, 1, 1)
    assert (other["group_x"], other["group_y"], other["group_z"]) == (32, 2, 2)
    assert (axpy["local_bytes"], other["local_bytes"]) == (0, 8192)
    for kernel in (axpy, other):
        assert kernel["arguments"] == 3
        assert kernel["max_subgroup_size"] == kernel["required_subgroup_size"] == simd
        assert kernel["spill_bytes"] == kernel["private_bytes"] == 0


def test_threads_start_as_generated_code_expects(target: str, trace: Trace) -> None:
    """No local ids, no inline data: thread number and group ids in r0 are all there is, apart from memory."""
    simd = DEVICES[target].simd_size
    axpy, other = trace.dispatches
    assert (axpy.grid, other.grid) == ((7, 2, 3), (1, 5, 1))
    assert (axpy.threads, other.threads) == (2, 32 * 2 * 2 // simd)
    assert (axpy.slm_bytes, other.slm_bytes) == (0, 8192)
    assert (axpy.barriers, other.barriers) == (0, 1)
    for dispatch in trace.dispatches:
        assert (dispatch.simd_size, dispatch.lanes) == (simd, (1 << simd) - 1)
        assert dispatch.inline is None
        assert not dispatch.local_ids
    assert not trace.large_registers


def test_arguments_are_in_memory_where_r0_points(result: Capture, trace: Trace) -> None:
    for dispatch, values in zip(trace.dispatches, result.arguments, strict=True):
        assert dispatch.payload == b"".join(values).ljust(PAYLOAD_BYTES, b"\0")


def test_a_thread_enters_at_the_first_instruction(target: str, trace: Trace) -> None:
    for dispatch, launch in zip(trace.dispatches, LAUNCHES, strict=True):
        code = section(zebin(target), f".text.{launch.kernel}").data()
        assert trace.read(dispatch.code_address, len(code)) == code


def test_256_registers_are_asked_for(target: str) -> None:
    built = assemble(renamed(AXPY[target], "//.grf_count 128", "//.grf_count 256"))
    assert built is not None
    result = capture(built, DEVICES[target].product, LAUNCHES[:1])
    assert result.failure is None
    assert Trace(result.aub).large_registers


@with_debian_12
def test_the_driver_refuses_another_device(target: str) -> None:
    wrong = next(DEVICES[other].product for other in AXPY if other != target)
    assert capture(zebin(target), wrong).failure == "zeModuleCreate: 0x7800000f"


@with_debian_12
def test_the_driver_refuses_too_much_local_memory(target: str) -> None:
    limit = FACTS[target].shared_bytes
    for size, failure in ((limit, None), (limit + 1, "zeModuleCreate: 0x7800000f")):
        built = assemble(renamed(AXPY[target], "//.slm_bytes 0", f"//.slm_bytes {size}"))
        assert built is not None
        assert capture(built, DEVICES[target].product).failure == failure


def test_every_launch_of_a_long_list_is_traced(target: str) -> None:
    """Their commands take more than a page."""
    launches = [Launch("axpy", (n, 1, 1), (64, 64, FACTOR)) for n in range(1, 41)]
    result = capture(zebin(target), DEVICES[target].product, launches)
    assert [dispatch.grid[0] for dispatch in Trace(result.aub).dispatches] == list(range(1, 41))
