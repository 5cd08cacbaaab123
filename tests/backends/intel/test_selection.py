"""Selection for Xe: what runs on the simulator leaves the memory that the interpreter leaves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends import target as targets
from convgen.backends.intel.select import select as select_instructions
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import Unsupported
from convgen.ir.expr import AddressOf, Expr, FromLane, Lane, Mul, Uniform, const, eq, ne, select
from convgen.ir.fused import Fused
from convgen.ir.types import bool_, s32, u32, u64
from convgen.ir.verify import verify
from convgen.passes.legalize_messages import legalize_messages
from tests.backends.intel.random_kernels import TIMES, assert_simulates, kernels, simulates_through_the_passes
from tests.conftest import with_debian_12
from tests.strategies import FIXED, SWEEP

LANES = {"xehpg": 8, "xehpc": 16}


@pytest.mark.parametrize("target", LANES)
@settings(FIXED, max_examples=12)
@given(data=st.data())
def test_random_kernels(target: str, data: st.DataObject) -> None:
    assert_simulates(target, verify(data.draw(kernels(LANES[target])), "message"))


@pytest.mark.parametrize("target", LANES)
@settings(FIXED, max_examples=8)
@given(data=st.data())
def test_random_kernels_through_the_passes(target: str, data: st.DataObject) -> None:
    simulates_through_the_passes(target, data.draw(kernels(LANES[target])))


@pytest.mark.sweep
@pytest.mark.parametrize("target", LANES)
@settings(SWEEP, max_examples=400)
@given(data=st.data())
def test_many_random_kernels(target: str, data: st.DataObject) -> None:
    kernel = data.draw(kernels(LANES[target]))
    assert_simulates(target, kernel)
    simulates_through_the_passes(target, kernel)


# ---------------------------------------------------------------- one at a time

NOWHERE, ALWAYS = const(0, u64), const(True, bool_)


class Room(KernelBuilder):
    """A kernel that stores one word a lane."""

    def __init__(self, target: str) -> None:
        super().__init__("k", width=LANES[target])
        self.given, self.out = (self.buffer(name, u32, 4096) for name in ("given", "out"))
        self.n = self.scalar("n")

    def load(self, address: Expr) -> Expr:
        v = self.var("v", u32)
        self.add(s.FlatLoad(v, self.given, address, ALWAYS, self.site()))
        return v

    def store(self, value: Expr, far: Expr = NOWHERE, mask: Expr = ALWAYS) -> None:
        address = AddressOf(self.out) + (Lane() * 4).to(u64) + far
        self.add(s.FlatStore(self.out, address, mask, value.to(u32), self.site()))


def exit_diverges(k: Room) -> None:
    """A result has the register of the carried variable, so that one varies, too."""
    with k.loop("i", 0, 4, c=const(7)) as loop:
        k.exit_if(loop.var > 2, Lane())
        loop.yields(loop["c"] + 1)
    k.store(loop.result("c"))


def turns(k: Room) -> None:
    """Counters that nobody reads, from and to what is known or not; without a turn, too."""
    ranges: list[tuple[Expr, Expr]] = [(const(3), const(8)), (k.n - 4, k.n), (const(TIMES - 5), k.n), (k.n + 1, k.n)]
    for far, (begin, end) in enumerate(ranges):
        with k.loop("i", begin, end, c=Lane() + 1) as loop:
            loop.yields(loop["c"] * 3)
        k.store(loop.result("c"), const(256 * far, u64))


def one_address(k: Room) -> None:
    k.store(k.load(AddressOf(k.given) + k.n.to(u64) - TIMES))


def constants(k: Room) -> None:
    k.store((const(0xFFFFFFFD, u32).to(u64) + const(4, u64)).to(u32), const(0xFFFFFFFC, u32).to(u64) + 8 - (1 << 32))


def negative_multiple(k: Room) -> None:
    minus = -TIMES * 0x90000000 % (1 << 64)
    k.store(k.n, (const(0) - k.n).to(u64) * const(0x90000000, u64) - const(minus, u64))


def negative_multiple_a_lane(k: Room) -> None:
    lane = Lane() - 3
    k.store(k.n, lane.to(u64) * const(0x90000000, u64), mask=(lane <= 0) & (lane >= 0))


def bound_multiple(k: Room) -> None:
    wide = k.let("wide", (k.n - 2 * TIMES).to(u64))
    k.store(k.n, wide * const(12, u64) + 12 * TIMES)


def carries(k: Room) -> None:
    """The lower half of a sum overflows in some lanes, from the third on; two sums have one upper half."""
    start = k.let("start", (Lane() * 4).to(u32).to(u64) + const(0xFFFFFFF8, u64))
    for far in (0, 256):
        address = AddressOf(k.out) + (start + const((far - 0xFFFFFFF8) % (1 << 64), u64))
        k.add(s.FlatStore(k.out, address, ALWAYS, (start + const(far, u64)).to(u32), k.site()))


def agreed_condition(k: Room) -> None:
    agreed = k.let("agreed", Uniform(k.load(AddressOf(k.given)) < 5))
    with k.when(agreed):
        k.store(Lane() + 1)
    with k.when(~agreed):
        k.store(Lane() + 2)


def agreed_address(k: Room) -> None:
    address = k.load(AddressOf(k.given) + ((Lane() & 1) * 4).to(u64))
    k.store(k.n, Uniform((address & 0).to(u64) + (1 << 33)) - (1 << 33))


def counted(k: Room) -> None:
    """What is one where a comparison holds is added and stored."""
    one = k.let("one", select(Lane() < k.n, const(1), 0))
    many = k.let("many", select(k.n > 2, const(1), 0))
    k.store(k.load(AddressOf(k.given)).to(s32) + one + (Lane() - many) * 5 + (one | many << 4))


def half_an_address(k: Room) -> None:
    """A variable of 64 bits whose upper half is zero, of what a loop has changed when it is used."""
    with k.loop("i", 0, 4, c=Lane(), d=const(0)) as loop:
        wide = k.let("wide", loop["c"].to(u32).to(u64))
        loop.yields(loop["c"] + 1, (wide + const(8, u64)).to(s32))
    k.store(loop.result("c") * 64 + loop.result("d"))


def named_constant(k: Room) -> None:
    """A variable of 64 bits that stands for a constant of 32."""
    wide = k.let("wide", const(64, u32).to(u64))
    k.store(k.load(AddressOf(k.given) + (wide + (Lane() * 4).to(u64))), wide * const(3, u64))


def of_three_sources(k: Room) -> None:
    a, b = k.load(AddressOf(k.given)), k.load(AddressOf(k.given) + (Lane() * 4).to(u64))
    n, minus = k.n.to(u32), const(0, u32) - b
    sums = Fused("add3", minus, const(0xFFFFFFF0, u32), a), Fused("add3", n, const(5, u32), const(9, u32))
    products = (
        Fused("mad16", minus, const(0xFFFF, u32), sums[0]),
        Fused("mad16", n, Lane().to(u32), sums[1]),
        Fused("mad16", const(0x12345678, u32), Lane().to(u32), const(0x7FFF, u32)),
    )
    k.store(products[0] ^ products[1] ^ products[2], mask=sums[1] > 13)  # undefined bits of a mask are found


def minus_a_name(k: Room) -> None:
    """What is taken from zero is a name for a constant."""
    five = k.let("five", const(5))
    minus = const(0) - five
    k.store(Lane() + minus, mask=Lane() < 7 - five + k.n)
    k.store(Fused("mad16", k.n, Lane(), minus), const(256, u64))


def bits_against_zero(k: Room) -> None:
    """What `and` finds by itself: of lanes, of all of them, with a constant on either side."""
    a = k.load(AddressOf(k.given) + (Lane() * 4).to(u64))
    n = k.n.to(u32) & 31
    for far, bits in enumerate((a & n, n & 6, const(1 << 31, u32) >> n & a)):
        k.store(k.n, const(256 * far, u64), mask=eq(bits, 0))
        k.store(k.n + 1, const(256 * far, u64), mask=ne(bits, 0))
    with k.when(Uniform(eq(k.n & 4, 0))):
        k.store(a, const(1024, u64))


def words_of_lanes(k: Room) -> None:
    """One lane's word is an operand of all, whatever takes it."""
    a = k.load(AddressOf(k.given) + (Lane() * 4).to(u64))
    word = k.let("word", (a & 0xFFF).to(s32) - 2 * Lane())
    first, third = (Uniform(FromLane(word, const(lane))) for lane in (0, 2))
    k.store(word * first + (third - Lane()), mask=(first < word) | eq(third & 1, 0))
    k.store((const(1 << 20, u32) >> (word * 5 & 31).to(u32)) + (first.to(u32) << 3), const(256, u64))
    held = k.let("held", third)
    k.store(Fused("mad16", first, const(5), held) ^ select(held < 3, first, third), const(512, u64))
    k.store(held, (first & 3).to(u32).to(u64) * const(64, u64) + 1024)


SMALL = [
    minus_a_name,
    bits_against_zero,
    words_of_lanes,
    counted,
    half_an_address,
    named_constant,
    of_three_sources,
    exit_diverges,
    turns,
    one_address,
    constants,
    negative_multiple,
    negative_multiple_a_lane,
    bound_multiple,
    agreed_condition,
    agreed_address,
    carries,
]


@pytest.mark.parametrize("target", LANES)
@pytest.mark.parametrize("made", SMALL)
def test_small_kernels(made: Callable[[Room], None], target: str) -> None:
    k = Room(target)
    made(k)
    assert_simulates(target, verify(k.done(), "message"))


@with_debian_12
def test_64_bits_are_compared_where_the_engine_has_them() -> None:
    for target in LANES:
        k = Room(target)
        k.store(k.n, mask=AddressOf(k.given) + Lane().to(u64) < AddressOf(k.given) + 3)
        if target == "xehpc":
            assert_simulates(target, k.done())
        else:
            with pytest.raises(Unsupported, match="given a comparison of 64 bits"):
                targets.get(target).emit(k.done())


@pytest.mark.parametrize("deep_first", [False, True])
def test_conditions_in_one_another_take_few_flags(*, deep_first: bool) -> None:
    """XeHPG has four flag registers; of two conditions the one that takes more is made while none is held."""
    k = KernelBuilder("masks", width=8)
    y, lane = k.surface(k.buffer("y", u32, 8)), k.let("lane", Lane())
    held: Expr = lane < const(7)
    for n in range(1, 8):
        one = (lane ^ n) < const(7)
        held = held & one if deep_first else one & held
    k.global_store(y, select(held, const(1, u32), const(0, u32)), lane * 4)
    kernel = k.done()
    lowered = legalize_messages(kernel, targets.get("xehpg").facts)
    assert_simulates("xehpg", kernel, lowered, {"y": np.zeros(32, np.uint8)})


@pytest.mark.parametrize("target", LANES)
def test_factors_of_long_products_are_computed_once(target: str) -> None:
    """The order of factors does not matter, whichever of them has 32 bits."""

    def instructions(product: Callable[[Expr, Expr], Expr]) -> int:
        k = Room(target)
        offset = (Lane() * 4).to(u64) + k.load(AddressOf(k.given) + (Lane() * 4).to(u64)).to(u64)
        k.store(k.n, far=product(offset, k.n.to(u32).to(u64)))
        facts = targets.get(target).facts
        return sum(1 for _ in select_instructions(k.done(), facts).instructions())

    assert instructions(Mul) == instructions(lambda offset, n: Mul(n, offset))
