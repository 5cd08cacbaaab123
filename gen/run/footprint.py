"""The memory available for a run."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

_SHARE = 0.8  #: share of the free memory that buffers may take; the rest is for the simulator itself
_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def available() -> int:
    """Return the bytes that buffers may take, by the limits of the machine, the control group and the process."""
    limits = [_machine(), _group(), _process()]
    return int(_SHARE * min(bytes_ for bytes_ in limits if bytes_ is not None))


def _machine() -> int:
    """Return the bytes that Linux can give without swapping; all memory where it does not report them."""
    with suppress(OSError, ValueError, StopIteration):
        line = next(line for line in _MEMORY.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group() -> int | None:
    """Return the bytes left of a container's limit (cgroup v2)."""
    with suppress(OSError, ValueError):
        most, used = (int((_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        return max(0, most - used)
    return None


def _process() -> int | None:
    """Return the bytes left of the limit of address space (`ulimit -v`)."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return None
    with suppress(OSError, ValueError, IndexError):
        return max(0, most - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize())
    return most


def text(size: int) -> str:
    """Return a size in bytes as text with a unit."""
    scale = next((unit for unit in range(4, 0, -1) if size >> 10 * unit), 0)
    return f"{size / (1 << 10 * scale):.3g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[scale]}"
