"""Calls of device functions: the function's body takes the place of the call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from convgen.backends.nvidia.sim.ptx_text import (
    Address,
    Instruction,
    Inverted,
    Kernel,
    Module,
    Name,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)
from convgen.backends.sim.errors import SimulatorError
from convgen.ir.record import evolve, frozen


def inline(module: Module, caller: Kernel, stack: tuple[str, ...]) -> None:
    """Replace calls of device functions by their bodies; calls of other functions, and recursive ones, stay."""
    if not any(instruction.name == "call" for instruction in caller.code):
        return
    old, caller.code = caller.code, []
    place = []
    for instruction in old:
        place.append(len(caller.code))
        callee = _callee(module, instruction)
        if callee is None or callee.name in (*stack, caller.name):
            caller.code.append(instruction)
            continue
        inline(module, callee, (*stack, caller.name))
        _paste(caller, callee, instruction)
    place.append(len(caller.code))
    # labels of pasted bodies (`<N>...`) are indices of the new code already
    caller.labels = {name: index if name.startswith("<") else place[index] for name, index in caller.labels.items()}


def _callee(module: Module, instruction: Instruction) -> Kernel | None:
    """Return the function that an instruction calls, if its body is there."""
    if instruction.name != "call":
        return None
    name = next((operand.name for operand in instruction.operands if isinstance(operand, Name)), "")
    return module.functions.get(name)


@frozen
class _Renaming:
    """The registers, variables and labels of a function's body in the kernel that it becomes part of."""

    tag: str  #: stands ahead of names of labels
    base: int  #: number of the kernel's register that is the function's first
    variables: Mapping[str, str]
    labels: frozenset[str]

    def instruction(self, instruction: Instruction) -> Instruction:
        """Return an instruction of the function; `ret` jumps to the end of the body."""
        guard = instruction.guard
        renamed = evolve(
            instruction,
            operands=tuple(map(self.operand, instruction.operands)),
            guard=None if guard is None else (self.register(guard[0]), guard[1]),
        )
        return _jump(renamed, self.end) if instruction.name == "ret" else renamed

    @property
    def end(self) -> str:
        """Return the label behind the body."""
        return f"{self.tag}end"

    def register(self, register: Register) -> Register:
        """Return a register of the function."""
        return evolve(register, number=register.number + self.base)

    def operand(self, operand: Operand) -> Operand:
        """Return an operand of the function."""
        match operand:
            case Register():
                return self.register(operand)
            case Symbol():
                return evolve(operand, name=self.variables.get(operand.name, operand.name))
            case Name():
                return Name(self.tag + operand.name) if operand.name in self.labels else operand
            case Vector():
                return Vector(tuple(map(self.operand, operand.items)))
            case Pair():
                return Pair(self.operand(operand.first), self.operand(operand.second))
            case Inverted():
                return Inverted(self.register(operand.register))
            case Address(Register() | Symbol() as base, offset):
                return Address(cast(Register | Symbol, self.operand(base)), offset)
        return operand


def _jump(instruction: Instruction, label: str) -> Instruction:
    """Return a branch in place of an instruction, under its guard."""
    return evolve(instruction, name="bra", modifiers=(), operands=(Name(label),))


def _paste(caller: Kernel, callee: Kernel, call: Instruction) -> None:
    """Append a function's body in place of a call, with registers, variables and labels of its own."""
    tag = f"<{len(caller.labels)}>"
    variables = _place_variables(caller, callee, call, tag)
    renaming = _Renaming(tag, len(caller.registers), variables, frozenset({*callee.labels, *callee.tables}))
    caller.registers += callee.registers
    caller.names += callee.names
    if call.guard is not None:
        register, negated = call.guard
        caller.code.append(_jump(evolve(call, guard=(register, not negated)), renaming.end))
    start = len(caller.code)
    caller.code += map(renaming.instruction, callee.code)
    caller.labels.update({tag + name: start + index for name, index in callee.labels.items()})
    caller.tables.update({tag + name: tuple(tag + t for t in targets) for name, targets in callee.tables.items()})
    caller.labels[renaming.end] = len(caller.code)


def _place_variables(caller: Kernel, callee: Kernel, call: Instruction, tag: str) -> Mapping[str, str]:
    """Return the caller's names of a function's variables: those passed, and new ones for all others.

    Raises SimulatorError for a wrong number of parameters.
    """
    passed = [item for operand in call.operands if isinstance(operand, Vector) for item in operand.items]
    names = {v.name: item.name for v, item in zip(callee.parameters, passed, strict=False) if isinstance(item, Symbol)}
    if len(names) != len(callee.parameters):
        raise SimulatorError(f"given `{call.text}`, wanted {len(callee.parameters)} parameters for {callee.name}")
    shift = -(-caller.local_bytes // 16) * 16
    for variable in callee.variables.values():
        if variable.name not in names:
            names[variable.name] = own = tag + variable.name
            caller.variables[own] = evolve(variable, name=own, offset=variable.offset + shift)
    caller.local_bytes = shift + callee.local_bytes
    return names
