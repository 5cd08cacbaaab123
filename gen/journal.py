"""What a batch has done so far, one line an entry, so that it can go on after whatever has ended it."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from convgen.ir.error import UserError
from convgen.schema import Entry

_HEAD = '{"key": "'


def key_of(problem: str, settings: Mapping[str, Any]) -> str:
    """What tells the work on a problem from other work."""
    return sha256(json.dumps([problem, settings], sort_keys=True).encode()).hexdigest()[:32]


class Journal:
    """The entries of a file by key; new ones are in the file as soon as they are added.

    An entry that a kill has torn is dropped. Raises UserError for a file that is no journal, cannot be opened, or is
    in another batch's hands; `check` does so for an entry that is not as whoever adds them has them.
    """

    def __init__(self, path: Path, check: Callable[[Entry], None] = lambda entry: None) -> None:
        self.path, self._check = path, check
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise UserError(f"cannot open {path}: {error.strerror}, at --resume") from None
        except ValueError:
            raise UserError(f"given --resume {str(path)!r}, wanted a name that a file can have") from None
        try:
            self._entries = self._read()
        except BaseException:
            self.close()
            raise

    def _read(self) -> dict[str, dict[str, Any]]:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise UserError(f"given --resume {self.path} that is a device or a pipe, wanted a file")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"given --resume {self.path} that another batch writes, wanted one of its own") from None
        with open(self._file, "rb", closefd=False) as file:
            *lines, torn = file.read().decode(errors="replace").split("\n")
        entries = dict(self._entry(number, line) for number, line in enumerate(lines, 1))
        if torn:
            if not (torn.startswith(_HEAD) or _HEAD.startswith(torn)):
                raise self._foreign(1 + len(lines))
            whole = sum(len(line.encode()) + 1 for line in lines)
            os.ftruncate(self._file, whole)
        return entries

    def _entry(self, number: int, line: str) -> tuple[str, dict[str, Any]]:
        try:
            found = Entry.parse(line, f"line {number} of {self.path}")
            key, entry = found["key"].text(), found["entry"]
            self._check(entry)
        except UserError as error:
            raise self._foreign(number, str(error)) from None
        if not isinstance(entry.value, dict):
            raise self._foreign(number)
        return key, entry.value

    def _foreign(self, number: int, why: str = "") -> UserError:
        given = f"{self.path} whose line {number} is no entry of a journal"
        return UserError(f"given {given}, wanted a file that --resume wrote" + (f" ({why})" if why else ""))

    def get(self, key: str) -> dict[str, Any] | None:
        """The entry of a key."""
        return self._entries.get(key)

    def add(self, key: str, entry: dict[str, Any]) -> None:
        """Keep an entry."""
        self._entries[key] = entry
        line = json.dumps({"key": key, "entry": entry}).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}, at --resume") from None

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
