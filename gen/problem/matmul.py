"""Matrix multiplication problems, in benchdnn's terms: dst[m, n] = sum over k of src[m, k] * wei[k, n]."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import ClassVar, Unpack

from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported, UserError
from convgen.ir.layout.tags import LETTERS, Layout
from convgen.ir.record import frozen
from convgen.problem import attribute_masks, grammar, options
from convgen.problem.conv import Conv
from convgen.problem.deconv import Deconv
from convgen.problem.fused_conv import FusedConv
from convgen.problem.grouping import OFFSETS, Grouping
from convgen.problem.knobs import MatmulKnobs
from convgen.problem.post_ops import Glu
from convgen.problem.routing import IDS, Routing
from convgen.problem.scales import Scale
from convgen.problem.tensors import TensorProblem, TensorSpec, Triple, fields_of, unknown_dims, with_checked_layouts

#: role -> the names of the rows and columns of its matrices
MATRICES = {"src": "mk", "wei": "kn", "dst": "mn"}
OUTPUTS = "h"  #: name of dst's columns after a gated linear unit, half as many as the product's

DIM_OF_K = {"src": -1, "wei": -2}  #: factor -> its dim that is summed


@frozen(slots=False)
class Matmul(TensorProblem):
    """A product of two matrices, or of a batch of them: batch dimensions precede those of the matrices.

    `m` counts the rows of the product; with a routing, src or the result has rows of its own.

    With a `grouping` of M the weights have a matrix for each group, with one of K the result has: [group, ...].
    """

    driver: ClassVar[str] = options.MATMUL

    m: int
    k: int
    n: int
    src_batch: tuple[int, ...] = ()
    wei_batch: tuple[int, ...] = ()
    bias_mask: int = 0  #: bits of the dims of dst along which a bias differs
    grouping: Grouping | None = None
    routing: Routing | None = None  #: rows of src and of the result by number, in a product in groups of rows

    def __attrs_post_init__(self) -> None:
        for name, size in (("m", self.m), ("k", self.k), ("n", self.n)):
            if type(size) is not int or size < 0:
                raise UserError(f"given {name}={size!r}, wanted a size, at Matmul(m, k, n)")

    @classmethod
    def parse(cls, desc: str, **arguments: Unpack[MatmulKnobs]) -> Matmul:
        """The problem of `MxK:KxN[nNAME]`. Every knob of benchdnn's is an argument: `dt="f16"`, `wtag="ab"`,
        `attr_deterministic=True`; those inside `desc` (`--dt=f16 128x64:64x32`) win.

        Raises UserError: given, wanted, where; Unsupported for a tag that suits another number of dimensions. What is
        not generated is refused when the problem is built.
        """
        return cls.of_arguments(desc, arguments)

    @classmethod
    def of(cls, line: str, knobs: Mapping[str, str]) -> Matmul:
        """Return the problem of a driver line, whose knobs win over `knobs`. Raises as `parse` does."""
        given, text = options.split_line(line, options.MATMUL)
        values = options.read(options.MATMUL, {**knobs, **given})
        (src, wei, *dst), name = grammar.scan_matmul(text)
        grouping, routing = Grouping.parse(values["grouped"]), Routing.parse(values["routing"])
        if routing and (grouping is None or grouping.dim != "m"):
            raise options.Misfit("given a routing without groups of rows, wanted --grouped=0:...", "routing",
                                 values["routing"], 0, rule="routing")  # fmt: skip
        if routing and routing.sums_slots and not src[0][0]:
            raise options.Misfit("given sums of rows of a product without rows, wanted at least one row", "routing",
                                 values["routing"], 0, rule="routing")  # fmt: skip
        if grouping:
            _check_groups(grouping, src, wei, text)
        else:
            _check_batch(src, wei, text)
        (*src_batch, m, k), (*wei_batch, inner, n) = ([size for size, _ in sizes] for sizes in (src, wei))
        if inner != k:
            raise PointedError(f"given K of {inner}, wanted {k} as in the first matrix", text, wei[-2][1])
        batches = tuple(src_batch), tuple(wei_batch)
        bias, mask = ("", 0) if values["bia-dt"] == "undef" else (values["bia-dt"], int(values["bia_mask"]))
        if bias and grouping and mask != 1 << 1:
            raise Unsupported(f"given bia_mask {mask} with groups, wanted 2, a bias of group x N", rule="grouped-gemm")
        mask &= (1 << len(src)) - 1  # bits beyond the rank mean no dimension (oneDNN, benchdnn's matmul.hpp, bia_dims)
        problem = cls(m, k, n, *batches, mask, grouping, routing, name=name, bias_type=bias, **fields_of(values))
        _check_glu(problem)
        for sizes in dst:
            if tuple(size for size, _ in sizes) != problem.dst_dims:
                wanted = "x".join(map(str, problem.dst_dims))
                raise PointedError(f"given another size of the result, wanted {wanted}", text, sizes[0][1])
        return with_checked_layouts(problem)

    @property
    def src_dims(self) -> tuple[int, ...]:
        """[batch...,] m, k; with rows by number tokens, k"""
        if self.routing and self.routing.gather:
            return self.routing.gather.tokens, self.k
        return *self.src_batch, self.m, self.k

    @property
    def wei_dims(self) -> tuple[int, ...]:
        """[batch...,] k, n"""
        return *self.wei_batch, self.k, self.n

    @property
    def dst_dims(self) -> tuple[int, ...]:
        """[batch...,] m, n; with groups of K [groups,] m, n; with rows by number tokens, n"""
        if self.routing and self.routing.scatter:
            return self.routing.scatter.tokens, self.columns
        if self.grouping:
            return *((self.grouping.count,) if self.grouping.dim == "k" else ()), self.m, self.columns
        batch = tuple(0 if 0 in pair else max(pair) for pair in zip(self.src_batch, self.wei_batch))
        return *batch, self.m, self.columns

    @property
    def glu(self) -> Glu | None:
        """Return the gated linear unit among the post-ops, None without one; it is the first of them."""
        return next((op for op in self.post_ops if isinstance(op, Glu)), None)

    @property
    def columns(self) -> int:
        """Return the columns of dst: those of the product, or half of them after a gated linear unit."""
        return self.n // 2 if self.glu else self.n

    @property
    def step_dims(self) -> tuple[int, ...]:
        """Return dst's size, with the rows of slots where those of dst are sums of several."""
        if self.routing and self.routing.scatter:
            return self.routing.scatter.slots, self.columns
        return self.dst_dims

    @property
    def bias_dims(self) -> tuple[int, ...]:
        """Return the bias' sizes: the sums' along the dims of `bia_mask`, 1 along others; with groups group, n."""
        if self.grouping:
            return self.grouping.count, self.n
        return attribute_masks.dims((*self.dst_dims[:-1], self.n), self.bias_mask)

    def tensor(self, name: str) -> TensorSpec:
        """Return the tensor of a name; `offsets` has the end of each group, `sorted_token_ids` the slot of each row."""
        if self.routing and name == IDS:
            return TensorSpec(IDS, Layout.dense((self.m,), (0,)), "s32")
        if self.grouping and name == OFFSETS:
            return TensorSpec(OFFSETS, Layout.dense((self.grouping.count,), (0,)), "s32")
        return super().tensor(name)

    @property
    def runtime(self) -> tuple[str, ...]:
        batch = tuple(f"b{n}" for n in range(len(self.src_batch)))
        return unknown_dims(self, (*batch, "m", "k"), (*batch, "k", "n"))

    @property
    def any_tags(self) -> Triple:
        """Return the tags of `any`: src and dst are row-major, wei is K-contiguous.

        With groups of K, which begin anywhere along K, neither src nor wei is K-contiguous.
        """
        src, wei, dst = (LETTERS[: len(self.size(role))] for role in MATRICES)
        if self.grouping and self.grouping.dim == "k":
            return _transposed(src), wei, dst
        return src, _transposed(wei), dst

    @property
    def tensor_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        optional = *(("bia",) if self.bias_type else ()), *((OFFSETS,) if self.grouping else ())
        optional += (IDS,) if self.routing else ()
        return ("src", "wei", *optional), ("dst",)

    def policies(self, role: str) -> Mapping[str, int]:
        """Return the masks of policies: rows and columns are the last two dims."""
        last = 1 << len(self.size(role)) - 1
        return {"per_oc": last, "per_dim_1": last, "per_ocic": last + last // 2}

    @property
    def knob_texts(self) -> dict[str, str]:
        bias = {"bia-dt": self.bias_type, "bia_mask": str(self.bias_mask)} if self.bias_type else {}
        grouped = {"grouped": str(self.grouping)} if self.grouping else {}
        return {**super().knob_texts, **bias, **grouped, **({"routing": str(self.routing)} if self.routing else {})}

    @property
    def acc_type(self) -> str:
        """The type in which products are summed; f32 also for integers with scales that differ along K."""
        return "f32" if self._scales_along_k and super().acc_type == "s32" else super().acc_type

    @cached_property
    def _scales_along_k(self) -> dict[str, Scale]:
        """The scales of src and of weights, by role, that differ along K."""
        factors = (scale for scale in self.scales if scale.role in DIM_OF_K)
        scales_and_dims = ((scale, DIM_OF_K[scale.role]) for scale in factors)
        return {s.role: s for s, dim in scales_and_dims if self.spans(s)[dim] < self.size(s.role)[dim]}

    @property
    def dequantising_scales(self) -> dict[str, Scale]:
        """Return the scales, by role, that multiply src or weights before the product: sums mix several of them."""
        return self._scales_along_k if self.acc_type == "f32" else {}

    @property
    def dequantises(self) -> bool:
        """Whether factors become floats before they are multiplied: by scales along K, or a zero point of weights."""
        return self.acc_type == "f32" and (self.zero_point("wei") is not None or bool(self.dequantising_scales))

    @cached_property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """Return the sizes of the groups along m, n and k in which neighbours share a scale or a zero point.

        Sizes of all attributes are listed in ascending order, even if they do not divide the axis; a group of one
        element or of all is left out.
        """
        sizes: dict[str, list[int]] = {"m": [], "n": [], "k": [], **({OUTPUTS: []} if self.glu else {})}
        for attribute in self.attributes:
            sides = self.matrix(attribute.role), self.spans(attribute)[-2:], self.size(attribute.role)[-2:]
            for letter, span, size in zip(*sides, strict=True):
                sizes[letter] += [span] if 1 < span < size else []
        return {letter: tuple(sorted({*own})) for letter, own in sizes.items()}

    def matrix(self, role: str) -> str:
        """Return the names of the rows and columns of src, weights or dst."""
        return "m" + OUTPUTS if role == "dst" and self.glu else MATRICES[role]

    @property
    def is_empty(self) -> bool:
        return 0 in self.dst_dims or not self.m

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        products = 1 if self.grouping else prod(self.dst_dims[:-2])
        return products * self.m * self.n * self.k

    @property
    def descriptor(self) -> str:
        """The canonical descriptor without knobs."""
        name = f'_n"{self.name}"' if self.name else ""
        src = (*self.src_batch, self.m, self.k)
        return ":".join("x".join(map(str, dims)) for dims in (src, self.wei_dims)) + name


def _check_glu(problem: Matmul) -> None:
    """Refuse a gated linear unit after another post-op, of odd columns, or whose columns are known at launch."""
    glu = problem.glu
    if glu is None:
        return
    given, rule = f"given the post-op {glu}", "post-op-glu"
    if problem.post_ops[0] is not glu or sum(isinstance(op, Glu) for op in problem.post_ops) > 1:
        raise Unsupported(f"{given} after another one, wanted it first", rule=rule)
    if problem.n % 2:
        raise Unsupported(f"{given} of {problem.n} columns, wanted an even number, of gate and up", rule=rule)
    if "n" in problem.runtime:
        raise Unsupported(f"{given} of columns known at launch, wanted a known number", rule=rule)
    if any(scale.is_dynamic for scale in problem.scales):
        raise Unsupported(f"{given} with scales that the result decides, wanted other scales", rule=rule)
    if problem.groups[OUTPUTS]:
        raise Unsupported(f"{given} with groups of scales of dst, wanted one scale for each column", rule=rule)
    if not problem.dst_layout.is_plain or problem.dst_type == "f4_e2m1":
        given = f"{given} of dst in {problem.dst_type} with tag {problem.dtag}"
        raise Unsupported(f"{given}, wanted elements of a byte or more in a plain layout", rule=rule)
    if any((problem.n // 2 if not glu.alternates else size) % size or size % 2 for size in problem.groups["n"]):
        given = f"{given} and scales of {max(problem.groups['n'])} columns"
        raise Unsupported(f"{given}, wanted an even number that divides the columns of the gate", rule=rule)


def _check_batch(src: list[tuple[int, int]], wei: list[tuple[int, int]], text: str) -> None:
    """Refuse batch dimensions of src and wei that differ in number, or in size unless one is 1. Raises UserError."""
    if len(src) != len(wei):
        given = f"a {len(src)}-D by a {len(wei)}-D tensor"
        raise PointedError(f"given {given}, wanted as many dimensions of both", text, wei[0][1])
    for (left, _), (right, column) in zip(src[:-2], wei[:-2]):
        if left != right and 1 not in (left, right):
            raise PointedError(f"given a batch dimension of {right}, wanted {left} or 1", text, column)


def _check_groups(grouping: Grouping, src: list[tuple[int, int]], wei: list[tuple[int, int]], text: str) -> None:
    """Refuse batch dimensions, weights of other groups, and sizes that do not add up to M or K. Raises UserError."""
    of_rows = grouping.dim == "m"
    if len(src) != 2 or len(wei) != 2 + of_rows:
        wanted = "MxK:GxKxN" if of_rows else "MxK:KxN"
        raise PointedError(f"given a {len(src)}-D by a {len(wei)}-D tensor, wanted {wanted} with groups", text, 0)
    (size, column), total = src[0 if of_rows else 1], sum(grouping.sizes)
    if total != size:
        given = f"given groups of {total} in all, wanted the {size} of {grouping.dim.upper()}"
        raise PointedError(given, text, column)
    if of_rows and wei[0][0] != grouping.count:
        raise PointedError(f"given weights of {wei[0][0]} groups, wanted {grouping.count}", text, wei[0][1])


def _transposed(letters: str) -> str:
    """Return the letters of a tag with the last two exchanged."""
    return letters[:-2] + letters[:-3:-1]


Problem = Conv | Matmul


def grouping_of(problem: Problem) -> Grouping | None:
    """Return the groups of rows or terms of a product; None for all other problems."""
    return problem.grouping if isinstance(problem, Matmul) else None


def members_of(problem: Problem) -> tuple[Problem, ...]:
    """Return the problems that a fused call computes one after another; one for all other problems."""
    return tuple(member.problem for member in problem.members) if isinstance(problem, FusedConv) else (problem,)


def check_single(problem: Problem) -> None:
    """Raise UserError for a fused call, for commands that take the problems of a call one by one."""
    members = members_of(problem)
    if len(members) > 1:
        given = f"given {problem}, which computes {len(members)} problems"
        raise UserError(f"{given}, wanted one of them: {' or '.join(map(repr, map(str, members)))}")


#: driver of benchdnn -> its problems
PROBLEMS: Mapping[str, type[Conv] | type[Matmul]] = {kind.driver: kind for kind in (Conv, Deconv, Matmul)}


def kind_of(line: str) -> type[Conv] | type[Matmul]:
    """Return the kind of a line's problem: that of a driver that it names, else a product or a convolution.

    A product's descriptor begins with a digit, a convolution's never does.
    """
    words = line.split()
    descriptor = next((word for word in reversed(words) if not word.startswith("--")), "")
    named = next((kind for driver, kind in PROBLEMS.items() if f"--{driver}" in words), None)
    return named or (Matmul if descriptor[:1].isdigit() else Conv)


def parse_problem(line: str) -> Problem:
    """Return the problem of a line that `str` wrote."""
    return kind_of(line).of(line, {})
