"""Lines and names in the user's source, for error messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from convgen.ir.record import frozen

_OWN = str(Path(__file__).parent)


@frozen
class Line:
    """A line of the user's source."""

    file: str
    number: int
    module: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.number}"


def _frames() -> Iterator[FrameType]:
    """Yield the frames outside the tile language, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        of_numpy = str(frame.f_globals.get("__name__", "")).partition(".")[0] == "numpy"
        if not of_numpy and not frame.f_code.co_filename.startswith(_OWN):
            yield frame
        frame = frame.f_back


def line() -> Line | None:
    """Return the line of the kernel that is being traced."""
    frame = next(_frames(), None)
    if frame is None:
        return None
    return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", ""))


def line_of(error: BaseException, file: str) -> Line | None:
    """Return the innermost line of a file that an error has passed."""
    innermost, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            innermost = Line(file, trace.tb_lineno)
        trace = trace.tb_next
    return innermost


def called(value: object, otherwise: str = "a block") -> str:
    """Return the name that the kernel's function gives to a value."""
    frame = next(_frames(), None)
    names = frame.f_locals.items() if frame else ()
    return next((name for name, value_of_name in names if value_of_name is value), otherwise)
