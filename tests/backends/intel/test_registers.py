"""Where registers of Xe stand: which register file, scalars in front, operands of products in banks of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import pytest

from convgen.backends.intel.isa import ACCUMULATORS_AT, BANK_PERIOD, INPUTS_AT, XeInstruction
from convgen.backends.intel.targets import TARGETS
from convgen.backends.machine.instruction import Function, Unit, VirtualRegister
from convgen.backends.stages import MachineKernel, begin, run
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import DoesNotFit
from convgen.ir.expr import AddressOf, Lane, Var, const
from convgen.ir.program import Kernel
from convgen.ir.types import bool_, u32, u64, vector
from convgen.passes import pipeline
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from tests.passes.running import tile_kernel

XE = pytest.mark.parametrize("target", ["xehpc", "xehpg"])


def holding(target: str, count: int) -> Kernel:
    """A kernel that loads tuples of eight registers, all of them before it stores the first."""
    k = KernelBuilder("k", width=TARGETS[target]().facts.subgroup_size)
    buffer, always = k.buffer("x", u32, 65536), const(True, bool_)
    held: list[Var] = []
    for n in range(count):
        held.append(k.var("v", vector(u32, 8)))
        address = AddressOf(buffer) + (Lane() * 32 + n * 512).to(u64)
        k.add(s.FlatLoad(held[-1], buffer, address, always, k.site()))
    for n, v in enumerate(held):
        address = AddressOf(buffer) + (Lane() * 32 + n * 512).to(u64)
        k.add(s.FlatStore(buffer, address, always, v, k.site()))
    return k.done()


def placed(target: str, kernel: Kernel) -> MachineKernel:
    """The kernel behind allocation."""
    xe = TARGETS[target]()
    names = [stage.name for stage in xe.stages]
    return run(xe.stages[: 1 + names.index("allocate")], begin(kernel, xe.facts, xe.banks))


@XE
def test_the_smaller_register_file_that_holds_it(target: str) -> None:
    for count, grf in ((8, 128), (12, 128), (20, 256), (27, 256)):
        assert TARGETS[target]().emit(holding(target, count)).registers["grf_count"] == grf, count
    with pytest.raises(DoesNotFit, match="bank v has no 8 free words of 256"):
        TARGETS[target]().emit(holding(target, 40))


@XE
@pytest.mark.parametrize("count", [0, 3, 20])
def test_registers_that_are_reported_are_those_of_the_text(target: str, count: int) -> None:
    """But for the payload of the end of thread, which stands at the end of the file."""
    emitted = TARGETS[target]().emit(holding(target, count))
    used = [int(at) + int(size or 1) for at, size in re.findall(r"\br(\d+)(?::(\d+))?\b", emitted.text)]
    assert emitted.registers["grf"] == max(end for end in used if end != emitted.registers["grf_count"])


@XE
def test_tuples_stand_behind_the_scalars(target: str) -> None:
    made = placed(target, holding(target, 3))
    base = made.allocation.base
    first = 1 + max(at for v, at in base.items() if v.bank == "s") // made.facts.subgroup_size
    tuples = [at for v, at in base.items() if v.bank == "v" and v.fixed is None]
    assert min(tuples) > first
    assert made.banks["v"].limit == 128
    (payload,) = (v for v in base if v.fixed == 0)
    assert base[payload] == 0


@cache
def product(target: str) -> tuple[Function, Mapping[VirtualRegister, int]]:
    """A product, and where its registers are."""
    xe = TARGETS[target]()
    problem = Conv.parse("mb1ic64ih8oc32kh1", dir="FWD_D", dt="f16")
    kernel = tile_kernel(problem, Config((16, 16, 32), (1, 1), (xe.facts.subgroup_size, 8, 16), 2), xe.facts)
    made = placed(target, pipeline.run(kernel, xe.facts))
    return made.code, made.allocation.base


@XE
def test_accumulators_and_inputs_stand_apart(target: str) -> None:
    function, base = product(target)
    products = [i for i in function.instructions() if i.op.unit is Unit.MATRIX]
    assert products
    for i in products:
        assert isinstance(i, XeInstruction)
        (result,) = i.defs()
        assert base[result.vreg] % BANK_PERIOD == ACCUMULATORS_AT
        inputs = [r for r in i.uses() if r.vreg is not result.vreg and r.vreg.residue is not None]
        assert inputs
        assert all(base[r.vreg] % BANK_PERIOD == INPUTS_AT for r in inputs)


@XE
def test_the_end_of_thread_passes_one_of_the_last_registers(target: str) -> None:
    function, base = product(target)
    last = function.blocks[-1].instructions[-1]
    assert last.op.ends
    (payload,) = last.uses()
    assert base[payload.vreg] in (127, 255)
