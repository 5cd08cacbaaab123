"""The stages of the CDNA targets: from a message-level kernel to assembly text."""

from __future__ import annotations

from functools import partial
from math import prod

from convgen.backends.amdgpu import printer
from convgen.backends.amdgpu.coalesce import coalesce
from convgen.backends.amdgpu.hazards import insert_nops
from convgen.backends.amdgpu.isa import busy
from convgen.backends.amdgpu.physical import physical_of
from convgen.backends.amdgpu.select import select
from convgen.backends.amdgpu.waits import insert_waits
from convgen.backends.amdgpu.write_pairs import pair_writes
from convgen.backends.machine.allocate import Bank, allocate
from convgen.backends.machine.maps import maps
from convgen.backends.machine.rotate import rotate
from convgen.backends.machine.schedule import schedule
from convgen.backends.machine.selection import kernel_arguments
from convgen.backends.stages import Emitted, MachineKernel, Rung, Stage
from convgen.ir.error import BOTH_FILES, DoesNotFit
from convgen.ir.record import evolve

#: gfx90a and later: vector tuples start at even registers; scalar pairs at even ones, wider scalar tuples at multiples
#: of 4 (ISA, "SGPR alignment").
BANKS = {
    "v": Bank(limit=256, alignment={1: 1, 2: 2}, largest_first=True),
    "a": Bank(limit=256, alignment={1: 1, 2: 2}, largest_first=True),
    "s": Bank(limit=102, alignment={1: 1, 2: 2, 4: 4}, largest_first=True),
}

_KERNARG_ALIGN = 8  #: bytes; the size of the argument block is a multiple


def _select(machine: MachineKernel) -> MachineKernel:
    """Select instructions on virtual registers, statement by statement."""
    return evolve(machine, function=select(machine.kernel, machine.facts, machine.lines))


def _coalesce(machine: MachineKernel) -> MachineKernel:
    """Compute values in their destination if they are only moved into part of a tuple."""
    return evolve(machine, function=coalesce(machine.code))


def _pair(machine: MachineKernel) -> MachineKernel:
    """Merge two writes to shared memory into one instruction if their addresses differ by a constant."""
    return evolve(machine, function=pair_writes(machine.code))


def _rotate(machine: MachineKernel) -> MachineKernel:
    """Move scalar code that the first loads of a matrix loop's next iteration need to the end of the loop."""
    return evolve(machine, function=rotate(machine.code))


def _schedule(machine: MachineKernel, spare: bool = False) -> MachineKernel:
    """Reorder blocks with matrix instructions, and blocks before matrix loops, to hide latency, not save registers."""
    within = machine.banks if spare else None
    return evolve(
        machine, function=schedule(machine.code, partial(busy, machine.facts.core, _issuers(machine)), within)
    )


def _issuers(machine: MachineKernel) -> int:
    """Return how many SIMDs of a CU have a wave, from the grid and the shared memory of a workgroup."""
    kernel, facts = machine.kernel, machine.facts
    together = -(-prod(kernel.grid) // facts.compute_units)
    if kernel.shared_bytes:
        together = min(together, facts.shared_bytes // kernel.shared_bytes)
    return min(facts.core.simds, kernel.subgroups * max(1, together))


def _allocate(machine: MachineKernel) -> MachineKernel:
    """Give every virtual register its physical register; nothing is spilled."""
    return evolve(machine, allocation=allocate(machine.code, machine.banks))


def _wait(machine: MachineKernel) -> MachineKernel:
    """Insert `s_waitcnt` before users of memory operations, no stricter than the data flow demands."""
    return evolve(machine, function=insert_waits(machine.code, physical_of(machine.allocation)))


def _pad(machine: MachineKernel) -> MachineKernel:
    """Insert `s_nop` for the wait states that the hardware leaves to software."""
    return evolve(machine, function=insert_nops(machine.code, physical_of(machine.allocation), machine.facts.name))


def _print(machine: MachineKernel) -> MachineKernel:
    """Print assembly text with the kernel descriptor. Raises DoesNotFit unless all waves of a workgroup fit a CU."""
    kernel, used = machine.kernel, machine.allocation.used
    placed = tuple((p.name, offset, size) for p, offset, size in kernel_arguments(kernel))
    arguments = max((offset + size for _, offset, size in placed), default=0)
    r = printer.Resources(
        vgpr=used["v"],
        agpr=used["a"],
        sgpr=used["s"],
        lds_bytes=kernel.shared_bytes,
        kernarg_size=-(-arguments // _KERNARG_ALIGN) * _KERNARG_ALIGN,
    )
    _check_occupancy(machine, r)
    body = printer.function_text(machine.code, physical_of(machine.allocation), machine.debug)
    shown = maps(kernel, machine.allocation, {bank: bank for bank in machine.banks})
    emitted = Emitted(
        name=kernel.name,
        text=printer.kernel_text(kernel, machine.header, body, shown, r),
        registers={"vgpr": r.vgpr, "agpr": r.agpr, "sgpr": r.sgpr},
        shared_bytes=r.lds_bytes,
        lanes=kernel.subgroups * kernel.width,
        arguments=placed,
        kernarg_size=r.kernarg_size,
        listing=machine.listing,
        note=printer.metadata(kernel, r, placed, machine.facts.core.register_granule),
    )
    return evolve(machine, emitted=emitted)


def _check_occupancy(machine: MachineKernel, r: printer.Resources) -> None:
    """Raise DoesNotFit unless all waves of a workgroup can be resident at once."""
    core = machine.facts.core
    waves = -(-machine.kernel.subgroups // core.simds)
    registers = -(-r.total_vgpr // core.register_granule) * core.register_granule
    if waves * registers > core.simd_registers:
        most = f"at most {core.simd_registers} in all"
        raise DoesNotFit(f"{waves} waves a SIMD of {registers} registers, {most}", short_of=BOTH_FILES)


#: Second attempt: outside loops, issue early only while registers last. The text's header says so: by `convgen profile`
#: the kernel takes 1 to 3 % longer than with another config.
_SPARING = Rung(
    undoes="schedule",
    rerun_arguments={"spare": True},
    remark="order:   near program order, to fit the registers",
    is_slow=True,
)
#: Last attempt: program order, which keeps values short-lived in loops, too.
_AS_WRITTEN = Rung(
    undoes="schedule", remark="order:   program order; the scheduled order needs too many registers", is_slow=True
)

STAGES = (
    Stage("select", _select),
    Stage("coalesce", _coalesce, optional=True),
    Stage("pairs", _pair, optional=True),
    Stage("rotate", _rotate, optional=True),
    Stage("schedule", _schedule, optional=True),
    Stage("allocate", _allocate, ladders=((Rung(),), (_SPARING,), (_AS_WRITTEN,))),
    Stage("waits", _wait),
    Stage("hazards", _pad),
    Stage("print", _print),
)
