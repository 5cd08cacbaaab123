"""The grammar of benchdnn's attributes: post-ops, scales, zero points, rounding, dropout, sparsity and groups.

Each function takes an option's value and returns it normalised, "" for a value that equals the default. It raises
PointedError at the character that the grammar does not allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import ClassVar

from convgen.ir.caret import PointedError
from convgen.ir.error import named
from convgen.ir.layout.tags import STRIDES
from convgen.ir.record import define
from convgen.problem import attribute_masks, eltwise, grammar
from convgen.problem.attribute_masks import SINGLE

DEPTHWISE = "attr_post_op_dw_"  #: prefix of the tensors of a depthwise convolution that is a post-op
_ARGUMENTS = ("src", "src0", "src1", "wei", "dst", f"{DEPTHWISE}dst", f"{DEPTHWISE}wei")
_POLICIES = (
    *SINGLE,
    *("mx", "dynamic_fp", "per_oc", "per_ocic", "per_dim_0", "per_dim_1", "per_dim_01", "per_dim_2", "per_dim_3"),
    "per_tensor",
)
_BINARY = ("add", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "select", "sub")

#: every spelling of a post-op, in lower case -> its kind
KINDS = {
    "sum": "sum",
    "dw": "dw",
    "glu": "glu",
    "prelu": "prelu",
    "srelu": "eltwise",
    **{spelled: "eltwise" for name in eltwise.FUNCTIONS for spelled in (name, f"eltwise_{name}")},
    **{spelled: "eltwise" for name in eltwise.OF_DST for spelled in (f"{name}_dst", f"eltwise_{name}_use_dst_for_bwd")},
    **{spelled: "binary" for name in _BINARY for spelled in (name, f"binary_{name}")},
}

INTERLEAVED = "interleaved"
#: Orders of a gated linear unit's columns: all of the gate first, as vLLM and AITER store w13, or each before the one
#: of up, as in gpt-oss.
GLU_ORDERS = ("halves", INTERLEAVED)

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?f?|[+-]?(inf|nan)")
_DEPTHWISE = re.compile(r"k[1-9][0-9]{0,8}s[1-9][0-9]{0,8}p[0-9]{1,9}")
_OLD_DEPTHWISE = re.compile(r"dw_k3s[12]p1")  #: spelling of benchdnn before 2.1
_SOURCE = re.compile(r"msrc[0-9]{1,4}")
_PAIR = re.compile(r"[1-9][0-9]{0,17}x[1-9][0-9]{0,17}")
_MASKS = re.compile(r"[0-9]{0,9}(:[0-9]{0,9})*")


@define
class _Field:
    """A part of a value, and the column at which it begins."""

    whole: str
    text: str
    column: int

    def split(self, delimiter: str) -> list[_Field]:
        """The parts between delimiters; none may dangle at the end."""
        parts, column = list[_Field](), self.column
        for part in self.text.split(delimiter):
            parts.append(_Field(self.whole, part, column))
            column += len(part) + len(delimiter)
        if len(parts) > 1 and not parts[-1].text:
            raise parts[-1].error(f"given nothing after {delimiter!r}, wanted something")
        return parts

    def error(self, message: str) -> PointedError:
        return PointedError(message, self.whole, self.column)

    def matches(self, pattern: re.Pattern[str], wanted: str) -> None:
        if not pattern.fullmatch(self.text):
            raise self.error(f"given {self.text!r}, wanted {wanted}")

    def real(self) -> float:
        self.matches(_REAL, "a number")
        return real(self.text)

    def integer(self) -> int:
        self.matches(_INTEGER, "an integer")
        return int(self.text)

    def choose(self, what: str, *names: str) -> str:
        """Return the one of `names` that a field spells in any case. Raises PointedError."""
        text = self.text.lower()
        if text not in names:
            raise self.error(f"given the {what} {named(self.text, names)}, wanted one of {' '.join(names)}")
        return text

    def dtype(self) -> None:
        if not is_type(self.text):
            wanted = " ".join(grammar.DATA_TYPES)
            raise self.error(f"given the type {named(self.text, grammar.DATA_TYPES)}, wanted one of {wanted}")

    def tag(self) -> None:
        if self.text not in ("any", "undef", "grouped") and not grammar.tag_ranks(self.text):
            raise self.error(f"given the tag {self.text!r}, wanted any, undef or letters of dimensions such as acdb")

    def mask(self) -> bool:
        """A mask or a policy; whether it means one value for the whole tensor."""
        if self.text.isascii() and self.text.isdigit():
            return int(self.text) == 0
        return self.choose("policy", *_POLICIES) in SINGLE

    def flag(self) -> bool:
        return grammar.FLAGS[self.choose("flag", *grammar.FLAGS)]

    def groups(self) -> None:
        self.matches(_PAIR, "groups such as 1x32")

    def window(self) -> None:
        self.matches(_DEPTHWISE, "kernel, stride and padding such as k3s1p1")

    def glu_order(self) -> None:
        self.choose("order of gate and up", *GLU_ORDERS)

    def function(self) -> None:
        self.choose("function", *eltwise.FUNCTIONS)

    def strides(self) -> None:
        self.matches(STRIDES, "strides such as 64x8x1")

    def argument(self) -> None:
        if not (_SOURCE.fullmatch(self.text) or self.text in _ARGUMENTS):
            raise self.error(f"given {named(self.text, _ARGUMENTS)}, wanted one of {' '.join(_ARGUMENTS)}")


def _each(fields: list[_Field], checks: Sequence[Callable[[_Field], object]]) -> None:
    """Check fields one by one; trailing fields may be missing, more fields than checks are an error."""
    for field, check in zip(fields, checks):
        check(field)
    for field in fields[len(checks) :]:
        raise field.error(f"given {field.text!r}, wanted the end")


def scales(text: str) -> str:
    """`ARG:MASK[:SCALE][:TYPE[:GROUPS]][+...]`; a scale may stand where the mask means one value.

    A single scale that is not given is read from memory.
    """
    for fields in _quantities(text):
        if fields and not fields[0].real() >= 0:
            raise fields[0].error(f"given the scale {fields[0].text}, wanted one from 0")
    return text


def zero_points(text: str) -> str:
    """`ARG:MASK[:VALUE][:TYPE[:GROUPS]][+...]`; a value may stand where the mask means one.

    A single zero point that is not given is read from memory.
    """
    for fields in _quantities(text):
        if fields and not fields[0].real().is_integer():
            raise fields[0].error(f"given the zero point {fields[0].text}, wanted an integer")
    return text


def _quantities(text: str) -> Iterator[list[_Field]]:
    """Check the entries; yield the one value of each that has one."""
    for single, rest in _masked(text):
        has_value = single and rest and not is_type(rest[0].text)
        yield [rest.pop(0)] if has_value else []
        _each(rest, (_Field.dtype, _Field.groups))


def _masked(text: str) -> Iterator[tuple[bool, list[_Field]]]:
    """Entries `ARG:MASK...`: whether the mask means one value, and the fields after it."""
    for entry in _entries(text):
        argument, *rest = entry.split(":")
        argument.argument()
        if not rest:
            raise entry.error(f"given {entry.text!r} without a mask or a policy, wanted one")
        yield rest.pop(0).mask(), rest


def _entries(text: str) -> Iterator[_Field]:
    """The entries between plus signs; that of an exponent (`1e+10`) separates none."""
    if not text:
        return
    unfinished: _Field | None = None
    for part in _Field(text, text, 0).split("+"):
        joined = part if unfinished is None else _Field(text, f"{unfinished.text}+{part.text}", unfinished.column)
        unfinished = joined if re.search(r"[0-9.]e$", joined.text) else None
        if unfinished is None:
            yield joined
    if unfinished is not None:
        yield unfinished


def knob(name: str, entries: Iterable[str]) -> dict[str, str]:
    """Return the knob of scales or zero points from the entries of a log; no knob without entries."""
    text = "+".join(entries)
    return {name: text} if text else {}


def precomputed_reductions(text: str) -> str:
    """`ARG:MASK:TYPE:GROUPS[+...]`"""
    for _, rest in _masked(text):
        _each(rest, (_Field.dtype, _Field.groups))
    return text


def refused_reductions(text: str) -> str:
    """Return the rule that refuses precomputed reductions: those of another argument than src; "" if none does."""
    arguments = (entry.partition(":")[0].lower() for entry in split_entries(text))
    return "" if all(role(argument) == "src" for argument in arguments) else "precomputed-reductions"


def rounding_mode(text: str) -> str:
    """`ARG:MODE[:SEED][+...]`; `environment` is the default."""
    stochastic = False
    for entry in _entries(text):
        argument, *rest = entry.split(":")
        argument.argument()
        if rest:
            stochastic |= rest[0].choose("mode", "environment", "stochastic") == "stochastic"
        for seed in rest[1:2]:
            seed.integer()
    return text if stochastic else ""


def dropout(text: str) -> str:
    """`PROBABILITY[:SEED[:TAG[:OFFSET[:HOST_SCALARS]]]]`"""
    if not text:
        return ""
    probability, *rest = _Field(text, text, 0).split(":")
    if not 0 <= probability.real() <= 1:
        raise probability.error(f"given the probability {probability.text}, wanted 0 to 1")
    _each(rest, (_Field.integer, _Field.tag, _Field.integer, _Field.flag))
    return text


def post_ops(text: str) -> str:
    """`OP[:...][+...]`: sum, element-wise, binary, prelu, depthwise convolution or gated linear unit."""
    for entry in _entries(text):
        name, *fields = entry.split(":")
        spelled = name.text.lower()
        if _OLD_DEPTHWISE.fullmatch(spelled):
            _each(fields, _OPERANDS["dw"][1:])
            continue
        if spelled not in KINDS:
            raise name.error(f"given the post-op {named(name.text, KINDS)}, wanted one such as relu, sum or add")
        kind = "select" if spelled.endswith("select") else KINDS[spelled]
        count, wanted = _REQUIRED.get(kind, (0, ""))
        if len(fields) < count:
            raise name.error(wanted.format(name=name.text))
        _each(fields, _OPERANDS[kind])
    return text


def role(argument: str) -> str:
    """The tensor that an argument means."""
    return "src" if argument == "src0" else argument


def is_type(text: str) -> bool:
    """Whether a text names a data type."""
    return text.removeprefix("dnnl_") in grammar.DATA_TYPES


def typed(fields: Sequence[str]) -> tuple[str, tuple[int, ...]]:
    """The type, "" if none is given, and the groups of the fields `[TYPE[:GROUPS]]`; groups of one are none."""
    dtype, groups = (*fields, "", "")[:2]
    sizes = tuple(map(int, groups.split("x"))) if groups else ()
    return dtype.removeprefix("dnnl_"), sizes if prod(sizes) != 1 else ()


class Quantity:
    """The scale or zero point of src, wei or dst (`role`): a known `value`, or a tensor.

    The tensor differs along the dims of the mask; one whose mask has no bits holds one element, which the kernel
    reads. `groups` is the number of neighbours along each of the last dims that share an element.
    """

    default_type: ClassVar[str]
    role: str
    mask: str
    value: float | None
    dtype: str
    groups: tuple[int, ...]

    @property
    def is_known(self) -> bool:
        return self.value is not None

    def dims(self, size: tuple[int, ...], mask: int) -> tuple[int, ...]:
        """Return the sizes of the tensor of scales or zero points, for a quantised tensor of `size`."""
        return attribute_masks.dims(size, mask, self.groups)

    def __str__(self) -> str:
        value = [] if self.value is None else [number(self.value)]
        groups = "x".join(map(str, self.groups))
        is_one_element = not self.is_known and attribute_masks.is_single(self.mask)
        dtype = [self.dtype] if groups or self.dtype != self.default_type or is_one_element else []
        return ":".join([self.role, self.mask, *value, *dtype, *([groups] if groups else [])])


def split_entries(text: str) -> list[str]:
    """The texts between plus signs."""
    return [entry.text for entry in _entries(text)]


def kind_of(entry: str) -> str:
    """Return the kind of a post-op that `post_ops` took."""
    spelled = entry.partition(":")[0].lower()
    return "dw" if _OLD_DEPTHWISE.fullmatch(spelled) else KINDS[spelled]


def real(text: str) -> float:
    """Return the number of a text, which may have a suffix of C such as `f`."""
    return float(text if "inf" in text else text.removesuffix("f"))


def number(value: float) -> str:
    """Return the shortest text of a number."""
    return repr(value).removesuffix(".0")


def printed(fields: Sequence[str], defaults: Sequence[str], delimiter: str = ":") -> str:
    """Return fields as text without trailing ones that equal their defaults."""
    while fields and fields[-1] == defaults[len(fields) - 1]:
        fields = fields[:-1]
    return delimiter.join(fields)


def _dotted(*checks: Callable[[_Field], object]) -> Callable[[_Field], None]:
    """A field of parts that are separated by dots."""
    return lambda field: _each(field.split("."), checks)


#: Kind of a post-op -> the fields after its name.
_OPERANDS: dict[str, tuple[Callable[[_Field], object], ...]] = {
    "sum": (_Field.real, _Field.integer, _Field.dtype),  # sum[:SCALE[:ZERO_POINT[:TYPE]]]
    "eltwise": (_Field.real, _Field.real, _Field.real),  # NAME[:ALPHA[:BETA[:SCALE]]]
    "dw": (_Field.window, _Field.dtype),  # dw:kKsSpP[:TYPE]
    "binary": (_Field.dtype, _Field.mask, _Field.tag, _Field.strides),  # NAME:TYPE[:MASK[:TAG[:STRIDES]]]
    # The second tensor, then the condition: select:TYPE[.MASK[.TAG]][:MASK[.TAG]]
    "select": (_dotted(_Field.dtype, _Field.mask, _Field.tag), _dotted(_Field.mask, _Field.tag)),
    "prelu": (_Field.mask,),  # prelu[:MASK]
    # glu:ORDER:FUNCTION[:ALPHA[:BETA[:SCALE]]]
    "glu": (_Field.glu_order, _Field.function, _Field.real, _Field.real, _Field.real),
}
#: Kind of a post-op -> the number of fields that it requires, and the error if it has fewer.
_REQUIRED = {
    "dw": (1, "given dw alone, wanted dw:kKsSpP"),
    "binary": (1, "given {name} without a type, wanted {name}:TYPE"),
    "select": (1, "given select without a type, wanted select:TYPE"),
    "glu": (2, "given {name} without order or function, wanted one such as {name}:halves:swish:1"),
}


def fpmath(text: str) -> tuple[str, bool]:
    """`MODE[:APPLY_TO_INT]`"""
    mode, *rest = _Field(text, text, 0).split(":")
    chosen = mode.choose("mode", *grammar.FPMATH_MODES)
    _each(rest, (_Field.flag,))
    return chosen, bool(rest) and rest[0].flag()


def masks(text: str) -> tuple[int, ...]:
    """Bit masks of runtime dimensions, one a tensor, without zeros at the end."""
    _Field(text, text, 0).matches(_MASKS, "masks such as 1:2")
    bits = [int(mask or 0) for mask in text.split(":")]
    while bits and not bits[-1]:
        bits.pop()
    return tuple(bits)


def encoding(text: str) -> str:
    """`[ENCODING[+SPARSITY]]` of src, wei and dst."""
    if not text:
        return ""
    parts, column = list[_Field](), 0
    for part in text.split(":"):
        parts.append(_Field(text, part, column))
        column += len(part) + 1
    if len(parts) != 3:
        raise PointedError(f"given {len(parts)} encodings, wanted src:wei:dst", text, len(text))
    for each in filter(lambda part: part.text, parts):
        name, *sparsity = each.split("+")
        name.choose("encoding", "csr", "coo", "packed", "grouped", "undef")
        _each(sparsity, (_Field.real,))
    return text if text.strip(":") else ""


def grouped(text: str) -> str:
    """`DIM:COUNT:SIZE+SIZE...[:LARGEST]`: a product for each group, of sizes that differ along M (0) or K (1)."""
    if not text:
        return ""
    fields = _Field(text, text, 0).split(":")
    if len(fields) not in (3, 4):
        raise PointedError(f"given {len(fields)} parts, wanted DIM:COUNT:SIZES[:LARGEST]", text, len(text))
    fields[0].choose("dimension", "0", "1")
    sizes = fields[2].split("+")
    if fields[1].integer() != len(sizes):
        raise fields[2].error(f"given {len(sizes)} sizes, wanted {fields[1].text}")
    for size in (*sizes, *fields[3:]):
        if size.integer() < 0:
            raise size.error(f"given the size {size.text}, wanted one from 0")
    return text


def routing(text: str) -> str:
    """`gather:TOKENS[:TOPK]`, `scatter:TOKENS[:TOPK]` or both, joined by a plus sign: rows by number."""
    seen: list[str] = []
    for entry in _entries(text):
        kind, *sizes = entry.split(":")
        name = kind.choose("routing", "gather", "scatter")
        if name in seen or (name == "gather" and "scatter" in seen):
            raise entry.error(f"given {entry.text}, wanted gather, scatter or gather+scatter")
        if not 1 <= len(sizes) <= 2:
            raise entry.error(f"given {entry.text}, wanted {name}:TOKENS[:TOPK]")
        for size in sizes:
            if size.integer() < 1:
                raise size.error(f"given {size.text}, wanted at least 1")
        seen.append(name)
    return text
