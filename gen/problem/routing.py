"""Routing of rows in layers with a mixture of experts: products gather rows of src, and scatter rows of their result.

The input `sorted_token_ids` (the name of vLLM's and AITER's fused MoE) has the number of a slot for each row of a
product in groups. A token has `topk` slots, one for each of its experts, so slot // topk is the token.
"""

from __future__ import annotations

from typing import Self

from convgen.ir.record import frozen

IDS = "sorted_token_ids"  #: name of the tensor with the slot of each row, in s32


@frozen
class Gather:
    """Rows of src: that of token slot // `topk`, of `tokens`."""

    tokens: int
    topk: int = 1

    @property
    def slots(self) -> int:
        return self.tokens * self.topk

    def __str__(self) -> str:
        return f"gather:{self.tokens}" + (f":{self.topk}" if self.topk != 1 else "")


@frozen
class Scatter:
    """Rows of the result: that of token slot // `topk`, of `tokens`, the sum of its slots."""

    tokens: int
    topk: int = 1

    @property
    def slots(self) -> int:
        return self.tokens * self.topk

    def __str__(self) -> str:
        return f"scatter:{self.tokens}" + (f":{self.topk}" if self.topk != 1 else "")


@frozen
class Routing:
    """The rows of src and of the result that the rows of a product have; None where they have their own."""

    gather: Gather | None = None
    scatter: Scatter | None = None

    @property
    def sums_slots(self) -> bool:
        """Return whether a row of the result is the sum of several rows of the product."""
        return self.scatter is not None and self.scatter.topk > 1

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the routing of a value of `--routing`, which `attributes.routing` has read; None for none."""
        if not text:
            return None
        parts = {kind: tuple(map(int, sizes)) for kind, *sizes in (part.split(":") for part in text.split("+"))}
        return cls(
            Gather(*parts["gather"]) if "gather" in parts else None,
            Scatter(*parts["scatter"]) if "scatter" in parts else None,
        )

    def __str__(self) -> str:
        return "+".join(str(part) for part in (self.gather, self.scatter) if part)
