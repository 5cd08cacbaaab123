"""Dumps: files that replay to the same code, diffs that people read, and what a crash leaves behind."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

from convgen import driver
from convgen.backends import target as targets
from convgen.backends.amdgpu.targets import AmdTarget
from convgen.backends.stages import MachineKernel, Stage
from convgen.commands import cli
from convgen.compile_steps import steps
from convgen.ir.error import VerifyError
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import mutate
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import Barrier, GlobalLoad, empty
from convgen.ir.types import scalar
from convgen.passes import pipeline
from convgen.passes.pipeline import PASSES, Pass
from convgen.problem.matmul import parse_problem
from convgen.show import dumps, pass_checker, watch
from tests.gen.test_hand_written import saxpy

STAGES = targets.get("gfx942").stages
_TITLE = r"^// \w+ (as built|after \w+)$"

LINE = ["conv", "mb1ic16oc16ih6kh3ph1", "--dir", "FWD_D", "--dt", "f16"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def output(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    assert cli.main(arguments) == code
    out, err = capsys.readouterr()
    return out, err


def test_every_dump_replays_to_the_same_code(capsys: pytest.CaptureFixture[str]) -> None:
    asm, err = output(capsys, *LINE, "--dump-dir", "d")
    assert err == ""
    written = sorted(Path("d").iterdir())
    names = [re.sub(r"^conv_fwd_d_[0-9a-f]{8}_main", "k", path.name) for path in written]
    files, listings = written[: 1 + len(PASSES)], enumerate(STAGES, 1 + len(PASSES))
    assert names[: len(files)] == ["k.00.built.dump", *(f"k.{n:02}.{p.name}.dump" for n, p in enumerate(PASSES, 1))]
    assert names[len(files) :] == [f"k.{n:02}.{stage.name}.txt" for n, stage in listings]
    for path in files:
        assert output(capsys, "replay", str(path)) == (asm, "")
    assert output(capsys, "replay", str(files[3]), "--run")[0].endswith("PASSED\n")


def test_disabled_passes_stay_off(capsys: pytest.CaptureFixture[str]) -> None:
    off = ["--disable", "place_lets", "--disable", "simplify"]
    asm, _ = output(capsys, *LINE, *off, "--dump-dir", "d", "--dump", "after:lower_tiles")
    (path,) = Path("d").iterdir()
    assert "# disable: place_lets,simplify\n" in path.read_text()
    assert output(capsys, "replay", str(path))[0] == asm
    assert output(capsys, "replay", str(path), "--disable", "rotate_fragments")[0] == asm


def test_a_hand_written_kernel_replays(capsys: pytest.CaptureFixture[str]) -> None:
    program = driver.wrap(saxpy(), "gfx950", {"n": 5})
    text = dumps.to_text(program, program.ir.kernels[0], None)
    assert text.startswith('# convgen dump\n# target: gfx950\n# scalars: {"n": 5}\n')
    Path("k.dump").write_text(text)
    assert output(capsys, "replay", "k.dump", "--check-passes") == (driver.compile(program).asm, "")


def test_a_dump_that_breaks_the_ir_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    program = driver.wrap(saxpy(), scalars={"n": 5})
    text = dumps.to_text(program, program.ir.kernels[0], None)
    Path("k.dump").write_text(text.replace("in surface(y, 0, 1024) = ", "in lane = "))
    assert output(capsys, "replay", "k.dump", code=2)[1] == (
        "convgen: given a kernel that breaks a rule of the IR, saxpy: lane is not a surface that all lanes share,"
        " in k.dump\n"
    )


def test_two_buffers_of_one_name_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    program = driver.wrap(saxpy(), scalars={"n": 5})
    text = dumps.to_text(program, program.ir.kernels[0], None)
    Path("k.dump").write_text(text.replace(" x: s32", " y: s32"))
    err = output(capsys, "replay", "k.dump", code=2)[1]
    assert err.startswith("convgen: two buffers or shared tiles are called y, in line 4, at column 47: kernel saxpy(")


def test_another_problems_kernel_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, *LINE, "--dump-dir", "d", "--dump", "after:simplify")
    (path,) = Path("d").iterdir()
    path.write_text(path.read_text().replace("_ih6oh6", "_ih7oh7"))
    err = output(capsys, "replay", str(path), code=2)[1]
    assert re.fullmatch(r"convgen: given kernel (\w+), wanted one of the problem's \(\w+\), in \1\.\S+\n", err)


def test_changed_prints_diffs(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = output(capsys, *LINE, "--dump", "changed")
    titles = re.findall(_TITLE, err, re.MULTILINE)
    assert titles[0] == "as built"
    assert set(titles[1:]) <= {f"after {step.name}" for step in steps("gfx942")}
    assert {"after lower_tiles", "after schedule"} < set(titles)
    sections = dict(zip(titles, re.split(_TITLE, err, flags=re.MULTILINE)[2::2]))
    whole = {"as built", "after select", "after allocate", "after print"}  # of another form than what was before
    assert {title for title, section in sections.items() if "\n@@ " not in section} == whole
    first = err.index("// ", 3)
    assert "\n+" not in err[:first]
    assert re.search(r"^@@ .* @@$", err[first:], re.MULTILINE)
    assert re.search(r"^-    .*copy ", err[first:], re.MULTILINE)
    assert "\x1b[" not in err


def test_all_prints_each_step_whole(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = output(capsys, *LINE, "--dump", "all")
    assert err.count("\nkernel conv_fwd_d_") == 1 + len(PASSES)
    assert err.count("\nfunction conv_fwd_d_") == len(STAGES) - 1  # the last one's is the assembly
    assert len(re.findall(_TITLE, err, re.MULTILINE)) == 1 + len(PASSES) + len(STAGES)
    for name in ("lower_tiles", "schedule"):
        _, err = output(capsys, *LINE, "--dump", f"after:{name}")
        assert re.findall(_TITLE, err, re.MULTILINE) == [f"after {name}"]


def test_stages_may_be_off(capsys: pytest.CaptureFixture[str]) -> None:
    asm, _ = output(capsys, *LINE)
    other, err = output(capsys, *LINE, "--disable", "schedule", "--dump", "changed", "--check-passes")
    assert sorted(_instructions(asm)) != _instructions(asm) != _instructions(other)
    assert "after select" in err
    assert "after schedule" not in err
    err = output(capsys, *LINE, "--target", "xehpc", "--disable", "schedule", code=2)[1]
    assert err.endswith("split_barriers, order, flags, coalesce, inplace, fences, signals, payloads, syncs\n")


def _instructions(asm: str) -> list[str]:
    return [line.split("//")[0].strip() for line in asm.splitlines() if line.startswith("    v_mfma")]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_diffs_are_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    seen = watch.Watch(stream, "changed")
    driver.compile(driver.wrap(saxpy(), options=seen.options(), scalars={"n": 5}))
    lines = stream.getvalue().splitlines()
    assert any(line.startswith("\x1b[32m+") for line in lines)
    assert any(line.startswith("\x1b[31m-") for line in lines)


# What goes wrong


def broken(name: str, change: object) -> tuple[Pass, ...]:
    """The pipeline with one pass replaced."""
    return tuple(Pass(p.name, p.level, p.kind, change) if p.name == name else p for p in PASSES)  # type: ignore[arg-type]


def forget_barriers(kernel: Kernel, facts: TargetFacts) -> Kernel:
    return evolve(kernel, body=mutate(kernel.body, {Barrier: lambda node: empty}))


def forget_loads(kernel: Kernel, facts: TargetFacts) -> Kernel:
    return evolve(kernel, body=mutate(kernel.body, {GlobalLoad: lambda node: empty}))


def raise_error(kernel: Kernel, facts: TargetFacts) -> Kernel:
    raise ZeroDivisionError("by zero")


def test_check_passes_is_content(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, *LINE, "--check-passes") == output(capsys, *LINE)


@pytest.mark.parametrize(
    ("budget", "note"),
    [
        (40, r"passes were checked on \d of the 13 workgroups of \w+"),
        (1, r"\w+ is too long to interpret: passes were verified only"),
    ],
)
def test_check_passes_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, budget: int, note: str
) -> None:
    monkeypatch.setattr(pass_checker, "_BUDGET", budget)
    monkeypatch.setattr(pass_checker, "_MOST", 4 * budget)
    config = "tile=32x32x16 waves=1x1 mma=32x32x8"
    _, err = output(capsys, "conv", "mb1ic16oc16ih20kh1", *LINE[2:], "--check-passes", "--config", config)
    assert re.fullmatch(rf"convgen: note: {note}\n", err)


def test_check_passes_finds_a_lost_barrier(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pipeline, "PASSES", broken("simplify", forget_barriers))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, err = output(capsys, *LINE, "--check-passes", code=3)
    first = err.splitlines()[0]
    assert first.startswith("convgen: internal error: InterpError: ")
    assert "(pass: simplify)" in first
    (path,) = tmp_path.glob("*.dump")
    assert "# after: expand_conversions\n" in path.read_text()


def test_the_verifier_names_the_pass_and_points(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Found after the last pass, blamed on the one that broke it; the excerpt marks the place."""
    last = 1 + [p.name for p in PASSES].index("resolve_packs")
    monkeypatch.setattr(pipeline, "PASSES", broken("resolve_packs", forget_loads)[:last])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, err = output(capsys, *LINE, code=3)
    first, *excerpt = err.splitlines()
    assert first.startswith("convgen: internal error: VerifyError: conv_fwd_d_")
    assert "(pass: resolve_packs)" in first
    assert any(line.lstrip().startswith("^ ") for line in excerpt)
    (path,) = tmp_path.glob("*.dump")  # as it was before that pass
    assert f"# after: {PASSES[last - 2].name}\n" in path.read_text()


def test_a_crash_leaves_a_dump_that_replays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asm, _ = output(capsys, *LINE)
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "PASSES", broken("expand_division", raise_error))
        patched.setattr("tempfile.tempdir", str(tmp_path))
        _, err = output(capsys, *LINE, code=3)
    (path,) = tmp_path.glob("*.dump")
    assert err == (f"convgen: internal error: ZeroDivisionError: by zero (pass: expand_division) (dump: {path})\n")
    before = PASSES[[p.name for p in PASSES].index("expand_division") - 1]
    assert f"# after: {before.name}\n" in path.read_text()
    assert output(capsys, "replay", str(path))[0] == asm


def test_check_passes_finds_what_a_stage_breaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stage whose function breaks a rule is named; the dump is that of the last pass."""

    def turn_round(made: MachineKernel) -> MachineKernel:
        return evolve(made, function=made.code.rewritten(lambda index, block: reversed(block.instructions)))

    stages = [Stage("waits", turn_round) if stage.name == "waits" else stage for stage in STAGES]
    monkeypatch.setattr(AmdTarget, "stages", stages)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, err = output(capsys, *LINE, "--check-passes", code=3)
    (path,) = tmp_path.glob("*.dump")
    assert re.fullmatch(rf"convgen: internal error: VerifyError: .* \(stage: waits\) \(dump: {path}\)\n", err)
    assert f"# after: {PASSES[-1].name}\n" in path.read_text()


def test_a_changed_value_is_found() -> None:
    """A pass that turns every sum into a difference."""
    from convgen.ir.expr import Add, Sub
    from convgen.show.pass_checker import PassChecker

    kernel = saxpy().done()
    wrong = evolve(kernel, body=mutate(kernel.body, {Add: lambda e: Sub(e.a, e.b)}))
    checker = PassChecker({"n": 3})
    checker.observe(PASSES[0], kernel, kernel, 0.0)
    with pytest.raises(VerifyError, match=rf"saxpy: {PASSES[0].name} changes what is computed: \d+ bytes of buffer y"):
        checker.observe(PASSES[0], kernel, wrong, 0.0)


def test_scales_that_are_powers_of_two_are_checked_as_numbers() -> None:
    """Where views end they hold what zeros of memory are, as messages do; of NaN any would be right."""
    problem = parse_problem("--dt=bf16:bf16:f8_e5m2 --attr-scales=wei:per_ocic:e8m0:2x1 32x34:34x16")
    checker = pass_checker.PassChecker()
    driver.compile(driver.build(problem, "gfx942", observe=checker.observe))
    assert not checker.notes
    (found,) = (memory["dst"] for memory in checker._expected.values())
    assert np.isfinite(found.view(scalar("f8_e5m2").numpy).astype(np.float32)).all()


def test_a_broken_rule_is_found_after_the_pass() -> None:
    kernel = saxpy().done()
    wrong = evolve(kernel, params=(*kernel.params, kernel.params[-1]))
    with pytest.raises(VerifyError, match="two arguments or shared tiles are called y"):
        pass_checker.PassChecker({"n": 3}).observe(PASSES[0], kernel, wrong, 0.0)
