"""The command line: what goes where, exit codes, and one line for every wrong request."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

import convgen
from convgen import driver as real
from convgen.backends import target as targets
from convgen.commands import cli, session
from convgen.ir.error import ConvgenError, DoesNotFit, Unsupported, UserError
from convgen.problem.conv import Conv
from convgen.run.code import Code
from convgen.run.launch_record import LaunchRecord
from tests.gen.fakes import Target, code_of, finding

DESC = "mb1ic8oc4ih4kh3ph1"
FWD = ("--dir", "FWD_D", "--dt", "f16")


@attrs.define
class Driver:
    """Stands in for the generator; remembers how it was asked."""

    error: BaseException | None = None
    changes: dict[str, Any] = attrs.Factory(dict)
    asked: list[dict[str, Any]] = attrs.Factory(list)

    def build(self, problem: Conv, **options: Any) -> Any:
        self.asked.append(options)
        if self.error is not None:
            raise self.error
        return SimpleNamespace(problem=problem, scalars={}, trail=[], target=targets.get("gfx90a"))

    def compile(self, program: Any) -> Code:
        return code_of(program.problem, **self.changes)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(real, "build", driver.build)
    monkeypatch.setattr(real, "compile", driver.compile)
    return driver


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Target:
    machine, real = Target(), targets.names()
    monkeypatch.setattr(targets, "get", lambda name: machine if name in real else refuse(name))
    return machine


def refuse(name: str) -> Target:
    raise UserError(f"given target {name!r}")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def conv(*arguments: str) -> int:
    return cli.main(["conv", *arguments])


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


# What goes where


def test_assembly_goes_to_stdout(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert conv(DESC, *FWD) == 0
    out, err = capsys.readouterr()
    assert out == "conv_main:\n  s_endpgm\n"
    assert err == ""
    assert files() == []
    assert machine.executed == []


def test_output_files(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert conv(DESC, *FWD, "-o", "out/k") == 0
    assert capsys.readouterr() == ("", "")
    assert files() == ["out/k.hsaco", "out/k.launch.json", "out/k.s"]
    record = LaunchRecord.from_json(Path("out/k.launch.json").read_text())
    assert record.object == "k.hsaco"
    assert record.problem is not None
    assert Path("out/k.hsaco").read_bytes().decode() == record.problem
    assert Conv.parse(record.problem) == Conv.parse(DESC, dir="FWD_D", dt="f16")


def test_a_person_is_told_what_was_written(
    driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "on_terminal", lambda: True)
    assert conv(DESC, *FWD, "-o", "out/k") == 0
    assert capsys.readouterr().err.startswith("convgen: note: wrote out/k.s, out/k.hsaco, out/k.launch.json; config ")


def test_a_directory_names_files_by_kernel(driver: Driver, machine: Target) -> None:
    assert conv(DESC, "mb1ic4oc4ih4kh1", *FWD, "-o", "out/") == 0
    assert files() == ["out/conv_main.hsaco", "out/conv_main.launch.json", "out/conv_main.s"]


def test_report(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert conv(DESC, *FWD, "--run") == 0
    out, err = capsys.readouterr()
    assert err == ""
    for text in ("mb1_ic8oc4_ih4oh4kh3ph1", "m16n4", "conv_main", "vgpr 8", "512 bytes", "64 outputs", "mfma 1"):
        assert text in out
    assert out.splitlines()[-1].split() == ["result", "PASSED"]


def test_json(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert conv(DESC, *FWD, "--json", "--run", "-o", "k") == 0
    data = json.loads(capsys.readouterr().out)
    assert list(data) == [
        *("problem", "target", "config", "launches", "files", "generate_s", "assemble_s", "run"),
    ]
    assert Conv.parse(data["problem"]) == Conv.parse(DESC, dir="FWD_D", dt="f16")
    assert data["files"] == {"asm": "k.s", "object": "k.hsaco", "launch": "k.launch.json"}
    assert (data["generate_s"], data["assemble_s"]) == (0.25, 0.5)
    assert data["launches"] == [
        {
            "kernel": "conv_main",
            "grid": [1, 1, 1],
            "workgroup": [64, 1, 1],
            "registers": {"vgpr": 8, "sgpr": 16},
            "lds_bytes": 512,
        }
    ]
    run = data["run"]
    assert (run["status"], run["checked"], run["mismatches"], run["findings"]) == ("passed", 64, 0, [])
    assert run["instructions"] == {"valu": 10, "mfma": 1}


def test_json_of_several_is_one_object_a_line(
    driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conv("--json", DESC, "mb1ic4oc4ih4kh1", *FWD) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["run"] is None
    assert first["files"] == {"asm": None, "object": None, "launch": None}
    assert second["problem"].endswith("mb1_ic4oc4_ih4oh4kh1ph0")


SPELLINGS = [
    ["--mb", "3", DESC, *FWD],
    ["--mb=3", DESC, *FWD],
    [DESC, "--mb=3", "--dir=fwd_d", "--dt=f16"],
    ["--dir", "Fwd_D", DESC, "--dt", "dnnl_f16:f16:f16", "--mb", "3"],
]


@pytest.mark.parametrize("arguments", SPELLINGS)
def test_options_stand_anywhere(
    driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert conv(*arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["problem"] == "--dir=FWD_D --dt=f16 mb3_ic8oc4_ih4oh4kh3ph1"


def test_options_apply_to_all_descriptors(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert conv(DESC, "--dir", "FWD_D", "ic4oc4ih4kh1", "--mb", "5", "--json", "--dt", "bf16") == 0
    problems = [json.loads(line)["problem"] for line in capsys.readouterr().out.splitlines()]
    assert [p.split()[:2] for p in problems] == [["--dir=FWD_D", "--dt=bf16"]] * 2
    assert all(" mb5_" in p for p in problems)


def test_the_driver_is_told(driver: Driver, machine: Target) -> None:
    options = [
        "--target",
        "gfx90a",
        "--config",
        "m16 n4",
        "--disable",
        "cse",
        "--disable",
        "hoist",
        "--dump",
        "all",
        "-g",
    ]
    assert conv(DESC, *FWD, *options) == 0
    (asked,) = driver.asked
    watch = asked.pop("observe").__self__
    assert watch.dump == "all"
    assert asked.pop("tried") == watch.tried
    assert asked.pop("registry") is None
    assert asked == {"target": "gfx90a", "config": "m16 n4", "disable": ("cse", "hoist"), "debug": True}


def test_a_line_of_benchdnn_is_taken_whole(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--conv", "--reset", "--engine=gpu:0", "--mode=C", "--attr-scales=", "--skip-impl=ref", DESC, *FWD]
    assert conv(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["problem"] == "--dir=FWD_D --dt=f16 mb1_ic8oc4_ih4oh4kh3ph1"
    assert cli.main(["gemm", "--matmul", "--runtime_dims_masks=", "--bia_mask=2", "4x4:4x4", "--dt=f16", "--json"]) == 0


def test_run_groups_samples(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert conv("mb1ic8oc16ih12kh3ph1", *FWD, "--run-groups", "5", "--json") == 0
    assert len(machine.executed[0].groups or ()) == 5
    assert json.loads(capsys.readouterr().out)["run"]["checked"] == 5 * 64


# Verdicts and empty problems


def test_a_mismatch_exits_1(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    machine.spoil = lambda memory: memory["dst"].__setitem__(5, 77)
    assert conv(DESC, *FWD, "--run", "-o", "k") == 1
    assert capsys.readouterr().out.splitlines()[-1].split() == ["result", "FAILED"]
    assert len(files()) == 3


def test_a_finding_exits_1(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    machine.findings = (finding(),)
    assert conv(DESC, *FWD, "--run", "--json") == 1
    run = json.loads(capsys.readouterr().out)["run"]
    assert (run["status"], run["mismatches"]) == ("failed", 0)
    assert run["findings"][0].startswith("wait-count: ")


def test_an_empty_problem_writes_a_record_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert conv("mb0" + DESC[3:], *FWD, "--run", "--run-groups", "3", "--json", "-o", "k") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["launches"] == []
    assert data["files"] == {"asm": None, "object": None, "launch": "k.launch.json"}
    assert (data["run"]["status"], data["run"]["checked"]) == ("passed", 0)
    assert files() == ["k.launch.json"]
    record = LaunchRecord.from_json(Path("k.launch.json").read_text())
    assert (record.object, record.launches) == (None, ())
    assert cli.main(["run", "k.launch.json"]) == 0


def test_without_an_assembler(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    driver.changes = {"object": None}
    assert conv(DESC, *FWD, "-o", "k") == 0
    assert files() == ["k.launch.json", "k.s"]
    assert json.loads(Path("k.launch.json").read_text())["object"] is None
    (note,) = capsys.readouterr().err.splitlines()
    assert "no assembler found (any will do)" in note
    assert conv(DESC, *FWD, "-o", "k", "--run") == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "no assembler was found (any will do)" in error


def test_run_replays_a_record(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    assert conv(DESC, *FWD, "-o", "out/k") == 0
    assert cli.main(["run", "out/k.launch.json", "--out", "arrays", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["status"], data["checked"]) == ("passed", 64)
    assert files()[0] == "arrays/dst.npy"
    machine.findings = (finding(),)
    assert cli.main(["run", "out/k.launch.json"]) == 1
    assert "FAILED" in capsys.readouterr().out


# Wrong requests; what each is told stands in `test_messages`


@pytest.mark.parametrize(
    "arguments", [[f"ic{'9' * 5000}oc4ih4kh1"], [DESC, "--dtag", "ab\ncd"], [DESC, "--seed", "\u0664"]]
)
def test_odd_requests_get_a_short_line(
    driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert conv(*arguments, "-o", "k") == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("convgen: given ")
    assert len(line) < 400
    assert files() == []


def test_the_caret_stands_before_the_character(
    driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conv("mb1ic64ih56zz5") == 2
    assert capsys.readouterr().err.endswith("at column 12: mb1ic64ih56^zz5\n")


def test_on_a_terminal_the_caret_stands_below(
    driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "on_terminal", lambda: True)
    assert conv("mb1ic64ih56zz5") == 2
    *_, text, caret = capsys.readouterr().err.splitlines()
    assert text[caret.index("^") :] == "zz5"


ERRORS: list[tuple[BaseException, int, str]] = [
    (Unsupported("grouped convolution"), 2, "grouped convolution"),
    (ConvgenError("two\nlines"), 3, "two lines"),
    (DoesNotFit("300 registers"), 3, "300 registers"),
    (ZeroDivisionError("by zero"), 3, "ZeroDivisionError"),
    (RecursionError(), 3, "RecursionError"),
]


@pytest.mark.parametrize(("error", "code", "message"), ERRORS)
def test_errors_of_the_driver(
    driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    driver.error = error
    error.add_note("pass: simplify")
    assert conv(DESC, *FWD, "-o", "k") == code
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert ("pass: simplify" in line) == (code == 3)
    assert files() == []


def test_the_worst_of_several_counts(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str]) -> None:
    machine.findings = (finding(),)
    assert conv(DESC, "ic4", DESC, *FWD, "--run", "--json") == 2
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("blocked", ["k.s", "k.hsaco", "k.launch.json"])
def test_all_files_or_none(driver: Driver, machine: Target, capsys: pytest.CaptureFixture[str], blocked: str) -> None:
    Path(blocked).mkdir()
    assert conv(DESC, *FWD, "-o", "k") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert blocked in line
    assert files() == []


# The program


def test_help_is_light() -> None:
    script = (
        "import sys, convgen.commands.cli\n"
        "assert convgen.commands.cli.main(['--help']) == 0\n"
        "heavy = {'numpy', 'attrs', 'attr', 'rich', 'ml_dtypes'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "conv [KNOBS]" in done.stdout


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([command, "--help"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: convgen {command} ")
    assert "examples:\n  " in out
    assert f"convgen {command}" in out[out.index("examples:") :]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", "[OPTIONS] FILE"),
        ("explain", "[OPTIONS] PROBLEM|FILE"),
        ("map", "[OPTIONS] [DESC]"),
        ("diff", "[OPTIONS] A [B]"),
        ("conv", "[OPTIONS] [DESC ...]"),
    ],
)
def test_usage_says_how_many_words_a_command_takes(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert capsys.readouterr().out.splitlines()[0] == f"usage: convgen {command} {words}"


def test_summaries_of_commands_are_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    summaries = [summary for *_, summary in cli.COMMANDS.values()]
    columns = {line.index(summary) for line in lines for summary in summaries if line.endswith(f"  {summary}")}
    assert len(columns) == 1


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == cli.main(["help"]) == 0
    first, second = capsys.readouterr().out.split("usage: convgen COMMAND")[1:]
    assert first == second
    with pytest.raises(SystemExit):
        cli.main(["help", "batch"])
    assert capsys.readouterr().out.startswith("usage: convgen batch ")
    assert cli.main(["help", "bach"]) == 2
    assert capsys.readouterr().err.startswith("convgen: given 'bach' (did you mean batch?), wanted one of ")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"convgen {convgen.__version__}\n"
    assert convgen.__version__ == version("convgen")


def test_the_module_is_the_program() -> None:
    done = subprocess.run([sys.executable, "-m", "convgen", "conv", "ic4"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_the_api_is_lazy() -> None:
    script = "import sys, convgen\nassert 'numpy' not in sys.modules\nassert convgen.Conv.parse('ic4oc4ih4kh1').ic == 4"
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="flight"):
        _ = convgen.flight
