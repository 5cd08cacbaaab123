"""Machine instructions (SASS) that ptxas usually makes of each instruction of PTX: none, one, or several.

ptxas computes equal expressions of a basic block once, joins conjunctions of predicates with comparisons, and reads
halves of registers in place. Counts were compared with ptxas 13.0 for sm_90a.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from convgen.backends.nvidia.sim.ptx_text import Instruction, Kernel, Literal, Register
from convgen.backends.nvidia.sim.ptx_types import bytes_of

_PURE = frozenset(
    "abs add and bfe bfi clz cnot cvt cvta div fma lop3 mad max min mov mul mul24 neg not or popc prmt rem sad selp "
    "set setp shf shl shr slct sub xor".split()
)
#: Counts other than one, by opcode and bytes of the widest type.
_COUNTS: Mapping[tuple[str, int], int] = {
    **dict.fromkeys((("mov", 2), ("mov", 4), ("mov", 8), ("cvta", 8)), 0),  # renamed
    **dict.fromkeys((("and", 8), ("or", 8), ("xor", 8), ("setp", 8), ("selp", 8), ("shl", 8), ("shr", 8)), 2),
    **dict.fromkeys((("mul", 8), ("mad", 8)), 4),
    **dict.fromkeys((("div", 4), ("rem", 4)), 20),
    **dict.fromkeys((("div", 8), ("rem", 8)), 60),
}
_HALF = 16  #: bits; extracting a half of a register is a part of the instruction that reads it


@lru_cache(maxsize=16)
def machine_counts(kernel: Kernel) -> Mapping[Instruction, int]:
    """Return the number of machine instructions of each instruction of a kernel."""
    again = _repeated(kernel)
    return {each: 0 if each in again else _count(each) for each in kernel.code}


def _count(instruction: Instruction) -> int:
    name, types = instruction.name, instruction.types
    if "pred" in types and name in ("and", "or", "xor", "not"):
        return 0
    if name == "ld" or (name == "cvt" and types and types[0][1:] == "64"):
        return 0  # a parameter is an operand, and a wide register is a pair
    if name == "bfe" and [o.bits for o in instruction.operands[2:] if isinstance(o, Literal)] in (
        [0, _HALF],
        [_HALF] * 2,
    ):
        return 0
    return _COUNTS.get((name, max(map(bytes_of, types), default=4)), 1)


def _repeated(kernel: Kernel) -> frozenset[Instruction]:
    """Return the instructions that compute again what one before has computed in their basic block."""
    starts, again = set(kernel.labels.values()), set()
    known: dict[object, object] = {}  #: expressions of values -> value
    values: dict[int, object] = {}  #: register -> its value
    for index, instruction in enumerate(kernel.code):
        if index in starts:
            known, values = {}, {}
        first, *others = instruction.operands or (None,)
        if not isinstance(first, Register):
            continue
        expression = None
        if instruction.name in _PURE and instruction.guard is None and not instruction.has("cc"):
            read = tuple(values.get(o.number, o) if isinstance(o, Register) else o for o in others)
            expression = instruction.name, instruction.modifiers, read
        value = known.get(expression) if expression else None
        if value is not None:
            again.add(instruction)
        values[first.number] = value if value is not None else instruction
        if expression and value is None:
            known[expression] = instruction
    return frozenset(again)
