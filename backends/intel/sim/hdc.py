"""Messages of the old data ports (dc0, dc1), which IGC still uses on XeHPG for surfaces, and for atomics everywhere.

Descriptor (Intel's programmer's reference manuals, "Data Port Messages"): bits 7:0 binding table index, 13:8 control,
18:14 type, 19 header, 24:20 response, 28:25 address registers. Messages are converted to the records of LSC (`Lsc`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from convgen.backends.intel.sim import messages as msg
from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.lsc import compile_access
from convgen.backends.intel.sim.messages import Lsc
from convgen.backends.intel.sim.oword import compile_blocks
from convgen.backends.intel.sim.step import Context, Step, unsupported
from convgen.ir.record import frozen

LOCAL, STATELESS = 254, (253, 255)  #: binding table indices of local memory and of plain addresses
#: Integer and floating-point atomic operations: code in the control field -> code in LSC (`messages.ATOMICS`).
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


#: A message with one address per lane, in LSC's terms, and the lanes that its payloads have room for.
Gather = tuple[Lsc, int]


def _gather(
    fields: Fields, op: int, address: int, memory: int, width: int, channels: tuple[int, ...] = (), vector: int = 1
) -> Gather:
    """Return a message of LSC operation `op` (-1 for none); `address` and `memory` are bytes of address and element."""
    lsc = Lsc(
        op=op,
        address_bytes=address,
        memory_bytes=memory,
        register_bytes=max(memory, 4),
        vector=vector,
        channels=channels,
        transposed=False,
        vnni=False,
        response=fields.response,
        address_registers=fields.address_registers,
        surface=msg.FLAT,
    )
    return lsc, width


def _bytes(op: int, fields: Fields, grf: int) -> Gather:
    return _gather(fields, op, 4, 1 << (fields.control >> 2 & 3), 16 if fields.control & 1 else 8)


def _surface(op: int, address: int, fields: Fields, grf: int) -> Gather:
    channels = tuple(at for at in range(4) if not fields.control >> at & 1)
    return _gather(fields, op, address, 4, 16 if fields.control >> 4 & 3 == 1 else 8, channels)


def _scattered(op: int, fields: Fields, grf: int) -> Gather:
    """Decode a scattered message: bits 1:0 byte, dword or quadword, bits 3:2 their number; bytes form one element."""
    size, count = (1, 4, 8, 0)[fields.control & 3], 1 << (fields.control >> 2 & 3)
    width = 16 if fields.control >> 4 & 1 else 8
    return _gather(fields, op, 8, count, width) if size == 1 else _gather(fields, op, 8, size, width, vector=count)


def _atomic(table: Mapping[int, int], address: int, fields: Fields, grf: int) -> Gather:
    """Decode an atomic message; with 64-bit addresses lanes are those of a register pair, and bit 4 is 64-bit data."""
    op, flag = table.get(fields.control & 15, -1), fields.control >> 4 & 1
    if address == 8:
        return _gather(fields, op, address, 8 if flag else 4, grf // 4)
    return _gather(fields, op, address, 4, 8 if flag else 16)


_GATHERS: Mapping[tuple[str, int], Callable[[Fields, int], Gather]] = {
    ("dc0", 4): partial(_bytes, msg.LOAD),
    ("dc0", 12): partial(_bytes, msg.STORE),
    ("dc1", 0x01): partial(_surface, msg.LOAD_QUAD, 4),
    ("dc1", 0x09): partial(_surface, msg.STORE_QUAD, 4),
    ("dc1", 0x11): partial(_surface, msg.LOAD_QUAD, 8),
    ("dc1", 0x19): partial(_surface, msg.STORE_QUAD, 8),
    ("dc1", 0x10): partial(_scattered, msg.LOAD),
    ("dc1", 0x1A): partial(_scattered, msg.STORE),
    ("dc1", 0x02): partial(_atomic, _ATOMICS, 4),
    ("dc1", 0x12): partial(_atomic, _ATOMICS, 8),
    ("dc1", 0x1B): partial(_atomic, _FLOAT_ATOMICS, 4),
    ("dc1", 0x1D): partial(_atomic, _FLOAT_ATOMICS, 8),
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
        return compile_blocks(instruction, message, fields.kind, fields.control, binding, context, local=local)
    make = _GATHERS.get((message.unit, fields.kind))
    if make is None:
        raise unsupported(instruction, f"data port message {fields.kind:#x}")
    lsc, width = make(fields, context.layout.grf)
    if lsc.op < 0:
        raise unsupported(instruction, "atomic operation")
    if not lsc.memory_bytes:
        raise unsupported(instruction, "data size")
    if lsc.address_bytes == 8:
        binding = msg.STATELESS
    return compile_access(instruction, message, lsc, binding, width, context, local=local and lsc.address_bytes == 4)
