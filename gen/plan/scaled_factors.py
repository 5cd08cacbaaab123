"""Factors that matrix instructions multiply by scales themselves, as those of the MX formats.

Each run of 32 numbers along K has a scale of type e8m0. An instruction reads the factors as they are stored and a byte
for each run. A factor of 4 bits is read by bytes, along which its K then counts. K of the product, and of a config, is
that of the factor that counts more.
"""

from __future__ import annotations

from math import gcd

from convgen.epilogue.epilogue import is_in_order
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import Shared, Swizzle, View, column_major, row_major
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.record import evolve
from convgen.ir.types import Type
from convgen.passes.messages.linear import linearize
from convgen.passes.messages.packed_views import bytes_of
from convgen.plan import views
from convgen.plan.blocks import Cuts
from convgen.plan.config import Config
from convgen.plan.contraction import Product
from convgen.plan.copies import CopyLayout
from convgen.plan.dequantise import GroupTensor
from convgen.plan.inputs import InputPath
from convgen.problem.matmul import DIM_OF_K, Matmul, Problem

_K = 1  #: axis of the views of factors
_BYTE = 8  #: bits

Packed = tuple[Type | None, Type | None]  #: types of the numbers in the bytes of a product's factors, `MmaAtom.packed`


def suits(problem: Problem, atom: MmaAtom) -> bool:
    """Return whether an instruction multiplies both factors as stored, and by their scales along K.

    Its runs along K must lie within groups of the scales.
    """
    if atom.scales is None or not isinstance(problem, Matmul) or set(problem.dequantising_scales) != {*DIM_OF_K}:
        return False
    numbers = atom.scaled_k[0] * _BYTE // atom.factor_types[0].bits
    for role, scale in problem.dequantising_scales.items():
        in_runs = problem.spans(scale)[DIM_OF_K[role]] % numbers == 0
        if scale.dtype != "e8m0" or not in_runs or problem.zero_point(role) is not None:
            return False
    stored = views.stored_factors(problem)
    if tuple(view.memory.elem for view in stored) != atom.factor_types:
        return False
    return all(_are_along_k(view) for view, of in zip(stored, atom.packed) if of)


def _are_along_k(view: View) -> bool:
    packed = bytes_of(view)
    return packed is not None and packed[1] == _K


def in_bytes(product: Product, packed: Packed) -> Product:
    """Return a product whose packed factors are bytes along K.

    DoesNotFit where bytes hold no neighbours along K, and for floats of 6 bits that are neither packed nor reordered.
    """
    of_n, of_m = (_in_bytes(view, of) for view, of in zip((product.of_n, product.of_m), packed))
    return evolve(product, of_n=of_n, of_m=of_m)


def _in_bytes(view: View, of: Type | None) -> View:
    name, elem = view.memory.name, view.memory.elem
    if of is None:
        if elem.is_by_bytes:
            raise DoesNotFit(f"{name} of {elem}: wanted reorder={name}, or an instruction that takes its bytes")
        return view
    packed = bytes_of(view)
    if elem is not of or packed is None or packed[1] != _K:
        raise DoesNotFit(f"{name} of {elem}: wanted bytes of neighbours of {of} along K")
    return packed[0]


def role_of(factor: View) -> str:
    """Return src or wei, of which a view of a factor, or of its copy, is."""
    return next(role for role in DIM_OF_K if factor.memory.name.startswith(role))


def check_order(product: Product) -> None:
    """Raise DoesNotFit where positions along the axis K are not those of the product's K, along which scales lie."""
    for view in (product.of_n, product.of_m):
        if not any(is_in_order(view, _K, t) for t in view.index):
            given = f"K of {view.memory.name} in blocks, or in runs that are padded"
            raise DoesNotFit(f"{given}, wanted K in order, as its scales have it")


def by_groups(layout: Fragment) -> Fragment:
    """Return a layout of scales over (rows, groups along K)."""
    return Fragment(layout.dims, tuple(d for d in layout.digits if d.dim != "k" or d.space is not Space.FIXED))


def through_shared(
    scales: GroupTensor, rows: int, groups: int, scaled_k: int, config: Config, facts: TargetFacts
) -> InputPath | None:
    """Return the path of scales through shared memory, None where lanes load them by themselves.

    That takes a view by groups of `scaled_k` positions along K, and a tile of `rows` rows of `groups` scales that all
    lanes copy evenly.
    """
    *outer, inner = scales.view.axes[_K]
    if not config.slots or config.copy or not outer or (inner.size, inner.padded) != (scaled_k, scaled_k):
        return None
    rows_axis, _, *batch = scales.view.axes
    index = (evolve(t, terms=tuple(term for term in t.terms if term[0] != inner.name)) for t in scales.view.index)
    view = evolve(scales.view, axes=(rows_axis, tuple(outer), *batch), index=tuple(index))
    elem, cols = view.memory.elem, groups
    along_k = linearize(view).unit_axis == _K
    digits, line = (row_major(rows, cols), cols) if along_k else (column_major(rows, cols), rows)
    loaded = _lanes_along("k" if along_k else "row", rows, cols, facts.subgroup_size, config.subgroups)
    if loaded is None:
        return None
    chunk = gcd(facts.chunk_bytes, line)
    tile = Shared(f"{view.memory.name}_tile", elem, rows, cols, digits, config.slots, Swizzle(), chunk)
    return InputPath(view, elem, tile, CopyLayout(loaded, loaded, loaded.registers))


def _lanes_along(first: str, rows: int, cols: int, lanes: int, subgroups: int) -> Fragment | None:
    """Return a tile over lanes that stand side by side along dim `first`, each with as many neighbours; None if uneven.

    Sizes are powers of two, so that each is a run of bits: of registers, then of lanes, then of subgroups.
    """
    sizes = {"row": rows, "k": cols}
    share, rest = divmod(rows * cols, lanes * subgroups)
    if rest or any(n & (n - 1) for n in (rows, cols, share, lanes, subgroups)):
        return None
    free = {Space.REGISTER: share, Space.LANE: lanes, Space.SUBGROUP: subgroups}
    strides, digits = dict.fromkeys(free, 1), list[Digit]()
    for dim in (first, *(name for name in sizes if name != first)):
        for space in free:
            taken = gcd(sizes[dim], free[space])
            digits += [Digit(dim, taken, space, strides[space])] if taken > 1 else []
            sizes[dim], free[space], strides[space] = sizes[dim] // taken, free[space] // taken, strides[space] * taken
    return Fragment(("row", "k"), tuple(digits))


def with_scales(
    problem: Problem,
    product: Product,
    paths: tuple[InputPath, InputPath],
    unit: MmaTile,
    config: Config,
    facts: TargetFacts,
) -> tuple[InputPath, InputPath]:
    """Return the paths of N's and M's input with those of their scales."""
    tile_m, tile_n, _ = config.tile

    def with_own(path: InputPath, factor: View, rows: int, fragment: Fragment, scaled_k: int) -> InputPath:
        scales, groups = tensor(problem, factor, product.cuts), fragment.extent("k") // scaled_k
        return evolve(path, scales=scales, scale_path=through_shared(scales, rows, groups, scaled_k, config, facts))

    of_n, of_m = unit.atom.scaled_k
    return (
        with_own(paths[0], product.of_n, tile_n, unit.a, of_n),
        with_own(paths[1], product.of_m, tile_m, unit.b, of_m),
    )


def tensor(problem: Problem, factor: View, cuts: Cuts) -> GroupTensor:
    """Return the scales of a factor, an element for each position of it."""
    assert isinstance(problem, Matmul)
    scale = problem.dequantising_scales[role_of(factor)]
    return GroupTensor(views.group_view(problem, problem.tensor(scale.name), scale, factor, cuts), (1, 1), 1)
