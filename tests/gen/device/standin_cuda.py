"""CUDA's driver without a GPU for tests, as `standin` is HIP's runtime: its launches are of PTX."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import attrs

from convgen.backends.nvidia.sim import architecture, signatures, simulate
from convgen.backends.sim.device_memory import FIRST_ADDRESS, SPACING
from convgen.backends.simulation import Signature, SimReport
from convgen.ir.layout.tensor_map import MAP_BYTES, TensorMap
from tests.gen.device import standin
from tests.gen.device.standin import Needs, StandIn

SOURCE = Path(__file__).with_name("standin_cuda.c")
LIBRARY = "libcuda.so"


def build(folder: Path, *further: str) -> Path:
    """The library, in a folder; `further` are flags of the compiler, such as -DOLD_DRIVER: one without tensor maps."""
    return standin.build(folder, SOURCE, LIBRARY, *further)


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
        return architecture(content), {name: needs_of(signature) for name, signature in signatures(content).items()}

    def encoded(self, content: bytes) -> TensorMap:
        return decoded(content)


def needs_of(signature: Signature) -> Needs:
    """What a kernel needs; its parameters stand where PTX declares them."""
    parameters = tuple((p.offset, p.size) for p in signature.parameters)
    maps = tuple(offset for offset, size in parameters if size == MAP_BYTES)
    return Needs(signature.shared_bytes, max((sum(p) for p in parameters), default=0), maps, parameters)


#: Element type by CUtensorMapDataType (CUDA Driver API): any one of those of a byte.
ELEMENTS = {
    0: "u8", 1: "u16", 2: "u32", 3: "s32", 4: "u64", 5: "s64", 6: "f16", 7: "f32", 8: "f64", 9: "bf16", 11: "tf32",
}  # fmt: skip
MODES = (0, 2, 0)  #: no interleave, promotion to 128 bytes in L2, zeros outside the tensor


def decoded(content: bytes) -> TensorMap:
    """The map that the library encoded; its buffer is named by the number of its allocation, as memory is."""
    kind, element, rank, interleave, swizzle, promotion, fill = content[:7]
    assert (interleave, promotion, fill) == MODES
    (address,) = struct.unpack_from("<Q", content, 8)
    dims, strides = (struct.unpack_from(f"<{n}Q", content, at) for n, at in ((rank, 16), (rank - 1, 56)))
    extents = struct.unpack_from("<8h", content, 96)
    number, shift = divmod(address - FIRST_ADDRESS, SPACING)
    return TensorMap(
        {1: "tiled", 2: "im2col"}[kind],
        ELEMENTS[element],
        str(number),
        dims,
        strides,
        box=extents[:rank] if kind == 1 else (),
        lower=extents[: rank - 2] if kind == 2 else (),
        upper=extents[3 : rank + 1] if kind == 2 else (),
        channels=extents[6] if kind == 2 else 0,
        pixels=extents[7] if kind == 2 else 0,
        element_strides=tuple(content[88 : 88 + rank]),
        swizzle={0: 0, 1: 32, 2: 64, 3: 128}[swizzle],
        shift=shift,
    )
