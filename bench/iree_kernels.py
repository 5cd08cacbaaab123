"""Compile IREE's kernels for the cases of `whole.py` into a folder that `peers.py` reads.

    python bench/iree_kernels.py FOLDER --target gfx942 --target gfx950 --compiler PATH/iree-compile

No GPU is needed. Each case is one function of linalg, compiled in several variants, of which `peers.py` keeps the best.
Doubtful costs are left out in favour of IREE: weights of data gradients are given transposed, with flipped taps; with
strides each phase has its own result, and nothing interleaves these; filling a buffer before a launch is free; the
variants `padded` read inputs with their halo in memory.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

import attrs
import whole
from rich.console import Console
from rich.progress import track

from convgen.backends.amdgpu.sim import CodeObject
from convgen.problem.conv import Axis, Conv

_ALWAYS = "--iree-opt-level=O3", "--iree-hal-target-device=hip", "--compile-to=hal"
#: name -> options, whether inputs come with their halo
VARIANTS: Mapping[str, tuple[Sequence[str], bool]] = {
    "O3": ((), False),
    "O3 pads fused": (("--iree-dispatch-creation-enable-fuse-padding-into-linalg-consumer-ops",), False),
    "O3 split": (("--iree-dispatch-creation-enable-split-reduction",), False),
    "O3 padded": ((), True),
    "O3 padded, split": (("--iree-dispatch-creation-enable-split-reduction",), True),
    "O3 padded, direct": (("--iree-codegen-llvmgpu-use-direct-convolution",), True),
}
_DISPATCH = re.compile(
    r"hal\.command_buffer\.dispatch<.*?\[%(?P<function>\w+)\] workgroups\(\[(?P<grid>[^]]*)\]\)"
    r" bindings\(\[(?P<bound>.*?)\n *\]\) flags",
    re.DOTALL,
)
_LOOKUP = re.compile(r"%(\w+) = hal\.executable\.lookup\.function .*::@(\w+)\)")
_BOUND = re.compile(r"\(%c(\d+)\w* : index\)\[%c(\d+)\w*, %c(\d+)\w*\]")
#: type of the factors -> of their sum, its zero, and how it becomes the result
_SUMS = {
    "f16": ("f32", "0.0", "%r = arith.truncf %sum : f32 to f16"),
    "i8": (
        "i32",
        "0",
        "%least = arith.constant -128 : i32\n %most = arith.constant 127 : i32\n"
        " %low = arith.maxsi %sum, %least : i32\n %in = arith.minsi %low, %most : i32\n"
        " %r = arith.trunci %in : i32 to i8",
    ),
}


def tensor(shape: Sequence[int], dtype: str) -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{dtype}>"


@attrs.frozen
class Contraction:
    """One sum of products of `a` and `b`; maps in loops d0, d1 and so on, of which the last `reduced` are summed."""

    dtype: str
    a: Sequence[int]  #: shape in memory, elements
    b: Sequence[int]
    out: Sequence[int]
    maps: tuple[str, str, str]  #: subscripts of a with its halo, of b, of the result
    loops: int
    reduced: int
    low: Sequence[int] = ()  #: zeros before each axis of a, none if empty
    high: Sequence[int] = ()  #: zeros behind

    def text(self, n: int, padded: bool) -> tuple[str, str, str]:
        """Arguments, body and the result's name."""
        kind, zero, convert = _SUMS[self.dtype]
        low, high = (each or (0,) * len(self.a) for each in (self.low, self.high))
        halo = [sum(each) for each in zip(self.a, low, high, strict=True)]
        whole_a, b = tensor(halo, self.dtype), tensor(self.b, self.dtype)
        given = whole_a if padded else tensor(self.a, self.dtype)
        out, sums = tensor(self.out, self.dtype), tensor(self.out, kind)
        factor = f"%a{n}"
        body = ""
        if given != whole_a:
            axes = ", ".join(f"%i{axis}: index" for axis in range(len(halo)))
            body += (
                f"%z{n} = arith.constant {zero} : {self.dtype}\n"
                f"%p{n} = tensor.pad %a{n} low{list(low)} high{list(high)} {{ ^bb0({axes}): "
                f"tensor.yield %z{n} : {self.dtype} }} : {given} to {whole_a}\n"
            )
            factor = f"%p{n}"
        loops = ", ".join(f"d{loop}" for loop in range(self.loops))
        maps = ", ".join(f"affine_map<({loops}) -> ({each})>" for each in self.maps)
        kinds = ['"parallel"'] * (self.loops - self.reduced) + ['"reduction"'] * self.reduced
        add, mul, widen = ("addf", "mulf", "extf") if self.dtype == "f16" else ("addi", "muli", "extsi")
        axes = ", ".join(f"d{axis}" for axis in range(len(self.out)))
        same = ", ".join([f"affine_map<({axes}) -> ({axes})>"] * 2)
        parallel = ", ".join(['"parallel"'] * len(self.out))
        body += f"""%c{n} = arith.constant {zero} : {kind}
%e{n} = tensor.empty() : {sums}
%f{n} = linalg.fill ins(%c{n} : {kind}) outs(%e{n} : {sums}) -> {sums}
%s{n} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{", ".join(kinds)}]}}
  ins({factor}, %b{n} : {whole_a}, {b}) outs(%f{n} : {sums}) {{
 ^bb0(%x: {self.dtype}, %y: {self.dtype}, %acc: {kind}):
 %wx = arith.{widen} %x : {self.dtype} to {kind}
 %wy = arith.{widen} %y : {self.dtype} to {kind}
 %m = arith.{mul} %wx, %wy : {kind}
 %t = arith.{add} %acc, %m : {kind}
 linalg.yield %t : {kind} }} -> {sums}
%h{n} = tensor.empty() : {out}
%o{n} = linalg.generic {{indexing_maps = [{same}], iterator_types = [{parallel}]}}
  ins(%s{n} : {sums}) outs(%h{n} : {out}) {{
 ^bb0(%sum: {kind}, %old: {self.dtype}):
 {convert}
 linalg.yield %r : {self.dtype} }} -> {out}
"""
        return f"%a{n}: {given}, %b{n}: {b}", body, out


def module(parts: Sequence[Contraction], padded: bool) -> str:
    """A function that computes all parts."""
    texts = [part.text(n, padded) for n, part in enumerate(parts)]
    types = ", ".join(out for _, _, out in texts)
    names = ", ".join(f"%o{n}" for n in range(len(parts)))
    arguments = ", ".join(given for given, _, _ in texts)
    body = "".join(text for _, text, _ in texts)
    return f"func.func @case({arguments}) -> ({types}) {{\n{body}return {names} : {types}\n}}\n"


def _convolution(
    dtype: str, images: int, src: tuple[int, int], ic: int, dst: tuple[int, int], oc: int,
    taps: tuple[int, int], stride: int, low: tuple[int, int],
) -> Contraction:  # fmt: skip
    """Rows and columns (y, x) at input y*stride - low + tap; weights are output channel, taps, input channel."""
    high = tuple(max(0, (o - 1) * stride + t - p - i) for o, t, p, i in zip(dst, taps, low, src, strict=True))
    pads = (0, *low, 0), (0, *high, 0)
    maps = f"d0, d1*{stride}+d4, d2*{stride}+d5, d6", "d3, d4, d5, d6", "d0, d1, d2, d3"
    return Contraction(
        dtype, (images, *src, ic), (oc, *taps, ic), (images, *dst, oc), maps, 7, 3,
        *(pads if any(map(any, pads)) else ()),
    )  # fmt: skip


def _plane(conv: Conv) -> tuple[Axis, Axis]:
    y, x = conv.spatial
    return y, x


def forward(conv: Conv, dtype: str) -> list[Contraction]:
    y, x = _plane(conv)
    at = (y.i, x.i), conv.ic, (y.o, x.o), conv.oc, (y.k, x.k), y.s, (y.p, x.p)
    return [_convolution(dtype, conv.mb, *at)]


def data_gradient(conv: Conv, dtype: str) -> list[Contraction]:
    """A phase r of input positions i = s q + r: of taps k = (r + pad) modulo s, from outputs (i + pad - k) / s."""
    y, x = _plane(conv)

    def phase(axis: Axis, r: int) -> tuple[int, int, int]:
        """Positions, taps, zeros before."""
        first = (r + axis.p) % axis.s
        taps = ceil((axis.k - first) / axis.s)
        return ceil((axis.i - r) / axis.s), taps, taps - 1 - (r + axis.p - first) // axis.s

    found = []
    for rows, columns in product([phase(y, r) for r in range(y.s)], [phase(x, r) for r in range(x.s)]):
        size, taps, low = zip(rows, columns, strict=True)
        found.append(_convolution(dtype, conv.mb, (y.o, x.o), conv.oc, size, conv.ic, taps, 1, low))
    return found


def weight_gradient(conv: Conv, dtype: str) -> list[Contraction]:
    """Output channel, taps, input channel; sums over images and pixels."""
    y, x = _plane(conv)
    high = (max(0, (each.o - 1) * each.s + each.k - each.p - each.i) for each in (y, x))
    pads = (0, y.p, x.p, 0), (0, *high, 0)
    maps = f"d4, d5*{y.s}+d1, d6*{x.s}+d2, d3", "d4, d5, d6, d0", "d0, d1, d2, d3"
    shapes = (conv.mb, y.i, x.i, conv.ic), (conv.mb, y.o, x.o, conv.oc)
    out = conv.oc, y.k, x.k, conv.ic
    return [Contraction(dtype, *shapes, out, maps, 7, 3, *(pads if any(map(any, pads)) else ()))]


def parts_of(case: whole.Case) -> list[Contraction]:
    """Products take both factors as rows along K."""
    dtype = {"f16": "f16", "s8": "i8"}[case.dtype]
    problem = case.problem
    if isinstance(problem, Conv):
        by_direction = {"FWD_D": forward, "BWD_D": data_gradient, "BWD_W": weight_gradient}
        return by_direction[case.direction](problem, dtype)
    m, n, k = problem.m, problem.n, problem.k
    return [Contraction(dtype, (m, k), (n, k), (m, n), ("d0, d2", "d1, d2", "d0, d1"), 3, 1)]


def launches_of(host: str, objects: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
    """The launches of a module's command buffer, in order; `file` is the name of a code object."""
    kernels = dict(_LOOKUP.findall(host))
    known = {kernel: (file, info) for file, content in objects.items()
             for kernel, info in CodeObject.load(content).kernels.items()}  # fmt: skip
    for found in _DISPATCH.finditer(host):
        kernel = kernels[found["function"]]
        file, info = known[kernel]
        bound = _BOUND.findall(found["bound"])
        if len(bound) != found["bound"].count("index"):
            raise ValueError(f"{kernel}: bindings of sizes that are not constants: {found['bound']}")
        yield {
            "file": file,
            "kernel": kernel,
            "grid": [int(each.strip().removeprefix("%c").partition("_")[0]) for each in found["grid"].split(",")],
            "block": list(info.metadata[".reqd_workgroup_size"]),
            "shared": 0,
            "args": [{"n": f"slot{slot}at{at}", "t": "i8*", "shape": [int(size)]} for slot, at, size in bound],
        }


@attrs.frozen
class Made:
    """The compiler's output for a function: code objects by name, and the launches."""

    objects: Mapping[str, bytes]
    launches: Sequence[Mapping[str, Any]]

    def named(self, stem: str) -> Made:
        """With names of files that begin with `stem`."""
        files = {name: f"{stem}_{number}.hsaco" for number, name in enumerate(self.objects)}
        launches = [{**launch, "file": files[launch["file"]]} for launch in self.launches]
        return Made({files[name]: content for name, content in self.objects.items()}, launches)


def compiled(compiler: str, text: str, target: str, flags: Sequence[str]) -> Made:
    """A function's code objects and launches; CalledProcessError if the compiler does not take it."""
    with tempfile.TemporaryDirectory() as place:
        source, host, dump = Path(place, "case.mlir"), Path(place, "hal.mlir"), Path(place, "dump")
        source.write_text(text)
        options = [*_ALWAYS, f"--iree-rocm-target={target}", f"--iree-hal-dump-executable-files-to={dump}", *flags]
        subprocess.run([compiler, *options, source, "-o", host], check=True, capture_output=True, text=True)
        objects = {each.name: each.read_bytes() for each in sorted(dump.glob("*.hsaco"))}
        return Made(objects, list(launches_of(host.read_text(), objects)))


def variants_of(case: whole.Case, target: str, compiler: str, console: Console) -> Iterator[tuple[str, Made]]:
    """Yield each variant whose code differs from that of earlier ones, with its name."""
    parts = parts_of(case)
    seen = []
    for variant, (flags, padded) in VARIANTS.items():
        try:
            made = compiled(compiler, module(parts, padded), target, flags)
        except subprocess.CalledProcessError as error:
            console.print(f"{target} {case.title} {variant}: {error.stderr.strip().splitlines()[0]}", markup=False)
            continue
        if made not in seen:
            seen.append(made)
            yield variant, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", action="append", choices=["gfx90a", "gfx942", "gfx950"])
    parser.add_argument("--compiler", default="iree-compile")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose `name direction type` contains it")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    wanted = [case for case in whole.CASES if options.only in case.title]
    entries: list[Any] = []
    for target, case in track(list(product(options.target or ["gfx942"], wanted)), console=console):
        for variant, made in variants_of(case, target, options.compiler, console):
            named = made.named(f"iree_{target}_{len(entries)}")
            for file, content in named.objects.items():
                (options.folder / file).write_bytes(content)
            about = {"peer": "iree", "case": case.title, "target": target, "config": variant}
            entries.append({**about, "launches": named.launches})
    (options.folder / "manifest.json").write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
