"""Matrix products on a chip in an order of workgroups, by convgen's models of traffic."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import attrs

from convgen.backends.family import Chip, chips
from convgen.backends.target import get
from convgen.choose.lru import Steps, simulate
from convgen.choose.traffic import Operands, Tiles, Traffic, TrafficCount
from convgen.choose.workgroup_orders import tiles_of
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.mapping import WorkgroupMapping
from convgen.ir.layout.order import Order
from convgen.plan.views import products
from convgen.problem.matmul import Matmul

_ELEM = 2  #: bytes; of f16 and bf16


@attrs.frozen
class Gemm:
    """A product of K-contiguous operands in tiles, a workgroup each, on a chip."""

    chip: Chip
    dtype: str
    sizes: tuple[int, int, int]
    tile: tuple[int, int, int]

    @classmethod
    def of(cls, device: str, dtype: str, sizes: str, tile: Sequence[int]) -> Gemm:
        """tuple[int, int, int] as `4096x4096x8192`."""
        (m, n, k), (tile_m, tile_n, tile_k) = map(int, sizes.split("x")), tile
        return cls(chips()[device], dtype, (m, n, k), (tile_m, tile_n, tile_k))

    @property
    def facts(self) -> TargetFacts:
        return get(self.chip.target).facts

    def tiles(self, order: str) -> Tiles:
        m, n = (ceil(size / edge) for size, edge in zip(self.sizes[:2], self.tile))
        return tiles_of(WorkgroupMapping.of(m, n, k=1, order=Order.parse(order)))

    def traffic(self, order: str) -> Traffic:
        m, n, k = self.sizes
        (part,) = products(Matmul.parse(f"{m}x{k}:{k}x{n}", dt=self.dtype, wtag="ba"), 1)
        caches = self.facts.caches
        operands = Operands.of(part, self.tile[:2], caches)
        return TrafficCount.of(self.tiles(order), operands, caches, self.chip.units).traffic

    def clocks(self, order: str) -> float:
        """By matrix units at their peak, rounds of workgroups, and traffic."""
        rounds = ceil(len(self.tiles(order)) / self.chip.units)
        busy = rounds * 2 * self.tile[0] * self.tile[1] * self.sizes[2] / self.chip.rates[self.dtype]
        return self.traffic(order).clocks(self.facts.caches, self.chip.units, busy)

    def hit_rate(self, order: str) -> float:
        """Return the hit rate of L2 in per cent, block by block.

        What was measured is met on each chip by one of two assumptions, and by neither on both: on the MI300X that
        workgroups keep step and rows that are a multiple of 4 KiB apart share channels; on the MI355X that workgroups
        are up to 8 steps apart and channels do not matter.
        """
        m, n, k = self.tile
        in_step = self.chip.target == "gfx942"
        pitch = self.sizes[2] * _ELEM if in_step else 0
        steps = Steps(
            count=ceil(self.sizes[2] / k),
            rows=m * k * _ELEM,
            columns=n * k * _ELEM,
            depth=k * _ELEM,
            pitches=(pitch,) * 2,
        )
        moved = simulate(self.tiles(order), steps, self.facts.caches, self.chip.units, lag=not in_step)
        return 100 * moved.hit_rate
