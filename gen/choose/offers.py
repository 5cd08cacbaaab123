"""Offers to the chooser: the forms of a problem in each variant, some with packed inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import count, takewhile
from typing import Any

from convgen.backends.tuning import tuning
from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import View
from convgen.ir.record import evolve
from convgen.ir.types import Type, scalar
from convgen.passes.messages.linear import WORD
from convgen.plan import block_scales
from convgen.plan.atoms import input_atoms, packed_type
from convgen.plan.config import COLUMNS, JOINED, MERGED, VARIANTS
from convgen.plan.contraction import Product, reordered
from convgen.plan.directions import have_columns, have_joined_groups
from convgen.plan.loads import view_load
from convgen.plan.packing import packed
from convgen.plan.padding import has_whole_pairs, window_coordinates
from convgen.plan.scaled_factors import Packed, in_bytes
from convgen.plan.variants.variant import Form, Offer, of_words
from convgen.plan.views import by_bytes, must_reorder, products
from convgen.problem.conv import Conv
from convgen.problem.matmul import Problem

_MOST_COLUMNS = 128  #: columns of all phases together; with more, a single phase fills tiles as well
_MOST_OF_GROUPS = 64  #: output channels of the groups of one product; with more, it drops more of the sums
_MOST_MERGED = 9  #: products in one grid: stride phases of 3 x 3 or 2 x 2 x 2, each with its own code in the kernel


def offers(problem: Problem, facts: TargetFacts, reorder: tuple[str, ...]) -> Iterator[Offer]:
    """Yield all offers of a problem whose inputs `reorder` are reordered first."""
    variants = of_words(VARIANTS)
    plain = tuple(each for each in variants if each.is_plain)
    for form in forms(problem, facts, reorder):
        for offer in (Offer.of(form, *plain), *(o for each in variants for o in each.offers(form, facts))):
            yield offer
            yield from _packed(offer, problem, facts)


def forms(problem: Problem, facts: TargetFacts, reorder: tuple[str, ...]) -> Iterator[Form]:
    """Yield the products of a problem: a launch each, stride phases as columns of one product, or all in one grid.

    A product whose K can be joined (`Config.pixels`) is joined where tuning says so.
    """
    common: dict[str, Any] = {"acc_mode": problem.acc_mode, "operand_bytes": _operand_bytes(problem)}
    if joined := _joined(problem, facts, reorder):
        yield Form(joined, 1, (("pixels", JOINED),), **common)
        return
    parts = products(problem, 1, reorder)
    if not parts:
        return
    is_sized = bool(problem.runtime)
    largest = max(parts, key=lambda p: p.m * p.n * p.k)
    whole = Form(largest, len(parts), is_sized=is_sized, **common, blocks=block_scales.of(problem))
    if packed := _packed_types(problem, facts):
        with suppress(DoesNotFit):  # where a factor is read from its reordered copy
            yield evolve(whole, product=in_bytes(largest, packed), packed=packed)
    if not set(by_bytes(problem)) <= {*reorder}:
        return
    yield whole
    if groups := _groups_at_once(problem):
        with suppress(DoesNotFit):  # where blocks of a layout end between the groups of a product
            (joined,) = products(problem, 1, reorder, joined_groups=groups)
            yield Form(joined, 1, (("joined_groups", groups),), **common)
    if have_columns(problem):
        (joined,) = products(problem, 1, reorder, COLUMNS)
        if joined.n <= _MOST_COLUMNS and has_whole_pairs(joined):
            yield Form(joined, 1, (("phases", COLUMNS),), is_sized=is_sized, **common)
    if 1 < len(parts) <= _MOST_MERGED and not is_sized:
        inner = largest.k_inner.size
        sizes = sorted(((part.m, part.n, part.k // inner) for part in parts), key=lambda size: -size[2])
        yield Form(largest, 1, (("grids", MERGED),), tuple(sizes), **common)


def _operand_bytes(problem: Problem) -> int:
    """Return the bytes that steps after the sums read beside each element of the result, from tensors of its size."""
    dims = problem.outputs[0].dims
    return sum(scalar(t.dtype).bytes for t in problem.inputs if t not in problem.factors and t.dims == dims)


def _packed_types(problem: Problem, facts: TargetFacts) -> Packed | None:
    """Return the types of the numbers in the bytes of factors that instructions take so; None if there are none."""
    return next((atom.packed for atom in input_atoms(problem, facts) if any(atom.packed)), None)


def _groups_at_once(problem: Problem) -> int:
    """Return the groups whose gradients of weights fill an instruction together; 0 if one product takes one group."""
    if not isinstance(problem, Conv) or problem.groups == 1:
        return 0
    channels = problem.convolution.oc // problem.groups
    counts = takewhile(lambda n: n * channels <= _MOST_OF_GROUPS, (2**n for n in count(1)))
    return max((n for n in counts if have_joined_groups(problem, n)), default=0)


def _joined(problem: Problem, facts: TargetFacts, reorder: tuple[str, ...]) -> Product | None:
    """Return the only product of a problem with its K joined, if tuning says so, memory allows it, and it is shorter.

    Of runs along memory the joined one is shorter if fewer whole chunks hold it. By `convgen profile`, runs of 49
    pixels take 1.2 times the time of 7 runs of 7, each of which is a chunk; and with channels last, where lanes load
    along rows, 60 layers take 1.00 times.
    """
    with suppress(DoesNotFit):
        parts = products(problem, 1, reorder, pixels=JOINED) if tuning(facts).runs_of_pixels else ()
        for joined in parts if len(parts) == 1 else ():
            (apart,) = products(problem, 1, reorder)
            along_k = any(view_load(view, facts).along_k for view in (joined.of_m, joined.of_n))
            chunk = facts.chunk_bytes // joined.of_m.memory.elem.bytes
            if along_k and _chunks(joined, chunk) < _chunks(apart, chunk):
                return joined
    return None


def _chunks(product: Product, chunk: int) -> int:
    """Return the chunks along K that hold whole runs of its innermost dim."""
    inner = product.k_inner.size
    return product.k // inner * -(-inner // chunk)


# ---------------------------------------------------------------- inputs that are packed before


def _packed(offer: Offer, problem: Problem, facts: TargetFacts) -> Iterator[Offer]:
    """Yield the offer with packed inputs, if its product is the only one.

    The packed inputs are weights that lanes would load in less than a word and, together with them or alone, the image
    of a variant that packs images; or all inputs that no copy without registers brings; or, of a product of matrices,
    all inputs that are converted or dequantised. Images are packed only where addresses are flat: a surface's bounds
    check reads padding as zeros without a mask.
    """
    if offer.form.launches > 1 or offer.form.merged:
        return
    byte_inputs = {t.name for t in problem.factors if scalar(t.dtype).bits >= 8}
    candidates = [view for view in offer.factors if view.memory.name in byte_inputs]
    in_image = tuning(facts).packs_images and not facts.checks_bounds and offer.variants[0].packs_images
    images = tuple(view for view in candidates if in_image and window_coordinates(view))
    weights = tuple(view for view in candidates[:1] if view is offer.of_n and _is_narrow(view, facts))
    moved = tuple(view for view in _through_registers(offer, problem, facts) if view in candidates)
    sets = (weights, images, (*weights, *images), moved) if offer.batch == 1 else (moved,)
    for views in filter(None, dict.fromkeys(sets)):
        with suppress(DoesNotFit):
            yield _with_packed(offer, {view: view.memory.elem for view in views}, problem, facts)
    for converted in _converted(offer, problem, facts):
        with suppress(DoesNotFit):
            yield evolve(_with_packed(offer, converted, problem, facts), converts=True)


def _is_narrow(view: View, facts: TargetFacts) -> bool:
    """Whether a view is of weights that lanes load in less than a word at a time."""
    return view.memory.name == "wei" and view_load(view, facts).widest * view.memory.elem.bits < 8 * WORD


def _through_registers(offer: Offer, problem: Problem, facts: TargetFacts) -> Iterator[View]:
    """Yield the inputs that only copies through registers bring where an instruction reads shared memory in place.

    Such copies turn inputs that are contiguous along rows where the instruction reads along K only, and align those
    whose rows begin within a message. Nothing is yielded where one of them has windows: packed, it would hold each
    element several times.
    """
    for atom in input_atoms(problem, facts):
        if atom.in_shared and offer.suits(atom) and not offer.types(atom):
            sides = zip((offer.of_m, offer.of_n), offer.loads(atom, facts))
            whole = facts.chunk_bytes // atom.elem_bytes
            moved = [view for view, load in sides if not load.along_k or load.widest < whole]
            if not any(map(window_coordinates, moved)):
                yield from moved
            return


def _converted(offer: Offer, problem: Problem, facts: TargetFacts) -> Iterator[dict[View, Type]]:
    """Yield the inputs of a product of matrices that are converted or dequantised, with the type to which they are.

    A product of packed inputs has copies without registers, and instructions that read shared memory in place.
    """
    if isinstance(problem, Conv):
        return
    found: list[dict[View, Type]] = []
    for atom in input_atoms(problem, facts):
        sides = [(view, packed_type(view.memory.elem, to)) for view, to in zip(offer.factors, atom.factor_types)]
        converted = {
            view: to
            for view, to in sides
            if to is not view.memory.elem or block_scales.dequantises(problem, view, atom)
        }
        if offer.suits(atom) and converted and converted not in found:
            found.append(converted)
    yield from found


def _with_packed(offer: Offer, types: Mapping[View, Type], problem: Problem, facts: TargetFacts) -> Offer:
    """Return the offer with some inputs packed, by the types of packed elements; DoesNotFit where one cannot be."""
    if offer.form.product.gathered and offer.of_m in types:
        raise DoesNotFit(f"packed={offer.of_m.memory.name}: its rows have numbers")
    packings = {}
    for view, elem in types.items():
        whole = facts.chunk_bytes // elem.bytes  # tiles have whole chunks along K
        row_multiple = whole if offer.variants[0].packs_images else 0
        counts = view.extent(0), -(-view.extent(1) // whole) * whole
        packings[view.memory.name] = packed(view, "", counts, elem, row_multiple=row_multiple)
    traffic = sum(memory.bytes for memory in (*(v.memory for v in types), *(p.read.memory for p in packings.values())))
    of_n, of_m = (packings[v.memory.name].read if v.memory.name in packings else v for v in offer.factors)
    before = _clocks_of_streams(1, traffic, facts)
    return evolve(offer, of_n=of_n, of_m=of_m, packed=tuple(sorted(packings)), before=before)


# ---------------------------------------------------------------- inputs that are reordered before


def reorders(problem: Problem, facts: TargetFacts) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield sets of inputs worth reordering, with the clocks that takes.

    The first set holds the inputs that must be reordered: none if instructions take the bytes of packed ones. If one
    input is read element by element, a second set holds all inputs not in their default layout, since reordering one
    may change the order of K, in which both are read.
    """
    required, unpacked = must_reorder(problem), by_bytes(problem)
    if unpacked and _packed_types(problem, facts):
        yield (), 0.0
        return
    yield required, _clocks_of_reorders(problem, required, facts)
    parts = products(problem, 1, required)[:1]
    if all(view_load(view, facts).widest > 1 for part in parts for view in (part.of_m, part.of_n)):
        return
    # inputs with elements smaller than a byte are not reordered, but for those that are unpacked
    byte_inputs = [t for t in problem.factors if scalar(t.dtype).bits >= 8]
    laid_out = {t.name for t in byte_inputs if reordered(problem, t.name).layout != t.layout}
    others = tuple(t.name for t in problem.factors if t.name in laid_out or t.name in unpacked)
    if others != required:
        yield others, _clocks_of_reorders(problem, others, facts)


def _clocks_of_reorders(problem: Problem, names: Collection[str], facts: TargetFacts) -> float:
    """Return the clocks to reorder inputs in one launch.

    Each input counts as a launch: by `convgen profile` on an MI300X the launch of two takes as long as two others. With
    one counted, layers whose products take 5 us were reordered, and took up to 1.9 of the time.
    """
    traffic = sum(2 * t.layout.size_elems * scalar(t.dtype).bytes for t in problem.factors if t.name in names)
    return _clocks_of_streams(len(names), traffic, facts)


def _clocks_of_streams(launches: int, traffic: int, facts: TargetFacts) -> float:
    """Return the clocks of launches that read and write `traffic` bytes in all."""
    return launches * tuning(facts).launch + traffic / (facts.compute_units * tuning(facts).stream_rate)
