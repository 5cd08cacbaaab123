"""NVIDIA's devices, by the CUDA driver API.

Functions and numbers are those of cuda.h. Every call runs in the device's primary context, which frameworks use, too.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from convgen.backends.device import Call, Event, Function, Region
from convgen.backends.library import DeviceError, Library
from convgen.backends.nvidia.family import FAMILY, RUNTIME
from convgen.backends.simulation import Bytes
from convgen.ir.error import UserError
from convgen.ir.record import frozen

VARIABLE = "CONVGEN_CUDA"  #: environment variable; path of a library to use in place of the installed one
NAMES = ("libcuda.so.1", "libcuda.so")

_P, _INT, _SIZE, _U32, _U64 = c.c_void_p, c.c_int, c.c_size_t, c.c_uint, c.c_uint64
_POINTER, _INTS, _SIZES, _ADDRESSES = c.POINTER(_P), c.POINTER(_INT), c.POINTER(_SIZE), c.POINTER(_U64)

_SIGNATURES = {
    "cuGetErrorName": (_INT, c.POINTER(c.c_char_p)),
    "cuGetErrorString": (_INT, c.POINTER(c.c_char_p)),
    "cuInit": (_U32,),
    "cuDeviceGetCount": (_INTS,),
    "cuDeviceGet": (_INTS, _INT),
    "cuDeviceGetName": (c.c_char_p, _INT, _INT),
    "cuDeviceGetAttribute": (_INTS, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_POINTER, _INT),
    "cuCtxPushCurrent_v2": (_P,),
    "cuCtxPopCurrent_v2": (_POINTER,),
    "cuMemAlloc_v2": (_ADDRESSES, _SIZE),
    "cuMemFree_v2": (_U64,),
    "cuMemGetAddressRange_v2": (_ADDRESSES, _SIZES, _U64),
    "cuPointerGetAttribute": (_P, _INT, _U64),
    "cuMemcpyHtoDAsync_v2": (_U64, _P, _SIZE, _P),
    "cuMemcpyDtoHAsync_v2": (_P, _U64, _SIZE, _P),
    "cuMemsetD8Async": (_U64, c.c_ubyte, _SIZE, _P),
    "cuModuleLoadDataEx": (_POINTER, _P, _U32, _INTS, _POINTER),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_POINTER, _P, c.c_char_p),
    "cuFuncSetAttribute": (_P, _INT, _INT),
    "cuLaunchKernel": (_P, *(_U32,) * 7, _P, _POINTER, _POINTER),
    "cuStreamCreate": (_POINTER, _U32),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuEventCreate": (_POINTER, _U32),
    "cuEventDestroy_v2": (_P,),
    "cuEventRecord": (_P, _P),
    "cuEventSynchronize": (_P,),
    "cuEventElapsedTime": (c.POINTER(c.c_float), _P, _P),
}

_MAJOR, _MINOR = 75, 76  #: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_DYNAMIC_SHARED = 8  #: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_ORDINAL = 9  #: CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  #: CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
_BLOCK, _BLOCK_SIZE, _END = 1, 2, 0  #: CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END
_LOG = 8192  #: bytes of the compiler's messages


def _error_name(handle: c.CDLL, status: int) -> str:
    """Return the name of a status and CUDA's text on it."""
    name, text = c.c_char_p(), c.c_char_p()
    handle.cuGetErrorName(status, c.byref(name))
    handle.cuGetErrorString(status, c.byref(text))
    return ", ".join(part.decode(errors="replace") for part in (name.value, text.value) if part) or "unknown error"


def _runs(capability: int) -> tuple[str, ...]:
    """Return the targets whose code a device of a compute capability (times 10) runs, in the order of the family.

    Returns the device's own name, which is no target, if it runs none. PTX runs on later devices too, unless its target
    ends in `a` (PTX ISA, ".target").
    """
    numbers = {target: int(target.removeprefix("sm_").removesuffix("a")) for target in FAMILY.targets}
    own = tuple(
        target for target, n in numbers.items() if n == capability or (n < capability and not target.endswith("a"))
    )
    return own or (f"sm_{capability}",)


@frozen(eq=False)
class _Function:
    handle: c.c_void_p


@frozen(eq=False)
class _Module:
    device: Device
    handle: c.c_void_p

    def function(self, name: str) -> _Function:
        handle = _P()
        with self.device.current():
            self.device.library.call("cuModuleGetFunction", c.byref(handle), self.handle, name.encode())
        return _Function(handle)

    def unload(self) -> None:
        with self.device.current():
            self.device.library.call("cuModuleUnload", self.handle)


@frozen(eq=False)
class _Event:
    device: Device
    handle: c.c_void_p

    def __del__(self) -> None:
        with suppress(DeviceError), self.device.current():  # a dead context has destroyed its events
            self.device.library.status("cuEventDestroy_v2", self.handle)


class Device:
    """One GPU; `convgen.backends.device` explains the members."""

    dlpack = 2  #: kDLCUDA
    also: tuple[int, ...] = ()
    cuda_interface = True
    suffix = FAMILY.object_suffix
    alignment = RUNTIME.alignment
    has_foreign_memory = True  #: memory that allocators map page by page

    def __init__(self, number: int) -> None:
        """Open a device; raise UserError if there is no library or no device of this number."""
        self.name, self.number = f"{RUNTIME.kind}:{number}", number
        self.library = Library.find(NAMES, VARIABLE, "NVIDIA's driver", _SIGNATURES, _error_name)
        count = _INT()
        status = self.library.status("cuInit", 0) or self.library.status("cuDeviceGetCount", c.byref(count))
        if status or number >= count.value:
            why = f" ({_error_name(self.library.handle, status)})" if status else ""
            available = f"cuda:0 to cuda:{count.value - 1}" if count.value else f"a device, but CUDA finds none{why}"
            raise UserError(f"given the device {self.name}, wanted {available}")
        device, title, self.context = _INT(), c.create_string_buffer(256), _P()
        self.library.call("cuDeviceGet", c.byref(device), number)
        self.library.call("cuDeviceGetName", title, 256, device)
        self.title = title.value.decode(errors="replace")
        major, minor = (self._attribute(each, device) for each in (_MAJOR, _MINOR))
        self.runs = _runs(10 * major + minor)
        self.library.call("cuDevicePrimaryCtxRetain", c.byref(self.context), device)

    def _attribute(self, attribute: int, device: c.c_int) -> int:
        value = _INT()
        self.library.call("cuDeviceGetAttribute", c.byref(value), attribute, device)
        return value.value

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the device's primary context the thread's; restore the one before afterwards."""
        before = _P()
        self.library.call("cuCtxPushCurrent_v2", self.context)
        try:
            yield
        finally:
            self.library.call("cuCtxPopCurrent_v2", c.byref(before))

    def allocate(self, size: int) -> int:
        address = _U64()
        with self.current():
            self.library.call("cuMemAlloc_v2", c.byref(address), max(1, size))
        return address.value

    def free(self, address: int) -> None:
        with self.current():
            self.library.call("cuMemFree_v2", address)

    def region(self, address: int) -> Region | None:
        base, size, ordinal = _U64(), _SIZE(), _INT()
        with self.current():
            if self.library.status("cuMemGetAddressRange_v2", c.byref(base), c.byref(size), address):
                return None
            if self.library.status("cuPointerGetAttribute", c.byref(ordinal), _ORDINAL, address):
                return None
        return Region(base.value, size.value, ordinal.value)

    def upload(self, address: int, data: Bytes, stream: int) -> None:
        with self.current():
            self.library.call("cuMemcpyHtoDAsync_v2", address, data.ctypes.data, data.nbytes, stream)
            self.synchronize(stream)  # the host's bytes may change once this returns

    def download(self, data: Bytes, address: int, stream: int) -> None:
        with self.current():
            self.library.call("cuMemcpyDtoHAsync_v2", data.ctypes.data, address, data.nbytes, stream)
            self.synchronize(stream)

    def fill(self, address: int, size: int, byte: int, stream: int) -> None:
        with self.current():
            self.library.call("cuMemsetD8Async", address, byte, size, stream)

    def load(self, content: bytes) -> _Module:
        """Load a cubin, or PTX text that the driver compiles; UserError has the driver's message."""
        handle, log = _P(), c.create_string_buffer(_LOG)
        options = (_INT * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (_P * 2)(c.addressof(log), _LOG)
        with self.current():
            status = self.library.status("cuModuleLoadDataEx", c.byref(handle), content + b"\0", 2, options, values)
            if status and log.value:
                raise UserError(
                    f"given code that {self.title} does not load: {log.value.decode(errors='replace')[:400]}"
                )
            if status:  # no message: `call` fails in the same way, and raises with the name of the status
                self.library.call("cuModuleLoadDataEx", c.byref(handle), content + b"\0", 2, options, values)
        return _Module(self, handle)

    def launch(self, function: Function, call: Call, stream: int) -> None:
        assert isinstance(function, _Function)
        block, size = c.create_string_buffer(call.block(), max(1, call.block_size)), _SIZE(call.block_size)
        extra = (_P * 5)(_BLOCK, c.addressof(block), _BLOCK_SIZE, c.addressof(size), _END)
        with self.current():
            self.library.call("cuFuncSetAttribute", function.handle, _DYNAMIC_SHARED, call.shared_bytes)
            self.library.call(
                "cuLaunchKernel", function.handle, *call.grid, *call.workgroup, call.shared_bytes, stream, None, extra
            )

    def new_stream(self) -> int:
        handle = _P()
        with self.current():
            self.library.call("cuStreamCreate", c.byref(handle), 1)  # CU_STREAM_NON_BLOCKING
        return handle.value or 0

    def end_stream(self, stream: int) -> None:
        with self.current():
            self.library.call("cuStreamDestroy_v2", stream)

    def synchronize(self, stream: int) -> None:
        with self.current():
            self.library.call("cuStreamSynchronize", stream)

    def record(self, stream: int) -> _Event:
        handle = _P()
        with self.current():
            self.library.call("cuEventCreate", c.byref(handle), 0)
            event = _Event(self, handle)
            self.library.call("cuEventRecord", handle, stream)
        return event

    def seconds(self, first: Event, last: Event) -> float:
        assert isinstance(first, _Event)
        assert isinstance(last, _Event)
        milliseconds = c.c_float()
        with self.current():
            self.library.call("cuEventSynchronize", last.handle)
            self.library.call("cuEventElapsedTime", c.byref(milliseconds), first.handle, last.handle)
        return milliseconds.value / 1000
