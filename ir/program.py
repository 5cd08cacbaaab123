"""Kernels and programs: what the back end compiles and the launch record describes."""

from __future__ import annotations

import attrs

from convgen.ir.checks import check_name
from convgen.ir.expr import Var
from convgen.ir.layout.memory import Global, Shared
from convgen.ir.node import Node, node
from convgen.ir.stmt import Stmt


@node
class Kernel(Node):
    """What one subgroup of one workgroup does, bound to its ABI.

    `params` are the arguments in order: buffers (Global) and scalars (Var). `group_ids` (x, y, z) and `subgroup` are
    bound on entry, all uniform. `grid` counts workgroups; a workgroup has `subgroups` subgroups of `width` lanes.
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

    def infer(self) -> None:
        check_name(self.name, "kernel")

    def shared_base(self, tile: Shared) -> int:
        """Byte offset of a shared tile in the workgroup's allocation; tiles stand in order of declaration."""
        base = 0
        for t in self.shared:
            if t is tile:
                return base
            base += t.bytes
        raise KeyError(tile.name)

    @property
    def shared_bytes(self) -> int:
        return sum(t.bytes for t in self.shared)


@attrs.frozen
class Program:
    """Ordered kernels over named buffers. `buffers` maps a name to the role in the problem and its size in bytes."""

    kernels: tuple[Kernel, ...]
    buffers: tuple[Global, ...]
