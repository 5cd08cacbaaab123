"""Load a vendor's runtime by ctypes; a failed call raises one line with the function and the error's name."""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from convgen.ir.error import UserError
from convgen.ir.record import define


class DeviceError(UserError):
    """A call of a device's runtime failed: the function, the error by name and its number."""


def _loaded(names: Sequence[str]) -> list[str]:
    """Return the paths of libraries with these names that this process has loaded, such as torch's own copy."""
    stems = tuple(dict.fromkeys(Path(name).name.partition(".so")[0] + ".so" for name in names))
    with suppress(OSError):
        mapped = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        paths = [line[line.index("/") :] for line in mapped if "/" in line]
        return list(dict.fromkeys(path for path in paths if Path(path).name.startswith(stems)))
    return []


@define(eq=False)
class Library:
    """A shared library. `signatures` has the types of the arguments of each function, all of which return a status."""

    name: str
    signatures: Mapping[str, Sequence[Any]]
    error_name: Callable[[c.CDLL, int], str]  #: returns the name of a status other than 0
    handle: c.CDLL

    @classmethod
    def find(
        cls,
        names: Sequence[str],
        variable: str,
        what: str,
        signatures: Mapping[str, Sequence[Any]],
        error_name: Callable[[c.CDLL, int], str],
    ) -> Library:
        """Load the library that the environment variable names, else a copy in this process, else the first of `names`
        that loads.

        A second copy of a runtime would not know the memory of the first one. Raises UserError if no library loads, or
        if it lacks a function.
        """
        given = os.environ.get(variable)
        reason = ""
        for name in [given] if given else [*_loaded(names), *names]:
            try:
                handle = c.CDLL(name)
            except OSError as error:
                reason = str(error)
                continue
            library = cls(name, signatures, error_name, handle)
            library.bind(signatures, what)
            return library
        where = f"{variable}={given}" if given else f"no {names[0]}"
        why = f" ({reason})" if given else f"; {variable} names one elsewhere"
        raise UserError(f"given {where}, wanted {what}{why}")

    def bind(self, signatures: Mapping[str, Sequence[Any]], what: str) -> None:
        """Declare the types of functions. Raises UserError, which says `what` is wanted, if the library lacks one."""
        for function, types in signatures.items():
            if not hasattr(self.handle, function):
                raise UserError(f"given {self.name} without the function {function}, wanted {what}")
            entry = getattr(self.handle, function)
            entry.restype, entry.argtypes = c.c_uint32, list(types)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function. Raises DeviceError for a status other than 0."""
        self.check(function, self.status(function, *arguments))

    def check(self, function: str, status: int) -> None:
        """Raise DeviceError for a status of a function other than 0."""
        if status:
            raise DeviceError(f"{function} failed: {self.error_name(self.handle, status)} ({status:#x})")

    def status(self, function: str, *arguments: Any) -> int:
        """Call a function and return its status."""
        return self.entry(function)(*arguments)

    def entry(self, function: str) -> Callable[..., int]:
        """Return a function, which returns its status."""
        entry: Callable[..., int] = getattr(self.handle, function)
        return entry
