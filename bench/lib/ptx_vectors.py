"""Instructions of PTX with random operands, whose results on a GPU are compared with the simulator's.

A case is an instruction that one warp executes: lane l takes its operands from row l of `operands(case)`, [lanes,
bytes], and `words(case)` 32-bit words of each lane are its result. `module(cases)` is PTX with a kernel a case.
Operands are random bits or random numbers of many magnitudes among zeros, infinities, NaN and subnormal numbers. They
depend on the case's name alone (SHA-256), so that the recorded results suffice.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.ir.record import frozen

LANES = 32
Bytes = npt.NDArray[np.uint8]
Execute = Callable[[bytes, Sequence[LaunchRequest], Mapping[str, Bytes]], object]

_CLASSES = {"b16": "h", "b32": "r", "b64": "d", "f32": "f", "f64": "q"}
_NUMBERS = {
    "f16": (5, 10),
    "bf16": (8, 7),
    "tf32": (8, 10),
    "f32": (8, 23),
    "f64": (11, 52),
    "e4m3": (4, 3),
    "e5m2": (5, 2),
}


@frozen
class Form:
    """An instruction: its text with `{d}` and sources `{0}`, `{1}`; an operand is a kind of number and a register."""

    text: str
    result: tuple[str, ...]  #: classes of the destination's registers
    sources: tuple[tuple[str, str, int], ...]  #: kind of number, class and count of registers of each operand
    minimum: str = "sm_80"
    #: ULP of the result, f32; greatest error of an approximate function that PTX ISA states, 0 for exact results
    bound: float = 0.0


@frozen
class Case:
    """A form with one choice of operands."""

    form: Form
    number: int

    @property
    def name(self) -> str:
        """Return the name from which its operands are drawn."""
        return f"{self.form.text} #{self.number}"


def _one(op: str, kind: str, of: str, sources: int = 1, **more: Any) -> Form:
    places = ", ".join(f"{{{n}}}" for n in range(sources))
    return Form(f"{op} {{d}}, {places};", (kind,), ((of, kind, 1),) * sources, **more)


def _mma(shape: str, a: str, b: str, into: str, counts: tuple[int, int, int], minimum: str = "sm_80") -> Form:
    """Return a form of mma.sync; `counts` are the registers of A, B and D."""
    kind = {"f64": "f64", "f32": "f32"}.get(into, "b32")
    held = "f64" if a == "f64" else "b32"
    m, n, k = counts
    saturate = ".satfinite" if into == "s32" else ""
    text = f"mma.sync.aligned.{shape}.row.col{saturate}.{into}.{a}.{b}.{into} {{d}}, {{0}}, {{1}}, {{2}};"
    return Form(text, (kind,) * k, ((a, held, m), (b, held, n), (into, kind, k)), minimum)


def _matrix_forms() -> Iterator[Form]:
    for a in ("f16", "bf16"):
        yield _mma("m16n8k8", a, a, "f32", (2, 1, 4))
        yield _mma("m16n8k16", a, a, "f32", (4, 2, 4))
    yield _mma("m16n8k8", "f16", "f16", "f16", (2, 1, 2))
    yield _mma("m16n8k16", "f16", "f16", "f16", (4, 2, 2))
    yield _mma("m16n8k4", "tf32", "tf32", "f32", (2, 1, 4))
    yield _mma("m16n8k8", "tf32", "tf32", "f32", (4, 2, 4))
    for a in ("s8", "u8"):
        for b in ("s8", "u8"):
            yield _mma("m16n8k16", a, b, "s32", (2, 1, 4))
            yield _mma("m16n8k32", a, b, "s32", (4, 2, 4))
    for a in ("e4m3", "e5m2"):
        for b in ("e4m3", "e5m2"):
            yield _mma("m16n8k32", a, b, "f32", (4, 2, 4), "sm_89")
    yield _mma("m8n8k4", "f64", "f64", "f64", (1, 1, 2))
    yield _mma("m16n8k8", "f64", "f64", "f64", (4, 2, 4), "sm_90")


def _float_forms() -> Iterator[Form]:
    """Yield sums, products and extrema, with each kind of rounding, then quotients and roots."""
    for op in ("add", "sub", "mul"):
        for mode in ("rn", "rz", "rm", "rp"):
            yield _one(f"{op}.{mode}.f32", "f32", "f32", 2)
        yield _one(f"{op}.rn.ftz.f32", "f32", "f32", 2)
        yield _one(f"{op}.rn.f64", "f64", "f64", 2)
    for op in ("fma.rn.f32", "fma.rz.f32", "fma.rn.ftz.f32", "fma.rn.sat.f32"):
        yield _one(op, "f32", "f32", 3)
    yield _one("fma.rn.f64", "f64", "f64", 3)
    for kind in ("f16", "bf16"):
        for relu in ("", ".relu"):
            yield _one(f"fma.rn{relu}.{kind}x2", "b32", kind, 3)
            yield _one(f"fma.rn{relu}.{kind}", "b16", kind, 3)
    for op in ("add", "sub", "mul"):
        yield _one(f"{op}.rn.f16x2", "b32", "f16", 2)
    for op in ("min", "max"):
        for nan in ("", ".NaN"):
            yield _one(f"{op}{nan}.f32", "f32", "f32", 2)
            yield _one(f"{op}{nan}.f16x2", "b32", "f16", 2)
            yield _one(f"{op}{nan}.bf16x2", "b32", "bf16", 2)
        yield _one(f"{op}.f64", "f64", "f64", 2)
        for kind in ("s32", "u32"):
            yield _one(f"{op}.{kind}", "b32", "bits", 2)
    for mode in ("rn", "rz", "rm", "rp"):
        yield _one(f"div.{mode}.f32", "f32", "f32", 2)
        yield _one(f"rcp.{mode}.f32", "f32", "f32")
        yield _one(f"sqrt.{mode}.f32", "f32", "f32")
    for op, bound in (("rcp", 1.0), ("sqrt", 1.0), ("rsqrt", 2.0), ("ex2", 2.0)):
        yield _one(f"{op}.approx.f32", "f32", "f32", bound=bound)


def _conversion_forms() -> Iterator[Form]:
    for kind in ("f16", "bf16"):
        yield Form(f"cvt.f32.{kind} {{d}}, {{0}};", ("f32",), ((kind, "b16", 1),))
        for mode in ("rn", "rz"):
            yield Form(f"cvt.{mode}.{kind}.f32 {{d}}, {{0}};", ("b16",), (("f32", "f32", 1),))
            for relu in ("", ".relu"):
                sources = (("f32", "f32", 1),) * 2
                yield Form(f"cvt.{mode}{relu}.{kind}x2.f32 {{d}}, {{0}}, {{1}};", ("b32",), sources)
    yield Form("cvt.rna.tf32.f32 {d}, {0};", ("b32",), (("f32", "f32", 1),))
    for kind in ("e4m3", "e5m2"):
        for relu in ("", ".relu"):
            sources = (("f32", "f32", 1),) * 2
            yield Form(f"cvt.rn.satfinite{relu}.{kind}x2.f32 {{d}}, {{0}}, {{1}};", ("b16",), sources, "sm_89")
            yield Form(f"cvt.rn.satfinite{relu}.{kind}x2.f16x2 {{d}}, {{0}};", ("b16",), (("f16", "b32", 1),), "sm_89")
            yield Form(f"cvt.rn{relu}.f16x2.{kind}x2 {{d}}, {{0}};", ("b32",), ((kind, "b16", 1),), "sm_89")
    for into in ("s32", "u32", "s8", "u8", "s16"):
        for mode in ("rni", "rzi", "rmi", "rpi"):
            register = "b16" if into == "s16" else "b32"
            yield Form(f"cvt.{mode}.{into}.f32 {{d}}, {{0}};", (register,), (("f32", "f32", 1),))
    for into in ("s8", "u8"):
        yield Form(f"cvt.sat.{into}.s32 {{d}}, {{0}};", ("b32",), (("bits", "b32", 1),))
    for of in ("s32", "u32"):
        yield Form(f"cvt.rn.f32.{of} {{d}}, {{0}};", ("f32",), (("bits", "b32", 1),))
        yield Form(f"cvt.rz.f32.{of} {{d}}, {{0}};", ("f32",), (("bits", "b32", 1),))
        yield Form(f"cvt.rn.f16.{of} {{d}}, {{0}};", ("b16",), (("bits", "b32", 1),))
    yield Form("cvt.f64.f32 {d}, {0};", ("f64",), (("f32", "f32", 1),))
    yield Form("cvt.rn.f32.f64 {d}, {0};", ("f32",), (("f64", "f64", 1),))


def _integer_forms() -> Iterator[Form]:
    for op in ("mul.lo.s32", "mul.hi.s32", "mul.hi.u32", "and.b32", "xor.b32", "add.sat.s32", "sub.s32"):
        yield _one(op, "b32", "bits", 2)
    for op in (
        *("mad.lo.s32", "prmt.b32", "shf.l.wrap.b32", "shf.r.clamp.b32"),
        *("lop3.b32", "dp4a.s32.s32", "dp4a.u32.u32", "bfe.s32"),
    ):
        text = f"{op} {{d}}, {{0}}, {{1}}, {{2}}{', 0xca' if op == 'lop3.b32' else ''};"
        yield Form(text, ("b32",), (("bits", "b32", 1),) * 3)


def _lane_forms() -> Iterator[Form]:
    yield Form("shfl.sync.bfly.b32 {d}, {0}, 5, 31, -1;", ("b32",), (("bits", "b32", 1),))
    yield Form("shfl.sync.down.b32 {d}, {0}, 3, 31, -1;", ("b32",), (("bits", "b32", 1),))
    yield Form("shfl.sync.idx.b32 {d}, {0}, {1}, 31, -1;", ("b32",), (("bits", "b32", 1),) * 2)
    yield Form("redux.sync.add.s32 {d}, {0}, -1;", ("b32",), (("bits", "b32", 1),))
    yield Form("redux.sync.max.s32 {d}, {0}, -1;", ("b32",), (("bits", "b32", 1),))


FORMS = (*_matrix_forms(), *_float_forms(), *_conversion_forms(), *_integer_forms(), *_lane_forms())
EACH = {True: 24, False: 14}  #: cases of a matrix instruction, and of another


def cases() -> Iterator[Case]:
    """Yield every case, by form."""
    for form in FORMS:
        for number in range(EACH[form.text.startswith("mma")]):
            yield Case(form, number)


def _bits(name: str, count: int) -> bytes:
    blocks = -(-count // 32)
    return b"".join(hashlib.sha256(f"{name}/{n}".encode()).digest() for n in range(blocks))[:count]


def _size(register: str) -> int:
    return int(register[1:]) // 8


def _specials(kind: str) -> list[int]:
    """Return zeros, the least subnormal, normal and greatest numbers, 1, infinity and NaN of a format, as bits."""
    exponent, mantissa = _NUMBERS[kind]
    most, shift = (1 << exponent) - 1, {"tf32": 13}.get(kind, 0)
    found = [0, 1, (1 << mantissa) - 1, 1 << mantissa, most // 2 << mantissa, (most << mantissa) - 1]
    found += [most << mantissa, (most << mantissa) + 1, (most << mantissa) + (1 << mantissa - 1)]
    sign = 1 << exponent + mantissa
    return [each << shift for number in found for each in (number, number | sign)]


def _numbers(case: Case, operand: int, count: int) -> Bytes:
    """Return bytes of `count` numbers: any bits in case 0, then numbers in a window of exponents that narrows."""
    kind, register, _ = case.form.sources[operand]
    drawn = _bits(f"{case.name}/{operand}", 8 * count)
    raw = struct.unpack(f"<{count}Q", drawn)
    if kind in ("bits", "s8", "u8", "s32"):
        size = {"s8": 1, "u8": 1}.get(kind, _size(register))
        return np.frombuffer(b"".join((v & (1 << 8 * size) - 1).to_bytes(size, "little") for v in raw), np.uint8)
    exponent, mantissa = _NUMBERS[kind]
    shift = {"tf32": 13}.get(kind, 0)
    size = {"e4m3": 1, "e5m2": 1, "f16": 2, "bf16": 2, "f64": 8}.get(kind, 4)
    bias, spread = (1 << exponent - 1) - 1, max(1, min(1 << exponent - 1, 64 >> case.number % 6))
    specials, made = _specials(kind), []
    for v in raw:
        bits = v & (1 << 1 + exponent + mantissa) - 1
        if case.number % 7 == 6 and v >> 60 == 0:
            value = specials[v % len(specials)]
        elif case.number == 0:
            value = bits << shift
        else:  # near 1, in a window of exponents that narrows from case to case
            place = min(max(bias + (v >> 40) % (2 * spread) - spread, 0), 2 * bias)
            value = (bits & ~(((1 << exponent) - 1) << mantissa) | place << mantissa) << shift
        made.append(value.to_bytes(size, "little"))
    return np.frombuffer(b"".join(made), np.uint8)


def operands(case: Case) -> Bytes:
    """Return the operands, [lanes, bytes]: all registers of the first one, then those of the next."""
    parts = []
    for number, (kind, register, count) in enumerate(case.form.sources):
        size = _size(register) * count
        each = {"e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2}.get(kind, _size(register))
        parts.append(_numbers(case, number, LANES * size // each).reshape(LANES, size))
    return np.concatenate(parts, axis=1)


def result_bytes(form: Form) -> int:
    """Return the bytes of a lane's result: registers of 16 bits take 32."""
    return sum(max(4, _size(each)) for each in form.result)


def _names(prefix: str, registers: Sequence[str]) -> tuple[list[str], str]:
    names = [f"%{prefix}{n}" for n in range(len(registers))]
    return names, names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def _kernel(number: int, form: Form) -> str:
    declared, body, places, offset = [], [], [], 0
    for index, (_, register, count) in enumerate(form.sources):
        names, text = _names(f"s{index}_", (register,) * count)
        declared += [f".reg .{register} {name};" for name in names]
        for name in names:
            body.append(f"    ld.global.b{8 * _size(register)} {name}, [%in + {offset}];")
            offset += _size(register)
        # mma takes vectors also of one register
        places.append("{" + names[0] + "}" if count == 1 and form.text.startswith("mma") else text)
    aligned = -(-offset // 8) * 8
    results, into = _names("d", form.result)
    if len(results) == 1 and form.text.startswith("mma"):
        into = "{" + into + "}"
    declared += [f".reg .{register} {name};" for register, name in zip(form.result, results)]
    body.append("    " + form.text.format(*places, d=into))
    at = 0
    for register, name in zip(form.result, results):
        if register == "b16":
            body += [f"    cvt.u32.u16 %wide, {name};", f"    st.global.b32 [%out + {at}], %wide;"]
        else:
            body.append(f"    st.global.b{8 * _size(register)} [%out + {at}], {name};")
        at += max(4, _size(register))
    return "\n".join(
        (
            f".visible .entry form{number}(.param .u64 operands, .param .u64 results)",
            "{",
            "    .reg .b32 %lane, %wide; .reg .b64 %in, %out, %step;",
            *(f"    {line}" for line in declared),
            "    ld.param.u64 %in, [operands]; ld.param.u64 %out, [results];",
            "    cvta.to.global.u64 %in, %in; cvta.to.global.u64 %out, %out;",
            "    mov.u32 %lane, %tid.x;",
            f"    mad.wide.u32 %in, %lane, {aligned}, %in; mad.wide.u32 %out, %lane, {result_bytes(form)}, %out;",
            *body,
            "    ret;",
            "}",
        )
    )


def module(forms: Sequence[Form] = FORMS, target: str = "sm_90") -> str:
    """Return PTX with a kernel `form<number>` for each form; a block of 32 threads is a case."""
    kernels = "\n\n".join(_kernel(number, form) for number, form in enumerate(forms))
    return f".version 8.6\n.target {target}\n.address_size 64\n\n{kernels}\n"


def padded(rows: Bytes) -> Bytes:
    """Return operands with rows padded to whole 8 bytes, as kernels read them."""
    return np.ascontiguousarray(np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8))))


def requests(numbers: Sequence[Case], forms: Sequence[Form] = FORMS) -> tuple[list[LaunchRequest], dict[str, Bytes]]:
    """Return a launch for each case, of `module(forms)`, and its buffers: operands of all cases, and their results."""
    index = {form: number for number, form in enumerate(forms)}
    launches, buffers = [], {}
    for number, case in enumerate(numbers):
        buffers[f"operands{number}"] = padded(operands(case)).reshape(-1)
        buffers[f"results{number}"] = np.zeros(LANES * result_bytes(case.form), np.uint8)
        arguments = (KernelArg(0, 8, f"operands{number}"), KernelArg(8, 8, f"results{number}"))
        launches.append(LaunchRequest(f"form{index[case.form]}", (1, 1, 1), (LANES, 1, 1), arguments, 0))
    return launches, buffers


def by_case(found: Bytes, numbers: Sequence[Case]) -> Iterator[tuple[Case, Bytes]]:
    """Yield each case with its part of `results`, [lanes, bytes]."""
    at = 0
    for case in numbers:
        size = LANES * result_bytes(case.form)
        yield case, found[at : at + size].reshape(LANES, -1)
        at += size
    assert at == len(found)


def results(execute: Execute, numbers: Sequence[Case]) -> Bytes:
    """Return the results of cases one after another, each [lanes, bytes], by an executor of PTX."""
    launches, buffers = requests(numbers)
    execute(module().encode(), launches, buffers)
    return np.concatenate([buffers[f"results{number}"] for number in range(len(numbers))])
