"""Intel's Level Zero driver without a GPU: it loads a zebin and writes what it would send to the device to a trace.

`capture` is for tests. The driver reads its switches from the environment before `main` and finishes the trace when the
process ends, so it runs in a child process: this file as a script.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs

LIBRARY = "libze_intel_gpu.so.1"

#: The driver's debug switches: trace instead of a device, and copies by the CPU, so that code is seen in its place.
SWITCHES = {
    "NEOReadDebugKeys": "1",
    "SetCommandStreamReceiver": "1",
    "UseAubStream": "0",
    "UseBindlessMode": "0",
    "HardwareInfoOverride": "1x4x8",
    "EnableBlitterOperationsSupport": "0",
}

_PAGE = 4096


@attrs.frozen
class Launch:
    """A kernel with a value for each argument: a number of bytes asks for a buffer, bytes are a scalar's."""

    kernel: str
    grid: tuple[int, int, int]
    arguments: tuple[int | bytes, ...]


@attrs.frozen
class Capture:
    """What became of a zebin in the driver."""

    failure: str | None  #: the first call that failed with its result, e.g. `zeModuleCreate: 0x7800000f`
    kernels: Mapping[str, Mapping[str, int]]  #: properties of each kernel launched, as the driver read them
    arguments: tuple[tuple[bytes, ...], ...]  #: of each launch, as set: for a buffer its address
    aub: bytes = attrs.field(repr=False)  #: the trace; empty after a failure


def available() -> bool:
    """Whether the driver is on this machine."""
    try:
        c.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def capture(zebin: bytes, product: str, launches: Sequence[Launch] = ()) -> Capture:
    """Load `zebin` in the driver for `product` (dg2, pvc), and launch kernels of it one after another."""
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        (Path(folder) / "module.zebin").write_bytes(zebin)
        request = [[x.kernel, x.grid, [a if isinstance(a, int) else a.hex() for a in x.arguments]] for x in launches]
        done = subprocess.run(
            [sys.executable, __file__],
            input=json.dumps(request),
            env={**os.environ, **SWITCHES, "ProductFamilyOverride": product},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return Capture(f"the driver ended with {done.returncode}: {done.stderr}", {}, (), b"")
        answer = json.loads(done.stdout)
        traces = list(Path(folder).glob("*.aub"))
        return Capture(
            answer["failure"],
            answer["kernels"],
            tuple(tuple(map(bytes.fromhex, values)) for values in answer["arguments"]),
            traces[0].read_bytes() if traces and answer["failure"] is None else b"",
        )


class _Failure(Exception):
    pass


def _structure(title: str, stype: int, **fields: type) -> Callable[..., c.Structure]:
    """A descriptor of Level Zero's ze_api.h, which begins with its type and a chain."""
    members = [("stype", c.c_uint32), ("next", c.c_void_p), *fields.items()]
    made = type(title, (c.Structure,), {"_fields_": members})
    return partial(made, stype)


_U32, _P = c.c_uint32, c.c_void_p
_Context = _structure("Context", 0x0D, flags=_U32)
_Queue = _structure("Queue", 0x0E, ordinal=_U32, index=_U32, flags=_U32, mode=_U32, priority=_U32)
_List = _structure("List", 0x0F, ordinal=_U32, flags=_U32)
_Memory = _structure("Memory", 0x15, flags=_U32, ordinal=_U32)
_Module = _structure("Module", 0x1B, format=_U32, size=c.c_size_t, code=_P, options=c.c_char_p, constants=_P)
_Kernel = _structure("Kernel", 0x1D, flags=_U32, name=c.c_char_p)
_PROPERTIES = (
    "arguments group_x group_y group_z required_subgroups required_subgroup_size max_subgroup_size max_subgroups"
    " local_bytes private_bytes spill_bytes"
).split()
_Properties = _structure("Properties", 0x1E, **dict.fromkeys(_PROPERTIES, _U32), ids=c.c_uint8 * 32)
_NATIVE = 1  # format of a module


class _Driver:
    """One device, context and queue."""

    def __init__(self) -> None:
        self.library = c.CDLL(LIBRARY)
        self.call("zeInit", 0)
        driver, self.device, self.context, self.queue, self.list = (_P() for _ in range(5))
        self.call("zeDriverGet", c.byref(_U32(1)), c.byref(driver))
        self.call("zeDeviceGet", driver, c.byref(_U32(1)), c.byref(self.device))
        self.call("zeContextCreate", driver, c.byref(_Context()), c.byref(self.context))

    def call(self, name: str, *arguments: object) -> None:
        result = getattr(self.library, name)(*arguments) & 0xFFFFFFFF
        if result:
            raise _Failure(f"{name}: {result:#x}")

    def load(self, zebin: bytes) -> c.c_void_p:
        module, log = _P(), _P()
        code = c.create_string_buffer(zebin, len(zebin))
        wanted = _Module(format=_NATIVE, size=len(zebin), code=c.cast(code, _P))
        self.call("zeModuleCreate", self.context, self.device, c.byref(wanted), c.byref(module), c.byref(log))
        return module

    def kernel(self, module: c.c_void_p, name: str) -> tuple[c.c_void_p, dict[str, int]]:
        kernel, properties = _P(), _Properties()
        self.call("zeKernelCreate", module, c.byref(_Kernel(name=name.encode())), c.byref(kernel))
        self.call("zeKernelGetProperties", kernel, c.byref(properties))
        return kernel, {key: getattr(properties, key) for key in _PROPERTIES}

    def value(self, argument: int | str) -> bytes:
        """The bytes of an argument: those given, or the address of a new buffer."""
        if isinstance(argument, str):
            return bytes.fromhex(argument)
        address = _P()
        wanted, size, alignment = c.byref(_Memory()), c.c_size_t(argument), c.c_size_t(_PAGE)
        self.call("zeMemAllocDevice", self.context, wanted, size, alignment, self.device, c.byref(address))
        return (address.value or 0).to_bytes(8, "little")

    def append(self, kernel: c.c_void_p, group: Sequence[int], grid: Sequence[int], values: Sequence[bytes]) -> None:
        for place, value in enumerate(values):
            self.call("zeKernelSetArgumentValue", kernel, _U32(place), c.c_size_t(len(value)), value)
        self.call("zeKernelSetGroupSize", kernel, *map(_U32, group))
        extent = (_U32 * 3)(*grid)
        self.call("zeCommandListAppendLaunchKernel", self.list, kernel, extent, None, _U32(0), None)

    def run(
        self, zebin: bytes, launches: Sequence[tuple[str, Sequence[int], Sequence[int | str]]]
    ) -> dict[str, object]:
        module = self.load(zebin)
        self.call("zeCommandQueueCreate", self.context, self.device, c.byref(_Queue()), c.byref(self.queue))
        self.call("zeCommandListCreate", self.context, self.device, c.byref(_List()), c.byref(self.list))
        kernels, arguments = {}, []
        for name, grid, given in launches:
            kernel, properties = self.kernel(module, name)
            kernels[name] = properties
            values = [self.value(a) for a in given]
            arguments.append([value.hex() for value in values])
            self.append(kernel, [properties[f"group_{axis}"] for axis in "xyz"], grid, values)
        self.call("zeCommandListClose", self.list)
        self.call("zeCommandQueueExecuteCommandLists", self.queue, _U32(1), c.byref(self.list), None)
        self.call("zeCommandQueueSynchronize", self.queue, c.c_uint64(10**9))
        return {"failure": None, "kernels": kernels, "arguments": arguments}


def main() -> None:
    """Launches as JSON on standard input, the answer on standard output; the trace appears in the working folder."""
    launches = json.load(sys.stdin)
    try:
        answer = _Driver().run(Path("module.zebin").read_bytes(), launches)
    except _Failure as failure:
        answer = {"failure": str(failure), "kernels": {}, "arguments": []}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
