"""What fused operations mean, by example: the interpreter, the rules and selection all go by it."""

from __future__ import annotations

import pytest

from convgen.ir.evaluate import Evaluator
from convgen.ir.expr import const
from convgen.ir.fused import MEANING, Fused

#: name -> operands and result.
EXAMPLES = {
    "add3": ((5, 7, 11), 23),
    "mad24": ((5, 7, 11), 46),
    "mad16": ((5, 7, 11), 46),
    "lshl_add": ((5, 3, 11), 51),
    "lshl_or": ((5, 1, 3), 11),
    "and_or": ((13, 6, 3), 7),
    "or3": ((8, 2, 1), 11),
    "align": ((3, 32, 4), 3 * 2**28 + 2 - 2**32 * (3 >= 8)),
}


@pytest.mark.parametrize("name", MEANING)
def test_meanings(name: str) -> None:
    operands, result = EXAMPLES[name]
    value = Evaluator(16)(Fused(name, *map(const, operands)))
    assert set(value.data.ravel().tolist()) == {result}
