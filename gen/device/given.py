"""What an argument of a kernel was given as: an array of the host, or memory of a device, held to what is wanted.

Arrays of the host are taken by DLPack, `__array_interface__` or `__array__`, in any strides, and are copied. On a
device a tensor is used where it lies, by DLPack or `__cuda_array_interface__`: with the sizes, the type and the strides
of the argument, or as one row of its elements or bytes in their order in memory; a buffer of one dim takes any
dense tensor with its elements. A number is an address.
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

#: What a kernel takes by name: a tensor of the host or of the device, an address, or a size known at launch.
Argument: TypeAlias = "DeviceArray | SupportsDLPack | SupportsCudaInterface | npt.ArrayLike"


@frozen(eq=False)
class OnHost:
    """A logical array, which may be a view of somebody's memory."""

    name: str
    array: Array
    writable: bool
    owner: Any


@frozen(eq=False)
class OnDevice:
    """Memory of a device. Sizes and type are None where nothing is known but the address."""

    name: str
    address: int
    dims: tuple[int, ...] | None
    strides: tuple[int, ...] | None  #: in elements
    dtype: str | None
    writable: bool
    owner: Any
    stored: StoredTensor | None = None  #: of what is ours


Given = OnHost | OnDevice


def look(name: str, given: Argument | None, device: Device, stream: int) -> Given:
    """What was given as the argument `name`. Raises UserError for what is no tensor, or lies on another device."""
    if isinstance(given, DeviceArray):
        _check_device(name, given.device.name, device)
        try:
            seen = given.seen()
        except UserError as error:
            raise UserError(f"{error}, as {name}") from None
        return OnDevice(name, seen.address, seen.dims, seen.strides, seen.dtype, True, given, given.tensor)
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
        seen = dlpack.see(given, stream)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise UserError(f"given {name} that its owner does not share, wanted a tensor: {error}") from None
    if seen.kind in dlpack.HOST:
        return OnHost(name, _array(name, seen), seen.writable, given)
    kind = dlpack.DEVICES.get(seen.kind, f"device kind {seen.kind}")
    ours = seen.kind in (device.dlpack, *device.also)
    _check_device(name, f"{device.name.split(':')[0] if ours else kind}:{seen.device}", device)
    return OnDevice(name, seen.address, seen.dims, seen.strides, seen.dtype, seen.writable, seen.owner)


def _array(name: str, seen: dlpack.Seen) -> Array:
    """A view of memory of the host."""
    if seen.dtype not in dlpack.TYPES:
        raise UserError(f"given {name} of {seen.dtype}, wanted a type of {', '.join(dlpack.TYPES)}")
    dtype = types.scalar(seen.dtype)
    if dtype.spacing < 8:
        raise UserError(f"given {name} of {seen.dtype} by DLPack, wanted a numpy array, an element a byte")
    if 0 in seen.dims:
        return np.empty(seen.dims, dtype.numpy)
    steps = [stride * (size - 1) for size, stride in zip(seen.dims, seen.strides)]
    first, last = sum(min(0, step) for step in steps), sum(max(0, step) for step in steps)
    size = dtype.bytes
    held = (c.c_char * ((last - first + 1) * size)).from_address(seen.address + first * size)
    held.owner = seen.owner  # type: ignore[attr-defined]  # lives as long as the view
    view: Array = np.ndarray(
        seen.dims, dtype.numpy, memoryview(held), -first * size, [stride * size for stride in seen.strides]
    )
    view.flags.writeable = seen.writable
    return view


def _of_interface(name: str, given: Any, device: Device) -> OnDevice:
    told = given.__cuda_array_interface__
    try:
        dims, dtype = tuple(map(int, told["shape"])), np.dtype(told["typestr"])
        address, read_only = told["data"]
        steps = told.get("strides")
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"given {name} whose __cuda_array_interface__ lacks or breaks {error}") from None
    if not device.cuda_interface:
        _check_device(name, "a device of __cuda_array_interface__", device)
    if steps is not None and any(step % dtype.itemsize for step in steps):
        raise UserError(f"given {name} of strides {tuple(steps)} bytes, wanted multiples of {dtype.itemsize}")
    strides = dlpack.dense(dims) if steps is None else tuple(step // dtype.itemsize for step in steps)
    return OnDevice(name, address, dims, strides, name_of(dtype), not read_only, given)


def name_of(dtype: np.dtype[Any]) -> str:
    """Our name of a numpy type, or numpy's."""
    return next((name for name in dlpack.TYPES if types.scalar(name).numpy == dtype), str(dtype))


def check(given: Given, wanted: StoredTensor, device: Device, *, written: bool) -> None:
    """Refuse what the argument cannot be: sizes, type, order in memory, memory that is not there. Raises UserError."""
    if written and not given.writable:
        raise UserError(f"given {given.name} that is read-only, wanted one that can be written")
    if isinstance(given, OnHost):
        _check_logical(given.name, given.array.shape, name_of(given.array.dtype), wanted)
        return
    if given.stored is not None:
        _check_stored(given.name, given.stored, wanted)
    elif given.dims is not None and given.dtype is not None and given.strides is not None:
        _check_lying(given.name, given.dims, given.strides, given.dtype, wanted)
    _check_memory(given, wanted, device)


def _told(dtype: str, dims: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, dims))}]"


def _check_logical(name: str, dims: tuple[int, ...], dtype: str, wanted: StoredTensor) -> None:
    if (dims, dtype) != (wanted.dims, wanted.dtype):
        raise UserError(f"given {name} of {_told(dtype, dims)}, wanted {_told(wanted.dtype, wanted.dims)}")


def _check_stored(name: str, stored: StoredTensor, wanted: StoredTensor) -> None:
    _check_logical(name, stored.dims, stored.dtype, wanted)
    if stored.layout != wanted.layout:
        raise UserError(f"given {name} of layout {stored.tag}, wanted {wanted.tag}")


def _check_lying(name: str, dims: tuple[int, ...], strides: tuple[int, ...], dtype: str, wanted: StoredTensor) -> None:
    """Whether a tensor is what the argument wants where it lies."""
    layout = wanted.layout
    rows = {(wanted.dtype, layout.size_elems), ("u8", types.scalar(wanted.dtype).size(layout.size_elems))}
    if len(dims) == 1 and strides == (1,) and (dtype, dims[0]) in rows:
        return
    if len(wanted.dims) == 1 and strides == dlpack.dense(dims) and (dtype, prod(dims)) in rows:
        return
    if not layout.is_plain:
        given, row = _told(dtype, dims), _told(wanted.dtype, (layout.size_elems,))
        raise UserError(f"given {name} of {given} on the device, wanted {row} in the order of {wanted.tag}")
    _check_logical(name, dims, dtype, wanted)
    if any(size > 1 and a != b for size, a, b in zip(dims, strides, layout.strides())):
        raise UserError(f"given {name} of strides {strides}, wanted {layout.strides()} ({wanted.tag})")


def _check_memory(given: OnDevice, wanted: StoredTensor, device: Device) -> None:
    """Whether all of it is living memory of the device, as far as the runtime knows; a tensor's owner knows, too."""
    size = types.scalar(wanted.dtype).size(wanted.layout.size_elems)
    region = device.region(given.address)
    if region is None and not (device.strangers and given.dims is not None):
        what = "freed, or of the host" if device.strangers else "freed, of the host, or of another context"
        raise UserError(f"given {given.name} at {given.address:#x}, wanted memory of {device.name}: this is {what}")
    if region is not None and region.device != device.number:
        where = f"of device {region.device}"
        raise UserError(f"given {given.name} at {given.address:#x}, wanted memory of {device.name}: this is {where}")
    if given.address % device.alignment:
        raise UserError(f"given {given.name} at {given.address:#x}, wanted an address that {device.alignment} divides")
    there = size if region is None else region.base + region.size - given.address
    if there < size:
        raise UserError(f"given {given.name} at {given.address:#x} with {there} bytes behind it, wanted {size}")
