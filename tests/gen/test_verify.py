"""Verification: what is compared, what is sampled, and that a single wrong bit is noticed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends import target as targets
from convgen.backends.simulation import Source
from convgen.commands import execute
from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import evolve
from convgen.problem.conv import Conv, Direction
from convgen.run import execution, reference, verdict
from convgen.run.code import Code
from convgen.run.launch_record import Buffer, StoredTensor
from convgen.simulated_calls import simulate
from tests.gen.fakes import COLUMNS, ROWS, Memory, Target, Tiles, code_of, finding

PROBLEM = Conv.parse("mb2ic5oc10ih9kh3ph1", dir="FWD_D", dt="bf16")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Target:
    machine = Target()
    monkeypatch.setattr(targets, "get", lambda name: machine)
    return machine


@pytest.mark.parametrize("knobs", [{}, {"stag": "abcd", "dtag": "aBcd4b"}, {"dt": "f16:f16:f32"}])
def test_every_output_is_checked(machine: Target, knobs: dict[str, str]) -> None:
    problem = Conv.parse("mb2ic5oc10ih9kh3ph1", **{"dir": "FWD_D", "dt": "bf16", **knobs})
    outcome = verdict.run(code_of(problem))
    assert outcome.passed
    assert outcome.status == "passed"
    assert outcome.checked == 2 * 10 * 81
    assert outcome.instructions["valu"] == 10
    assert machine.executed[0].groups is None


@pytest.mark.parametrize("index", [(0, 0, 0, 0), (1, 9, 8, 8), (0, 3, 4, 5)])
def test_one_wrong_bit_is_noticed(machine: Target, index: tuple[int, ...]) -> None:
    def spoil(memory: Memory) -> None:
        memory["dst"][2 * int(PROBLEM.dst_layout.offset(index))] ^= 1

    machine.spoil = spoil
    outcome = verdict.run(code_of(PROBLEM))
    assert (outcome.status, outcome.mismatches) == ("failed", 1)
    (mismatch,) = outcome.first
    assert mismatch.index == index
    assert mismatch.expected != mismatch.got
    assert not mismatch.unwritten


def test_what_is_not_written_is_noticed(machine: Target) -> None:
    def forget(memory: Memory) -> None:
        memory["dst"][:40] = execution.SENTINEL

    machine.spoil = forget
    outcome = verdict.run(code_of(PROBLEM))
    assert outcome.mismatches == 20
    assert len(outcome.first) == 8
    assert all(mismatch.unwritten for mismatch in outcome.first)
    assert "nothing written" in str(outcome.first[0])


def test_a_finding_fails_a_right_result(machine: Target) -> None:
    machine.findings = (finding(),)
    outcome = verdict.run(code_of(PROBLEM))
    assert (outcome.status, outcome.mismatches) == ("failed", 0)


def test_samples_check_their_tiles_and_nothing_else(machine: Target) -> None:
    outcome = verdict.run(code_of(PROBLEM), groups=5, seed=1)
    groups = machine.executed[0].groups
    assert groups is not None
    assert len(groups) == 5
    assert outcome.passed
    regions = [region for tile in groups for region in Tiles(PROBLEM).regions(0, tile)]
    assert outcome.checked == sum(r.rows.size * r.columns.size for r in regions) < 5 * ROWS * COLUMNS


def test_a_wrong_output_inside_the_sample_is_noticed(machine: Target) -> None:
    last = PROBLEM.dst_layout.size_elems - 1

    def spoil(memory: Memory) -> None:
        memory["dst"][2 * last] ^= 1

    machine.spoil = spoil
    assert verdict.run(code_of(PROBLEM), groups=4).mismatches == 1  # the last corner


def of_part(sample: Sequence[tuple[int, int]], part: int) -> list[int]:
    return [tile for where, tile in sample if where == part]


@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (5, 1), (2, 2), (40, 30)])
@pytest.mark.parametrize("count", [1, 4, 9, 24, 10_000])
def test_tiles_are_sampled_corners_first(grid: tuple[int, int], count: int) -> None:
    rows, columns = grid
    sample = of_part(verdict.sample_tiles([grid], count, seed=3), 0)
    assert len(set(sample)) == len(sample) == min(count, rows * columns)
    assert all(0 <= tile < rows * columns for tile in sample)
    corners = {0, columns - 1, (rows - 1) * columns, rows * columns - 1}
    assert set(sample[: len(corners)]) <= corners
    assert of_part(verdict.sample_tiles([grid], count, seed=3), 0) == sample
    if 24 <= count < rows * columns:
        assert of_part(verdict.sample_tiles([grid], count, seed=4), 0) != sample
        inner = [tile for tile in sample if tile not in corners]
        assert any(tile % columns == 0 for tile in inner)
        assert any(tile // columns == 0 for tile in inner)


@pytest.mark.parametrize("count", [1, 3, 4, 16, 30, 10_000])
def test_every_part_is_sampled(count: int) -> None:
    grids = [(40, 30), (0, 5), (1, 1), (3, 2)]
    sample = verdict.sample_tiles(grids, count, seed=1)
    assert len(set(sample)) == len(sample) == min(max(count, 3), 1200 + 1 + 6)
    parts = [of_part(sample, part) for part in range(4)]
    assert not parts[1]
    assert parts[0]
    assert parts[2] == [0]
    assert parts[3]
    if count >= 16:
        assert {0, 29, 39 * 30, 39 * 30 + 29} <= set(parts[0])
        assert set(parts[3]) == set(range(6))


BIAS = Conv.parse("g2mb2ic6oc10ih9kh3ph1", dir="BWD_WB", dt="bf16")


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("dt", ["bf16", "f16:f16:f32"])
def test_every_element_of_every_output_is_checked(machine: Target, direction: Direction, dt: str) -> None:
    problem = Conv.parse("g2mb2ic6oc10ih9kh3ph1", dir=direction.value, dt=dt)
    for name in (spec.name for spec in problem.outputs):

        def spoil(memory: Memory, name: str = name) -> None:
            memory[name][-1] ^= 1

        machine.spoil = spoil
        outcome = verdict.run(code_of(problem))
        assert outcome.checked == sum(math.prod(spec.dims) for spec in problem.outputs)
        assert outcome.mismatches == 1
        (mismatch,) = outcome.first
        assert mismatch.output == name
        assert mismatch.index == tuple(size - 1 for size in problem.tensor(name).dims)
        assert str(mismatch).startswith(f"{name}[")


def test_a_launch_that_no_sampled_tile_needs_is_left_out(machine: Target) -> None:
    outcome = verdict.run(code_of(BIAS), groups=4)
    once = ["conv_main", "conv_diff_bia"]
    assert [launch.kernel for launch in machine.executed] == [*once, *once]  # again with infinities and NaNs
    assert outcome.passed
    code = code_of(BIAS)
    assert code.record.requests([(), (1, 2)])[0].groups == (1, 2)
    assert [request.kernel for request in code.record.requests([(0,), ()])] == ["conv_main"]
    assert [request.groups for request in code.record.requests()] == [None, None]


def with_workspace(code: Code) -> Code:
    """The code with one buffer more that its first launch reads and writes, though no tensor lies there."""
    main, *rest = code.record.launches
    partial = Buffer("partial", main.kernarg_size, "readwrite", StoredTensor((64,), "a", "f32", 256))
    main = evolve(main, args=(*main.args, partial), kernarg_size=main.kernarg_size + 8)
    return evolve(code, record=evolve(code.record, launches=(main, *rest)))


def test_workspaces_hold_the_sentinel_and_are_not_compared(machine: Target) -> None:
    def spoil(memory: Memory) -> None:
        assert np.all(memory["partial"] == execution.SENTINEL)
        memory["partial"][:] = 3

    machine.spoil = spoil
    outcome = verdict.run(with_workspace(code_of(BIAS)))
    assert outcome.passed
    assert outcome.checked == 10 * 3 * 9 + 10


def test_the_gaps_of_inputs_hold_no_numbers(machine: Target) -> None:
    """A kernel that reads between the elements cannot be right by luck."""
    problem = Conv.parse("mb1ic3oc4ih5kh3", dir="FWD_D", dt="bf16", strides="200x1x36x7::100x1x20x5")
    seen: list[np.ndarray] = []
    machine.spoil = lambda memory: seen.append(memory["src"].copy())
    assert verdict.run(code_of(problem)).passed
    values = seen[0].view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.count_nonzero(np.isfinite(values)) == 3 * 5 * 5
    assert np.isnan(values[3:7]).all()


@pytest.mark.parametrize("direction", Direction)
def test_the_api_takes_the_inputs_and_gives_the_outputs(machine: Target, direction: Direction) -> None:
    problem = evolve(BIAS, direction=direction)
    arrays = reference.fill(problem, seed=4)
    out = simulate(with_workspace(code_of(problem)), **arrays)
    names = [spec.name for spec in problem.outputs]
    assert isinstance(out, dict) == (len(names) > 1)
    by_name = out if isinstance(out, dict) else {names[0]: out}
    assert list(by_name) == names
    for name, array in by_name.items():
        assert np.array_equal(array, reference.whole(problem, arrays, name))
    with pytest.raises(UserError, match=r"given arrays .*, wanted .* 2x"):
        simulate(code_of(problem), **dict(list(arrays.items())[1:]))


def test_nothing_to_write_is_nothing_to_run_but_a_sum_of_nothing_is_zero(machine: Target) -> None:
    line = "mb0ic5oc10ih9kh3ph1"
    assert verdict.run(code_of(Conv.parse(line, dir="BWD_D"))).checked == 0
    assert not machine.executed
    outcome = verdict.run(code_of(Conv.parse(line, dir="BWD_WB")))
    assert outcome.passed
    assert outcome.checked == 10 * 5 * 9 + 10


def test_given_arrays_are_used(machine: Target) -> None:
    arrays = reference.fill(PROBLEM, seed=9)
    assert verdict.run(code_of(PROBLEM), arrays=arrays).passed
    with pytest.raises(UserError, match="src"):
        verdict.run(code_of(PROBLEM), arrays={**arrays, "src": arrays["src"][:1]})
    with pytest.raises(UserError, match="float32"):
        verdict.run(code_of(PROBLEM), arrays={**arrays, "src": arrays["src"].astype(np.float32)})


def test_without_an_object_there_is_nothing_to_run(machine: Target) -> None:
    with pytest.raises(Unsupported, match="assembler"):
        verdict.run(code_of(PROBLEM, object=None))


def test_without_tiles_there_is_no_sample(machine: Target) -> None:
    with pytest.raises(Unsupported, match="sampling"):
        verdict.run(code_of(PROBLEM, tiles=None), groups=3)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A launch record on disk with its object."""
    code = code_of(PROBLEM)
    assert code.object is not None
    (tmp_path / "k.hsaco").write_bytes(code.object)
    path = tmp_path / "k.launch.json"
    path.write_text(evolve(code.record, object="k.hsaco").to_json())
    return path


def test_records_run_as_their_problem(machine: Target, record: Path, tmp_path: Path) -> None:
    outcome = verdict.run_record(record, out=tmp_path / "out", seed=2)
    assert outcome.passed
    assert outcome.checked == 2 * 10 * 81
    stored = np.load(tmp_path / "out" / "dst.npy")
    assert stored.dtype == np.uint16
    arrays = reference.fill(PROBLEM, 2)
    expected = reference.whole(PROBLEM, arrays, "dst")
    assert np.array_equal(stored, expected.view(np.uint16))


@pytest.mark.parametrize("spelling", [np.uint16, np.dtype("V2")])
def test_records_run_on_given_data(machine: Target, record: Path, tmp_path: Path, spelling: npt.DTypeLike) -> None:
    """Files of bf16 hold raw bits, as integers or as `np.save` writes arrays of ml_dtypes (`|V2`)."""
    arrays = reference.fill(PROBLEM, 7)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array.view(spelling))
    outcome = verdict.run_record(record, data=tmp_path, out=tmp_path / "out")
    assert (outcome.status, outcome.passed, outcome.checked) == ("executed", True, 0)
    expected = reference.whole(PROBLEM, arrays, "dst")
    assert np.array_equal(np.load(tmp_path / "out" / "dst.npy"), expected.view(np.uint16))


def test_what_no_manual_asks_for_fails_our_own_kernels_only(
    machine: Target, record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record may be anybody's: what LLVM alone asks for is told, and fails its run with --strict llvm."""
    advice = evolve(finding(), source=Source("LLVM alone", required=False))
    machine.findings = (advice,)
    assert not verdict.run(code_of(PROBLEM)).passed
    assert verdict.run_record(record).passed
    assert not verdict.run_record(record, advice=True).passed
    for options, status in (([], 0), (["--strict", "manual"], 0), (["--strict", "llvm"], 1)):
        assert execute.run([str(record), "--json", *options]) == status
        run = json.loads(capsys.readouterr().out)
        assert run["status"] == ("failed" if status else "passed")
        assert "(LLVM alone)" in run["findings"][0]
    machine.findings = (advice, finding())
    assert not verdict.run_record(record).passed


@pytest.mark.parametrize("direction", Direction)
def test_records_of_all_directions_run(machine: Target, tmp_path: Path, direction: Direction) -> None:
    code = code_of(evolve(BIAS, direction=direction))
    assert code.object is not None
    (tmp_path / "k.hsaco").write_bytes(code.object)
    path = tmp_path / "k.launch.json"
    path.write_text(evolve(code.record, object="k.hsaco").to_json())
    assert verdict.run_record(path).passed


def test_a_record_without_an_output_of_its_problem_is_refused(machine: Target, record: Path) -> None:
    text = record.read_text()
    record.write_text(text.replace('"dst"', '"result"'))
    with pytest.raises(UserError, match=r"given no buffer dst, wanted .*, in k\.launch\.json"):
        verdict.run_record(record)
    record.write_text(text.replace("FWD_D", "FWD_D --mb=3"))
    with pytest.raises(UserError, match="given src"):
        verdict.run_record(record)


def test_bad_data_is_a_user_error(machine: Target, record: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"src\.npy"):
        verdict.run_record(record, data=tmp_path)
    (tmp_path / "src.npy").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"src\.npy"):
        verdict.run_record(record, data=tmp_path)
    np.save(tmp_path / "src.npy", np.zeros((3, 3), np.uint16))
    with pytest.raises(UserError):
        verdict.run_record(record, data=tmp_path)


def test_a_record_without_a_problem_needs_data(machine: Target, record: Path) -> None:
    data = json.loads(record.read_text())
    del data["problem"]
    record.write_text(json.dumps(data))
    with pytest.raises(UserError, match="--data"):
        verdict.run_record(record)


def test_a_missing_object_is_a_user_error(machine: Target, record: Path) -> None:
    (record.parent / "k.hsaco").unlink()
    with pytest.raises(UserError, match=r"k\.hsaco"):
        verdict.run_record(record)
