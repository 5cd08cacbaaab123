"""Errors of a model as a picture: predicted over measured, along what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from convgen.profile.closed import Numbers

_BINS = 24  #: with as many rows each
_BANDS = ((0.05, 0.95, 0.2), (0.25, 0.75, 0.35))  #: quantiles, and how dark what lies between them is
_RATIOS = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)  #: on the axis
_COLUMNS = 2
_INCHES = (4.6, 2.6)  #: of a panel
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "convgen",
    "svg.fonttype": "none",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@attrs.frozen(eq=False)
class Panel:
    """Rows of one table."""

    unit: str  #: of both
    predicted: Numbers
    measured: Numbers


def write(path: Path, panels: Mapping[str, Panel]) -> None:
    """An SVG with a panel a table: the median of predicted / measured, and between which ratios 50 and 90 % lie."""
    rows = -(-len(panels) // _COLUMNS)
    with mpl.rc_context(_STYLE):
        figure = Figure((_INCHES[0] * _COLUMNS, _INCHES[1] * rows), layout="constrained")
        axes = np.atleast_1d(figure.subplots(rows, _COLUMNS)).ravel()
        for at, (name, panel) in zip(axes, panels.items()):
            _draw(at, name, panel)
        for at in axes[len(panels) :]:
            at.set_axis_off()
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _draw(at: Axes, name: str, panel: Panel) -> None:
    order = np.argsort(panel.measured, kind="stable")
    parts = np.array_split(order, min(_BINS, max(1, len(order) // 8)))
    ratio = panel.predicted / panel.measured
    middle = [float(np.median(panel.measured[part])) for part in parts]
    for low, high, dark in _BANDS:
        ends = [np.quantile(ratio[part], (low, high)) for part in parts]
        at.fill_between(middle, [e[0] for e in ends], [e[1] for e in ends], color="tab:blue", alpha=dark, lw=0)
    at.plot(middle, [float(np.median(ratio[part])) for part in parts], color="tab:blue", lw=1.2)
    at.axhline(1.0, color="black", lw=0.6)
    at.set(xscale="log", yscale="log", ylim=(_RATIOS[0], _RATIOS[-1]), title=f"{name}: {len(order):,} rows")
    at.set(xlabel=f"measured, {panel.unit}", ylabel="predicted / measured")
    at.set_yticks(_RATIOS, [f"{ratio:g}" for ratio in _RATIOS], minor=False)
    at.set_yticks([], minor=True)
