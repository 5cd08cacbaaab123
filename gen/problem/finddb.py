"""Lines of MIOpen's find-db and perf-db as text: a key of the problem, `=`, and measurements.

    576-4-4-1x1-192-4-4-8-1x1-2x2-3x3-0-NCHW-FP32-F=ConvAsm1x1U:...

The key is the problem as kernels see it (MIOpen, conv/problem_description.cpp): channels and size of the input tensor,
the window, channels and size of the output tensor, the minibatch, paddings, strides, dilations, the bias, one layout or
three, types and the direction. In backward directions the first tensor is the gradient of the destination.

Keys of later perf-dbs have no size of the second tensor (MIOpen issue 3367):

    2x896x59x91x1x3x3x1x896x4x1x1x0x1x1x0x1x1x0x0x16xNCHWxBF16xB
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from convgen.ir.error import Unsupported
from convgen.problem import miopen
from convgen.problem.conv import Conv

_SIZES = r"[0-9]{1,9}(?:-[0-9]{1,9}){2,3}"
_PAIR = r"[0-9]{1,9}(?:x[0-9]{1,9}){1,2}"
_LAYOUT = "[A-Z]+[a-z]?"
_KEY = re.compile(
    rf"(?<![\w.-])(?P<source>{_SIZES})-(?P<window>{_PAIR})-(?P<result>{_SIZES})-(?P<images>[0-9]{{1,9}})"
    rf"-(?P<pads>{_PAIR})-(?P<strides>{_PAIR})-(?P<dilations>{_PAIR})-(?P<bias>[01])"
    rf"-(?P<layouts>{_LAYOUT}(?:-{_LAYOUT}-{_LAYOUT})?)-(?P<types>[A-Z]+[0-9][A-Z0-9x]*)"
    r"-(?P<direction>[FBW])(?P<more>(?:_[a-z]+[A-Z0-9]*)*)(?=[=\s]|$)"
)

_PERF_KEY = re.compile(
    rf"(?<![\w.-])(?P<dims>[23])x(?P<numbers>[0-9]{{1,9}}(?:x[0-9]{{1,9}}){{19}})"
    rf"x(?P<layouts>{_LAYOUT})x(?P<types>[A-Z]+[0-9][A-Z0-9]*)x(?P<direction>[FBW])(?=[=:\s]|$)"
)

#: types of a key -> base argument of MIOpenDriver
_BASES = {
    "FP32": "conv",
    "FP16": "convfp16",
    "BF16": "convbfp16",
    "INT8": "convint8",
    "INT8INT8INT32": "convint8",
    "FP8": "convfp8",
    "BFP8": "convbfp8",
}


def find(text: str) -> str | None:
    """Return the line within a text, from its key on; None without one."""
    match = _KEY.search(text) or _PERF_KEY.search(text)
    return None if match is None else text[match.start() :]


def problems(line: str, knobs: Mapping[str, str]) -> tuple[Conv, ...]:
    """Return the convolution of a line; `knobs` override its own. Raises UserError, Unsupported."""
    key = _KEY.match(line) or _PERF_KEY.match(line)
    assert key is not None, line
    if key["types"] not in _BASES:
        given = f"given {key['types'][:40]} in a key of MIOpen"
        raise Unsupported(f"{given}, wanted one of {', '.join(_BASES)}", rule="types")
    if re.search("[a-z]", key["layouts"]):
        raise Unsupported(f"given {key['layouts']} in a key of MIOpen, wanted NCHW or NHWC", rule="vectorised-layout")
    flags = _perf_flags(key) if key.re is _PERF_KEY else _flags(key)
    layouts = (key["layouts"].split("-") * 3)[:3]
    if key["direction"] != "F":
        layouts.reverse()
    flags += [f"{flag} {layout}" for flag, layout in zip(("-I", "-f", "-O"), layouts)]
    flags.append(f"-F {'FBW'.index(key['direction']) * 2 or 1}")
    return miopen.problems(f"MIOpenDriver {_BASES[key['types']]} {' '.join(flags)}", knobs)


def _flags(key: re.Match[str]) -> list[str]:
    """MIOpenDriver's flags of sizes. Raises Unsupported for tensors that are cast, and sizes that do not match."""
    suffixes = dict(re.findall(r"_(ci|cw|co|g)([A-Z0-9]*)", key["more"]))
    if suffixes.keys() - {"g"}:
        raise Unsupported(f"given {key['more']} in a key of MIOpen, wanted tensors that are not cast", rule="cast")
    read, written = ([int(size) for size in key[name].split("-")] for name in ("source", "result"))
    (ic, *inputs), (oc, *outputs) = (read, written) if key["direction"] == "F" else (written, read)
    windows, pads, strides, dilations = (_numbers(key[name]) for name in ("window", "pads", "strides", "dilations"))
    if {len(sizes) for sizes in (inputs, outputs, windows, pads, strides, dilations)} != {len(inputs)}:
        raise Unsupported(f"given {key[0][:60]} of 2 and of 3 dimensions, wanted as many of each", rule="db-sizes")
    flags = [f"-n {key['images']} -c {ic} -k {oc} -g {suffixes.get('g') or 1} -b {key['bias']} -_ {len(inputs)}"]
    for axis, *sizes in zip("dhw"[3 - len(inputs) :], inputs, outputs, windows, pads, strides, dilations):
        flags.append(_axis(axis, *sizes))
    return flags


def _perf_flags(key: re.Match[str]) -> list[str]:
    """The flags of a key without the size of the second tensor, which strides leave open backward."""
    read, h, w, d, *rest = _numbers(key["numbers"])
    windows, written, images, tails = rest[:3], rest[3], rest[4], rest[5:]
    pads, strides, dilations, (bias, groups) = tails[:3], tails[3:6], tails[6:9], tails[9:]
    is_forward, count = key["direction"] == "F", int(key["dims"])
    ic, oc = (read, written) if is_forward else (written, read)
    flags = [f"-n {images} -c {ic} -k {oc} -g {groups} -b {bias} -_ {count}"]
    for axis, size, k, p, s, dilation in list(zip("hwd", (h, w, d), windows, pads, strides, dilations))[:count]:
        extent = (k - 1) * dilation + 1
        if not is_forward and s != 1:
            given = f"given stride {s} of {axis} in a key of MIOpen"
            raise Unsupported(f"{given}, wanted 1: it does not tell the size of the image", rule="db-sizes")
        i = size if is_forward else size - 1 - 2 * p + extent
        flags.append(_axis(axis, i, (i + 2 * p - extent) // s + 1 if s else 0, k, p, s, dilation))
    return flags


def _numbers(text: str) -> list[int]:
    return [int(size) for size in text.split("x")]


def _axis(axis: str, i: int, o: int, k: int, p: int, s: int, d: int) -> str:
    """The flags of an axis. Raises Unsupported where the output does not follow from the others."""
    wanted = (i + 2 * p - (k - 1) * d - 1) // s + 1 if s else 0
    if o != wanted:
        given = f"given {axis} of {i} and of {o} with a window of {k}, padding {p}, stride {s} and dilation {d}"
        raise Unsupported(f"{given}, wanted {wanted} after it, in a key of MIOpen", rule="db-sizes")
    names = ("in", "fil", "pad", "conv_stride", "dilation")
    return " ".join(f"--{name}_{axis} {size}" for name, size in zip(names, (i, k, p, s, d)))
