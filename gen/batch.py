"""What is asked for: the problems of command lines and of benchdnn's batch files, and what is wrong with the others.

A batch file is words: `--knob=a,b` sets a list, which holds until `--reset`; a descriptor asks for the product of all
lists. `#` begins a comment, a `\\` at the end of a line glues the next one to it. `--batch=FILE` reads another file,
beside this one, which begins with defaults and leaves none of its options behind. A line that calls MIOpenDriver is
one request of its own, which no option of the file changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import attrs

from convgen import grammar, miopen
from convgen.ir.caret import PointedError
from convgen.ir.error import UserError
from convgen.matmul import Matmul, Problem
from convgen.problem import Conv

#: options of benchdnn that change how it runs or what it prints, and not what is computed
IGNORED = (
    *("alg", "allow-enum-tags-only", "attr-scratchpad", "canonical", "cold-cache", "conv", "cpu-isa-hints"),
    *("ctx-exe", "ctx-init", "engine", "execution-mode", "fast-ref", "fix-times-per-prb", "global-impl", "impl"),
    *("max-ms-per-prb", "mem-check", "memory-kind", "mode", "mode-modifier", "num-streams", "perf-template"),
    *("repeats-per-prb", "skip-impl", "stream-kind", "summary", "verbose"),
)
_SELECTING = ("match", "start")

_COMMENT = re.compile(r"(?:^|\s)#.*")
_WORD = re.compile(r"\S+")
_VERBOSITY = re.compile(r"-v[0-9]*")


@attrs.frozen
class Request:
    """A problem that was asked for; or a text that is none, and why. `where` is the line of a file."""

    text: str
    problem: Problem | None = None
    error: Exception | None = None
    where: str = ""


def requested(text: str, parse: Callable[[], Iterable[Problem]], where: str = "") -> list[Request]:
    """The requests of a text: the problems that `parse` finds in it, or its error, internal ones too."""
    try:
        return [Request(str(problem), problem, where=where) for problem in parse()]
    except Exception as error:
        return [Request(text, error=error, where=where)]


def convolutions(text: str, knobs: Mapping[str, str]) -> tuple[Conv, ...]:
    """The convolutions of a descriptor or of a MIOpenDriver line; of the latter, `knobs` replace what it says."""
    if miopen.is_line(text):
        return miopen.problems(text, knobs)
    return (Conv.parse(text, **_keywords(knobs)),)


def matmuls(text: str, knobs: Mapping[str, str]) -> tuple[Matmul, ...]:
    """The matrix product of a descriptor."""
    return (Matmul.parse(text, **_keywords(knobs)),)


def _keywords(knobs: Mapping[str, str]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in knobs.items()}


@attrs.frozen
class Batch:
    """What a batch file asks for, in order, and the options that mean nothing here with where each stood first."""

    requests: tuple[Request, ...]
    ignored: Mapping[str, str]


def read(path: Path, knobs: Mapping[str, str], match: str | None = None, start: int | None = None) -> Batch:
    """Read a batch file. `knobs` (lists, as in a file), `match` and `start` win over what files say.

    Raises UserError if the file cannot be read or `match` is no pattern; what is wrong within becomes a request.
    """
    reader = _Reader(
        {knob: text.split(",") for knob, text in knobs.items()},
        None if match is None else _pattern(match, match, 0),
        start,
    )
    reader.file(path)
    return Batch(tuple(reader.requests), reader.ignored)


@attrs.define
class _Settings:
    """What options have set since the last reset."""

    knobs: dict[str, list[str]] = attrs.Factory(dict)
    match: re.Pattern[str] | None = None


@attrs.frozen
class _Line:
    """A logical line and where it begins."""

    text: str
    path: Path
    number: int

    @property
    def where(self) -> str:
        return f"{self.path}:{self.number}"


@attrs.define
class _Reader:
    """Collects requests from nested files. `skipped` problems are left out at the beginning."""

    given: Mapping[str, list[str]]
    match: re.Pattern[str] | None
    start: int | None
    requests: list[Request] = attrs.Factory(list)
    ignored: dict[str, str] = attrs.Factory(dict)
    skipped: int = 0
    seen: int = 0
    open: list[Path] = attrs.Factory(list)

    def file(self, path: Path) -> None:
        """Read one file. Raises UserError if it cannot be read or is being read already."""
        text = _text_of(path)
        resolved = path.resolve()
        if resolved in self.open:
            way = " includes ".join(each.name for each in [*self.open[self.open.index(resolved) :], resolved])
            raise UserError(f"given --batch={path.name} in a cycle, {way}, wanted none")
        self.open.append(resolved)
        settings = _Settings()
        for number, line in _logical_lines(text):
            self.line(_Line(line, path, number), settings)
        self.open.pop()

    def line(self, line: _Line, settings: _Settings) -> None:
        """One logical line. An option that is refused takes with it the descriptors behind it on the line."""
        if miopen.is_line(line.text):
            self.ask(line.text, {}, settings, line.where)
            return
        spoilt = False
        words = iter([(found.start(), found[0]) for found in _WORD.finditer(line.text)])
        for column, word in words:
            if word.startswith("-"):
                try:
                    self.option(line, column, word, words, settings)
                except UserError as error:
                    self.requests.append(Request(line.text, error=error, where=line.where))
                    spoilt = True
            elif not spoilt:
                self.ask(word, settings.knobs, settings, line.where)

    def option(
        self, line: _Line, column: int, word: str, words: Iterator[tuple[int, str]], settings: _Settings
    ) -> None:
        """One option; a value that is not behind `=` is the next of `words`. Raises UserError."""
        name, equals, value = word.removeprefix("--").partition("=")
        if word == "--reset":
            settings.knobs, settings.match = {}, None
        elif name in IGNORED or _VERBOSITY.fullmatch(word):
            self.ignored.setdefault(word, line.where)
        elif not word.startswith("--") or name not in (*grammar.CONV_KNOBS, *_SELECTING, "batch"):
            known = " ".join(f"--{knob}" for knob in (*grammar.CONV_KNOBS, *_SELECTING, "batch", "reset"))
            raise PointedError(f"given the option {word!r}, wanted one of {known}", line.text, column)
        else:
            at, text = (column + len(word) - len(value), value) if equals else next(words, (len(line.text), ""))
            if not equals and not text:
                raise PointedError(f"given {word} without a value, wanted one", line.text, at)
            self.set(name, text, line, at, settings)

    def set(self, name: str, value: str, line: _Line, column: int, settings: _Settings) -> None:
        """An option that has a value, which stands at a column of the line."""
        if name == "batch":
            self.file(line.path.parent / value)
        elif name == "match":
            settings.match = _pattern(value, line.text, column)
        elif name == "start":
            if not (value.isascii() and value.isdigit() and len(value) < 19):
                raise PointedError(f"given {value!r} at --start, wanted an integer from 0", line.text, column)
            self.skipped = int(value)
        else:
            settings.knobs[name] = value.split(",")

    def ask(self, text: str, knobs: Mapping[str, Sequence[str]], settings: _Settings, where: str) -> None:
        """The problems of a text, for each combination of knobs, that are selected."""
        lists = {**knobs, **self.given}
        ordered = [knob for knob in grammar.CONV_KNOBS if knob in lists]
        match = self.match or settings.match
        told: set[str] = set()  # what is wrong with every combination is told once
        for values in product(*(lists[knob] for knob in ordered)):
            parse = partial(convolutions, text, dict(zip(ordered, values)))
            for request in requested(text, parse, where):
                if (match is not None and not match.search(request.text)) or str(request.error) in told:
                    continue
                told |= set() if request.error is None else {str(request.error)}
                self.seen += 1
                if self.seen > (self.skipped if self.start is None else self.start):
                    self.requests.append(request)


def _pattern(text: str, line: str, column: int) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        message = f"given a pattern with {error.msg}, wanted a regular expression, in --match"
        raise PointedError(message, line, column + (error.pos or 0)) from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:  # not UTF-8, or a name that no file has
        raise UserError(f"given {str(path)!r} that is not text, wanted a batch file") from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that say something, without comments, continued ones joined, each with its number in the file."""
    glued, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        glued += _COMMENT.sub("", line).strip()
        first = first or number
        if glued.endswith("\\"):
            glued = glued[:-1]
            continue
        if glued:
            yield first, glued
        glued, first = "", 0
    if glued.strip():
        yield first, glued
