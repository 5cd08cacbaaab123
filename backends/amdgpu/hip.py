"""AMD devices through the HIP runtime of ROCm 6 or later.

Functions and numbers are those of hip_runtime_api.h.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from convgen.backends.amdgpu.family import FAMILY, RUNTIME
from convgen.backends.device import Event, Function, Launcher, Region, call_of
from convgen.backends.library import Library
from convgen.backends.simulation import Bytes, LaunchRequest
from convgen.ir.error import UserError
from convgen.ir.record import frozen

VARIABLE = "CONVGEN_HIP"  #: environment variable: a library to use in place of the installed one
NAMES = ("libamdhip64.so", *(f"libamdhip64.so.{n}" for n in (7, 6)), "/opt/rocm/lib/libamdhip64.so")

_P, _INT, _SIZE, _U32 = c.c_void_p, c.c_int, c.c_size_t, c.c_uint32
_POINTER, _INTS, _SIZES = c.POINTER(_P), c.POINTER(_INT), c.POINTER(_SIZE)

_SIGNATURES = {
    "hipInit": (_U32,),
    "hipGetDeviceCount": (_INTS,),
    "hipGetDevice": (_INTS,),
    "hipSetDevice": (_INT,),
    "hipGetDevicePropertiesR0600": (_P, _INT),
    "hipMalloc": (_POINTER, _SIZE),
    "hipFree": (_P,),
    "hipMemGetAddressRange": (_POINTER, _SIZES, _P),
    "hipPointerGetAttribute": (_P, _INT, _P),
    "hipMemcpyAsync": (_P, _P, _SIZE, _INT, _P),
    "hipMemsetAsync": (_P, _INT, _SIZE, _P),
    "hipModuleLoadData": (_POINTER, _P),
    "hipModuleUnload": (_P,),
    "hipModuleGetFunction": (_POINTER, _P, c.c_char_p),
    "hipFuncGetAttribute": (_INTS, _INT, _P),
    "hipModuleLaunchKernel": (_P, *(_U32,) * 7, _P, _P, _P),
    "hipStreamCreate": (_POINTER,),
    "hipStreamDestroy": (_P,),
    "hipStreamSynchronize": (_P,),
    "hipEventCreate": (_POINTER,),
    "hipEventDestroy": (_P,),
    "hipEventRecord": (_P, _P),
    "hipEventSynchronize": (_P,),
    "hipEventElapsedTime": (c.POINTER(c.c_float), _P, _P),
}

_PROPERTIES = 1472  #: bytes of hipDeviceProp_tR0600
_NAME, _ARCH, _TEXT = 0, 1160, 256  #: bytes in it: offsets of name and gcnArchName, size of both
_TO_DEVICE, _TO_HOST = 1, 2  #: hipMemcpyKind
_SHARED_BYTES = 1  #: HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_ORDINAL = 9  #: HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_BLOCK, _BLOCK_SIZE, _END = 1, 2, 3  #: HIP_LAUNCH_PARAM_BUFFER_POINTER, _SIZE and _END


def _error_name(handle: c.CDLL, status: int) -> str:
    handle.hipGetErrorName.restype, handle.hipGetErrorName.argtypes = c.c_char_p, [_INT]
    return (handle.hipGetErrorName(status) or b"unknown error").decode(errors="replace")


@frozen(eq=False)
class _Function:
    handle: c.c_void_p
    shared_bytes: int  #: LDS that the kernel itself declares


@frozen(eq=False)
class _Module:
    device: Device
    handle: c.c_void_p

    def function(self, name: str) -> _Function:
        handle, declared = _P(), _INT()
        call = self.device.library.call
        with self.device.current():
            call("hipModuleGetFunction", c.byref(handle), self.handle, name.encode())
            call("hipFuncGetAttribute", c.byref(declared), _SHARED_BYTES, handle)
        return _Function(handle, declared.value)

    def unload(self) -> None:
        with self.device.current():
            self.device.library.call("hipModuleUnload", self.handle)


@frozen(eq=False)
class _Event:
    library: Library
    handle: c.c_void_p

    def __del__(self) -> None:
        self.library.status("hipEventDestroy", self.handle)


class Device:
    """One GPU; `convgen.backends.device` explains the members."""

    dlpack = 10  #: kDLROCM
    also: tuple[int, ...] = (2,)  #: kDLCUDA: a build of a framework for HIP may say so
    cuda_interface = True
    suffix = FAMILY.object_suffix
    alignment = RUNTIME.alignment
    has_foreign_memory = True  #: memory that an allocator maps page by page, as torch's may

    def __init__(self, number: int) -> None:
        """Open a device by number. Raises UserError if the library or the device is missing."""
        self.name, self.number = f"{RUNTIME.kind}:{number}", number
        self.library = Library.find(NAMES, VARIABLE, "the HIP runtime of ROCm 6 or later", _SIGNATURES, _error_name)
        count = _INT()
        if self.library.status("hipInit", 0) or self.library.status("hipGetDeviceCount", c.byref(count)):
            count = _INT(0)
        if number >= count.value:
            there = f"hip:0 to hip:{count.value - 1}" if count.value else "a device, but HIP finds none"
            raise UserError(f"given the device {self.name}, wanted {there}")
        properties = c.create_string_buffer(_PROPERTIES)
        self.library.call("hipGetDevicePropertiesR0600", properties, number)
        self.title, arch = (
            properties.raw[at : at + _TEXT].split(b"\0")[0].decode(errors="replace") for at in (_NAME, _ARCH)
        )
        self.runs: tuple[str, ...] = (arch.split(":")[0],)  # features follow, as in gfx942:sramecc+:xnack-

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the thread's current device within the block, and restore the previous one after it."""
        before = _INT()
        self.library.call("hipGetDevice", c.byref(before))
        self.library.call("hipSetDevice", self.number)
        try:
            yield
        finally:
            self.library.call("hipSetDevice", before.value)

    def allocate(self, size: int) -> int:
        address = _P()
        with self.current():
            self.library.call("hipMalloc", c.byref(address), max(1, size))
        return address.value or 0

    def free(self, address: int) -> None:
        self.library.call("hipFree", address)

    def region(self, address: int) -> Region | None:
        base, size, ordinal = _P(), _SIZE(), _INT()
        if self.library.status("hipMemGetAddressRange", c.byref(base), c.byref(size), address):
            return None
        if self.library.status("hipPointerGetAttribute", c.byref(ordinal), _ORDINAL, address):
            return None
        return Region(base.value or 0, size.value, ordinal.value)

    def upload(self, address: int, data: Bytes, stream: int) -> None:
        with self.current():
            self.library.call("hipMemcpyAsync", address, data.ctypes.data, data.nbytes, _TO_DEVICE, stream)
            self.synchronize(stream)  # the host's bytes may change once this returns

    def download(self, data: Bytes, address: int, stream: int) -> None:
        with self.current():
            self.library.call("hipMemcpyAsync", data.ctypes.data, address, data.nbytes, _TO_HOST, stream)
            self.synchronize(stream)

    def fill(self, address: int, size: int, byte: int, stream: int) -> None:
        with self.current():
            self.library.call("hipMemsetAsync", address, byte, size, stream)

    def load(self, content: bytes) -> _Module:
        handle = _P()
        with self.current():
            self.library.call("hipModuleLoadData", c.byref(handle), content)
        return _Module(self, handle)

    def launcher(self, function: Function, request: LaunchRequest) -> Launcher:
        assert isinstance(function, _Function)
        return partial(self._launch, function, request)

    def _launch(self, function: _Function, request: LaunchRequest, addresses: Mapping[str, int], stream: int) -> None:
        call = call_of(request, addresses, self.name)
        block, size = c.create_string_buffer(call.block(), max(1, call.block_size)), _SIZE(call.block_size)
        extra = (_P * 5)(_BLOCK, c.addressof(block), _BLOCK_SIZE, c.addressof(size), _END)
        dynamic = max(0, call.shared_bytes - function.shared_bytes)
        with self.current():
            self.library.call(
                "hipModuleLaunchKernel", function.handle, *call.grid, *call.workgroup, dynamic, stream, None, extra
            )

    def new_stream(self) -> int:
        handle = _P()
        with self.current():
            self.library.call("hipStreamCreate", c.byref(handle))
        return handle.value or 0

    def end_stream(self, stream: int) -> None:
        self.library.call("hipStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        with self.current():
            self.library.call("hipStreamSynchronize", stream)

    def record(self, stream: int) -> _Event:
        handle = _P()
        with self.current():
            self.library.call("hipEventCreate", c.byref(handle))
            event = _Event(self.library, handle)
            self.library.call("hipEventRecord", handle, stream)
        return event

    def seconds(self, first: Event, last: Event) -> float:
        assert isinstance(first, _Event)
        assert isinstance(last, _Event)
        milliseconds = c.c_float()
        self.library.call("hipEventSynchronize", last.handle)
        self.library.call("hipEventElapsedTime", c.byref(milliseconds), first.handle, last.handle)
        return milliseconds.value * 1e-3
