"""Problems of operators: from sizes, types and memory formats of torch's tensors to convgen's problems.

A tensor [n, c, spatial...] is `channels_last`, as torch calls it, if its channels are contiguous in memory (for one
spatial dimension the strides c*w, 1, c). Otherwise it is contiguous in the order of its dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from convgen.problem.conv import Conv
from convgen.problem.deconv import Deconv
from convgen.problem.knobs import Value
from convgen.problem.matmul import Matmul

Tensor = Any  #: a tensor of torch, whose types mypy does not read

#: torch's types that convgen multiplies; f32 only as TF32
TYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  #: by the number of dimensions


class Window(NamedTuple):
    """The window of a convolution, in elements: a number for each spatial dimension, outermost first."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]  #: on either side
    dilation: tuple[int, ...]  #: 1 is dense
    groups: int
    output_padding: tuple[int, ...] | None = None  #: of a transposed convolution; None for others

    def outputs(self, w: Sequence[int]) -> int:
        """Return the number of output channels, for the sizes of the weights."""
        return w[0] if self.output_padding is None else w[1] * self.groups


class ConvRequest(NamedTuple):
    """A convolution that an operator asks for: the key of its kernel."""

    direction: str  #: FWD_D, BWD_D or BWD_W
    dtype: str  #: convgen's name, or torch's where convgen has none
    x: tuple[int, ...]  #: n, channels, spatial
    #: output channels, channels of a group, spatial; of a transposed one channels, output channels of a group, spatial
    w: tuple[int, ...]
    window: Window
    bias: bool  #: whether to add a bias, or to compute its gradient
    formats: tuple[bool, bool, bool]  #: whether source, weights and destination are channels_last
    tf32: bool  #: whether the type is f32, and torch allows TF32 for it

    @property
    def result_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the result: n, channels, spatial; or those of the weights."""
        if self.direction == "FWD_D":
            return tuple(output_shape(self.x, self.w, self.window))
        return self.x if self.direction == "BWD_D" else self.w

    @property
    def problem(self) -> Conv:
        """Return the problem. Raises UserError and Unsupported."""
        (n, channels, *sizes), window = self.x, self.window
        src, wei, dst = self.formats
        kind = Conv if window.output_padding is None else Deconv
        return kind.from_sizes(
            mb=n, ic=channels, oc=window.outputs(self.w), input=sizes, kernel=self.w[2:], stride=window.stride,
            padding=window.padding, dilation=window.dilation, groups=window.groups, dir=self.direction,
            output=output_shape(self.x, self.w, window)[2:],
            stag="axb" if src else "abx", wtag=self._weights_tag(channels_last=wei), dtag="axb" if dst else "abx",
            **_knobs(self.dtype, bias=self.bias),
        )  # fmt: skip

    def _weights_tag(self, *, channels_last: bool) -> str:
        """Return the tag of the weights, whose dims are [g,] outputs, channels, spatial.

        Those of a transposed convolution have the channels first in memory.
        """
        window = self.window
        if window.output_padding is None:
            is_depthwise = window.groups == self.w[0] == self.x[1]  # weights with one order of memory have one tag
            weights = "axb" if window.groups == 1 or is_depthwise else "abxc"
            return weights if channels_last else "abx"
        group, outputs, channels = ("", "a", "b") if window.groups == 1 else ("a", "b", "c")
        spatial = "cdefg"[len(group) :][: len(self.w) - 2]
        return f"{group}{channels}{spatial}{outputs}" if channels_last else f"{group}{channels}{outputs}{spatial}"


class ProductRequest(NamedTuple):
    """A product [m, k] x [k, n] that an operator asks for. `column_major`: whether the left, the right factor is."""

    dtype: str
    m: int
    k: int
    n: int
    column_major: tuple[bool, bool]
    bias: bool  #: [1, n]
    tf32: bool  #: whether the type is f32, and torch allows TF32 for it

    @property
    def result_sizes(self) -> tuple[int, ...]:
        """Return the sizes of the result."""
        return self.m, self.n

    @property
    def problem(self) -> Matmul:
        """Return the problem. Raises UserError and Unsupported."""
        src, wei = self.column_major
        knobs = _knobs(self.dtype, bias=self.bias) | ({"bia_mask": "2"} if self.bias else {})
        if src:  # row-major src and dst are the default, which registries do not name
            knobs["stag"] = "ba"
        return Matmul.parse(f"{self.m}x{self.k}:{self.k}x{self.n}", wtag="ba" if wei else "ab", **knobs)


def _knobs(dtype: str, *, bias: bool) -> dict[str, Value]:
    """Return the knobs of types: a bias has the type of its tensors, and f32 is multiplied as TF32."""
    knobs: dict[str, Value] = {"dt": dtype}
    return knobs | ({"bia_dt": dtype} if bias else {}) | ({"attr_fpmath": "tf32"} if dtype == "f32" else {})


def type_name(tensor: Tensor) -> str:
    """Return convgen's name of a tensor's type, or torch's if convgen does not multiply it."""
    return TYPES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")


def looks_channels_last(tensor: Tensor) -> bool:
    """Return whether torch takes the strides of a tensor as channels_last (c10/core/MemoryFormat.h).

    Strides of dimensions of size 1 decide where the memory is in both orders; [n, 1, 1, 1] is contiguous.
    """
    sizes, strides = tensor.shape, tensor.stride()
    if strides[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(sizes) - 1, 1, -1), 0):
        if sizes[dim] == 0 or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(sizes[dim], 1)
    return True


def reads_channels_last(tensor: Tensor, *, channels_last: bool) -> bool:
    """Return whether kernels read a tensor as channels_last: as its memory is.

    Memory that has both formats is read as `channels_last` says, memory that has neither as channels_last.
    """
    if is_dense(tensor, channels_last=channels_last):
        return channels_last
    return not is_dense(tensor, channels_last=not channels_last) or not channels_last


def is_dense(tensor: Tensor, *, channels_last: bool) -> bool:
    """Return whether a tensor's memory has no gaps and is in a format."""
    if not channels_last:
        return bool(tensor.is_contiguous())
    if tensor.dim() in _FORMATS:
        return bool(tensor.is_contiguous(memory_format=_FORMATS[tensor.dim()]))
    return bool(tensor.transpose(1, 2).is_contiguous())


def in_format(tensor: Tensor, *, channels_last: bool) -> Tensor:
    """Return a tensor in a format, or a copy that is."""
    if is_dense(tensor, channels_last=channels_last):
        return tensor
    if not channels_last:
        return tensor.contiguous()
    if tensor.dim() in _FORMATS:
        return tensor.contiguous(memory_format=_FORMATS[tensor.dim()])
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def empty(like: Tensor, shape: Sequence[int], *, channels_last: bool) -> Tensor:
    """Return a new tensor in a format, of the type and on the device of another one."""
    if not channels_last:
        return like.new_empty(shape)
    if len(shape) in _FORMATS:
        return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=_FORMATS[len(shape)])
    n, channels, size = shape
    return like.new_empty((n, size, channels)).transpose(1, 2)


def output_shape(x: Sequence[int], w: Sequence[int], window: Window) -> list[int]:
    """Return the sizes of a convolution's output: n, output channels, spatial."""
    axes = zip(x[2:], w[2:], window.stride, window.padding, window.dilation, strict=True)
    if window.output_padding is not None:
        sizes = ((size - 1) * s - 2 * p + d * (taps - 1) + 1 for size, taps, s, p, d in axes)
        return [
            x[0],
            window.outputs(w),
            *(size + more for size, more in zip(sizes, window.output_padding, strict=True)),
        ]
    return [x[0], w[0], *((size + 2 * p - d * (taps - 1) - 1) // s + 1 for size, taps, s, p, d in axes)]
