"""Rectangles of planes: against numpy, inside and outside; what the verifier refuses; text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.dump import dump, parse
from convgen.ir.error import VerifyError
from convgen.ir.expr import Expr, Lane, const
from convgen.ir.interp import interpret
from convgen.ir.memory import Global, Plane
from convgen.ir.types import bool_, f16, u32, vector
from convgen.ir.uniform import varying
from convgen.ir.verify import verify

WIDTH, BYTES = 8, 4096


class Room(KernelBuilder):
    def __init__(self) -> None:
        super().__init__("k", width=WIDTH)
        self.x, self.out = (self.buffer(name, u32, BYTES // 4) for name in ("x", "out"))

    def plane(self, base: int = 64, width: int = 48, height: int = 10, pitch: int = 64) -> Plane:
        return Plane(self.x, base, width, height, pitch)

    def load(self, plane: Plane, x: Expr, y: Expr, words: int = 2) -> Expr:
        v = self.var("v", vector(u32, words))
        self.add(s.PlaneLoad(v, plane, x, y, self.site()))
        return v


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    st.integers(0, 40), st.integers(1, 16), st.integers(1, 12), st.integers(0, 6),
    st.integers(-6, 20), st.integers(-12, 16), st.sampled_from((1, 2, 4)),
)  # fmt: skip
def test_one_row_a_lane_and_zeros_outside(
    base: int, columns: int, height: int, gap: int, x: int, y: int, words: int
) -> None:
    """All in dwords."""
    k = Room()
    value = k.load(k.plane(4 * base, 4 * columns, height, 4 * (columns + gap)), const(x), const(y), words)
    k.global_store(k.surface(k.out), value, Lane() * (4 * words))
    data = np.random.default_rng(5).integers(1, 1 << 32, BYTES // 4, dtype=np.uint32)
    memory = {"x": data.view(np.uint8), "out": np.zeros(BYTES, np.uint8)}
    interpret(verify(k.done(), "message"), memory)
    rows, cols = y + np.arange(WIDTH)[:, None], x + np.arange(words)[None, :]
    inside = (rows >= 0) & (rows < height) & (cols >= 0) & (cols < columns)
    wanted = np.where(inside, data[np.where(inside, base + rows * (columns + gap) + cols, 0)], 0)
    assert np.array_equal(memory["out"].view(np.uint32)[: WIDTH * words].reshape(WIDTH, words), wanted)


def typed(k: Room, type: object) -> None:
    k.add(s.PlaneLoad(k.var("v", type), k.plane(), const(0), const(0), k.site()))  # type: ignore[arg-type]


FOREIGN = Plane(Global("z", u32, 4096), 0, 48, 10, 64)
BREACHES: list[tuple[Callable[[Room], object], str]] = [
    (lambda k: k.load(k.plane(), Lane(), const(0)), "x lane differs between lanes"),
    (lambda k: k.load(k.plane(), const(0), Lane()), "y lane differs between lanes"),
    (lambda k: k.load(FOREIGN, const(0), const(0)), "a plane of z, which is no buffer"),
    (lambda k: k.load(k.plane(base=-4), const(0), const(0)), "is not within its buffer"),
    (lambda k: k.load(k.plane(height=64), const(0), const(0)), "is not within its buffer"),
    (lambda k: k.load(k.plane(width=68), const(0), const(0)), "is not within its buffer"),
    (lambda k: typed(k, vector(f16, 3)), "a rectangle of f16x3, 48 bits a lane; wanted whole dwords"),
    (lambda k: typed(k, vector(bool_, 32)), "a rectangle of boolx32"),
]  # fmt: skip


@pytest.mark.parametrize(("breach", "message"), BREACHES, ids=[m for _, m in BREACHES])
def test_breaches(breach: Callable[[Room], object], message: str) -> None:
    k = Room()
    breach(k)
    with pytest.raises(VerifyError, match=message):
        verify(k.done())


def test_a_plane_may_end_with_its_buffer() -> None:
    k = Room()
    loaded = k.load(k.plane(base=BYTES - 9 * 64 - 48), const(0), const(0))
    kernel = verify(k.done(), "message")
    assert loaded in varying(kernel)
    with pytest.raises(VerifyError, match="does not belong to the tile level"):
        verify(kernel, "tile")
    assert parse(dump(kernel)) is kernel
    assert "v: u32x2 = plane " in str(kernel)
