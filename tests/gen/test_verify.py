"""Verification: what is compared, what is sampled, and that a single wrong bit is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import numpy as np
import pytest

from convgen import reference, verify
from convgen.backends import target as targets
from convgen.ir.error import Unsupported, UserError
from convgen.problem import Conv
from tests.gen.fakes import COLUMNS, ROWS, Memory, Target, code_of, finding, tiles_of

PROBLEM = Conv.parse("mb2ic5oc10ih9kh3ph1", dir="FWD_D", dt="bf16")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Target:
    machine = Target()
    monkeypatch.setattr(targets, "get", lambda name: machine)
    return machine


@pytest.mark.parametrize("knobs", [{}, {"stag": "abcd", "dtag": "aBcd4b"}, {"dt": "f16:f16:f32"}])
def test_every_output_is_checked(machine: Target, knobs: dict[str, str]) -> None:
    problem = Conv.parse("mb2ic5oc10ih9kh3ph1", **{"dir": "FWD_D", "dt": "bf16", **knobs})
    outcome = verify.run(code_of(problem))
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
    outcome = verify.run(code_of(PROBLEM))
    assert (outcome.status, outcome.mismatches) == ("failed", 1)
    (mismatch,) = outcome.first
    assert mismatch.index == index
    assert mismatch.expected != mismatch.got
    assert not mismatch.unwritten


def test_what_is_not_written_is_noticed(machine: Target) -> None:
    def forget(memory: Memory) -> None:
        memory["dst"][:40] = verify.SENTINEL

    machine.spoil = forget
    outcome = verify.run(code_of(PROBLEM))
    assert outcome.mismatches == 20
    assert len(outcome.first) == 8
    assert all(mismatch.unwritten for mismatch in outcome.first)
    assert "nothing written" in str(outcome.first[0])


def test_a_finding_fails_a_right_result(machine: Target) -> None:
    machine.findings = (finding(),)
    outcome = verify.run(code_of(PROBLEM))
    assert (outcome.status, outcome.mismatches) == ("failed", 0)


def test_samples_check_their_tiles_and_nothing_else(machine: Target) -> None:
    outcome = verify.run(code_of(PROBLEM), groups=5, seed=1)
    groups = machine.executed[0].groups
    assert groups is not None
    assert len(groups) == 5
    assert outcome.passed
    tiles = tiles_of(PROBLEM)
    sizes = [
        len(range(*rows.indices(tiles.rows))) * len(range(*columns.indices(tiles.columns)))
        for rows, columns in ((slice(r.start, r.stop), slice(c.start, c.stop)) for r, c in map(tiles.region, groups))
    ]
    assert outcome.checked == sum(sizes) < 5 * ROWS * COLUMNS


def test_a_wrong_output_inside_the_sample_is_noticed(machine: Target) -> None:
    last = PROBLEM.dst_layout.size_elems - 1

    def spoil(memory: Memory) -> None:
        memory["dst"][2 * last] ^= 1

    machine.spoil = spoil
    assert verify.run(code_of(PROBLEM), groups=4).mismatches == 1  # the last corner


@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (5, 1), (2, 2), (40, 30)])
@pytest.mark.parametrize("count", [1, 4, 9, 24, 10_000])
def test_tiles_are_sampled_corners_first(grid: tuple[int, int], count: int) -> None:
    rows, columns = grid
    sample = verify.sample_tiles(grid, count, seed=3)
    assert len(set(sample)) == len(sample) == min(count, rows * columns)
    assert all(0 <= tile < rows * columns for tile in sample)
    corners = {0, columns - 1, (rows - 1) * columns, rows * columns - 1}
    assert set(sample[: len(corners)]) <= corners
    assert verify.sample_tiles(grid, count, seed=3) == sample
    if 24 <= count < rows * columns:
        assert verify.sample_tiles(grid, count, seed=4) != sample
        inner = [tile for tile in sample if tile not in corners]
        assert any(tile % columns == 0 for tile in inner)
        assert any(tile // columns == 0 for tile in inner)


def test_given_arrays_are_used(machine: Target) -> None:
    arrays = reference.fill(PROBLEM, seed=9)
    assert verify.run(code_of(PROBLEM), arrays=arrays).passed
    with pytest.raises(UserError, match="src"):
        verify.run(code_of(PROBLEM), arrays={**arrays, "src": arrays["src"][:1]})
    with pytest.raises(UserError, match="float32"):
        verify.run(code_of(PROBLEM), arrays={**arrays, "src": arrays["src"].astype(np.float32)})


def test_without_an_object_there_is_nothing_to_run(machine: Target) -> None:
    with pytest.raises(Unsupported, match="assembler"):
        verify.run(code_of(PROBLEM, object=None))


def test_without_tiles_there_is_no_sample(machine: Target) -> None:
    with pytest.raises(Unsupported, match="sampling"):
        verify.run(code_of(PROBLEM, tiles=None), groups=3)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A launch record on disk with its object."""
    code = code_of(PROBLEM)
    assert code.object is not None
    (tmp_path / "k.hsaco").write_bytes(code.object)
    path = tmp_path / "k.launch.json"
    path.write_text(attrs.evolve(code.record, object="k.hsaco").to_json())
    return path


def test_records_run_as_their_problem(machine: Target, record: Path, tmp_path: Path) -> None:
    outcome = verify.run_record(record, out=tmp_path / "out", seed=2)
    assert outcome.passed
    assert outcome.checked == 2 * 10 * 81
    stored = np.load(tmp_path / "out" / "dst.npy")
    assert stored.dtype == np.uint16
    arrays = reference.fill(PROBLEM, 2)
    expected = reference.forward(PROBLEM, arrays["src"], arrays["wei"])
    assert np.array_equal(stored, expected.view(np.uint16))


def test_records_run_on_given_data(machine: Target, record: Path, tmp_path: Path) -> None:
    arrays = reference.fill(PROBLEM, 7)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array.view(np.uint16))
    outcome = verify.run_record(record, data=tmp_path, out=tmp_path / "out")
    assert (outcome.status, outcome.checked) == ("passed", 0)
    expected = reference.forward(PROBLEM, arrays["src"], arrays["wei"])
    assert np.array_equal(np.load(tmp_path / "out" / "dst.npy"), expected.view(np.uint16))


def test_bad_data_is_a_user_error(machine: Target, record: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"src\.npy"):
        verify.run_record(record, data=tmp_path)
    (tmp_path / "src.npy").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"src\.npy"):
        verify.run_record(record, data=tmp_path)
    np.save(tmp_path / "src.npy", np.zeros((3, 3), np.uint16))
    with pytest.raises(UserError):
        verify.run_record(record, data=tmp_path)


def test_a_record_without_a_problem_needs_data(machine: Target, record: Path) -> None:
    data = json.loads(record.read_text())
    del data["problem"]
    record.write_text(json.dumps(data))
    with pytest.raises(UserError, match="--data"):
        verify.run_record(record)


def test_a_missing_object_is_a_user_error(machine: Target, record: Path) -> None:
    (record.parent / "k.hsaco").unlink()
    with pytest.raises(UserError, match=r"k\.hsaco"):
        verify.run_record(record)
