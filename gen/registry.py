"""The registry: the fastest known config of each problem, one per line, in a text file that a team shares.

    TARGET | --dir=FWD_D --dt=f16 mb1_ic64oc64_ih14oh14kh3ph1 | tile=32x32x64 ... | 5.205 us | convgen 0.1.0, CHIP

Lines are sorted by target and problem and independent of each other, so that files merge like sources. Reading checks
the whole file: a wrong line, or one that contradicts another, is refused.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from operator import attrgetter
from pathlib import Path

import attrs

from convgen.backends import target as targets
from convgen.ir import untrusted
from convgen.ir.error import UserError
from convgen.ir.record import evolve, frozen
from convgen.plan.config import BESIDE, Config
from convgen.problem.matmul import Problem, members_of, parse_problem
from convgen.run.files import write_all
from convgen.version import __version__

VARIABLE, KNOB = "CONVGEN_REGISTRY", "--registry"
_BETWEEN = " | "
_HEADER = "# convgen registry: target | problem | config | time | of which convgen and chip or device"
_TIME = re.compile(r"([0-9]{1,9}\.[0-9]{3}) us")
_MODEL = re.compile(r"convgen [\w.+-]+, [\w.+-]+")
_SHIPPED = Path(__file__).parent / "registries"  #: files that come with convgen
_MOST_BYTES = 1 << 23  #: of a file

Key = tuple[str, str]  #: target, and problem as `str` writes it, without a name


def key_of(problem: Problem, target: str) -> Key:
    """Return the key of a problem: the target, and the problem's text without its name."""
    return target, str(evolve(problem, name=""))


@frozen
class Entry:
    """One line: the fastest config of a problem. `where` names the line in errors and takes no part in equality."""

    target: str
    problem: str  #: as `str` writes it, without a name
    config: str  #: as `str` writes it
    us: float  #: microseconds of all launches, by the model
    model: str  #: version of convgen, and chip
    where: str = attrs.field(default="", eq=False)

    @property
    def key(self) -> Key:
        return self.target, self.problem

    def __str__(self) -> str:
        return _BETWEEN.join((self.target, self.problem, self.config, f"{self.us:.3f} us", self.model))

    @classmethod
    def of_result(cls, target: str, problem: str, config: str, us: float, chip: str) -> Entry:
        """Return the entry of a result of this convgen."""
        return cls(target, problem, config, round(us, 3), f"convgen {__version__}, {chip}")

    @classmethod
    def parse(cls, line: str, where: str) -> Entry:
        """Return the entry of a line. Raises UserError: given, wanted, where."""
        fields = line.split(_BETWEEN)
        if len(fields) != len(_HEADER.split(_BETWEEN)):
            raise UserError(f"given a line of {len(fields)}, wanted 5 fields: {_HEADER.partition(': ')[2]}, in {where}")
        target, problem, config, time, model = fields
        try:
            targets.get(target)
            known = key_of(parse_problem(problem), target)[1], str(Config.parse(config))
        except UserError as error:
            raise UserError(f"{error}, in {where}") from None
        for given, wanted in zip((problem, config), known):
            if given != wanted:
                raise UserError(f"given {given!r}, wanted it as convgen writes it, {wanted!r}, in {where}")
        match = _TIME.fullmatch(time)
        if match is None or not _MODEL.fullmatch(model):
            given, wanted = (time, "TIME us, such as 12.345 us") if match is None else (model, "convgen VERSION, CHIP")
            raise UserError(f"given {given!r}, wanted {wanted}, in {where}")
        return cls(target, problem, config, float(match[1]), model, where)


@frozen
class Registry:
    """The entries of a file by target and problem, and its comments."""

    entries: Mapping[Key, Entry] = attrs.Factory(dict)
    comments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, name: str) -> Registry:
        """Read a registry. Raises UserError for a wrong line, or two lines with different configs for one problem."""
        entries: dict[Key, Entry] = {}
        comments: dict[str, None] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("#"):
                comments[line] = None
            elif line.strip():
                entry = Entry.parse(line, f"{name}:{number}")
                earlier = entries.get(entry.key, entry)
                if earlier.config != entry.config:
                    both = f"{earlier.where} and {entry.where}"
                    raise UserError(f"given two configs for {entry.problem} on {entry.target}, wanted one, in {both}")
                entries[entry.key] = min(earlier, entry, key=attrgetter("us"))
        return cls(entries, tuple(line for line in comments if not line.startswith(_HEADER.partition(": ")[0])))

    def __str__(self) -> str:
        return "\n".join([_HEADER, *self.comments, *(str(self.entries[key]) for key in sorted(self.entries))]) + "\n"

    def merged(self, other: Registry) -> Registry:
        """Return the registry with the entries of another; the faster of two for one problem is kept."""
        entries = dict(self.entries)
        for key, entry in other.entries.items():
            entries[key] = min(entries.get(key, entry), entry, key=attrgetter("us"))
        return Registry(entries, tuple(dict.fromkeys(self.comments + other.comments)))

    def replaced(self, entries: Iterable[Entry]) -> Registry:
        """Return the registry with `entries` in place of those for their problems."""
        return evolve(self, entries={**self.entries, **{entry.key: entry for entry in entries}})


def read(path: Path, knob: str = KNOB) -> Registry:
    """Return the registry in a file. Raises UserError, which names the option `knob`."""
    try:
        return _parsed(untrusted.read(path, "a registry", _MOST_BYTES, knob), str(path))
    except UnicodeDecodeError:
        raise UserError(f"given {str(path)!r} that is not text, wanted a registry, at {knob}") from None


@lru_cache(maxsize=8)
def _parsed(content: bytes, name: str) -> Registry:
    return Registry.parse(content.decode(), name)


def read_or_begin(path: Path) -> Registry:
    """Return the registry in a file, an empty one if there is no file. Raises UserError."""
    return read(path) if os.path.exists(path) else Registry()


def add(path: Path, entries: Iterable[Entry]) -> None:
    """Write entries in place of those that the file has for their problems.

    The file is complete at any time, and several processes may write it by turns. Raises UserError, also for an entry
    that could not be read back.
    """
    checked = [Entry.parse(str(entry), "an entry to be kept") for entry in entries]
    with _locked(path) as target:
        _write(target, read_or_begin(path).replaced(checked))


def merge(path: Path, others: Iterable[Path]) -> None:
    """Add the entries of other files, keeping the faster of two configs for one problem. Raises UserError."""
    with _locked(path) as target:
        registry = read_or_begin(path)
        for other in others:
            registry = registry.merged(read(other, "--merge"))
        _write(target, registry)


def _write(path: Path, registry: Registry) -> None:
    write_all({path: str(registry).encode()}, KNOB)


@contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """Yield the file behind any links, while a lock keeps other processes from writing a registry in its folder."""
    try:
        target = Path(os.path.realpath(path))
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot write {str(path)!r}: {why}, at {KNOB}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield target
    finally:
        os.close(folder)


def named(given: str | os.PathLike[str] | None) -> Path | None:
    """Return the given file, else that of CONVGEN_REGISTRY, else None. Raises UserError for an empty name.

    A name that is no file may be that of a registry that comes with convgen, such as `h200`.
    """
    if given is not None and not isinstance(given, str | os.PathLike):
        raise UserError(f"given a registry of type {type(given).__name__}, wanted a path")
    if given is not None and not os.fspath(given):
        raise UserError(f"given an empty name, wanted a file, at {KNOB}")
    name = given or os.environ.get(VARIABLE)
    if not name:
        return None
    shipped = _SHIPPED / f"{os.fspath(name)}.registry"
    return shipped if not os.path.exists(name) and shipped.parent == _SHIPPED and shipped.exists() else Path(name)


def read_named(given: str | os.PathLike[str] | None) -> Registry | None:
    """Return the given registry, else that of CONVGEN_REGISTRY, else None. Raises UserError, which names its origin."""
    path = named(given)
    return None if path is None else read(path, KNOB if given else VARIABLE)


def find(problem: Problem, target: str, given: str | os.PathLike[str] | None = None) -> Entry | None:
    """Return the entry of a problem in the given registry, else in that of CONVGEN_REGISTRY. Raises UserError.

    A fused call has the configs of its members' entries, an empty one for a member without an entry.
    """
    registry = read_named(given)
    if registry is None:
        return None
    found = [registry.entries.get(key_of(member, target)) for member in members_of(problem)]
    known = [entry for entry in found if entry is not None]
    if len(found) == 1 or not known:
        return found[0]
    configs = BESIDE.join("" if entry is None else entry.config for entry in found)
    where = ", ".join(entry.where for entry in known)
    return Entry(target, str(problem), configs, sum(entry.us for entry in known), known[0].model, where)
