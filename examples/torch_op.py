"""A convolution of torch that kernels of convgen compute, forwards and backwards: an operator of torch.library.

Tensors are f16 or bf16, on the host or on the device; there in channels_last memory, else they are brought into it. A
kernel is made when sizes are seen first, and kept.

    y = conv2d(x, w, stride=2, padding=1)
    y.sum().backward()
"""

from __future__ import annotations

import os
from functools import cache

import torch

import convgen as cg

DEVICE, TARGET = os.environ.get("CONVGEN_DEVICE", "hip:0"), os.environ.get("CONVGEN_TARGET", "gfx942")
TYPES = {torch.float16: "f16", torch.bfloat16: "bf16"}


@cache
def kernel(direction: str, x: torch.Size, w: torch.Size, stride: int, padding: int, dtype: torch.dtype):
    """The kernel of a convolution by its sizes, on the device."""
    (mb, ic, ih, iw), (oc, _, kh, kw) = x, w
    sizes = f"mb{mb}ic{ic}ih{ih}iw{iw}oc{oc}kh{kh}kw{kw}sh{stride}sw{stride}ph{padding}pw{padding}"
    problem = cg.Conv.parse(sizes, dir=direction, dt=TYPES[dtype])
    return cg.load(cg.compile(cg.build(problem, TARGET)), DEVICE)


def lying(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as kernels want it on a device."""
    return tensor.contiguous(memory_format=torch.channels_last)


@torch.library.custom_op("convgen::conv2d", mutates_args=())
def conv2d(x: torch.Tensor, w: torch.Tensor, stride: int = 1, padding: int = 0) -> torch.Tensor:
    return kernel("FWD_D", x.shape, w.shape, stride, padding, x.dtype)(src=lying(x), wei=lying(w))


@torch.library.custom_op("convgen::conv2d_backward", mutates_args=())
def conv2d_backward(
    gradient: torch.Tensor, x: torch.Tensor, w: torch.Tensor, stride: int, padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of w."""
    by_data, by_weights = (kernel(d, x.shape, w.shape, stride, padding, x.dtype) for d in ("BWD_D", "BWD_W"))
    gradient = lying(gradient)
    return by_data(wei=lying(w), diff_dst=gradient), by_weights(src=lying(x), diff_dst=gradient)


@conv2d.register_fake
def _(x, w, stride=1, padding=0):
    """Sizes and strides of the result, for whoever traces."""
    h, wide = ((size + 2 * padding - k) // stride + 1 for size, k in zip(x.shape[2:], w.shape[2:]))
    return x.new_empty((x.shape[0], w.shape[0], h, wide)).contiguous(memory_format=torch.channels_last)


@conv2d_backward.register_fake
def _(gradient, x, w, stride, padding):
    return tuple(torch.empty_like(each, memory_format=torch.channels_last) for each in (x, w))


def _remember(ctx, inputs, output):
    x, w, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(x, w)


def _backward(ctx, gradient):
    return *conv2d_backward(gradient, *ctx.saved_tensors, ctx.stride, ctx.padding), None, None


conv2d.register_autograd(_backward, setup_context=_remember)
