"""Device by which kernels are launched, whoever made it, and what a family's runtime gives for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from convgen.backends.simulation import Bytes
from convgen.ir.record import frozen

Extents: TypeAlias = tuple[int, int, int]


@frozen
class Region:
    """An allocation: where it begins, its bytes, and the number of the device that it belongs to."""

    base: int
    size: int
    device: int


@frozen
class Call:
    """One launch, ready: each argument's bytes at its offset in a block of `block_size` bytes."""

    grid: Extents  #: workgroups
    workgroup: Extents  #: work-items
    arguments: Sequence[tuple[int, bytes]]
    block_size: int
    shared_bytes: int  #: local memory of a workgroup, in all


class Function(Protocol):
    """A kernel of a loaded code object."""


class Module(Protocol):
    """A code object on a device."""

    def function(self, name: str) -> Function:
        """A kernel by name. Raises DeviceError."""

    def unload(self) -> None:
        """Give it back; its functions are none any more."""


class Event(Protocol):
    """A point in a stream."""


class Device(Protocol):
    """A device. Addresses and streams are numbers; stream 0 is the device's own. Sizes are bytes.

    What is put into a stream runs behind what was put there before. All raise DeviceError where the runtime refuses.
    """

    name: str  #: the runtime's kind, a colon and the number
    number: int
    arch: str  #: of its code, as targets are named; "" where the runtime does not tell
    title: str  #: as its maker calls it
    dlpack: int  #: the kind of device in DLPack
    also: tuple[int, ...]  #: kinds by which frameworks may call it instead
    cuda_interface: bool  #: whether tensors on it may have `__cuda_array_interface__`
    suffix: str  #: of files with code objects for it
    alignment: int  #: of addresses, which kernels take for granted
    strangers: bool  #: whether there is memory that kernels may use and `region` does not know

    def allocate(self, size: int) -> int: ...

    def free(self, address: int) -> None:
        """Give memory back, once all that was put into streams is done: some of it may use it."""

    def region(self, address: int) -> Region | None:
        """The allocation that holds an address; None where it is in none that lives."""

    def upload(self, address: int, data: Bytes, stream: int) -> None:
        """Copy to the device; the bytes may change when this returns."""

    def download(self, data: Bytes, address: int, stream: int) -> None:
        """Copy to the host; the bytes are there when this returns."""

    def fill(self, address: int, size: int, byte: int, stream: int) -> None: ...

    def load(self, content: bytes) -> Module: ...

    def launch(self, function: Function, call: Call, stream: int) -> None: ...

    def new_stream(self) -> int: ...

    def end_stream(self, stream: int) -> None: ...

    def synchronize(self, stream: int) -> None:
        """Wait until all that was put into a stream is done."""

    def record(self, stream: int) -> Event:
        """A point behind all that was put into a stream so far."""

    def seconds(self, first: Event, last: Event) -> float:
        """What passed on the device between two points, once the last is reached."""
