"""Six models, as lists of their layers from published definitions (tests/data/models): all of them are supported."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from convgen.commands import cli
from convgen.problem.requests import Reader, Request, distinct

_FOLDER = Path(__file__).parents[1] / "data/models"
MODELS = sorted(path.stem for path in _FOLDER.iterdir())
TARGETS = ("gfx942", "gfx950", "xehpc", "sm_90a")

#: Layers of each model, and 1e9 multiply-accumulates where torchvision publishes them (`_ops` of its weights).
SIZES = {
    "convnext_tiny": (59, 4.46),
    "llama3_8b_block": (26, None),
    "mobilenet_v3_large": (64, 0.217),
    "resnet50": (54, 4.09),
    "sdxl_unet": (1074, None),
    "whisper_small": (267, None),
}


def layers(model: str) -> list[Request]:
    return distinct(Reader.of({}, None, None).file(_FOLDER / f"{model}.txt"))


def test_there_are_six() -> None:
    assert sorted(SIZES) == MODELS


@pytest.mark.parametrize("model", MODELS)
def test_the_lists_have_the_published_sizes(model: str) -> None:
    count, published = SIZES[model]
    assert sum(layer.count for layer in layers(model)) == count
    if published is not None:
        macs = sum(layer.count * layer.problem.macs for layer in layers(model) if layer.problem is not None)
        assert macs / 1e9 == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", MODELS)
def test_every_layer_is_supported(capsys: pytest.CaptureFixture[str], model: str, target: str) -> None:
    code = cli.main(["model", str(_FOLDER / f"{model}.txt"), "--check", "--json", "--target", target])
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [row for row in problems if row["status"] != "supported"] == []
    assert code == 0


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", MODELS)
def test_samples_of_every_layer_are_exact(capsys: pytest.CaptureFixture[str], model: str, target: str) -> None:
    jobs = ["--jobs", "1"] if "PYTEST_XDIST_WORKER" in os.environ else []  # pytest-xdist has a worker on each core
    words = ["model", str(_FOLDER / f"{model}.txt"), "--json", "--target", target, "--run-groups", "1", *jobs]
    code = cli.main(words)
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [row for row in problems if row["status"] != "passed"] == []
    assert code == 0


# ---------------------------------------------------------------- ResNet-50 by hand, as a model of ONNX


def bottlenecks() -> list[tuple[str, int, int, int, int, int]]:
    """The convolutions of Deep Residual Learning's table 1 with the stride in the window of 3 (v1.5): name, input size,
    input channels, output channels, window and stride.
    """
    rows = [("conv1", 224, 3, 64, 7, 2)]
    size, channels = 56, 64
    for stage, (count, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for block in range(count):
            stride = 2 if stage > 1 and not block else 1
            name = f"layer{stage}.{block}"
            rows += [
                (f"{name}.conv1", size, channels, width, 1, 1),
                (f"{name}.conv2", size, width, width, 3, stride),
                (f"{name}.conv3", size // stride, width, 4 * width, 1, 1),
            ]
            if not block:
                rows.append((f"{name}.downsample.0", size, channels, 4 * width, 1, stride))
            size, channels = size // stride, 4 * width
    return rows


def write_resnet(path: Path) -> None:
    """ResNet-50 as a model of ONNX in f16, each layer with an input of its own."""
    onnx: Any = pytest.importorskip("onnx")
    helper, half = onnx.helper, onnx.TensorProto.FLOAT16
    nodes, inputs = [], []

    def tensor(name: str, *dims: int) -> str:
        inputs.append(helper.make_tensor_value_info(name, half, dims))
        return name

    for name, size, ic, oc, window, stride in bottlenecks():
        given = [tensor(f"{name}.x", 1, ic, size, size), tensor(f"{name}.w", oc, ic, window, window)]
        pads = [window // 2] * 4
        nodes.append(helper.make_node("Conv", given, [f"{name}.y"], name=name, strides=[stride] * 2, pads=pads))
    given = [tensor("fc.x", 1, 2048), tensor("fc.w", 1000, 2048), tensor("fc.b", 1000)]
    nodes.append(helper.make_node("Gemm", given, ["fc.y"], name="fc", transB=1))
    results = [helper.make_empty_tensor_value_info(node.output[0]) for node in nodes]
    graph = helper.make_graph(nodes, "resnet50", inputs, results)
    path.write_bytes(helper.make_model(graph).SerializeToString())


def sizes(request: Request) -> str:
    """The sizes and the bias of a problem, without layouts."""
    return re.sub(r"--[swd]tag=\w+ ", "", request.text)


def test_the_list_of_resnet_is_its_paper(tmp_path: Path) -> None:
    write_resnet(tmp_path / "resnet50.onnx")
    model = distinct(Reader.of({}, None, None).file(tmp_path / "resnet50.onnx"))
    assert Counter({sizes(each): each.count for each in model}) == Counter(
        {sizes(each): each.count for each in layers("resnet50")}
    )
    (first,) = (each for each in model if "layer1.0.conv2" in each.layers)
    assert first.layers == ("layer1.0.conv2", "layer1.1.conv2", "layer1.2.conv2")
