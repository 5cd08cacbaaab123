"""`convgen map`: show the tile of each workgroup, in one order or in all orders, with their cache traffic."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from convgen.commands.arguments import Parser, add_target, number, one_of, rectangle, refuse
from convgen.commands.generate import add_knobs, described, parse_knobs
from convgen.commands.session import FINE
from convgen.ir.error import UserError

if TYPE_CHECKING:
    from convgen.choose.workgroup_orders import LaunchTraffic
    from convgen.ir.layout.mapping import WorkgroupMapping
    from convgen.ir.layout.order import Order
    from convgen.plan.plan import Plan
    from convgen.problem.matmul import Problem

_MIB = 1 << 20
_MOST_SHOWN = 1 << 16  #: workgroups in a table or picture
_GROUP = 8  #: tiles in a group, for orders without a size


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "map",
        "Show the order in which workgroups compute the tiles of a result. --grid prints a table of workgroup\n"
        "numbers, a row of tiles per line. A problem prints the cache traffic of each named order, the best first.\n"
        "\n"
        "An order is remaps and a walk, joined by +; docs/mapping.md explains them:\n"
        "  rows cols group:8m even:8m:snake rect:8x4n zorder:8x8 hilbert; remaps xcc:8 chunk:8x64; flip:304",
        "convgen map --grid 6x8 --wgm 4 --dim 0",
        "convgen map --grid 8x8 --map xcc:8+group:2m --json",
        "convgen map 4096x4096:4096x4096 --dt f16 --target {target}",
        "convgen map mb32ic256ih14oc256oh14kh3ph1 --dir FWD_D --dt f16 -o map.svg",
    )
    add = parser.add_argument
    add("descriptor", metavar="DESC", nargs="?", help="a problem: MxK:KxN, or benchdnn's of a convolution")
    add_target(parser)
    add("--config", metavar="LINE", help="use this config instead of choosing one")
    add("--grid", type=rectangle("MxN"), metavar="MxN", help="tiles along M and N instead of a problem")
    add("--batch", type=number(1), metavar="N", help="with --grid: results (default 1)")
    add("--slices", type=number(1), metavar="N", help="with --grid: slices of K (default 1)")
    add("--map", metavar="ORDER", help="use this order instead of all named ones")
    add("--wgm", type=number(1), metavar="N", help="groups of N tiles: --map group:Nm, or group:Nn with --dim 1")
    add(
        "--dim",
        type=one_of("0", "1"),
        default="0",
        metavar="0|1",
        help="dimension along which groups or numbers run: 0 M, 1 N (default 0)",
    )
    add("--xcc", type=number(1), metavar="N", help="remap workgroups for N dies before that")
    add("-o", dest="output", metavar="FILE", help="draw the order: FILE.svg or FILE.png, by die and time")
    add("--animate", action="store_true", help="let rounds appear one after another (SVG)")
    add("--json", action="store_true", help="print one JSON object")
    add_knobs(parser, "conv", "deconv", "matmul")
    return parser


def run(arguments: Sequence[str]) -> int:
    options, knobs = parse_knobs(parser(), arguments, "conv", "deconv", "matmul")
    if options.grid is None and options.descriptor is None:
        raise UserError("given no problem, wanted one, or --grid MxN")
    if options.grid is not None and options.descriptor is not None:
        raise UserError("given a problem and --grid, wanted one of them")
    if not options.output:
        refuse(options, ["animate"], "without -o, wanted it with -o FILE.svg")
    if options.map is not None and (options.wgm is not None or options.xcc is not None):
        raise UserError("given --map and --wgm or --xcc, wanted one of them")
    if options.grid is not None:
        refuse(
            argparse.Namespace(**vars(options) | knobs),
            ("config", *knobs),
            "with --grid, wanted it with a problem only",
        )
        return _grid(options)
    refuse(options, ("batch", "slices"), "with a problem, wanted it with --grid only")
    return _problem(options, described(options.descriptor, knobs, options.driver))


def _order(options: argparse.Namespace) -> Order | None:
    from convgen.ir.layout.order import Order

    if options.map is not None:
        return Order.parse(options.map)
    if options.wgm is None and options.xcc is None:
        return None
    along = "mn"[int(options.dim)]
    walk = f"group:{options.wgm}{along}" if options.wgm else {"m": "cols", "n": "rows"}[along]
    return Order.parse(f"xcc:{options.xcc}+{walk}" if options.xcc else walk)


# ---------------------------------------------------------------- a grid


def _grid(options: argparse.Namespace) -> int:
    from convgen.backends import target
    from convgen.ir.layout.mapping import WorkgroupMapping
    from convgen.ir.layout.order import Order

    m, n = options.grid
    batch, slices = options.batch or 1, options.slices or 1
    facts = target.get(options.target).facts
    order = _order(options)
    default = Order.parse("rows" if options.dim == "1" else "cols")
    shown = WorkgroupMapping.of(m, n, k=slices, batch=batch, order=order or default)
    if options.output:
        _draw(options, shown, facts.caches.dies, facts.compute_units // facts.caches.dies)
    if options.json:
        entry: dict[str, Any] = {"grid": [m, n], "batch": batch, "slices": slices, **_json(shown)}
        if order is None:
            from convgen.choose.workgroup_orders import well_known_orders

            orders = well_known_orders(max(2, facts.caches.dies), _GROUP)
            mappings = {text: WorkgroupMapping.of(m, n, k=slices, batch=batch, order=each)
                        for text, each in orders.items()}  # fmt: skip
            entry["mappings"] = {text: _json(mapping) for text, mapping in mappings.items()}
        print(json.dumps(entry))
        return FINE
    for title, tiles in _tables(shown):
        print(title, end="")
        print(tiles)
    return FINE


def _json(mapping: WorkgroupMapping) -> dict[str, Any]:
    """Return, by workgroup number: its tile [m, n] (null without one), batch and slices.

    Persistent workgroups take several numbers each: `taken_by` has the workgroup that takes each number, the first one
    if several share the K of its tile.
    """
    from convgen.choose.workgroup_orders import takers_of

    rows, takers = mapping.tiles().tolist(), takers_of(mapping)
    parts = (("batch_of_wg", 0, mapping.counts[0]), ("slice_of_wg", 3, mapping.counts[3]))
    return {
        "order": str(mapping.order),
        "workgroups": math.prod(mapping.grid),
        "tile_of_wg": [None if row[0] < 0 else row[1:3] for row in rows],
        **{name: [None if row[0] < 0 else row[n] for row in rows] for name, n, count in parts if count > 1},
        **({} if takers is None else {"taken_by": takers.tolist()}),
    }


def _tables(mapping: WorkgroupMapping) -> Iterator[tuple[str, str]]:
    """Yield a table of workgroup numbers for each slice and result, with a title if there are several."""
    import numpy as np

    from convgen.choose.workgroup_orders import takers_of
    from convgen.show.drawing import table

    batch, m, n, slices = mapping.counts
    if mapping.numbers > _MOST_SHOWN:
        raise UserError(f"given {mapping.numbers} workgroups, wanted at most {_MOST_SHOWN} in a table; see --json")
    rows = mapping.tiles()
    for b in range(batch):
        for k in range(slices):
            mine = (rows[:, 0] == b) & (rows[:, 3] == k)
            tiles = np.where(mine[:, None], rows[:, 1:3], -1).astype(np.int32)
            title = "" if batch == slices == 1 else f"batch {b} slice {k}\n"
            yield title, table(tiles, (m, n), takers_of(mapping))


def _draw(options: argparse.Namespace, mapping: WorkgroupMapping, dies: int, in_flight: int) -> None:
    from convgen.choose.workgroup_orders import takers_of, tiles_of
    from convgen.show import drawing

    drawing.check_output(options.output, options.animate)
    if mapping.numbers > _MOST_SHOWN:
        raise UserError(f"given {mapping.numbers} workgroups, wanted at most {_MOST_SHOWN} in a picture")
    _, m, n, _ = mapping.counts
    in_flight = min(in_flight, -(-mapping.turns.workgroups // dies))
    title = f"{m} x {n} tiles, {mapping.order}, {dies} dies, {in_flight} workgroups a die at a time"
    picture = drawing.draw(tiles_of(mapping), (m, n), dies, in_flight, title, takers_of(mapping))
    drawing.write(picture, options.output, options.animate)


# ---------------------------------------------------------------- a problem


def _problem(options: argparse.Namespace, problem: Problem) -> int:
    from convgen.choose.workgroup_orders import LaunchTraffic, best_order, well_known_orders
    from convgen.plan.config import LanePart
    from convgen.show import report

    plan, together = _plan(options, problem)
    if not plan.parts:
        raise UserError(f"given {problem.descriptor}, wanted a problem with a matrix product")
    if isinstance(plan.config.mma, LanePart):
        given = f"given {problem.descriptor} by mma={plan.config.mma}"
        raise UserError(f"{given}, wanted a --config with a matrix instruction, whose tiles read panels")
    if plan.largest.product.grouped:
        raise UserError(f"given {problem.descriptor} in groups, wanted a product whose tiles share panels of weights")
    launch = LaunchTraffic.of(plan, together)
    best, asked = best_order(launch), _order(options)
    orders = {str(asked): asked} if asked else {str(best): best, **well_known_orders(launch.facts.caches.dies, _GROUP)}
    if options.output:
        _draw(options, launch.mapping(asked or best), launch.facts.caches.dies, launch.in_flight)
    rows = sorted((_row(launch, plan, order) for order in orders.values()), key=lambda row: row["clocks"])
    remarks = list(_remarks(launch, plan, asked))
    if options.json:
        m, n = launch.tiles
        entry = {"problem": str(problem), "target": options.target, "config": str(plan.config), "grid": [m, n],
                 "slices": launch.slices, "chosen": str(best), "orders": rows, "remarks": remarks}  # fmt: skip
        print(json.dumps(entry))
        return FINE
    tiles = f"{launch.tiles[0]} x {launch.tiles[1]} tiles" + (f" x {launch.slices} slices" * (launch.slices > 1))
    report.show([("problem", str(problem)), ("target", options.target), ("config", str(plan.config)),
                 ("grid", f"{tiles}, {launch.in_flight} workgroups a die at a time"), ("chosen", str(best))],
                sys.stdout)  # fmt: skip
    print()
    report.show_table(_HEADER, [_cells(row) for row in rows], sys.stdout)
    for remark in remarks:
        print(f"note: {remark}", file=sys.stderr)
    return FINE


def _plan(options: argparse.Namespace, problem: Problem) -> tuple[Plan, int]:
    """Return the problem's plan with tiles in rows, and the number of its workgroups that run together on a unit."""
    from convgen.backends import target
    from convgen.choose.choose import candidates
    from convgen.choose.search import Search
    from convgen.choose.supported import check_supported
    from convgen.ir.error import DoesNotFit
    from convgen.plan.config import Config
    from convgen.plan.plan import make_plan
    from convgen.problem.matmul import check_single
    from convgen.problem.tensors import check_outputs

    facts = target.get(options.target).facts
    check_single(problem)
    check_outputs(problem)
    check_supported(problem, facts)
    if options.config is not None:
        try:
            return make_plan(problem, Config.parse(options.config), facts), 1
        except DoesNotFit as error:
            raise UserError(f"given the config {options.config}, wanted one that fits: {error}") from error
    search = Search(problem, candidates(problem, facts), facts)
    if (fitting := search.next()) is None:
        raise search.none_fits()
    return fitting[1], fitting[0].together


_HEADER = ("order", "L2 fill MiB", "hit rate", "memory MiB", "of the bound", "clocks")


def _row(launch: LaunchTraffic, plan: Plan, order: Order) -> dict[str, Any]:
    """Return the traffic of an order by the closed form; for a matrix product also block by block."""
    from convgen.problem.matmul import Matmul

    traffic = launch.traffic(order)
    clocks = traffic.clocks(launch.facts.caches, launch.facts.compute_units)
    row = {
        "order": str(order),
        "clocks": round(clocks),
        **_moved(traffic.fill, traffic.hit_rate, traffic.memory, traffic.bound),
    }
    if isinstance(plan.problem, Matmul):
        simulated = launch.simulated(order, plan)
        row["simulated"] = _moved(simulated.fill, simulated.hit_rate, simulated.memory, traffic.bound)
    return row


def _moved(fill: float, hit_rate: float, memory: float, bound: float) -> dict[str, float]:
    return {
        "l2_fill_mib": round(fill / _MIB, 3),
        "hit_rate": round(hit_rate, 4),
        "memory_mib": round(memory / _MIB, 3),
        "of_wave_bound": round(fill / bound, 4) if bound else 1.0,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    moved = row.get("simulated", row)
    return (row["order"], f"{moved['l2_fill_mib']:.1f}", f"{moved['hit_rate']:.3f}", f"{moved['memory_mib']:.1f}",
            f"{moved['of_wave_bound']:.3f}", f"{row['clocks']}")  # fmt: skip


def _remarks(launch: LaunchTraffic, plan: Plan, asked: Order | None) -> Iterator[str]:
    """Yield warnings: an order with remaps but no groups, or groups but no remaps, that was asked for and reads more
    than the default; and rows in one cache channel.
    """
    from convgen.choose.traffic import channel_warning, half_order_warning
    from convgen.ir.layout.order import IN_ROWS

    if asked and launch.facts.caches.dies > 1:
        found, default = launch.traffic(asked), launch.traffic(IN_ROWS)
        if said := half_order_warning(str(asked), bool(asked.remaps), asked.walk.is_grouped, found, default):
            yield said
    part = plan.parts[0].product
    for view in (part.of_m, part.of_n):
        if said := channel_warning(view, launch.facts.caches):
            yield said
