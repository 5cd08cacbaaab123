"""Packed inputs: a launch before lays an input out as one product reads it, in rows of K without gaps.

What it takes to find elements (taps and channels apart, padding of runs and of tiles, masks of phases) is done once
there, not by each workgroup that reads the input: copies of it are whole chunks, and none is masked.
"""

from __future__ import annotations

from convgen.ir.error import DoesNotFit
from convgen.ir.layout.memory import Dim, Global, SizedView, TensorDim, View
from convgen.ir.layout.tags import Layout

_ROWS, _K = "packed_row", "packed_k"  #: dims of the view


def packed(view: View, role: str, rows: int, depth: int) -> View:
    """Where an input of the product `role` goes: a matrix of `rows` x `depth` elements, as many as whole tiles have.

    Raises DoesNotFit where the input is that of several products, has sizes that are known at launch, or two elements
    in a byte.
    """
    memory = view.memory
    if isinstance(view, SizedView) or len(view.axes) > 2 or memory.elem.bits < 8:
        raise DoesNotFit(f"packed={memory.name}: wanted one product, of sizes that are known and whole bytes")
    name = "_".join(filter(None, (memory.name, "packed", role)))
    held = Global(name, memory.elem, memory.elem.size(rows * depth))
    index = TensorDim(rows, ((_ROWS, 1),)), TensorDim(depth, ((_K, 1),))
    axes = (Dim(_ROWS, rows, rows),), (Dim(_K, depth, depth),)
    return View(held, Layout.dense((rows, depth), (0, 1)), axes, index)
