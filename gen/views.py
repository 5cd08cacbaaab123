"""Problems as one matrix multiplication: views of the three tensors with M, N and K axes.

Forward convolution: M = (mb, od, oh, ow), N = (oc), K = (kd, kh, kw, ic). Nothing after this module knows more.
"""

from __future__ import annotations

import attrs

from convgen.ir.layout import Layout
from convgen.ir.memory import Dim, Global, TensorDim, View
from convgen.ir.types import scalar
from convgen.matmul import Matmul, Problem
from convgen.problem import Axis, Conv

_NAMES = "dhw"


@attrs.frozen
class Operands:
    """The views of one product. Axes: `weights` (N, K), `pixels` (M, K), `result` (N, M)."""

    weights: View
    pixels: View
    result: View

    @property
    def m(self) -> int:
        """Rows of the result."""
        return self.pixels.extent(0)

    @property
    def n(self) -> int:
        return self.weights.extent(0)

    @property
    def k(self) -> int:
        """Length of the fused K axis, padding included."""
        return self.pixels.extent(1)

    @property
    def k_inner(self) -> Dim:
        """The innermost dimension of K: what a block of K may run along."""
        return self.pixels.axes[1][-1]


def operands(problem: Problem, block: int) -> Operands:
    """The views of a problem; the innermost dimension of K is padded to a multiple of `block` (1: not at all)."""
    return _forward(problem, block) if isinstance(problem, Conv) else _matmul(problem, block)


def _padded(size: int, block: int) -> int:
    return -(-size // block) * block


def _matmul(problem: Matmul, block: int) -> Operands:
    """C[n, m] = sum over k of B[k, n] * A[m, k]."""
    m, n = Dim("m", problem.m, problem.m), Dim("n", problem.n, problem.n)
    k = Dim("k", problem.k, _padded(problem.k, block))

    def view(name: str, dtype: str, layout: Layout, axes: tuple[Dim, Dim], order: tuple[Dim, Dim]) -> View:
        index = tuple(TensorDim(d.size, ((d.name, 1),)) for d in order)
        return View(buffer(name, dtype, layout), layout, tuple((d,) for d in axes), index)

    return Operands(
        view("wei", problem.wei_type, problem.wei_layout, (n, k), (k, n)),
        view("src", problem.src_type, problem.src_layout, (m, k), (m, k)),
        view("dst", problem.dst_type, problem.dst_layout, (n, m), (m, n)),
    )


def buffer(name: str, type_name: str, layout: Layout) -> Global:
    """The kernel argument that holds a tensor."""
    elem = scalar(type_name)
    return Global(name, elem, layout.size_elems * elem.bytes)


def _input_coordinate(axis: Axis, name: str) -> TensorDim:
    """i = o * s + k * (d + 1) - p; masked only where a window reaches outside."""
    reach = (axis.o - 1) * axis.s + (axis.k - 1) * (axis.d + 1) - axis.p
    outside = axis.p > 0 or reach >= axis.i
    return TensorDim(axis.i, ((f"o{name}", axis.s), (f"k{name}", axis.d + 1)), -axis.p, outside)


def _forward(problem: Conv, block: int) -> Operands:
    """C[n, m] = sum over k of W[n, k] * X[m, k] with M, N and K as above."""
    names = _NAMES[5 - problem.ndims :]
    spatial = list(zip(problem.spatial, names))
    m = (Dim("mb", problem.mb, problem.mb), *(Dim(f"o{n}", a.o, a.o) for a, n in spatial))
    k = (*(Dim(f"k{n}", a.k, a.k) for a, n in spatial), Dim("ic", problem.ic, _padded(problem.ic, block)))
    n = (Dim("oc", problem.oc, problem.oc),)
    group = (TensorDim(1, ()),) if problem.has_groups else ()

    def same(name: str, size: int) -> TensorDim:
        return TensorDim(size, ((name, 1),))

    pixels = View(
        buffer("src", problem.src_type, problem.src_layout),
        problem.src_layout,
        (m, k),
        (same("mb", problem.mb), same("ic", problem.ic), *(_input_coordinate(a, n) for a, n in spatial)),
    )
    weights = View(
        buffer("wei", problem.wei_type, problem.wei_layout),
        problem.wei_layout,
        (n, k),
        (*group, same("oc", problem.oc), same("ic", problem.ic), *(same(f"k{n}", a.k) for a, n in spatial)),
    )
    result = View(
        buffer("dst", problem.dst_type, problem.dst_layout),
        problem.dst_layout,
        (n, m),
        (same("mb", problem.mb), same("oc", problem.oc), *(same(f"o{n}", a.o) for a, n in spatial)),
    )
    return Operands(weights, pixels, result)
