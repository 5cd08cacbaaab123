"""Stores to device memory, with the races that they make with other waves' stores."""

from __future__ import annotations

from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Step
from convgen.backends.sim.global_access import check_meeting, check_overwrites, check_reads, store_lanes
from convgen.backends.sim.wave_arrays import U64, Array, Bools


def store_checked(
    g: WaveGroup,
    step: Step,
    address: U64,
    size: int,
    values: Array,
    lanes: Bools | None,
    ticket: int,
    *,
    atomic: bool = False,
) -> None:
    """Write values [words, waves, lanes] and report plain stores that change what another wave has stored.

    A wave's own stores to one address keep their order (CDNA3 ISA 4.4, VM_CNT: they return in the order of issue).
    Equal values are no race: nobody can see which came last, and compilers let several waves store one tile.
    """
    compared = g.env.strict and not atomic
    if compared:
        check_overwrites(g, step, address, size, values, lanes, own_in_order=True)
        check_reads(g, step, address, size, values, lanes)
    store_lanes(g, step, address, size, values, lanes, ticket, atomic=atomic)
    if compared and g.count > 1:
        check_meeting(g, step, address, size, values, lanes)
