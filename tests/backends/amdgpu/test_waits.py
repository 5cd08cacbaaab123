"""Waits: where the data flow demands them, and no wider than it does. The listings hold the expected waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from convgen.backends.amdgpu.physical import Physical
from convgen.backends.amdgpu.waits import LARGEST, insert_waits
from convgen.backends.machine.allocate import Bank, allocate
from convgen.backends.machine.instruction import Access, Function, Instruction, Unit
from tests.backends.amdgpu.listing import function, listing, physical, tidy
from tests.backends.machines import functions
from tests.backends.symbolic import path_of
from tests.strategies import FIXED

EXPECTED = {
    "a load is waited for where it is used": """
        buffer_load_dwordx4 v[0:3], v8, s[0:3], 0
        s_mov_b32 s8, 0
        s_waitcnt vmcnt(0)
        v_mov_b32 v9, v3
    """,
    "loads return in order": """
        buffer_load_dword v0, v8, s[0:3], 0
        buffer_load_dword v1, v8, s[0:3], 0
        buffer_load_dword v2, v8, s[0:3], 0
        s_waitcnt vmcnt(2)
        v_mov_b32 v9, v0
        s_waitcnt vmcnt(0)
        v_add_u32 v9, v1, v2
        v_mov_b32 v9, v1
    """,
    "stores count, and take their data at issue": """
        buffer_load_dword v0, v8, s[0:3], 0
        buffer_store_dword v1, v8, s[0:3], 0
        v_mov_b32 v1, 0
        s_waitcnt vmcnt(1)
        v_mov_b32 v9, v0
        s_endpgm
    """,
    "overwriting what a load will write waits; overwriting its address does not": """
        buffer_load_dword v0, v8, s[0:3], 0
        v_mov_b32 v8, 0
        s_waitcnt vmcnt(0)
        v_mov_b32 v0, 0
    """,
    "LDS operations return in order, on a counter of their own": """
        ds_read_b64 v[0:1], v8
        buffer_load_dword v4, v8, s[0:3], 0
        ds_read_b64 v[2:3], v8
        s_waitcnt lgkmcnt(1)
        v_mov_b32 v9, v1
        s_waitcnt vmcnt(0) lgkmcnt(0)
        v_add_u32 v9, v2, v4
    """,
    "scalar loads return in any order": """
        s_load_dwordx2 s[4:5], s[0:1], 0
        s_load_dwordx2 s[6:7], s[0:1], 8
        s_waitcnt lgkmcnt(0)
        s_mov_b32 s8, s4
        s_mov_b32 s9, s6
    """,
    "a scalar load only adds to the count of LDS operations, which are in order among themselves": """
        ds_read_b32 v0, v8
        s_load_dword s4, s[0:1], 0
        ds_read_b32 v1, v8
        s_waitcnt lgkmcnt(1)
        v_mov_b32 v9, v0
        s_waitcnt lgkmcnt(0)
        v_mov_b32 v9, v1
        s_mov_b32 s8, s4
    """,
    "of a scalar load only 0 tells, however many LDS operations are behind it": """
        s_load_dword s4, s[0:1], 0
        ds_read_b32 v0, v8
        ds_read_b32 v1, v8
        s_waitcnt lgkmcnt(1)
        v_mov_b32 v9, v0
        s_waitcnt lgkmcnt(0)
        s_mov_b32 s8, s4
        v_mov_b32 v9, v1
    """,
    "a scalar load that a loop leaves alone makes none of its waits wider": """
        s_load_dword s4, s[0:1], 0
        ds_read_b32 v0, v8
        loop:
        ds_read_b32 v1, v8
        s_waitcnt lgkmcnt(1)
        v_mov_b32 v9, v0
        ds_read_b32 v0, v8
        s_waitcnt lgkmcnt(1)
        v_mov_b32 v9, v1
        s_cbranch_scc1 loop
        end:
        s_waitcnt lgkmcnt(0)
        s_mov_b32 s8, s4
    """,
    "LDS writes land before a barrier; loads need not": """
        buffer_load_dword v0, v8, s[0:3], 0
        ds_write_b32 v8, v1
        s_waitcnt lgkmcnt(0)
        s_barrier
        s_waitcnt vmcnt(0)
        ds_write_b32 v8, v0
        s_barrier
        s_barrier
        s_endpgm
    """,
    "a barrier publishes what is touched next; the rest is for the next barrier": """
        ds_write_b32 v8, v0 slot:0
        ds_write_b32 v8, v1 slot:1
        s_waitcnt lgkmcnt(1)
        s_barrier
        ds_read_b32 v2, v8 slot:0
        s_waitcnt lgkmcnt(1)
        s_barrier
        ds_read_b32 v3, v8 slot:1
        s_waitcnt lgkmcnt(1)
        s_barrier
        ds_write_b32 v8, v4 slot:0
    """,
    "a loop's barrier publishes what its next turn reads": """
        ds_write_b32 v8, v0 slot:0
        loop:
        s_waitcnt lgkmcnt(0)
        s_barrier
        ds_read_b32 v2, v8 slot:0
        ds_write_b32 v8, v1 slot:1
        s_waitcnt lgkmcnt(0)
        s_barrier
        ds_read_b32 v3, v8 slot:1
        ds_write_b32 v8, v0 slot:0
        s_cbranch_scc1 loop
        end:
        s_endpgm
    """,
    "a loop that loads for its next turn waits at the use, for both ways in": """
        buffer_load_dword v0, v8, s[0:3], 0
        buffer_load_dword v1, v8, s[0:3], 0
        loop:
        s_waitcnt vmcnt(1)
        ds_write_b32 v8, v0
        buffer_load_dword v0, v8, s[0:3], 0
        s_waitcnt vmcnt(1)
        ds_write_b32 v8, v1
        buffer_load_dword v1, v8, s[0:3], 0
        s_cbranch_scc1 loop
        end:
        s_waitcnt vmcnt(1)
        v_mov_b32 v9, v0
    """,
    "ways in that disagree on the order wait for the worse": """
        buffer_load_dword v1, v8, s[0:3], 0
        buffer_load_dword v0, v8, s[0:3], 0
        loop:
        s_waitcnt vmcnt(0)
        ds_write_b32 v8, v0
        buffer_load_dword v0, v8, s[0:3], 0
        ds_write_b32 v8, v1
        buffer_load_dword v1, v8, s[0:3], 0
        s_cbranch_scc1 loop
        end:
        s_endpgm
    """,
    "what one way in has not waited for is waited for at the join": """
        loop:
        s_waitcnt vmcnt(0)
        v_mov_b32 v9, v0
        buffer_load_dword v0, v8, s[0:3], 0
        s_cbranch_scc1 loop
        end:
        s_endpgm
    """,
    "what drains waits for stores too, and only for what its counter counts": """
        ds_read_b32 v2, v8
        buffer_load_dword v0, v8, s[0:3], 0
        buffer_store_dword v1, v8, s[0:3], 0
        s_waitcnt vmcnt(0)
        buffer_inv
        v_mov_b32 v9, v0
        s_waitcnt lgkmcnt(0)
        v_mov_b32 v9, v2
    """,
    "a matrix instruction waits for all three operands": """
        ds_read_b64 v[0:1], v8
        ds_read_b64 v[2:3], v8
        ds_read_b64 v[4:5], v8
        s_waitcnt lgkmcnt(1)
        v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
    """,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_expected_waits(name: str) -> None:
    f = insert_waits(function(EXPECTED[name]), physical())
    assert listing(f) == tidy(EXPECTED[name])


def test_a_count_beyond_the_field_is_clamped_and_says_so() -> None:
    reads = "\n".join(f"ds_read_b32 v{n}, v99" for n in range(18))
    f = insert_waits(function(f"{reads}\nv_mov_b32 v98, v0\nv_mov_b32 v98, v2\nv_mov_b32 v98, v3"), physical())
    waits = [(i.modifiers, i.comment) for i in f.instructions() if i.op.name == "s_waitcnt"]
    assert waits == [(("lgkmcnt(14)",), "lgkmcnt clamped")]


def test_more_loads_than_the_counter_holds() -> None:
    loads = "\n".join(f"buffer_load_dword v{n}, v99, s[0:3], 0" for n in range(70))
    f = insert_waits(function(f"{loads}\nv_mov_b32 v98, v0\nv_mov_b32 v98, v7"), physical())
    waits = [(i.modifiers, i.comment) for i in f.instructions() if i.op.name == "s_waitcnt"]
    assert waits == [(("vmcnt(62)",), "vmcnt clamped")]


# ---------------------------------------------------------------- random functions against a plain model

BANKS = {"v": Bank(128, {1: 1, 2: 2}), "s": Bank(60, {1: 1, 2: 2, 4: 4})}


def counts(i: Instruction) -> dict[str, int]:
    """The fields of a wait."""
    fields = (m.rstrip(")").split("(") for m in i.modifiers)
    return {name: int(count) for name, count in fields}


def holds(path: list[Instruction], view: Physical, weaker: tuple[Instruction, str] | None = None) -> bool:
    """Whether nothing on the path touches what is still in flight, with one field of one wait one higher.

    Other waves run the same path: behind a barrier they may touch what was in flight at that barrier.
    """
    flight: dict[str, list[Instruction]] = {"vmcnt": [], "lgkmcnt": []}  # oldest first, as far as they are in order
    unpublished: list[Access] = []  # what was in flight at the last barrier
    for i in path:
        if i.op.name == "s_waitcnt":
            for name, count in counts(i).items():
                more = weaker is not None and i is weaker[0] and name == weaker[1]
                left = count + more
                scalar = [o for o in flight[name] if o.op.unit is Unit.SCALAR_MEMORY] if left else []
                ordered = [o for o in flight[name] if o.op.unit is not Unit.SCALAR_MEMORY]
                flight[name] = ordered[max(0, len(ordered) - left) :] + scalar
            continue
        touched = view.read(i) | view.written(i)
        if any(touched & view.written(o) for queue in flight.values() for o in queue):
            return False
        if i.barrier:
            unpublished = [o.access for o in flight["lgkmcnt"] if o.access and o.access.space == "shared"]
        if i.access and any(i.access.conflicts(a) for a in unpublished):
            return False
        if i.op.unit in (Unit.GLOBAL, Unit.SHARED, Unit.SCALAR_MEMORY):
            flight["vmcnt" if i.op.unit is Unit.GLOBAL else "lgkmcnt"].append(i)
    return True


def paths_of(f: Function, decisions: int = 5) -> list[list[Instruction]]:
    """Every run of a function that decides at most so many backward branches; then it falls through."""
    labels = {b.label: n for n, b in enumerate(f.blocks)}
    done: list[list[Instruction]] = []

    def walk(at: int, path: list[Instruction], left: int) -> None:
        while at < len(f.blocks):
            body = f.blocks[at].instructions
            path = path + body
            if left and body and body[-1].target:
                left -= 1
                walk(labels[body[-1].target], path, left)
            at += 1
        done.append(path)

    walk(0, [], decisions)
    return done


def fields(f: Function) -> Iterator[tuple[Instruction, str]]:
    """Each field of each wait that is not clamped."""
    for i in f.instructions():
        if i.op.name == "s_waitcnt":
            yield from ((i, name) for name in counts(i) if "clamped" not in i.comment)


@settings(FIXED, max_examples=60)
@given(functions(most=24))
def test_waits_suffice_and_are_minimal(f: Function) -> None:
    view = Physical(allocate(f, BANKS))
    f = insert_waits(f, view)
    paths = paths_of(f)
    assert all(holds(path, view) for path in paths)
    for i, name in fields(f):
        assert counts(i)[name] <= LARGEST[name]
        assert not all(holds(path, view, (i, name)) for path in paths), f"{i.modifiers} waits too long"


def test_the_model_knows_what_it_is_told() -> None:
    f = function(EXPECTED["loads return in order"])
    view = physical()
    assert not holds(path_of(f), view)
    f = insert_waits(f, view)
    assert holds(path_of(f), view)
