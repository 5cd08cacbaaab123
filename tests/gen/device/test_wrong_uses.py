"""What a kernel on a device is wrongly asked for: one clear line each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.backends import library
from convgen.backends.amdgpu import hip
from convgen.backends.library import DeviceError
from convgen.device import devices, dlpack
from convgen.device.loaded import DeviceKernel, Program
from convgen.ir.error import UserError
from convgen.ir.record import evolve
from convgen.run import reference
from convgen.run.files import write_code
from tests.gen.device.standin import StandIn
from tests.gen.device.test_load import ByDlpack, Flat, compiled

FORWARD = "--dir=FWD_D --dt=f16 mb1ic16ih6oc16kh3ph1"
BLOCKED = "--dir=FWD_D --dt=f16 --dtag=aBx16b mb1ic16ih6oc20kh1"
RUNTIME = "--dir=FWD_D --dt=f16 --runtime_dims_masks=1 mb3ic16ih5oc16kh3ph1"
DIMS = (1, 16, 6, 6)


@pytest.fixture
def kernel(standin: StandIn) -> DeviceKernel:
    return cg.load(compiled(FORWARD))


def inputs(line: str = FORWARD) -> dict[str, Any]:
    problem = compiled(line).problem
    assert problem is not None
    return dict(reference.fill(problem))


def held(kernel: DeviceKernel, name: str = "src") -> Any:
    return kernel.put(name, np.zeros(kernel.program.record.buffers[name].tensor.dims, np.float16))


def shown(kernel: DeviceKernel, **changes: Any) -> Any:
    """src on the device, as DLPack tells it but for `changes`."""
    return Flat(evolve(held(kernel).shared(), **changes))


def freed(kernel: DeviceKernel) -> Any:
    array = held(kernel)
    array.free()
    return array


def freed_address(kernel: DeviceKernel) -> int:
    array = held(kernel)
    address: int = array.address
    array.free()
    return address


def read_only() -> Any:
    array = np.zeros(DIMS, np.float16)
    array.flags.writeable = False
    return array


class Private:
    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __dlpack__(self, **_: object) -> object:
        raise BufferError("it is secret")


class Broken:
    __cuda_array_interface__: Mapping[str, object] = {"shape": DIMS, "typestr": "<f2"}


#: What is wrong -> arguments instead of right ones (None: left out), and what is said.
WRONG: dict[str, tuple[Callable[[DeviceKernel], dict[str, Any]], str]] = {
    "shape": (
        lambda k: {"src": np.zeros((1, 16, 6, 7), np.float16)},
        "given src of f16[1, 16, 6, 7], wanted f16[1, 16, 6, 6]",
    ),
    "rank": (lambda k: {"wei": np.zeros((16, 16), np.float16)}, "given wei of f16[16, 16], wanted f16[16, 16, 3, 3]"),
    "type": (lambda k: {"src": np.zeros(DIMS, np.float32)}, "given src of f32[1, 16, 6, 6], wanted f16[1, 16, 6, 6]"),
    "type that none is": (
        lambda k: {"src": np.zeros(DIMS, np.complex64)},
        "given src of complex64[1, 16, 6, 6], wanted f16[1, 16, 6, 6]",
    ),
    "shape on the device": (
        lambda k: {"src": shown(k, dims=(1, 16, 36), strides=(576, 1, 16))},
        "given src of f16[1, 16, 36], wanted f16[1, 16, 6, 6]",
    ),
    "type on the device": (
        lambda k: {"src": shown(k, dtype="bf16")},
        "given src of bf16[1, 16, 6, 6], wanted f16[1, 16, 6, 6]",
    ),
    "strides on the device": (
        lambda k: {"src": shown(k, strides=(576, 36, 6, 1))},
        "given src of strides (576, 36, 6, 1), wanted (576, 1, 96, 16) (acdb)",
    ),
    "another device": (
        lambda k: {"src": held(cg.load(compiled(FORWARD), "hip:1"))},
        "given src on hip:1, wanted it on hip:0, where the kernel is, or on the host",
    ),
    "another device by DLPack": (
        lambda k: {"src": ByDlpack(held(cg.load(compiled(FORWARD), "hip:1")), "versioned")},
        "given src on hip:1, wanted it on hip:0, where the kernel is, or on the host",
    ),
    "another maker's device": (
        lambda k: {"src": shown(k, kind=dlpack.ONE_API)},
        "given src on oneapi:0, wanted it on hip:0, where the kernel is, or on the host",
    ),
    "another device by address": (
        lambda k: {"src": (a := held(cg.load(compiled(FORWARD), "hip:1"))).address, "dst": held(k, "dst"), "": a},
        "given src at 0x*, wanted memory of hip:0: this is of device 1",
    ),
    "freed": (lambda k: {"src": freed(k)}, "given <f16 1x16x6x6 acdb on hip:0>, which was freed, wanted one *, as src"),
    "freed address": (
        lambda k: {"src": freed_address(k)},
        "given src at 0x*, wanted memory of hip:0: this is freed, or of the host",
    ),
    "address of the host": (
        lambda k: {"src": inputs()["src"].ctypes.data},
        "given src at 0x*, wanted memory of hip:0: this is freed, or of the host",
    ),
    "address beyond memory": (lambda k: {"src": 1 << 64}, "given src=18446744073709551616, wanted an address"),
    "address before memory": (lambda k: {"src": 0}, "given src=0, wanted an address"),
    "too little memory": (
        lambda k: {"src": (a := held(k)).address + 64, "": a},
        "given src at 0x* with 1088 bytes behind it, wanted 1152",
    ),
    "misaligned": (
        lambda k: {"src": (a := held(k, "wei")).address + 2, "": a},
        "given src at 0x*, wanted an address that 4 divides",
    ),
    "missing": (lambda k: {"wei": None}, "given no wei, wanted src, wei"),
    "unknown": (
        lambda k: {"weights": 1},
        "given the argument 'weights' (did you mean wei?), wanted src, wei, dst",
    ),
    "misspelled": (lambda k: {"dts": 1}, "given the argument 'dts' (did you mean dst?), wanted src, wei, dst"),
    "no tensor": (
        lambda k: {"src": "x.npy"},
        "given src of type str, wanted a tensor (DLPack, an array) or an address",
    ),
    "flag": (lambda k: {"src": True}, "given src=True, wanted a tensor or an address"),
    "no address": (lambda k: {"src": -8}, "given src=-8, wanted an address"),
    "not shared": (lambda k: {"src": Private()}, "given src that its owner does not share, wanted a tensor: it is *"),
    "broken interface": (
        lambda k: {"src": Broken()},
        "given src whose __cuda_array_interface__ lacks or breaks 'data'",
    ),
    "read-only output": (
        lambda k: {"dst": read_only()},
        "given dst that is read-only, wanted one that can be written",
    ),
    "output over input": (
        lambda k: {"src": (a := held(k, "wei")).address, "dst": a.address + 128, "": a},
        "given dst and src in the same memory, wanted separate memory",
    ),
    "stream": (
        lambda k: {"stream": "main"},
        "given a stream of type str, wanted a number, or a stream of torch or cupy",
    ),
}


def told(error: pytest.ExceptionInfo[Any], wanted: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    assert re.fullmatch(re.escape(wanted).replace(r"\*", ".*"), text), text


@pytest.mark.parametrize("what", WRONG)
def test_arguments(what: str, kernel: DeviceKernel, standin: StandIn) -> None:
    make, wanted = WRONG[what]
    given = {**inputs(), **make(kernel)}
    alive = given.pop("", None)
    with pytest.raises(UserError) as error:
        kernel(**{name: value for name, value in given.items() if value is not None})
    told(error, wanted)
    assert not standin.launches
    del alive


def test_torch_that_keeps_gradients(kernel: DeviceKernel) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UserError, match=r"^given src that its owner does not share, wanted a tensor: .*require"):
        kernel(src=torch.zeros(DIMS, dtype=torch.float16, requires_grad=True), wei=inputs()["wei"])


def test_layouts_in_blocks_are_no_strides(standin: StandIn) -> None:
    kernel = cg.load(compiled(BLOCKED))
    flat = kernel.put("dst", np.zeros((1, 20, 6, 6), np.float16))
    seen = evolve(flat.shared(), dims=(1, 20, 6, 6), strides=(720, 36, 6, 1))
    with pytest.raises(UserError) as error:
        kernel(**inputs(BLOCKED), dst=Flat(seen))
    told(error, "given dst of f16[1, 20, 6, 6] on the device, wanted f16[1152] in the order of aBcd16b")


def test_layouts_of_ours(standin: StandIn) -> None:
    kernel, other = cg.load(compiled(FORWARD)), cg.load(compiled(FORWARD.replace("--dt", "--dtag=abx --dt")))
    dst = other.put("dst", np.zeros(DIMS, np.float16))
    with pytest.raises(UserError, match=r"^given dst of layout abcd, wanted acdb$"):
        kernel(**inputs(), dst=dst)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"mb": 4}, "given mb=4, wanted 1 to 3"),
        ({"mb": "two"}, "given mb of type str, wanted a number"),
        ({"mb": 2}, "given src of f16[3, 16, 5, 5], wanted f16[2, 16, 5, 5]"),
        ({"src": np.zeros((3, 16, 5, 6), np.float16)}, "given src of f16[3, 16, 5, 6], wanted f16[3, 16, 5, 5]"),
    ],
)
def test_sizes(given: dict[str, Any], wanted: str, standin: StandIn) -> None:
    with pytest.raises(UserError) as error:
        cg.load(compiled(RUNTIME))(**{**inputs(RUNTIME), **given})
    told(error, wanted)


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        ("vulkan:0", "given the device 'vulkan:0', wanted one of hip:0, level_zero:0, cuda:0"),
        ("hpi:0", "given the device 'hpi:0', wanted one of hip:0, level_zero:0, cuda:0"),
        ("hip:first", "given the device 'hip:first', wanted a number behind hip:"),
        ("hip:7", "given the device hip:7, wanted hip:0 to hip:1"),
    ],
)
def test_devices(device: str, wanted: str, standin: StandIn) -> None:
    with pytest.raises(UserError) as error:
        cg.load(compiled(FORWARD), device)
    told(error, wanted)


def test_no_device(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVGEN_STANDIN_DEVICES", "0")
    with pytest.raises(UserError) as error:
        hip.Device(0)
    told(error, "given the device hip:0, wanted a device, but HIP finds none")


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", lambda _: [])
    monkeypatch.setenv("CONVGEN_HIP", "/nowhere/libamdhip64.so")
    with pytest.raises(UserError) as error:
        hip.Device(0)
    told(error, "given CONVGEN_HIP=/nowhere/libamdhip64.so, wanted the HIP runtime of ROCm 6 or later (/nowhere/*)")
    monkeypatch.delenv("CONVGEN_HIP")
    monkeypatch.setattr(hip, "NAMES", ("libnowhere.so",))
    with pytest.raises(UserError) as error:
        hip.Device(0)
    told(error, "given no libnowhere.so, wanted the HIP runtime of ROCm 6 or later; CONVGEN_HIP names one elsewhere")


def test_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVGEN_HIP", "libc.so.6")
    with pytest.raises(UserError) as error:
        hip.Device(0)
    told(error, "given libc.so.6 without the function hipInit, wanted the HIP runtime of ROCm 6 or later")


def test_code_for_another_device(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVGEN_STANDIN_ARCH", "gfx90a")
    program = Program.of(compiled(FORWARD))
    with pytest.raises(UserError) as error:
        DeviceKernel(program, hip.Device(0))
    told(error, f"given {program.name} for gfx942, wanted gfx90a code, which hip:0 (Stand-in) runs")
    record = evolve(program.record, target="xehpc")
    with pytest.raises(UserError, match="for xehpc, wanted gfx942 code, which hip:0"):
        DeviceKernel(evolve(program, record=record), devices.open_device("hip:0"))


def test_code_that_the_runtime_refuses(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    code = compiled(FORWARD)
    assert code.object is not None
    with pytest.raises(DeviceError) as error:
        cg.load(evolve(code, object=b"\x7fELF" + bytes(100)))
    told(error, "hipModuleLoadData failed: hipErrorInvalidImage (0xc8)")
    launch = evolve(code.record.launches[0], kernel="another")
    with pytest.raises(DeviceError) as error:
        cg.load(evolve(code, record=evolve(code.record, launches=(launch,))))
    told(error, "hipModuleGetFunction failed: hipErrorNotFound (0x1f4)")


def test_what_fails_on_the_device(standin: StandIn) -> None:
    """The runtime tells it when somebody waits."""
    code = compiled(FORWARD)
    (launch,) = code.record.launches
    short = evolve(launch, grid=(launch.grid[0], 1, 1), kernarg_size=launch.kernarg_size + 8)
    kernel = cg.load(evolve(code, record=evolve(code.record, launches=(short,))))
    with pytest.raises(DeviceError) as error:
        kernel(**inputs())
    told(error, "hipStreamSynchronize failed: hipErrorLaunchFailure (0x2cf)")


def test_code_that_is_none(standin: StandIn, tmp_path: Path) -> None:
    code = compiled(FORWARD)
    with pytest.raises(UserError, match="without a code object, wanted a record that has both"):
        cg.load(evolve(code, object=None))
    with pytest.raises(UserError, match="without launches, wanted a record that has both"):
        cg.load(evolve(code, record=evolve(code.record, launches=())))
    with pytest.raises(UserError, match=r"^given code of type bytes, wanted Code or the path of a launch record$"):
        cg.load(code.object)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"cannot read .*: No such file"):
        cg.load(tmp_path / "k.launch.json")


def test_a_kernel_that_was_unloaded(kernel: DeviceKernel) -> None:
    kernel.unload()
    with pytest.raises(UserError, match=r"^given <.* on hip:0>, which was unloaded; load it again$"):
        kernel(**inputs())


def test_a_record_without_its_problems_tensors(standin: StandIn, tmp_path: Path) -> None:
    write_code(compiled(FORWARD), str(tmp_path / "k"), ".s", ".hsaco")
    record = tmp_path / "k.launch.json"
    record.write_text(record.read_text().replace('"name": "dst"', '"name": "out"'))
    with pytest.raises(UserError, match=r"^given no buffer dst, wanted the outputs of .*, in k.launch.json$"):
        cg.load(record)


def test_puts(kernel: DeviceKernel) -> None:
    with pytest.raises(UserError, match=r"^given the argument 'source' \(did you mean src\?\), wanted src, wei, dst$"):
        kernel.put("source", np.zeros(DIMS, np.float16))
    with pytest.raises(UserError, match=r"^given src on hip:0, wanted an array of the host$"):
        kernel.put("src", held(kernel))
