"""Rings and bulk copies: what hand-built roles copy, every breach that the interpreter reports, rules and text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder, matrix
from convgen.ir.error import UserError, VerifyError
from convgen.ir.expr import AddressOf, Expr, Lane, const, eq
from convgen.ir.interp import InterpError, interpret
from convgen.ir.layout.memory import Shared
from convgen.ir.layout.shared_panels import CHUNK, panel_order
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.ring import ring_of
from convgen.ir.text import parse, show, to_text
from convgen.ir.types import bool_, f16, f32, u32, u64
from convgen.ir.verify import verify

ROWS, COLS, BLOCKS = 8, 64, 7
LANE, TRUE = Lane(), const(True, bool_)
MAP = TensorMap("tiled", "f16", "src", (COLS, ROWS * BLOCKS), (2 * COLS,), box=(COLS, ROWS), swizzle=128)
Bytes = npt.NDArray[np.uint8]


def panels(slots: int, name: str = "tile") -> Shared:
    digits, swizzle = panel_order(ROWS, COLS, f16, 128, transposed=False)
    return Shared(name, f16, ROWS, COLS, digits, slots, swizzle, CHUNK)


class Roles(KernelBuilder):
    """Two subgroups that store each block as it stands in shared memory, and one that copies blocks into a ring.

    `without` names statements that are left out: start, acquire, await or release; with `half`, by subgroup 1 only.
    `phase`, `slot` and `due` are added to operands of the producer, which is the first subgroup if it `leads`.
    """

    def __init__(
        self,
        slots: int = 2,
        *,
        without: Collection[str] = (),
        consumers: int = 2,
        release_twice: bool = False,
        phase: int = 0,
        slot: int = 0,
        due: int = 0,
        copies: int = 1,
        leads: bool = False,
        half: bool = False,
        reads_late: bool = False,
    ) -> None:
        super().__init__("k", width=32, subgroups=3)
        self.without, self.half, self.first = without, half, int(leads)
        self.src, self.dst = (
            self.buffer("src", f16, ROWS * COLS * BLOCKS),
            self.buffer("dst", f16, ROWS * COLS * BLOCKS),
        )
        self.tile, self.ring = panels(slots), ring_of("ring", slots)
        self.tiles += [self.tile, self.ring]
        self.put("start", s.StartRing(self.ring, consumers, self.site()))
        self.barrier()
        consume, produce = self.subgroup < 2, eq(self.subgroup, 2)
        if leads:
            consume, produce = const(0) < self.subgroup, eq(self.subgroup, 0)
        with self.when(consume), self.loop("kb", 0, BLOCKS) as loop:
            number, turn = loop.var % slots, loop.var // slots % 2
            self.put("await", s.AwaitSlot(self.ring, number, turn, self.site()))
            if not reads_late:
                self.store(loop.var, number)
            for _ in range(1 + release_twice):
                self.put("release", s.ReleaseSlot(self.ring, number, 0, self.site()))
            if reads_late:
                self.store(loop.var, number)
        with self.when(produce), self.loop("kb", 0, BLOCKS) as loop:
            number, turn = loop.var % slots + slot, (loop.var // slots + phase) % 2
            self.put("acquire", s.AcquireSlot(self.ring, number, turn, MAP.bytes + due, self.site()))
            for _ in range(copies):
                at = const(0), loop.var * ROWS
                self.add(s.TensorLoad(self.tile, number, 0, self.src, MAP, at, (), self.ring, self.site()))

    def put(self, name: str, stmt: s.Stmt) -> None:
        if name not in self.without:
            self.add(stmt)
        elif self.half:
            with self.when(eq(self.subgroup, self.first)):
                self.add(stmt)

    def store(self, block: Expr, slot: Expr) -> None:
        """Store a slot's bytes, half of them by each subgroup."""
        at = (self.subgroup - self.first) * 512 + LANE * 4
        for imm in range(0, 512, 128):
            value = self.shared_read("v", u32, self.tile, slot * MAP.bytes + at, imm)
            address = AddressOf(self.dst) + (block * MAP.bytes + at + imm).to(u64)
            self.add(s.FlatStore(self.dst, address, TRUE, value, self.site()))


SOURCE = np.random.default_rng(5).integers(0, 256, BLOCKS * MAP.bytes).astype(np.uint8)


def run(kernel: Kernel) -> Bytes:
    memory = {"src": SOURCE.copy(), "dst": np.zeros(len(SOURCE), np.uint8)}
    interpret(verify(kernel, "message"), memory)
    return memory["dst"]


def swizzled(tile: Shared) -> Bytes:
    """What the consumers store: blocks in the order of shared memory."""
    row, col = np.indices((ROWS, COLS))
    out = np.empty((BLOCKS, ROWS * COLS), np.uint16)
    out[:, tile.address(0, row, col).ravel() // 2] = SOURCE.view(np.uint16).reshape(BLOCKS, -1)
    return out.view(np.uint8).ravel()


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 3, 4, 8])
def test_roles_hand_over_slots(slots: int, leads: bool) -> None:
    kernel = Roles(slots, leads=leads).done()
    assert np.array_equal(run(kernel), swizzled(panels(slots)))


BREACHES: dict[str, tuple[dict[str, Any], str]] = {
    "a ring that has not started": ({"without": ("start",)}, "ring ring is used before it starts"),
    "no wait for copies": ({"without": ("await", "release"), "leads": True}, "byte .* was written by subgroup 0"),
    "no wait for copies that have not landed": ({"without": ("await", "release")}, "depends on uninitialized memory"),
    "one consumer does not wait": (
        {"without": ("await",), "half": True, "leads": True},
        "byte .* was written by subgroup 0|has not awaited it",
    ),
    "a read behind the release": ({"reads_late": True, "leads": True}, "byte .* was written by subgroup 0"),
    "a read behind the release, producer last": ({"reads_late": True}, "byte .* was written by subgroup 2"),
    "one consumer does not release": ({"without": ("release",), "half": True}, "ring deadlock"),
    "a release without a wait": ({"without": ("await",)}, "released by subgroup .*, which has not awaited it|uninit"),
    "no wait for readers": ({"without": ("acquire",)}, "1024 bytes copied into slot 0 of a ring, wanted 0"),
    "no release": ({"without": ("release",)}, r"ring deadlock: subgroups \[0, 1, 2\] wait for slots"),
    "more consumers than release": ({"consumers": 3}, "ring deadlock"),
    "fewer consumers than release": ({"consumers": 1}, "ring deadlock"),
    "a release too many": (
        {"release_twice": True},
        "slot 0 of a ring released by subgroup 0, which has not",
    ),
    "more bytes than copies bring": ({"due": 16}, "ring deadlock|16 bytes of copies are due"),
    "fewer bytes than copies bring": ({"due": -16}, "1024 bytes copied into slot 0 of a ring, wanted 1008"),
    "a copy too many": ({"copies": 2}, "1024 bytes copied into slot 0 of a ring, wanted 0"),
    "another phase": ({"phase": 1}, "ring deadlock"),
    "a slot that the ring has not": ({"slot": 1}, "slot 2 of ring ring, which has 2"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_an_error(name: str) -> None:
    options, why = BREACHES[name]
    with pytest.raises(InterpError, match=why):
        run(Roles(**options).done())


def test_an_acquired_slot_waits_for_its_copies() -> None:
    """A slot is acquired again before the copies of its last use have brought all bytes."""
    k = Roles(2)
    with k.when(eq(k.subgroup, 2)):
        for _ in range(2):
            k.add(s.AcquireSlot(k.ring, const(1), const(1), 16, k.site()))
    with pytest.raises(InterpError, match="slot 1 of a ring acquired while 16 bytes of copies are due"):
        run(k.done())


def test_a_copy_into_a_slot_that_nobody_acquired_is_an_error() -> None:
    k = Roles(2)
    k.barrier()
    k.add(s.TensorLoad(k.tile, const(0), 0, k.src, MAP, (const(0), const(0)), (), k.ring, k.site()))
    with pytest.raises(InterpError, match="1024 bytes copied into slot 0 of a ring, wanted 0"):
        run(k.done())


# ---------------------------------------------------------------- rules

RING = ring_of("ring", 2)
ZERO, SITE = const(0), s.Site(1)


class Empty(KernelBuilder):
    """A buffer, a tile in panels and a ring, without statements."""

    def __init__(self) -> None:
        super().__init__("k", width=32, subgroups=1)
        self.src = self.buffer("src", f16, ROWS * COLS * BLOCKS)
        self.tile, self.plain = panels(2), self.shared("plain", f16, ROWS, COLS, 2)
        self.words = self.shared("words", u64, 2, 2)
        self.tiles += [self.tile, RING, ring_of("other", 3)]
        self.view = matrix(self.src, ROWS * BLOCKS, COLS)

    def tensor_copy(self, tile: Shared | None = None, ring: Shared = RING, **changes: Any) -> Kernel:
        """The kernel with a copy as tensor."""
        stmt = s.TensorCopy(tile or self.tile, ZERO, self.view, (ZERO, ZERO), ROWS, ring, self.site())
        return self.only(evolve(stmt, **changes))

    def load(self, **changes: Any) -> Kernel:
        """The kernel with a bulk copy."""
        stmt = s.TensorLoad(self.tile, ZERO, 0, self.src, MAP, (ZERO, ZERO), (), RING, self.site())
        return self.only(evolve(stmt, **changes))

    def only(self, stmt: s.Stmt) -> Kernel:
        self.add(stmt)
        return self.done()


IM2COL = TensorMap(
    *("im2col", "f16", "src", (64, 8, 7, 1), (128, 1024, 7168)),
    lower=(-1, -2),
    upper=(-1, 0),
    channels=64,
    pixels=8,
    element_strides=(1, 2, 1, 1),
    swizzle=128,
)
RULES: dict[str, tuple[Callable[[Empty], Kernel], str]] = {
    "a tile in rows": (lambda k: k.tensor_copy(k.plain), "as tensor into plain, wanted a tile in panels"),
    "a ring of other slots": (
        lambda k: k.tensor_copy(ring=ring_of("other", 3)),
        "ring other of 3 slots for tile, which has",
    ),
    "coordinates of a copy": (lambda k: k.tensor_copy(coords=(ZERO,)), "1 coordinates and 2 fragment dims for 2 axes"),
    "a coordinate of each lane": (lambda k: k.tensor_copy(coords=(ZERO, LANE)), "coords lane differs between lanes"),
    "a place beyond the slot": (lambda k: k.load(place=16), "to bytes 16 to 1040 of a slot of tile, which has 1024"),
    "a place before the slot": (lambda k: k.load(place=-16), "to bytes -16 to 1008"),
    "coordinates of a bulk copy": (lambda k: k.load(coords=(ZERO,)), "a bulk copy with 1 coordinates and 0 offsets"),
    "offsets of a tiled map": (lambda k: k.load(offsets=(ZERO,)), "2 coordinates and 1 offsets"),
    "offsets of an im2col map": (
        lambda k: k.load(tensor=IM2COL, coords=(ZERO,) * 4, offsets=(ZERO,)),
        "4 coordinates and 1 offsets",
    ),
    "a map of another buffer": (lambda k: k.load(tensor=evolve(MAP, buffer="wei")), "a tensor map of wei for src"),
    "a bulk copy in another ring": (lambda k: k.load(ring=ring_of("other", 3)), "ring other of 3 slots for tile"),
    "a slot of each lane": (lambda k: k.load(slot=LANE), "slot lane differs between lanes"),
    "a ring that is a tile": (
        lambda k: k.only(s.StartRing(k.words, 1, k.site())),
        "shared tile words, wanted a ring",
    ),
    "an acquired tile": (
        lambda k: k.only(s.AcquireSlot(k.tile, ZERO, ZERO, 16, k.site())),
        "shared tile tile, wanted a ring",
    ),
    "a phase of each lane": (
        lambda k: k.only(s.AwaitSlot(RING, ZERO, LANE, k.site())),
        "phase lane differs between lanes",
    ),
    "a released slot of each lane": (
        lambda k: k.only(s.ReleaseSlot(RING, LANE, 0, k.site())),
        "slot lane differs between lanes",
    ),
    "a slot that is no integer": (
        lambda k: k.only(s.ReleaseSlot(RING, const(0.0, f32), 0, k.site())),
        "slot 0.0 is f32, not an integer",
    ),
    "a ring of another kernel": (
        lambda k: k.only(s.StartRing(ring_of("foreign", 2), 1, k.site())),
        "shared tile foreign is not one of the kernel's",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_the_verifier_complains(name: str) -> None:
    build, why = RULES[name]
    with pytest.raises(VerifyError, match=why):
        verify(build(Empty()))


def test_well_formed_copies_have_no_complaint() -> None:
    verify(Empty().tensor_copy(), "tile")
    verify(Empty().load(), "message")
    verify(Empty().load(tensor=IM2COL, coords=(ZERO,) * 4, offsets=(ZERO, ZERO)), "message")
    with pytest.raises(VerifyError, match="TensorCopy does not belong to the message level"):
        verify(Empty().tensor_copy(), "message")
    with pytest.raises(VerifyError, match="TensorLoad does not belong to the tile level"):
        verify(Empty().load(), "tile")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: s.StartRing(RING, 0, SITE), "consumers of a ring: 0, wanted an integer from 1 to 1024"),
        (lambda: s.StartRing(RING, 1025, SITE), "consumers of a ring: 1025"),
        (lambda: s.AcquireSlot(RING, ZERO, ZERO, 0, SITE), "bytes of a slot: 0, wanted an integer from 1 to 1048576"),
        (lambda: s.AcquireSlot(RING, ZERO, ZERO, (1 << 20) + 1, SITE), "bytes of a slot: 1048577"),
        (lambda: s.ReleaseSlot(RING, ZERO, 8, SITE), "blocks whose products run on: 8, wanted an integer from 0 to 7"),
        (lambda: s.ReleaseSlot(RING, ZERO, -1, SITE), "blocks whose products run on: -1"),
        (lambda: s.TakeRegisters(0, 168), "registers of a lane: 0, wanted an integer from 1 to 1024"),
        (lambda: s.TakeRegisters(240, 1025), "registers of a lane: 1025"),
    ],
)
def test_numbers_have_limits(make: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        make()


# ---------------------------------------------------------------- text

MAPS = {
    "tiled": MAP,
    "one dim": TensorMap("tiled", "u8", "src", (1024,), (), box=(64,)),
    "steps, shift": TensorMap(
        *("tiled", "f16", "src", (64, 7, 2), (128, 896)), box=(64, 4, 1), element_strides=(1, 2, 1), shift=256
    ),
    "im2col, negative corners": IM2COL,
    "im2col, corners of all signs": evolve(IM2COL, lower=(-128, 0), upper=(127, -128), swizzle=0, channels=8),
    "im2col, one dim": TensorMap(
        *("im2col", "f32", "src", (16, 9, 4), (64, 576)), lower=(-3,), upper=(2,), channels=4, pixels=64
    ),
    "im2col, three dims": TensorMap(
        *("im2col", "s8", "src", (16, 5, 4, 3, 2), (16, 80, 320, 960)),
        lower=(-1, 0, -16),
        upper=(15, -16, 0),
        channels=16,
        pixels=8,
        element_strides=(1, 1, 2, 1, 1),
        swizzle=32,
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_have_a_text(name: str) -> None:
    tensor = MAPS[name]
    k = Empty()
    tile = evolve(k.tile, name="large", rows=512, digits=panel_order(512, COLS, f16, 128, transposed=False)[0])
    k.tiles.append(tile)
    rank = len(tensor.dims)
    offsets = (const(3),) * (rank - 2 if tensor.kind == "im2col" else 0)
    coords = (const(-1), *(const(2),) * (rank - 1))
    k.add(s.TensorLoad(tile, const(1), 0, k.src, tensor, coords, offsets, RING, k.site()))
    kernel = k.done()
    assert parse(to_text(kernel)) is kernel
    (load,) = (each for each in s.stmts_of(parse(show(kernel)).body) if isinstance(each, s.TensorLoad))
    assert load.tensor == tensor
    assert kernel.tensor_maps == (tensor,)


def test_a_map_reads_as_documented() -> None:
    text = show(Empty().load(tensor=IM2COL, coords=(ZERO,) * 4, offsets=(ZERO, const(1))))
    assert "  tensor tile[0, 0] = src[0, 0, 0, 0] moved by 0, 1 of im2col f16 src(" in text
    _, _, fields = text.partition("im2col f16 src(")
    assert fields.partition(") in ring")[0].split(", ") == [
        *("dims 64 x 8 x 7 x 1", "strides 128 x 1024 x 7168", "from -1 x -2", "to -1 x 0", "steps 1 x 2 x 1 x 1"),
        *("channels 64", "pixels 8", "swizzle 128"),
    ]


def test_statements_have_a_text() -> None:
    k = Roles(3)
    with k.when(k.subgroup < 2):
        k.add(s.TakeRegisters(232, 168))
    k.copy_as_tensor(k.tile, matrix(k.src, ROWS * BLOCKS, COLS), (0, 0), ROWS, k.ring, 2)
    kernel = k.done()
    assert parse(to_text(kernel)) is kernel
    assert show(parse(show(kernel))) == show(kernel)
    text = re.sub(r"kb[.\d]*", "kb", show(kernel))
    for line in (
        "start ring for 2 consumers",
        "await slot ring[kb % 3] in phase kb // 3 % 2 ",
        "release slot ring[kb % 3], 0 running",
        "acquire slot ring[kb % 3 + 0] in phase (kb // 3 + 0) % 2 for 1024 bytes",
        "registers 232 in place of 168",
        "copy tile[2] = src[0, 0] as tensor by 8 rows in ring",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dims 64 x 56", "dims"),
        ("strides 128", "strides 100"),
        ("box 64 x 8", "box 64 x 300"),
        ("tiled f16", "folded f16"),
        ("swizzle 128)", "swizzle 128"),
    ],
)
def test_a_map_that_nobody_encodes_is_refused(old: str, new: str) -> None:
    text = to_text(Empty().load())
    assert old in text
    with pytest.raises(UserError):
        parse(text.replace(old, new))
