"""Tokens of the IR's text: numbers with their type, names, backquoted names, strings, signs, the remark of a line."""

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

#: A name that ends like a variable's id.
NUMBERED = re.compile(r"(.*)\.(0|[1-9][0-9]{0,17})", re.ASCII)


def tokens(line: str) -> tuple[list[str], list[int]]:
    """The tokens of a line and the column of each; an empty token ends them."""
    found = [(m[1], m.start(1)) for m in _TOKEN.finditer(line)]
    return [*(text for text, _ in found), ""], [*(at for _, at in found), len(line)]


@cache
def words(text: str) -> tuple[str, ...]:
    """The tokens of a text without their places."""
    return tuple(tokens(text)[0][:-1])


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?<![0-9])")


def quoted(name: str) -> str:
    """A name before a number without a space between them: in backquotes if its end could be taken for a digit."""
    return name if _PLAIN.fullmatch(name) else f"`{name}`"
