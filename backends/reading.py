"""Code objects, and assembly text, that somebody hands over to be read: loaded, or refused in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Protocol, TypeVar

from convgen.backends.sim.errors import SimulatorError, reading
from convgen.ir.error import UserError


class Loaded(Protocol):
    """A code object as the simulator has it."""

    @property
    def kernels(self) -> Sized: ...


L = TypeVar("L", bound=Loaded)


@contextmanager
def readable(
    content: bytes, where: str, load: Callable[[bytes], L], assembled: Callable[[str, str], bytes]
) -> Iterator[tuple[L, bytes]]:
    """A code object with a kernel, loaded and as bytes; what cannot be read of it in the suite is a UserError.

    `where` names the file in errors, also to what has text `assembled`.
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
