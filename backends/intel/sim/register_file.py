"""The register file: one array of bytes per thread, general registers first, then the architecture registers.

Sets of bytes are Python integers, bit n for byte n. A *unit* has the size of a general register; sets of units tell
which registers of a group may be undefined.
"""

from __future__ import annotations

from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.sim.errors import Unsupported
from convgen.ir.record import frozen

ACCUMULATORS = 16
ADDRESS_BYTES = 64  #: a0
FLAG_BYTES = 16
CONTROL_BYTES = 16  #: cr0
STATE_BYTES = 16  #: sr0
FLAG_CHANNELS = FLAG_BYTES * 8


def byte_bits(start: int, size: int) -> int:
    """Return the set of `size` bytes from `start`."""
    return ((1 << size) - 1) << start


@frozen
class Layout:
    """Offsets of the register files of a kernel's threads."""

    grf: int  #: bytes of a general register
    registers: int  #: general registers of a thread

    @classmethod
    def of(cls, platform: Platform, registers: int) -> Layout:
        return cls(platform.grf, registers)

    @property
    def acc(self) -> int:
        return self.registers * self.grf

    @property
    def address(self) -> int:
        return self.acc + ACCUMULATORS * self.grf

    @property
    def flag(self) -> int:
        """Return the place of the flags' scoreboard bits; the flags themselves are kept by channel elsewhere."""
        return self.address + ADDRESS_BYTES

    @property
    def control(self) -> int:
        return self.flag + FLAG_BYTES

    @property
    def state(self) -> int:
        return self.control + CONTROL_BYTES

    @property
    def total(self) -> int:
        """Return the bytes of a thread's array, a whole number of units."""
        return -(-(self.state + STATE_BYTES) // self.grf) * self.grf

    def start(self, file: str, reg: int, byte: int) -> int:
        """Return the place of a byte of a register."""
        bases = {
            "r": reg * self.grf,
            "acc": self.acc + reg * self.grf,
            "a": self.address + reg * 32,
            "f": self.flag + reg * 4,
            "cr": self.control,
            "sr": self.state,
        }
        if file not in bases:
            raise Unsupported(f"register {file}{reg} is not simulated")
        return bases[file] + byte

    def end(self, file: str) -> int:
        """Return the byte behind a register file."""
        return {
            "r": self.acc,
            "acc": self.address,
            "a": self.flag,
            "f": self.control,
            "cr": self.state,
            "sr": self.state + STATE_BYTES,
        }[file]

    def grf_bits(self, reg: int, count: int) -> int:
        """Return the bytes of whole general registers."""
        return byte_bits(reg * self.grf, count * self.grf) if reg >= 0 and count > 0 else 0

    def units(self, start: int, size: int) -> int:
        """Return the units that bytes lie in."""
        first, last = start // self.grf, (start + size - 1) // self.grf
        return ((1 << (last - first + 1)) - 1) << first

    @property
    def exempt(self) -> int:
        """Return the bytes that hardware interlocks inside a pipe: accumulators and flags (IGA adds no distance)."""
        return byte_bits(self.acc, ACCUMULATORS * self.grf) | self.flag_bits

    @property
    def flag_bits(self) -> int:
        return byte_bits(self.flag, FLAG_BYTES)

    @property
    def control_bits(self) -> int:
        return byte_bits(self.control, CONTROL_BYTES)
