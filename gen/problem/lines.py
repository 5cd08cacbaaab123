"""Lines that other programs log, each a request of its own: which of the formats a text is in, and its problems."""

from __future__ import annotations

from collections.abc import Mapping

from convgen.problem import blas, miopen, options, verbose
from convgen.problem.matmul import Problem


def driver_of(text: str) -> str | None:
    """Whose problem a text logs: `options.CONV` or `options.MATMUL`; None where it is no such line."""
    if verbose.is_line(text):
        return verbose.driver_of(text)
    if miopen.is_line(text):
        return options.CONV
    return options.MATMUL if blas.is_line(text) else None


def is_remark(text: str) -> bool:
    """Whether a text stands in a log, but asks for nothing."""
    return verbose.is_remark(text)


def problems(text: str, knobs: Mapping[str, str]) -> tuple[Problem, ...]:
    """The problems of a line of a known format; `knobs` win over what it says. Raises UserError, Unsupported."""
    if verbose.is_line(text):
        return verbose.problems(text, knobs)
    return miopen.problems(text, knobs) if miopen.is_line(text) else blas.problems(text, knobs)
