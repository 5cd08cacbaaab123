"""Flash attention: softmax(q k' / sqrt(head)) v of each head, block by block of the keys, causal if asked for.

    python examples/attention.py [TARGET] [HEAD]

The kernel is compiled for the target (gfx942 if none is given), simulated and compared with numpy in f64.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

import convgen as cg
from convgen import tile
from convgen.tile import Index, Tensor, Value

Doubles = npt.NDArray[np.float64]

MOST_POSITIONS = 1 << 30
LOW = -1e30  #: what stands for minus infinity: the exponential of a difference from it is 0, never NaN


def masked(scores: Value, m: Index, n: Index, length: int, causal: bool) -> Value:
    """Return the scores of a block at (m, n) without those of later keys if causal, else of keys that do not exist."""
    rows, cols = scores.shape
    column = tile.positions((1, cols), 1) + n
    kept = tile.less(column, tile.positions((rows, 1), 0) + (m + 1)) if causal else tile.less(column, length)
    return tile.where(kept, scores, tile.full((1, 1), LOW))


def masked_where_later(scores: Value, m: Index, n: Index, length: int) -> Value:
    """Return the scores of a block at (m, n) as `masked` does if causal, by a branch, which takes registers."""
    last = n + scores.shape[1] - 1
    for _ in tile.range(0, (last - m - 1 + MOST_POSITIONS) // MOST_POSITIONS):  # once if the last key is later than m
        scores = masked(scores, m, n, length, causal=True)
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
    overlap: bool = False,
    order: str = "cols",
) -> None:
    """Write the attention of each head; rows are positions, and heads lie side by side in columns.

    With `overlap`, the weights of a block of keys are computed while those of the block before are multiplied by its
    values. By the default order, workgroups that follow each other read the keys and values of one head.
    """
    length, columns = k.shape
    head = columns // heads
    m, h = tile.grid(o, (bm, head), map=order)
    if causal:  # the rows with the most keys come first
        m = (length + bm - 1) // bm * bm - bm - m
    end = m + bm if causal else length
    query = tile.load_tile(tile.init_tile(q, (m, h), (bm, head)))
    top, total, acc = tile.full((bm, 1), LOW), tile.zeros((bm, 1)), tile.zeros((bm, head))
    weights = tile.zeros((bm, bn), "f16")

    def scores_of(n: Index) -> Value:
        return tile.tile_mma(query, tile.load_tile(tile.init_tile(k, (n, h), (bn, head)), transpose=True))

    def with_weights(scores: Value, n: Index, top: Value, total: Value, acc: Value) -> tuple[Value, ...]:
        if causal and overlap:
            scores = masked_where_later(scores, m, n, length)
        elif causal or not isinstance(length, int) or length % bn:
            scores = masked(scores, m, n, length, causal)
        p, factor, top, total = softmax_step(scores, top, total, head**-0.5)
        return tile.convert(p, "f16"), top, total, acc * factor

    def with_values(weights: Value, n: Index, acc: Value) -> Value:
        return tile.tile_mma(weights, tile.load_tile(tile.init_tile(v, (n, h), (bn, head))), acc)

    if overlap:
        for n in tile.range(0, bn, bn):
            weights, top, total, acc = with_weights(scores_of(n), n, top, total, acc)
        for n in tile.range(bn, max(bn, end) if isinstance(end, int) else end, bn):
            scores = scores_of(n)
            acc = with_values(weights, n - bn, acc)
            weights, top, total, acc = with_weights(scores, n, top, total, acc)
        last = (end - 1) // bn * bn
        for n in tile.range(last, last + bn, bn):
            acc = with_values(weights, n, acc)
    else:
        for n in tile.range(0, end, bn):
            weights, top, total, acc = with_weights(scores_of(n), n, top, total, acc)
            acc = with_values(weights, n, acc)
    acc *= tile.divide(tile.full((bm, 1), 1.0), total)
    tile.store_tile(tile.convert(acc, "f16"), tile.init_tile(o, (m, h), (bm, head)))


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
    heads, length, head = 2, 250, int(of)
    shape, (options, blocks) = (length, heads * head), suited(target, head)
    kernel = tile.kernel(**options)(attention.function)
    q, k, v = (np.random.default_rng(n).standard_normal(shape).astype(np.float16) for n in range(3))
    code = cg.compile(kernel(*[Tensor(shape, "f16")] * 4, heads=heads, causal=True, **blocks), target)
    found = cg.simulate(code, q=q, k=k, v=v)
    of_heads = (each.astype(np.float64).reshape(length, heads, head).transpose(1, 0, 2) for each in (q, k, v))
    wanted = attended(*of_heads).transpose(1, 0, 2).reshape(shape)
    print(f"{code.name} on {target}: greatest error {np.abs(found - wanted).max():.1e}")


def attended(q: Doubles, k: Doubles, v: Doubles) -> Doubles:
    """Return the causal attention of heads x positions x columns."""
    length, head = q.shape[1:]
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(head)
    scores = np.where(np.tri(length) > 0, scores, -np.inf)
    e = np.exp(scores - scores.max(2, keepdims=True))
    weights: Doubles = e / e.sum(2, keepdims=True)
    return weights @ v


if __name__ == "__main__":
    main(*sys.argv[1:])
