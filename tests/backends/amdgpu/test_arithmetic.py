"""Every operation on every type, as vectors and as one element a lane: simulated as the interpreter says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends import target as targets
from convgen.backends.amdgpu.sim import simulate
from convgen.backends.amdgpu.tables import FACTS
from convgen.ir import floats as fl
from convgen.ir.evaluate_floats import APPROXIMATE
from convgen.ir.functions import LIBRARY, Function
from convgen.ir.types import Type, f16, f32
from convgen.passes import pipeline
from tests import arithmetic as ar
from tests.functions import EXACT, TWO, operands, usual
from tests.strategies import FIXED, SWEEP, Tree, trees

_MANY = 1 << 14  #: operands of a function
TARGETS = {name: targets.get(name) for name in FACTS}


@pytest.mark.parametrize("elem", [*ar.FLOATS, *ar.INTEGERS], ids=str)
@pytest.mark.parametrize("target", FACTS)
def test_exact_operations(target: str, elem: Type) -> None:
    to = TARGETS[target]
    cases = {f"{name}, {t}": ar.Case(f, t, 64) for name, f in ar.exact(elem).items() for t in ar.widths(elem)}
    kernels = [case.kernel(f"k{n}") for n, case in enumerate(cases.values())]
    code, emitted = ar.compile_all(to, kernels)
    for (name, case), kernel in zip(cases.items(), kernels):
        memory = case.memory(7)
        wanted = ar.results(kernel, memory, elem)
        ar.clean(to.simulate(code, [ar.launch(kernel, emitted[kernel.name])], memory))
        found = memory["out"].view(elem.numpy)
        differ = ar.differing(found, wanted, elem)
        given = [memory[n].view(elem.numpy)[differ[: case.width * case.type.lanes]][:3] for n in "abc"]
        assert not differ.any(), (name, given, found[differ][:3], wanted[differ][:3])


def check_trees(target: str, drawn: list[Tree], seed: int) -> None:
    """Interpreted before and after each pass, and simulated: the same."""
    to = TARGETS[target]
    cases = [ar.Case(tree, ar.widths(tree.elem)[(seed + n) % 2], 64) for n, tree in enumerate(drawn)]
    kernels = [case.kernel(f"k{n}") for n, case in enumerate(cases)]
    memories = [case.memory(seed) for case in cases]
    code, emitted = ar.compile_all(to, kernels)
    for tree, kernel, memory in zip(drawn, kernels, memories):
        wanted = ar.results(kernel, memory, tree.elem)
        for name, after in ar.after_passes(kernel, to.facts).items():
            assert not ar.differing(ar.results(after, memory, tree.elem), wanted, tree.elem).any(), name
        ar.clean(to.simulate(code, [ar.launch(kernel, emitted[kernel.name])], memory))
        differ = ar.differing(memory["out"].view(tree.elem.numpy), wanted, tree.elem)
        assert not differ.any(), (tree, str(kernel), np.flatnonzero(differ)[:4])


@pytest.mark.parametrize("target", FACTS)
@settings(FIXED, max_examples=4)
@given(st.lists(trees(), min_size=10, max_size=10), st.integers(0, 1 << 16))
def test_random_trees(target: str, drawn: list[Tree], seed: int) -> None:
    check_trees(target, drawn, seed)


@pytest.mark.sweep
@settings(SWEEP, max_examples=60)
@given(st.lists(trees(12), min_size=10, max_size=10), st.integers(0, 1 << 16))
def test_many_random_trees(drawn: list[Tree], seed: int) -> None:
    for target in FACTS:
        check_trees(target, drawn, seed)


def test_a_wait_state_behind_a_transcendental_is_needed() -> None:
    to = TARGETS["gfx942"]
    kernel = ar.Case(lambda a, b, c: fl.Exp2(a + b + c) + a, f32, 64).kernel("k")
    emitted = to.emit(pipeline.run(kernel, to.facts))
    text = to.module([emitted])
    found = []
    for listing in (text, text.replace("s_nop", "// s_nop")):
        code = to.assemble(listing)
        assert code is not None
        memory = ar.Case(lambda a, b, c: a, f32, 64).memory(1)
        found.append(to.simulate(code, [ar.launch(kernel, emitted)], memory).findings)
    assert not found[0]
    assert any("trans -> plain_read" in finding.message for finding in found[1])


def numbers(elem: Type) -> Any:
    """All f16, or as many f32: of all sizes, and such as functions like."""
    raw = np.arange(1 << 16, dtype=np.uint16)
    if elem is f16:
        return raw.view(np.float16)
    rng = np.random.default_rng(3)
    some = np.concatenate([rng.uniform(-150, 150, 1 << 14), rng.uniform(0, 4, 1 << 14), ar.edges(f32), [256.5, 1e6]])
    bits = rng.integers(0, 1 << 32, (1 << 16) - some.size, dtype=np.uint32).view(np.float32)
    return np.concatenate([some.astype(np.float32), np.where(bits == bits, bits, np.float32(np.nan))])


@pytest.mark.parametrize("elem", [f16, f32], ids=str)
@pytest.mark.parametrize("target", FACTS)
def test_approximate_operations_keep_their_bounds(target: str, elem: Type) -> None:
    """With whatever errors the hardware may make; and without them some results are nearer."""
    given = numbers(elem)
    groups = given.size // (64 * (128 // elem.bits))
    cases = {cls: ar.Case(f, ar.widths(elem)[0], 64) for cls, f in ar.APPROXIMATE.items()}
    kernels = [case.kernel(f"k{n}", groups) for n, case in enumerate(cases.values())]
    code, emitted = ar.compile_all(TARGETS[target], kernels)
    for cls, kernel in zip(cases, kernels):
        with np.errstate(all="ignore"):
            wide = given.astype(np.float64)
            flushed = np.where((np.abs(wide) < np.finfo(np.float32).tiny) & (elem is f32), np.copysign(0, wide), wide)
            exact, instead = APPROXIMATE[cls](wide), APPROXIMATE[cls](flushed)
        results = {}
        for seed in (None, 1, 2):
            memory = {**dict.fromkeys("abc", given.view(np.uint8)), "out": np.zeros(given.nbytes, np.uint8)}
            ar.clean(simulate(code, [ar.launch(kernel, emitted[kernel.name])], memory, approximate=seed))
            found = memory["out"].view(elem.numpy)
            bound = cls.accuracy[elem]
            far = np.minimum(ar.error(found, exact, elem, bound), ar.error(found, instead, elem, bound))
            assert far.max() <= 1, (cls, seed, given[far.argmax()], found[far.argmax()], exact[far.argmax()])
            results[seed] = found
        assert (results[1] != results[None]).any()
        assert (results[1] != results[2]).any(), "the seed matters"


def applied(f: Function) -> ar.Operation:
    return (lambda a, b, c: f(a, b)) if f.name in TWO else (lambda a, b, c: f(a))


@pytest.mark.parametrize("elem", [f16, f32], ids=str)
@pytest.mark.parametrize("target", FACTS)
def test_functions_keep_their_bounds(target: str, elem: Type) -> None:
    cases = {name: ar.Case(applied(f), ar.widths(elem)[0], 64) for name, f in LIBRARY.items()}
    lanes = 64 * (128 // elem.bits)
    kernels = {name: case.kernel(name, _MANY // lanes) for name, case in cases.items()}
    code, emitted = ar.compile_all(TARGETS[target], list(kernels.values()))
    for name, kernel in kernels.items():
        given = [g[:_MANY] for g in operands(name, elem)]
        with np.errstate(all="ignore"):
            exact = EXACT[name](*(g.astype(np.float64) for g in given))
        memory = {n: np.ascontiguousarray(g).view(np.uint8) for n, g in zip("abc", [*given, given[0], given[0]])}
        memory["out"] = np.zeros(_MANY * elem.bytes, np.uint8)
        ar.clean(simulate(code, [ar.launch(kernel, emitted[name])], memory, approximate=4))
        found = memory["out"].view(elem.numpy)
        far = ar.error(found, exact, elem, LIBRARY[name].accuracy_of(elem))
        far = np.where(usual(exact), far, 0) if name == "divide" else far
        worst = far.argmax()
        assert far[worst] <= 1, (name, far[worst], [g[worst] for g in given], found[worst], exact[worst])
