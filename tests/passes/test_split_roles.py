"""Roles: a kernel whose copies a subgroup of their own starts computes what it did with barriers."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from convgen.backends.target import get
from convgen.ir.error import Unsupported
from convgen.ir.expr import AddressOf, Mma, Var, const, var
from convgen.ir.interp import interpret
from convgen.ir.layout.memory import Global
from convgen.ir.mutate import postorder, rewrite, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.ring import ring_of
from convgen.ir.stmt import (
    AcquireSlot,
    AwaitSlot,
    Barrier,
    ExitIf,
    FlatLoad,
    For,
    If,
    Let,
    LoadFactor,
    ReleaseSlot,
    SharedRead,
    SharedWrite,
    Site,
    StartRing,
    Stmt,
    TakeRegisters,
    TensorLoad,
    block,
    stmts_of,
)
from convgen.ir.types import bool_, f32, vector
from convgen.ir.verify import verify
from convgen.kernels import launches
from convgen.passes import pipeline
from convgen.passes.split_roles import split_roles
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import reference
from convgen.run.abi import zeroed_buffers
from convgen.run.execution import FOREIGN, SENTINEL
from tests import samples

FACTS = get("sm_90a").facts
NHWC = "--stag=axb --wtag=axb --dtag=axb"
SMALL = "tile=64x32x32 waves=1x4 mma=32x64x16"
EIGHTS = "tile=64x32x128 waves=1x4 mma=32x64x32"
Memory = dict[str, npt.NDArray[np.uint8]]

#: what is special -> problem, config but for `copy=`
CASES = {
    "product, one slot": ("--dt=f16 --wtag=ba 64x160:160x32", f"{SMALL} slots=1"),
    "product, two slots": ("--dt=f16 --wtag=ba 70x160:160x32", f"{SMALL} slots=2"),
    "product, three slots": ("--dt=f16 --wtag=ba 64x160:160x32", f"{SMALL} slots=3"),
    "product, four slots": ("--dt=f16 --wtag=ba 64x160:160x40", f"{SMALL} slots=4"),
    "sums of a block added apart": ("--dt=f8_e4m3:f8_e4m3:f32 --wtag=ba 64x640:640x32", f"{EIGHTS} slots=3"),
    "sums of two products added apart": (
        "--dt=f8_e4m3:f8_e4m3:f32 --wtag=ba 64x640:640x64",
        "tile=64x64x128 waves=1x4 mma=32x64x32 slots=2",
    ),
    "fewer blocks than slots": ("--dt=f16 --wtag=ba 64x64:64x32", f"{SMALL} slots=4"),
    "one block": ("--dt=f16 --wtag=ba 64x32:32x32", f"{SMALL} slots=2"),
    "two teams": ("--dt=f16 --wtag=ba 128x96:96x32", "tile=128x32x32 waves=2x4 mma=32x64x16 slots=2"),
    "registers exchanged": ("--dt=f16 --wtag=ba 128x32:32x256", "tile=128x256x16 waves=2x4 mma=256x64x16 slots=2"),
    "persistent, a last turn without a tile": ("--dt=f16 --wtag=ba 192x96:96x32", f"{SMALL} slots=2 map=persist:2"),
    "persistent, one slot": ("--dt=f16 --wtag=ba 192x96:96x32", f"{SMALL} slots=1 map=persist:2"),
    "persistent, blocks no multiple of slots": ("--dt=f16 --wtag=ba 192x160:160x32", f"{SMALL} slots=3 map=persist:1"),
    "persistent, a batch": ("--dt=f16 --wtag=acb 3x64x96:3x96x32", f"{SMALL} slots=2 map=persist:2"),
    "shares of K": ("--dt=f16 --wtag=ba 128x224:224x32", f"{SMALL} slots=2 map=stream:3 sum=last"),
    "forward by im2col": (f"--dt=f16 --dir=FWD_D {NHWC} mb1ic32ih6oc32kh3ph1", f"{SMALL} slots=3 padding=zeros"),
    "forward, sums recomputed": (f"--dt=f16 --dir=FWD_D {NHWC} mb1ic32ih6oc32kh3ph1", f"{SMALL} slots=2"),
    "backward weights": (
        f"--dt=f16 --dir=BWD_W {NHWC} mb2ic64ih5oc32kh3ph1",
        f"{SMALL} slots=2 taps=fused padding=zeros",
    ),
    "stride phases in one launch": (
        f"--dt=f16 --dir=BWD_D {NHWC} mb1ic32ih9oc32oh5kh3sh2ph1",
        f"{SMALL} slots=2 grids=merged padding=zeros",
    ),
}


def built(line: str, config: str) -> tuple[Problem, list[tuple[Kernel, dict[str, int]]]]:
    """A problem, its kernels as the pipeline gets them, and the values of each one's scalars."""
    problem = parse_problem(line)
    plan = make_plan(problem, Config.parse(f"{config} copy=tensor"), FACTS)
    program, tiles = launches.build(plan)
    scalars = {n.kernel.name: {a.name: a.value for a in n.mapping.arguments} for n in tiles.launches}
    return problem, [(kernel, scalars.get(kernel.name, {})) for kernel in program.kernels]


def around(kernel: Kernel) -> tuple[Kernel, Kernel]:
    """The kernel before and after the pass."""
    seen: dict[str, tuple[Kernel, Kernel]] = {}

    def observe(p: pipeline.Pass, before: Kernel, after: Kernel, seconds: float) -> None:
        seen[p.name] = before, after

    samples.run(kernel, FACTS, observe=observe)
    return seen["split_roles"]


def lowered(line: str = CASES["product, two slots"][0], config: str = CASES["product, two slots"][1]) -> Kernel:
    """The main kernel of a problem before the pass."""
    _, kernels = built(line, config)
    (kernel,) = (k for k, _ in kernels if any(isinstance(s, TensorLoad) for s in statements(around(k)[0].body)))
    return around(kernel)[0]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("name", CASES)
def test_roles_change_no_result(name: str) -> None:
    problem, kernels = built(*CASES[name])
    inputs = reference.fill(problem)
    buffers = {p.name: p.bytes for k, _ in kernels for p in k.params if isinstance(p, Global)}
    memory: Memory = {each: np.full(size, SENTINEL, np.uint8) for each, size in buffers.items()}
    memory |= {p.name: np.zeros(p.bytes, np.uint8) for k, _ in kernels for p in zeroed_buffers(k)}
    layouts = {t.name: t.layout for t in problem.tensors}
    memory |= {each: reference.pack(layouts[each], value, FOREIGN) for each, value in inputs.items()}
    split = 0
    for kernel, scalars in kernels:
        before, after = around(kernel)
        split += after is not before
        verify(after, "message")
        other = {each: data.copy() for each, data in memory.items()}
        interpret(before, memory, scalars)
        interpret(after, other, scalars)
        for each, data in memory.items():
            assert np.array_equal(data, other[each]), each
    assert split
    for t in problem.outputs:
        right = reference.pack(t.layout, reference.whole(problem, inputs, t.name), SENTINEL)
        assert np.array_equal(memory[t.name], right)


# ---------------------------------------------------------------- what each role keeps


def roles(kernel: Kernel) -> If:
    """The branch of a split kernel on the roles."""
    return next(s for s in stmts_of(kernel.body) if isinstance(s, If))


def kinds(s: Stmt) -> set[type[Stmt]]:
    return {type(inner) for inner in statements(s)}


@pytest.mark.parametrize("name", CASES)
def test_the_producer_keeps_only_what_copies_depend_on(name: str) -> None:
    after = around_main(name)
    branch = roles(after)
    allowed = {*kinds(roles(around_main("product, one slot")).other), For, If, type(block()), TakeRegisters}
    producer = kinds(branch.other)
    assert {TensorLoad, AcquireSlot} <= producer <= allowed
    assert not any("mma" in type(e).__name__.lower() for e in postorder(branch.other))
    loops = [s for s in statements(branch.other) if isinstance(s, For)]
    assert {v.name for loop in loops for v in loop.carried} == {"uses"}
    consumer = kinds(branch.then)
    assert {AwaitSlot, ReleaseSlot, LoadFactor} <= consumer
    assert not consumer & {TensorLoad, AcquireSlot, Barrier}
    start, barrier = stmts_of(after.body)[:2]
    assert isinstance(start, StartRing)
    assert isinstance(barrier, Barrier)
    assert start.consumers == after.subgroups - 4


def around_main(name: str) -> Kernel:
    """The main kernel of a case behind the pass."""
    return split_roles(lowered(*CASES[name]), FACTS)


def test_only_kernels_with_many_sums_exchange_registers() -> None:
    for name in CASES:
        taken = [s for s in statements(around_main(name).body) if isinstance(s, TakeRegisters)]
        if name == "registers exchanged":
            assert [(s.count, s.before) for s in taken] == [(240, 168), (24, 168)]
        else:
            assert not taken


def test_the_producer_counts_the_bytes_of_both_tiles() -> None:
    after = around_main("product, two slots")
    (acquire,) = (s for s in statements(after.body) if isinstance(s, AcquireSlot))
    assert acquire.bytes == (64 + 32) * 32 * 2


@pytest.mark.parametrize("name", ["sums of a block added apart", "sums of two products added apart"])
def test_a_slot_is_free_while_the_sums_of_its_block_are_added(name: str) -> None:
    after = around_main(name)
    (loop,) = (s for s in statements(roles(after).then) if isinstance(s, For) and s.label == "k_loop")
    stmts = stmts_of(loop.body)
    (at,) = (n for n, s in enumerate(stmts) if isinstance(s, ReleaseSlot))
    products = [n for n, s in enumerate(stmts) if any(isinstance(e, Mma) for e in s.operands)]
    assert at == products[-1] + 1
    assert [s.running for s in statements(after.body) if isinstance(s, ReleaseSlot)] == [0]
    assert any(isinstance(s, Let) for s in stmts[at:])


@pytest.mark.parametrize("nested", [False, True])
def test_a_slot_is_not_free_before_all_have_read_it(nested: bool) -> None:
    """Lanes load from the slot behind the first read of the sums, or all of the body is within one statement."""
    before, _ = around(built(*CASES["sums of a block added apart"])[1][0][0])
    tile = loads(before)[0].tile
    read = SharedRead(var("late", vector(f32, 1)), tile, const(0), 0, Site(10**6, "late"))

    def change(loop: For) -> Stmt:
        if loop.label != "k_loop":
            return loop
        stmts = stmts_of(loop.body)
        second = [n for n, s in enumerate(stmts) if isinstance(s, Barrier)][1] + 1
        inner = stmts[second:]
        rest = (inner[0], If(const(1, bool_), block(*inner[1:]), block())) if nested else (*inner, read)
        return evolve(loop, body=block(*stmts[:second], *rest))

    after = split_roles(in_loop(before, change), FACTS)
    (loop,) = (s for s in statements(roles(after).then) if isinstance(s, For) and s.label == "k_loop")
    stmts = stmts_of(loop.body)
    (at,) = (n for n, s in enumerate(stmts) if isinstance(s, ReleaseSlot))
    assert not any(isinstance(inner, (SharedRead, LoadFactor)) for s in stmts[at:] for inner in statements(s))


def test_a_kernel_without_copies_stays() -> None:
    (kernel,) = samples.program("sm_90a", "in_place").ir.kernels
    before, after = around(kernel)
    assert after is before


# ---------------------------------------------------------------- refusals


def loads(kernel: Kernel) -> list[TensorLoad]:
    return [s for s in statements(kernel.body) if isinstance(s, TensorLoad)]


def in_loop(kernel: Kernel, change: Callable[[For], Stmt]) -> Kernel:
    """The kernel with the loop over blocks changed."""
    return evolve(kernel, body=rewrite(kernel.body, {For: change}))


def with_copy_outside(kernel: Kernel) -> Kernel:
    load = evolve(loads(kernel)[0], coords=(const(0), const(0)))
    return evolve(kernel, body=block(*stmts_of(kernel.body), load))


def without_first_barrier(kernel: Kernel) -> Kernel:
    return in_loop(kernel, lambda loop: evolve(loop, body=block(*stmts_of(loop.body)[1:])))


def without_second_barrier(kernel: Kernel) -> Kernel:
    def change(loop: For) -> Stmt:
        first, *rest = stmts_of(loop.body)
        return evolve(loop, body=block(first, *(s for s in rest if not isinstance(s, Barrier))))

    return in_loop(kernel, change)


def with_exit(kernel: Kernel) -> Kernel:
    def change(loop: For) -> Stmt:
        return evolve(loop, body=block(*stmts_of(loop.body), ExitIf(loop.var < const(-1), loop.yields)))

    return in_loop(kernel, change)


def with_shared_scratch(kernel: Kernel) -> Kernel:
    def change(s: SharedWrite) -> Stmt:
        return evolve(s, site=evolve(s.site, private=False))

    return evolve(kernel, body=rewrite(kernel.body, {SharedWrite: change}))


def with_two_rings(kernel: Kernel) -> Kernel:
    first = loads(kernel)[0]
    other = ring_of("other", first.ring.cols)

    def change(s: TensorLoad) -> Stmt:
        return evolve(s, ring=other) if s is first else s

    return evolve(kernel, shared=(*kernel.shared, other), body=rewrite(kernel.body, {TensorLoad: change}))


def with_coordinates_from(kernel: Kernel, read: Stmt, bound: Var) -> Kernel:
    """A copy whose coordinate a load ahead of the loop binds."""
    first = loads(kernel)[0]

    def change(loop: For) -> Stmt:
        body = rewrite(loop.body, {TensorLoad: lambda s: evolve(s, coords=(bound, *s.coords[1:])) if s is first else s})
        return block(read, evolve(loop, body=body))

    return in_loop(kernel, change)


def with_coordinates_from_memory(kernel: Kernel) -> Kernel:
    read = next(s for s in statements(kernel.body) if isinstance(s, SharedRead))
    bound = Var("read", 1 << 20, const(0).type)
    return with_coordinates_from(kernel, evolve(read, var=bound), bound)


def with_coordinates_from_buffer(kernel: Kernel, name: str) -> Kernel:
    buffer = next(p for p in kernel.params if isinstance(p, Global) and p.name == name)
    bound = Var("read", 1 << 20, const(0).type)
    load = FlatLoad(bound, buffer, AddressOf(buffer), const(True, bool_), Site(1 << 10))
    return with_coordinates_from(kernel, load, bound)


@attrs.frozen
class Refusal:
    change: Callable[[Kernel], Kernel]
    why: str


REFUSALS = {
    "coordinates from a result": Refusal(lambda kernel: with_coordinates_from_buffer(kernel, "dst"), "depend on read"),
    "a copy outside the loop": Refusal(with_copy_outside, "bulk copies outside a loop that begins with a barrier"),
    "a loop without its first barrier": Refusal(without_first_barrier, "bulk copies outside a loop"),
    "a loop without its second barrier": Refusal(without_second_barrier, "bulk copies outside a loop"),
    "an exit": Refusal(with_exit, "loop k_loop of bulk copies with an exit, wanted one without"),
    "shared memory beside the ring": Refusal(with_shared_scratch, "scratch_0 of .*, which subgroups share, beside a"),
    "two rings": Refusal(with_two_rings, "several rings in .*, wanted one"),
    "coordinates from memory": Refusal(
        with_coordinates_from_memory, "depend on read, wanted lets, and loads of buffers"
    ),
}


def test_both_roles_load_coordinates_that_never_change() -> None:
    kernel = split_roles(with_coordinates_from_buffer(lowered(), "src"), FACTS)
    assert sum(isinstance(s, FlatLoad) and s.var.name == "read" for s in statements(kernel.body)) == 2


@pytest.mark.parametrize("name", REFUSALS)
def test_kernels_in_other_shapes_are_refused(name: str) -> None:
    kernel = lowered()
    split_roles(kernel, FACTS)
    with pytest.raises(Unsupported, match=REFUSALS[name].why) as caught:
        split_roles(REFUSALS[name].change(kernel), FACTS)
    assert len(str(caught.value)) < 300
