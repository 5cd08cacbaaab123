"""Interface of the variants of the implicit GEMM: what a variant offers, its products, and how their inputs are read.

The plan, the chooser, the tuner and `explain` use this interface and never ask which variant they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from convgen.backends.tuning import tuning
from convgen.ir.error import DoesNotFit, imported
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.memory import View
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.record import evolve, fields_of, frozen
from convgen.ir.types import Type, scalar
from convgen.plan import block_scales, dequantise, scaled_factors, views
from convgen.plan.atoms import chosen_atom, converted, mma_tile, sums_outside
from convgen.plan.block_scales import BlockScales
from convgen.plan.config import COLUMNS, TENSOR, Config, LanePart, Staging
from convgen.plan.contraction import Product
from convgen.plan.inputs import InputPath, ProductInput, with_gaps
from convgen.plan.lane_tile import LaneTile
from convgen.plan.loads import OperandLoad, fragment_load, from_anywhere
from convgen.plan.packing import Packing
from convgen.problem.matmul import Problem

TILE_M = (32, 64, 96, 128, 192, 256)
TILE_N = (16, 32, 64, 96, 128, 192, 256)
TILE_K = (16, 32, 64)  #: elements of 16 bits and more
CHUNK_ISSUE, ELEMENT_ISSUE = 1.5, 4.0  #: issue slots of a load that computes a tap for each chunk, or for each element

Inputs = tuple[InputPath, InputPath]  #: N's side, M's side
Packings = tuple[Packing | None, Packing | None]  #: N's side, M's side


@frozen
class Form:
    """A problem as the products of its launches, before a variant lays out their K."""

    product: Product  #: the product with the most work
    launches: int  #: launches, one for each product in turn
    words: tuple[tuple[str, Any], ...] = ()  #: config fields that select this form, with their values
    #: M, N and K of each product in one launch, most work first, where one launch has several.
    merged: tuple[tuple[int, int, int], ...] = ()
    is_sized: bool = False  #: whether some sizes are known only at launch
    acc_mode: str = "strict"  #: "relaxed" where sums may have fewer bits than their type
    blocks: BlockScales | None = None  #: scales that multiply the sums of each block of K
    packed: scaled_factors.Packed = (None, None)  #: types of the numbers of factors that are multiplied by bytes
    operand_bytes: int = 0  #: bytes that the epilogue reads beside each element of the result

    def sums_outside(self, atom: MmaAtom) -> bool:
        """Return whether an instruction keeps its sums outside (`atoms.sums_outside`)."""
        return sums_outside(atom, self.acc_mode, self.blocks)

    @property
    def has_columns(self) -> bool:
        """Return whether stride phases are columns of the product."""
        return ("phases", COLUMNS) in self.words


@frozen
class Offer:
    """A form as the chooser sees it: an M x N result; K is `outer` runs of `inner` elements."""

    form: Form
    m: int
    n: int
    outer: int
    inner: int
    of_m: View
    of_n: View
    variants: tuple[Variant, ...]  #: variants that may cut K, all with this product
    tile_k: int = 0  #: elements; the only block of K that suits, 0 where any may
    #: rows; offset of each tap's source row from the result's row, where windows are resident
    tap_rows: tuple[int, ...] = ()
    packed: tuple[str, ...] = ()  #: inputs that an earlier launch lays out as the product reads them
    converts: bool = False  #: whether the launch that packs inputs converts or dequantises them
    before: float = 0.0  #: clocks; launches that pack inputs

    @classmethod
    def of(cls, form: Form, *variants: Variant, **more: Any) -> Offer:
        """Return the offer of a form with the product's own views."""
        product, inner = form.product, form.product.k_inner.size
        if product.grouped and product.grouped.side is None:  # a product has the terms of one group, on average
            sizes = product.m, product.n, 1, -(-inner // product.grouped.count)
            return cls(form, *sizes, product.of_m, product.of_n, variants, **more)
        sizes = product.m, product.n, product.k // inner, inner
        return cls(form, *sizes, product.of_m, product.of_n, variants, **more)

    @property
    def factors(self) -> tuple[View, View]:
        """Return the views of N's and M's input."""
        return self.of_n, self.of_m

    @property
    def batch(self) -> int:
        """Return the products in one launch, one for each position of the third axis."""
        return self.form.product.batch

    @property
    def result(self) -> Type:
        """Return the element type of the result."""
        return self.form.product.result.memory.elem

    def types(self, atom: MmaAtom) -> tuple[str, ...]:
        """Return the types of the config word `in=` with this instruction."""
        stored = self.of_n.memory.elem, self.of_m.memory.elem
        return converted(stored, atom)

    def suits(self, atom: MmaAtom) -> bool:
        """Whether a matrix instruction takes the elements of this offer: numbers, or bytes that pack them.

        One that would take packed elements of another type has an offer of its own.
        """
        return atom.packed == self.form.packed and not (self.converts and self.types(atom))

    def loads(self, atom: MmaAtom, facts: TargetFacts) -> tuple[OperandLoad, OperandLoad]:
        """Return the loads of M's and N's input."""
        load = partial(fragment_load, facts=facts, in_place=atom.in_shared)
        loads = load(self.of_m, atom.b), load(self.of_n, atom.a)
        if grouped := self.form.product.grouped:
            sides = (loads[0], self.of_m, grouped.begins_along(1)), (loads[1], self.of_n, grouped.begins_along(0))
            return from_anywhere(*sides[0]), from_anywhere(*sides[1])
        return loads

    def has(self, config: Config) -> bool:
        """Whether a config belongs to this offer: it differs from the offer's configs in sizes and pipeline only."""
        words = (*self.form.words, ("packed", self.packed), *((("tile_k", self.tile_k),) if self.tile_k else ()))
        of_form = "grids", "phases", "pixels", "joined_groups"
        plain = {field.name: field.default for field in fields_of(Config) if field.name in of_form}
        wanted = {**plain, **dict(words)}
        values = {name: config.tile[2] if name == "tile_k" else getattr(config, name) for name in wanted}
        return values == wanted and variant_of(config) in self.variants


@frozen
class Choices:
    """The values that the configs of an offer may combine."""

    tiles_m: tuple[int, ...]
    tiles_n: tuple[int, ...]
    tiles_k: tuple[int, ...]
    grids: tuple[tuple[int, int, int], ...]  #: subgroups; along M, N and K of a tile
    variants: tuple[Variant, ...]
    stagings: tuple[Staging, ...]


class Variant:
    """Base of all variants, with the defaults: K is one run, in which blocks may end anywhere."""

    word: str  #: its word in a config, `taps=word`
    summary: str  #: a block of K, described for people
    is_plain: bool = False  #: reads the tensors as stored: see `plain`
    packs_images: bool = False  #: packed inputs are images, with channels padded to whole chunks
    trims: bool = False  #: messages bring runs of which registers keep a part
    by_taps: bool = False  #: a block of K is multiplied tap by tap, from one tile of the source
    suits_rings: bool = True  #: bulk copies of its blocks may pay: the chooser offers them
    rows_are_free: bool = True  #: an instruction may multiply any rows of the tile, in any order

    # ------------------------------------------------------------ the plan

    def refusals(self, problem: Problem, config: Config, facts: TargetFacts) -> Iterator[str]:
        """Yield why the config's other words, or the problem, exclude the variant."""
        del problem, config, facts
        yield from ()

    def block(self, tile_k: int, elem_bytes: int, chunk_bytes: int) -> int:
        """Return the elements to a multiple of which the innermost run of K is padded."""
        del tile_k, elem_bytes, chunk_bytes
        return 1

    def lay_out(
        self, problem: Problem, config: Config, facts: TargetFacts
    ) -> tuple[MmaTile | LaneTile, Sequence[Product]]:
        """Return the multiplying unit and the products; DoesNotFit where the config's numbers do not divide evenly."""
        unit = matrix_unit(problem, config, facts)
        block = self.block(config.tile[2], unit.atom.elem_bytes, facts.chunk_bytes)
        plain = views.products(problem, block, config.reorder, config.phases, config.pixels, config.joined_groups)
        plain = tuple(scaled_factors.in_bytes(each, unit.atom.packed) for each in plain)
        return unit, tuple(self.product(each, config, facts) for each in plain)

    def product(self, plain: Product, config: Config, facts: TargetFacts) -> Product:
        """Return a product with K laid out by the variant; DoesNotFit where that is impossible."""
        del config, facts
        return plain

    def inputs(
        self, problem: Problem, product: Product, packings: Packings, unit: Any, config: Config, facts: TargetFacts
    ) -> Inputs:
        """Return the path of N's and M's input from memory to the multiplying unit."""
        tile_m, tile_n, tile_k = config.tile
        from_n, from_m = read_views(product, packings)
        copy_n, copy_m = config.paths
        begin_n, begin_m = (product.grouped.begins_along(side) if product.grouped else None for side in range(2))
        of_n = ProductInput.of_n(from_n, unit, config, facts, begin_n).path(tile_n, copy_n)
        of_m = ProductInput.of_m(from_m, unit, config, facts, begin_m).path(tile_m, copy_m)
        of_n, of_m = with_gaps((of_n, of_m), facts)
        if unit.atom.scales:
            scaled_factors.check_order(product)
            return scaled_factors.with_scales(problem, product, (of_n, of_m), unit, config, facts)
        if (blocks := block_scales.of(problem)) and blocks.suits(unit.atom):
            return block_scales.with_scales(problem, product, (of_n, of_m), blocks.run, config)
        dequantised = partial(dequantise.of, problem, cuts=product.cuts)
        if not (packings[0] and packings[0].dequantises):
            of_n = evolve(of_n, dequantisation=dequantised(product.of_n, tile=(tile_n, tile_k)))
        if not (packings[1] and packings[1].dequantises):
            of_m = evolve(of_m, dequantisation=dequantised(product.of_m, tile=(tile_m, tile_k)))
        if unit.atom.in_shared and (of_n.dequantisation or of_m.dequantisation):
            why = f"{unit.atom.name} reads shared memory: an input that is dequantised in registers has no place there"
            raise DoesNotFit(why, short_of="fragments")
        return of_n, of_m

    # ------------------------------------------------------------ the chooser

    def offers(self, form: Form, facts: TargetFacts) -> Iterator[Offer]:
        """Yield the form with K laid out by the variant, where that is worth trying."""
        del form, facts
        yield from ()

    def choices(self, offer: Offer, atom: MmaAtom, facts: TargetFacts) -> Choices:
        """Return the configs worth trying with one matrix instruction."""
        return Choices(TILE_M, tiles_n(facts), tiles_k(atom, facts), tuning(facts).grids, (self,), stagings(facts))

    def issue(self, load: OperandLoad, inner: int, chunk: int) -> float:
        """Return the issue slots of one load; a load with one address along K for each block takes 1.

        K has runs of `inner` elements, a chunk has `chunk` elements.
        """
        del load, inner, chunk
        return 1.0


def read_views(product: Product, packings: Packings) -> tuple[View, View]:
    """Return N's and M's view: of the packed input where there is one, else of the tensor."""
    of_n, of_m = (p.read if p else view for p, view in zip(packings, (product.of_n, product.of_m)))
    return of_n, of_m


def matrix_unit(problem: Problem, config: Config, facts: TargetFacts) -> MmaTile:
    """Return the matrix instructions of a workgroup's tile; DoesNotFit where the numbers do not divide evenly."""
    stored = scalar(problem.outputs[0].dtype if config.slices == 1 else problem.acc_type)
    return mma_tile(chosen_atom(problem, config, facts), config, facts, stored)


def tiles_n(facts: TargetFacts) -> tuple[int, ...]:
    """Return the N extents of tiles worth trying, in elements."""
    return TILE_N + tuning(facts).columns


def tiles_k(atom: MmaAtom, facts: TargetFacts) -> tuple[int, ...]:
    """Return the blocks of K worth trying, in elements: twice as many for byte types, so that rows have equal bytes."""
    tuned = tuning(facts)
    extents = tuple(2 * k for k in TILE_K) if atom.elem_bytes == 1 else TILE_K
    rows = tuned.deep_rows + (tuned.long_rows if atom.in_shared else ())
    extents = tuple(dict.fromkeys((*extents, *(row // atom.elem_bytes for row in rows))))
    per_atom = 1 << (atom.k - 1).bit_length()  # bytes that pack floats of 6 bits are 3/4 of a power of two
    extents = tuple(k * atom.k // per_atom for k in extents)
    return tuple(k for k in extents if k * atom.elem_bytes >= tuned.least_row)


def stagings(facts: TargetFacts, *, direct: bool = False) -> tuple[Staging, ...]:
    """Return the pipelines through shared memory worth trying; with `direct`, also copies without registers."""
    pipelines = (p for p in tuning(facts).pipelines if p[1] or direct)
    return tuple(Staging(slots, stages) if stages else Staging(slots, copy=("direct",)) for slots, stages in pipelines)


def rings(slots: Iterable[int]) -> tuple[Staging, ...]:
    """Return the pipelines with these numbers of slots that a role fills by bulk copies."""
    return tuple(Staging(count, copy=(TENSOR,)) for count in slots)


@cache
def variant(word: str) -> Variant:
    """Return the variant of a word in `config.VARIANTS`."""
    module_variant: Variant = imported(f"convgen.plan.variants.{word}").VARIANT
    return module_variant


def variant_of(config: Config) -> Variant:
    """Return the variant of a config: `lanes` where each lane multiplies by itself, else the one that `taps` names."""
    return variant("lanes" if isinstance(config.mma, LanePart) else config.taps)


def of_words(words: Iterable[str]) -> tuple[Variant, ...]:
    """Return the variants of some words, in their order."""
    return tuple(variant(word) for word in words)
