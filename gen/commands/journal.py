"""The results of a batch so far, so that an interrupted batch can resume."""

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
    """Return a key that identifies the work on a problem."""
    return sha256(json.dumps([problem, settings], sort_keys=True).encode()).hexdigest()[:32]


class Journal:
    """The results in a file by key; each is in the file as soon as it is added.

    Raises UserError for a file that is no journal, cannot be opened, or is locked by another batch. `check` raises it
    for an entry of another form.
    """

    def __init__(self, path: Path, check: Callable[[Entry], None] = lambda entry: None) -> None:
        self.path, self._check = path, check
        self._descriptor = self._lock()
        try:
            self._store = Store(path, KNOB)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _lock(self) -> int:
        """Open and lock the file while this batch writes it; return its descriptor."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise UserError(f"cannot open {self.path}: {error.strerror}, at {KNOB}") from None
        except ValueError:
            raise UserError(f"given {KNOB} {str(self.path)!r}, wanted a name that a file can have") from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UserError(f"given {KNOB} {self.path} that is a device or a pipe, wanted a file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(f"given {KNOB} {self.path} that another batch writes, wanted one of its own") from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the result of a key."""
        found = self._store.get(KIND, key)
        if found is None:
            return None
        entry = Entry.parse(found.decode(errors="replace"), f"entry {key} of {self.path}")
        self._check(entry)
        if not isinstance(entry.value, dict):
            raise entry.error("an object")
        return entry.value

    def add(self, key: str, entry: dict[str, Any]) -> None:
        """Add a result."""
        self._store.add(KIND, key, json.dumps(entry).encode())

    def close(self) -> None:
        """Close the file: sqlite first, since its locks end when any descriptor of the file is closed."""
        self._store.close()
        os.close(self._descriptor)
