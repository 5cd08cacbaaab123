"""Load code objects or assembly text that a user passes, or refuse them in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Protocol, TypeVar

from convgen.backends.sim.errors import SimulatorError, reading
from convgen.ir.error import UserError


class HasKernels(Protocol):
    """A code object as the simulator loads it."""

    @property
    def kernels(self) -> Sized: ...


L = TypeVar("L", bound=HasKernels)


@contextmanager
def readable(
    content: bytes, where: str, load: Callable[[bytes], L], assembled: Callable[[str, str], bytes]
) -> Iterator[tuple[L, bytes]]:
    """Yield a loaded code object with at least one kernel, and its bytes.

    Raises UserError for content that cannot be read, also while the `with` block reads it. `where` names the file in
    errors; `assembled(text, where)` assembles text.
    """
    code = content if content[:4] == b"\x7fELF" else assembled(_text(content, where), where)
    try:
        loaded = load(code)
        if not loaded.kernels:
            raise UserError(f"given {where} without a kernel, wanted at least one")
        with reading("the code"):
            yield loaded, code
    except SimulatorError as error:
        raise UserError(f"given {where} that cannot be read: {error}") from None


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UserError(f"given {where} that is neither a code object nor text") from None
