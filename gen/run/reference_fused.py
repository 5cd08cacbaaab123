"""The reference of a convolution whose result a depthwise convolution reads, by benchdnn's `conv_dw_fusion.cpp`.

benchdnn compares the fused primitive with two that it executes one after another, on an intermediate tensor of the
destination type of the first. So does the reference: `requests` restates the two requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convgen.ir.record import evolve, frozen
from convgen.problem.conv import Axis, Conv
from convgen.problem.fused_conv import FusedConv
from convgen.problem.post_ops import Binary, Depthwise, Prelu

_PREFIX = "attr_post_op_dw_"  #: of benchdnn's names of arguments of the depthwise convolution


@frozen(eq=False)
class Requests:
    """The two requests of a fused one, and by name of the fused call the tensors that the second reads."""

    first: Conv
    second: Conv
    names: Mapping[str, str]  #: name in the second request -> name in the fused call

    def named(self, name: str) -> str:
        """Return the name in the fused call of a tensor of the second request."""
        return self.names.get(name, _PREFIX + name)


def requests(problem: FusedConv) -> Requests:
    """Return the two requests of a fused one (benchdnn's `get_first_conv_prb` and `get_fused_conv_prb`)."""
    at = [isinstance(op, Depthwise) for op in problem.post_ops].index(True)
    window, later = problem.post_ops[at], problem.post_ops[at + 1 :]
    assert isinstance(window, Depthwise)
    by_role = {scale.role: scale for scale in problem.scales}
    common: dict[str, Any] = {"mb": problem.mb, "oc": problem.oc, "ndims": problem.ndims, "wei_type": problem.wei_type}
    common |= {"direction": problem.direction, "bias_type": problem.bias_type, "acc_mode": problem.acc_mode}
    first = Conv(
        ic=problem.ic,
        axes=problem.axes,
        groups=problem.groups,
        has_groups=problem.has_groups,
        src_type=problem.src_type,
        dst_type=problem.dst_type,
        stag=problem.stag,
        wtag=problem.wtag,
        post_ops=problem.post_ops[:at],
        scales=tuple(by_role[role] for role in ("src", "wei", "dst") if role in by_role),
        **common,
    )
    d, h, w = problem.axes
    axes = (Axis(a.o, -(-a.o // window.stride), window.kernel, window.stride, window.padding) for a in (h, w))
    roles = {"dst": "src", f"{_PREFIX}wei": "wei", f"{_PREFIX}dst": "dst"}
    second = Conv(
        ic=problem.oc,
        axes=(d, next(axes), next(axes)),
        groups=problem.oc,
        has_groups=True,
        src_type=problem.dst_type,
        dst_type=window.dtype,
        dtag=problem.dtag,
        post_ops=later,
        scales=tuple(evolve(by_role[role], role=own) for role, own in roles.items() if role in by_role),
        **common,
    )
    names = {"dst": "dst", "src_scales": "dst_scales"}
    for n, op in enumerate(later):
        if isinstance(op, Binary | Prelu):
            names |= {f"post_op_{n}{end}": f"post_op_{at + 1 + n}{end}" for end in ("", "_condition")}
    return Requests(first, second, names)
