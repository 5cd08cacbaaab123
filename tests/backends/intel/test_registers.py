"""Where registers of Xe stand: which register file, scalars in front, operands of products in banks of their own."""

from __future__ import annotations

from functools import cache

import pytest

from convgen.backends.intel.isa import ACCUMULATORS_AT, BANK_PERIOD, INPUTS_AT, XeInstruction
from convgen.backends.intel.physical import Physical
from convgen.backends.intel.select import select
from convgen.backends.intel.targets import TARGETS
from convgen.backends.machine import Function, Unit
from convgen.config import Config
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import DoesNotFit
from convgen.ir.expr import AddressOf, Lane, Var, const
from convgen.ir.program import Kernel
from convgen.ir.types import bool_, u32, u64, vector
from convgen.passes import pipeline
from convgen.problem import Conv
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


@XE
def test_the_smaller_register_file_that_holds_it(target: str) -> None:
    for count, grf in ((8, 128), (12, 128), (20, 256), (27, 256)):
        assert TARGETS[target]().emit(holding(target, count)).registers["grf_count"] == grf, count
    with pytest.raises(DoesNotFit, match="bank v has no 8 free words of 256"):
        TARGETS[target]().emit(holding(target, 40))


@XE
def test_tuples_stand_behind_the_scalars(target: str) -> None:
    xe = TARGETS[target]()
    function = select(holding(target, 3), xe.facts)
    _, physical, used = xe._allocate(function)
    scalars = [physical.base[v] for v in physical.base if v.bank == "s"]
    first = 1 + max(scalars) // xe.facts.subgroup_size
    tuples = [physical.base[v] for v in physical.base if v.bank == "v" and v.fixed is None]
    assert min(tuples) > first
    assert used <= 128
    (payload,) = (v for v in physical.base if v.fixed == 0)
    assert physical.base[payload] == 0


@cache
def product(target: str) -> tuple[Function, Physical]:
    xe = TARGETS[target]()
    problem = Conv.parse("mb1ic64ih8oc32kh1", dir="FWD_D", dt="f16")
    kernel = tile_kernel(problem, Config((16, 16, 32), (1, 1), (xe.facts.subgroup_size, 8, 16), 2), xe.facts)
    function = select(pipeline.run(kernel, xe.facts), xe.facts)
    return function, xe._allocate(function)[1]


@XE
def test_accumulators_and_inputs_stand_apart(target: str) -> None:
    function, physical = product(target)
    products = [i for i in function.instructions() if i.op.unit is Unit.MATRIX]
    assert products
    for i in products:
        assert isinstance(i, XeInstruction)
        (result,) = i.defs()
        assert physical.base[result.vreg] % BANK_PERIOD == ACCUMULATORS_AT
        inputs = [r for r in i.uses() if r.vreg is not result.vreg and r.vreg.residue is not None]
        assert inputs
        assert all(physical.base[r.vreg] % BANK_PERIOD == INPUTS_AT for r in inputs)


@XE
def test_the_end_of_thread_passes_one_of_the_last_registers(target: str) -> None:
    function, physical = product(target)
    last = function.blocks[-1].instructions[-1]
    assert last.op.ends
    (payload,) = last.uses()
    assert physical.base[payload.vreg] in (127, 255)
