"""A cache of one analysis result, for the kernel asked about last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from convgen.ir.program import Kernel

T = TypeVar("T")


class Latest(Generic[T]):
    """The result of `make` for the kernel asked about last; asking about another kernel replaces it."""

    def __init__(self, make: Callable[[Kernel], T]) -> None:
        self._make = make
        self._known: dict[Kernel, T] = {}

    def __call__(self, kernel: Kernel) -> T:
        if kernel not in self._known:
            self._keep(kernel, self._make(kernel))
        return self._known[kernel]

    def handed_on(self, new: Kernel, old: Kernel) -> Kernel:
        """Return `new` and reuse for it the result for `old`; the caller vouches that it holds for both."""
        self._keep(new, self(old))
        return new

    def _keep(self, kernel: Kernel, known: T) -> None:
        self._known.clear()
        self._known[kernel] = known
