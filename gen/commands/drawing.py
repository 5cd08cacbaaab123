"""Pictures of a workgroup mapping: which XCD computes each tile, and when.

Tiles come as in `plan/traffic.py`: M and N tile by workgroup number, -1 where a workgroup has none. M runs downwards,
N to the right. Colours say the XCD, lighter ones later rounds; large tiles also bear the XCD's number. A drawing is a
list of boxes and lines of text, which become SVG or PNG; both say the same, and equal mappings give equal bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from html import escape
from itertools import groupby

import attrs
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from convgen.plan.traffic import Schedule, Tiles

#: Okabe and Ito's colours, which people with any colour vision tell apart; grey stands for their black.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
_PAPER, _INK, _EMPTY = "#ffffff", "#222222", "#eeeeee"
_LIGHTEST = 0.6  #: share of white in the last round's colours

_SIDE = 960  #: pixels that the longer side of the grid takes at most
_MOST = 40  #: pixels; greatest tile
_LABELLED = 20  #: pixels; least tile that bears a number
_MARGIN, _TEXT = 48, 14  #: pixels
_SECONDS, _MOST_SECONDS = 0.8, 30.0  #: of a round in the animation, and of all


@attrs.frozen
class Box:
    x: float
    y: float
    width: float
    height: float
    colour: str
    round: int | None = None  #: when it appears; None: from the beginning


@attrs.frozen
class Line:
    """Text centred on a height; `anchor` is start, middle or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: int = _TEXT
    colour: str = _INK
    round: int | None = None


@attrs.frozen
class Drawing:
    title: str
    description: str
    width: int
    height: int
    rounds: int
    boxes: list[Box]
    lines: list[Line]


# ---------------------------------------------------------------- what is drawn


@attrs.frozen
class _Grid:
    """Where tiles stand, in pixels."""

    rows: int
    columns: int
    width: float  #: of a tile
    height: float

    @classmethod
    def of(cls, rows: int, columns: int) -> _Grid:
        """Square tiles, unless one side would be too long or tiles too small to see."""
        side = _whole(min(_MOST, _SIDE / max(rows, columns, 1)))
        if side >= 4:
            return cls(rows, columns, side, side)
        width, height = (_whole(min(_MOST, _SIDE / n)) for n in (columns, rows))
        return cls(rows, columns, width, height)

    def corner(self, row: int, column: int) -> tuple[float, float]:
        return _MARGIN + column * self.width, 2 * _MARGIN + row * self.height

    @property
    def end(self) -> tuple[float, float]:
        return self.corner(self.rows, self.columns)


def _whole(pixels: float) -> float:
    """Whole pixels, unless there is less than a few."""
    return float(int(pixels)) if pixels >= 4 else round(pixels, 3)


def draw(tiles: Tiles, shape: tuple[int, int], xcds: int, in_flight: int, title: str) -> Drawing:
    """A grid of M x N tiles; an XCD has `in_flight` workgroups at a time. Of slices of a tile, the first is drawn."""
    at = Schedule.of(tiles, xcds, in_flight)
    grid = _Grid.of(*shape)
    right, bottom = grid.end
    boxes = [Box(_MARGIN, 2 * _MARGIN, right - _MARGIN, bottom - 2 * _MARGIN, _EMPTY)]
    lines = [Line(_MARGIN, _MARGIN / 2, title, size=_TEXT + 4), *_ruler(grid)]
    _, first = np.unique(at.tile[:, 0] * shape[1] + at.tile[:, 1], return_index=True)
    for n in sorted(first.tolist(), key=lambda n: (at.round[n], at.xcd[n], at.workgroup[n])):
        xcd, turn = int(at.xcd[n]), int(at.round[n])
        colour = _shade(xcd, turn, at.rounds)
        x, y = grid.corner(int(at.tile[n, 0]), int(at.tile[n, 1]))
        gap = 1.0 if min(grid.width, grid.height) >= 6 else 0.0
        boxes.append(Box(x, y, grid.width - gap, grid.height - gap, colour, turn))
        if min(grid.width, grid.height) >= _LABELLED:
            middle = x + (grid.width - gap) / 2, y + (grid.height - gap) / 2
            lines.append(Line(*middle, str(xcd), "middle", _TEXT - 2, _readable(colour), turn))
    legend = list(_legend(sorted(set(at.xcd.tolist())), at.rounds, bottom + _MARGIN / 2))
    boxes += [part for part in legend if isinstance(part, Box)]
    lines += [part for part in legend if isinstance(part, Line)]
    told = f"{shape[0]} x {shape[1]} tiles (M x N) on {xcds} XCDs in {at.rounds} rounds of {in_flight} workgroups each"
    reach = max(right, *(line.x + 0.6 * line.size * len(line.text) for line in lines if line.anchor == "start"))
    return Drawing(title, told, int(reach + _MARGIN), int(bottom + 2 * _MARGIN), at.rounds, boxes, lines)


def _ruler(grid: _Grid) -> Iterator[Line]:
    """Numbers of rows and columns, as many as there is room for."""
    yield Line(_MARGIN, 1.25 * _MARGIN, "N")
    yield Line(_MARGIN / 4, 2 * _MARGIN - _TEXT, "M")
    for columns, count, pixels in ((True, grid.columns, grid.width), (False, grid.rows, grid.height)):
        step = next((n for n in (1, 2, 5, 10, 20, 50) if n * pixels >= 2 * _TEXT), 100)
        for n in range(0, count, step):
            x, y = grid.corner(0 if columns else n, n if columns else 0)
            place = (x + grid.width / 2, y - _TEXT) if columns else (x - 6, y + grid.height / 2)
            yield Line(*place, str(n), "middle" if columns else "end", _TEXT - 3)


def _legend(xcds: list[int], rounds: int, y: float) -> Iterator[Box | Line]:
    """The colours of XCDs, then how they fade."""
    x: float = _MARGIN
    for xcd in xcds:
        yield Box(x, y, _TEXT, _TEXT, _shade(xcd, 0, rounds))
        yield Line(x + _TEXT + 4, y + _TEXT / 2, f"XCD {xcd}")
        x += 5 * _TEXT
    y += 2 * _TEXT
    shown = sorted({round(n * (rounds - 1) / 7) for n in range(8)}) if rounds > 1 else []
    for n, turn in enumerate(shown):
        yield Box(_MARGIN + n * _TEXT, y, _TEXT, _TEXT, _shade(xcds[0], turn, rounds))
    if shown:
        yield Line(_MARGIN + (len(shown) + 0.5) * _TEXT, y + _TEXT / 2, f"round 0 to {rounds - 1}")


def _shade(xcd: int, turn: int, rounds: int) -> str:
    """An XCD's colour, the lighter the later."""
    white = _LIGHTEST * turn / max(1, rounds - 1)
    parts = _channels(PALETTE[xcd % len(PALETTE)])
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return red, green, blue


def _readable(colour: str) -> str:
    """Dark or light text, whichever stands out more (luma of ITU-R BT.601)."""
    red, green, blue = _channels(colour)
    return _INK if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else _PAPER


# ---------------------------------------------------------------- as SVG and PNG


def svg(drawing: Drawing, animated: bool = False) -> str:
    """SVG text; animated: rounds appear one after the other, over and over, but for who asks for reduced motion."""
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(drawing.title)}</title>',
        f'<desc id="desc">{escape(drawing.description)}</desc>',
        f"<style>text{{font-family:sans-serif;dominant-baseline:central}}{_frames(drawing.rounds) if animated else ''}"
        "</style>",
        f'<rect width="100%" height="100%" fill="{_PAPER}"/>',
    ]
    for turn in (None, *range(drawing.rounds)):
        parts.append("<g>" if turn is None else f'<g class="r{turn}">')
        boxes = (box for box in drawing.boxes if box.round == turn)
        parts += [_path(colour, list(same)) for colour, same in groupby(boxes, lambda box: box.colour)]
        parts += [_text(line) for line in drawing.lines if line.round == turn]
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _frames(rounds: int) -> str:
    """Style in which each round is hidden before its time, then shown."""
    seconds = min(_MOST_SECONDS, _SECONDS * (rounds + 1))
    rules = []
    for turn in range(1, rounds):
        begin = f"{100 * turn / (rounds + 1):.4g}%"
        rules.append(f"@keyframes k{turn}{{0%{{opacity:0}}{begin}{{opacity:1}}100%{{opacity:1}}}}")
        rules.append(f".r{turn}{{animation:k{turn} {seconds:.4g}s step-end infinite}}")
    return f"@media (prefers-reduced-motion:no-preference){{{''.join(rules)}}}"


def _path(colour: str, boxes: list[Box]) -> str:
    moves = (f"M{b.x:.8g} {b.y:.8g}h{b.width:.8g}v{b.height:.8g}h{-b.width:.8g}z" for b in boxes)
    return f'<path fill="{colour}" d="{"".join(moves)}"/>'


def _text(line: Line) -> str:
    place = f'x="{line.x:.8g}" y="{line.y:.8g}" text-anchor="{line.anchor}"'
    return f'<text {place} font-size="{line.size}" fill="{line.colour}">{escape(line.text)}</text>'


def png(drawing: Drawing) -> bytes:
    """The same as an image."""
    image = Image.new("RGB", (drawing.width, drawing.height), _PAPER)
    canvas = ImageDraw.Draw(image)
    for box in drawing.boxes:
        left, top, right, bottom = (round(n) for n in (box.x, box.y, box.x + box.width, box.y + box.height))
        canvas.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), box.colour)
    anchors = {"start": "lm", "middle": "mm", "end": "rm"}
    for line in drawing.lines:
        font = ImageFont.load_default(line.size)
        canvas.text((line.x, line.y), line.text, line.colour, font, anchors[line.anchor])
    into = io.BytesIO()
    image.save(into, "PNG")
    return into.getvalue()


# ---------------------------------------------------------------- as text


def table(tiles: Tiles, shape: tuple[int, int]) -> str:
    """Workgroup numbers by row M and column N; a dot where there is none, the first of slices of K."""
    numbers = np.full(shape, -1)
    there = np.flatnonzero(tiles[:, 0] >= 0)[::-1]
    numbers[tiles[there, 0], tiles[there, 1]] = there
    rows, columns = shape
    wide = len(str(max(columns - 1, int(numbers.max(initial=0)), 10)))
    high = len(str(rows - 1))

    def line(head: str, cells: list[str]) -> str:
        return f"{head:>{high + 2}} | " + "  ".join(f"{cell:>{wide}}" for cell in cells)

    head = line("", [str(n) for n in range(columns)])
    parts = [f"{'':{high + 2}} |{'N':>{wide + 1}}", head, "-" * (high + 3) + "+" + "-" * (len(head) - high - 4)]
    for m, row in enumerate(numbers.tolist()):
        parts.append(line(f"{'M' if m == 0 else ' '} {m:>{high}}", ["." if n < 0 else str(n) for n in row]))
    return "\n".join(parts) + "\n"
