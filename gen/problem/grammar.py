"""benchdnn's syntax: scan descriptors, data types, tags and strides, without interpreting them.

`conv` and `matmul` fill in defaults and check the numbers against each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from convgen.ir.caret import PointedError
from convgen.ir.error import UserError, named
from convgen.ir.layout.tags import LETTERS, STRIDES, Layout
from convgen.ir.record import frozen

LIMIT = 2**31  #: sizes, strides and paddings that are generated lie below
_LARGEST = 2**63 - 1  #: largest number that benchdnn takes

KEYS = ("g", "mb", "ic", "oc", *(name + axis for axis in "dhw" for name in "iokspd"))

DATA_TYPES = (
    *("f16", "bf16", "f32", "f64", "s32", "s8", "u8"),
    *("f8_e5m2", "f8_e4m3", "f8_e5m2fnuz", "f8_e4m3fnuz", "f6_e2m3", "f6_e3m2", "f4_e2m1", "f4_e3m0", "e8m0"),
    *("s4", "u4", "boolean"),
)

FPMATH_MODES = ("strict", "tf32", "bf16", "f16", "any")
FLAGS = {"true": True, "false": False, "1": True, "0": False}

_KEY = re.compile("|".join(sorted(KEYS, key=len, reverse=True)))
_DIGITS = re.compile("[0-9]+")


@frozen
class Descriptor:
    """A scanned descriptor: the value and the column of each key that was given, and the problem's name."""

    text: str
    values: Mapping[str, int]
    columns: Mapping[str, int]
    name: str

    def error(self, message: str, *keys: str) -> UserError:
        """An error that points at the first of `keys` that was given, or at the end of the text."""
        column = next((self.columns[key] for key in keys if key in self.columns), len(self.text))
        return PointedError(message, self.text, column)


def scan(text: str) -> Descriptor:
    """Scan `{[_]key INT}[n NAME]`; the last of repeated keys wins. Raises PointedError at what is not grammar."""
    values: dict[str, int] = {}
    columns: dict[str, int] = {}
    at = 0
    while at < len(text):
        if text[at] == "_":
            at += 1
            continue
        key = _KEY.match(text, at)
        if key is None and text[at] == "n":
            return Descriptor(text, values, columns, _unquote(text[at + 1 :]))
        if key is None:
            raise PointedError(f"given {text[at : at + 8]!r}, wanted a key ({' '.join(KEYS)})", text, at)
        columns[key[0]] = at
        values[key[0]], at = _number(text, key.end(), f"after {key[0]}")
    return Descriptor(text, values, columns, "")


def _number(text: str, at: int, where: str) -> tuple[int, int]:
    """Return the number at a column, and the column after it."""
    number = _DIGITS.match(text, at)
    if number is None:
        raise PointedError(f"given {_shown(text, at)} {where}, wanted a number from 0", text, at)
    digits = number[0].lstrip("0") or "0"
    if len(digits) > len(str(_LARGEST)) or int(digits) > _LARGEST:
        raise PointedError(f"given {_brief(number[0])} {where}, wanted less than 2^63", text, at)
    return int(digits), number.end()


def _shown(text: str, at: int) -> str:
    return repr(text[at : at + 8]) if at < len(text) else "nothing"


def scan_matmul(text: str) -> tuple[list[list[tuple[int, int]]], str]:
    """Scan `MxK:KxN[:MxN][[_]n NAME]`: the sizes of each matrix, each with its column, and the name.

    Batch dimensions may stand before. Raises PointedError.
    """
    tensors, at = list[list[tuple[int, int]]](), 0
    for wanted in ("MxK", "KxN", "MxN"):
        if tensors and text[at : at + 1] != ":":
            break
        sizes, at = _sizes(text, at + bool(tensors), wanted)
        tensors.append(sizes)
    if len(tensors) < 2:
        raise PointedError(f"given {_shown(text, at)}, wanted ':' between the two matrices", text, at)
    tail = text[at:].removeprefix("_")
    if tail and not tail.startswith("n"):
        raise PointedError(f"given {_shown(text, at)}, wanted the end, or n and a name", text, at)
    return tensors, _unquote(tail[1:])


def _sizes(text: str, at: int, wanted: str) -> tuple[list[tuple[int, int]], int]:
    """The sizes `AxB...` at a column, each with its own column, and where they end."""
    first, sizes = at, list[tuple[int, int]]()
    while True:
        size, end = _number(text, at, f"in {wanted}")
        sizes.append((size, at))
        if text[end : end + 1] != "x":
            break
        at = end + 1
    if len(sizes) < 2:
        raise PointedError(f"given one size, wanted {wanted}", text, first)
    if len(sizes) > len(LETTERS):
        raise PointedError(f"given {len(sizes)} sizes, wanted at most {len(LETTERS)}", text, first)
    return sizes, end


def parse_types(text: str) -> tuple[str, str, str]:
    """`--dt`: one type for all tensors, or `src:wei:dst`; a `dnnl_` prefix is dropped."""
    names, column = list[str](), 0
    for part in text.split(":"):
        names.append(parse_type(part, text, column))
        column += len(part) + 1
    if len(names) not in (1, 3):
        raise PointedError(f"given {len(names)} types, wanted one or src:wei:dst", text, len(text))
    src, wei, dst = names * 3 if len(names) == 1 else names
    return src, wei, dst


def parse_type(part: str, text: str, column: int) -> str:
    """The type that a part of a text names."""
    name = part.removeprefix("dnnl_")
    if name not in DATA_TYPES:
        given = f"the type {named(part, DATA_TYPES)}"
        raise PointedError(f"given {given}, wanted one of {' '.join(DATA_TYPES)}", text, column)
    return name


@lru_cache(maxsize=2**10)
def tag_ranks(tag: str) -> tuple[int, ...]:
    """The numbers of dimensions that a tag suits; none if it breaks the grammar."""
    return tuple(rank for rank in range(1, len(LETTERS) + 1) if _suits(tag, rank))


def _suits(tag: str, rank: int) -> bool:
    try:
        Layout.from_tag(tag, (1,) * rank)
    except UserError:
        return False
    return True


def is_strides(tag: str) -> bool:
    """Whether a tag is a stride list such as `3200x1x160x16`."""
    return STRIDES.fullmatch(tag) is not None


def plain_strides(strides: str) -> str:
    """A stride list without leading zeros."""
    return "x".join(str(int(stride)) for stride in strides.split("x"))


def parse_strides(text: str) -> tuple[str, str, str]:
    """`--strides`: a stride list each of src, wei and dst, empty where none is given; all are for an empty text."""
    parts = text.split(":") if text else ["", "", ""]
    column = 0
    for part in parts:
        if part and not is_strides(part):
            start = STRIDES.match(part)
            column += 0 if start is None else min(len(part) - 1, start.end())
            raise PointedError(f"given {_shown(text, column)}, wanted strides such as 3200x1x160x16", text, column)
        column += len(part) + 1
    if len(parts) != 3:
        raise PointedError(f"given {len(parts)} parts, wanted src:wei:dst", text, len(text))
    src, wei, dst = (part and plain_strides(part) for part in parts)
    return src, wei, dst


def parse_minibatch(text: str) -> int:
    """`--mb`: 0 keeps the descriptor's."""
    number, end = _number(text, 0, "as a minibatch")
    if end < len(text):
        raise PointedError(f"given {_shown(text, end)}, wanted a number from 0", text, end)
    return number


def choose(given: str, names: Sequence[str]) -> str:
    """Return the one of `names` that `given` spells in any case. Raises PointedError."""
    for name in names:
        if name.lower() == given.lower():
            return name
    raise PointedError(f"given {named(given, names)}, wanted one of {' '.join(names)}", given, 0)


def _unquote(name: str) -> str:
    quoted = len(name) >= 2 and name[0] == name[-1] == '"'
    return name[1:-1] if quoted else name


def _brief(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:17]}..."
