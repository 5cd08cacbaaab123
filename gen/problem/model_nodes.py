"""The convolutions and products of a model as requests: one record for all formats of models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import frozen


@frozen
class Node:
    """An operator of a model as a request: its descriptor and knobs, or the error by which it is none."""

    name: str  #: the layer's name in the model
    descriptor: str
    knobs: Mapping[str, str]
    driver: str
    error: Exception | None = None


def conv_descriptor(groups: int, mb: int, ic: int, oc: int, axes: Sequence[tuple[int, ...]]) -> str:
    """Return the descriptor of a convolution, with (input, output, window, stride, padding before, dilation) by axis.

    They are in elements; dilation 1 is dense. Raises UserError for an empty output, Unsupported for negative padding.
    """
    text = (f"g{groups}" if groups > 1 else "") + f"mb{mb}ic{ic}oc{oc}"
    for axis, (i, o, k, s, p, d) in zip("dhw"[3 - len(axes) :], axes):
        if o < 1:
            raise UserError(f"given sizes that make an output of {o}, wanted at least 1")
        if p < 0:
            raise Unsupported(f"given a padding of {p}, wanted one from 0", rule="onnx-shape")
        text += f"_i{axis}{i}o{axis}{o}k{axis}{k}s{axis}{s}p{axis}{p}d{axis}{d - 1}"
    return text
