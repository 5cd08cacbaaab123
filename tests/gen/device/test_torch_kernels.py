"""Operators of `convgen.torch` down to CUDA's driver: a stand-in executes the launches, on copies of torch's memory."""

from __future__ import annotations

import ctypes as c
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from convgen.device.devices import open_device
from convgen.device.loaded import DeviceKernel
from tests.gen.device.standin_cuda import CudaStandIn

torch: Any = pytest.importorskip("torch")
kernel_calls: Any = pytest.importorskip("convgen.torch.kernel_calls")

launch = DeviceKernel.launch


def launch_on_copies(kernel: DeviceKernel, addresses: Mapping[str, int], stream: int) -> None:
    """Launch a kernel at addresses of the host: on copies of all buffers, which are copied back."""
    device, copies = kernel.device, {}
    for name, address in addresses.items():
        memory = (c.c_uint8 * kernel.program.record.buffers[name].tensor.bytes).from_address(address)
        host, there = np.ctypeslib.as_array(memory), device.allocate(len(memory))
        device.upload(there, host, stream)
        copies[name] = host, there
    launch(kernel, {name: there for name, (_, there) in copies.items()}, stream)
    for host, there in copies.values():
        device.download(host, there, stream)
        device.free(there)


@pytest.fixture(autouse=True)
def _gpu(cuda: CudaStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in's device in place of the host."""
    device = open_device("cuda:0")
    kernel_calls._kernels.clear()
    kernel_calls._plans.clear()
    kernel_calls.calls.clear()
    monkeypatch.setattr(kernel_calls, "_device", lambda _: device)
    monkeypatch.setattr(kernel_calls, "target_of", lambda _: cuda.arch)
    monkeypatch.setattr(kernel_calls, "capturing", lambda: False)
    monkeypatch.setattr(kernel_calls, "current_stream", lambda _: 0)
    monkeypatch.setattr(DeviceKernel, "launch", launch_on_copies)


def integers(*shape: int) -> Any:
    return torch.randint(-2, 3, shape).half().to(memory_format=torch.channels_last)


def test_convolutions_on_the_driver(cuda: CudaStandIn) -> None:
    """A forward pass and its gradients, twice, with and without the bias': that one has a workspace."""
    torch.manual_seed(0)
    x, w, gradient = integers(4, 16, 12, 12), integers(16, 16, 3, 3), integers(4, 16, 12, 12)
    wide, rest = [each.float() for each in (gradient, x, w)], [[1, 1], [1, 1], [1, 1], 1]
    wanted = torch.ops.aten.convolution_backward(*wide, None, *rest[:3], False, [0, 0], 1, [True, True, False])
    of_bias = gradient.float().sum((0, 2, 3)).half()
    for _ in range(2):
        y = torch.ops.convgen.convolution(x, w, None, *rest, "1:conv")
        assert torch.equal(y, torch.nn.functional.conv2d(*wide[1:], padding=1).half())
        assert torch.equal(torch.ops.convgen.convolution_data_gradient(gradient, x, w, *rest, ""), wanted[0].half())
        assert torch.equal(torch.ops.convgen.convolution_weight_gradient(gradient, x, w, *rest, ""), wanted[1].half())
        found = torch.ops.convgen.convolution_weight_bias_gradients(gradient, x, w, *rest, "")
        assert torch.equal(found[0], wanted[1].half())
        assert torch.equal(found[1], of_bias)
    assert kernel_calls.calls["1:conv"].by_convgen == 2
    assert any(loaded.workspaces for loaded in kernel_calls._kernels.values())
    assert not cuda.findings


def test_a_linear_layer_on_the_driver(cuda: CudaStandIn) -> None:
    x, w, bias = (torch.randint(-2, 3, shape).half() for shape in ((24, 32), (16, 32), (16,)))
    y = torch.ops.convgen.linear(x, w, bias, "1:linear")
    assert kernel_calls.calls["1:linear"].by_convgen == 1
    assert torch.equal(y, (x.float() @ w.float().t() + bias).half())
    assert not cuda.findings
