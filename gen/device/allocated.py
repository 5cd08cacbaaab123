"""Tensors in device memory that convgen allocates, in any layout; other libraries share them by DLPack."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from convgen.backends.device import Device
from convgen.backends.library import DeviceError
from convgen.device import dlpack
from convgen.ir.error import UserError
from convgen.ir.layout.tags import Layout
from convgen.run import reference
from convgen.run.launch_record import StoredTensor
from convgen.run.reference import Array


def fetched(device: Device, tensor: StoredTensor, address: int, stream: int) -> Array:
    """Return the logical tensor at an address, after all operations enqueued in a stream."""
    memory = np.empty(tensor.layout_bytes, np.uint8)
    device.download(memory, address, stream)
    return reference.unpack(tensor, tensor.dtype, memory)


class DeviceArray:
    """A tensor on a device, freed with the object, by `free`, or at the end of a `with` block.

    `tensor` has its logical sizes, layout and type.
    """

    def __init__(self, device: Device, tensor: StoredTensor) -> None:
        """Allocate undefined memory. Raises DeviceError."""
        self.device, self.tensor = device, tensor
        self._address: int | None = device.allocate(tensor.bytes)

    @classmethod
    def of(cls, device: Device, tensor: StoredTensor, logical: Array, stream: int = 0) -> DeviceArray:
        """Return a tensor with the contents of a logical array; padding is zero."""
        memory = reference.pack(tensor, np.asarray(logical))
        array = cls(device, tensor)
        device.upload(array.address, memory, stream)
        return array

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.tensor.dims))
        return f"<{self.tensor.dtype} {sizes} {self.tensor.tag} on {self.device.name}>"

    @property
    def address(self) -> int:
        """Return the address. Raises UserError after `free`."""
        if self._address is None:
            raise UserError(f"given {self!r}, which was freed, wanted one that is still allocated")
        return self._address

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.dims

    def numpy(self, stream: int = 0) -> Array:
        """Return a logical copy on the host, after all operations enqueued in a stream."""
        return fetched(self.device, self.tensor, self.address, stream)

    def free(self) -> None:
        """Free the memory; further calls do nothing."""
        if self._address is not None:
            address, self._address = self._address, None
            self.device.free(address)

    def __enter__(self) -> DeviceArray:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __del__(self) -> None:
        if getattr(self, "_address", None) is not None:
            with suppress(DeviceError):  # at the process's end the runtime may be gone
                self.free()

    def shared(self) -> dlpack.SharedTensor:
        """Return the tensor with its strides; one with a blocked layout as a row of all its elements."""
        layout = self.tensor.layout
        flat = Layout.dense((layout.size_elems,), (0,))
        seen = layout if layout.is_plain else flat
        return dlpack.SharedTensor(
            self.address,
            seen.dims,
            seen.strides(),
            self.tensor.dtype,
            self.device.dlpack,
            self.device.number,
            True,
            self,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack, self.device.number

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, **_: Any) -> Any:
        """Return a DLPack capsule. Operations of the default stream are complete; `stream` need not wait for them."""
        self.device.synchronize(0)
        return dlpack.share(self.shared(), versioned=max_version is not None and max_version[0] >= 1)
