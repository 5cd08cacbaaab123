"""Instructions as the model of an SM sees them: pipe, clocks, registers, and what they start, end or wait for.

ptxas makes machine code (SASS) of PTX. The model counts the machine instructions that it usually makes of each
instruction of PTX, in the order of the text.
"""

from __future__ import annotations

from enum import IntEnum, auto
from functools import cache

from convgen.backends.nvidia.costs import line_of
from convgen.backends.nvidia.sim.flow import reads_and_writes
from convgen.backends.nvidia.sim.ptx_text import Instruction, Kernel, Vector
from convgen.backends.nvidia.tables import FACTS, FMA, WARPGROUP
from convgen.backends.nvidia.timing.machine_counts import machine_counts
from convgen.ir.record import frozen


class Pipe(IntEnum):
    """A resource that takes one instruction at a time; each sub-core has its own up to MATRIX, an SM the others."""

    NONE = 0
    ALU = 1  #: integers and logic
    FMA = 2
    SPECIAL = 3  #: approximate functions
    MATRIX = 4
    SHARED = 5  #: the port of shared memory
    LSU = 6  #: loads and stores of global memory
    TMA = 7  #: bulk copies
    L2 = 8  #: the way of loaded data from L2 to an SM


class Act(IntEnum):
    """The effect of an instruction beside its result."""

    NONE = 0
    PRODUCT = auto()  #: wgmma starts
    COMMIT_PRODUCTS = auto()
    AWAIT_PRODUCTS = auto()
    COPY = auto()  #: cp.async starts
    COMMIT_COPIES = auto()
    AWAIT_COPIES = auto()
    COPIES_ARRIVE = auto()  #: at an mbarrier, once they are complete
    LOAD_BULK = auto()
    STORE_BULK = auto()
    COMMIT_BULK = auto()
    AWAIT_BULK = auto()
    MEET = auto()  #: bar.sync
    PASS = auto()  #: bar.arrive
    INIT = auto()  #: of mbarriers
    ARRIVE = auto()
    AWAIT_PHASE = auto()


ALL = 1 << 30  #: groups that wait_all awaits; warps of a barrier that all warps meet at


@frozen(eq=False)
class Op:
    """One instruction as a warp executes it; equal ones are one object."""

    at: int = 0  #: bytes; offset in the text
    pipe: Pipe = Pipe.NONE
    issue: int = 1  #: clocks; machine instructions
    busy: float = 0.0  #: clocks of the pipe
    latency: float = 0.0  #: clocks from the pipe's end to the result, besides that of memory
    shared: float = 0.0  #: clocks of the port of shared memory, besides those of its pipe
    loaded: float = 0.0  #: clocks on the way from L2
    reads: tuple[int, ...] = ()  #: registers
    writes: tuple[int, ...] = ()
    act: Act = Act.NONE
    count: int = 0  #: groups that may stay open; warps of a barrier; bytes that an mbarrier expects or a copy brings
    #: mbarriers, or the barrier, by address or number, each with arrivals, or with the parity of an awaited phase
    objects: tuple[tuple[int, int], ...] = ()
    is_branch: bool = False

    @property
    def is_matrix(self) -> bool:
        """Return whether it is a matrix instruction."""
        return self.pipe is Pipe.MATRIX


_FLOATS = ("f32", "f16x2", "bf16x2", "f16", "bf16")  #: types whose sums and products run on the FMA pipe
_FMA = frozenset("fma add mul sub".split())
_MULTIPLIES = frozenset("mul mad mul24 mad24".split())  #: integers, also on the FMA pipe
_SPECIAL = frozenset("ex2 lg2 rcp sqrt rsqrt sin cos tanh".split())
_ALU_CLOCKS = 2  #: 16 lanes of a sub-core (CUDA Programming Guide, "Arithmetic Instructions": 64 an SM)
_SPECIAL_CLOCKS = 8  #: 4 lanes of a sub-core (the same table: 16 an SM)
_UNITLESS = frozenset("griddepcontrol setmaxnreg nanosleep".split())
_FENCE_CLOCKS = 12  #: fence.proxy.async (assumed)
_ALU_LATENCY, _MMA_LATENCY = 4.0, 18.0  #: clocks; results of arithmetic, of `mma.sync` after its own clocks (assumed)
_ROW_BYTES = 32  #: bytes of K of a row of a product of `wgmma`
_PORT_BYTES = 128  #: bytes a clock of the port of shared memory
_WIDEST = 256  #: columns of a product of `wgmma`


def static_op(instruction: Instruction, target: str, kernel: Kernel) -> Op:
    """Return an instruction that needs no addresses: arithmetic, products, groups of copies, branches.

    `target` is a key of `FACTS`.
    """
    reads, writes = (bits_as_numbers(bits) for bits in reads_and_writes(instruction, len(kernel.registers)))
    name, at = instruction.name, instruction.address
    if name == "wgmma":
        return _of_warpgroup(instruction, target)
    if name == "cp":
        return _group(instruction)
    line = line_of(instruction, 0, target)
    if line.kind == "mma":
        return Op(at, Pipe.MATRIX, 1, line.slots, _MMA_LATENCY, reads=reads, writes=writes)
    if line.kind == "branch":
        return Op(at, reads=reads, is_branch=True)
    if name in ("fence", "membar"):
        return Op(at, issue=_FENCE_CLOCKS if instruction.has("async") else 1)
    count = machine_counts(kernel)[instruction]
    pipe, clocks = _arithmetic(instruction, target)
    return Op(at, pipe, count, count * clocks, _ALU_LATENCY if count else 0.0, reads=reads, writes=writes)


def bits_as_numbers(bits: int) -> tuple[int, ...]:
    """Return the numbers of the set bits."""
    numbers = []
    while bits:
        low = bits & -bits
        numbers.append(low.bit_length() - 1)
        bits ^= low
    return tuple(numbers)


def _arithmetic(instruction: Instruction, target: str) -> tuple[Pipe, float]:
    """Return the pipe of an arithmetic instruction and the clocks of one machine instruction on it."""
    name, types = instruction.name, instruction.types
    if name in _SPECIAL:
        return Pipe.SPECIAL, _SPECIAL_CLOCKS
    if name in _FMA and "f64" in types:
        return Pipe.FMA, fma_clocks(target, "f64")
    if name in _FMA and any(kind in types for kind in _FLOATS):
        return Pipe.FMA, fma_clocks(target, "f32")
    if name in _MULTIPLIES:
        return Pipe.FMA, _ALU_CLOCKS
    if name in _UNITLESS:
        return Pipe.NONE, 0
    return Pipe.ALU, _ALU_CLOCKS


@cache
def fma_clocks(target: str, kind: str) -> float:
    """Return the clocks of a sub-core for `fma` of a warp in f32 or f64."""
    row = next(row for row in FMA if row.elem.name == kind)
    return next(atom.clocks for atom in FACTS[target].atoms if atom.name == row.name) / row.k


def _of_warpgroup(instruction: Instruction, target: str) -> Op:
    at = instruction.address
    if instruction.has("mma_async"):
        columns = next(
            int(m.partition("n")[2].partition("k")[0]) for m in instruction.modifiers if m.startswith("m64n")
        )
        widest = next(atom for atom in FACTS[target].atoms if atom.name.startswith(f"wgmma.m64n{_WIDEST}"))
        rows = columns if isinstance(instruction.operands[1], Vector) else columns + widest.m  # of shared memory
        reading = rows * _ROW_BYTES / _PORT_BYTES / WARPGROUP  # a warp's share
        return Op(at, Pipe.MATRIX, 1, widest.clocks * columns / _WIDEST, shared=reading, act=Act.PRODUCT)
    if instruction.has("commit_group"):
        return Op(at, act=Act.COMMIT_PRODUCTS)
    if instruction.has("wait_group"):
        return Op(at, act=Act.AWAIT_PRODUCTS, count=_literal(instruction))
    return Op(at)


def _group(instruction: Instruction) -> Op:
    """Return the end of a group of copies, or a wait for groups."""
    at, bulk = instruction.address, instruction.has("bulk")
    if instruction.has("commit_group"):
        return Op(at, act=Act.COMMIT_BULK if bulk else Act.COMMIT_COPIES)
    if instruction.has("wait_all"):
        return Op(at, act=Act.AWAIT_COPIES, count=-1)
    if instruction.has("wait_group"):
        return Op(at, act=Act.AWAIT_BULK if bulk else Act.AWAIT_COPIES, count=_literal(instruction))
    return Op(at)


def _literal(instruction: Instruction) -> int:
    (count,) = instruction.operands
    return int(getattr(count, "bits", 0))
