"""AITER's tables of tuned products and convolutions: comma-separated rows below a row of column names.

A row of a product is y[M, N] = x[M, K] * w[N, K] transposed (aiter/configs in ROCm/aiter):

- with `dtype`: in this type, with results of `outdtype`, with a bias if its column says so;
- with `q_dtype_w` (a8w8): 8-bit factors, a scale for each row of x and each row of w, results in bf16;
- without either, in a file called a8w8 or a8w8_blockscale: 8-bit floats; in a blockscale file each row of x, and each
  128 rows of w, have a scale per 128 of K.

A column `file` has the name of the table that a row comes from, where rows of several are in one. The columns `gfx`, or
`dtype` with one of the names fp8 and i8, tell the types of a8w8 without q_dtype_w: 8-bit floats are those that the
target of that name multiplies.

Weights of a table called bpreshuffle, or with such a column, lie in blocks of 16 rows of w and 16 bytes along K, the
blocks of 16 rows one after another (`shuffle_weight` in aiter/ops/shuffle.py).

A row of a convolution has N, C, D, H, W, K, kT, kH, kW, strides, paddings, dilations, groups and a bias, in bf16.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from convgen.backends import target as targets
from convgen.ir.error import Unsupported, UserError, named
from convgen.ir.record import frozen
from convgen.ir.types import scalar
from convgen.problem.options import CONV, MATMUL

_SIZES = ("M", "N", "K")
_CONV_SIZES = ("N", "C", "D", "H", "W", "K", "kT", "kH", "kW")
_MANY = 512  #: characters of a line that may name columns
_COLUMN = re.compile(r"[A-Za-z_][\w ./%()-]{0,40}")
_TYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "int8": "s8",
    "int32": "s32",
    "float8_e4m3fn": "f8_e4m3",
    "float8_e4m3fnuz": "f8_e4m3fnuz",
    "float8_e5m2": "f8_e5m2",
    "float8_e5m2fnuz": "f8_e5m2fnuz",
}
_SHORT_TYPES = {"fp8": "f8_e4m3", "i8": "s8", "bf16": "bf16"}
_TRUE, _FALSE = ("true", "1"), ("false", "0", "none", "")
_BLOCK = 128  #: of K and of rows of w that share a scale
_SHUFFLED_ROWS, _CHUNK = 16, 16  #: rows, and bytes along K; of a block of shuffled weights


@frozen
class Row:
    """A row: its descriptor and knobs, or the reason why it is no problem; `number` is that of its line."""

    number: int
    descriptor: str
    knobs: Mapping[str, str]
    driver: str = MATMUL
    error: Exception | None = None


def is_table(text: str) -> bool:
    """Whether a text begins with the names of columns, sizes among them."""
    first, _, _ = text.lstrip("\ufeff\r\n ").partition("\n")
    names = [name.strip().strip('"') for name in first[:_MANY].split(",")]
    if len(names) < 3 or not all(map(_COLUMN.fullmatch, names)):
        return False
    return len({*names} & {*_SIZES, *_CONV_SIZES, "token", "model_dim", "cu_num"}) >= 2


def rows(text: str, name: str = "") -> Iterator[Row]:
    """The rows of a table in a file of a name. Raises UserError where it cannot be read."""
    try:
        yield from _rows(csv.reader(text.lstrip("\ufeff").splitlines()), PurePath(name).name)
    except csv.Error as error:
        raise UserError(f"given a table that cannot be read: {error}") from None


def _rows(reader: Any, name: str) -> Iterator[Row]:
    names: list[str] = []
    while not names:
        names = [column.strip() for column in next(reader, ["?"])]
    is_conv = {*_CONV_SIZES} <= {*names}
    missing = next((column for column in _SIZES if column not in names), "")
    if missing and not is_conv:
        wanted = f"{', '.join(_SIZES)} of products or {', '.join(_CONV_SIZES)} of convolutions"
        error = Unsupported(f"given a table without the column {missing}, wanted {wanted}", rule="table-columns")
        yield Row(reader.line_num, ",".join(names)[:60], {}, error=error)
        return
    for values in reader:
        if not values:
            continue
        try:
            if len(values) != len(names):
                raise UserError(f"given {len(values)} columns, wanted {len(names)}")
            row = dict(zip(names, map(str.strip, values)))
            if is_conv:
                yield Row(reader.line_num, *_convolution(row), driver=CONV)
            else:
                yield Row(reader.line_num, *_product(row, name))
        except (UserError, Unsupported) as error:
            yield Row(reader.line_num, ",".join(values)[:60], {}, error=error)


def _product(row: Mapping[str, str], name: str) -> tuple[str, dict[str, str]]:
    name = row.get("file") or name
    if _flag(row, "scaleAB"):
        raise Unsupported("scaleAB of a table of products", rule="table-scaleab")
    batch, m, n, k = (_size(row, column, "1") for column in ("B", *_SIZES))
    dims = 2 + (batch > 1)
    source, result, scales = _types(row, name, dims)
    knobs = {"dt": f"{source}:{source}:{result}"}
    tags = ("abc", "acb", "abc") if batch > 1 else ("ab", "ba", "ab")
    if _flag(row, "bpreshuffle") or "bpreshuffle" in name:
        tags = tags[0], _shuffled(source, n, k, batch), tags[2]
    knobs |= dict(zip(("stag", "wtag", "dtag"), tags))
    if _flag(row, "bias"):
        knobs |= {"bia-dt": result, "bia_mask": str(1 << dims - 1)}
    outer = f"{batch}x" if batch > 1 else ""
    return f"{outer}{m}x{k}:{outer}{k}x{n}", knobs | scales


def _byte_float(target: str) -> str:
    """Return the type of 8-bit floats on a target, that of OCP where it is not known."""
    if target not in targets.names():
        return "f8_e4m3"
    factors = {atom.a_elem.name for atom in targets.get(target).facts.atoms}
    return next((name for name in ("f8_e4m3", "f8_e4m3fnuz") if name in factors), "f8_e4m3")


def _shuffled(dtype: str, n: int, k: int, batch: int) -> str:
    """Return the tag of shuffled weights [K, N]. Raises UserError for sizes that AITER does not shuffle."""
    depth = _CHUNK // scalar(dtype).bytes
    if n % _SHUFFLED_ROWS or k % (2 * depth):
        wanted = f"multiples of {_SHUFFLED_ROWS} and {2 * depth}"
        raise UserError(f"given shuffled weights of N = {n}, K = {k}, wanted {wanted}")
    outer, k_letter, n_letter = ("a", "b", "c") if batch > 1 else ("", "a", "b")
    return f"{outer}{n_letter.upper()}{k_letter.upper()}{_SHUFFLED_ROWS}{n_letter}{depth}{k_letter}"


def _types(row: Mapping[str, str], name: str, dims: int) -> tuple[str, str, dict[str, str]]:
    """The types of the factors and of the result, and the knob of scales."""
    family = re.search("a[0-9]+w[0-9]+", name)
    if "dtype" in row and family is None:
        return _type(row, "dtype"), _type(row, "outdtype", row["dtype"]), {}
    if family is None and "q_dtype_w" not in row and name.startswith("bf16"):
        return "bf16", "bf16", {}
    if family is not None and family[0] != "a8w8":
        raise Unsupported(f"given the types {family[0]} of the table {name[:60]}, wanted a8w8", rule="types")
    if "q_dtype_w" not in row and family is None:
        raise Unsupported(
            "a table without the column dtype or q_dtype_w, nor a name that tells types", rule="table-columns"
        )
    source = _type(row, "q_dtype_w" if "q_dtype_w" in row else "dtype", "float8_e4m3fn")
    if source == "f8_e4m3" and "q_dtype_w" not in row:
        source = _byte_float(row.get("gfx", ""))
    if "blockscale" in name:
        both = 3 << dims - 2
        return source, "bf16", {"attr-scales": f"src:{both}:f32:1x{_BLOCK}+wei:{both}:f32:{_BLOCK}x{_BLOCK}"}
    return source, "bf16", {"attr-scales": f"src:{1 << dims - 2}:f32+wei:{1 << dims - 1}:f32"}


def _convolution(row: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    mb, ic, *inputs = (_size(row, column) for column in _CONV_SIZES[:5])
    oc, *windows = (_size(row, column) for column in _CONV_SIZES[5:])
    groups = _size(row, "groups", "1")
    text = (f"g{groups}" if groups > 1 else "") + f"mb{mb}ic{ic}oc{oc}"
    for axis, i, k in zip("dhw", inputs, windows):
        s, p, d = (
            _size(row, f"{column}_{axis}", default) for column, default in (("stride", "1"), ("pad", "0"), ("dil", "1"))
        )
        text += f"_i{axis}{i}k{axis}{k}s{axis}{s}p{axis}{p}d{axis}{max(d - 1, 0)}"
    dtype = _type(row, "dtype", "bfloat16")
    knobs = {"dir": "FWD_D", "dt": dtype, "stag": "abcde", "wtag": "abcdef" if groups > 1 else "abcde", "dtag": "abcde"}
    return text, knobs | ({"bia-dt": dtype} if _flag(row, "bias") else {})


def _size(row: Mapping[str, str], column: str, default: str = "") -> int:
    text = row.get(column) or default
    if not re.fullmatch("[0-9]{1,18}", text):
        raise UserError(f"given {text[:40]!r}, wanted a number, in column {column}")
    return int(text)


def _type(row: Mapping[str, str], column: str, default: str = "") -> str:
    text = (row.get(column) or default).removeprefix("torch.")
    if text in _SHORT_TYPES:
        return _SHORT_TYPES[text]
    if text not in _TYPES:
        raise UserError(f"given the type {named(text, _TYPES)}, wanted one of {', '.join(_TYPES)}, in column {column}")
    return _TYPES[text]


def _flag(row: Mapping[str, str], column: str) -> bool:
    text = row.get(column, "").lower()
    if text not in (*_TRUE, *_FALSE):
        raise UserError(f"given {text[:40]!r}, wanted True or False, in column {column}")
    return text in _TRUE
