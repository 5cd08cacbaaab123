"""Post-ops: operations on a sum before it is stored, in benchdnn's words and as records.

An element-wise post-op is a function of one number: `gen/problem/eltwise.py` generates it, `gen/run/accuracy.py` has
its reference values and error bound. Binary post-ops and prelu read a tensor, which differs along the dims of the
destination that a mask names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from convgen.ir.record import frozen
from convgen.problem import attribute_masks, attributes, grammar
from convgen.problem.attributes import INTERLEAVED, number, printed, real

_ALIASES = {"srelu": "soft_relu"}


@frozen
class Eltwise:
    """`scale` times the function of a name."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    scale: float = 1.0

    def __str__(self) -> str:
        return printed([self.name, *map(number, (self.alpha, self.beta, self.scale))], ["", "0", "0", "1"])


@frozen
class Sum:
    """A sum: add `scale` times the destination's old value less a zero point, read as `dtype` if that is set."""

    scale: float = 1.0
    zero_point: int = 0
    dtype: str = ""

    def __str__(self) -> str:
        return printed(["sum", number(self.scale), str(self.zero_point), self.dtype], ["", "1", "0", ""])


@frozen
class Operand:
    """A tensor that a post-op reads: as long as the destination along the dims of a mask, of size 1 along the rest.

    Its layout is `tag`, unless that is `any`, or `strides`.
    """

    dtype: str
    mask: str = "common"
    tag: str = "any"
    strides: str = ""

    def dims(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Return the operand's size for a destination of `size`. Raises Unsupported."""
        return attribute_masks.dims(size, attribute_masks.bits(self.mask, len(size)))


@frozen
class Binary:
    """An operation on a number and an element of a tensor; a comparison gives 1 or 0.

    `select` has a second tensor, `condition`: it gives the number where that is not 0, else the element.
    """

    name: str
    operand: Operand
    condition: Operand | None = None

    def __str__(self) -> str:
        own = self.operand
        if self.condition is None:
            return printed([self.name, own.dtype, own.mask, own.tag, own.strides], ["", "", *_PLAIN])
        other = printed([self.condition.mask, self.condition.tag], [_WHOLE.mask, _WHOLE.tag], ".")
        return printed([self.name, printed([own.dtype, own.mask, own.tag], ["", *_PLAIN], "."), other], ["", "", ""])

    @property
    def operands(self) -> dict[str, Operand]:
        """Return the tensors that the step reads, by the end of their names."""
        return {"": self.operand, **({"_condition": self.condition} if self.condition else {})}


@frozen
class Prelu:
    """A prelu: multiply negative numbers by an element of a tensor."""

    operand: Operand = Operand("f32")

    def __str__(self) -> str:
        return printed(["prelu", self.operand.mask], ["", _PLAIN[0]])

    @property
    def operands(self) -> dict[str, Operand]:
        return {"": self.operand}


@frozen
class Depthwise:
    """A depthwise convolution of the result, with a square window; its result is of type `dtype`."""

    kernel: int
    stride: int
    padding: int  #: positions before the first one, along both axes
    dtype: str = "f32"

    def __str__(self) -> str:
        return printed([f"dw:k{self.kernel}s{self.stride}p{self.padding}", self.dtype], ["", "f32"])


@frozen
class Glu:
    """A gated linear unit (Shazeer, "GLU Variants Improve Transformer", 2020): function(gate) times up.

    The columns of the sums are those of gate and up, in an order of `GLU_ORDERS`; the result has half as many.
    """

    order: str
    function: Eltwise

    def __str__(self) -> str:
        return f"glu:{self.order}:{self.function}"

    @property
    def alternates(self) -> bool:
        """Return whether each column of the gate precedes its column of up; else those of the gate are first."""
        return self.order == INTERLEAVED


PostOp = Eltwise | Sum | Binary | Prelu | Depthwise | Glu

_WINDOW = re.compile(r"k(\d+)s(\d+)p(\d+)")
_PLAIN = ("common", "any", "")  #: default mask, tag and strides of an operand
_WHOLE = Operand("s8", "per_tensor")  #: default condition of a select
#: Types of operands that become f32 in a kernel.
_TYPES = ("f32", "f16", "bf16", "s32", "s8", "u8", "f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz")


def operand_name(number: int, ending: str) -> str:
    """Return the name of the tensor argument that post-op `number` reads."""
    return f"post_op_{number}{ending}"


def read(text: str) -> tuple[PostOp, ...]:
    """The post-ops of a text that `attributes.post_ops` took, of kinds that are generated."""
    return tuple(_READERS[_kind(entry)](entry) for entry in attributes.split_entries(text))


def refused(text: str) -> str:
    """The rule by which a text is refused, that of the kind of the first that is not generated; "" if all are."""
    return next((f"post-op-{_kind(e)}" for e in attributes.split_entries(text) if not _is_generated(e)), "")


def refused_beside(*kinds: str) -> Callable[[str], str]:
    """Return a function to the rule by which `refused` refuses a text, or a post-op of `kinds`; "" if none does."""

    def rule(text: str) -> str:
        if name := refused(text):
            return name
        found = {_kind(entry) for entry in attributes.split_entries(text)}
        return next((f"post-op-{kind}" for kind in kinds if kind in found), "")

    return rule


def _is_generated(entry: str) -> bool:
    if _kind(entry) not in _READERS:
        return False
    op = _READERS[_kind(entry)](entry)
    if isinstance(op, Binary):
        return op.operand.dtype in _TYPES
    if isinstance(op, Glu):
        return _is_generated(str(op.function))
    return not isinstance(op, Eltwise) or op.name != "soft_relu" or op.alpha != 0


def _kind(entry: str) -> str:
    return attributes.kind_of(entry)


def _eltwise(entry: str) -> Eltwise:
    spelled, *fields = entry.split(":")
    name = spelled.lower().removeprefix("eltwise_").removesuffix("_use_dst_for_bwd").removesuffix("_dst")
    return Eltwise(_ALIASES.get(name, name), *map(real, fields))


def _sum(entry: str) -> Sum:
    scale, zero_point, dtype = (*entry.split(":")[1:], "", "", "")[:3]
    return Sum(real(scale or "1"), int(zero_point or "0"), dtype.removeprefix("dnnl_"))


def _binary(entry: str) -> Binary:
    spelled, *fields = entry.split(":")
    name = spelled.lower().removeprefix("binary_")
    if name != "select":
        return Binary(name, _operand(fields))
    other = [_WHOLE.dtype, *fields[1].split(".")] if len(fields) > 1 else []
    return Binary(name, _operand(fields[0].split(".")), _operand(other) if other else _WHOLE)


def _prelu(entry: str) -> Prelu:
    return Prelu(_operand(["f32", *entry.split(":")[1:]]))


def _depthwise(entry: str) -> Depthwise:
    window, dtype = _WINDOW.search(entry), entry.rpartition(":")[2]
    assert window is not None  # `attributes.post_ops` took the text
    kernel, stride, padding = map(int, window.groups())
    return Depthwise(kernel, stride, padding, dtype.removeprefix("dnnl_") if attributes.is_type(dtype) else "f32")


def _glu(entry: str) -> Glu:
    _, order, function = entry.split(":", 2)
    return Glu(order.lower(), _eltwise(function))


def _operand(fields: Sequence[str]) -> Operand:
    """Parse an operand: type, mask, tag, strides; all but the type may be missing."""
    dtype, mask, tag, strides = (*fields, "", "", "")[:4]
    mask = str(int(mask)) if mask.isdigit() else mask.lower()
    listed = strides and grammar.plain_strides(strides)
    return Operand(dtype.removeprefix("dnnl_"), mask or _PLAIN[0], tag or _PLAIN[1], listed)


_READERS: dict[str, Callable[[str], PostOp]] = {
    "eltwise": _eltwise,
    "sum": _sum,
    "binary": _binary,
    "prelu": _prelu,
    "dw": _depthwise,
    "glu": _glu,
}
