"""Atomic operations as functions of the old value and the operand, both raw unsigned words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convgen.backends.sim.numbers import bf16_to_f32, f32_to_bf16, f32_to_half, half_to_f32
from convgen.backends.sim.wave_arrays import Array, Bools

Combine = Callable[[Array, Array], Array]


def _packed(decode: Callable[[Array], Array], encode: Callable[[Array], Array]) -> Combine:
    def function(old: Array, new: Array) -> Array:
        low = encode(decode(old) + decode(new))
        high = encode(decode(old >> np.uint32(16)) + decode(new >> np.uint32(16)))
        result: Array = low | (high << np.uint32(16))
        return result

    return function


def _as(dtype: type, function: Combine) -> Combine:
    return lambda old, new: function(old.view(dtype), new.view(dtype)).view(old.dtype)


def _signed(function: Combine) -> Combine:
    def apply(old: Array, new: Array) -> Array:
        kind = np.int64 if old.dtype == np.uint64 else np.int32
        return function(old.view(kind), new.view(kind)).view(old.dtype)

    return apply


#: Operations on 32- and 64-bit integers.
INTEGER: Mapping[str, Combine] = {
    "add": lambda old, new: old + new,
    "sub": lambda old, new: old - new,
    "rsub": lambda old, new: new - old,
    "swap": lambda old, new: new,
    "umin": np.minimum,
    "umax": np.maximum,
    "smin": _signed(np.minimum),
    "smax": _signed(np.maximum),
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "inc": lambda old, new: np.where(old >= new, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - old.dtype.type(1)),
}
#: Operations on floating-point data, with the bytes they work on.
FLOATING: Mapping[str, tuple[Combine, int]] = {
    "add_f32": (_as(np.float32, np.add), 4),
    "min_f32": (_as(np.float32, np.fmin), 4),
    "max_f32": (_as(np.float32, np.fmax), 4),
    "add_f64": (_as(np.float64, np.add), 8),
    "min_f64": (_as(np.float64, np.fmin), 8),
    "max_f64": (_as(np.float64, np.fmax), 8),
    "pk_add_f16": (_packed(half_to_f32, f32_to_half), 4),
    "pk_add_bf16": (_packed(bf16_to_f32, f32_to_bf16), 4),
}


def combine_lanes(
    memory: Array, places: Array, values: Array, lanes: Bools, function: Combine, expected: Array | None
) -> Array:
    """Apply an atomic operation to elements of `memory` in lane order; return the old value of each [wave, lane].

    With `expected` (compare and swap), only lanes whose old value equals it write. Lanes with different addresses are
    combined together.
    """
    old = np.zeros(places.shape, memory.dtype)
    rows, columns = np.nonzero(lanes)
    at, operands = places[rows, columns], values[rows, columns]
    if expected is not None:
        old[rows, columns] = _swapped(memory, at, operands, expected[rows, columns], function)
        return old
    for turn in _without_repeats(at):
        before = memory[at[turn]]
        old[rows[turn], columns[turn]] = before
        memory[at[turn]] = function(before, operands[turn])
    return old


def _swapped(memory: Array, at: Array, operands: Array, expected: Array, function: Combine) -> Array:
    """Compare and swap in lane order; return the old value of each lane.

    Each round serves, at every address, the lanes up to the first whose old value equals what it expects.
    """
    old, waiting = np.zeros(len(at), memory.dtype), np.arange(len(at))
    while len(waiting):
        old[waiting] = before = memory[at[waiting]]
        hits = waiting[before == expected[waiting]]
        addresses, first = np.unique(at[hits], return_index=True)
        if not len(addresses):
            break
        winners = hits[first]
        memory[addresses] = function(memory[addresses], operands[winners])
        place = np.minimum(np.searchsorted(addresses, at[waiting]), len(addresses) - 1)
        waiting = waiting[(addresses[place] == at[waiting]) & (waiting > winners[place])]
    return old


def _without_repeats(at: Array) -> list[Array]:
    """Split indices into turns: no address occurs twice in a turn, and equal addresses keep their order over turns."""
    order = np.argsort(at, kind="stable")
    position = np.arange(len(at))
    first = np.ones(len(at), np.bool_)
    first[1:] = at[order][1:] != at[order][:-1]
    rank = position - np.maximum.accumulate(np.where(first, position, 0))
    by_rank = order[np.argsort(rank, kind="stable")]
    return np.split(by_rank, np.cumsum(np.bincount(rank))[:-1]) if len(at) else []
