"""The CDNA targets as `backends.target.Target` objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from convgen.backends.allocate import Bank, allocate
from convgen.backends.amdgpu import printer
from convgen.backends.amdgpu.assemble import WANTED, assemble, assembled_by
from convgen.backends.amdgpu.hazards import insert_nops
from convgen.backends.amdgpu.physical import Physical
from convgen.backends.amdgpu.select import select
from convgen.backends.amdgpu.tables import FACTS
from convgen.backends.amdgpu.waits import insert_waits
from convgen.backends.maps import maps
from convgen.backends.schedule import schedule
from convgen.backends.selection import kernel_arguments
from convgen.backends.simulation import Bytes, LaunchRequest, Pages, SimReport
from convgen.backends.target import Emission, Emitted, Progress
from convgen.ir.error import DoesNotFit
from convgen.ir.program import Kernel

#: gfx90a and later: vector tuples start even; scalar pairs even, wider ones at multiples of 4 (ISA, "SGPR alignment").
_BANKS = {
    "v": Bank(256, {1: 1, 2: 2}),
    "a": Bank(256, {1: 1, 2: 2}),
    "s": Bank(102, {1: 1, 2: 2, 4: 4}),
}
_SIMDS = 4
_REGISTERS_PER_SIMD_LANE = 512
_REGISTER_GRANULE = 8


class AmdTarget:
    """One CDNA generation."""

    text_suffix = ".s"
    object_suffix = ".hsaco"
    assembler = WANTED

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts = FACTS[name]
        self._notes: dict[str, tuple[Kernel, printer.Resources, Sequence[tuple[str, int, int]]]] = {}

    def emit(self, kernel: Kernel, header: Sequence[str] = (), *, debug: int = 0) -> Emitted:
        """A message-level kernel as text; DoesNotFit if registers do not suffice."""
        emission = Emission(kernel, debug=debug)
        run = emission.run
        function = run("select", select, kernel, self.facts, emission.lines)
        written = [list(block.instructions) for block in function.blocks]
        run("schedule", schedule, function)
        try:
            allocation = run("allocate", allocate, function, _BANKS)
        except DoesNotFit:
            # The scheduler hides latency, not registers: program order keeps values short-lived, and says so above.
            for block, instructions in zip(function.blocks, written):
                block.instructions = instructions
            allocation = run("allocate", allocate, function, _BANKS)
            header = [*header, "order:   as written; scheduled, it would not fit the registers"]
        physical = Physical(allocation)
        run("waits", insert_waits, function, physical)
        run("hazards", insert_nops, function, physical, self.name)

        placed = [(p.name, offset, size) for p, offset, size in kernel_arguments(kernel)]
        kernarg_size = -(-max((offset + size for _, offset, size in placed), default=0) // 8) * 8
        r = printer.Resources(
            allocation.used["v"], allocation.used["a"], allocation.used["s"], kernel.shared_bytes, kernarg_size
        )
        self._check_occupancy(kernel, r)
        shown_maps = maps(kernel, allocation, {bank: bank for bank in _BANKS})
        body = printer.function_text(function, physical, debug)
        text = run("print", printer.kernel_text, kernel, header, body, shown_maps, r)
        self._notes[kernel.name] = (kernel, r, placed)
        registers = {"vgpr": r.vgpr, "agpr": r.agpr, "sgpr": r.sgpr}
        return Emitted(
            kernel.name,
            text,
            registers,
            r.lds_bytes,
            tuple(placed),
            kernarg_size,
            emission.stages,
            emission.listing,
        )

    def _check_occupancy(self, kernel: Kernel, r: printer.Resources) -> None:
        """All waves of a workgroup must be resident at once."""
        waves = -(-kernel.subgroups // _SIMDS)
        each = -(-r.total_vgpr // _REGISTER_GRANULE) * _REGISTER_GRANULE
        if waves * each > _REGISTERS_PER_SIMD_LANE:
            raise DoesNotFit(f"{waves} waves a SIMD of {each} registers, at most {_REGISTERS_PER_SIMD_LANE} in all")

    def module(self, kernels: Sequence[Emitted]) -> str:
        """The assembly file of kernels that `emit` made."""
        note = printer.metadata([self._notes[k.name] for k in kernels], self.name)
        return printer.module_text(self.name, kernels, note)

    def assemble(self, text: str) -> bytes | None:
        """The code object; None without an assembler."""
        return assemble(text, self.name)

    def assembled_by(self) -> str:
        """Name, size and time of the assembler."""
        return assembled_by()

    def simulate(
        self,
        code_object: bytes,
        launches: Sequence[LaunchRequest],
        buffers: Mapping[str, Bytes | Pages],
        *,
        progress: Progress | None = None,
    ) -> SimReport:
        """Run on the strict simulator."""
        from convgen.backends.amdgpu.sim import simulate

        return simulate(code_object, launches, buffers, progress=progress)


TARGETS: dict[str, Callable[[], AmdTarget]] = {name: partial(AmdTarget, name) for name in FACTS}
