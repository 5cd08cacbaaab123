"""Operators of torch that convgen's kernels compute: convolutions, linear layers and their gradients.

They are registered as `torch.ops.convgen.*`, with fake implementations and gradients, so that torch.compile keeps them.
Outputs have the memory format that torch's own operators give them. Each operator takes the name of the layer that
calls it, under which its calls are counted. What convgen refuses is computed by torch's own operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from convgen.torch import kernel_calls
from convgen.torch.kernel_calls import Outline, Plan
from convgen.torch.layer_problems import (
    ConvRequest,
    ProductRequest,
    Tensor,
    Window,
    empty,
    looks_channels_last,
    output_shape,
    reads_channels_last,
    type_name,
)

#: Schema of the arguments behind an operator's tensors: `call` of its function.
_WINDOW_SCHEMA = "int[] stride, int[] padding, int[] dilation, int groups, str layer"


def _window(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, layer: str = "",
    output_padding: Sequence[int] | None = None,
) -> Window:  # fmt: skip
    """Return the window among the arguments of a call."""
    more = None if output_padding is None else tuple(output_padding)
    return Window(tuple(stride), tuple(padding), tuple(dilation), groups, more)


def _of_torch(window: Window) -> tuple[Any, ...]:
    """Return a window as the arguments of torch's own operators."""
    is_transposed = window.output_padding is not None
    more = window.output_padding or [0] * len(window.stride)
    return window.stride, window.padding, window.dilation, is_transposed, more, window.groups


def _is_channels_last(x: Tensor, w: Tensor) -> bool:
    """Return whether the results of a convolution are channels_last: if x or w is (ATen/native/ConvUtils.h)."""
    return looks_channels_last(x) or looks_channels_last(w)


def _plan(outline: Callable[..., Outline], first: Tensor, second: Tensor, third: Tensor | None, *call: Any) -> Plan:
    """Return the plan of a call with two or three tensors; without one, make it by the function `outline`."""
    window, layer = _window(*call), call[4]
    tf32 = first.dtype is torch.float32 and kernel_calls.convolutions_allow_tf32()
    key = (
        outline, first.shape, first.stride(), first.dtype, first.device,
        second.shape, second.stride(), second.dtype, second.device,
        None if third is None else (third.shape, third.stride(), third.dtype, third.device),
        window, tf32,
    )  # fmt: skip
    plan = kernel_calls.plan_of(key, layer)
    if plan is not None:
        return plan
    return kernel_calls.new_plan(key, layer, outline(first, second, third, window, tf32))


def _by_torch(operator: Any, *arguments: Any) -> Any:
    """Call an operator of torch on the types that its tensors have: autocast has been at work already."""
    with torch.autocast(arguments[0].device.type, enabled=False):
        return operator(*arguments)


def _backward_by_torch(
    gradient: Tensor, x: Tensor, w: Tensor, window: Window, mask: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return torch's gradients of x, w and the bias; `mask` says which of them it computes."""
    arguments = [window.outputs(w.shape)], *_of_torch(window), mask
    x_gradient, w_gradient, bias_gradient = _by_torch(torch.ops.aten.convolution_backward, gradient, x, w, *arguments)
    return x_gradient, w_gradient, bias_gradient


_INPUTS = "src", "wei", "bia"  #: of a kernel, as convgen calls them

# ------------------------------------------------------------ convolution


def _convolution(x: Tensor, w: Tensor, bias: Tensor | None, *call: Any) -> Tensor:
    """Return the convolution of x [n, c, spatial...] and w [outputs, c / groups, taps...], with a bias [outputs]."""
    plan = _plan(_forward_outline, x, w, bias, *call)
    if plan.kernel is None:
        window = _of_torch(_window(*call))
        return plan.in_format(_by_torch(torch.ops.aten.convolution, x, w, bias, *window))
    y = x.new_empty_strided(plan.sizes, plan.strides)
    inputs = plan.read(x, w) if bias is None else plan.read(x, w, bias)
    kernel_calls.launch(plan.kernel, {**dict(zip(_INPUTS, inputs)), "dst": y})
    return y


def _forward_outline(x: Tensor, w: Tensor, bias: Tensor | None, window: Window, tf32: bool) -> Outline:
    """Return the outline of a convolution."""
    channels_last, has_bias = _is_channels_last(x, w), bias is not None
    formats = reads_channels_last(x, channels_last=channels_last), reads_channels_last(w, channels_last=channels_last)
    formats_of_kernel = *formats, channels_last
    request = ConvRequest(
        "FWD_D", type_name(x), tuple(x.shape), tuple(w.shape), window, has_bias, formats_of_kernel, tf32
    )
    if bias is None:
        return Outline(request, (x, w), formats, channels_last)
    return Outline(request, (x, w, bias), (*formats, False), channels_last)


def _convolution_fake(x: Tensor, w: Tensor, bias: Tensor | None, *call: Any) -> Tensor:
    window = _window(*call)
    return empty(x, output_shape(x.shape, w.shape, window), channels_last=_is_channels_last(x, w))


def _data_gradient(gradient: Tensor, x: Tensor, w: Tensor, *call: Any) -> Tensor:
    """Return the gradient of x, in the format of the convolution's result."""
    plan = _plan(_data_outline, gradient, x, w, *call)
    if plan.kernel is None:
        window = _window(*call)
        return plan.in_format(_backward_by_torch(gradient, x, w, window, [True, False, False])[0])
    gradient, w = plan.read(gradient, w)
    result = x.new_empty_strided(plan.sizes, plan.strides)
    kernel_calls.launch(plan.kernel, {"diff_dst": gradient, "wei": w, "diff_src": result})
    return result


def _data_outline(gradient: Tensor, x: Tensor, w: Tensor, window: Window, tf32: bool) -> Outline:
    """Return the outline of the gradient of x."""
    channels_last = _is_channels_last(x, w)
    formats = tuple(reads_channels_last(tensor, channels_last=channels_last) for tensor in (gradient, w))
    formats_of_kernel = channels_last, formats[1], formats[0]
    request = ConvRequest("BWD_D", type_name(x), tuple(x.shape), tuple(w.shape), window, False, formats_of_kernel, tf32)
    return Outline(request, (gradient, w), formats, channels_last)


def _data_gradient_fake(gradient: Tensor, x: Tensor, w: Tensor, *call: Any) -> Tensor:
    return empty(x, x.shape, channels_last=_is_channels_last(x, w))


def _weights_outline(
    gradient: Tensor, x: Tensor, w: Tensor, window: Window, tf32: bool, *, bias: bool = False
) -> Outline:
    """Return the outline of the gradient of w, in the format of w, as parameters want theirs."""
    channels_last, w_channels_last = _is_channels_last(x, w), looks_channels_last(w)
    formats = tuple(reads_channels_last(tensor, channels_last=channels_last) for tensor in (gradient, x))
    has_one_tap = all(taps == 1 for taps in w.shape[2:])  # memory of one tap is in both formats
    formats_of_kernel = formats[1], w_channels_last or has_one_tap, formats[0]
    request = ConvRequest("BWD_W", type_name(x), tuple(x.shape), tuple(w.shape), window, bias, formats_of_kernel, tf32)
    return Outline(request, (gradient, x), formats, w_channels_last)


_weights_and_bias_outline = partial(_weights_outline, bias=True)


def _weight_gradient(gradient: Tensor, x: Tensor, w: Tensor, *call: Any) -> Tensor:
    """Return the gradient of w."""
    plan = _plan(_weights_outline, gradient, x, w, *call)
    if plan.kernel is None:
        window = _window(*call)
        return plan.in_format(_backward_by_torch(gradient, x, w, window, [False, True, False])[1])
    gradient, x = plan.read(gradient, x)
    result = w.new_empty_strided(plan.sizes, plan.strides)
    kernel_calls.launch(plan.kernel, {"diff_dst": gradient, "src": x, "diff_wei": result})
    return result


def _weight_gradient_fake(gradient: Tensor, x: Tensor, w: Tensor, *call: Any) -> Tensor:
    return empty(w, w.shape, channels_last=looks_channels_last(w))


def _weight_bias_gradients(gradient: Tensor, x: Tensor, w: Tensor, *call: Any) -> tuple[Tensor, Tensor]:
    """Return the gradients of w and of the bias [outputs]."""
    plan = _plan(_weights_and_bias_outline, gradient, x, w, *call)
    if plan.kernel is None:
        window = _window(*call)
        _, of_w, of_bias = _backward_by_torch(gradient, x, w, window, [False, True, True])
        return plan.in_format(of_w), of_bias
    gradient, x = plan.read(gradient, x)
    of_w, of_bias = w.new_empty_strided(plan.sizes, plan.strides), w.new_empty(gradient.shape[1])
    tensors = {"diff_dst": gradient, "src": x, "diff_wei": of_w, "diff_bia": of_bias}
    kernel_calls.launch(plan.kernel, tensors)
    return of_w, of_bias


def _weight_bias_gradients_fake(gradient: Tensor, x: Tensor, w: Tensor, *call: Any) -> tuple[Tensor, Tensor]:
    return empty(w, w.shape, channels_last=looks_channels_last(w)), w.new_empty(gradient.shape[1])


def _convolution_backward(kind: str, ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, w and the bias of a kind of convolution.

    Where w needs none, torch sums the bias' gradient.
    """
    x, w = ctx.saved_tensors
    _, _, needs_x, needs_w, needs_bias = ctx.needs_input_grad
    arguments, of_x, of_w, of_bias = (gradient, x, w, *ctx.arguments), None, None, None
    if needs_x:
        of_x = getattr(_OPERATORS, f"{kind}_data_gradient").default(*arguments)
    if needs_w and needs_bias:
        of_w, of_bias = getattr(_OPERATORS, f"{kind}_weight_bias_gradients").default(*arguments)
    elif needs_w:
        of_w = getattr(_OPERATORS, f"{kind}_weight_gradient").default(*arguments)
    elif needs_bias:
        of_bias = gradient.sum([0, *range(2, gradient.dim())])
    return of_x, of_w, of_bias


# ------------------------------------------------------------ products


def _product(left: Tensor, right: Tensor, bias: Tensor | None, layer: str) -> Tensor:
    """Return left [m, k] x right [k, n] + bias [n], row-major."""
    tf32 = left.dtype is torch.float32 and kernel_calls.products_allow_tf32()
    key = (
        _product_outline, left.shape, left.stride(), left.dtype, left.device, right.shape, right.stride(), right.dtype,
        right.device, None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device), tf32,
    )  # fmt: skip
    plan = kernel_calls.plan_of(key, layer)
    if plan is None:
        plan = kernel_calls.new_plan(key, layer, _product_outline(left, right, bias, tf32))
    if plan.kernel is None:
        product = (torch.ops.aten.mm, left, right) if bias is None else (torch.ops.aten.addmm, bias, left, right)
        return _by_torch(*product).contiguous()
    result = left.new_empty(plan.sizes)
    inputs = plan.read(left, right) if bias is None else plan.read(left, right, bias)
    kernel_calls.launch(plan.kernel, {**dict(zip(_INPUTS, inputs)), "dst": result})
    return result


def _product_outline(left: Tensor, right: Tensor, bias: Tensor | None, tf32: bool) -> Outline:
    """Return the outline of a product; a factor with gaps in memory is copied, row-major."""
    (m, k), n = left.shape, right.shape[1]
    columns = _is_column_major(left), _is_column_major(right)
    request = ProductRequest(type_name(left), m, k, n, columns, bias is not None, tf32)
    formats = tuple(None if by_column else False for by_column in columns)
    if bias is None:
        return Outline(request, (left, right), formats, channels_last=False)
    return Outline(request, (left, right, bias), (*formats, False), channels_last=False)


def _is_column_major(matrix: Tensor) -> bool:
    """Return whether the transposed matrix is contiguous, and the matrix is not."""
    return not matrix.is_contiguous() and bool(matrix.t().is_contiguous())


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
    _, _, needs_x, needs_w, needs_bias = ctx.needs_input_grad
    of_x = _OPERATORS.matmul.default(gradient, w, layer) if needs_x else None
    of_w = _OPERATORS.matmul.default(gradient.t(), x, layer) if needs_w else None
    return of_x, of_w, gradient.sum(0) if needs_bias else None


# ------------------------------------------------------------ registration


_LIBRARY = torch.library.Library("convgen", "FRAGMENT")
_OPERATORS = torch.ops.convgen
#: Has torch.compile keep the strides that fake implementations saw; torch before 2.7 knows only their order.
_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
_Backward: TypeAlias = Callable[..., tuple[Tensor | None, ...]]
#: Returns a hashable form of a set of dispatch keys: its bits, or its text where torch does not report them.
_bits: Callable[[Any], int | str] = getattr(torch._C.DispatchKeySet, "raw_repr", repr)
_known_reaches: dict[int | str, bool] = {}  #: results of `_reaches_kernels` by the bits of a set of dispatch keys


def _register(name: str, schema: str, function: Any, fake: Any, backward: _Backward | None = None) -> None:
    """Register an operator whose first arguments, up to three, are tensors or None.

    Wrappers of `torch.library.custom_op` would add 7 us of the host's time to a call, 23 to one with gradients.
    """
    _LIBRARY.define(name + schema, tags=[torch.Tag.pt2_compliant_tag, _STRIDES])
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"convgen::{name}", fake, lib=_LIBRARY)
    operator = getattr(_OPERATORS, name).default
    _LIBRARY.impl(name, _with_gradients(operator, function, backward), "Autograd", with_keyset=True)


def _with_gradients(operator: Any, function: Any, backward: _Backward | None) -> Any:
    """Return the kernel of torch's autograd for an operator.

    `backward` takes the context of a `torch.autograd.Function`, whose `arguments` are those that are no tensors, and
    the gradients; it returns those of the tensors. Without it, gradients through the operator raise RuntimeError.
    """
    tensor_count = sum("Tensor" in str(argument.type) for argument in operator._schema.arguments)

    def below(keys: Any, *arguments: Any) -> Any:
        """Compute the operator without autograd: by its function, or by what torch's dispatcher has before it."""
        if _reaches_kernels(keys, arguments[0]):
            return function(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    def forward(ctx: Any, keys: Any, rest: tuple[Any, ...], *tensors: Tensor | None) -> Any:
        ctx.save_for_backward(tensors[0], tensors[1])
        ctx.arguments = rest
        return below(keys, *tensors, *rest)

    def gradients(ctx: Any, *of_results: Tensor) -> tuple[Tensor | None, ...]:
        if backward is None:
            raise RuntimeError(f"given gradients through {operator}, wanted none: it has no backward pass")
        return None, None, *backward(ctx, *of_results)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(gradients)}
    node: Any = type(f"convgen_{operator._opname}_", (torch.autograd.Function,), methods)

    def call(keys: Any, *arguments: Any) -> Any:
        if torch.is_grad_enabled():
            tensors = arguments[:tensor_count]
            for tensor in tensors:
                if tensor is not None and tensor.requires_grad:
                    return node.apply(keys, arguments[tensor_count:], *tensors)
        return below(keys, *arguments)

    return call


def _reaches_kernels(keys: Any, tensor: Tensor) -> bool:
    """Return whether torch's dispatcher calls the operator's function next behind autograd, for one of its tensors.

    Otherwise a mode, a functional or fake tensor, or a tensor of a subclass comes first.
    """
    bits = _bits(keys)
    reaches = _known_reaches.get(bits)
    if reaches is None:
        rest = keys & torch._C._after_autograd_keyset
        for fallthrough in (torch._C.DispatchKey.ADInplaceOrView, torch._C.DispatchKey.BackendSelect):
            rest = rest.remove(fallthrough)
        kind = tensor.device.type
        is_first = rest.highestPriorityTypeId().name == torch._C._dispatch_key_for_device(kind)
        reaches = _known_reaches[bits] = is_first and kind != "meta"  # fake implementations compute those
    return reaches


def _register_convolutions(kind: str, window: str) -> None:
    """Register a kind of convolution and its gradients."""
    gradient, backward = f"(Tensor gradient, Tensor x, Tensor w, {window})", partial(_convolution_backward, kind)
    schema = f"(Tensor x, Tensor w, Tensor? bias, {window}) -> Tensor"
    _register(kind, schema, _convolution, _convolution_fake, backward)
    _register(f"{kind}_data_gradient", f"{gradient} -> Tensor", _data_gradient, _data_gradient_fake)
    _register(f"{kind}_weight_gradient", f"{gradient} -> Tensor", _weight_gradient, _weight_gradient_fake)
    _register(
        f"{kind}_weight_bias_gradients", f"{gradient} -> (Tensor, Tensor)",
        _weight_bias_gradients, _weight_bias_gradients_fake,
    )  # fmt: skip


_register_convolutions("convolution", _WINDOW_SCHEMA)
_register_convolutions("transposed_convolution", f"{_WINDOW_SCHEMA}, int[] output_padding")
_register("linear", "(Tensor x, Tensor w, Tensor? bias, str layer) -> Tensor", _linear, _linear_fake, _linear_backward)
_register("matmul", "(Tensor left, Tensor right, str layer) -> Tensor", _matmul, _matmul_fake)


# ------------------------------------------------------------ functions


def _autocast(*tensors: Tensor | None) -> Sequence[Tensor | None]:
    """Return the tensors, of which there is a first, in the type of torch's autocast, if it is on for their device."""
    first: Tensor = tensors[0]
    if not torch.is_autocast_enabled(first.device.type):
        return tensors
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
    y = _OPERATORS.convolution.default(
        x if batched else x.unsqueeze(0), w, bias, strides, pads, dilations, groups, layer
    )
    return y if batched else y.squeeze(0)


def _per_axis(given: int | Sequence[int], count: int) -> Sequence[int]:
    if isinstance(given, int):
        return [given] * count
    return given if len(given) == count else list(given) * (count if len(given) == 1 else 1)


def _same(x: Tensor, totals: list[int]) -> tuple[Tensor, Sequence[int]]:
    """Return x and the padding on either side that add `totals` elements; an odd one more is added behind x."""
    pads = [total // 2 for total in totals]
    behind = [total % 2 for total in reversed(totals)]
    if any(behind):
        x = torch.nn.functional.pad(x, [n for odd in behind for n in (0, odd)])
    return x, pads


#: convolutions by the number of spatial dimensions; `convolution` takes all of them
conv1d = conv2d = conv3d = convolution


def transposed_convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    layer: str = "",
) -> Tensor:
    """Return the transposed convolution of x [n, c, spatial...] or [c, spatial...] in 1 to 3 dimensions.

    Sizes are as in `torch.nn.functional.conv_transpose2d`. `layer` names the caller in logs and reports.
    """
    where = (_per_axis(given, w.dim() - 2) for given in (stride, padding, dilation))
    x, w, bias = _autocast(x, w, bias)
    batched, more = x.dim() == w.dim(), _per_axis(output_padding, w.dim() - 2)
    y = _OPERATORS.transposed_convolution.default(
        x if batched else x.unsqueeze(0), w, bias, *where, groups, layer, more
    )
    return y if batched else y.squeeze(0)


#: transposed convolutions by the number of spatial dimensions; `transposed_convolution` takes all of them
conv_transpose1d = conv_transpose2d = conv_transpose3d = transposed_convolution


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None, layer: str = "") -> Tensor:
    """Return x [..., k] times w [n, k] transposed, with a bias [n], as `torch.nn.functional.linear` does.

    `layer` names the caller in logs and reports.
    """
    x, w, bias = _autocast(x, w, bias)
    if x.dim() == 2:
        return _OPERATORS.linear.default(x, w, bias, layer)
    y = _OPERATORS.linear.default(x.reshape(-1, x.shape[-1]), w, bias, layer)
    return y.view(*x.shape[:-1], w.shape[0])
