"""Reduction over subgroups along K: each subgroup has partial sums of a whole tile, and gets the sums of a share of it.

The shares are reduced piece by piece in shared memory, over the tile that held blocks of K if there is one. Every
subgroup stores its partial sums of a piece, and each adds up those of its own share, in the order of K.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Expr, Pack, Shuffle, Slice
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Overlay, Shared
from convgen.ir.layout.mma import MmaTile
from convgen.ir.record import evolve, frozen
from convgen.ir.types import vector
from convgen.passes.messages.scratch_tiles import in_two_dims, scratch_tile, whole

_K = "k"  #: outermost dim of the scratch tile: rows that lanes access at once follow one another, in different banks
_NAME = "partial_sums"  #: of the scratch tile


@frozen
class SubgroupReduction:
    """The scratch tile of a reduction over subgroups along K, and the layouts in which its pieces are moved."""

    tile: Shared
    piece: int  #: elements of a lane's share that one piece reduces, at most
    stored: Fragment  #: partial sums of a piece, of all shares, in each subgroup
    loaded: Fragment  #: all partial sums of a subgroup's share of a piece

    @classmethod
    def of(cls, mma: MmaTile, tiles: Sequence[Shared], facts: TargetFacts) -> SubgroupReduction | None:
        """Return the reduction with the largest pieces that fit over the largest of `tiles`; None if none fit.

        Without tiles, pieces take free shared memory.
        """
        over = max(tiles, key=lambda tile: tile.bytes, default=None)
        for piece in mma.reduced_d.part_sizes:
            layouts = _stored_and_loaded(mma, mma.reduced_d.parts(piece)[0])
            tile = scratch_tile(_NAME, mma.atom.acc, *layouts, facts)
            if tile.bytes <= (over.bytes if over else facts.shared_bytes):
                fields: dict[str, Any] = {name: getattr(tile, name) for name in Shared.fields}
                return cls(Overlay(**fields, over=over.name) if over else tile, piece, *layouts)
        return None

    def sums(self, k: KernelBuilder, mma: MmaTile, total: Expr) -> Expr:
        """Return the complete sums of each subgroup's share, distributed as `mma.reduced_d`."""
        shares = []
        for share in mma.reduced_d.parts(self.piece):
            order = mma.d.registers_of(_partial_sums(mma, share))
            k.barrier("meet")
            k.store_shared(self.tile, Shuffle(total, order), self.stored, 0, "meet")
            k.barrier("meet")
            loaded = k.load_shared("left", self.tile, self.loaded, 0, "meet")
            parts = [Slice(loaded, n * share.registers, share.registers) for n in range(mma.teams_k)]
            added: Expr = parts[0]
            for part in parts[1:]:
                added = k.let("met", added + part)
            shares.append(Slice(added, 0, share.registers))
        return k.let("sums", Pack(vector(mma.atom.acc, mma.reduced_d.registers), tuple(shares)))


def _stored_and_loaded(mma: MmaTile, share: Fragment) -> tuple[Fragment, Fragment]:
    """Return the layouts in which a piece is stored and loaded, as the two dims of the scratch tile."""
    return in_two_dims(whole(_partial_sums(mma, share)), whole(_sums_of_share(mma, share)))


def _partial_sums(mma: MmaTile, share: Fragment) -> Fragment:
    """Return the layout of a piece's partial sums before the reduction: each subgroup along K has all shares."""

    def in_registers(d: Digit) -> Digit:
        if d.space is not Space.SUBGROUP or d.stride < mma.teams:
            return d
        return evolve(d, space=Space.REGISTER, stride=share.registers * (d.stride // mma.teams))

    return Fragment((_K, *share.dims), (*map(in_registers, share.digits), mma.along_k(_K)))


def _sums_of_share(mma: MmaTile, share: Fragment) -> Fragment:
    """Return the layout after the exchange: a subgroup's registers have the partial sums of its share from all."""
    return Fragment((_K, *share.dims), (*share.digits, Digit(_K, mma.teams_k, Space.REGISTER, share.registers)))
