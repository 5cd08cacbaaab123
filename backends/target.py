"""A target as the generator sees it: facts for planning, and the way from IR to a code object and back.

Each family is a record (`family.py`); `get(name)` imports its code only when one of its targets is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from convgen.backends import family as families
from convgen.backends.family import Family
from convgen.backends.simulation import STRICT, Bytes, LaunchRequest, Pages, Scrutiny, SimReport
from convgen.ir import untrusted
from convgen.ir.error import Unsupported, UserError, imported, named

if TYPE_CHECKING:
    from convgen.backends.analysis import Analysis
    from convgen.backends.machine.allocate import Bank
    from convgen.backends.stages import Emitted, MachineCode, Observer, Stage
    from convgen.backends.timing import KernelProfile
    from convgen.ir.facts import TargetFacts
    from convgen.ir.program import Kernel

Progress = Callable[[int, int], None]  #: called with the workgroups done and all workgroups


class Target(Protocol):
    """One target; the family implements it from its tables."""

    facts: TargetFacts
    products: Sequence[str]  #: names of GPUs that run its code, in lower case
    family: Family
    assembler: str  #: where to get the assembler that `assemble` needs, for messages

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
        allows_slow: bool = True,
    ) -> Emitted:
        """Return the assembly of a message-level kernel after all stages except those in `disable`.

        Raises DoesNotFit if registers do not suffice; without `allows_slow`, when another config's kernel can take its
        place, also if it fits only by a slow fallback. `debug` numbers the kernel within its module, from 1: the text
        then carries line information into its IR.
        """
        from convgen.backends.stages import begin, emit  # which import the passes: simulators run without them

        begun = begin(kernel, self.facts, self.banks, header, debug, allows_slow=allows_slow)
        return emit(self.stages, begun, disable, observe)

    def module(self, kernels: Sequence[Emitted]) -> str:
        """Return the assembly file of several kernels."""

    def assemble(self, text: str) -> bytes | None:
        """Return the code object of an assembly file; None if no assembler is installed."""

    def machine_code(self, text: str) -> MachineCode | None:
        """Return machine code of an assembly file whose code object is text; None without a compiler that makes it."""
        return None

    def assembled_by(self) -> str:
        """Return a text that identifies the assembler and its version, or the compiler of `machine_code`; empty if
        there is none.
        """

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
        module = _module(self.family, "simulator", f"running code for {self.facts.name}", "simulator")
        report: SimReport = module.simulate(code_object, launches, buffers, progress=progress, scrutiny=scrutiny)
        return report


def _module(family: Family, field: str, what: str, lacking: str) -> ModuleType:
    """Return the module that a family's record names. Raises Unsupported, for `what`, if it names none."""
    name: str = getattr(family, field)
    if not name:
        raise Unsupported(
            f"{what}: {family.vendor}'s {family.title} has no {lacking}, wanted code for {families.makers(field)}",
            rule=f"no-{field}",
        )
    return imported(name)


# ---------------------------------------------------------------- code objects without a record


def can_execute(content: bytes) -> bool:
    """Return whether the family of a code object, whose first `BEGINNING` bytes suffice, has an `executor`."""
    family = families.of_object(content)
    return family is not None and bool(family.executor)


def executor(content: bytes, where: str) -> Any:
    """Return the module whose `architecture`, `signatures` and `simulate` take a code object.

    `where` names the file in errors. Raises UserError, Unsupported.
    """
    family = families.of_object(content)
    if family is None:
        wanted = f"a launch record, or a code object for a GPU of {families.makers('executor')}"
        raise UserError(f"given {where}, wanted {wanted}")
    return _module(family, "executor", f"running {where}", "simulator for code objects of any compiler")


def has_timer(content: bytes) -> bool:
    """Return whether the family of a code object has a model of launches."""
    family = families.of_object(content)
    return family is not None and bool(family.timer)


def timer(content: bytes, where: str) -> Any:
    """Return the module whose `architecture` and `profile_launch` take a code object. Raises UserError, Unsupported."""
    family = families.of_object(content)
    if family is None:
        raise UserError(f"given {where}, wanted code for a GPU of {families.makers('timer')}")
    return _module(family, "timer", f"timing launches of {where}", "model of launches")


# ---------------------------------------------------------------- files of code


def analyze(path: Path) -> Analysis:
    """Return the resources and bounds of the kernels of an assembly or object file. Raises UserError, Unsupported."""
    _family(path)  # check the name before reading the file
    return analyze_code(read(path), path.name)


def analyze_code(content: bytes, name: str) -> Analysis:
    """Return the analysis of code; the suffix of `name` selects its family. Raises as `analyze`."""
    module = _module(_family(Path(name)), "reader", f"analysis of {name}", "reader of code")
    analysis: Analysis = module.analyze(content, name)
    return analysis


def profile(path: Path, latency: float | None = None, groups: int | None = None) -> list[KernelProfile]:
    """Return the clocks of the kernels of an assembly or object file, by the model of a compute unit. Raises as
    `analyze`.

    `latency` is that of vector memory in clocks, by default the family's. `groups` workgroups share a unit; None: one,
    and as many as it holds.
    """
    _family(path)
    return profile_code(read(path), path.name, latency, groups)


def profile_code(
    content: bytes, name: str, latency: float | None = None, groups: int | None = None
) -> list[KernelProfile]:
    """Return the profiles of the kernels of code, as `profile` does; the suffix of `name` selects its family."""
    family = _family(Path(name))
    if family.timer and not family.model:
        given = f"profile of {name}: given {family.vendor}'s {family.title} without a launch"
        raise Unsupported(f"{given}, wanted a launch record, or --grid and --block", rule="no-model")
    module = _module(family, "model", f"profile of {name}", "model of a compute unit")
    profiles: list[KernelProfile] = module.profile(content, name, latency, groups)
    return profiles


def _family(path: Path) -> Family:
    family = families.of_suffix(path.suffix)
    if family is None:
        raise UserError(f"given {path.name}, wanted a file that ends in {families.suffixes()}")
    return family


def read(path: Path) -> bytes:
    """Return the content of a file of code. Raises UserError for a path that is not a regular file."""
    return untrusted.read(path, "a file of code")


# ---------------------------------------------------------------- targets


def names() -> tuple[str, ...]:
    """Return the names of all targets."""
    return families.targets()


def get(name: str) -> Target:
    """Return a target by name. Raises UserError if there is none, or if a table of its family has no row for it."""
    family = families.of_target(name)
    if family is None:
        product = name.lower()
        code = next((target for target in names() if product in get(target).products), None)
        given = named(name, names()) if code is None else f"{name!r}, which runs code for {code}"
        raise UserError(f"given target {given}, wanted one of {', '.join(names())}")
    target: Target = imported(family.module).TARGETS[name]()
    return target
