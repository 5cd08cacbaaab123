"""`convgen.torch` without a GPU: a fake launch checks tensors against the launch record, and computes with torch.

The problems are compiled for sm_90a, so that what convgen refuses is refused here.
"""

from __future__ import annotations

import copy
import ctypes
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import convgen as cg
from convgen import driver
from convgen.backends.library import DeviceError
from convgen.device import frameworks
from convgen.ir.error import Unsupported
from convgen.ir.record import evolve
from convgen.problem.conv import Conv, Direction
from convgen.problem.deconv import Deconv
from convgen.problem.matmul import Matmul, Problem
from convgen.registry import key_of, read_named
from convgen.run.code import Code

torch: Any = pytest.importorskip("torch")
kernel_calls: Any = pytest.importorskip("convgen.torch.kernel_calls")  # behind torch
layer_problems: Any = pytest.importorskip("convgen.torch.layer_problems")
ConvRequest, ProductRequest, Window = (
    getattr(layer_problems, name) for name in ("ConvRequest", "ProductRequest", "Window")
)
nn, F = torch.nn, torch.nn.functional
TorchDispatchMode: Any = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode
ops = torch.ops.convgen

ROOT = Path(__file__).parents[2]
TARGET = "sm_90a"


class FakeGpu:
    """Codes that were loaded and problems that were launched, with tensors in place of device memory."""

    def __init__(self) -> None:
        self.launched: list[Problem] = []
        self.codes: dict[str, Code] = {}
        self.simulates = False

    def load(self, problem: Problem, target: str, device: Any) -> Any:
        assert target == TARGET
        assert str(problem) not in self.codes, "compiled twice"
        self.codes[str(problem)] = driver.compile(driver.build(problem, target))
        return SimpleNamespace(code=self.codes[str(problem)])

    def launch(self, loaded: Any, tensors: Mapping[str, Any]) -> None:
        code, problem = loaded.code, loaded.code.problem
        self.launched.append(problem)
        names = {spec.name for spec in (*problem.inputs, *problem.outputs)}
        assert set(tensors) == names
        for name, tensor in tensors.items():
            check_place(name, as_stored(problem, name, tensor), code)
        compute(problem, tensors) if not self.simulates else simulate(code, tensors)


def as_stored(problem: Problem, name: str, tensor: Any) -> Any:
    """Return a view of a tensor with the dimensions that convgen gives it: groups of weights, rows of a bias."""
    if isinstance(problem, Matmul) and name == "bia":
        return tensor.unsqueeze(0)
    if isinstance(problem, Conv) and name.endswith("wei"):
        stored = tensor.unflatten(0, (problem.groups, -1)) if problem.has_groups else tensor
        first = int(problem.has_groups)
        return stored.transpose(first, first + 1) if isinstance(problem, Deconv) else stored
    return tensor


def check_place(name: str, tensor: Any, code: Code) -> None:
    """Check the sizes, the type and the strides of a tensor against the launch record."""
    stored = code.record.buffers[name].tensor
    assert tuple(tensor.shape) == stored.dims, name
    assert str(tensor.dtype) == f"torch.{frameworks._TORCH[stored.dtype]}", name
    strides = zip(tensor.shape, tensor.stride(), stored.layout.strides(), strict=True)
    assert all(ours == wanted for size, ours, wanted in strides if size > 1), (name, tensor.stride(), stored.tag)


def compute(problem: Problem, tensors: Mapping[str, Any]) -> None:
    """Write the outputs of a problem as torch computes them in f32."""
    wide = {name: tensor.float() for name, tensor in tensors.items()}
    if isinstance(problem, Matmul):
        tensors["dst"].copy_(wide["src"] @ wide["wei"] + wide.get("bia", 0.0))
        return
    axes = problem.spatial
    where = [a.s for a in axes], [a.p for a in axes], [a.d + 1 for a in axes]
    is_transposed = isinstance(problem, Deconv)
    more = [a.o - Deconv.output_size(a) if is_transposed else 0 for a in axes]
    if problem.direction.is_forward:
        window = *where, is_transposed, more, problem.groups
        tensors["dst"].copy_(torch.convolution(wide["src"], wide["wei"], wide.get("bia"), *window))
        return
    x = wide.get("src", torch.zeros(problem.src_dims))
    channels = (problem.ic, problem.oc) if is_transposed else (problem.oc, problem.ic)
    w = wide.get("wei", torch.zeros(channels[0], channels[1] // problem.groups, *(a.k for a in axes)))
    rest = [problem.oc], *where, is_transposed, more, problem.groups, [True] * 3
    results = torch.ops.aten.convolution_backward(wide["diff_dst"], x, w, *rest)
    for name, result in zip(("diff_src", "diff_wei", "diff_bia"), results):
        if name in tensors:
            tensors[name].copy_(result)


def simulate(code: Code, tensors: Mapping[str, Any]) -> None:
    """Write the outputs of a problem as the simulator computes them from the code object."""
    problem = code.problem
    assert problem is not None
    given = {s.name: as_stored(problem, s.name, tensors[s.name]).detach().numpy() for s in problem.inputs}
    results = cg.simulate(code, **given)
    named = results if isinstance(results, dict) else {problem.outputs[0].name: results}
    for name, result in named.items():
        as_stored(problem, name, tensors[name]).copy_(torch.from_numpy(result))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A fake GPU for tensors of the host; nothing was compiled or counted."""
    fake = FakeGpu()
    monkeypatch.setattr(kernel_calls, "target_of", lambda device: TARGET)
    monkeypatch.setattr(kernel_calls, "loaded", fake.load)
    monkeypatch.setattr(kernel_calls, "launch", fake.launch)
    monkeypatch.setattr(kernel_calls, "capturing", lambda: False)
    return fake


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    kernel_calls._kernels.clear()
    kernel_calls._plans.clear()
    kernel_calls.calls.clear()
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


def integers(*shape: int, dtype: Any = torch.float16) -> Any:
    return torch.randint(-2, 3, shape).to(dtype)


def channels_last(tensor: Any) -> Any:
    """Return a tensor whose channels are contiguous in memory."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


def same(ours: Any, wanted: Any) -> None:
    torch.testing.assert_close(ours.float(), wanted.float(), rtol=4e-3, atol=4e-3)


#: spatial sizes, taps, words of a convolution
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1-D": ((9,), (3,), {"padding": 1}),
    "1-D dilated": ((9,), (3,), {"padding": 2, "dilation": 2}),
    "2-D": ((6, 5), (3, 3), {"padding": 1}),
    "2-D strided": ((6, 7), (3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    "2-D grouped": ((5, 5), (3, 3), {"groups": 2}),
    "2-D depthwise": ((5, 5), (3, 3), {"groups": 16, "padding": 1}),
    "2-D 1 x 1": ((4, 4), (1, 1), {}),
    "3-D": ((3, 4, 4), (2, 2, 2), {"stride": 2}),
    "1-D transposed": ((5,), (4,), {"stride": 2, "padding": 1}),
    "2-D transposed": ((4, 5), (3, 2), {"stride": (2, 1), "padding": (1, 0), "output_padding": (1, 0)}),
    "2-D transposed grouped": ((4, 3), (3, 3), {"stride": 2, "groups": 2, "dilation": 2, "output_padding": 1}),
    "2-D transposed depthwise": ((4, 3), (2, 2), {"stride": 2, "groups": 16}),
    "2-D transposed 1 x 1": ((4, 4), (1, 1), {}),
    "3-D transposed": ((2, 3, 3), (2, 2, 2), {"stride": 2}),
}


def layer_of(name: str, dtype: Any, *, bias: bool) -> tuple[Any, Any]:
    """Return an input and a module of torch for a row of `LAYERS`."""
    sizes, taps, words = LAYERS[name]
    transposed = "Transpose" if "transposed" in name else ""
    kind = getattr(nn, f"Conv{transposed}{len(sizes)}d")
    return integers(2, 16, *sizes, dtype=dtype), kind(16, 16, taps, bias=bias, **words).to(dtype)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_convolutions_and_gradients_agree_with_torch(name: str, last: bool, bias: bool, gpu: FakeGpu) -> None:
    dtype = torch.bfloat16 if bias else torch.float16
    x, theirs = layer_of(name, dtype, bias=bias)
    if last:
        x, theirs.weight.data = channels_last(x), channels_last(theirs.weight.data)
    ours, wide = cg.torch.replace(copy.deepcopy(theirs)), copy.deepcopy(theirs).float()
    x_ours, x_wide = x.clone().requires_grad_(), x.float().requires_grad_()
    y, wanted = ours(x_ours), wide(x_wide)
    same_bf16 = {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(y.float(), wanted, **same_bf16)
    if y.dim() == 4:  # torch has no such format in 1-D, and none on the host in 3-D
        assert y.stride() == theirs(x).stride()
    gradient = integers(*y.shape, dtype=dtype)
    y.backward(channels_last(gradient) if last else gradient)
    wanted.backward(gradient.float())
    for result, right in zip((x_ours, *ours.parameters()), (x_wide, *wide.parameters()), strict=True):
        torch.testing.assert_close(result.grad.float(), right.grad, **same_bf16)
    assert ours.weight.grad.stride() == ours.weight.stride()
    assert all(isinstance(problem, Deconv) is ("transposed" in name) for problem in gpu.launched)
    directions = [problem.direction for problem in gpu.launched if isinstance(problem, Conv)]
    forward, backward = (Direction.FWD_B, Direction.BWD_WB) if bias else (Direction.FWD_D, Direction.BWD_W)
    assert directions == [forward, Direction.BWD_D, backward]


@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers_and_gradients_agree_with_torch(bias: bool, gpu: FakeGpu) -> None:
    theirs = nn.Linear(24, 40, bias=bias).half()
    ours, wide = cg.torch.replace(copy.deepcopy(theirs)), copy.deepcopy(theirs).float()
    x = integers(2, 3, 24).requires_grad_()
    x_wide = x.detach().float().requires_grad_()
    y, wanted = ours(x), wide(x_wide)
    same(y, wanted)
    gradient = integers(*y.shape)
    y.backward(gradient)
    wanted.backward(gradient.float())
    for result, right in zip((x, *ours.parameters()), (x_wide, *wide.parameters()), strict=True):
        torch.testing.assert_close(result.grad.float(), right.grad, rtol=1e-2, atol=1e-2)
    assert [problem.descriptor for problem in gpu.launched] == ["6x24:24x40", "6x40:40x24", "40x6:6x24"]


def test_code_of_a_simulated_gpu_computes_what_torch_does(gpu: FakeGpu) -> None:
    """The names and strides of tensors are those of the code object: integers come out exactly."""
    gpu.simulates = True
    x, conv, linear = integers(2, 16, 6, 6), nn.Conv2d(16, 24, 3, padding=1, groups=2), nn.Linear(24, 16)
    model = nn.Sequential(conv, nn.Flatten(2), nn.Identity()).half()
    for parameter in (*conv.parameters(), *linear.half().parameters()):
        parameter.data = integers(*parameter.shape)
    x, wide = channels_last(x).requires_grad_(), copy.deepcopy(nn.ModuleList((model, linear))).float()
    cg.torch.replace(nn.ModuleList((model, linear)))
    y = linear(model(x).transpose(1, 2))
    x_wide = x.detach().float().requires_grad_()
    wanted = wide[1](wide[0](x_wide).transpose(1, 2))
    gradient = integers(*y.shape)
    y.backward(gradient)
    wanted.backward(gradient.float())
    assert torch.equal(y, wanted.half())
    assert torch.equal(conv.weight.grad, wide[0][0].weight.grad.half())
    assert torch.equal(conv.bias.grad, wide[0][0].bias.grad.half())
    assert torch.equal(linear.weight.grad, wide[1].weight.grad.half())
    assert torch.equal(x.grad, x_wide.grad.half())
    assert len(gpu.launched) == 6


def test_code_of_a_simulated_gpu_computes_transposed_convolutions(gpu: FakeGpu) -> None:
    gpu.simulates = True
    up = nn.ConvTranspose2d(16, 24, 3, stride=2, padding=1, groups=2, output_padding=1).half()
    for parameter in up.parameters():
        parameter.data = integers(*parameter.shape)
    wide, x = copy.deepcopy(up).float(), channels_last(integers(2, 16, 4, 5)).requires_grad_()
    cg.torch.replace(nn.ModuleList((up,)))
    x_wide = x.detach().float().requires_grad_()
    for output_size in (None, [8, 10], [7, 9]):  # the layer's padding behind the output, as much, and none
        y, wanted = up(x, output_size), wide(x_wide, output_size)
        assert torch.equal(y, wanted.half())
    gradient = integers(*y.shape)
    y.backward(gradient)
    wanted.backward(gradient.float())
    assert torch.equal(up.weight.grad, wide.weight.grad.half())
    assert torch.equal(up.bias.grad, wide.bias.grad.half())
    assert torch.equal(x.grad, x_wide.grad.half())
    assert len(gpu.launched) == 5


def test_transposed_convolutions_as_functions(gpu: FakeGpu) -> None:
    x, w = integers(8, 5, 4), integers(8, 6, 3, 3)
    where: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1, "dilation": 2}
    same(cg.torch.conv_transpose2d(x, w, **where), F.conv_transpose2d(x.float(), w.float(), **where))
    double = cg.torch.conv_transpose2d(x.double(), w.double(), **where)
    assert torch.equal(double, F.conv_transpose2d(x.double(), w.double(), **where))  # by torch


def test_strides_without_a_format_are_made_channels_last(gpu: FakeGpu) -> None:
    x, w = integers(2, 32, 6, 12)[:, ::2, :, ::2], integers(16, 16, 3, 3)
    same(cg.torch.conv2d(x, w), F.conv2d(x.float(), w.float()))
    (problem,) = gpu.launched
    assert [spec.layout.tag for spec in problem.inputs] == ["acdb", "abcd"]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
def test_padding_words_and_modes(gpu: FakeGpu) -> None:
    x = integers(1, 16, 6, 6)
    for words in ({"padding": "same"}, {"padding": "valid"}, {"padding": 1, "padding_mode": "circular"}):
        theirs = nn.Conv2d(16, 16, (3, 2), **words).half()
        same(cg.torch.replace(copy.deepcopy(theirs))(x), theirs.float()(x.float()))
    assert len(gpu.launched) == 3
    w = integers(16, 16, 3, 3)
    assert cg.torch.conv2d(x[0], w).shape == (16, 4, 4)  # without images


def test_a_problem_is_compiled_once(gpu: FakeGpu) -> None:
    x, model = integers(1, 16, 6, 6), cg.torch.replace(nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in "ab")))
    model.half()
    for _ in range(2):
        model(x)
    assert (len(gpu.codes), len(gpu.launched)) == (1, 4)


def test_problems_are_those_of_the_registry_that_comes_with_convgen(gpu: FakeGpu) -> None:
    """Its lines name the tags of convolutions, and of products those of weights."""
    registry = read_named("h200")
    assert registry is not None
    x, w, window = (32, 96, 56, 56), (96, 1, 7, 7), Window((1, 1), (3, 3), (1, 1), 96)
    request = ConvRequest("BWD_W", "f16", x, w, window, False, (True, True, True), False)
    assert key_of(request.problem, TARGET) in registry.entries
    dense = ConvRequest("FWD_D", "f16", (32, 64, 56, 56), (64, 64, 3, 3), Window((1, 1), (1, 1), (1, 1), 1),
                        False, (True, True, True), False)  # fmt: skip
    assert key_of(dense.problem, TARGET) in registry.entries
    for by_column in (False, True):
        product = ProductRequest("f16", 2048, 2048, 2048, (False, by_column), False, False)
        assert key_of(product.problem, TARGET) in registry.entries


# ------------------------------------------------------------ torch.compile


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compile_keeps_the_operators(backend: str, gpu: FakeGpu) -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 8)).half()
    model.to(memory_format=torch.channels_last)
    x = channels_last(integers(2, 16, 6, 6))
    wanted = cg.torch.replace(model)(x)
    wanted.float().sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    gpu.launched.clear()
    y = torch.compile(model, backend=backend, fullgraph=True)(x)
    y.float().sum().backward()
    same(y, wanted)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        same(parameter.grad, gradient)
    assert len(gpu.launched) == 5  # forwards, the gradients of weights, and that of the linear layer's input
    assert not any(row.by_torch for row in cg.torch.report(model).rows)


def arguments(last: bool) -> tuple[Any, Any, list[Any]]:
    x, w = integers(2, 16, 6, 5), integers(8, 16, 3, 3)
    return (channels_last(x) if last else x), w, [[2, 1], [1, 1], [1, 1], 1, "1:layer"]


@pytest.mark.parametrize("last", [False, True])
def test_fake_implementations_agree_with_real_ones(last: bool, gpu: FakeGpu) -> None:
    x, w, rest = arguments(last)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    up = w.transpose(0, 1).contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    for kind, weights, call in (("convolution", w, rest), ("transposed_convolution", up, [*rest, [1, 0]])):
        forward = getattr(ops, kind)
        gradient = forward(x, weights, None, *call)
        torch.library.opcheck(forward, (x, weights, integers(8), *call), test_utils=checks)
        for of in ("data_gradient", "weight_gradient", "weight_bias_gradients"):
            torch.library.opcheck(getattr(ops, f"{kind}_{of}"), (gradient, x, weights, *call), test_utils=checks)
    torch.library.opcheck(ops.linear, (integers(4, 16), integers(8, 16), integers(8), ""), test_utils=checks)
    torch.library.opcheck(ops.matmul, (integers(16, 4).t(), integers(16, 8), ""), test_utils=checks)


def test_meta_tensors_have_sizes_and_formats() -> None:
    x, w, rest = arguments(last=True)
    y = ops.convolution(x.to("meta"), w.to("meta"), None, *rest)
    assert y.shape == (2, 8, 3, 5)
    assert y.is_contiguous(memory_format=torch.channels_last)


class Seen(TorchDispatchMode):  # type: ignore[misc]  # a class that mypy does not read
    """The operators that torch dispatches, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators.append(operator.name())
        return operator(*args, **(kwargs or {}))


def test_modes_see_the_operators_with_and_without_gradients(gpu: FakeGpu) -> None:
    model, x = cg.torch.replace(nn.Conv2d(16, 16, 3)).half(), integers(1, 16, 4, 4)
    for _ in range(2):  # calls without the mode, and with it, take turns
        model(x).sum().backward()
        with Seen() as seen:
            model(x).sum().backward()
            with torch.no_grad():
                model(x)
        convolution = "convgen::convolution"
        ours = [name for name in seen.operators if name.startswith("convgen")]
        assert ours == [convolution, f"{convolution}_weight_bias_gradients", convolution]


def test_gradients_have_no_gradients(gpu: FakeGpu) -> None:
    x, w = integers(1, 16, 4, 4).requires_grad_(), integers(16, 16, 3, 3).requires_grad_()
    (of_x,) = torch.autograd.grad(cg.torch.conv2d(x, w).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^given gradients through convgen\.convolution_data_gradient\.default, "):
        of_x.sum().backward()


def test_autocast_chooses_the_type(gpu: FakeGpu) -> None:
    model = cg.torch.replace(nn.Sequential(nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(16, 16)))
    x = integers(1, 16, 3, 3, dtype=torch.float32)
    for call in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = call(x)
        assert y.dtype is torch.bfloat16
        y.float().sum().backward()
    assert model[0].weight.grad.dtype is torch.float32
    assert {problem.inputs[0].dtype for problem in gpu.launched} == {"bf16"}


# ------------------------------------------------------------ fallbacks


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "convgen.torch"]


def test_a_tensor_of_the_host_is_one_line_a_layer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "convgen.torch")
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2)), integers(1, 3, 3, 3).float()
    wanted = model(x)
    cg.torch.replace(model)
    for _ in range(2):
        torch.testing.assert_close(model(x), wanted)
    where = "given tensors on cpu, wanted them on a GPU that torch reaches by CUDA or HIP"
    tf32 = "given float32 where torch does not allow TF32, wanted that, float16 or bfloat16"
    assert lines(caplog) == [f"0: computed by torch: {where}", f"2: computed by torch: {tf32}"]
    report = cg.torch.report(model)
    assert [(row.layer, row.by_convgen, row.by_torch) for row in report.rows] == [("0", 0, 2), ("2", 0, 2)]
    assert str(report).splitlines() == [
        "layer  kind    by convgen  by torch  why by torch",
        f"0      Conv2d  0           2         {where}",
        f"2      Linear  0           2         {tf32}",
    ]


def test_refused_types_and_problems_are_computed_by_torch(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = integers(1, 16, 4, 4), integers(16, 16, 3, 3)
    assert cg.torch.conv2d(x.double(), w.double()).dtype is torch.float64
    assert cg.torch.conv2d(x[:0], w).shape == (0, 16, 2, 2)

    def refuse(problem: Problem, target: str, device: Any) -> None:
        raise Unsupported(f"given {problem.descriptor}, which is refused", rule="test")

    monkeypatch.setattr(kernel_calls, "loaded", refuse)
    weights = w.requires_grad_()
    y = cg.torch.conv2d(x, weights, padding=1)
    y.backward(torch.ones_like(y))
    same(weights.grad, torch.autograd.grad(F.conv2d(x, w, padding=1).sum(), w)[0])
    assert list(kernel_calls.calls[""].by_torch) == [
        "given float64, wanted float16, bfloat16, or float32 as TF32",
        "given a tensor without elements",
        "given mb1_ic16oc16_ih4oh4kh3ph1, which is refused",
    ]
    assert not gpu.launched


@pytest.fixture
def products_tf32() -> Iterator[Any]:
    """A function that sets torch's flag of products; the flag is restored."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    yield lambda allows: setattr(matmul, "allow_tf32", allows)
    matmul.allow_tf32 = before


def test_tf32_is_used_where_torch_allows_it(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, products_tf32: Any) -> None:
    x, w = integers(1, 16, 4, 4).float(), integers(16, 16, 3, 3).float()
    for allows in (True, False, True):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allows)
        products_tf32(not allows)
        cg.torch.conv2d(x, w)
        cg.torch.linear(x[0, :, 0], w[:, :4, 0, 0].contiguous())
    assert [type(problem) for problem in gpu.launched] == [Conv, Matmul, Conv]
    assert all("--attr-fpmath=tf32" in str(problem) for problem in gpu.launched)
    assert kernel_calls.calls[""].by_torch.total() == 3


def test_flags_of_tf32_do_not_compile_other_types_again(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = integers(1, 16, 4, 4), integers(16, 16, 3, 3)
    for allows in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allows)
        cg.torch.conv2d(x, w)
    assert len(gpu.launched) == 2


def test_calls_of_equal_sizes_and_other_strides(gpu: FakeGpu) -> None:
    """The layer's results and formats follow the strides of each call, in whatever order they come."""
    theirs = nn.Conv2d(16, 16, 3, padding=1).half()
    ours, dense = cg.torch.replace(copy.deepcopy(theirs)), integers(2, 16, 6, 6)
    with_gaps = integers(2, 32, 6, 12)[:, ::2, :, ::2]
    wide = copy.deepcopy(theirs).float()
    for x in (dense, channels_last(dense), with_gaps, dense.transpose(2, 3), dense, channels_last(dense)):
        same(ours(x), wide(x.float()))
        assert ours(x).is_contiguous(memory_format=torch.channels_last) == layer_problems.looks_channels_last(x)
    formats = [problem.inputs[0].layout.tag for problem in gpu.launched[::2]]
    assert formats == ["abcd", "acdb", "acdb", "acdb", "abcd", "acdb"]


def test_gradients_of_equal_sizes_and_other_strides(gpu: FakeGpu) -> None:
    ours, x = cg.torch.replace(nn.Conv2d(16, 16, 3, padding=1).half()), integers(2, 16, 6, 6).requires_grad_()
    wide, x_wide = copy.deepcopy(ours).float(), x.detach().float().requires_grad_()
    dense = integers(2, 16, 6, 6)
    expanded = torch.ones(1, dtype=torch.float16).expand(2, 16, 6, 6)
    for gradient in (dense, channels_last(dense), expanded, dense.transpose(2, 3), dense):
        found = torch.autograd.grad(ours(x), (x, *ours.parameters()), gradient)
        right = torch.autograd.grad(cg.torch.restore(wide)(x_wide), (x_wide, *wide.parameters()), gradient.float())
        for result, wanted in zip(found, right, strict=True):
            torch.testing.assert_close(result.float(), wanted, rtol=2e-2, atol=2e-2)


def test_a_tensor_at_the_address_of_another(gpu: FakeGpu) -> None:
    """Sizes, strides and types of a call are those of its tensors, not of earlier ones in the same memory."""
    memory, w = integers(2 * 16 * 6 * 6), integers(16, 16, 3, 3)
    tensors = [memory.view(2, 16, 6, 6), memory.view(1, 16, 12, 6), channels_last(memory.view(2, 16, 6, 6))]
    tensors.append(memory.view(2, 6, 6, 16).movedim(-1, 1))
    for x in (*tensors, *reversed(tensors)):
        same(cg.torch.conv2d(x, w), F.conv2d(x.float(), w.float()))
        memory.copy_(integers(*memory.shape))
    bits = memory.view(torch.bfloat16).view(2, 16, 6, 6).fill_(1.0)
    same(cg.torch.conv2d(bits, w.bfloat16()), F.conv2d(bits.float(), w.float()))


def test_layers_in_threads(gpu: FakeGpu) -> None:
    """Torch's backward runs in threads of its own: calls of several threads share plans and problems."""
    ours, w = cg.torch.replace(nn.Conv2d(16, 16, 3)).half(), integers(16, 16, 3, 3)
    given = [integers(1, 16, size, 6).requires_grad_() for size in (4, 5, 6, 4)]
    wanted = [F.conv2d(x.float(), w.float()) for x in given]
    ours.weight.data, ours.bias.data = w, torch.zeros_like(ours.bias)

    def call(number: int) -> None:
        for _ in range(5):
            y = ours(given[number])
            same(y, wanted[number])
            torch.autograd.grad(y, given[number], torch.ones_like(y))

    with ThreadPoolExecutor(len(given)) as threads:
        list(threads.map(call, range(len(given))))
    assert len(gpu.codes) == 3 * 3
    assert len(gpu.launched) == 3 * 5 * len(given)


def test_nothing_is_compiled_while_a_graph_is_captured(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = cg.torch.replace(nn.Conv2d(16, 16, 3)).half(), integers(1, 16, 4, 4)
    monkeypatch.setattr(kernel_calls, "capturing", lambda: True)
    model(x)
    assert not gpu.codes
    monkeypatch.setattr(kernel_calls, "capturing", lambda: False)
    model(x)
    monkeypatch.setattr(kernel_calls, "capturing", lambda: True)
    model(x)
    (row,) = cg.torch.report(model).rows
    assert (row.by_convgen, row.by_torch) == (2, 1)
    assert row.reasons[0].startswith("its kernel was not compiled before a graph was captured")


def test_problems_are_collected_and_compiled_ahead(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = cg.torch.replace(nn.Conv2d(16, 16, 3)).half(), integers(1, 16, 4, 4)
    asked: list[Any] = []
    monkeypatch.setattr(kernel_calls, "compile_ahead", lambda *given: asked.append(given))
    with cg.torch.prepared(processes=3):
        model(x).sum().backward()
    ((problems, target, processes),) = asked
    assert (len(problems), target, processes) == (2, TARGET, 3)
    assert not gpu.launched
    assert cg.torch.report(model).rows[0].by_torch == 0
    model(x).sum().backward()
    assert [str(problem) for problem in gpu.launched] == problems
    with cg.torch.prepared(processes=3):  # also those that have kernels
        model(x).sum().backward()
    assert asked[1][0] == problems
    assert len(gpu.launched) == len(problems)


def test_machine_code_is_loaded_unless_the_driver_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, contents = cg.Matmul.parse("32x32:32x32", dt="f16"), list[bytes]()
    code = evolve(driver.compile(driver.build(problem, TARGET)), machine=b"cubin")

    class Module:
        def function(self, name: str) -> str:
            return name

    def load(content: bytes) -> Module:
        contents.append(content)
        if content == b"cubin" and len(contents) > 1:
            raise DeviceError("no kernel image is available")
        return Module()

    device = SimpleNamespace(name="cuda:0", title="a GPU", runs=(TARGET,), suffix=".ptx", load=load)
    monkeypatch.setattr(kernel_calls, "cached_code", lambda problem, target: code)
    monkeypatch.setattr(kernel_calls, "_device", lambda _: device)
    for _ in range(2):
        assert kernel_calls.loaded(problem, TARGET, None).kernel.device is device
    assert contents == [b"cubin", b"cubin", code.object]


def test_a_launch_has_addresses_of_tensors_and_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are aligned, workspaces hold zeros where launches want them, and each call has its current stream."""
    enqueued: list[tuple[dict[str, int], int]] = []

    def enqueue(addresses: dict[str, int], stream: int) -> None:
        assert bytes((ctypes.c_uint8 * 16).from_address(addresses["counters"])) == bytes(16)
        enqueued.append((addresses, stream))

    kernel = SimpleNamespace(
        device=SimpleNamespace(alignment=16),
        launch=enqueue,
    )
    loaded = kernel_calls.Loaded(kernel, ("dst",), (("sums", 64, False), ("counters", 16, True)))
    streams = iter((7, 8))
    monkeypatch.setattr(kernel_calls, "current_stream", lambda device: next(streams))
    src, dst = integers(64), integers(64)
    for given in (src, src[1:33]):
        kernel_calls.launch(loaded, {"src": given, "dst": dst})
    (first, first_stream), (second, second_stream) = enqueued
    assert (first_stream, second_stream) == (7, 8)
    assert (first["src"], first["dst"]) == (src.data_ptr(), dst.data_ptr())
    assert second["src"] not in range(src.data_ptr(), src.data_ptr() + 128)
    assert list(first) == ["src", "dst", "sums", "counters"]


# ------------------------------------------------------------ replacement


def model_of_all_kinds() -> Any:
    return nn.Sequential(
        nn.Conv1d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.Conv3d(2, 2, 1), nn.Linear(2, 2), nn.ConvTranspose2d(2, 2, 1)
    )


def test_replace_and_restore_leave_the_state() -> None:
    model = model_of_all_kinds()
    kinds, keys = [type(module) for module in model], list(model.state_dict())
    parameters, told = list(model.parameters()), list[str]()
    assert cg.torch.replace(model, log=told.append) is model
    assert [type(module).__module__ for module in model] == ["convgen.torch.layers"] * 5
    assert all(isinstance(module, kind) for module, kind in zip(model, kinds))
    assert not told
    assert list(model.state_dict()) == keys
    assert all(ours is theirs for ours, theirs in zip(model.parameters(), parameters, strict=True))
    model.load_state_dict(model_of_all_kinds().state_dict())
    assert "ConvTranspose2d" in str(cg.torch.report(model))
    assert cg.torch.restore(model) is model
    assert [type(module) for module in model] == kinds
    assert "convgen_layer" not in model[0].__dict__


def test_replaced_models_are_copied_and_pickled(gpu: FakeGpu) -> None:
    model, x = cg.torch.replace(nn.Sequential(nn.Conv2d(16, 16, 1))).half(), integers(1, 16, 2, 2)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x), model(x))
    assert len(gpu.launched) == 4


def test_subclasses_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    class Own(torch.nn.Linear):  # type: ignore[misc]  # a class that mypy does not read
        pass

    caplog.set_level(logging.INFO, "convgen.torch")
    model = cg.torch.replace(nn.Sequential(Own(2, 2)))
    assert type(model[0]) is Own
    assert lines(caplog) == ["0: computed by torch: given Own, which may have a forward pass of its own"]


# ------------------------------------------------------------ without torch, and the page


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_convgen_does_not_import_torch() -> None:
    assert python("import convgen, sys; convgen.Conv; assert 'torch' not in sys.modules").returncode == 0


def test_a_missing_torch_is_one_line() -> None:
    done = python("import sys; sys.modules['torch'] = None; import convgen; convgen.torch")
    wanted = "ImportError: convgen.torch needs PyTorch 2.4 or later: pip install 'convgen[torch]'"
    assert done.stderr.splitlines()[-1] == wanted


def test_the_example_of_the_page_works() -> None:
    """Without a GPU torch computes the layers."""
    section = (ROOT / "docs" / "embed.md").read_text().partition("## Inside PyTorch\n")[2].partition("\n## ")[0]
    code = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    ") or not line)
    exec(compile(code.replace('"cuda"', '"cpu"'), "docs/embed.md", "exec"), {})
