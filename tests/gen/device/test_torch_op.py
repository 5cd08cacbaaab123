"""The example of an operator of torch: forwards and backwards what torch computes, of integers exactly."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gen.device.standin import StandIn

torch: Any = pytest.importorskip("torch")
example: Any = pytest.importorskip("examples.torch_op")


def integers(seed: int, *shape: int) -> Any:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(torch.float16)


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 0)])
def test_forwards_and_backwards(stride: int, padding: int, standin: StandIn) -> None:
    x, w = integers(1, 2, 16, 7, 7).requires_grad_(), integers(2, 24, 16, 3, 3).requires_grad_()
    y = example.conv2d(x, w, stride, padding)
    gradient = integers(3, *y.shape)
    y.backward(gradient)
    wide = [each.detach().float().requires_grad_() for each in (x, w)]
    right = torch.nn.functional.conv2d(*wide, stride=stride, padding=padding)
    right.backward(gradient.float())
    assert torch.equal(y.float(), right)
    assert torch.equal(x.grad.float(), wide[0].grad)
    assert torch.equal(w.grad.float(), wide[1].grad)
    assert len(standin.launches) >= 3
    assert not standin.findings


def test_torch_agrees_with_what_it_is_told(standin: StandIn) -> None:
    """Sizes and strides that are told to who traces are those that come; gradients are registered as torch wants it."""
    x, w = integers(1, 1, 16, 5, 5), integers(2, 16, 16, 3, 3)
    torch.library.opcheck(example.conv2d, (x, w, 1, 1), test_utils=("test_schema", "test_faketensor"))
