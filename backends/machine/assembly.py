"""Text of a machine function, for people: a line per instruction, with virtual or physical registers.

    loop:  // for kb in [0, 18)
        a[0:15] = mma_f32_32x32x8_f16 v[4:5], %v31.src[2:3], a[0:15]  // acc

`%v31.src[2:3]` are words 2 and 3 of virtual register number 31 in bank v, called `src`.
"""

from __future__ import annotations

from collections.abc import Iterator

from convgen.backends.machine.allocate import Allocation
from convgen.backends.machine.instruction import Function, Instruction, Place, Reg


def show(function: Function, allocation: Allocation) -> str:
    """Return the listing of a function; registers without a place are virtual."""
    return "\n".join(_lines(function, lambda r: place(r, allocation)))


def line(i: Instruction, place: Place) -> str:
    """Return one instruction without its comment."""
    sources = ", ".join(o.shown(place) for o in i.src)
    results = ", ".join(o.shown(place) for o in i.dst)
    words = [f"{results} =" if results else "", i.head(place), sources, *i.remarks]
    return " ".join(word for word in (*words, f"-> {i.target}" if i.target else "") if word)


def place(r: Reg, allocation: Allocation) -> str:
    """Return the text of a register view."""
    base = allocation.base.get(r.vreg)
    if base is None:
        name = f"%{r.vreg.bank}{r.vreg.number}" + (f".{r.vreg.name}" if r.vreg.name else "")
        return name if r.vreg.size == 1 else f"{name}[{_run(r.first, r.count)}]"
    first = base + r.first
    return f"{r.bank}{first}" if r.count == 1 else f"{r.bank}[{_run(first, r.count)}]"


def _run(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}:{first + count - 1}"


def _lines(function: Function, place: Place) -> Iterator[str]:
    yield f"function {function.name}"
    for block in function.blocks:
        yield f"{block.label}:" + (f"  // {block.comment}" if block.comment else "")
        for i in block.instructions:
            yield f"    {line(i, place)}" + (f"  // {i.comment}" if i.comment else "")
