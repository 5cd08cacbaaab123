"""The text of small kernels, as tests compare it."""

from __future__ import annotations

import re

from convgen.ir.program import Kernel


def statements(kernel: Kernel) -> list[str]:
    """The lines of the body, indented by their depth; variables of one name are numbered in order of appearance."""
    lines = [line.partition("  #")[0] for line in str(kernel).splitlines() if line.startswith("  ")]
    body = lines[next(n for n, line in enumerate(lines) if "subgroups of" in line) + 1 :]
    body = [line[2:] for line in body if not re.match(r"  (shared|view|v\d+ = )", line)]
    seen: dict[str, list[str]] = {}

    def numbered(found: re.Match[str]) -> str:
        name, number = found.groups()
        ids = seen.setdefault(name, [])
        ids += [number] if number not in ids else []
        return f"{name}.{ids.index(number) + 1}"

    return [re.sub(r"\b([a-z]\w*)\.(\d+)", numbered, line) for line in body]
