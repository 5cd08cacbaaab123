"""What moves the words of a run that was loaded from elsewhere back to where they belong."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from convgen.ir.evaluate import Evaluator, Value
from convgen.ir.expr import Expr, var
from convgen.ir.types import s32, u32
from convgen.passes.messages.partial_runs import _Edge

_COUNT = 4  #: words of a run
_SIGNED = [n for n in range(-_COUNT + 1, _COUNT) if n]


@given(st.sets(st.sampled_from(_SIGNED), min_size=1, max_size=5), st.sampled_from((1, 2, 4)), st.booleans())
def test_words_stand_where_they_belong(steps: set[int], word: int, whole: bool) -> None:
    """Of each displacement that there is, with what is outside beside whole words, and of runs that are all outside."""
    amounts = {0} | {word * step for step in steps}
    start, end = var("start", s32), var("end", s32)
    edge = _Edge(start, end, tuple(sorted(amounts)), word)
    cases = [(a, part) for a in sorted(amounts) for part in range(1 if whole else word)]
    held = [var(f"word_{n}", u32) for n in range(_COUNT)]
    lanes = Evaluator(len(cases))
    lanes.env[start] = Value(np.array([-a - part if a >= 0 else 8 for a, part in cases], np.int32))
    lanes.env[end] = Value(np.array([-a + part if a < 0 else -8 for a, part in cases], np.int32))
    for n, v in enumerate(held):
        lanes.env[v] = Value(np.full(len(cases), n + 1, np.uint32))
    words: list[Expr] = [*held]
    found = np.stack([np.broadcast_to(lanes(w).data, len(cases)) for w in edge.moved_back(words)], axis=1)
    for (a, _), row in zip(cases, found):
        step = a // word
        assert row.tolist() == [n - step + 1 if 0 <= n - step < _COUNT else 0 for n in range(_COUNT)]
