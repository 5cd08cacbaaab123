"""Analyze a zebin: resources of each kernel, its hot code, and the units that limit it.

iga64 decodes the kernel, as for the simulator; loops come from the control flow, so that code of any compiler can be
read. Nothing is executed: trip counts, stalls and bank conflicts of shared local memory are unknown.

The token waits of the hot loop are shown next to those that iga64 would insert (`-Xauto-deps`) in the loop without
annotations. That is a yardstick for the scoreboard: iga64 treats one block at a time and waits for everything at its
end.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from convgen.backends import reading
from convgen.backends.analysis import Analysis, KernelAnalysis, Line, Stretch
from convgen.backends.hot_code import basic_blocks, hottest, reachable
from convgen.backends.intel.assemble import assemble
from convgen.backends.intel.costs import conflicts, line_of, waits
from convgen.backends.intel.family import FAMILY
from convgen.backends.intel.sim import CodeObject, KernelInfo
from convgen.backends.intel.sim.decode import Instruction, Operand, Payload, disassemble, follows
from convgen.backends.intel.tables import FACTS, GENERATIONS
from convgen.backends.intel.zebin_devices import DEVICES
from convgen.backends.toolchain import IGA64
from convgen.ir.error import AssemblerError, Unsupported, UserError

_CORE_SLM = 128 << 10  #: bytes of shared local memory of a core, of any target (GPU occupancy calculator)
_LEAST_REGISTERS = 128  #: registers of a thread, at least
_MOST_ITEMS = 1024  #: work-items of a workgroup without a required size

_OPTIONS = re.compile(r"\{([^}]*)\}")
_DEPENDENCE = re.compile(r"\$\d+(\.(dst|src))?|[A-Z]?@\d+")
_WAIT_ONLY = re.compile(r"\bsync\.(nop|allrd|allwr)\b")


def analyze(content: bytes, where: str) -> Analysis:
    """Return the analysis of a zebin, or of assembly text, which is assembled first.

    `where` names the file in errors. Raises UserError for content that is neither, Unsupported if a tool is missing.
    """
    with readable(content, where) as loaded:
        kernels = tuple(_kernel(loaded, kernel) for kernel in loaded.kernels.values())
        return Analysis(loaded.platform.name, FAMILY.terms, kernels)


@contextmanager
def readable(content: bytes, where: str) -> Iterator[CodeObject]:
    """Yield a loaded code object that has a kernel. Errors in reading it, also in the `with` body, become UserError."""
    try:
        with reading.readable(content, where, CodeObject.load, _assembled) as (loaded, _):
            yield loaded
    except Unsupported as error:
        raise Unsupported(f"analysis of {where}: {error}") from None


def _assembled(text: str, where: str) -> bytes:
    try:
        code = assemble(text)
    except AssemblerError as error:
        raise UserError(f"given {where} that does not assemble: {error}") from None
    if code is None:
        raise Unsupported(f"no iga64 found that knows its target ({IGA64.how_to_install})")
    return code


def _kernel(loaded: CodeObject, kernel: KernelInfo) -> KernelAnalysis:
    target = loaded.platform.name
    code, lines, loops, hot = _hot(loaded.instructions(kernel.name), target)
    items = most_items(kernel)
    used = _used(code, DEVICES[target].grf_bytes)
    return KernelAnalysis(
        kernel.name,
        {"grf": used, "grf_count": kernel.registers},
        kernel.slm,
        code[-1].address + code[-1].size,
        items,
        occupancy(kernel, target),
        loops,
        hot,
        tuple(lines),
        _counts(code, hot, loaded, kernel),
    )


def _hot(code: Sequence[Instruction], target: str) -> tuple[list[Instruction], list[Line], int, Stretch]:
    """Return the reachable instructions, also as lines, the number of loops, and the hot code."""
    running = reachable(code, 0, follows)
    lines = [line_of(i, target) for i in running]
    loops, hot = hottest(lines, *basic_blocks(running, follows))
    return running, lines, loops, hot


def most_items(kernel: KernelInfo) -> int:
    """Return the largest number of work-items of a workgroup."""
    size = kernel.required_size
    return size[0] * size[1] * size[2] if size else _MOST_ITEMS


def hot_code(code: Sequence[Instruction], target: str) -> tuple[list[Instruction], list[Instruction], bool]:
    """Return the reachable instructions, those of the hot code, and whether that is a loop."""
    running, _, _, hot = _hot(code, target)
    at = _by_address(code)
    return running, [at[line.offset] for line in hot.lines], hot.is_loop


def occupancy(kernel: KernelInfo, target: str) -> dict[str, int]:
    """Return the occupancy in threads of an EU, by limiting resource; workgroups share a core's local memory."""
    core, group = FACTS[target].core, -(-most_items(kernel) // kernel.simd)
    most = core.simd_subgroups
    by_slm = min(most, _CORE_SLM // kernel.slm * group // core.simds) if kernel.slm else most
    return {"registers": core.simd_registers // max(_LEAST_REGISTERS, kernel.registers), "lds": by_slm}


# ---------------------------------------------------------------- registers


def _used(code: Sequence[Instruction], grf: int) -> int:
    """Return one more than the highest register in use, without the one that only carries the end-of-thread payload."""
    ends = [i for i in code if i.message is not None and "EOT" in i.options]
    spans = [(_written(i, grf), _read(i, grf)) for i in code if i not in ends]
    read = {first for _, sources in spans for first, _ in sources}
    carried = {i.message.src0.reg for i in ends if i.message is not None} - read
    return max((first + count for both in spans for first, count in chain(*both) if first not in carried), default=0)


#: First register and number of registers of an operand.
_Registers = tuple[int, int]


def _written(i: Instruction, grf: int) -> list[_Registers]:
    """Return the registers of an instruction's result."""
    if i.message is not None:
        return _payloads(i.message.dst)
    if i.op.startswith("dpas"):
        return [(o.reg, i.rows) for o in _in_registers(i.dst)]
    return [(o.reg, -(-_reach(o, i.exec_size) // grf)) for o in _in_registers(i.dst)]


def _read(i: Instruction, grf: int) -> list[_Registers]:
    """Return the registers of each source."""
    if i.message is not None:
        return _payloads(i.message.src0, i.message.src1)
    if i.op.startswith("dpas"):
        packed = -(-i.rows * 32 // grf)  # in dpasw each of the two threads holds one half
        counts = i.rows, 8, -(-packed // 2) if i.op == "dpasw" else packed
        return [(o.reg, count) for source, count in zip(i.sources, counts) for o in _in_registers(source)]
    return [(o.reg, -(-_reach(o, i.exec_size) // grf)) for o in _in_registers(*i.sources)]


def _payloads(*payloads: Payload) -> list[_Registers]:
    return [(p.reg, max(1, p.length)) for p in payloads if p.reg >= 0]


def _in_registers(*operands: Operand | None) -> list[Operand]:
    return [o for o in operands if o is not None and o.kind == "reg" and o.file == "r"]


def _reach(o: Operand, lanes: int) -> int:
    """Return the bytes from the start of the first register to the end of the last element."""
    r = o.region
    if r is None or not r.width:
        last = (lanes - 1) * (r.horizontal if r else 1)
    else:
        last = (max(1, lanes // r.width) - 1) * r.vertical + (min(lanes, r.width) - 1) * r.horizontal
    return (o.sub + last + 1) * o.size


# ---------------------------------------------------------------- further counts


def _counts(code: Sequence[Instruction], hot: Stretch, loaded: CodeObject, kernel: KernelInfo) -> dict[str, int]:
    target = loaded.platform.name
    others = [line for line in hot.lines if line.unit != "matrix"]
    counts = {
        "dpas clocks": hot.slots["matrix"],
        "other clocks": sum(line.issue for line in others),
        "token waits": _token_waits(code, hot.lines),
    }
    automatic = _auto_deps(loaded, kernel)
    if automatic is not None:
        again, _, _, loop = _hot(automatic, target)
        counts["iga64's waits"] = _token_waits(again, loop.lines)
    at = _by_address(code)
    counts["bank conflicts"] = sum(conflicts(at[line.offset], target) for line in hot.lines)
    return counts


def _by_address(code: Sequence[Instruction]) -> Mapping[int, Instruction]:
    return {i.address: i for i in code}


def _token_waits(code: Sequence[Instruction], lines: Sequence[Line]) -> int:
    """Return how many tokens the lines wait for; a wait for all counts every token that the kernel sets."""
    tokens = len({i.token[0] for i in code if i.token is not None and not i.token[1]})
    at = _by_address(code)
    return sum(waits(at[line.offset], tokens) for line in lines)


def _auto_deps(loaded: CodeObject, kernel: KernelInfo) -> tuple[Instruction, ...] | None:
    """Return the kernel with iga64's annotations; None if iga64 fails (1.1.0 crashes on some kernels)."""
    platform = DEVICES[loaded.platform.name].platform
    tokens = GENERATIONS[loaded.platform.name].tokens[256 if kernel.registers > 128 else 128]
    tool = IGA64.find()
    if tool is None:
        return None
    common = [tool, f"-p={platform}", "--color=never"]
    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        path = Path(folder)
        (path / "kernel.bin").write_bytes(kernel.code)
        text = subprocess.run([*common, "-d", "kernel.bin"], capture_output=True, text=True, cwd=path, check=False)
        if text.returncode:
            return None
        (path / "bare.asm").write_text(_bare(text.stdout))
        assembling = [*common, "-a", "-Xauto-deps", f"-Xsbid-count={tokens}", "bare.asm", "-o", "automatic.bin"]
        if subprocess.run(assembling, capture_output=True, cwd=path, check=False).returncode:
            return None
        return disassemble((path / "automatic.bin").read_bytes(), loaded.platform)


def _bare(text: str) -> str:
    """Return the text without annotations and without instructions that only wait."""

    def without_dependences(options: re.Match[str]) -> str:
        others = [o for o in options[1].split(",") if not _DEPENDENCE.fullmatch(o.strip())]
        return "{" + ",".join(others) + "}" if others else ""

    lines = (line for line in text.splitlines() if not _WAIT_ONLY.search(line) and "illegal" not in line)
    return "\n".join(_OPTIONS.sub(without_dependences, line) for line in lines) + "\n"
