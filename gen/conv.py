"""Build the tile-level IR of a convolution from its plan: one loop over K blocks, then the store.

The loop is the naive one (copy, barrier, multiply); `buffer_shared` overlaps it.
"""

from __future__ import annotations

import hashlib
import itertools

from convgen.ir import stmt as st
from convgen.ir.expr import Expr, Mma, const, reset_ids, var, zeros
from convgen.ir.program import Kernel, Program
from convgen.ir.types import scalar, vector
from convgen.plan import Plan
from convgen.problem import Conv

K_LOOP = "k_loop"


def kernel_name(plan: Plan, role: str) -> str:
    """Stable across runs and machines: problem and config decide it."""
    text = f"{plan.problem.knobs} {plan.problem.descriptor} {plan.config} {plan.facts.name}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    what = f"conv_{plan.problem.direction.value.lower()}" if isinstance(plan.problem, Conv) else "gemm"
    return f"{what}_{digest}_{role}"


def build_program(plan: Plan) -> Program:
    """The program of a forward convolution: one launch, one output tile a workgroup."""
    reset_ids()
    kernel = _main_kernel(plan)
    return Program((kernel,), (plan.operands.pixels.memory, plan.operands.weights.memory, plan.operands.result.memory))


def _main_kernel(plan: Plan) -> Kernel:
    numbers = itertools.count(1)

    def site(stage: str, comment: str = "") -> st.Site:
        return st.Site(next(numbers), stage, comment)

    tile_m, tile_n, tile_k = plan.config.tile
    tiles_m, tiles_n = plan.grid
    operands, mma = plan.operands, plan.mma
    group = tuple(var(f"group_{axis}") for axis in "xyz")
    subgroup = var("wave")
    m0, n0, kb = var("m0"), var("n0"), var("kb")

    acc, product = var("acc", mma.acc_type), var("acc_next", mma.acc_type)
    total = var("acc_total", mma.acc_type)
    a, b = var("wei_frag", mma.a_type), var("src_frag", mma.b_type)
    slot: Expr = const(0)
    body = st.block(
        st.Barrier(site("release")),
        st.Copy(plan.weights_tile, slot, operands.weights, (n0, kb * tile_k), plan.weights_copy, site("copy", "wei")),
        st.Copy(plan.pixels_tile, slot, operands.pixels, (m0, kb * tile_k), plan.pixels_copy, site("copy", "src")),
        st.Barrier(site("publish")),
        st.LoadShared(a, plan.weights_tile, slot, mma.a, site("fragment", "wei")),
        st.LoadShared(b, plan.pixels_tile, slot, mma.b, site("fragment", "src")),
        st.Let(product, Mma(mma, acc, a, b)),
    )
    loop = st.For(
        kb, const(0), const(plan.k_blocks), (acc,), (zeros(mma.acc_type),), body, (product,), (total,), K_LOOP
    )
    out_type = vector(scalar(plan.problem.dst_type), mma.d.registers)
    store = st.StoreView(operands.result, (n0, m0), total.to(out_type), mma.d, site("store", "dst"))
    return Kernel(
        kernel_name(plan, "main"),
        (operands.pixels.memory, operands.weights.memory, operands.result.memory),
        (tiles_m * tiles_n, 1, 1),
        plan.subgroups,
        plan.facts.subgroup_size,
        group,
        subgroup,
        (plan.weights_tile, plan.pixels_tile),
        st.block(
            st.Let(m0, group[0] // tiles_n * tile_m),
            st.Let(n0, group[0] % tiles_n * tile_n),
            loop,
            store,
        ),
    )
