"""Scratch tiles in shared memory, for redistributing fragments of any number of dims."""

from __future__ import annotations

from collections.abc import Iterator

from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import DWORD, Fragment
from convgen.ir.layout.memory import COL, ROW, Shared, Swizzle, row_major
from convgen.ir.record import evolve
from convgen.ir.types import Type
from convgen.passes.messages.swizzle import find_rows, widest


def whole(f: Fragment) -> Fragment:
    """Return the part of a tile that a fragment covers as a tile of its own."""
    return evolve(f, digits=tuple(d for d in f.digits if d.space != Space.FIXED)).merged(*Space)


def in_two_dims(of: Fragment, to: Fragment) -> tuple[Fragment, Fragment]:
    """Return both as layouts of one two-dimensional tile; columns run along the dim with the longest register runs."""
    run = {dim: min(of.contiguous(dim), to.contiguous(dim)) for dim in of.dims}
    across = max(of.dims, key=lambda dim: (run[dim], of.dims.index(dim)), default=COL)
    return _fused(of, across), _fused(to, across)


def _fused(f: Fragment, across: str) -> Fragment:
    down = [d for dim in reversed(f.dims) if dim != across for d in f.of(dim)]
    digits = (*(evolve(d, dim=COL) for d in f.of(across)), *(evolve(d, dim=ROW) for d in down))
    return Fragment((ROW, COL), digits)


def with_copies(f: Fragment, copies: tuple[Digit, ...]) -> Fragment:
    """Return a layout of several tiles, one below the other, counted by the digits `copies`."""
    return evolve(f, digits=(*f.digits, *copies))


def replicas(f: Fragment, subgroups: int) -> tuple[Digit, ...]:
    """Return the digits of a subgroup's number that distinguish subgroups with equal elements.

    Returns the whole number if the gaps between the layout's digits are not digits.
    """
    gaps = list(_gaps(f, subgroups))
    if any(end % begin for begin, end in gaps):
        return (Digit(ROW, subgroups, Space.SUBGROUP, 1),)
    return tuple(Digit(ROW, end // begin, Space.SUBGROUP, begin) for begin, end in gaps if end > begin)


def _gaps(f: Fragment, subgroups: int) -> Iterator[tuple[int, int]]:
    """Yield the gaps between a layout's digits in the subgroup's number, as (end of one, stride of the next)."""
    end = 1
    for d in sorted((d for d in f.digits if d.space == Space.SUBGROUP and d.size > 1), key=lambda d: d.stride):
        yield end, d.stride
        end = d.stride * d.size
    yield end, subgroups


def scratch_tile(name: str, elem: Type, stored: Fragment, loaded: Fragment, facts: TargetFacts) -> Shared:
    """Return a tile for both layouts with few bank conflicts.

    Runs of registers are aligned up to a chunk: the longer runs of the two layouts if their messages then meet no bank
    twice, else the shorter ones. With block messages, which move the registers of all lanes side by side, rows begin in
    different banks.
    """
    rows, cols = stored.shape
    runs = sorted((stored.contiguous(COL), loaded.contiguous(COL)), reverse=True)
    for run in runs:
        unit = max(DWORD, elem.bytes, widest(run * elem.bytes, facts.chunk_bytes))
        chunks, rest = divmod(cols * elem.bytes, unit)
        if rest or facts.tiles_as_fragments:
            across, swizzle, conflicts = chunks + (rest > 0) + (rows > 1), Swizzle(), 1
        else:
            across, swizzle, conflicts = find_rows(cols, elem, unit, loaded, stored, facts, chunks & -chunks, often=1)
        if not conflicts:
            break
    pitch = across * unit
    chunk = unit if swizzle.mask else min(facts.chunk_bytes, pitch & -pitch)
    return Shared(name, elem, rows, cols, row_major(rows, cols, pitch // elem.bytes), 1, swizzle, chunk)
