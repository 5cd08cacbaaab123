"""Fixtures and options of all tests: helpers importable as `tests.*`, drawn examples, golden files, skips."""

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from convgen.backends import family as families
from convgen.backends import toolchain

sys.path.append(str(Path(__file__).parents[1]))  # pytest's importlib mode adds no path

os.environ["CONVGEN_CACHE"] = "off"  # tests want to see code being made
os.environ.pop("CONVGEN_REGISTRY", None)

settings.register_profile("convgen", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("convgen")

FOLDER = Path(__file__).parent / "golden"
LINES = 150  #: more than that nobody reads


def blessing() -> bool:
    """Whether golden files are to be rewritten: `./dev bless`."""
    return bool(os.environ.get("CONVGEN_BLESS"))


@pytest.fixture(scope="session")
def hip_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for HIP's runtime, one a process: convgen takes a runtime that is loaded already."""
    from tests.gen.device.standin import build

    return build(tmp_path_factory.mktemp("hip"))


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare a text with the golden file of that name, or write it when blessing."""

    def compare(name: str, text: str) -> None:
        assert text.count("\n") < LINES
        path = FOLDER / name
        if blessing():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{path.name} differs: look at the change, then ./dev bless"

    return compare


#: Objects made, less those gone, before Python looks for cycles. Every 100,000 take a seventh of the time; every
#: 1,500,000 take half of that, and 100 MB more.
GARBAGE = 1_500_000


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as sweeps the cases that `in_turn(n)` leaves out of most runs (`tests/turns.py`)."""
    from tests.turns import in_turn

    cases: defaultdict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("in_turn") and not item.get_closest_marker("sweep"):
            cases[_function(item)].append(item)
    for of_function in cases.values():
        (n,) = {item.get_closest_marker("in_turn").args[0] for item in of_function}  # type: ignore[union-attr]
        chosen = in_turn({item.name: _parameters(item) for item in of_function}, n)
        for item in of_function:
            if item.name not in chosen:
                item.add_marker(pytest.mark.sweep)


def _parameters(item: pytest.Item) -> Mapping[str, object]:
    """Return a case's parameters, of which a target is named as such, beside its family."""
    from tests.turns import FAMILY, TARGET

    given: Mapping[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
    found: dict[str, object] = {}
    for name, value in given.items():
        family = families.of_target(value) if isinstance(value, str) else None
        found |= {name: value} if family is None else {TARGET: value, FAMILY: family.name}
    return found


def _function(item: pytest.Item) -> tuple[str, str]:
    return str(item.path), getattr(item, "originalname", item.name)


def pytest_collection_finish() -> None:
    """Thousands of tests and modules stay until the end: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE, 5, 5)


def pytest_sessionfinish() -> None:
    """Looks for cycles once; pytest does so five times more, which is to cost nothing."""
    gc.collect()
    gc.freeze()


#: Why a test may be skipped where --no-skips is given: beginnings of reasons. Not every release has Intel's driver, and
#: not every index CUDA's assembler or a CPU build of torch.
ALLOWED_SKIPS = (
    "this iga64 does not know xe2",
    "no assembler: an iga64 that lists the platform xe2",
    "ocloc is not installed",
    "Intel's Level Zero driver is not installed",
    "no chromium with its driver",
    "ptxas is not installed",
    "could not import 'torch'",
    "ptxas after 13.0 puts the fence in",
    "compares with tools of Debian 12",
)


#: tools without which there is no code object; none of them may be missing where --no-skips is given
_NEEDED = (toolchain.CLANG, toolchain.LLVM_MC, toolchain.LLD, toolchain.LLVM_OBJDUMP, toolchain.IGA64)
_MISSING: list[str] = []  #: tools that tests of the running module looked for in vain


@pytest.fixture(autouse=True, scope="module")
def _notes_missing_tools() -> Iterator[None]:
    """Note the tools that tests of a module look for in vain: those that then fail are skipped."""
    paths = toolchain.Tool.all
    _MISSING.clear()

    def noted(tool: toolchain.Tool) -> Iterator[str]:
        found = list(paths(tool))
        if not found and tool in _NEEDED:
            _MISSING.append(tool.name)
        return iter(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain.Tool, "all", noted)
        yield


#: texts and behaviour of Debian 12's LLVM 22, iga64 and Intel driver; other releases differ
with_debian_12 = pytest.mark.skipif(
    "bookworm" not in Path("/etc/os-release").read_text(), reason="compares with tools of Debian 12"
)


def found_tool(tool: toolchain.Tool) -> str:
    """Return the path of an installed tool; skip the test without it."""
    path = tool.find()
    if path is None:
        pytest.skip(f"{tool.name} is not installed")
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail where tests are skipped, but for known reasons")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a test that fails for lack of a tool as skipped, and with --no-skips a skipped one as failed.

    In CI everything is installed.
    """
    report = yield
    if report.failed and _MISSING:
        path, line, _ = item.location
        report.outcome, report.longrepr = "skipped", (path, line or 0, f"Skipped: {_MISSING[0]} is not installed")
    if report.skipped and item.config.getoption("no_skips") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(ALLOWED_SKIPS):
            report.outcome, report.longrepr = "failed", f"given a skip ({reason}), wanted none, as --no-skips says"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the rows that tests left as the property `row`."""
    reports = [r for outcome in ("passed", "failed") for r in terminalreporter.getreports(outcome)]
    rows = [value for r in reports for key, value in r.user_properties if key == "row"]
    if rows:
        terminalreporter.section("problems: config, outputs checked, wave-instructions, time", sep="=")
        terminalreporter.write_line("\n".join(map(str, rows)))
