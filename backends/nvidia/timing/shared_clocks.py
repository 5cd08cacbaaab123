"""Clocks of the port of shared memory for an access of a warp, from the addresses that its lanes had."""

from __future__ import annotations

import numpy as np

from convgen.backends.sim.wave_arrays import Array, Bools

BANKS = 32
_WORD = 4  #: bytes of a bank
_PORT = BANKS * _WORD  #: bytes; lanes that together access as many are served at a time


def shared_clocks(offsets: Array, size: int, active: Bools) -> int:
    """Return the clocks for lanes that access `size` bytes at byte offsets [lanes].

    Lanes are served in order, 128 bytes at a time; each clock reads one word of every bank, for any number of lanes.
    """
    together = min(len(offsets), max(1, _PORT // size))
    clocks = 0
    for first in range(0, len(offsets), together):
        lanes = offsets[first : first + together][active[first : first + together]]
        words = np.unique((lanes[:, None] + np.arange(0, size, _WORD)) // _WORD)
        if len(words):
            clocks += int(np.bincount(words % BANKS).max())
    return clocks


def lines_and_sectors(addresses: Array, size: int, active: Bools) -> tuple[int, int]:
    """Return the lines of 128 bytes and the sectors of 32 that lanes touch with `size` bytes at addresses [lanes]."""
    sectors = sectors_of(addresses[active], size)
    return len(np.unique(sectors // 4)), len(sectors)


def sectors_of(addresses: Array, size: int) -> Array:
    """Return the sectors of 32 bytes that accesses of `size` bytes touch, each once."""
    places = addresses.astype(np.int64)
    return np.unique((places[:, None] + np.arange(0, size, 32)) // 32)
