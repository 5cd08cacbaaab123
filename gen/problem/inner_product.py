"""benchdnn's inner products (`--ip`) as matrix products, or as convolutions with windows as large as the image.

dst[mb, oc] is the sum over ic, and over the positions of an image, of src[mb, ic, ...] * wei[oc, ic, ...].
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from convgen.ir.error import Unsupported
from convgen.ir.record import evolve
from convgen.problem import attributes, grammar, options
from convgen.problem.conv import Conv, Direction
from convgen.problem.matmul import Matmul, Problem
from convgen.problem.tensors import Triple

_SWAPPED = str.maketrans("abAB", "baBA")
_GROUPS = re.compile("[0-9]+x[0-9]+")
_ATTRIBUTES = "attr-scales", "attr-zero-points"


def of(line: str, knobs: Mapping[str, str]) -> Problem:
    """Return the problem of a driver line, whose knobs win over `knobs`. Raises UserError, Unsupported."""
    given, text = options.split_line(line, options.IP)
    texts = {name: text for name, text in {**knobs, **given}.items() if text}
    values = options.read(options.IP, texts)
    scanned = grammar.scan(text)
    for key in ("ic", "oc"):
        if not scanned.values.get(key):
            raise scanned.error(f"given no {key}, wanted at least 1", key)
    sizes = {"mb": 2, **scanned.values}
    sizes["mb"] = values["mb"] or sizes["mb"]
    if any(f"i{axis}" in sizes for axis in "dhw"):
        return _of_images(sizes, texts, scanned.name)
    return _of_vectors(sizes, texts, values, scanned.name)


def _of_images(sizes: Mapping[str, int], texts: Mapping[str, str], name: str) -> Conv:
    """Return the convolution whose windows are as large as the images."""
    given = {axis: sizes[f"i{axis}"] for axis in "dhw" if f"i{axis}" in sizes}
    axes = "".join(f"_i{axis}{size}o{axis}1k{axis}{size}p{axis}0" for axis, size in given.items())
    own = {knob: text for knob, text in texts.items() if knob != "mb"}
    if own.get("bia-dt", "undef") != "undef" and own.get("dir", "FWD_B") == "FWD_B":
        own["dir"] = "FWD_D"  # which has a bias of any type
    descriptor = f"mb{sizes['mb']}ic{sizes['ic']}oc{sizes['oc']}{axes}{_named(name)}"
    problem = Conv.of(descriptor, {**own, "dtag": "any", "strides": ""})
    *others, strides = own.get("strides", "::").split(":")
    more = problem.ndims - 2  #: positions of dst, of which there is one
    tag = own.get("dtag", "any")
    changed = {"dtag": tag if tag == "any" else _plain(tag) + "cde"[:more]}
    if any((*others, strides)):
        changed["strides"] = ":".join((*others, f"{strides}{'x1' * more}" if strides else ""))
    return Conv.of(problem.descriptor, {**own, **changed})


def _of_vectors(sizes: Mapping[str, int], texts: Mapping[str, str], values: options.Knobs, name: str) -> Matmul:
    """Return the product of a direction."""
    mb, ic, oc = (sizes[key] for key in ("mb", "ic", "oc"))
    direction = Direction(values["dir"])
    own = {knob: text for knob, text in texts.items() if knob not in ("dir", "mb", "bia-dt")}
    src, wei, dst = _tensors(values["dt"], own)
    if direction.is_forward:
        attributes_of_weights = {knob: _with_swapped_weights(own[knob]) for knob in _ATTRIBUTES if knob in own}
        own |= _knobs(src, _transposed(wei), dst) | attributes_of_weights
        problem = Matmul.of(f"{mb}x{ic}:{ic}x{oc}{_named(name)}", own)
        dtype = values["bia-dt"] if values["bia-dt"] != "undef" else ""
        if direction is not Direction.FWD_B and not dtype:
            return problem
        return evolve(problem, bias_type=dtype or problem.acc_type, bias_mask=2)
    if direction is Direction.BWD_D:
        return Matmul.of(f"{mb}x{oc}:{oc}x{ic}{_named(name)}", own | _knobs(dst, wei, src))
    if direction is Direction.BWD_WB or values["bia-dt"] != "undef":
        raise Unsupported("the gradient of the bias of an inner product", rule="inner-product-bias")
    return Matmul.of(f"{oc}x{mb}:{mb}x{ic}{_named(name)}", own | _knobs(_transposed(dst), src, wei))


def _named(name: str) -> str:
    return f'n"{name}"' if name else ""


def _tensors(types: Triple, texts: Mapping[str, str]) -> list[Triple]:
    """Return type, tag and strides of src, wei and dst; x of a tag means no dims."""
    tags = (_plain(texts.get(knob, "any")) for knob in ("stag", "wtag", "dtag"))
    strides = texts.get("strides", "::").split(":")
    return [(dtype, tag, listed) for dtype, tag, listed in zip(types, tags, strides)]


def _plain(tag: str) -> str:
    return tag if tag in ("any", "undef") else tag.replace("x", "")


def _knobs(*tensors: Triple) -> dict[str, str]:
    """Return the knobs of src, wei and dst."""
    types, tags, strides = zip(*tensors)
    knobs = {"dt": ":".join(types), **dict(zip(("stag", "wtag", "dtag"), tags))}
    return knobs | {"strides": ":".join(strides) if any(strides) else ""}


def _transposed(tensor: Triple) -> Triple:
    """Return a matrix with its dims exchanged."""
    dtype, tag, strides = tensor
    return dtype, tag if tag in ("any", "undef") else tag.translate(_SWAPPED), "x".join(reversed(strides.split("x")))


def _with_swapped_weights(text: str) -> str:
    """Return scales or zero points with the mask and the groups of the weights for exchanged dims."""
    return "+".join(map(_swapped, attributes.split_entries(text)))


def _swapped(entry: str) -> str:
    argument, mask, *fields = entry.split(":")
    if argument != "wei":
        return entry
    if mask.isdigit():
        bits = int(mask)
        mask = str(bits & ~0b11 | (bits & 1) << 1 | bits >> 1 & 1)
    swapped = ("x".join(field.split("x")[::-1]) if _GROUPS.fullmatch(field) else field for field in fields)
    return ":".join([argument, mask, *swapped])
