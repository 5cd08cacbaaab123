"""Packed inputs: an earlier launch lays an input out as one product reads it, so that whole messages copy it.

That launch computes element addresses once (taps and channels, padding of runs and tiles, masks of phases) instead of
every workgroup that reads the input: no copy is masked or trimmed. It may also convert elements to the type in which
they are multiplied, and dequantise them.

An input whose windows are read in runs or lines becomes an *image*, padding included, in which windows overlap as in
the tensor. Every other input becomes a *matrix*, in rows of K without gaps, or one for each product of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod

from convgen.ir.error import DoesNotFit
from convgen.ir.layout.memory import Dim, Global, SizedView, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.ir.record import evolve, frozen
from convgen.ir.types import Type
from convgen.passes.messages.packed_views import bytes_of
from convgen.plan.padding import window_coordinates

_ROWS, _K, _PRODUCT = "packed_row", "packed_k", "packed_product"  #: dims of packed matrices
_MOST_GROWTH = 1.25  #: factor; most growth of an image by rounding its axes up to whole tiles; assumed


@frozen
class Packing:
    """An input that an earlier launch packs."""

    source: View  #: the launch's source; axes rows and contiguous elements
    target: View  #: the launch's destination
    read: View  #: the product's view of the destination
    is_image: bool = False
    dequantises: bool = False  #: whether the launch dequantises elements


def packed(view: View, role: str, counts: tuple[int, int], elem: Type, *, row_multiple: int = 0) -> Packing:
    """Return the packing of an input of the product `role`: an image where windows allow it, else a matrix.

    `counts` are the rows and columns of whole tiles. A matrix has that size, an image only where it grows little. Its
    elements are of the type `elem`. Rows of an image begin at multiples of `row_multiple` elements; 0 makes a matrix in
    any case.

    Raises DoesNotFit for sizes that are known only at launch, for elements in parts of bytes, and for images of a batch
    of products.
    """
    memory = view.memory
    if isinstance(view, SizedView) or elem.bits < 8:
        raise DoesNotFit(f"packed={memory.name}: wanted sizes that are known, and whole bytes")
    if memory.elem.bits < 8 and bytes_of(view) is None:
        raise DoesNotFit(f"packed={memory.name}: its {memory.elem} have no neighbours in a byte along any axis")
    name = "_".join(filter(None, (memory.name, "packed", role)))
    if row_multiple and window_coordinates(view):
        if len(view.axes) > 2:
            raise DoesNotFit(f"packed={memory.name}: images of a batch of products, wanted one product")
        return _image(view, name, counts, row_multiple, elem)
    return _matrix(view, name, *counts, elem)


def _matrix(view: View, name: str, rows: int, depth: int, elem: Type) -> Packing:
    sizes = {_ROWS: rows, _K: depth}
    if products := view.axes[2:]:
        sizes[_PRODUCT] = prod(d.size for axis in products for d in axis)
    memory = Global(name, elem, elem.size(prod(sizes.values())))
    index = tuple(TensorDim(size, ((dim, 1),)) for dim, size in sizes.items())
    axes = tuple((Dim(dim, size, size),) for dim, size in sizes.items())
    order = (2, 0, 1) if products else (0, 1)
    packed = View(memory, Layout.dense(tuple(sizes.values()), order), axes, index)
    return Packing(view, packed, packed)


def _image(view: View, name: str, counts: tuple[int, int], chunk: int, elem: Type) -> Packing:
    """Return the packing as an image: the tensor with all padding that its windows, runs and axes reach.

    Padding of runs holds elements that the second factor multiplies by zero; padding of axes holds zeros.
    """
    strides = view.layout.strides()
    # In memory order, without coordinates of stride 0, which mask the starts of runs. A single channel stays innermost,
    # as several channels would.
    order = [n for n, stride in enumerate(strides) if stride]
    order.sort(key=lambda n: (-strides[n], view.index[n].size == 1))
    index = [view.index[n] for n in order]
    axes = _in_whole_tiles(index, view.axes, counts)
    lows, extents = zip(*((low, high - low + 1) for low, high in _reaches(index, axes)))
    sizes = [*extents]
    # The dim that is lengthened until rows are whole chunks: pixels, where their channels divide a chunk (taps=lines),
    # else the innermost dim, which has pixels with their channels (taps=runs).
    row = -1 if chunk % extents[-1] else -2
    multiple = chunk // gcd(chunk, prod(extents[row:][1:]))
    sizes[row] = -(-extents[row] // multiple) * multiple
    layout = Layout.dense(sizes, range(len(sizes)))
    memory = Global(name, elem, elem.size(prod(sizes)))
    dims = [Dim(f"at{n}", size, size) for n, size in enumerate(sizes)]
    places = tuple(dims[:-1]), tuple(dims[-1:])
    stored_index = tuple(TensorDim(d.size, ((d.name, 1),)) for d in dims)
    source_index = tuple(
        TensorDim(t.size, ((d.name, 1),), low, low < 0 or low + d.size > t.size) for t, d, low in zip(index, dims, lows)
    )
    read = Layout.strided((t.size for t in index), [strides[n] for n in order])
    source = View(view.memory, read, places, source_index)
    seen_index = tuple(TensorDim(size, t.terms, t.const - low) for t, size, low in zip(index, sizes, lows))
    target, seen = View(memory, layout, places, stored_index), View(memory, layout, tuple(axes), seen_index)
    return Packing(source, target, seen, is_image=True)


def _in_whole_tiles(
    index: Sequence[TensorDim], axes: Sequence[tuple[Dim, ...]], counts: tuple[int, int]
) -> list[tuple[Dim, ...]]:
    """Return the axes of an image, padding included: each has whole tiles unless that makes the image grow much."""
    whole = [tuple(evolve(d, size=d.padded) for d in axis) for axis in axes]
    most = _MOST_GROWTH * _size(index, whole)
    for n, count in enumerate(counts):
        longer = [*whole[:n], _at_least(whole[n], count), *whole[n + 1 :]]
        whole = longer if _size(index, longer) <= most else whole
    return whole


def _at_least(axis: tuple[Dim, ...], count: int) -> tuple[Dim, ...]:
    """Return the dims of an axis, the outermost extended so that the axis has at least `count` positions."""
    outer, *rest = axis
    size = max(outer.size, -(-count // prod(d.size for d in rest)))
    return (evolve(outer, size=size, padded=size), *rest)


def _size(index: Sequence[TensorDim], axes: Sequence[Sequence[Dim]]) -> int:
    return prod(high - low + 1 for low, high in _reaches(index, axes))


def _reaches(index: Sequence[TensorDim], axes: Sequence[Sequence[Dim]]) -> Iterator[tuple[int, int]]:
    """Yield the lowest and the highest value of each coordinate."""
    sizes = {d.name: d.size for axis in axes for d in axis}
    for t in index:
        reaches = [coef * (sizes[name] - 1) for name, coef in t.terms]
        yield t.const + sum(min(0, reach) for reach in reaches), t.const + sum(max(0, reach) for reach in reaches)
