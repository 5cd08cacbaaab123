"""Flat messages, blocks and halves of barriers: what they do, what the verifier refuses, how they print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import VerifyError
from convgen.ir.expr import AddressOf, Expr, Lane, Slice, Var, const, eq, select, zeros
from convgen.ir.interp import InterpError, interpret
from convgen.ir.layout.memory import Global
from convgen.ir.mutate import postorder
from convgen.ir.text import parse, to_text
from convgen.ir.types import bool_, f16, f32, u8, u32, u64, vector
from convgen.ir.uniform import varying
from convgen.ir.verify import verify

LANE = Lane()
TRUE = const(True, bool_)
WIDTH = 8


class Room(KernelBuilder):
    """Two buffers of 64 words, a shared tile of 32."""

    def __init__(self, subgroups: int = 1) -> None:
        super().__init__("k", subgroups=subgroups, width=WIDTH)
        self.x, self.y = (self.buffer(name, u32, 64) for name in "xy")
        self.sums = self.buffer("sums", f32, 4)
        self.tile = self.shared("tile", u32, 4, 8)

    def buffer_of(self, address: Expr) -> Global:
        """The buffer whose address is the first to occur in `address`; `x` if none does."""
        return next((n.buffer for n in postorder(address) if isinstance(n, AddressOf)), self.x)

    def load(self, address: Expr, mask: Expr = TRUE, type: Any = u32) -> Var:
        v = self.var("v", type)
        self.add(s.FlatLoad(v, self.buffer_of(address), address, mask, self.site()))
        return v

    def store(self, value: Expr, address: Expr, mask: Expr = TRUE) -> None:
        self.add(s.FlatStore(self.buffer_of(address), address, mask, value, self.site()))

    def read(self, address: Expr, imm: int = 0, type: Any = u32) -> Var:
        v = self.var("b", type)
        self.add(s.BlockRead(v, self.tile, address, imm, self.site()))
        return v

    def write(self, value: Expr, address: Expr, imm: int = 0) -> None:
        self.add(s.BlockWrite(self.tile, address, imm, value, self.site()))

    def arrive(self) -> None:
        self.add(s.Arrive(self.site()))

    def wait(self) -> None:
        self.add(s.Wait(self.site()))


def at(buffer: Global, offset: Expr) -> Expr:
    return AddressOf(buffer) + offset.to(u64)


def run(k: KernelBuilder) -> dict[str, np.ndarray[Any, Any]]:
    """x counts from 100 on, y is 7 everywhere, sums are 0."""
    memory = {
        "x": np.arange(100, 164, dtype=np.uint32),
        "y": np.full(64, 7, np.uint32),
        "sums": np.zeros(4, np.float32),
    }
    interpret(verify(k.done(), "message"), {name: data.view(np.uint8) for name, data in memory.items()})
    return memory


# ---------------------------------------------------------------- flat messages


def test_masked_lanes_load_zero_and_store_nothing() -> None:
    """And their addresses may be any."""
    k = Room()
    here = LANE < 5
    got = k.load(select(here, LANE * 8, -12345678).to(u64) + AddressOf(k.x), here)
    k.store(got + 1, at(k.y, LANE * 4))
    k.store(got, at(k.y, 32 + LANE * 4), ~here)
    assert run(k)["y"][:16].tolist() == [101, 103, 105, 107, 109, 1, 1, 1, *[7] * 5, 0, 0, 0]


def test_wide_messages_move_elements_in_order() -> None:
    k = Room()
    wide = k.load(at(k.x, LANE * 32), type=vector(u32, 8))
    k.store(Slice(wide, 4, 4), at(k.y, LANE * 16))
    assert run(k)["y"][:32].tolist() == [100 + 8 * lane + 4 + i for lane in range(8) for i in range(4)]


def test_additions_take_effect_one_by_one() -> None:
    k = Room()
    k.add(s.FlatAtomic(k.sums, at(k.sums, LANE % 2 * 4), LANE < 7, (LANE + 1).to(f32), k.site(), "add"))
    assert run(k)["sums"].tolist() == [1 + 3 + 5 + 7, 2 + 4 + 6, 0, 0]


def test_addresses_are_those_of_the_buffers() -> None:
    """The way from one buffer's address to a byte may lead anywhere."""
    k = Room()
    far = AddressOf(k.x) + const(1 << 40, u64) * 5 - (LANE * 4).to(u64) - const(5 << 40, u64) + 28
    k.store(k.load(far), at(k.y, LANE * 4))
    assert run(k)["y"][:8].tolist() == list(range(107, 99, -1))


FLAT_ERRORS: list[tuple[Callable[[Room], object], str]] = [
    (lambda k: k.load(at(k.x, LANE * 4 + 232)), "to 259 of buffer x, which has 256"),
    (lambda k: k.load(at(k.x, LANE * 32 + 4), type=vector(u32, 8)), "to 259 of buffer x, which has 256"),
    (lambda k: k.load(at(k.x, LANE * 4 - 4)), "bytes -4 to -1 of buffer x, which has 256"),
    (lambda k: k.load(LANE.to(u64)), "bytes -1099511627776 to .* of buffer x"),
    (lambda k: k.load(select(LANE < 3, AddressOf(k.x), AddressOf(k.y))), "bytes 1099511627776 to .* of buffer x"),
    (lambda k: k.store(LANE, at(k.y, LANE // 2 * 4)), "two lanes store"),
]


@pytest.mark.parametrize(("make", "message"), FLAT_ERRORS)
def test_flat_errors(make: Callable[[Room], object], message: str) -> None:
    k = Room()
    make(k)
    with pytest.raises(InterpError, match=message):
        run(k)


POISONED: list[tuple[Callable[[Room, Var], object], str]] = [
    (lambda k, v: k.load(AddressOf(k.x), v < 3), "a mask"),
    (lambda k, v: k.load(at(k.x, v & 4)), "an address"),
    (lambda k, v: k.store(v, at(k.y, LANE * 4)), "a stored value"),
]


def test_poison_decides_no_mask_and_is_not_stored() -> None:
    for use, message in POISONED:
        k = Room()
        use(k, k.shared_read("v", u32, k.tile, LANE * 4))
        with pytest.raises(InterpError, match=message):
            run(k)
    k = Room()
    k.store(k.shared_read("v", u32, k.tile, LANE * 4), at(k.y, LANE * 4), LANE < 0)
    assert run(k)["y"].tolist() == [7] * 64


def test_what_a_flat_load_binds_varies() -> None:
    k = Room()
    loaded, read = k.load(AddressOf(k.x)), k.read(const(0))
    found = varying(k.done())
    assert loaded in found
    assert read in found


# ---------------------------------------------------------------- blocks


def test_blocks_stand_dword_by_dword() -> None:
    """Two words a lane, each word of all lanes side by side; narrow elements share a word."""
    k = Room()
    k.write(k.load(at(k.x, LANE * 8), type=vector(u32, 2)), const(32), 16)
    for word in (0, 1):
        k.store(k.shared_read("w", u32, k.tile, LANE * 4, 48 + 32 * word), at(k.y, LANE * 4 + 32 * word))
    halves = k.read(const(40), 8, vector(f16, 4))
    k.store(halves, at(k.y, 64 + LANE * 8))
    got = run(k)["y"]
    assert got[:16].tolist() == [*range(100, 116, 2), *range(101, 117, 2)]
    assert got[16:32].tolist() == list(range(100, 116))


def test_a_block_outside_its_tile_is_an_error() -> None:
    k = Room()
    k.write(k.load(at(k.x, LANE * 8), type=vector(u32, 2)), const(64), 4)
    with pytest.raises(InterpError, match="tile"):
        run(k)


def test_blocks_race_like_other_accesses() -> None:
    for barrier in (False, True):
        k = Room(subgroups=2)
        k.write(zeros(vector(u32, 2)), k.subgroup * 64)
        if barrier:
            k.barrier()
        k.read(64 - k.subgroup * 64, type=vector(u32, 2))
        if barrier:
            run(k)
        else:
            with pytest.raises(InterpError):
                run(k)


# ---------------------------------------------------------------- halves of a barrier


def exchange(k: Room) -> Var:
    """Each subgroup reads what the other wrote, over a barrier in halves with work between them."""
    k.write(k.subgroup.to(u32) + LANE.to(u32), k.subgroup * 32)
    k.arrive()
    k.let("work", k.load(at(k.x, LANE * 4)) + 1)
    k.wait()
    return k.read(32 - k.subgroup * 32)


def test_the_halves_are_a_barrier() -> None:
    k = Room(subgroups=2)
    k.store(exchange(k), at(k.y, k.subgroup * 32 + LANE * 4))
    assert run(k)["y"][:16].tolist() == [*range(1, 9), *range(8)]


def halves(*body: str) -> Callable[[Room], None]:
    """A kernel of some statements by name."""

    def make(k: Room) -> None:
        for name in body:
            match name:
                case "a":
                    k.arrive()
                case "w":
                    k.wait()
                case "barrier":
                    k.barrier()
                case "read":
                    k.shared_read("v", u32, k.tile, 0)
                case "write":
                    k.shared_write(k.tile, LANE, LANE * 4)
                case "block":
                    k.write(LANE.to(u32), const(0))
                case "global":
                    k.load(AddressOf(k.x))
                case "loop":
                    with k.loop("i", 0, 2):
                        k.let("v", LANE + 1)
                case "branch":
                    with k.when(k.subgroup < 1):
                        k.let("v", LANE + 1)

    return make


def exit_between(k: Room) -> None:
    with k.loop("i", 0, 2):
        k.arrive()
        k.exit_if(k.subgroup < 1)
        k.wait()


def wait_outside(k: Room) -> None:
    with k.loop("i", 0, 2):
        k.arrive()
    k.wait()


def wait_inside(k: Room) -> None:
    k.arrive()
    with k.when(k.subgroup < 1):
        k.wait()


def arrive_in_an_arm(k: Room) -> None:
    with k.when(k.subgroup < 1):
        k.arrive()
    k.wait()


FOREIGN = KernelBuilder("other").shared("t", u32, 1, 8)
BETWEEN = "between arrival and wait at a barrier"
BREACHES: list[tuple[Callable[[Room], object], str]] = [
    *((halves("a", x, "w"), f"{n} {BETWEEN}") for x, n in (
        ("read", "SharedRead"), ("write", "SharedWrite"), ("block", "BlockWrite"), ("barrier", "Barrier"),
        ("a", "Arrive"), ("loop", "For"), ("branch", "If"),
    )),
    (halves("w"), "a wait at a barrier without an arrival"),
    (halves("a", "w", "w"), "a wait at a barrier without an arrival"),
    (halves("barrier", "w"), "a wait at a barrier without an arrival"),
    (halves("a"), "an arrival at a barrier without a wait in its block"),
    (halves("a", "w", "a", "global"), "an arrival at a barrier without a wait in its block"),
    (exit_between, f"ExitIf {BETWEEN}"),
    (wait_outside, "an arrival at a barrier without a wait in its block"),
    (wait_inside, f"If {BETWEEN}"),
    (arrive_in_an_arm, "an arrival at a barrier without a wait in its block"),
    # flat messages
    (lambda k: k.load(LANE), "address lane is s32, wanted u64"),
    (lambda k: k.store(LANE, AddressOf(k.x), LANE), "mask lane is s32, wanted bool"),
    (lambda k: k.load(AddressOf(k.x), type=vector(u32, 5)), "a message of u32x5"),
    (lambda k: k.load(AddressOf(Global("z", u32, 4))), "no buffer argument of the kernel"),
    (
        lambda k: k.add(s.FlatAtomic(k.x, AddressOf(k.x), TRUE, LANE.to(u8), k.site(), "nand")),
        "the atomic operation nand, wanted one of add, min, max, and, or, xor",
    ),
    # blocks
    (lambda k: k.read(LANE * 4), "address lane [*] 4 differs between lanes"),
    (lambda k: k.write(zeros(vector(f16, 3)), const(0)), "a block of f16x3, 48 bits a lane; wanted whole dwords"),
    (lambda k: k.add(s.BlockRead(k.var("v"), FOREIGN, const(0), 0, k.site())), "is not one of the"),
    (lambda k: k.read(const(0), -4), "a negative immediate -4"),
    (lambda k: k.write(zeros(vector(u32, 2)), const(0), -4), "a negative immediate -4"),
    (lambda k: k.add(s.TransposedRead(k.var("v", vector(f16, 4)), k.tile, LANE, -8, k.site())), "immediate -8"),
]  # fmt: skip


@pytest.mark.parametrize(("breach", "message"), BREACHES, ids=[f"{n}-{m}" for n, (_, m) in enumerate(BREACHES)])
def test_breaches(breach: Callable[[Room], object], message: str) -> None:
    k = Room()
    breach(k)
    with pytest.raises(VerifyError, match=message):
        verify(k.done())


@pytest.mark.parametrize(
    "body", ["a w", "a global w", "write a global global w read", "a w a w", "barrier a w barrier"]
)
def test_what_the_halves_may_stand_with(body: str) -> None:
    k = Room()
    halves(*body.split())(k)
    with k.loop("i", 0, 2):
        halves(*body.split())(k)
    verify(k.done(), "message")


def test_both_belong_to_the_message_level() -> None:
    for flat in (True, False):
        k = Room()
        k.load(AddressOf(k.x)) if flat else k.read(const(0))
        with pytest.raises(VerifyError, match="does not belong to the tile level"):
            verify(k.done(), "tile")


# ---------------------------------------------------------------- text

TEXT = """\
  v: u32 = flat x[address_of(x) + u64(lane * 4)]  # 1
  flat y[address_of(y) + u64(lane)] if lane < 3 = v  # 2
  flat atomic add sums[address_of(sums)] if lane == 0, 1.0  # 3
  arrive  # 4
  wait  # 5
  block tile[subgroup * 32, 16] = v  # 6
  b: u32x2 = block tile[0, 0]  # 7"""


def test_text_and_back() -> None:
    k = Room()
    loaded = k.load(at(k.x, LANE * 4))
    k.store(loaded, at(k.y, LANE), LANE < 3)
    k.add(s.FlatAtomic(k.sums, AddressOf(k.sums), eq(LANE, 0), const(1.0, f32), k.site(), "add"))
    k.arrive()
    k.wait()
    k.write(loaded, k.subgroup * 32, 16)
    k.read(const(0), 0, vector(u32, 2))
    kernel = k.done()
    assert str(kernel).endswith(TEXT)
    assert parse(to_text(kernel)) is kernel
