"""Worker processes and the journal: nothing that becomes of one piece of work touches another."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from convgen.commands import workers
from convgen.commands.journal import Journal, key_of
from convgen.ir.error import UserError
from tests.gen import perilous


def run(items: list[str], jobs: int) -> dict[int, str]:
    """What became of each item."""
    answers = dict(workers.run(perilous.answer, items, jobs))
    return {at: a.how if isinstance(a, workers.Died) else a[0] for at, a in answers.items()}


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_item_is_answered(jobs: int) -> None:
    items = [str(number) for number in range(12)]
    assert run(items, jobs) == dict(enumerate(items))
    assert run([], jobs) == {}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_dead_process_costs_its_item_only(jobs: int) -> None:
    items = ["a", "killed", "killed", "b", "left", "c"]
    killed = "was killed by SIGKILL"
    assert run(items, jobs) == dict(enumerate(["a", killed, killed, "b", "exited with code 7", "c"]))


def test_processes_are_reused_and_replaced() -> None:
    answers = [answer for _, answer in workers.run(perilous.answer, ["x"] * 7, 1, lifetime=3)]
    pids = [answer[1] for answer in answers if not isinstance(answer, workers.Died)]
    assert len(pids) == 7
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


def test_one_that_dies_while_it_waits_costs_nothing() -> None:
    with closing(workers.run(perilous.answer, ["a", "b"], 1)) as answers:
        _, first = next(answers)
        assert not isinstance(first, workers.Died)
        os.kill(first[1], signal.SIGKILL)
        wait_for_end(first[1])
        _, second = next(answers)
        assert not isinstance(second, workers.Died)
        assert second[0] == "b"


def test_closing_ends_the_processes() -> None:
    with closing(workers.run(perilous.answer, ["a", "b"], 2)) as answers:
        _, first = next(answers)
        assert not isinstance(first, workers.Died)
    with pytest.raises(ProcessLookupError):
        os.kill(first[1], 0)


def wait_for_end(pid: int) -> None:
    while Path(f"/proc/{pid}").exists():
        pass


def test_what_takes_too_long_is_given_up() -> None:
    answers = dict(workers.run(perilous.answer, ["a", "slow", "b", "slow", "c"], 2, timeout=1))
    late = [at for at, answer in answers.items() if isinstance(answer, workers.TookTooLong)]
    assert sorted(late) == [1, 3]
    assert {at: answer[0] for at, answer in answers.items() if not isinstance(answer, workers.Died)} == {
        0: "a",
        2: "b",
        4: "c",
    }


# The journal


def test_a_journal_remembers(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(Journal(path)) as journal:
        assert journal.get("a") is None
        journal.add("a", {"exit": 0})
        journal.add("b", {"text": "ü\n"})
    with closing(Journal(path)) as journal:
        assert (journal.get("a"), journal.get("b"), journal.get("c")) == ({"exit": 0}, {"text": "ü\n"}, None)


@pytest.mark.parametrize(
    "text", ["mb1ic4oc4ih4kh1", "--dt=f16\n", "[]\n", '{"key": 1, "entry": {}}\n', '{"key": "a"}\n']
)
def test_what_is_no_journal_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes"
    path.write_text(text)
    with pytest.raises(UserError, match="that convgen has not written, wanted a file of its own, at --resume"):
        Journal(path)
    assert path.read_text() == text


def test_a_journal_is_of_one_batch(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with closing(Journal(path)), pytest.raises(UserError, match="that another batch writes"):
        Journal(path)
    Journal(path).close()
    with pytest.raises(UserError, match="Is a directory, at --resume"):
        Journal(tmp_path)


def test_keys() -> None:
    assert key_of("a", {"x": 1, "y": 2}) == key_of("a", {"y": 2, "x": 1})
    assert len({key_of("a", {"x": 1}), key_of("a", {"x": 2}), key_of("b", {"x": 1})}) == 3
