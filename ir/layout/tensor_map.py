"""Tensor maps: the argument of 128 bytes by which bulk tensor copies find a tensor in global memory.

The driver encodes one at the launch (cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col), without interleave, and with
zeros for elements outside the tensor; the encoded bytes are opaque. This record states what they encode.
Passes, emitter, launch records and simulator share it.

May import: convgen.ir.error, convgen.ir.record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from convgen.ir.error import UserError
from convgen.ir.record import frozen

MAP_BYTES, MAP_ALIGN = 128, 64
#: Bytes of each element type (CUtensorMapDataType).
ELEMENT_BYTES: Mapping[str, int] = {
    "u8": 1, "s8": 1, "e4m3": 1, "e5m2": 1, "u16": 2, "f16": 2, "bf16": 2,
    "u32": 4, "s32": 4, "f32": 4, "tf32": 4, "u64": 8, "s64": 8, "f64": 8,
}  # fmt: skip
_UNIT = 16  #: bytes: of addresses, strides and the innermost extent of a box
#: Elements of a dimension, bytes of a stride, elements along a box, pixels of a copy, step between elements: at most.
_MOST_DIM, _MOST_STRIDE, _MOST_BOX, _MOST_PIXELS, _MOST_STEP = 1 << 32, 1 << 40, 256, 1024, 8
#: Rank -> least and greatest coordinate of an im2col map's corners.
_CORNERS: Mapping[int, tuple[int, int]] = {3: (-(1 << 15), (1 << 15) - 1), 4: (-128, 127), 5: (-16, 15)}


@frozen(cache_hash=True)
class TensorMap:
    """A tensor of a buffer, and the box (tiled) or the run of pixels (im2col) that a copy takes of it.

    Dimensions stand innermost first; those of im2col maps are channels, W (H, D) and images. Corners have coordinates
    along W (H, D). Raises UserError for a map that the driver refuses.
    """

    kind: str  #: "tiled" or "im2col"
    element: str  #: key of ELEMENT_BYTES
    buffer: str  #: name of the buffer
    dims: tuple[int, ...]  #: elements
    strides: tuple[int, ...]  #: bytes, of dims[1:]
    box: tuple[int, ...] = ()  #: elements of the tensor that a tiled copy spans along each dimension
    lower: tuple[int, ...] = ()  #: first pixel of an im2col map's box, from the tensor's first pixel
    upper: tuple[int, ...] = ()  #: last pixel of the box, from the tensor's last pixel
    channels: int = 0  #: channels of a pixel in an im2col copy
    pixels: int = 0  #: pixels of an im2col copy
    element_strides: tuple[int, ...] = ()  #: steps between elements of a copy along each dimension; (): all 1
    swizzle: int = 0  #: bytes of the swizzle's rows: 0 (none), 32, 64 or 128
    shift: int = 0  #: bytes from the buffer's start to the tensor

    def __attrs_post_init__(self) -> None:
        for problem in self._problems():
            raise UserError(f"given a tensor map with {problem}")

    @property
    def size(self) -> int:
        """Return the bytes of an element."""
        return ELEMENT_BYTES[self.element]

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the step between elements of a copy along each dimension."""
        return self.element_strides or (1,) * len(self.dims)

    @property
    def extents(self) -> tuple[int, ...]:
        """Return the elements that a copy has along each dimension of shared memory, innermost first."""
        if self.kind == "im2col":
            return self.channels, self.pixels
        return tuple(-(-extent // step) for extent, step in zip(self.box, self.steps, strict=True))

    @property
    def bytes(self) -> int:
        """Return the bytes that a copy has in shared memory, and that its mbarrier counts, clipped ones included."""
        return prod(self.extents) * self.size

    def _problems(self) -> Iterator[str]:
        """Yield what the driver refuses, in one line each."""
        if self.kind not in ("tiled", "im2col"):
            yield f"kind {self.kind!r}, wanted tiled or im2col"
        if self.element not in ELEMENT_BYTES:
            yield f"element type {self.element!r}, wanted one of {', '.join(ELEMENT_BYTES)}"
        least = 1 if self.kind == "tiled" else 3
        if not least <= len(self.dims) <= 5:
            yield f"{len(self.dims)} dimensions, wanted {least} to 5 for {self.kind}"
        if any(not 1 <= dim <= _MOST_DIM for dim in self.dims):
            yield f"dims {self.dims}, wanted 1 to 2^32 elements each"
        if len(self.strides) != len(self.dims) - 1:
            yield f"{len(self.strides)} strides, wanted {len(self.dims) - 1}, one for each dimension but the innermost"
        if any(stride % _UNIT or not 0 <= stride < _MOST_STRIDE for stride in self.strides):
            yield f"strides {self.strides}, wanted multiples of {_UNIT} bytes below 2^40"
        if self.shift % _UNIT or self.shift < 0:
            yield f"a tensor that begins {self.shift} bytes into its buffer, wanted a multiple of {_UNIT}"
        if len(self.steps) != len(self.dims) or any(not 1 <= step <= _MOST_STEP for step in self.steps):
            yield f"element strides {self.steps}, wanted 1 to {_MOST_STEP} for each dimension"
        if self.swizzle not in (0, 32, 64, 128):
            yield f"a swizzle of {self.swizzle} bytes, wanted 0, 32, 64 or 128"
        yield from self._tiled_problems() if self.kind == "tiled" else self._im2col_problems()
        inner = self.extents[0] * self.size
        if inner % _UNIT:
            yield f"{inner} bytes along the innermost dimension of a copy, wanted a multiple of {_UNIT}"
        if self.swizzle and inner > self.swizzle:
            yield f"{inner} bytes along the innermost dimension of a copy, wanted at most the swizzle's {self.swizzle}"

    def _tiled_problems(self) -> Iterator[str]:
        if len(self.box) != len(self.dims) or any(not 1 <= extent <= _MOST_BOX for extent in self.box):
            yield f"the box {self.box}, wanted 1 to {_MOST_BOX} elements for each of {len(self.dims)} dimensions"
        if self.lower or self.upper or self.channels or self.pixels:
            yield "corners, channels or pixels, wanted a box for tiled"

    def _im2col_problems(self) -> Iterator[str]:
        least, most = _CORNERS[len(self.dims)]
        count = len(self.dims) - 2
        for name, corner in (("lower", self.lower), ("upper", self.upper)):
            if len(corner) != count or any(not least <= offset <= most for offset in corner):
                yield f"the {name} corner {corner}, wanted {least} to {most} for each of {count} dimensions"
        if not 1 <= self.channels <= _MOST_BOX:
            yield f"{self.channels} channels a pixel, wanted 1 to {_MOST_BOX}"
        if not 1 <= self.pixels <= _MOST_PIXELS:
            yield f"{self.pixels} pixels a copy, wanted 1 to {_MOST_PIXELS}"
        if self.box:
            yield "a box, wanted corners, channels and pixels for im2col"
