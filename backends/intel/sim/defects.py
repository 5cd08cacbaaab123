"""Hardware defects whose workarounds a program lacks, as far as its text shows this.

Each kind is one workaround of IGC, with IGC's rule; `Platform.defects` lists the kinds that production steppings need
(IGC, skuwa/iacm_g1*_hw_wa.c, ipvc_hw_wa.c and igt_20_0*_hw_wa.c: DG2-G10 from C0 on, G11 from B0 on, G12, PVC from XT
A0 on, Xe2). The defect of `send-war` depends on the executed path, so `scoreboard` checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from convgen.backends.intel.sim.decode import ALL_TOKENS, Instruction, Operand, follows
from convgen.backends.intel.sim.pipes import FLOAT_TYPES
from convgen.backends.intel.sim.register_file import Layout
from convgen.ir.record import frozen

Code = Sequence[Instruction]
Faults = dict[int, tuple[tuple[str, str], ...]]  #: by instruction: kind and message
_DIVERGENT = ("goto", "if", "while", "break")  #: IGC, isRSWADivergentInst
_BRANCHES = (*_DIVERGENT, "else", "endif", "join", "cont", "jmpi", "brc", "brd")
_WHOLE = 8  #: steps and repetitions of a dpas that fills the array
_END = -1  #: in place of an instruction's index: the end of a block


@frozen
class Defect:
    """A workaround: its name, and a function that yields the instructions that lack it, with a message each."""

    names: str
    missing: Callable[[Code, Layout], Iterator[tuple[int, str]]]


def defects_of(code: Code, layout: Layout, kinds: frozenset[str]) -> Faults:
    """Return the missing workarounds of some kinds, by instruction."""
    faults: Faults = {}
    for kind in sorted(kinds):
        defect = DEFECTS[kind]
        for index, message in defect.missing(code, layout):
            faults[index] = (*faults.get(index, ()), (kind, f"{message} [{defect.names}]"))
    return faults


def _is_end(instruction: Instruction) -> bool:
    return "EOT" in instruction.options


def _blocks(code: Code) -> Iterator[range]:
    """Yield the basic blocks, up to the last end of a thread."""
    ends = [index for index, instruction in enumerate(code) if _is_end(instruction)]
    last = ends[-1] + 1 if ends else len(code)
    labels = {o.value for instruction in code[:last] for o in instruction.sources if o.kind == "label"}
    start = 0
    for index in range(last):
        if index > start and code[index].address in labels:
            yield range(start, index)
            start = index
        if _is_end(code[index]) or code[index].op in _BRANCHES:
            yield range(start, index + 1)
            start = index + 1
    if start < last:
        yield range(start, last)


def _written(instruction: Instruction, layout: Layout) -> range:
    """Return the general registers that an instruction other than a send or dpas writes."""
    dst = instruction.dst
    if instruction.message is not None or dst is None or dst.kind != "reg" or dst.file != "r":
        return range(0)
    stride = 1 if dst.region is None else dst.region.horizontal
    first = dst.reg * layout.grf + dst.sub * dst.size
    end = first + ((instruction.exec_size - 1) * stride + 1) * dst.size
    return range(first // layout.grf, (end - 1) // layout.grf + 1)


def _factor(instruction: Instruction) -> int:
    """Return the first register of a dpas' src1."""
    return instruction.sources[1].reg


def _is_dpas(instruction: Instruction) -> bool:
    return instruction.op.startswith("dpas")


# -- the end of a thread ----------------------------------------------------------------------------------------------


def _nothing_behind(code: Code, layout: Layout) -> Iterator[tuple[int, str]]:
    """Yield ends of threads that no legal instruction follows (IGC, SWWA.cpp, HWWorkaround)."""
    for index, instruction in enumerate(code):
        if _is_end(instruction) and (index + 1 == len(code) or code[index + 1].op == "illegal"):
            yield index, "no legal instruction follows the end of the thread: add a nop"


def _no_csel(code: Code, layout: Layout) -> Iterator[tuple[int, str]]:
    """Yield ends of threads of 256 registers that no csel in each ALU pipe precedes (IGC, SWWA.cpp, HWWorkaround)."""
    if layout.registers != 256:
        return
    for index, instruction in enumerate(code):
        if not _is_end(instruction):
            continue
        before = [each for each in code[:index] if each.op not in ("sync", "nop")][-3:]
        if before and "Atomic" not in before[-1].options:
            before = before[-2:]
        pipes = {each.dst.type in FLOAT_TYPES for each in before if each.op == "csel" and each.dst is not None}
        if len(pipes) < 2:
            yield index, "with 256 registers a csel of floats and one of words must precede the end of the thread"


# -- read suppression of dpas -----------------------------------------------------------------------------------------


def _is_fused_send(instruction: Instruction) -> bool:
    message = instruction.message
    return message is not None and bool(instruction.predicate) and message.dst.reg >= 0


def _diverges(instruction: Instruction) -> bool:
    return instruction.op in _DIVERGENT and bool(instruction.predicate) and instruction.exec_size > 1


def _not_rewritten(code: Code, layout: Layout) -> Iterator[tuple[int, str]]:
    """Yield dpas that lack a mov of src1's first register to itself (IGC, SWWA.cpp, insertDummyMovForHWRSWA).

    In a kernel with a predicated send that has a destination, or with a divergent branch, such a mov must precede the
    first dpas of each block and the first dpas after each such send. Any ALU instruction that writes the register
    serves as well.
    """
    if not any(_is_fused_send(each) or _diverges(each) for each in code):
        return
    for block in _blocks(code):
        fresh: set[int] | None = set()  # registers written since; None once a dpas has come
        for index in block:
            instruction = code[index]
            if _is_dpas(instruction):
                if fresh is not None and _factor(instruction) not in fresh:
                    finding = f"r{_factor(instruction)}, the start of src1, is not written by a mov before the dpas"
                    yield index, f"{finding}, in a kernel with predicated loads or divergent branches"
                fresh = None
            elif _is_fused_send(instruction):
                fresh = set()
            elif fresh is not None:
                fresh.update(_written(instruction, layout))


def _suppressed(code: Code, layout: Layout) -> Iterator[tuple[int, str]]:
    """Yield dpas.8x8 that read the src1 of the dpas before them.

    IGC, SWWA.cpp, prepareDPASFuseRSWA, and SWSB_G4IR.cpp, needWA. The rule holds for a src1 that an instruction other
    than a send writes anywhere. It concerns the second dpas of a chain, and the head of a chain after a dpas that is no
    chain, unless the head reads that dpas' result or an instruction between them waits for it. IGC puts a dummy dpas
    with another src1 before the chain.

    IGC adds the dummy to the first chain of every block without looking at other blocks, and takes a src1 that the
    block does not write as written by arithmetic. This function looks at the blocks that may run before.
    """
    written = _by_arithmetic(code, layout)
    blocks = list(_blocks(code))
    parts = (_chains(code, [index for index in block if _is_dpas(code[index])]) for block in blocks)
    chains = {chain[0]: chain for part in parts for chain in part}

    def walk(block: range, ahead: frozenset[int]) -> Iterator[tuple[int, frozenset[int]]]:
        """Yield (index of a chain's head, single dpas that may be the last before it); at last (_END, those behind).

        `ahead` are the single dpas that may be the last before the block.
        """
        for index in block:
            ahead = frozenset(i for i in ahead if not _waits(code[index], code[i].token))
            if index in chains:
                yield index, ahead
                ahead = frozenset(chains[index] if len(chains[index]) == 1 else ())
        yield _END, ahead

    for block, entry in zip(blocks, _entries(code, blocks, walk)):
        for index, ahead in walk(block, entry):
            if index == _END or code[index].sub != f"{_WHOLE}x{_WHOLE}":
                continue
            factor = _factor(code[index])
            if not written & set(range(factor, factor + _WHOLE)):
                continue
            if any(_factor(code[i]) == factor for i in chains[index][1:2]):
                yield index, f"the first two of a chain of dpas read r{factor} as src1"
            elif any(_factor(code[i]) == factor and not _adds_to(code[index], code[i]) for i in ahead):
                yield index, f"a dpas reads r{factor} as src1, as the one before it does, which is no chain"


#: From a block and the dpas before it: see `walk` in `_suppressed`.
_Walk = Callable[[range, frozenset[int]], Iterator[tuple[int, frozenset[int]]]]


def _entries(code: Code, blocks: Sequence[range], walk: _Walk) -> Sequence[frozenset[int]]:
    """Return the set that reaches each block along any path; the last set that `walk` yields leaves a block."""
    starts = {code[block.start].address: number for number, block in enumerate(blocks)}
    entries = [frozenset[int]() for _ in blocks]
    waiting = list(range(len(blocks)))
    while waiting:
        number = waiting.pop()
        *_, (_, leaving) = walk(blocks[number], entries[number])
        goes_on, targets = follows(code[blocks[number][-1]])
        after = [starts[target] for target in targets if target in starts]
        for following in (*after, *([number + 1] if goes_on and number + 1 < len(blocks) else [])):
            if not leaving <= entries[following]:
                entries[following] |= leaving
                waiting.append(following)
    return entries


def _adds_to(instruction: Instruction, before: Instruction) -> bool:
    """Return whether a dpas reads the result of another as src0."""
    sums, result = instruction.sources[0], before.dst
    assert result is not None
    return sums.kind == "reg" and sums.reg < result.reg + before.rows and result.reg < sums.reg + instruction.rows


def _by_arithmetic(code: Code, layout: Layout) -> set[int]:
    """Return the registers that instructions other than sends write somewhere."""
    registers: set[int] = set()
    for instruction in code:
        if _is_dpas(instruction):
            assert instruction.dst is not None
            registers.update(range(instruction.dst.reg, instruction.dst.reg + instruction.rows))
        else:
            registers.update(_written(instruction, layout))
    return registers


def _waits(instruction: Instruction, token: tuple[int, str] | None) -> bool:
    """Return whether an instruction waits for the result behind a token."""
    return token is not None and not {(token[0], "dst"), (ALL_TOKENS, "dst")}.isdisjoint(instruction.waits())


def _chains(code: Code, block: Sequence[int]) -> Iterator[list[int]]:
    """Yield a block's dpas by chains: {Atomic} ties a dpas to the next."""
    chain: list[int] = []
    for index in block:
        chain.append(index)
        if "Atomic" not in code[index].options:
            yield chain
            chain = []
    if chain:
        yield chain


# -- read suppression of arithmetic ------------------------------------------------------------------------------------


def _neighbours(code: Code, of_pipe: Callable[[Instruction], bool]) -> Iterator[tuple[int, Instruction]]:
    """Yield the instructions of a pipe, each with the one before it in the text, across blocks as in IGC."""
    before: Instruction | None = None
    for index, instruction in enumerate(code):
        if instruction.message is None and of_pipe(instruction):
            if before is not None:
                yield index, before
            before = instruction


def _is_region(operand: Operand) -> bool:
    return operand.kind == "reg" and operand.file == "r"


def _in_float_pipe(instruction: Instruction) -> bool:
    """Return whether the destination, or else src0, is a float (IGC, fixReadSuppressioninFPU0, isFloatPipe)."""
    operands = [each for each in (instruction.dst, *instruction.sources[:1]) if each is not None]
    return not _is_dpas(instruction) and bool(operands) and operands[0].type in (*FLOAT_TYPES, "df")


def _moves_halves(instruction: Instruction) -> bool:
    """Return whether a mov or sel copies halves, or a double becomes a float (IGC, isSPPath)."""
    if instruction.dst is None or not instruction.sources:
        return False
    types = instruction.dst.type, instruction.sources[0].type
    if types == ("f", "df"):
        return True
    regions = [each for each in instruction.sources if each.kind == "reg"]
    changed = instruction.dst.saturate or any(each.negate or each.absolute for each in regions)
    raw = instruction.op == "mov" and not instruction.condition
    chosen = instruction.op == "sel" and instruction.condition in ("", "ge", "lt", "l")
    return types == ("hf", "hf") and not changed and (raw or chosen)


def _bus_switched(code: Code, layout: Layout) -> Iterator[tuple[int, str]]:
    """Yield instructions that share a source with their neighbour in the float pipe, if only one of them moves halves.

    IGC, SWWA.cpp, fixReadSuppressioninFPU0, puts a csel in between.
    """
    for index, before in _neighbours(code, _in_float_pipe):
        instruction = code[index]
        if _moves_halves(before) != _moves_halves(instruction):
            for mine, its in zip(instruction.sources, before.sources):
                if _is_region(mine) and mine == its:
                    yield index, f"reads r{mine.reg}.{mine.sub}, as `{before.text}` does, which moves other halves"
                    break


_PRODUCTS, _COMPLETED = ("mul", "mac"), ("mach", "macl")


def _is_flat(instruction: Instruction, width: int) -> bool:
    """Return whether src1 has the destination's offset and stride, of whole elements (IGC, isFlatRegRegion)."""
    source, dst = instruction.sources[1], instruction.dst
    assert dst is not None
    assert source.region is not None
    region = source.region
    if instruction.exec_size == 1:
        step = region.horizontal if region.width > 1 else region.vertical
    elif region.width == 1:
        step = region.vertical
    else:
        step = region.horizontal if region.vertical == region.width * region.horizontal else -1
    stride = (1 if dst.region is None else dst.region.horizontal) * dst.size
    return dst.sub * dst.size == source.sub * source.size and stride == step * source.size and stride % width == 0


def _src1_kept(code: Code, layout: Layout) -> Iterator[tuple[int, str]]:
    """Yield multiplications whose flat src1 shares registers with src1 of the instruction before in the integer pipe.

    IGC, SWWA.cpp, mulMacRSWA: two mul or mac, or two mach, the first not flat; or a mach after an instruction that is
    none of these. IGC puts an add of an immediate in between.
    """
    for index, before in _neighbours(code, _in_integer_pipe):
        instruction = code[index]
        sources = [i.sources[1] for i in (before, instruction) if len(i.sources) > 1 and _is_region(i.sources[1])]
        if (
            len(sources) < 2
            or instruction.dst is None
            or not _registers(sources[0], before, layout) & _registers(sources[1], instruction, layout)
        ):
            continue
        width = max(i.size for i in instruction.sources if i.kind == "reg")
        kinds = [[names for names in (_PRODUCTS, _COMPLETED) if i.op in names] for i in (before, instruction)]
        alike = kinds[0] == kinds[1] != [] and not _is_flat(before, width)
        if _is_flat(instruction, width) and (alike or (instruction.op in _COMPLETED and not kinds[0])):
            yield index, f"reads r{sources[1].reg} as src1, as `{before.text}` does otherwise"


def _in_integer_pipe(instruction: Instruction) -> bool:
    dst = instruction.dst
    return dst is not None and not _is_dpas(instruction) and dst.type in ("b", "ub", "w", "uw", "d", "ud")


def _registers(operand: Operand, instruction: Instruction, layout: Layout) -> set[int]:
    """Return the general registers that a source of an instruction reads, from the first element on."""
    if operand.region is None:
        return {operand.reg}
    rows = max(1, instruction.exec_size // max(1, operand.region.width))
    last = (rows - 1) * operand.region.vertical + (operand.region.width - 1) * operand.region.horizontal
    begin = operand.reg * layout.grf + operand.sub * operand.size
    return set(range(begin // layout.grf, (begin + (last + 1) * operand.size - 1) // layout.grf + 1))


DEFECTS: Mapping[str, Defect] = {
    "code-end": Defect("Wa_16013338947", _nothing_behind),
    "end-suppression": Defect("Wa_14016880151", _no_csel),
    "send-suppression": Defect("Wa_16012061344, Wa_16012292205, Wa_22012856258", _not_rewritten),
    "dpas-suppression": Defect("Wa_18023229625", _suppressed),
    "half-suppression": Defect("hasFPU0ReadSuppressionIssue", _bus_switched),
    "mul-suppression": Defect("Wa_18035690555", _src1_kept),
}
