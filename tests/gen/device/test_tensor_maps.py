"""Tensor maps from a kernel's parameters to the device: placement, encoding by the driver, launches, exported C."""

from __future__ import annotations

import ast
import ctypes as c
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.backends.amdgpu import hip
from convgen.backends.intel import level_zero
from convgen.backends.library import DeviceError
from convgen.backends.nvidia import cuda as driver
from convgen.backends.nvidia.assemble import compiled
from convgen.backends.nvidia.ptx import map_parameter
from convgen.backends.nvidia.sim import signatures
from convgen.backends.sim.device_memory import FIRST_ADDRESS, SPACING
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.backends.toolchain import PTXAS
from convgen.device.executor import Executor
from convgen.device.loaded import DeviceKernel, Program
from convgen.ir.error import Unsupported, UserError
from convgen.ir.layout.tags import Layout
from convgen.ir.layout.tensor_map import ELEMENT_BYTES, TensorMap
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.types import s32
from convgen.run.code import Code
from convgen.run.launch_record import Buffer, Launch, LaunchRecord, MapArgument, StoredTensor
from tests.backends.nvidia.sim.test_bulk_copies_ptx import BOX_AT, box_of, load_text
from tests.gen.device.standin import StandIn
from tests.gen.device.standin_cuda import CudaStandIn, build, decoded
from tests.gen.device.test_cuda import FOREIGN
from tests.gen.device.test_export import compile_c
from tests.gen.test_hand_written import arrays, saxpy

NUMBER = 5  #: of the allocation at ADDRESS
ADDRESS = FIRST_ADDRESS + NUMBER * SPACING
TILED = TensorMap("tiled", "f16", "x", (64, 48), (128,), box=(64, 7), swizzle=128, shift=256)
IM2COL = TensorMap(
    *("im2col", "bf16", "x", (64, 9, 7, 3), (128, 1152, 8064)),
    lower=(-1, -2),
    upper=(-1, 0),
    channels=32,
    pixels=1024,
    element_strides=(1, 2, 3, 1),
    swizzle=64,
)
MAPS = {
    "tiled": TILED,
    "row": TensorMap("tiled", "u8", "x", (1 << 32,), (), box=(256,), element_strides=(2,), swizzle=0),
    "rank 5": TensorMap(
        *("tiled", "u64", "x", (4, 5, 6, 7, 8), (32, 160, 0, (1 << 40) - 16)),
        box=(4, 2, 3, 1, 256),
        element_strides=(1, 2, 8, 1, 1),
        swizzle=32,
    ),
    "im2col": IM2COL,
    "im2col of lines": TensorMap(
        *("im2col", "s8", "x", (16, 30, 2), (16, 480)),
        lower=(-32768,),
        upper=(32767,),
        channels=16,
        pixels=1,
    ),
    "im2col of volumes": TensorMap(
        *("im2col", "f32", "x", (4, 5, 6, 7, 8), (16, 80, 480, 3360)),
        lower=(-16, -3, 2),
        upper=(15, -1, 0),
        channels=4,
        pixels=17,
        swizzle=128,
    ),
}


def seen(tensor: TensorMap) -> TensorMap:
    """A map as the stand-in reads it: types of a byte are one type, and steps are explicit."""
    element = "u8" if tensor.size == 1 else tensor.element
    return evolve(tensor, element=element, buffer=str(NUMBER), element_strides=tensor.steps)


# ---------------------------------------------------------------- encoding


@pytest.mark.parametrize("name", MAPS)
def test_the_driver_encodes_every_field(name: str, cuda: CudaStandIn) -> None:
    device = driver.Device(0)
    content = bytes(device.encode(MAPS[name], ADDRESS))
    assert len(content) == 128
    assert decoded(content) == seen(MAPS[name])
    assert device.library.handle.cuStandinDepth() == 0  # the context is current for the call only


@pytest.mark.parametrize("element", ELEMENT_BYTES)
def test_element_types(element: str, cuda: CudaStandIn) -> None:
    extent = 16 // ELEMENT_BYTES[element]
    tensor = TensorMap("tiled", element, "x", (extent, 3), (16,), box=(extent, 3))
    assert decoded(bytes(driver.Device(0).encode(tensor, ADDRESS))) == seen(tensor)


def test_a_map_is_encoded_once_for_an_address(cuda: CudaStandIn) -> None:
    device = driver.Device(0)
    encodings = device.library.handle.cuStandinEncodings
    before = encodings()
    first = device.encode(TILED, ADDRESS)
    assert device.encode(evolve(TILED), ADDRESS) is first
    assert encodings() == before + 1
    assert bytes(device.encode(TILED, ADDRESS + 16)) != bytes(first)
    assert bytes(device.encode(IM2COL, ADDRESS)) != bytes(first)
    assert encodings() == before + 3


def test_few_encoded_maps_are_kept(cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_MAPS_KEPT", 2)
    device = driver.Device(0)
    encodings = device.library.handle.cuStandinEncodings
    before = encodings()
    for shift in (0, 16, 32, 0):
        device.encode(TILED, ADDRESS + shift)
    assert encodings() == before + 4


def test_what_the_driver_refuses_is_one_line(cuda: CudaStandIn) -> None:
    text = r"^cuTensorMapEncodeTiled failed: CUDA_ERROR_INVALID_VALUE, invalid argument \(0x1\)$"
    with pytest.raises(DeviceError, match=text):
        driver.Device(0).encode(TILED, ADDRESS + 8)


def test_an_old_driver_is_refused_when_a_map_is_encoded(
    cuda: CudaStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build(tmp_path, "-DOLD_DRIVER")
    monkeypatch.setenv("CONVGEN_CUDA", str(library))
    device = driver.Device(0)
    wanted = "wanted a driver of CUDA 12.0 or later, which encodes tensor maps"
    with pytest.raises(UserError) as caught:
        device.encode(IM2COL, ADDRESS)
    assert str(caught.value) == f"given {library} without the function cuTensorMapEncodeTiled, {wanted}"


@pytest.mark.parametrize("module", [hip, level_zero])
def test_runtimes_without_tensor_maps_refuse_them(module: Any) -> None:
    request = LaunchRequest("k", (1, 1, 1), (64, 1, 1), (KernelArg(0, 8, "x"), KernelArg(64, 128, TILED)), 0)
    device = object.__new__(module.Device)
    device.name = "a:0"
    launcher = device.launcher(object.__new__(module._Function), request)
    text = "given a tensor map of x for a:0, whose runtime encodes none"
    text += "; wanted code whose arguments are buffers and scalars"
    with pytest.raises(Unsupported) as caught:
        launcher({"x": ADDRESS}, 0)
    assert (str(caught.value), caught.value.rule) == (text, "device")


# ---------------------------------------------------------------- parameters


@pytest.fixture
def with_maps(monkeypatch: pytest.MonkeyPatch) -> Code:
    """A kernel by hand with two tensor maps, which it never reads."""
    y = TensorMap("tiled", "s32", "y", (4, 64), (16,), box=(4, 8))
    x = TensorMap("tiled", "s32", "x", (256,), (), box=(64,))
    monkeypatch.setattr(Kernel, "tensor_maps", (y, x))
    return cg.compile(saxpy(32), target="sm_90", scalars={"n": 3})


def test_maps_stand_behind_the_parameters(with_maps: Code) -> None:
    (launch,) = with_maps.record.launches
    assert [(arg.offset, arg.size) for arg in launch.args] == [(0, 4), (8, 8), (16, 8), (64, 128), (192, 128)]
    assert [arg.tensor.buffer for arg in launch.args if isinstance(arg, MapArgument)] == ["y", "x"]
    assert launch.kernarg_size == 320
    assert ".param .align 64 .b8 map$0[128],\n    .param .align 64 .b8 map$1[128]\n)" in with_maps.asm
    parameters = signatures(with_maps.asm.encode())["saxpy"].parameters
    assert [(p.offset, p.size) for p in parameters] == [(arg.offset, arg.size) for arg in launch.args]
    assert LaunchRecord.from_json(with_maps.record.to_json()) == with_maps.record


def test_a_kernel_with_maps_is_simulated_and_launched(with_maps: Code, cuda: CudaStandIn) -> None:
    wanted = 7 + 3 * np.arange(256)
    assert np.array_equal(cg.simulate(with_maps, **arrays()), wanted)
    assert np.array_equal(cg.load(with_maps, "cuda")(**arrays()), wanted)
    assert not cuda.findings
    (launched,) = cuda.launches
    assert decoded(launched.block[64:192]).dims == (4, 64)
    assert decoded(launched.block[192:320]).dims == (256,)


@pytest.mark.skipif(PTXAS.find() is None, reason="needs ptxas")
def test_ptxas_takes_the_names_of_maps(with_maps: Code) -> None:
    assert compiled(with_maps.asm) is not None


def test_no_parameter_has_the_name_of_a_map() -> None:
    assert map_parameter(0) != map_parameter(1)
    with pytest.raises(UserError):
        cg.Kernel("k").buffer(map_parameter(0), s32, 4)


# ---------------------------------------------------------------- launches


DATA = np.random.default_rng(3).integers(-(1 << 31), 1 << 31, (40, 32)).astype(np.int32)
PIXELS = np.random.default_rng(4).integers(-(1 << 31), 1 << 31, (2, 6, 5, 8)).astype(np.int32)
#: The tensor, its map, coordinates and offsets of the copy, and the elements that it brings.
COPIES: dict[str, tuple[Any, TensorMap, tuple[int, ...], tuple[int, ...], Any]] = {
    "tiled": (
        DATA,
        TensorMap("tiled", "s32", "x", (16, 39), (128,), box=(16, 8), shift=128),
        *((8, 34), (), box_of(DATA[1:, :16], (8, 34), (16, 8), (1, 1))),
    ),
    "im2col": (
        PIXELS,
        TensorMap(
            *("im2col", "s32", "x", (8, 5, 6, 2), (32, 160, 960)),
            lower=(-1, -1),
            upper=(-1, -1),
            channels=8,
            pixels=30,
        ),
        *((0, -1, -1, 0), (2, 1), np.pad(PIXELS[0], ((0, 0), (0, 1), (0, 0)))[:, 1:].reshape(-1, 8)),
    ),
}


def program(name: str) -> Program:
    """A kernel that copies elements of x to out."""
    data, tensor, start, offsets, _ = COPIES[name]
    ptx = load_text(tensor, start, offsets).replace(".param .u64 p0,", ".param .u64 p0, .param .u64 x,")
    args = (
        Buffer("out", 0, "write", StoredTensor.of(Layout.dense((tensor.bytes // 4,), (0,)), "s32")),
        Buffer("x", 8, "read", StoredTensor.of(Layout.dense((data.size,), (0,)), "s32")),
        MapArgument(64, tensor),
    )
    launch = Launch("k", (1, 1, 1), (32, 1, 1), args, 192, BOX_AT + tensor.bytes)
    return Program(name, LaunchRecord("sm_90", None, (launch,)), ptx.encode(), None)


@pytest.mark.parametrize("name", COPIES)
def test_a_launch_copies_by_its_map(name: str, cuda: CudaStandIn) -> None:
    kernel = DeviceKernel(program(name), driver.Device(0))
    data, _, _, _, wanted = COPIES[name]
    for values in (data, data[::-1].copy()):  # at new addresses
        out = kernel(x=values)
        assert not cuda.findings
        if values is data:
            assert np.array_equal(out, wanted.ravel())
        else:
            assert not np.array_equal(out, wanted.ravel())


def test_the_stand_in_takes_arguments_as_the_driver_does(cuda: CudaStandIn) -> None:
    """A block by the offsets of PTX does not launch a kernel with a map: an H200 answers 701."""
    device = driver.Device(0)
    with_map = device.load(program("tiled").content).function("k")
    none, numbers = (device.load(FOREIGN.encode()).function(name) for name in ("none", "k"))
    block, size = c.create_string_buffer(192), c.c_size_t(192)
    extra = (c.c_void_p * 5)(1, c.addressof(block), 2, c.addressof(size), 0)
    pointers, nulls = (c.c_void_p * 4)(*[c.addressof(block)] * 4), (c.c_void_p * 4)()

    def status(function: Any, parameters: Any, further: Any) -> int:
        """The answer to a launch: 9 if its arguments are right, for its grid is empty."""
        geometry = (0, 1, 1, 32, 1, 1, 0)
        with device.current():
            return device.library.status("cuLaunchKernel", function.handle, *geometry, None, parameters, further)

    assert status(with_map, None, extra) == 701
    assert [status(each, pointers, extra) for each in (with_map, numbers, none)] == [1, 1, 1]
    assert [status(each, None, None) for each in (with_map, numbers, none)] == [1, 1, 9]
    assert [status(each, nulls, None) for each in (with_map, numbers, none)] == [1, 1, 9]
    assert [status(each, pointers, None) for each in (with_map, numbers, none)] == [9, 9, 9]
    assert status(numbers, None, extra) == 9


def test_verification_on_a_device_encodes_maps(cuda: CudaStandIn) -> None:
    made, (data, tensor, _, _, wanted) = program("tiled"), COPIES["tiled"]
    buffers = {"out": np.zeros(tensor.bytes, np.uint8), "x": data.reshape(-1).view(np.uint8)}
    Executor(driver.Device(0)).execute(made.content, made.record.requests(), buffers)
    assert np.array_equal(buffers["out"].view(np.int32), wanted.ravel())


def test_a_launch_of_a_fixed_address_encodes_once(cuda: CudaStandIn) -> None:
    kernel = DeviceKernel(program("tiled"), driver.Device(0))
    encodings, before = kernel.device.library.handle.cuStandinEncodings, None  # type: ignore[attr-defined]
    there = kernel.put("x", DATA.ravel())
    for _ in range(3):
        kernel(x=there)
        assert before in (None, encodings())
        before = encodings()


# ---------------------------------------------------------------- C

MAIN = """
#include "k.h"
#include <stdio.h>
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(unsigned long long *address, size_t size);
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, CUstream stream);
int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, CUstream stream);
static unsigned char x[X], out[OUT];
int main(void) {
    k_kernel *kernel;
    void *context;
    unsigned long long places[2];
    int status = cuInit(0);
    if (fread(x, 1, X, stdin) != X) return 2;
    if (!status) status = cuDevicePrimaryCtxRetain(&context, 0);
    if (!status) status = cuCtxPushCurrent_v2(context);
    if (!status) status = cuMemAlloc_v2(&places[0], X);
    if (!status) status = cuMemAlloc_v2(&places[1], OUT);
    if (!status) status = cuMemcpyHtoDAsync_v2(places[0], x, X, NULL);
    if (!status) status = k_load(&kernel);
    const k_buffers buffers = {.x = (const void *)(uintptr_t)(places[0] + SHIFT), .out = (void *)(uintptr_t)places[1]};
    if (!status) status = k_launch(kernel, &buffers, NULL, NULL);
    if (!status) status = cuCtxSynchronize();
    if (!status) status = cuMemcpyDtoHAsync_v2(out, places[1], OUT, NULL);
    if (!status) status = cuCtxSynchronize();
    fwrite(out, 1, OUT, stdout);
    return status;
}
"""


def exported(made: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a program as C."""
    monkeypatch.setattr(Program, "of", lambda _: made)
    cg.export("", folder / "k")


@pytest.mark.parametrize("shift", [0, 8])
@pytest.mark.parametrize("name", COPIES)
def test_programs_in_c(
    name: str, shift: int, cuda: CudaStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, tensor, _, _, wanted = COPIES[name]
    exported(program(name), tmp_path, monkeypatch)
    (tmp_path / "main.c").write_text(MAIN)
    sizes = [f"-DX={data.nbytes}", f"-DOUT={tensor.bytes}", f"-DSHIFT={shift}"]
    library = str(cuda.library)
    compile_c(tmp_path, "main.c", "k.c", *sizes, library, f"-Wl,-rpath,{cuda.library.parent}", "-o", "main")
    done = subprocess.run(["./main"], cwd=tmp_path, input=data.tobytes(), capture_output=True)
    if shift:  # an address that the driver refuses: its status is the result, and nothing is launched
        assert (done.returncode, len(cuda.launches)) == (1, 0)
        return
    assert done.returncode == 0, cuda.findings
    assert np.array_equal(np.frombuffer(done.stdout, np.int32), wanted.ravel())
    (launched,) = cuda.launches
    assert decoded(launched.block[64:]) == evolve(tensor, buffer="0", element_strides=tensor.steps)


def test_exported_numbers_are_those_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(driver.__file__).parent / "templates" / "cuda.c.j2").read_text()
    tables = {name: ast.literal_eval(table) for name, table in re.findall(r"\{% set (\w+) = (\{.*?\}) %\}", text)}
    assert tables == {"types": dict(driver._DATA_TYPES), "swizzles": dict(driver._SWIZZLES)}


def test_c_is_refused_where_maps_are_not_encoded(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program("tiled")
    other = Program(made.name, evolve(made.record, target="gfx942"), made.content, None)
    text = "^given a tensor map of x for HIP, which encodes none; wanted code whose arguments are buffers and scalars$"
    with pytest.raises(Unsupported, match=text):
        exported(other, tmp_path, monkeypatch)
    (launch,) = made.record.launches
    args = tuple(evolve(a, shape=("n",)) if isinstance(a, Buffer) and a.name == "x" else a for a in launch.args)
    sized = LaunchRecord("sm_90", None, (evolve(launch, args=args),))
    with pytest.raises(Unsupported, match=r"^given a tensor map of x, wanted x of a fixed size for C$"):
        exported(Program("k", sized, made.content, None), tmp_path, monkeypatch)
    assert not [*tmp_path.iterdir()]
