"""Groups of rows or of terms of a matrix product, of uneven sizes, as in layers with a mixture of experts.

Kernels read where groups end from the tensor `offsets`, so that sizes are data of a launch. The sizes of a request are
those with which its kernel is verified and timed.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Self

from convgen.ir.record import frozen

OFFSETS = "offsets"  #: name of the tensor with the end of each group, in s32

_DIMS = ("m", "k")  #: the grouped dims, by their numbers in `--grouped` (oneDNN's Developer Guide, grouped memory)


@frozen
class Grouping:
    """The groups into which M (dim "m") or K (dim "k") is divided, one after another.

    A group of rows is multiplied by weights of its own; a group of terms has a result of its own.
    """

    dim: str
    sizes: tuple[int, ...]  #: rows or terms, perhaps 0
    largest: int | None = None  #: a hint, the largest size in a launch; it does not change the code

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the grouping of a value of `--grouped`, which `attributes.grouped` has read; None for none."""
        if not text:
            return None
        dim, _, sizes, *largest = text.split(":")
        return cls(_DIMS[int(dim)], tuple(map(int, sizes.split("+"))), int(largest[0]) if largest else None)

    @property
    def count(self) -> int:
        """Return the number of groups."""
        return len(self.sizes)

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the position behind each group along the dim: the contents of `offsets`."""
        return tuple(accumulate(self.sizes))

    def __str__(self) -> str:
        largest = "" if self.largest is None else f":{self.largest}"
        return f"{_DIMS.index(self.dim)}:{self.count}:{'+'.join(map(str, self.sizes))}{largest}"
