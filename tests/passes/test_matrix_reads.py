"""Fragments that are read from shared memory as matrices (ldmatrix), against the interpretation of the tile."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared, Swizzle, column_major, row_major
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.stmt import MatrixRead, SharedRead, TransposedMatrixRead
from convgen.ir.types import Type, bf16, f16, f32, s8
from convgen.passes.lower_tiles import lower_tiles
from tests.strategies import FIXED

FACTS = get("sm_90").facts
ATOMS = {(atom.a_elem, atom.m): atom for atom in FACTS.atoms}
ROWS, COLS = 64, 64  #: of the tile, in rows of the fragment and elements of K


def written(elem: Type) -> Fragment:
    """A distribution over 32 lanes, 16 bytes a lane along K."""
    run = 16 // elem.bytes
    lanes = min(32, COLS // run)
    return Fragment(
        ("row", "k"),
        (
            Digit("k", run, Space.REGISTER, 1),
            Digit("k", lanes, Space.LANE, 1),
            Digit("k", COLS // run // lanes, Space.REGISTER, run),
            Digit("row", 32 // lanes, Space.LANE, lanes),
            Digit("row", ROWS * lanes // 32, Space.REGISTER, COLS // lanes),
        ),
    )


def operand(elem: Type, side: str) -> Fragment:
    """The fragment of an operand of `mma.sync` over the whole tile; instructions are in registers."""
    atom = ATOMS[elem, 16]
    own = atom.a if side == "a" else atom.b
    names = {own.dims[0]: "row", "k": "k"}
    digits = [evolve(d, dim=names[d.dim]) for d in own.digits]
    height, depth = own.shape
    count = own.registers
    more = (
        Digit("k", COLS // depth, Space.REGISTER, count),
        Digit("row", ROWS // height, Space.REGISTER, count * COLS // depth),
    )
    return Fragment(("row", "k"), (*digits, *more))


def kernel(elem: Type, side: str, swizzle: Swizzle, transposed: bool, slots: int = 1) -> Kernel:
    """Bring a matrix through a tile, stored along K or, transposed, along its rows."""
    k = KernelBuilder("through", width=32)
    source, result = (matrix(k.buffer(name, elem, ROWS * COLS), ROWS, COLS) for name in ("source", "result"))
    digits = column_major(ROWS, COLS) if transposed else row_major(ROWS, COLS)
    k.tiles.append(tile := Shared("tile", elem, ROWS, COLS, digits, slots, swizzle, 16))
    whole, read = written(elem), operand(elem, side)
    k.store_shared(tile, k.load_view("loaded", source, (0, 0), whole), whole, slots - 1)
    k.barrier()
    k.store_view(result, (0, 0), k.load_shared("read", tile, read, slots - 1), read)
    return k.done()


def result_of(k: Kernel, elem: Type, source: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> bytes:
    result = np.zeros_like(source)
    interpret(k, {"source": source, "result": result})
    return result.tobytes()


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("elem", [f16, bf16, s8, f32], ids=str)
@settings(FIXED, max_examples=4)
@given(data=st.data())
def test_operands_are_read_as_matrices(elem: Type, side: str, data: st.DataObject) -> None:
    """By whole reads of 16 bytes a lane, of tiles of any swizzle within rows; the tile's meaning stays."""
    chunks = COLS * elem.bytes // 16
    swizzle = Swizzle(data.draw(st.integers(0, 2)), data.draw(st.sampled_from([m for m in (0, 1, 3, 7) if m < chunks])))
    before = kernel(elem, side, swizzle, False, data.draw(st.integers(1, 3)))
    after = lower_tiles(before, FACTS)
    reads = [s for s in statements(after.body) if isinstance(s, SharedRead)]
    assert {type(s) for s in reads} == {MatrixRead}
    assert len(reads) == ROWS * COLS * elem.bytes // (32 * 16)
    source = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, ROWS * COLS * elem.bytes, np.uint8)
    assert result_of(after, elem, source) == result_of(before, elem, source) == source.tobytes()


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("elem", [f16, bf16], ids=str)
@pytest.mark.parametrize("swizzle", [Swizzle(), Swizzle(0, 7), Swizzle(0, 3), Swizzle(1, 3)], ids=str)
def test_operands_of_transposed_tiles_are_read_transposed(elem: Type, side: str, swizzle: Swizzle) -> None:
    before = kernel(elem, side, swizzle, True)
    after = lower_tiles(before, FACTS)
    reads = [s for s in statements(after.body) if isinstance(s, SharedRead)]
    assert {type(s) for s in reads} == {TransposedMatrixRead}
    assert len(reads) == ROWS * COLS * elem.bytes // (32 * 16)
    source = np.random.default_rng(1).integers(0, 256, ROWS * COLS * elem.bytes, np.uint8)
    assert result_of(after, elem, source) == result_of(before, elem, source) == source.tobytes()


@pytest.mark.parametrize(("elem", "transposed"), [(s8, True), (f32, True)], ids=str)
def test_only_halves_are_read_transposed(elem: Type, transposed: bool) -> None:
    before = kernel(elem, "a", Swizzle(), transposed)
    after = lower_tiles(before, FACTS)
    assert not any(isinstance(s, MatrixRead) for s in statements(after.body))
    source = np.random.default_rng(1).integers(0, 256, ROWS * COLS * elem.bytes, np.uint8)
    assert result_of(after, elem, source) == source.tobytes()


@pytest.mark.parametrize("transposed", [False, True])
def test_other_targets_read_lane_by_lane(transposed: bool) -> None:
    before = kernel(f16, "b", Swizzle(0, 7), transposed)
    after = lower_tiles(before, evolve(FACTS, matrix_reads=None))
    assert {type(s) for s in statements(after.body) if isinstance(s, SharedRead)} == {SharedRead}
    source = np.random.default_rng(1).integers(0, 256, ROWS * COLS * 2, np.uint8)
    assert result_of(after, f16, source) == source.tobytes()
