"""ONNX models as requests: sizes by hand, every operator that is read, open dims, and equal operators once."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convgen.commands import cli
from convgen.ir.error import UserError
from convgen.problem import requests

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

F, H, I8, U8, I32 = (getattr(TensorProto, name) for name in ("FLOAT", "FLOAT16", "INT8", "UINT8", "INT32"))

Inputs = Mapping[str, tuple[int, Sequence[int | str]]]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def constant(name: str, values: Any, dtype: str = "float32") -> Any:
    return numpy_helper.from_array(np.array(values, dtype), name)


def write(nodes: Sequence[Any], inputs: Inputs, constants: Sequence[Any] = ()) -> None:
    """A model in the file m.onnx, whose results are those of the nodes."""
    given = [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()]
    results = [helper.make_tensor_value_info(node.output[0], TensorProto.UNDEFINED, None) for node in nodes]
    for result in results:
        result.ClearField("type")
    graph = helper.make_graph(list(nodes), "g", given, results, list(constants))
    Path("m.onnx").write_bytes(helper.make_model(graph).SerializeToString())


def told(**knobs: str) -> list[str]:
    """The problem of each request, or the rule that refuses it, or what is wrong."""
    found = requests.read(Path("m.onnx"), knobs).requests
    return [str(each.problem) if each.problem else getattr(each.error, "rule", str(each.error)) for each in found]


def one(op: str, inputs: Inputs, constants: Sequence[Any] = (), **more: Any) -> str:
    names = more.pop("names", [*inputs, *(tensor.name for tensor in constants)])
    write([helper.make_node(op, names, ["y"], name="it", **more)], inputs, constants)
    (text,) = told()
    return text


IMAGE = {"x": (H, (2, 4, 9, 8)), "w": (H, (6, 4, 3, 3))}
NCHW = "--stag=abcd --wtag=abcd --dtag=abcd"
TRANSPOSED = "--stag=abcd --wtag=bacd --dtag=abcd"
GROUPED = "--stag=abcd --wtag=abcde --dtag=abcd"

CONVS: dict[str, tuple[Inputs, dict[str, Any], str]] = {
    "plain": (IMAGE, {}, f"--dir=FWD_D --dt=f16 {NCHW} mb2_ic4oc6_ih9oh7kh3ph0_iw8ow6kw3pw0"),
    "bias": (
        {**IMAGE, "b": (H, (6,))},
        {},
        f"--dir=FWD_D --bia-dt=f16 --dt=f16 {NCHW} mb2_ic4oc6_ih9oh7kh3ph0_iw8ow6kw3pw0",
    ),
    "strides and pads": (
        IMAGE,
        {"strides": [2, 1], "pads": [1, 0, 0, 2], "dilations": [1, 2]},
        f"--dir=FWD_D --dt=f16 {NCHW} mb2_ic4oc6_ih9oh4kh3sh2ph1_iw8ow6kw3dw1pw0",
    ),
    "same": (
        IMAGE,
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        f"--dir=FWD_D --dt=f16 {NCHW} mb2_ic4oc6_ih9oh5kh3sh2ph1_iw8ow4kw3sw2pw1",
    ),
    "same, upper": (
        IMAGE,
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        f"--dir=FWD_D --dt=f16 {NCHW} mb2_ic4oc6_ih9oh5kh3sh2ph1_iw8ow4kw3sw2pw0",
    ),
    "groups": (
        {"x": (F, (1, 4, 5, 5)), "w": (F, (4, 1, 3, 3))},
        {"group": 4, "pads": [1, 1, 1, 1]},
        f"--dir=FWD_D {GROUPED} g4mb1_ic4oc4_ih5oh5kh3ph1",
    ),
    "1-D": (
        {"x": (F, (1, 4, 9)), "w": (F, (6, 4, 3))},
        {},
        "--dir=FWD_D --stag=abc --wtag=abc --dtag=abc mb1_ic4oc6_iw9ow7kw3pw0",
    ),
    "other ranks": (
        {"x": (F, (1, 4, 9, 9)), "w": (F, (6, 4, 3))},
        {},
        "given x of 4 and w of 3 dimensions, wanted 3 to 5 of both",
    ),
}


@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name: str) -> None:
    inputs, more, wanted = CONVS[name]
    assert one("Conv", inputs, **more) == wanted


def test_transposed_convolutions_have_input_channels_first_in_weights() -> None:
    inputs = {"x": (F, (1, 6, 5, 5)), "w": (F, (6, 4, 3, 3))}
    text = one("ConvTranspose", inputs, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
    assert text == f"--deconv --dir=FWD_D {TRANSPOSED} mb1_ic6oc4_ih5oh10kh3sh2ph1"
    assert (
        one("ConvTranspose", inputs, strides=[2, 2], auto_pad="SAME_UPPER")
        == f"--deconv --dir=FWD_D {TRANSPOSED} mb1_ic6oc4_ih5oh10kh3sh2ph0"
    )
    assert (
        one("ConvTranspose", inputs, strides=[2, 2], output_shape=[9, 9])
        == f"--deconv --dir=FWD_D {TRANSPOSED} mb1_ic6oc4_ih5oh9kh3sh2ph1"
    )
    grouped = {"x": (F, (1, 6, 5, 5)), "w": (F, (6, 2, 3, 3))}
    tags = "--stag=abcd --wtag=acbde --dtag=abcd"
    assert one("ConvTranspose", grouped, group=2) == f"--deconv --dir=FWD_D {tags} g2mb1_ic6oc4_ih5oh7kh3ph0"
    biased = one("ConvTranspose", {**inputs, "b": (F, (4,))})
    assert biased == f"--deconv {TRANSPOSED} mb1_ic6oc4_ih5oh7kh3ph0"


def test_products() -> None:
    tags = "--stag=ab --wtag=ab --dtag=ab"
    assert one("MatMul", {"a": (H, (3, 5)), "b": (H, (5, 7))}) == f"--dt=f16 {tags} 3x5:5x7"
    assert one("MatMul", {"a": (H, (2, 3, 5)), "b": (H, (5, 7))}) == f"--dt=f16 {tags} 6x5:5x7"
    assert one("MatMul", {"a": (H, (5,)), "b": (H, (5, 7))}) == f"--dt=f16 {tags} 1x5:5x7"
    batch = tags.replace("ab", "abc")
    assert one("MatMul", {"a": (H, (2, 3, 5)), "b": (H, (2, 5, 7))}) == f"--dt=f16 {batch} 2x3x5:2x5x7"
    assert one("MatMul", {"a": (H, (3, 5)), "b": (H, (2, 5, 7))}) == f"--dt=f16 {batch} 1x3x5:2x5x7"


def test_gemm() -> None:
    inputs = {"a": (F, (5, 3)), "b": (F, (7, 5))}
    text = one("Gemm", {**inputs, "c": (F, (7,))}, transA=1, transB=1)
    assert text == "--stag=ba --wtag=ba --dtag=ab --bia-dt=f32 3x5:5x7"
    assert one("Gemm", {**inputs, "c": (F, (3, 1))}, transA=1, transB=1).endswith("--bia-dt=f32 --bia_mask=1 3x5:5x7")
    assert one("Gemm", inputs, transA=1, transB=1, alpha=0.5) == (
        "--stag=ba --wtag=ba --dtag=ab --attr-post-ops=linear:0.5 3x5:5x7"
    )
    assert one("Gemm", {**inputs, "c": (F, (7,))}, transA=1, transB=1, beta=2.0) == "onnx-gemm"


def test_integers() -> None:
    image = {"x": (U8, (1, 4, 9, 9))}
    weights = constant("w", np.ones((6, 4, 3, 3)), "int8")
    points = [constant("xz", 3, "uint8"), constant("wz", 0, "int8")]
    text = f"--dir=FWD_D --dt=u8:s8:s32 {NCHW} --attr-zero-points=src:common:3 mb1_ic4oc6_ih9oh7kh3ph0"
    assert one("ConvInteger", image, [weights, *points]) == text
    assert (
        one("MatMulInteger", {"a": (I8, (3, 5)), "b": (I8, (5, 7))})
        == "--dt=s8:s8:s32 --stag=ab --wtag=ab --dtag=ab 3x5:5x7"
    )
    product = "--dt=s8:s8:s32 --stag=ab --wtag=ab --dtag=ab --attr-zero-points"
    factors = {"a": (I8, (3, 5)), "b": (I8, (5, 7))}
    assert one("MatMulInteger", {**factors, "z": (I8, ())}) == f"{product}=src:common:s8 3x5:5x7"
    assert one("MatMulInteger", {**factors, "z": (I8, ()), "y": (I8, (7,))}) == (
        f"{product}=src:common:s8+wei:per_oc:s8 3x5:5x7"
    )


def test_rows_of_products_have_scales_and_zero_points_of_their_own() -> None:
    """As ONNX has it: one for each row of the first factor and of the result."""
    product = "--dt=s8:s8:s32 --stag=ab --wtag=ab --dtag=ab --attr-zero-points"
    factors = {"a": (I8, (3, 5)), "b": (I8, (5, 7))}
    assert one("MatMulInteger", {**factors, "z": (I8, (3,))}) == f"{product}=src:1:s8 3x5:5x7"
    names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    zeros = [constant("az", 0, "int8"), constant("bz", 0, "int8"), constant("yz", 0, "int8")]
    scales = [constant("as", [0.5, 1, 2]), constant("bs", [0.25] * 7), constant("ys", [1.0, 2, 4])]
    assert one("QLinearMatMul", factors, [*zeros, *scales], names=names) == (
        "--dt=s8 --stag=ab --wtag=ab --dtag=ab --attr-scales=src:1+wei:per_oc+dst:1 3x5:5x7"
    )


def test_quantised() -> None:
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    values = [constant("xs", 0.5), constant("xz", 3, "uint8"), constant("w", np.ones((6, 4, 3, 3)), "int8")]
    values += [
        constant("ws", [0.25] * 6),
        constant("wz", [0] * 6, "int8"),
        constant("ys", 2.0),
        constant("yz", 7, "uint8"),
    ]
    text = one("QLinearConv", {"x": (U8, (1, 4, 9, 9))}, values, names=names)
    assert text == (
        f"--dir=FWD_D --dt=u8:s8:u8 {NCHW} --attr-scales=src:common:0.5+wei:per_oc+dst:common:2"
        " --attr-zero-points=src:common:3+dst:common:7 mb1_ic4oc6_ih9oh7kh3ph0"
    )
    bias = constant("b", [1] * 6, "int32")
    assert one("QLinearConv", {"x": (U8, (1, 4, 9, 9))}, [*values, bias], names=[*names, "b"]) == "onnx-bias"


def test_open_dims_take_the_minibatch(capsys: pytest.CaptureFixture[str]) -> None:
    """Through the operators between, as onnx infers them."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["c"], name="second"),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("Gemm", ["d", "u"], ["e"], name="third"),
    ]
    constants = [
        constant("w", np.zeros((4, 3, 3, 3))),
        constant("v", np.zeros((2, 4, 1, 1))),
        constant("u", np.zeros((72, 5))),
    ]
    write(nodes, {"x": (F, ("N", 3, 6, 6))}, constants)
    assert told() == ["onnx-shape"] * 3
    assert told(mb="8") == [
        f"--dir=FWD_D {NCHW} mb8_ic3oc4_ih6oh6kh3ph1",
        f"--dir=FWD_D {NCHW} mb8_ic4oc2_ih6oh6kh1ph0",
        "--stag=ab --wtag=ab --dtag=ab 8x72:72x5",
    ]
    assert cli.main(["batch", "m.onnx", "--check", "--json"]) == 2
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (row["where"], row["status"], row["rule"]) == ("m.onnx:first", "unsupported", "onnx-shape")
    assert row["error"] == "unsupported: given x of Nx3x6x6, wanted sizes: --mb gives that of the first dimension"


def test_equal_operators_are_one_request(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [helper.make_node("MatMul", [f"a{n}", "b"], [f"a{n + 1}"], name=f"n{n}") for n in range(3)]
    write(nodes, {"a0": (F, (4, 4)), "b": (F, (4, 4))})
    (found,) = requests.read(Path("m.onnx"), {}).requests
    assert (found.count, found.where) == (3, "m.onnx:n0")
    assert cli.main(["batch", "m.onnx", "--check"]) == 0
    assert "4x4:4x4 (3 times)" in capsys.readouterr().out
    assert cli.main(["batch", "m.onnx", "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 3


def test_operators_within_branches() -> None:
    then = helper.make_graph(
        [helper.make_node("MatMul", ["a", "a"], ["t"])], "then", [], [helper.make_tensor_value_info("t", F, (4, 4))]
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["o"])], "else", [], [helper.make_tensor_value_info("o", F, (4, 4))]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    write([node], {"a": (F, (4, 4)), "c": (TensorProto.BOOL, ())})
    assert told() == ["--stag=ab --wtag=ab --dtag=ab 4x4:4x4"]


def test_what_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"", b"\x00\x01\x02", b"mb1ic4oc4ih4kh1\n", b"\xff" * 64):
        Path("m.onnx").write_bytes(content)
        with pytest.raises(UserError, match=r"^given 'm.onnx' (that onnx cannot read|without operators)"):
            told()
    with pytest.raises(UserError, match=r"^cannot read none.onnx: No such file or directory$"):
        requests.read(Path("none.onnx"), {})
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        UserError, match=r"^given m.onnx, wanted the package onnx to read it: pip install 'convgen\[onnx\]'$"
    ):
        told()


def test_types_that_are_not_read() -> None:
    assert one("MatMul", {"a": (TensorProto.INT64, (3, 5)), "b": (TensorProto.INT64, (5, 7))}) == "types"


WRONG: dict[str, tuple[str, Inputs, dict[str, Any], str]] = {
    "channels": ("Conv", {"x": (F, (1, 6, 9, 9)), "w": (F, (6, 4, 3, 3))}, {}, "6 input channels, weights for 4 of 6"),
    "no group": ("Conv", {"x": (F, (1, 4, 9, 9)), "w": (F, (6, 4, 3, 3))}, {"group": 0}, "and group 0"),
    "parts of groups": (
        "Conv",
        {"x": (F, (1, 4, 9, 9)), "w": (F, (5, 2, 3, 3))},
        {"group": 2},
        "of 5 outputs, and group 2",
    ),
    "channels of a gradient": (
        "ConvTranspose",
        {"x": (F, (1, 6, 5, 5)), "w": (F, (4, 4, 3, 3))},
        {},
        "6 input channels, weights for 4",
    ),
    "stride": ("Conv", IMAGE, {"strides": [0, 1]}, "given strides [0, 1], wanted 2 numbers from 1 on"),
    "one stride": ("Conv", IMAGE, {"strides": 2}, "given strides 2, wanted 2 numbers from 1 on"),
    "padding": ("Conv", IMAGE, {"auto_pad": "SAME"}, "given auto_pad SAME, wanted NOTSET"),
    "more of one axis": (
        "ConvTranspose",
        {"x": (F, (1, 6, 5, 5)), "w": (F, (6, 4, 3, 3))},
        {"output_padding": [1]},
        "wanted one number for each of 2 axes",
    ),
    "alpha": ("Gemm", {"a": (F, (3, 5)), "b": (F, (5, 7))}, {"alpha": "one"}, "given alpha one and beta 1.0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_operators_that_do_not_fit_their_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inference of shapes refuses some of them before, as models without shapes show."""
    op, inputs, more, wanted = WRONG[name]
    monkeypatch.setattr("onnx.shape_inference.infer_shapes", lambda model, **_: model)
    assert wanted in one(op, inputs, **more)


def test_operators_within_functions() -> None:
    body = [helper.make_node("MatMul", ["p", "q"], ["r"])]
    function = helper.make_function("own", "Twice", ["p", "q"], ["r"], body, [helper.make_opsetid("", 18)])
    result = helper.make_tensor_value_info("y", F, (3, 7))
    given = [helper.make_tensor_value_info("a", F, (3, 5)), helper.make_tensor_value_info("b", F, (5, 7))]
    graph = helper.make_graph([helper.make_node("Twice", ["a", "b"], ["y"], domain="own")], "g", given, [result])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=imports)
    Path("m.onnx").write_bytes(model.SerializeToString())
    assert told() == ["--stag=ab --wtag=ab --dtag=ab 3x5:5x7"]


def test_small_factors_are_kept() -> None:
    text = one("Gemm", {"a": (F, (3, 5)), "b": (F, (5, 7))}, alpha=1.25e-9)
    assert "linear:1.25e-09" in text or "linear:0.00000000125" in text
