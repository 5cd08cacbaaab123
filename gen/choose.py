"""Candidate configs, best first by a model of one launch; the last one always fits.

The model counts clocks: per K block the matrix pipe, the LDS and the global path each take their time and the slowest
sets the pace; tiles go to compute units in rounds. It ranks, it does not predict.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import attrs

from convgen.config import Config
from convgen.ir.facts import TargetFacts
from convgen.ir.memory import Dim
from convgen.ir.mma import MmaAtom
from convgen.matmul import Problem
from convgen.plan import CHUNK_BYTES, message_elems
from convgen.views import operands

_TILE_M = (32, 64, 128, 256)
_TILE_N = (16, 32, 64, 128, 256)
_TILE_K = (16, 32, 64)
_WAVES = ((4, 1), (2, 2), (1, 4), (2, 1), (1, 2), (1, 1))

_LDS_BYTES_PER_CLOCK = 128
_GLOBAL_BYTES_PER_CLOCK = 64
_FIXED_CLOCKS = 4000  #: prologue, first loads and epilogue of one tile
_MESSAGE_CLOCKS = 16  #: issue of one load with its mask and its share of the LDS write
_BARRIER_CLOCKS = 40  #: what a barrier costs beyond the instructions around it
_LATENCY_CLOCKS = 800  #: from a global load to its data
_OTHER_REGISTERS = 40  #: addresses, masks and temporaries of a lane
_SIMDS = 4


@attrs.frozen
class Candidate:
    """A config with its score (clocks of the launch, less is better)."""

    score: float
    config: Config


@attrs.frozen
class _Shape:
    """The problem as a product: M x N outputs; K is `outer` runs of `inner` elements."""

    m: int
    n: int
    outer: int
    inner: int


def candidates(problem: Problem, facts: TargetFacts) -> list[Candidate]:
    """All configs worth trying, best first, ending in the always-valid one."""
    atoms = [a for a in facts.atoms if a.ab.name == problem.src_type]
    views = operands(problem, 1)
    shape = _Shape(views.m, views.n, views.k // views.k_inner.size, views.k_inner.size)
    found = [
        Candidate(_score(shape, config, atom, facts), config)
        for atom in atoms
        for config in _configs(shape, atom, facts)
    ]
    return [*sorted(found, key=lambda c: c.score), Candidate(float("inf"), last_resort(atoms))]


def last_resort(atoms: list[MmaAtom]) -> Config:
    """One wave, one small tile: fits every problem."""
    atom = min(atoms, key=lambda a: (a.rows, a.k))
    return Config((32, 32, 32), (1, 1), (atom.rows, atom.cols, atom.k), 1, "split", "v")


def _configs(shape: _Shape, atom: MmaAtom, facts: TargetFacts) -> Iterator[Config]:
    chunk = CHUNK_BYTES // atom.ab.bytes
    modes = ("split",) if shape.inner % _TILE_K[-1] == 0 else ("split", "fused")
    for m, n, k, (wm, wn) in product(_TILE_M, _TILE_N, _TILE_K, _WAVES):
        copied = facts.subgroup_size * wm * wn * chunk // k  # rows that all lanes copy in one round
        if m % (wm * atom.cols) or n % (wn * atom.rows) or k % atom.k or m % copied or n % copied:
            continue
        for slots, taps in product((2, 3, 1), modes):
            acc = m * n // (wm * wn * facts.subgroup_size)
            if (m + n) * k * atom.ab.bytes * slots <= facts.shared_bytes:
                yield Config(
                    (m, n, k), (wm, wn), (atom.rows, atom.cols, atom.k), slots, taps, "v" if acc <= 64 else "a"
                )


def _score(shape: _Shape, config: Config, atom: MmaAtom, facts: TargetFacts) -> float:
    """Clocks of the launch: rounds of as many workgroups as a unit holds, each a fixed part and its K blocks."""
    m, n, k = config.tile
    padded = -(-shape.inner // k) * k if config.taps == "split" else shape.inner
    k_blocks = -(-shape.outer * padded // k)
    block = _block_clocks(config, atom, facts, message_elems(Dim("k", shape.inner, padded), atom.ab.bytes))
    tiles = -(-shape.m // m) * -(-shape.n // n)
    a_unit = -(-tiles // facts.compute_units)
    together = max(1, min(a_unit, _residents(config, atom, facts)))
    # Blocks follow one another no faster than loads return: as many as there are slots are in flight.
    pace = max(block * together, _LATENCY_CLOCKS / config.slots)
    # Fewer, fuller tiles win ties.
    return -(-a_unit // together) * (_FIXED_CLOCKS + k_blocks * pace) + tiles * k_blocks * block / facts.compute_units


def _block_clocks(config: Config, atom: MmaAtom, facts: TargetFacts, elems: int) -> float:
    """One K block of one workgroup that has a compute unit to itself, its loads in time."""
    m, n, k = config.tile
    elem, simds = atom.ab.bytes, min(config.waves[0] * config.waves[1], _SIMDS)
    copied = (m + n) * k * elem
    matrix = (m // atom.cols) * (n // atom.rows) * (k // atom.k) * atom.passes * 4 / simds
    read = (n * config.waves[0] + m * config.waves[1]) * k * elem
    shared = (read + copied) / _LDS_BYTES_PER_CLOCK
    moved = copied / _GLOBAL_BYTES_PER_CLOCK
    messages = (m + n) * k / (facts.subgroup_size * elems)
    issue = messages * _MESSAGE_CLOCKS * (1 if config.taps == "split" else 3) / simds
    serial = _BARRIER_CLOCKS if config.slots > 1 else _BARRIER_CLOCKS + 0.5 * shared + 128
    return max(matrix, shared, moved, issue) + serial + 0.1 * (matrix + shared + moved + issue)


def _residents(config: Config, atom: MmaAtom, facts: TargetFacts) -> int:
    """Workgroups that fit on a compute unit together, by shared memory and registers (roughly)."""
    m, n, k = config.tile
    waves = config.waves[0] * config.waves[1]
    lds = (m + n) * k * atom.ab.bytes * config.slots
    wave_m, wave_n = m // config.waves[0], n // config.waves[1]
    fragments = 2 * (wave_m + wave_n) * k * atom.ab.bytes // (4 * facts.subgroup_size)
    copies = (m + n) * k * atom.ab.bytes // (4 * facts.subgroup_size * waves)
    registers = wave_m * wave_n // facts.subgroup_size + fragments + copies + _OTHER_REGISTERS
    by_registers = (facts.registers + facts.accumulators) // registers * _SIMDS // waves
    return min(facts.shared_bytes // lds, by_registers)
