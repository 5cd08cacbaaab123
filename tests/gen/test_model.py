"""`convgen model`: distinct layers with counts, where the time goes, tuning, and a package, whole or not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from convgen import registry
from convgen.commands import batch, cli, workers
from convgen.problem.requests import Reader, Request, distinct
from tests.gen import perilous

KNOBS = "--dir=FWD_D --dt=f16"
SMALL = "mb1_ic16oc16_ih6oh6kh3ph1"
NET = f"""{KNOBS}
{SMALL}n"first*3"
mb1_ic16oc16_ih6oh6kh3ph1n"last"
--reset --dt=f16 64x64:64x128n"fc"
"""
LEFT_OUT = 'mb1ic16ih6oc16kh3ph1n"fused"'
RULE = "--attr-post-ops=dw:k3s1p1"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net").write_text(NET)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], list[str]]:
    """The exit code and the lines of both streams."""
    code = cli.main(["model", "net", "--jobs", "1", *words])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err.splitlines()


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the object of --json."""
    code, out, _ = run(capsys, "--json", *words)
    (line,) = out
    return code, json.loads(line)


def files(folder: str = "out") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir()) if Path(folder).exists() else []


# ---------------------------------------------------------------- the list


def test_layers_are_joined_in_order() -> None:
    joined = distinct(Reader.of({}, None, None).file(Path("net")))
    assert [(each.text, each.count, each.layers) for each in joined] == [
        (f"{KNOBS} {SMALL}", 4, ("first*3", "last")),
        ("--dt=f16 64x64:64x128", 1, ("fc",)),
    ]


def test_second_layers_of_a_name_are_told_apart() -> None:
    requests = [Request("a", layers=("x",)), Request("b", layers=("x",)), Request("a", layers=("y",))]
    assert [each.layers for each in distinct(requests)] == [("x", "y"), ("x#2",)]


def test_the_list_says_what_is_refused_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net").write_text(f"{NET}--reset {KNOBS} {RULE} {LEFT_OUT}\n--reset mb1ic4zz\n")
    code, out, err = run(capsys, "--check")
    assert code == 2
    assert not err
    cells = [line.split() for line in out[1:5]]
    assert [row[:2] for row in cells] == [
        ["supported", "4"],
        ["supported", "1"],
        ["unsupported", "1"],
        ["malformed", "1"],
    ]
    assert cells[0][2:6] == ["first*3", "and", "1", "more"]
    assert out[5].startswith("net:5: unsupported: ")
    assert out[6].startswith("net:6: given ")
    assert out[8] == "7 layers, 4 distinct: 2 supported, 1 unsupported, 1 malformed on gfx942"
    code, data = told(capsys, "--check")
    assert code == 2
    assert [row["rule"] for row in data["problems"]] == [None, None, "post-op-dw", None]
    assert data["problems"][0]["layers"] == ["first*3", "last"]


# ---------------------------------------------------------------- the work


def test_the_time_is_that_of_all_layers(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = told(capsys)
    assert code == 0
    conv, product = data["problems"]
    assert [row["status"] for row in (conv, product)] == ["passed", "passed"]
    assert conv["run"]["checked"] == 576
    assert conv["total_us"] == pytest.approx(4 * conv["profile"]["us"], abs=1e-3)
    assert data["us"] == pytest.approx(conv["total_us"] + product["total_us"], abs=1e-3)
    assert conv["share"] == pytest.approx(conv["total_us"] / data["us"], abs=1e-4)
    assert conv["profile"]["model"] == "mi300x"
    assert 0 < conv["profile"]["matrix"] < 1


def test_the_time_is_that_of_convgen_profile(capsys: pytest.CaptureFixture[str]) -> None:
    _, data = told(capsys, "-o", "out", "--no-run")
    records = [kernel["launch"] for kernel in json.loads(Path("out/model.json").read_text())["kernels"]]
    for row, record in zip(data["problems"], records, strict=True):
        assert cli.main(["profile", f"out/{record}", "--json"]) == 0
        profile = json.loads(capsys.readouterr().out)
        assert row["profile"]["us"] == profile["us"]
        assert row["profile"]["bound"] == profile["launches"][0]["bound"]
        assert row["status"] == "generated"


def test_the_table_begins_with_what_takes_longest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net").write_text(f'--dir=FWD_D --dt=f16 {SMALL}n"short"\n--reset --dt=f16 512x512:512x512n"long*9"\n')
    code, out, err = run(capsys, "--no-run")
    assert code == 0
    header, first, second, empty, counts, total = out
    assert header.split() == ["status", "us", "all", "us", "share", "bound", "matrix", "count", "layers", "problem"]
    assert [line.split()[6] for line in (first, second)] == ["9", "1"]
    assert "long*9" in first
    assert (empty, counts) == ("", "10 layers, 2 distinct: 2 generated on gfx942")
    all_us = [float(line.split()[2]) for line in (first, second)]
    assert total.startswith("predicted time on mi300x: ")
    assert float(total.split()[-2]) == pytest.approx(sum(all_us), abs=0.11)
    assert [line.startswith("2 problems in ") for line in err] == [True]


def test_a_family_without_a_model_of_launches_shows_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--target", "xehpc", "--no-run")
    assert code == 0
    assert [line.split()[1:4] for line in out[1:3]] == [["-", "-", "-"]] * 2
    assert out[5:] == ["bound, matrix: of each kernel's loop", "no time: Intel's Xe has no model of launches"]
    _, data = told(capsys, "--target", "xehpc", "--no-run")
    assert data["us"] is None
    assert {row["profile"]["model"] for row in data["problems"]} == {"loop"}
    assert all(row["profile"]["bound"] and 0 < row["profile"]["matrix"] <= 1 for row in data["problems"])


def test_results_do_not_depend_on_the_workers(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (run(capsys, "--jobs", jobs, "-o", f"out{jobs}")[1][:-1] for jobs in ("1", "2"))
    assert one == two
    assert files("out1") == files("out2")
    for name in files("out1"):
        assert Path("out1", name).read_bytes() == Path("out2", name).read_bytes(), name


def test_the_largest_problems_are_begun_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And reported in the order of the file."""
    begun: list[str] = []

    def run_here(work: Callable[[str], Any], lines: Sequence[str], *_: object) -> Iterator[tuple[int, Any]]:
        begun.extend(lines)
        yield from enumerate(map(work, lines))

    monkeypatch.setattr(workers, "run", run_here)
    sizes = ("16x16:16x16", "64x64:64x64", "32x32:32x32")
    Path("net").write_text(f"--dt=f16 {' '.join(sizes)}\n")
    code, data = told(capsys, "--no-run")
    assert code == 0
    assert [line.split()[-1] for line in begun] == ["64x64:64x64", "32x32:32x32", "16x16:16x16"]
    assert [row["problem"].split()[-1] for row in data["problems"]] == [*sizes]


def test_tuned_configs_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = told(capsys, "--tune", "--configs", "2", "--registry", "r", "--no-run")
    assert code == 0
    entries = {entry.problem: entry for entry in registry.read(Path("r")).entries.values()}
    assert [row["problem"] for row in data["problems"]] == [*entries]
    for row in data["problems"]:
        entry = entries[row["problem"]]
        assert (row["config"], row["tuning"]["status"]) == (entry.config, "tuned")
        assert row["profile"]["us"] == pytest.approx(entry.us, abs=1e-3)
        assert row["tuning"]["chosen"]["us"] >= entry.us
    code, out, err = run(capsys, "--tune", "--configs", "2", "--registry", "r", "--no-run")
    assert (code, out[0].split()[2:4]) == (0, ["us", "chosen"])
    assert err[-1].endswith("; tuning: 2 kept")


# ---------------------------------------------------------------- the package


def test_a_package_has_every_kernel_and_its_layers(capsys: pytest.CaptureFixture[str]) -> None:
    code, data = told(capsys, "-o", "out", "--python", "--c", "net")
    assert code == 0
    listed = json.loads(Path("out/model.json").read_text())
    assert (listed["model"], listed["target"], listed["left_out"]) == ("net", "gfx942", [])
    assert [kernel["layers"] for kernel in listed["kernels"]] == [["first*3", "last"], ["fc"]]
    assert [kernel["count"] for kernel in listed["kernels"]] == [4, 1]
    stems = [kernel["launch"].removesuffix(".launch.json") for kernel in listed["kernels"]]
    of_kernels = [f"{stem}{suffix}" for stem in stems for suffix in (".s", ".hsaco", ".launch.json")]
    of_c = [f"net_{stem}.{suffix}" for stem in stems for suffix in "hc"]
    assert files() == sorted([*of_kernels, *of_c, "net.h", "model.json", "__init__.py"])
    assert sorted(data["files"]) == [f"out/{name}" for name in files()]
    for kernel in listed["kernels"]:
        assert cli.main(["run", f"out/{kernel['launch']}"]) == 0


def test_refused_layers_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    Path("net").write_text(f"{NET}--reset {KNOBS} {RULE} {LEFT_OUT}\n")
    code, out, err = run(capsys, "-o", "out", "--no-run")
    assert code == 2
    assert err[0].startswith("convgen: net:5: unsupported: ")
    assert out[-2].startswith("predicted time of 2 of 3 problems on mi300x: ")
    listed = json.loads(Path("out/model.json").read_text())
    assert len(listed["kernels"]) == 2
    ((layers, why),) = (entry.values() for entry in listed["left_out"])
    assert layers == ["fused"]
    assert why.startswith("unsupported: ")


WRONG = [('mb1ic24ih6oc16kh3ph1n"bad"', 1), ("mb1ic4zz", 2)]


@pytest.mark.parametrize(("line", "code"), WRONG)
def test_nothing_is_written_after_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, code: int
) -> None:
    monkeypatch.setattr(batch, "perform", perilous.perform_wrongly)
    Path("net").write_text(f"{NET}--reset {KNOBS} {line}\n")
    left, _, err = run(capsys, "-o", "out")
    assert left == code
    assert err[1] == "convgen: note: 1 of 3 problems went wrong, so out is not written"
    assert not Path("out").exists()


def test_a_folder_that_cannot_be_written_stays_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out/model.json").mkdir(parents=True)
    code, out, err = run(capsys, "-o", "out", "--no-run")
    assert code == 2
    assert err[0] == "convgen: cannot write out/model.json: is a directory, at -o"
    assert out[-1].startswith("predicted time on mi300x: ")  # the last line of a report without files
    assert files() == ["model.json"]


REFUSED = [
    (["--check", "-o", "out"], "given --output with --check, wanted one of them: it generates nothing"),
    (["--c", "net"], "given --c without -o, wanted a folder for the package, at -o"),
    (["--python"], "given --python without -o, wanted a folder for the package, at -o"),
    (["-o", "net"], "given 'net', wanted a folder, at -o"),
    (["-o", "a-b", "--python"], "given the folder 'a-b' with --python, wanted a name that Python can import"),
    (["-o", "class", "--python"], "given the folder 'class' with --python, wanted a name that Python can import"),
    (["-o", "out", "--c", "1"], "given the name '1' for C, wanted a letter, and letters, digits, _, - or ."),
    (["--again"], "given --again without --tune, wanted both"),
    (["--no-run", "--run"], "given --run with --no-run, wanted one of them"),
    (["--tune"], "given neither --registry nor CONVGEN_REGISTRY, wanted a file for the results"),
    (["--registry", "none"], "cannot read none: No such file or directory, at --registry"),
    (
        ["--tune", "--registry", "r", "--target", "xehpc"],
        "given the target xehpc, whose launches have no model, wanted",
    ),
    (["--match", "nothing"], "given net with no problem that is selected, wanted at least one"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_refused_as_a_whole(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out, len(err)) == (2, [], 1)
    assert message in err[0]
    assert files(".") == ["net"]
