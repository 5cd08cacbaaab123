"""The page about rules says what is true: its example runs, and its row is one of the tables'."""

from __future__ import annotations

import doctest
from pathlib import Path

from convgen.ir.simplify.identities import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_example_of_facts() -> None:
    example = doctest.DocTestParser().get_doctest(PAGE.read_text(), {}, PAGE.name, str(PAGE), 0)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_the_example_of_a_rule() -> None:
    assert "mod.of_mod" in {rule.name for table in TABLES for rule in table.rules}
    source = (PAGE.parents[1] / "ir" / "simplify" / "identities.py").read_text()
    assert next(line for line in PAGE.read_text().splitlines() if line.startswith('("mod.of_mod"')) in source
