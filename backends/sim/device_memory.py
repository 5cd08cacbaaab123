"""Device memory: named allocations at made-up 64-bit addresses, with stamps of the loads and stores of a launch.

Allocations lie `SPACING` bytes apart, so that an address outside its buffer never lies in another one. A store changes
the array at once; its stamp tells whether a later reader was entitled to see it. Stamps start as zeros, which take no
memory until they are written. An array may be `Pages`, whose pages exist once they are touched: a buffer may then be
larger than the machine's memory. Code that reads or writes `data` directly calls `touch` first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Mapping

import attrs
import numpy as np
import numpy.typing as npt

from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.wave_arrays import (
    U32,
    U64,
    Array,
    Bools,
    Bytes,
    all_bits,
    counted,
    gather_bytes,
    least,
    most,
    scatter_bytes,
)
from convgen.backends.simulation import KernelArg, Pages, reserve
from convgen.ir.record import define

FIRST_ADDRESS = 0x7000_0000_0000
SPACING = 1 << 36  #: bytes of the address space for each allocation; a 32-bit offset never reaches the next one
_WAVE_BITS = 36  #: of a stamp of a store: the number of the wave in the launch; the ticket stands above it
_LOADS = 256  #: loads of a buffer that are remembered before the launch first stores to it
#: A stamp of a load: workgroup + 1 from bit 36, epoch from bit 10, wave + 1 in bits 9:0. Right shifts: `READER_GROUP`
#: leaves the workgroup, `READER_WAVE` the workgroup and the epoch.
READER_GROUP, READER_WAVE = 36, 10
SEVERAL_WAVES = (1 << READER_WAVE) - 1  #: more than one wave of a workgroup in the epoch
SEVERAL_GROUPS = (1 << 62) - 1  #: more than one workgroup


@define(eq=False)
class Allocation:
    """A buffer in device memory."""

    name: str
    base: int
    data: Bytes
    writable: bool = True
    words: U32 = attrs.field(init=False)
    written: Bools | None = None  #: bytes that are defined, for buffers that start uninitialised
    stamps: npt.NDArray[np.int64] | None = None  #: last plain store of this launch, one per `grain` bytes
    updated: Bools | None = None  #: whether this launch has updated the bytes atomically, one per `grain` bytes
    #: Stamp -> wave -> ticket of the wave's last atomic operation on the stamp's bytes.
    updates: dict[int, dict[int, int]] = attrs.field(factory=dict)
    loads: deque[tuple[Array, int, Bools | None, Array]] = attrs.field(factory=lambda: deque(maxlen=_LOADS))
    #: Stamps of loads (`READER_GROUP`), one per `grain` bytes; kept once the launch stores to the buffer.
    readers: npt.NDArray[np.int64] | None = None
    published: npt.NDArray[np.int32] | None = None  #: publications (`causality`), one per `grain` bytes
    grain: int = 4  #: bytes that share a stamp
    pages: Pages | None = None  #: if `data` comes into being page by page
    private: bool = False  #: whether each lane owns its part, so that no accesses need be ordered

    def __attrs_post_init__(self) -> None:
        self.words = self.data[: len(self.data) // 4 * 4].view(np.uint32)

    @property
    def end(self) -> int:
        return self.base + len(self.data)

    def start_launch(self, grain: int) -> None:
        """Forget the accesses of earlier launches; stamps of this one cover `grain` bytes each."""
        self.stamps, self.updated, self.updates, self.published, self.grain = None, None, {}, None, grain
        self.readers = None
        self.loads.clear()

    def touch(self, offset: Array, size: int) -> None:
        """Bring the pages of an access into being."""
        if self.pages is not None:
            self.pages.touch(offset, size)

    def load(self, offset: Array, size: int) -> Array:
        """Return `size` bytes at each offset: words [size/4, ...], for sizes 1 and 2 zero-extended values [1, ...]."""
        self.touch(offset, size)
        if self._in_words(offset, size):
            return self.words.take((offset >> 2) + counted(size // 4, offset.ndim))
        return gather_bytes(self.data, offset, size)

    def _in_words(self, offset: Array, size: int) -> bool:
        """Return whether an access can use `words`."""
        return size >= 4 and not all_bits(offset) & 3 and len(self.data) % 4 == 0

    def load_poison(self, offset: Array, size: int) -> Bools | None:
        """Return flags of the words of `load` that contain a byte never written; None if all bytes started defined."""
        if self.written is None:
            return None
        at = offset[..., None] + np.arange(min(size, 4))
        rows = [~self.written.take(at + 4 * word).all(axis=-1) for word in range(max(size // 4, 1))]
        return np.stack(rows)

    def store(self, offset: Array, size: int, values: Array) -> None:
        """Write words [size/4, lanes] (or single values) at flat offsets."""
        self.touch(offset, size)
        if self._in_words(offset, size):
            self.words[(offset >> 2) + counted(size // 4, 1)] = values
        else:
            scatter_bytes(self.data, offset, size, values)
        self.define(offset, size)

    def define(self, offset: Array, size: int) -> None:
        """Mark `size` bytes at each offset as defined."""
        if self.written is not None:
            self.written[offset[..., None] + np.arange(size)] = True

    def units(self, offset: Array, size: int) -> Array:
        """Return the indices of the stamps that an access covers [units, ...]; unaligned ones may repeat the last."""
        grain = self.grain
        if all_bits(offset) & (min(size, grain) - 1):
            units = offset // grain + counted(size // grain + 1, offset.ndim)
            covered: Array = np.minimum(units, (offset + (size - 1)) // grain)
            return covered
        return offset // grain + counted(max(size // grain, 1), offset.ndim)

    def mark(self, offset: Array, size: int, ticket: int, wave: Array) -> None:
        """Stamp a plain store with its ticket and wave."""
        if self.private:
            return
        if self.stamps is None:
            self.stamps = reserve(len(self.data) // self.grain + 1, np.int64)
        self.stamps[self.units(offset, size)] = (ticket << _WAVE_BITS) | wave

    def note_load(self, offset: Array, size: int, lanes: Bools | None, who: Array) -> None:
        """Remember a load by `who`, the waves' stamps [waves, 1] (`reader_of`).

        Until the launch first stores to the buffer, the last `_LOADS` loads are kept in a list instead: most buffers
        are only read, and stamping them would cost time for nothing.
        """
        if self.private or not self.writable:
            return
        if self.readers is None:
            self.loads.append((offset, size, lanes, who))
        else:
            self._stamp_load(self.readers, offset, size, lanes, who)

    def read_by(self, offset: Array, size: int) -> Array:
        """Return the stamps of earlier loads of the bytes of an access, 0 where there were none."""
        if self.readers is None:
            self.readers = reserve(len(self.data) // self.grain + 1, np.int64)
            for load in self.loads:
                self._stamp_load(self.readers, *load)
            self.loads.clear()
        stamps: Array = self.readers.take(self.units(offset, size))
        return stamps

    def _stamp_load(
        self, readers: npt.NDArray[np.int64], offset: Array, size: int, lanes: Bools | None, who: Array
    ) -> None:
        units = self.units(offset, size)
        for row in range(units.shape[1]):
            mine = units[:, row] if lanes is None else units[:, row][:, lanes[row]]
            own = int(who[row, 0])
            before = readers.take(mine)
            apart = before >> READER_GROUP != own >> READER_GROUP
            several = np.where(before >> READER_WAVE != own >> READER_WAVE, own, own | SEVERAL_WAVES)
            value = np.where(apart, SEVERAL_GROUPS, several)
            readers[mine] = np.where((before == 0) | (before == own), own, value)

    def mark_update(self, offset: Array, size: int, ticket: int, wave: Array) -> None:
        """Record an atomic operation with its ticket and wave."""
        if self.private:
            return
        if self.updated is None:
            self.updated = reserve(len(self.data) // self.grain + 1, np.bool_)
        units = self.units(offset, size)
        self.updated[units] = True
        waves = np.broadcast_to(wave, units.shape)
        for unit, number in set(zip(units.reshape(-1).tolist(), waves.reshape(-1).tolist(), strict=True)):
            self.updates.setdefault(unit, {})[number] = ticket

    def marks(self, offset: Array, size: int) -> tuple[Array, Array] | None:
        """Return ticket and wave of the last stores to the bytes of an access; ticket 0 where there was none."""
        if self.stamps is None:
            return None
        stamps = self.stamps.take(self.units(offset, size))
        return stamps >> _WAVE_BITS, stamps & ((1 << _WAVE_BITS) - 1)


class Memory:
    """All allocations of a simulation. `changes` counts stores, so that endless waits for a change are found."""

    def __init__(self, buffers: Mapping[str, Bytes | Pages], uninitialised: Collection[str]) -> None:
        self.changes = 0
        self.allocations: list[Allocation] = []
        self.by_name: dict[str, Allocation] = {}
        self._copied: list[tuple[Bytes, Allocation]] = []
        unknown = set(uninitialised) - set(buffers)
        if unknown:
            raise SimulatorError(f"given uninitialised buffers {', '.join(sorted(unknown))}, wanted names of buffers")
        for name, buffer in buffers.items():
            data = buffer.data if isinstance(buffer, Pages) else buffer
            if len(data) > SPACING:
                raise SimulatorError(f"given buffer {name!r} of {len(data)} bytes, wanted at most {SPACING}")
            if data.dtype != np.uint8 or data.ndim != 1:
                raise SimulatorError(f"given buffer {name!r} as {data.ndim}-D {data.dtype}, wanted a 1-D uint8 array")
            direct = data.flags.c_contiguous and data.ctypes.data % 4 == 0
            allocation = self.add(name, data if direct else data.copy(), writable=data.flags.writeable)
            allocation.pages = buffer if isinstance(buffer, Pages) else None
            if not direct:
                self._copied.append((data, allocation))
            if name in uninitialised:
                allocation.written = np.zeros(len(data), np.bool_)
        self._bases = [allocation.base for allocation in self.allocations]

    def add(
        self, name: str, data: Bytes, *, writable: bool = True, base: int | None = None, private: bool = False
    ) -> Allocation:
        """Place an array in the address space, at `base` if given; an array of an existing name replaces its array."""
        old = self.by_name.get(name)
        if old is not None:
            fresh = Allocation(name, old.base, data, writable, private=private)
            self.allocations[self.allocations.index(old)] = fresh
        else:
            place = FIRST_ADDRESS + SPACING * len(self.allocations) if base is None else base
            fresh = Allocation(name, place, data, writable, private=private)
            self.allocations.append(fresh)
            self.allocations.sort(key=lambda allocation: allocation.base)
        self.by_name[name] = fresh
        self._bases = [allocation.base for allocation in self.allocations]
        return fresh

    def argument(self, argument: KernelArg) -> bytes:
        """Return the bytes of a kernel argument: the address of a buffer, or a scalar. Raises SimulatorError."""
        raw = argument.value
        if isinstance(raw, str):
            if raw not in self.by_name:
                given = f"given no buffer {raw!r}"
                raise SimulatorError(f"{given}, wanted one for the argument at offset {argument.offset}")
            raw = self.by_name[raw].base.to_bytes(8, "little")
        if not isinstance(raw, bytes):
            given = f"given an encoded argument at offset {argument.offset}"
            raise SimulatorError(f"{given}, wanted a buffer or the bytes of a scalar")
        if len(raw) != argument.size:
            given = f"given {len(raw)} bytes at offset {argument.offset} of the arguments"
            raise SimulatorError(f"{given}, wanted {argument.size}")
        return raw

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that contains an address; None if there is none."""
        at = bisect_right(self._bases, address) - 1
        if at < 0 or address >= self.allocations[at].end:
            return None
        return self.allocations[at]

    def near(self, address: int) -> Allocation | None:
        """Return the allocation that begins at most `SPACING` bytes before an address, even if it ends before it."""
        at = bisect_right(self._bases, address) - 1
        return self.allocations[at] if at >= 0 and address - self._bases[at] < SPACING else None

    def resolve(
        self, address: U64, size: int, active: Bools | None
    ) -> tuple[list[tuple[Allocation, Bools | None]], Bools | None]:
        """Split an access by allocation; return (allocation, lanes) pairs and the lanes that hit no allocation.

        The lanes of a pair are None if it has all `active` lanes; the second result is None if no lane missed.
        """
        used = address if active is None else address[active]
        if used.size == 0:
            return [], None
        low, high = least(used), most(used)
        first = self.find(low)
        if first is not None and high + size <= first.end:
            return [(first, None)], None
        parts: list[tuple[Allocation, Bools | None]] = []
        missing = np.ones(address.shape, np.bool_) if active is None else active.copy()
        for allocation in self.allocations:
            inside = missing & (address >= np.uint64(allocation.base))
            if len(allocation.data) >= size:
                inside &= address <= np.uint64(allocation.end - size)
                if inside.any():
                    parts.append((allocation, inside))
                    missing &= ~inside
        return parts, missing if missing.any() else None

    def finish(self) -> None:
        """Copy results into those of the caller's arrays that could not be used in place (unaligned or strided)."""
        for target, allocation in self._copied:
            if target.flags.writeable:
                target[:] = allocation.data
