"""Load/store (LSC) message descriptors, decoded: IGA's and Mesa's tables of the fields agree on these."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.ir.record import frozen

VECTORS = (1, 2, 3, 4, 8, 16, 32, 64)
#: Bytes in memory and in a register, by data size code.
DATA: Mapping[int, tuple[int, int]] = {0: (1, 1), 1: (2, 2), 2: (4, 4), 3: (8, 8), 4: (1, 4), 5: (2, 4)}
LOAD, LOAD_QUAD, LOAD_2D, STORE, STORE_QUAD, STORE_2D, FENCE = 0, 2, 3, 4, 6, 7, 31
#: Fences: their scope, and what they do to lines of the first-level cache (IGC, visa_igc_common_header.h,
#: LSC_SCOPE and LSC_FENCE_OP; their bits: BuildIR, `translateLscFence`).
GROUP, LOCAL, TILE, GPU = range(4)
NO_FLUSH, EVICT, INVALIDATE, DISCARD, CLEAN = range(5)
#: Atomic operations: the combination (see `backends.sim.combine`) and the number of operands.
ATOMICS: Mapping[int, tuple[str, int]] = {
    8: ("increment", 0),
    9: ("decrement", 0),
    10: ("load", 0),
    11: ("swap", 1),
    12: ("add", 1),
    13: ("sub", 1),
    14: ("smin", 1),
    15: ("smax", 1),
    16: ("umin", 1),
    17: ("umax", 1),
    18: ("compare", 2),
    19: ("add_f", 1),
    20: ("sub_f", 1),
    21: ("min_f", 1),
    22: ("max_f", 1),
    24: ("and", 1),
    25: ("or", 1),
    26: ("xor", 1),
}
FLAT, SURFACE_STATE, BINDLESS, BINDING_TABLE = 0, 1, 2, 3
STATELESS = 255  #: the binding table index that means plain addresses


@frozen
class Fence:
    """The fields of a fence's descriptor."""

    scope: int
    flush: int

    @classmethod
    def decode(cls, descriptor: int) -> Fence:
        """Take a descriptor apart."""
        return cls(descriptor >> 9 & 7, descriptor >> 12 & 7)


@frozen
class Lsc:
    """The fields of an LSC descriptor."""

    op: int
    address_bytes: int
    memory_bytes: int  #: bytes of an element in memory
    register_bytes: int
    vector: int  #: elements per lane
    channels: tuple[int, ...]  #: channels of quad operations: numbers of x, y, z, w
    transposed: bool
    vnni: bool
    response: int  #: registers
    address_registers: int
    surface: int

    @classmethod
    def decode(cls, descriptor: int) -> Lsc:
        """Take a descriptor apart."""
        op = descriptor & 0x3F
        memory, register = DATA.get(descriptor >> 9 & 7, (0, 0))
        quad = op in (LOAD_QUAD, STORE_QUAD)
        channels = tuple(at for at in range(4) if descriptor >> (12 + at) & 1) if quad else ()
        return cls(
            op,
            {1: 2, 2: 4, 3: 8}.get(descriptor >> 7 & 3, 0),
            memory,
            register,
            VECTORS[descriptor >> 12 & 7],
            channels,
            bool(descriptor >> 15 & 1) and not quad,
            bool(descriptor >> 7 & 1),
            descriptor >> 20 & 31,
            descriptor >> 25 & 15,
            descriptor >> 29 & 3,
        )
