"""Allocate result tensors by the library of the caller's tensors, and find that library's current stream.

A library is used only if it is loaded already: otherwise no tensor can be its own.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from convgen.ir import types
from convgen.ir.error import UserError
from convgen.run.launch_record import StoredTensor

_TORCH = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "s8": "int8",
    "u8": "uint8",
    "s32": "int32",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
    "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2fnuz": "float8_e5m2fnuz",
}


def is_torch(given: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.Tensor)


def empty_torch(tensor: StoredTensor, like: Any) -> Any:
    """Return a torch tensor next to another one, with the argument's strides; for a blocked layout, a flat one.

    Raises UserError for a type that torch lacks.
    """
    torch = sys.modules["torch"]
    if tensor.dtype not in _TORCH:
        raise UserError(f"given no tensor for a result of {tensor.dtype}, wanted one: torch has no such type")
    layout, dtype = tensor.layout, getattr(torch, _TORCH[tensor.dtype])
    if layout.is_plain:
        return torch.empty_strided(tensor.dims, layout.strides(), dtype=dtype, device=like.device)
    dims = (layout.size_elems,) if like.device.type != "cpu" else tensor.dims
    return torch.empty(dims, dtype=dtype, device=like.device)


def empty_numpy(tensor: StoredTensor) -> Any:
    return np.empty(tensor.dims, types.scalar(tensor.dtype).numpy)


def stream_of(given: object) -> int:
    """Return the handle of a stream: a number, or a stream of torch, cupy or convgen. Raises UserError."""
    for attribute in ("handle", "cuda_stream", "ptr"):
        handle = getattr(given, attribute, None)
        if isinstance(handle, int):
            return handle
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    raise UserError(f"given a stream of type {type(given).__name__}, wanted a number, or a stream of torch or cupy")


def current_stream(like: Any) -> int:
    """Return the stream in which a tensor's library enqueues work; 0, the device's default stream, if unknown."""
    if is_torch(like) and like.device.type == "cuda":
        return int(sys.modules["torch"].cuda.current_stream(like.device).cuda_stream)
    return 0
