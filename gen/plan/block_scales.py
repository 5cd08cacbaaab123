"""Scales that differ along K and multiply the sums of each block of K, not the factors.

All positions of a block share a row's and a column's scale: sum(a x b) x (scale of the row) x (scale of the column) is
added to the sums in f32. The factors are multiplied exactly, as without scales, and come by the same paths. Zero
points, and groups that are shorter than a block, exclude it: such factors are dequantised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from convgen.ir.error import DoesNotFit
from convgen.ir.expr import Expr, Shuffle
from convgen.ir.floats import fma
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import View
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, f32, vector
from convgen.plan import dequantise, views
from convgen.plan.config import Config
from convgen.plan.contraction import Product
from convgen.plan.dequantise import GroupTensor, registers_of_groups
from convgen.plan.inputs import InputPath
from convgen.plan.scaled_factors import check_order, role_of
from convgen.problem.matmul import DIM_OF_K, Matmul, Problem

_LEAST = 64  #: bytes of a row of K; with shorter ones the additions take longer than the products; chosen


@frozen
class BlockScales:
    """A problem's factors, and the runs along K that share their scales."""

    factors: tuple[Type, Type]  #: stored types of N's and M's input
    dequantised: tuple[Type, Type]  #: types in which they are multiplied where scales multiply the factors
    run: int  #: positions along K; blocks divide runs of so many, which share their scales

    def suits(self, atom: MmaAtom) -> bool:
        """Return whether an instruction multiplies the factors exactly, without their scales."""
        holds = all(to.holds(elem) for to, elem in zip(atom.factor_types, self.factors))
        is_own = atom.scales is None and atom.factor_types != self.dequantised
        return holds and is_own and self.run * atom.elem_bytes % _LEAST == 0

    def depths(self, depths: Sequence[int]) -> tuple[int, ...]:
        """Return the blocks of K that divide a run."""
        return tuple(depth for depth in depths if self.run % depth == 0)


def of(problem: Problem) -> BlockScales | None:
    """Return the block scales that a problem asks for; None where it has none, or its factors must be dequantised."""
    if not isinstance(problem, Matmul) or not problem.dequantising_scales:
        return None
    if any(problem.zero_point(role) is not None for role in DIM_OF_K):
        return None
    run = gcd(*(problem.spans(scale)[DIM_OF_K[role]] for role, scale in problem.dequantising_scales.items()))
    return BlockScales(views.factor_types(problem), dequantise.multiplied_types(problem), run)


def dequantises(problem: Problem, factor: View, atom: MmaAtom) -> bool:
    """Return whether a factor is dequantised before an instruction multiplies it."""
    blocks = of(problem)
    if not isinstance(problem, Matmul) or atom.scales or (blocks and blocks.suits(atom)):
        return False  # scales, if there are any, multiply products or sums
    return dequantise.multiplied_type(problem, role_of(factor)) is not None


def with_scales(
    problem: Problem, product: Product, paths: tuple[InputPath, InputPath], run: int, config: Config
) -> tuple[InputPath, InputPath]:
    """Return the paths of N's and M's input with the scales of their blocks; DoesNotFit where a block has several."""
    tile_m, tile_n, tile_k = config.tile
    if run % tile_k:
        raise DoesNotFit(f"blocks of {tile_k} along K and scales of {run} positions, wanted blocks that divide these")
    check_order(product)
    assert isinstance(problem, Matmul)

    def with_own(path: InputPath, factor: View, axis: int) -> InputPath:
        scale = problem.dequantising_scales.get(role_of(factor))
        if scale is None:
            return path
        spec, side = problem.tensor(scale.name), config.tile[1 - axis]
        group = dequantise.group_tensor(problem, spec, scale, factor, product.cuts, (side, tile_k))
        _, depth, *products = group.view.axes
        over_sums = evolve(group.view, axes=(product.of_n.axes[0], product.of_m.axes[0], depth, *products))
        rows, _ = group.spans
        spans = (rows, tile_m) if axis == 0 else (tile_n, rows)
        return evolve(path, scales=GroupTensor(over_sums, spans, group.apart))

    return with_own(paths[0], product.of_n, 0), with_own(paths[1], product.of_m, 1)


def scaled(sums: Expr, loaded: Mapping[GroupTensor, Expr], layout: Fragment, to: Expr) -> Expr:
    """Return `to` with the sums of a block added, times the loaded scales of their columns, then of their rows.

    One scale after the other multiplies them: the product of two may overflow where sums are zero.
    """
    *others, last = (
        Shuffle(elements.to(vector(f32, elements.type.lanes)), registers_of_groups(layout, group.spans, group.apart))
        for group, elements in loaded.items()
    )
    for scale in others:
        sums = sums * scale
    return fma(sums, last, to)
