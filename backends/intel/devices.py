"""What the container must know of each target: how Intel's tools call it, and what its threads are made of.

Platforms are those of `iga64 -h=p`; families and cores are the enumerations PRODUCT_FAMILY and GFXCORE_FAMILY of the
graphics compiler's igfxfmid.h. The driver compares those of a zebin's notes with the device's (compute-runtime,
zebin_decoder.cpp, validateTargetDevice). A third note, the product config, would bind a zebin to a single stepping, so
none is written.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Device:
    """A target as iga64, the driver and ocloc know it."""

    name: str
    platform: str  #: for iga64's option -p
    assembler: str  #: where one gets an iga64 that knows the platform
    product: str  #: a product of it, as the driver and ocloc name it
    product_family: int | None  #: None where several families share the core and run the same code
    gfx_core: int
    grf_bytes: int  #: of one general register
    simd_size: int  #: lanes of its matrix instruction and the subgroup of our kernels
    max_slm_bytes: int  #: of a workgroup; the driver refuses a kernel with more


_ANY, _NEWER = "Debian: libigc-tools", "Debian newer than 12: libigc-tools"

DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        # Meteor Lake has the core of DG2 but no matrix engine, hence the family as well.
        Device("xehpg", "12p71", _ANY, "dg2", 0x4F6, 0xC07, grf_bytes=32, simd_size=8, max_slm_bytes=65536),
        Device("xehpc", "12p72", _ANY, "pvc", 0x4F7, 0xC08, grf_bytes=64, simd_size=16, max_slm_bytes=131072),
        # Battlemage (0x4fa) and Lunar Lake (0x4fb).
        Device("xe2", "xe2", _NEWER, "bmg", None, 0xC09, grf_bytes=64, simd_size=16, max_slm_bytes=131072),
    )
}
