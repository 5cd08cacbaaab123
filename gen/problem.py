"""Convolution problems: what is to be computed, in benchdnn's terms, with every default resolved.

Index law of each spatial axis: `i = o*s - p + k*(d + 1)`; what falls outside `0 <= i < I` contributes nothing.
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from math import prod

import attrs

from convgen import grammar
from convgen.ir.caret import PointedError
from convgen.ir.error import UserError
from convgen.ir.layout import Layout

#: what `any` means: activations channels-last, weights K-contiguous, without and with a group dimension
_ANY, _ANY_GROUPED = "axb", "abxc"


class Direction(Enum):
    """What is computed; benchdnn's names. `_B` directions carry a bias."""

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
    def has_bias(self) -> bool:
        return self.name.endswith("B")

    @classmethod
    def parse(cls, text: str) -> Direction:
        """The direction of that name, in any case."""
        return cls(grammar.choose("--dir", text, [direction.value for direction in cls]))


@attrs.frozen
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
        """The input positions that a dilated kernel spans."""
        return (self.k - 1) * (self.d + 1) + 1

    @property
    def pad_r(self) -> int:
        """Right padding: what the last window needs beyond the input; negative where an input tail is unused."""
        return (self.o - 1) * self.s - self.i + self.extent - self.p

    @property
    def is_trivial(self) -> bool:
        return self == Axis()


@attrs.frozen(slots=False)
class Conv:
    """A convolution. `ic` and `oc` count the channels of all groups; `axes` are d, h, w, absent ones trivial.

    `ndims` counts tensor dimensions without groups (3, 4 or 5). `has_groups` says whether the weights have a group
    dimension. Types are benchdnn's names; tags are as given. Equal problems print and hash alike.
    """

    mb: int
    ic: int
    oc: int
    axes: tuple[Axis, Axis, Axis]
    ndims: int
    groups: int = 1
    has_groups: bool = False
    direction: Direction = Direction.FWD_B
    src_type: str = "f32"
    wei_type: str = "f32"
    dst_type: str = "f32"
    stag: str = "any"
    wtag: str = "any"
    dtag: str = "any"
    name: str = ""

    @classmethod
    def parse(
        cls,
        desc: str,
        *,
        dir: str = "FWD_B",
        dt: str = "f32",
        stag: str = "any",
        wtag: str = "any",
        dtag: str = "any",
        mb: int | str = 0,
    ) -> Conv:
        """The problem of a benchdnn descriptor; knobs inside `desc` (`--dir=FWD_D mb1ic64...`) win over keywords.

        `mb` other than 0 overrides the descriptor's. Raises UserError: given, wanted, where.
        """
        given, text = grammar.split_line(desc, grammar.CONV_KNOBS)
        knobs = {"dir": dir, "dt": dt, "stag": stag, "wtag": wtag, "dtag": dtag, "mb": str(mb)} | given
        scanned = grammar.scan(text)
        sizes = {"g": 1, "mb": 2, "ic": 0, "oc": 0, **scanned.values}
        axes, ndims = _axes(scanned)
        src, wei, dst = grammar.parse_types(knobs["dt"])
        problem = cls(
            mb=grammar.parse_minibatch(knobs["mb"]) or sizes["mb"],
            ic=sizes["ic"],
            oc=sizes["oc"],
            axes=axes,
            ndims=ndims,
            groups=sizes["g"],
            has_groups="g" in scanned.values,
            direction=Direction.parse(knobs["dir"]),
            src_type=src,
            wei_type=wei,
            dst_type=dst,
            stag=knobs["stag"],
            wtag=knobs["wtag"],
            dtag=knobs["dtag"],
            name=scanned.name,
        )
        _check_channels(problem, scanned)
        _ = problem.src_layout, problem.wei_layout, problem.dst_layout  # a wrong tag is refused here
        return problem

    @property
    def spatial(self) -> tuple[Axis, ...]:
        """The axes that are there, outermost first."""
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

    @cached_property
    def src_layout(self) -> Layout:
        return tagged("--stag", self.stag, _ANY, self.src_dims)

    @cached_property
    def wei_layout(self) -> Layout:
        return tagged("--wtag", self.wtag, _ANY_GROUPED if self.has_groups else _ANY, self.wei_dims)

    @cached_property
    def dst_layout(self) -> Layout:
        return tagged("--dtag", self.dtag, _ANY, self.dst_dims)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute (a minibatch of 0)."""
        return self.mb == 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates, those with padding included."""
        return prod(self.dst_dims) * (self.ic // self.groups) * prod(axis.k for axis in self.axes)

    @property
    def flops(self) -> int:
        return 2 * self.macs

    @property
    def knobs(self) -> str:
        """The driver's knobs that differ from benchdnn's defaults."""
        direction = f"--dir={self.direction.value} " if self.direction is not Direction.FWD_B else ""
        types = (self.src_type, self.wei_type, self.dst_type)
        return (direction + grammar.tensor_knobs(types, (self.stag, self.wtag, self.dtag))).rstrip()

    @property
    def descriptor(self) -> str:
        """The canonical descriptor without knobs: outputs explicit, square axes once."""
        groups = f"g{self.groups}" if self.has_groups else ""
        shown = self.spatial[:1] if len(set(self.spatial)) == 1 else self.spatial
        shapes = "_".join(_axis_text(axis, name) for axis, name in zip(shown, "dhw"[5 - self.ndims :]))
        name = f'_n"{self.name}"' if self.name else ""
        return f"{groups}mb{self.mb}_ic{self.ic}oc{self.oc}_{shapes}{name}"

    def __str__(self) -> str:
        """One replayable line: `Conv.parse(str(problem)) == problem`."""
        return f"{self.knobs} {self.descriptor}".lstrip()


def _axes(scanned: grammar.Descriptor) -> tuple[tuple[Axis, Axis, Axis], int]:
    """The d, h, w axes with benchdnn's defaults, and the tensor dimensions they make (3, 4 or 5)."""
    d, h, w = (_axis(scanned, name) for name in "dhw")
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


def _axis(scanned: grammar.Descriptor, axis: str) -> Axis | None:
    """One axis by benchdnn's rules; None if the descriptor does not have it."""
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
    extent = Axis(k=k, d=d).extent
    if not o:
        p = p or 0
        o = _truncate(i - extent + 2 * p, s) + 1
        if not 0 < o < grammar.LIMIT:
            wanted = "1 to 2^31 - 1"
            raise scanned.error(f"given sizes that make o{axis} {o}, wanted {wanted}", "i" + axis)
    elif p is None:
        p = _deduced_padding(Axis(i, o, k, s, 0, d))
    return Axis(i, o, k, s, p, d)


def _deduced_padding(axis: Axis) -> int:
    """The left padding of an axis whose output size is given and whose padding is not."""
    return _truncate((axis.o - 1) * axis.s - axis.i + axis.extent, 2)


def _truncate(numerator: int, divisor: int) -> int:
    """C's integer division, towards zero, for a positive divisor."""
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


def tagged(knob: str, tag: str, default: str, dims: tuple[int, ...]) -> Layout:
    """The layout of a tag, where `any` means `default`; errors name the knob."""
    if tag == "undef":
        raise UserError(f"given {knob} undef, wanted a layout or any")
    try:
        return Layout.from_tag(default if tag == "any" else tag, dims)
    except PointedError as error:
        raise PointedError(f"{error.message} in {knob}", error.text, error.column) from None
