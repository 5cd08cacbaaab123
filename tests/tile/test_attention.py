"""`examples/attention.py` with heads that share keys, more keys than queries, and windows, against numpy in f64."""

from __future__ import annotations

import random

import numpy as np
import pytest

import convgen as cg
from convgen import tile
from convgen.tile import Tensor
from examples.attention import attended, attention, suited

pytestmark = pytest.mark.in_turn(6)

TARGETS = "gfx942", "gfx950", "xehpc", "sm_80", "sm_90a"
#: queries, keys, heads of queries, heads of keys, window
CASES = {
    "several queries share keys": (70, 70, 4, 2, 0),
    "one row, as one token of a model makes it": (1, 200, 8, 2, 0),
    "a window of fewer keys than a block": (150, 150, 1, 1, 20),
    "a window that begins within a block": (130, 260, 2, 1, 100),
    "a window of one key": (64, 64, 1, 1, 1),
    "a window of more keys than there are": (100, 130, 1, 1, 1000),
}


def error(
    target: str, head: int, queries: int, keys: int, heads: int, of_keys: int, window: int, *, causal: bool = True
) -> float:
    """Return the greatest error of an attention with `heads` heads of queries and `of_keys` of keys."""
    options, blocks = suited(target, head)
    shapes = {"q": (queries, heads * head), "k": (keys, of_keys * head), "v": (keys, of_keys * head)}
    inputs = {
        name: np.random.default_rng(n).standard_normal(shape).astype(np.float16)
        for n, (name, shape) in enumerate(shapes.items())
    }
    kernel = tile.kernel(**options)(attention.function)
    tensors = [Tensor(inputs[name].shape, "f16") for name in "qkvq"]
    code = cg.compile(kernel(*tensors, heads=heads, causal=causal, window=window, **blocks), target)
    found = cg.simulate(code, **inputs).astype(np.float64)
    return float(np.abs(found - attended(*inputs.values(), heads=heads, causal=causal, window=window)).max())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attention_is_right(case: tuple[int, int, int, int, int], target: str) -> None:
    assert error(target, 64, *case) < 2e-3


@pytest.mark.parametrize("target", ["gfx942", "sm_90a"])
@pytest.mark.parametrize(("queries", "keys"), [(40, 150), (150, 40)])
def test_all_queries_see_all_keys_unless_causal(queries: int, keys: int, target: str) -> None:
    assert error(target, 64, queries, keys, 2, 1, 0, causal=False) < 2e-3


@pytest.mark.parametrize(("causal", "window"), [(True, 0), (False, 8)])
def test_causal_queries_outnumber_no_keys(causal: bool, window: int) -> None:
    """The first queries would see no key: 0 / 0."""
    with pytest.raises(cg.UserError, match="given 150 causal queries of 40 keys, wanted at least as many keys"):
        error("gfx942", 64, 150, 40, 1, 1, window, causal=causal)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("target", TARGETS)
def test_random_attention_is_right(target: str, seed: int) -> None:
    draw = random.Random(seed)
    queries, of_keys = draw.randint(1, 200), draw.choice((1, 2))
    keys, heads = queries + draw.choice((0, draw.randint(0, 200))), of_keys * draw.choice((1, 2, 4))
    assert (
        error(target, draw.choice((64, 128)), queries, keys, heads, of_keys, draw.choice((0, draw.randint(1, 300))))
        < 2e-3
    )


def test_the_reference_sees_what_a_loop_over_queries_sees() -> None:
    q, k, v = (
        np.random.default_rng(n).standard_normal((rows, 8)).astype(np.float16) for n, rows in enumerate((5, 9, 9))
    )
    found = attended(q, k, v, window=3)
    for row in range(5):
        seen = slice(row + 4 - 2, row + 4 + 1)
        e = np.exp(q[row].astype(np.float64) @ k[seen].astype(np.float64).T / np.sqrt(8))
        assert np.allclose(found[row], e @ v[seen].astype(np.float64) / e.sum())


def test_scalars_have_a_maximum_and_a_minimum() -> None:
    n = tile.size("n", 100)
    assert (tile.max(2, 3), tile.min(2, 3)) == (3, 2)
    assert [str(e) for e in (tile.max(n, 3), tile.max(3, n))] == ["max(n, 3)", "max(3, n)"]
    assert [str(e) for e in (tile.min(n, 3), tile.min(-3, n))] == ["min(n, 3)", "min(-3, n)"]
    greater = tile.max(3, n)
    assert not isinstance(greater, int)
    assert greater.type is n.type
