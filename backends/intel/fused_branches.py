"""What becomes of kernels with branches at which threads part that share an instruction pointer (EU fusion, XeHPG).

`jmpi` takes both the same way. Most conditions have one value in both by what they are made of; where generated kernels
decide by what a subgroup finds, its pair decides with it (`gen/kernels/agree.py`). What is left has EU fusion switched
off by the driver, as the graphics compiler wants it for `dpas` in branches that part (IGC, `DpasScan`). Instructions of
both threads together cannot do without.
"""

from __future__ import annotations

from convgen.ir.error import Unsupported
from convgen.ir.expr import Mma
from convgen.ir.facts import TargetFacts
from convgen.ir.lockstep import parting
from convgen.ir.mutate import postorder
from convgen.ir.program import Kernel
from convgen.ir.text import in_short


def parts_threads(kernel: Kernel, facts: TargetFacts) -> bool:
    """Whether threads 2k and 2k + 1, which would share an instruction pointer, may part at a branch.

    Raises Unsupported where they also multiply together.
    """
    found = next(parting(kernel, facts.lockstep), None) if facts.lockstep else None
    if found is None:
        return False
    together = next((n.op.atom for n in postorder(kernel.body) if isinstance(n, Mma) and n.op.atom.spans > 1), None)
    if together is not None:
        raise Unsupported(
            f"given a branch on {in_short(found[1])}, which may differ between subgroups 2k and 2k + 1, and "
            f"{together.name}, which both execute together; wanted one value in both, or an instruction of one subgroup"
        )
    return True
