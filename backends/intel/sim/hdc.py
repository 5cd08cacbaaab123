"""Messages of the old data ports (dc0, dc1), which IGC still uses on XeHPG for surfaces, and for atomics everywhere.

Descriptor (Intel's programmer's reference manuals, "Data Port Messages"): bits 7:0 binding table index, 13:8 control,
18:14 type, 19 header, 24:20 response, 28:25 address registers. Messages are converted to the records of LSC (`Lsc`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from convgen.backends.intel.sim import messages as msg
from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.lsc import compile_access
from convgen.backends.intel.sim.messages import Lsc
from convgen.backends.intel.sim.oword import compile_blocks
from convgen.backends.intel.sim.step import Context, Step, unsupported
from convgen.ir.record import frozen

LOCAL, STATELESS = 254, (253, 255)
#: Integer and floating-point atomic operations, as those of LSC.
_ATOMICS = {1: 24, 2: 25, 3: 26, 4: 11, 5: 8, 6: 9, 7: 12, 8: 13, 10: 15, 11: 14, 12: 17, 13: 16, 14: 18}
_FLOAT_ATOMICS = {1: 22, 2: 21, 4: 19}


@frozen
class Fields:
    """A data port descriptor."""

    binding: int
    control: int
    kind: int
    header: bool
    response: int
    address_registers: int

    @classmethod
    def decode(cls, descriptor: int) -> Fields:
        """Return the fields of a descriptor."""
        return cls(
            descriptor & 0xFF,
            descriptor >> 8 & 0x3F,
            descriptor >> 14 & 0x1F,
            bool(descriptor >> 19 & 1),
            descriptor >> 20 & 31,
            descriptor >> 25 & 15,
        )


@frozen
class Gather:
    """A message with one address per lane: operation, bytes of an address and element, channels, lanes of payloads."""

    op: int
    address: int
    memory: int
    channels: tuple[int, ...]
    width: int
    vector: int = 1  #: elements at an address


def _bytes(op: int) -> Callable[[Fields, int], Gather]:
    def make(fields: Fields, grf: int) -> Gather:
        return Gather(op, 4, 1 << (fields.control >> 2 & 3), (), 16 if fields.control & 1 else 8)

    return make


def _surface(op: int, address: int) -> Callable[[Fields, int], Gather]:
    def make(fields: Fields, grf: int) -> Gather:
        channels = tuple(at for at in range(4) if not fields.control >> at & 1)
        width = 16 if fields.control >> 4 & 3 == 1 else 8
        return Gather(op, address, 4, channels, width)

    return make


def _scattered(op: int) -> Callable[[Fields, int], Gather]:
    """Decode a scattered message: bits 1:0 byte, dword or quadword, bits 3:2 their number; bytes form one element."""

    def make(fields: Fields, grf: int) -> Gather:
        size, count = (1, 4, 8, 0)[fields.control & 3], 1 << (fields.control >> 2 & 3)
        width = 16 if fields.control >> 4 & 1 else 8
        return Gather(op, 8, count, (), width) if size == 1 else Gather(op, 8, size, (), width, count)

    return make


def _atomic(table: Mapping[int, int], address: int) -> Callable[[Fields, int], Gather]:
    """Decode an atomic message; with 64-bit addresses lanes are those of a register pair, and bit 4 is 64-bit data."""

    def make(fields: Fields, grf: int) -> Gather:
        op = table.get(fields.control & 15, -1)
        if address == 8:
            return Gather(op, address, 8 if fields.control >> 4 & 1 else 4, (), grf // 4)
        return Gather(op, address, 4, (), 8 if fields.control >> 4 & 1 else 16)

    return make


_GATHERS: Mapping[tuple[str, int], Callable[[Fields, int], Gather]] = {
    ("dc0", 4): _bytes(msg.LOAD),
    ("dc0", 12): _bytes(msg.STORE),
    ("dc1", 0x01): _surface(msg.LOAD_QUAD, 4),
    ("dc1", 0x09): _surface(msg.STORE_QUAD, 4),
    ("dc1", 0x11): _surface(msg.LOAD_QUAD, 8),
    ("dc1", 0x19): _surface(msg.STORE_QUAD, 8),
    ("dc1", 0x10): _scattered(msg.LOAD),
    ("dc1", 0x1A): _scattered(msg.STORE),
    ("dc1", 0x02): _atomic(_ATOMICS, 4),
    ("dc1", 0x12): _atomic(_ATOMICS, 8),
    ("dc1", 0x1B): _atomic(_FLOAT_ATOMICS, 4),
    ("dc1", 0x1D): _atomic(_FLOAT_ATOMICS, 8),
}


def compile_hdc(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a data port message; None for other instructions."""
    message = instruction.message
    if message is None or message.unit not in ("dc0", "dc1"):
        return None
    if message.descriptor is None:
        raise unsupported(instruction, "descriptor in a register")
    fields = Fields.decode(message.descriptor)
    local = fields.binding == LOCAL
    binding = msg.STATELESS if fields.binding in STATELESS or local else fields.binding
    if fields.header:
        return compile_blocks(instruction, message.unit, fields.kind, fields.control, binding, context, local=local)
    make = _GATHERS.get((message.unit, fields.kind))
    if make is None:
        raise unsupported(instruction, f"data port message {fields.kind:#x}")
    gather = make(fields, context.layout.grf)
    if gather.op < 0:
        raise unsupported(instruction, "atomic operation")
    if not gather.memory:
        raise unsupported(instruction, "data size")
    if gather.address == 8:
        binding = msg.STATELESS
    lsc = Lsc(
        op=gather.op,
        address_bytes=gather.address,
        memory_bytes=gather.memory,
        register_bytes=max(gather.memory, 4),
        vector=gather.vector,
        channels=gather.channels,
        transposed=False,
        vnni=False,
        response=fields.response,
        address_registers=fields.address_registers,
        surface=msg.FLAT,
    )
    return compile_access(instruction, lsc, binding, gather.width, context, local=local and gather.address == 4)
