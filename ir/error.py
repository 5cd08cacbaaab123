"""The ways to fail; `convgen` maps them to exit codes (design: what a user types)."""

from __future__ import annotations


def visible(text: str) -> str:
    """One line of `text` for a terminal or a comment: what cannot be shown, or would be obeyed, stands escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class ConvgenError(Exception):
    """Base of all errors that convgen raises on purpose."""


class UserError(ConvgenError):
    """The request is wrong: the message says what was given, what was wanted and where (exit code 2)."""


class Unsupported(ConvgenError):
    """The request is sound, but convgen or the target cannot do it; one line says what (exit code 2)."""


class DoesNotFit(ConvgenError):
    """A config exceeds a budget (registers, LDS, threads); the chooser takes the next one."""


class VerifyError(ConvgenError):
    """The IR breaks a rule of `docs/ir.md`: a defect of convgen, not of the request (exit code 3)."""


class AssemblerError(ConvgenError):
    """The assembler refused our text: a defect of convgen (exit code 3)."""
