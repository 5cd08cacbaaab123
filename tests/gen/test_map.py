"""`convgen map`, and the order that is chosen."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from convgen.backends import target
from convgen.backends.tuning import tuning
from convgen.choose.choose import candidates
from convgen.choose.search import first_fitting
from convgen.choose.workgroup_orders import _MATTERS, LaunchTraffic, _orders, best_order, well_known_orders
from convgen.commands.cli import main
from convgen.ir.layout.order import IN_ROWS, Order
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul
from tests import vectors
from tests.gen.reference_mappings import GEMMS, REFERENCES
from tests.gen.test_drawing import WGM_4

FACTS = target.get("gfx942").facts
DATA = Path(__file__).parents[1] / "data" / "vectors"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["map", *words]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *words, "--json"))
    return found


@pytest.mark.parametrize("file", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_worked_cases_hold(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert vectors.main([str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    for line in lines:
        found = re.search(r"(\d+) of (\d+) hold", line)
        assert found
        assert found[1] == found[2] != "0"


def test_a_wrong_case_does_not_hold(tmp_path: Path) -> None:
    cases = json.loads((DATA / "workgroup_mapping.json").read_text())
    cases["wgm"][0]["tile_of_wg"][3] = [0, 0]
    (tmp_path / "wrong.json").write_text(json.dumps(cases))
    assert vectors.main([str(tmp_path / "wrong.json")]) == 1
    (tmp_path / "other.json").write_text('{"other": [{}]}')
    assert vectors.main([str(tmp_path / "other.json")]) == 2


def test_the_table_of_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--grid", "6x8", "--wgm", "4", "--dim", "0").rstrip("\n") == WGM_4.rstrip("\n")
    by_name = said(capsys, "--grid", "6x8", "--map", "group:4m")
    assert by_name == said(capsys, "--grid", "6x8", "--wgm", "4")
    sliced = said(capsys, "--grid", "1x2", "--slices", "2", "--batch", "2")
    assert sliced.count("batch") == sliced.count("slice") == 4


def test_a_picture_of_workgroups_that_persist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve take 64 tiles: the last number is the fourth one's, on die 3, though 63 = 7 (mod 8)."""
    said(capsys, "--grid", "8x8", "--map", "persist:12", "-o", str(tmp_path / "m.svg"))
    root = ET.parse(tmp_path / "m.svg").getroot()
    texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "8 x 8 tiles, persist:12, 8 dies, 2 workgroups a die at a time" in texts
    told = root.find("{http://www.w3.org/2000/svg}desc")
    assert told is not None
    assert told.text == "8 x 8 tiles (M x N) on 8 dies in 6 rounds of up to 2 workgroups a die"
    numbers = [text for text in texts if text.isdigit()][16:]  # behind those of the sides
    assert sorted(numbers[:64]) == sorted(str(n % 12 % 8) for n in range(64))


def test_who_takes_what_where_workgroups_persist(capsys: pytest.CaptureFixture[str]) -> None:
    last = said(capsys, "--grid", "8x8", "--map", "persist:12").rstrip().splitlines()[-1]
    assert last.split()[2:] == [str(n % 12) for n in range(56, 64)]
    found = as_json(capsys, "--grid", "8x8", "--map", "persist:12")
    assert (found["workgroups"], found["taken_by"]) == (12, [n % 12 for n in range(64)])
    assert "taken_by" not in as_json(capsys, "--grid", "8x8", "--map", "cols")


def test_a_grid_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--grid", "3x2", "--xcc", "2", "--wgm", "2", "--dim", "1", "--slices", "2", "--batch", "3")
    assert found["order"] == "xcc:2+group:2n"
    assert (found["grid"], found["workgroups"]) == ([3, 2], 36)
    held = list(zip(found["tile_of_wg"], found["batch_of_wg"], found["slice_of_wg"]))
    assert len({(*tile, batch, part) for tile, batch, part in held}) == 36
    padded = as_json(capsys, "--grid", "3x2", "--map", "zorder:2x2")
    assert padded["tile_of_wg"].count(None) == 2
    every = as_json(capsys, "--grid", "5x4")
    assert every["order"] == "cols"
    tiles = [[i, j] for i in range(5) for j in range(4)]
    assert all(sorted(mapping["tile_of_wg"]) == tiles for mapping in every["mappings"].values())
    assert {"cols", "xcc:8+group:8m", "xcc:8+hilbert", "chunk:8x64+group:8n"} <= set(every["mappings"])


def test_orders_of_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["2048x256:256x4096", "--dt", "f16", "--config", "tile=128x256x64 waves=2x2 mma=32x32x8 slots=1 acc=a"]
    found = as_json(capsys, *words)
    clocks = [row["clocks"] for row in found["orders"]]
    assert clocks == sorted(clocks)
    assert found["orders"][0]["clocks"] <= next(r["clocks"] for r in found["orders"] if r["order"] == "rows")
    assert all(row["simulated"]["l2_fill_mib"] > 0 for row in found["orders"])
    text = said(capsys, *words, "-o", str(tmp_path / "map.svg"), "--animate")
    assert f"chosen        {found['chosen']}" in text
    assert (tmp_path / "map.svg").read_text().startswith("<svg")
    said(capsys, "--grid", "9x5", "-o", str(tmp_path / "map.png"))
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"


def test_half_a_mapping_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    config = "tile=128x256x64 waves=2x2 mma=32x32x8 slots=1 acc=a"
    words = ["map", "8192x4096:4096x8192", "--dt", "f16", "--config", config]
    for order, missing in (("group:8m", "a die remap"), ("xcc:8", "groups")):
        assert main([*words, "--map", order]) == 0
        assert f"{order} without {missing} fills L2" in capsys.readouterr().err
    assert main([*words, "--map", "xcc:8+group:8m"]) == 0
    told = capsys.readouterr().err
    assert "without" not in told
    assert "rows of src lie 8192 B apart, a multiple of 4096 B" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "given no problem, wanted one, or --grid MxN"),
        (["--grid", "6"], "given '6', wanted MxN"),
        (["--grid", "6x8", "64x64:64x64"], "given a problem and --grid, wanted one of them"),
        (["--grid", "6x8", "--map", "rows", "--wgm", "2"], "given --map and --wgm or --xcc"),
        (["--grid", "6x8", "--map", "rect:2m"], "wanted rect:COUNTxCOUNTm|n[:snake]"),
        (["--grid", "6x8", "-o", "map.gif"], "given map.gif, wanted FILE.svg or FILE.png, at -o"),
        (["--grid", "6x8", "-o", "map.png", "--animate"], "wanted FILE.svg"),
        (["--grid", "6x8", "-o", "/dev/null/map.svg"], "cannot write /dev/null: File exists, at -o"),
        (["--grid", "6000x8000"], "given 48000000 workgroups"),
        (["--grid", "600x800"], "given 480000 workgroups, wanted at most 65536 in a table"),
        (["64x0:0x64"], "K of 0"),
    ],
)
def test_wrong_requests(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


# ---------------------------------------------------------------- the choice


def launch_of(problem: Conv | Matmul, config: str) -> LaunchTraffic:
    from convgen.plan.config import Config

    return LaunchTraffic.of(make_plan(problem, Config.parse(config), FACTS))


@pytest.mark.parametrize("shape", GEMMS)
def test_the_choice_for_matrix_products_reaches_the_bound(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    problem = Matmul.parse(f"{m}x{k}:{k}x{n}", dt="f16")
    launch = launch_of(problem, "tile=128x256x64 waves=2x2 mma=32x32x8 slots=1 acc=a")
    found = launch.traffic(best_order(launch))
    wave = launch.traffic(Order.parse("xcc:8+group:8m"))
    assert found.fill <= 1.02 * found.bound
    assert found.fill <= wave.fill
    assert found.memory <= wave.memory
    flipped = launch.traffic(Order.parse(f"{best_order(launch)}+flip:304"))
    assert flipped.fill <= found.fill


def test_no_choice_reads_more_than_the_default() -> None:
    for descriptor in ("mb32ic512ih7oc512oh7kh3ph1", "mb8ic64ih28oc96oh14kh3ph1sh2", "mb4ic3ih56oc64oh28kh7ph3sh2"):
        for direction in ("FWD_D", "BWD_D", "BWD_W"):
            problem = Conv.parse(descriptor, dir=direction, dt="f16")
            found = first_fitting(problem, candidates(problem, FACTS), FACTS)
            assert found is not None
            launch = LaunchTraffic.of(found[1])
            assert launch.traffic(best_order(launch)).fill <= launch.traffic(IN_ROWS).fill


@pytest.mark.parametrize(
    "descriptor", ["mb32ic512ih7oc512oh7kh3ph1", "mb4ic128ih28oc128oh28kh3ph1", "mb2ic3ih112oc64oh56kh7ph3sh2"]
)
@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D", "BWD_W"])
def test_the_choice_is_that_of_all_orders_counted_whole(descriptor: str, direction: str) -> None:
    """The chooser leaves out what cannot change which is the first of the fewest clocks."""
    problem = Conv.parse(descriptor, dir=direction, dt="f16")
    found = first_fitting(problem, candidates(problem, FACTS), FACTS)
    assert found is not None
    launch = LaunchTraffic.of(found[1], found[0].together)
    default = launch.traffic(IN_ROWS)
    orders = [order for order in _orders(launch) if launch.traffic(order).fill <= default.fill]
    clocks = {o: launch.traffic(o).clocks(FACTS.caches, FACTS.compute_units) for o in (*orders, IN_ROWS)}
    best = min(clocks, key=lambda order: clocks[order])
    share = tuning(FACTS).order_worth
    worth = default.fill * share > default.bound and clocks[IN_ROWS] >= _MATTERS * tuning(FACTS).launch
    assert best_order(launch) == (best if worth and clocks[best] < share * clocks[IN_ROWS] else IN_ROWS)


@pytest.mark.parametrize("descriptor", ["mb32ic512ih7oc512oh7kh3ph1", "mb8ic64ih28oc96oh14kh3ph1sh2"])
@pytest.mark.parametrize("direction", ["FWD_D", "BWD_D", "BWD_W"])
def test_no_order_is_below_the_least(descriptor: str, direction: str) -> None:
    problem = Conv.parse(descriptor, dir=direction, dt="f16")
    found = first_fitting(problem, candidates(problem, FACTS), FACTS)
    assert found is not None
    launch = LaunchTraffic.of(found[1])
    bytes_at_least = launch.least(launch.traffic(IN_ROWS))
    least = bytes_at_least.clocks(FACTS.caches, FACTS.compute_units)
    for order in ("rows", "cols", "xcc:8+cols", "group:8m", "xcc:8+even:4m", "xcc:8+even:2n", "chunk:8x16"):
        traffic = launch.traffic(Order.parse(order))
        assert traffic.memory >= bytes_at_least.memory * (1 - 1e-9), order
        assert traffic.clocks(FACTS.caches, FACTS.compute_units) >= least * (1 - 1e-9), order


@pytest.mark.parametrize(
    ("order", "reference"),
    [
        ("cols", "default"),
        ("xcc:8+cols", "XCC only"),
        ("group:8m", "WGM 8 only"),
        ("xcc:8+group:8m", "Wave G=8"),
        ("chunk:8x64+group:8m", "HipKittens C=64, WGM 8"),
    ],
)
def test_orders_are_what_others_have(order: str, reference: str) -> None:
    """Against the same mappings written once more, as arrays."""
    for m, n in ((32, 16), (38, 32), (7, 5), (1, 9), (40, 3)):
        assert vectors.tiles(m, n, order) == REFERENCES[reference](m, n).tolist()


def test_orders_by_name_are_their_names() -> None:
    assert all(Order.parse(name) == order for name, order in well_known_orders(8, 8).items())
    assert all(not order.remaps for order in well_known_orders(1, 8).values())
