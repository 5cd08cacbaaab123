"""Random machine functions: straight code and nested loops in which every word is written before it is read."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from hypothesis import strategies as st

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
    Unit,
    VirtualRegister,
)

VALU = Opcode("v_op", Unit.VALU)
SALU = Opcode("s_op", Unit.SALU, writes=("scc",))
SELECT = Opcode("s_select", Unit.SALU, reads=("scc",))
MATRIX = Opcode("v_mfma", Unit.MATRIX, latency=11, busy=8, early_clobber=True)
SHARED = Opcode("ds_op", Unit.SHARED, latency=20)
SCALAR = Opcode("s_load", Unit.SCALAR_MEMORY, latency=50)
GLOBAL = Opcode("buffer_op", Unit.GLOBAL, latency=150)
BARRIER = Opcode("s_barrier", Unit.CONTROL, barrier=True)
COMPARE = Opcode("s_cmp", Unit.SALU, writes=("scc",))
BRANCH = Opcode("s_cbranch", Unit.CONTROL, reads=("scc",))
END = Opcode("s_endpgm", Unit.CONTROL, ends=True)

_SIZES = (1, 1, 2, 4)


@attrs.define
class _Pool:
    """The registers of a function and which of their words have been written."""

    registers: list[VirtualRegister]
    written: dict[VirtualRegister, set[int]] = attrs.Factory(dict)

    def runs(self, bank: str) -> list[Reg]:
        """All views of written words of a bank."""
        return [
            Reg(v, first, count)
            for v in self.registers
            for count in range(1, v.size + 1)
            for first in range(v.size - count + 1)
            if v.bank == bank and self.written.get(v, set()) >= set(range(first, first + count))
        ]

    def note(self, regs: Sequence[Reg]) -> None:
        for r in regs:
            self.written.setdefault(r.vreg, set()).update(range(r.first, r.first + r.count))


def _access(draw: st.DrawFn, space: str) -> Access:
    return Access(space, draw(st.sampled_from("ab")), draw(st.sampled_from((-1, 0, 1))), draw(st.booleans()))


def _views(pool: _Pool, bank: str) -> list[Reg]:
    """Whole registers of a bank and single words of them."""
    mine = [v for v in pool.registers if v.bank == bank and v.fixed is None]
    return [Reg(v, 0, v.size) for v in mine] + [Reg(v, w, 1) for v in mine if v.size > 1 for w in range(v.size)]


def _instruction(draw: st.DrawFn, pool: _Pool, *, pairs: bool) -> Instruction:
    kind = draw(st.sampled_from("vvvvsscmmdgbl"))

    def sources(bank: str, most: int) -> list[Reg]:
        runs = pool.runs(bank)
        chosen: list[Reg] = draw(st.lists(st.sampled_from(runs), max_size=most)) if runs else []
        return chosen

    def result(bank: str) -> tuple[Reg, ...]:
        return (draw(st.sampled_from(_views(pool, bank))),)

    match kind:
        case "v":
            vcc = (Flag("vcc"),)
            made = Instruction(VALU, result("v"), (*sources("v", 2), *(vcc if draw(st.booleans()) else ())))
            if draw(st.integers(0, 4)) == 0:
                made = Instruction(VALU, vcc, tuple(sources("v", 2)))
        case "s":
            made = Instruction(SALU, result("s"), (*sources("s", 1), Imm(1)))
        case "c":
            made = Instruction(SELECT, result("s"), tuple(sources("s", 2)))
        case "m":
            tied = [r for r in pool.runs("v") if r.whole and r.count == 4]
            out = draw(st.sampled_from(tied)) if bool(tied) and draw(st.booleans()) else None
            into = result("v") if out is None else (out,)
            operands: list[Operand] = [r for r in sources("v", 2) if r.vreg is not into[0].vreg]
            operands += [Imm(0)] * (2 - len(operands))
            made = Instruction(MATRIX, into, (*operands, Imm(0) if out is None else out))
        case "b":
            made = Instruction(BARRIER)
        case "l":
            made = Instruction(SCALAR, result("s"), access=Access("kernarg", "arguments", -1, False))
        case _:
            op, access = (SHARED, _access(draw, "shared")) if kind == "d" else (GLOBAL, _access(draw, "global"))
            given: list[Operand] = [*sources("v", 2), Imm(0), Imm(0)]
            made = Instruction(op, () if access.write else result("v"), tuple(given[: 1 + access.write]), access=access)
            if pairs and op is SHARED and access.write:
                made.also = _access(draw, "shared")._replace(write=True)
    pool.note(list(made.defs()))
    return made


@st.composite
def functions(draw: st.DrawFn, *, most: int = 14, pinned: bool = True, pairs: bool = False) -> Function:
    """Up to four blocks that may branch backwards, to themselves or around others that lie within; then the end.

    With `pairs`, what writes to shared memory does so at two places.
    """
    registers = [
        VirtualRegister(n, draw(st.sampled_from("vvvs")), draw(st.sampled_from(_SIZES)), f"r{n}")
        for n in range(draw(st.integers(4, 9)))
    ]
    registers += [VirtualRegister(20, "v", 4, "tuple"), VirtualRegister(21, "s", 1, "scalar")]
    pool = _Pool(registers)
    if pinned:
        live_in = [VirtualRegister(30, "s", 2, "kernarg", fixed=0), VirtualRegister(31, "v", 1, "item", fixed=0)]
        registers += live_in
        pool.note([Reg(v, 0, v.size) for v in live_in])
    counter = VirtualRegister(40, "s", 1, "counter")
    blocks = []
    start = Instruction(SALU, (Reg(counter, 0, 1),), (Imm(0),))
    count = draw(st.integers(1, 4))
    outermost = count
    for n in range(count):
        body = [_instruction(draw, pool, pairs=pairs) for _ in range(draw(st.integers(1, most)))]
        if n == 0:
            body.insert(0, start)
        if draw(st.booleans()):
            target = draw(st.integers(min(n, outermost), n))
            outermost = min(outermost, target)
            c = Reg(counter, 0, 1)
            body += [
                Instruction(SALU, (c,), (c, Imm(1))),
                Instruction(COMPARE, (), (c, Imm(3))),
                Instruction(BRANCH, target=f"b{target}"),
            ]
        blocks.append(BasicBlock(f"b{n}", body))
    blocks.append(BasicBlock("end", [Instruction(END)]))
    return Function("random", blocks)
