"""Messages of direct copies, from global to shared memory without registers: lanes fill places in order.

The lanes of a message write side by side at a uniform address. So the tile's swizzle decides which element of the view
each lane loads.
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
    """Return the (row, col) of the place that each lane fills in a dense, unswizzled tile, over rounds of messages.

    Raises DoesNotFit if messages do not divide the tile, or if rows begin at different lanes of different messages.
    """
    elements, total = width // elem.bytes, prod(memory.shape)
    messages, rest = divmod(total, elements * lanes * subgroups)
    if rest or not messages:
        whole = elements * lanes * subgroups
        raise DoesNotFit(f"copy=direct: a tile of {total} elements, wanted a multiple of the {whole} of all lanes")
    distributed = (
        Digit(Space.MEMORY, elements, Space.REGISTER, 1),
        Digit(Space.MEMORY, lanes, Space.LANE, 1),
        Digit(Space.MEMORY, subgroups, Space.SUBGROUP, 1),
        Digit(Space.MEMORY, messages, Space.REGISTER, elements),
    )
    try:
        split = memory.then(Digits((Space.MEMORY,), distributed)).renamed({COL: "k"})
    except Straddles:
        raise DoesNotFit(f"copy=direct: rows of {memory.shape[1]} elements do not divide evenly over lanes") from None
    return Fragment(split.dims, split.digits).merged(Space.REGISTER)


def divides_columns(rows: int, elem_bytes: int, width: int, lanes: int, subgroups: int) -> bool:
    """Return whether columns of `rows` elements begin at the same lanes of all messages, as `places_of` needs."""
    chunks = rows * elem_bytes // width
    if lanes % chunks == 0:
        return True
    turns, rest = divmod(chunks, lanes)
    return rest == 0 and (turns % subgroups == 0 or subgroups % turns == 0)


def direct_width(view: LinearView, along: int, elem: Type, chunk: int, facts: TargetFacts) -> int:
    """Return the bytes a lane of the widest direct message for runs along an axis of the view; 0 if there is none."""
    runs = ((w, w // elem.bytes) for w in facts.direct_widths if chunk % w == 0 and w % elem.bytes == 0)
    whole = elem is view.memory.elem and elem.bits >= 8 and view.unit_axis == along
    view = view.whole
    return next((w for w, run in runs if whole and view.makes_messages(run, facts.message_alignment)), 0)
