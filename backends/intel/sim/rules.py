"""What an assembler lets pass and the hardware does not promise to do right: annotations, types, regions.

Regions: Intel's programmer's reference manuals, "Register Region Restrictions"; Mesa's brw_eu_validate.c states those
of XeHP. The kernels of Intel's own compiler keep all of these.
"""

from __future__ import annotations

import numpy as np

from convgen.backends.intel.sim.decode import EACH_ROW, Instruction, Operand
from convgen.backends.intel.sim.operands import FLOATS, element_bytes
from convgen.backends.intel.sim.step import Context, Step
from convgen.backends.sim.arrays import Array

LONG_INTEGERS = frozenset(("q", "uq"))
MOST_REGISTERS = 2  #: that a region may touch


def check(instruction: Instruction, step: Step, context: Context) -> None:
    """Note the findings that an instruction's encoding alone shows."""
    _annotations(instruction, step, context)
    if step.kind in ("alu", "math"):
        _types(instruction, context)
        _regions(instruction, context)


def _annotations(instruction: Instruction, step: Step, context: Context) -> None:
    """Combinations of a distance and a token that the platform's encoding does not have."""
    if instruction.distance is None or instruction.token is None:
        return
    pipe, _ = instruction.distance
    _, mode = instruction.token
    platform = context.platform
    if step.is_send:
        if mode or pipe not in platform.distance_pipes:
            context.fault("swsb", f"{platform.name} cannot combine these annotations on a send")
    elif step.is_dpas:
        if pipe or mode:
            context.fault("swsb", "dpas combines only its own pipe's distance with setting a token")
    elif pipe and not (pipe == "A" and platform.distance_beside_wait):
        context.fault("swsb", f"{platform.name} cannot combine these annotations")


def _types(instruction: Instruction, context: Context) -> None:
    """Types that the platform's arithmetic does not have."""
    platform = context.platform
    types = {o.type for o in (instruction.dst, *instruction.sources) if o is not None and o.type}
    if types & LONG_INTEGERS and not platform.long_integers:
        context.fault("type", f"{platform.name} has no 64-bit integers")
    if "df" in types and not platform.doubles:
        context.fault("type", f"{platform.name} has no df")
    kinds = types & FLOATS
    if {"hf", "bf"} <= kinds:
        context.fault("type", "hf and bf cannot mix")


def _regions(instruction: Instruction, context: Context) -> None:
    lanes, grf = instruction.exec_size, context.layout.grf
    dst = instruction.dst
    if dst is not None and dst.kind == "reg" and dst.file in ("r", "acc"):
        start = dst.sub * dst.size
        places = element_bytes(dst, lanes, start, destination=True)
        if _registers(places, dst.size, grf) > MOST_REGISTERS:
            context.fault("region", f"the destination touches more than {MOST_REGISTERS} registers")
        _narrowing(instruction, dst, context)
    for source in instruction.sources:
        if source.kind != "reg" or source.file not in ("r", "acc") or source.region is None:
            continue
        if source.region.width > lanes:
            context.fault("region", f"a row of {source.region.width} is wider than the execution size {lanes}")
        places = element_bytes(source, lanes, source.sub * source.size)
        if _registers(places, source.size, grf) > MOST_REGISTERS:
            context.fault("region", f"a source touches more than {MOST_REGISTERS} registers")
        if dst is not None and dst.kind == "reg":
            _alignment(instruction, dst, source, context)


def _registers(places: Array, size: int, grf: int) -> int:
    return int((places.max() + size - 1) // grf - places.min() // grf) + 1


def _stride(operand: Operand, lanes: int) -> int | None:
    """Bytes from lane to lane; 0 for a scalar, None when uneven."""
    places = np.unique(np.diff(element_bytes(operand, lanes, 0)))
    return int(places[0]) if len(places) == 1 else None


def _narrowing(instruction: Instruction, dst: Operand, context: Context) -> None:
    """A destination narrower than the operation's type leaves room for it between elements; f packs as hf."""
    if instruction.exec_size == 1 or dst.region is None:
        return
    types = [s.type for s in instruction.sources if s.kind in ("reg", "indirect")]
    sizes = [s.size for s in instruction.sources if s.kind in ("reg", "indirect") and s.type]
    if not sizes or (dst.type in ("hf", "bf") and max(sizes) <= 4):
        return
    copies = instruction.op == "mov" and len(types) == 1 and sizes[0] == 1 and dst.size == 1
    wide = max(sizes) if max(sizes) > 1 or copies else 2
    if dst.size < wide and dst.region.horizontal * dst.size < wide:
        what = f"elements of {dst.size} bytes every {dst.region.horizontal * dst.size} bytes"
        context.fault("region", f"{what} in an operation on {wide} bytes")


def _alignment(instruction: Instruction, dst: Operand, source: Operand, context: Context) -> None:
    """Channels of floating-point and 64-bit operations stay where they are in the register; scalars are broadcast."""
    lanes, grf = instruction.exec_size, context.layout.grf
    if lanes == 1 or dst.region is None or (source.region is not None and source.region.vertical == EACH_ROW):
        return
    long = 8 in (dst.size, source.size)
    if not (dst.type in FLOATS and dst.size == source.size) and not long:
        return
    stride = _stride(source, lanes)
    if stride == 0:
        return
    if stride != dst.region.horizontal * dst.size:
        context.fault("region", f"the lanes of a {source.type} source and a {dst.type} destination lie differently")
    elif source.file == dst.file == "r" and (source.sub * source.size - dst.sub * dst.size) % grf:
        context.fault("region", f"a {source.type} source begins elsewhere in its register than the destination")
