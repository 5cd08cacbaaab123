"""Tokens of the IR's text: numbers with a type suffix, names, backquoted names, strings, operators, remarks."""

from __future__ import annotations

import re
from functools import cache

_TOKEN = re.compile(
    r"""[ ]*(
        0x[0-9a-f]+(?:_[a-z]\w*)?
        |\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:_[a-z]\w*)?
        |[A-Za-z_][\w.]*
        |`[^`]*`
        |"(?:[^"\\]|\\.)*"
        |//|<<|>>|<=|>=|==|!=|->
        |\#.*
        |[^ ]
    )""",
    re.VERBOSE | re.ASCII,
)

#: A name with the id of a variable: `name.ID`.
NUMBERED = re.compile(r"(.*)\.(0|[1-9][0-9]{0,17})", re.ASCII)


def tokens(line: str) -> tuple[list[str], list[int]]:
    """Return the tokens of a line and the column of each; the last token is empty."""
    found = [(m[1], m.start(1)) for m in _TOKEN.finditer(line)]
    return [*(text for text, _ in found), ""], [*(at for _, at in found), len(line)]


@cache
def words(text: str) -> tuple[str, ...]:
    """Return the tokens of a text without their columns."""
    return tuple(tokens(text)[0][:-1])


#: A name that cannot be taken for one with a number behind it.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?<![0-9])")


def quoted(name: str) -> str:
    """Return a name that a number follows without a space; in backquotes if it may end in a digit."""
    return name if _PLAIN.fullmatch(name) else f"`{name}`"
