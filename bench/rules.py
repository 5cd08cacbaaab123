"""Cost of simplification in nanoseconds per node, beside the design's figures for this kind of machine.

The figures of the design were taken on synthetic graphs of 60,000 two-operand nodes; so are those here, save the last
lines, which simplify the lowered kernels of ResNet layers. Best of several runs, processor time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import process_time

from convgen import driver
from convgen.ir.expr import Add, Expr, Mul, Var, var
from convgen.ir.facts import TargetFacts
from convgen.ir.mutate import Mutator, postorder, substitute
from convgen.ir.node import compiling, sweep
from convgen.ir.program import Kernel
from convgen.ir.simplify.algebra import Algebra, Notes
from convgen.ir.simplify.identities import TABLES
from convgen.ir.simplify.proof import Knowledge
from convgen.ir.simplify.rules import Rewrites
from convgen.ir.simplify.simplify import simplify
from convgen.passes import pipeline
from convgen.problem.conv import Conv

LAYERS, WIDTH = 300, 100  #: of the graph
ROUNDS = 5

PROBLEMS = ("mb1ic64ih56oc64oh56kh3ph1", "mb1ic256ih14oc256oh14kh3ph1", "mb1ic256ih56oc512oh28kh1sh2ph0")


def best(work: Callable[[], object]) -> float:
    """The least seconds that `work` took."""

    def once() -> float:
        start = process_time()
        work()
        return process_time() - start

    return min(once() for _ in range(ROUNDS))


def row(name: str, seconds: float, nodes: int, design: str) -> None:
    print(f"{name:34}{seconds / nodes * 1e9:8.0f} ns/node   design {design}")


def graph(leaves: list[Var]) -> Expr:
    """A layered graph of additions and products: every node has two operands, most have two users."""
    layer: list[Expr] = list(leaves)
    for depth in range(LAYERS):
        kind = (Add, Mul)[depth % 2]
        layer = [kind(layer[i], layer[(i * 7 + depth) % WIDTH]) for i in range(WIDTH)]
    total = layer[0]
    for e in layer[1:]:
        total = Add(total, e)
    return total


def creation(leaves: list[Var], nodes: int) -> None:
    keep: list[Expr] = []

    def miss() -> None:
        keep.clear()
        sweep()
        fresh = [var("x") for _ in range(WIDTH)]
        start = process_time()
        keep.append(graph(fresh))
        times.append(process_time() - start)

    times: list[float] = []
    for _ in range(ROUNDS):
        miss()
    row("creation, miss", min(times), nodes, "398-440")
    keep.append(graph(leaves))
    row("creation, hit", best(lambda: graph(leaves)), nodes, "148-171")


def mutation(root: Expr, leaves: list[Var], nodes: int) -> None:
    row("mutation, unchanged", best(lambda: Mutator()(root)), nodes, "211")
    row("mutation, all rebuilt", best(lambda: substitute(root, {v: var("y") for v in leaves})), nodes, "583")


def rules(root: Expr, nodes: int) -> None:
    """The compiled tables where nothing fires, without and with all that surrounds them."""
    rewrites = Rewrites(*TABLES)
    algebra = Algebra(Knowledge(), Notes(), {})
    todo = [(f, e) for e in postorder(root) if isinstance(e, Expr) and (f := rewrites[type(e)])]

    def tables() -> None:
        for rewrite, e in todo:
            rewrite(algebra, e)

    row("rules, nothing fires", best(tables), len(todo), "125-132")
    row("all equalities, nothing applies", best(lambda: [algebra(e) for _, e in todo]), len(todo), "-")


def simplified(kernel: Kernel, target: TargetFacts) -> tuple[Kernel, Kernel]:
    """The kernel as the pass finds it, and as it leaves it."""
    found: dict[str, tuple[Kernel, Kernel]] = {}

    def observe(p: pipeline.Pass, before: Kernel, after: Kernel, seconds: float) -> None:
        found[p.name] = before, after

    pipeline.run(kernel, target, observe=observe)
    return found["simplify"]


def kernels() -> None:
    """Whole simplification of lowered kernels: the first application and one that finds nothing."""
    for text in PROBLEMS:
        program = driver.build(Conv.parse(text, dir="FWD_D", dt="f16"))
        before, after = simplified(program.ir.kernels[0], program.target.facts)
        count = sum(1 for _ in postorder(before))
        first, again = best(partial(simplify, before)), best(partial(simplify, after))
        print(f"simplify {text:32}{count:5} nodes  {first * 1e3:5.1f} ms, again {again * 1e3:5.1f} ms   wanted <= 5 ms")


def main() -> None:
    leaves = [var("x") for _ in range(WIDTH)]
    with compiling():
        root = graph(leaves)
        nodes = sum(1 for _ in postorder(root))
        creation(leaves, nodes)
        mutation(root, leaves, nodes)
        rules(root, nodes)
        kernels()


if __name__ == "__main__":
    main()
