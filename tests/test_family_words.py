"""Words of a family of targets stand in its folder, and nowhere else but in the named places."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from convgen.backends import family as families

ROOT = Path(__file__).parents[1]

#: What vendors call their things; names of targets, files, runtimes and vendors come from the records.
_WORDS = (
    r"cdna\d?|vgprs?|agprs?|sgprs?|grfs?|v_mfma\w*|mfma\w*|dpas\w*|ds_(?:read|write)\w*|ocloc|iga64|s_waitcnt|vmcnt"
)
_SPELLED = r"LDS|SLM|Xe|XCDs?"  #: in this spelling only: `--lds` and `lds_bytes` are options and keys for shared memory

#: Files that name families, and why.
EXCEPTIONS = {
    "gen/default_target.py": "the one place that names the default target",
    "backends/device.py": "the attribute `__cuda_array_interface__`, which frameworks of all vendors have",
    "gen/device/dlpack.py": "names of DLPack's kinds of devices",
    "gen/device/frameworks.py": "names of devices in frameworks",
    "gen/device/tensor_arguments.py": "names of devices in frameworks",
    "gen/torch/kernel_calls.py": "names of devices, streams and graphs in a framework",
    "gen/run/defaults.py": "names of types in the metadata of others' compilers",
    "ir/floats.py": "sources of error bounds: manuals by their vendors",
    "backends/toolchain.py": "homes of other projects' programs",
    "backends/machine/steady.py": "the finding behind a tuned number names the targets that it was made on",
    "backends/sim/numbers.py": "the source of a rounding rule",
}


def words() -> re.Pattern[str]:
    known = families.families()
    names = [word for f in known for word in (f.name, f.vendor, *f.targets, *(s.lstrip(".") for s in f.suffixes))]
    names += [word for f in known if f.runtime for word in (f.runtime.kind, f.runtime.title, f.runtime.option)]
    told = "|".join(re.escape(name) for name in names if len(name) > 1 and name not in ("asm",))
    begin, end = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
    return re.compile(rf"{begin}(?:(?i:{told}|{_WORDS}|gfx\d\w*)|{_SPELLED}){end}")


def sources() -> list[Path]:
    """Source files outside the families' folders."""
    folders = {ROOT / "backends" / family.name for family in families.families()}
    rooms = [path for room in ("ir", "passes", "gen", "backends") for path in sorted((ROOT / room).rglob("*.py"))]
    templates = sorted((ROOT / "gen").rglob("templates/*"))
    return [path for path in (*rooms, *templates) if not folders & set(path.parents)]


def is_exception(path: Path) -> bool:
    return any(str(path.relative_to(ROOT)).startswith(place) for place in EXCEPTIONS)


@pytest.mark.parametrize("room", ["ir", "passes", "gen", "backends"])
def test_families_are_named_in_their_folders_only(room: str) -> None:
    pattern = words()
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in sources()
        if path.relative_to(ROOT).parts[0] == room and not is_exception(path)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in pattern.finditer(line)
    ]
    assert not found, found


@pytest.mark.parametrize("place", EXCEPTIONS)
def test_exceptions_are_needed(place: str) -> None:
    pattern = words()
    assert any(pattern.search(p.read_text()) for p in sources() if str(p.relative_to(ROOT)).startswith(place))


def test_the_default_target_stands_in_one_place() -> None:
    (line,) = [line for line in (ROOT / "gen" / "default_target.py").read_text().splitlines() if words().search(line)]
    assert line.startswith("DEFAULT_TARGET = ")
