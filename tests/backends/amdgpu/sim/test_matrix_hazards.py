"""Wait states behind every matrix instruction, executed: what the manuals ask for is clean, one less is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest

from convgen.backends.amdgpu.sim.mfma_table import BITS, MATRIX_ROWS, MatrixRow

TARGETS = tuple(MATRIX_ROWS)
SETUP = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  ds_write_b32 v1, v0
  ds_write_b32 v1, v0 offset:256
  s_waitcnt lgkmcnt(0)
"""
FAR = "s_nop 15\n s_nop 15\n"


def needed(arch: str, row: MatrixRow, use: str) -> int:
    """What the ISA manuals and LLVM's recognizer ask for between D of `row` and a use, written down again."""
    passes = row.passes
    if row.result == "f64":
        if row.m == 4:
            return {"c_same": 4, "c_overlap": 4, "store": 9, "ds_write": 9}.get(use, 6)
        late = arch == "gfx950"
        special = {"c_same": 0, "c_overlap": 17 if late else 9, "store": 18, "ds_write": 18}
        return special.get(use, 19 if late and use in ("valu_read", "valu_write", "a", "b") else 11)
    f32 = row.a_type == "f32"
    if use == "c_same":
        return 2 if passes == 2 and arch != "gfx90a" else 0
    if use in ("c_overlap", "c_other"):
        return passes + (0 if f32 else {"gfx90a": 0, "gfx942": 1, "gfx950": 2}[arch])
    if use in ("c_valu", "c_load"):
        return 0 if f32 and arch != "gfx90a" else passes - 1
    if f32 and arch != "gfx90a":
        return passes + 2
    return passes + (4 if arch == "gfx950" and passes > 2 else 3)


def rows(arch: str) -> dict[str, MatrixRow]:
    return {name: row for name, row in MATRIX_ROWS[arch].items() if "f8f6f4" not in name}


def registers(kind: str, first: int, count: int) -> str:
    return f"{kind}{first}" if count == 1 else f"{kind}[{first}:{first + count - 1}]"


@attrs.frozen
class Probe:
    """A matrix instruction, what comes after it, and the wait states that belong between."""

    name: str
    use: str
    producer: str
    consumer: str
    need: int
    after: str = ""

    def text(self, wait_states: int) -> str:
        nops = [f"s_nop {min(16, wait_states - start) - 1}" for start in range(0, wait_states, 16)]
        return "\n".join([FAR, self.producer, *nops, self.consumer, self.after])


def probes(arch: str, kind: str) -> Iterator[Probe]:
    """D in v32.. or a32.., A in v4.., B in v12..; what is not looked at goes to 96.. of the same half."""
    for name, row in rows(arch).items():
        per_lane = row.m * row.k * row.blocks // 64
        count, size = row.result_registers, max(per_lane * BITS[row.a_type] // 32, 1)
        d, a, b = registers(kind, 32, count), registers("v", 4, size), registers("v", 12, size)
        other, shifted = registers(kind, 96, count), registers(kind, 34, count)
        inside = registers(kind, 32, size)
        producer = f"{name} {d}, {a}, {b}, 0"
        read, write = (
            ("v_mov_b32_e32", "v_mov_b32_e32") if kind == "v" else ("v_accvgpr_read_b32", "v_accvgpr_write_b32")
        )
        landed = "s_waitcnt vmcnt(0) lgkmcnt(0)"
        uses = {
            "valu_read": f"{read} v2, {kind}32",
            "valu_write": f"{write} {kind}32, {0 if kind == 'a' else 'v0'}",
            "store": f"global_store_dword v1, {kind}32, s[6:7]",
            "ds_write": f"ds_write_b32 v1, {kind}32",
            "load": f"global_load_dword {kind}32, v1, s[4:5]",
            "ds_read": f"ds_read_b32 {kind}32, v1",
            "a": f"{name} {other}, {inside}, {b}, 0",
            "b": f"{name} {other}, {a}, {inside}, 0",
            "c_same": f"{name} {d}, {a}, {b}, {d}",
            "c_overlap": f"{name} {shifted}, {a}, {b}, {shifted}",
        }
        if count == 2:
            del uses["c_overlap"]  # even pairs are equal or apart
        twin = next((n for n, r in rows(arch).items() if n != name and _alike(r, row)), None)
        if twin is not None and row.result != "f64":
            uses["c_other"] = f"{twin} {d}, {a}, {b}, {d}"
        for use, consumer in uses.items():
            yield Probe(
                name, use, producer, consumer, needed(arch, row, use), landed if use in ("load", "ds_read") else ""
            )
        if row.result != "f64":
            producer = f"{name} {other}, {a}, {b}, {d}"
            yield Probe(name, "c_valu", producer, uses["valu_write"], needed(arch, row, "c_valu"))
            yield Probe(name, "c_load", producer, uses["load"], needed(arch, row, "c_load"), landed)


def _alike(one: MatrixRow, other: MatrixRow) -> bool:
    """Whether two instructions take the same register tuples."""
    sizes = [
        (row.result, row.result_registers, max(row.m * row.k * row.blocks // 64 * BITS[row.a_type] // 32, 1))
        for row in (one, other)
    ]
    return sizes[0] == sizes[1]


def findings(sim: Any, arch: str, body: str) -> Any:
    clear = "\n".join(f"v_mov_b32_e32 v{r}, 0\n v_accvgpr_write_b32 a{r}, 0" for r in range(2, 128))
    source = sim.Source(SETUP + clear + "\n" + body + "\n" + FAR, vgprs=128, agprs=128, lds=512)
    buffers = {"in": np.zeros(64, np.uint32), "out": np.zeros(64, np.uint32)}
    return sim.run(arch, source, buffers, max_findings=10_000).findings


@pytest.mark.parametrize("kind", ["v", "a"])
@pytest.mark.parametrize("arch", TARGETS)
def test_behind_matrix_instructions(sim: Any, arch: str, kind: str) -> None:
    every = list(probes(arch, kind))
    assert len({probe.name for probe in every}) == len(rows(arch))
    clean = findings(sim, arch, "\n".join(probe.text(probe.need) for probe in every))
    assert not clean, str(clean[0])
    short = [probe for probe in every if probe.need]
    found = findings(sim, arch, "\n".join(probe.text(probe.need - 1) for probe in short))
    assert {finding.kind for finding in found} == {"wait-states"}
    wanted = [f"{probe.need} wait states are needed after `{probe.producer.split()[0]} " for probe in short]
    assert len(found) == len(short)
    for probe, finding, start in zip(short, found, wanted, strict=True):
        assert finding.message.startswith(start), (probe, finding)
        assert finding.instruction.split()[0] == probe.consumer.split()[0], (probe, finding)


@pytest.mark.parametrize("arch", TARGETS)
def test_before_matrix_instructions(sim: Any, arch: str) -> None:
    """VALU writes of A, B and C, also by v_accvgpr_write, need two wait states; EXEC written by v_cmpx needs four."""
    before = {
        "v_mov_b32_e32 v4, v0": 2,
        "v_mov_b32_e32 v12, v0": 2,
        "v_mov_b32_e32 v32, v0": 2,
        "v_accvgpr_write_b32 a32, v0": 2,
        "v_rcp_f32_e32 v4, v0": 2,
        "v_cmpx_le_u32_e64 s[20:21], 0, v0": 4,
    }
    chosen = [name for name in rows(arch) if "16x16" in name or "f64" in name]
    for short in (0, 1):
        body, count = [], 0
        for name in chosen:
            row = rows(arch)[name]
            size = max(row.m * row.k * row.blocks // 64 * BITS[row.a_type] // 32, 1)
            for writer, need in before.items():
                kind = "a" if "accvgpr" in writer else "v"
                d = registers(kind, 32, row.result_registers)
                matrix = f"{name} {d}, {registers('v', 4, size)}, {registers('v', 12, size)}, {d}"
                body += [FAR, writer, f"s_nop {need - 1 - short}", matrix]
                count += 1
        found = findings(sim, arch, "\n".join(body))
        assert len(found) == (count if short else 0), str(found[0])
        assert {finding.kind for finding in found} == ({"wait-states"} if short else set())
