"""Worked cases of mappings in JSON files, and how many of them hold: `python tests/vectors.py FILE ...`.

A file is an object of lists. Each list has cases of one kind, by its name:

| list | a case |
|---|---|
| `wgm` | `n0` x `n1` tiles in groups of `WGM` along dimension `dim`: `tile_of_wg`, [m, n] by workgroup number |
| `xcc` | `total` workgroups dealt to `num_xcc` dies: `new_id` by workgroup number |
| `wave` | both: `n0`, `n1`, `group` along dimension 0, `num_xcc`: `tile_of_wg` |
| `reads_8x8` | blocks that one of 8 dies reads of 8 x 8 tiles with 8 blocks of K, by name of the order |

Prints a line a list; exits with 1 if a case does not hold and with 2 if a list is of no known kind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.order import Order

Case = Mapping[str, Any]


def tiles(m: int, n: int, order: str) -> list[list[int]]:
    """[m, n] by workgroup number."""
    found: list[list[int]] = WorkgroupMapping.of(m, n, order=Order.parse(order)).tiles()[:, 1:3].tolist()
    return found


def _wgm(case: Case) -> bool:
    size = f"{case['WGM']}{'mn'[case['dim']]}"
    found = [tiles(case["n0"], case["n1"], f"{kind}:{size}") for kind in ("group", "wgm")]  # constant, and an argument
    return found == [case["tile_of_wg"]] * len(found)


def _xcc(case: Case) -> bool:
    return bool([m for m, _ in tiles(case["total"], 1, f"xcc:{case['num_xcc']}")] == case["new_id"])


def _wave(case: Case) -> bool:
    order = f"xcc:{case['num_xcc']}+group:{case['group']}m"
    return bool(tiles(case["n0"], case["n1"], order) == case["tile_of_wg"])


_SIDE = _DIES = _BLOCKS = 8


def _reads(case: Case) -> bool:
    """Rows and columns of tiles that a die has, times the blocks of K; the bound is that of the best rectangle."""

    def read(order: str) -> int:
        mine = tiles(_SIDE, _SIDE, order)[::_DIES]
        return _BLOCKS * (len({m for m, _ in mine}) + len({n for _, n in mine}))

    least = min(_BLOCKS * (rows + -(-_SIDE // rows)) for rows in range(1, _SIDE + 1))
    known = {"default": read("cols"), "lower_bound": least}
    known |= {name: read(f"xcc:{_DIES}+group:{name[6:]}m") for name in case if name.startswith("wave_G")}
    return dict(case) == {name: known.get(name) for name in case}


KINDS: Mapping[str, Callable[[Case], bool]] = {"wgm": _wgm, "xcc": _xcc, "wave": _wave, "reads_8x8": _reads}


def results(path: Path) -> Iterator[tuple[str, int, int | None]]:
    """Of each list of a file: its name, its cases and how many hold; None where the kind is not known."""
    for name, found in json.loads(path.read_text()).items():
        cases: Sequence[Case] = found if isinstance(found, list) else [found]
        yield name, len(cases), sum(map(KINDS[name], cases)) if name in KINDS else None


def main(files: Sequence[str]) -> int:
    worst = 0
    for file in files:
        for name, count, held in results(Path(file)):
            said = "of no known kind" if held is None else f"{held} of {count} hold"
            print(f"{Path(file).name} {name}: {said}")
            worst = max(worst, 2 if held is None else int(held < count))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
