"""Copies of a tile kernel's factors to shared memory, by lanes or into the slots of a ring."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from contextlib import suppress

from convgen.ir.build import KernelBuilder
from convgen.ir.error import DoesNotFit
from convgen.ir.expr import Expr, const, zeros
from convgen.ir.layout.memory import Shared
from convgen.ir.record import evolve
from convgen.ir.ring import ring_of
from convgen.ir.stmt import For, block
from convgen.ir.types import vector
from convgen.plan.config import DIRECT, REGISTERS, TENSOR, Config
from convgen.plan.inputs import InputPath, ProductInput
from convgen.tile.layouts import Layouts, stored_tensors
from convgen.tile.places import Places
from convgen.tile.tiles import Tile
from convgen.tile.trace import Load, Value


class FactorCopies:
    """The copies of factors in a kernel's loops, and of those that come through the ring outside of loops."""

    def __init__(self, k: KernelBuilder, layouts: Layouts, places: Places) -> None:
        self.k, self.layouts, self.places = k, layouts, places
        self.options, self.facts = layouts.options, layouts.facts
        self.tiles: dict[Load, Shared] = {}  #: of each load that was copied
        self.ring: Shared | None = None  #: the ring into whose slots bulk copies go
        self._in_ring: list[InputPath] = []  #: paths of earlier copies through the ring, whose tiles others may fill

    def paths_of(self, loads: Iterable[Load]) -> dict[Load, InputPath]:
        """Return the paths of loads through shared memory, without those that lanes must load."""
        paths = ((load, self._path(load, self.layouts.in_place.get(load, 0))) for load in loads)
        return {load: path for load, path in paths if path is not None}

    def copy(self, paths: Mapping[Load, InputPath]) -> None:
        """Copy the blocks of loads to shared memory."""
        free = list(self._in_ring)
        for load, path in paths.items():
            self._copy(load, self._with_tile(path, free))

    def path_outside_loops(self, load: Load) -> InputPath | None:
        """Return the path through the ring of a factor that is loaded outside loops; None if lanes load it.

        The ring must hold a factor of its shape that is contiguous along the same dim, bulk copies must be able to
        bring it, and the kernel must not store to its tensor: the copy may come before the store.
        """
        is_outside = load in self.layouts.factors and load not in self.layouts.loops
        if self.options.copy != TENSOR or load.maps or not is_outside:
            return None
        if load.tile.tensor.name in stored_tensors(self.layouts.trace):
            return None
        if any(self._shape_in_slot(v) == self._shape_in_slot(load) for v in self.layouts.in_place):
            with suppress(DoesNotFit):
                return self._path(load, self.layouts.of_load(load).fragment.shape[0])
        return None

    def _shape_in_slot(self, value: Value) -> tuple[object, ...]:
        """Return the rows and depth of a loaded factor, its type, and which of the two is contiguous in memory."""
        if not isinstance(value, Load):
            return ()
        layout = self.layouts.of_load(value)
        contiguous = tuple(value.tile.tensor.strides[n] == 1 for n in layout.axes)
        return layout.fragment.shape, value.elem, contiguous

    def read_once(self, load: Load, path: InputPath) -> Expr:
        """Return a factor that a bulk copy brings to a slot of the ring, from which lanes read it at once.

        The copy starts as early as the ring has a slot: while a workgroup still computes its tile before.
        """
        k, fragment, name = self.k, self.layouts.of[load].fragment, load.tile.tensor.name
        path = self._with_tile(path, list(self._in_ring))
        index, init = k.var("once"), zeros(vector(load.elem, fragment.registers))
        first, last = (k.var(f"{name}_frag", init.type) for _ in range(2))
        with k.suite() as body:
            k.barrier("release")
            self._copy(load, path)
            k.barrier("publish")
            read = k.load_shared(f"{name}_frag", self.tiles[load], fragment, 0, "fragment", name)
        k.add(For(index, const(0), const(1), (first,), (init,), block(*body), (read,), (last,), "once", False))
        return last

    def _with_tile(self, path: InputPath, free: list[InputPath]) -> InputPath:
        """Return a path with a tile of its own, or with a free one of an earlier loop, which is taken off `free`.

        A free tile that has held elements of this tensor comes first.
        """
        assert path.tile is not None
        for earlier in sorted(free, key=lambda earlier: earlier.view.memory is not path.view.memory):
            tile = earlier.tile
            assert tile is not None
            if evolve(path.tile, name=tile.name) == tile and path.step == earlier.step:
                free.remove(earlier)
                return evolve(path, tile=tile)
        path = self._with_unique_name(path)
        self.k.tiles += [path.tile] if path.tile else []
        self._in_ring += [path] if path.step else []
        return path

    def _copy(self, load: Load, path: InputPath) -> None:
        """Copy a load's block to shared memory."""
        assert path.tile is not None
        self.tiles[load] = path.tile
        _, at = self.places.until(load.tile, self.layouts.of_load(load), load.ends)
        name = load.tile.tensor.name
        if path.step:
            self.ring = self.ring or ring_of("ring", path.tile.slots)
            self.k.copy_as_tensor(path.tile, path.view, at, path.step, self.ring, 0, "copy", name)
        elif path.copy is None:
            self.k.copy_directly(path.tile, path.view, at, path.direct_bytes, 0, "copy", name)
        else:
            self.k.copy(path.tile, path.view, at, path.copy.stored, 0, "copy", path.copy.loaded, name)

    def _path(self, load: Load, in_place: int) -> InputPath | None:
        """Return a load's path through shared memory; None without slots, or if no copy divides evenly.

        Instructions of `in_place` rows read it there, none if 0. Copies take no registers where the target masks each
        lane's part of them. Raises DoesNotFit for a load without a path that an instruction reads in shared memory.
        """
        slots = self.options.slots
        if not slots:
            return None
        layout = self.layouts.of_load(load)
        rows, depth = layout.fragment.shape
        # The path depends on the depth of the config's tile, on its subgroups and on its slots only.
        config = Config((rows, rows, depth), self.options.subgroups, (1, 1, 1), slots)
        view, _ = self.places.until(load.tile, layout, load.ends, depth)
        of_load = ProductInput(view, load.elem, layout.fragment, config, self.facts, in_place)
        if self.options.copy == TENSOR:
            self._check_starts(load.tile)
            if load.ends:
                raise DoesNotFit(f"ends of {load.tile.tensor.name}, which bulk copies do not know, wanted none")
            return of_load.path(rows, TENSOR)
        direct = self.facts.flat_direct and self._starts_at_chunks(load.tile)
        for copy in (DIRECT, REGISTERS) if direct else (REGISTERS,):
            with suppress(DoesNotFit):
                return of_load.path(rows, copy)
        if in_place:
            raise DoesNotFit(f"no copy of {load.tile.tensor.name} to shared memory divides evenly")
        return None

    def _check_starts(self, tile: Tile) -> None:
        """Raise DoesNotFit for a tile that may start where bulk copies do not."""
        if not self._starts_at_chunks(tile):
            given = f"a tile of {tile.tensor.name} that may start anywhere along its contiguous dim"
            raise DoesNotFit(f"{given}, wanted starts at multiples of {self.facts.chunk_bytes} bytes")
        first = tile.kept[0]
        if tile.folded and self.places.multiple(self.places.begin(tile)[first]) % tile.shape[0]:
            given = (
                f"a tile of {tile.tensor.name} at one position along some dims, that may start anywhere along {first}"
            )
            raise DoesNotFit(f"{given}, wanted starts at multiples of its {tile.shape[0]} elements")

    def _starts_at_chunks(self, tile: Tile) -> bool:
        """Return whether a tile starts at whole chunks of memory along the dim that is contiguous there."""
        chunk = self.facts.chunk_bytes // tile.tensor.elem.bytes
        starts = zip(self.places.begin(tile), tile.tensor.strides)
        return not any(stride == 1 and self.places.multiple(start) % chunk for start, stride in starts)

    def _with_unique_name(self, path: InputPath) -> InputPath:
        """Return the path with another name of its tile if that is taken: a tensor may have several tiles."""
        assert path.tile is not None
        taken, name = {m.name for m in (*self.k.tiles, *self.k.params)}, path.tile.name
        names = itertools.chain([name], (f"{name}{n}" for n in itertools.count(1)))
        return evolve(path, tile=evolve(path.tile, name=next(n for n in names if n not in taken)))
