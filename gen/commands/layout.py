"""`convgen layout`: show who owns each element in a NestedLayout, in XeTile's maps or in a matrix operand."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from convgen.commands.arguments import Parser, number, one_of, rectangle, refuse
from convgen.commands.session import FINE
from convgen.default_target import DEFAULT_TARGET
from convgen.ir.error import UserError
from convgen.ir.record import as_dict, frozen

if TYPE_CHECKING:
    from convgen.ir.facts import TargetFacts
    from convgen.ir.layout.distribution import Distribution
    from convgen.ir.layout.fragment import Fragment
    from convgen.ir.layout.mma import MmaAtom
    from convgen.ir.layout.nested import NestedLayout

_MOST_SHOWN = 1 << 16  #: elements; of a table, a picture or a JSON object


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "layout",
        "Show which lane or subgroup owns each element of a vector, in a table that joins neighbours of equal owners,\n"
        "and the layout in digits, as IREE's NestedLayout and as XeTile's maps (docs/layouts.md).",
        "convgen layout 'subgroup_tile = [2, 1], batch_tile = [2, 4], outer_tile = [1, 1], thread_tile = [16, 4],"
        " element_tile = [1, 4], subgroup_strides = [1, 0], thread_strides = [1, 16]' --threads 256 --at 33,6",
        "convgen layout --wg-map 'sg_layout = [2, 2], sg_data = [32, 128]' --tile 128x128",
        "convgen layout --sg-map 'wi_layout = [2, 8], wi_data = [1, 2]' --tile 32x128 --owner 15",
        "convgen layout --mma 32x32x8 --operand d -o d.svg",
    )
    add = parser.add_argument
    add("layout", metavar="LAYOUT", nargs="?", help="a NestedLayout as IREE writes it, with or without its name")
    add("--wg-map", metavar="MAP", help="XeTile's wg_map: how subgroups share a --tile")
    add("--sg-map", metavar="MAP", help="XeTile's sg_map: how lanes share the part of a subgroup, or a --tile")
    add("--tile", type=rectangle("RxC"), metavar="RxC", help="with maps: rows and columns of the tile")
    add("--mma", metavar="NAME", help="a matrix instruction of the target: its name, or NxMxK")
    add(
        "--operand",
        type=one_of("a", "b", "d"),
        metavar="a|b|d",
        help="with --mma: a (n x k), b (m x k) or d (n x m; default)",
    )
    add(
        "--target",
        default=DEFAULT_TARGET,
        help=f"target of the instructions and subgroups; see `convgen targets` (default {DEFAULT_TARGET})",
    )
    add("--subgroup", type=number(1), metavar="N", help="lanes of a subgroup (default: the target's, or sg_map's)")
    add("--threads", type=number(1), metavar="N", help="threads of the workgroup (default: as many as are needed)")
    add("--at", type=_coord, metavar="I,J,...", help="print levels and owners of an element")
    add("--owner", type=number(0), metavar="N", help="print the elements of a thread, register by register")
    add("-o", dest="output", metavar="FILE", help="draw it: FILE.svg or FILE.png, by subgroup and register")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _coord(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,8}(,\d{1,8})*", text):
        raise argparse.ArgumentTypeError(f"given {text!r}, wanted I,J,...")
    return tuple(map(int, text.split(",")))


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    given = [options.layout is not None, bool(options.wg_map or options.sg_map), options.mma is not None]
    if sum(given) != 1:
        how = "no layout" if not any(given) else "several layouts"
        raise UserError(f"given {how}, wanted one of LAYOUT, --wg-map or --sg-map, and --mma")
    shown = _nested(options) if given[0] else _maps(options) if given[1] else _instruction(options)
    if math.prod(shown.on.digits.shape) > _MOST_SHOWN:
        raise UserError(f"given {math.prod(shown.on.digits.shape)} elements, wanted at most {_MOST_SHOWN} to show")
    if not shown.on.covers:
        raise UserError(f"given {shown.on.owners} {shown.unit}s, wanted an owner for each element")
    at = {} if options.at is None else _at(shown, options.at)
    held = None if options.owner is None else _held(shown, options.owner)
    if options.output:
        from convgen.show import drawing, owners

        drawing.check_output(options.output)
        drawing.write(owners.picture(shown.on, shown.unit, shown.group), options.output)
    if options.json:
        print(json.dumps(_json(shown, at, held)))
        return FINE
    _print(shown, at, held)
    return FINE


@frozen
class _Shown:
    rows: list[tuple[str, str]]  #: rows of the report
    on: Distribution
    unit: str  #: kind of the owners: "thread" or "subgroup"
    group: int  #: owners of a subgroup
    nested: NestedLayout | str  #: the nested layout, or why there is none
    maps: str  #: XeTile's maps, or why there are none


# ---------------------------------------------------------------- what is shown


def _facts(options: argparse.Namespace) -> TargetFacts:
    from convgen.backends import target

    return target.get(options.target).facts


def _nested(options: argparse.Namespace) -> _Shown:
    refuse(options, ["tile"], "with a layout, wanted it with --wg-map or --sg-map only")
    refuse(options, ["operand"], "with a layout, wanted it with --mma only")
    from convgen.ir.layout.nested import NestedLayout

    layout = NestedLayout.parse(options.layout)
    size = options.subgroup or _facts(options).subgroup_size
    threads = options.threads or layout.least_threads(size)
    layout.check_workgroup(size, threads)
    try:
        maps = _as_maps(layout.fragment(size), threads // size)
    except UserError as error:
        maps = f"none: {error}"
    return _Shown([("layout", str(layout))], layout.on(size, threads), "thread", size, layout, maps)


def _maps(options: argparse.Namespace) -> _Shown:
    refuse(options, ["operand"], "with maps, wanted it with --mma only")
    from convgen.ir.layout.distribution import Distribution
    from convgen.ir.layout.xetile import SgMap, WgMap

    if options.tile is None:
        raise UserError("given maps without a tile, wanted --tile RxC")
    lanes = SgMap.parse(options.sg_map) if options.sg_map else None
    blocks = WgMap.parse(options.wg_map) if options.wg_map else WgMap((1, 1), options.tile)
    fragment = blocks.fragment(options.tile, lanes)
    size = lanes.lanes if lanes else options.subgroup or _facts(options).subgroup_size
    if options.threads or (lanes and options.subgroup not in (None, size)):
        raise UserError("given --threads or --subgroup, wanted those of the maps alone")
    maps = " ".join(str(map_) for map_ in (options.wg_map and blocks, lanes) if map_)
    on = Distribution.of(fragment, size, size * blocks.subgroups) if lanes else blocks.on(options.tile)
    unit, group = ("thread", size) if lanes else ("subgroup", 1)
    return _Shown([("layout", maps)], on, unit, group, _as_nested(fragment, size), maps)


def _instruction(options: argparse.Namespace) -> _Shown:
    refuse(options, ["tile"], "with --mma, wanted it with --wg-map or --sg-map only")
    refuse(options, ["subgroup"], "with --mma, wanted it with a layout or maps only")
    from convgen.ir.layout.distribution import Distribution

    facts, operand = _facts(options), options.operand or "d"
    atoms = [a for a in facts.atoms if options.mma in (a.name, f"{a.n}x{a.m}x{a.k}")]
    fragments = {getattr(atom, operand): atom for atom in atoms}
    if len(fragments) != 1:
        raise UserError(_which(options, atoms or facts.atoms, bool(atoms)))
    (fragment, atom), size = next(iter(fragments.items())), facts.subgroup_size
    threads = options.threads or size * atom.spans
    rows = [("instruction", " ".join(a.name for a in atoms)), ("operand", f"{operand}, {' x '.join(fragment.dims)}")]
    on = Distribution.of(fragment, size, threads)
    return _Shown(rows, on, "thread", size, _as_nested(fragment, size), _as_maps(fragment, threads // size))


def _which(options: argparse.Namespace, atoms: Sequence[MmaAtom], known: bool) -> str:
    """Return the error for an unknown or ambiguous matrix instruction, with the candidates."""
    shapes = dict.fromkeys(f"{a.n}x{a.m}x{a.k}" for a in atoms)
    names = ", ".join(a.name for a in atoms) if known else f"{', '.join(shapes)}, or the name of an instruction"
    return f"given the matrix instruction {options.mma!r}, wanted one of {names}, of {options.target}"


def _as_nested(fragment: Fragment, size: int) -> NestedLayout | str:
    from convgen.ir.layout.nested import NestedLayout

    try:
        return NestedLayout.of(fragment, size)
    except UserError as error:
        return f"none: {error}"


def _as_maps(fragment: Fragment, subgroups: int) -> str:
    from convgen.ir.layout.xetile import maps_of

    try:
        return " ".join(map(str, maps_of(fragment, subgroups)))
    except UserError as error:
        return f"none: {error}"


# ---------------------------------------------------------------- how it is shown


def _print(shown: _Shown, at: Mapping[str, Any], held: Sequence[Sequence[int]] | None) -> None:
    from convgen.show import owners, report

    on = shown.on
    rows = [*shown.rows, ("shape", "x".join(map(str, on.digits.shape)))]
    if not isinstance(shown.nested, str):
        packed, unpacked = shown.nested.packed_shape, shown.nested.unpacked_shape
        rows.append(
            ("", f"packed {_by(packed)}, distributed {_by(shown.nested.distributed_shape)}, held {_by(unpacked)}")
        )
    rows.append(("digits", str(on.digits)))
    texts = {text for _, text in rows}
    rows += [
        (name, text) for name, text in (("nested", str(shown.nested)), ("xetile", shown.maps)) if text not in texts
    ]
    each = " or ".join(map(str, on.replication))
    rows.append(("owners", f"{on.owners} {shown.unit}s, {each} of each element"))
    report.show(rows, sys.stdout)
    print()
    if not at and held is None:
        for title, table in owners.tables(on):
            print(f"{title}{table}")
    if at:
        report.show([(name, str(value)) for name, value in at.items()], sys.stdout)
    if held is not None:
        print(" ".join(f"({', '.join(map(str, coord))})" for coord in held))


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _at(shown: _Shown, coord: Sequence[int]) -> dict[str, Any]:
    shape = shown.on.digits.shape
    if len(coord) != len(shape) or any(n >= size for n, size in zip(coord, shape)):
        raise UserError(f"given {','.join(map(str, coord))}, wanted an element of {_by(shape)}, at --at")
    nested = shown.nested
    levels = {} if isinstance(nested, str) or shown.unit == "subgroup" else as_dict(nested.place(coord))
    indices = {level: list(map(int, index)) for level, index in levels.items()}
    return {"element at": list(coord), **indices, "owners": list(shown.on.owners_of(coord))}


def _held(shown: _Shown, owner: int) -> list[list[int]]:
    if owner >= shown.on.owners:
        raise UserError(f"given {owner}, wanted one of {shown.on.owners} {shown.unit}s, at --owner")
    elements: list[list[int]] = shown.on.elements_of(owner).tolist()
    return elements


def _json(shown: _Shown, at: Mapping[str, Any], held: Sequence[Sequence[int]] | None) -> dict[str, Any]:
    """Return the layout for `--json`, with the owners of each element by its coordinates."""
    on, nested = shown.on, shown.nested
    sets = on.sets()

    def owners(keys: Any) -> Any:
        return list(sets.get(keys, ())) if isinstance(keys, int) else [owners(each) for each in keys]

    entry: dict[str, Any] = {**dict(shown.rows), "shape": list(on.digits.shape), "digits": str(on.digits)}
    if not isinstance(nested, str):
        for name in ("packed_shape", "distributed_shape", "unpacked_shape"):
            entry[name] = list(getattr(nested, name))
    entry |= {"nested": str(nested), "xetile": shown.maps, "unit": shown.unit, "owner_count": on.owners}
    entry |= {"replication": list(on.replication), "owners": owners(on.grid().tolist())}
    entry |= {"at": at} if at else {}
    return entry | ({} if held is None else {"held": held})
