"""The IR after every step, as diffs, and the kinds of statements that each step leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs

from convgen.backends.stages import MachineKernel
from convgen.compile_steps import Step
from convgen.ir.expr import Mma
from convgen.ir.mutate import postorder
from convgen.ir.node import Node
from convgen.ir.products import BlockMma
from convgen.ir.program import Kernel
from convgen.ir.record import define, frozen
from convgen.ir.stmt import Block, Stmt
from convgen.show.watch import changes, is_other_form

Row = tuple[str, str]  #: sign of a line in a unified diff, and its text


@frozen(eq=False)
class AppliedStep:
    """A step that was applied to a kernel."""

    name: str
    level: str  #: "tile", "message" or "machine"
    kind: str  #: "lowering" or "optimising"
    contract: str
    rows: tuple[Row, ...]  #: lines of the diff, or of the whole text; empty for an unchanged text and for assembly
    seconds: float
    whole: bool = False  #: whether `rows` are the whole text, since the step changes its form
    kernel: Kernel | None = None  #: the IR after a pass

    @property
    def added(self) -> int:
        return sum(sign == "+" for sign, _ in self.rows)

    @property
    def removed(self) -> int:
        return sum(sign == "-" for sign, _ in self.rows)

    @property
    def change(self) -> str:
        """Return the change of the text, in words."""
        if not self.rows:
            return "no change"
        return f"{len(self.rows)} lines in another form" if self.whole else f"+{self.added} −{self.removed} lines"


@define(eq=False)
class StepHistory:
    """The steps of a kernel from IR as built to assembly text."""

    built: Kernel
    steps: list[AppliedStep] = attrs.Factory(list)

    @property
    def states(self) -> Iterator[tuple[str, Kernel]]:
        """Return the IR as built and after each pass, each with its name."""
        yield "as built", self.built
        yield from ((step.name, step.kernel) for step in self.steps if step.kernel is not None)


class Recorder:
    """Observes a driver; when a kernel is begun again with another config, its earlier steps are dropped."""

    def __init__(self) -> None:
        self.histories: dict[str, StepHistory] = {}
        self._last: dict[str, Kernel | MachineKernel] = {}

    def observe(
        self, step: Step, before: Kernel | MachineKernel, after: Kernel | MachineKernel, seconds: float
    ) -> None:
        """Record a pass or stage that has run."""
        name = after.name
        if isinstance(before, Kernel) and self._last.get(name) is not before:
            self.histories[name] = StepHistory(before)
        self._last[name] = after
        whole = is_other_form(before, after)
        printed = isinstance(after, MachineKernel) and after.emitted is not None  # the page shows the assembly apart
        text = "" if printed else changes(before, after)
        rows = tuple((" ", line) if whole else (line[:1], line[1:]) for line in text.splitlines())
        kernel = after if isinstance(after, Kernel) else None
        self.histories[name].steps.append(
            AppliedStep(step.name, step.level, step.kind, step.contract, rows, seconds, whole, kernel)
        )


def census(history: StepHistory) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Return the names of the IR's states that differ, and for each kind of statement its number in each of them."""
    states: list[tuple[str, Counter[str]]] = []
    for name, kernel in history.states:
        counts = Counter(type(n).__name__ for n in _counted(kernel))
        if not states or states[-1][1] != counts:
            states.append((name, counts))
    kinds = dict.fromkeys(kind for _, counts in states for kind in counts)
    return [name for name, _ in states], [(kind, [counts[kind] for _, counts in states]) for kind in kinds]


def _counted(kernel: Kernel) -> Iterator[Node]:
    """Yield each statement of a kernel once, except blocks, and its matrix products."""
    for n in postorder(kernel.body):
        if isinstance(n, Mma | BlockMma) or (isinstance(n, Stmt) and not isinstance(n, Block)):
            yield n
