"""Progress of a command: tried configs, IR between passes, and a dump after a crash."""

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


def check_dump(dump: str, target: str) -> None:
    """Raise UserError unless --dump takes this value for a target."""
    if dump in (ALL, CHANGED):
        return
    if not dump.startswith(AFTER):
        raise UserError(f"given --dump={dump}, wanted all, changed or after:PASS")
    check_names([dump.removeprefix(AFTER)], steps(target))


class Watch:
    """Observes a driver: dumps to `stream` or, as replayable files, into `folder`; checks passes; keeps attempts."""

    def __init__(
        self, stream: TextIO, dump: str | None = None, folder: Path | None = None, check: bool = False
    ) -> None:
        self.stream, self.folder = stream, folder
        self.dump = dump or (ALL if folder is not None else None)
        self.checker: PassChecker | None = None
        if check:
            from convgen.show.pass_checker import PassChecker  # which loads the interpreter

            self.checker = PassChecker()
        self.attempts: dict[str, Attempt] = {}
        self.program: Build | None = None
        self._begun: set[str] = set()

    @property
    def notes(self) -> list[str]:
        """Return notes for the user on how passes were checked."""
        return [] if self.checker is None else list(self.checker.notes.values())

    def begin(self, program: Build) -> Build:
        """Watch this program from now on. Raises UserError if its target lacks the step to dump."""
        self.program = program
        if self.dump is not None:
            check_dump(self.dump, program.target.facts.name)
        if self.checker is not None:
            self.checker.scalars = program.scalars
        return program

    def options(self, disable: tuple[str, ...] = ()) -> Options:
        """Return driver options that report every step and every config to this watch."""
        return Options(disable, self.observe, self.tried)

    def tried(self, attempt: Attempt) -> None:
        """Record a config that was tried, or new knowledge of it."""
        self.attempts[str(attempt.config)] = attempt

    def observe(
        self, step: Step, before: Kernel | MachineKernel, after: Kernel | MachineKernel, seconds: float
    ) -> None:
        """Check and dump a pass or stage that has run."""
        if self.checker is not None:
            self.checker.observe(step, before, after, seconds)
        if self.dump in (ALL, CHANGED) and after.name not in self._begun:
            self._begun.add(after.name)
            self._write(None, before, str(before))
        if self.dump == ALL or self.dump == AFTER + step.name:
            self._write(step, after, str(after))
        elif self.dump == CHANGED and str(after) != str(before):
            self._write(step, after, changes(before, after))

    def _write(self, step: Step | None, kernel: Kernel | MachineKernel, shown: str) -> None:
        """Print a kernel, or write it to a file; only dumps of passes can be replayed."""
        if self.folder is None:
            title = f"// {kernel.name} {'as built' if step is None else f'after {step.name}'}"
            _print(f"{title}\n{shown}\n", self.stream)
            return
        assert self.program is not None
        from convgen.show import dumps

        after = None if step is None else step.name
        number = 0 if step is None else 1 + steps(self.program.target.facts.name).index(step)
        path, text = self.folder / f"{kernel.name}.{number:02}.{after or 'built'}", f"{kernel}\n"
        if isinstance(kernel, Kernel):
            path, text = path.with_name(f"{path.name}.dump"), dumps.to_text(self.program, kernel, after)
        else:
            path = path.with_name(f"{path.name}.txt")
        write_all({path: text.encode()}, "--dump-dir")

    def keep(self, error: BaseException) -> Path | None:
        """Write the kernel as it was before the step that raised `error`, as a replayable file; None without kernel."""
        traced = [] if self.program is None else [self.program, *self.program.members]
        trail = next((build.trail for build in reversed(traced) if build.trail), None)
        if self.program is None or trail is None:
            return None
        import tempfile

        from convgen.show import dumps

        blamed = [note.removeprefix("pass: ") for note in getattr(error, "__notes__", []) if note.startswith("pass: ")]
        ends = [number for number, (_, after) in enumerate(trail) if number and after in blamed]
        kernel, after = trail[ends[0] - 1] if ends else trail[-1]
        text = dumps.to_text(self.program, kernel, after)
        folder = self.folder if self.folder is not None and self.folder.is_dir() else None
        handle, name = tempfile.mkstemp(".dump", f"convgen-{kernel.name}-", folder, text=True)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return Path(name)


def is_other_form(before: Kernel | MachineKernel, after: Kernel | MachineKernel) -> bool:
    """Return whether a step changes the form of the text, so that no line stays the same."""
    return isinstance(before, MachineKernel) and isinstance(after, MachineKernel) and before.form != after.form


def changes(before: Kernel | MachineKernel, after: Kernel | MachineKernel) -> str:
    """Return a unified diff of two steps without file names; the whole text if a step changes its form."""
    if is_other_form(before, after):
        return str(after)
    import difflib

    lines = difflib.unified_diff(str(before).splitlines(), str(after).splitlines(), lineterm="", n=2)
    return "\n".join(line for number, line in enumerate(lines) if number >= 2)


def _print(text: str, stream: TextIO) -> None:
    """Print lines; on a terminal, added and removed lines of a diff are coloured."""
    if not stream.isatty():
        print(text, file=stream)
        return
    from rich.console import Console
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "cyan", "/": "bold"}
    lines = (Text(line, styles.get(line[:1], "")) for line in text.splitlines())
    Console(file=stream, soft_wrap=True, highlight=False).print(Text("\n").join(lines))
