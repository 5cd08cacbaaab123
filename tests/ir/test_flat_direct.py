"""Direct loads from flat addresses: what they copy where, what the verifier refuses, how they print."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.target import get
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import Unsupported, VerifyError
from convgen.ir.expr import AddressOf, Expr, Lane, const, select
from convgen.ir.interp import InterpError, interpret
from convgen.ir.layout.memory import Shared
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.text import parse, to_text
from convgen.ir.types import bool_, f16, f32, s32, u8, u32, u64
from convgen.ir.verify import verify
from convgen.passes.legalize_messages import legalize_messages
from tests.strategies import FIXED

LANE, TRUE = Lane(), const(True, bool_)
SM_90 = get("sm_90").facts
BYTES = 2048  #: of the source, and of the tile
SUBGROUPS = 2


class Room(KernelBuilder):
    """A source of bytes, a tile of as many, and a result that gets the tile."""

    def __init__(self, subgroups: int = SUBGROUPS) -> None:
        super().__init__("k", width=32, subgroups=subgroups)
        self.source, self.result = (self.buffer(name, u8, BYTES) for name in ("source", "result"))
        self.tile = self.shared("tile", u8, BYTES // 64, 64)

    def clear(self) -> None:
        for first in range(0, BYTES, 32 * self.subgroups * 4):
            self.shared_write(self.tile, const(-1, s32), (self.subgroup * 32 + LANE) * 4, first)
        self.barrier()

    def direct(
        self,
        address: Expr,
        mask: Expr = TRUE,
        place: Expr | None = None,
        imm: int = 0,
        width: int = 16,
        tile: Shared | None = None,
    ) -> None:
        place = self.subgroup * 32 * width if place is None else place
        to = tile or self.tile
        self.add(s.FlatDirectLoad(self.source, address, mask, to, place, imm, width, self.site("copy")))

    def surface_direct(self, shift: int, extent: int, varying: Expr, imm: int, width: int) -> None:
        surface, place = self.surface(self.source, shift, extent), self.subgroup * 32 * width
        numbers = surface, varying, self.subgroup * 64, self.tile, place
        self.add(s.DirectLoad(self.source, *numbers, imm, width, self.site("copy")))

    def publish(self) -> None:
        self.barrier()
        for first in range(0, BYTES, 32 * self.subgroups * 4):
            value = self.shared_read("v", u32, self.tile, (self.subgroup * 32 + LANE) * 4, first)
            at = AddressOf(self.result) + ((self.subgroup * 32 + LANE) * 4 + first).to(u64)
            self.add(s.FlatStore(self.result, at, TRUE, value, self.site()))


SOURCE = np.random.default_rng(3).integers(0, 255, BYTES).astype(np.uint8)


def published(k: Kernel) -> npt.NDArray[np.uint8]:
    memory = {"source": SOURCE.copy(), "result": np.zeros(BYTES, np.uint8)}
    interpret(verify(k, "message"), memory)
    return memory["result"]


@settings(FIXED, max_examples=20)
@given(data=st.data())
def test_lanes_write_side_by_side_and_zeros_where_masked(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from((4, 8, 16)))
    step, first = data.draw(st.integers(-16, 16)), data.draw(st.integers(0, 63))
    imm = data.draw(st.integers(0, (BYTES - SUBGROUPS * 32 * width) // 4)) * 4
    k = Room()
    k.clear()
    number = k.subgroup * 32 + LANE
    offset = number * step + first * 16
    inside = (offset >= 0) & (offset < BYTES - width)
    # lanes that are masked may have any address
    k.direct(select(inside, offset, const(1 << 30)).to(u64) + AddressOf(k.source), inside, imm=imm, width=width)
    k.publish()
    expected = np.full(BYTES, 255, np.uint8)
    for lane in range(32 * SUBGROUPS):
        at = lane * step + first * 16
        part = SOURCE[at : at + width] if 0 <= at < BYTES - width else np.zeros(width, np.uint8)
        expected[imm + lane * width : imm + (lane + 1) * width] = part
    kernel = k.done()
    assert np.array_equal(published(kernel), expected)
    assert parse(to_text(kernel)) is kernel


def test_the_text_names_buffer_mask_and_bytes() -> None:
    k = Room()
    k.direct(AddressOf(k.source), LANE < 5, const(64), 32, 8)
    k.direct(AddressOf(k.source), TRUE, const(64), 32, 8)
    text = to_text(k.done())
    assert "direct tile[64, 32] = flat source[" in text
    assert text.count(", 8 bytes a lane") == 2
    assert text.count(" if lane < 5") == 1
    assert parse(text) is not None


ERRORS: dict[str, Callable[[Room], None]] = {
    "address .* is s32, wanted u64": lambda k: k.direct(LANE * 16),
    "mask .* is s32, wanted bool": lambda k: k.direct(AddressOf(k.source), LANE),
    "place": lambda k: k.direct(AddressOf(k.source), place=LANE * 16),
    "a direct load of 16 bytes a lane to -16": lambda k: k.direct(AddressOf(k.source), imm=-16),
    "a direct load of 5 bytes a lane to 0": lambda k: k.direct(AddressOf(k.source), width=5),
    "shared tile foreign is not one": lambda k: k.direct(
        AddressOf(k.source), tile=KernelBuilder("other").shared("foreign", f16, 8, 8)
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_each_rule_is_held(message: str) -> None:
    k = Room()
    ERRORS[message](k)
    with pytest.raises(VerifyError, match=message):
        verify(k.done(), "message")


def test_a_direct_load_is_a_message() -> None:
    k = Room()
    k.direct(AddressOf(k.source))
    with pytest.raises(VerifyError, match="FlatDirectLoad does not belong to the tile level"):
        verify(k.done(), "tile")


FAULTS: dict[str, Callable[[Room], None]] = {
    "bytes 2040 to 2055 of buffer source": lambda k: k.direct(AddressOf(k.source) + const(2040, u64)),
    "bytes -16 to -1 of buffer source": lambda k: k.direct(AddressOf(k.source) - const(16, u64)),
    "tile": lambda k: k.direct(AddressOf(k.source), imm=BYTES - 512),
}


@pytest.mark.parametrize("message", FAULTS)
def test_accesses_outside_are_errors(message: str) -> None:
    k = Room()
    FAULTS[message](k)
    with pytest.raises(InterpError, match=message):
        published(k.done())


def test_poison_decides_no_mask() -> None:
    k = Room()
    k.direct(AddressOf(k.source), k.shared_read("v", f32, k.tile, LANE * 4) < const(1.0, f32))
    with pytest.raises(InterpError, match="a mask"):
        published(k.done())


def test_subgroups_race_for_a_place() -> None:
    k = Room()
    k.direct(AddressOf(k.source), place=k.subgroup * 16)
    with pytest.raises(InterpError):
        published(k.done())


@settings(FIXED, max_examples=20)
@given(data=st.data())
def test_flat_targets_copy_what_a_surface_has(data: st.DataObject) -> None:
    """The window ends between loads; lanes beyond it on either side write zeros."""
    width = data.draw(st.sampled_from((4, 8, 16)))
    shift = data.draw(st.integers(0, 40)) * 16
    extent = data.draw(st.integers(0, (BYTES - shift) // 16)) * 16
    first, step = data.draw(st.integers(-8, 8)), data.draw(st.integers(-4, 4))
    k = Room()
    k.clear()
    k.surface_direct(shift, extent, LANE * (16 * step) + first * 16, data.draw(st.sampled_from((0, 64))), width)
    k.publish()
    kernel = k.done()
    legal = legalize_messages(verify(kernel, "message"), SM_90)
    assert not any(isinstance(n, s.DirectLoad) for n in statements(legal.body))
    assert sum(isinstance(n, s.FlatDirectLoad) for n in statements(legal.body)) == 1
    assert np.array_equal(published(legal), published(kernel))


def test_a_surface_that_may_end_inside_a_load_is_refused() -> None:
    k = Room()
    k.surface_direct(0, 1028, LANE * 48, 0, 16)
    with pytest.raises(Unsupported, match="wanted one whose surface ends between loads, as sm_90 masks lanes"):
        legalize_messages(verify(k.done(), "message"), SM_90)


def test_targets_with_surfaces_have_none() -> None:
    k = Room(subgroups=1)
    k.direct(AddressOf(k.source))
    with pytest.raises(Unsupported, match=r"given FlatDirectLoad, wanted a message that gfx950 has: .*\bDirectLoad"):
        legalize_messages(verify(k.done(), "message"), get("gfx950").facts)
