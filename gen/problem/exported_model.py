"""The convolutions and matrix products of a model that torch.export saved (a file `*.pt2`).

The archive's `models/NAME.json` has the graph with sizes, types and strides of all tensors, as
torch/_export/serde/schema.py has it (major version 8). Only that text is read: no weights and no pickled objects, so
nothing of the file is executed, and PyTorch is not needed. Attention is read as its two products, without the softmax
between them.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from convgen.ir import untrusted
from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import frozen
from convgen.problem.model_nodes import Node, conv_descriptor
from convgen.problem.options import CONV, DECONV, MATMUL

_MAJOR = 8  #: version of the schema
_MOST_ARCHIVE = 1 << 40  #: bytes of a file, nearly all of which are weights
_MOST_GRAPH = 1 << 25  #: bytes of the graph's JSON; that of SDXL's UNet has 9 million
_GRAPH = re.compile(r"(.*/)?models/[^/]+\.json")

#: ScalarType of the schema -> ours
_TYPES = {
    1: "u8",
    2: "s8",
    4: "s32",
    6: "f16",
    7: "f32",
    8: "f64",
    13: "bf16",
    29: "f8_e4m3",
    30: "f8_e5m2",
    31: "f8_e4m3fnuz",
    32: "f8_e5m2fnuz",
}


@frozen
class _Tensor:
    """A tensor: sizes and strides in elements, and the type in our words."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def swapped(self) -> _Tensor:
        """Return the tensor with its last two dims exchanged."""
        sizes, strides = self.sizes, self.strides
        return _Tensor((*sizes[:-2], *sizes[:-3:-1]), (*strides[:-2], *strides[:-3:-1]), self.dtype)

    @property
    def rows(self) -> _Tensor | None:
        """Return the tensor as a matrix, its leading dims as rows; None if rows are not evenly apart in memory."""
        dims = [(size, stride) for size, stride in zip(self.sizes[:-1], self.strides) if size != 1]
        if any(outer[1] != inner[0] * inner[1] for outer, inner in pairwise(dims)):
            return None
        row = dims[-1][1] if dims else self.sizes[-1] * self.strides[-1]
        return _Tensor((prod(self.sizes[:-1]), self.sizes[-1]), (row, self.strides[-1]), self.dtype)

    def with_ndims(self, ndims: int) -> _Tensor:
        """Return the tensor with further leading dims of 1."""
        more = ndims - len(self.sizes)
        return _Tensor((1,) * more + self.sizes, (prod(self.sizes),) * more + self.strides, self.dtype)


@frozen
class _Operator:
    """A node of the graph: its name, its arguments as JSON by name, and the graph's tensors by name."""

    name: str
    arguments: Mapping[str, Any]
    output: str
    tensors: Mapping[str, Any]

    def argument(self, name: str, kind: str) -> Any:
        """Return the value of an argument of a kind of the schema, None if it is missing or of another kind."""
        return self.arguments.get(name, {}).get(kind)

    def optional(self, name: str) -> _Tensor | None:
        value = self.argument(name, "as_tensor")
        return None if value is None else _tensor(value["name"], self.tensors)

    def tensor(self, name: str) -> _Tensor:
        """Return an argument that is a tensor. Raises UserError if it is missing."""
        tensor = self.optional(name)
        if tensor is None:
            raise UserError(f"given {self.name} without {name}, wanted a tensor")
        return tensor

    @property
    def result(self) -> _Tensor:
        return _tensor(self.output, self.tensors)

    def numbers(self, name: str, count: int, default: int) -> list[int]:
        """Return one number for each axis; a list of one stands for all. Raises UserError."""
        values = self.argument(name, "as_ints") or [default]
        if len(values) not in (1, count) or not all(type(value) is int for value in values):
            raise UserError(f"given {name} of {self.name} as {untrusted.shown(values)}, wanted {count} numbers")
        return values * count if len(values) == 1 else list(values)

    @property
    def groups(self) -> int:
        """Return the groups of a convolution. Raises UserError for those that are no number from 1."""
        groups = self.arguments.get("groups", {"as_int": 1}).get("as_int")
        if type(groups) is not int or groups < 1:
            raise UserError(f"given {untrusted.shown(groups)} groups of {self.name}, wanted a number from 1")
        return groups


_Request = tuple[str, dict[str, str]]


def nodes(path: Path) -> Iterator[Node]:
    """Yield the convolutions and products of an exported model, in order; a layer's name is its module's.

    Raises UserError for a file that is no such model.
    """
    wanted = "wanted a model as torch.export.save writes it, with models/NAME.json"
    try:
        program = _program(path)
        version = program["schema_version"]["major"]
        if version != _MAJOR:
            given = f"given {str(path)!r} with a graph of version {untrusted.shown(version)}"
            raise UserError(f"{given}, wanted {_MAJOR}, as torch 2.8 and later write")
        yield from _of_graph(program["graph_module"]["graph"])
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError(f"given {str(path)!r} that is no archive ({type(error).__name__}), {wanted}") from None
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"given {str(path)!r} with a damaged graph ({type(error).__name__}), {wanted}") from None


def _program(path: Path) -> Any:
    """Return the exported program in an archive, as JSON. Raises UserError and what zipfile and json raise."""
    with untrusted.opened(path, "a model", _MOST_ARCHIVE) as file, zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if _GRAPH.fullmatch(name)]
        if len(names) != 1:
            given = f"given {str(path)!r} with {len(names)} files models/NAME.json"
            raise UserError(f"{given}, wanted one, as torch 2.8 and later write")
        with archive.open(names[0]) as member:
            text = member.read(_MOST_GRAPH + 1)
    if len(text) > _MOST_GRAPH:
        raise UserError(f"given {str(path)!r} with a graph of more than {_MOST_GRAPH >> 20} MiB, wanted a smaller one")
    return json.loads(text)


def _of_graph(graph: Any) -> Iterator[Node]:
    """Yield the operators of a graph and of those within its nodes."""
    for number, node in enumerate(graph["nodes"]):
        for argument in node["inputs"]:
            if "as_graph" in argument["arg"]:
                yield from _of_graph(argument["arg"]["as_graph"]["graph"])
        operator = node["target"].removeprefix("torch.ops.aten.").partition(".")[0]
        if node["target"].startswith("torch.ops.aten.") and operator in _READERS:
            name = _name(node, number)
            op = _operator(node, name, graph["tensor_values"])
            driver, read = _TRANSPOSED if op.argument("transposed", "as_bool") else _READERS[operator]
            try:
                requests = read(op)
            except (UserError, Unsupported) as error:
                yield Node(name, f"{operator} {name}", {}, driver, error)
                continue
            for suffix, (descriptor, knobs) in requests.items():
                yield Node(name + suffix, descriptor, knobs, driver)


def _name(node: Any, number: int) -> str:
    """Return the path of the innermost module that a node belongs to, else the node's own name."""
    stack = node["metadata"].get("nn_module_stack", "")
    paths = [fields[1] for entry in stack.split(";") if len(fields := entry.split(",")) > 2 and fields[1]]
    name = paths[-1] if paths else node.get("name") or f"node_{number}"
    return untrusted.shown("".join(name.split()), 200)


def _operator(node: Any, name: str, tensors: Any) -> _Operator:
    """Return a node with its tensors. Raises LookupError or TypeError where damaged."""
    arguments = {argument["name"]: dict(argument["arg"]) for argument in node["inputs"]}
    return _Operator(name, arguments, node["outputs"][0]["as_tensor"]["name"], tensors)


def _tensor(name: str, tensors: Any) -> _Tensor:
    """Return a tensor of the graph. Raises Unsupported for sizes that are not known and for types that are not ours."""
    meta = tensors[name]
    texts = [str(size["as_int"] if "as_int" in size else size["as_expr"]["expr_str"]) for size in meta["sizes"]]
    if not all("as_int" in number for number in (*meta["sizes"], *meta["strides"])):
        given = f"given {untrusted.shown(name)} of {untrusted.shown('x'.join(texts))}"
        raise Unsupported(f"{given}, wanted sizes: export the model with those of the input", rule="torch-shape")
    if meta["dtype"] not in _TYPES:
        given = f"given {untrusted.shown(name)} of ScalarType {untrusted.shown(meta['dtype'])}"
        raise Unsupported(f"{given}, wanted one of {', '.join(_TYPES.values())}", rule="types")
    sizes, strides = (tuple(number["as_int"] for number in meta[key]) for key in ("sizes", "strides"))
    if len(sizes) != len(strides) or not all(type(n) is int and n >= 0 for n in (*sizes, *strides)):
        raise UserError(f"given {untrusted.shown(name)} of damaged sizes, wanted integers from 0")
    return _Tensor(sizes, strides, _TYPES[meta["dtype"]])


# ---------------------------------------------------------------- layouts


def _by_x(numbers: Sequence[int]) -> str:
    """Return numbers as text, joined by x."""
    return "x".join(map(str, numbers))


def _tag(tensor: _Tensor) -> str:
    """Return the tag of a tensor without gaps, empty for one with gaps."""
    size, order = 1, sorted(range(len(tensor.sizes)), key=lambda dim: (-tensor.strides[dim], dim))
    dense = [dim for dim in order if tensor.sizes[dim] != 1]
    for dim in reversed(dense):
        if tensor.strides[dim] != size:
            return ""
        size *= tensor.sizes[dim]
    if dense == sorted(dense):
        order.sort()
    return "".join("abcdefghijkl"[dim] for dim in order)


def _layouts(src: _Tensor, wei: _Tensor, dst: _Tensor) -> dict[str, str]:
    """Return the knobs of types and layouts: tags, or strides if a tensor has gaps."""
    tensors = src, wei, dst
    knobs = {"dt": ":".join(tensor.dtype for tensor in tensors)}
    tags = {name: _tag(tensor) for name, tensor in zip(("stag", "wtag", "dtag"), tensors)}
    if all(tags.values()):
        return knobs | tags
    return knobs | {"strides": ":".join(_by_x(tensor.strides) for tensor in tensors)}


def _split_by_groups(wei: _Tensor, groups: int) -> _Tensor:
    """Return weights of a convolution with the dim of groups split off the first one."""
    if groups == 1:
        return wei
    (first, *sizes), (stride, *strides) = wei.sizes, wei.strides
    return _Tensor((groups, first // groups, *sizes), (first // groups * stride, stride, *strides), wei.dtype)


# ---------------------------------------------------------------- operators


def _conv(op: _Operator) -> dict[str, _Request]:
    """Return a convolution."""
    src, wei, dst = op.tensor("input"), op.tensor("weight"), op.result
    count = _axes(op, src, wei, dst)
    strides, dilations = (op.numbers(name, count, 1) for name in ("stride", "dilation"))
    pads = _pads(op, wei.sizes[2:], dilations)
    axes = list(zip(src.sizes[2:], dst.sizes[2:], wei.sizes[2:], strides, pads, dilations))
    knobs = {"dir": "FWD_D", **_layouts(src, _split_by_groups(wei, op.groups), dst), **_bias(op)}
    return {"": (conv_descriptor(op.groups, src.sizes[0], src.sizes[1], wei.sizes[0], axes), knobs)}


def _axes(op: _Operator, src: _Tensor, wei: _Tensor, dst: _Tensor) -> int:
    """Return the number of axes of a convolution; UserError for other ranks, or groups that do not divide channels."""
    count = len(src.sizes) - 2
    if {len(wei.sizes), len(dst.sizes)} != {count + 2} or not 1 <= count <= 3:
        raise UserError(
            f"given {op.name} of {_by_x(src.sizes)} by {_by_x(wei.sizes)}, wanted 3 to 5 dimensions of both"
        )
    if src.sizes[1] % op.groups or wei.sizes[0] % op.groups:
        raise UserError(f"given {op.groups} groups of {op.name}, wanted a divisor of its channels")
    return count


def _pads(op: _Operator, windows: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """Return the padding before each axis: `same` pads a window's extent less 1, the smaller half before."""
    match op.argument("padding", "as_string"):
        case "valid":
            return [0] * len(windows)
        case "same":
            return [(k - 1) * d // 2 for k, d in zip(windows, dilations)]
    return op.numbers("padding", len(windows), 0)


def _conv_transpose(op: _Operator) -> dict[str, _Request]:
    """Return a transposed convolution, whose weights have the input channels first."""
    src, wei, dst = op.tensor("input"), op.tensor("weight"), op.result
    count = _axes(op, src, wei, dst)
    strides, dilations, pads = (
        op.numbers(name, count, default) for name, default in (("stride", 1), ("dilation", 1), ("padding", 0))
    )
    axes = list(zip(src.sizes[2:], dst.sizes[2:], wei.sizes[2:], strides, pads, dilations))
    weights = _swapped(_split_by_groups(wei, op.groups), int(op.groups > 1))
    knobs = {"dir": "FWD_D", **_layouts(src, weights, dst), **_bias(op)}
    return {"": (conv_descriptor(op.groups, src.sizes[0], src.sizes[1], dst.sizes[1], axes), knobs)}


def _swapped(tensor: _Tensor, first: int) -> _Tensor:
    """Return a tensor with dims `first` and `first` + 1 exchanged."""

    def swap(sizes: tuple[int, ...]) -> tuple[int, ...]:
        return *sizes[:first], sizes[first + 1], sizes[first], *sizes[first + 2 :]

    return _Tensor(swap(tensor.sizes), swap(tensor.strides), tensor.dtype)


def _bias(op: _Operator) -> dict[str, str]:
    bias = op.optional("bias")
    return {} if bias is None else {"bia-dt": bias.dtype}


def _linear(op: _Operator) -> dict[str, _Request]:
    """Return the product of all leading dims of the input by the transposed weights."""
    wei = op.tensor("weight")
    if len(wei.sizes) != 2:
        raise UserError(f"given weights of {op.name} of {_by_x(wei.sizes)}, wanted 2 dimensions")
    descriptor, knobs = _by_matrix(op.tensor("input"), wei.swapped, op.result)
    bias = _bias(op)
    return {"": (descriptor, knobs | bias | ({"bia_mask": str(1 << descriptor.count("x") // 2)} if bias else {}))}


def _matmul(op: _Operator) -> dict[str, _Request]:
    """Return a product by numpy's rules: leading dims are the batch, or rows if the second factor is a matrix."""
    names = next((pair for pair in _FACTORS if {*pair} <= {*op.arguments}), _FACTORS[0])
    src, wei = (op.tensor(name) for name in names)
    if len(src.sizes) < 2 or len(wei.sizes) < 2:
        given = f"given {op.name} of {_by_x(src.sizes)} by {_by_x(wei.sizes)}"
        raise Unsupported(f"{given}, wanted matrices", rule="torch-vector")
    return {"": (_by_matrix if len(wei.sizes) == 2 else _product)(src, wei, op.result)}


#: Names of the factors of matmul, of addmm, of baddbmm, and of mm and bmm.
_FACTORS = (("self", "other"), ("mat1", "mat2"), ("batch1", "batch2"), ("self", "mat2"))


def _by_matrix(src: _Tensor, wei: _Tensor, dst: _Tensor) -> _Request:
    """Return the product by a matrix; leading dims are rows, or the batch if rows are not evenly apart in memory."""
    rows, results = src.rows, dst.rows
    return _product(src, wei, dst) if rows is None or results is None else _product(rows, wei, results)


def _product_and_sum(op: _Operator) -> dict[str, _Request]:
    """Return `beta * self + alpha * product` as a product with a bias."""
    factors = (number for name in ("alpha", "beta") for number in op.arguments.get(name, {}).values())
    if any(number != 1 for number in factors):
        raise Unsupported(f"given {op.name} with alpha or beta, wanted 1 of both", rule="torch-gemm")
    bias, ((descriptor, knobs),) = op.tensor("self"), _matmul(op).values()
    sizes = (1,) * (len(op.result.sizes) - len(bias.sizes)) + bias.sizes
    mask = sum(1 << dim for dim, size in enumerate(sizes) if size != 1)
    return {"": (descriptor, knobs | {"bia-dt": bias.dtype, "bia_mask": str(mask)})}


def _attention(op: _Operator) -> dict[str, _Request]:
    """Return the products of attention: scores = query x keys, transposed, and scores x values.

    Where several heads of queries share keys, these heads are a dim of their own, along which keys are broadcast.
    """
    query, key, value, result = (*(op.tensor(name) for name in ("query", "key", "value")), op.result)
    if op.argument("enable_gqa", "as_bool"):
        query, key, value, result = _shared_heads(op, query, key, value, result)
    shape = (*query.sizes[:-1], key.sizes[-2])
    scores = _Tensor(shape, tuple(prod(shape[dim + 1 :]) for dim in range(len(shape))), query.dtype)
    return {".scores": _product(query, key.swapped, scores), ".values": _product(scores, value, result)}


def _shared_heads(op: _Operator, query: _Tensor, key: _Tensor, value: _Tensor, result: _Tensor) -> tuple[_Tensor, ...]:
    """Return query, key, value and result of grouped-query attention with a dim of the queries that share a key."""
    heads, keys = query.sizes[-3], key.sizes[-3]
    if not keys or heads % keys:
        raise UserError(f"given {heads} heads of queries and {keys} of keys in {op.name}, wanted a multiple")

    def split(tensor: _Tensor, share: int) -> _Tensor:
        sizes, strides = tensor.sizes, tensor.strides
        inner = (sizes[-3] // share, share, *sizes[-2:]), (share * strides[-3], *strides[-3:])
        return _Tensor((*sizes[:-3], *inner[0]), (*strides[:-3], *inner[1]), tensor.dtype)

    share = heads // keys
    return split(query, share), split(key, 1), split(value, 1), split(result, share)


def _product(src: _Tensor, wei: _Tensor, dst: _Tensor) -> _Request:
    """Return a product of matrices, or of batches of them. Raises UserError for a K that differs."""
    if src.sizes[-1] != wei.sizes[-2]:
        raise UserError(f"given K of {src.sizes[-1]} and of {wei.sizes[-2]}, wanted as much of both")
    ndims = max(len(each.sizes) for each in (src, wei, dst))
    src, wei, dst = (each.with_ndims(ndims) for each in (src, wei, dst))
    return f"{_by_x(src.sizes)}:{_by_x(wei.sizes)}", _layouts(src, wei, dst)


_TRANSPOSED = DECONV, _conv_transpose
_READERS: Mapping[str, tuple[str, Callable[[_Operator], dict[str, _Request]]]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), (CONV, _conv)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _TRANSPOSED),
    "linear": (MATMUL, _linear),
    **dict.fromkeys(("matmul", "mm", "bmm"), (MATMUL, _matmul)),
    **dict.fromkeys(("addmm", "baddbmm"), (MATMUL, _product_and_sum)),
    "scaled_dot_product_attention": (MATMUL, _attention),
}
