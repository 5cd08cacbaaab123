"""Intel devices through Level Zero.

Functions, structures and numbers are those of ze_api.h. A stream is the handle of a command queue. Each operation
becomes a command list of its own, which ends in a barrier; lists live until the queue is synchronised.
"""

from __future__ import annotations

import ctypes as c
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from convgen.backends.device import Event, Function, Launcher, Region, call_of
from convgen.backends.intel.family import FAMILY, RUNTIME
from convgen.backends.library import DeviceError, Library
from convgen.backends.simulation import Bytes, LaunchRequest
from convgen.ir.error import UserError, visible
from convgen.ir.record import define, frozen

VARIABLE = "CONVGEN_LEVEL_ZERO"  #: environment variable: a library to use in place of the installed one
NAMES = ("libze_loader.so.1", "libze_loader.so")

_P, _U32, _U64, _SIZE = c.c_void_p, c.c_uint32, c.c_uint64, c.c_size_t
_HANDLE, _COUNT = c.POINTER(_P), c.POINTER(_U32)
_EVENTS = (_P, _U32, _P)  #: one to signal, and those to wait for

_SIGNATURES = {
    "zeInit": (_U32,),
    "zeDriverGet": (_COUNT, _P),
    "zeDeviceGet": (_P, _COUNT, _P),
    "zeDeviceGetProperties": (_P, _P),
    "zeDeviceGetCommandQueueGroupProperties": (_P, _COUNT, _P),
    "zeContextCreate": (_P, _P, _HANDLE),
    "zeMemAllocDevice": (_P, _P, _SIZE, _SIZE, _P, _HANDLE),
    "zeMemAllocHost": (_P, _P, _SIZE, _SIZE, _HANDLE),
    "zeMemFree": (_P, _P),
    "zeMemGetAllocProperties": (_P, _P, _P, _HANDLE),
    "zeMemGetAddressRange": (_P, _P, _HANDLE, c.POINTER(_SIZE)),
    "zeCommandQueueCreate": (_P, _P, _P, _HANDLE),
    "zeCommandQueueDestroy": (_P,),
    "zeCommandQueueExecuteCommandLists": (_P, _U32, _HANDLE, _P),
    "zeCommandQueueSynchronize": (_P, _U64),
    "zeCommandListCreate": (_P, _P, _P, _HANDLE),
    "zeCommandListClose": (_P,),
    "zeCommandListDestroy": (_P,),
    "zeCommandListAppendBarrier": (_P, *_EVENTS),
    "zeCommandListAppendMemoryCopy": (_P, _P, _P, _SIZE, *_EVENTS),
    "zeCommandListAppendMemoryFill": (_P, _P, _P, _SIZE, _SIZE, *_EVENTS),
    "zeCommandListAppendLaunchKernel": (_P, _P, _P, *_EVENTS),
    "zeCommandListAppendWriteGlobalTimestamp": (_P, _P, *_EVENTS),
    "zeModuleCreate": (_P, _P, _P, _HANDLE, _HANDLE),
    "zeModuleDestroy": (_P,),
    "zeModuleBuildLogGetString": (_P, c.POINTER(_SIZE), c.c_char_p),
    "zeModuleBuildLogDestroy": (_P,),
    "zeKernelCreate": (_P, _P, _HANDLE),
    "zeKernelDestroy": (_P,),
    "zeKernelSetGroupSize": (_P, _U32, _U32, _U32),
    "zeKernelSetArgumentValue": (_P, _U32, _SIZE, _P),
}


def _structure(title: str, stype: int, **fields: Any) -> Callable[..., Any]:
    """Return a constructor of a structure that begins with its type (`stype`) and an extension chain."""
    members = [("stype", _U32), ("next", _P), *fields.items()]
    return partial(type(title, (c.Structure,), {"_fields_": members}), stype)


_Context = _structure("Context", 0x0D, flags=_U32)
_Queue = _structure("Queue", 0x0E, ordinal=_U32, index=_U32, flags=_U32, mode=_U32, priority=_U32)
_List = _structure("List", 0x0F, ordinal=_U32, flags=_U32)
_DeviceMemory = _structure("DeviceMemory", 0x15, flags=_U32, ordinal=_U32)
_HostMemory = _structure("HostMemory", 0x16, flags=_U32)
_Allocation = _structure("Allocation", 0x17, kind=_U32, id=_U64, page=_U64)
_Code = _structure("Code", 0x1B, format=_U32, size=_SIZE, code=_P, options=c.c_char_p, constants=_P)
_Kernel = _structure("Kernel", 0x1D, flags=_U32, name=c.c_char_p)
_Group = _structure("Group", 0x06, flags=_U32, fill_pattern=_SIZE, queues=_U32)
_Properties = _structure(
    "Properties",
    0x20006,  # version 1.2, whose timer has a frequency
    kind=_U32,
    vendor=_U32,
    id=_U32,
    flags=_U32,
    subdevice=_U32,
    clock=_U32,
    most_bytes=_U64,
    contexts=_U32,
    priority=_U32,
    threads=_U32,
    width=_U32,
    units=_U32,
    subslices=_U32,
    slices=_U32,
    timer=_U64,
    timer_bits=_U32,
    kernel_timer_bits=_U32,
    uuid=c.c_uint8 * 16,
    model=c.c_char * 256,
)
_GPU, _COMPUTE, _NATIVE = 1, 1, 1  #: type of a device, flag of a queue group, format of a module
_ON_DEVICE = (2, 3)  #: types of memory: of a device, shared with the host
_PAGE = 4096  #: bytes; alignment of allocations
_MOST_PENDING = 1024  #: command lists of a stream; at this number the host waits and frees them
_FOREVER = (1 << 64) - 1  #: nanoseconds
_NO_EVENTS = (None, 0, None)  #: signal no event, wait for none

_ERRORS = {
    0x70000001: "DEVICE_LOST",
    0x70000002: "OUT_OF_HOST_MEMORY",
    0x70000003: "OUT_OF_DEVICE_MEMORY",
    0x70000004: "MODULE_BUILD_FAILURE",
    0x70000005: "MODULE_LINK_FAILURE",
    0x70010000: "INSUFFICIENT_PERMISSIONS",
    0x70010001: "NOT_AVAILABLE",
    0x70020000: "DEPENDENCY_UNAVAILABLE",
    0x78000001: "UNINITIALIZED",
    0x78000003: "UNSUPPORTED_FEATURE",
    0x78000004: "INVALID_ARGUMENT",
    0x78000005: "INVALID_NULL_HANDLE",
    0x78000007: "INVALID_NULL_POINTER",
    0x78000008: "INVALID_SIZE",
    0x78000009: "UNSUPPORTED_SIZE",
    0x7800000F: "INVALID_NATIVE_BINARY",
    0x78000011: "INVALID_KERNEL_NAME",
    0x78000013: "INVALID_GROUP_SIZE_DIMENSION",
    0x78000015: "INVALID_KERNEL_ARGUMENT_INDEX",
    0x78000016: "INVALID_KERNEL_ARGUMENT_SIZE",
    0x7FFFFFFE: "UNKNOWN",
}


def _error_name(_: c.CDLL, status: int) -> str:
    return f"ZE_RESULT_ERROR_{_ERRORS[status]}" if status in _ERRORS else "unknown error"


@frozen(eq=False)
class _Function:
    handle: c.c_void_p


@define(eq=False)
class _Module:
    library: Library
    handle: c.c_void_p
    functions: list[_Function] = attrs.field(factory=list)

    def function(self, name: str) -> _Function:
        handle = _P()
        self.library.call("zeKernelCreate", self.handle, c.byref(_Kernel(name=name.encode())), c.byref(handle))
        self.functions.append(_Function(handle))
        return self.functions[-1]

    def unload(self) -> None:
        while self.functions:
            self.library.call("zeKernelDestroy", self.functions.pop().handle)
        self.library.call("zeModuleDestroy", self.handle)


@frozen(eq=False)
class _Event:
    """A point in a stream: the device writes its timestamp to host memory."""

    library: Library
    context: c.c_void_p
    stream: int
    address: int

    @property
    def ticks(self) -> int:
        return c.c_uint64.from_address(self.address).value

    def __del__(self) -> None:
        self.library.status("zeMemFree", self.context, self.address)


class Device:
    """One GPU; `convgen.backends.device` explains the members."""

    runs: tuple[str, ...] = ()  # the driver refuses code for another product
    dlpack = 14  #: kDLOneAPI
    also: tuple[int, ...] = ()
    cuda_interface = False
    suffix = FAMILY.object_suffix
    alignment = RUNTIME.alignment
    has_foreign_memory = False  #: memory of another context is not ours to use

    def __init__(self, number: int) -> None:
        """Open a GPU by number. Raises UserError if the library or the GPU is missing."""
        self.name, self.number = f"{RUNTIME.kind}:{number}", number
        self.library = Library.find(NAMES, VARIABLE, "the loader of Level Zero", _SIGNATURES, _error_name)
        gpus = [] if self.library.status("zeInit", 0) else list(self._found())
        if number >= len(gpus):
            present = f"level_zero:0 to level_zero:{len(gpus) - 1}" if gpus else "a GPU, but Level Zero finds none"
            raise UserError(f"given the device {self.name}, wanted {present}")
        driver, self.handle, properties = gpus[number]
        self._handles = [handle.value for _, handle, _ in gpus]
        self.title = properties.model.decode(errors="replace")
        self._timer, self._timer_bits = properties.timer, properties.timer_bits
        self.context, self._pending = _P(), dict[int, list[c.c_void_p]]()
        self.library.call("zeContextCreate", driver, c.byref(_Context()), c.byref(self.context))
        self._ordinal = self._compute_group()
        self._own = self.new_stream()

    def _found(self) -> Iterator[tuple[c.c_void_p, c.c_void_p, Any]]:
        """Yield the driver, handle and properties of each GPU."""
        for driver in self._listed("zeDriverGet"):
            for device in self._listed("zeDeviceGet", driver):
                properties = _Properties()
                self.library.call("zeDeviceGetProperties", device, c.byref(properties))
                if properties.kind == _GPU:
                    yield driver, device, properties

    def _listed(self, function: str, *of: Any) -> list[c.c_void_p]:
        count = _U32()
        self.library.call(function, *of, c.byref(count), None)
        handles = (_P * count.value)()
        self.library.call(function, *of, c.byref(count), handles)
        return [_P(handle) for handle in handles]

    def _compute_group(self) -> int:
        """Return the ordinal of the first queue group that launches kernels."""
        count = _U32()
        self.library.call("zeDeviceGetCommandQueueGroupProperties", self.handle, c.byref(count), None)
        groups = (type(_Group()) * count.value)(*(_Group() for _ in range(count.value)))
        self.library.call("zeDeviceGetCommandQueueGroupProperties", self.handle, c.byref(count), groups)
        return next(number for number, group in enumerate(groups) if group.flags & _COMPUTE)

    # ------------------------------------------------------------ memory

    def allocate(self, size: int) -> int:
        address, descriptor = _P(), _DeviceMemory()
        self.library.call(
            "zeMemAllocDevice", self.context, c.byref(descriptor), max(1, size), _PAGE, self.handle, c.byref(address)
        )
        return address.value or 0

    def free(self, address: int) -> None:
        for stream in list(self._pending):  # the driver frees memory that a kernel still uses
            self.synchronize(stream)
        self.library.call("zeMemFree", self.context, address)

    def region(self, address: int) -> Region | None:
        properties, device, base, size = _Allocation(), _P(), _P(), _SIZE()
        status = self.library.status(
            "zeMemGetAllocProperties", self.context, address, c.byref(properties), c.byref(device)
        )
        if status or properties.kind not in _ON_DEVICE:
            return None
        if self.library.status("zeMemGetAddressRange", self.context, address, c.byref(base), c.byref(size)):
            return None
        number = self._handles.index(device.value) if device.value in self._handles else self.number
        return Region(base.value or 0, size.value, number)

    def upload(self, address: int, data: Bytes, stream: int) -> None:
        self._copy(address, data.ctypes.data, data.nbytes, stream)

    def download(self, data: Bytes, address: int, stream: int) -> None:
        self._copy(data.ctypes.data, address, data.nbytes, stream)

    def _copy(self, to: int, source: int, size: int, stream: int) -> None:
        if size:
            self._put(stream, lambda at: self._append(at, "MemoryCopy", to, source, size))
            self.synchronize(stream)

    def fill(self, address: int, size: int, byte: int, stream: int) -> None:
        pattern = c.c_uint8(byte)
        self._put(stream, lambda at: self._append(at, "MemoryFill", address, c.byref(pattern), 1, size))

    # ------------------------------------------------------------ code

    def load(self, content: bytes) -> _Module:
        module, log = _P(), _P()
        descriptor = _Code(format=_NATIVE, size=len(content), code=c.cast(c.c_char_p(content), _P))
        status = self.library.status(
            "zeModuleCreate", self.context, self.handle, c.byref(descriptor), c.byref(module), c.byref(log)
        )
        log_text = self._build_log(log)
        if status:
            name = _error_name(self.library.handle, status)
            raise DeviceError(f"zeModuleCreate failed: {name} ({status:#x}){log_text}")
        return _Module(self.library, module)

    def _build_log(self, log: c.c_void_p) -> str:
        """Return the driver's build log, to be appended to an error; empty if there is none."""
        if not log:
            return ""
        size = _SIZE()
        self.library.call("zeModuleBuildLogGetString", log, c.byref(size), None)
        text = c.create_string_buffer(size.value + 1)
        self.library.call("zeModuleBuildLogGetString", log, c.byref(size), text)
        self.library.call("zeModuleBuildLogDestroy", log)
        line = visible(re.sub(r"\s+", " ", text.value.decode(errors="replace")).strip())
        return f": {line}" if line else ""

    def launcher(self, function: Function, request: LaunchRequest) -> Launcher:
        assert isinstance(function, _Function)
        return partial(self._launch, function, request)

    def _launch(self, function: _Function, request: LaunchRequest, addresses: Mapping[str, int], stream: int) -> None:
        call = call_of(request, addresses, self.name)
        for number, (_, value) in enumerate(call.arguments):
            self.library.call("zeKernelSetArgumentValue", function.handle, number, len(value), value)
        self.library.call("zeKernelSetGroupSize", function.handle, *call.workgroup)
        grid = (_U32 * 3)(*call.grid)
        self._put(stream, lambda at: self._append(at, "LaunchKernel", function.handle, grid))

    # ------------------------------------------------------------ streams

    def _put(self, stream: int, append: Callable[[c.c_void_p], None]) -> None:
        """Enqueue a command list with the operation that `append` adds to it."""
        queue, commands = stream or self._own, _P()
        if len(self._pending.get(queue, [])) >= _MOST_PENDING:
            self.synchronize(queue)
        descriptor = _List(ordinal=self._ordinal)
        self.library.call("zeCommandListCreate", self.context, self.handle, c.byref(descriptor), c.byref(commands))
        self._pending.setdefault(queue, []).append(commands)
        append(commands)
        self._append(commands, "Barrier")
        self.library.call("zeCommandListClose", commands)
        self.library.call("zeCommandQueueExecuteCommandLists", queue, 1, c.byref(commands), None)

    def _append(self, commands: c.c_void_p, function: str, *arguments: Any) -> None:
        self.library.call(f"zeCommandListAppend{function}", commands, *arguments, *_NO_EVENTS)

    def new_stream(self) -> int:
        queue, descriptor = _P(), _Queue(ordinal=self._ordinal)
        self.library.call("zeCommandQueueCreate", self.context, self.handle, c.byref(descriptor), c.byref(queue))
        return queue.value or 0

    def end_stream(self, stream: int) -> None:
        self.synchronize(stream)
        self.library.call("zeCommandQueueDestroy", stream)

    def synchronize(self, stream: int) -> None:
        queue = stream or self._own
        self.library.call("zeCommandQueueSynchronize", queue, _FOREVER)
        for commands in self._pending.pop(queue, []):
            self.library.call("zeCommandListDestroy", commands)

    def record(self, stream: int) -> _Event:
        address = _P()
        self.library.call("zeMemAllocHost", self.context, c.byref(_HostMemory()), 8, 8, c.byref(address))
        event = _Event(self.library, self.context, stream, address.value or 0)
        self._put(stream, lambda at: self._append(at, "WriteGlobalTimestamp", address))
        return event

    def seconds(self, first: Event, last: Event) -> float:
        assert isinstance(first, _Event)
        assert isinstance(last, _Event)
        self.synchronize(last.stream)
        ticks: int = (last.ticks - first.ticks) % (1 << self._timer_bits)
        return ticks / float(self._timer)
