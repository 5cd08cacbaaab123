"""Which messages bring a tile into shared memory without registers: places there in the order of the lanes.

Where the lanes of a message write is fixed: at a uniform address, side by side. So the swizzle of the tile decides for
which element of the view each lane asks.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Digits, Space, Straddles
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import COL
from convgen.ir.types import Type
from convgen.passes.messages.linear import LinearView


@lru_cache(maxsize=2**10)
def places_of(memory: Digits, elem: Type, width: int, lanes: int, subgroups: int) -> Fragment:
    """Of which row and column of a dense tile without swizzle each lane fills the place; messages are dealt in turn.

    DoesNotFit where they do not come out even, or rows begin within the lanes of one and do not in the next.
    """
    each, total = width // elem.bytes, prod(memory.shape)
    messages, rest = divmod(total, each * lanes * subgroups)
    if rest or not messages:
        whole = each * lanes * subgroups
        raise DoesNotFit(f"copy=direct: a tile of {total} elements, wanted a multiple of the {whole} of all lanes")
    dealt = (
        Digit(Space.MEMORY, each, Space.REGISTER, 1),
        Digit(Space.MEMORY, lanes, Space.LANE, 1),
        Digit(Space.MEMORY, subgroups, Space.SUBGROUP, 1),
        Digit(Space.MEMORY, messages, Space.REGISTER, each),
    )
    try:
        split = memory.then(Digits((Space.MEMORY,), dealt)).renamed({COL: "k"})
    except Straddles:
        raise DoesNotFit(f"copy=direct: rows of {memory.shape[1]} elements do not come out even over lanes") from None
    return Fragment(split.dims, split.digits).merged(Space.REGISTER)


def direct_width(view: LinearView, along: int, elem: Type, chunk: int, facts: TargetFacts) -> int:
    """The bytes of a lane in the widest direct message that brings runs along an axis of the view; 0 if none does."""
    runs = ((w, w // elem.bytes) for w in facts.direct_widths if chunk % w == 0 and w % elem.bytes == 0)
    whole = elem is view.memory.elem and elem.bits >= 8 and view.unit_axis == along
    view = view.whole
    return next((w for w, run in runs if whole and view.makes_messages(run)), 0)
