"""The errors that convgen raises; the command line maps them to exit codes."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType


def visible(text: str) -> str:
    """Return `text` in one line for a terminal or a comment, with unprintable and control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ConvgenError(Exception):
    """Base class of all errors that convgen raises on purpose."""


class UserError(ConvgenError):
    """The request is wrong: the message says what was given, what was wanted and where (exit code 2)."""


class Unsupported(ConvgenError):
    """The request is sound, but convgen or the target cannot do it; one line says what (exit code 2).

    `rule` is the name of the limit; every request that exceeds this limit has this name in its error.
    """

    def __init__(self, message: str, *details: object, rule: str = "generator") -> None:
        super().__init__(message, *details)
        self.rule = rule


BOTH_FILES = "both files"  #: `DoesNotFit.short_of`: registers of all subgroups of a SIMD, accumulators included


class DoesNotFit(ConvgenError):
    """A config exceeds a budget (registers, shared memory, subgroups); the chooser takes the next config.

    `short_of` names the exhausted resource: a register file, `BOTH_FILES`, or "shared" memory. "pairs" (a lane would
    load one of two 4-bit elements in a byte) and "twins" (an instruction of several subgroups has no equal of one) are
    refusals that hold for a config's instruction whatever its tile. It is empty where another tile may fit.
    """

    def __init__(self, message: str, *details: object, short_of: str = "") -> None:
        super().__init__(message, *details)
        self.short_of = short_of


class VerifyError(ConvgenError):
    """The IR breaks a rule of `docs/ir.md`: a defect of convgen, not of the request (exit code 3)."""


class AssemblerError(ConvgenError):
    """The assembler rejected text that convgen emitted: a defect of convgen (exit code 3)."""


#: Packages of the extra `cli`, by module name. Without them the library builds, and compiles where metadata is no YAML.
_EXTRA = {"PIL": "pillow", "jinja2": "jinja2", "rich": "rich", "yaml": "pyyaml"}


def imported(module: str) -> ModuleType:
    """Import a module that may need packages of the extra `cli`. Raises UserError if one is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error) or error from None


def missing(error: ModuleNotFoundError) -> UserError | None:
    """Return the error that names the missing package of the extra `cli`; None if the module is not in the extra."""
    package = _EXTRA.get((error.name or "").partition(".")[0])
    if package is None:
        return None
    return UserError(f"{package} is not installed, which this needs: pip install 'convgen[cli]'")


def named(given: str, names: Iterable[str]) -> str:
    """Return `given`, quoted, with the closest of `names` as a suggestion."""
    return repr(given) + meant(given, names)


def meant(given: str, names: Iterable[str]) -> str:
    """Return " (did you mean X?)" for the closest of `names`, "" if none is close; leading dashes do not count."""
    import difflib

    bare = {name.lstrip("-"): name for name in names}
    close = difflib.get_close_matches(given.lstrip("-")[:80], list(bare), 1)
    return f" (did you mean {bare[close[0]]}?)" if close else ""
