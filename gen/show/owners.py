"""Owners of a layout's elements as tables and pictures: neighbours with the same owners are one cell of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from convgen.ir.error import UserError
from convgen.ir.layout.digits import Space
from convgen.ir.layout.distribution import Distribution
from convgen.show.drawing import Axis, Cell, Drawing, draw_cells, ruled

_RUNS = 3  #: runs of owners in the text of a cell

Grid = npt.NDArray[np.int64]


def tables(on: Distribution) -> Iterator[tuple[str, str]]:
    """Yield a table of owners for each matrix of the last two dimensions, with a title if there are several."""
    dims, sets = on.digits.dims, on.sets()
    grid = on.grid()
    matrices = grid.reshape(-1, *_matrix(grid.shape))
    for n, matrix in enumerate(matrices):
        outer = np.unravel_index(n, grid.shape[:-2])
        title = ", ".join(f"{dim} {int(at)}" for dim, at in zip(dims, outer))
        down, across = _sides(dims, matrix)
        cells = [[_runs_text(sets.get(int(matrix[r, c]), ())) for c in across[1]] for r in down[1]]
        yield f"{title}\n" if title else "", ruled(cells, down[0], across[0])


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns: a vector is one row, a scalar one element."""
    rows, cols = (1, 1, *shape)[-2:]
    return rows, cols


def _sides(dims: Sequence[str], matrix: Grid) -> tuple[tuple[Axis, list[int]], tuple[Axis, list[int]]]:
    """Return the two axes of a matrix, each with the first row or column of each cell."""
    names = ("", "", *dims)[-2:]
    return _axis(names[0], matrix), _axis(names[1], matrix.T)


def _axis(name: str, lines: Grid) -> tuple[Axis, list[int]]:
    """Return an axis that merges equal neighbouring lines, and the first line of each of its cells."""
    starts = [0, *(n + 1 for n, (a, b) in enumerate(pairwise(lines)) if not np.array_equal(a, b))]
    spans = zip(starts, [*starts[1:], len(lines)])
    return Axis(name, tuple(str(n) if end == n + 1 else f"{n}-{end - 1}" for n, end in spans)), starts


def _runs_text(owners: Sequence[int]) -> str:
    """Return owners as runs; of many runs the first ones, and the number of owners."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(owners), lambda item: item[1] - item[0])]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs[:_RUNS]]
    rest = f",... ({len(owners)})" if len(runs) > _RUNS else ""
    return ",".join(texts) + rest if owners else "."


def picture(on: Distribution, unit: str, group: int) -> Drawing:
    """Draw threads element by element, with registers; or subgroups by cells of a table.

    Colours are subgroups, or threads where there is one subgroup, of `group` owners each.
    """
    rank = len(on.digits.dims)
    if rank > 2:
        raise UserError(f"given a layout of {rank} dimensions, wanted at most 2 in a picture")
    title = f"{'x'.join(map(str, on.digits.shape))} on {on.owners} {unit}s"
    return _of_subgroups(on, title) if unit == "subgroup" else _of_threads(on, group, title)


def _of_subgroups(on: Distribution, title: str) -> Drawing:
    matrix, sets = on.grid().reshape(_matrix(on.digits.shape)), on.sets()
    (down, rows), (across, cols) = _sides(on.digits.dims, matrix)
    owners_of_cells = [[sets[int(matrix[r, c])] for c in cols] for r in rows]
    cells = [[Cell(owners[0], 0, (_runs_text(owners),)) for owners in row] for row in owners_of_cells]
    return draw_cells(cells, down, across, ("subgroup", ""), title, "in each cell: the subgroups that own it")


def _of_threads(on: Distribution, group: int, title: str) -> Drawing:
    matrix, sets = on.grid().reshape(_matrix(on.digits.shape)), on.sets()
    register = _registers(on).reshape(matrix.shape)
    kind, owners_of_colour = ("subgroup", group) if on.owners > group else ("thread", 1)

    def cell(r: int, c: int) -> Cell:
        owner, number = sets[int(matrix[r, c])][0], int(register[r, c])
        return Cell(owner // owners_of_colour, number, (str(owner), f"r{number}"))

    cells = [[cell(r, c) for c in range(matrix.shape[1])] for r in range(matrix.shape[0])]
    sides = zip(_sides(on.digits.dims, matrix), matrix.shape)
    down, across = (Axis(side.name, tuple(map(str, range(count)))) for (side, _), count in sides)
    remark = "in each element, where there is room: its first thread, and the register there"
    return draw_cells(cells, down, across, (kind, "register"), title, remark)


def _registers(on: Distribution) -> Grid:
    """Return the register of each element."""
    at = dict(zip(on.digits.dims, np.indices(on.digits.shape)))
    registers = on.digits.place(at).get(Space.REGISTER, 0)
    return np.broadcast_to(np.asarray(registers, np.int64), on.digits.shape)
