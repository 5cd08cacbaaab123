"""What a simulator is asked and what it answers: plain records, shared by every target."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class KernelArg:
    """One kernel argument: `size` bytes at byte `offset` of the argument block.

    `value` is the name of a buffer (its 64-bit device address is stored) or the little-endian bytes of a scalar.
    """

    offset: int
    size: int
    value: str | bytes


@attrs.frozen
class LaunchRequest:
    """One kernel launch. `grid` counts workgroups, `workgroup` counts threads, both (x, y, z).

    `lds_bytes` is the local memory of a workgroup in all, where the host asks for more than the code object declares.
    `groups` names the linear workgroup ids (x fastest) to run; None runs the whole grid.
    """

    kernel: str
    grid: tuple[int, int, int]
    workgroup: tuple[int, int, int]
    args: tuple[KernelArg, ...]
    lds_bytes: int = 0
    kernarg_size: int = 0
    groups: tuple[int, ...] | None = None


@attrs.frozen
class Source:
    """What asks for a rule: a section of a manual, or a compiler.

    `required` is False where only a compiler asks, or where kernels that ship break the rule and run all the same.
    """

    text: str
    required: bool = True


UNSTATED = Source("the simulator")  #: for rules whose simulator names no source


@attrs.frozen
class Finding:
    """Something the hardware does not promise to do right, or that is plainly wrong."""

    kind: str  #: short, stable, e.g. "wait-count", "wait-states", "lds-race", "out-of-bounds", "poison"
    message: str
    kernel: str
    pc: int = -1  #: byte offset of the instruction in the kernel
    instruction: str = ""
    workgroup: int = -1
    wave: int = -1
    lane: int = -1
    source: Source = UNSTATED

    def __str__(self) -> str:
        where = f"{self.kernel}+{self.pc:#06x}"
        who = f" workgroup {self.workgroup} wave {self.wave}" + (f" lane {self.lane}" if self.lane >= 0 else "")
        asks = "" if self.source is UNSTATED else f" ({self.source.text})"
        return f"{self.kind}: {self.message}{asks} [{where}: {self.instruction}]{who}"


@attrs.frozen
class SimReport:
    """The outcome of a simulation; buffers were changed in place."""

    findings: tuple[Finding, ...]
    instructions: Mapping[str, int]  #: wave-instructions executed, by kind (mfma, valu, salu, smem, ds_read, ...)
    counters: Mapping[str, int]  #: other figures: bytes moved, LDS bank conflict cycles, barriers
    seconds: float
