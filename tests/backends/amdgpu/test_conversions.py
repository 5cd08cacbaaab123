"""Conversions on the targets against the interpreter: kernels of one conversion on bit patterns of all kinds."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends import target as targets
from convgen.backends.amdgpu.conversions import plan
from convgen.backends.amdgpu.tables import FACTS
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.backends.stages import Emitted
from convgen.ir import types as t
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.evaluate import convert
from convgen.ir.expr import Conversion, Lane, Pack, Splat, const
from convgen.ir.interp import interpret
from convgen.ir.layout.mma import MmaTile
from convgen.ir.program import Kernel
from convgen.ir.types import Type, vector
from convgen.passes import pipeline

LANES = 64
TARGETS = {name: targets.get(name) for name in FACTS}
NUMBERS = [x for x in t.SCALARS.values() if not x.is_bool]
PLAIN = [t.f16, t.bf16, t.f32, t.s8, t.u8, t.s16, t.u16, t.s32, t.u32]
OCP, FNUZ = [t.f8_e4m3, t.f8_e5m2], [t.f8_e4m3fnuz, t.f8_e5m2fnuz]

#: What each target must convert, both ways between any two of a group, saturating or not.
REQUIRED = {
    "gfx90a": [PLAIN, [t.f32, t.f64]],
    "gfx942": [[*PLAIN, *FNUZ], [t.f32, t.f64]],
    "gfx950": [[*PLAIN, *OCP], [t.f32, t.f64]],
}
#: These would round twice; to bf16 there is another way.
TWICE = [(a, b) for a in (t.s32, t.u32) for b in (t.bf16, *OCP, *FNUZ)]


def interesting(source: Type, to: Type, count: int, seed: int = 1) -> Any:
    """Random bit patterns; then what lies at the limits, at ties and beside them; NaN, infinities, denormals, zeros."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 1 << 32, 2 * count, dtype=np.uint32).view(np.uint8)[: count * source.spacing // 8]
    if source.bits == 4:
        return raw
    limits = [to.largest] if to.is_float else [to.min, to.max]
    ties = (0.5, 1.5, 2.5, 3, 7.5, 126.5, 127.5, 255.5, 65535.5, 2**24 + 1)
    exact: Any = np.array([0, *limits, *(x / 2 for x in limits), *ties])
    with np.errstate(all="ignore"):
        if to.is_float and to.bits <= 16:  # middles of neighbours
            narrow = rng.integers(0, 1 << to.bits - 1, 300).astype(f"u{to.bytes}")
            pair = [(narrow + k).astype(narrow.dtype).view(to.numpy).astype(np.float64) for k in (0, 1)]
            exact = np.concatenate([exact, (pair[0] + pair[1]) / 2])
        near = [exact, exact * (1 + 2.0**-23), exact * (1 - 2.0**-23), exact + 1, exact - 1]
        special = (np.nan, np.inf, 0.0, 1e-40, 1e-44, 2.0**-25, 2.0**-17, 2.0**-133)
        some = np.concatenate([*near, special if source.is_float else [source.max]])
        some = convert(np.concatenate([some, -some]), source)
    values = raw.view(source.numpy).copy()
    chosen = rng.permutation(values.size)[: min(some.size, values.size * 3 // 4)]
    values[chosen] = rng.permutation(some)[: chosen.size]
    return values.view(np.uint8)


def kernel(source: Type, to: Type, lanes: int, saturate: bool) -> Kernel:
    k = KernelBuilder(f"{source}_to_{to}_by_{lanes}{'_saturating' * saturate}")
    given_, out = k.buffer("source", source, LANES * lanes), k.buffer("out", to, LANES * lanes)
    types = vector(source, lanes), vector(to, lanes)
    held = k.global_load("held", types[0], k.surface(given_), Lane() * (types[0].bits // 8))
    k.global_store(k.surface(out), held.to(types[1], saturate=saturate), Lane() * (types[1].bits // 8))
    return k.done()


@cache
def compiled(target: str, kernels: tuple[Kernel, ...]) -> tuple[bytes, dict[str, Emitted]]:
    """One code object for all kernels: to assemble and to decode it takes hardly longer than for one of them."""
    chosen = TARGETS[target]
    emitted = [chosen.emit(pipeline.run(k, chosen.facts)) for k in kernels]
    code = chosen.assemble(chosen.module(emitted))
    assert code is not None
    return code, {e.name: e for e in emitted}


def run_both(target: str, k: Kernel, memory: dict[str, Any], beside: tuple[Kernel, ...] = ()) -> tuple[Any, Any]:
    """What the kernel, one of those `beside` it, leaves in `out`: interpreted; and compiled, simulated, no findings."""
    expected, actual = ({n: b.copy() for n, b in memory.items()} for _ in range(2))
    interpret(k, expected, {})
    code, emitted = compiled(target, beside or (k,))
    args = tuple(KernelArg(offset, size, name) for name, offset, size in emitted[k.name].arguments)
    report = TARGETS[target].simulate(code, [LaunchRequest(k.name, k.grid, (LANES, 1, 1), args)], actual)
    assert not report.findings, report.findings[0]
    return expected["out"], actual["out"]


def check(
    target: str, source: Type, to: Type, lanes: int, saturate: bool, beside: tuple[Kernel, ...], seed: int = 1
) -> None:
    memory = {
        "source": interesting(source, to, LANES * lanes, seed),
        "out": np.zeros(LANES * lanes * to.bytes, np.uint8),
    }
    made = kernel(source, to, lanes, saturate)
    wanted, got = (x.view(to.numpy) for x in run_both(target, made, memory, beside))
    raw = f"u{to.bytes}"
    differ = wanted.view(raw) != got.view(raw)
    if to.is_float:
        differ &= ~(np.isnan(wanted) & np.isnan(got))  # which NaN is not specified
    assert not differ.any(), (memory["source"].view(source.numpy)[differ][:4], wanted[differ][:4], got[differ][:4])


def lanes_for(source: Type, to: Type) -> list[int]:
    """How many elements one message can load and one can store: the most, and so few that words are not full."""
    fits = [n for n in (8, 4, 2, 1) if all(n * x.bits in (8, 16, 32, 64, 96, 128) for x in (source, to))]
    return [fits[0], fits[-1]]


@cache
def pairs(target: str) -> list[tuple[Type, Type, bool]]:
    return [
        (a, b, saturate)
        for group in REQUIRED[target]
        for a in group
        for b in group
        for saturate in (False, True)
        if a is not b and (a, b) not in TWICE
    ]


@pytest.mark.parametrize("target", FACTS)
def test_what_must_be_there(target: str) -> None:
    missing = [p for p in pairs(target) if plan(p[0], p[1], FACTS[target], saturate=p[2]) is None]
    assert missing == [(t.f32, t.f64, True)]
    assert plan(t.f64, t.s8, FACTS[target]) is not None
    for source, to in [*TWICE, (t.f64, t.f16), (t.s64, t.f32), (t.f32, t.s64), (t.f32, t.u4), (t.f32, t.bool_)]:
        assert plan(source, to, FACTS[target]) is None, (source, to)


#: What an epilogue or a prologue needs; the rest is sampled.
NEEDED = [
    *((t.f32, x, s) for x in (t.f16, t.bf16, t.s8, t.u8, t.s32, t.u32, *OCP, *FNUZ) for s in (False, True)),
    *((x, t.f32, False) for x in (t.f16, t.bf16, t.s8, t.u8, t.s32, t.u32, t.s4, t.u4, *OCP, *FNUZ)),
    *((t.s32, x, s) for x in (t.s8, t.u8, t.f16) for s in (False, True)),
    (t.u32, t.f16, False),
    (t.f64, t.f32, False),
    (t.f32, t.f64, False),
    (t.f64, t.s32, False),
    (t.s32, t.f64, False),
]


@cache
def needed(target: str) -> tuple[Kernel, ...]:
    """The kernels of all conversions in `NEEDED` that a target has."""
    there = [row for row in NEEDED if plan(row[0], row[1], FACTS[target], saturate=row[2]) is not None]
    return tuple(kernel(a, b, n, s) for a, b, s in there for n in dict.fromkeys(lanes_for(a, b)))


@pytest.mark.parametrize(("source", "to", "saturate"), NEEDED, ids=str)
@pytest.mark.parametrize("target", FACTS)
def test_needed_conversions(target: str, source: Type, to: Type, saturate: bool) -> None:
    lanes = lanes_for(source, to)
    if plan(source, to, FACTS[target], saturate=saturate) is None:
        return  # made of other operations, see tests/backends/test_narrow.py
    for n in dict.fromkeys(lanes):
        check(target, source, to, n, saturate, needed(target))


@pytest.mark.parametrize("source", [t.s32, t.u32], ids=str)
def test_integers_are_rounded_once_to_bf16(source: Type) -> None:
    rows = [(source, t.bf16, n, saturate) for n in lanes_for(source, t.bf16)[:2] for saturate in (False, True)]
    kernels = tuple(kernel(*row) for row in rows)
    for row in rows:
        check("gfx942", *row, kernels)


@settings(max_examples=8)
@given(st.data())
def test_any_conversion(data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(list(FACTS)))
    some = st.sampled_from([p for p in pairs(target) if p != (t.f32, t.f64, True)])
    drawn = data.draw(st.lists(some, min_size=5, max_size=5, unique=True))
    rows = [(a, b, data.draw(st.sampled_from(lanes_for(a, b))), saturate) for a, b, saturate in drawn]
    kernels = tuple(kernel(*row) for row in rows)
    for row in rows:
        check(target, *row, kernels, data.draw(st.integers(0, 99)))


@pytest.mark.parametrize(("to", "one"), [(t.bf16, "v_cvt_pk_bf16_f32"), (t.f16, "v_cvt_pk_f16_f32")], ids=str)
def test_native_pairs_are_used_where_they_exist(to: Type, one: str) -> None:
    for target in FACTS:
        text = TARGETS[target].emit(pipeline.run(kernel(t.f32, to, 4, False), FACTS[target])).text
        assert text.count(one) == (2 if target == "gfx950" else 0)


def test_a_word_written_by_halves_starts_from_zero_unless_both_are_written() -> None:
    for lanes, zeroed in ((1, 1), (2, 1), (4, 0)):
        text = TARGETS["gfx942"].emit(pipeline.run(kernel(t.f32, FNUZ[0], lanes, False), FACTS["gfx942"])).text
        assert len(re.findall(r"v_mov_b32 +v\d+, 0\n", text)) == zeroed


@pytest.mark.parametrize("elem", [t.s8, t.f8_e4m3, t.bf16, t.f64, t.s32], ids=str)
def test_constant_vectors(elem: Type) -> None:
    lanes = 16 // elem.bytes
    k = KernelBuilder("constant")
    out = k.buffer("out", elem, LANES * lanes)
    k.global_store(k.surface(out), Splat(vector(elem, lanes), const(-3, elem)), Lane() * 16)
    wanted, got = run_both("gfx942", k.done(), {"out": np.zeros(LANES * 16, np.uint8)})
    np.testing.assert_array_equal(got, wanted)
    assert (got.view(elem.numpy) == -3).all()


@pytest.mark.parametrize("elem", [t.f8_e4m3fnuz, t.f8_e5m2fnuz, t.s8, t.u8, t.f16, t.bf16, t.s16], ids=str)
def test_what_does_not_fill_a_word_leaves_the_rest_clean(elem: Type) -> None:
    """Two halves of a word, converted apart and put side by side; the lower one later, in registers used before."""
    half = vector(elem, 16 // elem.bits)
    k = KernelBuilder("halves")
    source, out = k.buffer("source", t.f32, 8 * LANES), k.buffer("out", t.u32, LANES)
    loads = [
        k.global_load(f"p{i}", vector(t.f32, half.lanes), k.surface(source), Lane() * 16, 0, 8 * i) for i in (0, 1)
    ]
    halves = [k.let("half", x.to(half)) for x in loads]
    k.global_store(k.surface(out), Pack(vector(t.u32, 1), (*reversed(halves),)), Lane() * 4)
    numbers = np.random.default_rng(0).normal(0, 30, 8 * LANES).astype(np.float32)
    memory = {"source": numbers.view(np.uint8), "out": np.zeros(4 * LANES, np.uint8)}
    wanted, got = run_both("gfx942", k.done(), memory)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("target", "elem"), [("gfx942", t.s8), ("gfx942", t.f8_e4m3fnuz), ("gfx950", t.f8_e4m3)])
def test_an_epilogue_saturates(target: str, elem: Type) -> None:
    """From the tile level: a product in f32 is stored as bytes, most of them at the limits."""
    atom = next(a for a in FACTS[target].atoms if a.n == 16 and a.a_elem is t.f16)
    tile = MmaTile(atom, tiles_n=1, tiles_m=1, steps=1)
    k = KernelBuilder("epilogue")
    a, b = (matrix(k.buffer(name, t.f16, 16 * atom.k), 16, atom.k) for name in "ab")
    out = matrix(k.buffer("out", elem, 256), 16, 16)
    operands = [k.load_view(f"f{v.memory.name}", v, (0, 0), f) for v, f in ((a, tile.a), (b, tile.b))]
    product = k.mma("product", tile, k.zeros(tile.acc_type), *operands)
    k.store_view(out, (0, 0), product.to(vector(elem, 4), saturate=True), tile.d)
    rng = np.random.default_rng(0)
    memory = {n: rng.integers(-9, 10, 16 * atom.k).astype(np.float16).view(np.uint8) for n in "ab"}
    wanted, got = run_both(target, k.done(), memory | {"out": np.zeros(256, np.uint8)})
    np.testing.assert_array_equal(got, wanted)
    values = got.view(elem.numpy).astype(np.float32)
    assert values.max() == (elem.max if elem.is_int else elem.largest)


def test_conversions_compose() -> None:
    """A quantised addend: s8 to f32, added as bits it is not; f32 to f16 to s8."""
    k = KernelBuilder("compose")
    source, out = k.buffer("source", t.s8, 4 * LANES), k.buffer("out", t.s8, 4 * LANES)
    held: Any = k.global_load("held", vector(t.s8, 4), k.surface(source), Lane() * 4)
    for to in (t.f32, t.f16, t.f8_e5m2fnuz, t.bf16, t.s32):
        held = k.let("step", held.to(vector(to, 4)))
    assert isinstance(held.to(vector(t.s8, 4), saturate=True), Conversion)
    k.global_store(k.surface(out), held.to(vector(t.s8, 4), saturate=True), Lane() * 4)
    memory = {"source": np.arange(256, dtype=np.uint8), "out": np.zeros(256, np.uint8)}
    wanted, got = run_both("gfx942", k.done(), memory)
    np.testing.assert_array_equal(got, wanted)
    assert len(np.unique(got)) > 20
