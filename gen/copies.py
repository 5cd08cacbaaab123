"""How a workgroup brings a tile into shared memory: which lane loads what, and in which order its registers stand.

A lane writes chunks: runs along K, for that is how fragments are read. Where memory runs along K too, it loads the same
chunks. Where memory runs along the rows, a lane loads runs of rows at several K and turns that little matrix round on
the way (`ir.stmt.Copy.loaded`).
"""

from __future__ import annotations

from math import gcd

import attrs

from convgen.ir.error import DoesNotFit
from convgen.ir.fragment import Digit, Fragment, Space
from convgen.ir.memory import View
from convgen.passes.linear import LinearView, linearize

#: One chunk is what a lane brings into shared memory in one write, and reads as one fragment part.
CHUNK_BYTES = 16

_WORD_BYTES = 4

K, ROWS = 1, 0  #: axes of an operand's view


@attrs.frozen
class Split:
    """The share of each lane, as it stands when loaded and when stored; `message` elements come with one load."""

    loaded: Fragment
    stored: Fragment
    message: int


def split_copy(view: View, rows: int, cols: int, lanes: int, subgroups: int) -> Split:
    """The split of the copy of a rows x cols tile; DoesNotFit where it does not come out even."""
    linear = linearize(view)
    if _runs_along(linear) == K:
        return _split_along_k(linear, rows, cols, lanes, subgroups)
    return _split_along_rows(linear, rows, cols, lanes, subgroups)


def message_elems(view: View, along: int = K) -> int:
    """Elements along an axis that one load can bring, at most a chunk."""
    linear = linearize(view)
    return _message(linear, CHUNK_BYTES // linear.memory.elem.bytes) if linear.unit_axis == along else 1


def _runs_along(view: LinearView) -> int:
    """The axis along which neighbours are nearest in memory: neighbouring lanes go along it."""
    if view.unit_axis is not None:
        return view.unit_axis
    return min((K, ROWS), key=lambda axis: view.axes[axis][-1].stride or view.memory.bytes)


def _message(view: LinearView, most: int) -> int:
    run = most
    while run > 1 and not view.makes_messages(run):
        run //= 2
    return run


def power_of_two(most: int) -> int:
    """The greatest power of two up to a number from 1."""
    return 1 << most.bit_length() - 1


def divide(what: str, total: int, part: int) -> int:
    """The quotient; DoesNotFit unless it is whole and positive."""
    count, rest = divmod(total, part)
    if rest or not count:
        raise DoesNotFit(f"{what}: {total} is not a multiple of {part}")
    return count


def _split_along_k(view: LinearView, rows: int, cols: int, lanes: int, subgroups: int) -> Split:
    """A lane takes whole chunks, neighbouring lanes go along the row."""
    chunk = CHUNK_BYTES // view.memory.elem.bytes
    across = divide("chunks of a row", cols, chunk)
    if across > lanes:
        raise DoesNotFit(f"a row of {across} chunks is longer than {lanes} lanes")
    down = lanes // across
    rounds = divide("rows copied a round", rows, down * subgroups)
    layout = Fragment(
        ("row", "k"),
        (
            Digit("k", chunk, Space.REGISTER, 1),
            Digit("k", across, Space.LANE, 1),
            Digit("row", down, Space.LANE, across),
            Digit("row", subgroups, Space.SUBGROUP, 1),
            Digit("row", rounds, Space.REGISTER, chunk),
        ),
    )
    return Split(layout, layout, _message(view, chunk))


def rows_at_once(widest: int, share: int, elem_bytes: int) -> int:
    """Rows that a lane loads with one message, given its share: a word at least, and whole chunks along K first."""
    return max(1, min(widest, max(_WORD_BYTES // elem_bytes, share * elem_bytes // CHUNK_BYTES), share))


def _split_along_rows(view: LinearView, rows: int, cols: int, lanes: int, subgroups: int) -> Split:
    """A lane takes blocks of `run` rows by `chunk` of K, neighbouring lanes go down the rows."""
    elem = view.memory.elem.bytes
    share = divide("elements of a lane", rows * cols, lanes * subgroups)
    most = CHUNK_BYTES // elem
    run = rows_at_once(_message(view, most) if view.unit_axis == ROWS else 1, share, elem)
    chunk = min(most, share // run, cols)
    down = min(lanes, rows // run)
    across = lanes // down
    chunks = divide("chunks copied a round", cols, chunk * across)
    waves_across = gcd(subgroups, chunks)
    waves_down = subgroups // waves_across
    rounds_across = chunks // waves_across
    rounds_down = divide("rows copied a round", rows, run * down * waves_down)

    def layout(k_stride: int, row_stride: int) -> Fragment:
        return Fragment(
            ("row", "k"),
            (
                Digit("k", chunk, Space.REGISTER, k_stride),
                Digit("k", across, Space.LANE, down),
                Digit("k", waves_across, Space.SUBGROUP, 1),
                Digit("k", rounds_across, Space.REGISTER, run * chunk),
                Digit("row", run, Space.REGISTER, row_stride),
                Digit("row", down, Space.LANE, 1),
                Digit("row", waves_down, Space.SUBGROUP, waves_across),
                Digit("row", rounds_down, Space.REGISTER, run * chunk * rounds_across),
            ),
        )

    return Split(layout(run, 1), layout(1, chunk), run)
