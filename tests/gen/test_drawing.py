"""Pictures of mappings: the same in SVG and PNG, and tables as rocRoller's documentation prints them."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from convgen.show import drawing
from convgen.show.drawing import Drawing, Line, draw, png, svg, table
from tests.gen.reference_mappings import Tiles, grouped, remapped

SVG = "{http://www.w3.org/2000/svg}"

LINEAR = """\
    |  N
    |  0   1   2   3   4   5   6   7
----+-------------------------------
M 0 |  0   6  12  18  24  30  36  42
  1 |  1   7  13  19  25  31  37  43
  2 |  2   8  14  20  26  32  38  44
  3 |  3   9  15  21  27  33  39  45
  4 |  4  10  16  22  28  34  40  46
  5 |  5  11  17  23  29  35  41  47
"""
WGM_4 = """\
    |  N
    |  0   1   2   3   4   5   6   7
----+-------------------------------
M 0 |  0   4   8  12  16  20  24  28
  1 |  1   5   9  13  17  21  25  29
  2 |  2   6  10  14  18  22  26  30
  3 |  3   7  11  15  19  23  27  31
  4 | 32  34  36  38  40  42  44  46
  5 | 33  35  37  39  41  43  45  47
"""


def wgm(rows: int, columns: int, group: int) -> Tiles:
    return grouped(np.arange(rows * columns), rows, columns, group)


def wave(rows: int, columns: int) -> Tiles:
    return grouped(remapped(rows * columns), rows, columns, 8)


@pytest.mark.parametrize(("group", "text"), [(6, LINEAR), (4, WGM_4)])
def test_tables_are_those_of_the_documentation(group: int, text: str) -> None:
    assert table(wgm(6, 8, group), (6, 8)) == text


def test_a_table_of_many_tiles_keeps_its_columns() -> None:
    lines = table(wgm(12, 120, 4), (12, 120)).splitlines()
    assert len({len(line) for line in lines[1:]}) == 1
    assert lines[0].index("N") == lines[1].index("0")
    assert lines[3].startswith("M  0 |")
    assert lines[14].startswith("  11 |")
    assert lines[2].index("+") == lines[3].index("|")


def test_tiles_without_a_workgroup_and_slices() -> None:
    tiles = np.array([[0, 0, 0], [0, 0, 1], [-1, -1, -1], [0, 1, 0], [0, 1, 1]], np.int32)
    assert table(tiles, (1, 3)).splitlines()[-1] == "M 0 |  0   3   ."


def shapes(text: str) -> list[tuple[str, int]]:
    """The colour of each path, and of how many rectangles it consists."""
    paths = ET.fromstring(text).iter(f"{SVG}path")
    return [(p.attrib["fill"], p.attrib["d"].count("M")) for p in paths]


def test_each_tile_is_drawn_once_in_the_colour_of_its_die() -> None:
    picture = draw(wave(16, 8), (16, 8), 8, 38, "Wave")
    tiles = [box for box in picture.boxes if box.round is not None]
    assert len(tiles) == len({(box.x, box.y) for box in tiles}) == 128
    assert [box.colour for box in tiles] == [drawing.PALETTE[die] for die in range(8) for _ in range(16)]


def test_tiles_of_one_die_bear_their_workgroup() -> None:
    picture = draw(wgm(2, 3, 2), (2, 3), 1, 16, "one die")
    assert [line.text for line in picture.lines if not line.on_paper] == [str(n) for n in range(6)]
    assert "die" not in " ".join(line.text for line in picture.lines).removeprefix("one die")
    assert picture.description == "2 x 3 tiles (M x N) in 1 round of up to 16 workgroups"


def test_text_on_paper_follows_the_page() -> None:
    picture = draw(wgm(2, 3, 2), (2, 3), 8, 2, "some")
    assert 'class="ink"' not in svg(picture)
    elements = ET.fromstring(svg(picture, prefix="p1-")).iter(f"{SVG}text")
    assert [e.get("class") == "ink" for e in elements] == [line.on_paper for line in sorted(picture.lines, key=_round)]


def _round(line: Line) -> int:
    return -1 if line.round is None else line.round


def test_later_rounds_are_lighter() -> None:
    picture = draw(wgm(8, 8, 8), (8, 8), 1, 16, "four rounds")
    colours = list(dict.fromkeys(box.colour for box in picture.boxes if box.round is not None))
    assert len(colours) == picture.rounds == 4
    light = [sum(int(c[n : n + 2], 16) for n in (1, 3, 5)) for c in colours]
    assert light == sorted(light)
    assert len(set(light)) == 4


@pytest.mark.parametrize("shape", [(1, 1), (6, 8), (100, 100), (784, 1), (1, 3000)])
def test_every_size_can_be_read(shape: tuple[int, int]) -> None:
    picture = draw(wave(*shape), shape, 8, 38, "a title")
    assert picture.width <= 1200
    assert picture.height <= 1200
    assert all(box.width > 0 and box.x + box.width <= picture.width for box in picture.boxes)
    assert all(box.height > 0 and box.y + box.height <= picture.height for box in picture.boxes)
    at = [(line.x, line.y) for line in picture.lines]
    assert len(set(at)) == len(at)
    numbered = [line for line in picture.lines if line.round is not None]
    assert len(numbered) == (shape[0] * shape[1] if max(shape) <= 8 else 0)


def test_svg_is_told_to_those_who_do_not_see_it() -> None:
    root = ET.fromstring(svg(draw(wgm(6, 8, 4), (6, 8), 8, 2, "WGM 4 & more")))
    title, told = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert root.attrib["role"] == "img"
    assert title is not None
    assert title.text == "WGM 4 & more"
    assert told is not None
    assert told.text == "6 x 8 tiles (M x N) on 8 dies in 3 rounds of up to 2 workgroups a die"
    background = root.find(f"{SVG}rect")
    assert background is not None
    assert background.attrib["fill"] == "#ffffff"


def test_an_animation_shows_round_after_round() -> None:
    picture = draw(wgm(6, 8, 4), (6, 8), 8, 2, "WGM 4")
    still, moving = svg(picture), svg(picture, animated=True)
    assert shapes(still) == shapes(moving)
    assert "@keyframes" not in still
    assert re.findall(r"@keyframes k(\d)\{0%\{opacity:0\}(\d+)%", moving) == [("1", "25"), ("2", "50")]
    assert "prefers-reduced-motion" in moving
    assert moving.count("infinite") == 2


def test_bytes_are_the_same_each_time() -> None:
    def both() -> tuple[str, bytes]:
        picture = draw(wave(20, 12), (20, 12), 8, 4, "twice")
        return svg(picture, animated=True), png(picture)

    assert both() == both()


def seen(picture: Drawing) -> Image.Image:
    return Image.open(io.BytesIO(png(picture))).convert("RGB")


def test_png_shows_the_same() -> None:
    picture = draw(wave(16, 8), (16, 8), 8, 4, "Wave")
    image = seen(picture)
    assert image.size == (picture.width, picture.height)
    for box in picture.boxes[1:]:
        assert "#{:02x}{:02x}{:02x}".format(*image.getpixel((round(box.x) + 1, round(box.y) + 1))) == box.colour  # type: ignore[misc]
    assert image.getpixel((0, 0)) == (255, 255, 255)


def luminance(colour: str) -> float:
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def test_numbers_stand_out_from_their_tiles() -> None:
    """WCAG's contrast for large text is 3."""
    for rounds in (1, 2, 5):
        for die in range(8):
            for turn in range(rounds):
                tile = drawing._shade(die, turn, rounds)
                high, low = sorted((luminance(tile), luminance(drawing._readable(tile))), reverse=True)
                assert (high + 0.05) / (low + 0.05) >= 3, (tile, die)
