"""The shared list of convolution problems, as the product tests take it: minibatch 1, FWD_D."""

from __future__ import annotations

import hashlib
from pathlib import Path

from convgen.problem.conv import Conv

_LIST = Path(__file__).parents[1] / "data" / "problems" / "resnet_and_others.txt"


def listed(dt: str = "f16") -> list[Conv]:
    """All problems, in file order."""
    lines = [line for line in _LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [Conv.parse(line, dir="FWD_D", dt=dt, mb=1) for line in lines]


def generated(dt: str = "f16") -> list[Conv]:
    """Those that convgen generates: ungrouped."""
    return [p for p in listed(dt) if p.groups == 1]


def chosen(problems: list[Conv], count: int) -> list[Conv]:
    """`count` of them, the same ones each time, in no order that anybody arranged."""
    return sorted(problems, key=lambda p: hashlib.sha256(p.descriptor.encode()).digest())[:count]
