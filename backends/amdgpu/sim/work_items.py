"""Reads of packed work-item ids that the kernel descriptor did not ask for.

v0 packs x in bits 9:0, y in bits 19:10 and z in bits 29:20, as far as ENABLE_VGPR_WORKITEM_ID asks for them
(AMDGPUUsage, "Initial Kernel Execution State").
"""

from __future__ import annotations

import numpy as np

from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.state import WaveGroup
from convgen.backends.amdgpu.sim.step import Context, Step
from convgen.backends.simulation import Source

_BITS = 10  #: bits of each id
_ZERO = Source(
    "AMDGPUUsage asks; but AITER's GEMMs, which ship, read ids that are 0 in their workgroups", required=False
)


def _extracted_from(instruction: Instruction) -> int | None:
    """Return the lowest bit of v0 that an instruction extracts; None if it does something else."""
    name, text = instruction.name, instruction.text.replace(",", " ").split()[1:]
    if name.startswith("v_bfe_u32") and len(text) > 3 and text[1] == "v0":
        return _number(text[2])
    if name.startswith("v_lshrrev_b32") and len(text) > 2 and text[2] == "v0":
        return _number(text[1])
    return None


def _number(text: str) -> int | None:
    try:
        return int(text, 0)
    except ValueError:
        return None


def with_id_check(step: Step, instruction: Instruction, context: Context) -> Step:
    """Make a step report that it extracts a work-item id from v0 that the descriptor did not ask for."""
    lowest, dims = _extracted_from(instruction), context.descriptor.work_item_dims
    if lowest is None or lowest < _BITS * dims or lowest >= 3 * _BITS:
        return step
    plain, which = step.run, "xyz"[lowest // _BITS]

    def run(g: WaveGroup) -> None:
        if g.env.strict and np.array_equal(g.v[0], g.env.work_items(g)):
            asked = ", ".join("xyz"[:dims])
            message = f"reads the work-item id {which}; the kernel descriptor asks for {asked} alone"
            zero = g.env.workgroup["xyz".index(which)] == 1
            g.env.reporter.add("work-item-id", message, instruction, g, source=_ZERO if zero else None)
        plain(g)

    return step.running(run)
