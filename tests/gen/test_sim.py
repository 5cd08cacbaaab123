"""`python -m convgen.sim`: the commands for code objects, without any module of the generator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from convgen import sim

SOFTMAX = Path(__file__).parents[1] / "data" / "foreign" / "triton_gfx942_softmax_f32.hsaco"
ZEBIN = Path(__file__).parents[1] / "data" / "intel" / "arithmetic_dg2.bin"
LAUNCH = ("--grid", "1", "--block", "256")

#: Packages and modules that generate code.
GENERATOR = ("plan", "epilogue", "choose", "kernels", "tile", "driver", "compile_steps", "passes", "backends.stages")

#: Runs a command line and prints its exit code and the modules of ours that it imported.
PROBE = """
import sys
from convgen import sim
print("exit", sim.main(sys.argv[1:]))
print(*(name.removeprefix("convgen.") for name in sys.modules if name.startswith("convgen.")))
"""


def probed(*words: str) -> tuple[str, list[str]]:
    """Return the exit code of a command line in a new interpreter, and the modules that it imported."""
    done = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=True)
    *_, code, modules = done.stdout.splitlines()
    return code.removeprefix("exit "), modules.split()


@pytest.mark.parametrize(
    "words",
    [
        (str(SOFTMAX),),
        ("check", str(ZEBIN), "--block", "16"),
        ("run", str(SOFTMAX), *LAUNCH, "--arg", "0=f32:2048", "--arg", "1=zeros:f32:2048", "--arg", "2=64"),
    ],
    ids=("amd", "intel", "run"),
)
def test_no_module_of_the_generator_is_imported(words: tuple[str, ...]) -> None:
    _, modules = probed(*words)
    assert any(".sim." in name for name in modules), "the simulator did not run"
    generator = [name for name in modules if f"{name}.".startswith(tuple(f"{package}." for package in GENERATOR))]
    assert not generator


def test_a_file_without_a_command_is_checked() -> None:
    assert sim.command_line(["k.hsaco", "--json"]) == ["check", "k.hsaco", "--json"]
    assert sim.command_line(["run", "k.hsaco"]) == ["run", "k.hsaco"]


def test_the_module_exits_with_the_verdict(tmp_path: Path) -> None:
    def executed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "convgen.sim", *words], capture_output=True, text=True)

    assert executed(str(SOFTMAX)).returncode == 1  # LDS of the launch is missing
    clean = executed(str(SOFTMAX), "--lds", "16")
    assert (clean.returncode, clean.stdout.splitlines()[-1].split()) == (0, ["verdict", "CLEAN"])
    nothing = executed(str(tmp_path / "k.hsaco"))
    assert nothing.returncode == 2
    assert len(nothing.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_without_a_file_the_usage_is_printed(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert sim.main(words) == 0
    assert capsys.readouterr().out.startswith("usage: python -m convgen.sim")
