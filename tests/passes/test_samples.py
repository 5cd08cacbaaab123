"""Each pass makes of the sample kernels what it always made: a small one to read, the others as digests.

Digests are to be looked into with `convgen ... --dump`. Where a change is meant, `./dev bless` accepts it.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path

import pytest

from convgen.backends import target as targets
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.expr import Add, FromLane, Lane, Uniform, const
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.program import Kernel
from convgen.ir.types import f8_e4m3, f16, f32, s32, vector
from convgen.passes import pipeline
from tests import samples
from tests.passes.texts import statements


@pytest.mark.parametrize("target", ["gfx942", "xehpg", "xehpc"])
def test_each_pass(target: str, golden: Callable[[str, str], None]) -> None:
    """One line a kernel: as built, and behind each pass that changes it."""
    rows = []
    for name in samples.names(target):
        built = samples.program(target, name)
        for number, kernel in enumerate(built.ir.kernels):
            steps = [f"{name} {number}: {samples.digest(str(kernel))}"]

            def observe(p: pipeline.Pass, before: Kernel, after: Kernel, seconds: float, to: list[str] = steps) -> None:
                if after is not before:
                    to.append(f"{p.name} {samples.digest(str(after))}")

            samples.run(kernel, built.target.facts, observe=observe)
            rows.append(" ".join(steps))
    golden(f"passes/{target}.txt", "\n".join(rows) + "\n")


#: pass -> target, sample and number of a kernel in which little but the pass's own work changes
SMALL = {
    "buffer_shared": ("gfx942", "one_subgroup", 0),
    "rotate_fragments": ("gfx942", "depth", 0),
    "drop_barriers": ("gfx942", "few_channels", 0),
    "unroll": ("gfx942", "sums_of_slices", 1),
    "lower_tiles": ("gfx942", "atomics", 0),
    "split_chains": ("gfx942", "weights", 1),
    "resolve_packs": ("gfx942", "weights", 1),
    "simplify": ("gfx942", "reordered", 1),
    "reduce_strength": ("gfx942", "halo_unbuffered", 0),
    "expand_division": ("gfx942", "reordered", 1),
    "share_addresses": ("xehpc", "reordered", 1),
    "carry_addresses": ("xehpg", "weights", 1),
    "hoist_stores": ("xehpc", "planar", 0),
    "fill_stores": ("xehpc", "halo_unbuffered", 0),
    "order_sums": ("xehpc", "halo", 0),
    "place_lets": ("gfx942", "one_subgroup", 0),
    "peephole": ("gfx942", "reordered", 1),
    "split_barriers": ("xehpc", "gemm_turned", 0),
}


def wide() -> Kernel:
    """What no plan makes: a message of two that a target has."""
    k = KernelBuilder("wide")
    source, result = (k.surface(k.buffer(name, f32, 512)) for name in ("source", "result"))
    k.global_store(result, k.global_load("v", vector(f32, 8), source, Lane() * 32), Lane() * 32)
    return k.done()


def exchanging() -> Kernel:
    """Sums over registers, lanes and subgroups."""
    k = KernelBuilder("exchanging", subgroups=2)
    digits = (Digit("n", 32, Space.LANE, 1), Digit("m", 4, Space.REGISTER, 1), Digit("m", 2, Space.LANE, 32))
    layout = Fragment(("n", "m"), (*digits, Digit("m", 2, Space.SUBGROUP, 1)))
    held = k.load_view("held", matrix(k.buffer("source", f32, 512), 32, 16), (0, 0), layout)
    total, left = k.reduce("total", held, layout, "m", Add)
    spread = k.let("spread", k.broadcast(total, left, layout))
    k.store_view(matrix(k.buffer("result", f32, 512), 32, 16), (0, 0), spread, layout)
    return k.done()


def narrow() -> Kernel:
    """Bytes that are read as floats, and written so."""
    k = KernelBuilder("narrow")
    source, result = (k.surface(k.buffer(name, f8_e4m3, 256)) for name in ("source", "result"))
    held = k.global_load("v", vector(f8_e4m3, 4), source, Lane() * 4)
    k.global_store(result, held.to(vector(f16, 4)).to(vector(f8_e4m3, 4)), Lane() * 4)
    return k.done()


def repeating() -> Kernel:
    """A loop that stores what it has loaded twice an iteration before."""
    k = KernelBuilder("repeating")
    source, result = (k.surface(k.buffer(name, f32, 512)) for name in ("source", "result"))
    one, other = (k.global_load("v", f32, source, Lane() * 4) for _ in range(2))
    with k.loop("i", 0, 3, one=one, other=other) as loop:
        k.global_store(result, loop["one"] + loop["other"], loop.var * 256 + Lane() * 4)
        loop.yields(*(k.global_load("v", f32, source, loop.var * 256 + Lane() * 4) for _ in range(2)))
    return k.done()


def of_lanes() -> Kernel:
    """A loop that makes the same of the words of two lanes."""
    k = KernelBuilder("of_lanes", width=16)
    result = k.surface(k.buffer("result", s32, 16 * 100))
    with k.loop("i", 0, 100, word=Lane()) as loop:
        one, other = (Uniform(FromLane(loop["word"], const(lane))) * 5 + 1 for lane in (0, 2))
        k.global_store(result, one ^ other, loop.var * 64 + Lane() * 4)
        loop.yields(loop["word"] + 1)
    return k.done()


#: pass -> target and a kernel that no plan makes
BY_HAND = {
    "share_lanes": ("xehpc", of_lanes),
    "legalize_messages": ("gfx942", wide),
    "exchange": ("gfx942", exchanging),
    "expand_conversions": ("gfx942", narrow),
    "share_loads": ("gfx942", repeating),
}


@pytest.mark.parametrize("name", [p.name for p in pipeline.PASSES])
def test_before_and_after(name: str, golden: Callable[[str, str], None]) -> None:
    """The statements that a pass takes from a small kernel, and those it puts there."""
    seen: dict[str, tuple[list[str], list[str]]] = {}

    def observe(p: pipeline.Pass, before: Kernel, after: Kernel, seconds: float) -> None:
        seen[p.name] = statements(before), statements(after)

    if name in SMALL:
        target, sample, number = SMALL[name]
        kernel = samples.program(target, sample).ir.kernels[number]
    else:
        target, made = BY_HAND[name]
        kernel = made()
    samples.run(kernel, targets.get(target).facts, observe=observe)
    lines = list(unified_diff(*seen[name], "before", "after", lineterm=""))
    assert lines
    golden(f"passes/{name}.diff", "\n".join(lines) + "\n")


def test_each_pass_has_a_file_of_tests() -> None:
    tests = Path(__file__).parents[1]
    for p in pipeline.PASSES:
        assert list(tests.glob(f"*/test_{p.name}.py")), p.name
