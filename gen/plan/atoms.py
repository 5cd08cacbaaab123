"""Matrix instructions for a problem's inputs: choice, types, and the number of them in a workgroup's tile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mma import MOST, MmaAtom, MmaTile, shares
from convgen.ir.types import Type, bf16, f16, f32, s8, u8
from convgen.plan import block_scales, dequantise, scaled_factors, views
from convgen.plan.block_scales import BlockScales
from convgen.plan.config import Config, LanePart
from convgen.plan.copies import divide
from convgen.problem.matmul import Problem

#: stored and multiplied type between which no conversion is: one bit flips, and a compensation sum corrects the product
_FLIPPED = (u8, s8)

#: types of 16 bits to which modes of `--attr-fpmath` let factors of f32 be rounded; any: that with f32's exponents
_NARROW = {"bf16": bf16, "f16": f16, "any": bf16}


def input_atoms(problem: Problem, facts: TargetFacts) -> list[MmaAtom]:
    """Return the matrix instructions for a problem's types, in the target's order of preference.

    Instructions that read only one factor from shared memory are left out: a plan brings both along one path.
    `--attr-fpmath` lets f32 be rounded: to its type or, if both factors are of f32, as instructions for tf32 do.
    """
    types = signed(dequantise.multiplied_types(problem), facts)
    rounds = problem.fpmath != "strict" and types == (f32, f32)
    exact = [a for a in facts.atoms if not a.b_in_registers and (rounds or not a.rounds_to)]
    suiting = {types, *_rounded_types(types, problem.fpmath)}
    of_types = [a for a in exact if (a.a_elem, a.b_elem) in suiting and a.acc.name == problem.acc_type]
    scaled = [a for a in facts.scaled_atoms if scaled_factors.suits(problem, a)]
    if not scaled and (blocks := block_scales.of(problem)):
        scaled += _of_wider_types(problem, [a for a in exact if blocks.suits(a)], blocks.factors)
    return [*scaled, *(of_types or _of_wider_types(problem, exact, types))]


def _rounded_types(types: tuple[Type, Type], mode: str) -> Iterator[tuple[Type, Type]]:
    """Yield the types to which a mode of `--attr-fpmath` lets factors be rounded, of which one at least is f32."""
    narrow = _NARROW.get(mode)
    if narrow and f32 in types and all(t is f32 or narrow.holds(t) for t in types):
        yield narrow, narrow


def sums_outside(atom: MmaAtom, acc_mode: str, blocks: BlockScales | None) -> bool:
    """Return whether sums are kept outside of an instruction, which adds up the product of one block at a time.

    An instruction with `sum_bits` drops the last bits of sums that stay in it as they grow; `relaxed` permits that.
    Sums of a block may also have scales.
    """
    return (atom.sum_bits > 0 and acc_mode == "strict") or (blocks is not None and blocks.suits(atom))


def _of_wider_types(problem: Problem, atoms: Sequence[MmaAtom], types: tuple[Type, Type]) -> list[MmaAtom]:
    """Return the instructions of the narrowest types that hold both inputs and convert the fewest inputs."""

    def fits(a: MmaAtom) -> bool:
        return a.acc.name == problem.acc_type and a.a_elem.holds(types[0]) and a.b_elem.holds(types[1])

    def cost(a: MmaAtom) -> tuple[int, int]:
        return a.elem_bytes, (a.a_elem is not types[0]) + (a.b_elem is not types[1])

    wide_enough = [a for a in atoms if fits(a)]
    best = min(wide_enough, key=cost, default=None)
    return [a for a in wide_enough if best and (a.a_elem, a.b_elem) == (best.a_elem, best.b_elem)]


def converted(types: tuple[Type, Type], atom: MmaAtom) -> tuple[str, ...]:
    """Return the types to which N's and M's input are converted: one name if equal, () if neither is converted."""
    multiplied = atom.factor_types
    as_stored = (p or target is t or (t, target) == _FLIPPED for p, target, t in zip(atom.packed, multiplied, types))
    if all(as_stored):
        return ()
    return tuple(dict.fromkeys(t.name for t in multiplied))


def signed(types: tuple[Type, Type], facts: TargetFacts) -> tuple[Type, Type]:
    """Return the types in which the given types are multiplied: s8 instead of u8 where no instruction takes u8."""
    multiplied = {(atom.a_elem, atom.b_elem) for atom in facts.atoms}
    first, second = (s8 if elem is u8 else elem for elem in types)
    return types if types in multiplied else (first, second)


def packed_type(elem: Type, to: Type) -> Type:
    """Return the type in which a launch packs elements that are multiplied in the type `to`."""
    return elem if (elem, to) == _FLIPPED else to


def read_types(problem: Problem, config: Config, atom: MmaAtom) -> tuple[Type, Type]:
    """Return the types in which a product by an instruction reads N's and M's input."""
    stored = views.factor_types(problem)
    if not config.packs_converted or not views.products(problem, 1, views.must_reorder(problem)):
        return stored
    n, m = (
        packed_type(elem, to) if view.memory.name in config.packed else elem
        for view, elem, to in zip(views.factors(problem), stored, atom.factor_types)
    )
    return n, m


def chosen_atom(problem: Problem, config: Config, facts: TargetFacts) -> MmaAtom:
    """Return the matrix instruction that a config names; DoesNotFit where the target lacks it."""
    for atom in input_atoms(problem, facts):
        types = read_types(problem, config, atom)
        if (atom.n, atom.m, atom.k) == config.mma and converted(types, atom) == config.types:
            return atom
    assert not isinstance(config.mma, LanePart)
    shape = "x".join(map(str, config.mma))
    type_names = ":".join(config.types) or problem.inputs[0].dtype
    raise DoesNotFit(f"{facts.name} has no {shape} matrix instruction for {type_names}")


def mma_tile(atom: MmaAtom, config: Config, facts: TargetFacts, stored: Type) -> MmaTile:
    """Return the instructions of a workgroup's tile; `stored` is the type in which the result is stored.

    DoesNotFit where tile, subgroups and instruction do not divide evenly.
    """
    tile_m, tile_n, tile_k = config.tile
    teams_m, subgroups_n = config.waves
    teams_n = divide("subgroups along N over what one instruction spans", subgroups_n, atom.spans)
    part_m = teams_m * atom.m * config.subtiles
    steps = divide("tile K over subgroups x the instruction's K", tile_k, config.waves_k * atom.k)
    if steps > MOST:
        raise DoesNotFit(f"K of {tile_k} makes {steps} instructions one after the other, wanted at most {MOST}")
    tiles_n = divide("tile N over subgroups x the instruction's N", tile_n, teams_n * atom.n)
    tiles_m = divide("tile M over subgroups x the instruction's M x subtiles", tile_m, part_m)
    divide("instructions of a subgroup over subgroups along K", tiles_n, shares(config.waves_k, tiles_m)[0])
    # Reads of matrices take K in the instruction's order, and scales belong to runs along K; other reads are wider if a
    # lane packs K of several steps.
    in_order = facts.matrix_reads or atom.in_shared or atom.scales
    most = 1 if in_order else facts.chunk_bytes // (atom.a.registers * atom.elem_bytes)
    pack = max(1, min(steps, most))
    # `run` counts the neighbouring columns of the result that a lane holds, for wide stores. A 2-D message stores a
    # rectangle from the registers of all lanes, so a lane needs no run. An instruction that reads shared memory takes
    # rows in the order in which they stand there.
    return MmaTile(
        atom,
        tiles_n=tiles_n,
        tiles_m=tiles_m,
        steps=steps,
        pack=pack if steps % pack == 0 else 1,
        teams_n=teams_n,
        teams_m=teams_m,
        separate_accumulators=config.separate_accumulators,
        parts=config.subtiles,
        run=1 if facts.planes or atom.in_shared else facts.chunk_bytes // stored.bytes,
        teams_k=config.waves_k,
    )
