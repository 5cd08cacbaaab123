"""The hand-written kernels beside this file. Like generated ones they take no local ids and no inline data."""

import io
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from convgen.backends.intel.zebin_devices import DEVICES

#: Target -> y += a * x.
AXPY = {target: Path(__file__).with_name(f"axpy_{target}.asm").read_text() for target in ("xehpg", "xehpc")}


def renamed(text: str, old: str, new: str) -> str:
    """The text with one line replaced, which must be there."""
    assert text.count(f"{old}\n") == 1
    return text.replace(f"{old}\n", f"{new}\n")


def second_kernel(text: str, name: str) -> str:
    """The kernel of a text once more under another name, without the target's line."""
    return renamed(text, "//.kernel axpy", f"//.kernel {name}").split("\n", 1)[1]


def section(zebin: bytes | None, name: str) -> Any:
    """A section of a zebin, which must be there, as pyelftools reads it."""
    assert zebin is not None
    found = ELFFile(io.BytesIO(zebin)).get_section_by_name(name)
    assert found is not None
    return found


_HEAD = """//.target {target}
//.kernel k
//.simd_size {lanes}
//.grf_count 128
//.slm_bytes 32768
//.barrier_count 1
//.workgroup {items} 1 1
//.has_dpas yes
"""


def small_kernel(body: str, target: str) -> str:
    """A whole file around instructions that are written for M lanes; REGS are the registers of 256 bytes."""
    device = DEVICES[target]
    head = _HEAD.format(target=target, lanes=device.simd_size, items=4 * device.simd_size)
    filled = body.replace("(M|", f"({device.simd_size}|").replace("REGS", str(256 // device.grf_bytes))
    return head + filled
