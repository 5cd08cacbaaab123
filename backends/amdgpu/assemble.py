"""Assemble text into a code object with an installed assembler (`toolchain` searches for it).

LLVM's library assembles our own modules in this process, if it is installed and no variable names a program. Programs
do the rest: modules with debug information, foreign text, and text that the library rejects, since they report errors.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from convgen.backends.amdgpu.family import FAMILY
from convgen.backends.amdgpu.hsaco import linked
from convgen.backends.amdgpu.llvm import TRIPLE, Llvm, library
from convgen.backends.toolchain import CLANG, LLD, LLVM_MC, identity, knows, llvm_for, produced, run
from convgen.ir.error import AssemblerError, UserError

_PLACE = re.compile(r"\bkernel\.s:\d+:\d+: ")  #: place of an error in our text
Steps = Callable[[str, str, str, str], list[list[str]]]  #: target, source, intermediate object, output -> command lines


def _clang(driver: Sequence[str]) -> Steps:
    """Return steps with one driver call that assembles and links (clang runs lld itself)."""
    return lambda target, source, _, out: [
        [*driver, f"--target={TRIPLE}", f"-mcpu={target}", "-x", "assembler", source, "-o", out]
    ]


def _mc_and_lld(mc: str, lld: str) -> Steps:
    return lambda target, source, middle, out: [
        [mc, f"-triple={TRIPLE}", f"-mcpu={target}", "-filetype=obj", source, "-o", middle],
        [lld, "-shared", middle, "-o", out],
    ]


#: Messages for an unknown processor: of llvm-mc, which then goes on without it, and of clang.
_UNKNOWN = ("is not a recognized processor", "unknown target CPU")


def assembler_package(target: str) -> str:
    """Return the assembler that a target needs and its package, for messages."""
    return f"{llvm_for(target)}; {CLANG.how_to_install}"


def _linker(tool: str) -> str | None:
    """Return the lld of an assembler's installation: of that version next to it, or in its resolved folder."""
    path = Path(tool)
    version = path.name.rpartition("-")[2]
    beside = path.with_name(f"{LLD.name}-{version}" if version.isdigit() else LLD.name)
    return next((str(lld) for lld in (beside, path.resolve().with_name(LLD.name)) if lld.exists()), None)


def _installed() -> Iterator[tuple[str, Steps]]:
    """Yield assemblers by name, best first. An assembler that a variable names finds its own linker.

    A clang from the search comes after llvm-mc and lld, the programs that it would start: called directly, they make
    equal bytes faster.
    """
    clangs = [(Path(path).name, _clang([path])) for path in CLANG.all() if CLANG.is_given or _linker(path) is not None]
    if CLANG.is_given:
        yield from clangs
    for path in LLVM_MC.all():
        if (lld := _linker(path)) is not None:
            yield Path(path).name, _mc_and_lld(path, lld)
    yield from clangs
    if find_spec("ziglang") is not None:
        yield "ziglang", _clang([sys.executable, "-m", "ziglang", "clang"])


def available(target: str) -> Mapping[str, Steps]:
    """Return the assemblers on this machine that may know a target, with their command lines, best first.

    Raises UserError as `toolchain` does.
    """
    assemblers: dict[str, Steps] = {}
    for name, steps in _installed():
        if knows(name, target):
            assemblers.setdefault(name, steps)
    return assemblers


def assembled_by(target: str) -> str:
    """Return a text that identifies the assembler of `assemble_module` and its version; empty if there is none."""
    if (llvm := _in_process(target)) is not None:
        return llvm.version
    steps = next(iter(available(target).values()), None)
    return "" if steps is None else identity(steps("", "", "", "")[0][0])


def _in_process(target: str) -> Llvm | None:
    return None if CLANG.is_given else library(FAMILY.first_llvm[target])


#: Directives that our printer writes, and its marks of a kernel's end.
_DIRECTIVE = re.compile(r"\n[ \t]*\.(?!L)(\w+)(?![\w:])")
_DIRECTIVES = {"text", "globl", "p2align", "type", "size", "section", "amdhsa_kernel", "end_amdhsa_kernel"}
_DIRECTIVES |= {"amdgcn_target", "amdhsa_code_object_version", "amdgpu_metadata", "end_amdgpu_metadata"}
_SIZE = re.compile(r"\n\.L(\S+)\.end:\n[ \t]*\.size[ \t]+\1, \.L\1\.end - \1(?=\n)")


def _is_harmless(text: str) -> bool:
    """Return whether a module has only directives of our printer; others may end the process in LLVM."""
    text = f"\n{text}\n"  # patterns that begin with a character match faster than those anchored at line starts
    directives = _DIRECTIVE.findall(text)
    known = all(name in _DIRECTIVES or name.startswith("amdhsa_") for name in set(directives))
    ends = _SIZE.findall(text)
    return known and directives.count("size") == len(ends) and all(f"\n{name}:\n" in text for name in ends)


def assemble_module(text: str, target: str) -> bytes | None:
    """Return the code object of a module of our printer, assembled in this process if possible."""
    llvm = _in_process(target) if _is_harmless(text) else None
    relocatable = None if llvm is None else llvm.relocatable(text, target)
    made = None if relocatable is None else linked(relocatable)
    return assemble(text, target) if made is None else made


def assemble(text: str, target: str, assembler: str | None = None) -> bytes | None:
    """Return the linked code object; None if no assembler that knows the target is installed.

    Raises AssemblerError with the first complaint about the text, UserError if the assembler itself fails.
    """
    assemblers = available(target)
    name = assembler or next(iter(assemblers), None)
    if name is None:
        return None
    import tempfile

    with tempfile.TemporaryDirectory(prefix="convgen-") as folder:
        source, middle, out = (Path(folder) / n for n in ("kernel.s", "kernel.o", "kernel.hsaco"))
        source.write_text(text)
        for command in assemblers[name](target, str(source), str(middle), str(out)):
            # Run inside the folder, so that no path of this machine gets into the object.
            done = run(command, Path(folder))
            if any(words in done.stderr for words in _UNKNOWN):
                raise UserError(
                    f"given {target} with {name}, which does not know it; wanted {assembler_package(target)}"
                )
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["it says nothing"]
                if _PLACE.search(done.stderr):
                    raise AssemblerError(f"{name}: {lines[0]}")
                raise UserError(f"{name} cannot do its work: {lines[0]}")
        return produced(out, name, b"\x7fELF")
