"""Protocols of a device that launches kernels; each family's runtime implements them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from convgen.backends.simulation import Bytes, Encoded, LaunchRequest
from convgen.ir.error import Unsupported
from convgen.ir.record import frozen

Extents: TypeAlias = tuple[int, int, int]

#: Enqueues a launch in a stream, given the address of each buffer by name.
Launcher: TypeAlias = Callable[[Mapping[str, int], int], None]


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

    def block(self) -> bytes:
        """Return the block of arguments; bytes of no argument are zero."""
        block = bytearray(self.block_size)
        for offset, value in self.arguments:
            block[offset : offset + len(value)] = value
        return bytes(block)


def call_of(request: LaunchRequest, addresses: Mapping[str, int], device: str) -> Call:
    """Return a launch with every buffer at its address, for a runtime that encodes no arguments.

    Raises Unsupported, which names the device, for a tensor map.
    """
    arguments = [(a.offset, _bytes_of(a.value, addresses, device)) for a in request.args]
    size = max([request.kernarg_size, *(a.offset + a.size for a in request.args)])
    return Call(request.grid, request.workgroup, arguments, size, request.shared_bytes)


def _bytes_of(value: str | bytes | Encoded, addresses: Mapping[str, int], device: str) -> bytes:
    """Return the bytes of an argument: an address, or the value of a scalar."""
    match value:
        case str(buffer):
            return addresses[buffer].to_bytes(8, "little")
        case bytes():
            return value
    given = f"given a tensor map of {value.buffer} for {device}, whose runtime encodes none"
    raise Unsupported(f"{given}; wanted code whose arguments are buffers and scalars", rule="device")


class Function(Protocol):
    """A kernel of a loaded code object."""


class Module(Protocol):
    """A code object on a device."""

    def function(self, name: str) -> Function:
        """Return a kernel by name. Raises DeviceError."""

    def unload(self) -> None:
        """Unload the code object; its functions are invalid afterwards."""


class Event(Protocol):
    """A point in a stream."""


class Device(Protocol):
    """A device of a runtime. Addresses and streams are numbers; stream 0 is the device's default stream. Sizes are
    bytes.

    Operations of one stream run in the order in which they were enqueued. All methods raise DeviceError if the runtime
    fails.
    """

    name: str  #: `KIND:NUMBER`, where KIND is the runtime's
    number: int
    runs: tuple[str, ...]  #: names of the targets whose code it runs, its own last; empty if the runtime has no report
    title: str  #: the vendor's name of the product
    dlpack: int  #: DLPack's device type
    also: tuple[int, ...]  #: further DLPack device types that frameworks use for it
    cuda_interface: bool  #: whether tensors on it may have `__cuda_array_interface__`
    suffix: str  #: suffix of code object files for it
    alignment: int  #: bytes; alignment of addresses that kernels assume
    has_foreign_memory: bool  #: whether kernels may use memory that `region` does not know

    def allocate(self, size: int) -> int:
        """Return the address of new memory; its bytes are undefined."""

    def free(self, address: int) -> None:
        """Free memory once all enqueued operations are complete, since they may use it."""

    def region(self, address: int) -> Region | None:
        """Return the allocation that contains an address; None if no live allocation does."""

    def upload(self, address: int, data: Bytes, stream: int) -> None:
        """Copy to the device; the host may change the bytes once this returns."""

    def download(self, data: Bytes, address: int, stream: int) -> None:
        """Copy to the host; the bytes are complete when this returns."""

    def fill(self, address: int, size: int, byte: int, stream: int) -> None:
        """Set `size` bytes to `byte`."""

    def load(self, content: bytes) -> Module:
        """Load a code object. Also raises UserError for content that the device does not run."""

    def launcher(self, function: Function, request: LaunchRequest) -> Launcher:
        """Return the launcher of a function. Raises UserError if arguments do not fit the function's parameters.

        A tensor map is encoded for the address of its buffer. The launcher raises Unsupported for one if the runtime
        encodes none, UserError if its library is too old to.
        """

    def new_stream(self) -> int:
        """Return a new stream."""

    def end_stream(self, stream: int) -> None:
        """Destroy a stream of `new_stream`."""

    def synchronize(self, stream: int) -> None:
        """Wait until all operations enqueued in a stream are complete."""

    def record(self, stream: int) -> Event:
        """Return an event behind all operations enqueued in a stream so far."""

    def seconds(self, first: Event, last: Event) -> float:
        """Return the seconds on the device between two events, once the last one is reached."""
