"""Every kind of finding that a simulator reports names what asks for its rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import convgen.backends.sim
from convgen.backends.amdgpu.sim import sources as amdgpu
from convgen.backends.amdgpu.sim.hazards import TABLES
from convgen.backends.intel.sim import sources as intel
from convgen.backends.simulation import Source

#: Kinds in files of a simulator that it reports under another name.
NAMED_OTHERWISE: dict[object, set[str]] = {amdgpu: {"wait-states"}, intel: {"wait-states", "lds-race"}}
SHARED = Path(convgen.backends.sim.__file__).parent


@pytest.mark.parametrize("sources", [amdgpu, intel], ids=["amdgpu", "intel"])
def test_every_kind_has_a_source(sources: object) -> None:
    """The table has each kind that the simulator's files report, and no other."""
    table: Mapping[str, Source] = sources.SOURCES  # type: ignore[attr-defined]
    files = [*Path(sources.__file__).parent.rglob("*.py"), *SHARED.glob("*.py")]  # type: ignore[attr-defined]
    kinds = {kind for file in files for kind in _reported(ast.parse(file.read_text()))}
    assert kinds - NAMED_OTHERWISE[sources] == set(table)
    assert all(source.text for source in table.values())


def test_every_row_of_wait_states_has_a_source() -> None:
    assert all(row.source.text for table in TABLES.values() for row in table.values())


def _reported(tree: ast.AST) -> Iterator[str]:
    """Yield the kinds in calls of `add` and `at_first`, in (kind, message) pairs of faults, and in values of `kind`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add" | "at_first" | "fault"), args=[first, *_]):
                yield from _kinds(first)
            case ast.Call(func=ast.Attribute(attr="append"), args=[ast.Tuple(elts=[first, *_])]):
                yield from _kinds(first)
            case ast.Assign(targets=[ast.Name(id="kind" | "KIND")], value=value):
                kinds = list(_kinds(value))
                yield from kinds if any("-" in kind for kind in kinds) else ()
            case ast.Call(func=ast.Name(id="Restriction"), keywords=keywords):
                yield from (kind for word in keywords if word.arg == "kind" for kind in _kinds(word.value))
            case ast.AnnAssign(target=ast.Name(id="kind"), value=ast.Constant() as value):
                yield from _kinds(value)
            case ast.AnnAssign(target=ast.Name(id="DEFECTS"), value=ast.Dict(keys=keys)):
                yield from (kind for key in keys if key is not None for kind in _kinds(key))
            case ast.FunctionDef(args=ast.arguments(defaults=defaults)):
                yield from (kind for value in defaults for kind in _kinds(value) if "-" in kind)


def _kinds(node: ast.AST) -> Iterator[str]:
    """Strings, also of a conditional expression, that look like kinds of findings."""
    match node:
        case ast.IfExp(body=one, orelse=other):
            yield from _kinds(one)
            yield from _kinds(other)
        case ast.Constant(value=str(text)) if re.fullmatch(r"[a-z][a-z0-9]*(-[a-z]+)*", text):
            yield text
