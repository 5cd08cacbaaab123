"""Software-managed hazards: which pairs of instructions need wait states between them, as tables by architecture.

Sources: AMD CDNA2/CDNA3/CDNA4 ISA, "Manually Inserted Wait States (NOPs)", and the hazard recognizer of LLVM 22 probed
pair by pair; where they differ the larger number stands. An instruction counts one wait state, `s_nop N` counts N + 1.

Producers (event kinds): `xdl` D of a matrix instruction of the XDL classes, `sgemm` D of an f32-input one, `dgemm16`
and `dgemm4` D of the f64 ones, `xdl_c` SrcC that an XDL instruction reads, `valu` vector registers a VALU instruction
writes, `dot`, `trans`, `partial` the same for dot products, transcendentals and half-register writes, `valu_sgpr`
scalar registers a VALU instruction writes, `valu_exec` EXEC written by v_cmpx, `m0` M0 written by the scalar ALU,
`wide_store` data of a 96/128-bit store (`wide_store_soffset` with an SGPR offset), `setreg` a hardware register.

Consumers (roles): `c_same` SrcC that is exactly the producer's tuple, of the same mnemonic (an accumulator is forwarded
only from an instruction to its like: LLVM pull request 218363), `c_overlap` any other SrcC that overlaps it, `c64_*`
the same for f64 matrix instructions, `ab` SrcA/SrcB, `valu_read`, `valu_write`, `plain_read` (a VALU instruction not
transcendental), `other_read`/`other_write` (a VALU instruction that is not the same dot product), `dot_ab` (sources of
the same dot product), `mem_read`, `mem_write` (vector memory and LDS), `vmem_sgpr`, `valu_sgpr`, `lane_select`,
`div_fmas`, `dpp`, `lane_read`, `permlane`, `exec_mfma`, `exec_dpp`, `exec_lane`, `exec_permlane`, `m0_use`, `hwreg`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from convgen.backends.amdgpu.sim.state import WaveGroup
    from convgen.backends.amdgpu.sim.step import Step

Waits = Mapping[int, int]  #: wait states by passes of the producer
PASSES = (2, 4, 8, 16)


@attrs.frozen
class Event:
    """Something a recent instruction did that later ones must keep away from."""

    kind: str
    mask: int
    time: int  #: value of the wait-state counter when it was issued
    passes: int
    step: Step


@attrs.frozen
class Produces:
    """What an instruction leaves behind: an event without its time."""

    kind: str
    mask: int
    passes: int = 0


@attrs.frozen
class Consumes:
    """What an instruction touches, in one role."""

    role: str
    mask: int


def _plus(extra: int, **override: int) -> Waits:
    """Passes plus `extra`, except where a number of passes is named (`p2=5`)."""
    return {passes: override.get(f"p{passes}", passes + extra) for passes in PASSES}


def _always(count: int) -> Waits:
    return dict.fromkeys((0, *PASSES), count)


def _rows(kind: str, roles: str, waits: Waits) -> dict[tuple[str, str], Waits]:
    return {(kind, role): waits for role in roles.split()}


_TOUCH = "ab valu_read valu_write mem_read mem_write"
_TWO_PASS_SAME: Waits = {2: 2, 4: 0, 8: 0, 16: 0}
Table = Mapping[tuple[str, str], Waits]

_COMMON: Table = {
    **_rows("valu", "ab c_same c_overlap c64_same c64_overlap dpp", _always(2)),
    **_rows("dot", "other_read other_write dot_ab mem_read mem_write", _always(3)),
    **_rows("valu_sgpr", "vmem_sgpr", _always(5)),
    **_rows("valu_sgpr", "lane_select div_fmas", _always(4)),
    **_rows("valu_exec", "exec_mfma", _always(4)),
    **_rows("valu_exec", "exec_dpp", _always(5)),
    **_rows("m0", "m0_use", _always(1)),
    **_rows("setreg", "hwreg", _always(2)),
    **_rows("dgemm4", "c_same c_overlap c64_same c64_overlap", _always(4)),
    **_rows("dgemm4", "ab valu_read valu_write mem_write", _always(6)),
    **_rows("dgemm4", "mem_read", _always(9)),
}
_DGEMM16_8_PASSES: Table = {
    **_rows("dgemm16", "c_overlap c64_overlap", _always(9)),
    **_rows("dgemm16", "ab valu_read valu_write mem_write", _always(11)),
    **_rows("dgemm16", "mem_read", _always(18)),
}
_CDNA3: Table = {
    **_COMMON,
    **_rows("xdl", "c_same c64_same", _TWO_PASS_SAME),
    **_rows("sgemm", "c_same c64_same", _TWO_PASS_SAME),
    **_rows("sgemm", "c_overlap c64_overlap", _plus(0)),
    **_rows("sgemm", _TOUCH, _plus(2)),
    **_rows("xdl_c", "valu_write mem_write", _plus(-1)),
    **_rows("valu", "lane_read", _always(1)),
    **_rows("dot", "ab", _always(1)),
    **_rows("trans", "plain_read", _always(1)),
    **_rows("partial", "valu_read", _always(1)),
    **_rows("valu_sgpr", "valu_sgpr", _always(2)),
    **_rows("valu_exec", "exec_lane exec_permlane", _always(4)),
    **_rows("wide_store", "valu_write", _always(2)),
    **_rows("wide_store_soffset", "valu_write", _always(1)),
}
TABLES: Mapping[str, Table] = {
    "gfx90a": {
        **_COMMON,
        **_DGEMM16_8_PASSES,
        **_rows("xdl", "c_overlap", _plus(0)),
        **_rows("xdl", "c64_overlap", _plus(1)),
        **_rows("xdl", _TOUCH, _plus(3)),
        **_rows("xdl_c", "valu_write mem_write", _plus(-1)),
        **_rows("wide_store", "valu_write", _always(1)),
        **_rows("valu", "mem_read_behind_dgemm", _always(2)),
    },
    "gfx942": {
        **_CDNA3,
        **_DGEMM16_8_PASSES,
        **_rows("xdl", "c_overlap c64_overlap", _plus(1)),
        **_rows("xdl", _TOUCH, _plus(3)),
    },
    "gfx950": {
        **_CDNA3,
        **_rows("dgemm16", "c_overlap c64_overlap", _always(17)),
        **_rows("dgemm16", "ab valu_read", _always(19)),
        **_rows("dgemm16", "valu_write mem_write", _always(11)),
        **_rows("dgemm16", "mem_read", _always(18)),
        **_rows("xdl", "c_overlap", _plus(2)),
        **_rows("xdl", "c64_overlap", _plus(2, p2=3)),
        **_rows("xdl", _TOUCH, _plus(4, p2=5)),
        **_rows("valu", "permlane", _always(2)),
    },
}
#: The two f32-input classes behave alike on CDNA2.
SGEMM_KIND: Mapping[str, str] = {"gfx90a": "xdl", "gfx942": "sgemm", "gfx950": "sgemm"}


class HazardRules:
    """One architecture's table, with the horizon beyond which an event of a kind matters no more."""

    def __init__(self, arch: str) -> None:
        self.table = TABLES[arch]
        self.horizon: dict[str, int] = {}
        for (kind, _), waits in self.table.items():
            self.horizon[kind] = max(self.horizon.get(kind, 0), *waits.values())

    def relevant(self, produced: Iterable[Produces]) -> tuple[Produces, ...]:
        """The events that some row of the table asks about."""
        return tuple(item for item in produced if item.mask and item.kind in self.horizon)

    def required(self, event: Event, use: Consumes, *, same_opcode: bool) -> int:
        """Wait states that must lie between `event` and a use; 0 when they do not meet."""
        if not event.mask & use.mask:
            return 0
        role = use.role
        if role in ("c", "c64"):
            role += "_same" if same_opcode and event.mask == use.mask else "_overlap"
        waits = self.table.get((event.kind, role))
        return 0 if waits is None else waits[event.passes]

    def check(self, group: WaveGroup, step: Step) -> None:
        """Report the uses of `step` that come too early after what the group did before."""
        now = group.now
        horizon = self.horizon
        group.events = events = [event for event in group.events if now - event.time <= horizon[event.kind]]
        for use in step.consumes:
            for event in events:
                if event.mask & use.mask:
                    self._check_pair(group, step, event, use)

    def _check_pair(self, group: WaveGroup, step: Step, event: Event, use: Consumes) -> None:
        same_opcode = event.step.instruction.name == step.instruction.name
        if (use.role in ("other_read", "other_write") and same_opcode) or (use.role == "dot_ab" and not same_opcode):
            return
        if use.role == "mem_read_behind_dgemm" and not any(
            other.kind.startswith("dgemm") and other.time > event.time for other in group.events
        ):
            return
        need, have = self.required(event, use, same_opcode=same_opcode), group.now - event.time - 1
        if have < need:
            group.env.reporter.add(
                "wait-states",
                f"{need} wait states are needed after `{event.step.instruction.text}` "
                f"({event.kind} -> {use.role}), {have} are there",
                step.instruction,
                group,
            )
