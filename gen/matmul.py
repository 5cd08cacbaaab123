"""Matrix multiplication problems, in benchdnn's terms: dst[m, n] = sum over k of src[m, k] * wei[k, n]."""

from __future__ import annotations

import attrs

from convgen import grammar
from convgen.problem import Conv
from convgen.tensors import TensorProblem, Triple, parse_fields

#: what `any` means: rows of src and dst lie side by side, wei is K-contiguous
_ANY = ("ab", "ba", "ab")


@attrs.frozen(slots=False)
class Matmul(TensorProblem):
    """A product of two matrices."""

    m: int
    k: int
    n: int

    @classmethod
    def parse(
        cls,
        desc: str,
        *,
        dt: str = "f32",
        stag: str = "any",
        wtag: str = "any",
        dtag: str = "any",
        strides: str = "",
        attr_deterministic: bool | str = False,
        attr_fpmath: str = "strict",
    ) -> Matmul:
        """The problem of `MxK:KxN[nNAME]`; knobs inside `desc` (`--dt=f16 128x64:64x32`) win over keywords.

        Raises UserError: given, wanted, where; Unsupported for batch dimensions and attributes that are not kept.
        """
        given, text = grammar.split_line(desc, grammar.MATMUL_KNOBS)
        knobs = {
            "dt": dt,
            "stag": stag,
            "wtag": wtag,
            "dtag": dtag,
            "strides": strides,
            "attr-deterministic": str(attr_deterministic),
            "attr-fpmath": attr_fpmath,
        } | given
        scanned = grammar.scan_matmul(text)
        if not scanned.values["k"]:
            raise scanned.error("given K of 0, wanted at least 1", "k")
        m, k, n = (scanned.values[key] for key in "mkn")
        problem = cls(m, k, n, name=scanned.name, **parse_fields(knobs))
        _ = problem.tensors  # a wrong tag is refused here
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

    @property
    def any_tags(self) -> Triple:
        return _ANY

    @property
    def tensor_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("src", "wei"), ("dst",)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.m * self.k * self.n

    @property
    def descriptor(self) -> str:
        """The canonical descriptor without knobs."""
        name = f'_n"{self.name}"' if self.name else ""
        return f"{self.m}x{self.k}:{self.k}x{self.n}{name}"


Problem = Conv | Matmul


def parse_problem(line: str) -> Problem:
    """The problem that `str` wrote: a matmul's descriptor begins with a digit, a convolution's never does."""
    descriptor = next((word for word in reversed(line.split()) if not word.startswith("--")), "")
    return Matmul.parse(line) if descriptor[:1].isdigit() else Conv.parse(line)
