"""Scratch: each lane's private memory, contiguous per wave, with the dwords of the lanes interleaved.

AMDGPUUsage, "Private Segment", "Flat Scratch" and "Private Segment Buffer": byte i of lane l lies at the wave's base +
i // 4 * 256 + l * 4 + i % 4. On CDNA3 and later hardware sets FLAT_SCRATCH to the wave's base. On CDNA2 user SGPRs hold
a descriptor with this swizzle, for buffer instructions, and a base for FLAT_SCRATCH, to which the kernel adds the
offset of its wave. Flat addresses reach scratch and LDS through apertures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np

from convgen.backends.amdgpu.sim.decode import APERTURES, Operand
from convgen.backends.amdgpu.sim.step import unsupported
from convgen.backends.sim.wave_arrays import ALL_BITS, U32, U64, Array, Bools
from convgen.ir.record import frozen

if TYPE_CHECKING:
    from convgen.backends.amdgpu.sim.state import WaveGroup
    from convgen.backends.amdgpu.sim.step import Step
    from convgen.backends.sim.device_memory import Allocation, Memory

FLAT_SCRATCH = Operand("s", "flat_scratch", 102, 2)
_LANE = np.arange(64, dtype=np.uint64)
_INTERLEAVE = 256  #: bytes from one dword of a lane to its next
#: Word 3 of the private segment's descriptor: ADD_TID_ENABLE, INDEX_STRIDE 64, ELEMENT_SIZE 4 (AMDGPUUsage).
WORD3 = 1 << 23 | 3 << 21 | 1 << 19
_LAYOUT = 0x1F << 19  #: bits of these fields
SWIZZLE = 1 << 31  #: SWIZZLE_ENABLE, in word 1
_HIGH = np.uint64(0xFFFFFFFF00000000)


@frozen
class Where:
    """The addresses of an access, and its lanes in range (None: all); `words` has lanes per word if words differ."""

    address: U64
    lanes: Bools | None
    words: list[Bools] | None = None
    stride: int = 4  #: bytes between consecutive words of a lane
    pieces: list[U64] | None = None  #: addresses byte by byte, for unaligned scratch accesses
    private: bool = False  #: whether all lanes address scratch
    local: Bools | None = None  #: lanes of a flat instruction that reach LDS, at the low half of `address`

    @property
    def device_lanes(self) -> Bools | None:
        """Return the lanes that do not reach LDS (None: all)."""
        if self.local is None:
            return self.lanes
        return ~self.local if self.lanes is None else self.lanes & ~self.local

    @property
    def local_offset(self) -> Array:
        """Return the byte offsets in LDS of the lanes that reach it."""
        offset: Array = (self.address & np.uint64(0xFFFFFFFF)).astype(np.int64)
        return offset

    def moved(self, active: int, size: int) -> int:
        """Return the bytes that reach memory if `active` lanes access `size` bytes each."""
        if self.words is not None:
            return sum(int(np.count_nonzero(lanes)) * min(4, size) for lanes in self.words)
        return size * (active if self.lanes is None else int(np.count_nonzero(self.lanes)))


@frozen
class Scratch:
    """The private memory of a batch's waves, `lane_bytes` per lane.

    Undefined data may be stored in it: functions save registers of all lanes. `bits` maps byte offsets of partly
    undefined words to their undefined bits (`WaveGroup.lane_bits`).
    """

    allocation: Allocation
    lane_bytes: int
    bits: dict[int, int] = attrs.field(factory=dict)

    def note_undefined(self, g: WaveGroup, where: Where, registers: tuple[int, ...], size: int) -> None:
        """Mark the bytes that undefined lanes of `registers` were stored to."""
        written = self.allocation.written
        assert written is not None
        for number, register in enumerate(registers):
            bad = g.vector_poison(register)
            if bad is None:
                continue
            lanes = bad if where.lanes is None else bad & where.lanes
            if where.pieces is not None:
                for address in where.pieces[4 * number : 4 * number + 4]:
                    written[self._places(address)[lanes]] = False
                continue
            places = self._places(where.address + np.uint64(where.stride * number))[lanes]
            written[places[:, None] + np.arange(min(size, 4))] = False
            bits = g.lane_bits.get(register)
            known = np.full(len(places), ALL_BITS) if bits is None else bits[lanes]
            if bits is not None or self.bits:
                self.bits.update(zip(places.tolist(), known.tolist(), strict=True))

    def restore_undefined(self, g: WaveGroup, where: Where, registers: tuple[int, ...], poison: Bools) -> None:
        """Set the undefined bits of registers that are loaded from partly undefined words."""
        if where.pieces is not None or not self.bits:
            return
        for number, register in enumerate(registers):
            places = self._places(where.address + np.uint64(where.stride * number))[poison[number]]
            known = [self.bits.get(place, int(ALL_BITS)) for place in places.tolist()]
            bits = g.lane_bits.get(register)
            g.lane_bits[register] = fresh = np.full((g.count, 64), ALL_BITS) if bits is None else bits.copy()
            fresh[poison[number]] = known

    def _places(self, address: U64) -> Array:
        found: Array = (address - np.uint64(self.allocation.base)).astype(np.int64)
        return found


def place_scratch(memory: Memory, number: int, waves: int, size: int) -> Scratch:
    """Place undefined private memory of `size` bytes per lane for some waves, in place of scratch `number`, if any."""
    data = np.zeros(max(waves * wave_bytes(size), _INTERLEAVE), np.uint8)
    allocation = memory.add(f"<scratch {number}>", data, private=True)
    allocation.written = np.zeros(len(data), np.bool_)
    return Scratch(allocation, size)


def wave_bytes(size: int) -> int:
    """Return the bytes of a wave's scratch at `size` bytes per lane."""
    return -(-size // 4) * _INTERLEAVE


def is_scratch(words: U32) -> bool:
    """Return whether descriptor words [4, waves] have the swizzle of the private segment."""
    return bool(((words[3] & np.uint32(_LAYOUT)) == WORD3).all() and (words[1] >> np.uint32(31)).all())


def scratch_where(
    g: WaveGroup, step: Step, base: Array, offset: U64, size: int, active: Bools | None, ahead: Array | int = 0
) -> Where:
    """Return the addresses of `size` bytes at byte offsets of each lane's private memory, for waves with these bases.

    `ahead` is the distance of each base from the beginning of its wave's scratch [waves, 1], which the frames of
    callers add. A lane that leaves its memory is reported and takes no part.
    """
    room = g.env.scratch.lane_bytes
    inside = offset + np.asarray(ahead, np.uint64) // np.uint64(64) + np.uint64(size) <= np.uint64(room)
    lanes = active
    if not (inside.all() if active is None else inside[active].all()):
        beyond = ~inside if active is None else ~inside & active
        what = f"accesses {size} bytes beyond the {room} bytes of scratch that the kernel descriptor gives a lane"
        g.env.reporter.at_first("scratch-bounds", what, step.instruction, g, beyond)
        lanes = inside if active is None else inside & active
    dword, byte = offset >> np.uint64(2), offset & np.uint64(3)
    first = base.astype(np.uint64)[:, None] + _LANE * np.uint64(4)
    address = first + dword * np.uint64(_INTERLEAVE) + byte
    need = min(size, 4)
    wrong = (byte & np.uint64(need - 1)) != 0
    wrong &= inside if lanes is None else lanes
    if wrong.any():
        what = f"scratch access of {size} bytes not aligned to {need}"
        g.env.reporter.at_first("misaligned", what, step.instruction, g, wrong)
        each = (offset + np.uint64(number) for number in range(size))
        pieces = [first + (at >> np.uint64(2)) * np.uint64(_INTERLEAVE) + (at & np.uint64(3)) for at in each]
        return Where(address, lanes, pieces=pieces, private=True)
    some = np.ones(offset.shape, np.bool_) if lanes is None else lanes
    return Where(address, lanes, [some] * (size // 4) if size > 4 else None, _INTERLEAVE, private=True)


def flat_where(g: WaveGroup, step: Step, address: U64, size: int, active: Bools | None) -> Where:
    """Resolve flat addresses: the private aperture is scratch, the shared aperture LDS, all else device memory."""
    top = address & _HIGH
    private = top == np.uint64(APERTURES["src_private_base"])
    local = top == np.uint64(APERTURES["src_shared_base"])
    if active is not None:
        private, local = private & active, local & active
    if not private.any():
        return Where(address, active, local=local if local.any() else None)
    base = g.s[FLAT_SCRATCH.index].astype(np.uint64) | g.s[FLAT_SCRATCH.index + 1].astype(np.uint64) << np.uint64(32)
    scratch = scratch_where(g, step, base, address & np.uint64(0xFFFFFFFF), size, private)
    rest = ~private if active is None else active & ~private
    if not rest.any():
        return scratch
    if size > 4 or scratch.pieces is not None:
        raise unsupported(step.instruction, "lanes of one access in scratch and elsewhere")
    lanes = rest if scratch.lanes is None else rest | scratch.lanes
    mixed: U64 = np.where(private, scratch.address, address)
    return Where(mixed, lanes, local=local if local.any() else None)
