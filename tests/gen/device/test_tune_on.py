"""`convgen tune --on DEVICE`: a device times configs and computes right outputs with the quickest."""

from __future__ import annotations

from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from convgen import driver
from convgen.commands import cli, workers
from convgen.commands.tune import perform
from convgen.device.loaded import DeviceKernel
from convgen.ir.error import UserError
from convgen.tune import trials
from convgen.tune.work import Result, Task, checked
from tests.gen.device.standin_cuda import CudaStandIn

PRODUCT = "--dt=f16 32x48:48x64"


@pytest.fixture(autouse=True)
def _few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = partialmethod(DeviceKernel.benchmark, warmup=0, repeats=1, flush_bytes=1 << 16)
    monkeypatch.setattr(DeviceKernel, "benchmark", benchmark)


def test_configs_are_timed_on_the_device(cuda: CudaStandIn) -> None:
    task = Task("sm_90", 2, PRODUCT, on="cuda")
    result = perform(task)
    assert isinstance(result, Result)
    assert [each.bound for each in result.timed] == ["measured", "measured"]
    assert result.entry.config == min(result.timed, key=lambda each: each.us).config
    assert result.entry.model.endswith(", Stand-in")
    assert checked(task, result) == result
    assert len(cuda.launches) >= 3  # one of each config, and one whose outputs are compared
    assert not cuda.findings


def test_each_config_is_compiled_once(cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = []
    build = driver.build

    def counted(problem: Any, target: str, config: Any) -> Any:
        configs.append(str(config))
        return build(problem, target, config)

    monkeypatch.setattr(driver, "build", counted)
    result = perform(Task("sm_90", 2, PRODUCT, on="cuda"))
    assert isinstance(result, Result)
    assert configs == [each.config for each in result.timed]


def test_a_result_that_was_not_measured_on_a_device_is_refused_without_on(cuda: CudaStandIn) -> None:
    task = Task("sm_90", 1, PRODUCT, on="cuda")
    result = perform(task)
    with pytest.raises(UserError, match=r"given a time by 'convgen .*, Stand-in' from a worker"):
        checked(Task("sm_90", 1, PRODUCT), result)


def test_a_config_with_wrong_outputs_is_refused(cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "mismatches", lambda *_: 5)
    code, text = perform(Task("sm_90", 1, PRODUCT, on="cuda"))  # type: ignore[misc]
    assert code == 2
    assert text.startswith("given 5 wrong outputs of tile=")


def test_each_problem_has_a_process_of_its_own_where_a_fault_ends_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda: CudaStandIn
) -> None:
    calls = []

    def run(work: Any, tasks: Any, jobs: int, preload: Any, timeout: Any, lifetime: int) -> Any:
        calls.append((len(tasks), jobs, lifetime))
        yield from ()

    monkeypatch.setattr(workers, "run", run)
    words = ["tune", "32x48:48x64", "--dt=f16", "--target=sm_90", f"--registry={tmp_path / 'r'}", "--on=cuda"]
    assert cli.main(words) == 0
    assert calls == [(1, 1, 1)]


def test_the_command_refuses_before_it_times(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cuda: CudaStandIn
) -> None:
    def tune(*words: str, target: str = "sm_90") -> str:
        given = ["tune", "32x48:48x64", "--dt", "f16", "--target", target, "--registry", str(tmp_path / "r"), *words]
        assert cli.main(given) == 2
        return capsys.readouterr().err

    timed = "gfx90a, gfx942, gfx950, sm_80, sm_86, sm_89, sm_90a, sm_90, sm_120"
    assert f"whose launches have no model, wanted one of {timed}, or --on with a device" in tune(target="xe2")
    assert "given --jobs 2 with --on, wanted 1: one device times one program at a time" in tune("--on=cuda", "--jobs=2")
    assert "given the device 'cuda:x', wanted a number behind cuda:" in tune("--on=cuda:x")
    assert not (tmp_path / "r").exists()
