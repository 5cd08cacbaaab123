"""Stores to device memory, checked for races with accesses of other waves."""

from __future__ import annotations

from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Step
from convgen.backends.sim.global_access import check_collisions, check_overwrites, check_reads, store_lanes
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
    """Write values [words, waves, lanes]; report a plain store that changes what another wave has stored or loaded.

    A wave's own stores to one address keep their order (CDNA3 ISA 4.4, VM_CNT: they return in the order of issue).
    Equal values are no race: nobody can see which came last, and compilers let several waves store one tile.
    """
    compared = g.env.strict and not atomic
    if compared:
        check_overwrites(g, step, address, size, values, lanes, own_in_order=True)
        check_reads(g, step, address, size, values, lanes)
    store_lanes(g, step, address, size, values, lanes, ticket, atomic=atomic)
    if compared and g.count > 1:
        check_collisions(g, step, address, size, values, lanes)
