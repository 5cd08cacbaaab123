"""The facts of the targets are what they were; `./dev bless` accepts others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from convgen.backends import target as targets
from convgen.ir.record import as_dict


@pytest.mark.parametrize("target", targets.names())
def test_facts(target: str, golden: Callable[[str, str], None]) -> None:
    """Every number that plans and passes may ask for, the matrix instructions one a line; no line says False.

    Those with a factor in registers are those of the same shape and types that read both in shared memory.
    """
    facts = targets.get(target).facts
    values = {name: value for name, value in as_dict(facts, recurse=False).items() if name != "atoms"}
    told = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in values.items()}
    rows = [f"{name}: {value}" for name, value in told.items() if value is not False]
    for a in (atom for atom in facts.atoms if not atom.b_in_registers):
        types = f"{a.a_elem} {a.b_elem} {a.acc}"
        rest = f"{a.clocks} clocks over {a.spans}, rounds to {a.rounds_to}: {a.a} | {a.b} | {a.d}"
        rows.append(f"{a.name} {a.n}x{a.m}x{a.k} {types} {rest}")
    golden(f"facts/{target}.txt", "\n".join(rows) + "\n")
