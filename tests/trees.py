"""Random expressions on a target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from convgen.backends.target import Target
from tests.arithmetic import Case, after_passes, clean, compile_all, differing, launch, results, widths
from tests.strategies import Tree


def check(to: Target, drawn: Sequence[Tree], seed: int) -> None:
    """Random expressions, interpreted before and after each pass, and simulated: the same."""
    width = to.facts.subgroup_size
    cases = [Case(tree, widths(tree.elem)[(seed + n) % 2], width) for n, tree in enumerate(drawn)]
    kernels = [case.kernel(f"k{n}") for n, case in enumerate(cases)]
    if not kernels:
        return
    code, emitted = compile_all(to, kernels)
    for tree, case, kernel in zip(drawn, cases, kernels):
        memory = case.memory(seed)
        wanted = results(kernel, memory, tree.elem)
        for name, after in after_passes(kernel, to.facts).items():
            assert not differing(results(after, memory, tree.elem), wanted, tree.elem).any(), name
        clean(to.simulate(code, [launch(kernel, emitted[kernel.name])], memory))
        differ = differing(memory["out"].view(tree.elem.numpy), wanted, tree.elem)
        assert not differ.any(), (tree, str(kernel), np.flatnonzero(differ)[:4])
