"""The ways to fail; `convgen` maps them to exit codes (design: what a user types)."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType


def visible(text: str) -> str:
    """One line of `text` for a terminal or a comment: what cannot be shown, or would be obeyed, stands escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ConvgenError(Exception):
    """Base of all errors that convgen raises on purpose."""


class UserError(ConvgenError):
    """The request is wrong: the message says what was given, what was wanted and where (exit code 2)."""


class Unsupported(ConvgenError):
    """The request is sound, but convgen or the target cannot do it; one line says what (exit code 2).

    `rule` names the limit that was met, the same for every request that meets it.
    """

    def __init__(self, message: str, *details: object, rule: str = "generator") -> None:
        super().__init__(message, *details)
        self.rule = rule


class DoesNotFit(ConvgenError):
    """A config exceeds a budget (registers, shared memory, subgroups); the chooser takes the next one.

    `short_of` names what there is too little of: a register file, "shared" memory, "pairs" of neighbours, or "twins" of
    matrix instructions; it is empty for other budgets.
    """

    def __init__(self, message: str, *details: object, short_of: str = "") -> None:
        super().__init__(message, *details)
        self.short_of = short_of


class VerifyError(ConvgenError):
    """The IR breaks a rule of `docs/ir.md`: a defect of convgen, not of the request (exit code 3)."""


class AssemblerError(ConvgenError):
    """The assembler refused our text: a defect of convgen (exit code 3)."""


#: Packages of the extra `cli`, without which the library builds, and compiles where metadata is no YAML: by module.
_EXTRA = {"PIL": "pillow", "jinja2": "jinja2", "rich": "rich", "yaml": "pyyaml"}


def imported(module: str) -> ModuleType:
    """The module, which may import packages of the extra `cli`. Raises UserError where one is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error) or error from None


def missing(error: ModuleNotFoundError) -> UserError | None:
    """The error that names the package of the extra `cli` that was not found; None for any other module."""
    package = _EXTRA.get((error.name or "").partition(".")[0])
    if package is None:
        return None
    return UserError(f"{package} is not installed, which this needs: pip install 'convgen[cli]'")


def named(given: str, names: Iterable[str]) -> str:
    """What was given in place of one of `names`, quoted, and the one that was perhaps meant."""
    return repr(given) + meant(given, names)


def meant(given: str, names: Iterable[str]) -> str:
    """The one of `names` that was perhaps meant, as a remark; nothing if none is close. Dashes before do not count."""
    import difflib

    bare = {name.lstrip("-"): name for name in names}
    close = difflib.get_close_matches(given.lstrip("-")[:80], list(bare), 1)
    return f" (did you mean {bare[close[0]]}?)" if close else ""
