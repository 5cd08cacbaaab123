"""Common parts of memory instructions: checks of addresses, register data of stores, completion of loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.amdgpu.sim.addressing import Address
from convgen.backends.amdgpu.sim.decode import Instruction, Operand
from convgen.backends.amdgpu.sim.hazards import Consumes, Produces
from convgen.backends.amdgpu.sim.scratch import Where
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step
from convgen.backends.sim.global_access import land_store
from convgen.backends.sim.wave_arrays import Array, Bools, any_along
from convgen.ir.record import evolve, frozen


@frozen
class Width:
    """The width of a load or store: bytes per lane, and the place of a narrow value in its register."""

    size: int
    signed: bool = False
    half: str = ""  #: "lo" or "hi": a 16-bit register half (d16 forms)

    @property
    def registers(self) -> int:
        return max(self.size // 4, 1)


#: Suffix of a load (LOADS) or store (STORES) mnemonic -> width.
LOADS: Mapping[str, Width] = {
    "ubyte": Width(1),
    "sbyte": Width(1, signed=True),
    "ushort": Width(2),
    "sshort": Width(2, signed=True),
    "ubyte_d16": Width(1, half="lo"),
    "ubyte_d16_hi": Width(1, half="hi"),
    "sbyte_d16": Width(1, signed=True, half="lo"),
    "sbyte_d16_hi": Width(1, signed=True, half="hi"),
    "short_d16": Width(2, half="lo"),
    "short_d16_hi": Width(2, half="hi"),
    "dword": Width(4),
    "dwordx2": Width(8),
    "dwordx3": Width(12),
    "dwordx4": Width(16),
}
STORES: Mapping[str, Width] = {
    "byte": Width(1),
    "byte_d16_hi": Width(1, half="hi"),
    "short": Width(2),
    "short_d16_hi": Width(2, half="hi"),
    "dword": Width(4),
    "dwordx2": Width(8),
    "dwordx3": Width(12),
    "dwordx4": Width(16),
}


def expand(values: Array, width: Width) -> Array:
    """Convert memory values to register words: extend the sign, shift to the half; the other half is 0."""
    if width.size >= 4:
        return values
    if width.signed:
        spare = 32 - 8 * width.size
        values = ((values << np.uint32(spare)).view(np.int32) >> spare).view(np.uint32)
    if width.half:
        values = values & np.uint32(0xFFFF)
        return values << np.uint32(16) if width.half == "hi" else values
    return values


def land_registers(g: WaveGroup, pending: Pending) -> None:
    """Write a load's data. Payload: data and undefined words [registers, waves, lanes], lanes active at issue."""
    data, poison, lanes = pending.payload[:3]
    assert data is not None
    first, count = pending.writes.bit_length() - data.shape[0], data.shape[0]
    if g.matrix_bits & pending.writes:
        g.forget_matrices(pending.writes)
    if lanes is None:
        g.v[first : first + count] = data
    else:
        np.copyto(g.v[first : first + count], data, where=lanes)
    if poison is None and not g.poison & pending.writes:
        return
    before, full = g.exec, g.exec_full
    if lanes is not None:
        g.exec, g.exec_full = lanes, False
    else:
        g.exec_full = True
    for number in range(count):
        g.poison_vector(first + number, None if poison is None else poison[number])
    g.exec, g.exec_full = before, full


def _land_half(half: int) -> Callable[[WaveGroup, Pending], None]:
    """Return a function that completes a d16 load, which defines the bits `half`; the other bits change.

    The ISA manuals say that the other bits are kept. With SRAM ECC they are not, nor on gfx90a without ECC (LLVM,
    GCNSubtarget::d16PreservesUnusedBits and review D112635), and no document states their value. So this function
    inverts them: code that needs them kept or cleared gets wrong results.
    """
    others = np.uint32(0xFFFFFFFF ^ half)

    def land(g: WaveGroup, pending: Pending) -> None:
        data = pending.payload[0]
        assert data is not None
        register = pending.writes.bit_length() - 1
        filled = data | (~g.v[register] & others)
        land_registers(g, evolve(pending, payload=(filled, *pending.payload[1:])))

    return land


def landing(width: Width) -> Callable[[WaveGroup, Pending], None]:
    """Return the function that completes a load of some width."""
    return {"": land_registers, "lo": _land_half(0xFFFF), "hi": _land_half(0xFFFF0000)}[width.half]


def land_stores(g: WaveGroup, pending: Pending) -> None:
    """Record that the waves have waited for their stores."""
    land_store(g, pending.tickets)


def land_nothing(g: WaveGroup, pending: Pending) -> None:
    """Complete an operation that changes no register: do nothing."""


def active(g: WaveGroup) -> Bools | None:
    """Return the active lanes [waves, lanes]; None if all are active."""
    return None if g.exec_full else g.exec


def refuse_poison(g: WaveGroup, step: Step, bits: int, registers: tuple[int, ...], what: str) -> None:
    """Report an active lane that uses undefined vector registers as `what`."""
    if not g.poison & bits or not g.env.strict:
        return
    bad = g.lanes_poison(registers)
    if bad is not None:
        bad = bad & g.exec
        if bad.any():
            g.env.reporter.at_first("poison", f"{what} is undefined", step.instruction, g, bad)


def refuse_scalar_poison(
    g: WaveGroup, step: Step, bits: int, registers: tuple[int, ...], what: str, *, always: bool = False
) -> None:
    """Report a wave with active lanes, or with `always` any wave, that uses undefined scalar registers as `what`."""
    if not g.poison & bits or not g.env.strict:
        return
    bad = g.waves_poison(registers)
    if bad is not None:
        bad = bad if always else bad & any_along(g.exec, 1)
        if bad.any():
            g.env.reporter.at_first("poison", f"{what} is undefined", step.instruction, g, bad)


def memory_step(
    instruction: Instruction, context: Context, kind: str, address: Address, target: Operand | None, data: int = 0
) -> Step:
    """Return a step with the registers and hazards of a vector memory instruction; the caller sets `run`.

    `data` is the register set that it stores.
    """
    vectors = address.vector_bits | data
    writes = 0 if target is None else context.bits(target)
    consumes = [Consumes("mem_read", vectors), Consumes("mem_read_behind_dgemm", vectors)]
    if writes:
        consumes.append(Consumes("mem_write", writes))
    if address.scalar_bits:
        consumes.append(Consumes("vmem_sgpr", address.scalar_bits))
    step = Step(instruction, kind, lambda g: None, vectors | address.scalar_bits, writes, (), tuple(consumes))
    if data.bit_count() > 2:
        step.produces = (Produces("wide_store_soffset" if address.scalar_offset else "wide_store", data),)
    return step


def queue_of(space: str, where: Where) -> str:
    """Return the kind of the pending operation of an access (`waits`)."""
    if space != "flat":
        return "vm"
    return "flat_memory" if where.local is None else "flat"


def check_address(g: WaveGroup, step: Step, address: Address) -> None:
    """Report undefined registers in an address or descriptor."""
    refuse_poison(g, step, address.vector_bits, address.vectors, "the address")
    refuse_scalar_poison(g, step, address.scalar_bits, address.scalars, "the base or descriptor")


def register_values(g: WaveGroup, first: int, size: int) -> Array:
    """Return unsigned values of `size` bytes (4 or 8) from the vector registers from `first` on [waves, lanes]."""
    words = np.ascontiguousarray(np.moveaxis(g.v[first : first + size // 4], 0, -1))
    return words.view(np.uint64 if size == 8 else np.uint32)[..., 0]


def store_words(operand: Operand, width: Width, context: Context) -> Callable[[WaveGroup], Array]:
    """Return a function that fetches a store's data [registers, waves, lanes] at issue."""
    first, count = context.vector(operand), width.registers
    if width.half == "hi":
        return lambda g: g.v[first : first + 1] >> np.uint32(16)
    return lambda g: g.v[first : first + count]
