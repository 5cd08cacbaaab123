"""Blocked layouts: split the dims of a product at block boundaries, so that each piece has one stride in every tensor.

A product sees channels in blocks of 16 as two dims: `ic_1` counts the blocks and `ic_0` the channels within one. In a
tensor without blocks the coordinate is `16 * ic_1 + ic_0`. Where blocks do not divide a dim, the pieces cover the
padding too: loads from tensors without blocks are masked, blocked tensors hold zeros there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from operator import mul

from convgen.ir.error import Unsupported
from convgen.ir.layout.memory import Dim, TensorDim
from convgen.ir.layout.tags import LETTERS, Layout
from convgen.ir.record import frozen
from convgen.problem.tensors import TensorSpec

Index = tuple[TensorDim, ...]


@frozen
class Cuts:
    """Sizes of the pieces of each split dim, innermost first; dims that are not listed stay whole."""

    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @classmethod
    def of(cls, dims: Iterable[Dim], tensors: Collection[tuple[TensorSpec, Index]]) -> Cuts:
        """Return the fewest pieces that suit all tensors; Unsupported where a block ends inside one step of a dim."""
        extents = {d.name: d.size for d in dims}
        boundaries: dict[str, dict[int, TensorSpec]] = {}  # of each dim: where blocks end, and of which tensor
        for spec, index in tensors:
            for letter, t in zip(LETTERS, index):
                for size in _block_sizes(spec.layout, letter):
                    if (cut := _cut(t, size, extents, spec)) is not None:
                        name, at = cut
                        boundaries.setdefault(name, {})[at] = spec
        cuts = cls(tuple((name, _pieces(extents[name], sorted(ends))) for name, ends in boundaries.items()))
        ragged = {name for name, sizes in cuts.sizes if prod(sizes) != extents[name]}
        for name in ragged:
            if not all(_ends_with(t, name, extents) for _, index in tensors for t in index if name in dict(t.terms)):
                raise _straddles(boundaries[name][max(boundaries[name])])
        return cuts

    def dims(self, side: Sequence[Dim]) -> tuple[Dim, ...]:
        """Return the dims with each split dim replaced by its pieces, outermost first."""
        known = dict(self.sizes)
        pieces = ([Dim(_piece(d.name, n), s, s) for n, s in enumerate(known[d.name])][::-1] if d.name in known else [d]
                  for d in side)  # fmt: skip
        return tuple(p for pieces_of_dim in pieces for p in pieces_of_dim)

    def index(self, layout: Layout, index: Index) -> Index:
        """Return a tensor's coordinates in terms of the pieces; those along blocks extend into the padding."""
        known = dict(self.sizes)
        return tuple(
            _in_pieces(t, known, padded if len(layout.digits.of(letter)) > 1 else t.size)
            for letter, t, padded in zip(LETTERS, index, layout.padded_dims)
        )

    def coordinate(self, t: TensorDim) -> TensorDim:
        """Return a coordinate that is no dim of memory, such as a mask, in terms of the pieces."""
        return _in_pieces(t, dict(self.sizes), t.size)


WHOLE = Cuts()  #: for problems without blocked layouts


def _block_sizes(layout: Layout, letter: str) -> list[int]:
    """Return the sizes of a dim's nested blocks, in elements, innermost first."""
    sizes = [d.size for d in layout.digits.of(letter)[:-1]]
    return [end for end in accumulate(sizes, mul) if end > 1]


def _long_terms(t: TensorDim, extents: Mapping[str, int]) -> list[tuple[int, str]]:
    """Return (coefficient, dim) of the terms whose dim is longer than 1, smallest coefficient first."""
    return sorted((coef, name) for name, coef in t.terms if extents.get(name, 1) > 1)


def _ends_with(t: TensorDim, name: str, extents: Mapping[str, int]) -> bool:
    """Whether a coordinate leaves the tensor exactly where the dim `name` leaves its extent."""
    *finer, (coef, last) = _long_terms(t, extents) or [(1, name)]
    return last == name and not t.const and sum((extents[other] - 1) * abs(c) for c, other in finer) < coef


def _cut(t: TensorDim, end: int, extents: Mapping[str, int], spec: TensorSpec) -> tuple[str, int] | None:
    """Return the dim to split at a block boundary `end`, and the size of its inner piece.

    None where the boundary falls between two dims; Unsupported where no dim can be split there.
    """
    terms = _long_terms(t, extents) or [(coef, name) for name, coef in t.terms[-1:]]
    inner_terms, outer_coefs = [term for term in terms if term[0] <= end], [coef for coef, _ in terms if coef > end]
    if t.masked or t.const or not inner_terms or inner_terms[0][0] < 1 or any(coef % end for coef in outer_coefs):
        raise _straddles(spec)
    coef, name = inner_terms.pop()
    if sum((extents[other] - 1) * c for c, other in inner_terms) >= coef or end % coef:
        raise _straddles(spec)
    size = end // coef
    if size == 1 or (outer_coefs and extents[name] * coef <= end):
        return None
    if outer_coefs and extents[name] % size:
        raise _straddles(spec)
    return name, size


def _pieces(extent: int, ends: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the pieces of a dim that is cut at multiples of each of `ends`, innermost first."""
    for inner, outer in pairwise(ends):
        if outer % inner:
            raise Unsupported(f"given blocks of {inner} and of {outer}, wanted one a multiple of the other", rule=_RULE)
    return (*(outer // inner for inner, outer in pairwise((1, *ends))), -(-extent // ends[-1]))


def _piece(name: str, number: int) -> str:
    return f"{name}_{number}"


def _in_pieces(t: TensorDim, known: Mapping[str, tuple[int, ...]], size: int) -> TensorDim:
    """Return a coordinate by the pieces of its dims, masked where the pieces reach beyond the tensor's `size`."""
    terms: list[tuple[str, int]] = []
    low, high, is_split = t.const, t.const, False  # of windows that are read backwards, pieces reach below 0
    for name, coef in t.terms:
        if name not in known:
            terms.append((name, coef))
            continue
        steps = accumulate(known[name], mul, initial=coef)
        terms += [(_piece(name, n), step) for n, step in zip(range(len(known[name])), steps)]
        span = coef * (prod(known[name]) - 1)
        low, high, is_split = low + min(0, span), high + max(0, span), True
    return TensorDim(size, tuple(terms), t.const, t.masked or (is_split and not 0 <= low <= high < size))


_RULE = "blocked-layout"


def _straddles(spec: TensorSpec) -> Unsupported:
    wanted = "wanted blocks that end where groups, taps or windows do"
    return Unsupported(f"given {spec.name} of layout {spec.layout.tag}, {wanted}", rule=_RULE)
