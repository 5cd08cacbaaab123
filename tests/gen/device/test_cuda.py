"""CUDA: calls have the types of cuda.h, run in the primary context, and a kernel's fault ends one program only."""

from __future__ import annotations

import ctypes as c
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.backends.library import DeviceError
from convgen.backends.nvidia import cuda as driver
from convgen.backends.sim.device_memory import FIRST_ADDRESS, SPACING
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.backends.toolchain import CLANG
from convgen.commands import cli
from convgen.device import isolated
from convgen.device.isolated import IsolatedExecutor
from convgen.device.loaded import Program
from convgen.ir.error import UserError
from convgen.ir.layout.tensor_map import MAP_BYTES, TensorMap
from convgen.ir.record import evolve
from convgen.problem.matmul import parse_problem
from convgen.run import reference
from convgen.run.code import Code
from convgen.run.files import write_code
from convgen.run.launch_record import Buffer, KernelArgument
from tests.gen.device.standin_cuda import CudaStandIn, build, decoded
from tests.gen.device.test_export import compile_c
from tests.gen.device.test_load import by_name, right, same
from tests.gen.test_hand_written import arrays, saxpy

CONV = ["conv", "mb1ic16ih6oc16kh3ph1", "--dir=FWD_D", "--dt=f16", "--target=sm_90"]
CASES = {
    "forward": "--dir=FWD_D --dt=f16 mb1ic16ih6oc16kh3ph1",
    "operands": "--dir=FWD_D --dt=f16 --attr-post-ops=prelu:2+mul:f32:2 mb2ic16ih5oc16kh1",
    "bytes": "--dir=FWD_D --dt=u8:s8:s32 mb1ic16ih5oc16kh3ph1",
    "backward weights": "--dir=BWD_WB --dt=f16 mb2ic16ih5oc16kh3ph1",
    "product": "--dt=f16 --bia-dt=f32 48x64:64x40",
}
SLICES = "tile=32x32x16 waves=2x1 slots=1 taps=fused acc=v slices=2 mma=8x16x16"

#: Prototypes of cuda.h (CUDA 13.0) by exported name: handles and addresses of the host are void *, CUdeviceptr is u64.
PROTOTYPES = """
cuGetErrorName int, char **
cuGetErrorString int, char **
cuInit unsigned
cuDeviceGetCount int *
cuDeviceGet int *, int
cuDeviceGetName char *, int, int
cuDeviceGetAttribute int *, int, int
cuDevicePrimaryCtxRetain void **, int
cuCtxPushCurrent_v2 void *
cuCtxPopCurrent_v2 void **
cuCtxGetCurrent void **
cuMemAlloc_v2 u64 *, size_t
cuMemFree_v2 u64
cuMemGetAddressRange_v2 u64 *, size_t *, u64
cuPointerGetAttribute void *, int, u64
cuMemcpyHtoDAsync_v2 u64, void *, size_t, void *
cuMemcpyDtoHAsync_v2 void *, u64, size_t, void *
cuMemsetD8Async u64, unsigned char, size_t, void *
cuTensorMapEncodeTiled void *, int, unsigned, void *, u64 *, u64 *, unsigned *, unsigned *, int, int, int, int
cuTensorMapEncodeIm2col void *, int, unsigned, void *, u64 *, u64 *, int *, int *, unsigned, unsigned, unsigned *, \
int, int, int, int
cuModuleLoadDataEx void **, void *, unsigned, int *, void **
cuModuleUnload void *
cuModuleGetFunction void **, void *, char *
cuFuncSetAttribute void *, int, int
cuFuncGetParamInfo void *, size_t, size_t *, size_t *
cuLaunchKernel void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **
cuStreamCreate void **, unsigned
cuStreamDestroy_v2 void *
cuStreamSynchronize void *
cuEventCreate void **, unsigned
cuEventDestroy_v2 void *
cuEventRecord void *, void *
cuEventSynchronize void *
cuEventElapsedTime float *, void *, void *
"""
TYPES: dict[str, Any] = {
    "int": c.c_int,
    "unsigned": c.c_uint,
    "unsigned char": c.c_ubyte,
    "size_t": c.c_size_t,
    "u64": c.c_uint64,
    "char *": c.c_char_p,
    "void *": c.c_void_p,
    "float *": c.POINTER(c.c_float),
    "int *": c.POINTER(c.c_int),
    "unsigned *": c.POINTER(c.c_uint),
    "size_t *": c.POINTER(c.c_size_t),
    "u64 *": c.POINTER(c.c_uint64),
    "char **": c.POINTER(c.c_char_p),
    "void **": c.POINTER(c.c_void_p),
}


def test_every_call_has_the_types_of_the_header() -> None:
    lines = (line.partition(" ") for line in PROTOTYPES.strip().splitlines())
    wanted = {name: tuple(TYPES[word] for word in types.split(", ")) for name, _, types in lines}
    bound = {**driver._SIGNATURES, **driver._ENCODERS, **driver._PARAMETERS}
    assert {name: tuple(types) for name, types in bound.items()} == wanted


@cache
def compiled(line: str, config: str | None = None) -> Code:
    return cg.compile(cg.build(parse_problem(line), "sm_90", config))


def depth(kernel: Any) -> int:
    """The contexts that are current in this thread, one upon the other."""
    found: int = kernel.device.library.handle.cuStandinDepth()
    return found


@pytest.mark.parametrize("name", CASES)
def test_arrays_of_the_host(name: str, cuda: CudaStandIn) -> None:
    code = compiled(CASES[name])
    assert code.problem is not None
    kernel = cg.load(code)
    inputs = reference.fill(code.problem)
    found = by_name(kernel, kernel(**{name: array.copy() for name, array in inputs.items()}))
    assert all(same(found[output], wanted) for output, wanted in right(code.problem, inputs).items())
    assert [n.kernel for n in cuda.launches] == [n.kernel for n in code.record.launches]
    assert [n.dynamic_bytes for n in cuda.launches] == [n.shared_bytes for n in code.record.launches]
    assert not cuda.findings
    assert depth(kernel) == 0


def test_arrays_of_the_device_in_a_stream(cuda: CudaStandIn) -> None:
    code = compiled("--dir=BWD_WB --dt=f16 mb2ic24oc32iw60kw2", SLICES)
    assert code.problem is not None
    kernel = cg.load(code, "cuda:1")
    inputs = reference.fill(code.problem)
    given = {name: kernel.put(name, array) for name, array in inputs.items()}
    stream = kernel.device.new_stream()
    first = kernel.device.record(stream)
    results = [by_name(kernel, kernel(stream=stream, **given)) for _ in range(2)]  # counters are as they were
    assert kernel.device.seconds(first, kernel.device.record(stream)) > 0
    for found in results:
        for name, wanted in right(code.problem, inputs).items():
            assert same(found[name].numpy(), wanted)
    assert {n.stream for n in cuda.launches} == {stream}
    region = kernel.device.region(given["src"].address)
    assert region is not None
    assert (region.base, region.device) == (given["src"].address, 1)
    assert kernel.device.region(12345) is None
    kernel.unload()
    kernel.device.end_stream(stream)
    assert depth(kernel) == 0
    assert not cuda.findings


def test_more_shared_memory_than_a_kernel_gets_unasked(cuda: CudaStandIn) -> None:
    code = compiled("--dt=f16 128x128:128x128", "tile=128x128x64 waves=2x2 slots=2 mma=8x16x16")
    assert code.record.launches[0].shared_bytes > 48 << 10
    assert code.problem is not None
    inputs = reference.fill(code.problem)
    assert same(cg.load(code)(**inputs), right(code.problem, inputs)["dst"])
    assert not cuda.findings


def test_what_the_driver_says_of_text_is_the_error(cuda: CudaStandIn) -> None:
    device = cg.load(compiled(CASES["product"])).device
    with pytest.raises(UserError, match=r"^given code that Stand-in does not load: .*\.version"):
        device.load(b"lorem ipsum")
    with pytest.raises(DeviceError, match=r"^cuModuleLoadDataEx failed: CUDA_ERROR_INVALID_IMAGE, "):
        device.load(b"\x7fELF")


def test_errors_have_name_and_text(cuda: CudaStandIn) -> None:
    device = cg.load(compiled(CASES["product"])).device
    text = r"^cuMemFree_v2 failed: CUDA_ERROR_INVALID_VALUE, invalid argument \(0x1\)$"
    with pytest.raises(DeviceError, match=text):
        device.free(12345)


def said(words: list[str], **variables: str) -> tuple[int, list[str]]:
    """The exit code of a command in a process of its own, and what it complains of."""
    command = [sys.executable, "-m", "convgen", *words]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"CONVGEN_STANDIN_DEVICES": "0"}, "given the device cuda:0, wanted a device, but CUDA finds none"),
        (
            {"CONVGEN_STANDIN_INIT": "100"},
            "given the device cuda:0, wanted a device, but CUDA finds none"
            " (CUDA_ERROR_NO_DEVICE, no CUDA-capable device is detected)",
        ),
        (
            {"CONVGEN_STANDIN_INIT": "803"},
            "given the device cuda:0, wanted a device, but CUDA finds none (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,"
            " system has unsupported display driver / cuda driver combination)",
        ),
        (
            {"CONVGEN_CUDA": "/nowhere/libcuda.so"},
            "given CONVGEN_CUDA=/nowhere/libcuda.so, wanted NVIDIA's driver (/nowhere/libcuda.so: cannot open shared"
            " object file: No such file or directory)",
        ),
        (
            {"CONVGEN_STANDIN_ARCH_CUDA": "sm_80"},
            "given code for sm_90, wanted sm_80 code, which cuda:0 (Stand-in) runs",
        ),
        ({"CONVGEN_STANDIN_DIES": "1"}, "the process that used cuda:0 died: it was killed by SIGABRT"),
    ],
)
def test_what_is_missing_is_one_line(cuda: CudaStandIn, variables: dict[str, str], wanted: str) -> None:
    assert said([*CONV, "--run", "--on", "cuda"], **variables) == (2, [f"convgen: {wanted}"])


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        (70, "sm_70"),
        (80, "sm_80"),
        (87, "sm_86"),
        (90, "sm_90a"),
        (100, "sm_90"),
        (103, "sm_90"),
        (120, "sm_120"),
        (121, "sm_120"),
    ],
)
def test_a_device_runs_code_of_the_newest_target_before_it(capability: int, target: str) -> None:
    assert driver._runs(capability)[-1] == target


def test_code_runs_on_a_later_device(cuda: CudaStandIn) -> None:
    assert said([*CONV, "--run", "--on", "cuda"], CONVGEN_STANDIN_ARCH_CUDA="sm_100") == (0, [])


def test_problems(cuda: CudaStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CONV, "--run", "--on", "cuda"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["executed"].startswith("on cuda:0 (Stand-in) in ")
    assert (lines["checked"], lines["mismatches"], lines["result"]) == ("576 outputs", "0", "PASSED")
    assert len(cuda.launches) == 2


def test_a_fault_is_one_line_and_the_next_program_runs(
    cuda: CudaStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel with a grid that is too large writes behind its buffers."""
    monkeypatch.chdir(tmp_path)
    gemm = ["gemm", "64x64:64x64", "--dt=f16", "--target=sm_90"]
    assert cli.main([*gemm, "-o", "k"]) == 0
    text = Path("k.launch.json").read_text()
    record = json.loads(text)
    record["launches"][0]["lds_bytes"] = 0
    Path("k.launch.json").write_text(json.dumps(record))
    assert cli.main(["run", "k.launch.json", "--on", "cuda"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    wanted = "cuEventSynchronize failed: CUDA_ERROR_LAUNCH_FAILED, unspecified launch failure (0x2cf)"
    assert line == f"convgen: {wanted}"  # not that of releasing, which fails as well then
    Path("k.launch.json").write_text(text)
    assert cli.main(["run", "k.launch.json", "--on", "cuda"]) == 0
    assert "PASSED" in capsys.readouterr().out


def test_code_without_a_record(
    cuda: CudaStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = compiled("--dt=f16 64x64:64x64")
    write_code(code, "g", ".ptx", ".ptx", ".cubin")
    np.save("src.npy", np.eye(64, dtype=np.float16))
    np.save("wei.npy", np.full((64, 64), 3, np.float16))
    (launch,) = code.record.launches
    words = [f"--grid={launch.grid[0]}", f"--block={launch.workgroup[0]}", f"--lds={launch.shared_bytes}"]
    words += ["--arg=src=src.npy", "--arg=wei=wei.npy", "--arg=dst=f16:64x64", "--out=dst=dst.npy"]
    assert cli.main(["run", "g.ptx", "--on", "cuda", *words]) == 0
    assert (np.load("dst.npy") == 3).all()


# ---------------------------------------------------------------- parameters

#: out[lane] = first + step in doubles, behind an array that nothing reads; and a kernel without parameters.
FOREIGN = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u16 first, .param .u64 unread, .param .u64 out, .param .f64 step) {
    .reg .b16 %h;
    .reg .b32 %r;
    .reg .b64 %a<3>;
    .reg .f64 %d<3>;
    ld.param.u64 %a0, [unread];
    cvta.to.global.u64 %a0, %a0;
    ld.param.u16 %h, [first];
    ld.param.u64 %a1, [out];
    ld.param.f64 %d0, [step];
    cvt.rn.f64.u16 %d1, %h;
    add.f64 %d2, %d0, %d1;
    mov.u32 %r, %tid.x;
    cvta.to.global.u64 %a1, %a1;
    mad.wide.u32 %a2, %r, 8, %a1;
    st.global.f64 [%a2], %d2;
    ret;
}
.visible .entry none() { ret; }
"""
SIZES = (2, 8, 8, 8)  #: bytes of the parameters of k


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that launches k of FOREIGN by CUDA."""
    monkeypatch.chdir(tmp_path)
    Path("k.ptx").write_text(FOREIGN)
    return ["run", "k.ptx", "--kernel=k", "--on=cuda", "--grid=1", "--block=32", "--out=out=out.npy"]


def test_arguments_of_code_without_a_record_come_in_any_order(cuda: CudaStandIn, foreign: list[str]) -> None:
    words = ["--arg=step=0.5", "--arg=out=f64:32", "--arg=unread=zeros:s32:4", "--arg=first=300"]
    for order in (words, words[::-1], [word for word in words if "unread" not in word]):  # a missing pointer is null
        assert cli.main([*foreign, *order]) == 0
        assert (np.load("out.npy") == 300.5).all()


def test_a_missing_argument_of_code_without_a_record_is_refused(
    cuda: CudaStandIn, foreign: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*foreign, "--arg=out=f64:32", "--arg=step=2"]) == 2
    assert capsys.readouterr().err == "convgen: given no argument first, wanted its value\n"
    assert not cuda.launches


def request(*sizes: int) -> LaunchRequest:
    """A launch with zeros as arguments of so many bytes."""
    arguments = (KernelArg(8 * number, size, bytes(size)) for number, size in enumerate(sizes))
    return LaunchRequest("k", (1, 1, 1), (32, 1, 1), tuple(arguments))


@pytest.mark.parametrize(
    ("kernel", "sizes", "wanted"),
    [
        ("k", SIZES[:3], "3 of 2, 8, 8 bytes; wanted 4 of 2, 8, 8, 8 bytes"),
        ("k", SIZES[1:], "3 of 8, 8, 8 bytes; wanted 4 of 2, 8, 8, 8 bytes"),
        ("k", (*SIZES, 4), "5 of 2, 8, 8, 8, 4 bytes; wanted 4 of 2, 8, 8, 8 bytes"),
        ("k", (4, 8, 8, 8), "4 of 4, 8, 8, 8 bytes; wanted 4 of 2, 8, 8, 8 bytes"),
        ("k", (), "0 of no bytes; wanted 4 of 2, 8, 8, 8 bytes"),
        ("none", (8,), "1 of 8 bytes; wanted 0 of no bytes"),
    ],
)
def test_a_launch_has_one_argument_for_each_parameter(
    kernel: str, sizes: tuple[int, ...], wanted: str, cuda: CudaStandIn
) -> None:
    device = driver.Device(0)
    function = device.load(FOREIGN.encode()).function(kernel)
    with pytest.raises(UserError, match=f"^given the arguments of kernel {kernel}, {wanted}$"):
        device.launcher(function, request(*sizes))
    device.synchronize(0)
    assert not cuda.launches
    assert device.library.handle.cuStandinDepth() == 0


# ---------------------------------------------------------------- launchers


def launcher_of(device: driver.Device, launch: Any, *arguments: KernelArg, shared_bytes: int = 0) -> Any:
    """Return a launcher whose launches are calls of `launch` with the arguments of cuLaunchKernel."""
    sizes = tuple(argument.size for argument in arguments)
    function = driver._Function("k", c.c_void_p(1), sizes, 1 << 20)
    launcher: Any = device.launcher(function, LaunchRequest("k", (2, 1, 1), (32, 1, 1), arguments, shared_bytes))
    launcher._launch = launch
    return launcher


def test_threads_that_launch_one_kernel_have_arguments_of_their_own(cuda: CudaStandIn) -> None:
    """All threads write their addresses before any launch reads its arguments."""
    count, seen, failures = 4, dict[int, tuple[int, bytes]](), []
    barrier = Barrier(count, timeout=20)

    def launch(*arguments: Any) -> int:
        *_, stream, places, _ = arguments
        barrier.wait()
        seen[stream] = c.c_uint64.from_address(places[0]).value, c.string_at(places[1], 4)
        return 0

    launcher = launcher_of(driver.Device(0), launch, KernelArg(0, 8, "x"), KernelArg(8, 4, b"1234"))

    def call(number: int) -> None:
        try:
            for _ in range(3):
                launcher({"x": 4096 * number}, number)
        except Exception as error:
            failures.append(error)

    threads = [Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert seen == {number: (4096 * number, b"1234") for number in range(count)}
    assert len(launcher._idle) == count


def test_a_launch_has_the_stream_and_the_map_of_its_call(cuda: CudaStandIn) -> None:
    tensor, seen = TensorMap("tiled", "f16", "x", (64, 48), (128,), box=(64, 7)), []

    def launch(*arguments: Any) -> int:
        *_, stream, places, _ = arguments
        seen.append((stream, decoded(c.string_at(places[1], MAP_BYTES)).buffer))
        return 0

    launcher = launcher_of(driver.Device(0), launch, KernelArg(0, 8, "x"), KernelArg(64, MAP_BYTES, tensor))
    numbers = (1, 2, 1, 3)
    for number in numbers:
        launcher({"x": FIRST_ADDRESS + number * SPACING}, 10 * number)
    assert seen == [(10 * number, str(number)) for number in numbers]


def test_a_launch_that_fails_is_one_line_and_the_next_one_launches(cuda: CudaStandIn) -> None:
    statuses = iter((1, 0))
    launcher = launcher_of(driver.Device(0), lambda *_: next(statuses), KernelArg(0, 8, "x"))
    with pytest.raises(DeviceError, match=r"^cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE, "):
        launcher({"x": 64}, 0)
    launcher({"x": 64}, 0)


def test_launches_of_less_shared_memory_leave_what_others_may_have(cuda: CudaStandIn) -> None:
    """The driver has one limit for a function, whichever launch asks for it."""
    device = driver.Device(0)
    function = device.load(FOREIGN.encode()).function("none")
    requests = [evolve(request(), shared_bytes=size) for size in (64 << 10, 100 << 10, 16 << 10)]
    launchers = [device.launcher(function, each) for each in requests]
    for launcher in launchers:
        launcher({}, 0)
    device.synchronize(0)
    assert len(cuda.launches) == 3


@pytest.mark.parametrize("current", [None, 0, 1])
def test_launches_leave_the_current_context(current: int | None, cuda: CudaStandIn) -> None:
    """It is none, the device's, or that of another device."""
    device = driver.Device(0)
    handle, contexts = device.library.handle, [c.c_void_p(), c.c_void_p()]
    for number, context in enumerate(contexts):
        handle.cuDevicePrimaryCtxRetain(c.byref(context), number)
    if current is not None:
        handle.cuCtxPushCurrent_v2(contexts[current])
    try:
        ran = []

        def launch(*_: Any) -> int:
            ran.append((device.is_current(), handle.cuStandinDepth()))
            return 0

        launcher_of(device, launch)({}, 0)
        now = c.c_void_p()
        handle.cuCtxGetCurrent(c.byref(now))
        assert now.value == (None if current is None else contexts[current].value)
        depth = 2 if current == 1 else 1
        assert ran == [(True, depth)]
        with device.current():
            assert (device.is_current(), handle.cuStandinDepth()) == (True, depth)
    finally:
        if current is not None:
            handle.cuCtxPopCurrent_v2(c.byref(c.c_void_p()))
    assert handle.cuStandinDepth() == 0


def test_a_record_that_lacks_an_argument_is_refused(cuda: CudaStandIn) -> None:
    code = cg.compile(saxpy(32), target="sm_90", scalars={"n": 3})
    (launch,) = code.record.launches
    lacking = evolve(code, record=evolve(code.record, launches=(evolve(launch, args=launch.args[1:]),)))
    with pytest.raises(UserError, match=r"^given the arguments of kernel saxpy, 2 of 8, 8 bytes; wanted 3 of 4, 8, 8 "):
        cg.load(lacking)(**arrays())


def test_a_kernel_without_parameters(cuda: CudaStandIn) -> None:
    device = driver.Device(0)
    device.launcher(device.load(FOREIGN.encode()).function("none"), request())({}, 0)
    device.synchronize(0)
    assert [launched.block for launched in cuda.launches] == [b""]


def test_a_driver_that_reports_no_parameters_launches(
    cuda: CudaStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVGEN_CUDA", str(build(tmp_path, "-DOLD_DRIVER")))
    device = driver.Device(0)
    function = device.load(FOREIGN.encode()).function("k")
    assert function.sizes is None
    kernel = cg.load(cg.compile(saxpy(32), target="sm_90", scalars={"n": 3}))
    assert np.array_equal(kernel(**arrays()), 7 + 3 * np.arange(256))


def test_a_batch_goes_on_behind_a_process_that_died(
    cuda: CudaStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines").write_text("".join(f"--matmul --dt=f16 {n}x32:32x32\n" for n in (32, 64)))
    words = ["batch", "lines", "--target=sm_90", "--run", "--on=cuda", "--jobs=1"]
    code, lines = said([*words, "--json"], CONVGEN_STANDIN_DIES="1")
    assert code == 2, lines
    code, lines = said(words)
    assert code == 0, lines


# ---------------------------------------------------------------- C

MAIN = """
#include "k.h"
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(unsigned long long *address, size_t size);
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, CUstream stream);
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, CUstream stream);
static void check(int status, int line) {{ if (status) {{ printf("%d at %d\\n", status, line); exit(1); }} }}
#define CHECK(x) check(x, __LINE__)
static void *held(const char *path, size_t size) {{
    unsigned long long there;
    void *here = calloc(1, size);
    FILE *file = fopen(path, "rb");
    if (file) {{ if (fread(here, 1, size, file) != size) exit(2); fclose(file); }}
    CHECK(cuMemAlloc_v2(&there, size));
    CHECK(cuMemcpyHtoDAsync_v2(there, here, size, NULL));
    CHECK(cuCtxSynchronize());
    free(here);
    return (void *)(uintptr_t)there;
}}
static void keep(const char *path, const void *there, size_t size) {{
    void *here = malloc(size);
    CHECK(cuMemcpyDtoHAsync_v2(here, (unsigned long long)(uintptr_t)there, size, NULL));
    CHECK(cuCtxSynchronize());
    FILE *file = fopen(path, "wb");
    fwrite(here, 1, size, file);
    fclose(file);
    free(here);
}}
int main(void) {{
    k_kernel *kernel;
    k_buffers buffers;
    unsigned long long workspace = 0;
    void *context;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxPushCurrent_v2(context));
    CHECK(k_load(&kernel));
    {held}
    if (k_workspace_bytes()) CHECK(cuMemAlloc_v2(&workspace, k_workspace_bytes()));
    {clear}
    CHECK(k_launch(kernel, &buffers, (void *)(uintptr_t)workspace, NULL));
    CHECK(k_launch(kernel, &buffers, (void *)(uintptr_t)workspace, NULL));
    CHECK(cuCtxSynchronize());
    {keep}
    CHECK(k_unload(kernel));
    return 0;
}}
"""
EXPORTED = {
    "product": ("--dt=f16 --bia-dt=f32 48x64:64x40", None),
    "slices": ("--dir=BWD_WB --dt=f16 mb2ic24oc32iw60kw2", SLICES),
    "shared": ("--dt=f16 128x128:128x128", "tile=128x128x64 waves=2x2 slots=2 mma=8x16x16"),
}


def cleared(code: Code) -> Code:
    """The code with workspaces that are to be zero before the first launch."""
    workspaces = Program.of(code).workspaces

    def changed(arg: KernelArgument) -> KernelArgument:
        return evolve(arg, zero=True) if isinstance(arg, Buffer) and arg.name in workspaces else arg

    launches = tuple(evolve(n, args=tuple(map(changed, n.args))) for n in code.record.launches)
    return evolve(code, record=evolve(code.record, launches=launches))


@pytest.mark.parametrize("name", EXPORTED)
def test_programs_in_c(name: str, cuda: CudaStandIn, tmp_path: Path) -> None:
    code = cleared(compiled(*EXPORTED[name]))
    assert code.problem is not None
    inputs, buffers = reference.fill(code.problem), code.record.buffers
    cg.export(code, tmp_path / "k")
    outputs = [spec.name for spec in code.problem.outputs]
    for each, array in inputs.items():
        (tmp_path / each).write_bytes(reference.pack(buffers[each].tensor.layout, array).tobytes())
    clear = "CHECK(k_clear((void *)(uintptr_t)workspace, NULL));"
    names = dict.fromkeys((*inputs, *outputs))
    text = MAIN.format(
        held="\n    ".join(f'buffers.{n} = held("{n}", {buffers[n].tensor.bytes});' for n in names),
        keep="\n    ".join(f'keep("{n}", buffers.{n}, {buffers[n].tensor.bytes});' for n in outputs),
        clear=clear if any(b.zero for b in buffers.values()) else "",
    )
    (tmp_path / "main.c").write_text(text)
    library = str(cuda.library)
    compile_c(tmp_path, "main.c", "k.c", library, f"-Wl,-rpath,{cuda.library.parent}", "-o", "main")
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), cuda.findings
    assert not cuda.findings
    assert [n.kernel for n in cuda.launches] == 2 * [n.kernel for n in code.record.launches]
    for output, wanted in right(code.problem, inputs).items():
        tensor = buffers[output].tensor
        data = np.frombuffer((tmp_path / output).read_bytes(), np.uint8)
        assert same(reference.unpack(tensor.layout, tensor.dtype, data), wanted)


def test_the_types_of_the_header_are_cudas(tmp_path: Path) -> None:
    """k.h goes with cuda.h in one file, in either order: a type that it defines is defined alike there."""
    cg.export(compiled(CASES["product"]), tmp_path / "k")
    clang = CLANG.find()
    assert clang is not None
    cuda_h = "typedef struct CUstream_st *CUstream;\n"
    for text in (f'{cuda_h}#include "k.h"\n', f'#include "k.h"\n{cuda_h}'):
        for language in (["-x", "c", "-std=c11"], ["-x", "c++", "-std=c++17"]):
            command = [clang, *language, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-"]
            subprocess.run(command, input=text, cwd=tmp_path, text=True, check=True)


def test_an_executor_of_a_runtime_that_survives_faults_stays_in_this_process() -> None:
    assert isinstance(isolated.executor_on("cuda"), IsolatedExecutor)
    assert str(isolated.executor_on("cuda:1")) == "cuda:1"
    with pytest.raises(UserError, match=r"^given the device 'cuda:x', wanted a number behind cuda:$"):
        isolated.executor_on("cuda:x")
