"""Execute any code object for an AMD GPU: the simulator, and launches as metadata describes them."""

from __future__ import annotations

from convgen.backends.amdgpu.sim import CodeObject, KernelInfo, simulate
from convgen.backends.sim.errors import reading
from convgen.backends.simulation import Signature, with_offsets
from convgen.ir.record import evolve

__all__ = ["architecture", "signatures", "simulate"]

_DEFAULT_ITEMS = 1024  #: `.max_flat_workgroup_size` of a kernel whose source states no bound (clang, for amdhsa)


def architecture(code_object: bytes) -> str:
    """Return the name of the processor, such as gfx942. Raises SimulatorError."""
    return CodeObject.load(code_object).arch.name


def signatures(code_object: bytes) -> dict[str, Signature]:
    """Return the arguments and resources of a code object's kernels, by kernel name. Raises SimulatorError."""
    kernels = CodeObject.load(code_object).kernels
    with reading("the metadata"):
        return {name: _signature(kernel) for name, kernel in kernels.items()}


def _signature(kernel: KernelInfo) -> Signature:
    """Return a kernel's signature with its workgroup and offsets of dynamic LDS, which OpenCL's local pointers are."""
    kinds = {int(arg[".offset"]): arg[".value_kind"] for arg in kernel.metadata.get(".args", ())}
    known = evolve(kernel.signature, workgroup=_workgroup(kernel))
    offsets = [n for n, given in enumerate(known.parameters) if kinds[given.offset] == "dynamic_shared_pointer"]
    return with_offsets(known, offsets, known.shared_bytes)


def _workgroup(kernel: KernelInfo) -> tuple[int, int, int] | None:
    """Return the required workgroup, or the largest that a stated bound permits."""
    required = kernel.metadata.get(".reqd_workgroup_size")
    if required is not None:
        x, y, z = map(int, required)
        return x, y, z
    most = int(kernel.metadata.get(".max_flat_workgroup_size", _DEFAULT_ITEMS))
    return (most, 1, 1) if 0 < most < _DEFAULT_ITEMS else None
