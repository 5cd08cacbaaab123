"""DLPack 1.1: read tensors of other libraries in place, and share convgen's with them.

Structures and numbers are those of dlpack.h. A tensor has an address, sizes, strides in elements, and a type: a code
for the kind of number, and bits.
"""

from __future__ import annotations

import ctypes as c
import itertools
from typing import Any

from convgen.ir.record import frozen

CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, ONE_API = 1, 2, 3, 10, 11, 14
#: Device type -> name in errors.
DEVICES = {CPU: "cpu", CUDA: "cuda", CUDA_HOST: "cuda_host", ROCM: "hip", ROCM_HOST: "hip_host", ONE_API: "oneapi"}
HOST = (CPU, CUDA_HOST, ROCM_HOST)

#: Our types -> code and bits.
TYPES = {
    "s4": (0, 4),
    "s8": (0, 8),
    "s32": (0, 32),
    "u4": (1, 4),
    "u8": (1, 8),
    "u32": (1, 32),
    "f16": (2, 16),
    "f32": (2, 32),
    "f64": (2, 64),
    "bf16": (4, 16),
    "f8_e4m3": (10, 8),
    "f8_e4m3fnuz": (11, 8),
    "f8_e5m2": (12, 8),
    "f8_e5m2fnuz": (13, 8),
    "e8m0": (14, 8),
    "f6_e2m3": (15, 6),
    "f6_e3m2": (16, 6),
    "f4_e2m1": (17, 4),
}
_NAMES = {code: name for name, code in TYPES.items()}
_KINDS = {0: "int", 1: "uint", 2: "float", 5: "complex", 6: "bool"}

_VERSION = (1, 1)
_READ_ONLY = 1
_LEGACY, _VERSIONED = b"dltensor", b"dltensor_versioned"


class _Tensor(c.Structure):
    _fields_ = (
        ("data", c.c_void_p),
        ("device_kind", c.c_int32),
        ("device", c.c_int32),
        ("rank", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    )


class _Managed(c.Structure):
    _fields_ = (("tensor", _Tensor), ("context", c.c_void_p), ("deleter", c.c_void_p))


class _Versioned(c.Structure):
    _fields_ = (
        ("major", c.c_uint32),
        ("minor", c.c_uint32),
        ("context", c.c_void_p),
        ("deleter", c.c_void_p),
        ("flags", c.c_uint64),
        ("tensor", _Tensor),
    )


_Capsule = c.py_object
_is = c.pythonapi.PyCapsule_IsValid
_is.restype, _is.argtypes = c.c_int, [_Capsule, c.c_char_p]
_pointer = c.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c.c_void_p, [_Capsule, c.c_char_p]
_new = c.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = _Capsule, [c.c_void_p, c.c_char_p, c.c_void_p]


@frozen(eq=False)
class SharedTensor:
    """A tensor of any library. It stays alive while `owner` is referenced."""

    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]  #: in elements
    dtype: str  #: convgen's name of the type, or a description for errors
    kind: int  #: device type
    device: int
    writable: bool
    owner: Any


def receive(given: Any, stream: int | None) -> SharedTensor:
    """Return a tensor that another library shares. Its pending work by CUDA or HIP completes before `stream` continues.

    Raises BufferError, or the owner's exception, if the owner does not share it.
    """
    kind, device = map(int, given.__dlpack_device__())
    usual = 1 if kind == CUDA else 0  # DLPack's number of the default stream
    wanted: dict[str, Any] = {"stream": stream or usual} if kind in (CUDA, ROCM) and stream is not None else {}
    try:
        capsule = given.__dlpack__(**wanted, max_version=_VERSION)
    except TypeError:  # the owner predates DLPack 1.0
        capsule = given.__dlpack__(**wanted)
    writable = True
    if _is(capsule, _VERSIONED):
        managed = _Versioned.from_address(_pointer(capsule, _VERSIONED))
        if managed.major != _VERSION[0]:
            raise BufferError(f"DLPack {managed.major}.{managed.minor}")
        tensor, writable = managed.tensor, not managed.flags & _READ_ONLY
    else:
        tensor = _Managed.from_address(_pointer(capsule, _LEGACY)).tensor
    dims = tuple(tensor.shape[: tensor.rank])
    strides = tuple(tensor.strides[: tensor.rank]) if tensor.strides else dense(dims)
    dtype = _NAMES.get((tensor.code, tensor.bits), f"{_KINDS.get(tensor.code, f'type {tensor.code} of ')}{tensor.bits}")
    dtype += f"x{tensor.lanes}" if tensor.lanes != 1 else ""
    address = (tensor.data or 0) + tensor.byte_offset
    return SharedTensor(address, dims, strides, dtype, kind, device, writable, (capsule, given))


def dense(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor, in elements."""
    return tuple(itertools.accumulate(reversed(dims[1:]), int.__mul__, initial=1))[::-1] if dims else ()


#: Number in a capsule's context -> what keeps the shared tensor alive.
_shared: dict[int, tuple[Any, ...]] = {}
_numbers = itertools.count(1)


def _release(managed: Any) -> None:
    _shared.pop(managed.contents.context, None)


def _capsule_destructor(name: bytes, kind: type[c.Structure]) -> Any:
    """Return the destructor of a capsule: it releases a tensor that nobody took (a taker renames the capsule)."""

    def end(capsule: int) -> None:
        live = c.cast(capsule, c.py_object)
        if _is(live, name):
            _shared.pop(kind.from_address(_pointer(live, name)).context, None)

    return c.CFUNCTYPE(None, c.c_void_p)(end)


_deleter: Any = c.CFUNCTYPE(None, c.POINTER(_Managed))(_release)
_versioned_deleter: Any = c.CFUNCTYPE(None, c.POINTER(_Versioned))(_release)
_destructor, _versioned_destructor = _capsule_destructor(_LEGACY, _Managed), _capsule_destructor(_VERSIONED, _Versioned)


def share(seen: SharedTensor, *, versioned: bool) -> Any:
    """Return a capsule of a tensor, which stays alive until the taker calls its deleter."""
    number = next(_numbers)
    rank = len(seen.dims)
    shape, strides = (c.c_int64 * rank)(*seen.dims), (c.c_int64 * rank)(*seen.strides)
    code, bits = TYPES[seen.dtype]
    tensor = _Tensor(seen.address, seen.kind, seen.device, rank, code, bits, 1, shape, strides, 0)
    if versioned:
        end = c.cast(_versioned_deleter, c.c_void_p).value
        managed: c.Structure = _Versioned(*_VERSION, number, end, 0 if seen.writable else _READ_ONLY, tensor)
    else:
        managed = _Managed(tensor, number, c.cast(_deleter, c.c_void_p).value)
    _shared[number] = (managed, shape, strides, seen.owner)
    name, destructor = (_VERSIONED, _versioned_destructor) if versioned else (_LEGACY, _destructor)
    return _new(c.addressof(managed), name, c.cast(destructor, c.c_void_p))
