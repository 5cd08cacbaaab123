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

LOW = -1e30  #: what stands for minus infinity: the exponential of a difference from it is 0, never NaN


def masked(scores: Value, m: Index, n: Index, length: int, causal: bool) -> Value:
    """Return the scores of a block at (m, n) without those of later keys if causal, else of keys that do not exist."""
    rows, cols = scores.shape
    column = tile.positions((1, cols), 1) + n
    kept = tile.less(column, tile.positions((rows, 1), 0) + (m + 1)) if causal else tile.less(column, length)
    return tile.where(kept, scores, tile.full((1, 1), LOW))


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
    ahead: bool = False,
    order: str = "cols",
) -> None:
    """Write the attention of each head; rows are positions, and heads lie side by side in columns.

    With `ahead`, the scores of a block of keys are multiplied while the weights of the one before are computed. By the
    default order, workgroups that follow each other read the keys and values of one head.
    """
    length, columns = k.shape
    head, behind = columns // heads, bn if ahead else 0
    m, h = tile.grid(o, (bm, head), map=order)
    query = tile.load_tile(tile.init_tile(q, (m, h), (bm, head)))
    top, total, acc = tile.full((bm, 1), LOW), tile.zeros((bm, 1)), tile.zeros((bm, head))
    before = tile.full((bm, bn), 2 * LOW)  # scores of no keys: their weights are 0
    for n in tile.range(0, (m + bm if causal else length) + behind, bn):
        keys = tile.load_tile(tile.init_tile(k, (n, h), (bn, head)), transpose=True)
        products = tile.tile_mma(query, keys)
        scores = before if ahead else products
        if causal or not isinstance(length, int) or length % bn:
            scores = masked(scores, m, n - behind, length, causal)
        p, factor, top, total = softmax_step(scores, top, total, head**-0.5)
        values = tile.load_tile(tile.init_tile(v, (n - behind, h), (bn, head)))
        acc = tile.tile_mma(tile.convert(p, "f16"), values, acc * factor)
        before = products if ahead else before
    tile.store_tile(tile.convert(tile.divide(acc, total), "f16"), tile.init_tile(o, (m, h), (bm, head)))


def suited(target: str, head: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of `tile.kernel` and of `attention` that suit a target and the size of a head.

    Where bulk copies bring keys and values, two warpgroups multiply 64 rows each, and workgroups take several tiles.
    Elsewhere each of four subgroups multiplies the rows of one instruction; where its rows of the output would take
    more than 64 registers, they share the head.
    """
    facts = cg.facts(target)
    if facts.roles:
        bn, order = 64 if head > 64 else 128, f"cols+persist:{facts.compute_units}"
        return {"subgroups": (8, 1), "slots": 4, "copy": "tensor"}, {"bm": 128, "bn": bn, "ahead": True, "order": order}
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
