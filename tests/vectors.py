"""Worked cases of mappings and layouts in JSON files, and how many hold: `python tests/vectors.py FILE ...`.

A file is an object of lists; text beside them is remarks. Each list has cases of one kind, by its name:

| list | a case |
|---|---|
| `wgm` | `n0` x `n1` tiles in groups of `WGM` along dimension `dim`: `tile_of_wg`, [m, n] by workgroup number |
| `xcc` | `total` workgroups dealt to `num_xcc` dies: `new_id` by workgroup number |
| `wave` | both: `n0`, `n1`, `group` along dimension 0, `num_xcc`: `tile_of_wg` |
| `reads_8x8` | blocks that one of 8 dies reads of 8 x 8 tiles with 8 blocks of K, by name of the order |
| `cases` | a NestedLayout `layout` on `workgroup_threads` threads: shapes, `forward`, `inverse`, or its `defects` |
| `wg_map` | a `tile` by `sg_layout`, `sg_data`: blocks of `subgroups`, `owners` of blocks, `load_errors`, `store_ok` |
| `sg_map` | a block `sg_data` by `wi_layout` and `wi_data`: `samples` of elements |
| `transpose` | a `tile` mapped as `src`, its transpose as `dst`: whether it is `shuffle_free` |

Prints a line a list; exits with 1 if a case does not hold and with 2 if a list is of no known kind.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convgen.ir.error import UserError
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.nested import NestedLayout
from convgen.ir.layout.order import Order
from convgen.ir.layout.xetile import SgMap, WgMap

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


def refusal(check: Callable[[], Any]) -> str:
    """What an error says; empty where there is none."""
    try:
        check()
    except UserError as error:
        return str(error)
    return ""


# ---------------------------------------------------------------- NestedLayout


def _nested(case: Case) -> bool:
    """All that is said of a layout; of one with defects, that it is refused for one of them."""
    fields = case["layout"]
    if case["defects"]:
        said = refusal(lambda: NestedLayout(**fields))
        return any(defect in said for defect in case["defects"])
    layout = NestedLayout(**fields)
    size, threads = case["subgroup_size"], case["workgroup_threads"]
    known = {
        "shape": list(layout.shape),
        "packed_shape": list(layout.packed_shape),
        "distributed_shape": list(layout.distributed_shape),
        "distributed_unpacked_shape": list(layout.unpacked_shape),
        "covered": layout.on(size, threads).covers,
        "replication": list(layout.on(size, threads).replication),
    }
    return (
        all(case[name] == value for name, value in known.items() if name in case)
        and NestedLayout.parse(str(layout)) == layout
        and all(_is_held(layout, size, point) for point in case.get("forward", ()))
        and all(_is_owned(layout, size, threads, point) for point in case.get("inverse", ()))
    )


def _is_held(layout: NestedLayout, size: int, point: Case) -> bool:
    found = layout.coord(point["tid"], size, point["batch"], point["outer"], point["element"])
    return bool(list(found) == point["coord"])


def _is_owned(layout: NestedLayout, size: int, threads: int, point: Case) -> bool:
    """Whether an element has these indices and owners; of a long list, the first ones and how many there are."""
    place = layout.place(point["coord"])
    names = {"virtual_subgroup": "subgroup", "virtual_thread": "thread"}
    levels = ("virtual_subgroup", "batch", "outer", "virtual_thread", "element")
    indices = all(list(getattr(place, names.get(name, name))) == point[name] for name in levels if name in point)
    return indices and _same_owners(layout.on(size, threads).owners_of(point["coord"]), point["owners"])


def _same_owners(found: Sequence[int], wanted: Sequence[Any]) -> bool:
    if wanted and isinstance(wanted[-1], str):
        count = re.search(r"[0-9]+", wanted[-1])
        return count is not None and len(found) == int(count[0]) and list(found[: len(wanted) - 1]) == wanted[:-1]
    return list(found) == wanted


# ---------------------------------------------------------------- XeTile


def _wg_map(case: Case) -> bool:
    fields, tile = (case["sg_layout"], case["sg_data"]), (case["tile"][0], case["tile"][1])
    map_ = WgMap(*fields)
    said = {
        "store_ok": not refusal(lambda: map_.check_store(tile)),
        "seed_rule_accepts": all(n % d == 0 and each * d % n == 0 for n, each, d in zip(tile, *fields)),
    }
    refused = refusal(lambda: map_.check_load(tile))
    if bool(refused) != bool(case["load_errors"]) or any(
        case.get(name, value) != value for name, value in said.items()
    ):
        return False
    return bool(refused) or _is_spread(map_, tile, case)


def _is_spread(map_: WgMap, tile: tuple[int, int], case: Case) -> bool:
    spread = map_.on(tile)
    known = {
        "subgroups": {str(n): [list(block) for block in map_.blocks_of(tile, n)] for n in range(map_.subgroups)},
        "owners": [
            {"offset": [row, col], "subgroups": list(spread.owners_of((row, col)))}
            for row in range(0, tile[0], map_.sg_data[0])
            for col in range(0, tile[1], map_.sg_data[1])
        ],
        "replication": list(spread.replication),
        "tiles_per_subgroup": len(map_.blocks_of(tile, 0)),
    }
    return all(case[name] == value for name, value in known.items() if name in case)


def _sg_map(case: Case) -> bool:
    map_, block = SgMap(case["wi_layout"], case["wi_data"]), (case["sg_data"][0], case["sg_data"][1])
    refused = refusal(lambda: map_.units(block))
    if refused or case.get("errors"):
        return bool(refused) == bool(case.get("errors"))
    fragment = map_.fragment(block)
    shape = (*map_.units(block), *map_.wi_data)

    def sample(row: int, col: int) -> dict[str, Any]:
        _, lane, register = fragment.owner({"row": row, "col": col})
        at = [int(n) for n in np.unravel_index(register, shape)]
        return {"row": row, "col": col, "wi": lane, "frag": at[:2], "elem": at[2:]}

    samples = all(sample(each["row"], each["col"]) == each for each in case["samples"])
    return samples and map_.result_shape(block)[0] == case.get("fragments_per_wi", map_.result_shape(block)[0])


def _transpose(case: Case) -> bool:
    (src, dst), tile = (WgMap(*case[name]) for name in ("src", "dst")), (case["tile"][0], case["tile"][1])
    return bool(src.transposes_in_place(tile, dst) == case["shuffle_free"])


KINDS: Mapping[str, Callable[[Case], bool]] = {
    "wgm": _wgm,
    "xcc": _xcc,
    "wave": _wave,
    "reads_8x8": _reads,
    "cases": _nested,
    "wg_map": _wg_map,
    "sg_map": _sg_map,
    "transpose": _transpose,
}


def results(path: Path) -> Iterator[tuple[str, int, int | None]]:
    """Of each list of a file: its name, its cases and how many hold; None where the kind is not known."""
    for name, found in json.loads(path.read_text()).items():
        if isinstance(found, str):
            continue
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
