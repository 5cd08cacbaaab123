"""Workgroups that meet: tickets in the interpreter and on the simulator, and sums of slices within one launch."""

from __future__ import annotations

import numpy as np
import pytest

import convgen as cg
from convgen.backends import target
from convgen.ir.build import KernelBuilder
from convgen.ir.error import DoesNotFit, UserError, VerifyError
from convgen.ir.expr import Lane, const
from convgen.ir.interp import InterpError, interpret
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.text import parse, to_text
from convgen.ir.types import s32, u32
from convgen.ir.verify import verify
from convgen.kernels.last_arrival import ReductionBuffers
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul
from convgen.run import verdict as runs

pytestmark = pytest.mark.in_turn(6)

UNASSEMBLED = "xe2"  #: no assembler here knows it: its text is all there is
TARGETS = [name for name in target.names() if target.get(name).facts.tickets and name != UNASSEMBLED]
GROUPS, SUBGROUPS = 6, 2


def counting(turns: int = GROUPS, count: int = 1, width: int = 64) -> Kernel:
    """Each subgroup of a workgroup takes a ticket from a count of its own, and stores its number."""
    k = KernelBuilder("tickets", (GROUPS, 1, 1), SUBGROUPS, width)
    counts, out = k.buffer("counts", s32, SUBGROUPS + 1), k.buffer("out", s32, GROUPS * SUBGROUPS)
    taken = k.ticket("taken", counts, k.subgroup + count, turns)
    k.global_store(k.surface(out), taken + Lane() * 0, (k.group[0] * SUBGROUPS + k.subgroup) * 4)
    return k.done()


def test_a_round_ends_with_a_zero() -> None:
    buffers = {"counts": np.zeros(4 * (SUBGROUPS + 1), np.uint8), "out": np.zeros(4 * GROUPS * SUBGROUPS, np.uint8)}
    for _ in range(2):
        interpret(counting(), buffers)
        assert not buffers["counts"].any()
        assert buffers["out"].view(np.int32).reshape(GROUPS, SUBGROUPS).T.tolist() == [list(range(GROUPS))] * SUBGROUPS
    interpret(counting(turns=GROUPS + 2), buffers)
    assert buffers["counts"].view(np.int32).tolist() == [0, GROUPS, GROUPS]
    with pytest.raises(InterpError, match=f"a count of {GROUPS} where a round has {GROUPS} turns"):
        interpret(counting(), buffers)


def test_a_count_that_is_not_there() -> None:
    buffers = {"counts": np.zeros(4 * (SUBGROUPS + 1), np.uint8), "out": np.zeros(4 * GROUPS * SUBGROUPS, np.uint8)}
    with pytest.raises(InterpError, match="count 3 of buffer counts, which has 3"):
        interpret(counting(count=2), buffers)


def test_the_ticket_as_text() -> None:
    kernel = counting()
    assert parse(to_text(kernel)) is kernel
    assert "taken: s32 = ticket counts[subgroup + 1] of 6" in str(kernel)


def test_what_is_no_ticket_is_refused() -> None:
    k = KernelBuilder("k")
    k.ticket("taken", k.buffer("counts", u32, 1), 0, 2)
    with pytest.raises(VerifyError, match="from counts of u32"):
        verify(k.done())
    k = KernelBuilder("k")
    k.ticket("taken", k.buffer("counts", s32, 1), Lane(), 2)
    with pytest.raises(VerifyError, match="index lane differs between lanes"):
        verify(k.done())
    k = KernelBuilder("k")
    k.ticket("taken", k.buffer("counts", s32, 1), const(0), 0)
    with pytest.raises(VerifyError, match="of 0 from"):
        verify(k.done())


@pytest.mark.parametrize("name", TARGETS)
def test_every_subgroup_takes_one(name: str) -> None:
    code = cg.compile(counting(width=target.get(name).facts.subgroup_size), target=name)
    (counts,) = [b for b in code.record.buffers.values() if b.zero]
    assert counts.name == "counts"
    found = cg.simulate(code, counts=np.zeros(SUBGROUPS + 1, np.int32))
    assert not found["counts"].any()
    assert sorted(found["out"].tolist()) == sorted(list(range(GROUPS)) * SUBGROUPS)


PROBLEM = "mb2ic24oc40ih7kh3ph1"
CONFIGS = {
    "f16": "tile=32x32x32 waves=2x1 mma=16x16x16 slots=2",
    "f32": "tile=32x32x16 waves=1x2 mma=16x16x4 slots=1",
    "s8:s8:s8": "tile=32x32x32 waves=1x1 mma=16x16x32 slots=2",
}
_LIKE_PVC = {
    "f16": "tile=32x32x32 waves=2x1 mma=16x8x16 slots=2",
    "f32": "tile=32x32x16 waves=1x2 mma=16x16x1 slots=1",
    "s8:s8:s8": "tile=32x32x32 waves=2x2 mma=16x8x32 slots=2",
}
XE_CONFIGS = {
    "xehpg": {
        "f16": "tile=32x32x16 waves=4x2 mma=8x8x16 slots=2",
        "f32": "tile=16x16x16 waves=1x2 mma=8x8x1 slots=1",
        "s8:s8:s8": "tile=32x32x32 waves=2x2 mma=8x8x32 slots=0",
    },
    "xehpc": _LIKE_PVC,
    "xe2": _LIKE_PVC,
}
AMPERE_CONFIGS = {
    "f16": "tile=32x32x32 waves=2x2 mma=8x16x16 slots=2",
    "f32": "tile=32x32x16 waves=1x2 mma=8x4x4 slots=1",
    "s8:s8:s8": "tile=32x32x32 waves=1x1 mma=8x16x32 slots=2",
}
NVIDIA = tuple(name for name in TARGETS if name.startswith("sm_"))


def shape_on(name: str, otherwise: str) -> str:
    """The config of a tile of 16-bit elements."""
    configs = XE_CONFIGS | dict.fromkeys(NVIDIA, AMPERE_CONFIGS)
    return configs[name]["f16"] if name in configs else otherwise


@pytest.mark.parametrize("slices", [2, 3, 5])
@pytest.mark.parametrize(
    ("direction", "dt"),
    [("FWD_B", "f16"), ("BWD_D", "f16"), ("BWD_W", "f16"), ("FWD_D", "f32"), ("BWD_WB", "f32"), ("FWD_B", "s8:s8:s8")],
)
def test_the_last_slice_sums(direction: str, dt: str, slices: int) -> None:
    """Any count of slices, any type, whatever the epilogue: one launch, the same bits as with two."""
    problem = Conv.parse(PROBLEM, dir=direction, dt=dt)
    code = cg.compile(cg.build(problem, config=f"{CONFIGS[dt]} slices={slices} sum=last"))
    assert not [k for k in code.kernels if "_sum" in k or "_begin" in k]
    assert {name for name, b in code.record.buffers.items() if b.zero} == {"counts"}
    assert runs.run(code).passed


@pytest.mark.parametrize("at_a_time", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("direction", "dt"), [("FWD_B", "f16"), ("BWD_W", "f16"), ("BWD_WB", "f32"), ("FWD_B", "s8:s8:s8")]
)
def test_slices_meet_some_at_a_time(direction: str, dt: str, at_a_time: int) -> None:
    """Up to three levels, with groups that are not full: the same bits as of all at once."""
    problem = Conv.parse(PROBLEM, dir=direction, dt=dt)
    code = cg.compile(cg.build(problem, config=f"{CONFIGS[dt]} slices=7 sum=last:{at_a_time}"))
    assert not [k for k in code.kernels if "_sum" in k or "_begin" in k]
    assert runs.run(code).passed


@pytest.mark.parametrize("name", TARGETS)
def test_slices_meet_some_at_a_time_on(name: str) -> None:
    problem = Conv.parse(PROBLEM, dir="BWD_WB", dt="bf16")
    shape = shape_on(name, "tile=64x32x32 waves=2x1 mma=16x16x16 slots=2 subtiles=2")
    config = f"{shape} slices=5 sum=last:2 map=xcc:8+group:2m+flip:4"
    code = cg.compile(cg.build(problem, target=name, config=config))
    assert name == UNASSEMBLED or runs.run(code).passed


def test_what_slices_leave_fills_lines() -> None:
    """Lanes leave what they hold side by side: 16 bytes each, a KB a message."""
    problem = Conv.parse(PROBLEM, dir="BWD_W", dt="f16")
    plan = make_plan(problem, Config.parse(f"{CONFIGS['f16']} slices=3 sum=last:4"), target.get("gfx942").facts)
    sums, held = ReductionBuffers.of(plan, plan.parts[0]).sums, plan.mma.d
    for register in range(held.registers):
        at = [held.coords(0, lane, register) for lane in range(64)]
        places = []
        for each in at:
            dims = sums.decode(0, each["n"]) | sums.decode(1, each["m"])
            places.append(sums.layout.offset([t.at(dims) for t in sums.index]))
        assert places == [places[0] + 4 * lane for lane in range(64)]


@pytest.mark.parametrize("name", XE_CONFIGS)
@pytest.mark.parametrize(
    ("direction", "dt", "slices"),
    [("FWD_B", "f16", 2), ("BWD_D", "f16", 5), ("BWD_W", "f16", 3), ("BWD_WB", "f32", 3), ("FWD_B", "s8:s8:s8", 2)],
)
def test_the_last_slice_sums_on_xe(name: str, direction: str, dt: str, slices: int) -> None:
    problem = Conv.parse(PROBLEM, dir=direction, dt=dt)
    config = f"{XE_CONFIGS[name][dt]} slices={slices} sum=last"
    code = cg.compile(cg.build(problem, target=name, config=config))
    assert not [k for k in code.kernels if "_sum" in k or "_begin" in k]
    if name == UNASSEMBLED:
        assert "atomic_iadd" in code.asm
    else:
        assert runs.run(code).passed


@pytest.mark.parametrize(
    ("direction", "dt", "words"),
    [
        ("FWD_B", "f16", "slices=2 sum=last"),
        ("BWD_D", "f16", "slices=5 sum=last:2"),
        ("BWD_W", "f16", "slices=7 sum=last:3"),
        ("BWD_WB", "f32", "slices=3 sum=last"),
        ("FWD_B", "s8:s8:s8", "slices=2 sum=last"),
    ],
)
def test_the_last_slice_sums_on_nvidia(direction: str, dt: str, words: str) -> None:
    problem = Conv.parse(PROBLEM, dir=direction, dt=dt)
    code = cg.compile(cg.build(problem, target="sm_90", config=f"{AMPERE_CONFIGS[dt]} {words}"))
    assert not [k for k in code.kernels if "_sum" in k or "_begin" in k]
    assert runs.run(code).passed


def test_nvidia_needs_acquire_and_release() -> None:
    """The simulator finds the race that a relaxed count leaves open."""
    problem = Matmul.parse("64x256:256x64", dt="f16")
    code = cg.compile(cg.build(problem, target="sm_90", config=f"{AMPERE_CONFIGS['f16']} slices=3 sum=last"))
    relaxed = code.asm.replace("atom.acq_rel.gpu", "atom.relaxed.gpu")
    assert relaxed != code.asm
    assert not runs.run(evolve(code, asm=relaxed, object=relaxed.encode())).passed


@pytest.mark.parametrize("name", TARGETS)
def test_the_last_slice_sums_on(name: str) -> None:
    problem = Conv.parse(PROBLEM, dir="BWD_WB", dt="bf16")
    shape = shape_on(name, "tile=32x32x64 waves=2x2 mma=16x16x16 slots=2")
    config = f"{shape} slices=3 sum=last map=xcc:8+group:2m+flip:4"
    assert runs.run(cg.compile(cg.build(problem, target=name, config=config))).passed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sum=last", "sum=last: there is one slice"),
        ("slices=2 sum=atomic", "sum=atomic: slices cannot be added to the result in any order"),
        ("map=stream:3 sum=last:2", "sum=last:2: map=stream:3 reduces all shares of K at once"),
        ("slices=2 sum=last:1", r"given 'sum=last:1', wanted sum=atomic|launch|last\[:2..8\]"),
        ("slices=20 sum=last:9", r"given 'sum=last:9', wanted sum=atomic|launch|last\[:2..8\]"),
        ("slices=2 sum=launch:2", r"given 'sum=launch:2', wanted sum=atomic|launch|last\[:2..8\]"),
    ],
)
def test_what_cannot_meet_so(words: str, said: str) -> None:
    problem = Conv.parse(PROBLEM, dir="BWD_W", dt="f16")
    with pytest.raises(UserError, match=said):
        cg.build(problem, target="gfx942", config=f"tile=32x32x16 waves=1x1 mma=16x16x16 {words}")


def test_a_target_that_does_not_order_workgroups() -> None:
    facts = evolve(target.get("gfx942").facts, tickets=False)
    config = Config.parse("tile=32x32x16 waves=1x1 mma=16x16x16 slices=2 sum=last")
    with pytest.raises(DoesNotFit, match="sum=last: gfx942 cannot order workgroups"):
        make_plan(Conv.parse(PROBLEM, dir="BWD_W", dt="f16"), config, facts)
