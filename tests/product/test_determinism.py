"""The same text always: whatever Python's hash seed, whatever was imported or built before in the process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from convgen import driver
from convgen.passes.messages.linear import linearize
from convgen.problem.conv import Conv
from tests.product.problems import chosen, generated

ROOT = Path(__file__).parents[2]
SMALL = chosen([p for p in generated() if p.macs < 20_000_000], 3)
HALOS = [Conv.parse(f"mb1ic32ih{side}oc16kh3ph1", dir="FWD_D", dt="bf16:bf16:f32") for side in (4, 8, 9, 13)]
RESNET = Conv.parse("mb1ic64ih56oc64oh56kh3ph1", dir="FWD_D", dt="bf16:bf16:f32")

#: Reads problem lines, prints the digests of their assembly; the argument is a module to import first.
SCRIPT = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
from tests.product.test_determinism import digest
from convgen.problem.conv import Conv
print(json.dumps([digest(Conv.parse(line)) for line in json.load(sys.stdin)]))
"""


def digest(problem: Conv) -> str:
    """The assembly file's digest."""
    return hashlib.sha256(driver.compile(driver.build(problem)).asm.encode()).hexdigest()


def digests(problems: list[Conv], seed: int, first: str = "convgen") -> list[str]:
    """The digests as another process with that hash seed makes them."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, first],
        input=json.dumps(list(map(str, problems))),
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout)
    assert len(found) == len(problems)
    return found


def test_the_hash_seed_does_not_matter() -> None:
    problems = [*SMALL, RESNET]
    assert digests(problems, 1) == digests(problems, 2)


def test_the_order_of_imports_does_not_matter() -> None:
    problems = [*SMALL, *HALOS]
    usual = digests(problems, 1)
    for first in ("convgen.ir.layout.memory", "convgen.ir.stmt", "convgen.backends.intel.select"):
        assert digests(problems, 1, first) == usual, first


def test_what_was_built_before_does_not_matter() -> None:
    problems = [*SMALL, RESNET]
    forwards = [digest(p) for p in problems]
    backwards = [digest(p) for p in reversed(problems)]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) == len(problems)


def test_views_that_were_linearized_before_do_not_matter() -> None:
    """A long process forgets them before the planes that were found in them."""
    problem = Conv.parse("mb2ic64ih128oc4kh3ph1", dir="FWD_D", dt="f16")
    config = "tile=384x16x288 waves=8x1 mma=16x8x16 slots=2 taps=resident acc=v subtiles=2"

    def text() -> str:
        return driver.compile(driver.build(problem, "xehpc", config)).asm

    before = text()
    linearize.cache_clear()
    assert text() == before


def test_compiling_twice_does_not_matter() -> None:
    program = driver.build(RESNET)
    assert driver.compile(program).asm == driver.compile(program).asm


@pytest.mark.sweep
def test_the_hash_seed_does_not_matter_for_the_whole_list() -> None:
    problems = [*generated(), *generated("bf16")]
    assert digests(problems, 1) == digests(problems, 2)
