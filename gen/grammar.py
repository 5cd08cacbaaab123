"""benchdnn's convolution syntax as text: descriptors, driver lines and data types, before they mean anything.

`problem` gives the numbers their defaults and checks them against each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from convgen.ir.caret import PointedError
from convgen.ir.error import UserError

LIMIT = 2**31  #: sizes, strides and paddings must be below

KEYS = ("g", "mb", "ic", "oc", *(name + axis for axis in "dhw" for name in "iokspd"))
KNOBS = ("dir", "dt", "stag", "wtag", "dtag", "mb")

DATA_TYPES = (
    *("f16", "bf16", "f32", "f64", "s32", "s8", "u8"),
    *("f8_e5m2", "f8_e4m3", "f4_e2m1", "f4_e3m0", "e8m0", "s4", "u4", "boolean"),
)

_KEY = re.compile("|".join(sorted(KEYS, key=len, reverse=True)))
_NUMBER = re.compile("[0-9]+")


@attrs.frozen
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
        number = _NUMBER.match(text, key.end())
        if number is None:
            given = repr(text[key.end() : key.end() + 8]) if key.end() < len(text) else "nothing"
            raise PointedError(f"given {given} after {key[0]}, wanted a number from 0", text, key.end())
        digits = number[0].lstrip("0") or "0"
        if len(digits) > len(str(LIMIT)) or int(digits) >= LIMIT:
            raise PointedError(f"given {key[0]} of {_brief(number[0])}, wanted less than 2^31", text, key.end())
        values[key[0]], columns[key[0]] = int(digits), at
        at = number.end()
    return Descriptor(text, values, columns, "")


def split_line(line: str) -> tuple[dict[str, str], str]:
    """A driver line `{--knob=value | --knob value} descriptor` as (knobs, descriptor)."""
    knobs: dict[str, str] = {}
    descriptors: list[str] = []
    words = iter(line.split())
    for word in words:
        if not word.startswith("--"):
            descriptors.append(word)
            continue
        knob, equals, value = word[2:].partition("=")
        if knob not in KNOBS:
            raise UserError(f"given the knob --{knob}, wanted one of {' '.join('--' + k for k in KNOBS)}")
        knobs[knob] = value if equals else next(words, "")
    if len(descriptors) != 1:
        raise UserError(f"given {len(descriptors)} descriptors in {line!r}, wanted one")
    return knobs, descriptors[0]


def parse_types(text: str) -> tuple[str, str, str]:
    """`--dt`: one type for all tensors, or `src:wei:dst`; a `dnnl_` prefix is dropped."""
    names = [part.removeprefix("dnnl_") for part in text.split(":")]
    column = 0
    for part, name in zip(text.split(":"), names):
        if name not in DATA_TYPES:
            raise PointedError(f"given the type {part!r}, wanted one of {' '.join(DATA_TYPES)} in --dt", text, column)
        column += len(part) + 1
    if len(names) not in (1, 3):
        raise PointedError(f"given {len(names)} types, wanted one or src:wei:dst in --dt", text, len(text))
    src, wei, dst = names * 3 if len(names) == 1 else names
    return src, wei, dst


def parse_minibatch(value: int | str) -> int:
    """`--mb`: 0 keeps the descriptor's."""
    text = str(value)
    if not _NUMBER.fullmatch(text):
        raise UserError(f"given --mb {text}, wanted a number from 0")
    if len(text) > len(str(LIMIT)) or int(text) >= LIMIT:
        raise UserError(f"given --mb {_brief(text)}, wanted less than 2^31")
    return int(text)


def choose(what: str, given: str, names: Sequence[str]) -> str:
    """The one of `names` that `given` spells, upper or lower case alike."""
    if given.upper() not in names:
        raise UserError(f"given {what} {given!r}, wanted one of {' '.join(names)}")
    return given.upper()


def _unquote(name: str) -> str:
    quoted = len(name) >= 2 and name[0] == name[-1] == '"'
    return name[1:-1] if quoted else name


def _brief(digits: str) -> str:
    return digits if len(digits) <= 20 else f"{digits[:17]}..."
