"""Selection of rings and bulk copies: `mbarrier`, `cp.async.bulk.tensor`, `setmaxnreg`.

Each slot of a ring has two mbarriers: `full`, which a phase of copies completes by its bytes, and `empty`, which the
consumers complete, one lane of each subgroup. A wait names the parity of the phase that must be complete; a fresh
mbarrier counts as complete for parity 1.

Sources: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier", "cp.async.bulk.tensor",
"setmaxnreg".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from convgen.backends.machine.selection import comment
from convgen.backends.nvidia.ptx import at, map_parameter, vector_of
from convgen.ir import stmt as st
from convgen.ir.expr import Const, Expr, const
from convgen.ir.layout.memory import Shared
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel

if TYPE_CHECKING:
    from convgen.backends.nvidia.select import Selector

_BARRIER_BYTES = 8  #: bytes of an mbarrier
_HALF = 16  #: bits
_COPY = "cp.async.bulk.tensor.{rank}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes"
_MODES = {"tiled": "", "im2col": ".im2col"}


def map_addresses(select: Selector) -> Mapping[TensorMap, str]:
    """Return the register with the address of each tensor map among the kernel's parameters."""
    out, addresses = select.out, {}
    for number, tensor in enumerate(select.kernel.tensor_maps):
        place = out.op("mov.b64", map_parameter(number), kind="rd")
        addresses[tensor] = out.op("cvta.param.u64", place, kind="rd", comment=f"tensor map of {tensor.buffer}")
    return addresses


def start(select: Selector, s: st.StartRing) -> None:
    """Initialise the mbarriers of a ring, by one lane of the workgroup."""
    out = select.out
    first = out.op("setp.eq.u32", out.op("mov.u32", "%tid.x"), "0", kind="p")
    for slot in range(s.ring.cols):
        full, empty = (_barrier(select, s.ring, const(slot), is_empty=is_empty) for is_empty in (False, True))
        out.emit(f"@{first} mbarrier.init.shared::cta.b64 [{full}], 1", f"slot {slot}: full")
        out.emit(f"@{first} mbarrier.init.shared::cta.b64 [{empty}], {s.consumers}", f"slot {slot}: empty")
    out.emit(f"@{first} fence.mbarrier_init.release.cluster", "bulk copies see the mbarriers")


def acquire(select: Selector, s: st.AcquireSlot) -> None:
    """Wait until a slot is empty, and announce the bytes that fill it."""
    out = select.out
    parity = out.op("xor.b32", select.scalar(s.phase), "1")
    _wait(select, _barrier(select, s.ring, s.slot, is_empty=True), parity, "slot is empty")
    full = _barrier(select, s.ring, s.slot)
    out.emit(f"@{select.first_lane} mbarrier.arrive.expect_tx.shared::cta.b64 _, [{full}], {s.bytes}", comment(s))


def load(select: Selector, s: st.TensorLoad) -> None:
    """Start one bulk copy, by one lane."""
    to = _slot(select, s.tile, s.slot, s.tile.slot_bytes, s.place)
    coords = vector_of([select.scalar(e) for e in s.coords])
    name = _COPY.format(rank=len(s.coords), mode=_MODES[s.tensor.kind])
    operands = f"[{to}], [{select.maps[s.tensor]}, {coords}], [{_barrier(select, s.ring, s.slot)}]"
    if s.offsets:
        halves = [select.out.op("cvt.u16.u32", select.scalar(e), kind="h") for e in s.offsets]
        operands += f", {vector_of(halves)}"
    select.out.emit(f"@{select.first_lane} {name} {operands}", comment(s))


def await_copies(select: Selector, s: st.AwaitSlot) -> None:
    """Wait until the copies have filled a slot."""
    _wait(select, _barrier(select, s.ring, s.slot), select.scalar(s.phase), "slot is full")


def release(select: Selector, s: st.ReleaseSlot) -> None:
    """Wait for the products that read a slot, and arrive at its mbarrier by one lane of the subgroup."""
    out = select.out
    if select.in_flight and s.running:
        out.emit(f"wgmma.wait_group.sync.aligned {s.running}", "earlier products have read their slots")
    elif select.in_flight:
        select.await_sums()
    empty = _barrier(select, s.ring, s.slot, is_empty=True)
    out.emit(f"@{select.first_lane} mbarrier.arrive.shared::cta.b64 _, [{empty}]", comment(s))
    if not s.running and _stores_halves(select.kernel):
        out.emit("fence.acq_rel.cta", "keeps conversions of sums behind the wait")


@lru_cache(maxsize=2)
def _stores_halves(kernel: Kernel) -> bool:
    """Return whether lanes store elements of 16 bits one by one.

    ptxas 13.0 then moves their conversions ahead of the wait for the sums, and serialises all products (C7514).
    """
    return any(isinstance(s, st.FlatStore) and s.value.type.bits == _HALF for s in statements(kernel.body))


def take_registers(select: Selector, s: st.TakeRegisters) -> None:
    """Change the registers of a lane, in all subgroups of a team."""
    direction = "inc" if s.count > s.before else "dec"
    select.out.emit(f"setmaxnreg.{direction}.sync.aligned.u32 {s.count}")


def _wait(select: Selector, barrier: str, parity: str, remark: str) -> None:
    """Wait until the phase of an mbarrier with this parity is complete; a single try may give up."""
    out, head = select.out, select.out.label("WAIT")
    out.place(head)
    done = out.new("p")
    out.emit(f"mbarrier.try_wait.parity.shared::cta.b64 {done}, [{barrier}], {parity}", remark)
    out.emit(f"@!{done} bra {head}")


def _barrier(select: Selector, ring: Shared, slot: Expr, *, is_empty: bool = False) -> str:
    """Return the address of the mbarrier that says whether a slot is full, or empty."""
    return _slot(select, ring, slot, _BARRIER_BYTES, ring.cols * _BARRIER_BYTES * is_empty)


def _slot(select: Selector, tile: Shared, slot: Expr, slot_bytes: int, place: int) -> str:
    """Return the address of byte `place` of a slot of a shared tile, whose slots are `slot_bytes` apart."""
    base = select.kernel.shared_base(tile) + place
    if isinstance(slot, Const):
        return at(select.shared, base + slot.bits * slot_bytes)
    return at(select.in_slot(select.shared, slot, slot_bytes), base)
