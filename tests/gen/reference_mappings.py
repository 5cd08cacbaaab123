"""Mappings of workgroups to tiles as others have them, each written anew as arrays: references for the traffic model.

A mapping is an array (workgroups, 2) of M and N tile by workgroup number, M tiles fastest in launch order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Tiles = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

GEMMS = ((4096, 4096, 4096), (4864, 8192, 4160), (8192, 8192, 8192), (16384, 4096, 8192))  #: M, N, K
TILE = (128, 256, 64)  #: M, N, K
ELEM = 2  #: bytes


def remapped(total: int, dies: int = 8) -> Ints:
    """Numbers of which each XCD has one run: rocRoller's XCC remap, Wave's and AITER's."""
    w = np.arange(total)
    die = w % dies
    return die * (total // dies) + np.minimum(die, total % dies) + w // dies


def chunked(total: int, chunk: int, dies: int = 8) -> Ints:
    """Numbers of which each XCD has runs of `chunk`; the last that do not fill all XCDs stay."""
    w = np.arange(total)
    whole = total // (dies * chunk) * dies * chunk
    turn = w // dies
    return np.where(w < whole, turn // chunk * dies * chunk + w % dies * chunk + turn % chunk, w)


def grouped(number: Ints, rows: int, columns: int, group: int) -> Tiles:
    """Groups of rows one after the other, column by column: Triton's order, rocRoller's WGM along M."""
    at, inside = np.divmod(number, group * columns)
    first = at * group
    height = np.minimum(rows - first, group)
    return _tiles(first + inside % height, inside // height)


def even(number: Ints, rows: int, columns: int, group: int) -> Tiles:
    """Groups of about so many rows, all nearly alike; in every other one columns run backwards."""
    groups = max(1, round(rows / group))
    bounds = np.arange(groups + 1) * rows // groups
    at = np.searchsorted(bounds * columns, number, side="right") - 1
    inside = number - bounds[at] * columns
    height = bounds[at + 1] - bounds[at]
    column = inside // height
    return _tiles(bounds[at] + inside % height, np.where(at % 2, columns - 1 - column, column))


def alternating(total: int, dies: int, in_flight: int) -> Flags:
    """Workgroups of odd rounds."""
    odd: Flags = np.arange(total) // dies // in_flight % 2 == 1
    return odd


def turned(tiles: Tiles) -> Tiles:
    """M and N exchanged."""
    return np.ascontiguousarray(tiles[:, ::-1])


def _tiles(m: Ints, n: Ints) -> Tiles:
    return np.stack([m, n], 1).astype(np.int32)


def _default(rows: int, columns: int) -> Tiles:
    return grouped(np.arange(rows * columns), rows, columns, rows)


def _even(rows: int, columns: int) -> Tiles:
    return even(remapped(rows * columns), rows, columns, 8)


#: Name -> mapping of M x N tiles. "K flip" also walks K backwards in odd rounds.
REFERENCES: dict[str, Callable[[int, int], Tiles]] = {
    "default": _default,
    "XCC only": lambda m, n: grouped(remapped(m * n), m, n, m),
    "WGM 8 only": lambda m, n: grouped(np.arange(m * n), m, n, 8),
    "Wave G=8": lambda m, n: grouped(remapped(m * n), m, n, 8),
    "HipKittens C=64, WGM 8": lambda m, n: grouped(chunked(m * n, 64), m, n, 8),
    "even groups + XCC": _even,
    "even groups + XCC, K flip": _even,
}


def backwards(name: str, total: int, dies: int, in_flight: int) -> Flags | None:
    """Who walks K backwards in a mapping of that name."""
    return alternating(total, dies, in_flight) if name.endswith("K flip") else None
