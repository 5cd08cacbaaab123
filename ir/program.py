"""Kernels and programs: the input of the back end, described by the launch record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from convgen.ir.checks import check_name
from convgen.ir.expr import Var
from convgen.ir.layout.memory import Global, Shared
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.mutate import statements
from convgen.ir.node import Node, node
from convgen.ir.record import frozen
from convgen.ir.sizes import Extent
from convgen.ir.stmt import Stmt


@node
class Kernel(Node):
    """The program of one subgroup of one workgroup, bound to its ABI.

    `params` are the arguments in order: buffers (Global) and scalars (Var). `group_ids` (x, y, z) and `subgroup` are
    bound on entry, all uniform. `grid` counts workgroups; a workgroup has `subgroups` subgroups of `width` lanes. If
    the host chooses the number of workgroups at launch, `launched` gives it and `grid` is its maximum.
    """

    name: str
    params: tuple[Global | Var, ...]
    grid: tuple[int, int, int]
    subgroups: int
    width: int
    group_ids: tuple[Var, ...]
    subgroup: Var
    shared: tuple[Shared, ...]
    body: Stmt
    launched: tuple[Extent, ...]

    def infer(self) -> None:
        check_name(self.name, "kernel")

    @property
    def workgroups(self) -> tuple[Extent, ...]:
        """Return the workgroups along x, y and z in a launch."""
        return self.launched or self.grid

    def shared_base(self, tile: Shared) -> int:
        """Return the byte offset of a shared tile in the workgroup's shared memory; tiles are in declaration order."""
        return self._shared_bases[tile]

    @property
    def shared_bytes(self) -> int:
        return max((base + tile.bytes for tile, base in self._shared_bases.items()), default=0)

    @property
    def tensor_maps(self) -> tuple[TensorMap, ...]:
        """Return the distinct tensor maps that statements name, in order of appearance."""
        return _tensor_maps(self.body)

    @property
    def _shared_bases(self) -> Mapping[Shared, int]:
        return _bases(self.shared)


@lru_cache(maxsize=2**4)
def _bases(shared: tuple[Shared, ...]) -> Mapping[Shared, int]:
    """Return the first byte of each tile: the end of the tiles before, rounded up to its chunk size.

    An overlay begins where the tile begins whose memory it reuses, and stands behind it in `shared`.
    """
    bases: dict[Shared, int] = {}
    end = 0
    named = {tile.name: tile for tile in shared}
    for tile in shared:
        if tile.region != tile.name:
            bases[tile] = bases[named[tile.region]]
            continue
        bases[tile] = -(-end // tile.chunk) * tile.chunk
        end = bases[tile] + tile.bytes
    return bases


@lru_cache(maxsize=1)
def _tensor_maps(body: Stmt) -> tuple[TensorMap, ...]:
    """Return the distinct values of type TensorMap among the fields of all statements."""
    values = (getattr(s, field) for s in statements(body) for field in s.fields)
    return tuple(dict.fromkeys(value for value in values if isinstance(value, TensorMap)))


@frozen
class Program:
    """Ordered kernels over named buffers."""

    kernels: tuple[Kernel, ...]
    buffers: tuple[Global, ...]
