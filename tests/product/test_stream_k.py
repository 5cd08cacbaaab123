"""Stream-K: workgroups share K evenly, whatever divides what; the result is exact, and the same in any order."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import convgen as cg
from convgen.ir.error import UserError
from convgen.problem.matmul import Matmul, parse_problem
from convgen.run import execution, reference, verdict

pytestmark = pytest.mark.in_turn(6)

MMA = {
    "gfx90a": "16x16x16",
    "gfx942": "16x16x16",
    "gfx950": "16x16x16",
    "xehpc": "16x8x16",
    "xehpg": "8x8x16",
    "sm_90": "8x16x16",
}
TILES = dict.fromkeys(MMA, "tile=32x32x32 waves=2x1") | {"xehpg": "tile=32x32x16 waves=4x2"}


def config(target: str, words: str) -> str:
    return f"{TILES[target]} mma={MMA[target]} {words}"


@pytest.mark.parametrize("target", MMA)
@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("order", ["stream:4", "stream:5:all", "group:2m+flip:4+stream:7"])
def test_shares_of_every_length(target: str, order: str, slots: int) -> None:
    """Nine tiles of 13 blocks of K, the last one not full."""
    problem = Matmul.parse("96x400:400x72", dt="f16")
    code = cg.compile(cg.build(problem, target=target, config=config(target, f"slots={slots} map={order}")))
    assert len(code.kernels) == 1
    assert verdict.run(code).passed


@pytest.mark.parametrize("target", ["gfx942", "xehpc", "sm_90"])
@pytest.mark.parametrize(
    "line",
    [
        "--dir=FWD_B --dt=f16 mb2ic24oc40ih7kh3ph1",
        "--dir=BWD_D --dt=f16 mb4ic32oc64iw20kw3sw2pw1",
        "--dir=BWD_WB --dt=f16 mb2ic24oc40ih7kh3ph1",
        "--dt=bf16:bf16:f32 40x300:300x104",
    ],
)
def test_convolutions_and_phases(target: str, line: str) -> None:
    """With a bias, and with products of which some share tiles and some do not."""
    code = cg.compile(
        cg.build(parse_problem(line), target=target, config=config(target, "slots=2 map=stream:3 padding=zeros"))
    )
    assert verdict.run(code).passed


def test_more_workgroups_than_tiles() -> None:
    """Each tile has several; each of them, a part of one or two tiles."""
    problem = Matmul.parse("64x640:640x64", dt="f16")
    code = cg.compile(cg.build(problem, config=config("gfx942", "slots=1 map=stream:7")))
    assert code.record.launches[0].grid == (7, 1, 1)
    assert verdict.run(code).passed


def test_nothing_to_share() -> None:
    """Whole rounds need no workspace."""
    problem = Matmul.parse("64x64:64x64", dt="f16")
    code = cg.compile(cg.build(problem, config=config("gfx942", "slots=1 map=stream:2 sum=last")))
    assert set(code.record.buffers) == {"src", "wei", "dst"}
    assert verdict.run(code).passed


@pytest.mark.parametrize("target", ["gfx942", "sm_90"])
def test_by_atomic_additions(target: str) -> None:
    problem = Matmul.parse("96x400:400x72", dt="f16:f16:f32")
    words = "slots=2 map=stream:4 sum=atomic"
    code = cg.compile(cg.build(problem, target=target, config=config(target, words)))
    assert "counts" not in code.record.buffers
    assert verdict.run(code).passed


@pytest.mark.parametrize(
    ("module", "batch", "target"),
    [("amdgpu", "BATCH_WAVES", "gfx942"), ("intel", "BATCH_THREADS", "xehpc"), ("nvidia", "BATCH_WARPS", "sm_90")],
)
def test_the_same_bits_in_any_order(module: str, batch: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that depend on the order of additions, with the workgroups one after the other in three orders."""
    monkeypatch.setattr(import_module(f"convgen.backends.{module}.sim.simulate"), batch, 1)
    random = np.random.default_rng(5)
    problem = Matmul.parse("96x400:400x72", dt="f16:f16:f32", attr_deterministic=True)
    code = cg.compile(cg.build(problem, target=target, config=config(target, "slots=2 map=stream:5")))
    inputs = {t.name: random.standard_normal(t.dims).astype(reference.numpy_type(t.dtype)) for t in problem.inputs}
    found = set()
    for groups in (range(5), range(4, -1, -1), [2, 0, 4, 1, 3]):
        memory, report = execution.execute(code.record, code.object, inputs, [list(groups)])
        assert not report.findings, str(report.findings[0])
        found.add(memory["dst"].whole().tobytes())
    assert len(found) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("slices=2 map=stream:4", "slices=2: map=stream:4 already divides K over workgroups"),
        ("map=stream:4 sum=launch", "sum=launch: map=stream:4 reduces shares of K within its own launch"),
        ("map=stream:0", "wanted stream:WORKGROUPS"),
        ("map=stream:4+persist:4", "at most one flip: and one persist: or stream:"),
    ],
)
def test_what_cannot_be_shared_so(words: str, said: str) -> None:
    problem = Matmul.parse("96x400:400x72", dt="f16")
    with pytest.raises(UserError, match=said):
        cg.build(problem, config=config("gfx942", words))
