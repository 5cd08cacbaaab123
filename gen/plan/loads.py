"""Loads of a product's inputs: elements of a message, along K or rows, whole rectangles or trimmed runs."""

from __future__ import annotations

from functools import lru_cache

from convgen.ir.facts import TargetFacts
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.memory import RunView, View
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type
from convgen.passes.messages.linear import linearize
from convgen.passes.messages.planes import is_plane, rectangle_of
from convgen.plan.copies import (
    ROWS,
    K,
    comes_as_rectangles,
    even_rows_at_once,
    is_read_transposed,
    message_elems,
)


@frozen
class OperandLoad:
    """The messages that load one input of a matrix instruction."""

    widest: int  #: elements; the most that one message of a lane brings
    #: Lanes transpose nothing in registers: messages bring neighbours along K, or rectangles or reads transpose. Else
    #: messages bring neighbours along rows.
    along_k: bool
    as_rectangles: bool = False  #: one message brings a rectangle of memory for all lanes
    by_reads: bool = False  #: messages run along rows, and reads from shared memory transpose them
    in_columns: bool = False  #: messages run along rows; direct copies leave them so, and lanes read single dwords
    trimmed: bool = False  #: messages bring runs of which registers keep a part

    def upto(self, chunk: int) -> OperandLoad:
        """Return the load with messages of at most `chunk` elements along K."""
        along_k = self.along_k and not self.by_reads
        return evolve(self, widest=min(self.widest, chunk)) if along_k else self

    def messages(self, rows: int, k: int, lanes: int, elem_bytes: int) -> float:
        """Return the messages that each lane issues for a tile of `rows` x `k` elements."""
        share = rows * k / lanes
        if self.along_k and not (self.by_reads and share % self.widest):
            return share / self.widest
        return share / even_rows_at_once(self.widest, int(share), elem_bytes)


def keeps_columns(view: View, elem: Type, facts: TargetFacts) -> bool:
    """Return whether a direct copy keeps columns of dwords together, as in memory: lanes read one dword at a time."""
    return elem is view.memory.elem and elem.bytes == DWORD and linearize(view).has_chunks(ROWS, facts)


def view_load(view: View, facts: TargetFacts) -> OperandLoad:
    """Return the load of a view whose lanes take neighbours in memory, whatever the fragment."""
    along_k, along_rows = (message_elems(view, facts.chunk_bytes, axis, facts.message_alignment) for axis in (K, ROWS))
    return OperandLoad(max(along_k, along_rows), along_k >= along_rows, trimmed=isinstance(view, RunView))


@lru_cache(maxsize=2**10)
def fragment_load(view: View, fragment: Fragment, facts: TargetFacts, *, in_place: bool = False) -> OperandLoad:
    """Return the load of an instruction's input: whole chunks if 2-D messages or transposing reads bring them.

    Of instructions that read shared memory `in_place`, lanes read nothing.
    """
    linear, chunk = linearize(view), facts.chunk_bytes // view.memory.elem.bytes
    if is_plane(linear, facts.planes) or comes_as_rectangles(linear, fragment, facts):
        return OperandLoad(chunk, True, as_rectangles=True)
    if is_read_transposed(view, view.memory.elem, fragment, facts, repeated=True):
        return OperandLoad(chunk, True, by_reads=True)
    return evolve(view_load(view, facts), in_columns=not in_place and keeps_columns(view, view.memory.elem, facts))


def from_anywhere(load: OperandLoad, view: View, axis: int | None) -> OperandLoad:
    """Return the load where tiles begin at any position along `axis`: single elements if it is the contiguous one."""
    return load if axis is None or linearize(view).unit_axis != axis else OperandLoad(1, along_k=True)


def are_rectangles(view: View, fragment: Fragment, facts: TargetFacts) -> bool:
    """Whether 2-D messages from a single plane load the fragment as the instruction reads it.

    With several planes each subgroup would have to compute where its plane begins.
    """
    return is_plane(linearize(view), facts.planes) and _is_rectangles(view, fragment, facts)


@lru_cache(maxsize=2**10)
def _is_rectangles(view: View, fragment: Fragment, facts: TargetFacts) -> bool:
    return rectangle_of(linearize(view), fragment, facts) is not None
