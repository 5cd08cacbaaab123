"""Rows and JSON of an analysed kernel: registers and occupancy, the instruction mix of its hot loop, its bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convgen.backends.analysis import Analysis, KernelAnalysis, Stretch, Terms


def where(hot: Stretch) -> str:
    """Return the offsets of the hot code's first and last instruction, and its length, as text."""
    return f"+{hot.lines[0].offset:#x} to +{hot.lines[-1].offset:#x}, {len(hot.lines)} instructions"


def _matrix_rows(hot: Stretch, terms: Terms) -> list[tuple[str, str]]:
    """Return matrix instructions relative to all others, by number and by issue slots; one row if there are none."""
    if hot.others_per_matrix is None or hot.issue_per_matrix is None:
        return [(terms.matrix, "none")]
    return [
        (f"{terms.matrix} : other", f"1 : {hot.others_per_matrix:.2f}"),
        ("slots", f"1 : {hot.issue_per_matrix:.2f} of {terms.matrix} and of issuing all others"),
    ]


def rows(kernel: KernelAnalysis, analysis: Analysis) -> list[tuple[str, str]]:
    """Return the rows on a kernel's resources and on its hot code."""
    return [*kernel_rows(kernel, analysis), *hot_rows(kernel, analysis.terms)]


def kernel_rows(kernel: KernelAnalysis, analysis: Analysis) -> list[tuple[str, str]]:
    """Return the rows on a kernel's resources."""
    code = f"{kernel.code_bytes} bytes" if kernel.code_bytes else f"{len(kernel.lines)} instructions of text"
    occupancy = ", ".join(f"{count} by {limit}" for limit, count in kernel.occupancy.items())
    registers = " ".join(f"{name} {count}" for name, count in kernel.registers.items())
    return [
        ("kernel", kernel.name),
        ("target", analysis.target),
        ("registers", f"{registers}, allocated in granules" if registers else "virtual"),
        ("shared", f"{kernel.shared_bytes} bytes{' and those of the launch' if kernel.shared_at_launch else ''}"),
        ("code", f"{code}, {kernel.loops} loops, workgroups of up to {kernel.workgroup}"),
        (analysis.terms.occupancy, occupancy or "unknown"),
    ]


def hot_rows(kernel: KernelAnalysis, terms: Terms) -> list[tuple[str, str]]:
    """Return the rows on an iteration of a kernel's hot loop; without one, on all of its code."""
    hot = kernel.hot
    moved = ", ".join(f"{path} {count}" for path, count in hot.bytes.items())
    span = "an iteration" if hot.is_loop else "in all"
    once = f"what every {terms.subgroup} runs through once" if kernel.loops else "the whole kernel"
    return [
        ("hot loop", where(hot) if hot.is_loop else f"none: {once}, {where(hot)}"),
        ("mix", ", ".join(f"{kind} {count}" for kind, count in hot.mix.items())),
        *_matrix_rows(hot, terms),
        ("FLOP", f"{hot.flop} a {terms.subgroup}, {span}"),
        ("bytes", f"{moved or 'none'}, a {terms.subgroup}, {span}"),
        *((name, f"{count}, {span}") for name, count in kernel.counts.items()),
        ("bound", f"{hot.bound}: {terms.slot_clocks * hot.slots[hot.bound]} clocks at least, {span}"),
    ]


def units(hot: Stretch, terms: Terms) -> list[tuple[str, ...]]:
    """Return a row for each unit: busy slots, their share of the busiest unit's, and its instructions."""
    slots = hot.slots
    longest = max(1, *slots.values())
    with_what = {unit: f"{sum(line.unit == unit for line in hot.lines)} instructions" for unit in slots}
    with_what["issue"] = f"{len(hot.lines)} instructions, {terms.issue}"
    with_what["matrix"] += f", {hot.flop} FLOP"
    for unit in ("lds", "global"):
        with_what[unit] += f", {sum(count for path, count in hot.bytes.items() if path.startswith(unit))} bytes"
    return [(unit, str(count), f"{100 * count / longest:.0f}%", with_what[unit]) for unit, count in slots.items()]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def as_json(kernel: KernelAnalysis, terms: Terms, verbose: bool) -> dict[str, Any]:
    """Return an analysed kernel for `--json`; `verbose`: with the instructions of its hot code."""
    hot = kernel.hot
    lines = [
        {"offset": n.offset, "kind": n.kind, "unit": n.unit or "issue", "slots": n.slots, "text": n.text}
        for n in hot.lines
    ]
    return {
        "kernel": kernel.name,
        "registers": dict(kernel.registers),
        "lds_bytes": kernel.shared_bytes,
        "code_bytes": kernel.code_bytes,
        "workgroup": kernel.workgroup,
        "occupancy": dict(kernel.occupancy),
        "loops": kernel.loops,
        "hot": {
            "loop": hot.is_loop,
            "first": hot.lines[0].offset,
            "last": hot.lines[-1].offset,
            "instructions": len(hot.lines),
            "mix": hot.mix,
            f"others_per_{terms.matrix}": _rounded(hot.others_per_matrix),
            f"issue_per_{terms.matrix}": _rounded(hot.issue_per_matrix),
            "flop": hot.flop,
            "bytes": hot.bytes,
            "slots": hot.slots,
            "bound": hot.bound,
            "counts": dict(kernel.counts),
            **({"lines": lines} if verbose else {}),
        },
    }
