"""Factors that matrix instructions multiply by scales themselves, as those of the MX formats.

Each run of 32 numbers along K has a scale of type e8m0. An instruction reads the factors as they are stored and a byte
for each run. It takes numbers of 4 bits in pairs, along which K then counts.
"""

from __future__ import annotations

from convgen.epilogue.epilogue import is_in_order
from convgen.ir.error import DoesNotFit
from convgen.ir.layout.memory import View
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.record import evolve
from convgen.passes.messages.nibble_pairs import pairs_of
from convgen.plan import views
from convgen.plan.blocks import Cuts
from convgen.plan.contraction import Product
from convgen.plan.dequantise import GroupTensor
from convgen.problem.matmul import DIM_OF_K, Matmul, Problem

_K = 1  #: axis of the views of factors


def suits(problem: Problem, atom: MmaAtom) -> bool:
    """Return whether an instruction multiplies both factors as stored, and by their scales along K.

    Its runs along K must lie within groups of the scales.
    """
    if atom.scales is None or not isinstance(problem, Matmul) or set(problem.dequantising_scales) != {*DIM_OF_K}:
        return False
    numbers = atom.scaled_k * (2 if atom.pair else 1)
    for role, scale in problem.dequantising_scales.items():
        in_runs = problem.spans(scale)[DIM_OF_K[role]] % numbers == 0
        if scale.dtype != "e8m0" or not in_runs or problem.zero_point(role) is not None:
            return False
    if views.factor_types(problem) != atom.factor_types:
        return False
    return atom.pair is None or all(_are_pairs_along_k(view) for view in views.factors(problem))


def _are_pairs_along_k(view: View) -> bool:
    pairs = pairs_of(view)
    return pairs is not None and pairs[1] == _K


def in_pairs(product: Product) -> Product:
    """Return a product of bytes, each of which holds two neighbours along K; DoesNotFit where there are no pairs."""
    return evolve(product, of_n=_in_pairs(product.of_n), of_m=_in_pairs(product.of_m))


def _in_pairs(view: View) -> View:
    pairs = pairs_of(view)
    if pairs is None or pairs[1] != _K:
        raise DoesNotFit(f"{view.memory.name} of {view.memory.elem}: wanted pairs of neighbours along K")
    return pairs[0]


def check_order(product: Product) -> None:
    """Raise DoesNotFit where positions along the axis K are not those of the product's K, along which scales lie."""
    for view in (product.of_n, product.of_m):
        if not any(is_in_order(view, _K, t) for t in view.index):
            given = f"K of {view.memory.name} in blocks, or in runs that are padded"
            raise DoesNotFit(f"{given}, wanted K in order, as its scales have it")


def tensor(problem: Problem, factor: View, cuts: Cuts) -> GroupTensor:
    """Return the scales of a factor, an element for each position of it."""
    assert isinstance(problem, Matmul)
    role = next(role for role in DIM_OF_K if factor.memory.name.startswith(role))
    scale = problem.dequantising_scales[role]
    return GroupTensor(views.group_view(problem, problem.tensor(scale.name), scale, factor, cuts), (1, 1))
