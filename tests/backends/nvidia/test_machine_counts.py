"""Machine instructions that the model of an SM counts for PTX, against ptxas's code."""

from __future__ import annotations

import pytest

from convgen.backends.nvidia.sim.ptx_reader import parse
from convgen.backends.nvidia.timing.machine_counts import machine_counts
from tests.backends.nvidia.sim.conftest import kernel_text


def counts(body: str) -> list[int]:
    """Return the machine instructions of each statement, without those around them."""
    kernel = parse(kernel_text(body, 0).encode()).kernels["k"]
    by_instruction = machine_counts(kernel)
    return [by_instruction[each] for each in kernel.code[1:-1]]


@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ("mov.b32 %r1, %r2;", 0),
        ("cvt.u64.u32 %rd1, %r1;", 0),
        ("add.s32 %r1, %r2, %r3;", 1),
        ("and.b64 %rd1, %rd2, %rd3;", 2),
        ("mul.lo.s64 %rd1, %rd2, %rd3;", 4),
        ("div.u32 %r1, %r2, %r3;", 20),
        ("and.pred %p1, %p2, %p3;", 0),
        ("bfe.u32 %r1, %r2, 16, 16;", 0),
        ("bfe.u32 %r1, %r2, 3, 5;", 1),
    ],
)
def test_a_statement(statement: str, count: int) -> None:
    assert counts(statement) == [count]


def test_an_expression_counts_once_in_a_block() -> None:
    twice = "add.s32 %r1, %r2, 7; add.s32 %r3, %r2, 7; shl.b32 %r4, %r1, 2; shl.b32 %r5, %r3, 2;"
    assert counts(twice) == [1, 0, 1, 0]


def test_changed_operands_make_another_expression() -> None:
    assert counts("add.s32 %r1, %r2, 7; add.s32 %r2, %r9, 1; add.s32 %r3, %r2, 7;") == [1, 1, 1]


def test_a_block_knows_nothing_of_the_one_before() -> None:
    assert counts("add.s32 %r1, %r2, 7; L: add.s32 %r3, %r2, 7;") == [1, 1]


def test_predicated_and_impure_statements_count_each_time() -> None:
    assert counts("@%p1 add.s32 %r1, %r2, 7; @%p1 add.s32 %r3, %r2, 7;") == [1, 1]
    assert counts("shfl.sync.idx.b32 %r1, %r2, 0, 31, -1; shfl.sync.idx.b32 %r3, %r2, 0, 31, -1;") == [1, 1]
