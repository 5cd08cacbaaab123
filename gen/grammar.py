"""benchdnn's syntax as text: descriptors, driver lines and data types, before they mean anything.

`problem` and `matmul` give the numbers their defaults and check them against each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported, UserError
from convgen.ir.layout import STRIDES

LIMIT = 2**31  #: sizes, strides and paddings must be below

KEYS = ("g", "mb", "ic", "oc", *(name + axis for axis in "dhw" for name in "iokspd"))

#: every knob and benchdnn's default; as a Python keyword, a knob has underscores for its dashes
KNOBS = {
    "dir": "FWD_B",
    "dt": "f32",
    "stag": "any",
    "wtag": "any",
    "dtag": "any",
    "strides": "",
    "attr-deterministic": "false",
    "attr-fpmath": "strict",
    "mb": "0",
}
CONV_KNOBS = tuple(KNOBS)
MATMUL_KNOBS = tuple(knob for knob in KNOBS if knob not in ("dir", "mb"))

DATA_TYPES = (
    *("f16", "bf16", "f32", "f64", "s32", "s8", "u8"),
    *("f8_e5m2", "f8_e4m3", "f4_e2m1", "f4_e3m0", "e8m0", "s4", "u4", "boolean"),
)

FPMATH_MODES = ("strict", "tf32", "bf16", "f16", "any")

_KEY = re.compile("|".join(sorted(KEYS, key=len, reverse=True)))
_DIGITS = re.compile("[0-9]+")


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
        columns[key[0]] = at
        values[key[0]], at = _number(text, key.end(), f"after {key[0]}")
    return Descriptor(text, values, columns, "")


def _number(text: str, at: int, where: str) -> tuple[int, int]:
    """The number at a column, and where it ends."""
    number = _DIGITS.match(text, at)
    if number is None:
        raise PointedError(f"given {_shown(text, at)} {where}, wanted a number from 0", text, at)
    digits = number[0].lstrip("0") or "0"
    if len(digits) > len(str(LIMIT)) or int(digits) >= LIMIT:
        raise PointedError(f"given {_brief(number[0])} {where}, wanted less than 2^31", text, at)
    return int(digits), number.end()


def _shown(text: str, at: int) -> str:
    return repr(text[at : at + 8]) if at < len(text) else "nothing"


def scan_matmul(text: str) -> Descriptor:
    """Scan `MxK:KxN[[_]n NAME]` into the keys m, k and n. Raises PointedError, or Unsupported for batch dimensions."""
    src, at = _sizes(text, 0, "MxK")
    if text[at : at + 1] != ":":
        raise PointedError(f"given {_shown(text, at)}, wanted ':' between the two matrices", text, at)
    wei, at = _sizes(text, at + 1, "KxN")
    tail = text[at:].removeprefix("_")
    if tail and not tail.startswith("n"):
        raise PointedError(f"given {_shown(text, at)}, wanted the end, or n and a name", text, at)
    if len(src) > 2 or len(wei) > 2:
        given = f"a {len(src)}-D by a {len(wei)}-D tensor"
        raise Unsupported(f"given {given} in {_brief(text)}, wanted MxK:KxN: batches are not generated yet")
    (m, at_m), (k, at_k) = src
    (inner, at_inner), (n, at_n) = wei
    if inner != k:
        raise PointedError(f"given K of {inner}, wanted {k} as in the first matrix", text, at_inner)
    return Descriptor(text, {"m": m, "k": k, "n": n}, {"m": at_m, "k": at_k, "n": at_n}, _unquote(tail[1:]))


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
    return sizes, end


def split_line(line: str, known: Sequence[str]) -> tuple[dict[str, str], str]:
    """A driver line `{--knob=value | --knob value} descriptor` as (knobs, descriptor)."""
    knobs: dict[str, str] = {}
    descriptors: list[str] = []
    words = iter(line.split())
    for word in words:
        if not word.startswith("--"):
            descriptors.append(word)
            continue
        knob, equals, value = word[2:].partition("=")
        if knob not in known:
            raise UserError(f"given the knob --{knob}, wanted one of {' '.join('--' + k for k in known)}")
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
            raise PointedError(
                f"given {_shown(text, column)}, wanted strides such as 3200x1x160x16 in --strides", text, column
            )
        column += len(part) + 1
    if len(parts) != 3:
        raise PointedError(f"given {len(parts)} parts, wanted src:wei:dst in --strides", text, len(text))
    src, wei, dst = (part and plain_strides(part) for part in parts)
    return src, wei, dst


def parse_flag(what: str, text: str) -> bool:
    """`true` or `false`, in any case."""
    return choose(what, text, ("true", "false")) == "true"


def parse_fpmath(text: str) -> str:
    """The mode of `--attr-fpmath=MODE[:APPLY]`. Raises UserError, or Unsupported if it is to apply to integers too."""
    mode, colon, apply = text.partition(":")
    chosen = choose("--attr-fpmath", mode, FPMATH_MODES)
    if colon and parse_flag("--attr-fpmath=MODE:", apply):
        raise Unsupported(f"given --attr-fpmath={text}, wanted {chosen} alone: integers are not computed as floats")
    return chosen


def parse_minibatch(value: int | str) -> int:
    """`--mb`: 0 keeps the descriptor's."""
    text = str(value)
    if not _DIGITS.fullmatch(text):
        raise UserError(f"given --mb {text}, wanted a number from 0")
    if len(text) > len(str(LIMIT)) or int(text) >= LIMIT:
        raise UserError(f"given --mb {_brief(text)}, wanted less than 2^31")
    return int(text)


def choose(what: str, given: str, names: Sequence[str]) -> str:
    """The one of `names` that `given` spells, upper or lower case alike."""
    for name in names:
        if name.lower() == given.lower():
            return name
    raise UserError(f"given {what} {given!r}, wanted one of {' '.join(names)}")


def _unquote(name: str) -> str:
    quoted = len(name) >= 2 and name[0] == name[-1] == '"'
    return name[1:-1] if quoted else name


def _brief(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:17]}..."
