"""Watch waves while `convgen run` executes them: a trace of instructions, or registers at a place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

from convgen.ir.error import UserError

Watch = Callable[[Any], None]
_LANES = 8  #: lanes of a vector register that are printed, if not all are equal


@contextmanager
def watching_waves(
    trace: str | None, place: str | None, stream: TextIO
) -> Iterator[tuple[Watch | None, tuple[int | str, ...]]]:
    """Yield a watch function for waves and the places to watch; registers go to `stream`. Raises UserError for a
    trace that cannot be written, or if both are given.
    """
    if trace is not None and place is not None:
        raise UserError("given --trace and --break, wanted one of them")
    if place is not None:
        at = int(place, 0) if re.fullmatch(r"\+(0x[0-9a-fA-F]+|[0-9]+)", place) else place
        shown = _Shown(stream)
        yield shown, (at,)
        if not shown.done:
            print(f"no wave came to {place}", file=stream)
        return
    if trace is None:
        yield None, ()
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(trace, "w"))
        except OSError as error:
            raise UserError(f"cannot write {trace!r}: {error.strerror}, at --trace") from None
        yield lambda halt: _note(halt, file), ()


def _note(halt: Any, file: TextIO) -> None:
    """Write a line: place, workgroup.wave of the waves that execute together, instruction, source line."""
    who = ",".join(f"{group}.{wave}" for group, wave in zip(halt.workgroups, halt.waves, strict=True))
    line = f"\t{halt.line}" if halt.line else ""
    file.write(f"{halt.kernel}+{halt.pc:#x}\t{who}\t{halt.instruction}{line}\n")


class _Shown:
    """Prints the registers of the first wave that reaches a place, once."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.done = stream, False

    def __call__(self, halt: Any) -> None:
        if self.done:
            return
        self.done = True
        where = f" ({halt.line})" if halt.line else ""
        self._say(f"{halt.kernel}+{halt.pc:#x}: {halt.instruction}{where}")
        self._say(f"workgroup {halt.workgroups[0]} wave {halt.waves[0]}, {int(halt.active[0].sum())} lanes active")
        undefined_v, undefined_s = halt.undefined
        for number, (value, undefined) in enumerate(zip(halt.scalars[0], undefined_s[0], strict=True)):
            if not undefined:
                self._say(f"  {_NAMES.get(number, f's{number}'):8} {value:#010x}")
        for number, (lanes, undefined) in enumerate(zip(halt.vectors[0], undefined_v[0], strict=True)):
            if undefined.all():
                continue
            shown = [f"{value:#010x}" if known else "undefined" for value, known in zip(lanes[:_LANES], ~undefined)]
            same = (lanes == lanes[0]).all() and not undefined.any()
            self._say(f"  v{number:<7} {shown[0] if same else ' '.join(shown) + ' ...'}")

    def _say(self, text: str) -> None:
        print(text, file=self.stream)


_NAMES = {106: "vcc_lo", 107: "vcc_hi", 124: "m0", 126: "exec_lo", 127: "exec_hi", 128: "scc"}
