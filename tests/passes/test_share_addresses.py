"""Which messages take their addresses from another one's: those a constant apart, in offsets that do not wrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.expr import Add, AddressOf, Const, Expr, Lane, Surface, const
from convgen.ir.interp import interpret
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.types import Type, bool_, s32, s64, u8, u32, u64
from convgen.ir.verify import verify
from convgen.passes.share_addresses import share_addresses
from tests.strategies import FIXED

FACTS = get("xehpc").facts
LANES, TRIPS = FACTS.subgroup_size, 3
ROOM = 1 << 14  #: bytes of the buffer that is read
EVERYWHERE = const(True, bool_)

Make = Callable[[Expr], Expr]  #: the offset, in s32, of what a lane loads in a trip


def offset(trips: int, lanes: int, constant: int) -> Make:
    return lambda trip: trip * trips + Lane() * lanes + constant


def loads(*offsets: Make, loops: bool = True, by: Type = u32, times: Sequence[int] = ()) -> Kernel:
    """Loads at those offsets in a loop, or all but the last before it, and a store of each.

    Offsets have 64 bits by way of a type, and count so many times.
    """
    k = KernelBuilder("k", width=LANES)
    of, to = k.buffer("of", u32, ROOM // 4), k.buffer("to", u32, TRIPS * LANES * len(offsets))

    def load(n: int, trip: Expr) -> None:
        v = k.var("v", u32)
        address: Expr = AddressOf(of)
        for _ in range(times[n] if times else 1):
            address += offsets[n](trip).to(by).to(u64)
        k.add(s.FlatLoad(v, of, address, EVERYWHERE, k.site()))
        at = (trip * len(offsets) + n) * LANES * 4 + Lane() * 4  # none of the others' buffer
        k.add(s.FlatStore(to, AddressOf(to) + at.to(u32).to(u64), EVERYWHERE, v, k.site()))

    early = 0 if loops else len(offsets) - 1
    for n in range(early):
        load(n, const(0))
    with k.loop("i", 0, TRIPS) as loop:
        for n in range(early, len(offsets)):
            load(n, loop.var)
    return verify(k.done(), "message")


def results(k: Kernel) -> bytes:
    given = np.random.default_rng(3).integers(1, 255, ROOM, dtype=np.uint8)
    memory = {"of": given, "to": np.zeros(20 * TRIPS * k.width * 4, np.uint8)}
    interpret(k, memory, {})
    return memory["to"].tobytes()


def apart(k: Kernel) -> list[int]:
    """What loads add to another one's address, those that take it from there."""
    flat = [x for x in statements(k.body) if isinstance(x, s.FlatLoad)]
    others = {x.address for x in flat}
    sums = [x.address for x in flat if isinstance(x.address, Add) and x.address.a in others]
    return [int(e.b.bits) for e in sums if isinstance(e.b, Const)]


@pytest.mark.parametrize(
    ("constants", "wanted"),
    [((64, 0, 128), [64, 128]), ((0, 0), []), ((256,), []), ((4, 8, 12), [4, 8])],
)
def test_the_lowest_address_serves_the_others(constants: Sequence[int], wanted: list[int]) -> None:
    before = loads(*(offset(1024, 4, c) for c in constants))
    after = verify(share_addresses(before, FACTS), "message")
    assert apart(after) == wanted
    assert results(after) == results(before)


@pytest.mark.parametrize("other", [offset(1024, 8, 64), offset(512, 4, 64)])
def test_what_differs_in_more_than_a_constant_stays(other: Make) -> None:
    before = loads(offset(1024, 4, 0), other)
    assert not apart(share_addresses(before, FACTS))


def test_offsets_that_may_wrap_stay() -> None:
    """Of two neighbours where the lower one is in front of the buffer in lane 0, and wraps there."""
    before = loads(offset(1024, 4, 0), offset(1024, 4, -4))
    assert not apart(share_addresses(before, FACTS))


@pytest.mark.parametrize("narrow", [u8, s64])
def test_offsets_of_other_types_stay(narrow: Type) -> None:
    """What is cut to eight bits wraps, although it is not negative."""
    before = loads(offset(256, 16, 0), offset(256, 16, 64), by=narrow)
    assert not apart(share_addresses(before, FACTS))


def test_far_constants_stay() -> None:
    before = loads(offset(64, 4, 0), offset(64, 4, 1 << 30))
    assert not apart(share_addresses(before, FACTS))


def test_an_offset_twice_is_another_address() -> None:
    before = loads(offset(64, 4, 0), offset(64, 4, 64), times=(2, 1))
    after = share_addresses(before, FACTS)
    assert not apart(after)
    assert results(after) == results(before)


def test_messages_of_another_block_stay() -> None:
    before = loads(offset(0, 4, 0), offset(0, 4, 64), loops=False)
    assert not apart(share_addresses(before, FACTS))


# ---------------------------------------------------------------- surfaces

ON_SURFACES = get("gfx942").facts
SIGN = const(1 << 31, u32)


def surface_loads(*offsets: Make, masked: Sequence[bool] = ()) -> Kernel:
    """Loads at those offsets of a surface in a loop, and a store of each; if `masked`, those of odd lanes are empty."""
    width = ON_SURFACES.subgroup_size
    k = KernelBuilder("k", width=width)
    of, to = k.buffer("of", u32, ROOM // 4), k.buffer("to", u32, TRIPS * width * len(offsets))
    with k.loop("i", 0, TRIPS) as loop:
        for n, (make, is_masked) in enumerate(zip(offsets, masked or [False] * len(offsets))):
            v, at = k.var("v", u32), make(loop.var)
            if is_masked:
                at = (Lane().to(u32) << const(31, u32) & SIGN).to(s32) | at
            k.add(s.GlobalLoad(v, of, k.surface(of), at, const(0), 4, k.site()))
            place = (loop.var * len(offsets) + n) * width * 4 + Lane() * 4
            k.add(s.GlobalStore(to, k.surface(to), place, const(0), 0, v, k.site()))
    return verify(k.done(), "message")


def immediates(k: Kernel) -> list[int]:
    """Of loads, with those of one varying offset side by side."""
    found = [x for x in statements(k.body) if isinstance(x, s.GlobalLoad)]
    return [x.imm for x in sorted(found, key=lambda x: [y.varying for y in found].index(x.varying))]


@pytest.mark.parametrize(
    ("constants", "wanted"),
    [
        ((64, 0, 128), [68, 4, 132]),
        ((0, 4092), [4, 4]),  # 4096 does not fit
        ((0, 4088), [4, 4092]),
        ((0, 4096, 4608, 64), [4, 68, 4, 516]),
    ],
)
def test_on_surfaces_constants_go_into_immediates(constants: Sequence[int], wanted: list[int]) -> None:
    before = surface_loads(*(offset(1024, 4, c) for c in constants))
    after = verify(share_addresses(before, ON_SURFACES), "message")
    assert immediates(after) == wanted
    assert results(after) == results(before)


def test_masks_stay_beside_immediates() -> None:
    before = surface_loads(*(offset(1024, 4, c) for c in (64, 0, 128, 8)), masked=(True, False, True, False))
    after = verify(share_addresses(before, ON_SURFACES), "message")
    assert immediates(after) == [4, 68, 4, 12]
    assert results(after) == results(before)


def test_on_surfaces_what_may_be_negative_stays() -> None:
    """The immediate would bring it into the surface, but for hardware the offset has no sign."""
    before = surface_loads(offset(1024, 4, -8), offset(1024, 4, 8))
    assert immediates(share_addresses(before, ON_SURFACES)) == [4, 4]


def test_bits_other_than_the_sign_are_no_mask() -> None:
    """Bits of both sides of an `or` may meet where the offset is another one."""
    before = surface_loads(
        *(lambda trip, c=c: (Lane().to(u32) & const(64, u32)).to(s32) | trip * 4 + c for c in (0, 64))
    )
    assert immediates(share_addresses(before, ON_SURFACES)) == [4, 4]


STEPS = st.sampled_from([4, 64, 256])
ANYWHERE = st.builds(offset, STEPS, STEPS, st.integers(0, 2048).map(lambda n: 4 * n))


@settings(FIXED, max_examples=30)
@given(st.lists(st.tuples(ANYWHERE, st.booleans()), min_size=1, max_size=8))
def test_all_reads_of_surfaces_read_what_they_read(given: list[tuple[Make, bool]]) -> None:
    makes, masked = zip(*given)
    before = surface_loads(*makes, masked=masked)
    after = verify(share_addresses(before, ON_SURFACES), "message")
    assert results(after) == results(before)
    assert all(0 <= imm <= ON_SURFACES.global_imm_max for imm in immediates(after))


# ---------------------------------------------------------------- shifted surfaces

FEW = evolve(ON_SURFACES, registers=0)  #: no loop has registers left for offsets
FAR = 4096  #: bytes; the first distance that no immediate holds


def windows(k: Kernel) -> list[tuple[int, int]]:
    """Return shift and extent of each load's surface, in bytes."""
    surfaces = [x.surface for x in statements(k.body) if isinstance(x, s.GlobalLoad)]
    parts = [(x.shift, x.extent) for x in surfaces if isinstance(x, Surface)]
    return [(a.bits, b.bits) for a, b in parts if isinstance(a, Const) and isinstance(b, Const)]


def test_loops_without_registers_shift_surfaces() -> None:
    constants, masked = (FAR, 0, 3 * FAR, 0, 2 * FAR), (False, True, False, False, True)
    before = surface_loads(*(offset(1024, 4, c) for c in constants), masked=masked)
    after = verify(share_addresses(before, FEW), "message")
    assert windows(after) == [(c, ROOM - c) for c in constants]
    assert len({x.varying for x in statements(after.body) if isinstance(x, s.GlobalLoad)}) == 2  # with and without mask
    assert results(after) == results(before)


def test_loops_with_registers_keep_their_surfaces() -> None:
    before = surface_loads(*(offset(1024, 4, c) for c in (FAR, 0)))
    assert set(windows(share_addresses(before, ON_SURFACES))) == {(0, ROOM)}


def test_surfaces_are_not_shifted_past_their_end() -> None:
    before = surface_loads(offset(64, 4, 0), offset(64, 4, ROOM))
    after = verify(share_addresses(before, FEW), "message")
    assert set(windows(after)) == {(0, ROOM)}
    assert results(after) == results(before)


def test_offsets_that_may_be_negative_shift_no_surface() -> None:
    before = surface_loads(offset(1024, 4, -8), offset(1024, 4, FAR))
    assert set(windows(share_addresses(before, FEW))) == {(0, ROOM)}


def test_scalar_registers_bound_the_shifted_surfaces() -> None:
    before = surface_loads(*(offset(4, 4, c * 256) for c in range(20)))
    few = evolve(FEW, global_imm_max=255)
    after = verify(share_addresses(before, few), "message")
    assert len(set(windows(after))) == 13
    assert results(after) == results(before)


@settings(FIXED, max_examples=30)
@given(st.lists(st.tuples(ANYWHERE, st.booleans()), min_size=1, max_size=8))
def test_all_reads_of_shifted_surfaces_read_what_they_read(given: list[tuple[Make, bool]]) -> None:
    makes, masked = zip(*given)
    before = surface_loads(*makes, masked=masked)
    assert results(verify(share_addresses(before, evolve(FEW, global_imm_max=63)), "message")) == results(before)


# ---------------------------------------------------------------- flat addresses


@settings(FIXED, max_examples=30)
@given(st.lists(st.builds(offset, *(st.sampled_from([4, 64, 256]),) * 2, st.integers(0, 63).map(lambda n: 4 * n)),
                min_size=1, max_size=8))  # fmt: skip
def test_all_reads_what_it_read(offsets: list[Make]) -> None:
    before = loads(*offsets)
    assert results(verify(share_addresses(before, FACTS), "message")) == results(before)
