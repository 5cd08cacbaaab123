"""Check the arguments of a kernel: arrays on the host, or memory of a device.

Arrays on the host come by DLPack, `__array_interface__` or `__array__`, with any strides, and are copied. A tensor on
the device is used in place, by DLPack or `__cuda_array_interface__`: with the sizes, type and strides of the argument,
or as one row of its elements or bytes in memory order; a buffer of one dim takes any dense tensor with its elements. A
number is an address.
"""

from __future__ import annotations

import ctypes as c
from math import prod
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from convgen.backends.device import Device
from convgen.device import dlpack
from convgen.device.allocated import DeviceArray
from convgen.ir import types
from convgen.ir.error import UserError
from convgen.ir.record import frozen
from convgen.run.launch_record import StoredTensor
from convgen.run.reference import Array


class SupportsDLPack(Protocol):
    """A tensor that its library shares: torch, cupy, numpy, jax and others."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


class SupportsCudaInterface(Protocol):
    """An array on a device as numba has it."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


class Torch(SupportsDLPack, Protocol):
    """A torch tensor, as far as convgen needs it; torch need not be installed."""

    @property
    def is_sparse(self) -> bool: ...

    @property
    def requires_grad(self) -> bool: ...


TorchT = TypeVar("TorchT", bound=Torch)

#: A value that a kernel takes by name: a tensor of the host or of the device, an address, or a size known at launch.
Argument: TypeAlias = "DeviceArray | SupportsDLPack | SupportsCudaInterface | npt.ArrayLike"


@frozen(eq=False)
class OnHost:
    """A logical array on the host, possibly a view of the caller's memory."""

    name: str
    array: Array
    writable: bool
    owner: Any


@frozen(eq=False)
class OnDevice:
    """Memory of a device. Sizes and type are None if only the address is known."""

    name: str
    address: int
    dims: tuple[int, ...] | None
    strides: tuple[int, ...] | None  #: in elements
    dtype: str | None
    writable: bool
    owner: Any
    stored: StoredTensor | None = None  #: layout of a `DeviceArray`


Given = OnHost | OnDevice


def locate(name: str, given: Argument | None, device: Device, stream: int) -> Given:
    """Return where the value of argument `name` is, without a copy.

    Raises UserError for a value that is no tensor, or is on another device.
    """
    if isinstance(given, DeviceArray):
        _check_device(name, given.device.name, device)
        try:
            shared = given.shared()
        except UserError as error:
            raise UserError(f"{error}, as {name}") from None
        return OnDevice(name, shared.address, shared.dims, shared.strides, shared.dtype, True, given, given.tensor)
    if isinstance(given, bool) or given is None:
        raise UserError(f"given {name}={given}, wanted a tensor or an address")
    if isinstance(given, int | np.integer) and not isinstance(given, np.ndarray):
        return _pointer(name, int(given))
    if isinstance(given, np.ndarray):
        return OnHost(name, given, given.flags.writeable, given)
    if hasattr(given, "__dlpack__") and hasattr(given, "__dlpack_device__"):
        return _of_dlpack(name, given, device, stream)
    if hasattr(given, "__cuda_array_interface__"):
        return _of_interface(name, given, device)
    if hasattr(given, "__array_interface__") or hasattr(given, "__array__"):
        array = np.asarray(given)
        return OnHost(name, array, array.flags.writeable, given)
    raise UserError(f"given {name} of type {type(given).__name__}, wanted a tensor (DLPack, an array) or an address")


def _pointer(name: str, address: int) -> OnDevice:
    if not 0 < address < 1 << 64:
        raise UserError(f"given {name}={address}, wanted an address")
    return OnDevice(name, address, None, None, None, True, None)


def _check_device(name: str, given: str, device: Device) -> None:
    if given != device.name:
        raise UserError(f"given {name} on {given}, wanted it on {device.name}, where the kernel is, or on the host")


def _of_dlpack(name: str, given: Any, device: Device, stream: int) -> Given:
    try:
        shared = dlpack.receive(given, stream)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise UserError(f"given {name} that its owner does not share, wanted a tensor: {error}") from None
    if shared.kind in dlpack.HOST:
        return OnHost(name, _array(name, shared), shared.writable, given)
    kind = dlpack.DEVICES.get(shared.kind, f"device kind {shared.kind}")
    ours = shared.kind in (device.dlpack, *device.also)
    _check_device(name, f"{device.name.split(':')[0] if ours else kind}:{shared.device}", device)
    return OnDevice(name, shared.address, shared.dims, shared.strides, shared.dtype, shared.writable, shared.owner)


def _array(name: str, shared: dlpack.SharedTensor) -> Array:
    """Return a view of host memory."""
    if shared.dtype not in dlpack.TYPES:
        raise UserError(f"given {name} of {shared.dtype}, wanted a type of {', '.join(dlpack.TYPES)}")
    dtype = types.scalar(shared.dtype)
    if dtype.spacing < 8:
        raise UserError(f"given {name} of {shared.dtype} by DLPack, wanted a numpy array, an element a byte")
    if 0 in shared.dims:
        return np.empty(shared.dims, dtype.numpy)
    steps = [stride * (size - 1) for size, stride in zip(shared.dims, shared.strides)]
    first, last = sum(min(0, step) for step in steps), sum(max(0, step) for step in steps)
    size = dtype.bytes
    memory = (c.c_char * ((last - first + 1) * size)).from_address(shared.address + first * size)
    memory.owner = shared.owner  # type: ignore[attr-defined]  # lives as long as the view
    view: Array = np.ndarray(
        shared.dims, dtype.numpy, memoryview(memory), -first * size, [stride * size for stride in shared.strides]
    )
    view.flags.writeable = shared.writable
    return view


def _of_interface(name: str, given: Any, device: Device) -> OnDevice:
    interface = given.__cuda_array_interface__
    try:
        dims, dtype = tuple(map(int, interface["shape"])), np.dtype(interface["typestr"])
        address, read_only = interface["data"]
        steps = interface.get("strides")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"given {name} whose __cuda_array_interface__ lacks or breaks {error}") from None
    if not device.cuda_interface:
        _check_device(name, "a device of __cuda_array_interface__", device)
    if steps is not None and any(step % dtype.itemsize for step in steps):
        raise UserError(f"given {name} of strides {tuple(steps)} bytes, wanted multiples of {dtype.itemsize}")
    strides = dlpack.dense(dims) if steps is None else tuple(step // dtype.itemsize for step in steps)
    return OnDevice(name, address, dims, strides, name_of(dtype), not read_only, given)


def name_of(dtype: np.dtype[Any]) -> str:
    """Return convgen's name of a numpy type, or numpy's."""
    return next((name for name in dlpack.TYPES if types.scalar(name).numpy == dtype), str(dtype))


def check(given: Given, wanted: StoredTensor, device: Device, *, written: bool) -> None:
    """Refuse wrong sizes, types, orders in memory, and memory that does not exist. Raises UserError."""
    if written and not given.writable:
        raise UserError(f"given {given.name} that is read-only, wanted one that can be written")
    if isinstance(given, OnHost):
        _check_logical(given.name, given.array.shape, name_of(given.array.dtype), wanted)
        return
    if given.stored is not None:
        _check_stored(given.name, given.stored, wanted)
    elif given.dims is not None and given.dtype is not None and given.strides is not None:
        _check_placement(given.name, given.dims, given.strides, given.dtype, wanted)
    _check_memory(given, wanted, device)


def _type_text(dtype: str, dims: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, dims))}]"


def _check_logical(name: str, dims: tuple[int, ...], dtype: str, wanted: StoredTensor) -> None:
    if (dims, dtype) != (wanted.dims, wanted.dtype):
        raise UserError(f"given {name} of {_type_text(dtype, dims)}, wanted {_type_text(wanted.dtype, wanted.dims)}")


def _check_stored(name: str, stored: StoredTensor, wanted: StoredTensor) -> None:
    _check_logical(name, stored.dims, stored.dtype, wanted)
    if stored.layout != wanted.layout:
        raise UserError(f"given {name} of layout {stored.tag}, wanted {wanted.tag}")


def _check_placement(
    name: str, dims: tuple[int, ...], strides: tuple[int, ...], dtype: str, wanted: StoredTensor
) -> None:
    """Refuse a tensor on the device whose sizes, type or strides are not the argument's. Raises UserError."""
    layout = wanted.layout
    rows = {(wanted.dtype, layout.size_elems), ("u8", wanted.layout_bytes)}
    if len(dims) == 1 and strides == (1,) and (dtype, dims[0]) in rows:
        return
    if len(wanted.dims) == 1 and strides == dlpack.dense(dims) and (dtype, prod(dims)) in rows:
        return
    if not layout.is_plain:
        given, row = _type_text(dtype, dims), _type_text(wanted.dtype, (layout.size_elems,))
        raise UserError(f"given {name} of {given} on the device, wanted {row} in the order of {wanted.tag}")
    _check_logical(name, dims, dtype, wanted)
    if any(size > 1 and a != b for size, a, b in zip(dims, strides, layout.strides())):
        raise UserError(f"given {name} of strides {strides}, wanted {layout.strides()} ({wanted.tag})")


def _check_memory(given: OnDevice, wanted: StoredTensor, device: Device) -> None:
    """Refuse memory that is not live memory of the device, as far as the runtime knows. Raises UserError."""
    size = wanted.layout_bytes
    region = device.region(given.address)
    if region is None and not (device.has_foreign_memory and given.dims is not None):
        reason = "freed, or of the host" if device.has_foreign_memory else "freed, of the host, or of another context"
        raise UserError(f"given {given.name} at {given.address:#x}, wanted memory of {device.name}: this is {reason}")
    if region is not None and region.device != device.number:
        where = f"of device {region.device}"
        raise UserError(f"given {given.name} at {given.address:#x}, wanted memory of {device.name}: this is {where}")
    if given.address % device.alignment:
        raise UserError(f"given {given.name} at {given.address:#x}, wanted an address that {device.alignment} divides")
    available = size if region is None else region.base + region.size - given.address
    if available < size:
        raise UserError(f"given {given.name} at {given.address:#x} with {available} bytes behind it, wanted {size}")
