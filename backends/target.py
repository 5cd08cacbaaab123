"""All that the generator may know of a target: facts to plan by, and the way from IR to a code object and back.

`get(name)` imports a target family only when one of its targets is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from convgen.backends.simulation import STRICT, Bytes, LaunchRequest, Pages, Scrutiny, SimReport
from convgen.ir import untrusted
from convgen.ir.error import UserError, imported, named

if TYPE_CHECKING:
    from convgen.backends.analysis import Analysis
    from convgen.backends.machine.allocate import Bank
    from convgen.backends.stages import Emitted, Observer, Stage
    from convgen.backends.timing import KernelProfile
    from convgen.ir.facts import TargetFacts
    from convgen.ir.program import Kernel

Progress = Callable[[int, int], None]


class Target(Protocol):
    """One target; the family implements it from its tables."""

    facts: TargetFacts
    products: Sequence[str]  #: names under which GPUs that run its code are sold or known, in lower case
    text_suffix: str
    object_suffix: str
    simulator: str  #: module whose `simulate` executes the objects
    assembler: str  #: home of the assembler that `assemble` wants, for notes to people

    stages: Sequence[Stage]  #: stages of `emit`, in order
    banks: Mapping[str, Bank]  #: register files that it allocates

    def emit(
        self,
        kernel: Kernel,
        header: Sequence[str] = (),
        *,
        debug: int = 0,
        disable: Collection[str] = (),
        observe: Observer | None = None,
        is_given: bool = True,
    ) -> Emitted:
        """A message-level kernel as text, by all stages but those of `disable`. Raises DoesNotFit, also where it fits
        badly if it is not `is_given`: if another config's kernel can take its place.

        `debug` numbers the kernel within its module, from 1: the text then carries line information into its IR.
        """
        from convgen.backends.stages import begin, emit  # which import the passes: simulators run without them

        begun = begin(kernel, self.facts, self.banks, header, debug, is_given=is_given)
        return emit(self.stages, begun, disable, observe)

    def module(self, kernels: Sequence[Emitted]) -> str:
        """The assembly file of several kernels."""

    def assemble(self, text: str) -> bytes | None:
        """The code object of an assembly file; None if no assembler is installed."""

    def assembled_by(self) -> str:
        """Tells the assembler that `assemble` takes from others; empty if there is none."""

    def simulate(
        self,
        code_object: bytes,
        launches: Sequence[LaunchRequest],
        buffers: Mapping[str, Bytes | Pages],
        *,
        progress: Progress | None = None,
        scrutiny: Scrutiny = STRICT,
    ) -> SimReport:
        """Run launches on the strict simulator; buffers change in place. Raises SimulatorError, Unsupported."""
        report: SimReport = imported(self.simulator).simulate(
            code_object, launches, buffers, progress=progress, scrutiny=scrutiny
        )
        return report


#: Target name -> module whose `TARGETS` mapping holds it.
_FAMILIES: dict[str, str] = {
    "gfx90a": "convgen.backends.amdgpu.targets",
    "gfx942": "convgen.backends.amdgpu.targets",
    "gfx950": "convgen.backends.amdgpu.targets",
    "xehpg": "convgen.backends.intel.targets",
    "xehpc": "convgen.backends.intel.targets",
    "xe2": "convgen.backends.intel.targets",
}


#: Suffix of a file of code -> module whose `analyze` reads it.
_READERS: dict[str, str] = {
    ".s": "convgen.backends.amdgpu.analyze",
    ".hsaco": "convgen.backends.amdgpu.analyze",
    ".asm": "convgen.backends.intel.analyze",
    ".zebin": "convgen.backends.intel.analyze",
}


#: Likewise, whose `profile` models a unit.
_MODELS: dict[str, str] = {
    ".s": "convgen.backends.amdgpu.timing.kernel",
    ".hsaco": "convgen.backends.amdgpu.timing.kernel",
    ".asm": "convgen.backends.intel.timing.kernel",
    ".zebin": "convgen.backends.intel.timing.kernel",
}
#: Machine of an ELF file -> module that executes such objects without a record (e_machine: EM_AMDGPU, EM_INTELGT).
_EXECUTORS: dict[int, str] = {224: "convgen.backends.amdgpu.foreign", 205: "convgen.backends.intel.foreign"}


def _machine(content: bytes) -> int:
    """That of an ELF file, -1 of others."""
    return int.from_bytes(content[18:20], "little") if content[:4] == b"\x7fELF" else -1


def can_execute(content: bytes) -> bool:
    """Whether `executor` has a module for a code object, of which the first 20 bytes suffice."""
    return _machine(content) in _EXECUTORS


def executor(content: bytes, where: str) -> Any:
    """Return the module whose `architecture`, `signatures` and `simulate` take a code object.

    `where` names the file in errors. Raises UserError.
    """
    if not can_execute(content):
        raise UserError(f"given {where}, wanted a launch record, or a code object for an AMD or Intel GPU")
    return imported(_EXECUTORS[_machine(content)])


#: Likewise, that times launches of such objects on a model of a unit.
_TIMERS: dict[int, str] = {224: "convgen.backends.amdgpu.timing.launch"}


def has_timer(content: bytes) -> bool:
    """Whether there is a model of launches of such an object."""
    return _machine(content) in _TIMERS


def timer(content: bytes, where: str) -> Any:
    """The module whose `architecture` and `profile_launch` take a code object. Raises UserError."""
    if not has_timer(content):
        raise UserError(f"given {where}, wanted code for an AMD GPU: launches on others have no model")
    return imported(_TIMERS[_machine(content)])


def analyze(path: Path) -> Analysis:
    """Needs and bounds of the kernels of an assembly or object file. Raises UserError, Unsupported."""
    _module(path, _READERS)  # the name is looked at first
    return analyze_code(read(path), path.name)


def analyze_code(content: bytes, name: str) -> Analysis:
    """The same of what a file of that name holds."""
    found: Analysis = _module(Path(name), _READERS).analyze(content, name)
    return found


def profile(path: Path, latency: float | None = None, groups: int | None = None) -> list[KernelProfile]:
    """Clocks of the kernels of an assembly or object file, by a model of a compute unit; raises as `analyze` does.

    `latency` is that of vector memory in clocks, by default of the nearest cache that units share. `groups` workgroups
    share a unit; None: one, and as many as it holds.
    """
    _module(path, _MODELS)
    return profile_code(read(path), path.name, latency, groups)


def profile_code(
    content: bytes, name: str, latency: float | None = None, groups: int | None = None
) -> list[KernelProfile]:
    """The same of what a file of that name holds."""
    found: list[KernelProfile] = _module(Path(name), _MODELS).profile(content, name, latency, groups)
    return found


def _module(path: Path, by_suffix: Mapping[str, str]) -> ModuleType:
    if path.suffix not in by_suffix:
        *most, last = by_suffix
        raise UserError(f"given {path.name}, wanted a file that ends in {', '.join(most)} or {last}")
    return imported(by_suffix[path.suffix])


def read(path: Path) -> bytes:
    """The content of a file of code that somebody hands over. Raises UserError for what is no regular file."""
    return untrusted.read(path, "a file of code")


def names() -> tuple[str, ...]:
    """All targets that `get` knows."""
    return tuple(_FAMILIES)


def get(name: str) -> Target:
    """The target of that name; UserError if there is none."""
    if name not in _FAMILIES:
        product = name.lower()
        code = next((target for target in names() if product in get(target).products), None)
        given = named(name, _FAMILIES) if code is None else f"{name!r}, which runs code for {code}"
        raise UserError(f"given target {given}, wanted one of {', '.join(_FAMILIES)}")
    target: Target = imported(_FAMILIES[name]).TARGETS[name]()
    return target
