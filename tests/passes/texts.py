"""The text of small kernels, as tests compare it."""

from __future__ import annotations

import re

from convgen.ir.expr import Var
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.text import show

_NAME = re.compile(r"[A-Za-z_][\w.]*")


def ranked(kernel: Kernel) -> str:
    """The text of a kernel, variables of one name numbered in order of appearance."""
    nodes = [*kernel.params, *postorder(kernel)]
    known = {f"{v.name}.{v.id}": v.name for v in nodes if isinstance(v, Var)}
    seen: dict[str, dict[str, int]] = {}

    def numbered(found: re.Match[str]) -> str:
        name = known.get(found[0])
        if name is None:
            return found[0]
        ranks = seen.setdefault(name, {})
        return f"{name}.{ranks.setdefault(found[0], len(ranks) + 1)}"

    lines = (line.partition("  #") for line in show(kernel).splitlines())
    return "\n".join(_NAME.sub(numbered, text) + mark + remark for text, mark, remark in lines)


def statements(kernel: Kernel) -> list[str]:
    """The lines of the body without remarks, indented by their depth."""
    lines = [line.partition("  #")[0][2:] for line in ranked(kernel).splitlines()]
    declared = re.compile(r"(shared|instruction|product) [\w.]+:|view [\w.]+ =|  (v|t)\d+ = ")
    first = next(n for n, line in enumerate(lines) if "subgroups of" in line)
    return [line for line in lines[first + 1 :] if not declared.match(line)]
