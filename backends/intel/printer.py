"""Assembly text for people and for iga64: header, directives for the container, body with phases and comments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convgen.backends.intel.isa import Literal, Message, Send, XeInstruction, as_register
from convgen.backends.intel.physical import Physical
from convgen.backends.intel.tables import Generation, Workaround
from convgen.backends.machine.instruction import Function, Unit

_MNEMONIC_COLUMN, _COMMENT_COLUMN = 8, 100


def function_text(function: Function, physical: Physical, generation: Generation, listing: str = "") -> Iterator[str]:
    """Yield the body, one line an instruction; with a `listing` of the IR, comments refer to its lines."""
    at = 0
    for index, block in enumerate(function.blocks):
        if index:
            yield f"{block.label}:" + (f"  // {block.comment}" if block.comment else "")
        for i in block.instructions:
            assert isinstance(i, XeInstruction)
            if listing and i.line not in (0, at):
                at = i.line
                yield f"// {listing}:{at}"
            yield _line(i, physical, generation)
            if i.op.ends and Workaround.BEHIND_THE_END in generation.workarounds:
                yield f"{'':<{_MNEMONIC_COLUMN}}nop"


def _line(i: XeInstruction, physical: Physical, generation: Generation) -> str:
    options = [o for o in i.modifiers if o != "unless"] + list(i.annotations) + (["EOT"] if i.op.ends else [])
    text = f"{_predicate(i, physical, generation):<{_MNEMONIC_COLUMN}}{_body(i, physical, generation)}"
    if options:
        text = f"{text:<{_COMMENT_COLUMN - 22}} {{{','.join(options)}}}"
    return f"{text:<{_COMMENT_COLUMN}}  // {i.comment}".rstrip() if i.comment else text.rstrip()


def _predicate(i: XeInstruction, physical: Physical, generation: Generation) -> str:
    """Return the predicate, with (W) if the instruction ignores the thread's channel mask."""
    masked = i.lanes == generation.lanes
    if i.predicate is None:
        return "" if masked and i.op.unit is not Unit.CONTROL else "(W)"
    inverted = "~" if "unless" in i.modifiers else ""
    return f"({'' if masked else 'W&'}{inverted}{physical.flag(i.predicate)})"


def _body(i: XeInstruction, physical: Physical, generation: Generation) -> str:
    """Return an instruction as IGA reads it, without predicate and annotations."""
    name = i.op.name
    if i.target:
        return f"{name:<25}{i.target}"
    if i.op.unit is Unit.CONTROL and not i.op.ends:
        operand = f"{i.src[0].value:#x}" if i.src and isinstance(i.src[0], Literal) else "null"
        return f"{name:<25}{operand}"
    head = f"{name} ({i.lanes}|M0)"
    if i.condition:
        assert i.flag is not None or name in ("sel", "csel")
        head += f" ({i.condition}){physical.flag(i.flag) if i.flag is not None else 'f0.0'}"
    if isinstance(i.op, Message):
        return f"{head:<45} {_message(i, i.op, physical, generation)}"
    if isinstance(i.op, Send):
        dst = physical.grf(as_register(i.dst[0])) if i.dst else "null"
        return f"{head:<25}{dst:<8} {physical.grf(as_register(i.src[0])):<7} null:0  0x0  {i.op.descriptor}"
    matrix = i.op.unit is Unit.MATRIX
    operands = [physical.destination(i.dst[0], matrix)]
    for n, o in enumerate(i.src):
        last = n == 2
        if matrix:
            operands.append(physical.matrix_source(o, last))
        elif len(i.src) == 3:
            operands.append(physical.source_of_three(o, last))
        else:
            operands.append(physical.source(o, i.lanes == 1))
    return f"{head:<25}" + "  ".join(f"{o:<16}" for o in operands).rstrip()


def _message(i: XeInstruction, op: Message, physical: Physical, generation: Generation) -> str:
    """Return destination, address and data, each with its number of registers."""
    address, *data = map(as_register, i.src)
    lanes = 1 if op.block else i.lanes
    registers = max(1, lanes * op.address_bits // 32 // generation.lanes)
    place = f"{op.window}[{physical.grf(address)}:{registers}]"
    loaded = f"{physical.grf(as_register(i.dst[0]))}:{as_register(i.dst[0]).count}" if i.dst else ""
    if op.stores:
        result = f"{loaded or 'null'}  " if op.returns else ""
        return f"{result}{place}  {physical.grf(data[0])}:{data[0].count}"
    return f"{loaded or 'null:0'}  {place}"


def kernel_text(header: Sequence[str], directives: Sequence[str], body: Iterator[str]) -> str:
    """Return one kernel: directives of the container, header comments, body."""
    return "\n".join([*directives, *(f"// {line}".rstrip() for line in header), *body]) + "\n"
