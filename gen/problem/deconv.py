"""Transposed convolutions (benchdnn's deconvolutions), with every default resolved.

Index law of each spatial axis: source position i and tap k add to o = i*s - p + k*(d + 1); a tap outside
`0 <= o < O` adds nothing. A transposed convolution is thus the gradient of data of a convolution that exchanges source
and destination. It differs from that gradient in its tensors, its layouts and the steps after its sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import ClassVar

from convgen.ir.record import evolve, frozen
from convgen.problem import options
from convgen.problem.conv import Axis, Conv, Direction

_OF_CONVOLUTION = {
    Direction.FWD_B: Direction.BWD_D,
    Direction.FWD_D: Direction.BWD_D,
    Direction.FWD_I: Direction.BWD_D,
    Direction.BWD_D: Direction.FWD_D,
    Direction.BWD_W: Direction.BWD_W,
    Direction.BWD_WB: Direction.BWD_W,
}


@frozen(slots=False)
class Deconv(Conv):
    """A transposed convolution. `ic` and the `i` of axes are of the source, `oc` and `o` of the destination."""

    driver: ClassVar[str] = options.DECONV
    of_roles: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"src": "dst", "dst": "src", "wei": "wei", "ic": "oc", "oc": "ic"}
    )

    @property
    def convolution(self) -> Conv:
        """Return the convolution over the destination that exchanges source and destination, without layouts."""
        d, h, w = (evolve(axis, i=axis.o, o=axis.i) for axis in self.axes)
        return Conv(
            mb=self.mb,
            ic=self.oc,
            oc=self.ic,
            axes=(d, h, w),
            ndims=self.ndims,
            groups=self.groups,
            has_groups=self.has_groups,
            direction=_OF_CONVOLUTION[self.direction],
            runtime_masks=self.runtime_masks,
        )

    def __str__(self) -> str:
        """Return one replayable line, which names the driver: descriptors alone are those of convolutions."""
        return f"--{self.driver} {super().__str__()}"

    @property
    def macs(self) -> int:
        """The number of multiply-accumulates, those that fall outside the destination included."""
        return prod(self.src_dims) * (self.oc // self.groups) * prod(axis.k for axis in self.axes)

    @staticmethod
    def output_size(axis: Axis) -> int:
        """Return the output size of an axis whose input size and padding are given."""
        return (axis.i - 1) * axis.s + axis.extent - 2 * axis.p

    @staticmethod
    def left_padding(axis: Axis) -> int:
        """Return the left padding of an axis whose output size is given."""
        return Conv.left_padding(evolve(axis, i=axis.o, o=axis.i))
