"""Software-managed hazards: tables of the wait states that pairs of instructions need, by architecture.

Sources: AMD CDNA3 and CDNA4 ISA, "Manually Inserted Wait States (NOPs)" and "Required Independent Instructions", and
the hazard recognizer of LLVM 22, probed pair by pair. Where they differ the table has the larger number, and each row
names its source. Rules of LLVM alone are advice, as shipped kernels break some of them. An instruction counts one wait
state, `s_nop N` counts N + 1.

Producers (event kinds): `xdl` D of a matrix instruction of the XDL classes, `sgemm` D of one with f32 inputs, `dgemm16`
and `dgemm4` D of the f64 ones, `xdl_c` SrcC that an XDL instruction reads; vector registers written by a VALU
instruction (`valu`), a dot product (`dot`), a transcendental (`trans`), a write of half a register (`partial`);
`valu_sgpr` scalar registers written by a VALU instruction, `valu_exec` EXEC written by v_cmpx, `m0` M0 written by the
scalar ALU, `wide_store` data of a 96/128-bit store (`wide_store_soffset` with an SGPR offset), `setreg` a hardware
register.

Consumers (roles): `c_same` SrcC equal to the producer's tuple in an instruction of equal mnemonic (an accumulator is
forwarded only between such instructions: LLVM pull request 218363), `c_like` SrcC equal to the tuple in an instruction
of another mnemonic with as many passes, `c_overlap` any other SrcC that overlaps the tuple, `c64_*` these roles for f64
matrix instructions, `ab` SrcA/SrcB, `valu_read`, `valu_write`, `plain_read` (a VALU instruction that is no
transcendental), `other_read`/`other_write` (a VALU instruction other than that dot product), `dot_ab` (sources of an
equal dot product), `mem_read`, `mem_write` (vector memory and LDS), `vmem_sgpr`, `valu_sgpr` (as a constant),
`valu_mask` (as a carry-in or lane mask), `lane_select`, `div_fmas`, `dpp`, `lane_read`, `first_lane_read`, `permlane`,
`exec_mfma`, `exec_dpp`, `exec_lane`, `exec_permlane`, `m0_use`, `m0_buffer` (LDS DMA of a buffer), `hwreg`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from convgen.backends.simulation import Source
from convgen.ir.record import frozen

if TYPE_CHECKING:
    from convgen.backends.amdgpu.sim.state import WaveGroup
    from convgen.backends.amdgpu.sim.step import Step

Waits = Mapping[int, int]  #: wait states by passes of the producer
PASSES = (2, 4, 8, 16)

#: Sources of rows. The texts of CDNA3 and CDNA4 were read; a row of gfx90a that they contain, too, counts as CDNA2's.
ISA3 = Source("CDNA3 ISA 4.5, Table 11")
ISA3_MATRIX = Source("CDNA3 ISA 7.5, Table 37")
ISA4 = Source("CDNA4 ISA 4.5, Table 11")
ISA4_MATRIX = Source("CDNA4 ISA 7.6, Table 38")
CDNA2 = Source("LLVM GCNHazardRecognizer for gfx90a; CDNA3 ISA 4.5 has the same row")
CDNA2_MATRIX = Source("LLVM GCNHazardRecognizer for gfx90a; CDNA3 ISA 7.5 has such a row, with its own numbers")
LLVM = Source("LLVM alone (GCNHazardRecognizer)", required=False)
#: For an accumulator of another mnemonic with as many passes; the manuals require no wait states for it.
LLVM_LIKE = Source("LLVM pull request 218363 alone", required=False)
#: LLVM counts from the VALU's write even after a scalar instruction has overwritten the register. MIOpen's kernels for
#: gfx942, which ship, set EXEC after v_cmpx and then multiply.
STALE = Source("LLVM alone (GCNHazardRecognizer): the last writer is scalar", required=False)


@frozen
class Row:
    """The wait states that a pair of instructions needs, and the document that states this.

    `shipped` lists pairs for which shipped kernels leave fewer: mnemonic of the consumer and passes of the producer ->
    wait states that suffice in practice, with the evidence.
    """

    states: Waits
    source: Source
    shipped: Mapping[tuple[str, int], tuple[int, str]] = attrs.field(factory=dict)

    def source_of(self, consumer: str, passes: int, have: int) -> Source:
        """Return the document that requires more than `have` wait states; advice if shipped kernels leave `have`."""
        enough, evidence = self.shipped.get((consumer, passes), (have + 1, ""))
        return self.source if have < enough else Source(f"{self.source.text}; but {evidence}", required=False)


class Event(NamedTuple):
    """An effect of a recent instruction that later instructions must keep a distance from.

    `stale` marks registers that a scalar instruction has overwritten since, a case that no manual mentions.
    """

    kind: str
    mask: int
    time: int  #: value of the wait-state counter when it was issued
    passes: int
    step: Step
    stale: bool = False


@frozen
class Produces:
    """A hazard that an instruction produces: an event without its time."""

    kind: str
    mask: int
    passes: int = 0


@frozen
class Consumes:
    """Registers that an instruction uses in one role; `passes` are those of a matrix instruction that reads SrcC."""

    role: str
    mask: int
    passes: int = 0


def _plus(extra: int, **override: int) -> Waits:
    """Passes plus `extra`, except where a number of passes is named (`p2=5`)."""
    return {passes: override.get(f"p{passes}", passes + extra) for passes in PASSES}


def _always(count: int) -> Waits:
    return dict.fromkeys((0, *PASSES), count)


def _rows(kind: str, roles: str, waits: Waits, source: Source, **shipped: Any) -> dict[tuple[str, str], Row]:
    return {(kind, role): Row(waits, source, **shipped) for role in roles.split()}


_TOUCH = "ab valu_read valu_write mem_read"
_TWO_PASS_SAME: Waits = {2: 2, 4: 0, 8: 0, 16: 0}
Table = Mapping[tuple[str, str], Row]


def _common(general: Source, matrix: Source) -> Table:
    """Return the rows of all generations; `general` and `matrix` are an architecture's sections that state them."""
    return {
        **_rows("valu", "ab c_same c_overlap c64_same c64_overlap", _always(2), matrix),
        **_rows("valu", "dpp", _always(2), general),
        **_rows("dot", "other_read other_write dot_ab mem_read mem_write", _always(3), matrix),
        **_rows("dot", "ab c_same c_overlap c64_same c64_overlap", _always(3), matrix),
        **_rows("valu_sgpr", "vmem_sgpr", _always(5), general),
        **_rows("valu_sgpr", "lane_select div_fmas", _always(4), general),
        **_rows("valu_exec", "exec_mfma", _always(4), matrix),
        **_rows("valu_exec", "exec_dpp", _always(5), general),
        **_rows("m0", "m0_use", _always(1), general),
        # Table 11 names "buffer_store_LDS_dword, scratch or global with LDS = 1", not buffer_load ... lds. The GEMMs of
        # AITER for gfx950, which ship, write M0 just before one.
        **_rows("m0", "m0_buffer", _always(1), LLVM),
        **_rows("setreg", "hwreg", _always(2), general),
        **_rows("dgemm4", "c_same c_like c_overlap", _always(4), LLVM),
        **_rows("dgemm4", "c64_same c64_like c64_overlap", _always(4), matrix),
        **_rows("dgemm4", "ab valu_read valu_write", _always(6), matrix),
        **_rows("dgemm4", "mem_write", _always(6), LLVM),
        **_rows("dgemm4", "mem_read", _always(9), matrix),
        **_rows("xdl_c", "valu_write", _plus(-1), matrix),
        **_rows("xdl_c", "mem_write", _plus(-1), LLVM),
    }


def _dgemm16_8_passes(matrix: Source) -> Table:
    return {
        **_rows("dgemm16", "c_like c_overlap", _always(9), LLVM),
        **_rows("dgemm16", "c64_like c64_overlap", _always(9), matrix),
        **_rows("dgemm16", "ab valu_read valu_write", _always(11), matrix),
        **_rows("dgemm16", "mem_write", _always(11), LLVM),
        **_rows("dgemm16", "mem_read", _always(18), matrix),
    }


def _since_cdna3(general: Source, matrix: Source) -> Table:
    """Return the rows that CDNA3 introduced and CDNA4 kept, with those of all generations."""
    return {
        **_common(general, matrix),
        **_rows("xdl", "c_same c64_same", _TWO_PASS_SAME, matrix),
        **_rows("sgemm", "c_same c64_same", _TWO_PASS_SAME, ISA4_MATRIX),
        **_rows("sgemm", "c_overlap c64_overlap", _plus(0), matrix),
        **_rows("sgemm", "c_like c64_like", _plus(0), LLVM_LIKE),
        **_rows("sgemm", _TOUCH, _plus(2), matrix),
        **_rows("sgemm", "mem_write", _plus(2), LLVM),
        **_rows("valu", "lane_read", _always(1), general),
        **_rows("valu", "first_lane_read", _always(1), LLVM),
        **_rows("trans", "plain_read", _always(1), general),
        **_rows("partial", "valu_read", _always(1), general),
        **_rows("valu_sgpr", "valu_sgpr", _always(2), general),
        # Table 11 asks for nothing before a carry-in, and MIOpen's kernels for gfx942, which ship, leave nothing.
        **_rows("valu_sgpr", "valu_mask", _always(2), LLVM),
        **_rows("valu_exec", "exec_lane", _always(4), general),
        **_rows("valu_exec", "exec_permlane", _always(4), ISA4),
        **_rows("wide_store", "valu_write", _always(2), general),
    }


#: Table 11 asks for nothing with an SGPR offset; the pull request measured on gfx950 that one state is needed.
_SOFFSET_950 = Source("LLVM pull request 197267, measured on gfx950")
_SOFFSET = Source("LLVM pull request 197267, for all after gfx940", required=False)

TABLES: Mapping[str, Table] = {
    "gfx90a": {
        **_common(CDNA2, CDNA2_MATRIX),
        **_dgemm16_8_passes(CDNA2_MATRIX),
        **_rows("xdl", "c_overlap", _plus(0), CDNA2_MATRIX),
        **_rows("xdl", "c64_overlap", _plus(1), CDNA2_MATRIX),
        **_rows("xdl", "c_like", _plus(0), LLVM_LIKE),
        **_rows("xdl", "c64_like", _plus(1), LLVM_LIKE),
        **_rows("xdl", _TOUCH, _plus(3), CDNA2_MATRIX),
        **_rows("xdl", "mem_write", _plus(3), LLVM),
        **_rows("wide_store", "valu_write", _always(1), CDNA2),
        **_rows("valu", "mem_read_behind_dgemm", _always(2), LLVM),
    },
    "gfx942": {
        **_since_cdna3(ISA3, ISA3_MATRIX),
        **_dgemm16_8_passes(ISA3_MATRIX),
        **_rows("xdl", "c_overlap c64_overlap", _plus(1), ISA3_MATRIX),
        **_rows("xdl", "c_like c64_like", _plus(1), LLVM_LIKE),
        **_rows("xdl", _TOUCH, _plus(3), ISA3_MATRIX),
        **_rows(
            "xdl",
            "valu_read",
            _plus(3),
            ISA3_MATRIX,
            shipped={("v_pk_fma_f32", 4): (2, "AITER's fp8 GEMM for gfx942, which ships, leaves 2")},
        ),
        **_rows("xdl", "mem_write", _plus(3), LLVM),
        **_rows("wide_store_soffset", "valu_write", _always(1), _SOFFSET),
    },
    "gfx950": {
        **_since_cdna3(ISA4, ISA4_MATRIX),
        **_rows("dgemm16", "c_like c_overlap", _always(17), LLVM),
        **_rows("dgemm16", "c64_like c64_overlap", _always(17), ISA4_MATRIX),
        **_rows("dgemm16", "ab valu_read valu_write", _always(19), ISA4_MATRIX),
        **_rows("dgemm16", "mem_write", _always(11), LLVM),
        **_rows("dgemm16", "mem_read", _always(18), ISA4_MATRIX),
        **_rows("xdl", "c_overlap", _plus(2), ISA4_MATRIX),
        **_rows("xdl", "c64_overlap", _plus(2, p2=3), ISA4_MATRIX),
        **_rows("xdl", "c_like", _plus(2), LLVM_LIKE),
        **_rows("xdl", "c64_like", _plus(2, p2=3), LLVM_LIKE),
        **_rows("xdl", _TOUCH, _plus(4, p2=5), ISA4_MATRIX),
        **_rows("xdl", "mem_write", _plus(4, p2=5), LLVM),
        **_rows("valu", "permlane", _always(2), ISA4),
        **_rows("wide_store_soffset", "valu_write", _always(1), _SOFFSET_950),
    },
}
#: The kind of event of a matrix instruction with f32 inputs: CDNA2 has no rows of its own for them.
SGEMM_KIND: Mapping[str, str] = {"gfx90a": "xdl", "gfx942": "sgemm", "gfx950": "sgemm"}


class HazardRules:
    """One architecture's table, and the horizon of each kind of event: wait states until it has no effect."""

    def __init__(self, arch: str) -> None:
        self.table = TABLES[arch]
        self.horizon: dict[str, int] = {}
        self._kinds: dict[str, frozenset[str]] = {}  #: kinds of events in some row of the table, by role
        for (kind, role), row in self.table.items():
            self.horizon[kind] = max(self.horizon.get(kind, 0), *row.states.values())
            role = role.partition("_")[0] if role.startswith(("c_", "c64_")) else role
            self._kinds[role] = self._kinds.get(role, frozenset()) | {kind}

    def relevant(self, produced: Iterable[Produces]) -> tuple[Produces, ...]:
        """Return the events that some row of the table mentions."""
        return tuple(item for item in produced if item.mask and item.kind in self.horizon)

    def constrained(self, uses: Iterable[Consumes]) -> tuple[Consumes, ...]:
        """Return the uses that some row of the table mentions."""
        return tuple(use for use in uses if use.mask and use.role in self._kinds)

    def row(self, event: Event, use: Consumes, by: Step) -> Row | None:
        """Return the row for `event` and a use by instruction `by`; None if registers or rows do not match."""
        if not event.mask & use.mask:
            return None
        role = use.role
        if role in ("c", "c64"):
            role += "_" + _forwarding(event, use, by)
        return self.table.get((event.kind, role))

    def note(self, group: WaveGroup, step: Step) -> None:
        """Record the events of `step`, and forget events beyond their horizon."""
        now, horizon = group.now, self.horizon
        events = [event for event in group.events if now - event.time <= horizon[event.kind]]
        for item in step.produces:
            events.append(Event(item.kind, item.mask, now, item.passes, step))
        group.events, group.watched = events, 0
        for event in events:
            group.watched |= event.mask

    def check(self, group: WaveGroup, step: Step) -> None:
        """Report the uses of `step` that come too early after earlier events, the latest event first."""
        recent = [event for event in reversed(group.events) if event.mask & step.touches]
        for use in step.consumes:
            mask, kinds = use.mask, self._kinds[use.role]
            for event in recent:
                if event.mask & mask and event.kind in kinds:
                    self._check_pair(group, step, event, use)

    def _check_pair(self, group: WaveGroup, step: Step, event: Event, use: Consumes) -> None:
        same_opcode = event.step.instruction.name == step.instruction.name
        if (use.role in ("other_read", "other_write") and same_opcode) or (use.role == "dot_ab" and not same_opcode):
            return
        if use.role == "mem_read_behind_dgemm" and not any(
            other.kind.startswith("dgemm") and other.time > event.time for other in group.events
        ):
            return
        row, have = self.row(event, use, step), group.now - event.time - 1
        if row is None or have >= row.states[event.passes]:
            return
        source = row.source_of(step.instruction.name, event.passes, have)
        if event.stale and source.required:
            source = STALE
        group.env.reporter.add(
            "wait-states",
            f"{row.states[event.passes]} wait states are needed after `{event.step.instruction.text}` "
            f"({event.kind} -> {use.role}), {have} are there",
            step.instruction,
            group,
            source=source,
        )


def _forwarding(event: Event, use: Consumes, by: Step) -> str:
    """Return how SrcC of a matrix instruction relates to an earlier result: "same", "like" or "overlap" (module)."""
    if event.mask != use.mask:
        return "overlap"
    if event.step.instruction.name == by.instruction.name:
        return "same"
    return "like" if event.passes == use.passes else "overlap"


def overwrite(events: list[Event], registers: int) -> None:
    """Mark events of VALU writes to scalar registers as stale if the scalar ALU has written these `registers` since."""
    for number, event in enumerate(events):
        if event.mask & registers and not event.stale and event.kind.startswith("valu_"):
            events[number] = event._replace(stale=True)
