"""Scalar stores and atomics: one address per wave, counted in lgkmcnt (CDNA3 ISA, "Scalar Memory Operations").

Scalar caches are not modelled: every wave sees a scalar store at once, without s_dcache_wb.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from convgen.backends.amdgpu.sim import transfer
from convgen.backends.amdgpu.sim.alu.operands import check_tuple
from convgen.backends.amdgpu.sim.atomics import ATOMICS, Update
from convgen.backends.amdgpu.sim.decode import Instruction, require_plain
from convgen.backends.amdgpu.sim.scratch import Where
from convgen.backends.amdgpu.sim.smem import land_scalars, scalar_address
from convgen.backends.amdgpu.sim.state import Pending, WaveGroup, scalar_bits
from convgen.backends.amdgpu.sim.step import Context, Step, scalar_registers
from convgen.backends.amdgpu.sim.stores import store_checked
from convgen.backends.amdgpu.sim.waits import issue
from convgen.backends.sim.global_access import issue_store
from convgen.backends.sim.wave_arrays import U64, Array

_STORE = re.compile(r"s_(buffer_)?store_dword(x[24])?$")
_ATOMIC = re.compile(r"s_(buffer_)?atomic_([a-z]+(?:_x2)?)$")


def compile_scalar_store(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a scalar store or atomic operation; None for other mnemonics."""
    match = _STORE.match(instruction.name) or _ATOMIC.match(instruction.name)
    if match is None:
        return None
    require_plain(instruction, frozenset({"offset", "glc"}))
    data, base, offset = instruction.operands
    for operand in (data, base):
        check_tuple(operand, operand.count, context)
    reads = context.bits(data, base, offset)
    returns = "_atomic_" in instruction.name and "glc" in instruction.modifiers
    kept = data.count // 2 if "cmpswap" in instruction.name else data.count
    step = Step(instruction, "smem", lambda g: None, reads, scalar_bits(data.index, kept) if returns else 0)
    registers = scalar_registers(data, base, offset)
    address_of = scalar_address(instruction, context, base, offset)
    access = _updating(step, match[2]) if "_atomic_" in instruction.name else _storing(step)
    rows = slice(data.index, data.index + data.count)

    def run(g: WaveGroup) -> None:
        transfer.refuse_scalar_poison(g, step, reads, registers, "the scalar address or data", always=True)
        issue(g, access(g, address_of(g)[0][:, None], g.s[rows][:, :, None], issue_store(g)))

    return step.running(run)


#: (group, addresses [waves, 1], data [words, waves, 1], ticket) -> pending operation
_Access = Callable[[WaveGroup, U64, Array, int], Pending]


def _storing(step: Step) -> _Access:
    def store(g: WaveGroup, address: U64, words: Array, ticket: int) -> Pending:
        store_checked(g, step, address, 4 * len(words), words, None, ticket)
        return Pending(step, "smem", 0, (), transfer.land_stores, (ticket,))

    return store


def _updating(step: Step, what: str) -> _Access:
    """Return the access of atomic operation `what`; cmpswap has data, then comparand."""
    function, size = ATOMICS[what]
    kind, words_each = (np.uint64, 2) if size == 8 else (np.uint32, 1)
    update = Update(step, function, size, what.startswith("swap"))

    def apply(g: WaveGroup, address: U64, words: Array, ticket: int) -> Pending:
        parts = np.split(words, len(words) // words_each)
        values, *comparands = (np.ascontiguousarray(np.moveaxis(p, 0, -1)).view(kind)[..., 0] for p in parts)
        old, _ = update.apply(g, Where(address, None), values, comparands[0] if comparands else None, ticket)
        if not step.writes:
            return Pending(step, "smem", 0, (), transfer.land_stores, (ticket,))
        back = np.moveaxis(np.ascontiguousarray(old)[..., None].view(np.uint32), -1, 0)
        return Pending(step, "smem", step.writes, (back, None), _land_both, (ticket,))

    return apply


def _land_both(g: WaveGroup, pending: Pending) -> None:
    land_scalars(g, pending)
    transfer.land_stores(g, pending)
