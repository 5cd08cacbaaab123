"""The convolutions and matrix products of an ONNX model, with the shapes that onnx infers (needs the package onnx).

Operators are read as their specification has them (onnx/docs/Operators.md): Conv, ConvTranspose as the gradient of data
of a convolution, Gemm, MatMul, ConvInteger, MatMulInteger, QLinearConv and QLinearMatMul. Tensors are row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import frozen
from convgen.problem import attributes
from convgen.problem.model_nodes import Node, conv_descriptor
from convgen.problem.options import CONV, DECONV, MATMUL

_LARGEST_VALUE = 4096  #: elements of a constant of which the value is read

#: onnx.TensorProto's names of types -> ours
_TYPES = {
    "FLOAT": "f32",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "DOUBLE": "f64",
    "INT8": "s8",
    "UINT8": "u8",
    "INT32": "s32",
    "INT4": "s4",
    "UINT4": "u4",
    "FLOAT8E4M3FN": "f8_e4m3",
    "FLOAT8E4M3FNUZ": "f8_e4m3fnuz",
    "FLOAT8E5M2": "f8_e5m2",
    "FLOAT8E5M2FNUZ": "f8_e5m2fnuz",
}


@frozen
class _Tensor:
    """A tensor of the graph; an unknown dim is a name, or empty."""

    name: str
    dims: tuple[int | str, ...]
    dtype: str
    value: Any = None  #: numpy's, of a small constant

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the dims. Raises Unsupported where one is not known."""
        unknown = [dim for dim in self.dims if not isinstance(dim, int)]
        if unknown:
            given = "x".join(str(dim) or "?" for dim in self.dims)
            raise Unsupported(
                f"given {self.name} of {given}, wanted sizes: --mb gives that of the first dimension", rule="onnx-shape"
            )
        return tuple(dim for dim in self.dims if isinstance(dim, int))


@frozen
class _Operator:
    """A node with its tensors, in order and None where one is left out, and its attributes."""

    tensors: tuple[_Tensor | None, ...]
    attributes: Mapping[str, Any]

    def tensor(self, number: int) -> _Tensor:
        tensor = self.optional(number)
        if tensor is None:
            raise UserError(f"given no input {number}, wanted one, or its shape")
        return tensor

    def optional(self, number: int) -> _Tensor | None:
        return self.tensors[number] if number < len(self.tensors) else None


def nodes(path: Path, minibatch: int = 0) -> Iterator[Node]:
    """Yield the operators of a model; `minibatch`, unless 0, is the first dim of inputs that leave it open.

    Raises UserError without the package onnx, and for a file that is no model.
    """
    try:
        import onnx
        from onnx import inliner, numpy_helper, shape_inference
    except ImportError:
        raise UserError(f"given {path.name}, wanted the package onnx to read it: pip install 'convgen[onnx]'") from None
    try:
        model = onnx.load(str(path), load_external_data=False)
        if model.functions:
            model = inliner.inline_local_functions(model)
        _fix_minibatch(model.graph, minibatch)
        model = shape_inference.infer_shapes(model, data_prop=True)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except Exception as error:  # of protobuf, or of the inference in C++
        raise UserError(f"given {str(path)!r} that onnx cannot read ({type(error).__name__}), wanted a model") from None
    if not model.graph.node:
        raise UserError(f"given {str(path)!r} without operators, wanted a model")
    yield from _of_graph(model.graph, {}, onnx.TensorProto.DataType.Name, numpy_helper.to_array)


def _fix_minibatch(graph: Any, minibatch: int) -> None:
    """Give open first dims of inputs a size, and all dims of inputs and outputs of the same name."""
    if not minibatch:
        return
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [each.type.tensor_type.shape.dim for each in graph.input if each.name not in constants]
    first = [dims[0] for dims in inputs if dims and not dims[0].HasField("dim_value")]
    names = {dim.dim_param for dim in first if dim.dim_param}
    dims = [dim for each in (*graph.input, *graph.output, *graph.value_info) for dim in each.type.tensor_type.shape.dim]
    for dim in [*first, *(dim for dim in dims if dim.dim_param in names and dim.dim_param)]:
        dim.dim_value = minibatch


def _of_graph(
    graph: Any, outside: Mapping[str, _Tensor], type_name: Callable[[int], str], value_of: Callable[[Any], Any]
) -> Iterator[Node]:
    """Yield the operators of a graph and of those within its nodes."""
    known = {**outside, **_tensors(graph, type_name, value_of)}
    for number, node in enumerate(graph.node):
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _of_graph(inner, known, type_name, value_of)
        reader = _READERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if reader is None:
            continue
        name = node.name or f"{node.op_type}_{number}"
        driver, read = reader
        operator = _Operator(tuple(known.get(each) for each in node.input), dict(map(_attribute, node.attribute)))
        try:
            descriptor, knobs = read(operator)
        except (UserError, Unsupported) as error:
            yield Node(name, f"{node.op_type} {name}", {}, driver, error)
        else:
            yield Node(name, descriptor, {knob: text for knob, text in knobs.items() if text}, driver)


def _tensors(graph: Any, type_name: Callable[[int], str], value_of: Callable[[Any], Any]) -> dict[str, _Tensor]:
    """Return the tensors of a graph by name, with the values of small constants."""
    tensors = dict[str, _Tensor]()
    for value_info in (*graph.input, *graph.value_info, *graph.output):
        if value_info.type.HasField("tensor_type") and value_info.type.tensor_type.HasField("shape"):
            kind = value_info.type.tensor_type
            dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim)
            tensors[value_info.name] = _Tensor(value_info.name, dims, type_name(kind.elem_type))
    constants = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        if node.op_type == "Constant":
            constants += [(node.output[0], a.t) for a in node.attribute if a.name == "value" and a.HasField("t")]
    for name, tensor in constants:
        is_read = prod(tensor.dims) <= _LARGEST_VALUE and not tensor.external_data
        value = value_of(tensor) if is_read else None
        tensors[name] = _Tensor(name, tuple(tensor.dims), type_name(tensor.data_type), value)
    return tensors


def _attribute(attribute: Any) -> tuple[str, Any]:
    """Return the name of an attribute and its number, numbers or text."""
    kinds = {1: "f", 2: "i", 3: "s", 7: "ints"}
    kind = kinds.get(attribute.type)
    value: Any = None if kind is None else getattr(attribute, kind)
    if isinstance(value, bytes):
        return attribute.name, value.decode(errors="replace")
    return attribute.name, list(value) if kind == "ints" else value


def _type(tensor: _Tensor) -> str:
    if tensor.dtype not in _TYPES:
        given = f"given {tensor.name} of {tensor.dtype or 'no type'}"
        raise Unsupported(f"{given}, wanted one of {', '.join(_TYPES)}", rule="types")
    return _TYPES[tensor.dtype]


_Request = tuple[str, dict[str, str]]


def _window(op: _Operator, source: _Tensor, weights: _Tensor) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return input sizes, windows, strides and dilations, each by axis."""
    sizes, wei = source.sizes, weights.sizes
    count = len(sizes) - 2
    if len(wei) != len(sizes) or not 1 <= count <= 3:
        given = f"{source.name} of {len(sizes)} and {weights.name} of {len(wei)} dimensions"
        raise UserError(f"given {given}, wanted 3 to 5 of both")
    strides, dilations = (op.attributes.get(name) or [1] * count for name in ("strides", "dilations"))
    for name, numbers in (("strides", strides), ("dilations", dilations)):
        if not isinstance(numbers, list) or len(numbers) != count or min(numbers) < 1:
            raise UserError(f"given {name} {numbers}, wanted {count} numbers from 1 on")
    return list(sizes[2:]), list(wei[2:]), strides, dilations


def _groups(op: _Operator, channels: int, of_weights: int, outputs: int) -> int:
    """Return the groups of a convolution. `of_weights` are its input channels, as `channels`, `outputs` of all groups.

    Raises UserError where they do not fit each other.
    """
    groups = op.attributes.get("group", 1)
    if not isinstance(groups, int) or groups < 1 or outputs % groups or of_weights != channels or channels % groups:
        given = f"{channels} input channels, weights for {of_weights} of {outputs} outputs, and group {groups}"
        raise UserError(f"given {given}, wanted as many input channels of both, and whole groups")
    return groups


def _pads(op: _Operator, totals: Sequence[int]) -> list[tuple[int, int]]:
    """Return the padding before and after each axis; automatic padding is computed from its total."""
    mode = op.attributes.get("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise UserError(f"given auto_pad {mode}, wanted NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        lower_pads = [(total // 2, total - total // 2) for total in totals]
        return lower_pads if mode == "SAME_UPPER" else [(larger, smaller) for smaller, larger in lower_pads]
    if mode == "VALID":
        return [(0, 0)] * len(totals)
    pads = op.attributes.get("pads") or [0] * (2 * len(totals))
    if len(pads) != 2 * len(totals):
        raise UserError(f"given {len(pads)} pads, wanted {2 * len(totals)}")
    return list(zip(pads, pads[len(totals) :]))


def _tags(ndims: int, groups: int) -> dict[str, str]:
    letters = "abcdef"
    return {"stag": letters[:ndims], "wtag": letters[: ndims + (groups > 1)], "dtag": letters[:ndims]}


def _conv_of(op: _Operator, source: _Tensor, weights: _Tensor, result: str) -> _Request:
    """Return a forward convolution with results of the type `result`."""
    inputs, windows, strides, dilations = _window(op, source, weights)
    channels, outputs = source.sizes[1], weights.sizes[0]
    groups = _groups(op, channels, weights.sizes[1] * op.attributes.get("group", 1), outputs)
    extents = [(k - 1) * d + 1 for k, d in zip(windows, dilations)]
    same = [max((-(-i // s) - 1) * s + extent - i, 0) for i, s, extent in zip(inputs, strides, extents)]
    axes = [
        (i, (i + sum(pads) - extent) // s + 1, k, s, pads[0], d)
        for i, k, s, d, extent, pads in zip(inputs, windows, strides, dilations, extents, _pads(op, same))
    ]
    mb, ic = source.sizes[:2]
    knobs = {"dir": "FWD_D", "dt": f"{_type(source)}:{_type(weights)}:{result}", **_tags(len(source.sizes), groups)}
    return conv_descriptor(groups, mb, ic, weights.sizes[0], axes), knobs


def _conv(op: _Operator) -> _Request:
    source, weights = op.tensor(0), op.tensor(1)
    descriptor, knobs = _conv_of(op, source, weights, _type(source))
    bias = op.optional(2)
    return descriptor, knobs | ({"bia-dt": _type(bias)} if bias else {})


def _conv_transpose(op: _Operator) -> _Request:
    """Return a transposed convolution, of weights [input channels, output channels of one group, windows...]."""
    source, weights, bias = op.tensor(0), op.tensor(1), op.optional(2)
    inputs, windows, strides, dilations = _window(op, source, weights)
    outputs = weights.sizes[1] * op.attributes.get("group", 1)
    groups = _groups(op, source.sizes[1], weights.sizes[0], outputs)
    more = op.attributes.get("output_padding") or [0] * len(inputs)
    shape = op.attributes.get("output_shape")
    if len(more) != len(inputs) or (shape and len(shape) not in (len(inputs), len(inputs) + 2)):
        given = f"output_padding {more} and output_shape {shape or []}"
        raise UserError(f"given {given}, wanted one number for each of {len(inputs)} axes")
    wholes = [(i - 1) * s + (k - 1) * d + 1 + m for i, k, s, d, m in zip(inputs, windows, strides, dilations, more)]
    is_same = op.attributes.get("auto_pad", "").startswith("SAME")
    shape = shape or ([i * s for i, s in zip(inputs, strides)] if is_same else None)
    if shape:
        totals = [whole - o for whole, o in zip(wholes, shape[-len(inputs) :])]
        upper = op.attributes.get("auto_pad") == "SAME_UPPER"
        pads = [(t // 2, t - t // 2) if upper else (t - t // 2, t // 2) for t in totals]
    else:
        pads = _pads(op, [0] * len(inputs))
    axes = [
        (i, whole - sum(pad), k, s, pad[0], d)
        for whole, pad, i, k, s, d in zip(wholes, pads, inputs, windows, strides, dilations)
    ]
    mb, channels = source.sizes[:2]
    dtype = _type(source)
    tags = _tags(len(source.sizes), groups)
    tags["wtag"] = tags["wtag"].translate(str.maketrans("bc", "cb") if groups > 1 else str.maketrans("ab", "ba"))
    knobs = {"dir": "FWD_D", "dt": f"{dtype}:{_type(weights)}:{dtype}", **tags}
    descriptor = conv_descriptor(groups, mb, channels, outputs, axes)
    return descriptor, knobs | ({"bia-dt": _type(bias)} if bias else {})


def _product(left: _Tensor, right: _Tensor, result: str) -> _Request:
    """Return a product by numpy's rules: leading dims are the batch, or rows if the second factor has none."""
    a, b = left.sizes, right.sizes
    if not a or not b:
        raise UserError("given a product of numbers, wanted matrices")
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    if a[-1] != b[-2]:
        raise UserError(f"given K of {a[-1]} and of {b[-2]}, wanted as much of both")
    if prod(b[:-2]) == 1:
        a, b = (prod(a[:-1]), a[-1]), b[-2:]
    ndims = max(len(a), len(b))
    a, b = ((1,) * (ndims - len(each)) + each for each in (a, b))
    letters = "abcdefghijkl"[:ndims]
    knobs = {"dt": f"{_type(left)}:{_type(right)}:{result}", "stag": letters, "wtag": letters, "dtag": letters}
    return ":".join("x".join(map(str, each)) for each in (a, b)), knobs


def _matmul(op: _Operator) -> _Request:
    return _product(op.tensor(0), op.tensor(1), _type(op.tensor(0)))


def _gemm(op: _Operator) -> _Request:
    """Return a Gemm as a product with a bias and, for alpha, a linear post-op."""
    left, right, bias = op.tensor(0), op.tensor(1), op.optional(2)
    transposed = [bool(op.attributes.get(name, 0)) for name in ("transA", "transB")]
    alpha, beta = op.attributes.get("alpha", 1.0), op.attributes.get("beta", 1.0)
    if not isinstance(alpha, float) or not isinstance(beta, float):
        raise UserError(f"given alpha {alpha} and beta {beta} of a Gemm, wanted numbers")
    if len(left.sizes) != 2 or len(right.sizes) != 2:
        raise UserError(f"given {len(left.sizes)} and {len(right.sizes)} dimensions of a Gemm, wanted 2")
    if bias is not None and (alpha != 1 or beta != 1) and beta:
        raise Unsupported(f"given alpha of {alpha:g} and beta of {beta:g} of a Gemm with C, wanted 1", rule="onnx-gemm")
    (m, k), (inner, n) = (each.sizes[::-1] if swap else each.sizes for each, swap in zip((left, right), transposed))
    if k != inner:
        raise UserError(f"given K of {k} and of {inner}, wanted as much of both")
    dtype = _type(left)
    tags = {"stag": "ba" if transposed[0] else "ab", "wtag": "ba" if transposed[1] else "ab", "dtag": "ab"}
    knobs = {"dt": f"{dtype}:{_type(right)}:{dtype}", **tags}
    if alpha != 1:
        knobs["attr-post-ops"] = f"linear:{attributes.number(float(str(np.float32(alpha))))}"
    if bias is not None and beta:
        sizes = (1, 1, *bias.sizes)[-2:]
        knobs |= {"bia-dt": _type(bias), "bia_mask": str((sizes[0] > 1) + 2 * (sizes[1] > 1))}
    return f"{m}x{k}:{k}x{n}", knobs


def _points(tensors: Mapping[str, _Tensor | None], masks: Mapping[str, str]) -> dict[str, str]:
    """Return the knob of the zero points: numbers where they are constants of the model, else known at launch.

    `masks` gives, by role, the mask of a tensor of several values.
    """
    entries = []
    for role, tensor in tensors.items():
        if tensor is None or (tensor.value is not None and not tensor.value.any()):
            continue
        values = [] if tensor.value is None else sorted({*tensor.value.reshape(-1).tolist()})
        if len(values) == 1:
            entries.append(f"{role}:common:{int(values[0])}")
        else:
            entries.append(f"{role}:{_mask(role, tensor, masks)}:{_type(tensor)}")
    return attributes.knob("attr-zero-points", entries)


def _scales(tensors: Mapping[str, _Tensor], masks: Mapping[str, str]) -> dict[str, str]:
    """Return the knob of the scales: numbers where they are constants of the model, else known at launch.

    `masks` gives, by role, the mask of a tensor of several values.
    """
    entries = []
    for role, tensor in tensors.items():
        if prod(tensor.sizes) == 1 and tensor.value is not None:
            entries.append(f"{role}:common:{attributes.number(float(tensor.value.reshape(-1)[0]))}")
        else:
            entries.append(f"{role}:{_mask(role, tensor, masks)}:{_type(tensor)}")
    return attributes.knob("attr-scales", entries)


def _mask(role: str, tensor: _Tensor, masks: Mapping[str, str]) -> str:
    """Return the mask of the dims along which the scales or zero points of a tensor differ."""
    return "common" if prod(tensor.sizes) == 1 else masks[role]


def _masks_of_product(descriptor: str) -> dict[str, str]:
    """Return the masks of MatMulInteger and QLinearMatMul: by row of src and dst, by column of the weights."""
    rank = descriptor.partition(":")[0].count("x") + 1
    return {"src": str(1 << rank - 2), "wei": "per_oc", "dst": str(1 << rank - 2)}


#: The masks of ConvInteger and QLinearConv, which have one for each output channel of weights only.
_MASKS_OF_CONV = dict.fromkeys(("src", "wei", "dst"), "per_oc")


def _conv_integer(op: _Operator) -> _Request:
    descriptor, knobs = _conv_of(op, op.tensor(0), op.tensor(1), "s32")
    return descriptor, knobs | _points({"src": op.optional(2), "wei": op.optional(3)}, _MASKS_OF_CONV)


def _matmul_integer(op: _Operator) -> _Request:
    descriptor, knobs = _product(op.tensor(0), op.tensor(1), "s32")
    return descriptor, knobs | _points({"src": op.optional(2), "wei": op.optional(3)}, _masks_of_product(descriptor))


def _quantised(op: _Operator, masks: Mapping[str, str]) -> dict[str, str]:
    """Return the knobs of the scales and zero points of x, w and y."""
    scales = {"src": op.tensor(1), "wei": op.tensor(4), "dst": op.tensor(6)}
    points = {"src": op.tensor(2), "wei": op.tensor(5), "dst": op.tensor(7)}
    return _scales(scales, masks) | _points(points, masks)


def _qlinear_conv(op: _Operator) -> _Request:
    if op.optional(8) is not None:
        raise Unsupported("given a QLinearConv with a bias, which is added before the scales", rule="onnx-bias")
    descriptor, knobs = _conv_of(op, op.tensor(0), op.tensor(3), _type(op.tensor(7)))
    return descriptor, knobs | _quantised(op, _MASKS_OF_CONV)


def _qlinear_matmul(op: _Operator) -> _Request:
    descriptor, knobs = _product(op.tensor(0), op.tensor(3), _type(op.tensor(7)))
    return descriptor, knobs | _quantised(op, _masks_of_product(descriptor))


_READERS: Mapping[str, tuple[str, Callable[[_Operator], _Request]]] = {
    "Conv": (CONV, _conv),
    "ConvTranspose": (DECONV, _conv_transpose),
    "ConvInteger": (CONV, _conv_integer),
    "QLinearConv": (CONV, _qlinear_conv),
    "Gemm": (MATMUL, _gemm),
    "MatMul": (MATMUL, _matmul),
    "MatMulInteger": (MATMUL, _matmul_integer),
    "QLinearMatMul": (MATMUL, _qlinear_matmul),
}
