"""Paths of a product's inputs: from views of memory, through shared tiles or not, to the fragments that are multiplied.

A shared tile has one of four orders in memory: rows with a pitch and a swizzle; columns, if reads transpose it; blocks
in the register order of fragments, where the target moves whole blocks (`facts.tiles_as_fragments`); panels, if matrix
instructions read it in place (`ir.layout.shared_panels`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from convgen.ir.error import DoesNotFit
from convgen.ir.facts import TargetFacts
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import COL, ROW, Shared, Swizzle, View, column_major, row_major
from convgen.ir.layout.mma import MmaTile
from convgen.ir.layout.shared_panels import SPANS, panel_order, panel_unit
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type, s8, u8
from convgen.passes.messages.direct_copies import direct_width, places_of
from convgen.passes.messages.linear import linearize
from convgen.passes.messages.swizzle import find_gaps, find_rows, find_swizzle, write_conflicts
from convgen.passes.messages.tensor_copies import tensor_route
from convgen.plan.config import DIRECT, REGISTERS, TENSOR, Config
from convgen.plan.copies import (
    ROWS,
    CopyLayout,
    K,
    copy_layout,
    divide,
    is_read_transposed,
    lane_swaps,
    pitch_of,
    rounded_rows,
)
from convgen.plan.dequantise import Dequantisation, GroupTensor
from convgen.plan.loads import keeps_columns
from convgen.plan.packing import Packing


@frozen
class InputPath:
    """The path of one input of a product: its view, its shared tile if there is one, and the copy into it."""

    view: View
    elem: Type  #: type in which it is multiplied; elements are converted on the way
    tile: Shared | None
    copy: CopyLayout | None  #: each lane's share of the copy, or of the prefetch without a tile
    dequantisation: Dequantisation | None = None  #: from stored elements to those that are multiplied, if any
    scales: GroupTensor | None = None  #: scales that the matrix instruction applies, or that multiply sums of blocks
    scale_path: InputPath | None = None  #: their way through shared memory, by groups along K; None: lanes load them
    tap_rows: tuple[int, ...] = ()  #: rows of the resident tile at which each tap's windows begin (taps=resident)
    direct_bytes: int = 0  #: bytes a lane of messages that copy without registers; 0: no such messages
    step: int = 0  #: rows between starts of tiles that bulk copies of tensors bring; 0: no such copies
    conflicts: int = 0  #: cycles that bank conflicts add to the first accesses to the shared tile
    packing: Packing | None = None  #: how an earlier launch packs the input, if one does

    def with_tile(self, tile: Shared, facts: TargetFacts) -> InputPath:
        """Return the path through a blocked tile that differs from its own in gaps only."""
        assert self.copy is not None
        return evolve(self, tile=tile, conflicts=write_conflicts(tile.digits, self.elem, self.copy.stored, facts))

    @property
    def offset(self) -> int:
        """Return the number subtracted from elements on their way: 128 for u8 multiplied as s8, else 0.

        The subtraction flips one bit; `compensation` corrects the sums.
        """
        return s8.max + 1 if (self.view.memory.elem, self.elem) == (u8, s8) else 0


@frozen
class ProductInput:
    """An input of a product, and the fragments that subgroups read of it."""

    view: View
    elem: Type  #: type in which it is multiplied
    fragment: Fragment
    config: Config
    facts: TargetFacts
    in_place: int = 0  #: rows of the instruction that reads the input in shared memory; 0: lanes load fragments
    anywhere: int | None = None  #: axis along which tiles begin at any position, 0 (rows) or 1 (K); None: along none

    @classmethod
    def of_n(
        cls, view: View, unit: MmaTile, config: Config, facts: TargetFacts, anywhere: int | None = None
    ) -> ProductInput:
        """Return the input along N of a product by `unit`."""
        return cls(view, unit.atom.a_elem, unit.a, config, facts, unit.atom.n * unit.atom.in_shared, anywhere)

    @classmethod
    def of_m(
        cls, view: View, unit: MmaTile, config: Config, facts: TargetFacts, anywhere: int | None = None
    ) -> ProductInput:
        """Return the input along M of a product by `unit`."""
        return cls(view, unit.atom.b_elem, unit.b, config, facts, unit.atom.m * unit.atom.in_shared, anywhere)

    def path(self, rows: int, copy: str = REGISTERS, *, period: int = 0) -> InputPath:
        """Return the path of `rows` rows by the tile's K; DoesNotFit if they do not divide evenly over lanes.

        `copy` is one of `config.COPIES`. Fragments of a transposed tile may begin at multiples of `period` columns.
        """
        elem, config, facts = self.elem, self.config, self.facts
        shape = rows, config.tile[2] if period else self.fragment.extent("k")  # with a period a fragment is a part
        if copy != REGISTERS and self.anywhere is not None and linearize(self.view).unit_axis == self.anywhere:
            given = f"copy={copy}: groups of {self.view.memory.name} begin anywhere along its contiguous dim"
            raise DoesNotFit(f"{given}, wanted copy={REGISTERS}")
        if self.in_place:
            return self._in_place(shape, 1 if self.anywhere == 0 else rows, copy)
        if copy == TENSOR:
            given = f"copy={TENSOR} of {self.view.memory.name}"
            raise DoesNotFit(f"{given}: wanted a matrix instruction that reads shared memory in place")
        if copy == DIRECT:
            return self._direct(shape)
        transposed = bool(config.slots) and self._is_transposed
        pitch, chunk = (0, facts.chunk_bytes) if transposed else pitch_of(shape[1], elem.bytes, facts)
        digits = column_major(*shape) if transposed else row_major(*shape, pitch)
        if facts.tiles_as_fragments:
            digits = self._block_order
        lanes = self._copy(digits, shape) if config.slots or config.prefetch else None
        if not config.slots or lanes is None:
            return InputPath(self.view, elem, None, lanes)

        def with_copy(copy: CopyLayout) -> InputPath:
            swizzle, conflicts = Swizzle(), 0
            if not facts.tiles_as_fragments:
                length, read = shape[not transposed], self.fragment
                swizzle, conflicts = find_swizzle(
                    length, elem, chunk, read, copy.stored, facts, pitch=pitch, transposed=transposed, period=period
                )
            return self._through(self._tile(digits, swizzle, chunk), copy, conflicts)

        return _with_least_conflicts(map(with_copy, lane_swaps(lanes, self.elem, facts)))

    def path_at_offsets(self, shape: tuple[int, int], step: int, *, run: int = 0, reads: int, copy: str) -> InputPath:
        """Return the path to fragments that begin at any row of a tile or, with `run`, at multiples of `run` columns.

        `shape` is (rows, columns); rows are added until the copy divides evenly. Tiles begin at multiples of `step`
        rows. Each element is read `reads` times. Bank conflicts are avoided by the tile's order in memory:

        - rows: gaps after rows, and swizzles within a run; also gaps of half chunks if fragments take no more;
        - columns, which reads transpose: one swizzle for every run;
        - panels: a swizzle by address, so that a part may begin at any row.
        """
        if copy != REGISTERS and not self.in_place:
            raise DoesNotFit("taps=resident: wanted shared memory and copies through registers")
        if run and self._is_transposed and not self.in_place:
            with suppress(DoesNotFit):
                return self.path(shape[0], period=run)
        (rows, cols), subgroups = shape, self.config.subgroups
        if self.facts.tiles_as_fragments:
            rows = rounded_rows(rows, cols, self.elem.bytes, self.facts, subgroups)
        for padded in range(rows, rows + self.facts.subgroup_size * subgroups):
            with suppress(DoesNotFit):
                if self.in_place:
                    return self._in_place((padded, cols), step, copy, run)
                if not self.facts.tiles_as_fragments:
                    return self._through_rows((padded, cols), run, reads)
                return _with_least_conflicts(self._through_blocks((padded, cols), run))
        raise DoesNotFit(f"rows of {cols} over {subgroups} subgroups")

    @property
    def _is_transposed(self) -> bool:
        return is_read_transposed(self.view, self.elem, self.fragment, self.facts)

    def _in_place(self, shape: tuple[int, int], step: int, copy: str, run: int = 0) -> InputPath:
        """Return the path through a tile of panels; DoesNotFit where no copy brings it.

        Tiles begin at multiples of `step` rows. With `run`, parts begin at multiples of `run` columns.
        """
        digits, swizzle = self._panels(shape, run or shape[1])
        tile = self._tile(digits, swizzle, self.facts.chunk_bytes)
        if copy == TENSOR:
            if rest := tile.slot_bytes % (unit := panel_unit(tile)):
                raise DoesNotFit(f"copy={TENSOR}: slots end {rest} bytes behind a multiple of {unit}, wanted none")
            tensor_route(self.view, tile, step)
            return evolve(self._through(tile, None, 0), step=step)
        if copy == REGISTERS:
            return self._through(tile, self._copy(digits, shape), 0)
        width = self._direct_width(digits, transposed=tile.is_transposed)
        return self._through(tile, None, 0, width)

    def _panels(self, shape: tuple[int, int], run: int) -> tuple[Digits, Swizzle]:
        """Return the order of a tile in the widest panels that divide; DoesNotFit if none does.

        A line runs along K, or along the rows if memory does and the instruction reads transposed tiles. Panels divide
        each run of `run` columns, or the rows of each instruction.
        """
        if not self.config.slots:
            raise DoesNotFit("slots=0: the matrix instruction reads its factors from shared memory")
        transposed = self._is_transposed
        line = (self.in_place if transposed else run) * self.elem.bytes
        span = next((span for span in SPANS if line % span == 0), 0)
        if not span:
            given = f"lines of {line} bytes that a matrix instruction reads in place"
            raise DoesNotFit(f"{given}, wanted a multiple of {min(SPANS)}")
        return panel_order(*shape, self.elem, span, transposed=transposed)

    @property
    def _block_order(self) -> Digits:
        """Return the order of a blocked tile: each block of memory is a run of the fragment's registers."""
        image = self.fragment.image(self.facts.subgroup_size, self.elem.bytes)
        return image.renamed(dict(zip(image.dims, (ROW, COL))))

    def _copy(self, digits: Digits, shape: tuple[int, int], across: int = 1) -> CopyLayout:
        """Return each lane's share of the copy; `across` lanes copy a row."""
        return copy_layout(self.view, digits, *shape, self.facts, self.config.subgroups, self.elem, across)

    def _tile(self, digits: Digits, swizzle: Swizzle, chunk: int) -> Shared:
        """Return the shared tile."""
        (rows, cols), name = digits.shape, f"{self.view.memory.name}_tile"
        return Shared(name, self.elem, rows, cols, digits, self.config.slots, swizzle, chunk)

    def _through(self, tile: Shared, copy: CopyLayout | None, conflicts: int, direct_bytes: int = 0) -> InputPath:
        return InputPath(self.view, self.elem, tile, copy, direct_bytes=direct_bytes, conflicts=conflicts)

    def _through_blocks(self, shape: tuple[int, int], run: int) -> Iterator[InputPath]:
        """Yield paths through a blocked tile of exactly this shape: one lane to a row, then two if that divides evenly.

        If a row is 2^n words long, rows start in few banks; with two lanes to a row, half as many rows start at once.
        DoesNotFit where rows do not divide evenly.
        """
        elem, facts = self.elem, self.facts
        digits = (
            _beginning_at_runs(self._block_order, run, *shape) if run else _beginning_at_rows(self._block_order, *shape)
        )
        tile = self._tile(digits, Swizzle(), facts.chunk_bytes)

        def with_lanes(across: int) -> InputPath:
            copy = self._copy(digits, shape, across)
            # `with_gaps` adds these gaps once the free shared memory is known
            in_memory = find_gaps(digits, elem, copy.stored, facts) if run else digits
            return self._through(tile, copy, write_conflicts(in_memory, elem, copy.stored, facts))

        yield with_lanes(1)
        with suppress(DoesNotFit):
            yield with_lanes(2)

    def _through_rows(self, shape: tuple[int, int], run: int, reads: int) -> InputPath:
        """Return the path through a tile of exactly this shape, with gaps after rows; DoesNotFit if it is uneven."""
        (rows, cols), elem, facts, chunk = shape, self.elem, self.facts, self.facts.chunk_bytes
        halved = self.fragment.contiguous("k") * elem.bytes <= chunk // 2

        def with_copy(copy: CopyLayout, unit: int) -> InputPath:
            chunks = run * elem.bytes // unit
            swizzled = chunks & -chunks if run else 1  # the largest power of two that divides a run's chunks
            pitch, swizzle, conflicts = find_rows(cols, elem, unit, self.fragment, copy.stored, facts, swizzled, reads)
            tile = self._tile(row_major(rows, cols, pitch * unit // elem.bytes), swizzle, unit)
            return self._through(tile, copy, conflicts)

        copy = self._copy(row_major(rows, cols), shape)
        units = (chunk, chunk // 2) if halved else (chunk,)
        return _with_least_conflicts(
            with_copy(swapped, unit) for swapped in lane_swaps(copy, elem, facts) for unit in units
        )

    def _direct(self, shape: tuple[int, int]) -> InputPath:
        """Return the path of a copy to shared memory without registers; DoesNotFit where no message suits."""
        if not self.config.slots:
            raise DoesNotFit("copy=direct: there is no shared memory with slots=0")
        elem, chunk = self.elem, self.facts.chunk_bytes
        transposed = self._is_transposed or keeps_columns(self.view, elem, self.facts)
        digits = column_major(*shape) if transposed else row_major(*shape)
        width = self._direct_width(digits, transposed=transposed)
        swizzle, conflicts = find_swizzle(
            shape[not transposed], elem, chunk, self.fragment, None, self.facts, transposed=transposed
        )
        return self._through(self._tile(digits, swizzle, chunk), None, conflicts, width)

    def _direct_width(self, digits: Digits, *, transposed: bool) -> int:
        """Return the bytes of a lane in messages that copy to a tile without registers; DoesNotFit where none suits."""
        view, elem, facts, name = self.view, self.elem, self.facts, self.view.memory.name
        if not facts.direct_widths:
            raise DoesNotFit(f"copy=direct: {facts.name} copies through registers only")
        if elem is not view.memory.elem:
            raise DoesNotFit(f"copy=direct: {name} of {view.memory.elem} is converted to {elem} on the way")
        width = direct_width(linearize(view), ROWS if transposed else K, elem, facts.chunk_bytes, facts)
        if not width:
            wanted = ", ".join(map(str, facts.direct_widths))
            given = f"copy=direct: neighbours along K of {name}"
            raise DoesNotFit(f"{given} are not together in messages of {wanted} bytes")
        places_of(digits, elem, width, facts.subgroup_size, self.config.subgroups)
        return width


def _with_least_conflicts(paths: Iterator[InputPath]) -> InputPath:
    """Return the first path without bank conflicts, else the first with the fewest; later ones are not computed."""
    best = next(paths)
    while best.conflicts and (other := next(paths, None)):
        best = min(best, other, key=lambda path: path.conflicts)
    return best


def with_gaps(paths: tuple[InputPath, ...], facts: TargetFacts) -> tuple[InputPath, ...]:
    """Return the paths with gaps in their blocked tiles where gaps avoid bank conflicts and fit (see `find_gaps`).

    Tiles of resident windows get no gaps: windows begin at any row, so the distance between rows must be constant.
    """
    if not facts.tiles_as_fragments:
        return paths
    changed, free = [], facts.shared_bytes - sum(path.tile.bytes for path in paths if path.tile)
    for path in paths:
        if path.tile and path.copy and not path.tap_rows:
            stored = path.copy.stored
            tile = evolve(path.tile, digits=find_gaps(path.tile.digits, path.elem, stored, facts))
            if (gaps := tile.bytes - path.tile.bytes) <= free:
                free -= gaps
            else:
                tile = path.tile
            path = evolve(path, tile=tile, conflicts=write_conflicts(tile.digits, path.elem, stored, facts))
        changed.append(path)
    return tuple(changed)


def _beginning_at_runs(image: Digits, run: int, rows: int, cols: int) -> Digits:
    """Return the order of a blocked tile whose fragments begin at any run of `run` columns, the width of `image`.

    Images of the fragment stand side by side, one for each run, then below one another. DoesNotFit if uneven.
    """
    size = image.span(Space.MEMORY)
    beside = Digit(COL, cols // run, Space.MEMORY, size)
    below = Digit(ROW, divide("rows of a tile", rows, image.extent(ROW)), Space.MEMORY, size * beside.size)
    return Digits(image.dims, (*image.digits, *(d for d in (beside, below) if d.size > 1)))


def _beginning_at_rows(image: Digits, rows: int, cols: int) -> Digits:
    """Return the order of a blocked tile whose fragments begin at any row: columns of blocks, each with all rows.

    DoesNotFit if blocks of the fragment's `image` do not have consecutive rows.
    """
    depth = image.merged(Space.MEMORY).of(COL)[0]
    width = next(d.stride for d in image.of(ROW))  # elements of a block's row
    if (depth.stride, depth.size) != (1, width):
        raise DoesNotFit("taps=resident: wanted a matrix instruction whose blocks have consecutive rows")
    whole = (
        Digit(COL, width, Space.MEMORY, 1),
        Digit(ROW, rows, Space.MEMORY, width),
        Digit(COL, cols // width, Space.MEMORY, width * rows),
    )
    return Digits(image.dims, tuple(d for d in whole if d.size > 1))
