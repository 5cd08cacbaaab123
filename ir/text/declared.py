"""Buffers, tiles, views, layouts and tensor maps as text, in both directions.

`write_…` returns the text of a record; if the record has extents, it is given a function that writes those. `read_…`
takes the text from a cursor and returns the record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from convgen.ir.error import UserError
from convgen.ir.expr import Var
from convgen.ir.layout.digits import Digit, Digits, Space
from convgen.ir.layout.fragment import Fragment
from convgen.ir.layout.memory import (
    COL,
    ROW,
    Dim,
    Global,
    Overlay,
    Plane,
    Rectangle,
    RectangleOrder,
    RunView,
    Shared,
    SizedGlobal,
    SizedView,
    Swizzle,
    TensorDim,
    View,
    row_major,
)
from convgen.ir.layout.tags import Layout
from convgen.ir.layout.tensor_map import TensorMap
from convgen.ir.sizes import Extent, HostValue, Size
from convgen.ir.text.expressions import Expressions as Cursor
from convgen.ir.text.lexer import quoted

Extents = Callable[[Extent], str]
_BY = " x "
_MAIN_CHUNK = 16  #: bytes: the chunk that shared tiles mostly have, so it is not written


def joined(sizes: tuple[Any, ...], text: Callable[[Any], str] = str) -> str:
    """Return sizes with an x between them."""
    return _BY.join(map(text, sizes))


# ---------------------------------------------------------------- variables and buffers


def write_scalar(v: Var) -> str:
    """Return the type of a scalar argument, the range of a size, the launch expression of a host value."""
    match v:
        case Size():
            multiple = f" by {v.multiple}" if v.multiple != 1 else ""
            return f"{v.type} in [{v.least}, {v.most}]{multiple}"
        case HostValue():
            return f"{v.type} = {v.value} from {json.dumps(v.expr)}"
    return str(v.type)


def read_scalar(c: Cursor, name: str, id: int) -> Var:
    dtype = c.type()
    if c.skip("in"):
        c.take("[")
        least = c.integer()
        c.take(",")
        most = c.integer()
        c.take("]")
        return c.made(Size, name, id, dtype, least, most, c.integer() if c.skip("by") else 1)
    if c.skip("="):
        value = c.integer()
        c.take("from")
        return c.made(HostValue, name, id, dtype, value, c.string())
    return c.made(Var, name, id, dtype)


def write_buffer(g: Global, extent: Extents) -> str:
    """Return the type and the length of a buffer: in elements if it is a whole number of them, else in bytes."""
    if isinstance(g, SizedGlobal):
        return f"{g.elem}[{joined(g.shape, extent)}, at most {g.bytes} bytes]"
    elements = 8 * g.bytes // g.elem.spacing
    return f"{g.elem}[{elements}]" if g.elem.size(elements) == g.bytes else f"{g.elem}[{g.bytes} bytes]"


def write_buffer_declaration(g: Global, extent: Extents) -> str:
    """Return the declaration of a buffer: `src: f16[4096]`."""
    return f"{g.name}: {write_buffer(g, extent)}"


def read_buffer(c: Cursor, name: str) -> Global:
    elem = c.scalar_type()
    c.take("[")
    shape = [] if c.sees(",") else c.extents()
    if c.skip(",", "at", "most"):
        size = c.integer()
        c.take("bytes", "]")
        return c.made(SizedGlobal, name, elem, size, tuple(shape))
    is_bytes = c.skip("bytes")
    c.take("]")
    if len(shape) != 1 or not isinstance(shape[0], int):
        raise c.error("given a buffer of no known length, wanted NAME: TYPE[ELEMENTS]")
    return c.made(Global, name, elem, shape[0] if is_bytes else elem.size(shape[0]))


# ---------------------------------------------------------------- layouts

_LETTERS = {Space.REGISTER: "r", Space.LANE: "l", Space.SUBGROUP: "s", Space.FIXED: "="}
_SPACES = {letter: space for space, letter in _LETTERS.items()}
_NAME = r"(?:`([^`]*)`|([A-Za-z_]\w*?))"
_DIGIT = re.compile(rf" *{_NAME}(\d{{1,20}})([rls=])(\d{{1,20}})(?![\w])", re.ASCII)


def write_fragment(f: Fragment) -> str:
    """Return the digits, `k4r1 k4l16`: dim, size, space (register, lane, subgroup, =: fixed) and stride of each.

    The dims are written first, unless the digits name all of them in order.
    """
    digits = " ".join(f"{quoted(d.dim)}{d.size}{_LETTERS[Space(d.space)]}{d.stride}" for d in f.digits)
    if digits and tuple(dict.fromkeys(d.dim for d in f.digits)) == f.dims:
        return digits
    return f"({', '.join(f.dims)}) {digits}".rstrip()


def read_fragment(c: Cursor) -> Fragment:
    start = c.column
    dims = None
    if c.skip("("):
        dims = [] if c.sees(")") else c.names()
        c.take(")")
    digits = []
    at = c.column
    while found := _DIGIT.match(c.text, at):
        dim, size, letter, stride = found[1] or found[2], int(found[3]), found[4], int(found[5])
        digits.append(Digit(dim, size, _SPACES[letter], stride))
        at = found.end()
    if dims is None and not digits:
        raise c.error("wanted a layout such as n16l1 k4r1")
    c.skip_to(at)
    named = tuple(dict.fromkeys(d.dim for d in digits)) if dims is None else tuple(dims)
    return c.cached(c.text[start:at], lambda: c.made(Fragment, named, tuple(digits)))


_WORD = re.compile(r"[^ ]+")
_BLOCK = re.compile(r" *([a-z])(\d{1,20})@(\d{1,20})", re.ASCII)


def write_layout(layout: Layout) -> str:
    """Return `2x3:ab` if the tag or strides determine the layout, else its blocks, innermost first: `2x3:[b3@1]`."""
    text = str(layout)
    try:
        if " " not in text and Layout.from_tag(layout.tag, layout.dims) == layout:
            return text
    except UserError:
        pass
    if any(b.space != Space.MEMORY for b in layout.blocks):
        raise UserError(f"given a layout with blocks in {', '.join({b.space for b in layout.blocks})}, wanted memory")
    blocks = " ".join(f"{b.dim}{b.size}@{b.stride}" for b in layout.blocks)
    return f"{'x'.join(map(str, layout.dims))}:[{blocks}]"


def read_layout(c: Cursor) -> Layout:
    found = _WORD.match(c.text, c.column)
    dims, colon, tag = (found[0] if found else "").partition(":")
    sizes = dims.split("x") if dims else []
    if found is None or not colon or not all(re.fullmatch(r"[0-9]{1,15}", size) for size in sizes):
        raise c.error("wanted a layout such as 64x32:ab")
    if not tag.startswith("["):
        c.skip_to(found.end())
        return c.cached(found[0], lambda: c.made(Layout.from_tag, tag, tuple(map(int, sizes))))
    at, blocks = found.start() + len(dims) + 2, []
    while block := _BLOCK.match(c.text, at):
        blocks.append(Digit(block[1], int(block[2]), Space.MEMORY, int(block[3])))
        at = block.end()
    c.skip_to(at)
    c.take("]")
    return c.made(Layout, tuple(map(int, sizes)), tuple(blocks))


# ---------------------------------------------------------------- shared tiles


def write_shared(t: Shared, name: str) -> str:
    """Return `shared tile: 2 of f16 64 x 32, pitch 80, 8-byte chunks ^ (row >> 1 & 3), over other`; pitch in bytes."""
    chunks = f", {t.chunk}-byte chunks" if t.chunk != _MAIN_CHUNK or t.swizzle != Swizzle() else ""
    swizzle = f" ^ ({t.swizzle})" if t.swizzle != Swizzle() else ""
    over = f", over {t.over}" if isinstance(t, Overlay) else ""
    return f"shared {name}: {t.slots} of {t.elem} {t.rows} x {t.cols}, {_order(t)}{chunks}{swizzle}{over}"


def _order(t: Shared) -> str:
    """Return the order of a tile's elements: its pitch in bytes, or its digits, innermost first."""
    if t.pitch is not None:
        return f"pitch {t.pitch}"
    return "order " + " ".join(f"{d.dim}{d.size}@{d.stride}" for d in t.digits.digits)


_PLACE = re.compile(r" *(row|col)(\d{1,20})@(\d{1,20})", re.ASCII)


def read_shared(c: Cursor, name: str) -> Shared:
    """Read a shared tile behind `shared NAME:`."""
    slots = c.integer()
    c.take("of")
    elem = c.scalar_type()
    rows = c.integer()
    c.take("x")
    cols = c.integer()
    c.take(",")
    if c.skip("pitch"):
        pitch = c.integer()
        if pitch % elem.bytes:
            raise c.error(f"given a pitch of {pitch} bytes, wanted a multiple of {elem.bytes}")
        digits = row_major(rows, cols, pitch // elem.bytes)
    else:
        c.take("order")
        digits = Digits((ROW, COL), _places(c))
    chunk, swizzle = _MAIN_CHUNK, Swizzle()
    if c.sees(",") and c.following() != "over":
        c.take(",")
        chunk = c.integer()
        c.take("-", "byte", "chunks")
        swizzle = _swizzle(c) if c.skip("^") else swizzle
    if c.skip(",", "over"):
        return c.made(Overlay, name, elem, rows, cols, digits, slots, swizzle, chunk, c.name())
    return c.made(Shared, name, elem, rows, cols, digits, slots, swizzle, chunk)


def _places(c: Cursor) -> tuple[Digit, ...]:
    at, digits = c.column, []
    while found := _PLACE.match(c.text, at):
        digits.append(Digit(found[1], int(found[2]), Space.MEMORY, int(found[3])))
        at = found.end()
    c.skip_to(at)
    return tuple(digits)


def _swizzle(c: Cursor) -> Swizzle:
    """Read `(row >> 1 & 7)`, `(row << 1 & 7)` or `((row >> 1 ^ row >> 4) & 7)`."""
    c.take("(")
    is_folded = c.skip("(")
    c.take("row")
    shift = -c.integer() if c.skip("<<") else _shift_right(c)
    fold = 0
    if is_folded:
        c.take("^", "row")
        fold = _shift_right(c) - shift
        c.take(")")
    c.take("&")
    mask = c.integer()
    c.take(")")
    return c.made(Swizzle, shift, mask, fold)


def _shift_right(c: Cursor) -> int:
    c.take(">>")
    return c.integer()


# ---------------------------------------------------------------- views, planes, rectangles


def write_view(v: View, name: str, buffer: str, extent: Extents) -> str:
    """Return `view w = [o8, k3.c20<32] -> src[0 <= 2*o + k - 1 < 64, c] as 64x20:ab`: axes, indices, layout.

    The dims of an axis are separated by points. `<32` is a dim's padded size, `(n)` its extent in a launch, `of 9` the
    size of a tensor dimension if the layout's differs. `in runs` marks a `RunView`, `by 64 x 1` a `SizedView`
    with these strides.
    """
    axes = ", ".join(".".join(_dim(d, extent) for d in axis) for axis in v.axes)
    sizes = v.layout.dims if len(v.layout.dims) == len(v.index) else (None,) * len(v.index)
    index = ", ".join(map(_tensor_dim, v.index, sizes))
    kind = " in runs" if isinstance(v, RunView) else ""
    kind = f" by {joined(v.apart, extent)}".rstrip() if isinstance(v, SizedView) else kind
    return f"view {name} = [{axes}] -> {buffer}[{index}] as {write_layout(v.layout)}{kind}"


def _dim(d: Dim, extent: Extents) -> str:
    padded = f"<{d.padded}" if d.padded != d.size else ""
    return f"{quoted(d.name)}{d.size}{padded}" + (f"({extent(d.exact)})" if d.exact is not None else "")


def _tensor_dim(t: TensorDim, size: int | None) -> str:
    total = " + ".join(name if coef == 1 else f"{coef}*{name}" for name, coef in t.terms) or str(t.const)
    if t.const and t.terms:
        total += f" {'+' if t.const > 0 else '-'} {abs(t.const)}"
    if t.masked:
        return f"0 <= {total} < {t.size}"
    return total if t.size == size else f"{total} of {t.size}"


_DIM = re.compile(rf" *{_NAME}(\d{{1,20}})(?:<(\d{{1,20}}))?(?![\w])", re.ASCII)


def read_view(c: Cursor, buffer: Callable[[], Global]) -> View:
    """Read a view behind `view NAME =`; `buffer` takes the name of its buffer."""
    c.take("[")
    axes = [_axis(c)]
    while c.skip(","):
        axes.append(_axis(c))
    c.take("]", "->")
    memory = buffer()
    c.take("[")
    index = [] if c.sees("]") else [_index(c)]
    while c.skip(","):
        index.append(_index(c))
    c.take("]", "as")
    layout = read_layout(c)
    sized = [t if t.size >= 0 else _with_size(c, t, layout, n) for n, t in enumerate(index)]
    parts = memory, layout, tuple(axes), tuple(sized)
    if c.skip("in", "runs"):
        return c.made(RunView, *parts)
    if c.skip("by"):
        return c.made(SizedView, *parts, tuple(c.extents()) if not c.ends else ())
    return c.made(View, *parts)


def _axis(c: Cursor) -> tuple[Dim, ...]:
    """Read the dims of an axis, separated by points."""
    dims: list[Dim] = []
    at = c.column
    while not dims or c.text[at : at + 1] == ".":
        found = _DIM.match(c.text, at + bool(dims))
        if found is None:
            if not dims and (c.sees(",") or c.sees("]")):
                break
            raise c.error("wanted dims and their sizes, such as o64 or k3.c32")
        at, exact = found.end(), None
        c.skip_to(at)
        if c.text[at : at + 1] == "(":
            c.take("(")
            exact = c.extent_expression()
            at = c.column + 1
            c.take(")")
        size = int(found[3])
        dims.append(c.made(Dim, found[1] or found[2], size, int(found[4] or size), exact))
    return tuple(dims)


def _index(c: Cursor) -> TensorDim:
    """Read a tensor coordinate; its size is -1 if it is to be that of the layout."""
    is_masked = c.skip("0", "<=")
    terms: list[tuple[str, int]] = []
    const = 0
    sign = 1
    while True:
        sign = -sign if c.skip("-") else sign
        if c.at_number:
            number = sign * c.integer()
            if c.skip("*"):
                terms.append((c.name(), number))
            else:
                const += number
        else:
            terms.append((c.name(), sign))
        if not c.sees("+") and not c.sees("-"):
            break
        sign = 1
        c.skip("+")
    if is_masked:
        c.take("<")
    size = c.integer() if is_masked or c.skip("of") else -1
    return TensorDim(size, tuple(terms), const, is_masked)


def _with_size(c: Cursor, t: TensorDim, layout: Layout, n: int) -> TensorDim:
    """Return coordinate `n` with the size that the layout has there."""
    if n >= len(layout.dims):
        raise c.error(f"given more indices than the layout {layout} has dimensions")
    return TensorDim(layout.dims[n], t.terms, t.const, t.masked)


def write_plane(p: Plane, buffer: str, extent: Extents) -> str:
    base = f", from {p.base}" if p.base else ""
    return f"{buffer}({extent(p.height)} x {extent(p.width)} bytes, pitch {extent(p.pitch)}{base})"


def read_plane(c: Cursor, buffer: Callable[[], Global]) -> Plane:
    memory = buffer()
    c.take("(")
    height = c.extent()
    c.take("x")
    width = c.extent()
    c.take("bytes", ",", "pitch")
    pitch = c.extent()
    base = c.integer() if c.skip(",", "from") else 0
    c.take(")")
    return c.made(Plane, memory, base, width, height, pitch)


_ORDERS = sorted((tuple(order.value.split()), order) for order in RectangleOrder)


def write_rectangle(r: Rectangle) -> str:
    count = f"{r.count} times " if r.count > 1 else ""
    return f"{count}{r.rows} x {r.cols} {r.order.value}"


def read_rectangle(c: Cursor) -> Rectangle:
    count, rows = 1, c.integer()
    if c.skip("times"):
        count, rows = rows, c.integer()
    c.take("x")
    cols = c.integer()
    order = next((order for words, order in _ORDERS if c.skip(*words)), None)
    if order is None:
        raise c.error(f"wanted one of {', '.join(order.value for order in RectangleOrder)}")
    return c.made(Rectangle, rows, cols, order, count)


# ---------------------------------------------------------------- tensor maps


#: Word of a tensor map's text -> its field: a list of numbers, in this order.
_LISTS = {
    "dims": "dims", "strides": "strides", "box": "box", "from": "lower", "to": "upper", "steps": "element_strides",
}  # fmt: skip
#: Word -> field: a number.
_NUMBERS = {"channels": "channels", "pixels": "pixels", "swizzle": "swizzle", "shift": "shift"}


def write_tensor_map(t: TensorMap) -> str:
    """Return the text of a tensor map: kind, element type and buffer, then the fields that are not empty."""
    lists = [f"{word} {joined(getattr(t, field))}" for word, field in _LISTS.items() if getattr(t, field)]
    numbers = [f"{word} {getattr(t, field)}" for word, field in _NUMBERS.items() if getattr(t, field)]
    return f"{t.kind} {t.element} {quoted(t.buffer)}({', '.join((*lists, *numbers))})"


def read_tensor_map(c: Cursor) -> TensorMap:
    """Read the text of a tensor map."""
    kind, element, buffer = c.name(), c.name(), c.name()
    values: dict[str, Any] = {}
    c.take("(")
    for word, field in _LISTS.items():
        if c.skip(word):
            sizes = [c.integer()]
            while c.skip("x"):
                sizes.append(c.integer())
            values[field] = tuple(sizes)
            c.skip(",")
    for word, field in _NUMBERS.items():
        if c.skip(word):
            values[field] = c.integer()
            c.skip(",")
    c.take(")")
    return c.made(TensorMap, kind, element, buffer, values.pop("dims", ()), values.pop("strides", ()), **values)
