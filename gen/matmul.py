"""Matrix multiplication problems, in benchdnn's terms: dst[m, n] = sum over k of src[m, k] * wei[k, n]."""

from __future__ import annotations

from functools import cached_property

import attrs

from convgen import grammar
from convgen.ir.layout import Layout
from convgen.problem import Conv, tagged

#: what `any` means: rows of src and dst lie side by side, wei is K-contiguous
_ANY_SRC, _ANY_WEI, _ANY_DST = "ab", "ba", "ab"


@attrs.frozen(slots=False)
class Matmul:
    """A product of two matrices. Types are benchdnn's names; tags are as given. Equal problems print and hash alike."""

    m: int
    k: int
    n: int
    src_type: str = "f32"
    wei_type: str = "f32"
    dst_type: str = "f32"
    stag: str = "any"
    wtag: str = "any"
    dtag: str = "any"
    name: str = ""

    @classmethod
    def parse(cls, desc: str, *, dt: str = "f32", stag: str = "any", wtag: str = "any", dtag: str = "any") -> Matmul:
        """The problem of `MxK:KxN[nNAME]`; knobs inside `desc` (`--dt=f16 128x64:64x32`) win over keywords.

        Raises UserError: given, wanted, where; Unsupported for batch dimensions.
        """
        given, text = grammar.split_line(desc, grammar.MATMUL_KNOBS)
        knobs = {"dt": dt, "stag": stag, "wtag": wtag, "dtag": dtag} | given
        scanned = grammar.scan_matmul(text)
        if not scanned.values["k"]:
            raise scanned.error("given K of 0, wanted at least 1", "k")
        src, wei, dst = grammar.parse_types(knobs["dt"])
        problem = cls(
            **scanned.values,
            src_type=src,
            wei_type=wei,
            dst_type=dst,
            stag=knobs["stag"],
            wtag=knobs["wtag"],
            dtag=knobs["dtag"],
            name=scanned.name,
        )
        _ = problem.src_layout, problem.wei_layout, problem.dst_layout  # a wrong tag is refused here
        return problem

    @property
    def src_dims(self) -> tuple[int, int]:
        return self.m, self.k

    @property
    def wei_dims(self) -> tuple[int, int]:
        return self.k, self.n

    @property
    def dst_dims(self) -> tuple[int, int]:
        return self.m, self.n

    @cached_property
    def src_layout(self) -> Layout:
        return tagged("--stag", self.stag, _ANY_SRC, self.src_dims)

    @cached_property
    def wei_layout(self) -> Layout:
        return tagged("--wtag", self.wtag, _ANY_WEI, self.wei_dims)

    @cached_property
    def dst_layout(self) -> Layout:
        return tagged("--dtag", self.dtag, _ANY_DST, self.dst_dims)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return self.m == 0 or self.n == 0

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.m * self.k * self.n

    @property
    def flops(self) -> int:
        return 2 * self.macs

    @property
    def knobs(self) -> str:
        """The driver's knobs that differ from benchdnn's defaults."""
        types = (self.src_type, self.wei_type, self.dst_type)
        return grammar.tensor_knobs(types, (self.stag, self.wtag, self.dtag))

    @property
    def descriptor(self) -> str:
        """The canonical descriptor without knobs."""
        name = f'_n"{self.name}"' if self.name else ""
        return f"{self.m}x{self.k}:{self.k}x{self.n}{name}"

    def __str__(self) -> str:
        """One replayable line: `Matmul.parse(str(problem)) == problem`."""
        return f"{self.knobs} {self.descriptor}".lstrip()


Problem = Conv | Matmul


def parse_problem(line: str) -> Problem:
    """The problem that `str` wrote: a matmul's descriptor begins with a digit, a convolution's never does."""
    descriptor = next((word for word in reversed(line.split()) if not word.startswith("--")), "")
    return Matmul.parse(line) if descriptor[:1].isdigit() else Conv.parse(line)
