"""Convolution problems in benchdnn's terms, with every default resolved.

Index law of each spatial axis: `i = o*s - p + k*(d + 1)`; a tap outside `0 <= i < I` contributes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, Unpack, cast

from convgen.ir.error import UserError
from convgen.ir.record import evolve, frozen
from convgen.problem import grammar, options, scales
from convgen.problem.knobs import ConvKnobs, ConvShapeKnobs
from convgen.problem.post_ops import Depthwise
from convgen.problem.tensors import TensorProblem, Triple, fields_of, unknown_dims, with_checked_layouts

#: tags that replace `any`: activations channels-last, weights K-contiguous, without and with a group dimension
_ANY, _ANY_GROUPED = "axb", "abxc"


class Direction(Enum):
    """The tensor that a convolution computes, in benchdnn's names; `_B` carries a bias, or computes its gradient."""

    FWD_B = "FWD_B"
    FWD_D = "FWD_D"
    FWD_I = "FWD_I"
    BWD_D = "BWD_D"
    BWD_W = "BWD_W"
    BWD_WB = "BWD_WB"

    @property
    def is_forward(self) -> bool:
        return self.name.startswith("FWD")

    @property
    def with_bias(self) -> Direction:
        """Return the direction with a bias or its gradient; a direction that can have neither is returned unchanged."""
        return _WITH_BIAS.get(self, self)


_WITH_BIAS = {Direction.FWD_D: Direction.FWD_B, Direction.FWD_I: Direction.FWD_B, Direction.BWD_W: Direction.BWD_WB}


#: the tensors that each direction reads, and those that it writes
_TENSORS: dict[Direction, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Direction.FWD_B: (("src", "wei", "bia"), ("dst",)),
    Direction.FWD_D: (("src", "wei"), ("dst",)),
    Direction.FWD_I: (("src", "wei"), ("dst",)),
    Direction.BWD_D: (("wei", "diff_dst"), ("diff_src",)),
    Direction.BWD_W: (("src", "diff_dst"), ("diff_wei",)),
    Direction.BWD_WB: (("src", "diff_dst"), ("diff_wei", "diff_bia")),
}


@frozen
class Axis:
    """One spatial axis: input, output and kernel size, stride, left padding and dilation (0 is dense)."""

    i: int = 1
    o: int = 1
    k: int = 1
    s: int = 1
    p: int = 0
    d: int = 0

    @property
    def extent(self) -> int:
        """The number of input positions that a dilated kernel spans."""
        return (self.k - 1) * (self.d + 1) + 1

    @property
    def pad_r(self) -> int:
        """Right padding: positions beyond the input that the last window reads; negative if an input tail is unused."""
        return (self.o - 1) * self.s - self.i + self.extent - self.p


def _each(name: str, given: int | Sequence[int], count: int) -> Sequence[int]:
    """A size for each spatial dimension. Raises UserError."""
    sizes = [given] * count if isinstance(given, int) else list(given)
    if len(sizes) != count:
        raise UserError(f"given {len(sizes)} sizes, wanted one or {count}, at {name}")
    return sizes


@frozen(slots=False)
class Conv(TensorProblem):
    """A convolution. `ic` and `oc` count the channels of all groups; `axes` are d, h, w, absent ones trivial.

    `ndims` counts tensor dimensions without groups (3, 4 or 5). `has_groups` says whether the weights have a group
    dimension.
    """

    driver: ClassVar[str] = options.CONV
    #: role of a tensor, or channels, in `convolution` -> that of this problem
    of_roles: ClassVar[Mapping[str, str]] = MappingProxyType({name: name for name in ("src", "wei", "dst", "ic", "oc")})

    mb: int
    ic: int
    oc: int
    axes: tuple[Axis, Axis, Axis]
    ndims: int
    groups: int = 1
    has_groups: bool = False
    direction: Direction = Direction.FWD_B

    @classmethod
    def parse(cls, desc: str, **arguments: Unpack[ConvKnobs]) -> Self:
        """The problem of a benchdnn descriptor. Every knob of benchdnn's is an argument: `dir="FWD_D"`, `dt="f16"`,
        `mb=1`, `attr_fpmath="tf32"`; those inside `desc` (`--dir=FWD_D mb1ic64...`) win.

        `mb` other than 0 overrides the descriptor's. Raises UserError: given, wanted, where; Unsupported for a tag that
        suits another number of dimensions. What is not generated is refused when the problem is built.
        """
        return cls.of_arguments(desc, arguments)

    @classmethod
    def from_sizes(
        cls,
        *,
        ic: int,
        oc: int,
        input: Sequence[int],
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        output: Sequence[int] | None = None,
        groups: int = 1,
        mb: int = 1,
        **arguments: Unpack[ConvShapeKnobs],
    ) -> Self:
        """The problem of sizes, as frameworks have them: one per spatial dimension (w; h, w; d, h, w), outermost first.

        A single number holds for all dimensions. A `dilation` of 1 is none. `padding` is that before the input; the
        padding after it follows from `output`, by default as much. `arguments` are knobs of benchdnn as in `parse`.

        Raises UserError: given, wanted, where.
        """
        count = len(input)
        letters = "dhw"[3 - count :] if 1 <= count <= 3 else ""
        if not letters:
            raise UserError(f"given an input of {count} dimensions, wanted 1 to 3, at input")
        rows = [_each(name, size, count) for name, size in (("kernel", kernel), ("stride", stride))]
        rows += [_each(name, size, count) for name, size in (("padding", padding), ("dilation", dilation))]
        axes = list(zip(letters, input, *rows, strict=True))
        outputs = output or [cls.output_size(Axis(i, 0, k, s, p, d - 1)) for _, i, k, s, p, d in axes]
        sizes = "".join(
            f"i{a}{i}o{a}{o}k{a}{k}s{a}{s}p{a}{p}d{a}{d - 1}"
            for (a, i, k, s, p, d), o in zip(axes, _each("output", outputs, count))
        )
        group = f"g{groups}" if groups != 1 else ""
        return cls.parse(f"{group}mb{mb}ic{ic}oc{oc}{sizes}", **arguments)

    @classmethod
    def of(cls, line: str, knobs: Mapping[str, str]) -> Self:
        """Return the problem of a driver line, whose knobs win over `knobs`. Raises as `parse` does."""
        given, text = options.split_line(line, cls.driver)
        values = options.read(cls.driver, {**knobs, **given})
        scanned = grammar.scan(text)
        sizes = {"g": 1, "mb": 2, "ic": 0, "oc": 0, **scanned.values}
        axes, ndims = _axes(scanned, cls)
        kind, fields = _kind(cls, fields_of(values))
        problem = kind(
            mb=values["mb"] or sizes["mb"],
            ic=sizes["ic"],
            oc=sizes["oc"],
            axes=axes,
            ndims=ndims,
            groups=sizes["g"],
            has_groups="g" in scanned.values,
            direction=Direction(values["dir"]),
            name=scanned.name,
            **fields,
        )
        _check_channels(problem, scanned)
        return with_checked_layouts(_with_bias(problem, values["bia-dt"]))

    @staticmethod
    def output_size(axis: Axis) -> int:
        """Return the output size of an axis whose input size and padding are given."""
        return _truncate(axis.i - axis.extent + 2 * axis.p, axis.s) + 1

    @staticmethod
    def left_padding(axis: Axis) -> int:
        """Return the left padding of an axis whose output size is given."""
        return _truncate((axis.o - 1) * axis.s - axis.i + axis.extent, 2)

    @property
    def convolution(self) -> Conv:
        """Return the convolution whose sums these are; `of_roles` names its tensors and channels."""
        return self

    @property
    def spatial(self) -> tuple[Axis, ...]:
        """The axes that the problem has, outermost first."""
        return self.axes[5 - self.ndims :]

    @property
    def src_dims(self) -> tuple[int, ...]:
        """[mb, ic, spatial...]"""
        return (self.mb, self.ic, *(axis.i for axis in self.spatial))

    @property
    def wei_dims(self) -> tuple[int, ...]:
        """[groups,] oc and ic of one group, spatial..."""
        groups = (self.groups,) if self.has_groups else ()
        return (*groups, self.oc // self.groups, self.ic // self.groups, *(axis.k for axis in self.spatial))

    @property
    def dst_dims(self) -> tuple[int, ...]:
        """[mb, oc, spatial...]"""
        return (self.mb, self.oc, *(axis.o for axis in self.spatial))

    @property
    def bias_dims(self) -> tuple[int, ...]:
        """[oc]"""
        return (self.oc,)

    @property
    def runtime(self) -> tuple[str, ...]:
        return unknown_dims(self, ("mb",))

    @property
    def any_tags(self) -> Triple:
        return _ANY, _ANY_GROUPED if self.has_groups else _ANY, _ANY

    @property
    def tensor_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return _TENSORS[self.direction]

    def policies(self, role: str) -> Mapping[str, int]:
        """Return the masks of policies: output channels are the first dim of weights after the groups."""
        if role != "wei":
            return {}
        return {"per_oc": 0b11, "per_ocic": 0b110} if self.has_groups else {"per_oc": 0b1}

    @property
    def macs(self) -> int:
        """The number of multiply-accumulates, padding included."""
        return prod(self.dst_dims) * (self.ic // self.groups) * prod(axis.k for axis in self.axes)

    @property
    def knob_texts(self) -> dict[str, str]:
        """Return the value of each knob; a direction with a bias needs no bias type if it is that of the sums."""
        if not self.bias_type:
            return {"dir": self.direction.value, **super().knob_texts}
        without = next(d for d in _WITH_BIAS if d.with_bias is self.direction)
        return {"dir": without.value, "bia-dt": self.bias_type, **super().knob_texts}

    @property
    def descriptor(self) -> str:
        """The canonical descriptor without knobs: outputs explicit, square axes once."""
        groups = f"g{self.groups}" if self.has_groups else ""
        shown = self.spatial[:1] if len(set(self.spatial)) == 1 else self.spatial
        shapes = "_".join(_axis_text(axis, name) for axis, name in zip(shown, "dhw"[5 - self.ndims :]))
        name = f'_n"{self.name}"' if self.name else ""
        return f"{groups}mb{self.mb}_ic{self.ic}oc{self.oc}_{shapes}{name}"


_ConvT = TypeVar("_ConvT", bound=Conv)


def _kind(kind: type[_ConvT], fields: dict[str, Any]) -> tuple[type[_ConvT], dict[str, Any]]:
    """Return the kind of a convolution with these fields, and its fields.

    It is fused if a post-op is a depthwise convolution, whose scales are then among its own.
    """
    if not any(isinstance(op, Depthwise) for op in fields["post_ops"]):
        return kind, fields
    from convgen.problem.fused_conv import FusedConv  # which imports this module

    others = dict(fields["others"])
    text = others.get("attr-scales", "")
    if text and not scales.refused_beside_dw(text):
        del others["attr-scales"]
        fields = {**fields, "scales": scales.read(text), "others": tuple(others.items())}
    return cast("type[_ConvT]", FusedConv), fields


def _with_bias(problem: _ConvT, dtype: str) -> _ConvT:
    """The problem with a bias of a type, if its direction has none and can have one."""
    direction = problem.direction.with_bias
    if dtype == "undef" or direction is problem.direction:
        return problem
    return evolve(problem, direction=direction, bias_type="" if dtype == problem.acc_type else dtype)


def _axes(scanned: grammar.Descriptor, kind: type[Conv]) -> tuple[tuple[Axis, Axis, Axis], int]:
    """The d, h, w axes with benchdnn's defaults, and the tensor dimensions they make (3, 4 or 5)."""
    d, h, w = (_axis(scanned, name, kind) for name in "dhw")
    if d is not None and (h is None) != (w is None):
        there, missing = ("w", "h") if h is None else ("h", "w")
        raise scanned.error(f"given axes d and {there} but not {missing}, wanted all three or d alone", "id", "kd")
    if d is not None:
        return (d, h or d, w or d), 5
    if h is not None:
        return (Axis(), h, w or h), 4
    if w is not None:
        return (Axis(), Axis(), w), 3
    raise scanned.error("given no spatial axis, wanted at least iw and kw")


def _axis(scanned: grammar.Descriptor, axis: str, kind: type[Conv]) -> Axis | None:
    """One axis by benchdnn's rules for a kind of problem; None if the descriptor does not have it."""
    i, o, k, d = (scanned.values.get(key + axis, 0) for key in "iokd")
    s, p = scanned.values.get("s" + axis, 1), scanned.values.get("p" + axis)
    if s < 1:
        raise scanned.error(f"given s{axis} of 0, wanted at least 1", "s" + axis)
    if not any((i, o, k, d)) and s == 1 and not p:
        return None
    for key, value in (("i", i), ("k", k)):
        if value < 1:
            present = [name + axis for name in "iokspd"]
            raise scanned.error(f"given axis {axis} without {key}{axis}, wanted at least 1", key + axis, *present)
    if not o:
        p = p or 0
        o = kind.output_size(Axis(i, 0, k, s, p, d))
        if o < 1:
            raise scanned.error(f"given sizes that make o{axis} {o}, wanted at least 1", "i" + axis)
    elif p is None:
        p = kind.left_padding(Axis(i, o, k, s, 0, d))
    return Axis(i, o, k, s, p, d)


def _truncate(numerator: int, divisor: int) -> int:
    """Divide integers, rounding toward zero as C does; the divisor is positive."""
    return numerator // divisor if numerator >= 0 else -(-numerator // divisor)


def _axis_text(axis: Axis, name: str) -> str:
    """Canonical text of an axis; a negative padding can only be deduced, so it is left out."""
    fields = [("i", axis.i), ("o", axis.o), ("k", axis.k)]
    fields += [("s", axis.s)] if axis.s != 1 else []
    fields += [("d", axis.d)] if axis.d else []
    fields += [("p", axis.p)] if axis.p >= 0 else []
    return "".join(f"{field}{name}{value}" for field, value in fields)


def _check_channels(problem: Conv, scanned: grammar.Descriptor) -> None:
    for key, size in (("g", problem.groups), ("ic", problem.ic), ("oc", problem.oc)):
        if size < 1:
            given = f"{key} of 0" if key in scanned.values else f"no {key}"
            raise scanned.error(f"given {given}, wanted at least 1", key)
    for key, size in (("ic", problem.ic), ("oc", problem.oc)):
        if size % problem.groups:
            raise scanned.error(f"given {key}{size} and g{problem.groups}, wanted a multiple of the groups", key)
