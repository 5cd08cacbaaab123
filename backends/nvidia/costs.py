"""Kind, unit, cost and bytes of one instruction of PTX, of any compiler.

ptxas makes one machine instruction of most of them, several of some (division, 64-bit integers) and none of others
(moves): counts are those of the text.
"""

from __future__ import annotations

import re

from convgen.backends.analysis import Line
from convgen.backends.nvidia.sim.ptx_text import Instruction, Literal, Vector
from convgen.backends.nvidia.sim.ptx_types import bytes_of
from convgen.backends.nvidia.tables import FACTS, LANES
from convgen.ir.facts import TargetFacts

_SHAPE = re.compile(r"m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)")
_SPECIAL = frozenset("ex2 lg2 rcp sqrt rsqrt sin cos tanh".split())
_SPECIAL_CLOCKS = 8  #: clocks; an SM takes 16 lanes a clock (Programming Guide, "Arithmetic Instructions")
_WAITS = frozenset("mbarrier membar fence griddepcontrol nanosleep".split())
_BRANCHES = frozenset("bra brx ret exit trap call".split())
_WARPS_OF_WGMMA = 4  #: PTX ISA, "Warpgroup"
_WGMMA_FLOP = 1024  #: f16 operations a clock of a sub-core (NVIDIA's H100 white paper: 4096 a clock of an SM)


def facts_of(target: str) -> TargetFacts | None:
    """Return the facts of a target as PTX names it, such as sm_90a or sm_120f; None if there are none."""
    return FACTS.get(target) or FACTS.get(target.rstrip("af"))


def line_of(instruction: Instruction, offset: int, target: str) -> Line:
    """Return the instruction, `offset` bytes from the kernel's start, as a line of an analysis.

    `target` is a key of `FACTS`.
    """
    name, text = instruction.name, " ".join(instruction.text.split())
    if name in ("mma", "wgmma") and (shape := _shape(instruction)):
        clocks, flop = _products(instruction, shape, target)
        return Line(offset, text, "mma", "matrix", clocks, flop=flop)
    if name in ("ld", "ldu", "st", "atom", "red", "ldmatrix", "stmatrix"):
        return _message(instruction, offset, text, target)
    if name == "cp":
        return _copy(instruction, offset, text, target)
    if name == "mbarrier" and instruction.has("expect_tx"):
        return _expected(instruction, offset, text, target)
    if name in _WAITS or name == "wgmma":
        return Line(offset, text, "wait", "", 1)
    if name == "bar" or name == "barrier":
        return Line(offset, text, "barrier", "", 1)
    if name in _BRANCHES:
        return Line(offset, text, "branch", "", 1)
    return Line(offset, text, "alu", "valu", _SPECIAL_CLOCKS if name in _SPECIAL else 1)


def _shape(instruction: Instruction) -> tuple[int, int, int] | None:
    shapes = (_SHAPE.fullmatch(modifier) for modifier in instruction.modifiers)
    shape = next(filter(None, shapes), None)
    return None if shape is None else (int(shape["m"]), int(shape["n"]), int(shape["k"]))


def _products(instruction: Instruction, shape: tuple[int, int, int], target: str) -> tuple[int, int]:
    """Return the clocks of a sub-core, and the operations of one warp, of a matrix instruction.

    The tables have one shape for each pair of input types; clocks of other shapes are in proportion to operations.
    Types that no table has count as f16 of as many bytes.
    """
    m, n, k = shape
    types, flop = instruction.types, 2 * m * n * k
    size = bytes_of(types[1]) if len(types) > 1 else 2
    if instruction.name == "wgmma":
        flop //= _WARPS_OF_WGMMA
        return -(-flop * size // (2 * _WGMMA_FLOP)), flop
    inputs = ".".join(dict.fromkeys(types[2:0:-1]))  # B and A of the manual, as in `MmaRow.name`
    known = [atom for atom in FACTS[target].atoms if atom.name.startswith("mma.")]
    atom = next((atom for atom in known if atom.name.endswith(f".{inputs}")), known[0])
    row = atom.m * atom.n * atom.k * atom.a_elem.bytes
    return max(1, -(-atom.clocks * m * n * k * size // row)), flop


def _moved(instruction: Instruction) -> int:
    """Return the bytes of all lanes of a load, a store or an atomic operation."""
    items = max((len(o.items) for o in instruction.operands if isinstance(o, Vector)), default=1)
    return LANES * items * bytes_of(instruction.types[-1])


def _message(instruction: Instruction, offset: int, text: str, target: str) -> Line:
    """Return a load, a store or an atomic operation of every lane."""
    core, name = FACTS[target].core, instruction.name
    if name in ("ldmatrix", "stmatrix"):
        tiles = next((int(each[1:]) for each in instruction.modifiers if each in ("x1", "x2", "x4")), 1)
        path = "lds read" if name == "ldmatrix" else "lds write"
        return Line(offset, text, name, "lds", -(-128 * tiles // core.shared_rate), bytes={path: 128 * tiles})
    is_store = name in ("st", "red")
    if instruction.is_in("shared"):
        kind, moved = "atomic" if name in ("atom", "red") else f"{name}_shared", _moved(instruction)
        path = "lds write" if is_store else "lds read"
        return Line(offset, text, kind, "lds", -(-moved // core.shared_rate), bytes={path: moved})
    if instruction.is_in("param", "const", "local"):
        return Line(offset, text, "other", "", 1)
    moved, kind = _moved(instruction), "atomic" if name in ("atom", "red") else "st_global" if is_store else "ld_global"
    path = "global store" if is_store else "global load"
    return Line(offset, text, kind, "global", -(-moved // core.global_rate), bytes={path: moved})


def _expected(instruction: Instruction, offset: int, text: str, target: str) -> Line:
    """Return the arrival that announces bulk copies, as their load: it states their bytes, which copies do not."""
    announced = instruction.operands[-1]
    moved = announced.bits if isinstance(announced, Literal) else 0
    clocks = max(1, -(-moved // FACTS[target].core.global_rate))
    return Line(
        offset, text, "wait", "global", clocks, bytes={"global load": moved, "lds write": moved} if moved else {}
    )


def _copy(instruction: Instruction, offset: int, text: str, target: str) -> Line:
    """Return a `cp.async` of every lane, as a load; the wait for one; or a bulk copy (`_expected` has its bytes)."""
    if instruction.has("wait_group", "wait_all", "commit_group", "mbarrier"):
        return Line(offset, text, "wait", "", 1)
    sizes = [value.bits for value in instruction.operands[2:3] if hasattr(value, "bits")]
    if instruction.has("bulk") or not sizes:
        return Line(offset, text, "cp_async", "global", 1)
    moved = LANES * sizes[0]
    clocks = -(-moved // FACTS[target].core.global_rate)
    return Line(offset, text, "cp_async", "global", clocks, bytes={"global load": moved, "lds write": moved})
