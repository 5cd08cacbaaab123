"""Selection against the meaning of the IR: random kernels give the same memory interpreted and simulated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import driver
from convgen.backends import target as targets
from convgen.backends.amdgpu.emitter import AmdEmitter
from convgen.backends.machine.instruction import Imm
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.backends.target import Target
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import (
    Expr,
    Lane,
    Pack,
    Shuffle,
    Slice,
    Uniform,
    const,
    eq,
    maximum,
    minimum,
    ne,
    select,
    zeros,
)
from convgen.ir.interp import interpret
from convgen.ir.layout.memory import Global
from convgen.ir.program import Kernel
from convgen.ir.types import Type, bf16, f16, f32, f64, s8, s16, s32, u32, vector
from convgen.passes import pipeline
from convgen.problem.conv import Conv

TARGET = targets.get("gfx942")
LANES, WAVES, GROUPS = 64, 2, 2

Builder = Callable[[Expr, Expr], Expr]
OPERATIONS: tuple[Builder, ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: (a & 1023) * (b & 1023),
    lambda a, b: a * b,
    lambda a, b: a & b,
    lambda a, b: a | b,
    lambda a, b: a ^ b,
    lambda a, b: minimum(a, b),
    lambda a, b: maximum(a, b),
    lambda a, b: (a & 0xFFFF) // 7 + b,
    lambda a, b: (a & 0xFFFFF) % 56 - b,
    lambda a, b: (a & 255) // 16 % 3 + b * 4,
    lambda a, b: a << 3 | (b & 7),
    lambda a, b: (a & b) | 0x40000,
    lambda a, b: a >> 2,
    lambda a, b: (a.to(u32) >> (b & 31).to(u32)).to(s32),
    lambda a, b: (a << (b & 31)) + 100000,
    lambda a, b: ~a + b,
    lambda a, b: select(a < b, a, b + 1),
    lambda a, b: select(eq(a & 3, 1), b, -5),
    lambda a, b: select((a <= b) & ne(b, 0), a, b),
    lambda a, b: select((a < 10) | ~(b < 3), b, 70000),
    lambda a, b: select(a.to(u32) < b.to(u32), const(1), a),
)


SHUFFLES = {
    "pairs swapped": (1, 0, 3, 2, 5, 4, 7, 6),
    "a matrix turned round": (0, 4, 1, 5, 2, 6, 3, 7),
    "reversed": (7, 6, 5, 4, 3, 2, 1, 0),
    "both from one word, and words as they are": (2, 2, 3, 3, 4, 5, 0, 0),
    "odd before even": (1, 4, 3, 6, 5, 2, 7, 0),
    "fewer": (6, 1),
    "more": (0, 1, 2, 3, 0, 1, 2, 3),
}


def run_both(*kernels: Kernel, buffers: dict[str, np.ndarray], target: Target = TARGET) -> None:
    """Interpret kernels as built; lower, emit, assemble and simulate them; memory must agree, without findings."""
    emitted = [target.emit(pipeline.run(kernel, target.facts)) for kernel in kernels]
    code = target.assemble(target.module(emitted))
    assert code is not None
    for kernel, made in zip(kernels, emitted):
        expected, actual = ({n: b.copy() for n, b in buffers.items()} for _ in range(2))
        interpret(kernel, expected, {})
        args = tuple(KernelArg(offset, size, name) for name, offset, size in made.arguments)
        launch = LaunchRequest(kernel.name, kernel.grid, (kernel.subgroups * kernel.width, 1, 1), args)
        report = target.simulate(code, [launch], actual)
        assert not report.findings, report.findings[0]
        for name, wanted in expected.items():
            np.testing.assert_array_equal(actual[name].view(np.int32), wanted.view(np.int32), err_msg=made.text)


def start(name: str) -> tuple[KernelBuilder, Global, Global, Expr]:
    """A kernel over two waves and two workgroups with an input and an output word for each thread."""
    k = KernelBuilder(name, grid=(GROUPS, 1, 1), subgroups=WAVES)
    count = LANES * WAVES * GROUPS
    source, out = k.buffer("source", s32, count), k.buffer("out", s32, count)
    thread = (k.group[0] * WAVES + k.subgroup) * LANES + Lane()
    return k, source, out, thread


def memory(seed: int) -> dict[str, np.ndarray]:
    words = np.random.default_rng(seed).integers(-(1 << 31), 1 << 31, LANES * WAVES * GROUPS, dtype=np.int64)
    return {"source": words.astype(np.int32).view(np.uint8).copy(), "out": np.zeros(words.size * 4, np.uint8)}


steps = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 1 << 20), st.integers(0, 1 << 20)), min_size=3, max_size=14
)


@settings(max_examples=8)
@given(st.lists(steps, min_size=5, max_size=5), st.integers(0, 1 << 16))
def test_expressions(programs: list[list[tuple[Builder, int, int]]], seed: int) -> None:
    run_both(*(expressions(f"expressions{n}", program) for n, program in enumerate(programs)), buffers=memory(seed))


def expressions(name: str, program: list[tuple[Builder, int, int]]) -> Kernel:
    k, _, out, thread = start(name)
    pool: list[Expr] = [Lane(), k.subgroup, k.group[0], thread, const(-7), const(123456)]
    for operation, a, b in program:
        pool.append(operation(pool[a % len(pool)], pool[b % len(pool)]))
    value = k.let("value", pool[-1] ^ pool[-2])
    store(k, out, thread, value)
    return k.done()


def store(k: KernelBuilder, out: Global, thread: Expr, value: Expr) -> None:
    k.global_store(k.surface(out), Pack(vector(s32, 1), (value,)), thread * 4)


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_a_loop_carries_scalars_at_once(trips: int) -> None:
    k, _, out, thread = start("swap")
    with k.loop("i", 0, trips, a=Lane() + 1, b=thread * 3) as loop:
        loop.yields(loop["b"], loop["a"] + loop.var)
    a, b = loop.result("a"), loop.result("b")
    store(k, out, thread, a * 1000 + b)
    run_both(k.done(), buffers=memory(0))


@pytest.mark.parametrize("trips", [1, 2, 5])
def test_a_loop_carries_what_it_loads_from_one_variable_to_another(trips: int) -> None:
    """What was loaded moves on at the end: the next load must not be there before."""
    k, source, out, thread = start("queue")
    pair, surface = vector(s32, 2), k.surface(source)
    held = {name: k.global_load(name, pair, surface, Lane() * 8, 0, 8 * n) for n, name in enumerate(("a", "b", "c"))}
    with k.loop("i", 0, trips, **held, total=k.zeros(pair)) as loop:
        new = k.global_load("new", pair, surface, Lane() * 8 + loop.var * 16)
        total = k.let("sum", loop["total"] + loop["total"] + loop["a"])
        loop.yields(loop["b"], loop["c"], new, total)
    a, b, c, total = (loop.result(name) for name in ("a", "b", "c", "total"))
    k.global_store(k.surface(out), Slice(total + total + a - b + c + c + c, 1, 1), thread * 4)
    run_both(k.done(), buffers=memory(3))


CARRIED: dict[str, tuple[bool, Callable[[Expr, Expr], tuple[Expr, Expr]]]] = {
    "each of itself": (True, lambda a, b: (a - (a << 1), minimum(b, b + b))),
    "the first of both": (True, lambda a, b: (a - b, b + b)),
    "the second of both": (False, lambda a, b: (a + a, b - a)),
    "each of the other": (False, lambda a, b: (b + b, a + a)),
    "one moved": (False, lambda a, b: (b, a - b)),
    "turned round": (False, lambda a, b: (a + Shuffle(a, (3, 2, 1, 0)), b + b)),
}


@pytest.mark.parametrize("name", CARRIED)
def test_a_loop_carries_vectors_at_once(name: str) -> None:
    """What is computed at the end is written where it is carried, unless something needs what was there before."""
    in_place, following = CARRIED[name]
    k, source, out, _ = start("vectors")
    four, surface = vector(s32, 4), k.surface(source)
    a, b = (k.global_load(each, four, surface, Lane() * 16, 0, 16 * n) for n, each in enumerate("ab"))
    with k.loop("i", 0, 5, a=a, b=b) as loop:
        loop.yields(*following(loop["a"], loop["b"]))
    for n, each in enumerate("ab"):
        k.global_store(k.surface(out), loop.result(each), Lane() * 16, 0, 1024 * n)
    kernel = k.done()
    run_both(kernel, buffers=memory(4))
    text = TARGET.emit(pipeline.run(kernel, TARGET.facts)).text
    body = text[text.index("for i in") : text.index("next i")]
    assert ("v_mov_b32" not in body) == in_place, body


def test_in_a_loop_a_constant_that_lanes_choose_has_a_register() -> None:
    """No inline one stands beside the mask of a choice; what holds it is set ahead of the loop."""
    k, _, out, thread = start("chosen")
    with k.loop("i", 0, 5, total=Lane() + 0) as loop:
        total = loop["total"]
        loop.yields(select((total + loop.var) % 64 < 40, total + 3, -(1 << 31)) >> 1)
    store(k, out, thread, loop.result("total"))
    kernel = k.done()
    run_both(kernel, buffers=memory(0))
    text = TARGET.emit(pipeline.run(kernel, TARGET.facts)).text
    assert "v_mov_b32" not in text[text.index("for i in") : text.index("next i")]


def test_outside_of_loops_choices_that_are_near_share_a_constant() -> None:
    """Those that are far from each other, as by what stands between them here, do not hold a register so long."""
    k, _, out, thread = start("chosen_often")
    for n in range(3):
        store(k, out, thread, select((thread + n) % 64 < 40, thread * 5 + n, -(1 << 31)))
    between = thread + 0
    for n in range(140):
        between = k.let(f"between_{n}", (between ^ (thread + n)) * 3)
    store(k, out, thread, select(between % 64 < 40, between, -(1 << 31)))
    kernel = k.done()
    run_both(kernel, buffers=memory(0))
    assert TARGET.emit(pipeline.run(kernel, TARGET.facts)).text.count("0x80000000") == 2


def test_zeros_are_written_two_registers_at_a_time() -> None:
    k, data, out, thread = start("zeros")
    with k.loop("i", 0, 9, total=zeros(vector(s32, 4))) as loop:
        loop.yields(loop["total"] + k.global_load("more", vector(s32, 4), k.surface(data), loop.var * 16))
    store(k, out, thread, Pack(s32, (Slice(loop.result("total"), 3, 1),)))
    kernel = k.done()
    run_both(kernel, buffers=memory(0))
    text = TARGET.emit(pipeline.run(kernel, TARGET.facts)).text
    assert text.count("v_pk_mov_b32") == 2


def test_a_loop_of_unknown_length_may_not_run() -> None:
    k, _, out, thread = start("maybe")
    with k.loop("i", 0, k.group[0] * 3, total=Lane() + 0) as loop:
        loop.yields(loop["total"] + loop.var * 5 + 1)
    store(k, out, thread, loop.result("total"))
    run_both(k.done(), buffers=memory(0))


def test_a_loop_is_left_early() -> None:
    k, _, out, thread = start("leave")
    with k.loop("i", 0, 9, total=Lane() * 2) as loop:
        k.exit_if(eq(loop.var, k.group[0] + 3), loop["total"] + 100)
        loop.yields(loop["total"] + loop.var)
    store(k, out, thread, loop.result("total"))
    run_both(k.done(), buffers=memory(0))


def test_a_uniform_branch() -> None:
    k, _, out, thread = start("branch")
    with k.when(eq(k.subgroup, 1)):
        store(k, out, thread, Uniform(thread & -64) + 5)
    run_both(k.done(), buffers=memory(0))


def test_conditions_that_hold_together_take_two_instructions_each() -> None:
    """Of scalars: each chooses what the ones before it have left."""
    k, _, out, thread = start("together")
    a, b = k.let("a", k.group[0] * 3), k.let("b", k.subgroup + 1)
    both = (a < 2) & (b.to(u32) < const(2, u32)) & ne(a, b)
    store(k, out, thread, select(both, Lane(), thread + 7))
    kernel = k.done()
    run_both(kernel, buffers=memory(0))
    text = TARGET.emit(pipeline.run(kernel, TARGET.facts)).text
    assert text.count("s_cmp_") == text.count("s_cselect_b64") == 3
    assert "s_cselect_b32" not in text


@pytest.mark.parametrize("to", [f16, bf16])
def test_conversions_round_to_nearest_even(to: object) -> None:
    assert to in (f16, bf16)
    k = KernelBuilder("convert")
    source, out = k.buffer("source", f32, 256), k.buffer("out", f16 if to is f16 else bf16, 256)
    wide = k.global_load("wide", vector(f32, 4), k.surface(source), Lane() * 16)
    k.global_store(k.surface(out), wide.to(vector(out.elem, 4)), Lane() * 8)
    rng = np.random.default_rng(3)
    values = (rng.standard_normal(256) * 10.0 ** rng.integers(-6, 5, 256)).astype(np.float32)
    values[:4] = [0.0, -0.0, 65504.0, 1e-7]
    run_both(k.done(), buffers={"source": values.view(np.uint8).copy(), "out": np.zeros(512, np.uint8)})


def words(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count * 4, np.uint8)


@pytest.mark.parametrize("elem", [s8, f16, bf16, s16, f32, f64], ids=str)
def test_shuffles(elem: Type) -> None:
    count = LANES * 8 * elem.bytes // 4
    kernels = [shuffled(name.replace(" ", "_").replace(",", ""), elem, order) for name, order in SHUFFLES.items()]
    run_both(*kernels, buffers={"source": words(1, count), "out": np.zeros(count * 4, np.uint8)})


def shuffled(name: str, elem: Type, order: tuple[int, ...]) -> Kernel:
    k = KernelBuilder(name)
    messages = max(1, elem.bytes // 2)  # a message has at most 16 bytes
    each = 8 // messages
    source, out = (k.surface(k.buffer(n, elem, LANES * 8)) for n in ("source", "out"))
    loads = [
        k.global_load(f"v{m}", vector(elem, each), source, Lane() * 8 * elem.bytes + m * each * elem.bytes)
        for m in range(messages)
    ]
    held = k.let("held", Pack(vector(elem, 8), tuple(loads)))
    moved = k.let("moved", Shuffle(held, order))
    size = min(each, len(order))
    for m in range(0, len(order), size):
        part = Slice(moved, m, size)
        k.global_store(out, part, (Lane() * len(order) + m) * elem.bytes)
    return k.done()


@pytest.mark.parametrize("elem", [f32, f64, s32], ids=str)
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
def test_vector_and_atomic_additions(elem: Type, target: str) -> None:
    """Small integers, so that the order of the additions does not show."""
    k = KernelBuilder("adds", grid=(GROUPS, 1, 1), subgroups=WAVES)
    source, out = (k.surface(k.buffer(n, elem, LANES * 2)) for n in ("source", "out"))
    pair = k.global_load("pair", vector(elem, 2), source, Lane() * 2 * elem.bytes)
    total = k.let("total", pair + Shuffle(pair, (1, 0)))
    for i in (0, 1):
        k.global_atomic("add", out, Slice(total, i, 1), ((Lane() + k.subgroup) % LANES * 2 + i) * elem.bytes)
    values = np.random.default_rng(2).integers(-99, 100, LANES * 2).astype(elem.numpy)
    run_both(
        k.done(),
        buffers={"source": values.view(np.uint8).copy(), "out": np.ones(LANES * 2, elem.numpy).view(np.uint8)},
        target=targets.get(target),
    )


def test_operands_that_several_messages_bring_are_not_moved() -> None:
    """Of fp8 a lane gives 32 bytes to an instruction, twice what a message brings: these write side by side."""
    problem, config = "mb1ic512ih5oc32kh1", "tile=32x32x64 waves=1x1 mma=32x32x64 slots=2"
    text = driver.compile(driver.build(Conv.parse(problem, dir="FWD_D", dt="f8_e4m3"), "gfx950", config)).asm
    loop = text[text.index(".k_loop:") : text.index(".k_loop_end:")]
    assert loop.count("v_mfma") == 2
    assert loop.count("ds_read_b128") == 8
    assert "v_mov_b32" not in loop


def test_a_comparison_is_repeated_once_a_later_instruction_is_retargeted_to_its_operand() -> None:
    out = AmdEmitter("k")
    counter = out.new("s")
    out.scalar_compare("s_cmp_lt_i32", counter, Imm(3))
    assert out.retarget(out.salu("s_mul_i32", counter, Imm(5)), counter)
    out.scalar_compare("s_cmp_lt_i32", counter, Imm(3))
    assert [i.op.name for i in out.block.instructions] == ["s_cmp_lt_i32", "s_mul_i32", "s_cmp_lt_i32"]
