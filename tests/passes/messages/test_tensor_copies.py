"""Bulk tensor copies of tiles of views: the bytes that the simulator reads from maps, against the views' meaning."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen.backends.nvidia.sim.tensor_boxes import chunks_of
from convgen.ir.error import DoesNotFit
from convgen.ir.evaluate import Evaluator
from convgen.ir.expr import Const, const, var
from convgen.ir.layout.memory import Dim, Global, RunView, Shared, Swizzle, TensorDim, View, row_major
from convgen.ir.layout.shared_panels import CHUNK, SPANS, panel_order
from convgen.ir.layout.tags import Layout
from convgen.ir.layout.tensor_map import ELEMENT_BYTES
from convgen.ir.record import evolve
from convgen.ir.simplify.extents import upper_bound
from convgen.ir.types import SCALARS, Type, f16, f32, s4, s32
from convgen.passes.messages.linear import linearize
from convgen.passes.messages.tensor_copies import tensor_route
from convgen.passes.messages.tensor_routes import ELEMENTS, TensorRoute
from convgen.plan.config import APART, COLUMNS
from convgen.plan.contraction import Product
from convgen.plan.directions import have_columns
from convgen.plan.views import products
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul, Problem
from tests.strategies import FIXED

Bytes = npt.NDArray[np.uint8]
SENTINEL = 0xA5
MOST_OFFSET = {3: 65535, 4: 255, 5: 31}  #: by rank, PTX ISA
TYPES = ("s8", "f8_e4m3", "f16", "bf16", "f32")


def panels(view: View, rows: int, cols: int, span: int, elem: Type | None = None) -> Shared:
    """A tile in panels for a view, transposed if the view is contiguous along its rows."""
    elem, transposed = elem or view.memory.elem, linearize(view).unit_axis == 0
    digits, swizzle = panel_order(rows, cols, elem, span, transposed=transposed)
    return Shared("tile", elem, rows, cols, digits, 1, swizzle, CHUNK)


def wanted(view: View, tile: Shared, starts: Sequence[int], memory: Bytes) -> Bytes:
    """The bytes of a slot, from the meaning of a view."""
    size, grid = tile.elem.bytes, np.indices((tile.rows, tile.cols))
    positions = [grid[0] + starts[0], grid[1] + starts[1], *(np.full(grid[0].shape, s) for s in starts[2:])]
    dims: dict[str, Any] = {}
    exists = np.ones(grid[0].shape, np.bool_)
    for axis, position in enumerate(positions):
        dims |= view.decode(axis, position)
        for d in view.axes[axis]:
            exists &= (dims[d.name] >= 0) & (dims[d.name] < d.size)
    index = [np.broadcast_to(t.at(dims), exists.shape) for t in view.index]
    for t, at in zip(view.index, index):
        inside = (at >= 0) & (at < t.size)
        assert t.masked or not (exists & ~inside).any()
        exists &= inside
    at = np.broadcast_to(view.offset([np.where(exists, i, 0) for i in index], upper_bound), exists.shape)
    elements = np.where(exists[..., None], memory.reshape(-1, size)[np.where(exists, at, 0)], 0)
    slot = np.full(tile.rows * tile.cols * size, SENTINEL, np.uint8)
    slot[tile.address(0, *grid)[..., None] + np.arange(size)] = elements
    return slot


def copied(route: TensorRoute, starts: Sequence[int], memory: Bytes, *, named: bool) -> Bytes:
    """The bytes of a slot after all copies of a tile; its start is in variables if `named`."""
    evaluate = Evaluator(1)
    coords = [var(f"start{axis}", s32) if named else const(start) for axis, start in enumerate(starts)]
    for coord, start in zip(coords, starts):
        if not isinstance(coord, Const):
            evaluate.env[coord] = evaluate.full(s32, start)
    slot, written = np.full(route.bytes, SENTINEL, np.uint8), np.zeros(route.bytes, np.int64)
    messages = list(route.messages(coords))
    assert len(messages) == route.count
    for message in messages:
        if not named:
            assert all(isinstance(e, Const) for e in (*message.coords, *message.offsets))
        at, offsets = ([int(evaluate(e).data[0]) for e in es] for es in (message.coords, message.offsets))
        assert len(at) == len(message.map.dims)
        assert at[0] * message.map.size % 16 == 0
        assert len(offsets) == (len(at) - 2 if message.map.kind == "im2col" else 0)
        assert all(0 <= offset <= MOST_OFFSET[len(at)] for offset in offsets)
        assert message.place % (8 * message.map.swizzle) == 0
        found = chunks_of(message.map, message.place, at, offsets)
        places = found.place[:, None] + np.arange(found.size)
        source = np.where(found.inside, found.offset + message.map.shift, 0)[:, None] + np.arange(found.size)
        slot[places] = np.where(found.inside[:, None], memory[source], 0)
        written[places] += 1
    assert (written == 1).all()
    return slot


def check(view: View, tile: Shared, route: TensorRoute, starts: Sequence[int], *, named: bool = True) -> None:
    """Compare a tile, byte for byte."""
    memory = np.random.default_rng(7).integers(1, 256, view.memory.bytes, np.uint8)
    assert (copied(route, starts, memory, named=named) == wanted(view, tile, starts, memory)).all()


def all_starts(view: View, tile: Shared, route: TensorRoute) -> Iterator[tuple[int, ...]]:
    """Each tile of a view that copies bring, up to one past the end of each axis."""
    ends = [-(-view.extent(axis) // n) * n + n for axis, n in enumerate((tile.rows, tile.cols))]
    if route.taps_end is not None:
        extent = (tile.rows, tile.cols)[route.along]
        ends[route.along] = route.taps_end // extent * extent
    for row in range(0, ends[0], tile.rows):
        for col in range(0, ends[1], tile.cols):
            yield from (
                (row, col, *rest) for rest in ([(b,) for b in range(view.extent(2))] if view.axes[2:] else [()])
            )


def conv(text: str, block: int = 1, **knobs: str) -> tuple[Product, ...]:
    return products(Conv.parse(text, **{"dir": "FWD_D", "dt": "f16", **knobs}), block, ())


def matmul(text: str, block: int = 1, **knobs: str) -> Product:
    return products(Matmul.parse(text, **{"dt": "f16", **knobs}), block, ())[0]


# ---------------------------------------------------------------- random problems


def draw_axis(draw: st.DrawFn, name: str, most: int) -> str:
    """One spatial axis; outputs are free, so windows may end before the input does, or reach far past it."""
    k, d, s = draw(st.sampled_from((1, 1, 2, 3, 3, 4))), draw(st.sampled_from((0, 0, 1, 2))), draw(st.integers(1, 4))
    i, p = draw(st.integers(1, most)), draw(st.integers(0, k + 1))
    o = draw(st.integers(1, max(1, -(-most // s))))
    return f"i{name}{i}o{name}{o}k{name}{k}s{name}{s}d{name}{d}p{name}{p}"


@st.composite
def convolutions(draw: st.DrawFn) -> Problem:
    """A small convolution with channels that mostly fill 16 bytes."""
    inputs, direction = draw(st.sampled_from(TYPES)), draw(st.sampled_from(("FWD_D", "BWD_D", "BWD_W")))
    groups = draw(st.sampled_from((0, 0, 0, 1, 2, 3)))
    channels = st.sampled_from((16, 16, 32, 32, 64, 96, 48, 8, 20, 3))
    ic, oc = (draw(channels) * max(1, groups) for _ in range(2))
    names = draw(st.sampled_from(("w", "hw", "hw", "dhw")))
    axes = "".join(draw_axis(draw, name, 9 if len(names) < 3 else 4) for name in names)
    output = {"s8": "s32"}.get(inputs, "f32")
    types = [inputs, inputs]
    types.insert({"BWD_D": 0, "BWD_W": 1}.get(direction, 2), output)
    text = f"{f'g{groups}' if groups else ''}mb{draw(st.integers(1, 3))}ic{ic}oc{oc}{axes}"
    tags = {tag: draw(st.sampled_from(("any", "any", "any", "axb", "abx"))) for tag in ("stag", "dtag")}
    return Conv.parse(text, dir=direction, dt=":".join(types), **tags)


@st.composite
def gemms(draw: st.DrawFn) -> Problem:
    """A small product of matrices, transposed in any way, with a batch that either side may lack."""
    m, k, n = (draw(st.sampled_from((1, 8, 16, 24, 48, 64, 100, 128, 33))) for _ in range(3))
    batch = draw(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(((1, 1), (1, 1), (1, 0), (0, 1)))), max_size=2))
    src, wei = ("".join(f"{extent if own[side] else 1}x" for extent, own in batch) for side in (0, 1))
    inputs = draw(st.sampled_from(TYPES))
    tags = st.just("any") | st.permutations("abcd"[: len(batch) + 2]).map("".join)
    knobs = {tag: draw(tags) for tag in ("stag", "wtag", "dtag")}
    dt = f"{inputs}:{inputs}:{'s32' if inputs == 's8' else 'f32'}"
    return Matmul.parse(f"{src}{m}x{k}:{wei}{k}x{n}", dt=dt, **knobs)


def route_or_reason(view: View, tile: Shared) -> TensorRoute | str:
    """The route of a view's tiles, or why there is none: one line."""
    try:
        return tensor_route(view, tile)
    except DoesNotFit as error:
        return str(error)


def try_random(data: st.DataObject, problem: Problem, tally: Counter[str]) -> None:
    """Compare some tiles of both factors of a problem's products, where a route brings them."""
    phases = data.draw(st.sampled_from((APART, COLUMNS))) if have_columns(problem) else APART
    found = products(problem, 1, (), phases)
    span = data.draw(st.sampled_from(SPANS))
    run = span // (found[0].of_m.memory.elem.bytes if found else 1)
    cols = data.draw(st.sampled_from((run, run, 2 * run, 3 * run, 64)))
    block = data.draw(st.sampled_from((1, cols)))
    for product in products(problem, block, (), phases):
        for view in (product.of_m, product.of_n):
            unit = linearize(view).unit_axis
            tally["views"] += 1
            if unit not in (0, 1) or (unit == 1 and cols % run):
                tally["no unit axis"] += 1
                continue
            rows = data.draw(st.sampled_from((8, 16, 24, 64, 192, 320) if unit else (run, 2 * run, 3 * run)))
            tile = panels(view, rows, cols, span)
            route = route_or_reason(view, tile)
            if isinstance(route, str):
                tally["refused"] += 1
                assert re.fullmatch("copy=tensor: .* wanted .*", route)
                continue
            tally[route.map.kind] += 1
            tally["strided"] += max(route.map.steps) > 1
            tally["in pieces"] += route.pieces > 1
            tally["transposed"] += tile.is_transposed
            tally[f"rank {len(route.map.dims)} {route.map.kind}"] += 1
            starts = list(all_starts(view, tile, route))
            chosen = data.draw(st.lists(st.sampled_from(starts), max_size=3, unique=True)) if starts else []
            for start in dict.fromkeys((*starts[:1], *starts[-1:], *chosen)):
                tally["tiles"] += 1
                check(view, tile, route, start, named=data.draw(st.booleans()))


def tried(problems: st.SearchStrategy[Problem], chosen: settings) -> Counter[str]:
    """The number of views of random problems by what became of them."""
    tally: Counter[str] = Counter()

    @chosen
    @given(st.data(), problems)
    def compare(data: st.DataObject, problem: Problem) -> None:
        tally["problems"] += 1
        try_random(data, problem, tally)

    compare()
    return tally


def test_random_convolutions() -> None:
    tally = tried(convolutions(), settings(FIXED, max_examples=200))
    fewest = {
        "im2col": 40, "tiled": 100, "strided": 20, "transposed": 75, "in pieces": 5, "tiles": 500,
        "rank 3 im2col": 5, "rank 4 im2col": 15, "rank 5 im2col": 5, "rank 5 tiled": 3,
    }  # fmt: skip
    assert all(tally[name] >= count for name, count in fewest.items()), tally


def test_random_gemms() -> None:
    tally = tried(gemms(), settings(FIXED, max_examples=100))
    assert all(tally[name] >= count for name, count in {"tiled": 75, "transposed": 25, "tiles": 200}.items()), tally
    assert tally["im2col"] == 0


@pytest.mark.sweep
@pytest.mark.parametrize("problems", [convolutions(), gemms()], ids=["convolutions", "gemms"])
def test_random_problems_of_the_day(problems: st.SearchStrategy[Problem]) -> None:
    tally = tried(problems, settings(FIXED, derandomize=False, max_examples=3000))
    assert tally["tiled"] > 500, tally


# ---------------------------------------------------------------- known views


def windows(
    sizes: tuple[int, int, int],
    *,
    size: int,
    first: int = 0,
    taps: int = 1,
    coef: int = 1,
    step: int = 1,
    row: tuple[int, int] = (1, 0),
    elem: Type = f16,
    padded: dict[str, int] | None = None,
) -> View:
    """A view of (images, positions of windows) by (taps, channels), over a tensor [image, height, width, channel].

    `sizes` are of images, positions and channels, `size` is the tensor's width. Windows begin at `first`; `row` is the
    height and the row that the view has of it.
    """
    mb, o, c = sizes
    dims = {"mb": mb, "o": o, "k": taps, "c": c}
    fused = {name: Dim(name, n, (padded or {}).get(name, n)) for name, n in dims.items()}
    index = (
        TensorDim(mb, (("mb", 1),)),
        TensorDim(row[0], (), row[1]),
        TensorDim(size, (("o", step), ("k", coef)), first, masked=True),
        TensorDim(c, (("c", 1),)),
    )
    layout = Layout.dense([t.size for t in index], (0, 1, 2, 3))
    memory = Global("src", elem, elem.size(layout.size_elems))
    return View(memory, layout, ((fused["mb"], fused["o"]), (fused["k"], fused["c"])), index)


def check_all(view: View, tile: Shared, route: TensorRoute) -> None:
    starts = list(all_starts(view, tile, route))
    assert starts
    for start in starts:
        check(view, tile, route, start)


@pytest.mark.parametrize(
    ("text", "direction", "kind", "rank"),
    [
        ("mb4ic64oc64ih28oh28kh3ph1", "FWD_D", "im2col", 4),
        ("mb4ic128oc128ih28oh14kh3sh2ph1", "FWD_D", "im2col", 4),
        ("mb4ic64oc256ih28oh28kh1ph0", "FWD_D", "tiled", 2),
        ("mb4ic128oc64ih28oh14kh1sh2ph0", "FWD_D", "im2col", 4),
        ("mb2ic64oc64id7od7kd3pd1ih14oh14kh3ph1iw14ow14kw3pw1", "FWD_D", "im2col", 5),
        ("mb4ic64oc64iw200ow200kw9pw16dw3", "FWD_D", "im2col", 3),
        ("g4mb4ic256oc256ih14oh14kh3ph1", "FWD_D", "im2col", 4),
        ("mb8ic512oc512ih7oh7kh3ph1", "BWD_D", "im2col", 4),
        ("mb4ic64oc256ih28oh28kh1ph0", "BWD_D", "tiled", 2),
    ],
)
def test_pixels_of_a_layer_come_in_one_copy(text: str, direction: str, kind: str, rank: int) -> None:
    (product,) = conv(text, 64, dir=direction)
    tile = panels(product.of_m, 128, 64, 128)
    route = tensor_route(product.of_m, tile)
    assert (route.map.kind, len(route.map.dims), route.count) == (kind, rank, 1)
    first, *_, last = all_starts(product.of_m, tile, route)
    check(product.of_m, tile, route, first)
    check(product.of_m, tile, route, last)


def test_weights_of_backward_data_are_transposed_and_their_taps_mirrored() -> None:
    (product,) = conv("mb2ic64oc64ih9oh9kh3ph1", 64, dir="BWD_D")
    tile = panels(product.of_n, 64, 64, 128)
    route = tensor_route(product.of_n, tile)
    assert tile.is_transposed
    assert (route.map.kind, route.map.box, route.along) == ("tiled", (64, 64, 1, 1), 0)
    check_all(product.of_n, tile, route)


def windows_by_rows(text: str) -> View:
    """src of backward weights: taps and channels by positions."""
    (product,) = conv(text, 1, dir="BWD_W")
    return product.of_m if product.of_m.memory.name == "src" else product.of_n


def test_gradients_of_weights_read_pixels_along_k() -> None:
    """Rows are taps and channels: the last tile of rows ends past the last tap, where copies bring zeros."""
    view = windows_by_rows("mb2ic64oc64ih9oh5kh3ph1sh2")
    tile = panels(view, 128, 32, 128)
    route = tensor_route(view, tile)
    assert (route.map.kind, route.map.pixels, route.panels, route.taps_end) == ("im2col", 32, 2, None)
    check_all(view, tile, route)
    assert tensor_route(view, panels(view, 64, 32, 128)).taps_end == 9 * 64


@pytest.mark.parametrize("channels", [64, 48])
def test_rows_past_the_channels_of_a_group_are_zero(channels: int) -> None:
    view = windows_by_rows(f"g3mb1ic{3 * channels}oc96ih9oh5kh1sh2ph0")
    tile = panels(view, 5 * 16, 24, 32)
    route = tensor_route(view, tile)
    assert route.map.kind == "im2col"
    check_all(view, tile, route)


def test_tiles_taller_than_a_box_are_cut_by_lines() -> None:
    product = matmul("600x64:64x600", dtag="ab")
    tile = panels(product.of_m, 640, 64, 64)
    route = tensor_route(product.of_m, tile)
    assert (route.map.box, route.panels, route.pieces, route.lines) == ((32, 160), 2, 4, 160)
    assert [m.place for m in route.messages((const(0), const(0)))] == [160 * 64 * n for n in range(8)]
    check(product.of_m, tile, route, (0, 0))


def test_windows_are_cut_by_1024_pixels() -> None:
    (product,) = conv("mb2ic16oc16ih40oh40kh3ph1", 16)
    tile = panels(product.of_m, 2048, 16, 32)
    route = tensor_route(product.of_m, tile)
    assert (route.map.pixels, route.pieces) == (1024, 2)
    check(product.of_m, tile, route, (2048, 80))


def test_a_box_covers_whole_inner_dims() -> None:
    """Every other pixel: 8 x 8 an image, in boxes of a whole image or two."""
    (product,) = conv("mb3ic16oc16ih17oh8kh1sh2ph0", 16)
    for rows, box in ((32, (16, 8, 4, 1)), (64, (16, 8, 8, 1)), (128, (16, 8, 8, 2))):
        tile = panels(product.of_m, rows, 16, 32)
        route = tensor_route(product.of_m, tile)
        assert route.map.box == box
        check_all(product.of_m, tile, route)


@pytest.mark.parametrize("first", [-3, 0, 2])
def test_padding_of_single_taps_is_outside_a_tiled_map(first: int) -> None:
    view = windows((4, 4, 16), size=5, first=first)
    tile = panels(view, 16, 16, 32)
    route = tensor_route(view, tile)
    assert route.map.kind == "tiled"
    check_all(view, tile, route)


@pytest.mark.parametrize("coef", [1, 3, -1, -2])
@pytest.mark.parametrize("first", [-3, 0, 2])
def test_taps_in_either_direction(coef: int, first: int) -> None:
    view = windows((3, 10, 16), size=9, first=first, taps=3, coef=coef)
    tile = panels(view, 16, 16, 32)
    route = tensor_route(view, tile)
    assert route.map.lower == (first + min(0, 2 * coef),)
    assert route.map.upper == (route.map.lower[0] + 9 - 8,)
    check_all(view, tile, route)


def test_a_fixed_coordinate_moves_the_tensor() -> None:
    """Row 2 of images of 5 rows."""
    view = windows((2, 6, 16), size=6, first=-1, taps=3, row=(5, 2))
    tile = panels(view, 16, 16, 32)
    route = tensor_route(view, tile)
    assert (route.map.kind, len(route.map.dims), route.map.shift) == ("im2col", 3, 2 * 6 * 16 * 2)
    check_all(view, tile, route)


def test_images_past_those_of_the_view_are_zero() -> None:
    """A view of 2 of 3 images."""
    view = windows((3, 6, 16), size=6, first=-1, taps=3)
    (mb, o), k = view.axes
    few = evolve(view, axes=((evolve(mb, size=2, padded=2), o), k))
    tile = panels(few, 8, 16, 32)
    route = tensor_route(few, tile)
    assert (route.map.kind, len(route.map.dims)) == ("im2col", 4)
    check_all(few, tile, route)


def test_tiles_past_the_last_tap_keep_offsets_in_range() -> None:
    view = windows((2, 6, 16), size=6, first=1, taps=3, coef=-1)
    tile = panels(view, 16, 32, 32)
    route = tensor_route(view, tile)
    assert route.taps_end is None
    check_all(view, tile, route)


def test_strides_of_single_positions_do_not_matter() -> None:
    """Images that are 32 bytes apart, of one pixel: its stride of 14 bytes is never used."""
    view = windows((4, 2, 16), size=1, first=-1, taps=3)
    view = evolve(view, layout=Layout.strided((4, 1, 1, 16), (16, 64, 7, 1)))
    tile = panels(view, 8, 16, 32)
    route = tensor_route(view, tile)
    assert (route.map.kind, route.map.strides) == ("im2col", (16, 32))
    check_all(view, tile, route)


def test_padded_channels_are_outside_the_tensor() -> None:
    view = windows((2, 6, 24), size=6, first=-1, taps=3, padded={"c": 32})
    tile = panels(view, 16, 32, 64)
    route = tensor_route(view, tile)
    assert route.map.kind == "im2col"
    check_all(view, tile, route)


def test_coordinates_have_no_trivial_terms() -> None:
    product = matmul("128x64:64x128", dtag="ab")
    start = var("row", s32), var("k", s32)
    first, second = tensor_route(product.of_m, panels(product.of_m, 64, 64, 64)).messages(start)
    assert first.coords[0] is start[1]
    assert first.coords[1] is start[0]
    assert (first.offsets, first.place, second.place) == ((), 0, 64 * 64)
    assert second.coords[1] is start[0]
    (only,) = tensor_route(product.of_m, panels(product.of_m, 64, 64, 128)).messages((const(64), const(0)))
    assert [c.bits for c in only.coords if isinstance(c, Const)] == [0, 64]


def test_element_types_keep_their_size() -> None:
    assert {name for name, t in SCALARS.items() if t.bits >= 8} == set(ELEMENTS)
    for name, element in ELEMENTS.items():
        assert ELEMENT_BYTES[element] == SCALARS[name].bytes


# ---------------------------------------------------------------- refusals


def refusal(view: View, tile: Shared) -> str:
    """Why there is no route."""
    reason = route_or_reason(view, tile)
    assert isinstance(reason, str)
    assert "\n" not in reason
    return reason.removeprefix("copy=tensor: ")


def test_tiles_that_no_copy_fills_are_refused() -> None:
    view = windows((2, 8, 64), size=8)
    rows = Shared("tile", f16, 16, 64, row_major(16, 64), 1, Swizzle(), CHUNK)
    assert refusal(view, rows) == "the shared tile of src is in rows, wanted panels"
    assert "converted to f32 on the way" in refusal(view, panels(view, 16, 64, 128, f32))
    assert "panels of 12 lines" in refusal(view, panels(view, 12, 64, 64))
    nibbles = windows((2, 8, 64), size=8, elem=s4)
    assert refusal(nibbles, panels(nibbles, 16, 64, 32)).startswith("src of s4, wanted one of s8, u8")


def test_runs_and_sizes_from_the_host_are_refused() -> None:
    view = windows((2, 8, 64), size=8)
    tile = panels(view, 16, 64, 128)
    assert "read in runs" in refusal(RunView(view.memory, view.layout, view.axes, view.index), tile)
    (mb, o), k = view.axes
    sized = evolve(view, axes=((evolve(mb, exact=var("mb", s32)), o), k))
    assert "the host sets sizes of src at launch" in refusal(sized, tile)


def test_lines_off_16_bytes_are_refused() -> None:
    product = matmul("64x20:20x64", 32, dtag="ab")
    assert "strides (40,), wanted multiples of 16 bytes" in refusal(product.of_m, panels(product.of_m, 64, 32, 64))
    view = windows((2, 8, 64), size=8, taps=2)
    (mb, o), (k, c) = view.axes
    index = (*view.index[:3], TensorDim(64, (("c", 1),), 4))
    moved = evolve(view, axes=((mb, o), (k, evolve(c, size=32, padded=32))), index=index)
    assert "channels of src that begin off 16 bytes" in refusal(moved, panels(moved, 16, 32, 64))
    single = evolve(view, axes=((mb, o), (evolve(c, size=32, padded=32),)), index=index)
    single = evolve(single, index=(*index[:2], TensorDim(8, (("o", 1),)), index[3]))
    assert "a tensor that begins 8 bytes into its buffer" in refusal(single, panels(single, 16, 32, 64))


def test_lines_that_end_within_a_panel_are_refused() -> None:
    for text, block, reason in (
        ("mb1ic16oc16ih5oh5kh3ph1", 16, "16 channels of src, wanted a multiple of the 32 of a panel"),
        ("g2mb1ic32oc32ih5oh5kh3ph1", 32, "16 channels in a group of src, wanted a multiple of the 32 of whole tiles"),
    ):
        (product,) = conv(text, block)
        assert refusal(product.of_m, panels(product.of_m, 16, 32, 64)) == reason


def test_lines_that_are_not_contiguous_are_refused() -> None:
    digits, swizzle = panel_order(16, 32, f16, 64, transposed=False)
    tile = Shared("tile", f16, 16, 32, digits, 1, swizzle, CHUNK)
    (product,) = conv("mb1ic32oc32ih8oh8kh3ph1", 32, stag="abx")
    assert refusal(product.of_m, tile) == "neighbours along K of src, wanted contiguous channels for im2col"
    assert refusal(windows((8, 8, 1), size=9, first=-1), tile).startswith(
        "neighbours along K of src, wanted contiguous"
    )
    turned = matmul("64x64:64x64", stag="ba", dtag="ab")
    assert refusal(turned.of_m, tile) == "neighbours along K of src, wanted contiguous ones"


def test_pixels_that_are_no_box_are_refused() -> None:
    view = windows((5, 12, 64), size=12, padded={"o": 20})
    assert "12 of 20 positions along o, wanted all" in refusal(view, panels(view, 24, 64, 128))
    alone = evolve(view, index=(*view.index[:2], evolve(view.index[2], masked=False), view.index[3]))
    assert "24 lines of src over dims of 5 x 20, wanted parts that are a box" in refusal(
        alone, panels(alone, 24, 64, 128)
    )


def test_padded_taps_are_refused() -> None:
    view = windows((2, 8, 64), size=8, first=-1, taps=2, padded={"k": 3})
    assert "2 of 3 positions along k, wanted all" in refusal(view, panels(view, 16, 64, 128))
    view = windows((2, 10, 64), size=10, first=-1, taps=2, padded={"k": 3})
    unused = evolve(view, index=(*view.index[:2], TensorDim(10, (("o", 1),), -1, masked=True), view.index[3]))
    assert "2 of 3 positions along k, wanted all" in refusal(unused, panels(unused, 24, 64, 128))


def test_views_without_elements_are_refused() -> None:
    view = windows((2, 8, 64), size=8)
    empty = evolve(view, axes=((Dim("mb", 0, 0), view.axes[0][1]), view.axes[1]))
    assert "src has no elements" in refusal(empty, panels(view, 16, 64, 128))


def test_limits_of_im2col_maps_are_refused() -> None:
    strided = windows((2, 8, 64), size=100, step=9, taps=2)
    assert "element strides (1, 9, 1), wanted 1 to 8" in refusal(strided, panels(strided, 16, 64, 128))
    against = windows((2, 8, 64), size=8, step=-1, first=7, taps=2)
    assert "pixels in steps of -1" in refusal(against, panels(against, 16, 64, 128))
    for text, reason in (
        ("mb1ic16oc16ih301oh2kh2dh298ph0iw4ow4kw3pw1", "taps of src 299 elements apart, wanted at most 255 in 2 dims"),
        ("mb1ic16oc16id40od8kd3pd1ih40oh8kh3ph1iw40ow8kw3pw1", "the upper corner (-33, -33, -33), wanted -16 to 15"),
    ):
        (product,) = conv(text, 16)
        assert reason in refusal(product.of_m, panels(product.of_m, 16, 16, 32))


def test_blocks_are_refused() -> None:
    (product,) = conv("mb1ic32oc32ih8oh8kh3ph1", 16, stag="aBcd16b")
    assert "in blocks, wanted a plain one" in refusal(product.of_m, panels(product.of_m, 16, 16, 32))
