"""Infinities and NaNs among the inputs of a second run: where they are, which there are, and when it is made."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from convgen.backends import target as targets
from convgen.backends.simulation import Coverage, Place, SimReport
from convgen.ir.record import evolve
from convgen.problem.conv import Conv
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import reference, specials, verdict
from convgen.run.code import OutputRegion
from convgen.run.fills import Fill
from tests.gen.fakes import Target, Tiles, code_of

FORWARD = "--dir=FWD_D --dt=f16 mb2ic5oc10ih9kh3ph1"


def changed(problem: Problem, region: OutputRegion) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs that are no finite numbers, by tensor: their values."""
    found = specials.placed(problem, reference.fills(problem), [region])
    arrays = {name: np.asarray(fill) for name, fill in found.items()}
    return {name: a[~np.isfinite(a)] for name, a in arrays.items() if not np.isfinite(a).all()}


def convolution(line: str) -> Conv:
    problem = parse_problem(line)
    assert isinstance(problem, Conv)
    return problem


def region_of(problem: Problem, rows: range, columns: range) -> OutputRegion:
    return OutputRegion(problem.outputs[0].name, np.array(rows), np.array(columns))


@pytest.mark.parametrize(
    "line",
    [
        FORWARD,
        "--dir=FWD_D --dt=bf16 g2mb1ic4oc8id3ih4iw5kd3kh3kw3pd1ph1pw1",
        "--dir=FWD_D --dt=f32 mb1ic3iw19oc8kw5pw2",
        "--dir=BWD_D --dt=f16 mb1ic8ih9oc6kh3ph1sh2",
        "--dir=BWD_W --dt=f16 mb2ic3ih6oc8kh3ph1",
        "--dt=f16 12x8:8x8",
        "--dt=f16 2x12x8:1x8x8",
    ],
)
def test_some_sums_of_a_tile_meet_them_and_others_stay_finite(line: str) -> None:
    problem = parse_problem(line)
    region = region_of(problem, range(4, 12), range(4, 8))
    inputs = specials.placed(problem, reference.fills(problem), [region])
    with np.errstate(invalid="ignore"):
        found = reference.outputs(problem, inputs, region.output, region.rows, region.columns).astype(np.float64)
    finite = np.isfinite(found)
    assert not finite.all()
    assert finite.any()
    assert specials.count(inputs) >= 2


def test_what_is_beside_padding_at_a_tap_stays_finite() -> None:
    """A column with such a weight has rows in which the weight meets padding, and rows in which it does not."""
    problem = parse_problem("--dir=FWD_D --dt=f16 mb1ic5oc10ih9kh3ph1")
    region = region_of(problem, range(27), range(10))
    (column, other), (tap, *_) = specials._neighbours(region), [(0, 0)]
    weights = np.asarray(specials.placed(problem, reference.fills(problem), [region])["wei"])
    assert sorted(map(int, np.unique(np.argwhere(~np.isfinite(weights))[:, 0]))) == [column, other]
    assert np.isnan(weights[column][:, *tap]).any()


@pytest.mark.parametrize(
    ("dtype", "kinds"),
    [
        ("f16", "nan inf -inf"),
        ("bf16", "nan inf -inf"),
        ("f32", "nan inf -inf"),
        ("f64", "nan inf -inf"),
        ("f8_e5m2:f8_e5m2:f16", "nan inf -inf"),
        ("f8_e4m3:f8_e4m3:f16", "nan"),
        ("s8:s8:s32", ""),
        ("u8:s8:s8", ""),
    ],
)
def test_a_type_has_what_it_can_hold(dtype: str, kinds: str) -> None:
    problem = parse_problem(f"--dir=FWD_D --dt={dtype} mb1ic5oc10ih9kh3ph1")
    region = region_of(problem, range(27), range(10))
    tiles = [region, evolve(region, rows=region.rows + 27), evolve(region, rows=region.rows + 54)]
    inputs = specials.placed(problem, reference.fills(problem), tiles)
    values = [np.asarray(fill).astype(np.float64) for fill in inputs.values()]
    found = {str(value) for array in values for value in array[~np.isfinite(array)].tolist()}
    assert found == set(kinds.split())
    assert specials.pads(problem) is bool(kinds)


def test_functions_that_leave_infinities_open_get_none() -> None:
    problem = parse_problem(f"--attr-post-ops=gelu_erf {FORWARD}")
    found = changed(problem, region_of(problem, range(27), range(10)))
    assert found
    assert all(np.isnan(values).all() for values in found.values())


@pytest.mark.parametrize(
    ("line", "pads"),
    [
        (FORWARD, True),
        ("--dir=FWD_D --dt=f16 mb1ic5oc10ih9kh3", False),
        ("--dir=BWD_D --dt=f16 mb1ic5oc10ih9kh3", True),  # the gradient of a border has fewer taps
        ("--dir=BWD_D --dt=f16 mb1ic5oc10ih9kh1", False),
        ("--dir=BWD_D --dt=f16 mb1ic5oc10ih8oh4kh2sh2", False),
        ("--dir=BWD_W --dt=f16 mb1ic5oc10ih9kh3ph1", True),
        ("--dir=BWD_W --dt=f16 mb1ic5oc10ih9kh3", False),
        ("--dt=f16 12x8:8x8", False),
        ("--dir=FWD_D --dt=f16 mb0ic5oc10ih9kh3ph1", False),
    ],
)
def test_only_windows_that_reach_outside_meet_padding(line: str, pads: bool) -> None:
    assert specials.pads(parse_problem(line)) is pads


def test_a_fill_with_other_values_is_the_fill_elsewhere() -> None:
    fill = Fill.of(np.array([1, 2, 3], np.float32), (0, 1), (4, 5, 6))
    other = fill.with_values({(1, 2, 3): np.nan, (3, 4, 5): np.inf})
    whole, right = np.asarray(other), np.asarray(fill)
    right[1, 2, 3], right[3, 4, 5] = np.nan, np.inf
    np.testing.assert_array_equal(whole, right)
    np.testing.assert_array_equal(np.asarray(other[1:, 2]), right[1:, 2])
    np.testing.assert_array_equal(np.asarray(other.reshape(20, 6)[np.array([13, 19])]), right.reshape(20, 6)[[13, 19]])
    assert np.isfinite(np.asarray(fill)).all()


@attrs.define
class Covering(Target):
    """Tells that instructions were not executed, until an input is no number."""

    missed: tuple[Place, ...] = (Place(8, 12, "s_nop 0"),)

    def simulate(self, code_object: bytes, launches: Any, pages: Any, **options: Any) -> SimReport:
        report = super().simulate(code_object, launches, pages, **options)
        wei = pages["wei"].whole().view(np.float16)
        missed = self.missed if np.isfinite(wei.astype(np.float32)).all() else ()
        return evolve(report, coverage=(Coverage("conv_main", 10, missed),))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Covering:
    machine = Covering()
    monkeypatch.setattr(targets, "get", lambda name: machine)
    return machine


@pytest.mark.parametrize("groups", [None, 5])
def test_a_second_run_reaches_what_integers_have_not(machine: Covering, groups: int | None) -> None:
    problem = convolution(FORWARD)
    outcome = verdict.run(code_of(problem), groups=groups)
    assert outcome.passed
    assert [len(launch.groups or ()) for launch in machine.executed] == [groups or 0, 2]
    assert outcome.coverage == (Coverage("conv_main", 10, ()),)
    assert outcome.specials is not None
    assert outcome.specials.values >= 3
    assert outcome.compared_outputs == outcome.checked + outcome.specials.checked
    assert outcome.instructions["valu"] == 10  # of the first run


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        (FORWARD, {"config": "m16n4 padding=zeros"}),
        (FORWARD, {"tiles": None}),
        ("--dir=FWD_D --dt=f16 mb2ic5oc10ih9kh3", {}),
    ],
)
def test_no_second_run_where_padding_may_count_or_there_is_none(
    machine: Covering, line: str, changes: dict[str, Any]
) -> None:
    outcome = verdict.run(code_of(convolution(line), **changes))
    assert outcome.passed
    assert outcome.specials is None
    assert len(machine.executed) == 1
    assert outcome.coverage[0].missed == machine.missed


BLOCKED = "--dir=FWD_D --dt=f16 --dtag=aBcd16b mb2ic5oc10ih9kh3"


@pytest.mark.parametrize(
    ("line", "pads"),
    [
        (BLOCKED, True),
        ("--dir=FWD_D --dt=f16 --dtag=aBcd2b mb2ic5oc10ih9kh3", False),
        ("--dir=BWD_W --dt=f16 --wtag=ABcd8a8b mb2ic5oc16ih9kh3", True),
        ("--dt=f16 --dtag=BA8a16b 20x70:70x21", True),
        ("--dir=FWD_D --dt=s8 --dtag=aBcd16b mb2ic5oc10ih9kh3", False),
    ],
)
def test_blocks_with_padding_get_specials_if_types_have_any(line: str, pads: bool) -> None:
    assert specials.pads_blocks(parse_problem(line)) is pads


def test_a_tile_with_padding_of_blocks_gets_specials_in_both_factors() -> None:
    problem = parse_problem(BLOCKED)
    region = region_of(problem, range(27), range(10))
    inputs = specials.placed(
        problem, reference.fills(problem), [evolve(region, in_blocks=(region.rows, np.arange(16)))]
    )
    assert not any(np.isfinite(np.asarray(inputs[name])).all() for name in ("src", "wei"))


@pytest.mark.parametrize("config", ["m16n4", "m16n4 padding=zeros"])
def test_a_second_run_looks_at_padding_of_blocks(machine: Covering, config: str) -> None:
    """A kernel that multiplies zeros of padding by a NaN: padding is wrong with infinities and NaNs only."""
    problem = convolution(BLOCKED)

    def spoil(memory: Any) -> None:
        if len(machine.executed) == 2:
            memory["dst"].view(np.float16)[-1] = np.nan

    machine.spoil = spoil
    outcome = verdict.run(code_of(problem, config=config))
    assert outcome.specials is not None
    assert outcome.mismatches == 1
    assert outcome.first[0].index == (1, 15, 6, 6)


@pytest.mark.parametrize("groups", [None, 4])
def test_padding_of_blocks_is_compared(machine: Covering, groups: int | None) -> None:
    """Whole outputs are compared, and tiles of a sample: here the corners."""
    machine.spoil = lambda memory: memory["dst"].view(np.float16)[-1:].fill(1)
    outcome = verdict.run(code_of(convolution(BLOCKED)), groups=groups)
    assert outcome.mismatches == 1
    assert outcome.first[0].index == (1, 15, 6, 6)


def test_no_second_run_on_data_that_was_given(machine: Covering) -> None:
    problem = convolution(FORWARD)
    assert verdict.run(code_of(problem), arrays=reference.fill(problem)).specials is None
    assert len(machine.executed) == 1


def test_what_the_second_run_finds_fails(machine: Covering) -> None:
    """A kernel that multiplies padding: the wrong result is there with infinities and NaNs only."""
    problem = convolution(FORWARD)

    def spoil(memory: Any) -> None:
        if len(machine.executed) == 2:
            memory["dst"].view(np.float16)[:] = np.nan

    machine.spoil = spoil
    outcome = verdict.run(code_of(problem))
    assert not outcome.passed
    assert 0 < outcome.mismatches <= outcome.compared_outputs - outcome.checked


def test_tiles_of_a_sample_are_those_with_infinities() -> None:
    problem = convolution(FORWARD)
    code = code_of(problem)
    regions, _ = verdict._sampled(code, 2, 0)
    inputs = specials.placed(problem, reference.fills(problem), regions)
    assert isinstance(code.tiles, Tiles)
    for region in regions:
        with np.errstate(invalid="ignore"):
            values = reference.outputs(problem, inputs, "dst", region.rows, region.columns).astype(np.float32)
        assert not np.isfinite(values).all()


@pytest.mark.parametrize(
    ("line", "rows", "changed"),
    [
        ("--dt=f16 --grouped=0:3:4+5+6 15x8:3x8x16", range(5, 8), {"src": [(3, 7), (9, 7)], "wei": []}),
        ("--dt=f16 --grouped=1:3:4+5+6 8x15:15x16", range(9, 12), {"src": [(2, 3), (2, 9)], "wei": [(3, 8), (9, 8)]}),
    ],
    ids=["rows", "terms"],
)
def test_neighbours_of_a_group_get_specials(line: str, rows: range, changed: dict[str, list[tuple[int, int]]]) -> None:
    """Rows, or terms of both factors, right before and right behind the group of a tile."""
    problem = parse_problem(line)
    assert specials.has_groups(problem)
    inputs = specials.placed(problem, reference.fills(problem), [region_of(problem, rows, range(16))])
    for name, places in changed.items():
        assert sorted(map(tuple, np.argwhere(~np.isfinite(np.asarray(inputs[name]))).tolist())) == places
    assert specials.count(inputs) == sum(map(len, changed.values()))


def test_one_group_and_integers_have_no_neighbours_that_are_special() -> None:
    for line in ("--dt=f16 --grouped=0:1:15 15x8:1x8x16", "--dt=s8:s8:s32 --grouped=0:2:7+8 15x8:2x8x16", "15x8:8x16"):
        assert not specials.has_groups(parse_problem(line))
