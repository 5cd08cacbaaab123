"""Matrix instructions and capacities of the tables against their definitions, written as the manuals have them.

PTX ISA 8.7, 9.7.14.5.7 "Matrix Fragments for mma.m16n8k8", 9.7.14.5.8 "mma.m16n8k16 with floating point type" and
9.7.14.5.10 "mma.m16n8k32": `groupID = %laneid >> 2`, `threadID_in_group = %laneid % 4`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from convgen.backends.nvidia.tables import FACTS, LANES, ROWS, FmaRow, MmaRow

Place = tuple[int, int]  #: row, column
Description = Callable[[int, int, int], Place]  #: group, thread in group, element -> place


def a_k8(group: int, thread: int, i: int) -> Place:
    return group if i in (0, 2) else group + 8, thread if i in (0, 1) else thread + 4


def b_k8(group: int, thread: int, i: int) -> Place:
    return thread if i == 0 else thread + 4, group


def a_k16(group: int, thread: int, i: int) -> Place:
    row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
    return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)


def b_k16(group: int, thread: int, i: int) -> Place:
    return thread * 2 + (i & 1) + (8 if i >= 2 else 0), group


def a_k32(group: int, thread: int, i: int) -> Place:
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    return row, thread * 4 + (i & 3) + (16 if i >= 8 else 0)


def b_k32(group: int, thread: int, i: int) -> Place:
    return thread * 4 + (i & 3) + (16 if i >= 4 else 0), group


def d_of_all(group: int, thread: int, i: int) -> Place:
    return group if i < 2 else group + 8, thread * 2 + (i & 1)


def a_f64(group: int, thread: int, i: int) -> Place:
    return (group, i * 2 + thread) if i % 2 == 0 else (group + 8, i * 2 - 2 + thread)


def b_f64(group: int, thread: int, i: int) -> Place:
    return thread + i * 4, group


#: shape, with the type where types differ -> elements a lane has of A, B and D, and where they are
SHAPES: dict[str, tuple[tuple[int, int, int], Description, Description]] = {
    "m16n8k8": ((4, 2, 4), a_k8, b_k8),
    "m16n8k16": ((8, 4, 4), a_k16, b_k16),
    "m16n8k32": ((16, 8, 4), a_k32, b_k32),
    "m8n8k4.f64": ((1, 1, 2), a_f64, b_f64),
    "m16n8k4.f64": ((2, 1, 4), a_f64, b_f64),
    "m16n8k8.f64": ((4, 2, 4), a_f64, b_f64),
    "m16n8k16.f64": ((8, 4, 4), a_f64, b_f64),
}

#: PTX ISA 8.7, 9.7.14.5.14 "mma": the forms that the tables may have
FORMS = {
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    *(f"mma.sync.aligned.m16n8k32.row.col.s32.{a}.{b}.s32" for a in ("s8", "u8") for b in ("s8", "u8")),
    *(f"mma.sync.aligned.m16n8k32.row.col.f32.{a}.{b}.f32" for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")),
    *(f"mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64" for shape in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")),
}

MATRIX = [row for row in ROWS.values() if isinstance(row, MmaRow)]
LANE_BY_LANE = [row for row in ROWS.values() if isinstance(row, FmaRow)]


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.name)
def test_fragments_are_those_of_the_manual(row: MmaRow) -> None:
    """A of the manual, of 8 or 16 rows, is the atom's `b`; B is its `a`, by columns."""
    atom, (counts, of_a, of_b) = row.atom(8), SHAPES.get(f"{row.shape}.{row.a}") or SHAPES[row.shape]
    assert (atom.b.registers, atom.a.registers, atom.d.registers) == counts
    assert f"m{atom.m}n{atom.n}k{atom.k}" == row.shape
    for lane in range(LANES):
        group, thread = lane >> 2, lane % 4
        for i in range(counts[0]):
            m, k = of_a(group, thread, i)
            assert atom.b.coords(0, lane, i) == {"m": m, "k": k}
        for i in range(counts[1]):
            k, n = of_b(group, thread, i)
            assert atom.a.coords(0, lane, i) == {"n": n, "k": k}
        for i in range(counts[2]):
            m, n = d_of_all(group, thread, i)
            assert atom.d.coords(0, lane, i) == {"n": n, "m": m}


def test_mnemonics_are_those_of_the_manual() -> None:
    assert {row.mnemonic for row in MATRIX} == FORMS
    assert all(f".{row.acc}" in row.mnemonic.partition(".col")[2] for row in MATRIX)


@pytest.mark.parametrize("row", LANE_BY_LANE, ids=lambda row: row.name)
def test_lanes_multiply_a_row_by_a_column(row: FmaRow) -> None:
    """Lane l has row l % 8 of N and row l / 8 of M, each with all of K, and their product."""
    atom = row.atom(1)
    for lane in range(LANES):
        n, m = lane % 8, lane // 8
        assert [atom.a.coords(0, lane, i) for i in range(row.k)] == [{"n": n, "k": k} for k in range(row.k)]
        assert [atom.b.coords(0, lane, i) for i in range(row.k)] == [{"m": m, "k": k} for k in range(row.k)]
        assert atom.d.coords(0, lane, 0) == {"n": n, "m": m}
    assert (atom.a.registers, atom.b.registers, atom.d.registers) == (row.k, row.k, 1)
    assert row.mnemonic in ("fma.rn.f32", "fma.rn.f64")


#: CUDA C++ Programming Guide, "Compute Capabilities": KB of shared memory a block, warps an SM
CAPACITIES = {
    "sm_80": (163, 64),
    "sm_86": (99, 48),
    "sm_89": (99, 48),
    "sm_90": (227, 64),
    "sm_90a": (227, 64),
    "sm_120": (99, 48),
}


def test_capacities_are_those_of_the_guide() -> None:
    found = {name: (f.shared_bytes // 1024, 4 * f.core.simd_subgroups) for name, f in FACTS.items()}
    assert found == CAPACITIES
    for facts in FACTS.values():
        assert (facts.subgroup_size, facts.max_subgroups, facts.registers) == (32, 32, 255)
        assert facts.core.simds * facts.core.simd_registers * 32 == 65536


def test_copies_and_vectors_have_the_sizes_of_the_manual() -> None:
    """`cp-size` of cp.async is 4, 8 or 16; `.v4.b32` is the widest vector, aligned to its size."""
    for facts in FACTS.values():
        assert set(facts.direct_widths) == {4, 8, 16}
        assert max(facts.global_widths) == max(facts.shared_widths) == facts.message_alignment == 16


@pytest.mark.parametrize("phases", ["shared_read", "shared_half_read", "shared_write", "matrix_reads"])
def test_lanes_of_a_phase_move_128_bytes(phases: str) -> None:
    """32 banks of 4 bytes; lanes are served in their order."""
    for facts in FACTS.values():
        found = getattr(facts, phases)
        assert found.banks == 32
        assert [lane for phase in found.phases for lane in phase] == list(range(32))
        assert {len(phase) for phase in found.phases} == {16 if phases == "shared_half_read" else 8}
