"""Flash attention: softmax(q k' / sqrt(head)) v of each head, block by block of the keys.

Attention may be causal, or to a window of keys. Heads of queries may share heads of keys, and keys may be more than
queries, as with a cache of earlier ones. `attention` computes one sequence, or several of equal length as further
heads; `paged_attention` sequences of any lengths, whose keys and values lie in pages, and `paged_decode` one query of
each.

    python examples/attention.py [TARGET] [HEAD]

The kernel is compiled for the target (gfx942 if none is given), simulated and compared with numpy in f64.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import convgen as cg
from convgen import tile
from convgen.tile import Index, Tensor, Tile, Value

Halves = npt.NDArray[np.float16]
Doubles = npt.NDArray[np.float64]

#: what stands for minus infinity: the exponential of a difference from it is 0, never NaN; a power of two, of which
#: products are exact, so that a row of it alone differs from its greatest element by 0
LOW = -(2.0**100)


@dataclass(frozen=True)
class Keys:
    """Which keys a query sees: all, or those up to its own position if causal, of these the last `window` if not 0."""

    length: Index
    causal: bool
    window: int

    def bounds(self, first: Index, rows: int, bn: int) -> tuple[Index, Index]:
        """Return the first and the end position of the keys that rows from position `first` on see, in blocks of bn."""
        begin = tile.max(0, (first - self.window + 1) // bn * bn) if self.window else 0
        return begin, first + rows if self.causal else self.length

    def masked(self, scores: Value, first: Index, n: Index) -> Value:
        """Return the scores of the keys from n on, LOW where the rows from position `first` on do not see a key."""
        rows, columns = scores.shape
        column, low = tile.positions((1, columns), 1) + n, tile.full((1, 1), LOW)
        row = tile.positions((rows, 1), 0)
        kept = tile.less(column, row + (first + 1)) if self.causal else tile.less(column, self.length)
        scores = tile.where(kept, scores, low)
        return tile.where(tile.less(column, row + (first + 1 - self.window)), low, scores) if self.window else scores

    def masked_where_needed(self, scores: Value, first: Index, n: Index) -> Value:
        """Return what `masked` returns for causal scores, but mask only blocks with hidden keys.

        The branch takes registers.
        """
        rows, columns = scores.shape
        hidden = n + columns - 1 - first  # the last key is so many positions behind the first row
        if self.window:
            hidden = tile.max(hidden, first + rows - self.window - n)  # or the first key before the last row's window
        for _ in tile.range(0, tile.min(tile.max(hidden, 0), 1)):
            scores = self.masked(scores, first, n)
        return scores


def softmax_step(scores: Value, top: Value, total: Value, scale: float) -> tuple[Value, Value, Value, Value]:
    """Return the running softmax with another block: its weights, the factor of earlier ones, the new top and total.

    Exponentials are of base 2, with its logarithm in `scale`, so that a weight takes one `fma` and one `exp2`.
    """
    scale *= math.log2(math.e)
    higher = tile.max(top, tile.reduce("max", scores, 1))
    p = tile.exp2(tile.fma(scores, tile.full((1, 1), scale), higher * -scale))
    factor = tile.exp2((top - higher) * scale)
    return p, factor, higher, total * factor + tile.reduce("sum", p, 1)


@dataclass(frozen=True)
class Rows:
    """The rows of one head of keys or values: of a tensor (positions, columns), from column `at` on."""

    tensor: Tensor
    at: Index

    def block(self, n: Index, shape: tuple[int, int]) -> Tile:
        """Return the rows from position n on."""
        return tile.init_tile(self.tensor, (n, self.at), shape)

    def ends(self, n: Index, length: Index) -> tuple[Index | None, ...]:
        """Return where the rows from position n on end, of `length` rows; () where memory ends with them."""
        return ()


@dataclass(frozen=True)
class PagedRows(Rows):
    """Rows of a tensor (pages, rows of a page, columns); `pages` has the numbers of the pages of each sequence."""

    pages: Tensor
    sequence: Index
    masked: bool = False  #: whether rows of a page behind the last one are zero, whatever memory has there

    def block(self, n: Index, shape: tuple[int, int]) -> Tile:
        """Return the rows from position n on, which lie in one page."""
        count, rows, _ = self.tensor.shape
        page = tile.load_scalar(self.pages, (self.sequence, n // rows), count - 1)
        return tile.init_tile(self.tensor, (page, n % rows, self.at), (None, *shape))

    def ends(self, n: Index, length: Index) -> tuple[Index | None, ...]:
        """Return the end, in its page, of the block of rows from position n on."""
        rows = self.tensor.shape[1]
        return (None, n % rows + (length - n), None) if self.masked else ()


def paged(k: Tensor, v: Tensor, at: Index, pages: Tensor, sequence: Index, *, masked: bool) -> tuple[Rows, Rows]:
    """Return the rows of keys and of values of a sequence; those of values may need a mask (`PagedRows.masked`)."""
    return PagedRows(k, at, pages, sequence), PagedRows(v, at, pages, sequence, masked)


def most_keys_first(m: Index, queries: Index, bm: int) -> Index:
    """Return the first row of a workgroup's block of causal queries, so that the rows with the most keys come first."""
    return (queries + bm - 1) // bm * bm - bm - m


@dataclass(frozen=True)
class Block:
    """A block of queries from position `first` on, and the keys and values of its head, in blocks of bn."""

    query: Value
    first: Index
    keys: Keys
    k: Rows
    v: Rows
    bn: int
    branches: bool  #: whether to mask only where there are hidden keys
    sees_keys: bool = True  #: whether the queries are sure to see a key

    def end(self, begin: Index, end: Index) -> Index:
        """Return where one block of keys from `begin` on ends, at `begin` if there is none before `end`."""
        return begin + self.bn if self.sees_keys else tile.min(begin + self.bn, end)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of a block of keys or values."""
        return self.bn, self.query.shape[1]

    def scores(self, n: Index) -> Value:
        """Return the products of the queries and the keys from n on."""
        return tile.tile_mma(self.query, tile.load_tile(self.k.block(n, self.shape), transpose=True))

    def weights(self, scores: Value, n: Index, top: Value, total: Value, acc: Value) -> tuple[Value, ...]:
        """Return the weights of the keys from n on, and the running softmax and sums with them."""
        length, keys = self.keys.length, self.keys
        if keys.causal and self.branches:
            scores = keys.masked_where_needed(scores, self.first, n)
        elif keys.causal or not isinstance(length, int) or length % self.bn:
            scores = keys.masked(scores, self.first, n)
        p, factor, top, total = softmax_step(scores, top, total, self.query.shape[1] ** -0.5)
        return tile.convert(p, "f16"), top, total, acc * factor

    def attended(self, bounds: tuple[Index, Index], overlap: bool) -> Value:
        """Return the attention to the keys between two positions, in f16; zeros for queries that see no key."""
        total, acc = (overlapped if overlap else one_by_one)(self, *bounds)
        factor = tile.divide(tile.full((acc.shape[0], 1), 1.0), total)
        if not self.sees_keys:
            before = tile.less(tile.positions((acc.shape[0], 1), 0), 0 - self.first)  # the first key
            sees_none = before if self.keys.causal else tile.less(total, 0.5)
            factor = tile.where(sees_none, tile.full((1, 1), 0.0), factor)
        return tile.convert(acc * factor, "f16")

    def sums(self, weights: Value, n: Index, acc: Value) -> Value:
        """Return the sums with the values from n on."""
        values = tile.load_tile(self.v.block(n, self.shape), ends=self.v.ends(n, self.keys.length))
        return tile.tile_mma(weights, values, acc)


def one_by_one(block: Block, begin: Index, end: Index) -> tuple[Value, Value]:
    """Return the sums of weights, and of weighted values, of the keys between two positions, block after block."""
    bm, head = block.query.shape
    top, total, acc = tile.full((bm, 1), LOW), tile.zeros((bm, 1)), tile.zeros((bm, head))
    for n in tile.range(begin, end, block.bn):
        weights, top, total, acc = block.weights(block.scores(n), n, top, total, acc)
        acc = block.sums(weights, n, acc)
    return total, acc


def overlapped(block: Block, begin: Index, end: Index) -> tuple[Value, Value]:
    """Return what `one_by_one` does; weights of a block are computed while those of the one before are multiplied."""
    (bm, head), bn = block.query.shape, block.bn
    top, total, acc = tile.full((bm, 1), LOW), tile.zeros((bm, 1)), tile.zeros((bm, head))
    weights = tile.zeros((bm, bn), "f16")
    for n in tile.range(begin, block.end(begin, end), bn):
        weights, top, total, acc = block.weights(block.scores(n), n, top, total, acc)
    for n in tile.range(begin + bn, tile.max(begin + bn, end), bn):
        scores = block.scores(n)
        acc = block.sums(weights, n - bn, acc)
        weights, top, total, acc = block.weights(scores, n, top, total, acc)
    last = (end - 1) // bn * bn
    for n in tile.range(last if block.sees_keys else tile.max(last, 0), block.end(last, end), bn):
        acc = block.sums(weights, n, acc)
    return total, acc


@tile.kernel(subgroups=(4, 1))
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    *,
    heads: int = 1,
    bm: int = 64,
    bn: int = 64,
    causal: bool = False,
    window: int = 0,
    overlap: bool = False,
    order: str = "cols",
) -> None:
    """Write the attention of each head; rows are positions, of which queries are the last ones; heads are columns.

    Heads lie side by side, and neighbours share a head of keys and values if these have fewer. A `window` is causal.
    With `overlap`, the weights of a block of keys are computed while those of the block before are multiplied by its
    values. By the default order, workgroups that follow each other read the keys and values of one head.
    """
    (queries, columns), (length, columns_of_keys) = q.shape, k.shape
    head, causal = columns // heads, causal or window > 0
    if causal and isinstance(queries, int) and isinstance(length, int) and queries > length:
        raise cg.UserError(f"given {queries} causal queries of {length} keys, wanted at least as many keys")
    number, h = tile.grid(o, (bm, head), map=order)
    m = most_keys_first(number, queries, bm) if causal else number
    keys, first = Keys(length, causal, window), m if queries == length else m + (length - queries)
    at = h if columns == columns_of_keys else h // (head * columns // columns_of_keys) * head
    query = tile.load_tile(tile.init_tile(q, (m, h), (bm, head)))
    block = Block(query, first, keys, Rows(k, at), Rows(v, at), bn, branches=overlap)
    tile.store_tile(block.attended(keys.bounds(first, bm, bn), overlap), tile.init_tile(o, (m, h), (bm, head)))


@tile.kernel(subgroups=(4, 1))
def paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    lengths: Tensor,
    pages: Tensor,
    o: Tensor,
    *,
    queries: int,
    heads: int = 1,
    bm: int = 64,
    bn: int = 64,
    causal: bool = True,
    window: int = 0,
    overlap: bool = False,
    masked: bool = True,
    order: str = "cols",
) -> None:
    """Write the attention of each head of sequences of any lengths.

    q and o (rows, columns) have the queries of one sequence after another, at most `queries` of each: sequence s has
    the rows from starts[s] to starts[s + 1], and lengths[s] keys, of which its queries are the last ones. k and v
    (pages, rows of a page, columns of keys) are caches; row s of `pages` has the pages of sequence s, in order. Rows of
    a page behind the last key may have any content, NaN included; if not `masked` they must be finite, as in a kernel
    with copy="tensor", whose bulk copies bring whole blocks. `starts`, `lengths` and `pages` are s32. A query that sees
    no key, since its sequence has none or its position is before the first, gets zeros.
    """
    (rows, columns), (_, page, columns_of_keys) = q.shape, k.shape
    head, causal = columns // heads, causal or window > 0
    if page % bn:
        raise cg.UserError(f"given blocks of {bn} keys and pages of {page}, wanted whole blocks in a page")
    s, number, h = tile.grid((lengths.shape[0], queries, columns), (1, bm, head), map=order)
    m = most_keys_first(number, queries, bm) if causal else number
    begin, end = (tile.load_scalar(starts, (s + n,), rows) for n in range(2))
    length = tile.load_scalar(lengths, (s,), pages.shape[1] * page)
    keys, first = Keys(length, causal, window), m + (length - (end - begin))
    at = h // (head * columns // columns_of_keys) * head
    query = tile.load_tile(tile.init_tile(q, (begin + m, h), (bm, head)))
    kept = paged(k, v, at, pages, s, masked=masked)
    block = Block(query, first, keys, *kept, bn, branches=overlap, sees_keys=False)
    low, high = keys.bounds(first, bm, bn)
    some = tile.min(tile.max(end - begin - m, 0), 1)  # 0 for rows behind the last query
    attended = block.attended((low, tile.min(high, length) * some), overlap)
    tile.store_tile(attended, tile.init_tile(o, (begin + m, h), (bm, head)), ends=(end, None))


@tile.kernel(subgroups=(4, 1))
def paged_decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Tensor,
    pages: Tensor,
    o: Tensor,
    *,
    heads: int = 1,
    bm: int = 64,
    bn: int = 64,
    overlap: bool = False,
    masked: bool = True,
) -> None:
    """Write the attention of one query of each sequence to all of its keys, as a model computes its next token.

    q and o (sequences * heads, columns of a head) have the heads of one sequence after another. The heads that share
    keys are the rows of one product, so that keys and values are read once. The other arguments are those of
    `paged_attention`; each sequence has a key.
    """
    head, (_, page, columns_of_keys), sequences = q.shape[1], k.shape, lengths.shape[0]
    shared = heads * head // columns_of_keys
    if page % bn or shared > bm:
        given = f"given blocks of {bm} heads and {bn} keys, {shared} heads that share keys and pages of {page}"
        raise cg.UserError(f"{given}, wanted whole blocks of keys in a page, and all heads that share keys in a block")
    s, h = tile.grid((sequences, heads), (1, shared))
    length = tile.load_scalar(lengths, (s,), pages.shape[1] * page)
    row, at = s * heads + h, h // shared * head
    query = tile.load_tile(tile.init_tile(q, (row, 0), (bm, head)))
    kept = paged(k, v, at, pages, s, masked=masked)
    block = Block(query, 0, Keys(length, causal=False, window=0), *kept, bn, branches=False)
    attended = block.attended((0, length), overlap)
    tile.store_tile(attended, tile.init_tile(o, (row, 0), (bm, head)), ends=(row + shared, None))


def suited(target: str, head: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `tile.kernel` and of `attention` that suit a target and the size of a head.

    Where bulk copies bring keys and values, two warpgroups multiply 64 rows each. Elsewhere each of four subgroups
    multiplies the rows of one instruction; where its rows of the output would take more than 64 registers, they share
    the head.
    """
    facts = cg.facts(target)
    if facts.roles:
        return {"subgroups": (8, 1), "slots": 3 if head > 64 else 4, "copy": "tensor"}, {
            "bm": 128,
            "bn": 128,
            "overlap": True,
        }
    lanes, rows = facts.subgroup_size, min(atom.m for atom in facts.atoms if atom.a_elem.name == "f16")
    subgroups = (2, 4) if rows * head > 64 * lanes else (4, 1)
    bn = 64 if lanes == 64 else max(2 * lanes, 8 * subgroups[1])
    return {"subgroups": subgroups}, {"bm": rows * subgroups[0], "bn": bn}


def main(target: str = "gfx942", of: str = "64") -> None:
    heads, shapes, head = 2, {"q": (150, 2), "k": (250, 1), "v": (250, 1)}, int(of)
    options, blocks = suited(target, head)
    inputs = {
        name: np.random.default_rng(n).standard_normal((positions, count * head)).astype(np.float16)
        for n, (name, (positions, count)) in enumerate(shapes.items())
    }
    tensors = [Tensor(inputs[name].shape, "f16") for name in "qkvq"]
    kernel = tile.kernel(**options)(attention.function)
    code = cg.compile(kernel(*tensors, heads=heads, window=100, **blocks), target)
    found = cg.simulate(code, **inputs)
    wanted = attended(*inputs.values(), heads=heads, window=100)
    print(f"{code.name} on {target}: greatest error {np.abs(found - wanted).max():.1e}")


def attended(q: Halves, k: Halves, v: Halves, *, heads: int = 1, causal: bool = False, window: int = 0) -> Doubles:
    """Return the attention of queries x columns to keys x columns, as `attention` describes it."""
    (queries, columns), (length, columns_of_keys) = q.shape, k.shape
    head = columns // heads
    of_heads = [x.astype(np.float64).reshape(len(x), -1, head).transpose(1, 0, 2) for x in (q, k, v)]
    shared = columns // columns_of_keys
    queries_of, keys, values = of_heads[0], *(x.repeat(shared, 0) for x in of_heads[1:])
    scores = queries_of @ keys.transpose(0, 2, 1) / np.sqrt(head)
    ahead = np.arange(length) - np.arange(length - queries, length)[:, None]  # of a key, by query
    if causal or window:
        scores[:, (ahead > 0) | (ahead <= -(window or length))] = -np.inf
    e = np.exp(scores - scores.max(2, keepdims=True))
    weights = e / e.sum(2, keepdims=True)
    result: Doubles = (weights @ values).transpose(1, 0, 2).reshape(queries, columns)
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
