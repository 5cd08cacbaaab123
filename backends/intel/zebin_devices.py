"""Names and numbers of each target in Intel's tools: iga64, the driver and ocloc.

Platforms are those of `iga64 -h=p`; families and cores are the enumerations PRODUCT_FAMILY and GFXCORE_FAMILY of the
graphics compiler's igfxfmid.h. The driver compares those in a zebin's notes with the device's (compute-runtime,
zebin_decoder.cpp, validateTargetDevice). A third note, the product config, would bind a zebin to a single stepping, so
none is written.
"""

from __future__ import annotations

from convgen.backends.family import check_rows
from convgen.backends.intel.family import FAMILY
from convgen.backends.intel.tables import GENERATIONS
from convgen.ir.record import frozen


@frozen
class Device:
    """A target as iga64, the driver and ocloc know it."""

    name: str
    platform: str  #: value of iga64's option -p
    assembler: str  #: where to get an iga64 that knows the platform
    product: str  #: name of one product in the driver and ocloc
    product_family: int | None  #: None if several families share the core and run this code
    gfx_core: int
    known_as: tuple[str, ...]  #: names of GPUs with the core (Intel's product pages), and the driver's names of these

    @property
    def grf_bytes(self) -> int:
        """Return the bytes of a general register."""
        return 4 * self.simd_size

    @property
    def simd_size(self) -> int:
        """Return the lanes of the matrix instruction, which are the subgroup size of our kernels."""
        return GENERATIONS[self.name].lanes


_HOMES = "libigc-tools of Debian 12, Ubuntu 22.04 or 24.04; or CONVGEN_IGA64 names one"
#: Version 1.0.17791, of Debian's unstable release, is the first of Debian's packages that lists the platform xe2.
_HOMES_XE2 = "an iga64 that lists the platform xe2: libigc-tools of Debian sid; or CONVGEN_IGA64 names one"

_ARC_A = ("a310", "a380", "a580", "a750", "a770", "dg2", "acm-g10", "acm-g11")
_MAX = ("max1100", "max1350", "max1550", "pvc")
_XE2 = ("b570", "b580", "bmg", "lnl")

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        # Meteor Lake has DG2's core without the matrix engine, so the family is checked, too.
        Device("xehpg", "12p71", _HOMES, product="dg2", product_family=0x4F6, gfx_core=0xC07, known_as=_ARC_A),
        Device("xehpc", "12p72", _HOMES, product="pvc", product_family=0x4F7, gfx_core=0xC08, known_as=_MAX),
        # Battlemage (0x4fa) and Lunar Lake (0x4fb).
        Device("xe2", "xe2", _HOMES_XE2, product="bmg", product_family=None, gfx_core=0xC09, known_as=_XE2),
    )
}

check_rows(FAMILY, {"zebin_devices.py: DEVICES": DEVICES})
