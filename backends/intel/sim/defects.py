"""Defects of the hardware that a program must work round, as far as its text shows them.

Each kind is one workaround of IGC, with its rule as IGC applies it; `Platform.defects` has the kinds that production
steppings want (IGC, skuwa/iacm_g1*_hw_wa.c and ipvc_hw_wa.c: DG2-G10 from C0 on, G11 from B0 on, G12, PVC from XT A0
on). The defect that `send-war` reports depends on the path and is the scoreboard's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from convgen.backends.intel.sim.decode import Instruction, Operand
from convgen.backends.intel.sim.register_file import Layout
from convgen.ir.record import frozen

Code = Sequence[Instruction]
Faults = dict[int, tuple[tuple[str, str], ...]]  #: by instruction: kind and message
_DIVERGENT = ("goto", "if", "while", "break")  #: IGC, isRSWADivergentInst
_BRANCHES = (*_DIVERGENT, "else", "endif", "join", "cont", "jmpi", "brc", "brd")
_WHOLE = 8  #: steps and repetitions of a dpas that fills the array


@frozen
class Defect:
    """A workaround: its name, and what finds the instructions that lack it, with a message each."""

    names: str
    missing: Callable[[Code, Layout], Iterator[tuple[int, str]]]


def defects_of(code: Code, layout: Layout, kinds: frozenset[str]) -> Faults:
    """Return the missing workarounds of some kinds, by instruction."""
    found: Faults = {}
    for kind in sorted(kinds):
        defect = DEFECTS[kind]
        for index, message in defect.missing(code, layout):
            found[index] = (*found.get(index, ()), (kind, f"{message} [{defect.names}]"))
    return found


def _is_end(instruction: Instruction) -> bool:
    return "EOT" in instruction.options


def _blocks(code: Code) -> Iterator[range]:
    """The basic blocks, up to the last end of a thread."""
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
    """The general registers that an instruction other than a send or dpas writes."""
    dst = instruction.dst
    if instruction.message is not None or dst is None or dst.kind != "reg" or dst.file != "r":
        return range(0)
    stride = 1 if dst.region is None else dst.region.horizontal
    first = dst.reg * layout.grf + dst.sub * dst.size
    end = first + ((instruction.exec_size - 1) * stride + 1) * dst.size
    return range(first // layout.grf, (end - 1) // layout.grf + 1)


def _repeats(instruction: Instruction) -> int:
    return int(instruction.sub.partition("x")[2] or 1)


def _is_whole(instruction: Instruction) -> bool:
    return instruction.sub == f"{_WHOLE}x{_WHOLE}"


def _factor(instruction: Instruction) -> int:
    """The first register of a dpas' src1."""
    return instruction.sources[1].reg


def _is_dpas(instruction: Instruction) -> bool:
    return instruction.op.startswith("dpas")


# -- the end of a thread ----------------------------------------------------------------------------------------------


def _nothing_behind(code: Code, layout: Layout) -> Iterator[tuple[int, str]]:
    """IGC, SWWA.cpp, HWWorkaround: a nop follows the last message unless other code does."""
    for index, instruction in enumerate(code):
        if _is_end(instruction) and (index + 1 == len(code) or code[index + 1].op == "illegal"):
            yield index, "no legal instruction follows the end of the thread; a nop is wanted"


def _no_csel(code: Code, layout: Layout) -> Iterator[tuple[int, str]]:
    """IGC, SWWA.cpp, HWWorkaround: with 256 registers a csel in each ALU pipe precedes the last message."""
    if layout.registers != 256:
        return
    for index, instruction in enumerate(code):
        if not _is_end(instruction):
            continue
        before = [each for each in code[:index] if each.op not in ("sync", "nop")][-3:]
        if before and "Atomic" not in before[-1].options:
            before = before[-2:]
        pipes = {_is_float(each.dst) for each in before if each.op == "csel" and each.dst is not None}
        if len(pipes) < 2:
            yield index, "with 256 registers a csel of floats and one of words must precede the end of the thread"


def _is_float(operand: Operand) -> bool:
    return operand.type in ("f", "hf", "bf")


# -- read suppression of dpas -----------------------------------------------------------------------------------------


def _is_fused_send(instruction: Instruction) -> bool:
    message = instruction.message
    return message is not None and bool(instruction.predicate) and message.dst.reg >= 0


def _diverges(instruction: Instruction) -> bool:
    return instruction.op in _DIVERGENT and bool(instruction.predicate) and instruction.exec_size > 1


def _not_rewritten(code: Code, layout: Layout) -> Iterator[tuple[int, str]]:
    """IGC, SWWA.cpp, insertDummyMovForHWRSWA: where a kernel has a predicated send with a destination or a divergent
    branch, a mov of the first register of src1 to itself precedes the first dpas of a block, and the first behind each
    such send. Any other ALU instruction that writes the register does as well.
    """
    if not any(_is_fused_send(each) or _diverges(each) for each in code):
        return
    for block in _blocks(code):
        fresh: set[int] | None = set()  # registers written since; None once a dpas has come
        for index in block:
            instruction = code[index]
            if _is_dpas(instruction):
                if fresh is not None and _factor(instruction) not in fresh:
                    what = f"r{_factor(instruction)}, the start of src1, is not written by a mov before the dpas"
                    yield index, f"{what}, in a kernel with predicated loads or divergent branches"
                fresh = None
            elif _is_fused_send(instruction):
                fresh = set()
            elif fresh is not None:
                fresh.update(_written(instruction, layout))


def _copies_itself(instruction: Instruction) -> bool:
    """Whether an instruction is the mov of `_not_rewritten`, which changes nothing."""
    dst = instruction.dst
    if instruction.op != "mov" or dst is None or len(instruction.sources) != 1:
        return False
    source = instruction.sources[0]
    return (dst.kind, dst.file, dst.reg, dst.sub, dst.type) == (
        source.kind, source.file, source.reg, source.sub, source.type
    )  # fmt: skip


def _suppressed(code: Code, layout: Layout) -> Iterator[tuple[int, str]]:
    """IGC, SWWA.cpp, prepareDPASFuseRSWA, and SWSB_G4IR.cpp, needWA: a dpas.8x8 whose src1 an ALU instruction somewhere
    writes may not read the src1 of the dpas before it: not the second of a chain, nor the first of a block where
    another block ends with it. IGC puts a dummy dpas with another src1 before the chain.
    """
    alu: set[int] = set()
    for instruction in code:
        if _is_dpas(instruction):
            assert instruction.dst is not None
            alu.update(range(instruction.dst.reg, instruction.dst.reg + _repeats(instruction)))
        elif not _copies_itself(instruction):
            alu.update(_written(instruction, layout))
    blocks = [[index for index in block if _is_dpas(code[index])] for block in _blocks(code)]
    last = {_factor(code[block[-1]]) for block in blocks if block}
    for block in blocks:
        for position, chain in enumerate(_chains(code, block)):
            first, factor = code[chain[0]], _factor(code[chain[0]])
            if not _is_whole(first) or not alu & set(range(factor, factor + _WHOLE)):
                continue
            if len(chain) > 1 and _factor(code[chain[1]]) == factor:
                yield chain[0], f"the first two of a chain of dpas read r{factor} as src1"
            elif position == 0 and factor in last:
                yield chain[0], f"the first dpas of a block reads r{factor} as src1, as the last of a block does"


def _chains(code: Code, block: Sequence[int]) -> Iterator[list[int]]:
    """A block's dpas, those together that {Atomic} ties to the next."""
    chain: list[int] = []
    for index in block:
        chain.append(index)
        if "Atomic" not in code[index].options:
            yield chain
            chain = []
    if chain:
        yield chain


DEFECTS: Mapping[str, Defect] = {
    "code-end": Defect("Wa_16013338947", _nothing_behind),
    "end-suppression": Defect("Wa_14016880151", _no_csel),
    "send-suppression": Defect("Wa_16012061344, Wa_16012292205, Wa_22012856258", _not_rewritten),
    "dpas-suppression": Defect("Wa_18023229625", _suppressed),
}
