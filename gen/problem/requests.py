"""Requests: the problems of command lines and of benchdnn's batch files, and why a line is refused.

A batch file consists of words. `--knob=a,b` sets a list, which holds until `--reset`, also in and after files that
`--batch=FILE` reads; a descriptor requests the product of all lists. `#` begins a comment, and a word that ends in `\\`
is joined with the next. `--conv`, `--deconv`, `--ip` and `--matmul` name the driver of later descriptors; without them
a descriptor's first character decides. A line logged by another program (`request_lines`) is one request, which options
of the file do not change. Any other line is a remark. A file that begins with names of columns is a table (`aiter`),
`*.onnx` and `*.pt2` are models (`onnx_model`, `exported_model`).
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING

import attrs

from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import define, evolve, frozen
from convgen.problem import driver_lines, grammar, inner_product, options, request_lines, verbose
from convgen.problem.matmul import PROBLEMS, Problem
from convgen.problem.options import CONV, DECONV, IP, MATMUL
from convgen.problem.request_text import logical_lines, text_of

if TYPE_CHECKING:
    from convgen.problem.aiter import Row
    from convgen.problem.model_nodes import Node

_SELECTING = ("match", "start")
_READER = (*_SELECTING, "batch", "reset", *options.DRIVERS)  #: options that the reader of files obeys itself

_DEEPEST, _FILES = 100, 10_000  #: files within each other, and files read
_PROBLEMS = 2_000_000  #: most combinations that are read
_MATCHING = 10.0  #: seconds that a pattern may take, over all problems

_MODELS = (".onnx", ".pt2")
_WORD = re.compile(r"\S+")
_COUNTED = re.compile(r".*\*(?P<count>[1-9][0-9]{0,5})", re.DOTALL)  #: a name that counts equal layers
_VERBOSITY = re.compile(r"-v[0-9]*")


@frozen
class Request:
    """A requested problem, or a text that is none with its error.

    `where` is the line of a file or the operator of a model. A request that `distinct` returns has the names of its
    `layers`, and their `count`.
    """

    text: str
    problem: Problem | None = None
    error: Exception | None = None
    where: str = ""
    layers: tuple[str, ...] = ()
    count: int = 1


class TooMuch(UserError):
    """The files ask for more than the limits of a reader; none of their requests is worked on."""


def requested(text: str, parse: Callable[[], Iterable[Problem]], where: str = "") -> list[Request]:
    """Return the requests of a text: the problems that `parse` finds in it, or its error, internal errors included."""
    try:
        return [Request(str(problem), problem, where=where) for problem in parse()]
    except Exception as error:
        return [Request(text, error=error, where=where)]


def distinct(requests: Iterable[Request]) -> list[Request]:
    """Return requests with equal ones joined, in the order of the first of each; problems are without names.

    Problems are equal if they differ in names only. A layer's name is that of its problem, else its place; the second
    layer of a name gets `#2` behind it. benchdnn's shape files count equal layers in the name, `n"res2a*3"`: such a
    name stands for as many layers.
    """
    joined = dict[str, Request]()
    names = Counter[str]()
    for request in map(_layered, requests):
        names.update(request.layers)
        layers = tuple(f"{name}#{names[name]}" if names[name] > 1 else name for name in request.layers)
        earlier = joined.get(request.text)
        if earlier is None:
            joined[request.text] = evolve(request, layers=layers)
        else:
            count = earlier.count + request.count
            joined[request.text] = evolve(earlier, layers=earlier.layers + layers, count=count)
    return list(joined.values())


def _layered(request: Request) -> Request:
    """Return a request with the names and the count of its layers, and its problem without a name."""
    name = "" if request.problem is None else request.problem.name
    if request.problem is not None:
        problem = evolve(request.problem, name="")
        request = evolve(request, problem=problem, text=str(problem))
    if request.layers:
        return request
    counted = _COUNTED.fullmatch(name)
    count = int(counted["count"]) if counted else request.count
    return evolve(request, layers=tuple(filter(None, [name or request.where])), count=count)


def problems(driver: str, text: str, knobs: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return the problems of a descriptor or a logged line (`request_lines`), whose own knobs `knobs` override."""
    parse = inner_product.of if driver == IP else PROBLEMS[driver].of
    return _problems_of_log(text, knobs, driver) or (parse(text, knobs),)


def _problems_of_log(text: str, knobs: Mapping[str, str], driver: str) -> tuple[Problem, ...]:
    """Return the problems of a logged line, none for any other text. Raises UserError for a line of another driver."""
    driver_of_line = request_lines.driver_of(text)
    if driver_of_line not in (None, driver):
        names = {CONV: "a convolution", DECONV: "a transposed convolution", MATMUL: "a matrix product"}
        raise UserError(f"given {names[driver_of_line or CONV]} ({text[:40]!r}), wanted {names[driver]}")
    return request_lines.problems(text, knobs) if driver_of_line else ()


@frozen
class Batch:
    """The requests of a batch file in order, and the ignored options, each with the place of its first use."""

    requests: tuple[Request, ...]
    ignored: Mapping[str, str]


def read(path: Path, knobs: Mapping[str, str], match: str | None = None, start: int | None = None) -> Batch:
    """Read a batch file. `knobs` (lists, as in a file), `match` and `start` override options of files.

    Raises UserError if the file cannot be read or asks for too much, or if `match` is no pattern; an error in a line
    becomes a request.
    """
    reader = Reader.of(knobs, match, start)
    return Batch(tuple(reader.file(path)), reader.ignored)


@define
class _Settings:
    """The values of options since the last reset."""

    knobs: dict[str, list[str]] = attrs.Factory(dict)
    match: _Pattern | None = None


@frozen
class _Line:
    """A logical line and where it begins, or an operator and its name; one of no file has neither."""

    text: str
    path: Path
    number: int | str

    @property
    def where(self) -> str:
        return f"{self.path}:{self.number}" if self.number else ""


@define
class Reader:
    """Reader of the requests of nested files. The settings of each driver go from file to file, as benchdnn's do."""

    given: Mapping[str, list[str]]  #: lists of knobs that override those of files
    match: _Pattern | None  #: overrides `--match` of files
    start: int | None  #: overrides `--start` of files
    settings: dict[str, _Settings] = attrs.Factory(lambda: {driver: _Settings() for driver in options.DRIVERS})
    driver: str | None = None  #: driver of later descriptors; None: a descriptor's first character decides
    ignored: dict[str, str] = attrs.Factory(dict)  #: ignored options, with the place of their first use
    remarks: list[_Line] = attrs.Factory(list)  #: lines that are no requests
    #: primitives that the current file logs as executed; creations of these are not requests of their own
    executed: frozenset[str] = frozenset()
    skipped: int = 0  #: requests left out at the beginning (`--start`)
    seen: int = 0  #: requests so far that match, skipped ones included
    tried: int = 0  #: combinations of knobs so far
    files: int = 0  #: files read so far
    open: list[Path] = attrs.Factory(list)  #: files being read, each named by the one before

    @classmethod
    def of(cls, knobs: Mapping[str, str], match: str | None, start: int | None, driver: str | None = None) -> Reader:
        """Return a reader of a driver's descriptors; `knobs` (lists), `match` and `start` override those of files."""
        given = {knob: text.split(",") for knob, text in knobs.items()}
        return cls(given, None if match is None else _Pattern.of(match, match, 0), start, driver=driver)

    def file(self, path: Path) -> Iterator[Request]:
        """Yield the requests of one file. Raises UserError if it cannot be read or is being read already."""
        self.files += 1
        if self.files > _FILES:
            raise TooMuch(f"given more than {_FILES} files by --batch, wanted fewer")
        text = "" if path.suffix in _MODELS else text_of(path)
        resolved = path.resolve()
        if resolved in self.open:
            cycle = " includes ".join(each.name for each in [*self.open[self.open.index(resolved) :], resolved])
            raise UserError(f"given --batch={path.name} in a cycle, {cycle}, wanted none")
        if len(self.open) == _DEEPEST:
            raise UserError(f"given --batch={path.name} in {_DEEPEST} files within each other, wanted fewer")
        self.open.append(resolved)
        yield from self.model(path) if path.suffix in _MODELS else self._content(path, text)
        self.open.pop()

    def model(self, path: Path) -> Iterator[Request]:
        """Yield the convolutions and products of a model, equal ones once. Raises UserError if it cannot be read."""
        yield from distinct(self._operators(path))

    def _operators(self, path: Path) -> Iterator[Request]:
        """Yield the requests of a model's operators, each with its layer's name."""
        for node in self._nodes(path):
            line = _Line(node.descriptor, path, node.name)
            if node.error is not None:
                error = Request(line.text, error=node.error, where=line.where)
                asked: Iterable[Request] = self._chosen(error, None)
            else:
                asked = self.ask(node.driver, line.text, {knob: [text] for knob, text in node.knobs.items()}, line)
            yield from (evolve(request, layers=(node.name,)) for request in asked)

    def _nodes(self, path: Path) -> Iterator[Node]:
        """Return the operators of a model. Raises UserError."""
        minibatch = grammar.parse_minibatch(self.given.get("mb", ["0"])[0] or "0")
        if path.suffix == ".onnx":
            from convgen.problem import onnx_model

            return onnx_model.nodes(path, minibatch)
        from convgen.problem import exported_model

        return exported_model.nodes(path)

    def _content(self, path: Path, text: str) -> Iterator[Request]:
        from convgen.problem import aiter  # which is not needed without a file

        if aiter.is_table(text):
            yield from self.table(aiter.rows(text, str(path)), path)
            return
        before, self.executed = self.executed, verbose.executed(text)
        for number, line in logical_lines(text):
            yield from self.line(_Line(line, path, number))
        self.executed = before

    def table(self, rows: Iterable[Row], path: Path) -> Iterator[Request]:
        """Yield the problems of a table, one a row."""
        for row in rows:
            line = _Line(row.descriptor, path, row.number)
            if row.error is not None:
                yield from self._chosen(Request(row.descriptor, error=row.error, where=line.where), None)
            else:
                yield from self.ask(
                    row.driver, row.descriptor, {knob: [value] for knob, value in row.knobs.items()}, line
                )

    def words(self, text: str) -> Iterator[Request]:
        """Yield the requests of a text of the command line, which is never a remark."""
        line = _Line(text, Path(), 0)
        logged = request_lines.driver_of(text)
        yield from self._words(line) if logged is None else self.ask(logged, text, {}, line)

    def line(self, line: _Line) -> Iterator[Request]:
        """Yield the requests of one logical line; keep any other line as a remark."""
        if logged := request_lines.split(line.text):
            for text in logged:
                yield from self._logged(text, line)
        elif (driver_line := driver_lines.find(line.text)) is not None:
            before = self.settings, self.driver
            if driver_line.is_command:
                self.settings, self.driver = {driver: _Settings() for driver in options.DRIVERS}, None
            yield from self._words(evolve(line, text=driver_line.text))
            if driver_line.is_command:
                self.settings, self.driver = before
        else:
            self.remarks.append(line)

    def _logged(self, text: str, line: _Line) -> Iterator[Request]:
        """Yield the problems of a line of a known format, unless it repeats a logged execution."""
        if verbose.repeats(text, self.executed):
            self.remarks.append(line)
            return
        self.executed |= verbose.executed(text, every=True)
        driver = request_lines.driver_of(text)
        assert driver is not None
        yield from self.ask(driver, text, {}, line)

    def _words(self, line: _Line) -> Iterator[Request]:
        """Yield the requests of a driver line; the descriptors after a refused option are left out with it."""
        is_refused = False
        words = iter([(match.start(), match[0]) for match in _WORD.finditer(line.text)])
        for column, word in words:
            if word.startswith("-"):
                try:
                    yield from self.option(line, column, word, words)
                except TooMuch:
                    raise
                except UserError as error:
                    if not is_refused:  # one row a line
                        yield Request(line.text, error=error, where=line.where)
                    is_refused = True
            elif not is_refused:
                yield from self.descriptor(line, word)

    def option(self, line: _Line, column: int, word: str, words: Iterator[tuple[int, str]]) -> Iterator[Request]:
        """Set one option, whose value may be the next of `words`; yield the requests of its file. Raises UserError."""
        name, equals, value = word.removeprefix("--").partition("=")
        if word == "--reset":
            for driver in self._drivers:
                self.settings[driver] = _Settings()
        elif word in _SWITCHES:
            self.driver = name
        elif _VERBOSITY.fullmatch(word):
            self.ignored.setdefault(word, line.where)
        elif self.driver in options.OTHER_DRIVERS and name not in _READER:
            return  # its options are its own
        else:
            known = self._find(line, column, word, name)
            at, text = (column + len(word) - len(value), value) if equals else next(words, (len(line.text), ""))
            if not equals and not text:
                raise PointedError(f"given {word} without a value, wanted one", line.text, at)
            if known is None:
                yield from self.select(name, text, line, at)
            elif known.runs:
                known.value(text)
                self.ignored.setdefault(word, line.where)
            else:
                for driver in self._drivers:
                    if (option := options.SPELLED[driver].get(name)) is not None:
                        self.settings[driver].knobs[option.name] = text.split(",")

    @property
    def _drivers(self) -> tuple[str, ...]:
        """Return the drivers whose options are set."""
        if self.driver is None:
            return options.DRIVERS
        return (self.driver,) if self.driver in options.DRIVERS else ()

    def _find(self, line: _Line, column: int, word: str, name: str) -> options.Option | None:
        """Return the option of a word, None if the reader obeys it itself. Raises PointedError."""
        if word.startswith("--") and name in _READER and word.partition("=")[0] not in _SWITCHES | {"--reset"}:
            return None
        error: UserError | None = None
        for driver in self._drivers:
            try:
                return options.find(word, driver, _READER)
            except UserError as refused:
                error = error or refused
        raise PointedError(str(error), line.text, column)

    def select(self, name: str, value: str, line: _Line, column: int) -> Iterator[Request]:
        """Obey `--batch`, `--match` or `--start`; yield the requests of a file. Raises UserError."""
        if name == "batch":
            if value:
                yield from self.file(self._located(line.path.parent, value))
        elif name == "match":
            pattern = _Pattern.of(value, line.text, column) if value else None
            for driver in self._drivers:
                self.settings[driver].match = pattern
        else:
            if not re.fullmatch("[0-9]{0,18}", value):
                raise PointedError(f"given {value!r} at --start, wanted an integer from 0", line.text, column)
            self.skipped = int(value or 0)

    def _located(self, folder: Path, name: str) -> Path:
        """Return the path of a file: beside the one that names it, beside one that reads that, or from here."""
        beside = folder / name
        places = [beside, *(path.parent / name for path in reversed(self.open)), Path(name)]
        return next((place for place in places if os.path.exists(place)), beside)

    def descriptor(self, line: _Line, word: str) -> Iterator[Request]:
        """Yield the problems of a descriptor."""
        if self.driver in options.OTHER_DRIVERS:
            given = f"a problem of benchdnn's --{self.driver}"
            error = Unsupported(
                f"given {given}, wanted one of --conv, --deconv, --ip or --matmul: others are not generated",
                rule="driver",
            )
            yield from self._chosen(Request(word, error=error, where=line.where), None)
            return
        driver = self.driver or (MATMUL if word[:1].isdigit() else CONV)
        settings = self.settings[driver]
        yield from self.ask(driver, word, settings.knobs, line, settings.match)

    def ask(
        self, driver: str, text: str, knobs: Mapping[str, Sequence[str]], line: _Line, match: _Pattern | None = None
    ) -> Iterator[Request]:
        """Yield the selected problems of a text, for each combination of knobs. Raises TooMuch."""
        known = options.SPELLED[driver]
        lists = {**knobs, **{knob: values for knob, values in self.given.items() if knob in known}}
        choices = [(option, lists[option.name]) for option in options.KNOBS_OF[driver] if option.name in lists]
        self.tried += prod(len(values) for _, values in choices)
        if self.tried > _PROBLEMS:
            raise TooMuch(f"given more than {_PROBLEMS} problems with {text[:60]!r} in {line.where}, wanted fewer")
        reported: set[str] = set()  # an error that every combination has is reported once
        for values in _combinations(choices):
            driver_line = " ".join([*(f"--{knob}={value}" for knob, value in values.items() if value), text])
            for request in requested(driver_line, partial(problems, driver, text, values), line.where):
                if request.error is None or str(request.error) not in reported:
                    yield from self._chosen(request, match, reported)

    def _chosen(self, request: Request, match: _Pattern | None, reported: set[str] | None = None) -> Iterator[Request]:
        """Count a request and yield it, unless `--match` or `--start` leaves it out; add its error to `reported`."""
        pattern = self.match or match
        if pattern is not None and not pattern.finds(request.text):
            return
        if reported is not None and request.error is not None:
            reported.add(str(request.error))
        self.seen += 1
        if self.seen > (self.skipped if self.start is None else self.start):
            yield request


def _combinations(choices: Sequence[tuple[options.Option, Sequence[str]]]) -> Iterator[dict[str, str]]:
    """Yield all combinations of values, those of the last option fastest; an option without meaning counts once."""
    names = [option.name for option, _ in choices]
    beside = [(option, values) for option, values in choices if option.beside]
    for chosen in product(*(values for _, values in choices)):
        combination = dict(zip(names, chosen))
        if all(
            combination[option.name] is values[0] or combination.get(option.beside, "") not in ("", "undef")
            for option, values in beside
        ):
            yield combination


#: words that say whose descriptors follow
_SWITCHES = {f"--{driver}" for driver in (*options.DRIVERS, *options.OTHER_DRIVERS)}


@define
class _Pattern:
    """A regular expression, the text it came from with its column, and the seconds it has left."""

    regex: re.Pattern[str]
    line: str
    column: int
    left: float = attrs.Factory(lambda: _MATCHING)

    @classmethod
    def of(cls, text: str, line: str, column: int) -> _Pattern:
        """Raises PointedError if the text is none."""
        try:
            return cls(re.compile(text), line, column)
        except (re.error, RecursionError, OverflowError) as error:
            message, at = getattr(error, "msg", "more than is compiled"), getattr(error, "pos", None) or 0
            message = f"given a pattern with {message}, wanted a regular expression, in --match"
            raise PointedError(message, line, column + at) from None

    def finds(self, text: str) -> bool:
        """Whether it matches within a text. Raises TooMuch once all matching has taken too long."""
        begun = perf_counter()
        try:
            with _interrupted_after(self.left):
                return self.regex.search(text) is not None
        except TimeoutError:
            given = f"--match={self.regex.pattern[:60]} that takes more than {_MATCHING:g} s"
            raise TooMuch(f"given {given}, wanted one that does not go back so often") from None
        finally:
            self.left = max(1e-3, self.left - (perf_counter() - begun))


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError within the block once so many seconds are over; only the main thread can be interrupted."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    try:
        before = signal.signal(signal.SIGALRM, stop)
    except ValueError:  # another thread
        yield
        return
    waiting, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, waiting)
        signal.signal(signal.SIGALRM, before)
