"""A persistent key-value store in a sqlite file: results of a batch by problem, compiled code by its inputs.

An entry is added as a whole or not at all, even if the process is killed. Several processes may share a file. Each
value follows a seal (checksum), because sqlite does not detect damage by disks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from convgen.ir.error import UserError

_APPLICATION = 0x63766E67  #: identifies sqlite files of convgen (PRAGMA application_id)
SEAL = 16  #: bytes before a value
_SECONDS = 30.0  #: seconds that a process waits for another one's write
_MOST_VALUE = 1 << 28  #: bytes of a value
_TABLE = "CREATE TABLE IF NOT EXISTS entries (kind TEXT, key TEXT, value BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID"


class Store:
    """Values by kind and key. `knob` is the option that named the file; errors, which are UserErrors, name it."""

    def __init__(self, path: Path, knob: str) -> None:
        self.path, self.knob = path, knob
        with self._errors():
            self._db = sqlite3.connect(path, timeout=_SECONDS, isolation_level=None)
            self._db.text_factory = bytes  # text that others stored may not be UTF-8
        try:
            with self._errors():
                self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE)
        self._db.execute("PRAGMA trusted_schema = OFF")
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        schema = self._db.execute("SELECT type, sql FROM sqlite_master LIMIT 2").fetchall()
        if application not in (0, _APPLICATION) or (schema and not application):
            raise self._foreign()
        if schema not in ([], [(b"table", _TABLE.replace(" IF NOT EXISTS", "").encode())]):
            raise self._foreign()  # a foreign view or trigger may run without end
        if not application:
            self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(_TABLE)

    def _foreign(self) -> UserError:
        return UserError(f"given {self.path} that convgen has not written, wanted a file of its own, at {self.knob}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise sqlite's errors as UserError about the file that was given."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise self._foreign() from None
            raise UserError(f"cannot use {self.path}: {error}, at {self.knob}") from None
        except ValueError as error:  # a NUL in the name
            raise UserError(f"cannot use {str(self.path)!r}: {error}, at {self.knob}") from None

    def get(self, kind: str, key: str) -> bytes | None:
        """Return the value of a key. Raises UserError for a damaged value."""
        with self._errors():
            row = self._db.execute("SELECT value FROM entries WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        if row is None:
            return None
        (kept,) = row
        if not isinstance(kept, bytes) or kept[:SEAL] != _seal(kind, key, kept[SEAL:]):
            raise UserError(f"given entry {key} of {self.path} that is damaged, wanted an intact one, at {self.knob}")
        return kept[SEAL:]

    def add(self, kind: str, key: str, value: bytes) -> None:
        with self._errors():
            self._db.execute(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (kind, key, _seal(kind, key, value) + value)
            )

    @property
    def size(self) -> int:
        """Return the bytes of the file."""
        with self._errors():
            (pages,), (each,) = (self._db.execute(f"PRAGMA {what}").fetchone() for what in ("page_count", "page_size"))
        return int(pages) * int(each)

    def clear(self) -> None:
        with self._errors():
            self._db.execute("DELETE FROM entries")
            self._db.execute("VACUUM")

    def close(self) -> None:
        self._db.close()


def _seal(kind: str, key: str, value: bytes) -> bytes:
    return blake2b(f"{kind} {key} ".encode() + value, digest_size=SEAL).digest()
