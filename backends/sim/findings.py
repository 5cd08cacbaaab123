"""Collecting findings: one per kind and instruction, up to a limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.backends.sim.threads import Located, Threads
from convgen.backends.simulation import Finding


class LaunchStopped(Exception):
    """Raised after a finding that leaves nothing sensible to execute, or when there are enough of them."""


class Reporter:
    """Keeps the first finding of each (kind, instruction) of a launch, at most `limit` in all, which stop the run."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.findings: list[Finding] = []
        self.kernel = ""
        self.base = 0  #: address of the kernel's symbol
        self._seen: set[tuple[str, str, int]] = set()

    def start(self, kernel: str, base: int) -> None:
        """Name the kernel that later findings belong to."""
        self.kernel, self.base = kernel, base

    def add(
        self,
        kind: str,
        message: str,
        instruction: Located | None,
        group: Threads | None = None,
        row: int = 0,
        lane: int = -1,
    ) -> None:
        """Record a finding of `group`'s wave number `row`, at `lane` where one is to blame."""
        address = self.base - 1 if instruction is None else instruction.address
        key = (kind, self.kernel, address)
        if key in self._seen:
            return
        self._seen.add(key)
        self.findings.append(
            Finding(
                kind,
                message,
                self.kernel,
                pc=address - self.base,
                instruction="" if instruction is None else instruction.text,
                workgroup=-1 if group is None else int(group.group_id[row]),
                wave=-1 if group is None else int(group.wave[row]),
                lane=lane,
            )
        )
        if len(self.findings) >= self.limit:
            raise LaunchStopped

    def at_first(self, kind: str, message: str, instruction: Located, group: Threads, bad: npt.NDArray[Any]) -> None:
        """Record a finding at the first true entry of `bad`, shaped [waves] or [waves, lanes]."""
        where = np.argwhere(bad)
        if len(where):
            row, lane = int(where[0][0]), int(where[0][1]) if bad.ndim == 2 else -1
            self.add(kind, message, instruction, group, row, lane)
