"""`convgen batch`: rows in the order of the file, exit codes, resuming, and being stopped."""

from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from convgen.backends.target import names
from convgen.commands import batch, cli
from convgen.run.store import SEAL
from tests.gen import perilous

KNOBS = "--dir=FWD_D --dt=f16\n"
GOOD = "mb1ic16ih6oc16kh3ph1"
NO_TARGET = f"given target 'gfx000' (did you mean gfx950?), wanted one of {', '.join(names())}"
PERFORM = batch.perform
PROGRAM = [sys.executable, "-m", "convgen", "batch", "file"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batch, "perform", perilous.perform)


def run(capsys: pytest.CaptureFixture[str], text: str, *options: str) -> tuple[int, list[dict[str, Any]], list[str]]:
    """The exit code, the objects of --json, and the lines on stderr."""
    Path("file").write_text(KNOBS + text)
    code = cli.main(["batch", "file", "--json", *options])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err.splitlines()


def test_every_status(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["good", "killed", "wrong", "broken", "fine"]
    lines = "\n".join(f"{GOOD}n{name}" for name in names) + "\n--dir=BWD_D mb1ic4zz\nic2147483640oc16ih4kh1"
    code, rows, err = run(capsys, lines, "--run", "--jobs", "2")
    assert code == 3
    assert [row["status"] for row in rows] == ["passed", "error", "failed", "error", "passed", "error", "unsupported"]
    assert [row["where"] for row in rows] == [f"file:{number}" for number in range(2, 9)]
    assert [row["problem"].partition('n"')[2] for row in rows[:5]] == [f'{name}"' for name in names]
    assert err[1].startswith("convgen: file:4: 1 of 576 outputs are wrong: dst[0, 0, 0, 0]: expected ")
    assert err == [
        "convgen: file:3: internal error: the worker process was killed by SIGKILL",
        err[1],
        "convgen: file:5: internal error: ZeroDivisionError: by zero",
        *(f"convgen: {row['where']}: {row['error']}" for row in rows[5:]),
        err[-1],
    ]
    assert err[-1].startswith("7 problems in ")
    assert err[-1].endswith(" s: 2 passed, 1 failed, 1 unsupported, 3 error")


def test_rows_say_what_conv_says(capsys: pytest.CaptureFixture[str]) -> None:
    code, rows, _ = run(capsys, f"{GOOD} ic4", "--run")
    assert code == 2
    assert cli.main(["conv", "--json", GOOD, "--run", *KNOBS.split()]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert [*rows[0]] == [*rows[1]] == [*alone, "status", "rule", "error", "seconds", "where"]
    for row in (rows[0], alone):
        for timed in ("generate_s", "assemble_s"):
            assert row.pop(timed) > 0
        assert row["run"].pop("seconds") > 0
        assert row["run"]["specials"].pop("seconds") > 0
    assert rows[0] == {
        **alone,
        "status": "passed",
        "rule": None,
        "error": None,
        "seconds": rows[0]["seconds"],
        "where": "file:2",
    }
    assert rows[0]["seconds"] > 0


CODES = [
    ("", "", 0),
    ("n1", "ic4", 2),
    ("nwrong", "ic4", 1),
    ("nwrong", "--speed=9", 1),
    ("nbroken", f"{GOOD}nwrong", 3),
    ("", "ic2147483640oc16ih4kh1", 2),
]


@pytest.mark.parametrize(("name", "other", "code"), CODES)
def test_exit_codes(capsys: pytest.CaptureFixture[str], name: str, other: str, code: int) -> None:
    assert run(capsys, f"{GOOD}{name}\n{other}", "--run")[0] == code


def test_the_order_is_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    """The first takes longest, so it is done last."""
    text = f"mb1ic64ih14oc64kh3ph1\n{GOOD}\nmb1ic16ih4oc16kh1\n"
    one, two = (run(capsys, text, "--run", "--jobs", jobs)[1] for jobs in ("1", "3"))
    assert [row["problem"] for row in one] == [row["problem"] for row in two]
    assert [row["run"]["checked"] for row in one] == [64 * 14 * 14, 576, 256]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text(f"{KNOBS}--mode=P -v1\n{GOOD} ic4\n--mode=P")
    assert cli.main(["batch", "file", "-o", "out/"]) == 2
    out, err = capsys.readouterr()
    header, good, bad, empty, counts = out.splitlines()
    assert header.split() == ["status", "problem", "config", "checked", "mismatches", "seconds"]
    assert good.split()[:4] == ["generated", *KNOBS.split(), "mb1_ic16oc16_ih6oh6kh3ph1"]
    assert bad.split()[:4] == ["error", *KNOBS.split(), "ic4"]
    assert empty == ""
    assert counts.endswith(" s: 1 generated, 1 error")
    note, error = err.splitlines()
    assert note == "convgen: note: ignored, as they mean nothing here: --mode=P (file:2), -v1 (file:2)"
    assert error.startswith("convgen: file:3: given no spatial axis")
    assert [path.suffix for path in sorted(Path("out").iterdir())] == [".hsaco", ".json", ".s"]


def test_what_a_problem_says_stands_before_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, f"{GOOD}n1\n{GOOD}nbroken", "-v", "--jobs", "2")
    assert err[0].split()[:3] == ["rank", "config", "clocks"]
    assert err[err.index("") + 1].split() == ["config", "clocks", "registers", "allocated", "shared", "verdict"]
    trace = err.index("Traceback (most recent call last):")
    assert err[-2] == "convgen: file:3: internal error: ZeroDivisionError: by zero"
    assert 1 < trace < len(err) - 2


REFUSED = [
    (["file", "-o", "out"], "given -o out, wanted a directory DIR/ for the files of several problems"),
    (["file", "--jobs", "0"], "given '0', wanted an integer from 1, at --jobs"),
    (["file", "--target", "gfx000"], NO_TARGET),
    (["file", "--config", "tile=32"], "given 'tile=32', wanted tile=MxNxK in the config"),
    (["file", "--match", "none"], "given file with no problem that is selected, wanted at least one"),
    (["file", "--start", "1"], "given file with no problem that is selected, wanted at least one"),
    (
        ["file", "--match", "("],
        "given a pattern with missing ), unterminated subpattern, wanted a regular expression, in --match, "
        "at column 1: ^(",
    ),
    (["none"], "cannot read none: No such file or directory"),
    ([], "given no FILE, wanted one; see convgen batch --help"),
    (["file", "--resume", "."], "cannot open .: Is a directory, at --resume"),
    (
        ["file", "--resume", "/dev/full"],
        "given --resume /dev/full that is a device or a pipe, wanted a file",
    ),
    (["file", "--timeout", "0"], "given '0', wanted an integer from 1, at --timeout"),
    (["/dev/zero"], "given /dev/zero that is a device or a pipe, wanted a batch file"),
    (
        ["file", "--match", "(([a-z0-9_]+)+)+!"],
        "given --match=(([a-z0-9_]+)+)+! that takes more than 0.1 s, wanted one that does not go back so often",
    ),
    (
        ["file", "--dt", ",".join(["f16"] * 2000), "--mb", ",".join(["1"] * 2000)],
        f"given more than 2000000 problems with '{GOOD}' in file:1, wanted fewer",
    ),
    (
        ["file", "--resume", "file"],
        "given file that convgen has not written, wanted a file of its own, at --resume",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_refused_as_a_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.setattr("convgen.problem.requests._MATCHING", 0.1)
    Path("file").write_text(GOOD)
    assert cli.main(["batch", *options]) == 2
    assert capsys.readouterr() == ("", f"convgen: {message}\n")
    assert sorted(path.name for path in Path().iterdir()) == ["file"]


def test_what_takes_too_long_is_given_up(capsys: pytest.CaptureFixture[str]) -> None:
    """The others are done, and the journal does not keep it."""
    code, rows, _ = run(capsys, f"{GOOD}nslow\n{GOOD}", "--timeout", "6", "--resume", "j", "--jobs", "2")
    assert code == 2
    assert [row["status"] for row in rows] == ["error", "generated"]
    assert rows[0]["error"] == "given --timeout 6, wanted more: the problem takes longer than so many seconds"
    assert [entry["data"]["status"] for entry in journal()] == ["generated"]


# Resuming


def test_what_is_done_is_not_done_again(capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{GOOD}nwrong\n{GOOD}\nic2147483640oc16ih4kh1"
    code, first, _ = run(capsys, text, "--run", "--resume", "j")
    assert code == 1
    code, again, err = run(capsys, text, "--run", "--resume", "j")
    assert (code, again) == (1, first)
    assert err[-1].endswith(": 1 passed, 1 failed, 1 unsupported (3 known from j)")
    assert "known" not in run(capsys, text, "--run", "--resume", "j", "--seed", "1")[2][-1]
    assert run(capsys, text + f"\n{GOOD}nmore", "--run", "--resume", "j")[2][-1].endswith("(3 known from j)")


def test_internal_errors_are_tried_again(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{GOOD}nbroken\n{GOOD}nkilled\n{GOOD}"
    assert run(capsys, text, "--resume", "j")[0] == 3
    monkeypatch.setattr(batch, "perform", PERFORM)
    code, _, err = run(capsys, text, "--resume", "j")
    assert code == 0
    assert err[-1].endswith(": 3 generated (1 known from j)")


def journal() -> list[dict[str, Any]]:
    """What the journal holds."""
    if not Path("j").exists():
        return []
    with closing(sqlite3.connect("j")) as db:
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return []
        return [json.loads(value[SEAL:]) for (value,) in db.execute("SELECT value FROM entries")]


#: Problems of a batch that is to be caught in the middle, even where the test gets no turn for a while.
MANY = 24


def start(*options: str, problems: int = MANY, **streams: Any) -> subprocess.Popen[str]:
    """A batch of its own, in a process group of its own."""
    Path("file").write_text(KNOBS + "\n".join(f"mb{n + 1}ic16ih12oc16kh3ph1" for n in range(problems)))
    command = [*PROGRAM, "--run", "--resume", "j", *options]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    # A shell's background job has interrupts ignored, and its children inherit that.
    heed = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(command, text=True, start_new_session=True, preexec_fn=heed, **streams)


def test_resume_after_a_kill() -> None:
    with start("--jobs", "2") as process:
        while len(journal()) < 2:
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    done = len(journal())
    assert 2 <= done < MANY
    again = subprocess.run([*PROGRAM, "--run", "--resume", "j", "--json"], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in again.stdout.splitlines()]
    assert [row["run"]["checked"] for row in rows] == [n * 16 * 144 for n in range(1, MANY + 1)]
    assert again.stderr.endswith(f"{MANY} passed ({done} known from j)\n")
    assert len(journal()) == MANY


def test_interrupting() -> None:
    with start("--jobs", "2") as process:
        while not journal():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("convgen: interrupted with ")
    assert line.endswith(f" of {MANY} problems done; the same command goes on from there")
    assert all(entry["exit"] == 0 for entry in journal())


def test_workers_end_with_the_batch() -> None:
    with start("--jobs", "2") as process:
        while not journal():
            time.sleep(0.01)
        process.kill()
    deadline = time.monotonic() + 20
    while (left := members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    out = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgid = stat.read_text().rpartition(") ")[2].split()[:3]  # proc(5): behind the name in parentheses
        except OSError:  # it has ended meanwhile
            continue
        if int(pgid) == group and state != "Z":
            out.append(int(stat.parent.name))
    return out


def test_a_terminal_gets_a_bar_and_a_pipe_the_results() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with start("--json", problems=3, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:  # the other end is closed
            pass
        out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert len([json.loads(line) for line in out.splitlines()]) == 3
    assert "━".encode() in shown
    assert b"3 passed" in shown
    assert b'"problem"' not in shown
