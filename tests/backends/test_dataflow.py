"""What walks through blocks make of a function is what one more walk from the facts of the solution makes of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from convgen.backends.machine.dataflow import solve, walked
from convgen.backends.machine.instruction import BasicBlock, Function, Instruction
from tests.backends.machines import BRANCH, END, VALU

Facts = frozenset[int]
_START: Facts = frozenset((-1,))

#: Where each block jumps to, if it does; it may fall through, too.
JUMPS = st.integers(1, 7).flatmap(
    lambda n: st.lists(st.one_of(st.none(), st.integers(0, n - 1)), min_size=n, max_size=n)
)


def function_of(jumps: list[int | None]) -> Function:
    """Blocks of one instruction that may jump; every third one without a jump ends the program."""
    blocks = []
    for n, target in enumerate(jumps):
        last = Instruction(END if n % 3 == 2 else VALU) if target is None else Instruction(BRANCH, target=f"b{target}")
        blocks.append(BasicBlock(f"b{n}", [last]))
    return Function("f", blocks)


@given(JUMPS)
def test_the_last_walk_of_each_block_stays(jumps: list[int | None]) -> None:
    function = function_of(jumps)

    def walk(index: int, facts: Facts) -> tuple[Facts, list[Instruction]]:
        """Blocks pass on what comes to them and their own number, and note all of it."""
        noted = Instruction(VALU, comment=" ".join(map(str, sorted(facts))))
        return facts | {index}, [noted, *function.blocks[index].instructions]

    found = walked(function, _START, walk, frozenset.union)
    entry = solve(function, _START, lambda index, facts: walk(index, facts)[0], frozenset.union)
    for index, block in enumerate(found.blocks):
        wanted = walk(index, entry.get(index, _START))[1]
        assert [i.comment for i in block.instructions] == [i.comment for i in wanted]
        assert block.instructions[1:] == function.blocks[index].instructions
