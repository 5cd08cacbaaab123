"""Text of a tile program, in XeTile's words: one operation a line, tiles and blocks with their types.

`convgen.tile.parsing` reads the text back. A row of `forms.py` gives the text of each operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count

import attrs

from convgen.ir.record import define
from convgen.ir.sizes import Size
from convgen.tile.forms import extents, shown, type_of, written
from convgen.tile.layouts import Options
from convgen.tile.tiles import Index, Tensor, Tile, sized
from convgen.tile.trace import Load, Loop, Prefetch, ScalarLoad, Scatter, Statement, Store, Trace, Value


def text_of(name: str, tensors: Sequence[Tensor], trace: Trace, options: Options) -> str:
    """Return the text of the whole kernel."""
    optional = {"slots": options.slots, **{name: getattr(options, name) or None for name in ("mma", "acc", "copy")}}
    words = [f"subgroups={sized(options.subgroups)}", *(f"{k}={v}" for k, v in optional.items() if v is not None)]
    sizes = dict.fromkeys(size for t in tensors for size in t.shape if isinstance(size, Size))
    lines = [f"kernel {name}({', '.join([*map(_size, sizes), *map(_tensor, tensors)])}) {' '.join(words)}"]
    if grid := trace.grid:
        offsets = ", ".join(v.name for v in grid.offsets)
        lines.append(f"  {offsets} = grid {extents(grid.counts)} of <{sized(grid.block)}> in {grid.order}")
    return "\n".join([*lines, *_Writer().suite(trace.statements, 1)]) + "\n"


def _size(size: Size) -> str:
    return f"{size.name}: size<{size.least} to {size.most} by {size.multiple}>"


def _tensor(t: Tensor) -> str:
    return f"{t.name}: memref<{extents(t.shape)}x{t.dtype}{t.tag and f', {t.tag}'}>"


@define
class _Writer:
    names: dict[Value | Tile, str] = attrs.field(factory=dict)
    numbers: Iterator[int] = attrs.field(factory=count)

    def suite(self, statements: Sequence[Statement], depth: int) -> Iterator[str]:
        for statement in statements:
            yield from ("  " * depth + line for line in self.lines(statement))

    def lines(self, statement: Statement) -> Iterator[str]:
        match statement:
            case Loop():
                return self.loop(statement)
            case ScalarLoad():
                return self.scalar(statement)
        return self.operation(statement)

    def loop(self, loop: Loop) -> Iterator[str]:
        for _, first, _ in loop.moved:
            yield from self.tile(first)
        carried: dict[Value | Tile, str] = {}
        for name, value, _ in loop.carried:
            carried[value] = self.fresh(name, carried.values())
        inits = [f"{name[1:]} = {self.name(first)}" for first, name in carried.items()]
        carrying = f" carrying {', '.join(inits)}" if carried else ""
        yield f"for {loop.var.name} in [0, {shown(loop.trips)}){carrying}"
        outside = dict(self.names)
        self.names |= carried
        yield from self.suite(loop.body, 1)
        for _, first, last in loop.moved:
            by = self.moved(first, last)
            if any(by):
                yield f"  {self.name(first)} = update_tile_offset {self.name(first)}, [{_listed(by)}]"
        if carried:
            yield f"  yield {', '.join(self.name(last) for *_, last in loop.carried)}"
        self.names = outside | {last: carried[first] for _, first, last in loop.carried}
        self.names |= {last: self.name(first) for _, first, last in loop.moved}

    def moved(self, first: Tile, last: Tile) -> tuple[Index, ...]:
        """Return by how much an iteration moves a tile, apart from the moves of inner loops."""
        steps: tuple[Index, ...] = (0,) * len(first.offsets)
        while self.names.get(last) != self.names[first] and last.moved_from is not None:
            steps = tuple(a + b for a, b in zip(steps, last.moved_by))
            last = last.moved_from
        return steps

    def fresh(self, name: str, others: Iterable[str]) -> str:
        """Return a name for a value that a loop carries, other than all in use and than `others`."""
        bare = "%" + "".join(c for c in name.replace("[", "_") if c.isalnum() or c == "_")
        taken = {*self.names.values(), *others}
        return next(n for n in chain([bare], (f"{bare}_{i}" for i in count(2))) if n not in taken)

    def name(self, value: Value | Tile) -> str:
        if value not in self.names:
            self.names[value] = f"%{next(self.numbers)}"
        return self.names[value]

    def tile(self, tile: Tile) -> Iterator[str]:
        """Yield the lines that define a tile, unless it has a name already."""
        if tile in self.names:
            return
        if tile.moved_from is not None:
            yield from self.tile(tile.moved_from)
            by, of = _listed(tile.moved_by), self.name(tile.moved_from)
            yield f"{self.name(tile)} = update_tile_offset {of}, [{by}]"
            return
        at = f"{tile.tensor.name}[{_listed(tile.offsets)}]"
        maps = f" {{{tile.maps}}}" if tile.maps else ""
        along = f" along {', '.join(map(str, tile.kept))}" if tile.folded else ""
        yield f"{self.name(tile)} = init_tile {at}{along} : {type_of('tile', tile.shape, tile.tensor.dtype)}{maps}"

    def scalar(self, load: ScalarLoad) -> Iterator[str]:
        yield f"{load.var.name} = load_scalar {load.tile.tensor.name}[{_listed(load.tile.offsets)}] up to {load.most}"

    def operation(self, statement: Value | Store | Scatter | Prefetch) -> Iterator[str]:
        if isinstance(statement, Load | Store | Prefetch):
            yield from self.tile(statement.tile)
        text = written(statement, self)
        if isinstance(statement, Value):
            text = f"{self.name(statement)} = {text} : {type_of('vector', statement.shape, statement.elem.name)}"
        yield text


def _listed(scalars: Sequence[Index]) -> str:
    return ", ".join(map(shown, scalars))
