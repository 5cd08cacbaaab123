"""Let placement: nothing is computed twice in a block, nothing in a loop that does not change there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Binary, Const, Expr, Lane, Not, Select, Var, select
from convgen.ir.mutate import postorder, statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import Block, For, If, Let, Stmt
from convgen.ir.types import VectorType, f16, f32, s32, vector
from convgen.ir.uniform import Uniformity, uniformity, varying
from convgen.ir.verify import verify
from convgen.ir.votes import AllLanes
from convgen.passes import pipeline
from convgen.passes.clone import bound_vars
from convgen.passes.place_lets import place_lets
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from tests.passes.running import tile_kernel

TARGET = get("gfx942")
FACTS = TARGET.facts

CASES = {
    "3x3": ("mb2ic64ih14oc64kh3ph1", "tile=64x64x32 waves=2x2 mma=16x16x16 slots=2 padding=zeros"),
    "odd, fused": ("mb2ic13ih9oc20kh3ph1", "tile=32x32x32 waves=2x1 mma=16x16x16 slots=1 taps=fused padding=zeros"),
    "1x1, strided": ("mb1ic256ih14oc64oh7kh1sh2ph0", "tile=64x64x32 waves=2x2 mma=32x32x8 slots=2 acc=a"),
}


def lowered(case: str, *disable: str) -> Kernel:
    descriptor, config = CASES[case]
    problem = Conv.parse(descriptor, dir="FWD_D", dt="f16")
    return pipeline.run(tile_kernel(problem, Config.parse(config), FACTS), FACTS, disable)


def operands(s: Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement itself."""
    bound = set(bound_vars(s)) if not isinstance(s, For) else {s.var, *s.carried, *s.results}
    return tuple(e for e in s.children() if isinstance(e, Expr) and e not in bound)


def occurrences(e: Expr) -> Iterator[Expr]:
    """Every node of the expression as a tree: what selection, which shares only variables, would compute."""
    yield e
    for c in e.children():
        if isinstance(c, Expr):
            yield from occurrences(c)


def blocks(s: Stmt) -> Iterator[tuple[Stmt, ...]]:
    """Every block with the statements that stand in it."""
    stmts = s.stmts if isinstance(s, Block) else (s,)
    yield stmts
    for inner in stmts:
        if isinstance(inner, For):
            yield from blocks(inner.body)
        elif isinstance(inner, If):
            yield from blocks(inner.then)
            yield from blocks(inner.other)


# ---------------------------------------------------------------- what selection makes of it

_REGISTERS = re.compile(r"\b([vsa])(\d+)\b|\b([vsa])\[(\d+):(\d+)\]|\b(vcc|exec|m0)\b")
_COMPUTES = re.compile(
    r"(?!v_mov|v_pk_mov|s_mov|v_mfma|v_accvgpr|s_load|s_(?:waitcnt|barrier|nop|cbranch|branch|endpgm|cmp))[vs]_"
)

#: A result that an instruction leaves in a word: which instruction it is, and which word of it.
Origin = tuple[int, int]


def words(operand: str) -> list[str]:
    """The 32-bit registers that an operand names."""
    found = []
    for kind, one, kinds, first, last, special in _REGISTERS.findall(operand):
        found += (
            [special] if special else [f"{kind or kinds}{n}" for n in range(int(one or first), int(one or last) + 1)]
        )
    return found


def code(case: str, *disable: str) -> list[tuple[str, list[str]]]:
    """The instructions of a case's kernel in order, and its labels: (mnemonic or label, operands)."""
    lines = (line.partition("//")[0].strip() for line in TARGET.emit(lowered(case, *disable)).text.splitlines())
    split = (line.partition(" ") for line in lines if re.match(r"(v|s|ds|buffer|global)_|[\w.]+:$", line))
    return [(name, re.split(r",\s*(?![^\[]*\])", rest.strip())) for name, _, rest in split]


def repeated(instructions: list[tuple[str, list[str]]]) -> list[str]:
    """Instructions that compute what one before them in the same block has computed from the same values.

    Values are numbered: a word is what wrote it last, and an instruction is its mnemonic on its operands' values. So
    this knows nothing of expressions. Moves fill registers that messages want, and comparisons a flag: both may recur.
    """
    written: dict[str, Origin] = {}
    known: dict[object, int] = {}
    found = []
    for number, (name, operands) in enumerate(instructions):
        if name.endswith(":"):
            written, known = {}, {}
        sources = [(_REGISTERS.sub("", o), *(written.get(w, w) for w in words(o))) for o in operands[1:]]
        key = (name, *sources, written.get("scc") if name.startswith("s_addc") else None)
        computes = bool(_COMPUTES.match(name))
        if computes and key in known:
            found.append(f"{name} {', '.join(operands)}")
        origin = known.setdefault(key, number) if computes else number
        written |= {w: (origin, n) for n, w in enumerate(words(operands[0]))}
        if name.startswith("s_"):
            written["scc"] = (origin, -1)
    return found


def invariant(instructions: list[tuple[str, list[str]]]) -> list[str]:
    """Instructions of the K loop that compute from registers which nothing in the loop writes."""
    begin = next(n for n, (name, _) in enumerate(instructions) if "k_loop" in name)
    end = next(n for n, (name, operands) in enumerate(instructions) if "branch" in name and "k_loop" in operands[0])
    loop = instructions[begin:end]
    changed = {w for _, operands in loop for w in words(operands[0])}
    computed = [(name, operands) for name, operands in loop if _COMPUTES.match(name)]
    return [
        f"{name} {', '.join(o)}" for name, o in computed if not changed & {w for source in o[1:] for w in words(source)}
    ]


@pytest.mark.parametrize("case", CASES)
def test_code_computes_nothing_twice(case: str) -> None:
    assert repeated(code(case)) == []
    assert len(repeated(code(case, "place_lets"))) > 100


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_change_in_a_loop_is_computed_before_it(case: str) -> None:
    assert invariant(code(case)) == []
    assert len(invariant(code(case, "place_lets"))) > 10


def test_a_single_use_in_a_loop_is_computed_before_it() -> None:
    k = KernelBuilder("invariant")
    surface = k.surface(k.buffer("b", f16, 4096))
    with k.loop("n", 0, 4) as loop:
        part = k.global_load("part", vector(f16, 2), surface, Lane() * 12 + 8, loop.var * 4)
        k.global_store(surface, part, loop.var * 4 + Lane() * 256)
        loop.yields()
    placed = place_lets(k.done(), FACTS)
    stmts = placed.body.stmts if isinstance(placed.body, Block) else ()
    named = {str(s.value) for s in stmts if isinstance(s, Let)}
    assert "lane * 12 + 8" in named
    assert "lane * 256" in named
    assert isinstance(stmts[-1], For)


def vector_work(kernel: Kernel) -> int:
    """Varying integer operations in the body of the K loop."""
    (loop,) = (s for s in postorder(kernel) if isinstance(s, For))
    varies = varying(kernel)
    uniform = Uniformity(varies)
    roots = (e for stmts in blocks(loop.body) for s in stmts for e in operands(s))
    nodes = (n for e in roots for n in occurrences(e))
    return sum(isinstance(n, (Binary, Select, Not)) and not uniform(n) for n in nodes)


#: So many operations remain in the loop: the halo masks of each pixel message, no address arithmetic.
WORK = {"3x3": 5, "1x1, strided": 0}


@pytest.mark.parametrize("case", WORK)
def test_address_arithmetic_leaves_the_loop(case: str) -> None:
    assert vector_work(lowered(case)) <= WORK[case]
    assert vector_work(lowered(case, "place_lets")) > 100


@pytest.mark.parametrize("case", CASES)
def test_what_it_binds_varies_as_another_look_finds(case: str) -> None:
    placed = place_lets(lowered(case, "place_lets"), FACTS)
    assert uniformity(placed).varying == varying(placed)


@pytest.mark.parametrize("case", CASES)
def test_it_is_idempotent(case: str) -> None:
    once = lowered(case)
    assert place_lets(once, FACTS) is once


def test_lets_that_are_there_serve() -> None:
    """A value that has a name already is not given another."""
    kernel = lowered("3x3")
    named = [s.value for s in postorder(kernel) if isinstance(s, Let) and not isinstance(s.value, (Const, Var))]
    assert len(named) == len(set(named))


def test_of_vectors_what_serves_twice_is_bound_and_masks_stay_in_place() -> None:
    k = KernelBuilder("k")
    pair = vector(f32, 2)
    out = k.surface(k.buffer("out", f32, 128))
    held = k.global_load("held", pair, k.surface(k.buffer("a", f32, 128)), Lane() * 8)
    product, once = held * 3.0, held + 1.0
    mask = product < held
    with k.loop("i", 0, 4):
        k.global_store(out, select(mask, product, once) + select(mask, held, product), Lane() * 8)
    lets = [s for s in statements(place_lets(k.done(), FACTS).body) if isinstance(s, Let)]
    assert [let.value for let in lets if isinstance(let.value.type, VectorType) and let.value.type is pair] == [product]


def test_hoisting_keeps_within_the_registers() -> None:
    """A hundred invariant offsets for one loop: all are hoisted if registers allow, else some are computed inside."""
    k = KernelBuilder("many")
    surface = k.surface(k.buffer("b", f16, 1 << 16))
    with k.loop("n", 0, 4) as loop:
        for i in range(100):
            part = k.global_load("part", vector(f16, 2), surface, Lane() * 4 + (i + 1) * 256, loop.var * 4)
            k.global_store(surface, part, Lane() * 8 + (i + 1) * 512)
        loop.yields()
    kernel = k.done()
    roomy = vector_work(place_lets(kernel, evolve(FACTS, registers=1000)))
    tight = vector_work(place_lets(kernel, evolve(FACTS, registers=224)))
    assert roomy == 0
    assert 0 < tight <= 200


def hoisted(words: str, *, reorders: bool, shared: int = 0) -> int:
    """How many of many offsets are hoisted out of a loop with loads, `a`, stores of what they bring, `A`, and barriers.

    Beside them it computes `shared` values twice, and as many offsets that all lanes share.
    """
    k = KernelBuilder("room")
    surface = k.surface(k.buffer("b", f32, 1 << 16))
    many = [k.scalar(f"n{n}") for n in range(shared)]
    brought: dict[str, Var] = {}
    with k.loop("n", 0, 4) as loop:
        for word in words:
            if word == "|":
                k.barrier()
            elif word.islower():
                brought[word] = k.global_load(word, vector(f32, 4), surface, Lane() * 16, loop.var * 1024)
            else:
                k.global_store(surface, brought[word.lower()], Lane() * 16, loop.var * 1024)
        for n, scalar in enumerate(many):
            own = (Lane() + loop.var) * (2 * n + 3)
            k.global_store(surface, loop.var.to(f32), own * 4 + own, (scalar * 3 + n) * 4)
        for n in range(60):
            k.global_store(surface, loop.var.to(f32), Lane() * 4 + (n + 1) * 256)
    placed = place_lets(k.done(), evolve(FACTS, registers=64, core=evolve(FACTS.core, reorders=reorders)))
    assert isinstance(placed.body, Block)
    uniform = uniformity(placed)
    return sum(isinstance(s, Let) and not uniform(s.value) for s in placed.body.stmts)


@pytest.mark.parametrize(
    ("words", "in_order", "reordered"),
    [
        *(("aA", 1, 1), ("abAB", 2, 2), ("aA|bB", 1, 1)),
        ("aAbB", 1, 2),  # all that is loaded between two barriers
        *(("a|bAB", 2, 2), ("a|b|AB", 2, 2), ("a|A|b|B", 1, 1)),
    ],
)
def test_a_loop_keeps_registers_for_what_its_loads_hold(words: str, in_order: int, reordered: int) -> None:
    for held, reorders in ((in_order, False), (reordered, True)):
        assert hoisted(words, reorders=reorders) == hoisted("", reorders=reorders) - 4 * held


def test_what_stays_in_the_loop_or_is_the_same_in_all_lanes_takes_no_room_of_those_hoisted() -> None:
    assert hoisted("", reorders=True, shared=9) == hoisted("", reorders=True)


def test_a_let_that_is_there_is_the_only_one() -> None:
    k = KernelBuilder("named")
    surface = k.surface(k.buffer("b", f16, 4096))
    row = Lane() * 12 + 8
    k.let("row", row)
    part = k.global_load("part", f16, surface, row)
    k.global_store(surface, part, row)
    placed = place_lets(k.done(), FACTS)
    assert [s.var.name for s in statements(placed.body) if isinstance(s, Let)] == ["row", "b_surface"]
    assert str(placed).count("lane * 12") == 1


def test_what_a_branch_uses_twice_is_computed_once_there() -> None:
    k = KernelBuilder("branch")
    surface = k.surface(k.buffer("b", s32, 4096))
    with k.when(k.group[0] < 3):
        part = k.global_load("part", s32, surface, Lane() * 4)
        k.global_store(surface, part * 3 + 1, (part * 3) * 4)
    assert str(place_lets(k.done(), FACTS)).count("part * 3") == 1


def lets_in(s: Stmt) -> list[str]:
    """The values that are bound in a statement."""
    return [str(each.value) for each in statements(s) if isinstance(each, Let)]


def arms(k: KernelBuilder, *, same: bool) -> Kernel:
    """A workgroup takes one way or the other, in which it uses a multiple of the lane twice; in both if `same`."""
    surface = k.surface(k.buffer("b", s32, 4096))
    part = k.global_load("part", s32, surface, Lane() * 4)
    with k.when(k.group[0] < 3):
        k.global_store(surface, part, Lane() * 12 + part)
        k.global_store(surface, part, Lane() * 12 - part)
    with k.otherwise():
        k.global_store(surface, part, Lane() * (12 if same else 20) + part)
        k.global_store(surface, part, Lane() * (12 if same else 20) - part)
    return k.done()


def test_what_one_arm_alone_uses_is_computed_there() -> None:
    placed = place_lets(arms(KernelBuilder("arms"), same=False), FACTS).body
    assert isinstance(placed, Block)
    (way,) = (s for s in placed.stmts if isinstance(s, If))
    assert (lets_in(way.then), lets_in(way.other)) == (["lane * 12"], ["lane * 20"])
    assert str(placed).count("lane * 12") == 1
    assert str(placed).count("lane * 20") == 1


def test_what_both_arms_use_is_computed_before() -> None:
    placed = place_lets(arms(KernelBuilder("arms"), same=True), FACTS).body
    assert isinstance(placed, Block)
    (way,) = (s for s in placed.stmts if isinstance(s, If))
    assert lets_in(way) == []
    assert "lane * 12" in lets_in(placed)


def test_what_an_arm_in_a_loop_uses_is_computed_before_the_loop() -> None:
    k = KernelBuilder("loop")
    with k.loop("n", 0, 4):
        arms(k, same=False)
    (loop,) = (s for s in statements(place_lets(k.done(), FACTS).body) if isinstance(s, For))
    assert not {"lane * 12", "lane * 20"} & set(lets_in(loop))


def test_what_one_arm_and_a_way_that_lanes_seldom_take_use_has_a_name_in_each() -> None:
    """The loop there holds what the kernel has bound before it, but nothing of the arm."""
    k = KernelBuilder("ways")
    surface = k.surface(k.buffer("b", s32, 4096))
    part = k.global_load("part", s32, surface, Lane() * 4)
    with k.when(k.group[0] < 3), k.loop("n", 0, 4) as loop:
        k.global_store(surface, part, Lane() * 12 + loop.var)
        k.global_store(surface, part, Lane() * 12 - loop.var)
    with k.loop("m", 0, 4) as loop:
        with k.when(AllLanes(Lane() < loop.var)):
            k.global_store(surface, part, Lane() * 4)
        with k.otherwise():
            k.global_store(surface, part, Lane() * 12 + loop.var)
    verify(place_lets(k.done(), FACTS))


def test_what_lanes_seldom_vote_for_computes_what_it_needs() -> None:
    """Nothing is bound for it around the vote; what nearly always runs stands as if there were none."""
    k = KernelBuilder("vote")
    surface = k.surface(k.buffer("b", f16, 4096))
    part = k.global_load("part", f16, surface, Lane() * 12 + 8)
    with k.when(AllLanes(Lane() * 12 < 500)):
        k.global_store(surface, part, Lane() * 12 + 2)
    with k.otherwise(), k.loop("n", 0, 4) as loop:
        k.global_store(surface, part, Lane() * 12 + 4 + loop.var * 16)
        k.global_store(surface, part, Lane() * 12 + 8 + loop.var * 32)
        k.global_store(surface, part, Lane() * 24 + loop.var * 16)
    placed = place_lets(k.done(), FACTS).body
    assert isinstance(placed, Block)
    *before, vote = placed.stmts
    assert isinstance(vote, If)
    assert sum(str(s.value) == "lane * 12" for s in before if isinstance(s, Let)) == 1
    assert not [s for s in before if isinstance(s, Let) and "24" in str(s.value)]
    (loop_there,) = (s for s in statements(vote.other) if isinstance(s, For))
    lets = {str(s.value) for s in statements(vote.other) if isinstance(s, Let)}
    assert any("lane * 12" in value for value in lets)
    assert "lane * 24" in str(loop_there)  # it is used once, and would hold a register
    assert not any("lane * 24" in value for value in lets)
    assert not [s for s in statements(vote.then) if isinstance(s, Let)]


def test_what_a_loop_holds_anyway_serves_where_lanes_seldom_go() -> None:
    k = KernelBuilder("vote")
    buffer = k.buffer("b", f16, 4096)
    surface = k.surface(buffer)
    part = k.global_load("part", f16, surface, Lane() * 2)
    with k.loop("n", 0, 4) as loop:
        with k.when(AllLanes(Lane() * 12 + loop.var < 50)):
            k.global_store(surface, part, Lane() * 36 + loop.var * 16)
        with k.otherwise():
            k.global_store(surface, part, Lane() * 36 + loop.var * 16 + 2)
    placed = place_lets(k.done(), FACTS).body
    assert str(placed).count("lane * 36") == 1
    assert str(placed).count("surface(") == 1
