"""Layers that call convgen's operators: the classes of a model's layers are swapped, their state is untouched."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

from torch import nn
from torch.nn.functional import pad

from convgen.ir.record import frozen
from convgen.torch import kernel_calls
from convgen.torch.layer_problems import Tensor
from convgen.torch.operators import convolution, linear, transposed_convolution

Module: TypeAlias = Any  #: a module of torch, whose types mypy does not read

_LAYER = "convgen_layer"  #: attribute: the number of its model, a colon, and its name there
_models = count(1)


class _Convolution:
    """The forward pass of `Conv1d`, `Conv2d` and `Conv3d`."""

    convgen_layer = ""

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return convolution(input, weight, bias, self.stride, padding, self.dilation, self.groups, self.convgen_layer)


class Conv1d(_Convolution, nn.Conv1d):  # type: ignore[misc]  # a class that mypy does not read
    """`torch.nn.Conv1d` by convgen's operators."""


class Conv2d(_Convolution, nn.Conv2d):  # type: ignore[misc]  # a class that mypy does not read
    """`torch.nn.Conv2d` by convgen's operators."""


class Conv3d(_Convolution, nn.Conv3d):  # type: ignore[misc]  # a class that mypy does not read
    """`torch.nn.Conv3d` by convgen's operators."""


class _TransposedConvolution:
    """The forward pass of `ConvTranspose1d`, `ConvTranspose2d` and `ConvTranspose3d`, which pad with zeros only."""

    convgen_layer = ""

    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        sizes = self.stride, self.padding, self.kernel_size, self.weight.dim() - 2, self.dilation
        more = self._output_padding(input, output_size, *sizes)
        window = self.stride, self.padding, more, self.groups, self.dilation
        return transposed_convolution(input, self.weight, self.bias, *window, self.convgen_layer)


class ConvTranspose1d(_TransposedConvolution, nn.ConvTranspose1d):  # type: ignore[misc]  # mypy does not read the class
    """`torch.nn.ConvTranspose1d` by convgen's operators."""


class ConvTranspose2d(_TransposedConvolution, nn.ConvTranspose2d):  # type: ignore[misc]  # mypy does not read the class
    """`torch.nn.ConvTranspose2d` by convgen's operators."""


class ConvTranspose3d(_TransposedConvolution, nn.ConvTranspose3d):  # type: ignore[misc]  # mypy does not read the class
    """`torch.nn.ConvTranspose3d` by convgen's operators."""


class Linear(nn.Linear):  # type: ignore[misc]  # a class that mypy does not read
    """`torch.nn.Linear` by convgen's operators."""

    convgen_layer = ""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias, self.convgen_layer)


_REPLACEMENTS = {
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.Conv3d: Conv3d,
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
    nn.Linear: Linear,
}
_ORIGINALS = {ours: theirs for theirs, ours in _REPLACEMENTS.items()}


def replace(model: Module, *, log: Callable[[str], None] | None = None) -> Module:
    """Have the layers of a model call convgen's operators; return the model, which is changed in place.

    Layers of the classes `nn.Conv1d` to `nn.Conv3d`, `nn.ConvTranspose1d` to `nn.ConvTranspose3d` and `nn.Linear` get
    a subclass of it. Parameters, hooks
    and the keys of the state dict stay. Layers of subclasses stay torch's, because they may have a forward pass of
    their own. `log` is called with a line for each layer that stays torch's; default is the logger `convgen.torch`.
    """
    number = next(_models)
    for name, module in model.named_modules():
        if type(module) in _REPLACEMENTS:
            module.__class__ = _REPLACEMENTS[type(module)]
            setattr(module, _LAYER, f"{number}:{name or type(module).__name__}")
        elif why := _why_torch(module):
            (log or kernel_calls.log.info)(f"{name}: computed by torch: {why}")
    return model


def restore(model: Module) -> Module:
    """Have the layers of a model call torch's own operators again; return the model, which is changed in place."""
    for module in model.modules():
        if type(module) in _ORIGINALS:
            module.__class__ = _ORIGINALS[type(module)]
            module.__dict__.pop(_LAYER, None)
    return model


def _why_torch(module: Module) -> str:
    """Return why a convolution or linear layer stays torch's; an empty text for a layer of another kind."""
    is_ours = type(module) in _ORIGINALS
    if isinstance(module, tuple(_REPLACEMENTS)) and not is_ours:
        return f"given {type(module).__name__}, which may have a forward pass of its own"
    return ""


@frozen
class Row:
    """A layer of a model: calls of its operators by convgen and by torch, gradients included, and why by torch."""

    layer: str
    kind: str
    by_convgen: int
    by_torch: int
    reasons: tuple[str, ...]


@frozen
class Report:
    """The convolution and linear layers of a model, in its order; prints itself as a table."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        table = [("layer", "kind", "by convgen", "by torch", "why by torch")]
        table += [(r.layer, r.kind, str(r.by_convgen), str(r.by_torch), "; ".join(r.reasons)) for r in self.rows]
        widths = [max(map(len, column)) for column in zip(*table)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table)


def report(model: Module) -> Report:
    """Return how often convgen and torch have computed each layer of a model since `replace`.

    Replays of graphs do not count. Layers that stay torch's have no counts, but a reason.
    """
    rows = []
    for name, module in model.named_modules():
        if type(module) in _ORIGINALS:
            calls = kernel_calls.calls.get(module.convgen_layer, kernel_calls.Calls())
            reasons = tuple(calls.by_torch)
            shown = name or type(module).__name__
            rows.append(Row(shown, type(module).__name__, calls.by_convgen, calls.by_torch.total(), reasons))
        elif why := _why_torch(module):
            rows.append(Row(name, type(module).__name__, 0, 0, (why,)))
    return Report(tuple(rows))
