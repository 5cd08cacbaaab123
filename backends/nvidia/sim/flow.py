"""Control flow of a kernel: the order of its blocks, and the registers that each instruction leaves in use.

Threads of a warp that part at a branch meet again where their paths do. The engine always runs the group at the
lowest index, so blocks are ordered such that each block stands behind all blocks on paths to it, back edges of loops
excepted, and a loop is one stretch: then the immediate post-dominator of a branch stands behind both of its sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convgen.backends.nvidia.sim.ptx_text import Instruction, Kernel, Name, Pair, Register, Sink, Vector, registers_of
from convgen.backends.sim.errors import SimulatorError
from convgen.ir.record import frozen

#: Instructions whose first operand is not a destination.
_WITHOUT_RESULT = frozenset(
    "st red bra brx ret exit trap bar barrier membar fence cp stmatrix prefetch prefetchu nanosleep griddepcontrol "
    "call pmevent setmaxnreg applypriority discard".split()
)
_ENDS = frozenset("ret exit trap".split())


@frozen
class Block:
    """A stretch of instructions that is entered at its start only; `after` lists the blocks that may follow."""

    start: int
    end: int
    after: tuple[int, ...]
    falls: int  #: the block that follows without a branch; -1: none


def blocks_of(kernel: Kernel) -> list[Block]:
    """Return the basic blocks of a kernel, in the order of the text."""
    code = kernel.code
    starts = {0, *(index for index in kernel.labels.values() if index < len(code))}
    for index, instruction in enumerate(code):
        if (instruction.name in ("bra", "brx") or instruction.name in _ENDS) and index + 1 < len(code):
            starts.add(index + 1)
    order = sorted(starts)
    number = {start: place for place, start in enumerate(order)}
    blocks = []
    for place, start in enumerate(order):
        end = order[place + 1] if place + 1 < len(order) else len(code)
        last = code[end - 1] if end > start else None
        after: list[int] = []
        if last is not None:
            after = [_block_at(kernel, number, label) for label in _targets(kernel, last)]
        falls = -1
        stops = last is not None and last.guard is None and (last.name in ("bra", "brx") or last.name in _ENDS)
        if not stops:
            falls = place + 1 if place + 1 < len(order) else -1
            after += [falls] if falls >= 0 else []
        blocks.append(Block(start, end, tuple(dict.fromkeys(after)), falls))
    return blocks


def _block_at(kernel: Kernel, number: Mapping[int, int], label: str) -> int:
    index = kernel.labels.get(label)
    if index is None:
        raise SimulatorError(f"given a branch to {label}, wanted a label of kernel {kernel.name}")
    if index not in number:
        raise SimulatorError(
            f"given a branch to {label} behind the last instruction of {kernel.name}, wanted ret there"
        )
    return number[index]


def _targets(kernel: Kernel, instruction: Instruction) -> list[str]:
    if instruction.name == "bra":
        return [operand.name for operand in instruction.operands if isinstance(operand, Name)]
    if instruction.name == "brx":
        table = instruction.operands[1]
        return list(kernel.tables.get(table.name, ())) if isinstance(table, Name) else []
    return []


def ordered(blocks: Sequence[Block]) -> list[int]:
    """Return the reachable blocks in the order that the module's description asks for."""
    reachable, stack = {0}, [0]
    while stack:
        for successor in blocks[stack.pop()].after:
            if successor not in reachable:
                reachable.add(successor)
                stack.append(successor)
    result: list[int] = []
    _arrange(blocks, reachable, 0, result)
    return result


def _arrange(blocks: Sequence[Block], nodes: set[int], entry: int, result: list[int]) -> None:
    """Append the blocks of a region to `result`: one component after another, a loop's header ahead of its body."""
    work: list[tuple[set[int], int]] = [(nodes, entry)]
    while work:
        nodes, entry = work.pop()
        if len(nodes) == 1:
            result.append(entry)
            continue
        components = _components(blocks, nodes, entry)
        following: list[tuple[set[int], int]] = []
        for component in components:
            if len(component) == 1:
                (single,) = component
                following.append(({single}, single))
                continue
            header = _header(blocks, component, nodes, entry)
            rest = component - {header}
            following.append(({header}, header))
            for part in _components(blocks, rest, None):
                if len(part) == 1:
                    (single,) = part
                    following.append(({single}, single))
                else:
                    following.append((part, _header(blocks, part, component, header)))
        work.extend(reversed(following))


def _header(blocks: Sequence[Block], component: set[int], around: set[int], entry: int) -> int:
    """Return the block by which a loop is entered; of several, the first in the text."""
    if entry in component:
        return entry
    entries = {s for b in around - component for s in blocks[b].after if s in component}
    return min(entries or component)


def _components(blocks: Sequence[Block], nodes: set[int], entry: int | None) -> list[set[int]]:
    """Return the strongly connected components of some blocks in topological order (Tarjan), ties as in the text."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    components: list[set[int]] = []
    roots = sorted(nodes, reverse=True) if entry is None else [*sorted(nodes - {entry}, reverse=True), entry]
    for root in roots:
        if root in index:
            continue
        work = [(root, iter(_successors(blocks, nodes, root)))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            advanced = False
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(_successors(blocks, nodes, successor))))
                    advanced = True
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            if advanced:
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                component = set()
                while True:
                    member = stack.pop()
                    on_stack.discard(member)
                    component.add(member)
                    if member == node:
                        break
                components.append(component)
    return components[::-1]


def _successors(blocks: Sequence[Block], nodes: set[int], block: int) -> list[int]:
    """Return successors among some blocks, in reverse order of the text, so that the result has them in its order."""
    return sorted((s for s in blocks[block].after if s in nodes), reverse=True)


# ---------------------------------------------------------------- registers in use


def reads_and_writes(instruction: Instruction, carry: int) -> tuple[int, int]:
    """Return the registers that an instruction reads and writes, as sets of bits."""
    operands = list(instruction.operands)
    reads = writes = 0
    reduces = instruction.name in ("bar", "barrier") and instruction.has("red")
    if operands and (instruction.name not in _WITHOUT_RESULT or reduces):
        first = operands[0]
        if isinstance(first, Register | Vector | Pair | Sink):
            operands.pop(0)
            for register in registers_of(first):
                writes |= 1 << register.number
    if instruction.name == "wgmma":
        reads |= writes  # accumulators
    for operand in operands:
        for register in registers_of(operand):
            reads |= 1 << register.number
    if instruction.guard is not None:
        reads |= 1 << instruction.guard[0].number | writes
    if instruction.has("cc"):
        writes |= 1 << carry
    if instruction.name in ("addc", "subc", "madc"):
        reads |= 1 << carry
    return reads, writes


def live_registers(kernel: Kernel, blocks: Sequence[Block], order: Sequence[int], carry: int) -> list[int]:
    """Return the registers in use ahead of each instruction of the text, as sets of bits."""
    effects = [reads_and_writes(instruction, carry) for instruction in kernel.code]
    before = [0] * len(kernel.code)
    at_start = dict.fromkeys(order, 0)
    changed = True
    while changed:
        changed = False
        for number in reversed(order):
            block = blocks[number]
            live = 0
            for successor in block.after:
                live |= at_start[successor]
            for index in range(block.end - 1, block.start - 1, -1):
                reads, writes = effects[index]
                live = (live & ~writes) | reads
                before[index] = live
            if live != at_start[number]:
                at_start[number] = live
                changed = True
    return before
