"""Dump files: one kernel between two passes, with all that `convgen replay` needs to continue.

    # convgen dump
    # target: TARGET
    # after: lower_tiles
    # problem: --dir=FWD_D --dt=f16 mb1_ic16oc16_ih6oh6kh3ph1
    # config: tile=32x16x16 waves=1x1 mma=16x16x16 slots=1 taps=split acc=v
    # disable: simplify,place_lets
    # scalars: {"n": 5}
    ... the kernel as `ir.text.to_text` writes it

Lines without a value (`after` of a kernel as built, `problem` of a hand-written one) are left out.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from convgen.compile_steps import check_names, steps
from convgen.driver import Build, Options, build, wrap
from convgen.ir import untrusted
from convgen.ir.error import UserError, visible
from convgen.ir.mutate import postorder
from convgen.ir.node import Node
from convgen.ir.program import Kernel
from convgen.ir.record import evolve
from convgen.ir.text import parse
from convgen.ir.text import to_text as text_of
from convgen.ir.verify import sound
from convgen.passes.pipeline import PASSES
from convgen.problem.matmul import parse_problem
from convgen.run.abi import Scalars

_MAGIC = "# convgen dump"
_DEEPEST = 120  #: nodes inside one another; passes recurse a few frames a node
_MOST_BYTES = 1 << 26  #: bytes of a dump file
_MOST_NODES = 1 << 20  #: nodes of a kernel; a shared node counts at each of its places
_KEYS = ("target", "after", "problem", "config", "disable", "scalars")


def to_text(program: Build, kernel: Kernel, after: str | None) -> str:
    """Return the dump file of a kernel of `program` after the pass `after` (None: as built)."""
    values = {
        "target": program.target.facts.name,
        "after": after,
        "problem": program.problem,
        "config": program.config,
        "disable": ",".join(program.options.disable),
        "scalars": json.dumps(dict(program.scalars)) if program.scalars else None,
    }
    header = [f"# {key}: {visible(str(value))}" for key, value in values.items() if value]
    return "\n".join([_MAGIC, *header, text_of(kernel)]) + "\n"


def read(path: Path, options: Options | None = None) -> Build:
    """Return the program that continues from a dump file, with its problem's other kernels. Raises UserError."""
    try:
        text = untrusted.read(path, "a dump file", _MOST_BYTES).decode()
    except UnicodeDecodeError:
        raise UserError(f"given {path} that is not text, wanted a dump file") from None
    values = _header(text, path.name)
    after = values["after"] or None
    if after is not None:
        check_names([after], PASSES)
    asked = options or Options()
    disable = tuple(dict.fromkeys([*filter(None, values["disable"].split(",")), *asked.disable]))
    check_names(disable, steps(values["target"]), optional=True)
    if values["problem"]:
        program = build(parse_problem(values["problem"]), values["target"], values["config"] or None, disable=disable)
        kernel = _kernel(text, path.name)
        known = ", ".join(k.name for k in program.ir.kernels)
        if kernel.name not in (k.name for k in program.ir.kernels):
            raise UserError(f"given kernel {kernel.name}, wanted one of the problem's ({known}), in {path.name}")
        for part in (program, *program.members):
            kernels = tuple(kernel if k.name == kernel.name else k for k in part.ir.kernels)
            part.ir = evolve(part.ir, kernels=kernels)
    else:
        kernel = _kernel(text, path.name)
        program = wrap(kernel, values["target"], _scalars(values["scalars"], path.name))
    for part in (program, *program.members):
        part.options = evolve(asked, disable=disable)
        part.passed = {kernel.name: after} if after else {}
    return program


def _header(text: str, where: str) -> dict[str, str]:
    """Return the value of each key, empty for a key that the file lacks."""
    first, *lines = text.split("\n", 1 + len(_KEYS))
    if first != _MAGIC:
        raise UserError(f"given {where} that begins with {first[:40]!r}, wanted a dump file ({_MAGIC!r})")
    values = dict.fromkeys(_KEYS, "")
    for line in lines:
        key, colon, value = line.removeprefix("# ").partition(": ")
        if not line.startswith("#"):
            break
        if not colon or key not in values:
            wanted = f"wanted '# KEY: VALUE' with one of {', '.join(_KEYS)}"
            raise UserError(f"given the line {line[:60]!r}, {wanted}, in {where}")
        values[key] = value
    if not values["target"]:
        raise UserError(f"given no target, wanted '# target: NAME', in {where}")
    return values


def _kernel(text: str, where: str) -> Kernel:
    kernel = parse(text)
    if not isinstance(kernel, Kernel):
        raise UserError(f"given a dump of a {type(kernel).__name__}, wanted one of a kernel, in {where}")
    _check_size(kernel, where)
    return sound(kernel, where)


def _check_size(kernel: Kernel, where: str) -> None:
    """Refuse a kernel that passes could not walk, or not in time."""
    sizes: dict[Node, tuple[int, int]] = {}
    try:
        nodes = postorder(kernel.body)
    except RecursionError:
        raise UserError(f"given too many nodes inside one another, wanted at most {_DEEPEST}, in {where}") from None
    for node in nodes:
        inner = [sizes[child] for child in node.children()]
        deep, count = 1 + max((d for d, _ in inner), default=0), 1 + sum(c for _, c in inner)
        if deep > _DEEPEST or count > _MOST_NODES:
            given = f"{deep} nodes inside one another, {count} where shared ones count at each place"
            raise UserError(f"given {given}, wanted at most {_DEEPEST} and {_MOST_NODES}, in {where}")
        sizes[node] = deep, count


def _scalars(text: str, where: str) -> Scalars:
    if not text:
        return {}
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    numbers = isinstance(values, dict) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values.values()
    )
    if not numbers:
        raise UserError(f"given scalars {text[:40]!r}, wanted a JSON object of numbers, in {where}")
    return dict(values)
