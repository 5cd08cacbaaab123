"""Every operation on every type, as vectors and as one element a lane: simulated as the interpreter says."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends import target as targets
from convgen.backends.intel.sim import simulate
from convgen.backends.intel.tables import GENERATIONS
from convgen.ir import floats as fl
from convgen.ir.build import KernelBuilder
from convgen.ir.error import Unsupported
from convgen.ir.evaluate_floats import APPROXIMATE
from convgen.ir.expr import Cast, Expr, Lane, Max, Min, Pack, Saturate, Shuffle, Slice, Splat, const, ne, select
from convgen.ir.floats import fma
from convgen.ir.types import Type, bool_, f16, f32, f64, s64, u32, vector
from convgen.passes import pipeline
from tests import arithmetic as ar
from tests import trees as trees_on
from tests.functions import check_bounds
from tests.product.changes import Change, described
from tests.product.test_deletion_xe import changes
from tests.strategies import FIXED, SWEEP, Tree, always, trees

pytestmark = pytest.mark.in_turn(5)

_MANY = 1 << 13  #: operands of a function
TARGETS = {name: targets.get(name) for name in ("xehpg", "xehpc")}
WIDTH = {name: GENERATIONS[name].lanes for name in TARGETS}
FLOATS = tuple(elem for elem in ar.FLOATS if elem is not f64)


@pytest.mark.parametrize("single", [False, True], ids=["vector", "single"])
@pytest.mark.parametrize("elem", [*FLOATS, *ar.INTEGERS], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_exact_operations(target: str, elem: Type, single: bool) -> None:
    to, type = TARGETS[target], ar.widths(elem)[single]
    cases = {name: ar.Case(f, type, WIDTH[target]) for name, f in ar.exact(elem).items()}
    ar.check_exact(to, cases, elem)


_PAIRS = [(of, to) for of in (*FLOATS, *ar.INTEGERS) for to in (*FLOATS, *ar.INTEGERS) if of is not to]


@pytest.mark.parametrize("part", always(zip(range(5)), lambda n, _: n == 0))
@pytest.mark.parametrize("how", [Cast, Saturate], ids=["cast", "saturating"])
@pytest.mark.parametrize("target", TARGETS)
def test_conversions(target: str, how: type[Cast] | type[Saturate], part: int) -> None:
    """Of every type to every other one."""
    to, count, pairs = TARGETS[target], 4, _PAIRS[part::5]

    def to_type(elem: Type) -> ar.Operation:
        return lambda a, b, c: how(vector(elem, count), a)

    rows = [ar.Case(to_type(elem), vector(of, count), WIDTH[target]) for of, elem in pairs]
    kernels = [case.kernel(f"k{n}") for n, case in enumerate(rows)]
    code, emitted = ar.compile_all(to, kernels)
    for (of, elem), case, kernel in zip(pairs, rows, kernels):
        memory = case.memory(3)
        wanted = ar.results(kernel, memory, elem)
        ar.clean(to.simulate(code, [ar.launch(kernel, emitted[kernel.name])], memory))
        found = memory["out"].view(elem.numpy)
        differ = ar.differing(found, wanted, elem)
        assert not differ.any(), (of, elem, found[differ][:4], wanted[differ][:4])


def check_trees(target: str, drawn: list[Tree], seed: int) -> None:
    """Those of types that Xe computes in."""
    trees_on.check(TARGETS[target], [tree for tree in drawn if tree.elem is not f64], seed)


@pytest.mark.parametrize("target", TARGETS)
@settings(FIXED, max_examples=3)
@given(st.lists(trees(), min_size=10, max_size=10), st.integers(0, 1 << 16))
def test_random_trees(target: str, drawn: list[Tree], seed: int) -> None:
    check_trees(target, drawn, seed)


@pytest.mark.sweep
@settings(SWEEP, max_examples=60)
@given(st.lists(trees(12), min_size=10, max_size=10), st.integers(0, 1 << 16))
def test_many_random_trees(drawn: list[Tree], seed: int) -> None:
    for target in TARGETS:
        check_trees(target, drawn, seed)


# ---------------------------------------------------------------- what has an error


def numbers(elem: Type) -> Any:
    """All f16, or as many f32: of all sizes, and such as functions like."""
    raw = np.arange(1 << 16, dtype=np.uint16)
    if elem is f16:
        return raw.view(np.float16)
    rng = np.random.default_rng(3)
    some = np.concatenate([rng.uniform(-150, 150, 1 << 14), rng.uniform(0, 4, 1 << 14), ar.edges(f32), [256.5, 1e6]])
    bits = rng.integers(0, 1 << 32, (1 << 16) - some.size, dtype=np.uint32).view(np.float32)
    return np.concatenate([some.astype(np.float32), np.where(bits == bits, bits, np.float32(np.nan))])


#: Beside the hardware's error in radians, that of turning turns into them, and of rounding to halves.
_WAVES = {f32: fl.Accuracy(1, 0.00081), f16: fl.Accuracy(1, 0.0013)}


def far(cls: type[fl.Approximate], given: Any, found: Any, elem: Type) -> Any:
    """How far results are from the exact ones, or from those of zeros where operands are denormal f32."""
    of = _WAVES[elem] if cls in (fl.Sin, fl.Cos) else cls.accuracy[elem]
    with np.errstate(all="ignore"):
        wide = given.astype(np.float64)
        flushed = np.where((np.abs(wide) < np.finfo(np.float32).tiny) & (elem is f32), np.copysign(0, wide), wide)
        return np.minimum(*(ar.error(found, APPROXIMATE[cls](x), elem, of) for x in (wide, flushed)))


@pytest.mark.parametrize("elem", [f16, f32], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_approximate_operations_keep_their_bounds(target: str, elem: Type) -> None:
    """With whatever errors the hardware may make."""
    given, width = numbers(elem), WIDTH[target]
    groups = given.size // (width * (128 // elem.bits))
    cases = {cls: ar.Case(f, ar.widths(elem)[0], width) for cls, f in ar.APPROXIMATE.items()}
    kernels = [case.kernel(f"k{n}", groups) for n, case in enumerate(cases.values())]
    code, emitted = ar.compile_all(TARGETS[target], kernels)
    for cls, kernel in zip(cases, kernels):
        results = {}
        for seed in (None, 1, 2):
            memory = {**dict.fromkeys("abc", given.view(np.uint8)), "out": np.zeros(given.nbytes, np.uint8)}
            ar.clean(simulate(code, [ar.launch(kernel, emitted[kernel.name])], memory, approximate=seed))
            found = results[seed] = memory["out"].view(elem.numpy)
            errors = far(cls, given, found, elem)
            worst = errors.argmax()
            assert errors.max() <= 1, (cls, seed, given[worst], found[worst])
        assert ar.differing(results[1], results[2], elem).any() or cls is fl.Rcp, "the seed matters"


@pytest.mark.parametrize("elem", [f16, f32], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_functions_keep_their_bounds(target: str, elem: Type) -> None:
    check_bounds(TARGETS[target], simulate, WIDTH[target], elem, _MANY)


# ---------------------------------------------------------------- values of all kinds


def begin(width: int) -> tuple[KernelBuilder, Expr, Callable[[Expr], None]]:
    """A builder, a fragment of four elements a lane, and what stores one."""
    k, type = KernelBuilder("k", width=width), vector(f32, 4)
    a, out = (k.buffer(name, f32, 4 * width) for name in ("a", "out"))
    held = k.global_load("held", type, k.surface(a), Lane() * 16)

    def store(value: Expr) -> None:
        k.global_store(k.surface(out), value, Lane() * 16)

    return k, held, store


def data(target: str) -> Any:
    return np.random.default_rng(2).standard_normal(4 * WIDTH[target]).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_scalar_floats_are_arguments_conditions_and_carried(target: str) -> None:
    k, held, store = begin(WIDTH[target])
    scale, limit = k.scalar("scale", f32), k.scalar("limit", f32)
    with k.loop("i", 0, 3, total=held, factor=scale) as loop:
        wide = Splat(vector(f32, 4), loop["factor"] + loop.var.to(f32))
        loop.yields(fma(loop["total"], wide, held), loop["factor"] * 0.5)
    with k.when((scale < limit) & ne(limit, 0.0)):
        store(loop.result("total") + Splat(vector(f32, 4), limit))
    with k.when(limit <= scale):
        store(Splat(vector(f32, 4), select(loop.result("factor") < 0.2, scale, limit)))
    kernel = k.done()
    for scalars in ({"scale": 1.25, "limit": 2.0}, {"scale": 1.25, "limit": 1.25}, {"scale": -1.5, "limit": -2.0}):
        wanted, found = ar.run(TARGETS[target], kernel, data(target), scalars)
        assert wanted.any()
        assert np.array_equal(wanted, found), scalars


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_a_bool_that_is_known_before_a_loop_is_carried_by_all_lanes(target: str, *, known: bool) -> None:
    k, held, store = begin(WIDTH[target])
    with k.loop("i", 0, 9, total=held, exists=const(known, bool_)) as loop:
        loop.yields(loop["total"] + select(loop["exists"], held, 1.0), (Lane() + loop.var) % 3 < 2)
    store(select(loop.result("exists"), loop.result("total"), held + 1.0))
    wanted, found = ar.run(TARGETS[target], k.done(), data(target), {})
    assert np.array_equal(wanted, found)


@pytest.mark.parametrize("target", TARGETS)
def test_vectors_of_bools_are_bound_carried_and_rearranged(target: str) -> None:
    k, held, store = begin(WIDTH[target])
    first = k.let("first", held < 0.0)
    with k.loop("i", 0, 3, seen=first, never=Splat(vector(bool_, 4), const(False, bool_))) as loop:
        mask = loop["seen"] ^ (held < Splat(vector(f32, 4), loop.var.to(f32) * 0.3))
        loop.yields(mask, loop["never"] | (Slice(Shuffle(mask, (3, 2, 1, 0, 1)), 1, 4) & mask))
    lanes = Splat(vector(bool_, 4), Lane() < 3)
    store(select(loop.result("seen"), held, 2.0) + select(loop.result("never") ^ lanes, held, -0.5))
    wanted, found = ar.run(TARGETS[target], k.done(), data(target), {})
    assert len(np.unique(wanted)) > WIDTH[target]
    assert np.array_equal(wanted, found)


def check(target: str, operations: list[ar.Operation], elem: Type) -> str:
    """Each operation on vectors is simulated as interpreted; gives the text."""
    cases = [ar.Case(operation, ar.widths(elem)[0], WIDTH[target]) for operation in operations]
    kernels = [case.kernel(f"k{n}") for n, case in enumerate(cases)]
    code, emitted = ar.compile_all(TARGETS[target], kernels)
    for case, kernel in zip(cases, kernels):
        memory = case.memory(5)
        wanted = ar.results(kernel, memory, elem)
        ar.clean(TARGETS[target].simulate(code, [ar.launch(kernel, emitted[kernel.name])], memory))
        assert not ar.differing(memory["out"].view(elem.numpy), wanted, elem).any(), kernel
    return " ".join(e.text for e in emitted.values())


@pytest.mark.parametrize("elem", [f16, f32], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_signs_turn_on_the_way(target: str, elem: Type) -> None:
    operations: list[ar.Operation] = [
        lambda a, b, c: fma(-a, fl.Abs(b), -fl.Abs(c)),
        lambda a, b, c: select(-fl.Abs(a) < fl.Abs(b), fl.Floor(-c), -(a - fl.Abs(c))),
        lambda a, b, c: fl.Abs(a) * -const_like(a, 2.5) - Max(-b, fl.Abs(c)),
    ]
    assert "-(abs)" in check(target, operations, elem)


@pytest.mark.parametrize("target", TARGETS)
def test_constants_of_any_size_stand_on_either_side(target: str) -> None:
    products: list[ar.Operation] = [lambda a, b, c, n=n: a * n for n in (5, 65535, 65536, 70000)]  # type: ignore[misc]
    text = check(target, products, u32)
    assert "65535:uw" in text
    assert "65536:u" not in text
    sides: list[ar.Operation] = [
        lambda a, b, c: select(a < b, const_like(a, 3), c),
        lambda a, b, c: select(const_like(a, 3) < b, const_like(a, 3), const_like(a, 4)),
        lambda a, b, c: const_like(a, 3) - b,
    ]
    for elem in (u32, f16, f32):
        check(target, sides, elem)


def const_like(a: Expr, value: float) -> Expr:
    return Splat(a.type, const(value, a.type.elem))  # type: ignore[arg-type]


@pytest.mark.parametrize("elem", [f16, f32], ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_of_two_zeros_the_sign_decides(target: str, elem: Type) -> None:
    zeros = [const(z, elem) for z in (0.0, -0.0)]
    wide = vector(elem, 128 // elem.bits)
    operations: list[ar.Operation] = [lambda a, b, c: Min(a, b), lambda a, b, c: Max(a, b)]
    operations += [lambda a, b, c, z=z, o=o: o(a, Splat(wide, z)) for z in zeros for o in (Min, Max)]  # type: ignore[misc]
    for operation in operations:
        case = ar.Case(operation, wide, WIDTH[target])
        kernel = case.kernel("k")
        code, emitted = ar.compile_all(TARGETS[target], [kernel])
        memory = case.memory(1)
        for n, name in enumerate("ab"):
            signs = np.arange(case.width * wide.lanes) >> n & 1
            memory[name] = np.where(signs, -0.0, 0.0).astype(elem.numpy).view(np.uint8)
        wanted = ar.results(kernel, memory, elem)
        ar.clean(TARGETS[target].simulate(code, [ar.launch(kernel, emitted["k"])], memory))
        assert not ar.differing(memory["out"].view(elem.numpy), wanted, elem).any()


# ---------------------------------------------------------------- waits, and refusals


def waiting(a: Expr, b: Expr, c: Expr) -> Expr:
    """Math functions beside float and integer instructions: results read, and sources and results overwritten."""
    some = fl.Exp2(a * b) + fl.Rcp(c)
    bits = Pack(vector(u32, a.type.lanes), (fl.Sqrt(some - a),)) >> 1
    return fl.Log2(Pack(a.type, (bits,))) + select(fl.Rsqrt(some) < fl.Sin(c), fl.Cos(a), some)


def unnoticed(target: str, kept: Callable[[list[Change]], list[Change]]) -> list[Change]:
    """The changes to waits, of those kept, that the simulator lets pass.

    Two elements: with more, flags are used again, and where one wait for all pipes stands for two, it makes others
    needless that the scoreboard asks for.
    """
    case, to = ar.Case(waiting, vector(f32, 2), WIDTH[target]), TARGETS[target]
    kernel = case.kernel("k")
    emitted = to.emit(pipeline.run(kernel, to.facts))
    text = to.module([emitted])
    assert {"xehpc": "M@", "xehpg": ".dst"}[target] in text

    def noticed(listing: str) -> bool:
        code = to.assemble(listing)
        return code is None or bool(to.simulate(code, [ar.launch(kernel, emitted)], case.memory(1)).findings)

    assert not noticed(text)
    return [change for change in kept([c for wait in changes(text) for c in wait]) if not noticed(change.applied(text))]


@pytest.mark.parametrize("target", TARGETS)
def test_waits_for_math_functions_are_needed(target: str) -> None:
    found = unnoticed(target, lambda listed: random.Random(target).sample(listed, 6))
    assert not found, described(found)


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_every_wait_for_math_functions_is_needed(target: str) -> None:
    found = unnoticed(target, lambda listed: listed)
    assert not found, described(found)


def test_what_selection_refuses_is_told_in_one_line() -> None:
    refused: dict[str, Callable[[Expr], Expr]] = {
        "given Mul of type s64x2": lambda held: Pack(
            held.type, (Pack(vector(s64, 2), (held,)) * Pack(vector(s64, 2), (held,)),)
        ),
        "given Add of type f64x2": lambda held: Pack(
            held.type, (Pack(vector(f64, 2), (held,)) + Pack(vector(f64, 2), (held,)),)
        ),
    }
    for target, to in TARGETS.items():
        for message, operation in refused.items():
            k, held, store = begin(WIDTH[target])
            store(operation(held))
            with pytest.raises(Unsupported, match=message) as error:
                to.emit(pipeline.run(k.done(), to.facts))
            assert "\n" not in str(error.value)
