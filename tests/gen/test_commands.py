"""Commands besides `conv`, and what `-v` and `--time-passes` tell."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from convgen.backends.target import get, names
from convgen.choose.choose import candidates
from convgen.commands import cli
from convgen.compile_steps import steps
from convgen.driver import Attempt
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from convgen.show import report

CONV = ["conv", "mb1ic16oc16ih6kh3ph1", "--dir", "FWD_D", "--dt", "f16"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert cli.main(arguments) == code
    out, err = capsys.readouterr()
    return out, err


# gemm


def test_gemm_runs(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = output(
        capsys, "gemm", "40x24:24x20", "--dt", "f16:f16:f32", "--wtag=ab", "-o", "out/g", "--run", "--json"
    )
    data = json.loads(out)
    assert err == ""
    assert data["problem"] == "--dt=f16:f16:f32 --wtag=ab 40x24:24x20"
    assert (data["run"]["status"], data["run"]["checked"]) == ("passed", 800)
    assert sorted(path.name for path in Path("out").iterdir()) == ["g.hsaco", "g.launch.json", "g.s"]
    out, _ = output(capsys, "run", "out/g.launch.json", "--json")
    assert json.loads(out)["checked"] == 800


def test_gemm_samples(capsys: pytest.CaptureFixture[str]) -> None:
    config = "tile=32x32x16 waves=1x1 mma=16x16x16"
    out, _ = output(capsys, "gemm", "100x16:16x40", "--dt=f16", "--config", config, "--run-groups=2", "--json")
    run = json.loads(out)["run"]
    assert (run["status"], run["checked"]) == ("passed", 32 * 32 + 32 * 8)  # the corners of the first row of tiles


def test_an_empty_gemm(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = output(capsys, "gemm", "0x4:4x8", "--dt", "f16", "--run", "--json")
    data = json.loads(out)
    assert (data["launches"], data["run"]["status"]) == ([], "passed")


# listings


def test_passes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(output(capsys, "passes", "--json")[0])
    assert [row["name"] for row in rows] == [step.name for step in steps("gfx942")]
    assert {row["kind"] for row in rows} == {"lowering", "optimising"}
    assert {row["level"] for row in rows} == {"tile", "message", "machine"}
    assert all(row["contract"].endswith(".") and "\n" not in row["contract"] for row in rows)
    header, *lines = output(capsys, "passes")[0].splitlines()
    assert header.split() == ["name", "level", "kind", "contract"]
    assert [line.split()[0] for line in lines] == [step.name for step in steps("gfx942")]


def test_targets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    header, *lines = output(capsys, "targets")[0].splitlines()
    assert header.split()[0] == "target"
    assert [line.split()[0] for line in lines] == list(names())
    assert "mi300x" in lines[1]
    listed = json.loads(output(capsys, "targets", "--json")[0])
    assert [each["target"] for each in listed] == [line.split()[0] for line in lines]
    assert "pvc" in listed[4]["products"]


def test_matrix_instructions_of_a_target_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    header, *lines = output(capsys, "targets", "gfx942")[0].splitlines()
    assert header.split() == ["mma", "instruction", "a", "b", "sums", "clocks"]
    assert ["32x32x8", "v_mfma_f32_32x32x8_f16", "f16", "f16", "f32", "32"] in [line.split() for line in lines]


def test_a_product_is_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    said = output(capsys, *CONV, "--target", "MI300X", code=2)[1]
    assert "given target 'MI300X', which runs code for gfx942, wanted one of" in said


# watching


def test_the_chooser_tells(capsys: pytest.CaptureFixture[str]) -> None:
    _, tried = output(capsys, *CONV, "-v")[1].split("\n\n")
    header, *rows = tried.splitlines()
    assert header.split() == ["config", "clocks", "registers", "allocated", "shared", "verdict"]
    assert rows[-1].startswith("tile=")
    assert rows[-1].endswith("taken")
    assert "vgpr " in rows[-1]
    given = "tile=32x32x16 waves=1x1 mma=16x16x16 slots=1 taps=split acc=v"
    (row,) = output(capsys, *CONV, "-v", "--config", given)[1].splitlines()[1:]
    assert row.startswith(f"{given}  given ")


ATTEMPTS = [
    Attempt(Config((32, 16, 16), (1, 1), (16, 16, 16)), 1234.4, refused="about 300 registers, at most 256"),
    Attempt(Config((32, 32, 16), (1, 1), (32, 32, 8)), 1300.0, 80, 4096, None, {"vgpr": 64, "agpr": 16}),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_the_choosers_table(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    report.show_table(*report.attempts_table(ATTEMPTS), stream)
    _, refused, taken = stream.getvalue().splitlines()
    assert refused.split()[-8:] == ["1234", "refused:", "about", "300", "registers,", "at", "most", "256"]
    assert taken.split()[-8:] == ["1300", "80", "vgpr", "64", "agpr", "16", "4096", "taken"]


def test_rows_have_styles_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    texts = []
    for stream in (io.StringIO(), Terminal()):
        report.show_table(("at",), [("hot",), ("cold",)], stream, ["bold red", ""])
        texts.append(stream.getvalue())
    assert "\x1b" not in texts[0]
    hot, cold = texts[1].splitlines()[1:]
    assert "\x1b[1;31mhot" in hot
    assert "\x1b" not in cold


def test_stages_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = output(capsys, *CONV, "--time-passes")[1].splitlines()
    assert header.split() == ["stage", "ms", "share"]
    names = [row.split()[0] for row in rows]
    assert names[:2] == ["plan", "build"]
    assert names[2:] == [*(step.name for step in steps("gfx942")), "assemble", "all"]
    times = [float(row.split()[1]) for row in rows]
    assert abs(sum(times[:-1]) - times[-1]) < 0.1 * len(times)


# completion


def complete(script: str, words: list[str]) -> list[str]:
    """What bash offers for the last word."""
    array = " ".join(f"'{word}'" for word in words)
    query = f'COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _convgen; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{query}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


COMPLETIONS = [
    (["convgen", "re"], ["replay"]),
    (["convgen", "conv", "--run-"], ["--run-groups"]),
    (["convgen", "conv", "x", "--dir", "BWD_W"], ["BWD_W", "BWD_WB"]),
    (["convgen", "gemm", "--target", "gfx9"], ["gfx90a", "gfx942", "gfx950"]),
    (["convgen", "gemm", "--disable", "simp"], ["simplify"]),
    (["convgen", "b"], ["batch"]),
    (["convgen", "batch", "f", "--res"], ["--resume"]),
    (["convgen", "tune", "f", "--reg"], ["--registry"]),
    (["convgen", "batch", "f", "--dt", "bf"], ["bf16"]),
    (["convgen", "passes", "--j"], ["--json"]),
    (["convgen", "completion", "z"], ["zsh"]),
]


@pytest.mark.parametrize(("words", "offered"), COMPLETIONS)
def test_completion(capsys: pytest.CaptureFixture[str], words: list[str], offered: list[str]) -> None:
    assert complete(output(capsys, "completion", "bash")[0], words) == offered


def test_zsh_reads_the_same_script(capsys: pytest.CaptureFixture[str]) -> None:
    bash, zsh = (output(capsys, "completion", shell)[0] for shell in ("bash", "zsh"))
    assert zsh.startswith("#compdef convgen\n")
    assert zsh.endswith(bash)
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n"], input=zsh, text=True, check=True)


def test_the_ranking_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-v tells of the best configs what their clocks consist of, and which was tried."""
    assert (
        cli.main(["conv", "mb1ic64ih14oc64oh14kh3ph1", "--dir", "FWD_D", "--dt", "f16", "-v", "-o", f"{tmp_path}/k"])
        == 0
    )
    ranking, tried = capsys.readouterr().err.split("\n\n")
    rows = [re.split(r" {2,}", line) for line in ranking.splitlines()]
    assert rows[0][:3] == ["rank", "config", "clocks"]
    assert [row[0] for row in rows[1:]] == [str(n) for n in range(1, 11)]
    clocks = [int(row[2]) for row in rows[1:]]
    assert clocks == sorted(clocks)
    assert rows[1][1] in tried
    problem = Conv.parse("mb1ic64ih14oc64oh14kh3ph1", dir="FWD_D", dt="f16")
    for candidate in candidates(problem, get("gfx942").facts)[:50]:
        parts = candidate.clocks
        assert parts is not None
        assert candidate.score == pytest.approx(parts.launch + parts.slice_reduction)
        assert parts.pace >= max(parts.matrix, parts.shared, parts.loading, parts.issue) + parts.serial


# profile


def test_a_profile_of_launches(capsys: pytest.CaptureFixture[str]) -> None:
    """Two launches: a fill of zeros and the product. Text, JSON and a timeline of the same."""
    config = "tile=32x32x16 waves=1x1 mma=32x32x8 slices=2 sum=atomic"
    output(capsys, "gemm", "64x64:64x64", "--dt", "f16:f16:f32", "--config", config, "-o", "k")
    text, err = output(capsys, "profile", "k.launch.json", "--timeline", "t.json")
    assert err == ""
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("bound")] == ["launch"] * 2
    rates = r"[0-9.]+ TFLOP/s of the problem, [0-9.]+ TFLOP/s of matrix instructions with padding"
    assert re.search(rf"^all launches +[0-9.]+ us, {rates}$", text, re.MULTILINE)
    told = json.loads(output(capsys, "profile", "k.launch.json", "--json", "--chip", "mi300a")[0])
    assert told["chip"] == {"name": "mi300a", "target": "gfx942", "units": 228, "xcds": 6}
    assert told["us"] == pytest.approx(sum(launch["us"] for launch in told["launches"]), abs=1e-3)
    fill, product = told["launches"]
    assert product["flop"] == 2 * 64**3
    assert product["moved"]["added"] == 2 * fill["moved"]["stored"] == 2 * 64 * 64 * 4
    kinds = {line["kind"] for line in product["units"][0]["lines"]}
    assert kinds >= {"mfma", "vmem_load", "vmem_atomic"}
    names = {event["name"] for event in json.loads(Path("t.json").read_text())["traceEvents"]}
    assert {f"+{line['offset']:#06x} {line['text']}" for line in product["units"][0]["lines"]} <= names


def test_a_profile_of_a_launch_for_nvidia(capsys: pytest.CaptureFixture[str]) -> None:
    """A small product by a ring: JSON has the keys of AMD's launches, pipes and instructions have NVIDIA's names."""
    config = "tile=64x64x64 waves=1x4 mma=64x64x16 slots=3 copy=tensor"
    given = ("gemm", "128x256:256x128", "--dt", "f16", "--wtag", "ba", "--target", "sm_90a", "--config", config)
    output(capsys, *given, "-o", "k")
    text, err = output(capsys, "profile", "k.launch.json", "--timeline", "t.json", "-v")
    assert err == ""
    labels = "kernel grid rounds executed loop clocks busy L1 L2 memory clock alone time bound".split()
    assert [line.split()[0] for line in text.splitlines()[: len(labels)]] == labels
    assert re.search(r"^chip +h200 \(sm_90a\), 132 units", text, re.MULTILINE)
    assert re.search(r"^constants +convgen code/h200: ", text, re.MULTILINE)
    told = json.loads(output(capsys, "profile", "k.launch.json", "--json", "--chip", "h200")[0])
    assert told["chip"] == {"name": "h200", "target": "sm_90a", "units": 132, "xcds": 1}
    (launch,) = told["launches"]
    assert set(launch) == KEYS_OF_A_LAUNCH
    (unit,) = launch["units"]
    assert set(unit) == {"groups", "clocks", "rounds", "each", "left_out", "busy", "bound", "lines"}
    assert set(unit["busy"]) == {"matrix", "alu", "fma", "shared", "lsu", "tma", "loads", "issue"}
    assert launch["flop"] == 2 * 128 * 256 * 128
    assert (launch["workgroups"], launch["full"], launch["rounds"], launch["last"]) == (4, 1, 0, 1)
    assert {line["kind"] for line in unit["lines"]} >= {"mma", "wait", "cp_async", "alu"}
    names = {event["name"] for event in json.loads(Path("t.json").read_text())["traceEvents"]}
    assert {f"+{line['offset']:#06x} {line['text']}" for line in unit["lines"]} <= names


def test_code_for_nvidia_is_profiled_with_its_launch(capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "gemm", "64x64:64x64", "--dt", "f16", "--target", "sm_80", "-o", "k")
    assert cli.main(["profile", "k.ptx"]) != 0
    said = "without a launch, wanted a launch record, or --grid and --block"
    assert (
        capsys.readouterr().err.strip()
        == f"convgen: unsupported: profile of k.ptx: given NVIDIA's Ampere and later {said}"
    )
    text, _ = output(capsys, "profile", "k.launch.json")
    assert re.search(r"^chip +a100 \(sm_80\), 108 units", text, re.MULTILINE)


#: Keys of a launch in the JSON of `convgen profile`.
KEYS_OF_A_LAUNCH = set(
    "kernel workgroups threads held full rounds last executed distinct instructions work flop element moved clock_mhz "
    "matrix_used causes_us start_us kernel_us meeting_us us bound constants units findings seconds".split()
)


# words


def test_labels_of_any_length_stand_apart_from_their_text() -> None:
    stream = io.StringIO()
    report.show([("bank conflicts", "1, in all"), ("mix", "mfma 1")], stream)
    assert stream.getvalue().splitlines() == ["bank conflicts  1, in all", "mix             mfma 1"]


def test_straight_line_code_has_no_iteration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output(capsys, "gemm", "32x32:32x32", "--dt", "f16", "-o", "k")
    text = output(capsys, "profile", "k.hsaco")[0]
    assert "iteration" not in text
    assert "hot code" in text
    assert json.loads(output(capsys, "profile", "k.hsaco", "--json")[0])["kernels"][0]["loops"][0]["loop"] is False


def test_the_longest_stalls_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "gemm", "64x256:256x64", "--dt", "f16", "-o", "k")
    table = output(capsys, "profile", "k.hsaco")[0].split("stall clocks")[1].splitlines()[1:]
    stalls = [float(line.split()[2]) for line in table if line.startswith("+")]
    assert stalls == sorted(stalls, reverse=True)


def test_shares_of_a_difference_have_no_noise(capsys: pytest.CaptureFixture[str]) -> None:
    config = "tile=64x64x32 waves=2x2 mma=32x32x8"
    given = ("diff", "mb1ic64oc64ih14oh14kh3ph1", "--dir", "FWD_D", "--dt", "f16", "--config", config)
    for line in output(capsys, *given)[0].splitlines():
        assert "e-" not in line.partition("hits, %")[2]
