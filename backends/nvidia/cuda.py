"""NVIDIA's devices, by the CUDA driver API.

Functions and numbers are those of cuda.h. Every call runs in the device's primary context, which frameworks use, too.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from threading import Lock

from convgen.backends.device import Event, Function, Launcher, Region
from convgen.backends.library import DeviceError, Library
from convgen.backends.nvidia.family import FAMILY, RUNTIME
from convgen.backends.simulation import Bytes, Encoded, LaunchRequest
from convgen.ir.error import UserError
from convgen.ir.layout.tensor_map import MAP_ALIGN, MAP_BYTES, TensorMap
from convgen.ir.record import define, frozen

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
    "cuCtxGetCurrent": (_POINTER,),
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

_U32S = c.POINTER(_U32)
_MAP_BEGIN, _MAP_END = (_P, _INT, _U32, _P, _ADDRESSES, _ADDRESSES), (_U32S, *(_INT,) * 4)
#: Functions of drivers since CUDA 12.0.
_ENCODERS = {
    "cuTensorMapEncodeTiled": (*_MAP_BEGIN, _U32S, *_MAP_END),
    "cuTensorMapEncodeIm2col": (*_MAP_BEGIN, _INTS, _INTS, _U32, _U32, *_MAP_END),
}
_PARAMETERS = {"cuFuncGetParamInfo": (_P, _SIZE, _SIZES, _SIZES)}  #: function of drivers since CUDA 12.4
#: Element type of a tensor map -> CUtensorMapDataType; types of a byte differ in nothing that a copy does.
_DATA_TYPES: Mapping[str, int] = {
    **dict.fromkeys(("u8", "s8", "e4m3", "e5m2"), 0),
    "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "tf32": 11,
}  # fmt: skip
_SWIZZLES: Mapping[int, int] = {0: 0, 32: 1, 64: 2, 128: 3}  #: bytes of its rows -> CUtensorMapSwizzle
_NO_INTERLEAVE, _PROMOTE_128, _FILL_ZEROS = 0, 2, 0  #: CU_TENSOR_MAP_INTERLEAVE_, _L2_PROMOTION_, _FLOAT_OOB_FILL_
_MAPS_KEPT = 1 << 12  #: encoded tensor maps that a device keeps: encoding takes 4 us

_MAJOR, _MINOR = 75, 76  #: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_DYNAMIC_SHARED = 8  #: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_ORDINAL = 9  #: CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6  #: CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
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


@define(eq=False)
class _Function:
    name: str
    handle: c.c_void_p
    sizes: tuple[int, ...] | None  #: bytes of each parameter; None if the driver does not report them
    shared_bytes: int = 0  #: dynamic shared memory that the driver lets launches have

    def check(self, given: tuple[int, ...]) -> None:
        """Refuse arguments of `given` bytes that are not one for each parameter: the driver reads one for each.

        Raises UserError.
        """
        if self.sizes is not None and given != self.sizes:
            texts = [f"{len(sizes)} of {', '.join(map(str, sizes)) or 'no'} bytes" for sizes in (given, self.sizes)]
            raise UserError(f"given the arguments of kernel {self.name}, {texts[0]}; wanted {texts[1]}")


@frozen(eq=False)
class _Module:
    device: Device
    handle: c.c_void_p

    def function(self, name: str) -> _Function:
        handle = _P()
        with self.device.current():
            self.device.library.call("cuModuleGetFunction", c.byref(handle), self.handle, name.encode())
            return _Function(name, handle, self._parameter_sizes(handle))

    def _parameter_sizes(self, function: c.c_void_p) -> tuple[int, ...] | None:
        """Return the bytes of each parameter of a kernel, in order; None if the driver does not report them."""
        library, sizes, offset, size = self.device.library, list[int](), _SIZE(), _SIZE()
        try:
            library.bind(_PARAMETERS, "a driver of CUDA 12.4 or later")
        except UserError:
            return None
        while not library.status("cuFuncGetParamInfo", function, len(sizes), c.byref(offset), c.byref(size)):
            sizes.append(size.value)
        return tuple(sizes)

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


class _Launcher:
    """A launch of a function, whose objects of ctypes are prepared: a call writes addresses into them.

    Parameters are passed one by one: the driver places them by their alignment in constant memory, not at the offsets
    that PTX declares. On an H200 it refuses a block with a tensor map at its declared offset, as too long.
    """

    def __init__(self, device: Device, function: _Function, request: LaunchRequest) -> None:
        """Raise UserError for arguments that do not fit the function's parameters."""
        values = [a.value for a in sorted(request.args, key=lambda a: a.offset)]
        function.check(tuple(map(_size_of, values)))
        self._device, self._count = device, len(values)
        self._buffers = [(n, value) for n, value in enumerate(values) if isinstance(value, str)]
        self._maps = [(n, value) for n, value in enumerate(values) if isinstance(value, TensorMap)]
        scalars = [(n, value) for n, value in enumerate(values) if isinstance(value, bytes)]
        self._scalars = [(n, c.create_string_buffer(value, len(value))) for n, value in scalars]
        self._launch = device.library.entry("cuLaunchKernel")
        geometry = *request.grid, *request.workgroup, request.shared_bytes
        self._fixed = function.handle, *map(_U32, geometry)
        self._idle: list[tuple[c.Array[c.c_uint64], c.Array[c.c_void_p]]] = []  #: memory that no call uses

    def _new_memory(self) -> tuple[c.Array[c.c_uint64], c.Array[c.c_void_p]]:
        """Return memory of a call: addresses of buffers, and where the driver reads each argument."""
        addresses, places = (_U64 * max(1, self._count))(), (_P * max(1, self._count))()
        for n, _ in self._buffers:
            places[n] = c.addressof(addresses) + n * c.sizeof(_U64)
        for n, scalar in self._scalars:
            places[n] = c.addressof(scalar)
        return addresses, places

    def __call__(self, addresses: Mapping[str, int], stream: int) -> None:
        device = self._device
        try:
            memory = self._idle.pop()
        except IndexError:  # all of it is used by calls in other threads
            memory = self._new_memory()
        written, places = memory
        for n, name in self._buffers:
            written[n] = addresses[name]
        maps = [device.encode(tensor, addresses[tensor.buffer]) for _, tensor in self._maps]  # kept until it returns
        for (n, _), content in zip(self._maps, maps):
            places[n] = c.addressof(content)
        if device.is_current():
            status = self._launch(*self._fixed, stream, places, None)
        else:
            with device.current():
                status = self._launch(*self._fixed, stream, places, None)
        self._idle.append(memory)
        device.library.check("cuLaunchKernel", status)


def _size_of(value: str | bytes | Encoded) -> int:
    """Return the bytes of an argument: an address, a scalar or a tensor map."""
    match value:
        case str():
            return 8
        case bytes():
            return len(value)
    return MAP_BYTES


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
        self.encode = lru_cache(_MAPS_KEPT)(self._encode)
        self._lock, self._get_context = Lock(), self.library.entry("cuCtxGetCurrent")

    def _attribute(self, attribute: int, device: c.c_int) -> int:
        value = _INT()
        self.library.call("cuDeviceGetAttribute", c.byref(value), attribute, device)
        return value.value

    def is_current(self) -> bool:
        """Return whether the device's primary context is the thread's."""
        context = _P()
        if status := self._get_context(c.byref(context)):
            self.library.check("cuCtxGetCurrent", status)
        return context.value == self.context.value

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the device's primary context the thread's; restore the one before afterwards."""
        if self.is_current():
            yield
            return
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

    def _encode(self, tensor: TensorMap, address: int) -> c.Array[c.c_ubyte]:
        """Return the 128 opaque bytes of a tensor map, which `encode` keeps, aligned as the driver wants them.

        Raises DeviceError if the driver refuses the map, UserError if it is too old for maps.
        """
        self.library.bind(_ENCODERS, "a driver of CUDA 12.0 or later, which encodes tensor maps")
        memory = c.create_string_buffer(MAP_BYTES + MAP_ALIGN)
        content = (c.c_ubyte * MAP_BYTES).from_buffer(memory, -c.addressof(memory) % MAP_ALIGN)
        rank = len(tensor.dims)
        dims, strides = (_U64 * rank)(*tensor.dims), (_U64 * rank)(*tensor.strides)
        place = (c.addressof(content), _DATA_TYPES[tensor.element], rank, address + tensor.shift, dims, strides)
        steps = (_U32 * rank)(*tensor.steps)
        modes = (_NO_INTERLEAVE, _SWIZZLES[tensor.swizzle], _PROMOTE_128, _FILL_ZEROS)
        with self.current():
            if tensor.kind == "tiled":
                box = (_U32 * rank)(*tensor.box)
                self.library.call("cuTensorMapEncodeTiled", *place, box, steps, *modes)
            else:
                corners = ((_INT * rank)(*corner) for corner in (tensor.lower, tensor.upper))
                extents = tensor.channels, tensor.pixels
                self.library.call("cuTensorMapEncodeIm2col", *place, *corners, *extents, steps, *modes)
        return content

    def launcher(self, function: Function, request: LaunchRequest) -> Launcher:
        """Return the launcher of a function. Threads may call it at the same time."""
        assert isinstance(function, _Function)
        self._allow_shared(function, request.shared_bytes)
        return _Launcher(self, function, request)

    def _allow_shared(self, function: _Function, size: int) -> None:
        """Let launches of a function have dynamic shared memory of at least `size` bytes."""
        with self._lock, self.current():
            if size > function.shared_bytes:
                self.library.call("cuFuncSetAttribute", function.handle, _DYNAMIC_SHARED, size)
                function.shared_bytes = size

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
