"""The Xe targets as `backends.target.Target` objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from convgen.backends.allocate import Allocation, Bank, Liveness, allocate
from convgen.backends.intel import printer
from convgen.backends.intel.assemble import assemble
from convgen.backends.intel.barriers import drop_fences
from convgen.backends.intel.devices import DEVICES
from convgen.backends.intel.isa import BANK_PERIOD
from convgen.backends.intel.physical import Physical
from convgen.backends.intel.scoreboard import Scoreboard
from convgen.backends.intel.select import select
from convgen.backends.intel.tables import FACTS, GENERATIONS
from convgen.backends.intel.zebin import Argument, KernelInfo, directives, target_directive
from convgen.backends.machine import Function, Unit, VirtualRegister
from convgen.backends.maps import maps
from convgen.backends.selection import kernel_arguments
from convgen.backends.simulation import Bytes, LaunchRequest, Pages, SimReport
from convgen.backends.target import Emission, Emitted, Progress
from convgen.backends.toolchain import IGA64, identity
from convgen.ir.error import DoesNotFit
from convgen.ir.memory import Global
from convgen.ir.program import Kernel

_GRF_COUNTS = (128, 256)  #: registers of a thread; with the larger file half as many threads are resident
_HOLD_STEPS = (12, 48, 96)  #: instructions for which the sources of messages are kept, if there is room
_SCALAR_REGISTERS = 12  #: the most GRFs that hold scalars


#: Instructions for which messages hold their sources -> live ranges.
_Live = Callable[[int], Mapping[VirtualRegister, int]]


class XeTarget:
    """One generation."""

    text_suffix = ".asm"
    object_suffix = ".zebin"

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts = FACTS[name]
        self.generation = GENERATIONS[name]
        self.assembler = DEVICES[name].assembler

    def emit(self, kernel: Kernel, header: Sequence[str] = (), *, debug: int = 0) -> Emitted:
        """A message-level kernel as text; DoesNotFit if registers do not suffice."""
        emission = Emission(kernel, debug=debug)
        run = emission.run
        function = run("select", select, kernel, self.facts, emission.lines)
        run("fences", drop_fences, function)
        grf, physical, used = run("allocate", self._allocate, function)
        tokens = self.generation.tokens[grf]
        run("scoreboard", lambda: Scoreboard(function, physical, self.generation, tokens).run())
        info = _info(kernel, function, grf)
        notes = [*header, *maps(kernel, physical.allocation, {"v": "r"})]
        body = printer.function_text(function, physical, self.generation, f"{kernel.name}.ir" if debug else "")
        text = run("print", printer.kernel_text, notes, directives(info), body)
        placed = tuple((a.name, a.offset, a.size) for a in info.arguments)
        return Emitted(
            kernel.name,
            text,
            {"grf": used, "grf_count": grf},
            kernel.shared_bytes,
            placed,
            max((offset + size for _, offset, size in placed), default=0),
            emission.stages,
            emission.listing,
        )

    def _allocate(self, function: Function) -> tuple[int, Physical, int]:
        """The smaller register file that holds a kernel, where everything is, and how many registers that takes."""
        g, liveness = self.generation, Liveness(function)
        live = cache(lambda hold: liveness.ranges(hold=hold))
        small = allocate(
            function, {"s": Bank(_SCALAR_REGISTERS * g.lanes, {1: 1, 2: 2}), "f": Bank(g.flags, {})}, live(0)
        )
        tuples_at = 1 + -(-small.used["s"] // g.lanes)
        grf, large = self._place_tuples(function, live, tuples_at)
        allocation = Allocation({**small.base, **large.base}, {**small.used, **large.used})
        used = max((base + v.size for v, base in large.base.items() if v.fixed is None), default=tuples_at)
        return grf, Physical(allocation, g.lanes, 1), used

    def _place_tuples(self, function: Function, live: _Live, first: int) -> tuple[int, Allocation]:
        """Registers that messages read are left alone for as long as there is room for that.

        Where overwriting them means to wait for the whole message, the larger file is better than doing so at once.
        """

        def placed(grf: int, hold: int, period: int = BANK_PERIOD) -> Allocation:
            return allocate(function, {"v": Bank(grf, {1: 1}, first, period)}, live(hold))

        for grf in _GRF_COUNTS:
            best: Allocation | None = None
            for hold in _HOLD_STEPS if self.generation.waits_for_writes else (0, *_HOLD_STEPS):
                try:
                    best = placed(grf, hold)
                except DoesNotFit:
                    break
            if best is not None:
                return grf, best
        largest = _GRF_COUNTS[-1]
        try:
            return largest, placed(largest, 0)
        except DoesNotFit:
            return largest, placed(largest, 0, period=0)

    def module(self, kernels: Sequence[Emitted]) -> str:
        """The assembly file of kernels that `emit` made."""
        return "\n".join([target_directive(self.name), *(k.text for k in kernels)])

    def assemble(self, text: str) -> bytes | None:
        """The zebin; None without an assembler that knows the platform."""
        return assemble(text)

    def assembled_by(self) -> str:
        """Name, size and time of the assembler."""
        return identity(IGA64.find())

    def simulate(
        self,
        code_object: bytes,
        launches: Sequence[LaunchRequest],
        buffers: Mapping[str, Bytes | Pages],
        *,
        progress: Progress | None = None,
    ) -> SimReport:
        """Run on the strict simulator."""
        from convgen.backends.intel.sim import simulate

        return simulate(code_object, launches, buffers, progress=progress)


def _info(kernel: Kernel, function: Function, grf: int) -> KernelInfo:
    return KernelInfo(
        name=kernel.name,
        simd_size=kernel.width,
        grf_count=grf,
        slm_bytes=kernel.shared_bytes,
        barrier_count=int(any(i.barrier for i in function.instructions())),
        workgroup=(kernel.subgroups * kernel.width, 1, 1),
        has_dpas=any(i.op.unit is Unit.MATRIX for i in function.instructions()),
        arguments=tuple(
            Argument(p.name, offset, size, "buffer" if isinstance(p, Global) else "scalar")
            for p, offset, size in kernel_arguments(kernel)
        ),
    )


TARGETS: dict[str, Callable[[], XeTarget]] = {name: partial(XeTarget, name) for name in FACTS}
