"""Assembly text for people and assemblers: header, body with phases and comments, kernel descriptor, metadata.

Directives follow LLVM's AMDGPUUsage, code object version 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from convgen.backends.amdgpu.physical import Physical
from convgen.backends.machine.instruction import Function, Instruction
from convgen.backends.stages import Emitted
from convgen.ir.layout.memory import Global
from convgen.ir.program import Kernel
from convgen.ir.record import frozen

_COMMENT_COLUMN = 64  #: characters before a comment
#: names that LLVM's YAML takes for a boolean or a number, before LLVM 22 also the booleans of YAML 1.1
_NOT_STRINGS = {"y", "n", "yes", "no", "on", "off", "true", "false", "inf", "infinity", "nan"}
_SGPR_GRANULE = 8  #: registers; the SGPR count in the metadata is a multiple
_KEEP_DENORMALS = 3  # keep denormals of sources and results; the default for f32 would flush both


@frozen
class Resources:
    """The resources that the kernel descriptor declares."""

    vgpr: int
    agpr: int
    sgpr: int
    lds_bytes: int
    kernarg_size: int

    @property
    def accum_offset(self) -> int:
        """Return the first accumulation register in the unified file: a multiple of 4, at least 4."""
        return max(4, -(-self.vgpr // 4) * 4)

    @property
    def total_vgpr(self) -> int:
        return self.accum_offset + self.agpr if self.agpr else max(1, self.vgpr)


def function_text(function: Function, physical: Physical, debug: int = 0) -> Iterator[str]:
    """Yield the body, one line an instruction. With `debug`, `.loc` lines point into file `debug`, the IR listing."""
    symbol = function.name
    at = 0
    yield f"{symbol}:"
    for index, block in enumerate(function.blocks):
        if index:
            yield f"{_label(symbol, block.label)}:" + (f"  // {block.comment}" if block.comment else "")
        for i in block.instructions:
            if debug and i.line not in (0, at):
                at = i.line
                yield f"    .loc {debug} {at}"
            yield _line(i, symbol, physical)


def _label(symbol: str, label: str) -> str:
    return f".L{symbol}.{label}"


def _line(i: Instruction, symbol: str, physical: Physical) -> str:
    shown = (*i.dst, *i.src[:-1]) if i.op.merges else (*i.dst, *i.src)
    operands = _label(symbol, i.target) if i.target else ", ".join([physical.text(o) for o in shown])
    words = " ".join([x for x in (operands, *i.modifiers) if x]) if i.modifiers else operands
    text = f"    {i.op.name:<22} {words}".rstrip()
    return f"{text:<{_COMMENT_COLUMN}}  // {i.comment}" if i.comment else text


def kernel_text(kernel: Kernel, header: Sequence[str], body: Iterator[str], maps: Sequence[str], r: Resources) -> str:
    """Return one kernel: header comments, body, descriptor."""
    name = kernel.name
    threads = kernel.subgroups * kernel.width
    lines = [f"// {line}".rstrip() for line in (*header, *maps)]
    lines += ["    .text", f"    .globl  {name}", "    .p2align 8", f"    .type   {name},@function"]
    lines += [*body, f".L{name}.end:", f"    .size   {name}, .L{name}.end - {name}", ""]
    lines += ['    .section .rodata,"a",@progbits', "    .p2align 6", f"    .amdhsa_kernel {name}"]
    directives = {
        "group_segment_fixed_size": r.lds_bytes,
        "private_segment_fixed_size": 0,
        "kernarg_size": r.kernarg_size,
        "user_sgpr_count": 2,
        "user_sgpr_kernarg_segment_ptr": 1,
        "system_sgpr_workgroup_id_x": 1,
        "system_sgpr_workgroup_id_y": int(any(count > 1 for count in kernel.grid[1:])),
        "system_sgpr_workgroup_id_z": int(kernel.grid[2] > 1),
        "system_vgpr_workitem_id": 0,
        "next_free_vgpr": r.total_vgpr,
        "accum_offset": r.accum_offset,
        "next_free_sgpr": max(1, r.sgpr),
        "reserve_vcc": 0,
        "float_denorm_mode_32": _KEEP_DENORMALS,
        "float_denorm_mode_16_64": _KEEP_DENORMALS,
    }
    lines += [f"        .amdhsa_{key} {value}" for key, value in directives.items()]
    lines += ["    .end_amdhsa_kernel", f"// workgroup of {threads} threads"]
    return "\n".join(lines) + "\n"


def metadata(kernel: Kernel, r: Resources, arguments: Sequence[tuple[str, int, int]], granule: int) -> str:
    """Return a kernel's entry in the metadata note of its module; vector registers come in multiples of `granule`."""
    fields = {
        ".name": _yaml(kernel.name),
        ".symbol": f"{kernel.name}.kd",
        ".kernarg_segment_size": r.kernarg_size,
        ".kernarg_segment_align": 8,
        ".group_segment_fixed_size": r.lds_bytes,
        ".private_segment_fixed_size": 0,
        ".wavefront_size": kernel.width,
        ".sgpr_count": -(-r.sgpr // _SGPR_GRANULE) * _SGPR_GRANULE,
        ".vgpr_count": -(-r.total_vgpr // granule) * granule,
        ".agpr_count": r.agpr,
        ".max_flat_workgroup_size": kernel.subgroups * kernel.width,
    }
    first, *rest = (f"{key}: {value}" for key, value in fields.items())
    lines = [f"  - {first}", *(f"    {line}" for line in rest), "    .args:"]
    for p, (name, offset, size) in zip(kernel.params, arguments):
        kind = "global_buffer, .address_space: global" if isinstance(p, Global) else "by_value"
        lines.append(f"      - {{ .name: {_yaml(name)}, .offset: {offset}, .size: {size}, .value_kind: {kind} }}")
    return "\n".join(lines)


def _yaml(name: str) -> str:
    """Return a name as a string of LLVM's YAML, which heeds a tag, but no quotes."""
    return f"!str {name}" if name.lower() in _NOT_STRINGS else name


def _triple(target: str) -> str:
    return f"amdgcn-amd-amdhsa--{target}"


def _debugged(kernels: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the lines before and after kernels that have line information."""
    from convgen.backends.amdgpu.debug import file_directives, sections

    return file_directives(kernels), sections(kernels)


def module_text(target: str, kernels: Sequence[Emitted]) -> str:
    """Return the assembly file; its metadata note is that of code object v5, version 1.2."""
    debugged = [k.name for k in kernels if k.listing is not None]
    lines = [f'    .amdgcn_target "{_triple(target)}"', "    .amdhsa_code_object_version 5"]
    files, behind = _debugged(debugged) if debugged else ([], [])
    lines += [*files, "", *(k.text for k in kernels), *behind]
    lines += ["    .amdgpu_metadata", "---", "amdhsa.version: [ 1, 2 ]", f"amdhsa.target: {_triple(target)}"]
    lines += ["amdhsa.kernels:", *(k.note for k in kernels), "...", "    .end_amdgpu_metadata", ""]
    return "\n".join(lines)
