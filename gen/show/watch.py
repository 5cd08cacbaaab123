"""Reports of work in progress: configs tried, IR between passes, and what is left after a crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from convgen.backends.stages import MachineKernel
from convgen.compile_steps import Step, check_names, steps
from convgen.driver import Attempt, Build, Options
from convgen.ir.error import UserError
from convgen.ir.program import Kernel
from convgen.run.files import write_all

if TYPE_CHECKING:
    from convgen.show.pass_checker import PassChecker

ALL, CHANGED, AFTER = "all", "changed", "after:"


def check_dump(what: str, target: str) -> None:
    """UserError unless `what` is one that --dump takes for a target."""
    if what in (ALL, CHANGED):
        return
    if not what.startswith(AFTER):
        raise UserError(f"given --dump={what}, wanted all, changed or after:PASS")
    check_names([what.removeprefix(AFTER)], steps(target))


class Watch:
    """Observes a driver: dumps to `stream` or, as replayable files, into `folder`; checks passes; keeps attempts."""

    def __init__(
        self, stream: TextIO, dump: str | None = None, folder: Path | None = None, check: bool = False
    ) -> None:
        self.stream, self.folder = stream, folder
        self.dump = dump or (ALL if folder is not None else None)
        self.checker = _checker() if check else None
        self.attempts: dict[str, Attempt] = {}
        self.program: Build | None = None
        self._begun: set[str] = set()

    @property
    def notes(self) -> list[str]:
        """Return remarks on how passes were checked."""
        return [] if self.checker is None else list(self.checker.notes.values())

    def begin(self, program: Build) -> Build:
        """From now on it is this program that is watched. UserError if its target has no step to dump behind."""
        self.program = program
        if self.dump is not None:
            check_dump(self.dump, program.target.facts.name)
        if self.checker is not None:
            self.checker.scalars = program.scalars
        return program

    def options(self, disable: tuple[str, ...] = ()) -> Options:
        """Driver options that let this watch see everything."""
        return Options(disable, self.observe, self.tried)

    def tried(self, attempt: Attempt) -> None:
        """A config was tried, or what was known of it has changed."""
        self.attempts[str(attempt.config)] = attempt

    def observe(
        self, step: Step, before: Kernel | MachineKernel, after: Kernel | MachineKernel, seconds: float
    ) -> None:
        """A pass or stage has run."""
        if self.checker is not None:
            self.checker.observe(step, before, after, seconds)
        if self.dump in (ALL, CHANGED) and after.name not in self._begun:
            self._begun.add(after.name)
            self._write(None, before, str(before))
        if self.dump == ALL or self.dump == AFTER + step.name:
            self._write(step, after, str(after))
        elif self.dump == CHANGED and str(after) != str(before):
            self._write(step, after, changes(before, after))

    def _write(self, step: Step | None, made: Kernel | MachineKernel, shown: str) -> None:
        """As text, or into a file; only those of passes are replayable."""
        if self.folder is None:
            title = f"// {made.name} {'as built' if step is None else f'after {step.name}'}"
            _print(f"{title}\n{shown}\n", self.stream)
            return
        assert self.program is not None
        from convgen.show import dumps

        after = None if step is None else step.name
        number = 0 if step is None else 1 + steps(self.program.target.facts.name).index(step)
        path, text = self.folder / f"{made.name}.{number:02}.{after or 'built'}", f"{made}\n"
        if isinstance(made, Kernel):
            path, text = path.with_name(f"{path.name}.dump"), dumps.to_text(self.program, made, after)
        else:
            path = path.with_name(f"{path.name}.txt")
        write_all({path: text.encode()}, "--dump-dir")

    def keep(self, error: BaseException) -> Path | None:
        """Write the kernel in work as it was before `error` broke it, as a replayable file; None if there was none."""
        if self.program is None or not self.program.trail:
            return None
        import tempfile

        from convgen.show import dumps

        blamed = [note.removeprefix("pass: ") for note in getattr(error, "__notes__", []) if note.startswith("pass: ")]
        trail = self.program.trail
        ends = [number for number, (_, after) in enumerate(trail) if number and after in blamed]
        kernel, after = trail[ends[0] - 1] if ends else trail[-1]
        text = dumps.to_text(self.program, kernel, after)
        folder = self.folder if self.folder is not None and self.folder.is_dir() else None
        handle, name = tempfile.mkstemp(".dump", f"convgen-{kernel.name}-", folder, text=True)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return Path(name)


def _checker() -> PassChecker:
    """The interpreter is only loaded where it is wanted."""
    from convgen.show.pass_checker import PassChecker

    return PassChecker()


def is_written_anew(before: Kernel | MachineKernel, after: Kernel | MachineKernel) -> bool:
    """Whether no line of two steps as printed can be the same."""
    return isinstance(before, MachineKernel) and isinstance(after, MachineKernel) and before.form != after.form


def changes(before: Kernel | MachineKernel, after: Kernel | MachineKernel) -> str:
    """A unified diff of two steps as printed, without its file names; the latter whole if no line can be the same."""
    if is_written_anew(before, after):
        return str(after)
    import difflib

    lines = difflib.unified_diff(str(before).splitlines(), str(after).splitlines(), lineterm="", n=2)
    return "\n".join(line for number, line in enumerate(lines) if number >= 2)


def _print(text: str, stream: TextIO) -> None:
    """Text of lines; those that a diff adds and removes are coloured on a terminal."""
    if not stream.isatty():
        print(text, file=stream)
        return
    from rich.console import Console
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "cyan", "/": "bold"}
    lines = (Text(line, styles.get(line[:1], "")) for line in text.splitlines())
    Console(file=stream, soft_wrap=True, highlight=False).print(Text("\n").join(lines))
