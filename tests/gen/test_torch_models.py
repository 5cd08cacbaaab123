"""The benchmark of models on the host, where torch computes both sides: its rows, table and notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
torch_models: Any = pytest.importorskip("torch_models")

CASE = torch_models.Case("small", "ResNet50", (1, 3, 32, 32))


def test_models_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_models, "CASES", (CASE, torch_models.Case("broken", "NoNetwork", (1,))))
    monkeypatch.setattr(torch_models, "ROUNDS", 1)
    monkeypatch.setenv("COLUMNS", "200")
    assert torch_models.main(["--device=cpu", f"--json={tmp_path / 'rows'}"]) == 0
    row, broken = json.loads((tmp_path / "rows").read_text())
    assert row["calls"] == {"convgen": 0, "torch": 54}
    assert row["errors"]["convgen"] == row["errors"]["torch"]
    assert row["errors"]["torch"][1] < 1e-2
    assert set(row["eager_ms"]) == {"convgen", "torch"}
    assert broken["error"].startswith("AttributeError")
    printed = capsys.readouterr().out
    assert "0 / 54" in printed
    assert "small: torch computed stem.0, " in printed
    assert "broken: AttributeError" in printed


def test_a_training_step_returns_gradients_of_all_parameters() -> None:
    model = torch.nn.Linear(4, 3)
    gradients = torch_models.step_of(model, torch.ones(2, 4), True)()
    assert [tuple(gradient.shape) for gradient in gradients] == [(3, 4), (3,)]


def test_errors_are_relative_to_the_exact_result() -> None:
    exact = torch.tensor([1.0, -4.0])
    assert torch_models.errors([exact + torch.tensor([0.0, 0.4])], [exact]) == pytest.approx((0.1, 0.08))
