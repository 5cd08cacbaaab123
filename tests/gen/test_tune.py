"""`convgen tune` and its registry: what a line may say, files that merge, work that goes on, and who looks there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import convgen as cg
from convgen import registry
from convgen.backends import target as targets
from convgen.commands import cli, workers
from convgen.commands.tune import perform
from convgen.ir.error import UserError
from convgen.ir.record import evolve
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.matmul import parse_problem
from convgen.registry import Entry, Registry
from convgen.run import files
from convgen.tune import trials
from convgen.tune.work import Result, Task, Timed

LAYER = "mb1ic16ih6oc16kh3ph1"
KNOBS = ("--dir", "FWD_D", "--dt", "f16")
PROBLEM = "--dir=FWD_D --dt=f16 mb1_ic16oc16_ih6oh6kh3ph1"
SMALL = "tile=32x32x32 waves=1x1 mma=16x16x16 slots=1 taps=split acc=v"
OTHER = "tile=32x32x16 waves=1x1 mma=16x16x16 slots=1 taps=split acc=v"
LARGE = "tile=256x256x64 waves=1x1 mma=16x16x16 slots=2 taps=split acc=v"
MODEL = "convgen 0.1.0, mi300x"
LINE = f"gfx942 | {PROBLEM} | {SMALL} | 2.500 us | {MODEL}"
QUICKER = f"gfx942 | {PROBLEM} | {OTHER} | 2.250 us | {MODEL}"
PRODUCT = f"gfx950 | --dt=f16 64x64:64x64 | {SMALL} | 3.000 us | {MODEL}"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """All tasks that are worked on, in this process."""
    tasks: list[Task] = []

    def run(work: Callable[[Task], Any], items: Sequence[Task], *_: object) -> Iterator[tuple[int, Any]]:
        for number, item in enumerate(items):
            tasks.append(item)
            yield number, work(item)

    monkeypatch.setattr(workers, "run", run)
    return tasks


def tune(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]], list[str]]:
    """The exit code, the objects of --json, and the lines on stderr."""
    code = cli.main(["tune", "--registry", "r", "--configs", "2", "--json", *words])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err.splitlines()


def lines(name: str = "r") -> list[str]:
    return [line for line in Path(name).read_text().splitlines() if not line.startswith("#")]


# ---------------------------------------------------------------- the file


def test_lines_are_sorted_and_read_as_written() -> None:
    found = Registry.parse(f"{PRODUCT}\n# ours\n\n{LINE}\n", "r")
    text = str(found)
    assert text.splitlines()[1:] == ["# ours", LINE, PRODUCT]
    assert str(Registry.parse(text, "r")) == text
    assert [entry.where for entry in found.entries.values()] == ["r:1", "r:4"]


WRONG = [
    (LINE.replace(" | ", " "), "given a line of 1, wanted 5 fields: target | problem | config | time | "),
    (LINE.replace("gfx942", "gfx000"), "given target 'gfx000' (did you mean gfx950?), wanted one of "),
    (LINE.replace("--dt=f16", "--dt=f15"), "given the type 'f15' (did you mean f16?), wanted one of "),
    (LINE.replace("mb1_", ""), "given '--dir=FWD_D --dt=f16 ic16oc16_ih6oh6kh3ph1', wanted it as convgen writes it"),
    (LINE.replace("kh3ph1", 'kh3ph1_n"res2"'), f"wanted it as convgen writes it, '{PROBLEM}'"),
    (LINE.replace("slots=1", "slots=9"), "given 'slots=9', wanted slots=0|1|...|8 in the config"),
    (LINE.replace(" acc=v", ""), f"wanted it as convgen writes it, '{SMALL}'"),
    (LINE.replace("2.500 us", "-1 us"), "given '-1 us', wanted TIME us, such as 12.345 us"),
    (LINE.replace(MODEL, "mine"), "given 'mine', wanted convgen VERSION, CHIP"),
]


@pytest.mark.parametrize(("line", "told"), WRONG)
def test_a_wrong_line_is_refused(capsys: pytest.CaptureFixture[str], line: str, told: str) -> None:
    """By whoever reads the file, for whatever problem."""
    Path("r").write_text(f"{PRODUCT}\n{line}\n")
    for command in (["gemm", "8x8:8x8", "--dt", "f16"], ["tune", LAYER, *KNOBS]):
        assert cli.main([*command, "--registry", "r"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert told in err
        assert err.endswith(", in r:2\n")
    assert lines() == [PRODUCT, line]


def test_two_configs_for_one_problem_are_refused() -> None:
    with pytest.raises(UserError, match=r"^given two configs for .* on gfx942, wanted one, in r:1 and r:3$"):
        Registry.parse(f"{LINE}\n{PRODUCT}\n{QUICKER}\n", "r")


def test_the_same_config_may_stand_twice() -> None:
    """As where files were put together by their lines: the later time may be another model's."""
    again = LINE.replace("2.500", "2.400")
    assert str(Registry.parse(f"{LINE}\n{again}\n", "r")).splitlines()[1:] == [again]


def test_files_merge(capsys: pytest.CaptureFixture[str]) -> None:
    Path("r").write_text(f"# ours\n{LINE}\n")
    Path("theirs").write_text(f"# theirs\n{PRODUCT}\n{QUICKER}\n")
    assert tune(capsys, "--merge", "theirs") == (0, [], [])
    assert Path("r").read_text().splitlines()[1:] == ["# ours", "# theirs", QUICKER, PRODUCT]
    Path("theirs").write_text(LINE)
    assert tune(capsys, "--merge", "theirs")[0] == 0
    assert lines() == [QUICKER, PRODUCT]
    assert tune(capsys, "--merge", "nobodys")[2] == [
        "convgen: cannot read nobodys: No such file or directory, at --merge"
    ]


def test_an_interrupted_write_leaves_the_file_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("r").write_text(LINE + "\n")
    create = files._create

    def half(path: Path, content: bytes, replaced: Path) -> None:
        create(path, content[: len(content) // 2], replaced)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, "_create", half)
        with pytest.raises(KeyboardInterrupt):
            registry.add(Path("r"), [Entry.parse(PRODUCT, "")])
    assert Path("r").read_text() == LINE + "\n"
    assert os.listdir() == ["r"]
    registry.add(Path("r"), [Entry.parse(PRODUCT, "")])
    assert lines("r") == [LINE, PRODUCT]


def test_a_link_stays_one() -> None:
    """What it leads to is written, and held meanwhile."""
    os.mkdir("shared")
    Path("r").symlink_to("shared/team.registry")
    registry.add(Path("r"), [Entry.parse(LINE, "")])
    registry.merge(Path("r"), [])
    assert Path("r").is_symlink()
    assert registry.read(Path("shared/team.registry")) == Registry.parse(LINE, "r")


def test_a_pipe_is_no_registry_and_stays_one() -> None:
    """Nor is it waited for."""
    os.mkfifo("r")
    entry = Entry.parse(LINE, "")
    for use in (lambda: registry.read(Path("r")), lambda: registry.add(Path("r"), [entry])):
        with pytest.raises(UserError, match="given r that is a device or a pipe, wanted a registry, at --registry"):
            use()
    assert Path("r").is_fifo()


def test_writers_keep_each_others_lines() -> None:
    """What another process has written since is read again."""
    registry.add(Path("r"), [Entry.parse(LINE, "")])
    before = registry.read(Path("r"))
    Path("r").write_text(f"{LINE}\n{PRODUCT}\n")
    registry.add(Path("r"), [Entry.parse(QUICKER, "")])
    assert len(before.entries) == 1
    assert lines() == [QUICKER, PRODUCT]


# ---------------------------------------------------------------- the command


def test_the_quickest_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: list[Task]
) -> None:
    problem = cg.Conv.parse(LAYER, dir="FWD_D", dt="f16")
    first, second = map(str, trials.worth_timing(problem, "gfx942", 2))
    assert first == cg.build(problem).config
    really = trials.predicted

    def slow(code: Any) -> Any:
        found = really(code)
        return evolve(found, us=9.0) if code.config == first else found

    monkeypatch.setattr(trials, "predicted", slow)
    code, (row,), err = tune(capsys, LAYER, *KNOBS)
    assert (code, err) == (0, ["1 tuned; 1 quicker than chosen"])
    assert (row["status"], row["config"], row["chosen"]) == ("tuned", second, {"config": first, "us": 9.0})
    assert [each["config"] for each in row["timed"]] == [first, second]
    assert lines() == [f"gfx942 | {PROBLEM} | {second} | {row['us']:.3f} us | {MODEL}"]


def test_what_is_known_is_skipped(capsys: pytest.CaptureFixture[str], given: list[Task]) -> None:
    Path("r").write_text(LINE + "\n")
    Path("layers").write_text(f"--dir=FWD_D --dt=f16\n{LAYER}nsome {LAYER}nother\n{LAYER}ic32\n")
    code, rows, err = tune(capsys, "layers", LAYER, *KNOBS)
    assert (code, err) == (0, ["1 tuned, 1 kept; 0 quicker than chosen"])
    assert [row["status"] for row in rows] == ["kept", "tuned"]
    assert [row["where"] for row in rows] == ["layers:2", "layers:3"]
    assert rows[0]["config"] == SMALL
    assert [task.problem for task in given] == [rows[1]["problem"]]
    assert lines()[0] == LINE
    given.clear()
    assert tune(capsys, "layers")[2] == ["2 kept"]
    assert given == []


def test_again_times_the_known_config_too(capsys: pytest.CaptureFixture[str], given: list[Task]) -> None:
    Path("r").write_text(LINE + "\n")
    code, (row,), _ = tune(capsys, LAYER, *KNOBS, "--again")
    assert code == 0
    assert [task.known for task in given] == [SMALL]
    assert row["timed"][-1]["config"] == SMALL
    assert row["us"] == min(each["us"] for each in row["timed"])
    assert lines() != [LINE]


def test_each_problem_ends_by_itself(capsys: pytest.CaptureFixture[str], given: list[Task]) -> None:
    code, rows, err = tune(capsys, LAYER, "ic4", "g16ic16oc16ih6kh40dh9", *KNOBS)
    assert code == 2
    assert [row["status"] for row in rows] == ["tuned", "refused", "refused"]
    assert len(lines()) == 1
    assert err[0].startswith("convgen: --dir=FWD_D --dt=f16 ic4: given no spatial axis")
    assert err[-1].startswith("1 tuned, 2 refused")


def test_the_table(capsys: pytest.CaptureFixture[str], given: list[Task]) -> None:
    assert cli.main(["tune", LAYER, *KNOBS, "--registry", "r", "--configs", "1"]) == 0
    header, row, empty, counts = capsys.readouterr().out.splitlines()
    assert header.split() == ["status", "us", "chosen", "problem", "config"]
    assert row.split()[0] == "tuned"
    assert row.split()[1] == row.split()[2]
    assert (empty, counts) == ("", "1 tuned; 0 quicker than chosen")


REFUSED = [
    ([LAYER], "given neither --registry nor CONVGEN_REGISTRY, wanted a file for the results"),
    (["--registry", "r"], "given no problem, wanted a batch file or a descriptor such as "),
    ([LAYER, "--registry", ""], "given an empty name, wanted a file, at --registry"),
    ([LAYER, "--registry", "no/r"], "cannot write 'no/r': No such file or directory, at --registry"),
    (
        [LAYER, "--registry", "r", "--target", "xe2"],
        "given the target xe2, whose launches have no model, wanted one of ",
    ),
    ([LAYER, "--registry", "r", "--configs", "0"], "given '0', wanted an integer from 1, at --configs"),
    ([LAYER, "--registry", "r", "--dask", "x", "--timeout", "1"], "given --timeout with --dask, wanted one of them"),
    ([LAYER, "--registry", "r", "--dask", "x"], "given --dask without the package distributed, wanted it: pip install"),
]


@pytest.mark.parametrize(("words", "told"), REFUSED)
def test_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: list[Task], words: list[str], told: str
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert cli.main(["tune", *words, *KNOBS]) == 2
    assert capsys.readouterr().err.startswith(f"convgen: {told}")


def test_a_cluster_is_given_the_same_work(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By Dask's interface: a future for each task, in whatever order they are done."""
    told = []

    class Client:
        def __init__(self, address: str, timeout: int) -> None:
            if address == "nowhere":
                raise OSError("timed out after 10 s")
            told.append(address)

        def submit(self, work: Callable[[Task], Any], task: Task, pure: bool) -> Any:
            failed = RuntimeError("its worker died") if "ic32" in task.problem else None
            return SimpleNamespace(exception=lambda: failed, result=lambda: work(task), __hash__=None)

        def close(self) -> None:
            told.append("closed")

    class Future(SimpleNamespace):
        __hash__ = object.__hash__  # type: ignore[assignment]

    monkeypatch.setattr(sys.modules[__name__], "SimpleNamespace", Future)
    backwards = SimpleNamespace(Client=Client, as_completed=lambda futures: reversed(list(futures)))
    monkeypatch.setitem(sys.modules, "distributed", backwards)
    code, rows, err = tune(capsys, LAYER, LAYER + "ic32", LAYER + "mb2", *KNOBS, "--dask", "tcp://head:8786")
    assert code == 3
    assert [row["status"] for row in rows] == ["tuned", "refused", "tuned"]
    assert err[0].endswith("internal error: the worker process failed: its worker died")
    assert told == ["tcp://head:8786", "closed"]
    assert len(lines()) == 2
    assert tune(capsys, LAYER + "mb4", *KNOBS, "--dask", "nowhere")[2] == [
        "convgen: given --dask nowhere, wanted a scheduler that answers: timed out after 10 s"
    ]


RIGHT = Result(Entry.parse(LINE, ""), (Timed(SMALL, 2.5, "memory"),), 0.5)
NAN = float("nan")


def entry(**changed: Any) -> Result:
    """A right result but for its entry."""
    return evolve(RIGHT, entry=evolve(RIGHT.entry, **changed))


class Older:
    """A result of a convgen that had other fields."""


HOSTILE: dict[str, tuple[Any, str]] = {
    "a line more": (entry(model=f"{MODEL}\n{QUICKER}"), "given a line of 9, wanted 5 fields"),
    "a remark more": (entry(model=f"{MODEL}\n# mine"), "wanted convgen VERSION, CHIP, in a worker's result"),
    "a line in the problem": (entry(problem=f"{PROBLEM}\n{PROBLEM}"), "in a worker's result"),
    "a line in the config": (entry(config=f"{SMALL}\n{SMALL}"), "in a worker's result"),
    "a line in the target": (entry(target="gfx942\ngfx942"), "given target 'gfx942\\ngfx942'"),
    "more fields": (entry(config=f"{SMALL} | {SMALL}"), "given a line of 6, wanted 5 fields"),
    "no number": (entry(us=NAN), "given 'nan us', wanted TIME us"),
    "an endless time": (entry(us=float("inf")), "given 'inf us', wanted TIME us"),
    "a negative time": (entry(us=-1.0), "given '-1.000 us', wanted TIME us"),
    "a text as time": (entry(us="2.5"), "given a result from a worker that is damaged"),
    "another problem": (entry(problem=PROBLEM.replace("ic16", "ic32")), f"wanted {PROBLEM} on gfx942"),
    "another target": (entry(target="gfx90a"), f"wanted {PROBLEM} on gfx942"),
    "another version": (entry(model="convgen 9.9, mi300x"), "given a time by 'convgen 9.9, mi300x' from a worker"),
    "another chip": (entry(model="convgen 0.1.0, mi250x"), "given a time by 'convgen 0.1.0, mi250x' from a worker"),
    "a quicker time than any": (entry(us=1.0), "that is not the fastest of its configs"),
    "another config": (entry(config=OTHER), "that is not the fastest of its configs"),
    "nothing timed": (evolve(RIGHT, timed=()), "that is not the fastest of its configs"),
    "a time that is none": (evolve(RIGHT, timed=(Timed(SMALL, NAN, "memory"),)), "wanted a config, its time"),
    "a bound of two lines": (evolve(RIGHT, timed=(Timed(SMALL, 2.5, "a\nb"),)), "wanted a config, its time"),
    "a config that is none": (evolve(RIGHT, timed=(Timed("x", 2.5, "memory"),)), "in the config"),
    "times that are no tuple": (
        Result(RIGHT.entry, cast("Any", 3), 0.5),
        "given a result from a worker that is damaged",
    ),
    "seconds that are none": (evolve(RIGHT, seconds=NAN), "given nan seconds from a worker"),
    "another type": (Older(), "given a Older from a worker, wanted a result"),
    "nothing": (None, "given a NoneType from a worker, wanted a result"),
    "an exit code that is none": ((0, "fine"), "given a tuple from a worker, wanted a result"),
    "a text of escapes": ((2, "\x1b[31mred"), "\\x1b[31mred"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_worker_is_not_believed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The registry stays as it was, and one line says what came."""
    answer, told = HOSTILE[name]
    monkeypatch.setattr(workers, "run", lambda *_: (pair for pair in [(0, answer)]))
    Path("r").write_text(f"{PRODUCT}\n")
    code, (row,), err = tune(capsys, LAYER, *KNOBS)
    assert code == 2
    assert told in err[0]
    assert err[1:] == ["1 refused"]
    assert row["status"] == "refused"
    assert lines() == [PRODUCT]


def test_a_right_answer_is_kept(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "run", lambda *_: (pair for pair in [(0, RIGHT)]))
    code, (row,), _ = tune(capsys, LAYER, *KNOBS)
    assert (code, row["status"]) == (0, "tuned")
    assert lines() == [LINE]


@pytest.mark.parametrize(
    "changed",
    [{"model": f"{MODEL}\n{QUICKER}"}, {"us": NAN}, {"us": -1.0}, {"target": "gfx000"}, {"config": "x"}],
    ids=lambda changed: next(iter(changed)),
)
def test_no_writer_adds_a_line_that_no_reader_takes(changed: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r", in an entry to be kept$"):
        registry.add(Path("r"), [evolve(RIGHT.entry, **changed)])
    assert not Path("r").exists()


def test_an_interrupted_command_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    words = [LAYER, LAYER + "mb2", "mb8ic64ih28oc64kh3ph1", *KNOBS]
    tune_them = [sys.executable, "-m", "convgen", "tune", "--registry", "r", "--configs", "4", "--jobs", "1", *words]
    program = ["env", "--default-signal=INT", *tune_them]  # shells without job control ignore it behind `&`
    running = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (os.path.exists("r") and lines()) and time.monotonic() < until:
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "of 3 problems done; the same command goes on from there" in err
    done = len(lines())
    assert 1 <= done < 3
    _, rows, _ = tune(capsys, *words, "--jobs", "1")
    assert [row["status"] for row in rows] == ["kept"] * done + ["tuned"] * (3 - done)


# ---------------------------------------------------------------- who looks there


def test_commands_take_what_the_registry_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("r").write_text(f"# ours\n{LINE}\n")
    Path("layers").write_text(f"--dir=FWD_D --dt=f16\n{LAYER}nres2\n")
    note = "convgen: note: the config is that of r:2\n"
    for command in (["conv", LAYER, *KNOBS], ["batch", "layers"]):
        assert cli.main([*command, "--registry", "r", "--json"]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["config"] == SMALL
        assert err.startswith(note)
    monkeypatch.setenv("CONVGEN_REGISTRY", "r")
    assert cli.main(["conv", LAYER, *KNOBS, "--json", "--run"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["config"], err) == (SMALL, note)
    for others in (["--config", OTHER], ["--target", "gfx90a"], ["--mb", "2"]):
        assert cli.main(["conv", LAYER, *KNOBS, *others, "--json"]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["config"] != SMALL
        assert err == ""


def test_kept_code_is_that_of_the_config(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The compile cache knows which config a registry has led to."""
    monkeypatch.setenv("CONVGEN_CACHE", str(Path("cache").resolve()))
    configs = []
    for line in (None, LINE, QUICKER):
        Path("r").write_text(line or "")
        assert cli.main(["conv", LAYER, *KNOBS, "--registry", "r", "--json"]) == 0
        configs.append(json.loads(capsys.readouterr().out)["config"])
    assert configs[1:] == [SMALL, OTHER]
    assert configs[0] not in configs[1:]


def test_a_config_that_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """By the plan, and by the registers."""
    huge = "tile=512x512x64 waves=2x2 mma=16x16x16 slots=4 taps=split acc=v"
    for config in (huge, LARGE):
        Path("r").write_text(LINE.replace(SMALL, config))
        assert cli.main(["conv", LAYER, *KNOBS, "--registry", "r"]) == 2
        err = capsys.readouterr().err.splitlines()
        assert err[-1].startswith("convgen: given ")
        assert f"config {config} of r:1, wanted one that fits: " in err[-1]
    Path("layers").write_text(f"--dir=FWD_D --dt=f16\n{LAYER}\n")
    assert cli.main(["batch", "layers", "--registry", "r"]) == 2
    assert "of r:1, wanted one that fits: " in capsys.readouterr().err
    assert cli.main(["batch", "layers", "--registry", "none"]) == 2
    assert capsys.readouterr().err == "convgen: cannot read none: No such file or directory, at --registry\n"


def test_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("r").write_text(LINE)
    problem = cg.Conv.parse(LAYER, dir="FWD_D", dt="f16")
    found = cg.build(problem, registry="r")
    assert (found.config, found.origin) == (SMALL, "r:1")
    assert cg.build(problem, config=OTHER, registry="r").config == OTHER
    assert cg.build(problem).origin == ""
    monkeypatch.setenv("CONVGEN_REGISTRY", "r")
    assert cg.build(problem).origin == "r:1"


# ---------------------------------------------------------------- the work


def test_half_of_those_timed_are_of_other_kinds() -> None:
    problem = cg.Conv.parse("mb8ic64ih28oc64kh3ph1", dir="FWD_D", dt="f16")
    found = trials.worth_timing(problem, "gfx942", 8)
    assert len({*found}) == 8
    assert found[0] == cg.build(problem).plan.config  # type: ignore[union-attr]
    best, others = ({(config.tile[:2], config.taps) for config in some} for some in (found[:4], found[4:]))
    assert len(others - best) == 4


def test_an_error_is_told_by_its_exit_code() -> None:
    assert perform(Task("gfx942", 2, "--dt=f16 0x8:8x8"))[0] in (2, 3)  # type: ignore[index]


def test_registries_that_come_with_convgen_have_configs_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--registry h200` names the registry that convgen ships; a file called `h200` is taken instead."""
    path = registry.named("h200")
    assert path is not None
    for shipped in path.parent.iterdir():
        for entry in registry.read(shipped).entries.values():
            facts = targets.get(entry.target).facts
            assert make_plan(parse_problem(entry.problem), Config.parse(entry.config), facts).parts
    monkeypatch.setattr("os.path.exists", lambda name: True)
    assert registry.named("h200") == Path("h200")
