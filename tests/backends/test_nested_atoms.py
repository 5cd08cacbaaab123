"""Fragments of matrix instructions as NestedLayouts, from the tables that selection uses, against those of others."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import product
from typing import Any

import pytest

from convgen.backends import target
from convgen.ir.error import UserError
from convgen.ir.layout.distribution import Distribution
from convgen.ir.layout.mma import MmaAtom, MmaTile
from convgen.ir.layout.nested import NestedLayout
from convgen.ir.types import f64

OPERANDS = ("a", "b", "d")
ATOMS = [(name, atom) for name in target.names() for atom in target.get(name).facts.atoms]
OF_MFMA = [(name, atom) for name, atom in ATOMS if name.startswith("gfx")]


def lanes(name: str) -> int:
    return target.get(name).facts.subgroup_size


@pytest.mark.parametrize("name", target.names())
def test_each_fragment_is_a_layout_with_its_registers_in_order(name: str) -> None:
    for atom, operand in product(target.get(name).facts.atoms, OPERANDS):
        fragment = getattr(atom, operand)
        layout = NestedLayout.of(fragment, lanes(name))
        assert layout.shape == fragment.shape
        order = fragment.order_of(layout.fragment(lanes(name), fragment.dims))
        assert order == tuple(range(fragment.registers)), (atom.name, operand)
        assert layout.on(lanes(name), lanes(name) * atom.spans).covers


def iree(atom: MmaAtom) -> dict[str, NestedLayout]:
    """Layouts of A (MxK), B (KxN) and C (MxN) of single-block MFMA, as IREE has them (IREEGPUAttrs.cpp)."""
    side, groups = atom.n, 64 // atom.n
    halves = 2 if "f8f6f4" in atom.name else 1  # of K, of which each lane has a part
    each = atom.k // groups // halves
    outer, element = (4, 1) if atom.acc is f64 else (side // groups // 4, 4)

    def layout(outer: Any, thread: Any, strides: Any, element: Any) -> NestedLayout:
        return NestedLayout([1, 1], [1, 1], outer, thread, element, [0, 0], strides)

    return {
        "a": layout([1, halves], [side, groups], [1, side], [1, each]),
        "b": layout([halves, 1], [groups, side], [side, 1], [each, 1]),
        "d": layout([outer, 1], [groups, side], [side, 1], [element, 1]),
    }


def test_mfma_has_the_layouts_of_iree() -> None:
    """Our N is the manual's M, so B comes transposed."""
    assert len(OF_MFMA) > 20
    for name, atom in OF_MFMA:
        wanted = iree(atom)
        assert NestedLayout.of(atom.a, lanes(name)) == wanted["a"], atom.name
        assert NestedLayout.of(atom.b, lanes(name)).permute([1, 0]) == wanted["b"], atom.name
        assert NestedLayout.of(atom.d, lanes(name)) == wanted["d"], atom.name


def test_paired_instructions_span_subgroups() -> None:
    atom = next(atom for name, atom in ATOMS if name == "xehpg" and atom.name == "dpasw.8x8.f16")
    for operand in OPERANDS:
        layout = NestedLayout.of(getattr(atom, operand), 8)
        assert layout.subgroup_tile == (2, 1)
        layout.check_workgroup(8, 16)


def test_a_part_of_a_tile_is_no_layout() -> None:
    _, atom = OF_MFMA[0]
    tile = MmaTile(atom, 2, 2, 2, pack=2, teams_n=2, teams_m=2)
    for operand in OPERANDS:
        fragment = getattr(tile, operand)
        layout = NestedLayout.of(fragment, 64)
        assert layout.on(64, 256).replication == ((1,) if operand == "d" else (2,))
        assert sorted(fragment.order_of(layout.fragment(64, fragment.dims))) == list(range(fragment.registers))
    part = MmaTile(atom, 1, 1, 1, parts=2, part=1)
    with pytest.raises(UserError, match="wanted a whole tile, not the part m2=1 of one"):
        NestedLayout.of(part.d, 64)
    with pytest.raises(UserError, match="wanted a whole tile, as a part has no owners"):
        Distribution.of(part.d, 64, 64)


if find_spec("tensor_layouts"):  # a package of Meta's, for who has it: held by version 0.3.2

    def test_mfma_has_the_layouts_of_tensor_layouts() -> None:
        """Its documentation has the block of a lane and the group of a register as quotients, as ours are.

        Its layouts count them as what runs fastest, so they are given both parts. Of sources it tells the row and the
        place within a block of K, all blocks being the same.
        """
        from tensor_layouts import atoms_amd

        known = {_bare(atom.ptx): atom for atom in vars(atoms_amd).values() if type(atom).__name__ == "MMAAtom"}
        compared = [atom for _, atom in OF_MFMA if _bare(atom.name) in known]
        assert len(compared) > 20
        for atom in compared:
            other, each = known[_bare(atom.name)], 1 if atom.acc is f64 else 4
            for lane, register in product(range(64), range(atom.d.registers)):
                at = atom.d.coords(0, lane, register)
                parts = divmod(lane, atom.m), divmod(register, each)
                assert other.c_layout(*parts) == at["n"] + at["m"] * atom.n, atom.name
            for operand, row, layout in ((atom.a, "n", other.a_layout), (atom.b, "m", other.b_layout)):
                for lane, register in product(range(64), range(operand.registers)):
                    at, side = operand.coords(0, lane, register), operand.extent(row)
                    k = at["k"] % operand.registers
                    assert layout(divmod(lane, side), register) == at[row] + k * side, atom.name

    def test_dpas_has_the_sums_of_tensor_layouts() -> None:
        """Of DPAS only sums compare: its sources are logical, without the dwords of registers."""
        from tensor_layouts import atoms_xe

        known = {atom.shape_mnk: atom for atom in vars(atoms_xe).values() if type(atom).__name__ == "MMAAtom"}
        for name, atom in ATOMS:
            if atom.name.startswith("dpas.8x8"):
                other = known[8, lanes(name), 8]  # it has the lanes of the two families exchanged
                for lane, register in product(range(lanes(name)), range(atom.d.registers)):
                    at = atom.d.coords(0, lane, register)
                    assert other.c_layout(lane, register) == at["m"] + at["n"] * atom.m

    def _bare(mnemonic: str) -> str:
        """A mnemonic whatever the generation's way to write it."""
        return mnemonic.removesuffix("_1k").replace("_", "")
