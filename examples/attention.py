"""Flash attention, one head: softmax(q k' / sqrt(head)) v, block by block of the keys, causal if asked for.

    python examples/attention.py [TARGET] [HEAD]

The kernel is compiled for the target (gfx942 if none is given), simulated and compared with numpy in f64.
"""

from __future__ import annotations

import sys

import numpy as np

import convgen as cg
from convgen import tile
from convgen.tile import Index, Tensor, Value

LOW = -1e30  #: what stands for minus infinity: the exponential of a difference from it is 0, never NaN


def masked(scores: Value, m: Index, n: Index, length: int, causal: bool) -> Value:
    """Scores without those of keys that do not exist and, where causal, of later ones; the block begins at (m, n)."""
    rows, cols = scores.shape
    column = tile.positions((1, cols), 1) + n
    scores = tile.where(tile.less(column, length), scores, tile.full((1, 1), LOW))
    if not causal:
        return scores
    future = tile.less(tile.positions((rows, 1), 0) + m, column)
    return tile.where(future, tile.full((1, 1), LOW), scores)


def softmax_step(scores: Value, top: Value, total: Value) -> tuple[Value, Value, Value, Value]:
    """The running softmax with another block: its weights, what earlier ones are scaled by, the new top and total."""
    higher = tile.max(top, tile.reduce("max", scores, 1))
    p, scale = tile.exp(scores - higher), tile.exp(top - higher)
    return p, scale, higher, total * scale + tile.reduce("sum", p, 1)


def blocks(target: str, head: int) -> tuple[tuple[int, int], int, int]:
    """Subgroups along the rows and the head, rows of a block of queries, and of one of keys.

    A subgroup of 64 lanes multiplies 16 rows at a time, a smaller one 8. Where its rows of the output would take more
    than 64 registers, four subgroups share the head.
    """
    lanes = cg.facts(target).subgroup_size
    rows = 16 if lanes == 64 else 8
    subgroups = (2, 4) if rows * head > 64 * lanes else (4, 1)
    return subgroups, rows * subgroups[0], 64 if lanes == 64 else max(2 * lanes, 8 * subgroups[1])


@tile.kernel(subgroups=(4, 1))
def attention(q: Tensor, k: Tensor, v: Tensor, o: Tensor, *, bm: int = 64, bn: int = 64, causal: bool = False) -> None:
    length, head = k.shape
    m, _ = tile.grid(o, (bm, head))
    query = tile.load_tile(tile.init_tile(q, (m, 0), (bm, head)))
    top, total = tile.full((bm, 1), LOW), tile.zeros((bm, 1))
    acc = tile.zeros((bm, head))
    for n in tile.range(0, length, bn):
        keys = tile.load_tile(tile.init_tile(k, (n, 0), (bn, head)), transpose=True)
        scores = masked(tile.tile_mma(query, keys) * head**-0.5, m, n, length, causal)
        p, scale, top, total = softmax_step(scores, top, total)
        values = tile.load_tile(tile.init_tile(v, (n, 0), (bn, head)))
        acc = tile.tile_mma(tile.convert(p, "f16"), values, acc * scale)
    tile.store_tile(tile.convert(tile.divide(acc, total), "f16"), tile.init_tile(o, (m, 0), (bm, head)))


def main(target: str = "gfx942", of: str = "64") -> None:
    length, head = 250, int(of)
    subgroups, bm, bn = blocks(target, head)
    kernel = tile.kernel(subgroups=subgroups)(attention.function)
    q, k, v = (np.random.default_rng(n).standard_normal((length, head)).astype(np.float16) for n in range(3))
    code = cg.compile(kernel(*[Tensor((length, head), "f16")] * 4, bm=bm, bn=bn, causal=True), target)
    found = cg.simulate(code, q=q, k=k, v=v)
    scores = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(head)
    scores[np.triu_indices(length, 1)] = -np.inf
    e = np.exp(scores - scores.max(1, keepdims=True))
    wanted = e / e.sum(1, keepdims=True) @ v.astype(np.float64)
    print(f"{code.name} on {target}: greatest error {np.abs(found - wanted).max():.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
