"""Conversions against the interpreter: kernels of one conversion on bit patterns of all kinds."""

from __future__ import annotations

import numpy as np
import pytest

from convgen.backends import target as targets
from convgen.ir import types as t
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Lane
from convgen.ir.program import Kernel
from convgen.ir.types import Type, vector
from tests import arithmetic as ar
from tests.backends.amdgpu.test_conversions import interesting, lanes_for

TARGET = targets.get("sm_90")
PLAIN = (t.f16, t.bf16, t.f32, t.f64, t.s8, t.u8, t.s16, t.u16, t.s32, t.u32)
NARROW = (t.f8_e4m3, t.f8_e5m2)


def kernel(name: str, of: Type, to: Type, lanes: int, *, saturate: bool) -> Kernel:
    k, types = KernelBuilder(name, width=32), (vector(of, lanes), vector(to, lanes))
    source, out = k.buffer("source", of, 32 * lanes), k.buffer("out", to, 32 * lanes)
    held = k.global_load("held", types[0], k.surface(source), Lane() * (types[0].bits // 8))
    k.global_store(k.surface(out), held.to(types[1], saturate=saturate), Lane() * (types[1].bits // 8))
    return k.done()


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("of", [*PLAIN, *NARROW], ids=str)
def test_conversions_to_all_types(of: Type) -> None:
    """Saturating or not, of as many elements as a message takes, and of one."""
    cases = [
        (to, lanes, saturate)
        for to in (*PLAIN, *NARROW)
        for lanes in sorted(set(lanes_for(of, to)))
        for saturate in (False, True)
        if to is not of
    ]
    kernels = [kernel(f"k{n}", of, *case[:2], saturate=case[2]) for n, case in enumerate(cases)]
    code, emitted = ar.compile_all(TARGET, kernels)
    for (to, lanes, saturate), k in zip(cases, kernels):
        memory = {"source": interesting(of, to, 32 * lanes), "out": np.zeros(32 * lanes * to.bytes, np.uint8)}
        wanted = ar.results(k, memory, to)
        ar.clean(TARGET.simulate(code, [ar.launch(k, emitted[k.name])], memory))
        found = memory["out"].view(to.numpy)
        differ = ar.differing(found, wanted, to)
        source = memory["source"].view(of.numpy)
        assert not differ.any(), (to, saturate, source[differ][:3], found[differ][:3], wanted[differ][:3])
