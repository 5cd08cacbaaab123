"""All that the generator may know of a target: facts to plan by, and the way from IR to a code object and back.

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
    from convgen.backends.stages import Emitted, Observer, Stage
    from convgen.backends.timing import KernelProfile
    from convgen.ir.facts import TargetFacts
    from convgen.ir.program import Kernel

Progress = Callable[[int, int], None]


class Target(Protocol):
    """One target; the family implements it from its tables."""

    facts: TargetFacts
    products: Sequence[str]  #: names under which GPUs that run its code are sold or known, in lower case
    family: Family
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
        module = _module(self.family, "simulator", f"running code for {self.facts.name}", "simulator")
        report: SimReport = module.simulate(code_object, launches, buffers, progress=progress, scrutiny=scrutiny)
        return report


def _module(family: Family, field: str, what: str, lacking: str) -> ModuleType:
    """The module that a family's record names. Raises Unsupported for `what` where it names none."""
    name: str = getattr(family, field)
    if not name:
        raise Unsupported(
            f"{what}: {family.vendor}'s {family.title} has no {lacking}, wanted code for {families.makers(field)}",
            rule=f"no-{field}",
        )
    return imported(name)


# ---------------------------------------------------------------- code objects without a record


def can_execute(content: bytes) -> bool:
    """Whether `executor` has a module for a code object, of which the first `BEGINNING` bytes suffice."""
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
    """Whether there is a model of launches of such an object."""
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
    """Needs and bounds of the kernels of an assembly or object file. Raises UserError, Unsupported."""
    _family(path)  # the name is looked at first
    return analyze_code(read(path), path.name)


def analyze_code(content: bytes, name: str) -> Analysis:
    """Needs and bounds of the kernels of code, whose `name` ends as its family's files do. Raises as `analyze`."""
    module = _module(_family(Path(name)), "reader", f"analysis of {name}", "reader of code")
    analysis: Analysis = module.analyze(content, name)
    return analysis


def profile(path: Path, latency: float | None = None, groups: int | None = None) -> list[KernelProfile]:
    """Clocks of the kernels of an assembly or object file, by a model of a compute unit; raises as `analyze` does.

    `latency` is that of vector memory in clocks, by default the family's. `groups` workgroups share a unit; None: one,
    and as many as it holds.
    """
    _family(path)
    return profile_code(read(path), path.name, latency, groups)


def profile_code(
    content: bytes, name: str, latency: float | None = None, groups: int | None = None
) -> list[KernelProfile]:
    """Clocks of the kernels of code, whose `name` ends as its family's files do, as `profile`."""
    module = _module(_family(Path(name)), "model", f"profile of {name}", "model of a compute unit")
    profiles: list[KernelProfile] = module.profile(content, name, latency, groups)
    return profiles


def _family(path: Path) -> Family:
    family = families.of_suffix(path.suffix)
    if family is None:
        raise UserError(f"given {path.name}, wanted a file that ends in {families.suffixes()}")
    return family


def read(path: Path) -> bytes:
    """The content of a file of code that somebody hands over. Raises UserError for what is no regular file."""
    return untrusted.read(path, "a file of code")


# ---------------------------------------------------------------- targets


def names() -> tuple[str, ...]:
    """All targets that `get` knows."""
    return families.targets()


def get(name: str) -> Target:
    """The target of that name. Raises UserError if there is none, or a table of its family has no row for it."""
    family = families.of_target(name)
    if family is None:
        product = name.lower()
        code = next((target for target in names() if product in get(target).products), None)
        given = named(name, names()) if code is None else f"{name!r}, which runs code for {code}"
        raise UserError(f"given target {given}, wanted one of {', '.join(names())}")
    target: Target = imported(family.module).TARGETS[name]()
    return target
