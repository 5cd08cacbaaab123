"""Teams along K meet: each has parts of all sums of a tile, and then all of a share of them.

Piece by piece of the shares, through a scratch tile: all leave what they have of a piece, and each adds up what all
have of its share of it, in an order that does not change.
"""

from __future__ import annotations

import attrs

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Add, Expr, Pack, Shuffle
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import MmaTile
from convgen.ir.types import vector
from convgen.passes.messages.scratch import in_two_dims, scratch_tile, whole

_K = "k"


def most_at_once(mma: MmaTile, taken: int, facts: TargetFacts) -> int:
    """Elements of a lane in a piece of its share, where so much shared memory is taken: many, of which the scratch tile
    leaves as many workgroups together as there can be; 0 if none has room.
    """
    share = mma.met
    sizes = [n for n in range(share.registers, 0, -1) if share.registers % n == 0]
    for together in range(facts.shared_bytes // max(1, taken), 0, -1):
        room = facts.shared_bytes // together - taken
        found = next((n for n in sizes if _scratch_bytes(mma, share.parts(n)[0], facts) <= room), 0)
        if found:
            return found
    return 0


def _scratch_bytes(mma: MmaTile, share: Fragment, facts: TargetFacts) -> int:
    stored, loaded = in_two_dims(whole(_apart(mma, share)), whole(_gathered(mma, share)))
    return scratch_tile("scratch", mma.atom.acc, stored, loaded, facts.chunk_bytes).bytes


def met(k: KernelBuilder, mma: MmaTile, total: Expr, most: int) -> tuple[Expr, Fragment]:
    """All sums of each team's share of a tile, and how they are distributed; at most so many of a lane at a time."""
    if mma.teams_k == 1:
        return total, mma.d
    found = []
    for share in mma.met.parts(most):
        of, to = _apart(mma, share), _gathered(mma, share)
        order = tuple(mma.d.owner(of.coords(0, 0, r))[2] for r in range(of.registers))
        left = k.redistribute("left", Shuffle(total, order), of, to, "meet")
        found.append(k.reduce("met", left, to, _K, Add, "meet")[0])
    return k.let("sums", Pack(vector(mma.atom.acc, mma.met.registers), tuple(found))), mma.met


def _apart(mma: MmaTile, share: Fragment) -> Fragment:
    """Parts of the sums of all shares, in each team."""

    def held(d: Digit) -> Digit:
        if d.space is not Space.SUBGROUP or d.stride < mma.teams:
            return d
        return attrs.evolve(d, space=Space.REGISTER, stride=share.registers * (d.stride // mma.teams))

    return Fragment((*share.dims, _K), (*map(held, share.digits), mma.along_k(_K)))


def _gathered(mma: MmaTile, share: Fragment) -> Fragment:
    """All parts of the sums of each share."""
    return Fragment((*share.dims, _K), (*share.digits, Digit(_K, mma.teams_k, Space.REGISTER, share.registers)))
