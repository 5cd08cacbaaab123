"""Models of torch.export as requests: each operator by hand, what torch itself writes, and files that are damaged."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from convgen.ir.error import UserError
from convgen.problem import requests

HALF, FLOAT, BOOL = 6, 7, 12

Dims = tuple[int, ...]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dense(sizes: Dims, order: Sequence[int] | None = None) -> Dims:
    """The strides of sizes in memory order, the outermost dim first."""
    strides, step = [0] * len(sizes), 1
    for dim in reversed(order or range(len(sizes))):
        strides[dim], step = step, step * sizes[dim]
    return tuple(strides)


def tensor(sizes: Dims, strides: Dims | None = None, dtype: int = HALF) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "sizes": [{"as_int": size} for size in sizes],
        "strides": [{"as_int": stride} for stride in strides or dense(sizes)],
    }


def write(nodes: Sequence[Mapping[str, Any]], tensors: Mapping[str, Any], version: int = 8) -> None:
    graph = {"nodes": list(nodes), "tensor_values": dict(tensors)}
    program = {"schema_version": {"major": version, "minor": 0}, "graph_module": {"graph": graph}}
    with zipfile.ZipFile("m.pt2", "w") as archive:
        archive.writestr("m/models/model.json", json.dumps(program))


def node(target: str, arguments: Mapping[str, Any], result: str = "y", module: str = "net.it") -> dict[str, Any]:
    """A node; an argument is a tensor's name, numbers, or a number."""

    def value(given: Any) -> dict[str, Any]:
        if isinstance(given, str):
            return {"as_string": given[1:]} if given[0] == "=" else {"as_tensor": {"name": given}}
        if isinstance(given, bool):
            return {"as_bool": given}
        return (
            {"as_ints": given} if isinstance(given, list) else {"as_none": True} if given is None else {"as_int": given}
        )

    inputs = [{"name": name, "arg": value(given), "kind": 1} for name, given in arguments.items()]
    stack = f"L__self__,,net.Net;L__self___net_it,{module},torch.nn.Module" if module else ""
    return {
        "target": f"torch.ops.aten.{target}",
        "inputs": inputs,
        "outputs": [{"as_tensor": {"name": result}}],
        "metadata": {"nn_module_stack": stack} if stack else {},
        "name": "n1",
    }


def read(**knobs: str) -> tuple[requests.Request, ...]:
    return requests.read(Path("m.pt2"), knobs).requests


def told() -> list[str]:
    """The problem of each request, or the rule that refuses it, or what is wrong."""
    return [str(each.problem) if each.problem else getattr(each.error, "rule", str(each.error)) for each in read()]


X, W = tensor((2, 4, 9, 8)), tensor((6, 4, 3, 3))
NCHW = "--stag=abcd --wtag=abcd --dtag=abcd"
ROWS = "--stag=ab --wtag=ba --dtag=ab"
Q, KV = tensor((2, 8, 5, 16)), tensor((2, 8, 7, 16))

OPERATORS: dict[str, tuple[str, dict[str, Any], dict[str, Any], list[str]]] = {
    "plain": (
        "conv2d.default",
        {"input": "x", "weight": "w"},
        {"x": X, "w": W, "y": tensor((2, 6, 7, 6))},
        [f"--dir=FWD_D --dt=f16 {NCHW} mb2_ic4oc6_ih9oh7kh3ph0_iw8ow6kw3pw0"],
    ),
    "bias, strides, pads, dilation": (
        "conv2d.default",
        {"input": "x", "weight": "w", "bias": "b", "stride": [2, 1], "padding": [1, 0], "dilation": [1, 2]},
        {"x": X, "w": W, "b": tensor((6,)), "y": tensor((2, 6, 5, 4))},
        [f"--dir=FWD_D --bia-dt=f16 --dt=f16 {NCHW} mb2_ic4oc6_ih9oh5kh3sh2ph1_iw8ow4kw3dw1pw0"],
    ),
    "one number for all axes": (
        "convolution.default",
        {
            "input": "x",
            "weight": "w",
            "bias": None,
            "stride": [1],
            "padding": [1],
            "dilation": [1],
            "transposed": False,
        },
        {"x": X, "w": W, "y": tensor((2, 6, 9, 8))},
        [
            f"--dir=FWD_D --dt=f16 {NCHW} mb2_ic4oc6_ih9kh3ph1_iw8kw3pw1".replace("ih9", "ih9oh9").replace(
                "iw8", "iw8ow8"
            )
        ],
    ),
    "same": (
        "conv2d.padding",
        {"input": "x", "weight": "w", "padding": "=same"},
        {"x": X, "w": tensor((6, 4, 4, 3)), "y": tensor((2, 6, 9, 8))},
        [f"--dir=FWD_D --dt=f16 {NCHW} mb2_ic4oc6_ih9oh9kh4ph1_iw8ow8kw3pw1"],
    ),
    "channels last": (
        "conv2d.default",
        {"input": "x", "weight": "w"},
        {
            "x": tensor((2, 4, 9, 8), dense((2, 4, 9, 8), (0, 2, 3, 1))),
            "w": tensor((6, 4, 3, 3), dense((6, 4, 3, 3), (0, 2, 3, 1))),
            "y": tensor((2, 6, 7, 6), dense((2, 6, 7, 6), (0, 2, 3, 1))),
        },
        ["--dir=FWD_D --dt=f16 --stag=acdb --wtag=acdb --dtag=acdb mb2_ic4oc6_ih9oh7kh3ph0_iw8ow6kw3pw0"],
    ),
    "groups, channels last": (
        "conv1d.default",
        {"input": "x", "weight": "w", "groups": 2},
        {"x": tensor((1, 4, 9)), "w": tensor((6, 2, 3), dense((6, 2, 3), (0, 2, 1))), "y": tensor((1, 6, 7))},
        ["--dir=FWD_D --dt=f16 --stag=abc --wtag=abdc --dtag=abc g2mb1_ic4oc6_iw9ow7kw3pw0"],
    ),
    "transposed": (
        "conv_transpose2d.input",
        {"input": "x", "weight": "w", "stride": [2, 2], "padding": [1, 1], "output_padding": [1, 1]},
        {"x": tensor((1, 4, 5, 5)), "w": tensor((4, 6, 3, 3)), "y": tensor((1, 6, 10, 10))},
        ["--deconv --dir=FWD_D --dt=f16 --stag=abcd --wtag=bacd --dtag=abcd mb1_ic4oc6_ih5oh10kh3sh2ph1"],
    ),
    "linear": (
        "linear.default",
        {"input": "x", "weight": "w", "bias": "b"},
        {"x": tensor((2, 5, 16)), "w": tensor((8, 16)), "b": tensor((8,)), "y": tensor((2, 5, 8))},
        [f"--dt=f16 {ROWS} --bia-dt=f16 10x16:16x8"],
    ),
    "rows at unequal distances": (
        "linear.default",
        {"input": "x", "weight": "w", "bias": "b"},
        {"x": tensor((2, 5, 16), (80, 1, 5)), "w": tensor((8, 16)), "b": tensor((8,)), "y": tensor((2, 5, 8))},
        ["--dt=f16 --stag=acb --wtag=acb --dtag=abc --bia-dt=f16 --bia_mask=4 2x5x16:1x16x8"],
    ),
    "a slice": (
        "mm.default",
        {"self": "x", "mat2": "w"},
        {"x": tensor((10, 16), (48, 1)), "w": tensor((16, 8)), "y": tensor((10, 8))},
        ["--dt=f16 --strides=48x1:8x1:8x1 10x16:16x8"],
    ),
    "sum and product": (
        "addmm.default",
        {"self": "b", "mat1": "x", "mat2": "w"},
        {"b": tensor((8,)), "x": tensor((10, 16)), "w": tensor((16, 8)), "y": tensor((10, 8))},
        ["--dt=f16 --stag=ab --wtag=ab --dtag=ab --bia-dt=f16 10x16:16x8"],
    ),
    "sum with alpha": (
        "addmm.default",
        {"self": "b", "mat1": "x", "mat2": "w", "alpha": 2},
        {"b": tensor((8,)), "x": tensor((10, 16)), "w": tensor((16, 8)), "y": tensor((10, 8))},
        ["torch-gemm"],
    ),
    "batches": (
        "matmul.default",
        {"self": "x", "other": "w"},
        {"x": tensor((3, 10, 16)), "w": tensor((3, 16, 8)), "y": tensor((3, 10, 8))},
        ["--dt=f16 --stag=abc --wtag=abc --dtag=abc 3x10x16:3x16x8"],
    ),
    "a vector": (
        "matmul.default",
        {"self": "x", "other": "w"},
        {"x": tensor((10, 16)), "w": tensor((16,)), "y": tensor((10,))},
        ["torch-vector"],
    ),
    "attention, with a mask that is no factor": (
        "scaled_dot_product_attention.default",
        {"query": "q", "key": "k", "value": "k", "attn_mask": "m"},
        {"q": Q, "k": KV, "m": tensor((5, 7), dtype=BOOL), "y": Q},
        [
            "--dt=f16 --stag=abcd --wtag=abdc --dtag=abcd 2x8x5x16:2x8x16x7",
            "--dt=f16 --stag=abcd --wtag=abcd --dtag=abcd 2x8x5x7:2x8x7x16",
        ],
    ),
    "attention whose heads share keys": (
        "scaled_dot_product_attention.default",
        {"query": "q", "key": "k", "value": "k", "enable_gqa": True},
        {"q": Q, "k": tensor((2, 2, 7, 16)), "y": Q},
        [
            "--dt=f16 --stag=abcde --wtag=abced --dtag=abcde 2x2x4x5x16:2x2x1x16x7",
            "--dt=f16 --stag=abcde --wtag=abcde --dtag=abcde 2x2x4x5x7:2x2x1x7x16",
        ],
    ),
    "booleans": (
        "mm.default",
        {"self": "x", "mat2": "w"},
        {"x": tensor((10, 16), dtype=BOOL), "w": tensor((16, 8)), "y": tensor((10, 8))},
        ["types"],
    ),
    "sizes known at run time": (
        "mm.default",
        {"self": "x", "mat2": "w"},
        {"x": tensor((10, 16)) | {"sizes": [{"as_expr": {"expr_str": "s0"}}, {"as_int": 16}]}, "w": tensor((16, 8))},
        ["torch-shape"],
    ),
    "groups that do not divide": (
        "conv2d.default",
        {"input": "x", "weight": "w", "groups": 3},
        {"x": X, "w": W, "y": tensor((2, 6, 7, 6))},
        ["given 3 groups of net.it, wanted a divisor of its channels"],
    ),
    "another": ("relu.default", {"self": "x"}, {"x": X, "y": X}, []),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    target, arguments, tensors, wanted = OPERATORS[name]
    write([node(target, arguments)], {"y": tensor((10, 8)), **tensors})
    assert told() == wanted


def test_layers_are_modules_and_equal_ones_are_counted() -> None:
    arguments, tensors = {"self": "x", "mat2": "w"}, {"x": tensor((10, 16)), "w": tensor((16, 8)), "y": tensor((10, 8))}
    write([node("mm.default", arguments, module=module) for module in ("a.b", "a.c", "")], tensors)
    (request,) = read()
    assert (request.layers, request.count, request.where) == (("a.b", "a.c", "n1"), 3, "m.pt2:a.b")


def test_graphs_within_graphs_are_read() -> None:
    tensors = {"x": tensor((10, 16)), "w": tensor((16, 8)), "y": tensor((10, 8))}
    inner = {"nodes": [node("mm.default", {"self": "x", "mat2": "w"})], "tensor_values": tensors}
    outer = node("relu.default", {"self": "x"}) | {"target": "torch.ops.higher_order.cond"}
    outer["inputs"] = [{"name": "", "arg": {"as_graph": {"name": "true_graph_0", "graph": inner}}, "kind": 1}]
    write([outer], tensors)
    assert told() == ["--dt=f16 --stag=ab --wtag=ab --dtag=ab 10x16:16x8"]


def test_knobs_win_over_the_model() -> None:
    tensors = {"x": tensor((10, 16)), "w": tensor((16, 8)), "y": tensor((10, 8))}
    write([node("mm.default", {"self": "x", "mat2": "w"})], tensors)
    assert [str(each.problem) for each in read(dt="bf16")] == ["--dt=bf16 --stag=ab --wtag=ab --dtag=ab 10x16:16x8"]


def test_nothing_of_the_file_is_executed() -> None:
    """An archive of torch has pickled objects; they are not touched."""
    write([node("mm.default", {"self": "x", "mat2": "w"})], {"x": X, "w": W, "y": X})
    with zipfile.ZipFile("m.pt2", "a") as archive:
        archive.writestr("m/data/sample_inputs/model.pt", b"cos\nabort\n(tR.")
    assert len(told()) == 1


DAMAGED = [
    ({"nodes": 1}, "with a damaged graph (TypeError), wanted a model as torch.export.save writes it"),
    ({"nodes": [{}]}, "with a damaged graph (KeyError), wanted a model"),
    ({"nodes": [node("mm.default", {"self": "none", "mat2": "w"})]}, "with a damaged graph (KeyError), wanted a model"),
]


@pytest.mark.parametrize(("graph", "message"), DAMAGED)
def test_damaged_graphs(graph: dict[str, Any], message: str) -> None:
    write([], {})
    program = {"schema_version": {"major": 8}, "graph_module": {"graph": {"nodes": [], "tensor_values": {}, **graph}}}
    with zipfile.ZipFile("m.pt2", "w") as archive:
        archive.writestr("m/models/model.json", json.dumps(program))
    with pytest.raises(UserError) as refused:
        read()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_that_are_no_models() -> None:
    Path("m.pt2").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(UserError, match=r"^given 'm.pt2' that is no archive \(BadZipFile\), wanted a model as "):
        read()
    write([], {}, version=9)
    with pytest.raises(UserError, match=r"^given 'm.pt2' with a graph of version 9, wanted 8, as torch 2.8 and later "):
        read()
    with zipfile.ZipFile("m.pt2", "w") as archive:
        archive.writestr("version", "1")
    with pytest.raises(UserError, match=r"^given 'm.pt2' with 0 files models/NAME.json, wanted one, as torch 2.8 and "):
        read()
    with pytest.raises(UserError, match=r"^cannot read none.pt2: No such file or directory$"):
        requests.read(Path("none.pt2"), {})


def test_what_torch_writes() -> None:
    torch: Any = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.depthwise = torch.nn.Conv2d(8, 8, 3, padding="same", groups=8, bias=False)
            self.up = torch.nn.ConvTranspose2d(8, 8, 2, stride=2, bias=False)
            self.fc = torch.nn.Linear(8, 16)

        def forward(self, x: Any) -> Any:
            x = self.up(self.depthwise(self.stem(x))).permute(0, 2, 3, 1).reshape(1, 256, 8)
            heads = self.fc(x).view(1, 256, 2, 8).transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads) @ heads.mT

    with torch.device("meta"):
        net, image = Net().half().eval(), torch.empty(1, 3, 16, 16, dtype=torch.float16)
    torch.export.save(torch.export.export(net, (image,)), "m.pt2")
    assert [(each.layers, str(each.problem)) for each in read()] == [
        (("stem",), f"--dir=FWD_D --bia-dt=f16 --dt=f16 {NCHW} mb1_ic3oc8_ih16oh8kh3sh2ph1"),
        (("depthwise",), "--dir=FWD_D --dt=f16 --stag=abcd --wtag=abcde --dtag=abcd g8mb1_ic8oc8_ih8oh8kh3ph1"),
        (
            ("up",),
            "--deconv --dir=FWD_D --dt=f16 --stag=abcd --wtag=bacd --dtag=abcd mb1_ic8oc8_ih8oh16kh2sh2ph0",
        ),
        (("fc",), "--dt=f16 --stag=ba --wtag=ba --dtag=ab --bia-dt=f16 256x8:8x16"),
        (
            ("scaled_dot_product_attention.scores",),
            "--dt=f16 --stag=acbd --wtag=adbc --dtag=abcd 1x2x256x8:1x2x8x256",
        ),
        (
            ("scaled_dot_product_attention.values",),
            "--dt=f16 --stag=abcd --wtag=acbd --dtag=abcd 1x2x256x256:1x2x256x8",
        ),
        (("matmul",), "--dt=f16 --stag=abcd --wtag=adbc --dtag=abcd 1x2x256x8:1x2x8x256"),
    ]
