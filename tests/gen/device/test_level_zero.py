"""Level Zero: Intel's own driver takes what we ask it for, without a GPU, and tells what it would have sent to one."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest

import convgen as cg
from convgen.backends.intel import level_zero
from convgen.backends.intel.zebin_devices import DEVICES
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.ir.error import UserError
from convgen.problem.matmul import parse_problem
from convgen.run.code import Code
from convgen.run.files import write_code
from convgen.run.launch_record import Buffer, MapArgument
from tests.backends.intel.aub import Trace
from tests.backends.intel.capture import LIBRARY, SWITCHES, available
from tests.backends.intel.listings import section
from tests.gen.device.test_export import compile_c

TARGETS = ("xehpc", pytest.param("xehpg", marks=pytest.mark.sweep))
MMA = {"xehpc": "16x8x16", "xehpg": "8x8x16"}
CHILD = Path(__file__).with_name("on_level_zero.py")

needs_driver = pytest.mark.skipif(not available(), reason="Intel's Level Zero driver is not installed")


@cache
def compiled(target: str) -> Code:
    """Two launches with a workspace between them."""
    config = f"tile=32x32x16 waves=2x2 slots=1 taps=fused acc=v slices=2 mma={MMA[target]}"
    problem = parse_problem("--dir=BWD_W --dt=f16 --attr-deterministic=true mb2ic24oc32iw60kw2")
    code = cg.compile(cg.build(problem, target, config))
    if code.object is None:
        pytest.skip("iga64 is not installed")
    assert len(code.record.launches) == 2
    return code


def environment(target: str) -> dict[str, str]:
    product = {"ProductFamilyOverride": DEVICES[target].product}
    return {**os.environ, **SWITCHES, **product, "CONVGEN_LEVEL_ZERO": LIBRARY}


def check_dispatches(code: Code, trace: Trace, addresses: Mapping[str, int]) -> None:
    """Each launch of the record reached the hardware, with its arguments at these addresses."""
    for launch in code.record.launches:
        body = section(code.object or b"", f".text.{launch.kernel}").data()
        block = {
            a.offset: addresses[a.name].to_bytes(8, "little") if isinstance(a, Buffer) else a.encoded
            for a in launch.args
            if not isinstance(a, MapArgument)
        }
        found = [
            seen
            for seen in trace.dispatches
            if trace.read(seen.code_address, len(body)) == body
            and all(seen.payload[at : at + len(value)] == value for at, value in block.items())
        ]
        assert len(found) == 1, launch.kernel
        assert found[0].grid == launch.grid
        assert found[0].threads * DEVICES[code.target].simd_size == prod(launch.workgroup)


@needs_driver
@pytest.mark.parametrize("target", TARGETS)
def test_calls_reach_the_driver(target: str, tmp_path: Path) -> None:
    code = compiled(target)
    write_code(code, str(tmp_path / "k"), ".asm", ".zebin")
    done = subprocess.run(
        [sys.executable, str(CHILD), "k.launch.json"],
        cwd=tmp_path,
        env=environment(target),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert "Intel" in answer["title"]
    assert all(answer["regions"])
    host, beyond = answer["wrong"]
    assert host.endswith("wanted memory of level_zero:0: this is freed, of the host, or of another context")
    assert beyond.endswith(f"bytes behind it, wanted {code.record.buffers['src'].tensor.bytes}")
    (aub,) = tmp_path.glob("*.aub")
    check_dispatches(code, Trace(aub.read_bytes()), answer["addresses"])


MAIN = """
#include "k.h"
#include <stdio.h>
typedef void *P;
typedef struct { int stype; const void *next; uint32_t rest[5]; } Desc;
int zeInit(unsigned flags);
int zeDriverGet(uint32_t *count, P *drivers);
int zeDeviceGet(P driver, uint32_t *count, P *devices);
int zeContextCreate(P driver, const Desc *desc, ze_context_handle_t *context);
int zeMemAllocDevice(ze_context_handle_t context, const Desc *desc, size_t size, size_t to, P device, void **address);
int zeCommandQueueCreate(ze_context_handle_t context, P device, const Desc *desc, P *queue);
int zeCommandListCreate(ze_context_handle_t context, P device, const Desc *desc, ze_command_list_handle_t *list);
int zeCommandListClose(ze_command_list_handle_t list);
int zeCommandQueueExecuteCommandLists(P queue, uint32_t count, ze_command_list_handle_t *lists, P fence);
int zeCommandQueueSynchronize(P queue, uint64_t timeout);
static int told(int status, int line) { return status ? printf("%x at %d\\n", (unsigned)status, line) : 0; }
#define CHECK(x) do { if (told(x, __LINE__)) return 1; } while (0)
int main(void) {
    uint32_t one = 1;
    P driver, device, queue, workspace, held[3];
    ze_context_handle_t context;
    ze_command_list_handle_t list;
    Desc of_context = {.stype = 0xd}, of_queue = {.stype = 0xe}, of_list = {.stype = 0xf}, of_memory = {.stype = 0x15};
    k_kernel *kernel;
    CHECK(zeInit(0));
    CHECK(zeDriverGet(&one, &driver));
    CHECK(zeDeviceGet(driver, &one, &device));
    CHECK(zeContextCreate(driver, &of_context, &context));
    CHECK(zeCommandQueueCreate(context, device, &of_queue, &queue));
    CHECK(zeCommandListCreate(context, device, &of_list, &list));
    CHECK(k_load(context, device, &kernel));
    for (int n = 0; n < 3; n++) CHECK(zeMemAllocDevice(context, &of_memory, 1 << 16, 64, device, &held[n]));
    CHECK(zeMemAllocDevice(context, &of_memory, k_workspace_bytes(), 256, device, &workspace));
    k_buffers buffers = {.src = held[0], .diff_dst = held[1], .diff_wei = held[2]};
    CHECK(k_launch(kernel, &buffers, workspace, list));
    CHECK(zeCommandListClose(list));
    CHECK(zeCommandQueueExecuteCommandLists(queue, 1, &list, NULL));
    CHECK(zeCommandQueueSynchronize(queue, ~0ull));
    CHECK(k_unload(kernel));
    printf("{\\"src\\": %zu, \\"diff_dst\\": %zu, \\"diff_wei\\": %zu, \\"workspace\\": %zu}\\n", (size_t)held[0],
           (size_t)held[1], (size_t)held[2], (size_t)workspace);
    return 0;
}
"""


@needs_driver
@pytest.mark.parametrize("target", TARGETS)
def test_exported_code_reaches_the_driver(target: str, tmp_path: Path) -> None:
    code = compiled(target)
    assert set(code.record.buffers) == {"src", "diff_dst", "diff_wei", "workspace"}
    cg.export(code, tmp_path / "k")
    (tmp_path / "main.c").write_text(MAIN)
    driver = next(path for path in Path("/usr/lib").glob(f"*/{LIBRARY}"))
    compile_c(tmp_path, "main.c", "k.c", str(driver), "-o", "main")
    done = subprocess.run(["./main"], cwd=tmp_path, env=environment(target), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (aub,) = tmp_path.glob("*.aub")
    check_dispatches(code, Trace(aub.read_bytes()), json.loads(done.stdout))


@pytest.mark.parametrize("target", TARGETS)
def test_exported_code_is_c(target: str, tmp_path: Path) -> None:
    """Also with what is cleared, and with sizes known at launch."""
    zeroed = "tile=32x32x16 waves=2x2 slots=1 taps=fused acc=v slices=2 sum=last"
    problem = parse_problem("--dir=BWD_W --dt=f16 mb2ic24oc32iw60kw2")
    last = cg.compile(cg.build(problem, target, f"{zeroed} mma={MMA[target]}"))
    if last.object is None:
        pytest.skip("iga64 is not installed")
    assert any(buffer.zero for buffer in last.record.buffers.values())
    sized = cg.compile(cg.build(parse_problem("--dt=f16 --runtime_dims_masks=3:3 96x64:64x80"), target))
    for code in (last, sized):
        cg.export(code, tmp_path / "k")
        compile_c(tmp_path, "-c", "k.c", "-o", "k.o")


class Recorded:
    """A library that takes everything."""

    def __init__(self) -> None:
        self.calls = list[str]()

    def call(self, function: str, *_: object) -> None:
        self.calls.append(function.removeprefix("ze"))


def test_what_is_put_into_a_stream_waits_for_what_was() -> None:
    """Commands of Level Zero wait for no others, unless a barrier stands between."""
    device, library = object.__new__(level_zero.Device), Recorded()
    vars(device).update(
        name="level_zero:0", library=library, context=None, handle=None, _pending={}, _ordinal=0, _own=7
    )
    request = LaunchRequest("k", (2, 1, 1), (16, 1, 1), (KernelArg(0, 8, "x"), KernelArg(8, 4, bytes(4))))
    device.launcher(level_zero._Function(ctypes.c_void_p(1)), request)({"x": 64}, 0)
    listed = ["Create", "AppendLaunchKernel", "AppendBarrier", "Close"]
    arguments = ["KernelSetArgumentValue", "KernelSetArgumentValue", "KernelSetGroupSize"]
    execute = "CommandQueueExecuteCommandLists"
    assert library.calls == [*arguments, *(f"CommandList{what}" for what in listed), execute]
    library.calls.clear()
    device.synchronize(0)
    assert library.calls == ["CommandQueueSynchronize", "CommandListDestroy"]


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVGEN_LEVEL_ZERO", "/nowhere/libze_loader.so.1")
    with pytest.raises(UserError, match=r"^given CONVGEN_LEVEL_ZERO=/nowhere/.*, wanted the loader of Level Zero \("):
        level_zero.Device(0)


@needs_driver
def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVGEN_LEVEL_ZERO", LIBRARY)
    with pytest.raises(UserError, match=r"^given the device level_zero:0, wanted a GPU, but Level Zero finds none$"):
        level_zero.Device(0)


@needs_driver
def test_code_for_another_product(tmp_path: Path) -> None:
    """The driver refuses it: one line."""
    write_code(compiled("xehpg"), str(tmp_path / "k"), ".asm", ".zebin")
    command = [sys.executable, "-m", "convgen", "run", "k.launch.json", "--on", "level-zero"]
    done = subprocess.run(command, cwd=tmp_path, env=environment("xehpc"), capture_output=True, text=True)
    assert done.returncode == 2
    first = done.stderr.splitlines()[-1]
    assert first.startswith("convgen: zeModuleCreate failed: ZE_RESULT_ERROR_"), done.stderr


@pytest.mark.sweep
@needs_driver
def test_the_command_runs_on_it(tmp_path: Path) -> None:
    """Nothing computes there, so nothing is written: what is compared is what came back."""
    write_code(compiled("xehpc"), str(tmp_path / "k"), ".asm", ".zebin")
    command = [sys.executable, "-m", "convgen", "run", "k.launch.json", "--on", "level-zero"]
    done = subprocess.run(command, cwd=tmp_path, env=environment("xehpc"), capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "executed      on level_zero:0 (Intel" in done.stdout
    assert done.stdout.splitlines()[-1].split() == ["result", "FAILED"]
