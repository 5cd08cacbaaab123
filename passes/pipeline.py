"""The passes in order, one list, and how to run, observe and disable them.

A lowering pass is required: later stages rely on its result. An optimising pass may be left out; the kernel stays
correct. Passes are pure functions of a kernel and the target's facts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from time import perf_counter

from convgen.ir.error import Unsupported, UserError, VerifyError
from convgen.ir.expr import Mma
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import postorder
from convgen.ir.products import BlockMma
from convgen.ir.program import Kernel
from convgen.ir.record import frozen
from convgen.ir.simplify.simplify import simplify
from convgen.ir.verify import verify
from convgen.passes.buffer_shared import buffer_shared
from convgen.passes.carry_addresses import carry_addresses
from convgen.passes.drop_barriers import drop_barriers
from convgen.passes.exchange import exchange
from convgen.passes.expand_conversions import expand_conversions
from convgen.passes.expand_division import expand_division
from convgen.passes.fill_stores import fill_stores
from convgen.passes.hoist_stores import hoist_stores
from convgen.passes.legalize_messages import legalize_messages
from convgen.passes.lower_tiles import lower_tiles
from convgen.passes.order_sums import order_sums
from convgen.passes.peephole import peephole
from convgen.passes.place_lets import place_lets
from convgen.passes.reduce_strength import reduce_strength
from convgen.passes.resolve_packs import resolve_packs
from convgen.passes.rotate_fragments import rotate_fragments
from convgen.passes.rotate_reads import rotate_reads
from convgen.passes.share_addresses import share_addresses
from convgen.passes.share_lanes import share_lanes
from convgen.passes.share_loads import share_loads
from convgen.passes.split_barriers import split_barriers
from convgen.passes.split_chains import split_chains
from convgen.passes.split_roles import split_roles
from convgen.passes.unroll import unroll

LOWERING, OPTIMISING = "lowering", "optimising"


@frozen
class Pass:
    """One step of the pipeline; `name` is unique."""

    name: str
    level: str  #: level of the input: "tile" or "message"
    kind: str
    run: Callable[[Kernel, TargetFacts], Kernel]

    @property
    def contract(self) -> str:
        """Return the first paragraph of the pass's docstring, on one line."""
        doc = (self.run.__doc__ or "").strip().split("\n\n")[0]
        return " ".join(doc.split())


def _pass(name: str, level: str, kind: str, run: Callable[[Kernel], Kernel]) -> Pass:
    def on_kernel(kernel: Kernel, facts: TargetFacts) -> Kernel:
        return run(kernel)

    on_kernel.__doc__ = run.__doc__
    return Pass(name, level, kind, on_kernel)


PASSES: tuple[Pass, ...] = (
    Pass("exchange", "tile", LOWERING, exchange),
    Pass("buffer_shared", "tile", LOWERING, buffer_shared),
    Pass("rotate_fragments", "tile", OPTIMISING, rotate_fragments),
    Pass("drop_barriers", "tile", OPTIMISING, drop_barriers),
    _pass("unroll", "tile", OPTIMISING, unroll),
    Pass("lower_tiles", "tile", LOWERING, lower_tiles),
    Pass("rotate_reads", "message", OPTIMISING, rotate_reads),
    Pass("split_roles", "message", LOWERING, split_roles),
    Pass("legalize_messages", "message", LOWERING, legalize_messages),
    _pass("split_chains", "message", OPTIMISING, split_chains),
    _pass("resolve_packs", "message", LOWERING, resolve_packs),
    Pass("expand_conversions", "message", LOWERING, expand_conversions),
    _pass("simplify", "message", OPTIMISING, simplify),
    _pass("share_loads", "message", OPTIMISING, share_loads),
    Pass("reduce_strength", "message", OPTIMISING, reduce_strength),
    Pass("share_lanes", "message", OPTIMISING, share_lanes),
    Pass("share_addresses", "message", OPTIMISING, share_addresses),
    Pass("carry_addresses", "message", OPTIMISING, carry_addresses),
    _pass("expand_division", "message", LOWERING, expand_division),
    Pass("hoist_stores", "message", OPTIMISING, hoist_stores),
    Pass("fill_stores", "message", OPTIMISING, fill_stores),
    Pass("order_sums", "message", OPTIMISING, order_sums),
    Pass("place_lets", "message", OPTIMISING, place_lets),
    Pass("peephole", "message", OPTIMISING, peephole),
    Pass("split_barriers", "message", OPTIMISING, split_barriers),
)

#: called after each pass with (pass, kernel before, kernel after, seconds)
Observer = Callable[[Pass, Kernel, Kernel, float], None]


def _check_target(kernel: Kernel, facts: TargetFacts) -> None:
    """Raise Unsupported for a kernel written for another target's subgroup size or matrix instructions."""
    if kernel.width != facts.subgroup_size:
        raise Unsupported(
            f"given subgroups of {kernel.width} lanes, wanted {facts.subgroup_size}, as {facts.name} has them, "
            f"at width= of kernel {kernel.name}"
        )
    for e in postorder(kernel.body):
        atom = e.op.atom if isinstance(e, Mma) else e.op if isinstance(e, BlockMma) else None
        if atom is not None and atom not in (*facts.atoms, *facts.scaled_atoms, *facts.blocks):
            raise Unsupported(
                f"given the matrix instruction {atom.name}, wanted one that {facts.name} has, in kernel {kernel.name}"
            )


def run(
    kernel: Kernel,
    facts: TargetFacts,
    disable: Collection[str] = (),
    observe: Observer | None = None,
    after: str | None = None,
) -> Kernel:
    """Run all passes, or those behind the pass `after`, and verify the result.

    An error in a pass, or in its result, carries the name of the pass as a note.
    """
    verify(kernel)
    _check_target(kernel, facts)
    results: list[tuple[Pass, Kernel]] = []
    for p in PASSES[1 + [p.name for p in PASSES].index(after) if after else 0 :]:
        if p.name in disable:
            continue
        before, start = kernel, perf_counter()
        with noted("pass", p.name):
            kernel = p.run(kernel, facts)
            if observe is not None:
                observe(p, before, kernel, perf_counter() - start)
        results.append((p, kernel))
    try:
        return verify(kernel, "message")
    except VerifyError:
        for p, step in results:  # the first pass whose result is ill-formed is to blame
            with noted("pass", p.name):
                verify(step)
        raise


@contextmanager
def noted(kind: str, name: str) -> Iterator[None]:
    """Add the name of the step to errors raised inside; `kind` is its noun ("pass", for instance)."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(f"{kind}: {name}")
        raise
