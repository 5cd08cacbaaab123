"""Read a manifest of foreign kernels: their launches, their data, and the results that they should write.

`bench/foreign.py` says what an entry may hold.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import numpy.typing as npt
from lib.references import REFERENCES

from convgen.backends.amdgpu.sim import CodeObject
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.ir.error import UserError
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import reference

Array = npt.NDArray[Any]
Entry = Mapping[str, Any]

_TYPES: Mapping[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "fp16": np.float16,
    "fp32": np.float32,
    "fp64": np.float64,
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits // 8}").type for kind in "iu" for bits in (8, 16, 32, 64)},
    "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "fp8e4b8": ml_dtypes.float8_e4m3fnuz,
    "fp8e5b16": ml_dtypes.float8_e5m2fnuz,
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e5": ml_dtypes.float8_e5m2,
    "fp4x2": np.uint8,
    "e8m0": np.uint8,
}
_SCALARS: Mapping[str, str] = {"i32": "<I", "i64": "<q", "f32": "<f", "fp32": "<f", "ptr": "<Q"}
#: Bytes of inputs in formats that numpy does not have: e4m3 and e5m2 are -2, -1, 0, 1, 2, e8m0 halves or doubles.
_CODES: Mapping[str, Sequence[int]] = {
    "e2m1": range(256),
    "e4m3": (0xC0, 0xB8, 0x00, 0x38, 0x40),
    "e5m2": (0xC0, 0xBC, 0x00, 0x3C, 0x40),
    "e8m0": (126, 127, 128),
}
_ONE = 127  #: 1.0 as e8m0
_FP4 = {0: 0x0, 1: 0x2, 2: 0x4, -1: 0xA, -2: 0xC}  #: e2m1 by value
_SENTINEL = 0xA5  #: fills what the kernel must write


@attrs.frozen
class Argument:
    """One kernel argument: a tensor, or `encoded` bytes."""

    name: str
    offset: int
    dtype: str
    shape: tuple[int, ...] = ()
    encoded: bytes = b""
    what: str = ""
    cleared: bool = False  #: whether the host clears it before the launch
    fill: Any = None
    value: float = 0.0


@attrs.frozen
class Case:
    """An entry, understood: its launch, the tensors it reads, those it should write, and how near."""

    launch: LaunchRequest
    inputs: Mapping[str, Array]
    arguments: Mapping[str, Argument]
    expected: Mapping[str, Array]
    relative: float = 0.0
    absolute: float = 0.0

    def buffers(self) -> dict[str, Array]:
        """The bytes of all tensors before a launch, to be changed in place."""
        found = {name: np.array(data).reshape(-1).view(np.uint8) for name, data in self.inputs.items()}
        for name, right in self.expected.items():
            if name not in found:
                fill = 0 if self.arguments[name].cleared else _SENTINEL
                found[name] = np.full(right.nbytes, fill, np.uint8)
        return found

    def wrong(self, name: str, got: Array) -> int:
        """Return the number of wrong elements in the bytes of an output."""
        right = self.expected[name]
        if not self.relative and not self.absolute:
            differs = got != right.reshape(-1).view(np.uint8)
            return int(differs.reshape(-1, right.itemsize).any(axis=1).sum())
        x, y = (v.reshape(-1).astype(np.float64) for v in (got.view(right.dtype), right))
        return int((~(np.abs(x - y) <= self.absolute + self.relative * np.abs(y))).sum())


def _integers(seed: int, shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(seed).integers(-2, 3, shape)


def read_arguments(entry: Entry, offsets: list[int]) -> list[Argument]:
    """The arguments of an entry; `offsets` are those of the code object's metadata."""
    found = []
    for number, given in enumerate(entry["args"]):
        offset = int(given.get("offset", offsets[number] if number < len(offsets) else 0))
        kind = str(given["t"])
        if "*" not in kind:
            encoded = struct.pack(_SCALARS[kind], given["value"])
            found.append(Argument(given["n"], offset, kind, encoded=encoded, value=float(given["value"])))
            continue
        dtype, what, fill = kind.strip("*"), str(given.get("what", "")), given.get("fill")
        cleared = bool(given.get("zero_before_launch", fill == "zero"))
        found.append(Argument(given["n"], offset, dtype, tuple(given["shape"]), what=what, cleared=cleared, fill=fill))
    return found


def from_name(kernel: str, offsets: list[int]) -> list[Argument]:
    """The arguments of a product whose symbol ends in sizes and types."""
    match = re.search(r"_(\d+)x(\d+)x(\d+)_(\w+?)x(\w+?)x(\w+)$", kernel)
    if match is None:
        raise UserError(f"given no arguments, wanted a name that ends in sizes and types, of {kernel}")
    m, n, k = (int(size) for size in match.groups()[:3])
    shapes = ((m, k), (n, k), (m, n))
    return [
        Argument(name, offset, dtype, shape)
        for name, offset, dtype, shape in zip("ABC", offsets, match.groups()[3:], shapes, strict=True)
    ]


# -- convolutions -----------------------------------------------------------------------------------------------------


def _convolution(entry: Entry, tensors: Mapping[str, Argument]) -> tuple[Problem, Mapping[str, str]]:
    """The problem, and its tensors' names by those of the arguments."""
    if "problem" in entry:
        problem = parse_problem(f"{entry['knobs']} {entry['problem']}")
        (output,) = problem.outputs
        roles = {"p_in": "src", "p_wei": "wei", "p_out": "dst"}
        gradients = (
            {"dst", *(spec.name.removeprefix("diff_") for spec in problem.outputs)} if "diff" in output.name else ()
        )
        return problem, {n: f"diff_{role}" if role in gradients else role for n, role in roles.items()}
    (n, height, _, ic), (oc, kernel, _, _), (_, out, _, _) = (tensors[name].shape for name in ("X", "Wt", "Y"))
    padding = (out - height + kernel - 1) // 2
    types = ":".join(tensors[name].dtype.replace("fp32", "f32") for name in ("X", "Wt", "Y"))
    knobs = f"--dir=FWD_D --dt={types} --stag=acdb --wtag=acdb --dtag=acdb"
    problem = parse_problem(f"{knobs} mb{n}ic{ic}ih{height}oc{oc}oh{out}kh{kernel}ph{padding}")
    return problem, {"X": "src", "Wt": "wei", "Y": "dst"}


def _of_convolution(entry: Entry, tensors: Mapping[str, Argument]) -> tuple[dict[str, Array], str, Array]:
    problem, names = _convolution(entry, tensors)
    (output,) = problem.outputs
    logical = {
        spec.name: _integers(number, spec.dims).astype(reference.numpy_type(spec.dtype))
        for number, spec in enumerate(problem.inputs)
    }
    memory = {
        name: reference.pack(problem.tensor(role).layout, logical[role])
        for name, role in names.items()
        if role in logical
    }
    (written,) = (name for name, role in names.items() if role == output.name)
    right = reference.whole(problem, logical, output.name)
    return memory, written, reference.pack(problem.tensor(output.name).layout, right)


# -- products ---------------------------------------------------------------------------------------------------------


def _encoded(values: Array, dtype: str) -> Array:
    """Integers as rows of bytes."""
    if dtype == "fp4x2":
        codes = np.vectorize(_FP4.__getitem__)(values).astype(np.uint8)
        packed: Array = codes[:, ::2] | codes[:, 1::2] << 4
        return packed
    return np.ascontiguousarray(values.astype(_TYPES[dtype])).view(np.uint8)


def _shuffled(rows: Array) -> Array:
    """Rows of bytes in blocks of 16 rows x 32 bytes: [N/16][K/32][2][16 rows][16 bytes]."""
    n, size = rows.shape
    return np.ascontiguousarray(rows.reshape(n // 16, 16, size // 32, 2, 16).transpose(0, 2, 3, 1, 4))


def _scale(name: str, argument: Argument, across: int, depth: int) -> tuple[Array, Array]:
    """Return the scales of a factor as the kernel reads them, and spread over [rows or columns of the result, K].

    `across` are the rows or columns. Shapes: [rows, 1] or [1, rows], or [K blocks, rows] of A, or [row blocks, K
    blocks] of B. Scales are powers of two, so that sums are exact; those of A double in every other block of K.
    """
    if argument.dtype == "e8m0":
        return np.full(argument.shape, _ONE, np.uint8), np.ones((across, depth))
    transposed = argument.shape[1] == across
    rows, blocks = argument.shape[::-1] if transposed else argument.shape
    table = np.exp2(np.random.default_rng(ord(name[1])).integers(-1, 2, (rows, 1))) * np.ones((rows, blocks))
    table[:, 1::2] *= 2 if name == "SA" else 1
    spread = table.repeat(across // rows, axis=0).repeat(depth // blocks, axis=1)
    return np.ascontiguousarray(table.T if transposed else table).astype(np.float32), spread


def _of_product(tensors: Mapping[str, Argument]) -> tuple[dict[str, Array], str, Array]:
    written = "D" if "D" in tensors else "C"
    m, n = tensors[written].shape
    width = 2 if tensors["A"].dtype == "fp4x2" else 1
    depth = tensors["A"].shape[1] * width
    memory: dict[str, Array] = {}
    sides = {}
    for seed, (name, across) in enumerate((("A", m), ("B", n))):
        values = _integers(seed, (across, depth))
        rows = _encoded(values, tensors[name].dtype)
        memory[name] = _shuffled(rows) if "blocks of 16 rows" in tensors[name].what else rows
        sides[name] = values.astype(np.float64)
    for name, side, across in (("SA", "A", m), ("SB", "B", n)):
        if name in tensors:
            memory[name], spread = _scale(name, tensors[name], across, depth)
            sides[side] = sides[side] * spread
    if "bias" in tensors:
        memory["bias"] = np.zeros(tensors["bias"].shape, np.float32)
    right = (sides["A"] @ sides["B"].T).astype(_TYPES[tensors[written].dtype])
    return memory, written, right


# -- what a reference says --------------------------------------------------------------------------------------------


def _filled(argument: Argument, seed: int) -> Array:
    """Return an input's data, filled as its `fill` says; formats that numpy lacks are bytes."""
    rng, fill, dtype = np.random.default_rng(seed), argument.fill, _TYPES[argument.dtype]
    if fill == "zero":
        return np.zeros(argument.shape, dtype)
    if fill == "normal":
        return rng.standard_normal(argument.shape).astype(dtype)
    if isinstance(fill, str) and fill in _CODES:
        return rng.choice(np.array(_CODES[fill], np.uint8), argument.shape)
    low, high = fill if isinstance(fill, list) else (-2, 2)
    return rng.integers(low, high, argument.shape, endpoint=True).astype(dtype)


def _of_reference(entry: Entry, arguments: Sequence[Argument]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Inputs, and outputs in their types."""
    tensors = [a for a in arguments if a.shape]
    inputs = {a.name: _filled(a, seed) for seed, a in enumerate(tensors) if a.fill is not None}
    numbers = {a.name: a.value for a in arguments if not a.shape}
    formats = {a.name: str(a.fill) for a in tensors}
    outputs = REFERENCES[entry["reference"]](inputs, numbers, formats)
    written = {a.name: a for a in tensors if a.name in outputs}
    return inputs, {name: outputs[name].astype(_TYPES[a.dtype]) for name, a in written.items()}


# -- running ----------------------------------------------------------------------------------------------------------


def understand(entry: Entry, code: CodeObject) -> Case:
    """An entry as a launch with its data. Raises UserError, KeyError."""
    where = entry if entry.get("kernel") else entry["launches"][0]
    kernel = code.kernel(str(where["kernel"]))
    offsets = [int(arg[".offset"]) for arg in kernel.metadata.get(".args", ())]
    arguments = read_arguments(entry, offsets) if entry.get("args") else from_name(kernel.name, offsets)
    tensors = {argument.name: argument for argument in arguments if argument.shape}
    given = entry.get("rtol", 0)
    within = given if isinstance(given, dict) else {"rel": given, "abs": 0}
    if "reference" in entry:
        memory, right = _of_reference(entry, arguments)
    else:
        convolves = "problem" in entry or "X" in tensors
        memory, written, values = _of_convolution(entry, tensors) if convolves else _of_product(tensors)
        in_bytes = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        right = {written: in_bytes.view(_TYPES[tensors[written].dtype])}
    args = tuple(
        KernelArg(a.offset, 8 if a.shape else len(a.encoded), a.name if a.shape else a.encoded) for a in arguments
    )
    launch = LaunchRequest(
        kernel.name,
        tuple(where["grid"]),
        tuple(where["block"]),
        args,
        shared_bytes=int(entry.get("shared") or 0),
        kernarg_size=int(entry.get("kernarg_size") or 0),
    )
    expected = {name: np.ascontiguousarray(values) for name, values in right.items()}
    return Case(launch, memory, tensors, expected, float(within["rel"]), float(within["abs"]))


def read_manifest(folder: Path) -> list[Entry]:
    """The entries of a folder. Raises UserError."""
    path = folder / "manifest.json"
    try:
        entries = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"given {path} that is not JSON: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(e, dict) and "file" in e for e in entries):
        raise UserError(f"given {path}, wanted a list of entries with a `file` each")
    return entries
