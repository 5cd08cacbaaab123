"""Every operation on every type, as vectors and as one element a lane: simulated as the interpreter says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends import target as targets
from convgen.backends.amdgpu.sim import simulate
from convgen.backends.amdgpu.tables import FACTS
from convgen.ir import floats as fl
from convgen.ir.build import KernelBuilder
from convgen.ir.error import Unsupported
from convgen.ir.evaluate_floats import APPROXIMATE
from convgen.ir.expr import Expr, Lane, Pack, Shuffle, Slice, Splat, const, ne, select
from convgen.ir.floats import fma
from convgen.ir.types import Type, bool_, f16, f32, s64, vector
from convgen.passes import pipeline
from tests import arithmetic as ar
from tests import trees as trees_on
from tests.functions import check_bounds
from tests.strategies import FIXED, SWEEP, Tree, trees

pytestmark = pytest.mark.in_turn(4)

_MANY = 1 << 14  #: operands of a function
TARGETS = {name: targets.get(name) for name in FACTS}


@pytest.mark.parametrize("elem", [*ar.FLOATS, *ar.INTEGERS], ids=str)
@pytest.mark.parametrize("target", FACTS)
def test_exact_operations(target: str, elem: Type) -> None:
    to = TARGETS[target]
    cases = {f"{name}, {t}": ar.Case(f, t, 64) for name, f in ar.exact(elem).items() for t in ar.widths(elem)}
    ar.check_exact(to, cases, elem)


@pytest.mark.parametrize("target", FACTS)
@settings(FIXED, max_examples=4)
@given(st.lists(trees(), min_size=10, max_size=10), st.integers(0, 1 << 16))
def test_random_trees(target: str, drawn: list[Tree], seed: int) -> None:
    trees_on.check(TARGETS[target], drawn, seed)


@pytest.mark.sweep
@settings(SWEEP, max_examples=60)
@given(st.lists(trees(12), min_size=10, max_size=10), st.integers(0, 1 << 16))
def test_many_random_trees(drawn: list[Tree], seed: int) -> None:
    for target in FACTS:
        trees_on.check(TARGETS[target], drawn, seed)


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


@pytest.mark.parametrize("elem", [f16, f32], ids=str)
@pytest.mark.parametrize("target", FACTS)
def test_functions_keep_their_bounds(target: str, elem: Type) -> None:
    check_bounds(TARGETS[target], simulate, 64, elem, _MANY)


def begin(elements: int) -> tuple[KernelBuilder, Expr, Callable[[Expr], None]]:
    """A builder, a fragment of so many elements a lane, and what stores one."""
    k, type = KernelBuilder("k"), vector(f32, elements)
    a, out = (k.buffer(name, f32, 64 * elements) for name in ("a", "out"))
    held = k.global_load("held", type, k.surface(a), Lane() * (4 * elements))

    def store(value: Expr) -> None:
        k.global_store(k.surface(out), value, Lane() * (4 * elements))

    return k, held, store


DATA = np.random.default_rng(2).standard_normal(256).astype(np.float32)


@pytest.mark.parametrize("target", FACTS)
def test_scalar_floats_are_arguments_conditions_and_carried(target: str) -> None:
    k, held, store = begin(4)
    scale, limit = k.scalar("scale", f32), k.scalar("limit", f32)
    with k.loop("i", 0, 3, total=held, factor=scale) as loop:
        wide = Splat(vector(f32, 4), loop["factor"] + loop.var.to(f32))
        loop.yields(fma(loop["total"], wide, held), loop["factor"] * 0.5)
    with k.when((scale < limit) & ne(limit, 0.0)):
        store(loop.result("total"))
    with k.when(limit <= scale):
        store(Splat(vector(f32, 4), select(loop.result("factor") < 0.2, scale, limit)))
    kernel = k.done()
    for scalars in ({"scale": 1.25, "limit": 2.0}, {"scale": 1.25, "limit": 1.25}, {"scale": -1.5, "limit": -2.0}):
        wanted, found = ar.run(TARGETS[target], kernel, DATA, scalars)
        assert wanted.any()
        assert np.array_equal(wanted, found), scalars


@pytest.mark.parametrize("target", FACTS)
def test_vectors_of_bools_are_bound_carried_and_rearranged(target: str) -> None:
    k, held, store = begin(4)
    first = k.let("first", held < 0.0)
    with k.loop("i", 0, 3, seen=first, never=Splat(vector(bool_, 4), const(False, bool_))) as loop:
        mask = loop["seen"] ^ (held < Splat(vector(f32, 4), loop.var.to(f32) * 0.3))
        loop.yields(mask, loop["never"] | (Slice(Shuffle(mask, (3, 2, 1, 0, 1)), 1, 4) & mask))
    store(select(loop.result("seen"), held, 2.0) + select(loop.result("never"), held, -0.5))
    wanted, found = ar.run(TARGETS[target], k.done(), DATA, {})
    assert len(np.unique(wanted)) > 100
    assert np.array_equal(wanted, found)


def test_what_selection_refuses_is_told_in_one_line() -> None:
    k, held, store = begin(4)
    wide = Pack(vector(s64, 2), (held,))
    store(Pack(held.type, (wide * wide,)))
    with pytest.raises(Unsupported, match="given Mul of type s64x2, wanted a vector operation") as error:
        TARGETS["gfx942"].emit(pipeline.run(k.done(), FACTS["gfx942"]))
    assert "\n" not in str(error.value)
