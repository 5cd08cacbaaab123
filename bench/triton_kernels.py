"""Compile Triton's kernels for the cases of `whole.py` into a folder that `peers.py` reads, by a Python with Triton.

    python bench/triton_kernels.py FOLDER --target gfx942 --target gfx950

With --seconds it prints what compiling each case costs instead, with the first of the tiles, as `generate.py` wants it.
No GPU is needed. One kernel serves products and convolutions, forward and of data gradients: rows are pixels, columns
output channels, K goes tap by tap, or over all taps and channels as one dim where channels are few. Data gradients with
strides are a launch for each stride phase. Weight gradients split pixels into slices, which a second launch reduces.
Each case is compiled with all of the tiles of a list, of which `peers.py` keeps the best.
"""

# mypy: ignore-errors

import argparse
import json
import tempfile
from itertools import islice, product
from math import ceil
from pathlib import Path

import triton
import triton.language as tl
from lib.processors import processor_seconds
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

#: As in `whole.py`, which a Python with Triton need not have: name -> images, input channels and side, output channels
#: and side, taps a side, stride, padding.
LAYERS = {
    "3x3 64ch": (32, 64, 56, 64, 56, 3, 1, 1),
    "3x3 s2": (32, 128, 56, 128, 28, 3, 2, 1),
    "1x1": (32, 256, 56, 64, 56, 1, 1, 0),
    "3x3 256ch": (32, 256, 14, 256, 14, 3, 1, 1),
    "3x3 512ch": (32, 512, 7, 512, 7, 3, 1, 1),
    "stem": (32, 3, 224, 64, 112, 7, 2, 3),
}
GEMM = {"GEMM": (4096, 4096, 1, 4096, 1, 1, 1, 0)}  #: likewise: as a layer of one pixel an image
BYTES = "3x3 64ch", "3x3 256ch", "3x3 512ch"
WARPS = (
    (128, 128, 4),
    (128, 64, 4),
    (64, 128, 4),
    (64, 64, 4),
    (256, 64, 4),
    (256, 128, 8),
    (128, 256, 8),
    (256, 256, 8),
)
UNITS = {"gfx942": 304, "gfx950": 256}
WAVE = 64


@triton.jit
def sums_of_taps(
    A, B, C, M,
    OH: tl.constexpr, OW: tl.constexpr, IH: tl.constexpr, IW: tl.constexpr, IC: tl.constexpr, N: tl.constexpr,
    TH: tl.constexpr, TW: tl.constexpr, S: tl.constexpr, Y0: tl.constexpr, X0: tl.constexpr, D: tl.constexpr,
    B_N: tl.constexpr, B_K: tl.constexpr, B_0: tl.constexpr, B_H: tl.constexpr, B_W: tl.constexpr,
    C_Y: tl.constexpr, C_X: tl.constexpr, C_IMAGE: tl.constexpr, C_0: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FLAT: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Row (image, y, x) at input row y*S + Y0 + D*j of tap j; B by its strides; C in steps of rows and pixels."""
    pid = tl.program_id(0)
    columns: tl.constexpr = (N + BN - 1) // BN
    rm, rn, rk = pid // columns * BM + tl.arange(0, BM), pid % columns * BN + tl.arange(0, BN), tl.arange(0, BK)
    image, y, x = rm // (OH * OW), rm // OW % OH, rm % OW
    inside = rm < M
    acc = tl.zeros((BM, BN), ACC)
    if FLAT:
        for k0 in range(0, TH * TW * IC, BK):
            k = k0 + rk
            tap, c = k // IC, k % IC
            th, tw = tap // TW, tap % TW
            iy, ix = y[:, None] * S + Y0 + D * th[None, :], x[:, None] * S + X0 + D * tw[None, :]
            there = inside[:, None] & (iy >= 0) & (iy < IH) & (ix >= 0) & (ix < IW) & (k < TH * TW * IC)[None, :]
            a = tl.load(A + ((image[:, None] * IH + iy) * IW + ix) * IC + c[None, :], mask=there, other=0)
            at = B + rn[None, :] * B_N + (c * B_K + B_0 + th * B_H + tw * B_W)[:, None]
            b = tl.load(at, mask=(rn < N)[None, :] & (k < TH * TW * IC)[:, None], other=0)
            acc = tl.dot(a, b, acc, out_dtype=ACC)
    else:
        for tap in range(TH * TW):
            th, tw = tap // TW, tap % TW
            iy, ix = y * S + Y0 + D * th, x * S + X0 + D * tw
            there = inside & (iy >= 0) & (iy < IH) & (ix >= 0) & (ix < IW)
            at_a = A + (((image * IH + iy) * IW + ix) * IC)[:, None] + rk[None, :]
            at_b = B + rn[None, :] * B_N + B_0 + th * B_H + tw * B_W + rk[:, None] * B_K
            for _ in range(IC // BK):
                a = tl.load(at_a, mask=there[:, None], other=0)
                b = tl.load(at_b, mask=(rn < N)[None, :], other=0) if N % BN else tl.load(at_b)
                acc = tl.dot(a, b, acc, out_dtype=ACC)
                at_a += BK
                at_b += BK * B_K
    at = C + image[:, None] * C_IMAGE + (y * C_Y + x * C_X + C_0)[:, None] + rn[None, :]
    tl.store(at, acc.to(C.dtype.element_ty), mask=inside[:, None] & (rn < N)[None, :])


@triton.jit
def sums_of_pixels(
    DY, X, W,
    P: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, IH: tl.constexpr, IW: tl.constexpr, IC: tl.constexpr,
    OC: tl.constexpr, T: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr, EACH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Output channels by (tap, input channel), of EACH pixels: a part of the sum, in f32."""
    pid, part = tl.program_id(0), tl.program_id(1)
    columns: tl.constexpr = (T * T * IC + BN - 1) // BN
    rm, rn, rk = pid // columns * BM + tl.arange(0, BM), pid % columns * BN + tl.arange(0, BN), tl.arange(0, BK)
    tap, c = rn // IC, rn % IC
    th, tw, wanted = tap // T - PAD, tap % T - PAD, rn < T * T * IC
    acc = tl.zeros((BM, BN), tl.float32)
    for p0 in range(part * EACH, part * EACH + EACH, BK):
        p = p0 + rk
        image, y, x = p // (OH * OW), p // OW % OH, p % OW
        iy, ix = y[:, None] * S + th[None, :], x[:, None] * S + tw[None, :]
        there = (p < P)[:, None] & wanted[None, :] & (iy >= 0) & (iy < IH) & (ix >= 0) & (ix < IW)
        dy = tl.load(DY + p[None, :] * OC + rm[:, None], mask=(p < P)[None, :] & (rm < OC)[:, None], other=0)
        src = tl.load(X + ((image[:, None] * IH + iy) * IW + ix) * IC + c[None, :], mask=there, other=0)
        acc = tl.dot(dy, src, acc)
    at = W + part * (OC * T * T * IC) + rm[:, None] * (T * T * IC) + rn[None, :]
    tl.store(at, acc, mask=(rm < OC)[:, None] & wanted[None, :])


@triton.jit
def sum_of_parts(W, OUT, COUNT: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """All parts of each element, in order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(PARTS):
        total += tl.load(W + part * COUNT + at, mask=at < COUNT, other=0.0)
    tl.store(OUT + at, total.to(OUT.dtype.element_ty), mask=at < COUNT)


class Folder:
    """Code objects and what says how they are launched."""

    def __init__(self, path, target, most=None):
        self.path, self.target, self.entries = Path(path), target, []
        self.most = most  #: tiles of a case, if not all
        self.seconds = 0.0  #: of processors, in all compilations
        self.path.mkdir(parents=True, exist_ok=True)

    def compile(self, kernel, tensors, numbers, constants, grid, warps):
        """A launch of a kernel: `tensors` are (name, type, shape), `numbers` integers by name."""
        names = list(kernel.arg_names)
        kinds = (
            {n: f"*{t}" for n, t, _ in tensors} | dict.fromkeys(numbers, "i32") | dict.fromkeys(constants, "constexpr")
        )
        attrs = {(names.index(n),): [["tt.divisibility", 16]] for n, *_ in tensors}
        source = ASTSource(
            kernel, {n: kinds[n] for n in names}, {(names.index(n),): v for n, v in constants.items()}, attrs
        )
        options = {"num_warps": warps, "num_stages": 2}
        with tempfile.TemporaryDirectory() as cache:
            triton.knobs.cache.dir = cache
            start = processor_seconds()
            made = triton.compile(source, target=GPUTarget("hip", self.target, WAVE), options=options)
            self.seconds += processor_seconds() - start
        file = f"triton_{self.target}_{len(list(self.path.glob('*.hsaco')))}.hsaco"
        (self.path / file).write_bytes(made.asm["hsaco"])
        args = [{"n": n, "t": f"{t}*", "shape": shape} for n, t, shape in tensors]
        args += [{"n": n, "t": "i32", "value": value} for n, value in numbers.items()]
        hidden = [{"n": f"scratch{n}", "t": "ptr", "value": 0} for n in range(2)]
        return {
            "file": file, "kernel": made.metadata.name, "grid": [*grid, 1, 1][:3], "block": [warps * WAVE, 1, 1],
            "shared": made.metadata.shared, "args": args + hidden,
        }  # fmt: skip

    def add(self, case, config, launches):
        self.entries.append(
            {"peer": "triton", "case": case, "target": self.target, "config": config, "launches": launches}
        )


def tiles(m, n, k, most):
    """Return at most `most` tiles (BM, BN, BK, warps) for a product of m rows, n columns and k terms."""
    fit = (
        (bm, bn, bk, warps)
        for (bm, bn, warps), bk in product(WARPS, (32, 64))
        if bm <= max(64, m) and bn <= max(64, n) and bk <= max(32, k) and bm * bn * bk < 256 * 256 * 64
    )
    return islice(fit, most)


def rows_by_columns(folder, case, dtype, phases, tensors):
    """A case of `sums_of_taps`: a launch a phase, each (rows, constants)."""
    (a, b, c), acc = tensors, tl.int32 if dtype == "i8" else tl.float32
    first = phases[0][1]
    for bm, bn, bk, warps in tiles(phases[0][0], first["N"], first["IC"], folder.most):
        flat = first["IC"] % bk > 0
        shapes = [("A", dtype, a), ("B", dtype, b), ("C", dtype, c)]
        tile = {"BM": bm, "BN": bn, "BK": bk, "FLAT": flat, "ACC": acc}
        launches = [
            folder.compile(
                sums_of_taps, shapes, {"M": rows}, {**constants, **tile},
                (ceil(rows / bm) * ceil(constants["N"] / bn),), warps,
            )
            for rows, constants in phases
        ]  # fmt: skip
        folder.add(case, f"{bm}x{bn}x{bk} warps={warps}", launches)


def forward(folder, name, dtype, case):
    n, ic, ih, oc, oh, t, s, pad = (LAYERS | GEMM)[name]
    constants = {
        "OH": oh, "OW": oh, "IH": ih, "IW": ih, "IC": ic, "N": oc, "TH": t, "TW": t, "S": s, "Y0": -pad, "X0": -pad,
        "D": 1, "B_N": t * t * ic, "B_K": 1, "B_0": 0, "B_H": t * ic, "B_W": ic,
        "C_Y": oh * oc, "C_X": oc, "C_IMAGE": oh * oh * oc, "C_0": 0,
    }  # fmt: skip
    tensors = [n, ih, ih, ic], [oc, t, t, ic], [n, oh, oh, oc]
    rows_by_columns(folder, case, dtype, [(n * oh * oh, constants)], tensors)


def data_gradient(folder, name, dtype, case):
    """Compile a launch for each stride phase: input position i = s q + r is reached by taps k = (r + pad) modulo s.

    Such a tap takes it to output position o = (i + pad - k) / s.
    """
    n, ic, ih, oc, oh, t, s, pad = LAYERS[name]

    def axis(r):
        k = (r + pad) % s
        return (
            ceil((t - k) / s),
            k,
            (r + pad - k) // s,
            ceil((ih - r) / s),
        )  # taps, the first, its o at q = 0, positions

    phases = []
    for ry, rx in product(range(s), repeat=2):
        (th, ky, y0, qy), (tw, kx, x0, qx) = axis(ry), axis(rx)
        constants = {
            "OH": qy, "OW": qx, "IH": oh, "IW": oh, "IC": oc, "N": ic, "TH": th, "TW": tw, "S": 1, "Y0": y0, "X0": x0,
            "D": -1, "B_N": 1, "B_K": t * t * ic, "B_0": (ky * t + kx) * ic, "B_H": s * t * ic, "B_W": s * ic,
            "C_Y": s * ih * ic, "C_X": s * ic, "C_IMAGE": ih * ih * ic, "C_0": (ry * ih + rx) * ic,
        }  # fmt: skip
        phases.append((n * qy * qx, constants))
    tensors = [n, oh, oh, oc], [oc, t, t, ic], [n, ih, ih, ic]
    rows_by_columns(folder, case, dtype, phases, tensors)


def weight_gradient(folder, name, dtype, case):
    n, ic, ih, oc, oh, t, s, pad = LAYERS[name]
    pixels, columns = n * oh * oh, t * t * ic
    for bm, bn, bk, warps in tiles(oc, columns, pixels, folder.most):
        groups = ceil(oc / bm) * ceil(columns / bn)
        parts = max(1, min(UNITS[folder.target] // groups, ceil(pixels / (8 * bk))))
        each = ceil(pixels / parts / bk) * bk
        shapes = [("DY", dtype, [n, oh, oh, oc]), ("X", dtype, [n, ih, ih, ic]), ("W", "fp32", [parts, oc, columns])]
        constants = {
            "P": pixels, "OH": oh, "OW": oh, "IH": ih, "IW": ih, "IC": ic, "OC": oc, "T": t, "S": s, "PAD": pad,
            "EACH": each, "BM": bm, "BN": bn, "BK": bk,
        }  # fmt: skip
        main = folder.compile(sums_of_pixels, shapes, {}, constants, (groups, parts), warps)
        count = oc * columns
        reduced = [("W", "fp32", [parts, oc, columns]), ("OUT", dtype, [oc, columns])]
        last = folder.compile(
            sum_of_parts, reduced, {}, {"COUNT": count, "PARTS": parts, "BLOCK": 512}, (ceil(count / 512),), 4
        )
        folder.add(case, f"{bm}x{bn}x{bk} warps={warps} parts={parts}", [main, last])


DIRECTIONS = {"FWD_D": forward, "BWD_D": data_gradient, "BWD_W": weight_gradient}


def cases(only):
    """Yield the cases whose name contains `only`, each with the function that compiles it, its layer and its type."""
    found = [
        (f"{name} {direction} f16", make, name, "fp16") for direction, make in DIRECTIONS.items() for name in LAYERS
    ]
    found += [(f"{name} FWD_D s8", forward, name, "i8") for name in BYTES]
    found += [(f"{name} - f16", forward, name, "fp16") for name in GEMM]
    return [case for case in found if only in case[0]]


def seconds_of(make, name, dtype, case, target):
    """Return the processor seconds of compiling a case with the first of its tiles once."""
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(path, target, most=1)
        make(folder, name, dtype, case)
        return folder.seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--target", action="append", choices=sorted(UNITS))
    parser.add_argument("--only", default="", help="cases that contain this")
    parser.add_argument("--seconds", action="store_true", help="print what each case costs on the first target")
    options = parser.parse_args()
    targets = options.target or list(UNITS)
    if options.seconds:
        known = cases(options.only)
        rounds = [[seconds_of(make, *rest, case, targets[0]) for case, make, *rest in known] for _ in range(4)]
        print(json.dumps({case: min(each) for (case, *_), each in zip(known, zip(*rounds[1:]))}))
        return
    if options.folder is None:
        parser.error("given no FOLDER and no --seconds, wanted one of them")
    entries = []
    for target in targets:
        folder = Folder(options.folder, target)
        for case, make, name, dtype in cases(options.only):
            make(folder, name, dtype, case)
        entries += folder.entries
    (Path(options.folder) / "manifest.json").write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
