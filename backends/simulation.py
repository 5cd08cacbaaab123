"""Requests to a simulator and its reports: plain records and sparse memory, shared by every target."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from convgen.ir.error import UserError
from convgen.ir.record import define, evolve, frozen

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]  #: byte offsets

_PAGE_BITS = 12
PAGE = 1 << _PAGE_BITS  #: bytes that are allocated and filled at once
_TOGETHER = 64  #: pages filled in one call of `make`, few enough to stay in a core's caches
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  #: Linux's value, which Python names from 3.13 on


def reserve(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return `count` zeros that take no memory until they are written.

    Raises UserError if the address space is too small.
    """
    size = count * np.dtype(dtype).itemsize
    if size < PAGE:
        return np.zeros(count, dtype)
    try:
        space = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, OverflowError, ValueError):
        raise UserError(f"given a buffer of {size} bytes, wanted one that this machine can address") from None
    return np.frombuffer(space, dtype)


@define
class Budget:
    """The bytes that pages of all buffers together may still take."""

    left: int

    def spend(self, size: int) -> None:
        """Take `size` bytes. Raises UserError if fewer are left."""
        self.left -= size
        if self.left < 0:
            raise UserError("given a run that touches more memory than there is, wanted fewer or smaller output tiles")


class Pages:
    """The bytes of a buffer, filled page by page on first access.

    `make(places)` returns the bytes at some offsets, row by row. Shadow data of a byte (whether it is written, and by
    whom) costs `beside` bytes more.
    """

    def __init__(self, size: int, make: Callable[[Places], Bytes], budget: Budget, beside: int = 0) -> None:
        pages = -(-size // PAGE)
        self._rows: Bytes = reserve(pages * PAGE, np.uint8).reshape(pages, PAGE)
        self.data: Bytes = self._rows.reshape(-1)[:size]
        self.make, self.budget, self.cost = make, budget, PAGE * (1 + beside)
        self._there = np.zeros(pages, np.bool_)
        self._missing = pages

    @classmethod
    def of(cls, data: Bytes) -> Pages:
        """Return pages over bytes that are all present already."""
        pages = cls(0, lambda places: data[places], Budget(0))
        pages.data = data
        return pages

    def touch(self, offset: npt.NDArray[Any], size: int) -> None:
        """Fill the pages of `size` bytes at each offset; `size` is at most a page."""
        if self._missing:
            for at in (offset >> _PAGE_BITS, (offset + (size - 1)) >> _PAGE_BITS):
                if not self._there.take(at).all():
                    self._bring(np.unique(at))

    def whole(self, size: int | None = None) -> Bytes:
        """Fill and return all bytes, or the first `size`."""
        self._bring(np.arange(-(-(len(self.data) if size is None else size) // PAGE)))
        return self.data[:size]

    def _bring(self, numbers: npt.NDArray[Any]) -> None:
        """Fill the pages with these numbers; a number occurs once."""
        missing = numbers[~self._there[numbers]] if self._missing else numbers[:0]
        for start in range(0, len(missing), _TOGETHER):
            some = missing[start : start + _TOGETHER].astype(np.int64)
            self.budget.spend(self.cost * len(some))
            self._rows[some] = self.make(some[:, None] * PAGE + np.arange(PAGE))
            self._there[some] = True
            self._missing -= len(some)


class Encoded(Protocol):
    """An argument that the host encodes at the launch from a buffer's address, such as a map of a tensor."""

    @property
    def buffer(self) -> str: ...


@frozen
class KernelArg:
    """One kernel argument: `size` bytes at byte `offset` of the argument block.

    `value` is the name of a buffer (its 64-bit device address is stored), the little-endian bytes of a scalar, or a
    record that the host encodes.
    """

    offset: int
    size: int
    value: str | bytes | Encoded


@frozen
class LaunchRequest:
    """One kernel launch. `grid` counts workgroups, `workgroup` counts work-items, both (x, y, z).

    `shared_bytes` is the total shared memory of a workgroup if the host requests more than the code object declares.
    `groups` lists the linear workgroup ids (x fastest) to run; None runs the whole grid.
    """

    kernel: str
    grid: tuple[int, int, int]
    workgroup: tuple[int, int, int]
    args: tuple[KernelArg, ...]
    shared_bytes: int = 0
    kernarg_size: int = 0
    groups: tuple[int, ...] | None = None


@frozen
class Parameter:
    """An argument that the host passes at a launch: a pointer or a value of `size` bytes."""

    name: str  #: "" where the object does not say
    offset: int
    size: int
    is_pointer: bool
    type_name: str = ""  #: type in the source, where the object records it
    #: Value of a scalar that the user does not give: a divisor that its compiler assumed of it (Triton; else 1), or an
    #: offset in local memory. None if no value can be assumed.
    default: int | None = 1


@frozen
class Signature:
    """The arguments and resources of a kernel. `shared_bytes` is the local memory that the kernel itself declares."""

    kernel: str
    parameters: tuple[Parameter, ...]
    shared_bytes: int
    workgroup: tuple[int, int, int] | None = None  #: work-items that the object requires, where it records them
    wants_shared: bool = False  #: whether it uses local memory of a size that only the launch gives


def with_offsets(signature: Signature, numbers: Sequence[int], begin: int) -> Signature:
    """Return a signature whose parameters with these numbers are offsets in local memory that the host sizes.

    The first offset is `begin`; the next ones have no default.
    """
    parameters = list(signature.parameters)
    for place, number in enumerate(numbers):
        parameters[number] = evolve(parameters[number], default=None if place else begin)
    return evolve(signature, parameters=tuple(parameters))


@frozen
class Scrutiny:
    """The strictness of a check: kinds of findings to ignore, and a callback that sees waves before instructions.

    `watch` is called before each instruction, or only at `places`: bytes from the kernel's start, or labels.
    """

    allow: Collection[str] = ()
    watch: Callable[[Any], None] | None = None
    places: Collection[int | str] = ()


STRICT = Scrutiny()


@frozen
class Source:
    """The source of a rule: a section of a manual, or a compiler.

    `required` is False if only a compiler follows the rule, or if shipped kernels break it and still run.
    """

    text: str
    required: bool = True


UNSTATED = Source("the simulator")  #: default for rules without a stated source


@frozen
class Finding:
    """A plain error, or behaviour that the hardware does not guarantee."""

    kind: str  #: short, stable, e.g. "wait-count", "wait-states", "lds-race", "out-of-bounds", "poison"
    message: str
    kernel: str
    pc: int = -1  #: bytes; offset of the instruction in the kernel
    instruction: str = ""
    workgroup: int = -1
    subgroup: int = -1
    lane: int = -1
    source: Source = UNSTATED
    line: str = ""  #: FILE:LINE of the source, where the object has debug information

    def __str__(self) -> str:
        where = f"{self.kernel}+{self.pc:#06x}" + (f", {self.line}" if self.line else "")
        who = f" workgroup {self.workgroup} subgroup {self.subgroup}" + (f" lane {self.lane}" if self.lane >= 0 else "")
        asks = "" if self.source is UNSTATED else f" ({self.source.text})"
        return f"{self.kind}: {self.message}{asks} [{where}: {self.instruction}]{who}"


@frozen
class Place:
    """An instruction of a kernel, from offset `pc` up to offset `end`, in bytes from the kernel's start."""

    pc: int
    end: int
    instruction: str


@frozen
class Coverage:
    """The number of instructions of a kernel, and those that no subgroup executed, by ascending offset.

    A vector instruction counts as executed once a subgroup reaches it with any lane active.
    """

    kernel: str
    places: int
    missed: tuple[Place, ...]

    @property
    def executed(self) -> int:
        """Return the number of instructions that some subgroup executed."""
        return self.places - len(self.missed)

    @property
    def stretches(self) -> tuple[tuple[Place, ...], ...]:
        """Return the missed instructions, adjacent ones grouped."""
        runs: list[list[Place]] = []
        for place in self.missed:
            if runs and runs[-1][-1].end == place.pc:
                runs[-1].append(place)
            else:
                runs.append([place])
        return tuple(map(tuple, runs))

    def joined(self, other: Coverage) -> Coverage:
        """Return the coverage of two runs of one kernel together."""
        both = {place.pc for place in self.missed} & {place.pc for place in other.missed}
        return evolve(self, missed=tuple(place for place in self.missed if place.pc in both))


def joined(coverage: Iterable[Coverage]) -> tuple[Coverage, ...]:
    """Return the coverage of each kernel over all of its runs, in the order in which the kernels first ran."""
    joint: dict[str, Coverage] = {}
    for one in coverage:
        joint[one.kernel] = one.joined(joint[one.kernel]) if one.kernel in joint else one
    return tuple(joint.values())


@frozen
class SimReport:
    """The outcome of a simulation; buffers were changed in place."""

    findings: tuple[Finding, ...]
    #: executed instructions, counted once a subgroup, by kind, in the family's terms
    instructions: Mapping[str, int]
    counters: Mapping[str, int]  #: other counts: bytes moved, cycles lost to bank conflicts, barriers
    seconds: float
    coverage: tuple[Coverage, ...] = ()  #: one a kernel; empty if coverage was not recorded, as on a device
