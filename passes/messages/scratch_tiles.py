"""Scratch tiles in shared memory, through which fragments of any dims go from one distribution to another."""

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
    """The part of a tile that a fragment is, as a tile of its own."""
    return evolve(f, digits=tuple(d for d in f.digits if d.space != Space.FIXED)).merged(*Space)


def in_two_dims(of: Fragment, to: Fragment) -> tuple[Fragment, Fragment]:
    """Both as layouts of one tile of rows and columns, the columns along the dim that lanes hold most of in a run."""
    run = {dim: min(of.contiguous(dim), to.contiguous(dim)) for dim in of.dims}
    across = max(of.dims, key=lambda dim: (run[dim], of.dims.index(dim)), default=COL)
    return _fused(of, across), _fused(to, across)


def _fused(f: Fragment, across: str) -> Fragment:
    down = [d for dim in reversed(f.dims) if dim != across for d in f.of(dim)]
    digits = (*(evolve(d, dim=COL) for d in f.of(across)), *(evolve(d, dim=ROW) for d in down))
    return Fragment((ROW, COL), digits)


def with_copies(f: Fragment, copies: tuple[Digit, ...]) -> Fragment:
    """A layout of as many tiles, one below the other, as the digits count."""
    return evolve(f, digits=(*f.digits, *copies))


def replicas(f: Fragment, subgroups: int) -> tuple[Digit, ...]:
    """The digits of a subgroup's number that tell apart those that hold the same.

    The whole number does where what a layout's digits leave out of it is no digits.
    """
    gaps = list(_gaps(f, subgroups))
    if any(end % begin for begin, end in gaps):
        return (Digit(ROW, subgroups, Space.SUBGROUP, 1),)
    return tuple(Digit(ROW, end // begin, Space.SUBGROUP, begin) for begin, end in gaps if end > begin)


def _gaps(f: Fragment, subgroups: int) -> Iterator[tuple[int, int]]:
    """The strides where a layout's digits end in a subgroup's number, and where the next one begins."""
    end = 1
    for d in sorted((d for d in f.digits if d.space == Space.SUBGROUP and d.size > 1), key=lambda d: d.stride):
        yield end, d.stride
        end = d.stride * d.size
    yield end, subgroups


def scratch_tile(name: str, elem: Type, stored: Fragment, loaded: Fragment, facts: TargetFacts) -> Shared:
    """The tile for both layouts: lanes meet in banks as little as may be, runs of registers are aligned up to a chunk.

    In blocks, which move what all lanes have side by side, rows begin in different banks.
    """
    rows, cols = stored.shape
    run = min(stored.contiguous(COL), loaded.contiguous(COL)) * elem.bytes
    unit = max(DWORD, elem.bytes, widest(run, facts.chunk_bytes))
    chunks, rest = divmod(cols * elem.bytes, unit)
    if rest or facts.tiles_as_fragments:
        across, swizzle = chunks + (rest > 0) + (rows > 1), Swizzle()
    else:
        across, swizzle, _ = find_rows(cols, elem, unit, loaded, stored, facts, chunks & -chunks, often=1)
    pitch = across * unit
    chunk = unit if swizzle.mask else min(facts.chunk_bytes, pitch & -pitch)
    return Shared(name, elem, rows, cols, row_major(rows, cols, pitch // elem.bytes), 1, swizzle, chunk)
