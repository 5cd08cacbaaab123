"""Layering: which room and which floor of `gen` may import which, package lists, and file names."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {"ir": "convgen.ir", "passes": "convgen.passes", "backends": "convgen.backends", "gen": "convgen"}

#: Room -> the rooms that it may import.
ALLOWED = {
    "ir": ("ir",),
    "passes": ("ir", "passes"),
    "gen": ("ir", "passes", "gen"),
    "backends": ("ir", "passes", "backends"),
}

#: The floors of `gen` from bottom to top. A module imports its own floor and the floors below.
FLOORS = (
    "version",
    "default_target",
    "problem",
    "run",
    "epilogue",
    "plan",
    "choose",
    "kernels",
    "tile",
    "registry",
    "compile_steps",
    "driver",
    "simulated_calls",
    "cached_code",
    "profile",
    "device",
    "torch",
    "tune",
    "show",
    "explain",
    "commands",
    "sim",
)

#: What `gen` may know of `backends`: the records of families, the way to a target, its stages, and the plain records
#: that cross that joint.
_JOINT = ("family", "target", "stages", "simulation", "analysis", "timing", "tuning", "device", "library")
GATES = tuple(f"convgen.backends.{name}" for name in _JOINT)

#: Folders of `backends` that all families use.
SHARED = {"sim", "machine", "event_model"}

#: What a simulator may know of `ir`: how one fails, how records are made, how hostile files are read, and the record of
#: a tensor map, which is an argument of a launch.
LEAVES = ("convgen.ir.error", "convgen.ir.record", "convgen.ir.untrusted", "convgen.ir.layout.tensor_map")


def sources() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def module_of(path: Path) -> str:
    """The installed name of a source file."""
    room, *parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([ROOMS[room], *(part for part in parts if part != "__init__")])


MODULES = {module_of(path): path for path in sources()}


def imports(source: str) -> Iterator[str]:
    """Every module of ours that a source imports, at the top, lazily or for types only."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in ("convgen", *ROOMS))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room"
            module = node.module or ""
            if module.split(".")[0] in ("convgen", *ROOMS):
                yield from (f"{module}.{a.name}" if f"{module}.{a.name}" in MODULES else module for a in node.names)


def room_of(module: str) -> str:
    rooms = (room for room, name in ROOMS.items() if room != "gen" and f"{module}.".startswith(f"{name}."))
    return next(rooms, "gen")


def allowed(importer: str, imported: str) -> bool:
    """Whether the table, and the rules inside `backends`, let `importer` import `imported`."""
    if imported.split(".")[0] != "convgen":
        return False
    rooms = room_of(importer), room_of(imported)
    if rooms == ("gen", "backends"):
        return imported in GATES
    if rooms == ("gen", "gen"):
        return floor_of(imported) <= floor_of(importer)
    if rooms == ("backends", "ir") and "sim" in importer.split("."):
        return imported in LEAVES
    if rooms == ("backends", "backends"):
        return inside_backends(importer.split(".")[2:], imported.split(".")[2:])
    return rooms[1] in ALLOWED[rooms[0]]


def floor_of(module: str) -> int:
    """The number of a module's floor in `gen`; the package itself and `python -m convgen` stand above all floors."""
    floor = module.split(".")[1:2]
    return FLOORS.index(floor[0]) if floor and floor != ["__main__"] else len(FLOORS)


def inside_backends(importer: list[str], imported: list[str]) -> bool:
    """Families do not import each other; a simulator shares no rows with its emitter, nor do all simulators."""
    families = {path.parent.name for path in (ROOT / "backends").glob("*/__init__.py")} - SHARED
    if importer[:1] == ["sim"] and imported[:1] != ["sim"]:  # what simulators share knows no family
        return imported == ["simulation"]
    if imported[:1] and imported[0] in families and importer[:1] != imported[:1]:
        return False  # records name modules, which are loaded when they are used
    if importer[1:2] == ["sim"] and imported[:1] == importer[:1]:
        return imported[1:2] == ["sim"]
    return True


@pytest.mark.parametrize("module", sorted(MODULES))
def test_rooms_import_only_what_they_may(module: str) -> None:
    wrong = [name for name in imports(MODULES[module].read_text()) if not allowed(module, name)]
    assert not wrong, f"{module} may not import {wrong}"


@pytest.mark.parametrize("room", ROOMS)
def test_files_are_short(room: str) -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in (ROOT / room).rglob("*.py")}
    assert not {name: count for name, count in lines.items() if count > 550}


FORBIDDEN = [
    ("convgen.ir.expr", "convgen.passes.unroll"),
    ("convgen.ir.expr", "convgen"),
    ("convgen.ir.expr", "ir.types"),
    ("convgen.passes.unroll", "convgen.problem.conv"),
    ("convgen.passes.unroll", "convgen.backends.target"),
    ("convgen.commands.cli", "convgen.backends.amdgpu.tables"),
    ("convgen.commands.cli", "convgen.backends"),
    ("convgen.plan.plan", "convgen.choose.clocks"),
    ("convgen.driver", "convgen.commands.cli"),
    ("convgen.explain.page", "convgen"),
    ("convgen.backends.target", "convgen.problem.conv"),
    ("convgen.backends.target", "convgen.backends.amdgpu.targets"),
    ("convgen.device.devices", "convgen.backends.amdgpu.hip"),
    ("convgen.backends.amdgpu.select", "convgen.backends.intel.select"),
    ("convgen.backends.amdgpu.sim.step", "convgen.backends.amdgpu.tables"),
    ("convgen.backends.amdgpu.sim.step", "convgen.backends.amdgpu"),
    ("convgen.backends.amdgpu.sim.step", "convgen.ir.types"),
    ("convgen.backends.nvidia.sim.step", "convgen.backends.nvidia.select"),
    ("convgen.backends.sim.device_memory", "convgen.ir"),
]


@pytest.mark.parametrize(("importer", "imported"), FORBIDDEN)
def test_the_table_forbids(importer: str, imported: str) -> None:
    if "intel" in imported and not (ROOT / "backends" / "intel").exists():
        pytest.skip("one family only")
    assert not allowed(importer, imported)


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_simulator_shares_what_knows_nothing_else_of_the_ir(leaf: str) -> None:
    assert allowed("convgen.backends.sim.errors", leaf)
    assert set(imports(MODULES[leaf].read_text())) <= set(LEAVES)


def test_imports_are_found_wherever_they_stand() -> None:
    source = "import convgen.ir.types\ndef f():\n    from convgen.ir import expr, nothing\n    import json, ir.types\n"
    assert list(imports(source)) == ["convgen.ir.types", "convgen.ir.expr", "convgen.ir", "ir.types"]


#: File names that the families share with another room: a pass and its selection, a command and its work.
SHARED_NAMES = {"__init__.py", "exchange.py", "analyze.py"}


def test_file_names_are_unique_outside_the_families() -> None:
    """A name stands for one module. The families, and what they share, use one name for one role."""
    backends, variants = ROOT / "backends", ROOT / "gen" / "plan" / "variants"  # a variant is named by its word
    families = {path.name for path in sources() if path.is_relative_to(backends)}
    others = Counter(path.name for path in sources() if not path.is_relative_to(backends) and path.parent != variants)
    repeated = {name for name, count in others.items() if count > 1 or name in families}
    assert repeated == SHARED_NAMES


def packages() -> dict[str, Path]:
    return {name: path for name, path in MODULES.items() if path.name == "__init__.py"}


def test_package_lists_match_the_tree() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert sorted(setuptools["packages"]) == sorted(packages())
    assert setuptools["package-dir"] == {name: room for room, name in ROOMS.items()}


@pytest.mark.parametrize("name", sorted(packages()))
def test_a_package_has_one_name(name: str) -> None:
    spec = importlib.util.spec_from_file_location("another_name", packages()[name])
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=f"as {name}, not as another_name"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_rooms_cannot_be_imported_from_the_checkout(room: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {room}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"import this package as {ROOMS[room]}" in done.stderr
