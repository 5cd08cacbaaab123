"""ptxas takes what is selected for every operation, conversion and target: the simulator judges no versions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

import convgen as cg
from convgen.backends import target as targets
from convgen.backends import toolchain
from convgen.backends.nvidia.tables import FACTS
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Lane
from convgen.ir.program import Kernel
from convgen.ir.types import Type, f8_e4m3, f8_e5m2, f16, f32, vector
from convgen.passes import pipeline
from convgen.problem.matmul import Matmul
from tests import arithmetic as ar

PTXAS = toolchain.PTXAS.find()
pytestmark = pytest.mark.skipif(PTXAS is None, reason="ptxas is not installed")


def assemble(target: str, kernels: Iterable[Kernel], folder: Path) -> None:
    """Assemble kernels in one module."""
    to = targets.get(target)
    texts = [to.emit(pipeline.run(ar.addressed(kernel, to.facts), to.facts)) for kernel in kernels]
    path = folder / "module.ptx"
    path.write_text(to.module(texts))
    assert PTXAS
    done = subprocess.run([PTXAS, f"-arch={target}", "-O0", path, "-o", folder / "out"], capture_output=True, text=True)
    assert not done.returncode, done.stderr[:1000]


TARGETS = [target if target == "sm_90" else pytest.param(target, marks=pytest.mark.sweep) for target in FACTS]


@pytest.mark.sweep
@pytest.mark.parametrize("target", FACTS)
def test_operations(target: str, tmp_path: Path) -> None:
    elems = (*ar.FLOATS, *ar.INTEGERS)
    cases = [ar.Case(f, ar.widths(elem)[0], 32) for elem in elems for f in ar.kept(elem).values()]
    cases += [ar.Case(f, elem, 32) for elem in (f16, f32) for f in ar.APPROXIMATE.values()]
    assemble(target, [case.kernel(f"k{n}") for n, case in enumerate(cases)], tmp_path)


def converting(name: str, of: Type, to: Type, *, saturate: bool) -> Kernel:
    k = KernelBuilder(name, width=32)
    source, out = k.buffer("source", of, 128), k.buffer("out", to, 128)
    held = k.global_load("held", vector(of, 2), k.surface(source), Lane() * (2 * of.bytes))
    k.global_store(k.surface(out), held.to(vector(to, 2), saturate=saturate), Lane() * (2 * to.bytes))
    return k.done()


@pytest.mark.parametrize("target", TARGETS)
def test_conversions(target: str, tmp_path: Path) -> None:
    types = (*ar.FLOATS, *ar.INTEGERS, f8_e4m3, f8_e5m2)
    pairs = [(of, to, saturate) for of in types for to in types for saturate in (False, True) if of is not to]
    kernels = [converting(f"k{n}", of, to, saturate=saturate) for n, (of, to, saturate) in enumerate(pairs)]
    assemble(target, kernels, tmp_path)


@pytest.mark.parametrize("target", FACTS)
@pytest.mark.parametrize("words", ["slices=3 sum=last:2 copy=direct", "map=stream:5", "slices=2 sum=atomic"])
def test_what_orders_workgroups(words: str, target: str, tmp_path: Path) -> None:
    config = f"tile=32x32x32 waves=1x2 mma=8x16x16 slots=2 {words}"
    code = cg.compile(cg.build(Matmul.parse("96x400:400x72", dt="f16:f16:f32"), target=target, config=config))
    path = tmp_path / "module.ptx"
    path.write_text(code.asm)
    assert PTXAS
    subprocess.run([PTXAS, f"-arch={target}", path, "-o", tmp_path / "out"], check=True, capture_output=True)
