"""Branches at which fused threads may diverge, that is, threads that share an instruction pointer (EU fusion, XeHPG).

`jmpi` takes both threads one way. Most conditions are equal in both by construction; where generated kernels branch on
data of a subgroup, its partner takes part in the decision (`gen/kernels/agree.py`). For other kernels the driver
switches EU fusion off, as the graphics compiler does for `dpas` in divergent branches (IGC, `DpasScan`). Kernels whose
instructions need both threads cannot do without fusion.
"""

from __future__ import annotations

from convgen.ir.error import Unsupported
from convgen.ir.expr import Mma
from convgen.ir.facts import TargetFacts
from convgen.ir.lockstep import parting
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.text import in_short


def may_diverge(kernel: Kernel, facts: TargetFacts) -> bool:
    """Return whether threads 2k and 2k + 1, which would share an instruction pointer, may diverge at a branch.

    Raises Unsupported if they also multiply together.
    """
    branch = next(parting(kernel, facts.lockstep), None) if facts.lockstep else None
    if branch is None:
        return False
    together = next((n.op.atom for n in postorder(kernel.body) if isinstance(n, Mma) and n.op.atom.spans > 1), None)
    if together is not None:
        raise Unsupported(
            f"given a branch on {in_short(branch[1])}, which may differ between subgroups 2k and 2k + 1, and "
            f"{together.name}, which both execute together; wanted one value in both, or an instruction of one subgroup"
        )
    return True
