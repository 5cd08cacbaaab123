"""The stages of a back end: a literal list a family, run, timed, watched and switched off by one runner.

A stage makes of a machine kernel the next one and changes nothing of what it was given, so that any earlier state is
there to go back to. What is tried where registers do not suffice is data: the `ladders` of the stage that may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from time import perf_counter
from typing import ClassVar

import attrs

from convgen.backends.machine.allocate import Allocation, Bank, Liveness
from convgen.backends.machine.instruction import Function
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.ir.stmt import Stmt
from convgen.ir.text import listing
from convgen.passes.pipeline import LOWERING, OPTIMISING, noted


@frozen
class Emitted:
    """A kernel as text, with what it takes to launch it."""

    name: str
    text: str  #: body and descriptor of this kernel
    registers: Mapping[str, int]  #: by class, in the family's words
    shared_bytes: int
    arguments: tuple[tuple[str, int, int], ...]  #: (name, byte offset, byte size) of each kernel argument
    kernarg_size: int  #: bytes
    listing: str | None = None  #: the IR that the text's `.loc` lines lead to, as the file `NAME.ir`
    note: str = ""  #: the kernel's lines in the metadata of its module, where the format has such a table


@frozen(eq=False)
class MachineKernel:
    """A kernel between two stages: at first the IR alone, behind selection a function, then places of registers.

    Printed, it is the listing of the function, and behind the last stage the assembly text.
    """

    kernel: Kernel
    facts: TargetFacts
    banks: Mapping[str, Bank]  #: register files of virtual registers, by letter
    header: tuple[str, ...] = ()  #: comment lines of the text
    debug: int = 0  #: number of the kernel in its module, from 1, if the text is to have line information; else 0
    listing: str | None = None  #: the IR that line information leads to
    lines: Mapping[Stmt, int] = attrs.Factory(dict)  #: lines of that listing, from 1
    function: Function | None = None
    liveness: Liveness | None = None  #: liveness of the function, once something is placed
    allocation: Allocation = attrs.Factory(lambda: Allocation({}, {}))
    emitted: Emitted | None = None
    is_given: bool = True  #: whether nothing else can take its place, as another config's kernel could

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def form(self) -> tuple[bool, ...]:
        """Tells texts apart that have no line in common: the IR, virtual registers, places, assembly."""
        return self.function is not None, bool(self.allocation.base), self.emitted is not None

    @property
    def code(self) -> Function:
        """The machine function, which is there behind selection."""
        assert self.function is not None
        return self.function

    def verify(self) -> None:
        """Raise VerifyError if the function breaks a rule of the machine layer."""
        from convgen.backends.machine.verifier import verify

        if self.function is not None:
            verify(self.function, self.banks, self.allocation)

    def __str__(self) -> str:
        from convgen.backends.machine.assembly import show

        if self.emitted is not None:
            return self.emitted.text
        return str(self.kernel) if self.function is None else show(self.function, self.allocation)


@frozen
class Rung:
    """A way to run a stage that may find no room."""

    arguments: Mapping[str, int] = attrs.Factory(dict)  #: arguments of the stage besides the machine kernel
    redone: str = ""  #: an optional stage before it, which is undone
    how: Mapping[str, int] | None = None  #: arguments with which that one runs again; None where it is left out
    remark: str = ""  #: remark for the header of the text, where this rung is taken
    resort: bool = False  #: only for what nothing else can take the place of


#: Ladders, best first. Each rung of a ladder improves on the one before: the last of those that fit is taken.
#: Where not even the first fits, the next ladder's turn comes.
Ladders = tuple[tuple[Rung, ...], ...]


@frozen
class Stage:
    """One step behind the passes; `name` is unique within its family, and no pass has it."""

    name: str
    run: Callable[..., MachineKernel]
    optional: bool = False  #: may be left out, and the code is still right
    ladders: Ladders = ((Rung(),),)

    level: ClassVar = "machine"

    @property
    def kind(self) -> str:
        """As of a pass."""
        return OPTIMISING if self.optional else LOWERING

    @property
    def contract(self) -> str:
        """The first paragraph of what the stage says of itself, on one line."""
        return " ".join((self.run.__doc__ or "").strip().split("\n\n")[0].split())


#: called after each stage with (stage, machine kernel before, after, seconds)
Observer = Callable[[Stage, MachineKernel, MachineKernel, float], None]


def begin(
    kernel: Kernel,
    facts: TargetFacts,
    banks: Mapping[str, Bank],
    header: Sequence[str] = (),
    debug: int = 0,
    *,
    is_given: bool = True,
) -> MachineKernel:
    """A message-level kernel ahead of the first stage."""
    shown = listing(kernel) if debug else []
    text = "\n".join(line.text for line in shown) + "\n" if debug else None
    lines = {line.stmt: n for n, line in enumerate(shown, 1) if line.stmt is not None}
    return MachineKernel(kernel, facts, banks, tuple(header), debug, text, lines, is_given=is_given)


def emit(
    stages: Sequence[Stage], made: MachineKernel, disable: Collection[str] = (), observe: Observer | None = None
) -> Emitted:
    """The kernel as the last of the stages prints it."""
    printed = run(stages, made, disable, observe).emitted
    assert printed is not None
    return printed


def run(
    stages: Sequence[Stage], made: MachineKernel, disable: Collection[str] = (), observe: Observer | None = None
) -> MachineKernel:
    """All stages but those of `disable`; DoesNotFit where registers do not suffice, whatever is tried.

    An error on the way carries the name of the stage as a note.
    """
    behind: _Behind = []
    for stage in stages:
        if stage.name in disable:
            continue
        before, start = made, perf_counter()
        with noted("stage", stage.name):
            made = _fitted(stage, before, behind)
            if observe is not None:
                observe(stage, before, made, perf_counter() - start)
        behind.append((stage, before))
    return made


_Behind = list[tuple[Stage, MachineKernel]]  #: the stages that have run, each with what it was given


def _fitted(stage: Stage, before: MachineKernel, behind: _Behind) -> MachineKernel:
    """The result of the best rung that fits."""
    failure: DoesNotFit | None = None
    for ladder in stage.ladders:
        found: MachineKernel | None = None
        for rung in ladder:
            if rung.resort and not before.is_given:
                break
            if rung.redone and all(ran.name != rung.redone for ran, _ in behind):
                continue  # as the rungs before it
            try:
                found = stage.run(_prepared(rung, before, behind), **rung.arguments)
            except DoesNotFit as error:
                failure = error
                break
        if found is not None:
            return found
    assert failure is not None
    raise failure


def _prepared(rung: Rung, before: MachineKernel, behind: _Behind) -> MachineKernel:
    """The start of a rung: as if the stage that it undoes had run otherwise or not at all, its remark in the header."""
    made = before
    if rung.redone:
        (at,) = (n for n, (ran, _) in enumerate(behind) if ran.name == rung.redone)
        undone, made = behind[at]
        if rung.how is not None:
            made = undone.run(made, **rung.how)
        for ran, _ in behind[at + 1 :]:
            made = ran.run(made)
    return evolve(made, header=(*made.header, rung.remark)) if rung.remark else made
