"""The compile cache: compiled code kept between runs, so that a problem is built once.

The key holds all that the code depends on: convgen's version and source files, problem, target, config, disabled
passes, and the assembler with its path. CONVGEN_CACHE names the folder, or is `off`; the default is convgen/ in
XDG_CACHE_HOME.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convgen.ir.checks import check_name
from convgen.ir.error import UserError
from convgen.run.code import Code, KernelCost
from convgen.run.launch_record import LaunchRecord
from convgen.run.schema import Entry
from convgen.run.store import Store

if TYPE_CHECKING:
    from convgen.problem.matmul import Problem

VARIABLE, OFF = "CONVGEN_CACHE", "off"
_KIND, _KNOB = "code", VARIABLE
_FILE = "code.sqlite"
_MOST_COUNT = 1 << 24  #: registers, or bytes of shared memory
_MOST_BYTES = 1 << 29  #: a larger file is cleared
_told: set[str] = set()  #: notes that this process has reported
_PACKAGES = ("gen", "ir", "passes", "backends")


def folder() -> Path:
    """Return the folder of the cache that the environment names; the caller checks first whether the cache is off."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "convgen"


class Cache:
    """Code compiled earlier, in a file and folder that nobody else can write, because their content is executed.

    No fault of the folder or the file makes a command fail: `tell` is called once a process with the reason.
    """

    def __init__(self, tell: Callable[[str], None] = lambda note: None) -> None:
        self._store: Store | None = None
        self._tell = tell
        if os.environ.get(VARIABLE) == OFF:
            return
        try:
            place = folder()
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        except (OSError, RuntimeError, ValueError) as error:  # no home; a NUL in the name
            if os.environ.get(VARIABLE):
                self._give_up(getattr(error, "strerror", None) or str(error))
            return
        try:
            if (why := _why_unsafe(place)) is not None:
                self._give_up(why)
                return
            self._store = Store(place / _FILE, _KNOB)
            if self._store.size > _MOST_BYTES:
                self._store.clear()
        except (OSError, UserError) as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        """Continue without the cache, and report the reason once."""
        self._store = None
        given = os.environ.get(VARIABLE) or folder()
        note = f"note: the cache in {given} is not used: {why}; {VARIABLE} names another folder, or is {OFF}"
        if note not in _told:
            _told.add(note)
            self._tell(note)

    def get(self, key: str, problem: Problem, target: str) -> Code | None:
        """Return the code of a key for a target, without its tiles; None if the cache has none that can be read."""
        try:
            content = None if self._store is None else self._store.get(_KIND, key)
            code = None if content is None else _code_of_entry(content, problem)
        except (UserError, ValueError, RecursionError):
            return None
        return code if code is not None and code.target == target else None

    def code(self, key: str, problem: Problem, target: str, make: Callable[[], Code]) -> Code:
        """Return the code of a key for a target, without its tiles; else what `make` returns, which is added."""
        code = self.get(key, problem, target)
        if code is None:
            code = make()
            self.add(key, code)
        return code

    def add(self, key: str, code: Code) -> None:
        try:
            if self._store is not None:
                self._store.add(_KIND, key, _entry_bytes(code))
        except UserError as error:
            self._give_up(str(error))


def _why_unsafe(place: Path) -> str | None:
    """Return why a folder, or a file of sqlite's in it, may hold what others wrote; None if only we can write them."""
    for path in (place, *(place / f"{_FILE}{suffix}" for suffix in ("", "-journal", "-wal", "-shm"))):
        try:
            status = path.stat() if path == place else path.lstat()
        except FileNotFoundError:
            continue
        if not (stat.S_ISDIR if path == place else stat.S_ISREG)(status.st_mode):
            return f"{path} is no {'folder' if path == place else 'regular file'}"
        if status.st_uid != os.geteuid():
            return f"{path} belongs to another user (uid {status.st_uid})"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others may write {path} (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def key_of(problem: Problem, target: str, config: str | None, disable: Sequence[str], debug: bool, tool: str) -> str:
    """Return the cache key of a build; `tool` identifies the assembler."""
    parts = [fingerprint(), str(problem), target, config, sorted(disable), debug, tool]
    return sha256(json.dumps(parts).encode()).hexdigest()


def fingerprint() -> str:
    """Return a text that identifies this convgen: sizes and times of its files."""
    root = Path(__file__).resolve().parents[1]
    return sha256("\n".join(sorted(_files(root))).encode()).hexdigest()


def _files(root: Path) -> Iterator[str]:
    """Yield convgen's source files, whether its packages are side by side (checkout) or nested (installed)."""
    for package in _PACKAGES:
        for top in (root.parent / package, root / package):
            for path, _, names in os.walk(top):
                for name in names:
                    if name.endswith(".py"):
                        status = os.stat(os.path.join(path, name))
                        yield f"{path}/{name} {status.st_size} {status.st_mtime_ns}"


def _entry_bytes(code: Code) -> bytes:
    """Return the bytes of an entry: a header as one line of JSON, the object, and machine code."""
    head: dict[str, Any] = {
        "target": code.target,
        "config": code.config,
        "asm": code.asm,
        "object": code.object is not None,
        "machine_bytes": len(code.machine or b""),
        "record": code.record.to_json(),
        "kernels": {name: [dict(cost.registers), cost.shared_bytes] for name, cost in code.kernels.items()},
        "listings": dict(code.listings),
    }
    return json.dumps(head).encode() + b"\n" + (code.object or b"") + (code.machine or b"")


def _code_of_entry(content: bytes, problem: Problem) -> Code:
    """Return the code of an entry. Raises UserError for bytes that `_entry_bytes` would not produce."""
    line, _, rest = content.partition(b"\n")
    head = Entry.parse(line.decode(errors="replace"), "the cache")
    machine_bytes = head["machine_bytes"].integer(0, len(rest))
    content, machine = rest[: len(rest) - machine_bytes], rest[len(rest) - machine_bytes :]
    record = LaunchRecord.from_json(head["record"].text(), "the cache")
    kernels = {name: _cost(cost) for name, cost in _named(head["kernels"], "kernel").items()}
    if set(kernels) != {launch.kernel for launch in record.launches}:
        raise head["kernels"].error("the kernels that the record launches")
    return Code(
        problem,
        head["target"].text(),
        head["config"].text(empty=True),
        head["asm"].text(empty=True),
        content if head["object"].flag() else None,
        record,
        kernels,
        {},
        listings={name: listing.text(empty=True) for name, listing in _named(head["listings"], "listing").items()},
        machine=machine or None,
    )


def _named(entry: Entry, what: str) -> dict[str, Entry]:
    """Return the entries of an object whose keys name files that a command writes."""
    if not isinstance(entry.value, dict):
        raise entry.error("an object")
    for name in entry.value:
        check_name(name, what)
    return {name: entry[name] for name in entry.value}


def _cost(entry: Entry) -> KernelCost:
    registers, shared_bytes = entry.items(2)
    if not isinstance(registers.value, dict):
        raise registers.error("an object")
    counts = {name: registers[name].integer(0, _MOST_COUNT) for name in registers.value}
    return KernelCost(counts, shared_bytes.integer(0, _MOST_COUNT))
