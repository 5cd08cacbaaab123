"""Maps of registers and shared tiles for the header of a kernel's text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from convgen.backends.machine.allocate import Allocation
from convgen.ir.layout.digits import Space
from convgen.ir.layout.memory import Shared
from convgen.ir.program import Kernel


def maps(kernel: Kernel, allocation: Allocation, files: Mapping[str, str]) -> list[str]:
    """Return comment lines that show where registers and shared tiles lie.

    `files` maps the banks to show to the assembler's letter for them.
    """
    lines = ["registers:", *(f"  {line}" for line in register_map(allocation, files))]
    if kernel.shared:
        lines += ["shared memory:", *(f"  {line}" for line in shared_map(kernel))]
    return lines


def register_map(allocation: Allocation, files: Mapping[str, str]) -> Iterator[str]:
    """Yield the registers of each named group of tuples over the kernel: `acc_0`, `acc_1`, ... are the group `acc`."""
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for v, base in allocation.base.items():
        if v.size > 1 and v.name and v.bank in files:
            groups.setdefault((v.bank, re.sub(r"(_\d+)+$", "", v.name)), []).append((base, base + v.size))
    width = max((len(name) for _, name in groups), default=0)
    for (bank, name), spans in groups.items():
        places = " ".join(f"{files[bank]}[{first}:{end - 1}]" for first, end in _merged(spans))
        yield f"{name:<{width}}  {places}"


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for first, end in sorted(spans):
        if out and first <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((first, end))
    return out


def shared_map(kernel: Kernel) -> Iterator[str]:
    """Yield the byte range, shape and order of each shared tile."""
    for t in kernel.shared:
        base = kernel.shared_base(t)
        swizzle = f", chunk ^ ({t.swizzle})" if t.swizzle.mask else ""
        shape = f"{t.slots} x {t.rows} x {t.cols} {t.elem}, {_order(t)}{swizzle}"
        yield f"{base:#07x}..{base + t.bytes:#07x}  {t.name}: {shape}"


def _order(t: Shared) -> str:
    """Return the order of a tile's elements in memory."""
    if t.pitch is not None:
        return f"row pitch {t.pitch}"
    by_stride = sorted(t.digits.merged(Space.MEMORY).digits, key=lambda d: d.stride)
    return "elements along " + " ".join(f"{d.dim}:{d.size}" for d in by_stride)
