"""convgen's kernels inside PyTorch: operators for convolutions and linear layers, with gradients, and their layers.

    import convgen as cg

    model = cg.torch.replace(model)  # layers call convgen's operators; parameters are shared
    y = torch.compile(model)(x)
    print(cg.torch.report(model))  # calls by convgen, by torch, and why

Needs PyTorch 2.4 or later. torch computes the problems that convgen refuses; the logger `convgen.torch` reports that
once for each layer and reason.
"""

from __future__ import annotations

if __name__ != "convgen.torch":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.torch, not as {__name__}")

try:
    from torch.library import custom_op as custom_op
except ImportError:
    raise ImportError("convgen.torch needs PyTorch 2.4 or later: pip install 'convgen[torch]'") from None

from convgen.torch.kernel_calls import prepared
from convgen.torch.layers import Report, replace, report, restore
from convgen.torch.operators import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    linear,
)

__all__ = [
    "Report",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "linear",
    "prepared",
    "replace",
    "report",
    "restore",
]
