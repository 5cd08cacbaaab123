"""Instructions as the EU model sees them: pipe, clocks, and waits."""

from __future__ import annotations

from convgen.backends.intel.costs import line_of
from convgen.backends.intel.sim.decode import Instruction
from convgen.backends.intel.sim.pipes import own_pipe, pipe_of
from convgen.backends.intel.sim.platforms import Platform
from convgen.ir.record import evolve, frozen

IN_ORDER = "FILM"  #: pipes whose instructions end in the order of their issue

#: Clocks to the result, by kind of instruction (IGC's latency table); the model counts them from the pipe's last busy
#: clock, so results of several registers come later.
_VECTOR, _MATH, _MATRIX, _BRANCH, _FENCE = 10.0, 17.0, 21.0, 23, 23.0
_SHARED, _SHARED_WIDE = 28.0, 45.0  #: shared local memory: up to 16 lanes, and more
_NARROW = 16  #: lanes
_PIPE_OF_REST = {"*": "M", "A": "I"}  #: for out-of-order math, and for instructions without a destination


@frozen(eq=False)
class Op:
    """One instruction."""

    pipe: str  #: letter of an in-order pipe, "matrix", "lds" or "global"; empty if it only issues
    issue: int = 1  #: clocks until its thread issues the next one
    busy: float = 1.0  #: clocks that the pipe is busy
    latency: float = 0.0  #: clocks from the last busy clock of the pipe to the result
    sets: int | None = None  #: token
    waits: tuple[tuple[int, bool], ...] = ()  #: tokens (or `ALL_TOKENS`), and whether only until their sources are read
    distance: tuple[str, int] | None = None  #: pipe ("A": all) and n: the n-th instruction back must be done
    barrier: str = ""  #: "signal" or "wait"


def op_of(instruction: Instruction, platform: Platform, latency: float) -> Op:
    """Return an instruction for the model; `latency` is that of loads from global memory."""
    line = line_of(instruction, platform.name)
    distance = instruction.distance
    if distance is not None and not distance[0]:
        distance = own_pipe(instruction, platform), distance[1]
    token = instruction.token
    waits = tuple((number, mode == "src") for number, mode in instruction.waits())
    sets = token[0] if token is not None and not token[1] else None
    op = Op("", sets=sets, waits=waits, distance=distance)
    match line.unit:
        case "matrix":
            return evolve(op, pipe="matrix", busy=line.slots, latency=_MATRIX + instruction.rows - 1)
        case "lds":
            taken = _SHARED if instruction.exec_size <= _NARROW else _SHARED_WIDE
            return evolve(op, pipe="lds", busy=line.slots, latency=taken)
        case "global":
            return evolve(op, pipe="global", busy=line.slots, latency=latency)
        case "valu":
            pipe, slow = pipe_of(instruction, platform), _MATH if line.kind == "math" else _VECTOR
            return evolve(op, pipe=_PIPE_OF_REST.get(pipe, pipe), busy=line.slots, latency=slow)
    if line.kind == "branch":
        return evolve(op, issue=_BRANCH)
    if line.kind.endswith("_fence"):
        return evolve(op, latency=_FENCE)
    if line.kind == "barrier_signal":
        return evolve(op, barrier="signal")
    return evolve(op, barrier="wait") if instruction.sub == "bar" else op
