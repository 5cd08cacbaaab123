"""Threads that share an instruction pointer (EU fusion) part at no `jmpi`."""

from __future__ import annotations

import numpy as np
import pytest

from convgen import driver
from convgen.backends import target as targets
from convgen.backends.intel.fused_branches import may_diverge
from convgen.ir.build import KernelBuilder
from convgen.ir.error import Unsupported
from convgen.ir.expr import Lane, eq
from convgen.ir.lockstep import parting
from convgen.ir.program import Kernel
from convgen.ir.types import s32
from convgen.kernels.agree import all_agree
from convgen.passes import pipeline
from convgen.problem.matmul import parse_problem
from tests.arithmetic import clean, compile_all, launch
from tests.backends.intel import kept
from tests.backends.intel.listings import section

FACTS = targets.get("xehpg").facts


def own_way(target: str, *, together: bool) -> KernelBuilder:
    """Subgroup 1 stores elsewhere; subgroups multiply `together` before."""
    facts = targets.get(target).facts
    k = KernelBuilder("k", (1, 1, 1), 2, facts.subgroup_size)
    y = k.surface(k.buffer("y", s32, 64))
    if together:
        with k.when(all_agree(k, facts, eq(Lane(), k.subgroup))):
            k.global_store(y, Lane(), Lane() * 4)
    with k.when(eq(k.subgroup, 1)):
        k.global_store(y, Lane(), Lane() * 4)
    return k


def messages(k: KernelBuilder, target: str) -> Kernel:
    return pipeline.run(k.done(), targets.get(target).facts)


@pytest.mark.parametrize(("target", "parts"), [("xehpg", True), ("xehpc", False)])
def test_where_threads_part_fusion_is_switched_off(target: str, parts: bool) -> None:
    to, made = targets.get(target), messages(own_way(target, together=False), target)
    assert may_diverge(made, to.facts) == parts
    text = to.module([to.emit(made)])
    assert ("//.unfused yes" in text) == parts
    info = section(to.assemble(text), ".ze_info").data().decode()
    assert ("require_disable_eufusion: true" in info) == parts


def test_threads_that_multiply_together_do_not_part() -> None:
    made = messages(own_way("xehpg", together=True), "xehpg")
    with pytest.raises(
        Unsupported,
        match=r"^given a branch on subgroup == 1, .* differ between subgroups 2k and 2k \+ 1, and dpasw.*; wanted",
    ):
        targets.get("xehpg").emit(made)


@pytest.mark.parametrize("finds", [(), (3,), (2, 5), tuple(range(8))])
def test_a_pair_decides_by_what_either_finds(finds: tuple[int, ...]) -> None:
    """Each of eight subgroups stores whether it, or the other of its pair, is one of those that find something."""
    k = KernelBuilder("k", (1, 1, 1), 8, FACTS.subgroup_size)
    x, y = (k.surface(k.buffer(name, s32, 64)) for name in "xy")
    place = (Lane() + k.subgroup * 8) * 4
    own = k.global_load("own", s32, x, place)
    with k.when(all_agree(k, FACTS, eq(own, 0))):
        k.global_store(y, Lane() * 0 + 1, place)
    with k.otherwise():
        k.global_store(y, Lane() * 0 + 2, place)
    data = np.zeros((8, 8), np.int32)
    for subgroup in finds:
        data[subgroup, subgroup] = 1
    memory = {"x": data.view(np.uint8).reshape(-1), "y": np.zeros(256, np.uint8)}
    kernel, to = k.done(), targets.get("xehpg")
    code, emitted = compile_all(to, [kernel])
    clean(to.simulate(code, [launch(kernel, emitted["k"])], memory))
    wanted = [2 if {n, n ^ 1} & set(finds) else 1 for n in range(8)]
    assert memory["y"].view(np.int32).reshape(8, 8).tolist() == [[w] * 8 for w in wanted]


@pytest.mark.parametrize(("target", "problem", "config"), kept.cases("xehpg"))
def test_no_branch_of_a_product_parts_a_pair(target: str, problem: str, config: str) -> None:
    """With padding kept out of sums, which each subgroup looks at for itself."""
    to = targets.get(target)
    for kernel in driver.build(parse_problem(problem), target, config).ir.kernels:
        assert not [*parting(pipeline.run(kernel, to.facts), 2)]
