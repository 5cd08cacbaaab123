"""Families as records: found by their folders, apart from each other, with a row for each target in every table."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convgen.backends import family as families
from convgen.backends import target as targets
from convgen.backends.analysis import GROUPS
from convgen.backends.family import Family
from convgen.ir.error import UserError
from convgen.ir.layout import mapping
from convgen.ir.record import evolve

BACKENDS = Path(families.__file__).parent
KNOWN = families.families()


def test_families_are_found_by_their_folders() -> None:
    assert [family.name for family in KNOWN] == sorted(path.parent.name for path in BACKENDS.glob("*/family.py"))
    assert all(family.module.startswith(f"convgen.backends.{family.name}.") for family in KNOWN)


@pytest.mark.parametrize("name", targets.names())
def test_a_target_belongs_to_the_family_that_lists_it(name: str) -> None:
    target = targets.get(name)
    assert target.family is families.of_target(name)
    assert target.facts.name == name


@pytest.mark.parametrize("family", KNOWN, ids=lambda family: family.name)
def test_a_record_names_modules_that_are_there(family: Family) -> None:
    modules = [family.module, family.reader, family.model, family.simulator, family.executor, family.timer]
    modules += [family.runtime.module] if family.runtime else []
    modules += [family.viewer.module] if family.viewer else []
    for module in filter(None, modules):
        path = BACKENDS.joinpath(*module.removeprefix("convgen.backends.").split("."))
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), module
    assert set(family.terms.groups.values()) <= set(GROUPS)
    assert {chip.target for chip in family.chips} <= set(family.targets)


@pytest.mark.parametrize("family", families.having("runtime"), ids=lambda family: family.name)
def test_every_runtime_launches_the_grids_that_mappings_make(family: Family) -> None:
    assert family.runtime is not None
    assert min(family.runtime.most_workgroups) >= mapping.MOST_ALONG_Y_OR_Z


@pytest.mark.parametrize(
    ("target", "kinds"),
    [
        ("gfx942", {"mfma": "matrix", "ds_read": "shared", "vmem_load": "memory", "smem": "memory", "valu": "vector"}),
        ("gfx942", {"waitcnt": "wait", "wait": "wait", "barrier": "wait", "salu": "scalar", "nop": "scalar"}),
        (
            "xe2",
            {"dpas": "matrix", "slm_load": "shared", "ugm_store_2d": "memory", "mov": "vector", "branch": "scalar"},
        ),
        ("xe2", {"sync": "wait", "barrier_signal": "wait", "unheard_of": "scalar"}),
    ],
)
def test_kinds_of_instructions_are_of_groups(target: str, kinds: dict[str, str]) -> None:
    family = families.of_target(target)
    assert family is not None
    assert {kind: family.terms.group(kind) for kind in kinds} == kinds


OTHER = evolve(
    KNOWN[0],
    name="other",
    targets=("other1",),
    text_suffix=".other",
    object_suffix=".object",
    machine=9999,
    runtime=None,
    chips=(),
)


def test_a_family_is_known_within_the_block_that_adds_it() -> None:
    with families.adding(OTHER):
        assert families.families()[-1] is OTHER
        assert families.of_target("other1") is families.of_suffix(".other") is OTHER
        assert families.of_object(b"\x7fELF".ljust(18, b"\0") + (9999).to_bytes(2, "little")) is OTHER
        assert targets.names()[-1] == "other1"
    assert families.families() == KNOWN
    assert families.of_target("other1") is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": "amdgpu"}, "the name amdgpu"),
        ({"targets": ("xe2",)}, "the target xe2"),
        ({"object_suffix": ".hsaco"}, "the suffix .hsaco"),
        ({"machine": 224}, "the machine 224"),
        ({"runtime": KNOWN[0].runtime}, "the runtime hip"),
        ({"chips": KNOWN[0].chips[:1]}, "the chip mi250"),
    ],
)
def test_two_families_share_no_name(changes: dict[str, Any], complaint: str) -> None:
    with (
        pytest.raises(UserError, match=f"^given two families with {re.escape(complaint)}, wanted one$"),
        families.adding(evolve(OTHER, **changes)),
    ):
        pass
    assert families.families() == KNOWN


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("family", "table", "like", "lacking"),
    [
        ("intel", "tables.GENERATIONS", "xe2", "tables.py: FACTS, tuning.py: TUNING and zebin_devices.py: DEVICES"),
        ("intel", "tuning.TUNING", "xe2", "family.py: targets, tables.py: GENERATIONS and tables.py: FACTS"),
        ("amdgpu", "tuning.TUNING", "gfx950", "tables.py: MFMA"),
        ("amdgpu", "chips.USUAL", "gfx950", "tuning.py: TUNING"),
        ("amdgpu", "hazards.HAZARDS", "gfx950", "family.py: targets"),
    ],
)
def test_a_chip_in_one_table_only_is_a_sentence_at_import(family: str, table: str, like: str, lacking: str) -> None:
    """A row is added before the family's targets are imported, as one that a person has just written."""
    module, _, name = table.partition(".")
    script = (
        f"from convgen.backends.{family} import {module}\n"
        f"{table}['unknown'] = {table}[{like!r}]\n"
        f"from convgen.backends import target\n"
        f"target.get({like!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith(f"convgen.ir.error.UserError: given a row for unknown in {module}.py: {name} of backends/")
    assert lacking in last
    assert last.endswith(" as well (docs/adding-a-target.md)")


@pytest.mark.parametrize(
    ("family", "table", "like"),
    [
        ("amdgpu", "tables.PRODUCTS", "gfx950"),
        ("amdgpu", "tables.MFMA", "gfx950"),
        ("intel", "tables.GENERATIONS", "xe2"),
        ("intel", "zebin_devices.DEVICES", "xe2"),
    ],
)
def test_the_sentence_names_the_table_and_what_lacks_the_row(
    family: str, table: str, like: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, name = table.partition(".")
    rows = getattr(importlib.import_module(f"convgen.backends.{family}.{module}"), name)
    monkeypatch.setitem(rows, "unknown", rows[like])
    record = next(each for each in KNOWN if each.name == family)
    where = f"{module}.py: {name}"
    complaint = f"^given a row for unknown in {where} of backends/{family}/, wanted one in family.py: targets as well"
    with pytest.raises(UserError, match=complaint):
        families.check_rows(record, {where: rows})


def test_a_target_of_the_record_without_rows_is_told() -> None:
    record = evolve(KNOWN[0], targets=(*KNOWN[0].targets, "unknown"))
    with pytest.raises(UserError, match=r"unknown in family\.py: targets .*, wanted one in TABLE as well"):
        families.check_rows(record, {"TABLE": KNOWN[0].targets})
