"""benchdnn's knobs as arguments of Python, for type checkers: the keywords of `options.KNOBS`."""

from __future__ import annotations

from typing import TypedDict

Value = str | int | bool


class _Knobs(TypedDict, total=False):
    dt: Value
    stag: Value
    wtag: Value
    dtag: Value
    strides: Value
    bia_dt: Value
    runtime_dims_masks: Value
    attr_scales: Value
    attr_zero_points: Value
    attr_precomputed_reductions: Value
    attr_post_ops: Value
    attr_scratchpad: Value
    attr_fpmath: Value
    attr_acc_mode: Value
    attr_deterministic: Value
    attr_dropout: Value
    attr_rounding_mode: Value
    ctx_init: Value
    ctx_exe: Value


class ConvShapeKnobs(_Knobs, total=False):
    """Knobs of a convolution whose sizes are arguments."""

    dir: Value
    alg: Value
    cfg: Value


class ConvKnobs(ConvShapeKnobs, total=False):
    """Knobs of a convolution."""

    mb: Value


class MatmulKnobs(_Knobs, total=False):
    """Knobs of a matrix product."""

    bia_mask: Value
    encoding: Value
    grouped: Value
    routing: Value
