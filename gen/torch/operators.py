"""Operators of torch that convgen's kernels compute: convolutions, linear layers and their gradients.

They are registered as `torch.ops.convgen.*`, with fake implementations and gradients, so that torch.compile keeps them.
Outputs have the memory format that torch's own operators give them. Each operator takes the name of the layer that
calls it, under which its calls are counted. What convgen refuses is computed by torch's own operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from convgen.torch import kernel_calls
from convgen.torch.layer_problems import (
    ConvRequest,
    ProductRequest,
    Tensor,
    Window,
    empty,
    format_of,
    in_format,
    looks_last,
    output_shape,
    type_name,
)

_WINDOW = "int[] stride, int[] padding, int[] dilation, int groups, str layer"


def _window(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> Window:
    return Window(tuple(stride), tuple(padding), tuple(dilation), groups)


def _is_last(x: Tensor, w: Tensor) -> bool:
    """Return whether the results of a convolution are channels_last: if x or w is (ATen/native/ConvUtils.h)."""
    return looks_last(x) or looks_last(w)


def _request(
    direction: str, x: Tensor, w: Tensor, window: Window, last: tuple[bool, bool, bool], *, bias: bool
) -> ConvRequest:
    tf32 = kernel_calls.convolutions_allow_tf32()
    return ConvRequest(direction, type_name(x), tuple(x.shape), tuple(w.shape), window, bias, last, tf32)


def _by_torch(operator: Any, *arguments: Any) -> Any:
    """Call an operator of torch on the types that its tensors have: autocast has been at work already."""
    with torch.autocast(arguments[0].device.type, enabled=False):
        return operator(*arguments)


def _backward_by_torch(
    gradient: Tensor, x: Tensor, w: Tensor, window: Window, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, w and the bias, as far as they are wanted."""
    *where, groups = window
    rest = [w.shape[0]], *where, False, [0] * len(window.stride), groups, wanted
    x_gradient, w_gradient, bias_gradient = _by_torch(torch.ops.aten.convolution_backward, gradient, x, w, *rest)
    return x_gradient, w_gradient, bias_gradient


# ------------------------------------------------------------ convolution


def _convolution(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int], groups: int,
    layer: str,
) -> Tensor:  # fmt: skip
    """Return the convolution of x [n, c, spatial...] and w [outputs, c / groups, taps...], with a bias [outputs]."""
    window, last = _window(stride, padding, dilation, groups), _is_last(x, w)
    x_last, w_last = format_of(x, last=last), format_of(w, last=last)
    request = _request("FWD_D", x, w, window, (x_last, w_last, last), bias=bias is not None)
    kernel = kernel_calls.kernel_of(request, (x, w) if bias is None else (x, w, bias), layer)
    if kernel is None:
        where = stride, padding, dilation, False, [0] * len(stride), groups
        return in_format(_by_torch(torch.ops.aten.convolution, x, w, bias, *where), last=last)
    y = empty(x, output_shape(x.shape, w.shape, window), last=last)
    tensors = {"src": in_format(x, last=x_last), "wei": in_format(w, last=w_last), "dst": y}
    kernel_calls.launch(kernel, tensors if bias is None else tensors | {"bia": bias.contiguous()})
    return y


def _convolution_fake(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int], groups: int,
    layer: str,
) -> Tensor:  # fmt: skip
    window = _window(stride, padding, dilation, groups)
    return empty(x, output_shape(x.shape, w.shape, window), last=_is_last(x, w))


def _data_gradient(
    gradient: Tensor, x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int,
    layer: str,
) -> Tensor:  # fmt: skip
    """Return the gradient of x, in the format of the convolution's result."""
    window, last = _window(stride, padding, dilation, groups), _is_last(x, w)
    y_last, w_last = format_of(gradient, last=last), format_of(w, last=last)
    request = _request("BWD_D", x, w, window, (last, w_last, y_last), bias=False)
    kernel = kernel_calls.kernel_of(request, (gradient, w), layer)
    if kernel is None:
        return in_format(_backward_by_torch(gradient, x, w, window, [True, False, False])[0], last=last)
    result = empty(x, x.shape, last=last)
    tensors = {"diff_dst": in_format(gradient, last=y_last), "wei": in_format(w, last=w_last)}
    kernel_calls.launch(kernel, tensors | {"diff_src": result})
    return result


def _data_gradient_fake(
    gradient: Tensor, x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int,
    layer: str,
) -> Tensor:  # fmt: skip
    return empty(x, x.shape, last=_is_last(x, w))


def _of_weights(
    gradient: Tensor, x: Tensor, w: Tensor, window: Window, layer: str, bias_gradient: Tensor | None
) -> Tensor:
    """Return the gradient of w, in the format of w, as parameters want theirs; write that of the bias, if given."""
    last, w_last, bias = _is_last(x, w), looks_last(w), bias_gradient is not None
    y_last, x_last = format_of(gradient, last=last), format_of(x, last=last)
    of_kernel = w_last or all(taps == 1 for taps in w.shape[2:])  # memory of one tap is in both formats
    request = _request("BWD_W", x, w, window, (x_last, of_kernel, y_last), bias=bias)
    kernel = kernel_calls.kernel_of(request, (gradient, x), layer)
    if kernel is None:
        _, result, by_torch = _backward_by_torch(gradient, x, w, window, [False, True, bias])
        if bias_gradient is not None:
            bias_gradient.copy_(by_torch)
        return in_format(result, last=w_last)
    result = empty(w, w.shape, last=w_last)
    tensors = {"diff_dst": in_format(gradient, last=y_last), "src": in_format(x, last=x_last), "diff_wei": result}
    kernel_calls.launch(kernel, tensors if bias_gradient is None else tensors | {"diff_bia": bias_gradient})
    return result


def _weight_gradient(
    gradient: Tensor, x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int,
    layer: str,
) -> Tensor:  # fmt: skip
    return _of_weights(gradient, x, w, _window(stride, padding, dilation, groups), layer, None)


def _weight_gradient_fake(
    gradient: Tensor, x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int,
    layer: str,
) -> Tensor:  # fmt: skip
    return empty(w, w.shape, last=looks_last(w))


def _weight_bias_gradients(
    gradient: Tensor, x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int,
    layer: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of w and of the bias [outputs]."""
    of_bias = w.new_empty(w.shape[0])
    return _of_weights(gradient, x, w, _window(stride, padding, dilation, groups), layer, of_bias), of_bias


def _weight_bias_gradients_fake(
    gradient: Tensor, x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int,
    layer: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return empty(w, w.shape, last=looks_last(w)), w.new_empty(w.shape[0])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, _, *ctx.arguments = inputs
    ctx.save_for_backward(x, w)


def _convolution_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, w and the bias; where w needs none, torch sums the bias' gradient."""
    x, w = ctx.saved_tensors
    needs_x, needs_w, needs_bias, *rest = ctx.needs_input_grad
    given, of_x, of_w, of_bias = (gradient, x, w, *ctx.arguments), None, None, None
    if needs_x:
        of_x = torch.ops.convgen.convolution_data_gradient(*given)
    if needs_w and needs_bias:
        of_w, of_bias = torch.ops.convgen.convolution_weight_bias_gradients(*given)
    elif needs_w:
        of_w = torch.ops.convgen.convolution_weight_gradient(*given)
    elif needs_bias:
        of_bias = gradient.sum([0, *range(2, gradient.dim())])
    return of_x, of_w, of_bias, *[None] * len(rest)


# ------------------------------------------------------------ products


def _factor(matrix: Tensor) -> tuple[Tensor, bool]:
    """Return a matrix without gaps in memory, copied if need be, and whether it is column-major."""
    if matrix.is_contiguous():
        return matrix, False
    if matrix.t().is_contiguous():
        return matrix, True
    return matrix.contiguous(), False


def _product(left: Tensor, right: Tensor, bias: Tensor | None, layer: str) -> Tensor:
    """Return left [m, k] x right [k, n] + bias [n], row-major."""
    (left, left_by_column), (right, right_by_column) = _factor(left), _factor(right)
    (m, k), n = left.shape, right.shape[1]
    tf32 = kernel_calls.products_allow_tf32()
    request = ProductRequest(type_name(left), m, k, n, (left_by_column, right_by_column), bias is not None, tf32)
    kernel = kernel_calls.kernel_of(request, (left, right) if bias is None else (left, right, bias), layer)
    if kernel is None:
        product = (torch.ops.aten.mm, left, right) if bias is None else (torch.ops.aten.addmm, bias, left, right)
        return _by_torch(*product).contiguous()
    result = left.new_empty((m, n))
    tensors = {"src": left, "wei": right, "dst": result}
    kernel_calls.launch(kernel, tensors if bias is None else tensors | {"bia": bias.contiguous()})
    return result


def _matmul(left: Tensor, right: Tensor, layer: str) -> Tensor:
    return _product(left, right, None, layer)


def _matmul_fake(left: Tensor, right: Tensor, layer: str) -> Tensor:
    return left.new_empty((left.shape[0], right.shape[1]))


def _linear(x: Tensor, w: Tensor, bias: Tensor | None, layer: str) -> Tensor:
    """Return x [m, k] x w [n, k] transposed + bias [n]."""
    return _product(x, w.t(), bias, layer)


def _linear_fake(x: Tensor, w: Tensor, bias: Tensor | None, layer: str) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


def _linear_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    (layer,) = ctx.arguments
    needs_x, needs_w, needs_bias, _ = ctx.needs_input_grad
    of_x = torch.ops.convgen.matmul(gradient, w, layer) if needs_x else None
    of_w = torch.ops.convgen.matmul(gradient.t(), x, layer) if needs_w else None
    return of_x, of_w, gradient.sum(0) if needs_bias else None, None


# ------------------------------------------------------------ registration


def _register(name: str, schema: str, function: Any, fake: Any) -> Any:
    operator = torch.library.custom_op(f"convgen::{name}", function, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    return operator


_GRADIENT = f"(Tensor gradient, Tensor x, Tensor w, {_WINDOW})"
_register(
    "convolution", f"(Tensor x, Tensor w, Tensor? bias, {_WINDOW}) -> Tensor", _convolution, _convolution_fake
).register_autograd(_convolution_backward, setup_context=_keep)
_register("convolution_data_gradient", f"{_GRADIENT} -> Tensor", _data_gradient, _data_gradient_fake)
_register("convolution_weight_gradient", f"{_GRADIENT} -> Tensor", _weight_gradient, _weight_gradient_fake)
_register(
    "convolution_weight_bias_gradients", f"{_GRADIENT} -> (Tensor, Tensor)",
    _weight_bias_gradients, _weight_bias_gradients_fake,
)  # fmt: skip
_register("linear", "(Tensor x, Tensor w, Tensor? bias, str layer) -> Tensor", _linear, _linear_fake).register_autograd(
    _linear_backward, setup_context=_keep
)
_register("matmul", "(Tensor left, Tensor right, str layer) -> Tensor", _matmul, _matmul_fake)


# ------------------------------------------------------------ functions


def _autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """Return the tensors in the type of torch's autocast, if it is on for their device."""
    first = tensors[0]
    if first is None or not torch.is_autocast_enabled(first.device.type):
        return list(tensors)
    dtype = torch.get_autocast_dtype(first.device.type)
    return [t if t is None or not t.is_floating_point() or t.dtype is torch.float64 else t.to(dtype) for t in tensors]


def convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layer: str = "",
) -> Tensor:
    """Return the convolution of x [n, c, spatial...] or [c, spatial...] in 1 to 3 dimensions, as torch's functions do.

    Sizes are as in `torch.nn.functional.conv2d`. `layer` names the caller in logs and reports.
    """
    count = w.dim() - 2
    strides, dilations = _per_axis(stride, count), _per_axis(dilation, count)
    if padding == "same":
        x, pads = _same(x, [(size - 1) * d for size, d in zip(w.shape[2:], dilations)])
    else:
        pads = [0] * count if isinstance(padding, str) else _per_axis(padding, count)
    x, w, bias = _autocast(x, w, bias)
    batched = x.dim() == w.dim()
    y = torch.ops.convgen.convolution(
        x if batched else x.unsqueeze(0), w, bias, strides, pads, dilations, groups, layer
    )
    return y if batched else y.squeeze(0)


def _per_axis(given: int | Sequence[int], count: int) -> list[int]:
    return [given] * count if isinstance(given, int) else list(given) * (count if len(given) == 1 else 1)


def _same(x: Tensor, totals: list[int]) -> tuple[Tensor, list[int]]:
    """Return x and the padding on either side that add `totals` elements; an odd one more is added behind x."""
    pads = [total // 2 for total in totals]
    behind = [total % 2 for total in reversed(totals)]
    if any(behind):
        x = torch.nn.functional.pad(x, [n for odd in behind for n in (0, odd)])
    return x, pads


#: convolutions by the number of spatial dimensions; `convolution` takes all of them
conv1d = conv2d = conv3d = convolution


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None, layer: str = "") -> Tensor:
    """Return x [..., k] times w [n, k] transposed, with a bias [n], as `torch.nn.functional.linear` does.

    `layer` names the caller in logs and reports.
    """
    x, w, bias = _autocast(x, w, bias)
    y = torch.ops.convgen.linear(x.reshape(-1, x.shape[-1]), w, bias, layer)
    return y.view(*x.shape[:-1], w.shape[0])
