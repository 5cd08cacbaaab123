"""Kernels that sum the rows of a factor before the product, for compensation of zero points and u8 multiplied as s8.

    result[n, m] = epilogue(sum over r of (source[n, m, r] - point[n, m, r]) * factor[n, m, r])

All arithmetic is s32, modulo 2^32. A lane loads a run of memory at a time; the lanes' parts of a sum are reduced in
registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from convgen.epilogue.epilogue import Epilogue, Reader
from convgen.epilogue.steps import splat
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Add, Expr, zeros
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.memory import Global, View
from convgen.ir.program import Kernel
from convgen.ir.sizes import Size
from convgen.ir.types import s32, vector
from convgen.passes.messages.linear import linearize
from convgen.plan.compensation import Sums
from convgen.plan.copies import next_power_of_two, power_of_two

_SUBGROUPS = 4
_NEIGHBOURS = 4  #: sums of a lane, where these are contiguous in memory: one wide access
_AHEAD = 4  #: terms that a lane then loads together
_ROWS, _TERMS = 0, 2  #: axes of a source's view


def sums_kernel(name: str, sums: Sums, sizes: Sequence[Size], facts: TargetFacts) -> tuple[Kernel, WorkgroupMapping]:
    """Return the kernel and the mapping of its workgroups."""
    layout = _layout(sums.source, facts)
    tiles = [-(-sums.result.extent(axis) // layout.extent(dim)) for axis, dim in enumerate("nm")]
    mapping, epilogue = WorkgroupMapping.of(tiles[1], tiles[0]), Epilogue(sums.steps)
    k = KernelBuilder(name, mapping.grid, layout.subgroups, facts.subgroup_size)
    memories: list[Global] = [*(view.memory for view in sums.reads), *epilogue.reads, sums.result.memory]
    k.params += dict.fromkeys(memories)
    k.params += sizes
    with k.tile_of(mapping) as tile:
        at = k.let("n0", tile["n"] * layout.extent("n")), k.let("m0", tile["m"] * layout.extent("m"))
        total, of_sums = k.reduce("total", _terms(k, sums, at, layout), layout, "r", Add)
        stored = epilogue.apply(k, total, epilogue.load(Reader(k, at), of_sums))
        k.store_view(sums.result, at, stored, of_sums, "store")
    return k.done(), mapping


def _terms(k: KernelBuilder, sums: Sums, at: tuple[Expr, Expr], layout: Fragment) -> Expr:
    """Return each register's sum over all rounds of the loop along R."""
    sums_type = vector(s32, layout.registers)

    def loaded(name: str, view: View, r0: Expr) -> Expr:
        return k.load_view(name, view, (*at, r0), layout, "load", view.memory.name).to(sums_type)

    with k.loop("r_loop", 0, -(-sums.source.extent(_TERMS) // layout.extent("r")), sum=zeros(sums_type)) as loop:
        r0 = loop.var * layout.extent("r")
        term = loaded("term", sums.source, r0)
        if isinstance(sums.point, View):
            term = term - loaded("shift", sums.point, r0)
        elif sums.point:
            term = term - splat(sums.point, term)
        if sums.factor:
            term = term * loaded("factor", sums.factor, r0)
        loop.yields(k.let("sum_next", loop["sum"] + term))
    return loop.result("sum")


def _layout(source: View, facts: TargetFacts) -> Fragment:
    """Return a tile over n, m and r: registers, then lanes run along memory, r before n; remaining lanes go to m."""
    elem, (n, m, r) = source.memory.elem.bytes, (source.extent(axis) for axis in range(3))
    along = linearize(source).unit_axis
    neighbours = min(_NEIGHBOURS, power_of_two(n)) if along == _ROWS else 1
    terms = min(facts.chunk_bytes // elem if along == _TERMS else _AHEAD, power_of_two(r))
    lanes = facts.subgroup_size
    lanes_n = min(lanes, _covering(n, neighbours)) if along == _ROWS else 1
    lanes_r = min(lanes // lanes_n, _covering(r, terms))
    lanes_n *= min(lanes // (lanes_n * lanes_r), _covering(n, neighbours * lanes_n))
    lanes_m = min(lanes // (lanes_n * lanes_r), _covering(m, 1))
    subgroups_n = min(_SUBGROUPS, _covering(n, neighbours * lanes_n))
    subgroups_m = min(_SUBGROUPS // subgroups_n, _covering(m, lanes_m))
    digits = (
        Digit("n", neighbours, Space.REGISTER, 1),
        Digit("r", terms, Space.REGISTER, neighbours),
        Digit("r", lanes_r, Space.LANE, 1),
        Digit("n", lanes_n, Space.LANE, lanes_r),
        Digit("m", lanes_m, Space.LANE, lanes_r * lanes_n),
        Digit("n", subgroups_n, Space.SUBGROUP, 1),
        Digit("m", subgroups_m, Space.SUBGROUP, subgroups_n),
    )
    return Fragment(("n", "m", "r"), tuple(d for d in digits if d.size > 1))


def _covering(count: int, each: int) -> int:
    """Return the least power of two that, times `each`, covers a count."""
    return next_power_of_two(-(-count // each))
