"""Questions to a simulator and its answers: plain records and memory, shared by every target."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.ir.error import UserError
from convgen.ir.record import define, evolve, frozen

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]  #: byte offsets

_PAGE_BITS = 12
PAGE = 1 << _PAGE_BITS  #: bytes that come into being together
_TOGETHER = 64  #: pages made at a time: what is in work stays in a core's caches
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  #: Linux's value, which Python names from 3.13 on


def reserve(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """So many zeros, which take no memory until they are written. Raises UserError where addresses do not suffice."""
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
    """The bytes that pages may still take, of all buffers together."""

    left: int

    def spend(self, size: int) -> None:
        """Raises UserError where they do not suffice."""
        self.left -= size
        if self.left < 0:
            raise UserError("given a run that touches more memory than there is, wanted fewer or smaller output tiles")


class Pages:
    """The bytes of a buffer, a page of which comes into being when it is first touched.

    `make(places)` gives the bytes at some offsets, row by row. What is kept beside a byte (whether it is written, by
    whom) takes `beside` times as much again.
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
        """Bytes that are all there."""
        pages = cls(0, lambda places: data[places], Budget(0))
        pages.data = data
        return pages

    def touch(self, offset: npt.NDArray[Any], size: int) -> None:
        """Have the pages of `size` bytes, a page at most, at each offset."""
        if self._missing:
            for at in (offset >> _PAGE_BITS, (offset + (size - 1)) >> _PAGE_BITS):
                if not self._there.take(at).all():
                    self._bring(np.unique(at))

    def whole(self, size: int | None = None) -> Bytes:
        """All bytes, or the first `size`."""
        self._bring(np.arange(-(-(len(self.data) if size is None else size) // PAGE)))
        return self.data[:size]

    def _bring(self, numbers: npt.NDArray[Any]) -> None:
        """Have the pages of these numbers, each given once."""
        missing = numbers[~self._there[numbers]] if self._missing else numbers[:0]
        for start in range(0, len(missing), _TOGETHER):
            some = missing[start : start + _TOGETHER].astype(np.int64)
            self.budget.spend(self.cost * len(some))
            self._rows[some] = self.make(some[:, None] * PAGE + np.arange(PAGE))
            self._there[some] = True
            self._missing -= len(some)


@frozen
class KernelArg:
    """One kernel argument: `size` bytes at byte `offset` of the argument block.

    `value` is the name of a buffer (its 64-bit device address is stored) or the little-endian bytes of a scalar.
    """

    offset: int
    size: int
    value: str | bytes


@frozen
class LaunchRequest:
    """One kernel launch. `grid` counts workgroups, `workgroup` counts work-items, both (x, y, z).

    `shared_bytes` is the shared memory of a workgroup in all, where the host asks for more than the code object has.
    `groups` names the linear workgroup ids (x fastest) to run; None runs the whole grid.
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
    """An argument that whoever launches a kernel gives: a pointer or a value of `size` bytes."""

    name: str  #: "" where the object does not say
    offset: int
    size: int
    is_pointer: bool
    type_name: str = ""  #: as the source has it, where the object says so
    #: Of a scalar that nobody gives: the divisor that its compiler assumed, or an offset in local memory; None if no
    #: value can be assumed.
    default: int | None = 1


@frozen
class Signature:
    """What a launch of a kernel needs. `shared_bytes` is the local memory that the kernel itself declares."""

    kernel: str
    parameters: tuple[Parameter, ...]
    shared_bytes: int
    workgroup: tuple[int, int, int] | None = None  #: work-items that the object asks for, if it says so


def with_offsets(signature: Signature, numbers: Sequence[int], begin: int) -> Signature:
    """Return a signature whose parameters of these numbers are offsets in local memory, of which hosts give the sizes.

    The first lies at `begin`; nobody can assume where the next ones lie.
    """
    parameters = list(signature.parameters)
    for place, number in enumerate(numbers):
        parameters[number] = evolve(parameters[number], default=None if place else begin)
    return evolve(signature, parameters=tuple(parameters))


@frozen
class Scrutiny:
    """How closely a run is looked at: kinds of findings that are none, and who is shown waves before instructions.

    `watch` is called before each instruction, or only at `places`: bytes from the kernel's start, or labels.
    """

    allow: Collection[str] = ()
    watch: Callable[[Any], None] | None = None
    places: Collection[int | str] = ()


STRICT = Scrutiny()


@frozen
class Source:
    """The source of a rule: a section of a manual, or a compiler.

    `required` is False where only a compiler asks, or where kernels that ship break the rule and run all the same.
    """

    text: str
    required: bool = True


UNSTATED = Source("the simulator")  #: for rules whose simulator names no source


@frozen
class Finding:
    """Something the hardware does not promise to do right, or that is plainly wrong."""

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
    """An instruction of a kernel: `pc` is its offset from the kernel's start, `end` that behind it, both in bytes."""

    pc: int
    end: int
    instruction: str


@frozen
class Coverage:
    """How many instructions a kernel has, and those that no subgroup executed, by ascending offset.

    An instruction of lanes counts as executed once a subgroup comes to it with any lane active.
    """

    kernel: str
    places: int
    missed: tuple[Place, ...]

    @property
    def executed(self) -> int:
        """Instructions that a subgroup executed."""
        return self.places - len(self.missed)

    @property
    def stretches(self) -> tuple[tuple[Place, ...], ...]:
        """The missed instructions, those that lie side by side together."""
        found: list[list[Place]] = []
        for place in self.missed:
            if found and found[-1][-1].end == place.pc:
                found[-1].append(place)
            else:
                found.append([place])
        return tuple(map(tuple, found))

    def joined(self, other: Coverage) -> Coverage:
        """The coverage of two runs of one kernel together."""
        both = {place.pc for place in self.missed} & {place.pc for place in other.missed}
        return evolve(self, missed=tuple(place for place in self.missed if place.pc in both))


def joined(coverage: Iterable[Coverage]) -> tuple[Coverage, ...]:
    """The coverage of each kernel over all of its runs, in the order in which the kernels first ran."""
    found: dict[str, Coverage] = {}
    for one in coverage:
        found[one.kernel] = one.joined(found[one.kernel]) if one.kernel in found else one
    return tuple(found.values())


@frozen
class SimReport:
    """The outcome of a simulation; buffers were changed in place."""

    findings: tuple[Finding, ...]
    instructions: Mapping[str, int]  #: executed, one a subgroup, by kind, in the family's words
    counters: Mapping[str, int]  #: other figures: bytes moved, cycles lost to bank conflicts, barriers
    seconds: float
    coverage: tuple[Coverage, ...] = ()  #: one a kernel; none where nobody looked, as on a device
