"""Packed and mixed-precision vector instructions (VOP3P), and the fp8 conversions."""
from convgen.backends.amdgpu.sim.decode import Instruction
from convgen.backends.amdgpu.sim.step import Context, Step
def compile_packed(instruction: Instruction, context: Context) -> Step | None:
    return None
