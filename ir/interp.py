"""The reference interpreter: runs a kernel of either level on numpy buffers, written for obviousness.

Each subgroup is a generator that yields at barriers. Shared memory records who read and wrote each byte since the last
barrier, so that a missing barrier is found in whatever order the subgroups run. docs/ir.md specifies what this module
implements.

For speed, all subgroups of many workgroups first run in step (`Converged`). If they diverge or an error occurs, their
writes are undone and each subgroup runs alone, which gives the exact result or error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from convgen.ir.error import UserError
from convgen.ir.evaluate import Array, InterpError
from convgen.ir.expr import Var
from convgen.ir.interp_converged import Converged, Diverged, Run, Stop
from convgen.ir.interp_lanes import Group
from convgen.ir.interp_shared import SharedTile
from convgen.ir.layout.memory import Global, Shared
from convgen.ir.program import Kernel
from convgen.ir.simplify.extents import value_of
from convgen.ir.sizes import Size

__all__ = ["InterpError", "interpret"]

_MOST_LANES = 1 << 12  #: lanes that run in step: enough to hide the cost of a numpy call


def interpret(
    kernel: Kernel,
    buffers: Mapping[str, Array],
    scalars: Mapping[str, int] | None = None,
    groups: Iterable[int] | None = None,
) -> None:
    """Run the workgroups `groups` (linear numbers, x fastest; all if None) of a kernel.

    Workgroups that race for a place of a buffer, which docs/ir.md does not define, may run in step or one by one.
    `buffers` maps each buffer argument to a 1-D uint8 array, changed in place; `scalars` has the other arguments.
    Raises UserError if an argument is missing or too short, InterpError if the kernel breaks a rule of docs/ir.md.
    """
    values = {p: _scalar(p, scalars or {}) for p in kernel.params if isinstance(p, Var)}
    memory = {p: _buffer(p, value_of(p.length, values), buffers) for p in kernel.params if isinstance(p, Global)}
    x, y, z = (value_of(count, values) for count in kernel.workgroups)
    numbers = list(range(x * y * z) if groups is None else groups)
    together = max(1, _MOST_LANES // (kernel.width * kernel.subgroups))
    for first in range(0, len(numbers), together):
        places = [(n % x, n // x % y, n // x // y) for n in numbers[first : first + together]]
        if not _run_together(kernel, memory, values, places):
            for place in places:
                _run_group(kernel, memory, values, place)


def _buffer(p: Global, length: int, buffers: Mapping[str, Array]) -> Array:
    buffer = buffers.get(p.name)
    if buffer is None or buffer.dtype != np.uint8 or buffer.ndim != 1 or buffer.size < length:
        what = "nothing" if buffer is None else f"{buffer.dtype}{list(buffer.shape)}"
        raise UserError(f"buffer {p.name}: given {what}, wanted uint8[{length}]")
    return buffer[:length]


def _scalar(p: Var, scalars: Mapping[str, int]) -> int:
    if p.name not in scalars:
        raise UserError(f"argument {p.name}: given nothing, wanted {p.type}")
    value = scalars[p.name]
    if isinstance(p, Size):
        p.promise.check(p.name, value)
    return value


def _run_together(k: Kernel, memory: dict[Global, Array], values: dict[Var, int], groups: Sequence[Group]) -> bool:
    """Run all subgroups of some workgroups in step; if they diverge or fail, undo their writes and return False."""
    shared = SharedTile.of_all(k.shared, len(groups))
    converged = Converged(k, [(group, n) for group in groups for n in range(k.subgroups)], values, memory, shared)
    try:
        for _ in converged.run(k.body):
            for tile in shared.values():
                tile.region.next_epoch()
    except (InterpError, Diverged):
        for changed, at, old in reversed(converged.overwritten):
            changed[at] = old
        return False
    return True


def _run_group(k: Kernel, memory: dict[Global, Array], values: dict[Var, int], group: Group) -> None:
    """Run all subgroups of one workgroup from barrier to barrier; all must arrive at each."""
    shared = SharedTile.of_all(k.shared)
    subgroups = [Converged(k, [(group, number)], values, memory, shared) for number in range(k.subgroups)]
    for subgroup in subgroups:
        subgroup.peers = subgroups
    runs = [subgroup.run(k.body) for subgroup in subgroups]
    waiting = list(range(k.subgroups))
    while waiting:
        waiting = _to_barrier(runs, waiting, group, shared)
        if 0 < len(waiting) < k.subgroups:
            raise InterpError(f"barrier deadlock: only subgroups {waiting} of {k.subgroups} arrive")
        for tile in shared.values():
            tile.region.next_epoch()


def _to_barrier(
    runs: Sequence[Run], active: Sequence[int], group: tuple[int, ...], shared: Mapping[Shared, SharedTile]
) -> list[int]:
    """Run each subgroup until it ends or arrives at its next barrier; return the numbers of those that arrived."""
    arrived: list[int] = []
    while active:
        before = _ring_steps(shared)
        stops = [(n, _advance(runs[n], n, group)) for n in active]
        arrived += [n for n, stop in stops if stop is Stop.BARRIER]
        active = [n for n, stop in stops if stop in (Stop.EXCHANGE, Stop.SLOT)]
        if active and all(stop is Stop.SLOT for n, stop in stops if n in active) and _ring_steps(shared) == before:
            raise InterpError(f"ring deadlock: subgroups {active} wait for slots that nobody fills or releases")
    return sorted(arrived)


def _ring_steps(shared: Mapping[Shared, SharedTile]) -> int:
    """Return how often slots of rings have been filled and released."""
    return sum(tile.region.ring.steps for tile in shared.values() if tile.region.ring)


def _advance(run: Run, number: int, group: tuple[int, ...]) -> Stop | None:
    """Run a subgroup until it waits for other subgroups; return None at its end."""
    try:
        return next(run)
    except StopIteration:
        return None
    except InterpError as e:
        e.add_note(f"in subgroup {number} of workgroup {group}")
        raise
