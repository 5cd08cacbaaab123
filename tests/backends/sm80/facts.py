"""Numbers of an A100, as far as plans and passes ask for them (PTX ISA, "mma.m16n8k16", "mma.m16n8k32")."""

from __future__ import annotations

from convgen.backends.family import check_rows
from convgen.backends.tuning import Tuning
from convgen.ir import types as t
from convgen.ir.facts import Caches, Core, SharedPhases, TargetFacts
from convgen.ir.layout.digits import Digit, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.mma import MmaAtom
from convgen.ir.record import evolve
from tests.backends.sm80.family import FAMILY

_R, _L = Space.REGISTER, Space.LANE


def _atom(elem: t.Type, acc: t.Type, name: str) -> MmaAtom:
    """A product of 16 x 8; the manual's columns are N here, its rows M."""
    packed = 4 // elem.bytes  # elements of a register
    k = 8 * packed
    inner = (Digit("k", packed, _R, 1), Digit("k", 4, _L, 1))
    a = Fragment(("n", "k"), (Digit("n", 8, _L, 4), *inner, Digit("k", 2, _R, packed)))
    b = Fragment(("m", "k"), (Digit("m", 8, _L, 4), Digit("m", 2, _R, packed), *inner, Digit("k", 2, _R, 2 * packed)))
    d = Fragment(("n", "m"), (Digit("n", 2, _R, 1), Digit("n", 4, _L, 1), Digit("m", 8, _L, 4), Digit("m", 2, _R, 2)))
    return MmaAtom(name, n=8, m=16, k=k, a_elem=elem, b_elem=elem, acc=acc, a=a, b=b, d=d, clocks=16)


def _of_two(atom: MmaAtom) -> MmaAtom:
    """A product of 16 x 16 by two warps: each has columns N of its own, and half of the other factor's rows M."""
    pair = Digit("n", 2, Space.SUBGROUP, 1)
    a, d = (Fragment(each.dims, (*each.digits, pair)) for each in (atom.a, atom.d))
    packed = 4 // atom.b_elem.bytes
    rows = (Digit("m", 8, _L, 4), Digit("m", 2, Space.SUBGROUP, 1))
    inner = (Digit("k", packed, _R, 1), Digit("k", 4, _L, 1), Digit("k", 2, _R, packed))
    b = Fragment(atom.b.dims, (*rows, *inner))
    return evolve(atom, name=f"two.{atom.name}", n=2 * atom.n, a=a, b=b, d=d)


def _phases(width: int) -> SharedPhases:
    """Lanes in their order, 128 bytes a cycle."""
    together = min(32, 128 // width)
    return SharedPhases(32, tuple(tuple(range(lane, lane + together)) for lane in range(0, 32, together)))


SM80 = TargetFacts(
    name="sm80",
    subgroup_size=32,
    max_subgroups=32,
    shared_bytes=100 << 10,
    registers=255,
    accumulators=0,
    compute_units=108,
    global_widths=(16, 8, 4, 2, 1),
    shared_widths=(16, 8, 4, 2, 1),
    global_imm_max=0,
    shared_imm_max=(1 << 20) - 1,
    surface_max=0x7FFFFFFE,
    shared_read=_phases(16),
    shared_half_read=_phases(8),
    shared_write=_phases(16),
    fused=frozenset(),
    atoms=(
        _atom(t.f16, t.f32, "mma.m16n8k16.f16"),
        _atom(t.bf16, t.f32, "mma.m16n8k16.bf16"),
        _atom(t.s8, t.s32, "mma.m16n8k32.s8"),
    ),
    core=Core(
        simds=4,
        simd_registers=512,
        simd_subgroups=16,
        register_granule=8,
        shared_rate=128,
        shared_read_rate=128,
        global_rate=64,
    ),
    caches=Caches(l2_bytes=40 << 20, line_bytes=128, store_rate=64, result_rate=16, fill_rate=1100, memory_rate=1100),
    tuning=Tuning(
        grids=((2, 2, 1), (4, 1, 1), (1, 4, 1), (2, 1, 1), (1, 2, 1), (1, 1, 1)),
        pipelines=((2, 1), (1, 1)),
        fragment_sets=(1.0, 2.0),
        mask_registers=1,
        other_registers=40,
    ),
    flat=True,
    tickets=True,
    permutes=True,
)

#: A chip that is made up: all its matrix instructions take two warps, and none of one warp has their sums.
SM90 = evolve(SM80, name="sm90", compute_units=132, atoms=tuple(map(_of_two, SM80.atoms)))

FACTS = {"sm80": SM80, "sm90": SM90}
check_rows(FAMILY, {"facts.py: FACTS": FACTS})
