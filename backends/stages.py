"""The stages of a back end. Each family lists its stages literally; one runner runs, times, observes and disables them.

A stage turns a machine kernel into the next one and leaves its input unchanged, so that every earlier state stays
available. A stage that may run out of registers lists its attempts as data: `ladders`.
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
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.program import Kernel
from convgen.ir.record import evolve, frozen
from convgen.ir.stmt import Stmt
from convgen.ir.text import listing
from convgen.passes.pipeline import LOWERING, OPTIMISING, noted


@frozen
class Emitted:
    """The assembly text of a kernel, with everything that its launch needs."""

    name: str
    text: str  #: assembly text of the kernel's body and descriptor
    registers: Mapping[str, int]  #: by class, in the family's terms
    shared_bytes: int
    lanes: int  #: lanes of a workgroup
    arguments: tuple[tuple[str, int, int], ...]  #: (name, byte offset, byte size) of each kernel argument
    kernarg_size: int  #: bytes
    maps: tuple[tuple[TensorMap, int], ...] = ()  #: tensor map and byte offset of each argument that the host encodes
    listing: str | None = None  #: the IR listing that the text's `.loc` lines point into, as the file `NAME.ir`
    note: str = ""  #: the kernel's entry in the metadata of its module, where the format has such a table


@frozen
class MachineCode:
    """Machine code of a module whose code object is text, by an installed compiler."""

    content: bytes
    registers: Mapping[str, Mapping[str, int]]  #: by kernel: registers by class, and bytes that it spills, if any


@frozen(eq=False)
class MachineKernel:
    """A kernel between two stages: IR, then a machine function, then one with physical registers, then assembly.

    `str()` gives the listing of the function, or the assembly text after the last stage.
    """

    kernel: Kernel
    facts: TargetFacts
    banks: Mapping[str, Bank]  #: register files, by the letter of their bank
    header: tuple[str, ...] = ()  #: comment lines of the text
    debug: int = 0  #: number of the kernel in its module, from 1, if the text gets line information; else 0
    listing: str | None = None  #: IR listing that line information points into
    lines: Mapping[Stmt, int] = attrs.Factory(dict)  #: line in that listing of each statement, from 1
    function: Function | None = None
    liveness: Liveness | None = None  #: of `function`, for stages that share it; None elsewhere
    allocation: Allocation = attrs.Factory(lambda: Allocation({}, {}))
    emitted: Emitted | None = None
    allows_slow: bool = True  #: whether slow attempts are allowed, because the caller has no other config to try

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def form(self) -> tuple[bool, ...]:
        """Return flags that distinguish IR, virtual registers, physical registers and assembly.

        Texts of different forms share no line.
        """
        return self.function is not None, bool(self.allocation.base), self.emitted is not None

    @property
    def code(self) -> Function:
        """Return the machine function, which exists after selection."""
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
    """One attempt at a stage that may run out of registers."""

    arguments: Mapping[str, int] = attrs.Factory(dict)  #: keyword arguments of the stage
    undoes: str = ""  #: name of an earlier optional stage to undo first
    #: arguments with which the undone stage runs again; None: it is left out
    rerun_arguments: Mapping[str, int] | None = None
    remark: str = ""  #: comment for the header of the text if this rung is taken
    is_slow: bool = False  #: only for kernels with `allows_slow`; with another config the kernel would be faster


#: Ladders, best first. Each rung of a ladder improves on the rung before it: the last one that fits is taken. If the
#: first rung of a ladder does not fit, the next ladder is tried.
Ladders = tuple[tuple[Rung, ...], ...]


@frozen
class Stage:
    """One step after the passes; `name` is unique within its family, and no pass has it."""

    name: str
    run: Callable[..., MachineKernel]
    optional: bool = False  #: the code stays correct without it
    ladders: Ladders = ((Rung(),),)

    level: ClassVar = "machine"

    @property
    def kind(self) -> str:
        """Return the kind of the stage, in the words of a pass: optimising or lowering."""
        return OPTIMISING if self.optional else LOWERING

    @property
    def contract(self) -> str:
        """Return the first paragraph of the docstring of `run`, on one line."""
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
    allows_slow: bool = True,
) -> MachineKernel:
    """Return the machine kernel of a message-level kernel, ready for the first stage."""
    shown = listing(kernel) if debug else []
    text = "\n".join(line.text for line in shown) + "\n" if debug else None
    lines = {line.stmt: n for n, line in enumerate(shown, 1) if line.stmt is not None}
    return MachineKernel(kernel, facts, banks, tuple(header), debug, text, lines, allows_slow=allows_slow)


def emit(
    stages: Sequence[Stage], machine: MachineKernel, disable: Collection[str] = (), observe: Observer | None = None
) -> Emitted:
    """Run all stages and return the assembly of the last one."""
    printed = run(stages, machine, disable, observe).emitted
    assert printed is not None
    return printed


def run(
    stages: Sequence[Stage], machine: MachineKernel, disable: Collection[str] = (), observe: Observer | None = None
) -> MachineKernel:
    """Run all stages except those in `disable`. Raises DoesNotFit if registers do not suffice after all fallbacks.

    Errors carry the name of the stage as a note.
    """
    earlier: _Earlier = []
    for stage in stages:
        if stage.name in disable:
            continue
        before, start = machine, perf_counter()
        with noted("stage", stage.name):
            machine = _best_fit(stage, before, earlier)
            if observe is not None:
                observe(stage, before, machine, perf_counter() - start)
        earlier.append((stage, before))
    return machine


_Earlier = list[tuple[Stage, MachineKernel]]  #: stages that have run, each with its input


def _best_fit(stage: Stage, before: MachineKernel, earlier: _Earlier) -> MachineKernel:
    """Return the result of the best rung that fits."""
    failure: DoesNotFit | None = None
    for ladder in stage.ladders:
        result: MachineKernel | None = None
        for rung in ladder:
            if rung.is_slow and not before.allows_slow:
                break
            if rung.undoes and all(ran.name != rung.undoes for ran, _ in earlier):
                continue  # the undone stage has not run: this rung equals the one before it
            try:
                result = stage.run(_prepared(rung, before, earlier), **rung.arguments)
            except DoesNotFit as error:
                failure = error
                break
        if result is not None:
            return result
    assert failure is not None
    raise failure


def _prepared(rung: Rung, before: MachineKernel, earlier: _Earlier) -> MachineKernel:
    """Return the input of a rung: the stage that it undoes is rerun or left out, its remark is in the header."""
    start = before
    if rung.undoes:
        (at,) = (n for n, (ran, _) in enumerate(earlier) if ran.name == rung.undoes)
        undone, start = earlier[at]
        if rung.rerun_arguments is not None:
            start = undone.run(start, **rung.rerun_arguments)
        for ran, _ in earlier[at + 1 :]:
            start = ran.run(start)
    return evolve(start, header=(*start.header, rung.remark)) if rung.remark else start
