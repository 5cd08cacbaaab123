"""What all tests share: helpers importable as `tests.*`, no deadlines on a busy machine, a table of what was run."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.append(str(Path(__file__).parents[1]))  # pytest's importlib mode adds no path

os.environ["CONVGEN_CACHE"] = "off"  # tests want to see code being made

settings.register_profile("convgen", deadline=None)
settings.load_profile("convgen")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the rows that tests left as the property `row`."""
    reports = [r for outcome in ("passed", "failed") for r in terminalreporter.getreports(outcome)]
    rows = [value for r in reports for key, value in r.user_properties if key == "row"]
    if rows:
        terminalreporter.section("problems: config, outputs checked, wave-instructions, time", sep="=")
        terminalreporter.write_line("\n".join(map(str, rows)))
