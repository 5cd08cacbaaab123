"""What becomes of sums before they are stored, by the interpreter against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convgen.epilogue.epilogue import Epilogue, Reader, along
from convgen.epilogue.steps import Bias, Convert
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.expr import Expr, Splat, const
from convgen.ir.interp import interpret
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Dim, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.types import Type, f16, f32, s8, s32, vector

N, M = 8, 64
LAYOUT = Fragment(
    ("n", "m"),
    (
        Digit("n", 4, Space.REGISTER, 1),
        Digit("n", 2, Space.LANE, 32),
        Digit("m", 32, Space.LANE, 1),
        Digit("m", 2, Space.REGISTER, 4),
    ),
)


def bias_of(k: KernelBuilder, axis: int) -> View:
    """A vector along N (0) or M (1)."""
    size = (N, M)[axis]
    own, other = (Dim("c", size, size),), (Dim("any", (M, N)[axis], (M, N)[axis]),)
    memory = k.buffer("bias", f32, size)
    axes = (own, other) if axis == 0 else (other, own)
    return View(memory, Layout.dense((size,), (0,)), axes, (TensorDim(size, (("c", 1),)),))


def applied(epilogue: Epilogue, k: KernelBuilder, total: Expr) -> Expr:
    return epilogue.apply(k, total, epilogue.load(Reader(k, (0, 0)), LAYOUT))


def run(k: KernelBuilder, **buffers: Any) -> Any:
    """What the kernel leaves in `out`."""
    memory = {name: np.ascontiguousarray(a).view(np.uint8).copy() for name, a in buffers.items()}
    interpret(k.done(), memory)
    return memory["out"].view(buffers["out"].dtype)


@pytest.mark.parametrize("elem", [f16, f32])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_bias_is_added_along_its_axis(axis: int, elem: Type) -> None:
    k = KernelBuilder("k")
    bias = bias_of(k, axis)
    out = matrix(k.buffer("out", elem, N * M), N, M)
    epilogue = Epilogue((Bias(bias), Convert(elem)))
    total = k.let("total", Splat(vector(f32, LAYOUT.registers), const(2, f32)))
    k.store_view(out, (0, 0), applied(epilogue, k, total), LAYOUT)
    values = np.arange((N, M)[axis], dtype=np.float32)
    found = run(k, bias=values, out=np.zeros(N * M, elem.numpy)).reshape(N, M)
    wanted = 2 + (values[:, None] if axis == 0 else values[None, :]) + np.zeros((N, M))
    assert np.array_equal(found, wanted.astype(elem.numpy))
    assert epilogue.reads == (bias.memory,)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_lane_loads_an_element_of_the_bias_once(axis: int) -> None:
    few, order = along(LAYOUT, [LAYOUT.dims[axis]])
    assert few.registers == (4, 2)[axis]
    for register, source in enumerate(order):
        lanes = np.arange(64)
        dim = LAYOUT.dims[axis]
        whole, part = (f.coords(0, lanes, r)[dim] + 0 * lanes for f, r in ((LAYOUT, register), (few, source)))
        assert np.array_equal(whole, part)


def test_integers_saturate() -> None:
    k = KernelBuilder("k")
    out = matrix(k.buffer("out", s8, N * M), N, M)
    total = k.let("total", Splat(vector(s32, LAYOUT.registers), const(300)))
    k.store_view(out, (0, 0), applied(Epilogue((Convert(s8),)), k, total), LAYOUT)
    assert set(run(k, out=np.zeros(N * M, np.int8)).tolist()) == {127}


def test_what_may_precede_sums() -> None:
    """Slices may add to a bias, but not to what was rounded."""
    bias = Bias(bias_of(KernelBuilder("k"), 0))
    assert Epilogue((bias, Convert(f32))).may_precede_sums(f32)
    assert Epilogue(()).may_precede_sums(f32)
    assert not Epilogue((bias, Convert(f16))).may_precede_sums(f32)
