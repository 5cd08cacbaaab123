"""Set up a launch: arguments, payload, and the registers that threads start with.

Payload in memory, at the address in r0.0: cross-thread data without its inline part, then local ids, thread by thread
(zebin specification; NEO, "implicit arguments" and "per-thread data"). Reserved bits of r0 hold nonsense, to expose a
kernel that forgets a mask.
"""

from __future__ import annotations

import struct

import numpy as np

from convgen.backends.intel.sim.code_object import KernelInfo, PayloadArgument
from convgen.backends.intel.sim.environment import Environment
from convgen.backends.intel.sim.register_file import Layout
from convgen.backends.intel.sim.scoreboard import Score
from convgen.backends.intel.sim.state import CHANNELS, GONE, ThreadGroup
from convgen.backends.sim.device_memory import Allocation, Memory
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.local import MOST_WAVES
from convgen.backends.sim.wave_arrays import Array, Bools, Bytes
from convgen.backends.simulation import LaunchRequest
from convgen.ir.record import frozen

PAYLOAD = "<payload>"
PAYLOAD_BASE = 0x1000_0000  #: 32-bit addresses reach it
SLACK = 512  #: bytes behind the payload that a block load may touch
NONSENSE = 0x15  #: arbitrary; reserved bits 5:0 of r0.0
NONSENSE_BITS = 0x5A00  #: arbitrary; reserved bits 15:8 of r0.2


@frozen(eq=False)
class Payload:
    """Cross-thread data and local ids of a launch."""

    inline: Bytes
    inline_defined: Bools
    ids: Bytes  #: [threads, bytes]
    ids_defined: Bools


def implicit_value(item: PayloadArgument, launch: LaunchRequest) -> bytes | None:
    """Return the value that the runtime puts into a payload argument; None if the host sets it."""
    dimensions = 3 if launch.grid[2] > 1 or launch.workgroup[2] > 1 else 2
    if launch.grid[1] == launch.workgroup[1] == 1 and dimensions == 2:
        dimensions = 1
    sizes = tuple(blocks * items for blocks, items in zip(launch.grid, launch.workgroup, strict=True))
    values: dict[str, tuple[int, ...]] = {
        "global_id_offset": (0, 0, 0),
        "local_size": launch.workgroup,
        "enqueued_local_size": launch.workgroup,
        "group_count": launch.grid,
        "global_size": sizes,
        "work_dimensions": (dimensions,),
        "buffer_offset": (0,),
        "private_base_stateless": (0, 0),
        "printf_buffer": (0, 0),
    }
    dwords = values.get(item.kind)
    return None if dwords is None else struct.pack(f"<{len(dwords)}I", *dwords)[: item.size].ljust(item.size, b"\0")


def threads_of(kernel: KernelInfo, launch: LaunchRequest) -> int:
    """Return the threads of a workgroup. Raises SimulatorError for more than local memory's stamps tell apart."""
    items = launch.workgroup[0] * launch.workgroup[1] * launch.workgroup[2]
    if not 1 <= items <= 1024:
        raise SimulatorError(f"a workgroup of {items} work-items; 1 to 1024 are possible")
    threads = -(-items // kernel.simd)
    if threads > MOST_WAVES:
        raise SimulatorError(f"a workgroup of {threads} threads of SIMD{kernel.simd}; 1 to {MOST_WAVES} are possible")
    return threads


def place_payload(memory: Memory, kernel: KernelInfo, launch: LaunchRequest) -> Payload:
    """Place the payload in memory; bytes that no argument covers are undefined."""
    end = max([kernel.payload_bytes] + [argument.offset + argument.size for argument in launch.args])
    cross = np.zeros(-(-end // 32) * 32, np.uint8)
    defined = np.zeros(len(cross), np.bool_)

    def put(offset: int, raw: bytes) -> None:
        cross[offset : offset + len(raw)] = np.frombuffer(raw, np.uint8)
        defined[offset : offset + len(raw)] = True

    for item in kernel.payload:
        raw = implicit_value(item, launch)
        if raw is not None:
            put(item.offset, raw)
    for argument in launch.args:
        put(argument.offset, memory.argument(argument))
    ids, ids_defined = local_ids(kernel, launch)
    inline = min(kernel.inline_bytes, len(cross))
    data = np.concatenate((cross[inline:], ids.reshape(-1), np.zeros(SLACK, np.uint8)))
    written = np.concatenate((defined[inline:], ids_defined.reshape(-1), np.zeros(SLACK, np.bool_)))
    allocation = memory.add(PAYLOAD, data, writable=False, base=PAYLOAD_BASE)
    allocation.written = written
    return Payload(cross[:inline], defined[:inline], ids, ids_defined)


def local_ids(kernel: KernelInfo, launch: LaunchRequest) -> tuple[Bytes, Bools]:
    """Return the local ids of a workgroup's threads [threads, bytes], u16 x, y, z, each padded; and which are set."""
    threads, size = threads_of(kernel, launch), kernel.local_id_bytes
    ids, defined = np.zeros((threads, size), np.uint8), np.zeros((threads, size), np.bool_)
    if not size:
        return ids, defined
    x, y, _ = launch.workgroup
    item = np.arange(threads)[:, None] * kernel.simd + np.arange(kernel.simd)
    each = size // 3
    for axis, values in enumerate((item % x, item // x % y, item // (x * y))):
        start = axis * each
        raw = np.ascontiguousarray(values.astype("<u2")).view(np.uint8)
        ids[:, start : start + raw.shape[1]] = raw
        defined[:, start : start + raw.shape[1]] = True
    return ids, defined


def surfaces_of(memory: Memory, kernel: KernelInfo, launch: LaunchRequest) -> dict[int, Allocation]:
    """Return the buffers of binding table entries: those of the arguments that the entries name."""
    offsets = {item.offset: item.index for item in kernel.payload if item.index >= 0 and item.size == 8}
    by_index = {
        offsets[argument.offset]: memory.by_name[argument.value]
        for argument in launch.args
        if isinstance(argument.value, str) and argument.offset in offsets and argument.value in memory.by_name
    }
    return {entry: by_index[index] for entry, index in kernel.bindings.items() if index in by_index}


def start_group(
    env: Environment,
    kernel: KernelInfo,
    layout: Layout,
    score: Score,
    launch: LaunchRequest,
    payload: Payload,
    groups: Array,
    *,
    hardware_ids: bool,
) -> ThreadGroup:
    """Return the threads of some workgroups at the kernel's entry."""
    slots = np.arange(len(groups))
    wave = np.tile(np.arange(env.waves), len(groups))
    g = ThreadGroup(env, np.repeat(slots, env.waves), np.repeat(groups, env.waves), wave, layout, score)
    _header(g, launch)
    reg = 1
    if hardware_ids and kernel.local_id_bytes:
        _set(g, reg * layout.grf, payload.ids[wave], payload.ids_defined[wave])
        reg += kernel.local_id_bytes // layout.grf
    if len(payload.inline):
        _set(g, reg * layout.grf, payload.inline[None], payload.inline_defined[None])
    items = launch.workgroup[0] * launch.workgroup[1] * launch.workgroup[2]
    channel = np.arange(CHANNELS)
    g.mask = (channel < kernel.simd) & (wave[:, None] * kernel.simd + channel < items)
    g.resume[~g.mask] = GONE
    for start, size in ((layout.control, 16), (layout.state, 16)):
        _set(g, start, np.zeros((1, size), np.uint8), np.ones((1, size), np.bool_))
    g.mask_changed()
    return g


def _header(g: ThreadGroup, launch: LaunchRequest) -> None:
    """Set r0: payload address, workgroup, thread number, thread count."""
    grid_x, grid_y, _ = launch.grid
    values = {
        0: PAYLOAD_BASE | NONSENSE,
        1: g.group_id % grid_x,
        2: g.wave | NONSENSE_BITS | g.env.waves << 24,
        5: 0,
        6: g.group_id // grid_x % grid_y,
        7: g.group_id // (grid_x * grid_y),
    }
    for dword, value in values.items():
        g.views["u4"][:, dword] = value
        g.poison[:, 4 * dword : 4 * dword + 4] = 0


def _set(g: ThreadGroup, start: int, raw: Bytes, defined: Bools) -> None:
    size = raw.shape[1]
    g.regs[:, start : start + size] = raw
    g.poison[:, start : start + size] = ~defined
    g.clean(g.layout.units(start, size))
