"""Collecting findings: one per kind and instruction, up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.threads import Located, Threads
from convgen.backends.simulation import UNSTATED, Finding, Source

WAIT_STATES = "wait-states"  #: a kind whose findings each name their document


class LaunchStopped(Exception):
    """Raised after a finding that leaves nothing sensible to execute, or when the limit of findings is reached."""


#: A load whose value a compare-and-swap may check: the thread, the buffer and the number of the stamp that it covers.
Guess = tuple[int, str, int]


class Reporter:
    """Keeps the first finding of each kind and instruction, over all launches of a run.

    The run stops after `limit` findings whose rule a manual states. Findings whose rule no manual states are kept
    apart, so one kind and instruction may have one of each. `sources` maps each kind to the document of its rule; `add`
    may name another document.
    """

    def __init__(self, limit: int, sources: Mapping[str, Source]) -> None:
        self.limit = limit
        self.sources = sources
        self.findings: list[Finding] = []
        self._required = 0  #: findings that count towards the limit
        self.allowed: Collection[str] = ()  #: kinds that are no findings
        self.kernel = ""
        self.base = 0  #: address of the kernel's symbol
        self.line_of: Callable[[int], str] = lambda address: ""  #: the source line of an address, as FILE:LINE
        self._seen: set[tuple[str, str, int, bool]] = set()
        self._causes: set[tuple[str, str, tuple[object, ...]]] = set()
        #: Postponed findings, with those of their guesses that nothing has checked.
        self._postponed: list[tuple[set[Guess], Callable[[], None]]] = []

    def start(self, kernel: str, base: int, line_of: Callable[[int], str] = lambda address: "") -> None:
        """Set the kernel of later findings, the address of its symbol, and the function that returns source lines."""
        self.kernel, self.base, self.line_of = kernel, base, line_of

    def allow(self, kinds: Collection[str]) -> None:
        """Drop later findings of some kinds. Raises SimulatorError for a kind that this simulator never reports."""
        unknown = sorted(set(kinds) - set(self.sources) - {WAIT_STATES})
        if unknown:
            known = ", ".join(sorted({*self.sources, WAIT_STATES}))
            raise SimulatorError(f"given the check {unknown[0]!r}, wanted one of {known}")
        self.allowed = frozenset(kinds)

    def add(
        self,
        kind: str,
        message: str,
        instruction: Located | None,
        group: Threads | None = None,
        row: int = 0,
        lane: int = -1,
        source: Source | None = None,
        cause: tuple[object, ...] | None = None,
    ) -> None:
        """Record a finding in wave `row` of `group`, at `lane` if a lane is to blame.

        A finding whose kind, kernel and `cause` are those of an earlier finding is dropped.
        """
        if kind in self.allowed:
            return
        address = self.base - 1 if instruction is None else instruction.address
        document = self.sources.get(kind, UNSTATED) if source is None else source
        key = (kind, self.kernel, address, document.required)
        if key in self._seen:
            return
        self._seen.add(key)
        if cause is not None:
            reason = kind, self.kernel, cause
            if reason in self._causes:
                return
            self._causes.add(reason)
        self.findings.append(
            Finding(
                kind,
                message,
                self.kernel,
                pc=address - self.base,
                instruction="" if instruction is None else instruction.text,
                workgroup=-1 if group is None else int(group.group_id[row]),
                subgroup=-1 if group is None else int(group.wave[row]),
                lane=lane,
                source=document,
                line="" if instruction is None else self.line_of(address),
            )
        )
        self._required += document.required
        if self._required >= self.limit:
            raise LaunchStopped

    def postpone(self, guesses: set[Guess], report: Callable[[], None]) -> None:
        """Postpone a finding: `check_guesses` drops it once all `guesses` are checked; else it is reported."""
        self._postponed.append((guesses, report))

    def check_guesses(self, checked: set[Guess]) -> None:
        """Record that compare-and-swaps told threads whether their earlier loads were stale."""
        for guesses, _ in self._postponed:
            guesses -= checked
        self._postponed = [(guesses, report) for guesses, report in self._postponed if guesses]

    @property
    def has_postponed(self) -> bool:
        """Return whether a finding is postponed."""
        return bool(self._postponed)

    def report_postponed(self) -> None:
        """Report the findings that are still postponed, at the end of a launch."""
        postponed, self._postponed = self._postponed, []
        for _, report in postponed:
            report()

    def at_first(
        self,
        kind: str,
        message: str,
        instruction: Located,
        group: Threads,
        bad: npt.NDArray[Any],
        source: Source | None = None,
    ) -> None:
        """Record a finding at the first true entry of `bad`, shaped [waves] or [waves, lanes]."""
        where = np.argwhere(bad)
        if len(where):
            row, lane = int(where[0][0]), int(where[0][1]) if bad.ndim == 2 else -1
            self.add(kind, message, instruction, group, row, lane, source)
