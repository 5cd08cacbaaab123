"""Candidate configs, best first by a model of one launch; the last one always fits.

The model counts clocks: per K block the matrix pipe, the LDS and the global path each take their time and the slowest
sets the pace; tiles go to compute units in rounds. It ranks, it does not predict.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import attrs

from convgen.config import Config
from convgen.copies import CHUNK_BYTES, ROWS, K, message_elems, rows_at_once
from convgen.ir.facts import TargetFacts
from convgen.ir.memory import View
from convgen.ir.mma import MmaAtom
from convgen.ir.types import scalar
from convgen.matmul import Problem
from convgen.plan import input_atoms, k_block
from convgen.views import products, reordered

_TILE_M = (32, 64, 128, 256)
_TILE_N = (16, 32, 64, 128, 256)
_TILE_K = (16, 32, 64)
_WAVES = ((4, 1), (2, 2), (1, 4), (2, 1), (1, 2), (1, 1))

_LDS_BYTES_PER_CLOCK = 128
_GLOBAL_BYTES_PER_CLOCK = 64
_FIXED_CLOCKS = 4000  #: prologue, first loads and epilogue of one tile
_MESSAGE_CLOCKS = 16  #: issue of one load with its mask and its share of the LDS write
_CHUNK_DECODE, _ELEMENT_DECODE = 1.5, 4.0  #: times that, where chunks or elements find their own place along K
_BARRIER_CLOCKS = 40  #: what a barrier costs beyond the instructions around it
_LATENCY_CLOCKS = 800  #: from a global load to its data
_OTHER_REGISTERS = 40  #: addresses, masks and temporaries of a lane
_SIMDS = 4
_SLICE_BLOCKS = 16  #: K blocks that a slice has at least
_STREAM_BYTES_PER_CLOCK = 8  #: of one unit, from and to memory
_LAUNCH_CLOCKS = 10000  #: of one launch more


@attrs.frozen
class Candidate:
    """A config with its score (clocks of the launch, less is better)."""

    score: float
    config: Config


@attrs.frozen
class Load:
    """Elements that one load of an operand brings at most, and whether it runs along K."""

    widest: int
    along_k: bool

    def messages(self, rows: int, k: int, lanes: int, elem_bytes: int) -> float:
        """Loads of each lane for a tile of rows x k."""
        share = rows * k / lanes
        return share / (self.widest if self.along_k else rows_at_once(self.widest, int(share), elem_bytes))


@attrs.frozen
class _Shape:
    """The problem as a product: M x N outputs; K is `outer` runs of `inner` elements."""

    m: int
    n: int
    outer: int
    inner: int
    parts: int  #: products of that shape
    load_m: Load  #: of the operand of M
    load_n: Load


def candidates(problem: Problem, facts: TargetFacts) -> list[Candidate]:
    """All configs worth trying, best first, ending in the always-valid one."""
    atoms = input_atoms(problem, facts)
    found = [
        Candidate(_score(shape, config, atom, facts) + clocks, config)
        for moved, clocks in _reorders(problem, facts)
        for shape in _shapes(problem, moved)
        for atom in atoms
        for config in _configs(shape, atom, facts, moved)
    ]
    return [*sorted(found, key=lambda c: c.score), Candidate(float("inf"), last_resort(atoms))]


def _shapes(problem: Problem, moved: tuple[str, ...]) -> Iterator[_Shape]:
    """The largest product of the problem, if it has one."""
    parts = products(problem, 1, moved)
    if parts:
        largest = max(parts, key=lambda p: p.m * p.n * p.k)
        inner = largest.k_inner.size
        loads = [_load(view) for view in (largest.of_m, largest.of_n)]
        yield _Shape(largest.m, largest.n, largest.k // inner, inner, len(parts), *loads)


def _load(view: View) -> Load:
    along_k, along_rows = (message_elems(view, axis) for axis in (K, ROWS))
    return Load(max(along_k, along_rows), along_k >= along_rows)


def _reorders(problem: Problem, facts: TargetFacts) -> Iterator[tuple[tuple[str, ...], float]]:
    """Sets of inputs worth reordering, with the clocks that takes: none; where one is read element by element, all that
    are not in their default layout, for the order of K follows memory.
    """
    yield (), 0.0
    if all(_load(view).widest > 1 for part in products(problem, 1)[:1] for view in (part.of_m, part.of_n)):
        return
    elsewhere = [t for t in problem.inputs if t.name != "bia" and reordered(problem, t.name).layout != t.layout]
    if elsewhere:
        traffic = sum(2 * t.layout.size_elems * scalar(t.dtype).bytes for t in elsewhere)
        clocks = len(elsewhere) * _LAUNCH_CLOCKS + traffic / (facts.compute_units * _STREAM_BYTES_PER_CLOCK)
        yield tuple(t.name for t in elsewhere), clocks


def last_resort(atoms: list[MmaAtom]) -> Config:
    """One wave, one small tile: fits every problem."""
    atom = min(atoms, key=lambda a: (a.rows, a.k))
    return Config((32, 32, 16), (1, 1), (atom.rows, atom.cols, atom.k), 1, "split", "v")


def _configs(shape: _Shape, atom: MmaAtom, facts: TargetFacts, moved: tuple[str, ...]) -> Iterator[Config]:
    elem, mma = atom.ab.bytes, (atom.rows, atom.cols, atom.k)
    chunk = CHUNK_BYTES // elem
    modes = ["split"] if shape.inner % _TILE_K[-1] == 0 else ["split", "fused"]
    if shape.inner % chunk:
        modes.append("chunk")
    for m, n, k, (wm, wn) in product(_TILE_M, _TILE_N, _TILE_K, _WAVES):
        copied = facts.subgroup_size * wm * wn * chunk // k  # rows that all lanes copy in one round
        if m % (wm * atom.cols) or n % (wn * atom.rows) or k % atom.k or m % copied or n % copied:
            continue
        acc = m * n * atom.acc.bytes // (4 * wm * wn * facts.subgroup_size)
        bank = "v" if acc <= 64 else "a"
        for taps in modes:
            slices = _slices(shape, (m, n), _blocks(shape, taps, k, elem), facts)
            for slots in (2, 3, 1):
                if (m + n) * k * elem * slots <= facts.shared_bytes:
                    yield Config((m, n, k), (wm, wn), mma, slots, taps, bank, slices, moved)


def _blocks(shape: _Shape, taps: str, tile_k: int, elem_bytes: int) -> int:
    """K blocks, padding included."""
    block = k_block(taps, tile_k, elem_bytes)
    return -(-shape.outer * (-(-shape.inner // block) * block) // tile_k)


def _slices(shape: _Shape, tile: tuple[int, int], blocks: int, facts: TargetFacts) -> int:
    """As many slices of K as it takes to give every unit work, each long enough to be worth its own result."""
    tiles = -(-shape.m // tile[0]) * -(-shape.n // tile[1])
    wanted = min(facts.compute_units // tiles, blocks // _SLICE_BLOCKS)
    return 1 << max(1, wanted).bit_length() - 1


def _score(shape: _Shape, config: Config, atom: MmaAtom, facts: TargetFacts) -> float:
    """Clocks of the launch: rounds of as many workgroups as a unit holds, each a fixed part and its K blocks."""
    m, n, k = config.tile
    k_blocks = -(-_blocks(shape, config.taps, k, atom.ab.bytes) // config.slices)
    block = _block_clocks(config, atom, facts, shape)
    tiles = -(-shape.m // m) * -(-shape.n // n) * config.slices
    a_unit = -(-tiles // facts.compute_units)
    together = max(1, min(a_unit, _residents(config, atom, facts)))
    # Blocks follow one another no faster than loads return: as many as there are slots are in flight.
    pace = max(block * together, _LATENCY_CLOCKS / config.slots)
    # Fewer, fuller tiles win ties.
    launch = -(-a_unit // together) * (_FIXED_CLOCKS + k_blocks * pace) + tiles * k_blocks * block / facts.compute_units
    if config.slices == 1:
        return shape.parts * launch
    traffic = 2 * config.slices * shape.m * shape.n * atom.acc.bytes
    return shape.parts * (launch + _LAUNCH_CLOCKS + traffic / (facts.compute_units * _STREAM_BYTES_PER_CLOCK))


def _block_clocks(config: Config, atom: MmaAtom, facts: TargetFacts, shape: _Shape) -> float:
    """One K block of one workgroup that has a compute unit to itself, its loads in time."""
    m, n, k = config.tile
    elem, simds = atom.ab.bytes, min(config.waves[0] * config.waves[1], _SIMDS)
    copied = (m + n) * k * elem
    matrix = (m // atom.cols) * (n // atom.rows) * (k // atom.k) * atom.passes * 4 / simds
    read = (n * config.waves[0] + m * config.waves[1]) * k * elem
    shared = (read + copied) / _LDS_BYTES_PER_CLOCK
    moved = copied / _GLOBAL_BYTES_PER_CLOCK
    lanes = facts.subgroup_size * config.waves[0] * config.waves[1]
    messages = sum(load.messages(rows, k, lanes, elem) for load, rows in ((shape.load_m, m), (shape.load_n, n)))
    whole = config.taps == "chunk" or shape.inner % (CHUNK_BYTES // elem) == 0
    decode = 1.0 if config.taps == "split" else _CHUNK_DECODE if whole else _ELEMENT_DECODE
    issue = messages * _MESSAGE_CLOCKS * decode * (lanes / facts.subgroup_size / simds)
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
