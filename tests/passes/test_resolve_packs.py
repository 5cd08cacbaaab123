"""Fragments in parts: what loops carry, what slices become, and which lets remain."""

from __future__ import annotations

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Pack, Slice, Var
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.stmt import For, GlobalLoad, GlobalStore, Let, Load
from convgen.ir.types import f8_e4m3, f16, s32, vector
from convgen.passes.buffer_shared import buffer_shared
from convgen.passes.lower_tiles import lower_tiles
from convgen.passes.resolve_packs import resolve_packs
from convgen.passes.rotate_fragments import rotate_fragments
from convgen.plan.config import Config
from convgen.problem.conv import Conv
from tests.passes.running import assert_right, tile_kernel

FACTS = get("gfx942").facts
PROBLEM = Conv.parse("mb1ic7ih6oc16kh3ph1", dir="FWD_D", dt="f16")  # an element a message


def lowered() -> Kernel:
    config = Config((32, 32, 32), (1, 1), (16, 16, 16), 1, padding="zeros")
    return lower_tiles(buffer_shared(tile_kernel(PROBLEM, config, FACTS), FACTS), FACTS)


def lets(k: Kernel) -> dict[Var, object]:
    return {s.var: s.value for s in postorder(k) if isinstance(s, Let)}


def loop_of(k: Kernel) -> For:
    (loop,) = (s for s in postorder(k) if isinstance(s, For))
    return loop


def test_loops_carry_what_messages_bring() -> None:
    before = lowered()
    after = resolve_packs(before)
    loads = [s.var for s in postorder(loop_of(before)) if isinstance(s, GlobalLoad)]
    assert len(loop_of(before).carried) == 3  # accumulators and two packs
    loop = loop_of(after)
    assert len(loop.carried) == 1 + len(loads)
    assert [y for y in loop.yields if y in loads] == loads
    assert not any(isinstance(lets(after).get(y), Pack) for y in loop.yields if isinstance(y, Var))
    assert_right(PROBLEM, after)


def test_loops_carry_what_an_instruction_takes_though_several_messages_bring_it() -> None:
    """Of fp8 a lane gives 32 bytes to an instruction, twice what a message brings."""
    problem, facts = Conv.parse("mb1ic512ih5oc32kh1", dir="FWD_D", dt="f8_e4m3"), get("gfx950").facts
    config = Config((32, 32, 64), (1, 1), (32, 32, 64), 2)
    tile = rotate_fragments(buffer_shared(tile_kernel(problem, config, facts), facts), get("gfx942").facts)
    loops = [s for s in postorder(resolve_packs(lower_tiles(tile, facts))) if isinstance(s, For)]
    wide = [c.name for c in loops[0].carried if c.type is vector(f8_e4m3, 32)]
    assert [name.partition("_")[0] for name in wide] == ["wei", "src"]


def test_no_let_is_unused() -> None:
    after = resolve_packs(lowered())
    used = {c for n in postorder(after) for c in n.children() if not isinstance(n, Let) or c is not n.var}
    assert [v for v in lets(after) if v not in used] == []


def test_lets_that_only_serve_unused_lets_go_too() -> None:
    k = KernelBuilder("chain")
    surface = k.surface(k.buffer("b", f16, 64))
    part = k.global_load("part", vector(f16, 4), surface, 0)
    once = k.let("once", Pack(vector(f16, 4), (part,)))
    k.let("twice", Pack(vector(f16, 4), (once,)))
    k.global_store(surface, part, 64)
    assert lets(resolve_packs(k.done())) == {}


def test_loads_without_a_use_go_but_tickets_stay() -> None:
    k = KernelBuilder("loads")
    surface, counts = k.surface(k.buffer("b", f16, 64)), k.buffer("counts", s32, 64)
    unused, part = (k.global_load(name, vector(f16, 4), surface, 0) for name in ("unused", "part"))
    k.let("twice", Pack(vector(f16, 8), (unused, unused)))
    k.ticket("taken", counts, 0, 2)
    k.global_store(surface, part, 64)
    after = postorder(resolve_packs(k.done()))
    assert [s.var.name for s in after if isinstance(s, Load)] == ["part", "taken"]


def test_it_is_idempotent() -> None:
    once = resolve_packs(lowered())
    assert resolve_packs(once) is once


def sliced(start: int, count: int) -> list[object]:
    """What is stored of elements [start, start + count) of a pack of parts of 2, 2 and 4 elements."""
    k = KernelBuilder("slices")
    surface = k.surface(k.buffer("b", f16, 64))
    parts = [k.global_load(f"p{n}", vector(f16, count), surface, 8 * n) for n, count in enumerate((2, 2, 4))]
    whole = k.let("whole", Pack(vector(f16, 8), tuple(parts)))
    k.global_store(surface, Slice(whole, start, count), 64)
    (store,) = (s for s in postorder(resolve_packs(k.done())) if isinstance(s, GlobalStore))
    value = store.value
    return [p.name for p in value.parts if isinstance(p, Var)] if isinstance(value, Pack) else [value]


def test_slices_of_a_pack_are_its_parts() -> None:
    (part,) = sliced(2, 2)
    assert isinstance(part, Var)
    assert part.name == "p1"
    assert sliced(0, 4) == ["p0", "p1"]
    assert sliced(2, 6) == ["p1", "p2"]


def test_slices_across_parts_stay() -> None:
    for start, count in ((1, 2), (4, 2), (6, 2)):
        (kept,) = sliced(start, count)
        assert isinstance(kept, Slice)
        assert (kept.start, kept.count) == (start, count)
