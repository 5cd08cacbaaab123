"""Compiled code kept between runs: a problem that was generated before costs no second build.

The key is all that decides what comes out: convgen's version and source files, problem, target, config, the passes that
are off, and which assembler stands where. CONVGEN_CACHE names the folder, or says `off`; by default it is convgen/ in
XDG_CACHE_HOME.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convgen.ir.error import UserError
from convgen.run.code import Code, KernelCost
from convgen.run.record import LaunchRecord
from convgen.run.store import Store

if TYPE_CHECKING:
    from convgen.problem.matmul import Problem

VARIABLE, OFF = "CONVGEN_CACHE", "off"
_KIND, _KNOB = "code", VARIABLE
_MOST_BYTES = 1 << 29  #: a file that has grown beyond begins anew
_PACKAGES = ("gen", "ir", "passes", "backends")


def folder() -> Path:
    """Where the cache is."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "convgen"


class Cache:
    """The code that was compiled before. Where no file can be kept, it is empty and stays so."""

    def __init__(self) -> None:
        self._store: Store | None = None
        if os.environ.get(VARIABLE) == OFF:
            return
        try:
            folder().mkdir(parents=True, exist_ok=True, mode=0o700)
            self._store = Store(folder() / "code.sqlite", _KNOB)
            if self._store.size > _MOST_BYTES:
                self._store.clear()
        except (OSError, RuntimeError, UserError):
            if os.environ.get(VARIABLE):
                raise UserError(f"cannot keep a cache in {folder()}, at {VARIABLE}") from None

    def get(self, key: str, problem: Problem) -> Code | None:
        """The code of a key, but for its tiles; None if there is none that can be read."""
        try:
            found = None if self._store is None else self._store.get(_KIND, key)
            return None if found is None else _thawed(found, problem)
        except (UserError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def add(self, key: str, code: Code) -> None:
        """Keep code."""
        if self._store is not None:
            self._store.add(_KIND, key, _frozen(code))


def key_of(problem: Problem, target: str, config: str | None, disable: Sequence[str], debug: bool, tool: str) -> str:
    """The key of what is asked; `tool` tells the assembler."""
    parts = [fingerprint(), str(problem), target, config, sorted(disable), debug, tool]
    return sha256(json.dumps(parts).encode()).hexdigest()


def fingerprint() -> str:
    """Tells this convgen from any other: sizes and times of its files."""
    root = Path(__file__).resolve().parents[1]
    return sha256("\n".join(sorted(_files(root))).encode()).hexdigest()


def _files(root: Path) -> Iterator[str]:
    """The packages stand side by side in a checkout, and within one another where they are installed."""
    for package in _PACKAGES:
        for top in (root.parent / package, root / package):
            for path, _, names in os.walk(top):
                for name in names:
                    if name.endswith(".py"):
                        found = os.stat(os.path.join(path, name))
                        yield f"{path}/{name} {found.st_size} {found.st_mtime_ns}"


def _frozen(code: Code) -> bytes:
    """Header as JSON on one line, the object behind it."""
    head: dict[str, Any] = {
        "target": code.target,
        "config": code.config,
        "asm": code.asm,
        "object": code.object is not None,
        "record": code.record.to_json(),
        "kernels": {name: [dict(cost.registers), cost.shared_bytes] for name, cost in code.kernels.items()},
        "listings": dict(code.listings),
    }
    return json.dumps(head).encode() + b"\n" + (code.object or b"")


def _thawed(content: bytes, problem: Problem) -> Code:
    line, _, rest = content.partition(b"\n")
    head = json.loads(line)
    return Code(
        problem,
        head["target"],
        head["config"],
        head["asm"],
        rest if head["object"] else None,
        LaunchRecord.from_json(head["record"], "the cache"),
        {name: KernelCost(registers, shared_bytes) for name, (registers, shared_bytes) in head["kernels"].items()},
        {},
        listings=head["listings"],
    )
