"""A tile kernel: a function that is traced for the tensors it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from convgen.ir.error import UserError
from convgen.ir.facts import TargetFacts
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.passes.exchange import exchange
from convgen.tile.emit import emit
from convgen.tile.layouts import Options
from convgen.tile.tensors import Tensor
from convgen.tile.text import text_of
from convgen.tile.trace import Trace, tracing

_SLOTS = (2, 1, 0)  #: what is tried where nothing is said


@frozen
class TileProgram:
    """A kernel for tensors of these shapes and types, for any target."""

    name: str
    tensors: tuple[Tensor, ...]
    trace: Trace
    options: Options

    def __str__(self) -> str:
        return text_of(self.name, self.tensors, self.trace, self.options)

    def kernel(self, facts: TargetFacts) -> Kernel:
        """Its IR on a target. Raises UserError or Unsupported, one line, for what that cannot do."""
        return next(self.kernels(facts))

    def kernels(self, facts: TargetFacts) -> Iterator[Kernel]:
        """The same with fewer and fewer slots, where nothing is said of them: what else to try where one does not fit.

        Raises UserError where none fits shared memory.
        """
        needed, found = 0, False
        for slots in _SLOTS if self.options.slots is None else (self.options.slots,):
            options = evolve(self.options, slots=slots)
            made = emit(self.name, self.trace, self.tensors, options, facts)
            needed = exchange(made, facts).shared_bytes
            if needed <= facts.shared_bytes:
                found = True
                yield made
        if not found:
            given = f"given {self.name} that takes {needed} bytes of shared memory"
            raise UserError(f"{given}, wanted at most {facts.shared_bytes} on {facts.name}, from smaller blocks")


@frozen
class TileKernel:
    """A function of tensors and, by keyword, of numbers."""

    function: Callable[..., None]
    options: Options

    def __call__(self, *tensors: Tensor, **numbers: Any) -> TileProgram:
        """The program for these tensors. Raises UserError where arguments do not suit the function."""
        name = self.function.__name__
        names = [p.name for p in inspect.signature(self.function).parameters.values() if p.kind is not p.KEYWORD_ONLY]
        if len(tensors) != len(names) or not all(isinstance(t, Tensor) for t in tensors):
            raise UserError(f"given {len(tensors)} arguments, wanted the tensors {', '.join(names)}, at {name}")
        named = tuple(evolve(t, name=n) for t, n in zip(tensors, names))
        with tracing() as trace:
            self.function(*named, **numbers)
        if len(trace.suites) != 1:
            raise UserError(f"given a break or return out of tile.range, wanted loops that run to their end, at {name}")
        return TileProgram(name, named, trace, self.options)


def kernel(
    *, subgroups: tuple[int, int] = (1, 1), slots: int | None = None, mma: str = "", acc: str = ""
) -> Callable[[Callable[..., None]], TileKernel]:
    """Make a function a tile kernel.

    `subgroups` along M and N of products; `slots` buffers in shared memory of what products share, 0 for none, by
    default two, or as many as fit; `mma` NxMxK of a matrix instruction, by default the first that fits, or "fma" for
    none; `acc`, "v" or "a", where sums live.
    """
    chosen = options(subgroups, slots, mma, acc)
    return lambda function: TileKernel(function, chosen)


def options(subgroups: tuple[int, ...] = (1, 1), slots: int | None = None, mma: str = "", acc: str = "") -> Options:
    """How workgroups are made. Raises UserError for what cannot be."""
    if len(subgroups) != 2 or min(subgroups) < 1 or slots not in (None, 0, 1, 2, 3, 4) or acc not in ("", "v", "a"):
        given = f"given subgroups={subgroups} slots={slots} acc={acc!r}"
        raise UserError(f"{given}, wanted subgroups from 1, slots of 0 to 4 and acc of v or a, at tile.kernel")
    return Options((subgroups[0], subgroups[1]), slots, mma, acc)
