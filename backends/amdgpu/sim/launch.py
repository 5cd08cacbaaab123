"""Set up a launch: kernel arguments, dispatch packet, and the registers that waves start with.

Source: AMDGPUUsage, "Initial Kernel Execution State" and "Kernel Argument Metadata".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from math import prod

import numpy as np

from convgen.backends.amdgpu.sim.code_object import CodeObject, Descriptor, KernelInfo
from convgen.backends.amdgpu.sim.decode import EXEC, SCC
from convgen.backends.amdgpu.sim.environment import IMAGE, VARIABLES, Environment
from convgen.backends.amdgpu.sim.scratch import FLAT_SCRATCH, SWIZZLE, WORD3, wave_bytes
from convgen.backends.amdgpu.sim.state import WaveGroup, pack_lanes
from convgen.backends.sim.device_memory import Allocation, Memory
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.wave_arrays import Array, any_along
from convgen.backends.simulation import LaunchRequest

KERNARG, DISPATCH = "<kernarg>", "<dispatch>"


def hidden_values(launch: LaunchRequest, dynamic_lds: int) -> Mapping[str, int]:
    """Return the values of hidden arguments by kind, as the runtime sets them; other kinds are 0."""
    values = {"hidden_grid_dims": 3 if launch.grid[2] > 1 else 2 if launch.grid[1] > 1 else 1}
    for axis, blocks, threads in zip("xyz", launch.grid, launch.workgroup, strict=True):
        values[f"hidden_block_count_{axis}"] = blocks
        values[f"hidden_group_size_{axis}"] = threads
    values["hidden_dynamic_lds_size"] = dynamic_lds
    return values


def place_arguments(memory: Memory, kernel: KernelInfo, launch: LaunchRequest) -> Allocation:
    """Place the kernel argument block; bytes that no argument covers are undefined."""
    ends = [argument.offset + argument.size for argument in launch.args]
    size = max([kernel.descriptor.kernarg_size, launch.kernarg_size, *ends, 4])
    block = np.zeros((size + 3) // 4 * 4 + 64, np.uint8)
    defined = np.zeros(len(block), np.bool_)
    hidden = hidden_values(launch, max(0, launch.shared_bytes - kernel.descriptor.group_segment))
    values = [(offset, hidden.get(kind, 0).to_bytes(width, "little")) for kind, offset, width in kernel.hidden_args]
    for offset, raw in (*values, *((argument.offset, memory.argument(argument)) for argument in launch.args)):
        block[offset : offset + len(raw)] = np.frombuffer(raw, np.uint8)
        defined[offset : offset + len(raw)] = True
    allocation = memory.add(KERNARG, block, writable=False)
    allocation.written = defined
    return allocation


def place_dispatch_packet(memory: Memory, kernel: KernelInfo, launch: LaunchRequest) -> None:
    """Place the AQL packet that the dispatch pointer addresses (HSA, "kernel dispatch packet")."""
    sizes = [blocks * threads for blocks, threads in zip(launch.grid, launch.workgroup, strict=True)]
    lds = max(kernel.descriptor.group_segment, launch.shared_bytes)
    packet = struct.pack(
        "<HHHHHHIIIIIQQQQ", 2, 3, *launch.workgroup, 0, *sizes, 0, lds, 0, memory.by_name[KERNARG].base, 0, 0
    )
    memory.add(DISPATCH, np.frombuffer(packet, np.uint8).copy(), writable=False)


def place_image(memory: Memory, code: CodeObject) -> None:
    """Place the code object's segments, which hold constants beside the code, and variables; apply relocations."""
    data = np.frombuffer(code.image + bytes(-len(code.image) % 4), np.uint8).copy()
    base = memory.add(IMAGE, data[: code.variables], writable=False).base
    if code.variables < len(data):
        memory.add(VARIABLES, data[code.variables :], base=base + code.variables)
    for patch in code.patches:
        value = patch.value + (base if patch.moves else 0) >> patch.shift
        raw = (value & (1 << 8 * patch.size) - 1).to_bytes(patch.size, "little")
        if patch.place + patch.size > len(data):
            raise SimulatorError(f"the code object is damaged: a relocation at {patch.place:#x}, outside its segments")
        data[patch.place : patch.place + patch.size] = np.frombuffer(raw, np.uint8)


def start_group(
    env: Environment, descriptor: Descriptor, launch: LaunchRequest, slots: Array, groups: Array
) -> WaveGroup:
    """Return the waves of some workgroups at the kernel's entry; `slots` and `groups` number them in batch and grid."""
    wave = np.tile(np.arange(env.waves), len(groups))
    registers = max(descriptor.vgprs, descriptor.accum_offset)
    g = WaveGroup(env, np.repeat(slots, env.waves), np.repeat(groups, env.waves), wave, registers)
    _work_items(g, descriptor, launch)
    values = _user_values(env, descriptor)
    grid_x, grid_y, _ = launch.grid
    ids = (g.group_id % grid_x, g.group_id // grid_x % grid_y, g.group_id // (grid_x * grid_y))
    row = descriptor.user_sgprs
    for wanted, value in zip(descriptor.workgroup_id, ids, strict=True):
        if wanted:
            _set(g, row, value)
            row += 1
    row += descriptor.workgroup_info
    stretch = (g.slot * env.waves + g.wave) * wave_bytes(env.scratch.lane_bytes)
    if descriptor.private_wave_offset:
        _set(g, row, stretch)
    if env.arch.flat_scratch_set:
        base = env.scratch.allocation.base + stretch
        _set(g, FLAT_SCRATCH.index, base & 0xFFFFFFFF)
        _set(g, FLAT_SCRATCH.index + 1, base >> 32)
    for number, (known, word) in enumerate(values):
        if known and number < descriptor.user_sgprs:
            _set(g, number, word)
    for register in (EXEC, EXEC + 1, SCC):
        g.poison_scalar(register, None)
    return g


def _set(g: WaveGroup, row: int, value: Array | int) -> None:
    g.s[row] = value
    g.poison_scalar(row, None)


def packed_ids(g: WaveGroup, descriptor: Descriptor, launch: LaunchRequest) -> Array:
    """Return the packed work-item ids that v0 holds at the entry [waves, lanes]."""
    size_x, size_y, _ = launch.workgroup
    thread = g.wave[:, None] * 64 + np.arange(64)
    packed = thread % size_x
    if descriptor.work_item_dims > 1:
        packed = packed | (thread // size_x % size_y) << 10
    if descriptor.work_item_dims > 2:
        packed = packed | (thread // (size_x * size_y)) << 20
    return packed


def _work_items(g: WaveGroup, descriptor: Descriptor, launch: LaunchRequest) -> None:
    """Set v0 to the packed work-item ids, and EXEC to the lanes within the workgroup."""
    g.v[0] = packed_ids(g, descriptor, launch)
    g.env.workgroup = launch.workgroup
    g.env.work_items = partial(packed_ids, descriptor=descriptor, launch=launch)
    g.poison_vector(0, None)
    inside = g.wave[:, None] * 64 + np.arange(64) < prod(launch.workgroup)
    g.s[EXEC], g.s[EXEC + 1] = pack_lanes(inside)
    g.exec_changed()


def _user_values(env: Environment, descriptor: Descriptor) -> list[tuple[bool, int]]:
    """Return the user SGPRs in order, as (defined, value)."""
    by_name = env.memory.by_name
    kernarg = by_name[KERNARG]

    def pair(address: int) -> list[tuple[bool, int]]:
        return [(True, address & 0xFFFFFFFF), (True, address >> 32)]

    unknown = [(False, 0), (False, 0)]
    scratch = env.scratch.allocation
    buffer = [scratch.base & 0xFFFFFFFF, scratch.base >> 32 | SWIZZLE, len(scratch.data), WORD3]
    parts: list[tuple[bool, list[tuple[bool, int]]]] = [
        (descriptor.private_buffer, [(True, word) for word in buffer]),
        (descriptor.dispatch_ptr, pair(by_name[DISPATCH].base)),
        (descriptor.queue_ptr, unknown),
        (descriptor.kernarg_ptr, pair(kernarg.base)),
        (descriptor.dispatch_id, pair(0)),
        (descriptor.flat_scratch_init, pair(scratch.base)),
        (descriptor.private_size, [(True, descriptor.private_segment)]),
    ]
    values = [value for present, part in parts if present for value in part]
    words = kernarg.data.view(np.uint32)
    assert kernarg.written is not None
    undefined = any_along(~kernarg.written.reshape(-1, 4), 1)
    first = descriptor.preload_offset
    for index in range(first, first + descriptor.preload_length):
        values.append((not bool(undefined[index]), int(words[index])))
    return values
