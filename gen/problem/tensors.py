"""The base of convolutions and matrix multiplications: tensors by role, their types, layouts and attributes.

The roles are src, wei and dst. A tensor has its role's type and layout; `diff_` before a role names its gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self, TypeVar

from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported, UserError
from convgen.ir.layout.digits import Space
from convgen.ir.layout.tags import Layout
from convgen.ir.record import frozen
from convgen.ir.types import scalar
from convgen.problem import attribute_masks as masks
from convgen.problem import grammar, options, post_ops, scales, zero_points
from convgen.problem.post_ops import Binary, Operand, PostOp, Prelu, Sum
from convgen.problem.scales import Scale
from convgen.problem.zero_points import ZeroPoint

Triple = tuple[str, str, str]

_BIAS = "bia"
_INTEGERS = ("s8", "u8", "s4", "u4")
_BYTE_FLOATS = ("f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz")
_NARROW_FLOATS = ("f16", "bf16", *_BYTE_FLOATS)


@frozen
class TensorSpec:
    """A tensor of a problem: its name, where its elements lie, and their type by benchdnn's name."""

    name: str
    layout: Layout
    dtype: str

    @property
    def dims(self) -> tuple[int, ...]:
        """The logical size."""
        return self.layout.dims


ProblemT = TypeVar("ProblemT", bound="TensorProblem")


@frozen(slots=False, kw_only=True)
class TensorProblem(ABC):
    """The types and layouts of src, wei and dst, and the attributes. Equal problems print and hash alike.

    A tag is kept as given; a stride list such as `3200x1x160x16` takes its place. `others` maps names of options to
    values that are not generated: such a problem can be printed, and is refused when it is built.
    """

    driver: ClassVar[str]  #: benchdnn's

    src_type: str = "f32"
    wei_type: str = "f32"
    dst_type: str = "f32"
    stag: str = "any"
    wtag: str = "any"
    dtag: str = "any"
    deterministic: bool = False  #: whether two runs must give the same bits
    acc_mode: str = "strict"  #: "relaxed" where sums may have fewer bits than their type
    fpmath: str = "strict"  #: to which type f32 inputs may be rounded before they are multiplied
    fpmath_ints: bool = False  #: whether integers may be multiplied so, too
    scales: tuple[Scale, ...] = ()  #: factors of sums before a bias (src, wei), divisor of results (dst)
    zero_points: tuple[ZeroPoint, ...] = ()  #: at most one of each of src, wei and dst
    post_ops: tuple[PostOp, ...] = ()  #: operations on a sum with its bias, in order
    bias_type: str = ""  #: type of a bias; "" for that of the sums
    runtime_masks: tuple[int, ...] = ()  #: bits of the dims of src, then of the weights, that are known at launch only
    name: str = ""
    others: tuple[tuple[str, str], ...] = ()

    @classmethod
    @abstractmethod
    def of(cls, line: str, knobs: Mapping[str, str]) -> Self:
        """Return the problem of a driver line, whose knobs win over `knobs`. Raises UserError, Unsupported."""

    @classmethod
    def of_arguments(cls, desc: str, arguments: Mapping[str, object]) -> Self:
        """Return the problem of a descriptor and arguments of Python. Raises OptionError, which names arguments."""
        try:
            return cls.of(desc, options.of_arguments(cls.driver, arguments))
        except options.OptionError as error:
            raise (error if error.flag in desc else error.of_argument()) from None

    @property
    @abstractmethod
    def runtime(self) -> tuple[str, ...]:
        """The names of the dims that are known at launch only; the problem's are the largest. Raises Unsupported."""

    @property
    @abstractmethod
    def src_dims(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def wei_dims(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def dst_dims(self) -> tuple[int, ...]: ...

    @property
    @abstractmethod
    def bias_dims(self) -> tuple[int, ...]:
        """The logical size of a bias, if there is one."""

    @property
    @abstractmethod
    def any_tags(self) -> Triple:
        """Return the tags by which `any` is replaced, for src, wei and dst."""

    @property
    @abstractmethod
    def tensor_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tensors that are read, factors first, and those that are written."""

    @abstractmethod
    def policies(self, role: str) -> Mapping[str, int]:
        """The masks that policies mean for a role, where they are not those of the destination."""

    @property
    @abstractmethod
    def macs(self) -> int:
        """Multiply-accumulates, those with padding included."""

    @property
    @abstractmethod
    def descriptor(self) -> str:
        """The canonical descriptor without knobs."""

    @cached_property
    def src_layout(self) -> Layout:
        return _layout("strides of src", "stag", self.stag, self.any_tags[0], self.src_dims)

    @cached_property
    def wei_layout(self) -> Layout:
        return _layout("strides of wei", "wtag", self.wtag, self.any_tags[1], self.wei_dims)

    @cached_property
    def dst_layout(self) -> Layout:
        return _layout("strides of dst", "dtag", self.dtag, self.any_tags[2], self.dst_dims)

    @property
    def acc_type(self) -> str:
        """The type in which products are summed: s32 if both factors are 8-bit integers."""
        types = self._types
        factors = [types[name.removeprefix("diff_")] for name in self.tensor_names[0][:2]]
        if all(name in _INTEGERS for name in factors):
            return "s32"
        return "f64" if "f64" in types.values() else "f32"

    @property
    def result_type(self) -> str:
        """The type in which sums become results: f32 for integer sums that become narrow floats or are processed."""
        inputs, (output, *_) = self.tensor_names
        narrow = self._types[output.removeprefix("diff_")] in _NARROW_FLOATS
        is_processed = self.scales or self.post_ops or self.zero_point("dst") or narrow
        is_sum = not is_processed and (_BIAS not in inputs or not self.bias_type or scalar(self.bias_type).is_int)
        return self.acc_type if is_sum or self.acc_type != "s32" else "f32"

    @property
    def _types(self) -> dict[str, str]:
        return {"src": self.src_type, "wei": self.wei_type, "dst": self.dst_type}

    @property
    def step_dims(self) -> tuple[int, ...]:
        """Return the size that the operands of post-ops follow: that of dst."""
        return self.dst_dims

    def size(self, role: str) -> tuple[int, ...]:
        """The logical size of src, wei or dst."""
        return {"src": self.src_dims, "wei": self.wei_dims, "dst": self.dst_dims}[role]

    def tensor(self, name: str) -> TensorSpec:
        """The tensor of a name; a bias is dense."""
        if name in self._attribute_tensors:
            return self._attribute_tensors[name]
        role = name.removeprefix("diff_")
        if role == _BIAS:
            return TensorSpec(name, _dense(self.bias_dims), self.bias_type or self.acc_type)
        layouts = {"src": self.src_layout, "wei": self.wei_layout, "dst": self.dst_layout}
        return TensorSpec(name, layouts[role], self._types[role])

    @cached_property
    def _attribute_tensors(self) -> dict[str, TensorSpec]:
        """Return the tensors that scales, post-ops and zero points read, by name."""
        points = (p for p in self.zero_points if not p.is_known)
        shifts = (TensorSpec(p.name, _dense(self.point_dims(p)), p.dtype) for p in points)
        return {spec.name: spec for spec in (*self._scale_tensors(), *self._post_op_tensors(), *shifts)}

    def zero_point(self, role: str) -> ZeroPoint | None:
        """Return the zero point of src, wei or dst, None if it is zero."""
        return next((point for point in self.zero_points if point.role == role), None)

    def point_dims(self, point: ZeroPoint) -> tuple[int, ...]:
        """The logical size of a tensor of zero points: that of its argument, 1 along dims where they are the same."""
        return point.dims(self.size(point.role), self._bits(point.role, point.mask))

    def spans(self, attribute: Scale | ZeroPoint) -> tuple[int, ...]:
        """Return how many neighbours along each dim of src, wei or dst share one scale or zero point.

        Along an axis that they do not divide, the last group is shorter.
        """
        bits = self._bits(attribute.role, attribute.mask)
        return masks.spans(self.size(attribute.role), bits, attribute.groups)

    def attribute(self, name: str) -> Scale | ZeroPoint | None:
        """Return the scale or the zero point whose tensor has this name, None for other tensors."""
        return next((each for each in self.attributes if each.name == name), None)

    @property
    def attributes(self) -> tuple[Scale | ZeroPoint, ...]:
        """The scales, then the zero points."""
        return *self.scales, *self.zero_points

    def _bits(self, role: str, mask: str) -> int:
        """The bits of a mask, or of a policy, over the dims of src, wei or dst."""
        return masks.bits(mask, len(self.size(role)), self.policies(role))

    def _scale_tensors(self) -> Iterator[TensorSpec]:
        for scale in self.scales:
            dims = scale.dims(self.size(scale.role), self._bits(scale.role, scale.mask))
            if not scale.is_known:
                yield TensorSpec(scale.name, _dense(dims), scale.dtype)

    def _post_op_tensors(self) -> Iterator[TensorSpec]:
        for n, op in enumerate(self.post_ops):
            for ending, operand in op.operands.items() if isinstance(op, Binary | Prelu) else ():
                yield TensorSpec(post_ops.operand_name(n, ending), self._operand_layout(operand), operand.dtype)

    def _operand_layout(self, operand: Operand) -> Layout:
        """Return an operand's layout: its tag or strides, else the destination's, without blocks if it broadcasts."""
        dims, tag = operand.dims(self.step_dims), operand.strides or operand.tag
        is_like_destination = not grammar.is_strides(self.dtag) and (self.dst_layout.is_plain or dims == self.dst_dims)
        default = self.dtag if is_like_destination and self.dtag != "any" else self.any_tags[2]
        return _layout("attr-post-ops", "attr-post-ops", tag, default, dims)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the tensors that kernels read: factors, bias, a destination to add to, operands of post-ops."""
        adds = any(isinstance(op, Sum) for op in self.post_ops)
        tensors = map(self.tensor, (*self.tensor_names[0], *(("dst",) if adds else ())))
        computed = {spec.name for spec in self._computed_scales}
        return (*tensors, *(spec for name, spec in self._attribute_tensors.items() if name not in computed))

    @property
    def factors(self) -> tuple[TensorSpec, ...]:
        """The two tensors that are multiplied."""
        return self.inputs[:2]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Return the tensors that kernels write."""
        return (*map(self.tensor, self.tensor_names[1]), *self._computed_scales)

    @property
    def _computed_scales(self) -> tuple[TensorSpec, ...]:
        """Return the tensors of scales that the result decides."""
        return tuple(self._attribute_tensors[scale.name] for scale in self.scales if scale.is_dynamic)

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors, inputs first."""
        return tuple(dict.fromkeys(self.inputs + self.outputs))

    @property
    def is_empty(self) -> bool:
        """Whether no output has an element, so that there is nothing to compute."""
        return all(0 in output.dims for output in self.outputs)

    @property
    def runtime_masks_text(self) -> str:
        """`runtime_dims_masks` as a driver line gives them."""
        return ":".join(map(str, self.runtime_masks))

    @property
    def given_sizes(self) -> str:
        """Return the words of a refusal for sizes that are known at launch only."""
        return f"given runtime_dims_masks {self.runtime_masks_text}"

    @property
    def knob_texts(self) -> dict[str, str]:
        """The value of each knob, as a driver line gives it."""
        types, tags = (self.src_type, self.wei_type, self.dst_type), (self.stag, self.wtag, self.dtag)
        strides = [tag if grammar.is_strides(tag) else "" for tag in tags]
        tags_and_strides = zip(("stag", "wtag", "dtag"), tags, strides)
        return {
            "dt": types[0] if len(set(types)) == 1 else ":".join(types),
            **{knob: "any" if listed else tag for knob, tag, listed in tags_and_strides},
            "strides": ":".join(strides) if any(strides) else "",
            "runtime_dims_masks": self.runtime_masks_text,
            "attr-deterministic": str(self.deterministic).lower(),
            "attr-acc-mode": self.acc_mode,
            "attr-fpmath": f"{self.fpmath}:true" if self.fpmath_ints else self.fpmath,
            "attr-scales": "+".join(map(str, self.scales)),
            "attr-zero-points": "+".join(map(str, self.zero_points)),
            "attr-post-ops": "+".join(map(str, self.post_ops)),
            **dict(self.others),
        }

    @property
    def knobs(self) -> str:
        """The driver's knobs that differ from benchdnn's defaults."""
        spelled, texts = options.SPELLED[self.driver], self.knob_texts.items()
        return " ".join(f"--{knob}={text}" for knob, text in texts if text != spelled[knob].default)

    def __str__(self) -> str:
        """Return one replayable line: parsed again, it gives an equal problem."""
        return f"{self.knobs} {self.descriptor}".lstrip()


def fields_of(knobs: options.Knobs) -> dict[str, Any]:
    """Return the fields of a TensorProblem, without its name, from the values of knobs. Raises UserError."""
    src, wei, dst = knobs["dt"]
    tags = {}
    for knob, role, listed in zip(("stag", "wtag", "dtag"), ("src", "wei", "dst"), knobs["strides"]):
        tag = knobs[knob]
        if listed and tag != "any":
            message = f"given {tag} and strides of {role}, wanted one of them"
            raise options.Misfit(message, knob, tag, 0, rule="tag-and-strides")
        tags[knob] = listed or (grammar.plain_strides(tag) if grammar.is_strides(tag) else tag)
    others = dict(knobs.others)
    return {
        "src_type": src,
        "wei_type": wei,
        "dst_type": dst,
        **tags,
        "deterministic": knobs["attr-deterministic"],
        "acc_mode": "strict" if "attr-acc-mode" in others else _acc_mode(knobs["dt"], knobs["attr-acc-mode"]),
        "fpmath": knobs["attr-fpmath"][0],
        "fpmath_ints": knobs["attr-fpmath"][1],
        "runtime_masks": knobs["runtime_dims_masks"],
        "others": knobs.others,
        "scales": () if "attr-scales" in others else scales.read(knobs["attr-scales"]),
        "zero_points": () if "attr-zero-points" in others else zero_points.read(knobs["attr-zero-points"]),
        "post_ops": () if "attr-post-ops" in others else post_ops.read(knobs["attr-post-ops"]),
    }


def _acc_mode(dtypes: Triple, mode: str) -> str:
    """Return the accumulation mode: strict without 8-bit floats, since only their instructions shorten sums."""
    return mode if {*dtypes} & {*_BYTE_FLOATS} else "strict"


def unknown_dims(problem: TensorProblem, *names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of dims whose bits are set in the masks, in `names` by tensor; Unsupported for other bits."""
    names_of_dims: dict[str, None] = {}
    for n, mask in enumerate(problem.runtime_masks):
        dims = names[n] if n < len(names) else ()
        for bit in (bit for bit in range(mask.bit_length()) if mask >> bit & 1):
            if bit >= len(dims) or not dims[bit]:
                options.SPELLED[problem.driver]["runtime_dims_masks"].refuse(problem.runtime_masks_text)
            names_of_dims[dims[bit]] = None
    return tuple(names_of_dims)


def refuse_others(problem: TensorProblem) -> None:
    """Raise Unsupported for the first option at a value that is not generated."""
    for name, text in problem.others:
        options.SPELLED[problem.driver][name].refuse(text)


def check_outputs(problem: TensorProblem) -> None:
    """Raise UserError for a problem without outputs, for commands that show its kernels."""
    if problem.is_empty:
        raise UserError(f"given the empty problem {problem.descriptor}, wanted outputs to compute")


def with_checked_layouts(problem: ProblemT) -> ProblemT:
    """Return the problem; check its layouts. Raises UserError for a wrong tag, Unsupported for another rank."""
    _ = problem.tensors
    return problem


def _dense(dims: tuple[int, ...]) -> Layout:
    return Layout.dense(dims, tuple(range(len(dims))))


@lru_cache(maxsize=2**12)
def _layout(strides_name: str, knob: str, tag: str, default: str, dims: tuple[int, ...]) -> Layout:
    """Return the layout of a tag, where `any` means `default`, or of a stride list, called `strides_name` in errors."""
    if tag == "undef":
        raise Unsupported(f"given {knob} undef, wanted a layout or any: it is not deduced", rule="undef-tag")
    try:
        layout = Layout.from_tag(default if tag == "any" else tag, dims)
    except PointedError as error:
        if grammar.tag_ranks(tag):
            raise options.Misfit(error.message, knob, error.text, error.column, rule="tag-rank") from None
        raise options.OptionError(error.message, knob, error.text, error.column) from None
    except UserError as error:
        raise options.Misfit(str(error), strides_name, tag, len(tag), rule="strides-rank") from None
    if grammar.is_strides(tag):
        _check_apart(layout, tag, strides_name)
    return layout


def _check_apart(layout: Layout, strides: str, where: str) -> None:
    """Refuse strides with which elements could overlap: a stride within the reach of the smaller ones."""
    overlap = layout.digits.overlap(Space.MEMORY) if layout.size_elems else None
    if overlap is not None:
        digit, reach = overlap
        column = sum(len(stride) + 1 for stride in strides.split("x")[: layout.digits.dims.index(digit.dim)])
        message = f"given the stride {digit.stride}, wanted at least {reach}, past what the smaller strides reach,"
        raise options.Misfit(message, where, strides, column, rule="strides-overlap")
