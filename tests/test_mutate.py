"""`./dev mutate`: which tests judge which file, and what becomes of tests that fail without any mutant."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import mutate
from tests.test_layers import MODULES

ROOT = Path(__file__).parents[1]
SOURCES = [str(f.relative_to(ROOT)) for room in mutate.ROOMS for f in sorted((ROOT / room).rglob("*.py"))]


def test_every_file_has_judges() -> None:
    """And each folder that is named is there, with tests."""
    assert set(mutate.ROOMS) <= mutate.JUDGES.keys()
    for file in SOURCES:
        assert mutate.judges(file), file
    for row, folders in mutate.JUDGES.items():
        assert (ROOT / row).exists(), row
        for folder in folders:
            assert folder.endswith(".py") or list((ROOT / folder).rglob("test_*.py")), folder
            assert (ROOT / folder).exists(), folder


def test_every_folder_of_tests_judges_something() -> None:
    """A new folder of tests gets a row, or its name here with the reason why it judges nothing."""
    named = {folder for folders in mutate.JUDGES.values() for folder in folders if not folder.endswith(".py")}
    folders = {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if list(path.rglob("test_*.py"))}
    assert folders == named


@pytest.mark.parametrize(
    ("file", "folders"),
    [
        ("ir/narrow.py", ("tests/passes", "tests/ir")),
        ("ir/simplify/sums.py", ("tests/ir",)),
        ("gen/tile/trace.py", ("tests/tile", "tests/gen")),
        ("gen/tune/work.py", ("tests/gen",)),
        ("backends/intel/select.py", ("tests/backends",)),
    ],
)
def test_the_longest_row_holds(file: str, folders: tuple[str, ...]) -> None:
    assert mutate.judges(file) == folders


def imported(file: Path) -> set[str]:
    """The modules of the product that a test file names."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_a_file_is_judged_by_tests_that_import_it() -> None:
    """If any test imports a module, the module's row names such a test or its folder: that was written for it."""
    importers: dict[str, set[str]] = {}
    for room in sorted((ROOT / "tests").iterdir()):
        for test in room.rglob("test_*.py"):
            for name in imported(test):
                importers.setdefault(name, set()).update((f"tests/{room.name}", str(test.relative_to(ROOT))))
    wrong = {}
    for name, path in MODULES.items():
        file, by = str(path.relative_to(ROOT)), importers.get(name, set())
        if by and not mutate._LEFT_OUT.search(file) and not by & set(mutate.judges(file)):
            wrong[file] = by
    assert not wrong


# ---------------------------------------------------------------- tests that fail without any mutant

PRODUCT = "def twice(x):\n    return x + x\n"
TESTS = """\
from pathlib import Path

from ir.thing import twice


def test_twice():
    assert twice(3) == 6


def test_the_clock_of_a_busy_machine():
    assert not Path("busy").exists()


def test_fails_in_any_case():
    raise TimeoutError
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A little product with tests, one of which fails in any case, and one while there is a file `busy`."""
    for room in mutate.ROOMS:
        (tmp_path / room).mkdir()
    (tmp_path / "ir/thing.py").write_text(PRODUCT)
    (tmp_path / "tests/ir").mkdir(parents=True)
    (tmp_path / "tests/ir/test_thing.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = sweep\npythonpath = .\n")
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "STATE", tmp_path / ".mutate")
    return tmp_path


ALL = [f"tests/ir/test_thing.py::test_{name}" for name in ("twice", "the_clock_of_a_busy_machine")]
FAILS = "tests/ir/test_thing.py::test_fails_in_any_case"


def test_a_test_that_fails_without_a_mutant_judges_none(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are measured, with a remark; the failing one is tried again the next time."""
    assert list(mutate.measure("tests/ir", jobs=0)) == ALL
    assert capsys.readouterr().err == f"note: {FAILS} fails without any mutant and judges none\n"
    (tree / "busy").touch()
    assert list(mutate.measure("tests/ir", jobs=0)) == ALL[:1]


def mutant(after: str) -> mutate.Mutant:
    return mutate.Mutant("ir/thing.py", 2, 2, "    return x + x", after)


@pytest.mark.parametrize(("after", "expected"), [("    return x - x", False), ("    return 2 * x", True)])
def test_a_test_that_begins_to_fail_judges_no_mutant(
    tree: Path, capsys: pytest.CaptureFixture[str], after: str, expected: bool
) -> None:
    """As on a machine that has become busy since the map was made; what the others say still counts."""
    (tree / "busy").touch()
    assert mutate.survives(mutant(after), ALL[::-1], tree) is expected
    assert capsys.readouterr().err == f"note: {ALL[1]} fails without the mutant, too, and does not judge it\n"
    assert (tree / "ir/thing.py").read_text() == PRODUCT


def test_a_tree_that_pytest_cannot_load_is_an_error(tree: Path) -> None:
    (tree / "pytest.ini").write_text("[pytest]\naddopts = --nonsense\n")
    with pytest.raises(SystemExit, match="pytest cannot run the tests of tests/ir: exit code 4"):
        mutate.measure("tests/ir", jobs=0)
