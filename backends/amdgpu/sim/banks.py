"""LDS bank conflicts."""

from __future__ import annotations

import numpy as np

from convgen.backends.amdgpu.sim.archs import BankPhases
from convgen.backends.sim.wave_arrays import Array, Bools


def bank_conflicts(phases: BankPhases, word: Array, width: int, active: Bools) -> int:
    """Return the extra LDS cycles of an access of `width` dwords a lane: per phase, the fullest bank group less one.

    `word` is the dword address per [wave, lane]; lanes with equal addresses share one access.
    """
    return int(wave_conflicts(phases, word, width, active).sum())


def wave_conflicts(phases: BankPhases, word: Array, width: int, active: Bools) -> Array:
    """Return the extra LDS cycles of an access for each wave [waves]; `bank_conflicts` returns their sum."""
    groups = phases.banks // width
    lanes = np.array(phases.phases)
    waves = len(word)
    key = word.astype(np.int64) // width
    key = np.where(active, key, -1)[:, lanes].reshape(waves * len(lanes), -1)
    key.sort(axis=1)
    distinct = np.ones(key.shape, np.bool_)
    distinct[:, 1:] = key[:, 1:] != key[:, :-1]
    distinct &= key >= 0
    rows = np.broadcast_to(np.arange(len(key))[:, None], key.shape)
    filled = np.bincount((rows * groups + key % groups)[distinct], minlength=len(key) * groups)
    fullest = filled.reshape(waves, len(lanes), groups).max(axis=2)
    return np.asarray(np.maximum(fullest - 1, 0).sum(axis=1))
