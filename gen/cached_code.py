"""Compiled code of problems from the compile cache, or made and added to it; many problems in parallel processes.

This is the way of hosts that compile at run time. Commands, which take further options, use `run.cache` themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from convgen import driver, registry
from convgen.backends import target as targets
from convgen.ir.error import ConvgenError
from convgen.problem.matmul import Problem, parse_problem
from convgen.run.cache import Cache, key_of
from convgen.run.code import Code


def cached_code(problem: Problem, target: str) -> Code:
    """Return the code of a problem for a target, with the config of CONVGEN_REGISTRY, else the best one that fits.

    The code has no output tiles if the cache had it. Raises UserError and Unsupported as `driver.build` does.
    """
    entry = registry.find(problem, target)
    config = None if entry is None else entry.config
    key = key_of(problem, target, config, (), False, targets.get(target).assembled_by())
    return Cache().code(key, problem, target, lambda: driver.compile(driver.build(problem, target, config)))


def compile_ahead(lines: Iterable[str], target: str, processes: int) -> dict[str, str]:
    """Compile problem lines into the compile cache, in `processes` processes; return why lines were refused.

    Without a compile cache (`CONVGEN_CACHE=off`) the code is lost.
    """
    todo = list(dict.fromkeys(lines))
    if not todo:
        return {}
    with ProcessPoolExecutor(min(processes, len(todo)), mp_context=get_context("spawn")) as pool:
        refusals = pool.map(_refusal, todo, [target] * len(todo))
        return {line: why for line, why in zip(todo, refusals, strict=True) if why}


def _refusal(line: str, target: str) -> str:
    """Compile a problem line into the cache; return the reason if convgen refuses it, else an empty text."""
    try:
        cached_code(parse_problem(line), target)
    except ConvgenError as error:
        return str(error)
    return ""
