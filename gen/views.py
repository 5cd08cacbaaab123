"""Convolution as matrix multiplication: views of the three tensors with M, N and K axes.

Forward: M = (mb, od, oh, ow), N = (oc), K = (kd, kh, kw, ic); C[n, m] = sum over k of W[n, k] * X[m, k].
"""

from __future__ import annotations

import attrs

from convgen.ir.layout import Layout
from convgen.ir.memory import Dim, Global, TensorDim, View
from convgen.ir.types import scalar
from convgen.problem import Axis, Conv

_NAMES = "dhw"


@attrs.frozen
class Operands:
    """The views of one product. Axes: `weights` (N, K), `pixels` (M, K), `result` (N, M)."""

    weights: View
    pixels: View
    result: View


def buffer(name: str, type_name: str, layout: Layout) -> Global:
    """The kernel argument that holds a tensor."""
    elem = scalar(type_name)
    return Global(name, elem, layout.size_elems * elem.bytes)


def _input_coordinate(axis: Axis, name: str) -> TensorDim:
    """i = o * s + k * (d + 1) - p; masked only where a window reaches outside."""
    reach = (axis.o - 1) * axis.s + (axis.k - 1) * (axis.d + 1) - axis.p
    outside = axis.p > 0 or reach >= axis.i
    return TensorDim(axis.i, ((f"o{name}", axis.s), (f"k{name}", axis.d + 1)), -axis.p, outside)


def forward(problem: Conv, ic_padded: int) -> Operands:
    """The views of a forward convolution; `ic` takes `ic_padded` positions of the fused K axis."""
    names = _NAMES[5 - problem.ndims :]
    spatial = list(zip(problem.spatial, names))
    m = (Dim("mb", problem.mb, problem.mb), *(Dim(f"o{n}", a.o, a.o) for a, n in spatial))
    k = (*(Dim(f"k{n}", a.k, a.k) for a, n in spatial), Dim("ic", problem.ic, ic_padded))
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
