"""NVIDIA's targets as `backends.target.Target` objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from convgen.backends.family import check_rows
from convgen.backends.machine.selection import kernel_arguments, tensor_map_arguments
from convgen.backends.nvidia.assemble import compiled
from convgen.backends.nvidia.family import FAMILY
from convgen.backends.nvidia.ptx import Writer, kernel_text, map_parameter, module_text
from convgen.backends.nvidia.select import Selector
from convgen.backends.nvidia.tables import FACTS, LANES, PRODUCTS, PTX_VERSIONS
from convgen.backends.nvidia.tuning import TUNING
from convgen.backends.stages import Emitted, MachineCode, MachineKernel, Stage
from convgen.backends.target import Target
from convgen.backends.toolchain import PTXAS, identity
from convgen.ir.layout.tensor_map import MAP_BYTES
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import TakeRegisters

check_rows(
    FAMILY,
    {
        "tables.py: FACTS": FACTS,
        "tables.py: PRODUCTS": PRODUCTS,
        "tables.py: PTX_VERSIONS": PTX_VERSIONS,
        "tuning.py: TUNING": TUNING,
    },
)


def select_ptx(machine: MachineKernel) -> MachineKernel:
    """Return the kernel with its PTX text, on virtual registers: the driver, or ptxas, allocates and schedules."""
    kernel = machine.kernel
    arguments = tuple((p.name, offset, size) for p, offset, size in kernel_arguments(kernel))
    writer = Selector(kernel, machine.facts.name, Writer(file=machine.debug, line_of=machine.lines)).run()
    maps = tuple(tensor_map_arguments(kernel))
    parameters = [(name, size) for name, _, size in arguments]
    parameters += [(map_parameter(number), MAP_BYTES) for number in range(len(maps))]
    text = kernel_text(kernel.name, parameters, LANES * kernel.subgroups, writer, machine.header, _resident(kernel))
    ends = [offset + size for _, offset, size in arguments] + [offset + MAP_BYTES for _, offset in maps]
    emitted = Emitted(
        name=kernel.name,
        text=text,
        registers={},
        shared_bytes=kernel.shared_bytes,
        lanes=kernel.subgroups * kernel.width,
        arguments=arguments,
        kernarg_size=max(ends, default=0),
        maps=maps,
        listing=machine.listing,
    )
    return evolve(machine, emitted=emitted)


def _resident(kernel: Kernel) -> int:
    """Return the workgroups of an SM that a kernel asks ptxas for: 1 if roles share out the registers of an SM, else 0.

    ptxas otherwise ignores `setmaxnreg` where a kernel needs few registers (C7508).
    """
    return int(any(isinstance(s, TakeRegisters) for s in statements(kernel.body)))


class PtxTarget(Target):
    """The target of one compute capability, such as sm_90."""

    family = FAMILY
    stages = (Stage("select_ptx", select_ptx),)
    banks = {}  # noqa: RUF012  # registers are virtual
    assembler = "the driver compiles PTX"

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts = FACTS[name]
        self.products = PRODUCTS[name]

    def module(self, kernels: Sequence[Emitted]) -> str:
        """Return the PTX of several kernels."""
        listings = [f"{kernel.name}.ir" for kernel in kernels if kernel.listing is not None]
        return module_text(self.name, PTX_VERSIONS[self.name], [kernel.text for kernel in kernels], listings)

    def assemble(self, text: str) -> bytes | None:
        """Return the text itself, which the driver compiles when it loads it."""
        return text.encode()

    def machine_code(self, text: str) -> MachineCode | None:
        """Return the cubin; None without a ptxas that knows the target."""
        return compiled(text)

    def assembled_by(self) -> str:
        """Return name, size and time of ptxas."""
        return identity(PTXAS.find())


TARGETS: dict[str, Callable[[], PtxTarget]] = {name: partial(PtxTarget, name) for name in FACTS}
