"""Cost of an IR node: created, found in the intern table, walked, rewritten."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import attrs
from lib.figures import Figure, best, main

from convgen.ir.expr import Add, Expr, Var, const, var
from convgen.ir.mutate import mutate, postorder, substitute
from convgen.ir.node import sweep

COUNT = 20_000


@attrs.frozen
class Plain:
    """A sum node without interning."""

    a: object
    b: object


def chain(length: int) -> Expr:
    """Sums nested that deep in balanced pairs, no two alike."""
    level: list[Expr] = [var("x") + n for n in range(length)]
    while len(level) > 1:
        level = [a + b for a, b in zip(level[::2], level[1::2])]
    return level[0]


def measure() -> Iterator[Figure]:
    x = var("x")
    constants = [const(n) for n in range(COUNT)]
    kept = [Add(x, c) for c in constants]

    def hits() -> None:
        for c in constants:
            Add(x, c)

    table = {(Add, x, c): e for c, e in zip(constants, kept)}

    def lookups() -> None:
        for c in constants:
            table.get((Add, x, c))

    peer = best(lookups)
    hit = best(hits)
    yield Figure("find a node that exists", hit / COUNT * 1e9, "ns", "a dict lookup", hit / peer)

    def misses() -> float:
        fresh = var("fresh")
        return best(lambda: [Add(fresh, c) for c in constants], rounds=1)

    miss = min(misses() for _ in range(5))
    plain = best(lambda: [Plain(x, c) for c in constants])
    yield Figure("make a node", miss / COUNT * 1e9, "ns", "an attrs record", miss / plain)
    sweep()

    root = chain(4096)
    nodes = len(list(postorder(root)))
    walk = best(lambda: sum(1 for _ in postorder(root)))
    same = best(lambda: mutate(root, {}))
    yield Figure("rewrite without change, a node", same / nodes * 1e9, "ns", "a post-order walk", same / walk)
    leaf = next(e for e in postorder(root) if isinstance(e, Var))

    def replace() -> None:
        substitute(root, {leaf: var("y")})

    changed = best(replace)
    tree = as_tuples(root)
    copied = best(lambda: copy.deepcopy(tree))
    yield Figure("rewrite all of it, a node", changed / nodes * 1e9, "ns", "deepcopy of tuples", changed / copied)


def as_tuples(e: Expr) -> list[object]:
    """Return a tree as nested lists."""
    return [type(e).__name__, *(as_tuples(c) for c in e.children() if isinstance(c, Expr))]


if __name__ == "__main__":
    main("Nodes", measure)
