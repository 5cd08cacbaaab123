"""Messages that a target lacks: what becomes of them, and that the meaning stays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convgen as cg
from convgen.backends.target import get
from convgen.ir import stmt as s
from convgen.ir.build import KernelBuilder
from convgen.ir.error import Unsupported
from convgen.ir.expr import AddressOf, Lane, const
from convgen.ir.interp import interpret
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.types import AnyType, bool_, f16, f32, f64, s32, u8, u32, vector
from convgen.ir.verify import verify
from convgen.passes.legalize_messages import legalize_messages
from convgen.passes.resolve_packs import resolve_packs
from convgen.run.execution import SENTINEL
from tests.strategies import FIXED

BYTES = 1024
PATTERN: npt.NDArray[np.uint8] = (np.arange(BYTES) ^ 0x5A).astype(np.uint8)
TYPES: tuple[AnyType, ...] = (
    u8,
    f16,
    s32,
    vector(f16, 2),
    vector(f32, 2),
    vector(f16, 8),
    vector(f32, 4),
    vector(u32, 8),
    vector(f64, 4),
)


def mover(target: str, type: AnyType, at: int, step: int, extent: int, shift: int, uniform: int = 0) -> Kernel:
    """Each lane moves a value from `at + step * lane + uniform` of a window of x to the same place of y."""
    k = KernelBuilder("move", width=get(target).facts.subgroup_size)
    x, y = (k.surface(k.buffer(name, u8, BYTES), shift, extent) for name in "xy")
    place = k.let("place", Lane() * step + at)
    k.global_store(y, k.global_load("value", type, x, place, uniform), place, uniform)
    return k.done()


def moved(k: Kernel) -> npt.NDArray[np.uint8]:
    memory = {"x": PATTERN.copy(), "y": np.full(BYTES, SENTINEL, np.uint8)}
    interpret(verify(k), memory)
    return memory["y"]


@pytest.mark.parametrize("target", ["gfx942", "xehpg", "xehpc"])
@settings(FIXED, max_examples=60)
@given(data=st.data())
def test_the_meaning_stays(target: str, data: st.DataObject) -> None:
    """Offsets before, in and behind the surface, which ends within values."""
    type = data.draw(st.sampled_from(TYPES))
    size = type.bits // 8
    word = min(4, size)
    shift = 4 * data.draw(st.integers(0, 8))
    extent = 4 * data.draw(st.integers(1, (BYTES - shift) // 4))
    at = word * data.draw(st.integers(-16, BYTES // word))
    step = size * data.draw(st.integers(1, 3))
    uniform = word * data.draw(st.integers(0, 8))
    k = mover(target, type, at, step, extent, shift, uniform)
    after = resolve_packs(legalize_messages(k, get(target).facts))
    assert np.array_equal(moved(after), moved(k))


def messages(k: Kernel) -> list[tuple[str, int]]:
    """(class, bytes) of the messages in order."""
    return [
        (type(n).__name__, n.moved.bits // 8)
        for n in postorder(k)
        if isinstance(n, (s.GlobalLoad, s.GlobalStore, s.FlatLoad, s.FlatStore))
    ]


def test_what_messages_become() -> None:
    wide = vector(f32, 8)
    amd, xe = (messages(legalize_messages(mover(t, wide, 0, 32, BYTES, 0), get(t).facts)) for t in ("gfx942", "xehpc"))
    assert amd == [("GlobalLoad", 16)] * 2 + [("GlobalStore", 16)] * 2
    assert xe == [("FlatLoad", 32), ("FlatStore", 32)]
    parted = messages(legalize_messages(mover("xehpc", wide, BYTES - 16 * 32, 32, BYTES - 4, 0), get("xehpc").facts))
    assert parted == [("FlatLoad", 4)] * 8 + [("FlatStore", 4)] * 8  # the surface ends within the last value


def test_legal_messages_stay() -> None:
    k = mover("gfx942", vector(f16, 8), 0, 16, BYTES, 0)
    assert legalize_messages(k, get("gfx942").facts) is k


def test_offsets_that_pass_32_bits_are_refused() -> None:
    k = KernelBuilder("far", width=16)
    far = k.scalar("far")
    k.global_store(k.surface(k.buffer("x", s32, 64)), far, Lane() * 4, far)
    with pytest.raises(Unsupported, match="given offsets into x from -2147483648 to 2147483707, wanted 32-bit offsets"):
        legalize_messages(k.done(), get("xehpc").facts)


@pytest.mark.parametrize("target", ["gfx90a", "gfx942"])
def test_a_message_that_the_target_lacks_is_refused(target: str) -> None:
    k = KernelBuilder("flat")
    x = k.buffer("x", s32, 64)
    k.add(s.FlatStore(x, AddressOf(x), const(True, bool_), Lane(), k.site()))
    wanted = (
        f"given FlatStore, wanted a message that {target} has: GlobalLoad, GlobalStore, GlobalAtomic, SharedRead, "
        f"SharedWrite, DirectLoad, in kernel flat at flat x[address_of(x)] = lane  # 1"
    )
    with pytest.raises(Unsupported) as error:
        cg.compile(k, target=target)
    assert str(error.value) == wanted


@pytest.mark.parametrize("target", ["gfx942", "xehpg", "xehpc"])
def test_on_the_simulator(target: str) -> None:
    """Values of 32 bytes that the surface's end parts."""
    width = get(target).facts.subgroup_size
    k = mover(target, vector(f32, 8), 32 * (32 - width) + 16, 32, BYTES, 0) if width <= 16 else None
    k = k or mover(target, vector(f32, 8), 16, 16, BYTES - 16, 16)
    out = cg.simulate(cg.compile(k, target=target), x=PATTERN)
    assert np.array_equal(out, moved(k))
