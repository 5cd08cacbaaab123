"""What a batch has done so far, so that it can go on after whatever has ended it."""

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
from convgen.run.schema import Entry
from convgen.run.store import Store

KIND, KNOB = "result", "--resume"


def key_of(problem: str, settings: Mapping[str, Any]) -> str:
    """What tells the work on a problem from other work."""
    return sha256(json.dumps([problem, settings], sort_keys=True).encode()).hexdigest()[:32]


class Journal:
    """The results in a file by key; new ones are in the file as soon as they are added.

    Raises UserError for a file that is no journal, cannot be opened, or is in another batch's hands; `check` does so
    for an entry that is not as whoever adds them has them.
    """

    def __init__(self, path: Path, check: Callable[[Entry], None] = lambda entry: None) -> None:
        self.path, self._check = path, check
        self._held = self._hold()
        try:
            self._store = Store(path, KNOB)
        except BaseException:
            os.close(self._held)
            raise

    def _hold(self) -> int:
        """The file, for as long as this batch writes it."""
        try:
            held = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise UserError(f"cannot open {self.path}: {error.strerror}, at {KNOB}") from None
        except ValueError:
            raise UserError(f"given {KNOB} {str(self.path)!r}, wanted a name that a file can have") from None
        try:
            if not stat.S_ISREG(os.fstat(held).st_mode):
                raise UserError(f"given {KNOB} {self.path} that is a device or a pipe, wanted a file")
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise UserError(f"given {KNOB} {self.path} that another batch writes, wanted one of its own") from None
        except BaseException:
            os.close(held)
            raise
        return held

    def get(self, key: str) -> dict[str, Any] | None:
        """The result of a key."""
        found = self._store.get(KIND, key)
        if found is None:
            return None
        entry = Entry.parse(found.decode(errors="replace"), f"entry {key} of {self.path}")
        self._check(entry)
        if not isinstance(entry.value, dict):
            raise entry.error("an object")
        return entry.value

    def add(self, key: str, entry: dict[str, Any]) -> None:
        """Keep a result."""
        self._store.add(KIND, key, json.dumps(entry).encode())

    def close(self) -> None:
        """Let go of the file: first by sqlite, whose locks end with any descriptor of the file."""
        self._store.close()
        os.close(self._held)
