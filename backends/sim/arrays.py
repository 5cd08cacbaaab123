"""Names for the arrays that simulators pass around."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


def any_along(flags: Array, axis: int | tuple[int, ...], *, keepdims: bool = False) -> Bools:
    """Whether any flag is set along some axes."""
    found: Bools = np.asarray(np.any(flags, axis=axis, keepdims=keepdims))
    return found
