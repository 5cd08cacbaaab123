"""Pictures of a workgroup mapping (the die that computes each tile, and when) and of a layout (each element's owner).

Tiles come as in `choose/traffic.py`: M and N tile by workgroup number, -1 for a workgroup without a tile. M runs
downwards, N to the right. Colours stand for dies, lighter ones for later rounds; large tiles also show the die's
number. A drawing is a list of boxes and lines of text, rendered as SVG or PNG; equal mappings give equal bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from convgen.choose.panels import Ints
from convgen.choose.traffic import Schedule, Tiles
from convgen.ir.error import UserError
from convgen.ir.record import frozen
from convgen.run.files import write_all

#: Okabe and Ito's colours, distinct for any colour vision; grey replaces their black.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
EMPTY, FAINT = "#eeeeee", "#d9d9d9"  #: background without a tile, and waiting; a page in dark mode replaces both
_PAPER, _INK = "#ffffff", "#222222"
_LIGHTEST = 0.6  #: share of white in the last round's colours

_SIDE = 960  #: pixels that the longer side of the grid takes at most
_MOST = 40  #: pixels; largest tile
_LABELLED = 20  #: pixels; smallest tile with a number
_LABELLED_TWICE = 36  #: pixels; smallest tile with two numbers
_MARGIN, _TEXT = 48, 14  #: pixels
_SECONDS, _MOST_SECONDS = 0.8, 30.0  #: seconds of a round in the animation, and of all rounds


@frozen
class Box:
    x: float
    y: float
    width: float
    height: float
    colour: str
    round: int | None = None  #: when it appears; None: from the beginning


@frozen
class Line:
    """Text centred on a height; `anchor` is start, middle or end; `on_paper` unless it stands on a box's colour."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    size: int = _TEXT
    colour: str = _INK
    round: int | None = None
    on_paper: bool = True


@frozen
class Drawing:
    title: str
    description: str
    width: int
    height: int
    rounds: int
    boxes: list[Box]
    lines: list[Line]


# ---------------------------------------------------------------- drawings


@frozen
class _Grid:
    """The positions of tiles, in pixels."""

    rows: int
    columns: int
    width: float  #: width of a tile
    height: float

    @classmethod
    def of(cls, rows: int, columns: int) -> _Grid:
        """Return a grid of square tiles, unless one side would be too long or tiles too small to see."""
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
    """Return whole pixels; a size below 4 keeps its fraction."""
    return float(int(pixels)) if pixels >= 4 else round(pixels, 3)


def draw(
    tiles: Tiles, shape: tuple[int, int], dies: int, in_flight: int, title: str, takers: Ints | None = None
) -> Drawing:
    """Draw a grid of M x N tiles, each by its first slice; a die has `in_flight` workgroups at a time.

    Tiles bear the number of their die, or of their workgroup if there is one die.
    `takers` are the workgroups that take the tiles, where they persist.
    """
    at = Schedule.of(tiles, dies, in_flight, takers=takers)
    grid = _Grid.of(*shape)
    right, bottom = grid.end
    names = [[str(n) for n in range(count)] for count in shape]
    parts: list[Box | Line] = [
        Box(_MARGIN, 2 * _MARGIN, right - _MARGIN, bottom - 2 * _MARGIN, EMPTY),
        Line(_MARGIN, _MARGIN / 2, title, size=_TEXT + 4),
        *_ruler(grid, ("M", "N"), *names),
    ]
    _, first = np.unique(at.tile[:, 0] * shape[1] + at.tile[:, 1], return_index=True)
    for n in sorted(first.tolist(), key=lambda n: (at.round[n], at.die[n], at.number[n])):
        die, turn = int(at.die[n]), int(at.round[n])
        colour = _shade(die, turn, at.rounds)
        number = str(die if dies > 1 else at.number[n])
        parts += _tile(grid, int(at.tile[n, 0]), int(at.tile[n, 1]), colour, (number,), turn)
    named, on, of = ("die", f" on {dies} dies", " a die") if dies > 1 else ("", "", "")
    parts += _legend((named, "round"), sorted(set(at.die.tolist())), at.rounds, bottom + _MARGIN / 2)
    rounds = f"{at.rounds} round{'s' * (at.rounds > 1)} of up to {in_flight} workgroups{of}"
    return _drawing(title, f"{shape[0]} x {shape[1]} tiles (M x N){on} in {rounds}", grid, at.rounds, parts)


def _drawing(
    title: str, description: str, grid: _Grid, rounds: int, parts: Sequence[Box | Line], below: float = 0
) -> Drawing:
    """Return the drawing, with space for text beside and below the grid."""
    right, bottom = grid.end
    boxes = [part for part in parts if isinstance(part, Box)]
    lines = [part for part in parts if isinstance(part, Line)]
    reach = max(right, *(line.x + 0.6 * line.size * len(line.text) for line in lines if line.anchor == "start"))
    return Drawing(title, description, int(reach + _MARGIN), int(bottom + 2 * _MARGIN + below), rounds, boxes, lines)


@frozen
class Cell:
    """A rectangle of elements with equal owners: numbers of its colour and shade, and its text."""

    colour: int | None  #: None for an empty cell
    shade: int
    lines: tuple[str, ...]


@frozen
class Axis:
    """A side of a grid: its name, and those of its rows or columns."""

    name: str
    labels: tuple[str, ...]


def draw_cells(
    cells: Sequence[Sequence[Cell]], down: Axis, across: Axis, kinds: tuple[str, str], title: str, remark: str
) -> Drawing:
    """Draw rows of coloured cells; `kinds` name the quantities that colours and shades count."""
    grid = _Grid.of(len(down.labels), len(across.labels))
    parts: list[Box | Line] = [Line(_MARGIN, _MARGIN / 2, title, size=_TEXT + 4)]
    parts += _ruler(grid, (down.name, across.name), list(down.labels), list(across.labels))
    shades = 1 + max(cell.shade for row in cells for cell in row)
    for row, row_cells in enumerate(cells):
        for column, cell in enumerate(row_cells):
            colour = EMPTY if cell.colour is None else _shade(cell.colour, cell.shade, shades)
            parts += _tile(grid, row, column, colour, cell.lines, None)
    colours = sorted({cell.colour for row in cells for cell in row if cell.colour is not None})
    bottom = grid.end[1]
    height_of_legend = _MARGIN if len(colours) <= len(PALETTE) else 0
    if height_of_legend:
        parts += _legend(kinds, colours, shades, bottom + _MARGIN / 2)
    parts.append(Line(_MARGIN, bottom + _MARGIN + height_of_legend, remark))
    return _drawing(title, remark, grid, 0, parts, below=_TEXT + height_of_legend - _MARGIN)


def _tile(
    grid: _Grid, row: int, column: int, colour: str, texts: tuple[str, ...], turn: int | None
) -> Iterator[Box | Line]:
    """Yield a tile of the grid with as many of its lines of text as fit."""
    x, y = grid.corner(row, column)
    least = min(grid.width, grid.height)
    gap = 1.0 if least >= 6 else 0.0
    yield Box(x, y, grid.width - gap, grid.height - gap, colour, turn)
    shown = texts[: 0 if least < _LABELLED else 1 if least < _LABELLED_TWICE else 2]
    for n, text in enumerate(shown):
        height = y + (grid.height - gap) * (2 * n + 1) / (2 * len(shown))
        yield Line(x + (grid.width - gap) / 2, height, text, "middle", _TEXT - 2, _readable(colour), turn, False)


def _ruler(grid: _Grid, names: tuple[str, str], rows: list[str], columns: list[str]) -> Iterator[Line]:
    """Yield the names of sides, rows and columns; of rows and columns as many as fit."""
    down, across = names
    yield Line(_MARGIN, 1.25 * _MARGIN, across)
    yield Line(_MARGIN / 4, 2 * _MARGIN - _TEXT, down)
    for in_row, labels, pixels in ((True, columns, grid.width), (False, rows, grid.height)):
        step = next((n for n in (1, 2, 5, 10, 20, 50) if n * pixels >= 2 * _TEXT), 100)
        for n in range(0, len(labels), step):
            x, y = grid.corner(0 if in_row else n, n if in_row else 0)
            place = (x + grid.width / 2, y - _TEXT) if in_row else (x - 6, y + grid.height / 2)
            yield Line(*place, labels[n], "middle" if in_row else "end", _TEXT - 3)


def _legend(kinds: tuple[str, str], colours: list[int], rounds: int, y: float) -> Iterator[Box | Line]:
    """Yield the legend: the colours, then their shades."""
    colour, shade = kinds
    x: float = _MARGIN
    for n in colours if colour else ():
        yield Box(x, y, _TEXT, _TEXT, _shade(n, 0, rounds))
        yield Line(x + _TEXT + 4, y + _TEXT / 2, f"{colour} {n}")
        x += (2 + len(colour)) * _TEXT
    y += 2 * _TEXT
    shown = sorted({round(n * (rounds - 1) / 7) for n in range(8)}) if rounds > 1 else []
    for n, turn in enumerate(shown):
        yield Box(_MARGIN + n * _TEXT, y, _TEXT, _TEXT, _shade(colours[0], turn, rounds))
    if shown:
        yield Line(_MARGIN + (len(shown) + 0.5) * _TEXT, y + _TEXT / 2, f"{shade} 0 to {rounds - 1}")


def _shade(die: int, turn: int, rounds: int) -> str:
    """Return a die's colour, lighter for later rounds."""
    white = _LIGHTEST * turn / max(1, rounds - 1)
    parts = _channels(PALETTE[die % len(PALETTE)])
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)


def _channels(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return red, green, blue


def _readable(colour: str) -> str:
    """Return dark or light text, whichever contrasts more (luma of ITU-R BT.601)."""
    red, green, blue = _channels(colour)
    return _INK if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else _PAPER


# ---------------------------------------------------------------- as SVG and PNG


def svg(drawing: Drawing, animated: bool = False, prefix: str = "") -> str:
    """Return SVG text. If `animated`, rounds appear one by one, unless the viewer asks for reduced motion.

    `prefix` begins the names of elements, which must differ between pictures of one page.
    """
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    title, desc = f"{prefix}title", f"{prefix}desc"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="{title} {desc}">',
        f'<title id="{title}">{escape(drawing.title)}</title>',
        f'<desc id="{desc}">{escape(drawing.description)}</desc>',
        f"<style>text{{font-family:sans-serif;dominant-baseline:central}}{_frames(drawing.rounds) if animated else ''}"
        "</style>",
        f'<rect width="100%" height="100%" fill="{_PAPER}"/>',
    ]
    for turn in (None, *range(drawing.rounds)):
        parts.append("<g>" if turn is None else f'<g class="r{turn}">')
        boxes = (box for box in drawing.boxes if box.round == turn)
        parts += [_path(colour, list(run)) for colour, run in groupby(boxes, lambda box: box.colour)]
        parts += [_text(line, bool(prefix)) for line in drawing.lines if line.round == turn]
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _frames(rounds: int) -> str:
    """Return the style that hides each round before its time, then shows it."""
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


def _text(line: Line, on_page: bool) -> str:
    """Return a text element; on a page, text that stands on paper has the class `ink`, whose colour the page sets."""
    place = f'x="{line.x:.8g}" y="{line.y:.8g}" text-anchor="{line.anchor}"'
    place += ' class="ink"' if on_page and line.on_paper else ""
    return f'<text {place} font-size="{line.size}" fill="{line.colour}">{escape(line.text)}</text>'


def png(drawing: Drawing) -> bytes:
    """Render a drawing as PNG."""
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


def check_output(output: str, animated: bool = False) -> None:
    """Raise UserError unless a picture can have this name."""
    if Path(output).suffix not in (".svg", ".png"):
        raise UserError(f"given {output}, wanted FILE.svg or FILE.png, at -o")
    if animated and Path(output).suffix != ".svg":
        raise UserError(f"given --animate and {output}, wanted FILE.svg")


def write(drawing: Drawing, output: str, animated: bool = False, knob: str = "-o") -> None:
    """Write a drawing to a file, whose suffix selects the format. Raises UserError, which names the knob."""
    data = svg(drawing, animated).encode() if Path(output).suffix == ".svg" else png(drawing)
    write_all({Path(output): data}, knob)


# ---------------------------------------------------------------- as text


def table(tiles: Tiles, shape: tuple[int, int], takers: Ints | None = None) -> str:
    """Return a table of workgroup numbers by row M and column N: a dot for no workgroup, the first of slices of K.

    `takers` are the workgroups that take the tiles, where they persist.
    """
    numbers = np.full(shape, -1)
    there = np.flatnonzero(tiles[:, 0] >= 0)[::-1]
    numbers[tiles[there, 0], tiles[there, 1]] = there if takers is None else takers[there]
    sides = [Axis(name, tuple(map(str, range(count)))) for name, count in zip("MN", shape)]
    return ruled([["." if n < 0 else str(n) for n in row] for row in numbers.tolist()], *sides)


def ruled(cells: Sequence[Sequence[str]], down: Axis, across: Axis) -> str:
    """Return rows of cells with a ruler, all columns of equal width."""
    wide = max(2, *(len(text) for row in (across.labels, *cells) for text in row))
    high = max(map(len, down.labels))
    side = len(down.name) + 1 + high

    def line(head: str, cells: Sequence[str]) -> str:
        return f"{head:>{side}} | " + "  ".join(f"{cell:>{wide}}" for cell in cells)

    head = line("", across.labels)
    parts = [
        f"{'':{side}} | {across.name:>{wide}}".rstrip(),
        head,
        "-" * (side + 1) + "+" + "-" * (len(head) - side - 2),
    ]
    for n, (label, row) in enumerate(zip(down.labels, cells)):
        parts.append(line(f"{down.name if n == 0 else '':{len(down.name)}} {label:>{high}}", row))
    return "\n".join(parts) + "\n"
