"""Rings and bulk copies in PTX: what selection emits, and that the simulator notices the loss of any part of it.

A run lands copies as late as possible or, `early`, when they are issued; warps go in either order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np
import pytest

from convgen import driver
from convgen.backends.nvidia.assemble import compiled as assembled
from convgen.backends.nvidia.sim import simulate
from convgen.backends.toolchain import PTXAS
from convgen.ir.error import ConvgenError
from convgen.problem.matmul import parse_problem
from convgen.run import reference
from convgen.run.code import Code
from convgen.run.execution import allocate
from tests.conftest import found_tool
from tests.product.changes import Change, described

#: name -> problem, config: more blocks than slots, and two tiles a workgroup
KERNELS = {
    "one team": ("--dt=f16 --wtag=ba 128x224:224x64", "tile=64x64x32 waves=1x4 mma=64x64x16 slots=3 map=persist:1"),
    "two teams, registers": (
        "--dt=f16 --wtag=ba 256x112:112x256",
        "tile=128x256x16 waves=2x4 mma=256x64x16 slots=2 map=persist:1",
    ),
}
#: With one slot, consumers wait for the products of each block.
ONE_SLOT = ("--dt=f16 --wtag=ba 128x96:96x64", "tile=64x64x32 waves=1x4 mma=64x64x16 slots=1 map=persist:1")
MODES = tuple(product((False, True), ("forward", "reverse")))


@cache
def compiled(name: str) -> Code:
    problem, config = {**KERNELS, "one slot": ONE_SLOT}[name]
    return driver.compile(driver.build(parse_problem(problem), "sm_90a", f"{config} copy=tensor"))


def is_right(code: Code, text: str, *, early: bool, order: str) -> bool:
    """Return whether a run of a text has no finding and the reference's result."""
    problem = code.problem
    assert problem is not None
    inputs = reference.fill(problem)
    memory = allocate(code.record, inputs)
    report = simulate(text.encode(), code.record.requests(), memory, early=early, wave_order=order)
    (out,) = problem.outputs
    wanted = reference.pack(out.layout, reference.whole(problem, inputs, out.name), 0)
    return not report.findings and np.array_equal(memory[out.name].whole(), wanted)


def is_noticed(code: Code, change: Change) -> bool:
    """Return whether a run of a changed kernel has a finding or a wrong result, or is refused, in any mode."""
    text = change.applied(code.asm)
    try:
        return not all(is_right(code, text, early=early, order=order) for early, order in MODES)
    except ConvgenError:
        return True


#: Instructions whose loss the simulator notices.
_NEEDED = re.compile(
    r"(?:@%p\d+ )?(mbarrier\.init|fence\.mbarrier_init|bar\.sync|mbarrier\.arrive|cp\.async\.bulk\.tensor"
    r"|wgmma\.(?:wait_group|commit_group)|setmaxnreg)\b"
)
_NUMBERS = (
    (re.compile(r"(?<=wait_group\.sync\.aligned )(\d+)"), (1,)),
    (re.compile(r"(?<=expect_tx).*\], (\d+);"), (16, -16)),
    (re.compile(r"(?<=mbarrier\.init).*\], (\d+);"), (1,)),
)
_TRY = re.compile(r"mbarrier\.try_wait\.parity\.shared::cta\.b64 (%p\d+), ")
_PHASE = re.compile(r"(selp\.b32 %r\d+), 0, 1, (%p\d+);")


def changes(ptx: str) -> Iterator[Change]:
    """Yield the loss of each part of a ring, and each number of one that is another."""
    lines = ptx.splitlines()
    for number, line in enumerate(lines):
        code = line.partition("//")[0].strip()
        if _NEEDED.match(code):
            yield Change(number, "", f"deleted: {code}")
        for pattern, steps in _NUMBERS:
            if found := pattern.search(code):
                for step in steps:
                    start, end = found.span(1)
                    yield Change(number, f"{code[:start]}{int(found[1]) + step}{code[end:]}", f"{step:+}: {code}")
        if found := _TRY.search(code):
            yield Change(number, f"setp.eq.u32 {found[1]}, 0, 0;", f"no wait: {code}")
            assert "bra" in lines[number + 1]
            yield Change(number + 1, "", f"one try: {code}")
        if found := _PHASE.match(code):
            yield Change(number, f"{found[1]}, 1, 0, {found[2]};", f"other phase: {code}")


#: Deletions that no run notices: without more registers, consumers keep those of the kernel's entry, and are right.
HARMLESS = re.compile(r"deleted: setmaxnreg\.inc")


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("early", "order"), MODES)
def test_results_do_not_depend_on_when_copies_land(name: str, early: bool, order: str) -> None:
    code = compiled(name)
    assert is_right(code, code.asm, early=early, order=order)


@pytest.mark.parametrize("name", KERNELS)
def test_every_loss_is_noticed(name: str) -> None:
    code = compiled(name)
    wanted = list(changes(code.asm))
    kinds = {change.what.partition(":")[0] for change in wanted}
    assert kinds == {"deleted", "+1", "+16", "-16", "no wait", "one try", "other phase"}
    instructions = {found[1] for change in wanted if (found := _NEEDED.match(change.what.removeprefix("deleted: ")))}
    registers = {"setmaxnreg"} if "registers" in name else set()
    assert instructions == registers | {
        *("mbarrier.init", "fence.mbarrier_init", "bar.sync", "mbarrier.arrive", "cp.async.bulk.tensor"),
        *("wgmma.wait_group", "wgmma.commit_group"),
    }
    missed = [change for change in wanted if not is_noticed(code, change)]
    lost = [change for change in missed if not HARMLESS.match(change.what)]
    assert not lost, described(lost)
    assert len(missed) == len(registers)


def test_one_slot_is_released_behind_its_products() -> None:
    code = compiled("one slot")
    assert all(is_right(code, code.asm, early=early, order=order) for early, order in MODES)
    loop = code.asm[code.asm.index("// slot is full") : code.asm.index("// release")]
    (wait,) = (change for change in changes(loop) if "deleted: wgmma.wait_group.sync.aligned 0" in change.what)
    assert is_noticed(code, Change(code.asm[: code.asm.index(loop)].count("\n") + wait.number, "", wait.what))


@pytest.mark.parametrize("name", KERNELS)
def test_a_ring_has_two_mbarriers_a_slot(name: str) -> None:
    code = compiled(name)
    slots, teams = (3, 1) if name == "one team" else (2, 2)
    counts = re.findall(r"mbarrier\.init\S* \[[^]]*\], (\d+);", code.asm)
    assert counts == ["1", str(4 * teams)] * slots
    assert code.asm.count("bar.sync") == 1
    assert f".maxntid {128 * (teams + 1)}, 1, 1" in code.asm


def test_only_kernels_with_many_sums_exchange_registers() -> None:
    few, many = (compiled(name).asm for name in KERNELS)
    assert "setmaxnreg" not in few
    assert ".minnctapersm" not in few
    inc, dec = (int(re.findall(rf"setmaxnreg\.{way}\.\S+ (\d+);", many)[0]) for way in ("inc", "dec"))
    assert 2 * inc + dec <= 3 * 168  # registers of a lane at the entry of three teams
    assert inc % 8 == dec % 8 == 0
    assert ") .maxntid 384, 1, 1 .minnctapersm 1" in many


def test_the_subgroup_that_copies_multiplies_nothing() -> None:
    asm = compiled("two teams, registers").asm
    consumer, _, producer = asm.partition("setmaxnreg.dec")
    assert "cp.async.bulk" not in consumer
    assert not re.search(r"wgmma|ld\.|st\.|bar\.", producer)


@pytest.mark.parametrize("name", KERNELS)
def test_the_assembler_has_no_advice(name: str) -> None:
    found_tool(PTXAS)
    assert assembled(compiled(name).asm) is not None
