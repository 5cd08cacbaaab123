"""Tensors in memory of a device that we took, in any layout; other libraries take them by DLPack."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from convgen.backends.device import Device
from convgen.backends.library import DeviceError
from convgen.device import dlpack
from convgen.ir import types
from convgen.ir.error import UserError
from convgen.ir.layout.tags import Layout
from convgen.run import reference
from convgen.run.launch_record import StoredTensor
from convgen.run.reference import Array


def fetched(device: Device, tensor: StoredTensor, address: int, stream: int) -> Array:
    """The logical tensor at an address, behind all that was put into a stream."""
    memory = np.empty(types.scalar(tensor.dtype).size(tensor.layout.size_elems), np.uint8)
    device.download(memory, address, stream)
    return reference.unpack(tensor, tensor.dtype, memory)


class DeviceArray:
    """A tensor on a device. It is freed when it is let go, or by `free`; as a context, behind the block.

    `tensor` tells its logical sizes, layout and type.
    """

    def __init__(self, device: Device, tensor: StoredTensor) -> None:
        """Memory of which nothing is defined yet. Raises DeviceError."""
        self.device, self.tensor = device, tensor
        self._address: int | None = device.allocate(tensor.bytes)

    @classmethod
    def of(cls, device: Device, tensor: StoredTensor, logical: Array, stream: int = 0) -> DeviceArray:
        """A copy of a logical array; padding is zero."""
        memory = reference.pack(tensor, np.asarray(logical))
        made = cls(device, tensor)
        device.upload(made.address, memory, stream)
        return made

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.tensor.dims))
        return f"<{self.tensor.dtype} {sizes} {self.tensor.tag} on {self.device.name}>"

    @property
    def address(self) -> int:
        """Raises UserError where it was freed."""
        if self._address is None:
            raise UserError(f"given {self!r}, which was freed, wanted one that was not")
        return self._address

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.dims

    def numpy(self, stream: int = 0) -> Array:
        """A logical copy on the host, of what is there behind all that was put into a stream."""
        return fetched(self.device, self.tensor, self.address, stream)

    def free(self) -> None:
        """Give the memory back; once is enough."""
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

    def seen(self) -> dlpack.Seen:
        """As strides tell it: of a layout with blocks, all elements in a row."""
        layout = self.tensor.layout
        flat = Layout.dense((layout.size_elems,), (0,))
        dims, strides = (each := layout if layout.is_plain else flat).dims, each.strides()
        return dlpack.Seen(
            self.address, dims, strides, self.tensor.dtype, self.device.dlpack, self.device.number, True, self
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.dlpack, self.device.number

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, **_: Any) -> Any:
        """Shared with who takes it, which `stream` need not wait for: what we put into others is awaited here."""
        self.device.synchronize(0)
        return dlpack.show(self.seen(), versioned=max_version is not None and max_version[0] >= 1)
