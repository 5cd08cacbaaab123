"""Kernels of other compilers and libraries, from a folder with a manifest: run strictly, compared with numpy.

FOLDER holds code objects and `manifest.json`, a list with an entry a code object:

    file              the code object
    kernel            its symbol; grid in workgroups, block in threads; or `launches`, a list of one with these keys
    shared            bytes of LDS that the host asks for
    args              in order: n (name), t (type: `f16*`, `*fp32`, `i32`, `ptr`), shape or value; offset in bytes,
                      which the code object's metadata gives where it is missing; what, zero_before_launch; fill
    reference, rtol   what the kernel computes, by its name in `lib/references.py`, and how far a result may be from it:
                      0, relative to it, or {"rel": .., "abs": ..}
    problem, knobs    of a convolution, as benchdnn writes it; its tensors are p_in, p_wei and p_out

With a reference the tensors that have a fill are read: "integers" (-2..2), "normal", [least, most], a format of bytes
(e2m1, e4m3, e5m2, e8m0) or "zero", which the kernel updates; those without one, and these, are written.

Another entry without `problem` is a convolution of X and Wt to Y, which keeps the size, or a product C (or D) = A Bᵀ.
Where `what` says so B stands in blocks of 16 rows x 32 bytes; SA and SB are scales. Without arguments the kernel's name
must end in sizes and types, such as `128x128x128_f16xf16xf32`. Inputs are integers in -2..2, scales powers of two
(those in e8m0 are 1), so that every sum is exact in the type of the result: comparison is bit for bit.

Exit codes: 0 all equal, and nothing found that a manual asks for but what is known of a kernel that ships (`KNOWN`);
1 not so; 2 the request is wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import numpy.typing as npt
from lib.references import REFERENCES
from rich.console import Console
from rich.table import Table

from convgen.backends.amdgpu.sim import CodeObject, SimulatorError, simulate
from convgen.backends.simulation import Finding, KernelArg, LaunchRequest
from convgen.ir.error import Unsupported, UserError
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
#: What kernels that ship do against the manuals, and are right by timing: (part of the file's name, kind) -> what.
KNOWN: Mapping[tuple[str, str], str] = {
    ("I8gemm_bf16_perTokenI8_BpreShuffle_112x256", "lds-race"): (
        "the epilogue has one barrier an exchange: a wave overwrites what a slower one may still have to read"
    ),
}
_ONE = 127  #: 1.0 as e8m0
_FP4 = {0: 0x0, 1: 0x2, 2: 0x4, -1: 0xA, -2: 0xC}  #: e2m1 by value
_OWN = Path(__file__).parents[1] / "tests" / "data" / "foreign"
_WIDTH = 140  #: columns of the table, where the terminal does not say that it has more
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

    def wrong(self, name: str, got: Array) -> int:
        """How many elements of an output are not what they should be, by its bytes."""
        right = self.expected[name]
        if not self.relative and not self.absolute:
            differs = got != right.reshape(-1).view(np.uint8)
            return int(differs.reshape(-1, right.itemsize).any(axis=1).sum())
        x, y = (v.reshape(-1).astype(np.float64) for v in (got.view(right.dtype), right))
        return int((~(np.abs(x - y) <= self.absolute + self.relative * np.abs(y))).sum())


@attrs.frozen
class Result:
    """What became of an entry."""

    file: str
    checked: int
    mismatches: int
    findings: tuple[Finding, ...]
    instructions: int
    seconds: float
    error: str = ""

    def passed(self, *, llvm: bool) -> bool:
        """Whether all elements are equal and nothing that counts was found: what LLVM alone asks for only if asked."""
        counts = any(f.source.required or llvm for f in self.findings if self._known(f) is None)
        return not self.error and not self.mismatches and not counts

    @property
    def sources(self) -> Mapping[str, int]:
        """Findings by what asks for them, known ones by what they are."""
        return Counter(f.source.text if (why := self._known(f)) is None else f"known: {why}" for f in self.findings)

    def _known(self, finding: Finding) -> str | None:
        found = (why for (part, kind), why in KNOWN.items() if part in self.file and kind == finding.kind)
        return next(found, None)


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
    """A scale as given to the kernel, and spread over [rows or columns of the result, K].

    Shapes: [rows, 1] or [1, rows], or [K blocks, rows] of A, or [row blocks, K blocks] of B. A row's is a power of two;
    those of A double in every other block of K, which leaves sums exact.
    """
    if argument.dtype == "e8m0":
        return np.full(argument.shape, _ONE, np.uint8), np.ones((across, depth))
    turned = argument.shape[1] == across
    rows, blocks = argument.shape[::-1] if turned else argument.shape
    table = np.exp2(np.random.default_rng(ord(name[1])).integers(-1, 2, (rows, 1))) * np.ones((rows, blocks))
    table[:, 1::2] *= 2 if name == "SA" else 1
    spread = table.repeat(across // rows, axis=0).repeat(depth // blocks, axis=1)
    return np.ascontiguousarray(table.T if turned else table).astype(np.float32), spread


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
    """An input in its type; that of a format of bytes as bytes."""
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
        right = {written: values}
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


def run(folder: Path, entry: Entry) -> Result:
    """Execute an entry strictly. Raises UserError."""
    file = str(entry["file"])
    try:
        raw = (folder / file).read_bytes()
        case = understand(entry, CodeObject.load(raw))
        buffers = {name: np.ascontiguousarray(data).reshape(-1).view(np.uint8) for name, data in case.inputs.items()}
        for name, right in case.expected.items():
            if name not in buffers:
                buffers[name] = np.full(right.nbytes, 0 if case.arguments[name].cleared else _SENTINEL, np.uint8)
        report = simulate(raw, [case.launch], buffers)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except (SimulatorError, Unsupported) as error:
        return Result(file, 0, 0, (), 0, 0.0, str(error))
    wrong = sum(case.wrong(name, buffers[name]) for name in case.expected)
    checked = sum(right.size for right in case.expected.values())
    executed = sum(report.instructions.values())
    return Result(file, checked, wrong, report.findings, executed, report.seconds)


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


def results(folder: Path, chosen: Callable[[str], bool]) -> Iterator[Result]:
    """Those entries of a folder whose file is chosen, run one after the other. Raises UserError."""
    for entry in read_manifest(folder):
        if chosen(str(entry["file"])):
            try:
                yield run(folder, entry)
            except (KeyError, TypeError, ValueError, struct.error) as error:
                raise UserError(f"given {entry['file']} in the manifest, which is not understood: {error!r}") from None


def as_json(result: Result, *, llvm: bool) -> dict[str, Any]:
    """A result for --json."""
    return {
        "file": result.file,
        "status": "passed" if result.passed(llvm=llvm) else "failed",
        "checked": result.checked,
        "mismatches": result.mismatches,
        "sources": dict(result.sources),
        "findings": [
            {"kind": f.kind, "text": str(f), "source": f.source.text, "required": f.source.required}
            for f in result.findings
        ],
        "instructions": result.instructions,
        "seconds": round(result.seconds, 3),
        "error": result.error,
    }


def _row(result: Result, *, llvm: bool) -> tuple[str, ...]:
    found = "\n".join(f"{count} x {text}" for text, count in result.sources.items())
    verdict = "PASSED" if result.passed(llvm=llvm) else "FAILED"
    wrong = f"{result.mismatches} of {result.checked} wrong" if result.mismatches else str(result.checked)
    return (
        result.file.removesuffix(".hsaco"),
        verdict,
        result.error or wrong,
        found,
        str(result.instructions),
        f"{result.seconds:.1f}",
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", nargs="?", default=_OWN, help="by default the tests' own"
    )
    parser.add_argument("--match", default="", metavar="TEXT", help="only files whose name holds TEXT")
    parser.add_argument("--strict", choices=("manual", "llvm"), default="manual", help="whose rules make a run fail")
    parser.add_argument("--json", action="store_true", help="print one JSON object a kernel")
    options = parser.parse_args(arguments)
    llvm = options.strict == "llvm"
    table = Table("kernel", "result", "checked", "findings by source", "wave-instr.", "s")
    done = []
    try:
        for result in results(options.folder, lambda file: options.match in file):
            done.append(result)
            table.add_row(*_row(result, llvm=llvm))
            if options.json:
                print(json.dumps(as_json(result, llvm=llvm)), flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not options.json:
        console = Console()
        console.width = max(console.width, _WIDTH)
        console.print(table)
    return 0 if all(result.passed(llvm=llvm) for result in done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
