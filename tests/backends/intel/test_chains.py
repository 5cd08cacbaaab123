"""Which matrix instructions make a chain: neighbours that read one factor from the same place."""

from __future__ import annotations

import pytest

from convgen.backends.intel.chains import chains
from convgen.backends.intel.isa import OPCODES, Null, XeInstruction, dpas, region
from convgen.backends.intel.physical import Physical
from convgen.backends.intel.tables import GENERATIONS
from convgen.backends.machine.allocate import Allocation
from convgen.backends.machine.instruction import Instruction, Reg, VirtualRegister

_NAMES = "abcdefghpqrstuvw"
_TUPLES = {name: VirtualRegister(n, "v", 8, name) for n, name in enumerate(_NAMES)}
_PLACES = Physical(Allocation({v: 8 * v.number for v in _TUPLES.values()}, {}), 16, 1)


def _instruction(word: str) -> Instruction:
    """`add`, or a product by sums and factors: `apq`; with `0`, of new sums, with `!` of factors of another type."""
    if word == "add":
        return XeInstruction(OPCODES["add"])
    sums, a, b = (Reg(_TUPLES[name], 0, 8) for name in word[:3])
    start, type = Null("f") if "0" in word else region(sums, "f"), "bf" if "!" in word else "hf"
    return XeInstruction(dpas("dpas.8x8", 8), (region(sums, "f"),), (start, region(a, type), region(b, type)), lanes=16)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("apq", [1]),
        ("apq bpr cps dpt", [4]),  # with source 1 in common
        ("apq bpr add cps dpt", [2, 2]),
        ("apq brs", [1, 1]),
        ("apq apr", [1, 1]),  # the sums of the one before
        ("apq0 bpr0", [2]),
        ("apq qpr", [1, 1]),  # a factor of the one before is written
        ("apq bpr qps", [2, 1]),  # a factor of the first
        ("bpq apr", [2]),
        ("apq bpr!", [1, 1]),
        ("apq bpa", [1, 1]),  # a result of it is a factor
        ("apq bpr csr dst", [2, 2]),
    ],
)
@pytest.mark.parametrize("target", ["xehpc", "xehpg"])
def test_chains(text: str, counts: list[int], target: str) -> None:
    instructions = [_instruction(word) for word in text.split()]
    found = [len(chain) for chain in chains(instructions, _PLACES, GENERATIONS[target].dpas_chains)]
    assert found == counts


@pytest.mark.parametrize(("target", "counts"), [("xehpc", [4]), ("xehpg", [1, 1, 1, 1])])
def test_source_2_in_common(target: str, counts: list[int]) -> None:
    """Only XeHPC and its successors read it once for all (IGA, `getNumberOfSuppresionGroups`)."""
    instructions = [_instruction(word) for word in "apq brq csq dtq".split()]
    assert [len(c) for c in chains(instructions, _PLACES, GENERATIONS[target].dpas_chains)] == counts


def test_long_chains_end() -> None:
    instructions = [_instruction(f"{name}pq") for name in "abcdefgh"]
    assert [len(c) for c in chains(instructions, _PLACES, frozenset((1, 2)))] == [8]
    more = [*instructions, _instruction("rpq")]
    assert [len(c) for c in chains(more, _PLACES, frozenset((1, 2)))] == [8, 1]
