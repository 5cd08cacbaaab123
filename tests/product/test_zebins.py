"""Generated zebins in Intel's own tools, without a GPU: ocloc finds them valid, the driver loads and dispatches."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from math import prod
from pathlib import Path

import pytest

from convgen import driver
from convgen.backends.intel.zebin_devices import DEVICES
from convgen.problem.matmul import parse_problem
from convgen.run.code import Code
from convgen.run.launch_record import Buffer, MapArgument
from tests.backends.intel.aub import Trace
from tests.backends.intel.capture import Launch, available, capture
from tests.backends.intel.listings import section

TARGETS = ("xehpc", "xehpg")

_MMA = {"xehpc": "16x8x16", "xehpg": "8x8x16"}

#: name -> problem, and a config but for the matrix instruction (what the chooser takes if empty)
KERNELS = {
    "forward": ("--dir=FWD_B --dt=f16 mb1ic32ih14oc48oh14kh3ph1", ""),
    "backward data of stride 2": (
        "--dir=BWD_D --dt=bf16 mb1ic32ih13oc32kh3sh2ph1",
        "tile=32x32x32 waves=2x2 slots=1 taps=split acc=v",
    ),
    "phases in one grid": ("--dir=BWD_D --dt=bf16 mb1ic32ih13oc32kh3sh2ph1", ""),
    "backward weights in slices": (
        "--dir=BWD_WB --dt=f16 mb2ic24oc32iw60kw2",
        "tile=32x32x16 waves=2x2 slots=1 taps=fused acc=v slices=2",
    ),
    "reordered forward": (
        "--dir=FWD_D --dt=f16 --stag=abx mb1ic64ih6oc32kh3ph1",
        "tile=32x32x32 waves=2x2 slots=1 taps=split acc=v reorder=src",
    ),
    "product": ("--dt=f16 192x256:256x128", ""),
}
CASES = [(target, name) for target in TARGETS for name in KERNELS]


@cache
def compiled(target: str, name: str) -> Code:
    """With an object."""
    problem, config = KERNELS[name]
    whole = f"{config} mma={_MMA[target]}" if config else None
    code = driver.compile(driver.build(parse_problem(problem), target, whole))
    if code.object is None:
        pytest.skip("iga64 is not installed")
    return code


@pytest.mark.parametrize("target", TARGETS)
def test_slices_phases_and_reorders_are_launches_of_their_own(target: str) -> None:
    for name in ("backward weights in slices", "backward data of stride 2", "reordered forward"):
        assert len(compiled(target, name).record.launches) > 1, name


@pytest.mark.skipif(shutil.which("ocloc") is None, reason="ocloc is not installed")
@pytest.mark.parametrize(("target", "name"), CASES)
def test_the_offline_compiler_finds_them_valid(target: str, name: str, tmp_path: Path) -> None:
    code = compiled(target, name)
    path = tmp_path / "module.zebin"
    path.write_bytes(code.object or b"")
    command = ["ocloc", "validate", "-file", str(path), "-device", DEVICES[target].product]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Binary is VALID" in done.stdout, done.stdout
    assert "Unknown" not in done.stdout
    assert all(f"named {kernel}:" in done.stdout for kernel in code.kernels)


@pytest.mark.skipif(not available(), reason="Intel's Level Zero driver is not installed")
@pytest.mark.parametrize(("target", "name"), CASES)
def test_the_driver_dispatches_what_the_record_says(target: str, name: str) -> None:
    code, device = compiled(target, name), DEVICES[target]
    asked = [
        Launch(
            n.kernel,
            n.grid,
            tuple(
                a.tensor.bytes if isinstance(a, Buffer) else a.encoded for a in n.args if not isinstance(a, MapArgument)
            ),
        )
        for n in code.record.launches
    ]
    result = capture(code.object or b"", device.product, asked)
    assert result.failure is None
    trace = Trace(result.aub)
    assert len(trace.dispatches) == len(asked)
    for launch, values, seen in zip(code.record.launches, result.arguments, trace.dispatches, strict=True):
        assert seen.grid == launch.grid
        assert seen.threads * device.simd_size == prod(launch.workgroup)
        assert seen.simd_size == device.simd_size
        assert seen.slm_bytes >= launch.shared_bytes == result.kernels[launch.kernel]["local_bytes"]
        assert seen.inline is None
        assert not seen.local_ids
        for argument, value in zip(launch.args, values, strict=True):
            assert seen.payload[argument.offset : argument.offset + argument.size] == value
        body = section(code.object, f".text.{launch.kernel}").data()
        assert trace.read(seen.code_address, len(body)) == body
    large = any(cost.registers["grf_count"] == 256 for cost in code.kernels.values())
    assert trace.large_registers == large or len(asked) > 1
