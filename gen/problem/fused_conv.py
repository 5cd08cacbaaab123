"""A convolution and the depthwise convolution of its result: benchdnn's post-op `dw`, oneDNN's depthwise fusion.

The first convolution writes an intermediate tensor of the type that `--dt` gives dst; the depthwise one reads it, with
weights, bias and scales of its own, and writes dst in the type of the post-op (oneDNN's Developer Guide, "Depthwise
Post-op"). Post-ops before `dw` belong to the first convolution, those after it to the depthwise one. The scale of dst
divides the intermediate tensor, and multiplies it where the depthwise convolution reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from convgen.ir.error import Unsupported
from convgen.ir.record import evolve, fields_of, frozen
from convgen.problem.attributes import DEPTHWISE
from convgen.problem.conv import Axis, Conv
from convgen.problem.post_ops import Depthwise, Sum, operand_name
from convgen.problem.scales import Scale
from convgen.problem.tensors import TensorSpec

RULE = "post-op-dw"


@frozen
class Member:
    """One of the two convolutions; `names` has the names of its tensors in the fused call, where these differ.

    Names of tensors that `names` does not list begin with `prefix` in the fused call.
    """

    problem: Conv
    names: Mapping[str, str]
    prefix: str = ""

    def name(self, own: str) -> str:
        """Return the name in the fused call of a buffer of this convolution."""
        return self.names.get(own, f"{self.prefix}{own}")

    def renamed(self, spec: TensorSpec) -> TensorSpec:
        return evolve(spec, name=self.name(spec.name))


@frozen(slots=False)
class FusedConv(Conv):
    """A convolution whose result a depthwise convolution reads.

    Sizes, `oc` and `axes` are those of the first convolution. Its `post_ops` and `scales` are those of both.
    """

    @property
    def depthwise(self) -> Depthwise:
        """Return the post-op `dw`, the first one if there are several."""
        return next(op for op in self.post_ops if isinstance(op, Depthwise))

    @property
    def position(self) -> int:
        """Return the number of the post-op `dw`, the first one if there are several."""
        return self.post_ops.index(self.depthwise)

    @cached_property
    def members(self) -> tuple[Member, Member]:
        """Return the first and the depthwise convolution."""
        before, after = self.post_ops[: self.position], self.post_ops[self.position + 1 :]
        scales = {scale.role: scale for scale in self.scales}
        own = {each.name: getattr(self, each.name) for each in fields_of(Conv)}
        first = {"dtag": "any", "post_ops": before, "scales": _scales(scales, "src", "wei", "dst")}
        second = {
            "ic": self.oc,
            "axes": tuple(self._windowed(n, axis) for n, axis in enumerate(self.axes)),
            "groups": self.oc,
            "has_groups": True,
            "src_type": self.dst_type,
            "dst_type": self.depthwise.dtype,
            "stag": "any",
            "wtag": "any",
            "post_ops": after,
            "zero_points": (),
            "scales": _scales(scales, "dst", f"{DEPTHWISE}wei", f"{DEPTHWISE}dst"),
        }
        return (
            Member(Conv(**{**own, **first}), {"dst": _INTERMEDIATE}),
            Member(Conv(**{**own, **second}), _names(self.position + 1, len(after)), DEPTHWISE),
        )

    def _windowed(self, number: int, axis: Axis) -> Axis:
        """Return an axis of the depthwise convolution, whose output size is that of the input by stride, rounded up."""
        if number < 5 - self.ndims:
            return axis
        op = self.depthwise
        return Axis(i=axis.o, o=-(-axis.o // op.stride), k=op.kernel, s=op.stride, p=op.padding)

    @property
    def dst_dims(self) -> tuple[int, ...]:
        """[mb, oc, spatial...] of the depthwise convolution"""
        return self.members[1].problem.dst_dims

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the tensors that kernels read, without the intermediate tensor."""
        specs = (member.renamed(spec) for member in self.members for spec in member.problem.inputs)
        return tuple({spec.name: spec for spec in specs if spec.name != _INTERMEDIATE}.values())

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        last = self.members[1]
        return tuple(map(last.renamed, last.problem.outputs))

    def tensor(self, name: str) -> TensorSpec:
        """Return the tensor of a name, the intermediate one included."""
        specs = (member.renamed(spec) for member in self.members for spec in member.problem.tensors)
        return next(spec for spec in specs if spec.name == name)

    @property
    def macs(self) -> int:
        """The number of multiply-accumulates of both convolutions, padding included."""
        return sum(member.problem.macs for member in self.members)


_INTERMEDIATE = f"{DEPTHWISE}src"


def _names(first: int, count: int) -> dict[str, str]:
    """Return the names of tensors of the depthwise convolution, whose `count` post-ops begin at number `first`."""
    operands = {
        operand_name(n, ending): operand_name(n + first, ending) for n in range(count) for ending in ("", "_condition")
    }
    return {"src": _INTERMEDIATE, "dst": "dst", "src_scales": "dst_scales", **operands}


def _scales(scales: Mapping[str, Scale], *roles: str) -> tuple[Scale, ...]:
    """Return the scales of src, weights and dst of a convolution, which have these roles in the fused call."""
    own = zip(("src", "wei", "dst"), roles, strict=True)
    return tuple(evolve(scales[role], role=name) for name, role in own if role in scales)


def check(problem: FusedConv) -> None:
    """Raise Unsupported for a fusion that oneDNN does not define."""
    given = f"given the post-op {problem.depthwise}"
    others = [op for op in problem.post_ops if isinstance(op, Sum | Depthwise)]
    if len(others) > 1:
        other = next(op for op in others if op is not problem.depthwise)
        raise Unsupported(f"{given} and {other}, wanted neither sum nor dw beside it", rule=RULE)
    if not problem.direction.is_forward:
        raise Unsupported(f"{given} in {problem.direction.value}, wanted a forward direction", rule=RULE)
    if problem.ndims != 4 or any(axis.k != 1 for axis in problem.spatial):
        kernel = "x".join(str(axis.k) for axis in problem.spatial)
        raise Unsupported(f"{given} of a {kernel} convolution, wanted a 1x1 convolution", rule=RULE)
    if problem.depthwise.padding >= problem.depthwise.kernel:
        raise Unsupported(f"{given}, wanted padding less than the kernel's {problem.depthwise.kernel}", rule=RULE)
    if problem.zero_points:
        raise Unsupported(f"{given} with zero points, wanted none", rule=RULE)
