"""The workspace of a product in slices of K, whose sums a later launch reduces."""

from __future__ import annotations

from convgen.ir.layout.memory import Dim, Global, TensorDim, View
from convgen.ir.layout.tags import Layout
from convgen.plan.plan import Part, Plan


class SliceWorkspace:
    """Workspace for the slices of a batch of products: slices x batch x M x N of the accumulator's type."""

    def __init__(self, plan: Plan, part: Part) -> None:
        count, tile_m = plan.config.slices, plan.config.tile[0]
        n, m, products = part.product.n, part.product.m, part.product.batch
        most = max(p.product.m * p.product.n * p.product.batch for p in plan.parts)
        memory = Global("workspace", plan.acc_type, count * most * plan.acc_type.bytes)
        batch = ((Dim("batch", products, products),),) if len(part.product.result.axes) > 2 else ()
        sizes = {"slice": count, **({"batch": products} if batch else {}), "m": m, "n": n}
        layout = Layout.dense(tuple(sizes.values()), tuple(range(len(sizes))))
        index = tuple(TensorDim(size, ((name, 1),)) for name, size in sizes.items())
        columns, slices = (Dim("n", n, n),), Dim("slice", count, count)
        rows = Dim("m", m, part.mapping.counts[1] * tile_m)
        #: axes N, (slice, M), M padded to whole tiles, and, in a batch, its product
        self.slices = View(memory, layout, (columns, (slices, rows), *batch), index)
        #: axes N, M, slice and, in a batch, its product
        self.terms = View(memory, layout, (columns, (Dim("m", m, m),), (slices,), *batch), index)
