"""`convgen layout`: tables, JSON objects and pictures of layouts in each of their three ways to be written."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from convgen.backends import target
from convgen.commands.cli import main
from convgen.ir.layout.nested import NestedLayout

EXAMPLE = (
    "#iree_vector_ext.nested_layout<subgroup_tile = [2, 1], batch_tile = [2, 4], outer_tile = [1, 1], "
    "thread_tile = [16, 4], element_tile = [1, 4], subgroup_strides = [1, 0], thread_strides = [1, 16]>"
)
CUBE = (
    "subgroup_tile = [1, 1, 1], batch_tile = [2, 1, 1], outer_tile = [1, 1, 1], thread_tile = [1, 2, 2], "
    "element_tile = [1, 1, 1], subgroup_strides = [0, 0, 0], thread_strides = [0, 2, 1]"
)
SCALAR = ", ".join(f"{level}_tile = []" for level in ("subgroup", "batch", "outer", "thread", "element")) + (
    ", subgroup_strides = [], thread_strides = []"
)
SEED = ("--wg-map", "sg_layout = [2, 2], sg_data = [32, 128]", "--tile", "128x128")
SEED_LANES = ("--sg-map", "wi_layout = [2, 8], wi_data = [1, 2]")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["layout", *words]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *words, "--json"))
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["layout", *words]) == 2
    return capsys.readouterr().err.removeprefix("convgen: ").rstrip("\n")


def test_subgroups_of_the_rfc(capsys: pytest.CaptureFixture[str]) -> None:
    table = said(capsys, *SEED).split("\n\n")[1]
    assert [line.split("|")[-1].strip() for line in table.splitlines()[3:]] == ["0,1", "2,3", "0,1", "2,3"]


def test_a_layout_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, EXAMPLE, "--threads", "256", "--at", "33,6", "--owner", "16")
    assert found["layout"] == found["nested"] == EXAMPLE
    assert found["packed_shape"] == [2, 1, 2, 4, 1, 1, 16, 4, 1, 4]
    assert found["replication"] == [2]
    assert found["owners"][33][6] == [81, 209]
    assert found["at"]["subgroup"] == [1, 0]
    assert found["at"]["owners"] == [81, 209]
    assert found["held"][:5] == [[0, 4], [0, 5], [0, 6], [0, 7], [0, 20]]
    assert found["xetile"].startswith("none: given the fragment")


def test_tables_join_neighbours_with_the_same_owners(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, EXAMPLE, "--threads", "256").split("\n\n")[1].splitlines()
    assert len(lines) == 3 + 64
    assert lines[1].split() == ["|", *(f"{n}-{n + 3}" for n in range(0, 64, 4))]
    assert lines[3].split()[:6] == ["a", "0", "|", "0,128", "16,144", "32,160"]


@pytest.mark.parametrize(("subgroups", "told"), [(1, "0"), (2, "0,1"), (3, "0-2"), (4, "0-3")])
def test_runs_of_owners(capsys: pytest.CaptureFixture[str], subgroups: int, told: str) -> None:
    table = said(capsys, "--wg-map", f"sg_layout = [1, {subgroups}], sg_data = [4, 4]", "--tile", "4x4")
    assert table.rstrip().split("|")[-1].strip() == told


def test_vectors_of_any_rank(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, CUBE, "--subgroup", "4").count("\na ") == 2  # a title a matrix
    assert "0-63" in said(capsys, SCALAR)
    assert as_json(capsys, SCALAR, "--threads", "64")["owners"] == list(range(64))
    assert as_json(capsys, CUBE, "--subgroup", "4")["owners"][1] == [[[0], [1]], [[2], [3]]]


@pytest.mark.parametrize(("name", "operand"), [("v_mfma_f32_32x32x8_f16", "d"), ("32x32x8", "d"), ("16x16x32", "b")])
def test_operands_of_instructions(capsys: pytest.CaptureFixture[str], name: str, operand: str) -> None:
    found = as_json(capsys, "--mma", name, "--operand", operand)
    atoms = {atom.name: atom for atom in target.get("gfx942").facts.atoms}
    for given in found["instruction"].split():
        fragment = getattr(atoms[given], operand)
        assert found["nested"] == str(NestedLayout.of(fragment, 64))
    assert found["owner_count"] == 64


def test_instructions_of_two_subgroups(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--mma", "dpasw.8x8.f16", "--operand", "a", "--target", "xehpg")
    assert (found["owner_count"], found["shape"]) == (16, [16, 16])


def test_lanes_of_maps(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, *SEED, *SEED_LANES)
    assert (found["unit"], found["owner_count"]) == ("thread", 64)
    assert found["owners"][33][0] == [40, 56]
    block = as_json(capsys, *SEED_LANES, "--tile", "32x128", "--owner", "15")
    assert block["held"][-1] == [31, 127]


@pytest.mark.parametrize(
    ("words", "boxes"), [((EXAMPLE, "--threads", "128"), 4096), (SEED, 4), (("--mma", "32x32x8"), 1024), ((SCALAR,), 1)]
)
def test_pictures(words: tuple[str, ...], boxes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix in ("svg", "png"):
        said(capsys, *words, "-o", str(tmp_path / f"it.{suffix}"))
    root = ET.parse(tmp_path / "it.svg").getroot()
    drawn = "".join(path.get("d", "") for path in root.iter("{http://www.w3.org/2000/svg}path"))
    assert drawn.count("z") - boxes in range(20)  # and those of the legend
    with Image.open(tmp_path / "it.png") as image:
        assert image.size == (int(root.get("width", "")), int(root.get("height", "")))


NO_OWNER = "given 1 threads, wanted an owner for each element"
SHAPES = "32x32x4, 16x16x8, 16x16x4, 32x32x8, 16x16x16, 32x32x2, 32x32x16, 16x16x32"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "given no layout, wanted one of LAYOUT, --wg-map or --sg-map, and --mma"),
        ((EXAMPLE, "--mma", "x"), "given several layouts, wanted one of LAYOUT, --wg-map or --sg-map, and --mma"),
        (("batch_tile = [1]",), "given no subgroup_tile, wanted each of subgroup_tile, batch_tile, outer_tile, "
         "thread_tile, element_tile, subgroup_strides, thread_strides, at column 17: batch_tile = [1]^"),
        ((EXAMPLE, "--threads", "64"), "given 64 threads in subgroups of 64, wanted a multiple of the 2 subgroups of "
         "subgroup_tile [2, 1]"),
        ((EXAMPLE, "--at", "64,0"), "given 64,0, wanted an element of 64x64, at --at"),
        ((EXAMPLE, "--at", "x"), "given 'x', wanted I,J,..., at --at"),
        ((EXAMPLE, "--owner", "128"), "given 128, wanted one of 128 threads, at --owner"),
        ((CUBE, "-o", "c.svg"), "given a layout of 3 dimensions, wanted at most 2 in a picture"),
        ((EXAMPLE, "-o", "c.pdf"), "given c.pdf, wanted FILE.svg or FILE.png, at -o"),
        (SEED[:2], "given maps without a tile, wanted --tile RxC"),
        ((*SEED[:2], "--tile", "12"), "given '12', wanted RxC, at --tile"),
        ((*SEED, "--threads", "2"), "given --threads or --subgroup, wanted those of the maps alone"),
        ((*SEED[:2], "--tile", "96x64"), "given a tile of 96x64 and #xetile.wg_map<sg_layout = [2, 2], sg_data = "
         "[32, 128]>, wanted a tile that sg_layout * sg_data = 64 divides, or that divides it, at dim 0"),
        ((*SEED[:2], "--tile", "640x128"), "given 81920 elements, wanted at most 65536 to show"),
        (("--mma", "8x8"), f"given the matrix instruction '8x8', wanted one of {SHAPES}, or the name of an "
         "instruction, of gfx942"),
        (("--mma", "16x16x4"), "given the matrix instruction '16x16x4', wanted one of v_mfma_f64_16x16x4_f64, "
         "v_mfma_f32_16x16x4_f32, of gfx942"),
        (("--mma", "32x32x8", "--threads", "1"), NO_OWNER),
        (("--mma", "32x32x8", "--operand", "c"), "given 'c', wanted one of a, b, d, at --operand"),
        (("--mma", "32x32x8", "--threads", "65537"), "given 65537 owners of a layout, wanted 1 to 65536"),
    ],
)  # fmt: skip
def test_wrong_requests(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str) -> None:
    assert refused(capsys, *words) == message
