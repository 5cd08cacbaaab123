"""What is known of one kernel at a time, for all who ask before it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from convgen.ir.program import Kernel

T = TypeVar("T")


class Latest(Generic[T]):
    """What is made of the kernel that somebody asked about last."""

    def __init__(self, make: Callable[[Kernel], T]) -> None:
        self._make = make
        self._known: dict[Kernel, T] = {}

    def __call__(self, kernel: Kernel) -> T:
        if kernel not in self._known:
            self._keep(kernel, self._make(kernel))
        return self._known[kernel]

    def handed_on(self, new: Kernel, old: Kernel) -> Kernel:
        """`new`, of which the same is known as of `old`, so that it need not be looked at again."""
        self._keep(new, self(old))
        return new

    def _keep(self, kernel: Kernel, known: T) -> None:
        self._known.clear()
        self._known[kernel] = known
