"""Lines logged by other programs, each a request of its own: find the format of a text, and its problems.

A line may follow the prefix of a log (time stamps, ranks, levels, the `+` of a shell) and contain colours. A text
without a known format is no request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from convgen.ir.record import frozen
from convgen.problem import blas, finddb, miopen, options, shell, verbose
from convgen.problem.matmul import Problem


@frozen
class Form:
    """A format: `find` returns the line within a text, `driver_of` the driver of its problem."""

    find: Callable[[str], str | None]
    driver_of: Callable[[str], str]
    problems: Callable[[str, Mapping[str, str]], tuple[Problem, ...]]
    is_command: bool = False  #: whether a shell read it


_FORMS = (
    Form(verbose.find, verbose.driver_of, verbose.problems),
    Form(blas.find, lambda line: options.MATMUL, blas.problems, is_command=True),
    Form(miopen.find, lambda line: options.CONV, miopen.problems, is_command=True),
    Form(finddb.find, lambda line: options.CONV, finddb.problems),
)

#: sequences that a terminal obeys: colours and the like, titles and links
_OBEYED = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")


#: A line that names a product without all of its types and options -> how its library logs complete requests.
_ADVICE = ((re.compile(r"\[hipblasLt\w+\]"), "hipBLASLt logs requests with HIPBLASLT_LOG_MASK=32, not its API trace"),)


def advice(remarks: Iterable[str]) -> tuple[str, ...]:
    """Return how to log requests in place of lines that are no requests, each piece of advice once."""
    return tuple(dict.fromkeys(text for remark in remarks for pattern, text in _ADVICE if pattern.search(remark)))


def _match(text: str) -> tuple[Form, str] | None:
    for form in _FORMS:
        line = form.find(text)
        if line is not None:
            return form, line
    return None


def plain(text: str) -> str:
    """Return a text without terminal escapes, and with all white space as plain spaces."""
    return _OBEYED.sub("", text).replace("\xa0", " ").lstrip("\ufeff")


def driver_of(text: str) -> str | None:
    """Return the driver of a logged problem, `options.CONV` or `options.MATMUL`; None for any other text."""
    match = _match(text)
    return None if match is None else match[0].driver_of(match[1])


def is_command(text: str) -> bool:
    """Whether a text is a command, which a backslash continues."""
    match = _match(text)
    return match is not None and match[0].is_command


def split(text: str) -> Sequence[str]:
    """The lines of known formats within a text: several where a shell reads several commands; none if it has none."""
    if is_command(text):
        commands = shell.commands(text)
        return [match[1] for match in map(_match, commands) if match is not None]
    match = _match(text)
    return [] if match is None else [match[1]]


def problems(text: str, knobs: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return the problems of a line of a known format; `knobs` override its own. Raises UserError, Unsupported."""
    match = _match(text)
    assert match is not None, text
    form, line = match
    return form.problems(line, knobs)
