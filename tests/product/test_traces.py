"""What the simulator sees of global memory: the traffic model's panels, and each tile stored once."""

from __future__ import annotations

from collections import defaultdict
from importlib import import_module

import numpy as np
import numpy.typing as npt
import pytest

import convgen as cg
from convgen.backends.target import get
from convgen.choose.workgroup_orders import LaunchTraffic
from convgen.ir.layout.order import Order
from convgen.plan.config import Config
from convgen.plan.plan import Plan, make_plan
from convgen.problem.matmul import Problem, parse_problem
from convgen.run.code import Code

pytestmark = pytest.mark.in_turn(2)

LINE = 128  #: bytes

Accesses = list[tuple[str, str, npt.NDArray[np.int64], npt.NDArray[np.int64], int]]


def accesses(code: Code, target: str) -> Accesses:
    """(kind, buffer, workgroups, offsets, bytes) of a run."""
    found: Accesses = []
    memory = {name: np.zeros(buffer.tensor.bytes, np.uint8) for name, buffer in code.record.buffers.items()}
    family = "amdgpu" if target.startswith("gfx") else "intel"
    simulate = import_module(f"convgen.backends.{family}.sim.simulate").simulate
    report = simulate(code.object, code.record.requests(None), memory, observe=lambda *access: found.append(access))
    assert not report.findings, str(report.findings[0])
    return found


def planned(line: str, config: str, target: str) -> tuple[Problem, Plan]:
    problem = parse_problem(line)
    return problem, make_plan(problem, Config.parse(config), get(target).facts)


@pytest.mark.parametrize("order", ["rows", "cols", "xcc:8+group:2m", "zorder:2x2", "xcc:8+hilbert"])
@pytest.mark.parametrize("line", ["--dt=f16 512x64:64x256", "--dir=FWD_D --dt=f16 mb2ic64ih16oh16oc64kh3ph1"])
def test_dies_read_what_the_model_says(line: str, order: str) -> None:
    """All that a die reads fits its cache here, so it comes once: halos, too."""
    config = f"tile=32x32x32 waves=1x1 mma=32x32x8 map={order}"
    problem, plan = planned(line, config, "gfx942")
    read = defaultdict(set)
    for kind, buffer, groups, offsets, _ in accesses(cg.compile(cg.build(problem, config=config)), "gfx942"):
        if kind == "load":
            for die, at in zip((groups % 8).tolist(), (offsets // LINE).tolist()):
                read[die].add((buffer, at))
    assert sum(map(len, read.values())) * LINE == LaunchTraffic.of(plan).traffic(Order.parse(order)).fill


@pytest.mark.parametrize("target", ["gfx942", "xehpc"])
@pytest.mark.parametrize("order", ["stream:5", "stream:6:all", "persist:4", "xcc:8+even:3n"])
def test_every_element_is_stored_once(order: str, target: str) -> None:
    """Tiles that come out even, so nothing is masked; shares leave their sums beside that, each its own."""
    shape = {"gfx942": "16x16x16", "xehpc": "16x8x16"}[target]
    config = f"tile=32x32x32 waves=2x1 mma={shape} slots=1 map={order}"
    problem, plan = planned("--dt=f16 96x160:160x96", config, target)
    code = cg.compile(cg.build(problem, target=target, config=config))
    times: dict[str, npt.NDArray[np.int64]] = {
        name: np.zeros(buffer.tensor.bytes, np.int64) for name, buffer in code.record.buffers.items()
    }
    for kind, buffer, _, offsets, size in accesses(code, target):
        if kind == "store":
            np.add.at(times[buffer], (offsets[:, None] + np.arange(size)).ravel(), 1)
    assert (times["dst"] == 1).all()
    turns = plan.parts[0].mapping.turns
    left = sum(len(turns.owners(n)) for n in range(turns.shared) if len(turns.owners(n)) > 1)
    assert times.get("workspace", np.zeros(0)).sum() == left * 32 * 32 * 4
    assert times.get("workspace", np.zeros(1)).max() <= 1
