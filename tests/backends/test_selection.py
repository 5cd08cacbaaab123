"""What a target's facts promise of messages, its selection has."""

from __future__ import annotations

from importlib import import_module

import pytest

from convgen.backends import target as targets
from convgen.ir import stmt as s
from convgen.ir.node import CLASSES
from tests import samples

MESSAGES = [c for c in CLASSES.values() if issubclass(c, s.Stmt) and (c.level == "message" or c is s.Ticket)]


def taken(target: str) -> set[type[s.Stmt]]:
    """The messages of a target by its facts."""
    return {c for c in MESSAGES if targets.get(target).facts.takes(c)}


def selected(target: str) -> set[type[s.Stmt]]:
    """The messages that its family's selection has a method for."""
    family = type(targets.get(target)).__module__.rpartition(".")[0]
    return set(import_module(f"{family}.select").MESSAGES) - {s.Barrier}


@pytest.mark.parametrize("target", samples.TARGETS)
def test_what_a_target_takes_is_selected(target: str) -> None:
    assert taken(target) <= selected(target)


@pytest.mark.parametrize("target", ["gfx950", "xehpc"])
def test_what_is_selected_some_target_takes(target: str) -> None:
    assert selected(target) == taken(target)
