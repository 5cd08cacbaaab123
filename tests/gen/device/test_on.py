"""`--on DEVICE`: what the command line would simulate, run on a device with the same fills and compared as exactly."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from convgen.commands import cli
from tests.gen.device.standin import StandIn

CONV = ["conv", "mb1ic16ih6oc16kh3ph1", "--dir=FWD_D", "--dt=f16"]


def test_problems(standin: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CONV, "--run", "--on", "hip"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["executed"].startswith("on hip:0 (Stand-in) in ")
    assert (lines["checked"], lines["mismatches"], lines["result"]) == ("576 outputs", "0", "PASSED")
    assert "simulated" not in lines
    assert len(standin.launches) == 2  # the second with infinities and NaNs


def test_samples(standin: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    """All workgroups run, some outputs are compared."""
    assert cli.main(["gemm", "64x64:64x64", "--dt=f16", "--run-groups", "1", "--on", "hip:1", "--json"]) == 0
    run = json.loads(capsys.readouterr().out)["run"]
    assert run["on"] == "hip:1 (Stand-in)"
    assert 0 < run["checked"] < 64 * 64
    assert len(standin.launches) == 1


def test_records_and_code(standin: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    gemm = ["gemm", "64x64:64x64", "--dt=f16", "--config", "tile=32x32x64 waves=1x2 mma=16x16x16 slots=1"]
    assert cli.main([*gemm, "-o", str(tmp_path / "g")]) == 0
    assert cli.main(["run", str(tmp_path / "g.launch.json"), "--on", "hip"]) == 0
    assert "PASSED" in capsys.readouterr().out
    (tmp_path / "in").mkdir()
    for name, array in (("src", np.eye(64, dtype=np.float16)), ("wei", np.full((64, 64), 3, np.float16))):
        np.save(tmp_path / "in" / f"{name}.npy", array)
    own = ["--data", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    assert cli.main(["run", str(tmp_path / "g.launch.json"), "--on", "hip", *own]) == 0
    assert (np.load(tmp_path / "out/dst.npy") == 3).all()
    arguments = [f"--arg={name}={tmp_path}/in/{name}.npy" for name in ("src", "wei")]
    launch = ["--grid=4", "--block=128", *arguments, "--arg=dst=f16:64x64", f"--out=dst={tmp_path}/dst.npy"]
    assert cli.main(["run", str(tmp_path / "g.hsaco"), "--on", "hip", *launch]) == 0
    assert (np.load(tmp_path / "dst.npy") == 3).all()
    assert standin.launches[-1].dynamic_bytes == 0
    assert cli.main(["run", str(tmp_path / "g.hsaco"), "--on", "hip", *launch, "--lds=512"]) == 0
    assert standin.launches[-1].dynamic_bytes == 512


def test_a_wrong_result_is_seen(standin: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main([*CONV, "-o", str(tmp_path / "k")]) == 0
    record = json.loads((tmp_path / "k.launch.json").read_text())
    record["launches"][0]["grid"][0] -= 1
    (tmp_path / "k.launch.json").write_text(json.dumps(record))
    assert cli.main(["run", str(tmp_path / "k.launch.json"), "--on", "hip"]) == 1
    assert "nothing written" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--on", "hip"], "given --on hip without --run, wanted --run, or --run-groups to compare a sample"),
        (["--run", "--on", "vulkan"], "given the device 'vulkan', wanted one of hip:0, level_zero:0, cuda:0"),
        (["--run", "--on", "hip:9"], "given the device hip:9, wanted hip:0 to hip:1"),
        (
            ["--run", "--on", "hip", "--target", "gfx90a"],
            "given code for gfx90a, wanted gfx942 code, which hip:0 (Stand-in) runs",
        ),
    ],
)
def test_wrong_uses(words: list[str], wanted: str, standin: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*CONV, *words]) == 2
    assert capsys.readouterr().err == f"convgen: {wanted}\n"


@pytest.mark.parametrize("option", ["--trace=t", "--break=+0", "--allow=poison", "--strict=llvm"])
def test_what_only_the_simulator_does(option: str, standin: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "k.launch.json", "--on", "hip", option]) == 2
    name = option.split("=")[0]
    wanted = f"given {name} with --on hip, wanted it without: only the simulator does that"
    assert capsys.readouterr().err == f"convgen: {wanted}\n"
