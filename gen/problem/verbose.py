"""oneDNN's verbose log: each execution of a convolution or a matrix product as the problem that it was.

    onednn_verbose,v1,primitive,exec,gpu,matmul,jit:gemm:any,undef,src:f16::blocked:ab::f0 ...,,,64x32:32x48,0.01

Logs of oneDNN 2 and 3 are read, with or without time stamps. Lines that tell of something else are remarks; executions
of other primitives are no problems of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import frozen
from convgen.problem import options
from convgen.problem.conv import Conv
from convgen.problem.matmul import Matmul

_MARKER = re.compile(r"(?:onednn|dnnl)_verbose,")
_DRIVERS = {"convolution": options.CONV, "matmul": options.MATMUL}
_MEMORY = re.compile(r"(?P<name>(?:diff_)?(?:src|wei|bia|dst))(?:_[0-9]+)?[:_](?P<type>[a-z0-9_]+):(?P<rest>\S*)")
_DIRECTIONS = {
    "forward_training": "FWD_",
    "forward_inference": "FWD_",
    "forward": "FWD_",
    "backward_data": "BWD_D",
    "backward_weights": "BWD_W",
}
_MASK = re.compile(r"mask([0-9]+)")
#: Attributes under which the same is computed.
_HARMLESS = ("scratchpad", "fpmath", "acc-mode")


@frozen
class _Memory:
    """A tensor as the log describes it."""

    dtype: str
    kind: str  #: blocked, any, undef
    tag: str
    strides: str
    flags: str


@frozen
class _Execution:
    """The fields of a line."""

    primitive: str
    propagation: str
    memory: Mapping[str, _Memory]
    attributes: Mapping[str, str]
    descriptor: str


def is_line(text: str) -> bool:
    """Whether a text is the line of an execution."""
    return _fields(text) is not None


def is_remark(text: str) -> bool:
    """Whether it is another line of such a log."""
    return _MARKER.match(text) is not None and _fields(text) is None


def driver_of(text: str) -> str:
    """Whose problem it is; other primitives count as convolutions, for `problems` to refuse."""
    fields = _fields(text) or []
    return _DRIVERS.get(fields[1], options.CONV) if len(fields) > 1 else options.CONV


def problems(line: str, knobs: Mapping[str, str]) -> tuple[Conv | Matmul, ...]:
    """The problem of a line; `knobs` win over what it says. Raises UserError, Unsupported."""
    found = _execution(line)
    if found.primitive not in _DRIVERS:
        wanted = "convolutions and matrix products: others are not generated"
        raise Unsupported(f"the primitive {found.primitive[:40]!r} of oneDNN's log, wanted {wanted}", rule="driver")
    kind = Conv if found.primitive == "convolution" else Matmul
    said = _layouts(found) | _attributes(found) | (_conv(found) if kind is Conv else _matmul(found))
    return (kind.of(found.descriptor, said | dict(knobs)),)


def _fields(text: str) -> list[str] | None:
    """engine, primitive, implementation, propagation, memory, attributes, ... of an execution."""
    if not _MARKER.match(text):
        return None
    fields = text.strip().split(",")
    at = next((n for n, field in enumerate(fields[:6]) if field == "exec"), None)
    return None if at is None or fields[1:2] == ["info"] else fields[at + 1 :]


def _execution(line: str) -> _Execution:
    fields = _fields(line) or []
    if len(fields) < 8:
        raise UserError(f"given {len(fields)} fields behind exec, wanted 9, in a line of oneDNN's log")
    primitive, _, propagation, memory, attributes = fields[1:6]
    return _Execution(
        primitive,
        propagation,
        {name: found for name, found in map(_memory, memory.split()) if name},
        dict(each.removeprefix("attr-").partition(":")[::2] for each in attributes.split()),
        fields[7] if len(fields) == 8 else fields[-2],
    )


def _memory(text: str) -> tuple[str, _Memory]:
    found = _MEMORY.fullmatch(text)
    if found is None:
        return "", _Memory("", "", "", "", "")
    parts = found["rest"].split(":")
    if len(parts) == 4:  # of oneDNN 2, without strides
        parts.insert(3, "")
    _, kind, tag, strides, flags = [*parts, "", "", "", "", ""][:5]
    return found["name"], _Memory(found["type"], kind, tag, strides, ":".join(parts[4:]) or flags)


def _layouts(found: _Execution) -> dict[str, str]:
    """Types, tags and strides of the three tensors, gradients or not."""
    three = [found.memory.get(name) or found.memory.get(f"diff_{name}") for name in ("src", "wei", "dst")]
    known = [memory for memory in three if memory is not None]
    if len(known) != 3:
        raise UserError("given fewer tensors than src, wei and dst, wanted all, in a line of oneDNN's log")
    strides = [memory.strides for memory in known]
    said = {"dt": ":".join(memory.dtype for memory in known)}
    if any(strides):
        said["strides"] = ":".join(strides)
    tags = {f"{name}tag": memory for name, memory in zip("swd", known)}
    said |= {name: m.tag for name, m in tags.items() if m.kind == "blocked" and m.tag and not m.strides}
    return said


def _attributes(found: _Execution) -> dict[str, str]:
    said = {}
    for name, value in found.attributes.items():
        if name == "post-ops":
            said["attr-post-ops"] = "+".join(
                step.removeprefix("eltwise_").removeprefix("binary_") for step in re.split(r"[+ ]", value)
            )
        elif name == "deterministic":
            said["attr-deterministic"] = "true" if value in ("1", "true") else "false"
        elif name not in _HARMLESS:
            raise Unsupported(
                f"attr-{name[:40]} of oneDNN's log: it does not tell all values", rule="verbose-attribute"
            )
    return said


def _bias(found: _Execution) -> _Memory | None:
    bias = found.memory.get("bia") or found.memory.get("diff_bia")
    return None if bias is None or bias.kind == "undef" or bias.dtype == "undef" else bias


def _conv(found: _Execution) -> dict[str, str]:
    if found.propagation not in _DIRECTIONS:
        wanted = ", ".join(_DIRECTIONS)
        raise UserError(f"given the propagation {found.propagation[:40]!r}, wanted one of {wanted}, in oneDNN's log")
    direction, bias = _DIRECTIONS[found.propagation], _bias(found)
    if direction == "FWD_":
        return {"dir": "FWD_D", "bia-dt": bias.dtype} if bias else {"dir": "FWD_D"}
    if direction == "BWD_W" and bias:
        return {"dir": direction, "bia-dt": bias.dtype}
    return {"dir": direction}


def _matmul(found: _Execution) -> dict[str, str]:
    bias = _bias(found)
    if bias is None:
        return {}
    mask = _MASK.search(bias.flags)
    return {"bia-dt": bias.dtype} | ({"bia_mask": mask[1]} if mask else {})
