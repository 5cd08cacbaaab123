"""Sums over windows: which places neighbours share, what a lane holds, and configs that say so."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.target import get
from convgen.choose import lane_configs
from convgen.choose.choose import Candidate, candidates
from convgen.commands.cli import main
from convgen.ir.error import DoesNotFit
from convgen.ir.layout.digits import Space
from convgen.ir.layout.memory import View
from convgen.ir.mutate import postorder
from convgen.ir.stmt import LoadView
from convgen.kernels import launches
from convgen.passes.messages.linear import linearize
from convgen.plan.config import Config, LanePart
from convgen.plan.lane_tile import LaneTile
from convgen.plan.plan import make_plan
from convgen.plan.window_views import Window, Windows, windows
from convgen.problem.conv import Conv
from convgen.run import reference
from convgen.show.report import ranking_table

FACTS = get("gfx942").facts
BLOCKS = "tile=32x64x36 waves=1x1 mma=4x4x4:4x2x4 slots=0 taps=fused acc=v"
CONFIG = "tile=256x64x9 waves=1x4 mma=fma:8x2x4 slots=0 taps=fused acc=v"


def made(line: str, config: str = CONFIG, **knobs: str) -> tuple[Windows, ...]:
    parsed = Config.parse(config)
    assert isinstance(parsed.mma, LanePart)
    return windows(Conv.parse(line, **{"dir": "FWD_D", "dt": "f16", **knobs}), parsed.mma, parsed, FACTS.chunk_bytes)


def own_of(config: str) -> LanePart:
    own = Config.parse(config).mma
    assert isinstance(own, LanePart)
    return own


def test_configs_of_lanes_are_read_as_they_are_printed() -> None:
    config = Config.parse(CONFIG)
    assert config.mma == LanePart(channels=8, rows=2, columns=4)
    assert str(config) == CONFIG
    of_blocks = CONFIG.replace("fma:8", "4x4x4:8")
    assert Config.parse(of_blocks).mma == LanePart(8, 2, 4, (4, 4, 4))
    assert str(Config.parse(of_blocks)) == of_blocks
    assert Config.parse("tile=64x64x16 waves=1x1 mma=8x2x4").mma == (8, 2, 4)
    assert not isinstance(Config.parse("tile=64x64x16 waves=1x1 mma=8x2x4").mma, LanePart)


@pytest.mark.parametrize(
    ("count", "taps", "step", "growth", "places"),
    [(4, 3, 1, 1, 6), (4, 7, 1, 1, 10), (4, 3, 2, 1, 9), (4, 3, 1, 2, 8), (2, 2, 3, 1, 4), (1, 5, 1, 1, 5)],
)
def test_a_place_is_read_once_for_all_taps_and_neighbours(
    count: int, taps: int, step: int, growth: int, places: int
) -> None:
    found = Window(taps, count, step, growth).reads(range(taps))
    assert len(found) == places
    pairs = [(pair, place) for place, met in found.items() for pair in met]
    assert sorted(pair for pair, _ in pairs) == sorted(product(range(count), range(taps)))
    assert all(position * step + tap * growth == place for (position, tap), place in pairs)


def test_sums_are_in_the_order_of_taps() -> None:
    found = Window(5, 4, 2, 3).reads(range(5))
    for position in range(4):
        assert [tap for met in found.values() for at, tap in met if at == position] == list(range(5))


def test_strides_and_dilations_with_a_common_factor_skip_places() -> None:
    (w,) = made("mb2g64ic64oc64ih16oh8kh3sh2ph2dh1")
    assert [(a.step, a.growth) for a in w.axes] == [(1, 1), (1, 1)]
    assert w.of_m.extent(3) == 4 + 2


@pytest.mark.parametrize(
    ("line", "direction", "tag"),
    [
        ("mb2g16ic16oc16ih7oh7kh3ph1", "FWD_D", "axb"),
        ("mb2g16ic16oc32ih7oh4kh3sh2ph1", "FWD_D", "abx"),
        ("mb2g16ic16oc16ih9oh9kh3ph2dh1", "FWD_D", "aBcd16b"),
        ("mb2g16ic16oc32ih7oh4kh3sh2ph1", "BWD_D", "axb"),
        ("mb2g16ic16oc32ih7oh4kh3sh2ph1", "BWD_W", "axb"),
        ("mb2g16ic32oc16ih7oh7kh3ph1", "BWD_W", "abx"),
        ("mb1g4ic8oc16ih7oh7kh3ph1", "BWD_D", "axb"),
        ("mb1g16ic16oc16iw9ow5kw4sw3pw4", "BWD_D", "axb"),
        ("mb1g16ic16oc16id3od2kd2ih5oh5kh3ph1iw5ow5kw3pw1", "FWD_D", "axb"),
    ],
)
def test_views_of_a_window_are_the_convolution(line: str, direction: str, tag: str) -> None:
    """Multiplied and added element by element, what the views show makes the result; masks leave out the halo."""
    rows = 1 if "iw9" in line else 2
    problem = Conv.parse(line, dir=direction, dt="f32", stag=tag, dtag=tag)
    own = LanePart(4, rows, 4)
    taps = problem.axes[1].k * problem.axes[2].k * (problem.ic // problem.groups if direction == "BWD_W" else 1)
    parts = windows(problem, own, Config((taps, 1, 10**4), (1, 1), own, 0, "fused"), FACTS.chunk_bytes)
    inputs = {name: np.asarray(tensor) for name, tensor in reference.fills(problem, 1).items()}
    name = problem.outputs[0].name
    got = np.zeros(problem.tensor(name).dims)
    for part in parts:
        _add(part, own, inputs, got)
    assert np.array_equal(got, reference.whole(problem, inputs, name))


def _add(part: Windows, own: LanePart, inputs: dict[str, npt.NDArray[Any]], got: npt.NDArray[Any]) -> None:
    """The products of all elements, taps and channels of the source, added to the tensor."""
    per_lane = own.rows * own.columns if len(part.axes) > 1 else own.columns
    taps_and_channels = *(w.taps for w in part.axes), part.ins
    n, m, *taps, c = (x.ravel() for x in np.indices((part.n, part.image.extent(1), *taps_and_channels)))
    place = np.unravel_index(m % per_lane, [w.count for w in part.axes])
    places = [w.lead + at * w.step + tap * w.growth for w, at, tap in zip(part.axes, place, taps)]
    source, seen = _element(part.of_m, n // part.outs * part.ins + c, m // per_lane, *places)
    shown = [w.of_weights(tap) for w, tap in zip(part.axes, taps)]
    flat = n * part.products + sum(x * apart for x, apart in zip((*shown, c), part.flat))
    row = np.ravel_multi_index((*taps, c), taps_and_channels)
    others = (n, row) if part.of_weights else (flat,) if part.flat else (n, *shown, c)
    sides = _element(part.image, n, m), _element(part.result if part.of_weights else part.of_n, *others)
    (factor, there), (result, kept) = sides if part.of_weights else sides[::-1]
    terms = np.where(seen & there, inputs[part.of_m.memory.name][source] * inputs[part.of_n.memory.name][factor], 0)
    np.add.at(got, tuple(x[kept] for x in result), terms[kept])


def _element(view: View, *at: npt.NDArray[Any]) -> tuple[tuple[npt.NDArray[Any], ...], npt.NDArray[np.bool_]]:
    """Indices into the tensor at positions of a view, and where there is an element."""
    dims: dict[str, Any] = {}
    for axis, position in enumerate(at):
        dims |= view.decode(axis, position)
    index = [t.at(dims) + np.zeros_like(at[0]) for t in view.index]
    inside = [(i >= 0) & (i < t.size) for i, t in zip(index, view.index)]
    assert all(t.masked or there.all() for t, there in zip(view.index, inside)), "outside the tensor without a mask"
    there = np.logical_and.reduce(inside)
    return tuple(np.where(there, i, 0) for i in index), there


def test_lanes_lie_along_memory() -> None:
    tile = LaneTile(LanePart(8, 2, 4), (16, 4), (1, 2))
    along_n, along_m = tile.image(along_m=False), tile.image(along_m=True)
    assert along_n.shape == along_m.shape == (64, 128)
    assert along_n.coords(0, 1, 0) == {"n": 8, "m": 0}
    assert along_m.coords(0, 1, 0) == {"n": 0, "m": 8}
    assert (along_n.contiguous("n"), along_m.contiguous("m")) == (8, 4)
    assert {d.space for d in along_n.of("n")} == {Space.REGISTER, Space.LANE, Space.SUBGROUP}


@pytest.mark.parametrize(("tag", "config"), [
    ("axb", CONFIG), ("abx", "tile=512x16x9 waves=1x4 mma=fma:4x1x8 slots=0 taps=fused acc=v"),
])  # fmt: skip
def test_each_row_of_the_source_is_loaded_once_in_whole_messages(tag: str, config: str) -> None:
    """Also where a halo is, and where memory runs along rows: there the first place begins a message."""
    (part,) = made("mb2g64ic64oc64ih56oh56kh3ph1", config, stag=tag, dtag=tag)
    plan = make_plan(Conv.parse("mb2g64ic64oc64ih56oh56kh3ph1", dir="FWD_D", dt="f16", stag=tag, dtag=tag),
                     Config.parse(f"{config} padding=zeros"), FACTS)  # fmt: skip
    (kernel,) = launches.build(plan)[0].kernels
    loads = [n for n in postorder(kernel) if isinstance(n, LoadView) and n.view == part.of_m]
    assert len(loads) == own_of(config).rows + 2
    assert linearize(part.of_m).makes_messages(8)


@pytest.mark.parametrize(
    ("line", "config", "refused"),
    [
        ("mb1g16ic16oc16ih7oh7kh3ph1", CONFIG.replace("tile=256", "tile=64"), "tile M of 64, wanted"),
        ("mb1g16ic16oc16ih7oh7kh3ph1", CONFIG.replace("slots=0", "slots=2"), "slots=2: mma=fma:8x2x4 has slots=0"),
        ("mb1g16ic16oc16iw7ow7kw3pw1", CONFIG, "wanted one row a lane"),
        ("mb1g16ic16oc16ih7oh7kh3ph1", f"{CONFIG} in=f16", "in=f16: mma=fma:8x2x4 multiplies in f32"),
        ("mb1g16ic16oc48ih7oh7kh3ph1", CONFIG, "channels of a lane"),
        ("mb1g16ic64oc64ih7oh7kh3ph1", BLOCKS.replace("4x4x4:", "8x8x8:"), "gfx942 has no such matrix instruction"),
        ("mb1g16ic48oc64ih7oh7kh3ph1", BLOCKS, "channels of a group over the instruction's K"),
        (
            "mb1g8ic64oc32ih7oh7kh3ph1",
            BLOCKS.replace("4x2x4", "8x2x4").replace("=32", "=64"),
            "wanted the 4 channels of a group in a lane",
        ),
        (
            "mb1g16ic64oc64ih7oh7kh3ph1",
            "tile=16x128x36 waves=1x1 mma=4x4x4:4x2x4 slots=0 taps=fused acc=v",
            "lanes along positions over those of a block",
        ),
    ],
)
def test_what_does_not_suit_lanes_is_named(line: str, config: str, refused: str) -> None:
    with pytest.raises(DoesNotFit, match=refused):
        make_plan(Conv.parse(line, dir="FWD_D", dt="f16"), Config.parse(config), FACTS)


def test_what_has_no_panels_is_not_mapped(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["mb1g16ic16oc16ih7oh7kh3ph1", "--dir", "FWD_D", "--dt", "f16"]
    assert main(["map", *line, "--config", CONFIG]) == 2
    assert "wanted a --config with a matrix instruction" in capsys.readouterr().err


def test_the_ranking_shows_lanes() -> None:
    header, rows = ranking_table([Candidate(27.0, Config.parse(CONFIG)), Candidate(float("inf"), Config.parse(CONFIG))])
    assert [row[:3] for row in rows] == [("1", CONFIG, "27")]
    assert len(rows[0]) == len(header)


def test_only_small_groups_go_to_lanes() -> None:
    def first(line: str, **knobs: str) -> bool:
        problem = Conv.parse(line, **{"dir": "FWD_D", "dt": "f16", **knobs})
        return isinstance(candidates(problem, FACTS)[0].config.mma, LanePart)

    assert first("mb32g144ic144oc144ih56oh56kh3ph1", dir="BWD_WB")
    assert first("mb32g64ic512oc512ih14oh14kh3ph1")
    assert not first("mb32g32ic1024oc1024ih7oh7kh3ph1")
    assert not lane_configs.has_few_channels(Conv.parse("mb2ic1oc8ih7oh7kh3ph1", dir="FWD_D", dt="f16"))


def test_the_chosen_one_has_wide_messages_and_asks_for_few_places_twice() -> None:
    """Of 8 bytes at least, a tile of whole lines, and no more than .6 as many again as must be read and written."""
    problem = Conv.parse("mb32g144ic144oc144ih56oh56kh3ph1", dir="FWD_D", dt="f16")
    _, best = min(lane_configs.configs(problem, FACTS, ()), key=lambda scored: scored[0])
    assert isinstance(best.mma, LanePart)
    assert best.mma.channels >= 4
    assert best.tile[1] % 64 == 0
    rows, columns, positions = best.mma.rows, best.mma.columns, best.mma.positions
    assert (rows + 2) * (columns + 2) + positions + 9 <= 1.5 * 2 * positions


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
def test_workgroups_of_lanes_fit_the_registers_of_a_unit(target: str) -> None:
    """Gradients of weights of so many groups that tiles over all channels would not fit."""
    facts, problem = get(target).facts, Conv.parse("g1024mb32ic1024oc1024ih14oh14kh3ph1", dir="BWD_W", dt="f16")
    core, subgroups = facts.core, set[int]()
    for config, works in lane_configs._lanes(problem, facts, ()):
        assert isinstance(config.mma, LanePart)
        registers = max(work.registers for work in works)
        for tiles in lane_configs._tiles(works, config.mma, 8, facts):
            subgroups |= {prod(tile.subgroups) for tile in tiles}
            assert all(prod(t.subgroups) <= core.simds * (core.simd_registers // registers) for t in tiles)
    assert max(subgroups) > 8


@pytest.mark.parametrize(
    ("direction", "wtag", "along_k"), [("FWD_D", "axb", False), ("BWD_D", "axb", True), ("FWD_D", "acdeb", False)]
)
def test_weights_of_groups_lie_along_the_channels_of_one_side(direction: str, wtag: str, along_k: bool) -> None:
    """`axb` of grouped weights ends in the output's channels: what gradients of data sum over."""
    problem = Conv.parse("g4mb2ic32ih7oc32oh7kh3ph1", dir=direction, dt="f16", stag="axb", wtag=wtag, dtag="axb")
    config = Config.parse("tile=64x32x24 waves=1x1 mma=4x4x4:8x1x1 slots=0 taps=fused acc=v")
    (part,) = windows(problem, LanePart(8, 1, 1, (4, 4, 4)), config, 16)
    assert part.weights_along_k == along_k
