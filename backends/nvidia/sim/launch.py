"""Set up a launch: places of variables, parameters, and the warps at the kernel's entry.

Parameters stand where their declarations in PTX place them. These offsets are the simulator's own convention: the
driver places parameters itself, by their alignment in constant memory (on an H200 a map declared at byte 64 of the
block stood at byte 48).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convgen.backends.nvidia.sim.environment import Environment
from convgen.backends.nvidia.sim.ptx_text import Address, Kernel, Module, Register, Symbol
from convgen.backends.nvidia.sim.state import LANES, WarpGroup
from convgen.backends.sim.device_memory import Memory
from convgen.backends.sim.errors import SimulatorError
from convgen.backends.sim.wave_arrays import Array, Bools, Bytes
from convgen.backends.simulation import LaunchRequest, Parameter, Signature
from convgen.ir.layout.tensor_map import MAP_ALIGN, MAP_BYTES, TensorMap

#: Bytes of shared memory of a workgroup at most, by compute capability (CUDA Programming Guide, Compute Capabilities).
_SHARED_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("70", "72"), 96 << 10),
    "75": 64 << 10,
    **dict.fromkeys(("80", "87"), 163 << 10),
    **dict.fromkeys(("86", "89", "120", "121"), 99 << 10),
    **dict.fromkeys(("90", "100", "101", "103"), 227 << 10),
}


def shared_limit(target: str) -> int:
    """Return the bytes of shared memory that a workgroup of a target may have."""
    return _SHARED_BYTES.get(target.removeprefix("sm_").rstrip("af"), 227 << 10)


def shared_layout(module: Module, kernel: Kernel) -> tuple[dict[str, int], int]:
    """Return the offset of each shared variable, and the bytes of static ones; dynamic ones stand behind them."""
    variables = [v for v in (*module.variables.values(), *kernel.variables.values()) if v.space == "shared"]
    used = named(kernel)
    offsets, end = {}, 0
    static = [v for v in variables if not v.dynamic and (v.name in used or v.name in kernel.variables)]
    for variable in sorted(static, key=lambda v: -v.align):
        end = -(-end // variable.align) * variable.align
        offsets[variable.name] = end
        end += variable.size
    align = max((v.align for v in variables if v.dynamic and v.name in used), default=1)
    begin = -(-end // align) * align
    offsets.update({v.name: begin for v in variables if v.dynamic})
    return offsets, begin if any(v.dynamic and v.name in used for v in variables) else end


def named(kernel: Kernel) -> set[str]:
    """Return the variables that a kernel's code names."""
    names = set()
    for instruction in kernel.code:
        for operand in instruction.operands:
            base = operand.base if isinstance(operand, Address) else operand
            if isinstance(base, Symbol):
                names.add(base.name)
    return names


def place_variables(memory: Memory, module: Module, kernel: Kernel) -> dict[str, tuple[str, int]]:
    """Return state space and address of each variable; those of the module in device memory keep their bytes."""
    symbols: dict[str, tuple[str, int]] = {}
    for variable in module.variables.values():
        if variable.space not in ("global", "const"):
            continue
        name = f"<{variable.name}>"
        if name not in memory.by_name:
            content = (variable.content or b"").ljust(max(variable.size, 4), b"\0")
            data = np.frombuffer(content + bytes(-len(content) % 4), np.uint8).copy()
            memory.add(name, data, writable=variable.space == "global")
        symbols[variable.name] = variable.space, memory.by_name[name].base
    symbols.update({name: ("shared", offset) for name, offset in shared_layout(module, kernel)[0].items()})
    for variable in kernel.variables.values():
        if variable.space in ("local", "param"):
            symbols[variable.name] = variable.space, variable.offset
    return symbols


def parameter_block(memory: Memory, kernel: Kernel, launch: LaunchRequest) -> tuple[Bytes, Bools]:
    """Return the bytes of the parameters, and flags of those that the launch gives."""
    size = kernel.param_bytes
    block, defined = np.zeros(size, np.uint8), np.zeros(size, np.bool_)
    for argument in launch.args:
        if isinstance(argument.value, TensorMap):
            continue  # its bytes are opaque: they stay undefined
        raw = memory.argument(argument)
        if argument.offset + len(raw) > size:
            given = f"an argument of {len(raw)} bytes at offset {argument.offset}"
            raise SimulatorError(f"given {given}, wanted one within the {size} bytes of parameters of {kernel.name}")
        block[argument.offset : argument.offset + len(raw)] = np.frombuffer(raw, np.uint8)
        defined[argument.offset : argument.offset + len(raw)] = True
    return block, defined


def tensor_maps(memory: Memory, launch: LaunchRequest) -> dict[int, TensorMap]:
    """Return the tensor maps among the arguments, by offset. Raises SimulatorError for those that do not fit."""
    maps: dict[int, TensorMap] = {}
    for argument in launch.args:
        if not isinstance(argument.value, TensorMap):
            continue
        given = f"given a tensor map of {argument.size} bytes at offset {argument.offset}"
        if argument.size != MAP_BYTES or argument.offset % MAP_ALIGN:
            raise SimulatorError(f"{given}, wanted {MAP_BYTES} bytes at a multiple of {MAP_ALIGN}")
        if argument.value.buffer not in memory.by_name:
            raise SimulatorError(f"{given} of buffer {argument.value.buffer!r}, wanted a buffer of the launch")
        maps[argument.offset] = argument.value
    return maps


def start_group(env: Environment, launch: LaunchRequest, groups: Array) -> WarpGroup:
    """Return the warps of some workgroups at the kernel's entry."""
    threads = launch.workgroup[0] * launch.workgroup[1] * launch.workgroup[2]
    warp = np.tile(np.arange(env.waves), len(groups))
    slot = np.repeat(np.arange(len(groups)), env.waves)
    mask = warp[:, None] * LANES + np.arange(LANES) < threads
    env.alive[:] = mask
    return WarpGroup(env, slot, np.repeat(groups, env.waves), warp, mask)


# ---------------------------------------------------------------- signatures


def signature_of(module: Module, kernel: Kernel) -> Signature:
    """Return the arguments, workgroup and shared memory of a kernel."""
    pointers = _pointers(kernel)
    parameters = tuple(
        Parameter(v.name, v.offset, v.size, v.is_pointer or v.name in pointers, _C_TYPES.get(v.type, ""))
        for v in kernel.parameters
    )
    workgroup = kernel.limits.get("reqntid") or kernel.limits.get("maxntid")
    used, variables = named(kernel), (*module.variables.values(), *kernel.variables.values())
    wants_shared = any(v.space == "shared" and v.dynamic and v.name in used for v in variables)
    return Signature(kernel.name, parameters, shared_layout(module, kernel)[1], workgroup, wants_shared)


_C_TYPES = {"f32": "float", "f64": "double"}  #: type in PTX -> type in C
#: Instruction -> operands (by number) whose value, if it is an address, makes the result an address.
_KEEPS = {"mov": (1,), "cvta": (1,), "add": (1, 2), "sub": (1,), "mad": (3,), "selp": (1, 2)}


def _pointers(kernel: Kernel) -> set[str]:
    """Return the 64-bit parameters whose values reach an address of global memory by moves and additions."""
    comes_from: dict[int, set[str]] = {}
    pointers: set[str] = set()
    for _ in range(3):  # passes: values that reach an address around a loop, or by code that stands ahead
        for instruction in kernel.code:
            operands = instruction.operands
            if instruction.name == "ld" and instruction.has("param") and isinstance(operands[1], Address):
                base = operands[1].base
                if isinstance(base, Symbol) and isinstance(operands[0], Register) and operands[0].type[1:] == "64":
                    comes_from.setdefault(operands[0].number, set()).add(base.name)
                continue
            if instruction.name in _KEEPS and isinstance(operands[0], Register):
                for place in _KEEPS[instruction.name]:
                    operand = operands[place] if place < len(operands) else None
                    if isinstance(operand, Register) and operand.number in comes_from:
                        comes_from.setdefault(operands[0].number, set()).update(comes_from[operand.number])
            if instruction.is_in("shared", "local", "param") and instruction.name != "cp":
                continue
            if instruction.name == "cvta" and isinstance(operands[1], Register):
                pointers |= comes_from.get(operands[1].number, set())
            for operand in operands:
                if isinstance(operand, Address) and isinstance(operand.base, Register):
                    pointers |= comes_from.get(operand.base.number, set())
    return pointers
