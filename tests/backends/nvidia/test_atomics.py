"""Atomic operations of every type that `red` has: simulated as the interpreter says."""

from __future__ import annotations

import numpy as np
import pytest

import convgen as cg
from convgen.backends import target as targets
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import AddressOf, Lane, const
from convgen.ir.stmt import ATOMICS, FlatAtomic
from convgen.ir.types import Type, bool_, f32, f64, u64
from convgen.problem.matmul import Matmul
from convgen.run import verdict
from tests import arithmetic as ar

TARGET = targets.get("sm_90")
CASES = [
    (op, elem) for op, types in ATOMICS.items() for elem in types if op not in ("min", "max") or elem not in (f32, f64)
]


@pytest.mark.parametrize(("op", "elem"), CASES, ids=str)
def test_an_atomic_operation(op: str, elem: Type) -> None:
    """Two subgroups combine small integers, in any order, with the elements of one buffer."""
    k = KernelBuilder("k", (2, 1, 1), 2, 32)
    source, out = k.buffer("source", elem, 64), k.buffer("out", elem, 32)
    held = k.global_load("held", elem, k.surface(source), (k.subgroup * 32 + Lane()) * elem.bytes)
    address = AddressOf(out) + ((Lane() + k.subgroup * 5) % 32 * elem.bytes).to(u64)
    k.add(FlatAtomic(out, address, const(True, bool_), held, k.site(), op))
    kernel = k.done()
    values = np.random.default_rng(1).integers(0, 99, 96).astype(elem.numpy)
    memory = {"source": values[:64].view(np.uint8), "out": values[64:].copy().view(np.uint8)}
    wanted = ar.results(kernel, memory, elem)
    code, emitted = ar.compile_all(TARGET, [kernel])
    ar.clean(TARGET.simulate(code, [ar.launch(kernel, emitted["k"])], memory))
    assert np.array_equal(memory["out"].view(elem.numpy), wanted)


@pytest.mark.parametrize(
    ("dt", "waves"), [("f16:f16:f32", "1x2 mma=8x16x16"), ("s8:s8:s32", "1x2 mma=8x16x32"), ("f64", "2x2 mma=8x4x2")]
)
def test_slices_add_to_the_result(dt: str, waves: str) -> None:
    problem = Matmul.parse("48x200:200x40", dt=dt)
    config = f"tile=32x32x32 waves={waves} slots=1 slices=3 sum=atomic"
    assert verdict.run(cg.compile(cg.build(problem, target="sm_90", config=config))).passed
