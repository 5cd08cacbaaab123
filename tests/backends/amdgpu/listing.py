"""Machine functions from listings, and back: what the assembler would read, with labels as block borders.

LDS operations touch one tile; `slot:1` behind the operands says which slot, `lds` that a load goes there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from convgen.backends.amdgpu.isa import DIRECT, M0, MATRIX, OPCODES
from convgen.backends.amdgpu.physical import Physical
from convgen.backends.machine.allocate import Allocation
from convgen.backends.machine.instruction import (
    Access,
    BasicBlock,
    Flag,
    Function,
    Imm,
    Instruction,
    Opcode,
    Operand,
    Reg,
    VirtualRegister,
)

#: One register a bank, as large as the bank: operands are views of it, physical numbers are what the listing says.
_BANKS = {bank: VirtualRegister(n, bank, 256, bank) for n, bank in enumerate("vas")}
_IDENTITY = Allocation(dict.fromkeys(_BANKS.values(), 0), dict.fromkeys("vas", 256))

_REGISTER = re.compile(r"([vas])(?:(\d+)|\[(\d+):(\d+)\])")
_NO_RESULT = re.compile(r"s_cmp|s_cbranch|s_branch|s_endpgm|s_barrier|s_waitcnt|s_nop|ds_write|buffer_store")


def physical() -> Physical:
    """The view of a listing's instructions."""
    return Physical(_IDENTITY)


def function(text: str, target: str = "gfx942") -> Function:
    """A listing for a target as a function; waits and no-ops in it are left out."""
    blocks = [BasicBlock("entry")]
    for line in (line.strip() for line in text.splitlines()):
        if line.endswith(":"):
            blocks.append(BasicBlock(line[:-1]))
        elif line and not line.startswith(("s_waitcnt", "s_nop")):
            blocks[-1].instructions.append(_instruction(line, target))
    return Function("listing", blocks)


def _instruction(line: str, target: str) -> Instruction:
    name, _, rest = line.partition(" ")
    if name.startswith("s_cbranch"):
        return Instruction(OPCODES[name], target=rest)
    *words, last = rest.split(", ")
    last, *modifiers = last.split(" ")
    operands = [_operand(word) for word in (*words, last) if word]
    slot = next((m.removeprefix("slot:") for m in modifiers if m.startswith("slot:")), None)
    results = 0 if _NO_RESULT.match(name) else 1
    if "lds" in modifiers:
        (op,) = (op for op in DIRECT.values() if op.name == name)
        return Instruction(op, (), tuple(operands), tuple(modifiers))
    dst = [o for o in operands[:results] if isinstance(o, Reg | Flag)]
    shared = Access("shared", "tile", int(slot or -1), "write" in name) if name.startswith("ds_") else None
    return Instruction(_opcode(name, target), tuple(dst), tuple(operands[results:]), tuple(modifiers), shared)


def _opcode(name: str, target: str) -> Opcode:
    return OPCODES.get(name) or MATRIX[target][name][0]


def _operand(word: str) -> Operand:
    match = _REGISTER.fullmatch(word)
    if word == M0:
        return Flag(M0)
    if match is None:
        return Imm(int(word, 0))
    first = int(match[2] or match[3])
    return Reg(_BANKS[match[1]], first, int(match[4] or first) - first + 1)


def listing(f: Function) -> str:
    """The function as such a listing."""
    return "\n".join(_lines(f, physical()))


def _lines(f: Function, view: Physical) -> Iterator[str]:
    for n, block in enumerate(f.blocks):
        if n:
            yield f"{block.label}:"
        for i in block.instructions:
            operands = ", ".join(view.text(o) for o in (*i.dst, *i.src)) or i.target
            yield " ".join(word for word in (i.op.name, operands, *i.modifiers) if word)


def tidy(text: str) -> str:
    """A listing without indentation and empty lines."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())
