"""Rules of the encoding that assemblers do not check: annotations, types, regions, overlaps."""

from __future__ import annotations

from functools import lru_cache

from convgen.backends.intel.sim import regions, restrictions
from convgen.backends.intel.sim.areas import Operation
from convgen.backends.intel.sim.decode import Instruction, Operand
from convgen.backends.intel.sim.platforms import Platform
from convgen.backends.intel.sim.register_file import Layout
from convgen.backends.intel.sim.split_execution import KIND, split_of
from convgen.backends.intel.sim.step import Context, Step

FIRST_LAST_REGISTER = 112  #: first register for the payload of a thread's last message (of 128, which all threads have)


def check(instruction: Instruction, step: Step, context: Context) -> None:
    """Record the findings that an instruction's encoding alone shows."""
    _annotations(instruction, step, context)
    if step.kind in ("alu", "math"):
        for kind, message in _violations(_form(instruction), context.platform, context.layout):
            context.fault(kind, message)
        split = split_of(Operation.of(instruction, context))
        if split is not None and split.overlapping:
            context.fault(KIND, split.message(split.overlapping))
    if step.is_send:
        _payloads(instruction, step, context)


def _form(instruction: Instruction) -> Instruction:
    """Return an instruction without register numbers, values and annotations, on which no restriction depends."""
    dst, sources = instruction.dst, instruction.sources
    return Instruction(
        0, "", instruction.op, instruction.sub, instruction.exec_size, instruction.offset, False,
        instruction.predicate, "", (0, 0), instruction.condition,
        dst and _place(dst), tuple(map(_place, sources)), None, None, frozenset(),
    )  # fmt: skip


def _place(o: Operand) -> Operand:
    return Operand(o.kind, o.type, o.file, 0, o.sub, o.region, o.negate, o.absolute, 0, o.saturate)


@lru_cache(maxsize=1 << 12)
def _violations(form: Instruction, platform: Platform, layout: Layout) -> tuple[tuple[str, str], ...]:
    """Return kinds and messages of the restrictions that instructions of a form break."""
    op = Operation.of(form, Context(platform, layout, 0, {}))
    return (*restrictions.violations(op), *(("region", message) for message in regions.violations(op)))


def _payloads(instruction: Instruction, step: Step, context: Context) -> None:
    """Report payloads of a message that overlap or lie in a forbidden place."""
    message = instruction.message
    if message is None:
        return
    registers = (1 << context.layout.acc) - 1
    if context.rules.errata and not context.platform.send_overlap and step.writes & step.reads & registers:
        context.fault("message", "the response overlaps a payload [IGC, WaDisableSendSrcDstOverlap]")
    if "EOT" in instruction.options:
        for payload in (message.src0, message.src1):
            if 0 <= payload.reg < FIRST_LAST_REGISTER:
                finding = f"the last message comes from r{payload.reg}, not from r{FIRST_LAST_REGISTER} on"
                context.fault("message", f"{finding} [PRM, by Mesa, send_restrictions]")


def _annotations(instruction: Instruction, step: Step, context: Context) -> None:
    """Report combinations of a distance and a token that the platform's encoding does not have."""
    if instruction.distance is None or instruction.token is None:
        return
    pipe, _ = instruction.distance
    _, mode = instruction.token
    platform = context.platform
    if step.is_send:
        if mode or pipe not in platform.distance_pipes:
            context.fault("swsb", f"{platform.name} cannot combine these annotations on a send")
    elif step.is_dpas:
        if pipe or mode:
            context.fault("swsb", "dpas combines only its own pipe's distance with setting a token")
    elif pipe and not (pipe == "A" and platform.distance_beside_wait):
        context.fault("swsb", f"{platform.name} cannot combine these annotations")
