"""Reads of matrices: which lane gets which bytes, what the verifier refuses, how they print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import VerifyError
from convgen.ir.expr import AddressOf, Expr, Lane, const
from convgen.ir.interp import InterpError, interpret
from convgen.ir.layout.memory import Global
from convgen.ir.program import Kernel
from convgen.ir.text import parse, to_text
from convgen.ir.types import AnyType, bf16, bool_, f16, f32, s8, s32, u32, u64, vector
from convgen.ir.verify import verify
from tests.strategies import FIXED

LANE, TRUE = Lane(), const(True, bool_)
TILE = 2048  #: bytes
READS = (s.MatrixRead, s.TransposedMatrixRead)
TYPES: dict[type[s.MatrixRead], tuple[AnyType, ...]] = {
    s.MatrixRead: (vector(u32, 4), vector(f32, 4), vector(f16, 8), vector(s8, 16)),
    s.TransposedMatrixRead: (vector(f16, 8), vector(bf16, 8)),
}


class Room(KernelBuilder):
    """A tile of 2048 bytes, and buffers of its bytes, of each lane's address and of each lane's result."""

    def __init__(self, width: int = 32, subgroups: int = 1) -> None:
        super().__init__("k", width=width, subgroups=subgroups)
        self.source = self.buffer("source", u32, TILE // 4)
        self.places = self.buffer("places", u32, width * subgroups)
        self.result = self.buffer("result", u32, 4 * width * subgroups)
        self.tile = self.shared("tile", u32, TILE // 16, 4)
        self.item = self.subgroup * width + LANE

    def at(self, buffer: Global, offset: Expr) -> Expr:
        return AddressOf(buffer) + offset.to(u64)

    def load(self, buffer: Global, type: AnyType, offset: Expr) -> Expr:
        v = self.var("v", type)
        self.add(s.FlatLoad(v, buffer, self.at(buffer, offset), TRUE, self.site()))
        return v

    def fill(self) -> None:
        """Copy the source into the tile."""
        each = self.width * self.subgroups * 16
        for first in range(0, TILE, each):
            value = self.load(self.source, vector(u32, 4), self.item * 16 + first)
            self.shared_write(self.tile, value, self.item * 16, first)
        self.barrier()

    def read(self, kind: type[s.MatrixRead], type: AnyType, address: Expr, imm: int = 0) -> Expr:
        v = self.var("m", type)
        self.add(kind(v, self.tile, address, imm, self.site()))
        return v

    def store(self, value: Expr) -> None:
        self.add(s.FlatStore(self.result, self.at(self.result, self.item * 16), TRUE, value, self.site()))


def kernel(kind: type[s.MatrixRead], type: AnyType, imm: int = 0, subgroups: int = 1) -> Kernel:
    k = Room(subgroups=subgroups)
    k.fill()
    place = k.load(k.places, u32, k.item * 4)
    k.store(k.read(kind, type, place.to(s32), imm))
    return verify(k.done(), "message")


def gathered(kind: type[s.MatrixRead], source: npt.NDArray[np.uint8], rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the 16 bytes of each lane by the definition of `ldmatrix` (PTX ISA, 9.7.14.5.15).

    Row r of matrix i begins at `rows[8 i + r]`. Register i of lane l holds elements 2 (l % 4) and the next one of row
    l / 4 of matrix i; with .trans of column l / 4.
    """
    halves = source.view(np.uint16)
    result = np.zeros((32, 4, 2), np.uint16)
    for lane in range(32):
        for matrix in range(4):
            for half in range(2):
                row, column = lane // 4, 2 * (lane % 4) + half
                if kind is s.TransposedMatrixRead:
                    row, column = column, row
                result[lane, matrix, half] = halves[rows[8 * matrix + row] // 2 + column]
    return result.reshape(-1).view(np.uint8)


@pytest.mark.parametrize("kind", READS)
@settings(FIXED, max_examples=12)
@given(data=st.data())
def test_lanes_get_the_matrices_of_any_rows(kind: type[s.MatrixRead], data: st.DataObject) -> None:
    subgroups, seed = data.draw(st.sampled_from((1, 2))), data.draw(st.integers(0, 1 << 30))
    imm = 16 * data.draw(st.integers(0, 8))
    random = np.random.default_rng(seed)
    source = random.integers(0, 256, TILE, np.uint8)
    places = random.integers(0, (TILE - imm) // 16, 32 * subgroups).astype(np.uint32) * 16
    result = np.zeros(16 * 32 * subgroups, np.uint8)
    k = kernel(kind, data.draw(st.sampled_from(TYPES[kind])), imm, subgroups)
    interpret(k, {"source": source, "places": places.view(np.uint8), "result": result})
    expected = [gathered(kind, source, part + imm) for part in places.reshape(-1, 32)]
    assert np.array_equal(result, np.concatenate(expected))


@pytest.mark.parametrize("kind", READS)
def test_a_row_outside_the_tile_is_an_error(kind: type[s.MatrixRead]) -> None:
    places = np.zeros(32, np.uint32)
    places[13] = TILE - 8
    memory = {"source": np.zeros(TILE, np.uint8), "result": np.zeros(512, np.uint8), "places": places.view(np.uint8)}
    with pytest.raises(InterpError, match="tile"):
        interpret(kernel(kind, vector(f16, 8)), memory)


@pytest.mark.parametrize("kind", READS)
def test_reads_race_with_writes_of_other_subgroups(kind: type[s.MatrixRead]) -> None:
    k = Room(subgroups=2)
    k.fill()
    k.shared_write(k.tile, k.load(k.source, u32, LANE * 0), k.subgroup * 1024 + LANE * 4)
    k.store(k.read(kind, vector(f16, 8), 1024 - k.subgroup * 1024 + LANE * 0))
    memory = {"source": np.zeros(TILE, np.uint8), "result": np.zeros(1024, np.uint8), "places": np.zeros(256, np.uint8)}
    with pytest.raises(InterpError):
        interpret(verify(k.done(), "message"), memory)


@pytest.mark.parametrize("kind", READS)
@pytest.mark.parametrize("type", [vector(f16, 8), vector(bf16, 8)])
def test_the_text_comes_back(kind: type[s.MatrixRead], type: AnyType) -> None:
    k = kernel(kind, type, 32)
    text = to_text(k)
    assert parse(text) is k
    word = "transposed matrices" if kind is s.TransposedMatrixRead else "= matrices"
    assert f"{word} tile[" in text


NO_FOUR_DWORDS = "a read of matrices of .*, wanted four dwords a lane of 32 lanes"
ERRORS: list[tuple[type[s.MatrixRead], int, AnyType, Callable[[Room], Expr], int, str]] = [
    (s.MatrixRead, 32, vector(u32, 2), lambda k: LANE * 16, 0, NO_FOUR_DWORDS),
    (s.MatrixRead, 32, vector(f16, 4), lambda k: LANE * 16, 0, NO_FOUR_DWORDS),
    (s.TransposedMatrixRead, 32, vector(f16, 4), lambda k: LANE * 16, 0, NO_FOUR_DWORDS),
    (s.MatrixRead, 64, vector(u32, 4), lambda k: LANE * 16, 0, NO_FOUR_DWORDS),
    (s.TransposedMatrixRead, 32, vector(f32, 4), lambda k: LANE * 16, 0, "wanted elements of 16 bits"),
    (s.TransposedMatrixRead, 32, vector(s8, 16), lambda k: LANE * 16, 0, "wanted elements of 16 bits"),
    (s.MatrixRead, 32, vector(u32, 4), lambda k: (LANE * 16).to(f32), 0, "address"),
    (s.MatrixRead, 32, vector(u32, 4), lambda k: LANE * 16, -16, "a negative immediate -16"),
]


@pytest.mark.parametrize(("kind", "width", "type", "address", "imm", "message"), ERRORS)
def test_other_reads_are_refused(
    kind: type[s.MatrixRead], width: int, type: AnyType, address: Callable[[Room], Expr], imm: int, message: str
) -> None:
    k = Room(width=width)
    k.read(kind, type, address(k), imm)
    with pytest.raises(VerifyError, match=message):
        verify(k.done(), "message")
