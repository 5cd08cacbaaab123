"""A tile program as text, in XeTile's words: one operation a line, tiles and blocks with their types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import attrs

from convgen.ir.expr import Expr
from convgen.tile.trace import (
    Convert,
    Full,
    Gather,
    Laid,
    Load,
    Loop,
    Map,
    Positions,
    Prefetch,
    Product,
    Reduced,
    Said,
    Scatter,
    Store,
    Tensor,
    Tile,
    Trace,
    Turned,
    Value,
    sized,
)


def text_of(name: str, tensors: Sequence[Tensor], trace: Trace) -> str:
    """The whole kernel."""
    given = ", ".join(f"{t.name}: memref<{sized(t.shape)}x{t.dtype}>" for t in tensors)
    lines = [f"kernel {name}({given})"]
    if grid := trace.grid:
        offsets = ", ".join(v.name for v in grid.offsets)
        lines.append(f"  {offsets} = grid {sized(grid.counts)} of <{sized(grid.shape)}> in {grid.order}")
    return "\n".join([*lines, *_Writer().suite(trace.said, 1)]) + "\n"


@attrs.define
class _Writer:
    names: dict[Value | Tile, str] = attrs.field(factory=dict)
    numbers: Iterator[int] = attrs.field(factory=count)

    def suite(self, said: Sequence[Said], depth: int) -> Iterator[str]:
        for each in said:
            if isinstance(each, Loop):
                yield from self.loop(each, depth)
                continue
            for line in self.operation(each):
                yield "  " * depth + line

    def loop(self, loop: Loop, depth: int) -> Iterator[str]:
        carried = [f"{name} = {self.name(first)}" for name, first, _ in loop.carried]
        moved = [line for _, first, _ in loop.moved for line in self.tile(first)]
        yield from ("  " * depth + line for line in moved)
        behind = f" carrying {', '.join(carried)}" if carried else ""
        yield f"{'  ' * depth}for {loop.var.name} in [0, {loop.trips}){behind}"
        outside = dict(self.names)
        self.names |= {first: f"%{name}" for name, first, _ in loop.carried}
        yield from self.suite(loop.body, depth + 1)
        for _, first, last in loop.moved:
            steps = ", ".join(map(str, self.moved(first, last)))
            yield f"{'  ' * (depth + 1)}{self.name(first)} = update_tile_offset {self.name(first)}, [{steps}]"
        if loop.carried:
            yield f"{'  ' * (depth + 1)}yield {', '.join(self.name(last) for *_, last in loop.carried)}"
        self.names = outside | {last: f"%{name}" for name, _, last in loop.carried}
        self.names |= {last: self.name(first) for _, first, last in loop.moved}

    def name(self, what: Value | Tile) -> str:
        if what not in self.names:
            self.names[what] = f"%{next(self.numbers)}"
        return self.names[what]

    def tile(self, tile: Tile) -> Iterator[str]:
        """The line that makes a tile, where it has none yet."""
        if tile in self.names:
            return
        offsets = ", ".join(map(_shown, tile.offsets))
        maps = f", {tile.maps}" if tile.maps else ""
        kind = _type("tile", tile.shape, tile.tensor.dtype + maps)
        yield f"{self.name(tile)} = init_tile {tile.tensor.name}[{offsets}] : {kind}"

    def moved(self, first: Tile, last: Tile) -> list[Expr | int]:
        """By how much an iteration moves a tile beside what loops in it do."""
        steps: list[Expr | int] = [0] * len(first.offsets)
        while self.names.get(last) != self.names[first] and last.moved_from is not None:
            steps = [a + b for a, b in zip(steps, last.moved_by)]
            last = last.moved_from
        return steps

    def operation(self, said: Value | Store | Scatter | Prefetch) -> Iterator[str]:
        match said:
            case Store(tile, value, op):
                given = self.name(value)
                yield from self.tile(tile)
                yield f"{f'atomic_rmw {op}' if op else 'store_tile'} {given}, {self.name(tile)}"
            case Scatter(tensor, indices, value, mask, op):
                given, at = self.name(value), f"{tensor.name}[{self.name(indices)}]"
                masked = f" if {self.name(mask)}" if mask else ""
                yield f"{f'atomic_rmw {op}' if op else 'scatter'} {given}, {at}{masked}"
            case Prefetch(tile):
                yield from self.tile(tile)
                yield f"prefetch_tile {self.name(tile)}"
            case Value():
                if isinstance(said, Load):
                    yield from self.tile(said.tile)
                what = self.made(said)
                yield f"{self.name(said)} = {what} : {_type('vector', said.shape, said.elem.name)}"

    def made(self, value: Value) -> str:
        names = [self.name(v) for v in value.args]
        match value:
            case Load(tile=tile, turned=turned, maps=maps):
                mapped = f" {{{maps}}}" if maps and maps is not tile.maps else ""
                return f"load_tile {self.name(tile)}" + (" {transpose}" if turned else "") + mapped
            case Laid(maps=maps):
                return f"convert_layout {names[0]} {{{maps}}}"
            case Gather(tensor=tensor, mask=mask, other=other):
                masked = f" if {names[1]}" if mask else ""
                return f"gather {tensor.name}[{names[0]}]{masked}" + (f" else {other}" if other else "")
            case Turned():
                return f"transpose {names[0]}"
            case Full(value=number):
                return f"constant {number}"
            case Positions(axis=axis):
                return f"positions along {axis}"
            case Map(name=name, operands=operands):
                shown = (self.name(o) if isinstance(o, Value) else _shown(o) for o in operands)
                return f"{name} {', '.join(shown)}"
            case Convert(saturate=saturate):
                return f"convert {names[0]}" + (" {saturate}" if saturate else "")
            case Reduced(axis=axis, kind=kind):
                return f"reduce {kind} {names[0]} along {axis}"
            case Product():
                return f"tile_mma {', '.join(names)}"
        raise AssertionError(value)


def _shown(value: float | Expr) -> str:
    return str(value)


def _type(kind: str, shape: Sequence[int], dtype: str) -> str:
    return f"{kind}<{sized(shape)}x{dtype}>"
