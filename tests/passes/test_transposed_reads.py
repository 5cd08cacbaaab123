"""Tiles that stand in shared memory along their rows, and are turned when they are read (ds_read_b64_tr_b16)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen.backends.target import get
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import VerifyError
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared, Swizzle, column_major
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import SharedRead, TransposedRead
from convgen.ir.text import parse, to_text
from convgen.ir.types import f16
from convgen.ir.verify import verify as well_formed
from convgen.passes.lower_tiles import lower_tiles
from convgen.plan.config import Config
from convgen.plan.plan import make_plan
from convgen.problem.conv import Conv
from convgen.run import verdict

FACTS = get("gfx950").facts
#: 32 rows and 16 of K, four neighbours of which a lane has, as the matrix instructions take them.
READ = Fragment(
    ("row", "k"),
    (
        Digit("row", 16, Space.LANE, 1),
        Digit("row", 2, Space.REGISTER, 4),
        Digit("k", 4, Space.REGISTER, 1),
        Digit("k", 4, Space.LANE, 16),
    ),
)
WRITTEN = Fragment(
    ("row", "k"),
    (Digit("row", 8, Space.REGISTER, 1), Digit("row", 4, Space.LANE, 1), Digit("k", 16, Space.LANE, 4)),
)


def kernel(swizzle: Swizzle) -> Kernel:
    """Brings 32 x 16 elements through a tile whose columns stand side by side."""
    k = KernelBuilder("turned")
    source, result = (matrix(k.buffer(name, f16, 32 * 16), 32, 16) for name in ("source", "result"))
    k.tiles.append(tile := Shared("tile", f16, 32, 16, column_major(32, 16), 1, swizzle, 16))
    k.store_shared(tile, k.load_view("loaded", source, (0, 0), WRITTEN), WRITTEN)
    k.barrier()
    k.store_view(result, (0, 0), k.load_shared("read", tile, READ), READ)
    return k.done()


def test_the_text_writes_a_transposing_read_as_transposed() -> None:
    lowered = lower_tiles(kernel(Swizzle()), FACTS)
    read = next(s for s in statements(lowered.body) if isinstance(s, TransposedRead))
    assert ": f16x4 = transposed tile[" in str(read)
    assert parse(to_text(lowered)) is lowered


def brings(k: Kernel, count: int) -> None:
    """A kernel's result is its source, of so many elements."""
    numbers, found = np.arange(count, dtype=np.float16), np.zeros(count, np.float16)
    interpret(k, {"source": numbers.view(np.uint8), "result": found.view(np.uint8)})
    assert np.array_equal(found, numbers)


@pytest.mark.parametrize("swizzle", [Swizzle(), Swizzle(0, 3), Swizzle(-1, 2), Swizzle(-1, 3, 3)])
def test_each_lane_gets_what_it_reads_turned(swizzle: Swizzle) -> None:
    before = kernel(swizzle)
    after = lower_tiles(before, FACTS)
    reads = [s for s in statements(after.body) if isinstance(s, SharedRead)]
    assert len(reads) == 2
    assert all(isinstance(s, TransposedRead) for s in reads)
    for made in (before, after):
        brings(made, 32 * 16)


#: The whole of twice as many columns.
ALL_WRITTEN = evolve(WRITTEN, digits=(*WRITTEN.digits, Digit("k", 2, Space.REGISTER, 8)))


def in_parts(swizzle: Swizzle) -> Kernel:
    """Brings 32 x 32 elements through such a tile, each half of the columns read as a part of its own."""
    k = KernelBuilder("parts")
    source, result = (matrix(k.buffer(name, f16, 32 * 32), 32, 32) for name in ("source", "result"))
    k.tiles.append(tile := Shared("tile", f16, 32, 32, column_major(32, 32), 1, swizzle, 16))
    k.store_shared(tile, k.load_view("loaded", source, (0, 0), ALL_WRITTEN), ALL_WRITTEN)
    k.barrier()
    for column in (0, 16):
        k.store_view(result, (0, column), k.load_part("read", tile, READ, (0, column)), READ)
    return k.done()


@pytest.mark.parametrize("swizzle", [Swizzle(), Swizzle(2, 3), Swizzle(-1, 2), Swizzle(-1, 3, 3)])
def test_parts_begin_where_a_swizzle_is_the_same_again(swizzle: Swizzle) -> None:
    before = in_parts(swizzle)
    after = lower_tiles(before, FACTS)
    assert sum(isinstance(s, TransposedRead) for s in statements(after.body)) == 4
    for made in (before, after):
        brings(made, 32 * 32)


@pytest.mark.parametrize("swizzle", [Swizzle(3, 3), Swizzle(1, 3, 2)])
def test_parts_elsewhere_are_refused(swizzle: Swizzle) -> None:
    with pytest.raises(VerifyError, match="a part of shared tile tile from row 0, column 16 on"):
        well_formed(in_parts(swizzle))


def test_other_targets_read_element_by_element() -> None:
    reads = [
        s for s in statements(lower_tiles(kernel(Swizzle()), get("gfx942").facts).body) if isinstance(s, SharedRead)
    ]
    assert not any(isinstance(s, TransposedRead) for s in reads)
    assert len(reads) == 8


CONFIGS = [
    "tile=64x64x64 waves=2x2 mma=16x16x32 slots=2 taps=fused",
    "tile=128x96x64 waves=2x2 mma=16x16x32 slots=2 stages=2 taps=fused",
    "tile=64x128x64 waves=2x2 mma=32x32x16 slots=3 taps=fused",
    "tile=64x128x32 waves=2x2 mma=32x32x16 slots=3 taps=fused copy=direct",
]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("direction", ["BWD_W", "BWD_D"])
@pytest.mark.parametrize("config", CONFIGS)
def test_gradients_are_read_turned(config: str, direction: str) -> None:
    """Of images with borders and sizes that fill no tile; what runs along K already is read as ever."""
    line = "mb2ic72ih11oc56oh6kh3ph1sh2"
    problem = Conv.parse(line, dir=direction, dt="f16", stag="axb", wtag="axb", dtag="axb")
    code = cg.compile(cg.build(problem, "gfx950", config.replace("fused", "split") if direction == "BWD_D" else config))
    assert "ds_read_b64_tr_b16" in code.asm
    assert ("v_perm_b32" in code.asm) is False
    outcome = verdict.run(code)
    assert outcome.passed, outcome.first


@pytest.mark.parametrize("config", CONFIGS)
def test_transposed_reads_have_no_bank_conflicts(config: str) -> None:
    """Of half of the lanes at a time, 8 bytes each; counted from the addresses that lanes read."""
    problem = Conv.parse("mb4ic128ih16oc128kh3ph1", dir="BWD_W", dt="f16", stag="axb", wtag="axb", dtag="axb")
    plan = make_plan(problem, Config.parse(config), FACTS)
    lane = np.arange(64)
    first, run = lane // 16 * 16 + lane % 4 * 4, lane % 16 // 4
    for operand, fragment in ((plan.parts[0].of_n, plan.mma.a), (plan.parts[0].of_m, plan.mma.b)):
        assert operand.tile is not None
        assert operand.tile.is_transposed
        for register in range(0, fragment.registers, 4):
            row, col = fragment.coords(0, first, register + run).values()
            banks: Any = operand.tile.address(0, row, col) // 8 % 32
            assert [len(np.unique(part)) for part in (banks[:32], banks[32:])] == [32, 32], f"{config}: {operand.tile}"
