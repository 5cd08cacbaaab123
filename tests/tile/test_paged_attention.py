"""Attention to keys in pages (examples/attention.py), of sequences of any lengths, against numpy in f64."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen import tile
from convgen.tile import Tensor
from examples.attention import attended, paged_attention, paged_decode, suited

pytestmark = pytest.mark.in_turn(6)

TARGETS = "gfx942", "gfx950", "xehpc", "sm_80", "sm_90a"
PAGE = 128
#: keys and queries of each sequence, heads of queries, heads of keys, causal, window
CASES = {
    "several queries of some sequences": ((70, 5, 33), (40, 5, 1), 2, 1, True, 0),
    "one token each, or none": ((70, 128, 1), (1, 1, 0), 4, 2, True, 0),
    "all keys": ((70, 129), (70, 3), 1, 1, False, 0),
    "a window": ((130, 200), (3, 70), 2, 2, True, 50),
}


def error(
    target: str,
    head: int,
    keys: Sequence[int],
    queries: Sequence[int],
    heads: int,
    of_keys: int,
    causal: bool,
    window: int,
) -> float:
    """Return the greatest error of the attention of sequences of so many keys and queries."""
    rng = np.random.default_rng(len(keys))
    options, blocks = suited(target, head)
    blocks |= {"bn": min(blocks["bn"], PAGE), "masked": "copy" not in options}
    most, starts = -(-max(keys) // PAGE), np.cumsum([0, *queries])
    count = len(keys) * most + 2  # pages: some of no sequence
    pages = rng.permutation(count)[: len(keys) * most].reshape(-1, most)
    q = rng.standard_normal((starts[-1], heads * head)).astype(np.float16)
    k, v = (rng.standard_normal((count, PAGE, of_keys * head)).astype(np.float16) for _ in "kv")
    if blocks["masked"]:  # rows that nobody wrote
        for s, length in enumerate(keys):
            for cache in (k, v):
                rows = cache[pages[s]].reshape(most * PAGE, -1)
                rows[length:] = np.nan
                cache[pages[s]] = rows.reshape(most, PAGE, -1)
    numbers = {"starts": starts, "lengths": np.array(keys), "pages": pages}
    inputs: dict[str, Any] = {"q": q, "k": k, "v": v} | {name: n.astype(np.int32) for name, n in numbers.items()}
    tensors = [Tensor(x.shape, "s32" if x.dtype == np.int32 else "f16") for x in (*inputs.values(), q)]
    kernel = tile.kernel(**options)(paged_attention.function)
    words = {"queries": max(queries), "heads": heads, "causal": causal, "window": window}
    found = cg.simulate(cg.compile(kernel(*tensors, **words, **blocks), target), **inputs).astype(np.float64)
    greatest = 0.0
    for s, (begin, end) in enumerate(pairwise(starts)):
        of_sequence = (np.concatenate(x[pages[s]])[: keys[s]] for x in (k, v))
        if end > begin:
            wanted = attended(q[begin:end], *of_sequence, heads=heads, causal=causal, window=window)
            greatest = max(greatest, float(np.abs(found[begin:end] - wanted).max()))
    return greatest


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_paged_attention_is_right(case: tuple[Any, ...], target: str) -> None:
    assert error(target, 64, *case) < 2e-3


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("heads", "of_keys"), [(8, 2), (3, 3), (5, 1)])
def test_one_query_of_each_sequence_is_right(heads: int, of_keys: int, target: str) -> None:
    rng, keys, head = np.random.default_rng(heads), (70, 1, 256), 64
    options, blocks = suited(target, head)
    blocks |= {"bn": min(blocks["bn"], PAGE), "masked": "copy" not in options}
    pages = rng.permutation(8)[:6].reshape(3, 2).astype(np.int32)
    q = rng.standard_normal((3 * heads, head)).astype(np.float16)
    k, v = (rng.standard_normal((8, PAGE, of_keys * head)).astype(np.float16) for _ in "kv")
    inputs: dict[str, Any] = {"q": q, "k": k, "v": v, "lengths": np.array(keys, np.int32), "pages": pages}
    tensors = [Tensor(x.shape, "s32" if x.dtype == np.int32 else "f16") for x in (*inputs.values(), q)]
    program = tile.kernel(**options)(paged_decode.function)(*tensors, heads=heads, **blocks)
    found = cg.simulate(cg.compile(program, target), **inputs).reshape(3, -1)
    for s, length in enumerate(keys):
        of_sequence = (np.concatenate(x[pages[s]])[:length] for x in (k, v))
        wanted = attended(q.reshape(3, -1)[s : s + 1], *of_sequence, heads=heads)
        assert np.abs(found[s].astype(np.float64) - wanted[0]).max() < 2e-3


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
def test_queries_that_see_no_key_get_zeros(target: str, overlap: bool, causal: bool) -> None:
    """A sequence without keys, and one with fewer keys than queries, whose first queries are before all keys."""
    rng, keys, starts = np.random.default_rng(0), (0, 5, 70), np.array([0, 3, 23, 93], np.int32)
    options, blocks = suited(target, 64)
    blocks = dict(blocks, bn=min(blocks["bn"], PAGE), overlap=overlap, masked="copy" not in options)
    pages = rng.permutation(5)[:3].reshape(3, 1).astype(np.int32)
    q = rng.standard_normal((93, 64)).astype(np.float16)
    k, v = (rng.standard_normal((5, PAGE, 64)).astype(np.float16) for _ in "kv")
    inputs: dict[str, Any] = {"q": q, "k": k, "v": v, "starts": starts, "lengths": np.array(keys, np.int32)}
    inputs["pages"] = pages
    tensors = [Tensor(x.shape, "s32" if x.dtype == np.int32 else "f16") for x in (*inputs.values(), q)]
    kernel = tile.kernel(**options)(paged_attention.function)
    code = cg.compile(kernel(*tensors, queries=70, causal=causal, **blocks), target)
    result = cg.simulate(code, **inputs)
    blind = 18 if causal else 3  # rows of both sequences
    assert not result[:blind].any()
    for s, begin in ((1, blind), (2, 23)):
        of_sequence = (x[pages[s, 0], : keys[s]] for x in (k, v))
        wanted = attended(q[begin : starts[s + 1]], *of_sequence, causal=causal)
        assert np.abs(result[begin : starts[s + 1]].astype(np.float64) - wanted).max() < 2e-3


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_rows_behind_the_last_key_may_be_nan(target: str, overlap: bool) -> None:
    """In `paged_decode`, and where lanes copy keys and values on a target with bulk copies, too."""
    rng, keys, head, heads = np.random.default_rng(4), (70, 1, 256), 64, 2
    options, blocks = suited(target, head)
    options = {name: value for name, value in options.items() if name not in ("copy", "slots")}
    blocks |= {"bn": min(blocks["bn"], PAGE), "overlap": overlap}
    pages = rng.permutation(8)[:6].reshape(3, 2).astype(np.int32)
    q = rng.standard_normal((3 * heads, head)).astype(np.float16)
    k, v = (np.full((8, PAGE, head), np.nan, np.float16) for _ in "kv")
    written = [[rng.standard_normal((length, head)).astype(np.float16) for length in keys] for _ in "kv"]
    for cache, of_sequences in zip((k, v), written):
        for s, rows in enumerate(of_sequences):
            whole = cache[pages[s]].reshape(2 * PAGE, head)
            whole[: len(rows)] = rows
            cache[pages[s]] = whole.reshape(2, PAGE, head)
    inputs: dict[str, Any] = {"q": q, "k": k, "v": v, "lengths": np.array(keys, np.int32), "pages": pages}
    tensors = [Tensor(x.shape, "s32" if x.dtype == np.int32 else "f16") for x in (*inputs.values(), q)]
    program = tile.kernel(**options)(paged_decode.function)(*tensors, heads=heads, **blocks)
    found = cg.simulate(cg.compile(program, target), **inputs).reshape(3, -1)
    for s in range(3):
        wanted = attended(q.reshape(3, -1)[s : s + 1], written[0][s], written[1][s], heads=heads)
        assert np.abs(found[s].astype(np.float64) - wanted[0]).max() < 2e-3


def test_bulk_copies_mask_no_rows() -> None:
    options, blocks = suited("sm_90a", 64)
    page, rows = Tensor((4, 128, 64), "f16"), Tensor((4, 64), "f16")
    of_sequences = Tensor((4,), "s32"), Tensor((4, 1), "s32")
    program = tile.kernel(**options)(paged_decode.function)(rows, page, page, *of_sequences, rows, **blocks)
    with pytest.raises(cg.UserError, match="ends of v, which bulk copies do not know"):
        cg.compile(program, "sm_90a")


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("target", TARGETS)
def test_random_paged_attention_is_right(target: str, seed: int) -> None:
    draw = random.Random(seed)
    queries = [draw.choice((0, 1, draw.randint(1, 150))) for _ in range(draw.randint(1, 4))]
    queries[0] = max(queries[0], 1)
    keys = [max(1, count) + draw.choice((0, draw.randint(0, 300))) for count in queries]
    of_keys, causal = draw.choice((1, 2)), draw.random() < 0.8
    heads, window = of_keys * draw.choice((1, 2, 4)), draw.choice((0, draw.randint(1, 300))) if causal else 0
    head = draw.choice((64, 128)) if target != "xehpc" else 64  # a window of heads of 128 does not fit its registers
    assert error(target, head, keys, queries, heads, of_keys, causal, window) < 2e-3


def test_a_block_of_keys_lies_in_one_page() -> None:
    page, numbers = Tensor((4, 96, 64), "f16"), Tensor((2, 1), "s32")
    rows, ends = Tensor((10, 64), "f16"), Tensor((3,), "s32")
    with pytest.raises(cg.UserError, match="given blocks of 64 keys and pages of 96, wanted whole blocks in a page"):
        paged_attention(rows, page, page, ends, Tensor((2,), "s32"), numbers, rows, queries=5)
