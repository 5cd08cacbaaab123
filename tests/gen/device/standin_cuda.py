"""CUDA's driver without a GPU for tests, as `standin` is HIP's runtime: its launches are of PTX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import attrs

from convgen.backends.nvidia.sim import architecture, signatures, simulate
from convgen.backends.simulation import SimReport
from tests.gen.device import standin
from tests.gen.device.standin import Needs, StandIn

SOURCE = Path(__file__).with_name("standin_cuda.c")
LIBRARY = "libcuda.so"


def build(folder: Path) -> Path:
    """The library, in a folder."""
    return standin.build(folder, SOURCE, LIBRARY)


@attrs.define
class CudaStandIn(StandIn):
    """A device of CUDA that is being served."""

    arch: str = "sm_90"
    invalid_image: ClassVar = 218
    simulate: ClassVar[Callable[..., SimReport]] = staticmethod(simulate)

    @property
    def variables(self) -> dict[str, str]:
        return {
            "CONVGEN_CUDA": str(self.library),
            "CONVGEN_STANDIN_CUDA": str(self.folder),
            "CONVGEN_STANDIN_ARCH_CUDA": self.arch,
        }

    def read(self, content: bytes) -> tuple[str, dict[str, Needs]]:
        known = signatures(content)
        ends = {name: [p.offset + p.size for p in known[name].parameters] for name in known}
        return architecture(content), {
            name: Needs(known[name].shared_bytes, max(ends[name], default=0)) for name in known
        }
