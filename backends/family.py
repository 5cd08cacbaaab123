"""One record per family of targets; the family's folder of `backends/` keeps it in `family.py` as `FAMILY`.

`families` finds the records by folder, so no file outside a family's folder names the family. `adding` registers a
further record, for tests. Records name modules of code, which are imported on use, so that a record loads fast.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path

import attrs

from convgen.backends.analysis import Terms
from convgen.ir.error import UserError
from convgen.ir.record import frozen

_ELF = b"\x7fELF"
_MACHINE = slice(18, 20)  #: bytes of an ELF header with e_machine
BEGINNING = 1 << 12  #: bytes of a file that tell whether it is a code object: comments may precede text


@frozen(kw_only=True, eq=False)
class Chip:
    """One GPU, or one die of it where programs see dies, as the time model knows it."""

    name: str
    target: str  #: target whose code it runs best
    others: tuple[str, ...] = ()  #: further targets whose code it runs
    units: int  #: compute units
    partitions: int  #: parts with an L2 of their own, to which workgroups go in turn
    clock: float  #: clocks per us; maximum
    rates: Mapping[str, int]  #: FLOP per clock and unit of dense matrix instructions, by input type
    sustained: float = 0.85  #: largest share of the clock that it sustains while all matrix units work
    memory: float | None = None  #: bytes a us of its memory; None: what the facts of its target say


@frozen(kw_only=True)
class Fits:
    """The entries of the time model's constants (`gen/profile/constants.json`) that suit a family's kernels."""

    makers: tuple[str, ...]  #: prefixes of the kinds of entries, best first
    in_clocks: str  #: prefix of the sources of entries whose ticks are clocks, not us
    #: Chip -> kinds with the cost of a first and of a further launch, for entries in clocks
    launches: Mapping[str, tuple[str, str]]
    types: Mapping[str, str]  #: input type in mnemonics -> its key in `Chip.rates`, where the two differ
    copies_ahead: bool = False  #: whether kernels copy so far ahead that memory and products hide each other


@frozen(kw_only=True)
class Runtime:
    """The host's interface that loads and launches a family's code."""

    kind: str  #: the part of a device's name before the colon
    title: str  #: name in reports
    module: str  #: module whose `Device` takes the number of a device (`backends.device.Device`)
    most_workgroups: tuple[int, int, int]  #: workgroups; along x, y and z of a launch, on every device
    alignment: int  #: bytes; alignment of buffers that kernels assume
    library: str  #: library that exported C links with
    package: str  #: package whose folder `templates` has the parts of exported C
    c_header: str  #: template of the types that the header needs
    c_source: str  #: template of the functions that load and launch
    c_load: str  #: first parameters of the function that loads
    c_queue: str  #: the parameter with the stream or queue of a launch
    c_load_remark: str  #: sentence on the function that loads
    c_launch_remark: str  #: sentence on the function that launches
    encodes_maps: bool = False  #: whether launches take tensor maps, which the host encodes
    survives_faults: bool = True  #: whether a process can use a device further after a kernel's invalid access

    @property
    def option(self) -> str:
        """Return the kind as users type it."""
        return self.kind.replace("_", "-")


@frozen(kw_only=True)
class Viewer:
    """Files of a timed launch for a maker's own viewer of traces."""

    option: str  #: option of `convgen profile`
    help: str
    #: module whose `files(launches, kernels, beside)` gives contents by path, and whose `EARLIER_FILES` is a pattern
    #: of paths that an earlier trace may have left
    module: str

    @property
    def dest(self) -> str:
        """Return the name of the option's attribute in parsed options."""
        return self.option.lstrip("-").replace("-", "_")


@frozen(kw_only=True)
class Family:
    """A family of targets: vendor, files, modules of code, and words for reports.

    The name of a module that the family lacks is ""; a command that needs it raises Unsupported.
    """

    name: str  #: unique: its folder
    vendor: str
    title: str  #: name of all its targets together, in reports
    targets: tuple[str, ...]  #: names, the oldest first
    module: str  #: module whose `TARGETS` maps these names to callables that make a `backends.target.Target`
    text_suffix: str  #: suffix of assembly text
    object_suffix: str  #: suffix of code objects
    machine_suffix: str = ""  #: suffix of machine code, where code objects are text that an installed compiler takes
    machine: int  #: e_machine of its code objects that are ELF files
    text_object: re.Pattern[bytes] | None = None  #: the beginning of its code objects that are text
    terms: Terms
    load_latency: float  #: clocks from a load of global memory to its data; default of the model
    reader: str = ""  #: module whose `analyze(content, where)` gives an `Analysis`
    model: str = ""  #: module whose `profile(content, where, latency, groups)` times loops on a unit
    simulator: str = ""  #: module whose `simulate` executes its own code objects strictly
    executor: str = ""  #: module whose `architecture`, `signatures` and `simulate` take code objects of any compiler
    timer: str = ""  #: module whose `architecture` and `profile_launch` time whole launches
    runtime: Runtime | None = None
    viewer: Viewer | None = None  #: viewer of launches that the timer has timed
    chips: tuple[Chip, ...] = ()  #: chips that the timer knows
    fits: Fits | None = None  #: the time model's constants for these chips
    #: Target -> the first LLVM that assembles and decodes for it; empty for a family that LLVM does not serve
    first_llvm: Mapping[str, int] = attrs.Factory(dict)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Return the suffixes of assembly text, of code objects and of machine code, each once."""
        return tuple(dict.fromkeys(filter(None, (self.text_suffix, self.object_suffix, self.machine_suffix))))


# ---------------------------------------------------------------- all families


_added: list[Family] = []


def families() -> tuple[Family, ...]:
    """Return all families: those with a folder here in alphabetical order, then those that `adding` registered."""
    return (*_found(), *_added)


@cache
def _found() -> tuple[Family, ...]:
    folder = Path(__file__).parent
    names = sorted(path.parent.name for path in folder.glob("*/family.py"))
    found: list[Family] = [import_module(f"convgen.backends.{name}.family").FAMILY for name in names]
    _check_apart(found)
    return tuple(found)


@contextmanager
def adding(family: Family) -> Iterator[None]:
    """Register one more family within the block, as if its folder were here.

    Raises UserError where a name, a target, a suffix, a machine or a runtime is another family's already.
    """
    _check_apart((*families(), family))
    _added.append(family)
    try:
        yield
    finally:
        _added.remove(family)


def _check_apart(known: Iterable[Family]) -> None:
    """Raise UserError if two families share a name, target, suffix, ELF machine, runtime or chip."""
    for what, names in _NAMES.items():
        counts = Counter(name for family in known for name in names(family))
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise UserError(f"given two families with the {what} {twice[0]}, wanted one")


_NAMES: Mapping[str, Callable[[Family], Collection[object]]] = {
    "name": lambda family: (family.name,),
    "target": lambda family: family.targets,
    "suffix": lambda family: family.suffixes,
    "machine": lambda family: (family.machine,),
    "runtime": lambda family: (family.runtime.kind,) if family.runtime else (),
    "chip": lambda family: [chip.name for chip in family.chips],
}


def having(field: str) -> tuple[Family, ...]:
    """Return the families whose record has a field: a module, a runtime, a viewer or chips."""
    return tuple(family for family in families() if getattr(family, field))


def targets() -> tuple[str, ...]:
    """Return the names of all targets, family by family."""
    return tuple(name for family in families() for name in family.targets)


def of_target(name: str) -> Family | None:
    """Return the family of a target; None if no family has it."""
    return next((family for family in families() if name in family.targets), None)


def of_suffix(suffix: str) -> Family | None:
    """Return the family whose files of code have a suffix; None if no family has it."""
    return next((family for family in families() if suffix in family.suffixes), None)


def of_object(content: bytes) -> Family | None:
    """Return the family of a code object, whose first `BEGINNING` bytes suffice; None if no family has such."""
    if content[:4] != _ELF:
        texts = (family for family in families() if family.text_object and family.text_object.match(content))
        return next(texts, None)
    machine = int.from_bytes(content[_MACHINE], "little")
    return next((family for family in families() if family.machine == machine), None)


def chips() -> dict[str, Chip]:
    """Return all chips of the time model, by name."""
    return {chip.name: chip for family in families() for chip in family.chips}


def chips_of(target: str) -> list[Chip]:
    """Return the chips that run a target's code."""
    return [chip for chip in chips().values() if target in (chip.target, *chip.others)]


def chip_of(target: str, units: int) -> Chip:
    """Return the chip of a target with that many units. Raises UserError if none is known."""
    for chip in chips_of(target):
        if chip.units == units:
            return chip
    known = ", ".join(f"{c.target} with {c.units}" for c in chips().values())
    raise UserError(f"given {target} with {units} units, wanted one of {known}")


# ---------------------------------------------------------------- words


def listed(words: Iterable[str], last: str = "or") -> str:
    """Return words as a list in a sentence: `a, b or c`."""
    *most, end = dict.fromkeys(words)
    return f"{', '.join(most)} {last} {end}" if most else end


def makers(field: str) -> str:
    """Return the vendors of families that have a field, as a list in a sentence."""
    return listed(family.vendor for family in having(field))


def suffixes(*kinds: str) -> str:
    """Return the suffixes of files of code as a list in a sentence: those of the fields `kinds`, by default of
    assembly text and of code objects.
    """
    kinds = kinds or ("text_suffix", "object_suffix")
    return listed(getattr(family, kind) for family in families() for kind in kinds)


# ---------------------------------------------------------------- rows of a family's tables


def check_rows(family: Family, tables: Mapping[str, Iterable[str]]) -> None:
    """Check that each of a family's tables has a row for each of its targets and no other; keys say where a table
    stands.

    Raises UserError with one sentence that names a target, the tables that have it and those that lack it.
    """
    rows = {where: set(table) for where, table in {"family.py: targets": family.targets, **tables}.items()}
    for target in sorted(set().union(*rows.values())):
        there = [where for where, names in rows.items() if target in names]
        lacking = [where for where in rows if where not in there]
        if lacking:
            given = f"a row for {target} in {listed(there, 'and')} of backends/{family.name}/"
            wanted = f"one in {listed(lacking, 'and')} as well (docs/adding-a-target.md)"
            raise UserError(f"given {given}, wanted {wanted}")
