"""Products without a matrix instruction: each lane multiplies and adds for its elements of the result.

Lanes and subgroups that the result does not occupy share K, and their partial sums are reduced at the end.
"""

from __future__ import annotations

from math import gcd

from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Add, Expr, Lane, Shuffle, Splat, eq, select, zeros
from convgen.ir.floats import fma
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.record import evolve, frozen
from convgen.ir.types import bool_, f16, f32, f64, vector

_ROUNDED_ONCE = (f16, f32, f64)  #: types with a fused multiply-add (docs/ir.md)
_MOST_PARTIAL_SUMS = 32  #: registers; partial sums of subgroups that a lane adds up, all live at once; assumed
_ROWS, _COLS, _DEPTH = "d0", "d1", "k"


@frozen
class FmaTile:
    """Layouts of a product's factors, M x K and K x N, and of its sums, M x N x parts of K, by their axes."""

    a: Fragment
    b: Fragment
    sums: Fragment
    steps: int  #: positions of K in a lane

    @property
    def shares_k(self) -> bool:
        """Whether subgroups share K, so that none has the result before all have their sums."""
        return any(d.dim == _DEPTH and d.space is Space.SUBGROUP for d in self.sums.digits)


def fma_tile(result: Fragment, depth: int, width: int, subgroups: int) -> FmaTile:
    """Return the layouts for a result with dims d0 and d1, and K of `depth`, on subgroups of `width` lanes."""
    depth_left, shares = depth, []
    most_subgroups = _MOST_PARTIAL_SUMS // result.registers
    for space, available, most in ((Space.LANE, width, width), (Space.SUBGROUP, subgroups, most_subgroups)):
        count, stride = _spare(result, space, available)
        most_shares = gcd(depth_left, count)
        size = max((n for n in range(1, min(most_shares, most) + 1) if most_shares % n == 0), default=1)
        shares += [Digit(_DEPTH, size, space, stride)] if size > 1 else []
        depth_left //= size
    steps = Digit(_DEPTH, depth_left, Space.REGISTER, 1)
    sums = Fragment((_ROWS, _COLS, _DEPTH), (*result.digits, *shares))
    k_across, k_down = ({_DEPTH: dim} for dim in (_COLS, _ROWS))  # K is the columns of a, and the rows of b
    return FmaTile(
        _factor(result.of(_ROWS), (steps, *shares), k_across),
        _factor(result.of(_COLS), (steps, *shares), k_down),
        sums,
        depth_left,
    )


def _spare(f: Fragment, space: Space, available: int) -> tuple[int, int]:
    """Return how many lanes or subgroups hold equal elements, and the stride between them."""
    end = max((d.stride * d.size for d in f.digits if d.space == space and d.size > 1), default=1)
    return available // end if available % end == 0 else 1, end


def _factor(own: tuple[Digit, ...], depth: tuple[Digit, ...], named: dict[str, str]) -> Fragment:
    """Return a factor's layout: a lane's rows or columns in sequence, each with all of the lane's positions of K.

    `named` maps K to the factor's dim for it.
    """
    layout = Fragment((_ROWS, _COLS, _DEPTH), own).renumbered(Space.REGISTER)
    steps = depth[0].size
    rows = (evolve(d, stride=d.stride * steps) if d.space == Space.REGISTER else d for d in layout.digits)
    digits = (*rows, *(evolve(d, dim=named[_DEPTH]) for d in depth))
    return Fragment((_ROWS, _COLS), tuple(d for d in digits if d.size > 1))


def multiplied(k: KernelBuilder, tile: FmaTile, a: Expr, b: Expr, acc: Expr | None) -> Expr:
    """Return `acc + a @ b`, all of one type: each lane adds its share of K in order, then shares are reduced.

    The lanes with the first share begin with `acc`, so that it is there before any subgroup has the result.
    """
    elem = a.type.elem
    sums_type = vector(elem, tile.sums.registers)
    shared = any(d.dim == _DEPTH for d in tile.sums.digits)
    total = zeros(sums_type) if acc is None else acc
    if shared and acc is not None:
        first = eq(tile.sums.coords(k.subgroup, Lane(), 0)[_DEPTH], 0)
        total = k.let("sums", select(Splat(vector(bool_, sums_type.lanes), first), acc, zeros(sums_type)))
    at = [tile.sums.coords(0, 0, r) for r in range(sums_type.lanes)]
    for step in range(tile.steps):
        left = Shuffle(a, tuple(tile.a.owner({_ROWS: c[_ROWS], _COLS: step})[2] for c in at))
        right = Shuffle(b, tuple(tile.b.owner({_ROWS: step, _COLS: c[_COLS]})[2] for c in at))
        total = k.let("sums", fma(left, right, total) if elem in _ROUNDED_ONCE else total + left * right)
    if not shared:
        return total
    reduced, _ = k.reduce("sums", total, tile.sums, _DEPTH, Add)
    return reduced
