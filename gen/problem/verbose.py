"""oneDNN's verbose log: each execution of a convolution or a matrix product as a problem.

    onednn_verbose,v1,primitive,exec,gpu,matmul,jit:gemm:any,undef,src:f16::blocked:ab::f0 ...,,,64x32:32x48,0.01

Logs of DNNL 1 and oneDNN 2 and 3 are read (oneDNN, src/common/verbose.cpp at v1.2, v2.0, v2.7, v3.0 and later). An
inner product is a matrix product, or a convolution of windows as large as the image. Creations and errors are requests
where the log executes no equal primitive. Lines that tell of something else are remarks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import frozen
from convgen.problem import attributes, inner_product, options
from convgen.problem.conv import Conv
from convgen.problem.deconv import Deconv
from convgen.problem.matmul import Matmul, Problem

_MARKER = re.compile(r"(?<![\w=])(?:onednn|dnnl|mkldnn)_verbose,")
_MEMORY = re.compile(
    r"(?P<name>(?:diff_)?(?:src|wei|bia|dst))(?:_[0-9]+)?[:_](?!fused)(?P<type>[a-z0-9_]+):(?P<rest>\S*)"
)
_MASK = re.compile(r"mask([0-9]+)")
_OLD_ATTRIBUTE = re.compile(r"(\w+):('[^']*'|[^;']*);")
_SIZES = re.compile(r"(mb|ic|oc|id|ih|iw|b|m|n|k)([0-9]+)")

#: Attributes that do not change the result.
_HARMLESS = ("scratchpad", "scratchpad_mode")
#: Attributes with the name and value of a benchdnn option.
_ALIKE = ("fpmath", "rounding-mode", "precomputed-reductions")
#: Element-wise functions of former versions: name -> name and first number of today's.
_FORMER = {"bounded_relu": "clip:0", "logsigmoid": "soft_relu:-1", "gelu": "gelu_tanh"}
_GROUPED = "grouped"  #: kind of a tensor whose rows, or terms, are in groups
#: Format kinds of tensors that have no tag, and the rules that refuse them.
_KINDS = {"sparse": "sparse", "wino": "blocked-layout", "opaque": "blocked-layout", "rnn_packed": "blocked-layout"}


@frozen
class _Memory:
    """A tensor as the log describes it."""

    dtype: str
    kind: str  #: blocked, any, undef, grouped
    tag: str  #: of groups their dim and number, such as 0:4
    strides: str
    flags: str


@frozen
class _Line:
    """The fields of a line; `event` is exec, create or error."""

    event: str
    is_old: bool  #: of DNNL 1 or oneDNN 2
    fields: tuple[str, ...]  #: engine, primitive, implementation, propagation, memory, attributes, auxiliary, problem

    @property
    def key(self) -> str:
        return ",".join(self.fields[:8])


@frozen
class _Execution:
    """An execution of a primitive."""

    primitive: str
    propagation: str
    memory: Mapping[str, _Memory]
    attributes: Mapping[str, str]
    auxiliary: str
    descriptor: str
    is_old: bool

    def tensor(self, name: str) -> _Memory:
        """The tensor of a role, a gradient or not."""
        memory = self.memory.get(name) or self.memory.get(f"diff_{name}")
        if memory is None:
            raise UserError("given fewer tensors than src, wei and dst, wanted all, in a line of oneDNN's log")
        if memory.kind == _GROUPED and self.primitive != "matmul":
            raise Unsupported(f"groups of {self.primitive} in oneDNN's log", rule="grouped-gemm")
        if memory.kind in _KINDS:
            raise Unsupported(f"{name} of the kind {memory.kind} in oneDNN's log", rule=_KINDS[memory.kind])
        return memory

    @property
    def bias(self) -> _Memory | None:
        bias = self.memory.get("bia") or self.memory.get("diff_bia")
        return None if bias is None or bias.kind == "undef" or bias.dtype == "undef" else bias

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the problem by their keys."""
        return {key: int(size) for key, size in _SIZES.findall(self.descriptor)}


def find(text: str) -> str | None:
    """Return the line of an execution, a creation or an error within a text, without its prefix; None without one."""
    line = _from_marker(text)
    return None if line is None or _logged_line(line) is None else line


def executed(text: str, every: bool = False) -> frozenset[str]:
    """Return the primitives that the lines of a log execute, for `repeats`; with `every`, also created ones."""
    if not _MARKER.search(text):
        return frozenset()
    lines_of_log = (_logged_line(line) for line in map(_from_marker, text.splitlines()) if line is not None)
    return frozenset(line.key for line in lines_of_log if line is not None and (every or line.event == "exec"))


def repeats(line: str, known: frozenset[str]) -> bool:
    """Whether a line is the creation or error of a primitive that is known."""
    logged = _logged_line(line)
    return logged is not None and logged.event != "exec" and logged.key in known


def driver_of(line: str) -> str:
    """Return the driver of a line's problem; other primitives count as convolutions, for `problems` to refuse."""
    logged = _logged_line(line)
    name = logged.fields[1] if logged is not None and len(logged.fields) > 1 else ""
    drivers = {"matmul": options.MATMUL, "inner_product": options.IP, "deconvolution": options.DECONV}
    return drivers.get(name, options.CONV)


def problems(line: str, knobs: Mapping[str, str]) -> tuple[Problem, ...]:
    """Return the problem of a line; `knobs` override its own. Raises UserError, Unsupported."""
    execution = _execution(line)
    if execution.primitive not in _READERS:
        wanted = "convolutions and matrix products: others are not generated"
        raise Unsupported(f"the primitive {execution.primitive[:40]!r} of oneDNN's log, wanted {wanted}", rule="driver")
    if "*" in execution.descriptor or "runtime_dims_masks" in execution.auxiliary:
        given = f"{execution.descriptor} of oneDNN's log"
        raise Unsupported(
            f"given {given[:60]}, wanted sizes: it does not tell those known at launch", rule="runtime-sizes"
        )
    parse, descriptor, knobs_of_line = _READERS[execution.primitive](execution)
    return (parse(descriptor, {name: text for name, text in knobs_of_line.items() if text} | dict(knobs)),)


def _from_marker(text: str) -> str | None:
    match = _MARKER.search(text)
    return None if match is None else text[match.start() :].rstrip(" \t\"'`")


def _logged_line(line: str) -> _Line | None:
    """Return the line of an execution, creation or error; None for another line."""
    fields = line.strip().split(",")
    at = next(
        (n for n, field in enumerate(fields[:6]) if field in ("exec", "error") or field.startswith("create")), None
    )
    if at is None or "info" in fields[1:at] or "graph" in fields[1:at]:
        return None
    event, _, what = fields[at].partition(":")
    following = fields[at + 1 :]
    if event == "error":  # the component stands before the fields, the message and its place after them
        following = following[1:]
    if event != "exec" and (len(following) < 8 or what in ("dispatch", "check") or not _MEMORY.search(following[4])):
        return None
    is_old = not re.fullmatch("v[0-9]+", fields[1])
    return _Line("create" if event.startswith("create") else event, is_old, tuple(following))


def _execution(line: str) -> _Execution:
    logged = _logged_line(line)
    fields = () if logged is None else logged.fields
    if line.startswith("mkldnn"):
        raise Unsupported("a line of MKL-DNN 0.x, which does not tell the types of tensors", rule="verbose-version")
    if logged is None or len(fields) < 8:
        raise UserError(f"given {len(fields)} fields after exec, wanted 9, in a line of oneDNN's log")
    primitive, _, propagation, memory, attributes = fields[1:6]
    return _Execution(
        primitive,
        propagation,
        {name: tensor for name, tensor in map(_memory, memory.split()) if name},
        _attribute_texts(attributes),
        fields[6],
        fields[7],
        logged.is_old,
    )


def _memory(text: str) -> tuple[str, _Memory]:
    match = _MEMORY.fullmatch(text)
    if match is None:
        return "", _Memory("", "", "", "", "")
    parts = match["rest"].split(":")
    if len(parts) == 4:  # of oneDNN 2, without strides
        parts.insert(3, "")
    _, kind, tag, strides, flags = [*parts, "", "", "", "", ""][:5]
    if kind == "sparse" and tag == _GROUPED:
        return match["name"], _Memory(match["type"], _GROUPED, ":".join(parts[3:5]), "", "")
    flags = ":".join(parts[4:]) or flags
    # Flags other than f0 mean sums behind the weights, for compensation, which only oneDNN reads: any layout serves.
    if match["name"].endswith("wei") and flags and not re.match("f0(_|$)", flags):
        kind, tag, strides = "any", "", ""
    return match["name"], _Memory(match["type"], kind, tag, strides, flags)


def _attribute_texts(text: str) -> dict[str, str]:
    """The attributes by name, in the form of oneDNN 2.1 and later or in that before."""
    if "attr-" in text or ";" not in text:
        return dict(each.removeprefix("attr-").partition(":")[::2] for each in text.split())
    named = {name: value.strip("'") for name, value in _OLD_ATTRIBUTE.findall(re.sub(r";'", "'", text) + ";")}
    names = {"post_ops": "post-ops", "zero_points": "zero-points"}
    entries = {
        name: re.sub(r"_(?=src|wei|dst)", "+", named.pop(name)) for name in ("scales", "zero_points") if name in named
    }
    return {names.get(name, name): value.replace(";", "+") for name, value in (named | entries).items()}


def _attributes(execution: _Execution) -> dict[str, str]:
    """The knobs of the attributes."""
    knobs = dict[str, str]()
    for name, value in execution.attributes.items():
        if name == "post-ops":
            knobs["attr-post-ops"] = "+".join(_post_op(step, execution.is_old) for step in _steps(value))
        elif name in ("scales", "zero-points"):
            entries = (_entry(each, name) for each in value.split("+") if each)
            knobs |= attributes.knob(f"attr-{name}", entries)
        elif name == "oscale":
            knobs |= _oscale(value, execution.bias is not None)
        elif name == "deterministic":
            knobs["attr-deterministic"] = "true" if value in ("1", "true") else "false"
        elif name in ("acc-mode", "acc"):
            knobs["attr-acc-mode"] = value
        elif name == "dropout":
            raise Unsupported("dropout of oneDNN's log", rule="dropout")
        elif name in _ALIKE:
            knobs[f"attr-{name}"] = value
        elif name not in _HARMLESS:
            raise Unsupported(
                f"attr-{name[:40]} of oneDNN's log: it does not tell all values", rule="verbose-attribute"
            )
    return knobs


def _steps(value: str) -> Iterator[str]:
    """The post-ops of a text; the plus sign of an exponent separates none."""
    return filter(None, re.split(r"(?<![0-9.]e)[+ ]", value))


def _post_op(step: str, is_old: bool) -> str:
    name, colon, rest = step.removeprefix("eltwise_").removeprefix("binary_").partition(":")
    if is_old and name == "soft_relu" and not rest:
        return "soft_relu:1"
    return f"{_FORMER.get(name, name)}{colon}{rest}"


#: mode of scales that the result decides -> policy of benchdnn
_COMPUTED = {"dynamic_mx": "mx", "dynamic_fp": "dynamic_fp"}


def _entry(text: str, kind: str) -> str:
    """A scale or zero point as benchdnn has it: of `ARG:MASK[:TYPE[:GROUPS][:host_scalar][:MODE]]`, or, before
    oneDNN 3.1, `ARG:MASK[:VALUE]` with `*` for one that is not known."""
    argument, _, rest = text.partition(":")
    mask, *fields = rest.split(":")
    role = argument.removesuffix("0") if argument in ("src0", "wei0", "dst0") else argument
    policies = [_COMPUTED[field] for field in fields if field in _COMPUTED]
    fields = [field for field in fields if field not in ("", "*", "host_scalar", *_COMPUTED)]
    if policies:  # of all dims: oneDNN has no other
        return ":".join([role, *policies, *fields])
    if mask in ("0", ""):
        return ":".join([role, "common", *fields])
    if not mask.isdigit():
        raise UserError(f"given the mask {mask[:20]!r}, wanted a number, in {kind} of oneDNN's log")
    if fields and re.fullmatch(r"-?[0-9.]+", fields[0]):  # the first value of many
        fields = fields[1:]
    return ":".join([role, mask, *fields])


def _oscale(value: str, has_bias: bool) -> dict[str, str]:
    """Parse the output scale of oneDNN 2, which multiplies sums: one number, or one each output channel."""
    mask, _, number = value.partition(":")
    if has_bias:
        raise Unsupported("attr-oscale of oneDNN's log after a bias", rule="verbose-attribute")
    if mask == "0" and number not in ("", "*"):
        return {"attr-scales": f"src:common:{number}"}
    return attributes.knob("attr-scales", ["src:common:f32" if mask == "0" else "wei:per_oc:f32"])


def _tensors(*three: _Memory) -> dict[str, str]:
    """Types, tags and strides of src, weights and destination."""
    strides = [memory.strides for memory in three]
    knobs = {"dt": ":".join(memory.dtype for memory in three)}
    if any(strides):
        knobs["strides"] = ":".join(strides)
    tags = {f"{name}tag": memory for name, memory in zip("swd", three)}
    return knobs | {name: m.tag for name, m in tags.items() if m.kind == "blocked" and m.tag and not m.strides}


def _propagation(execution: _Execution) -> str:
    """F, D or W: forward, or the gradient of data or of weights."""
    known = {"forward_training": "F", "forward_inference": "F", "forward": "F"}
    known |= {"backward_data": "D", "backward_weights": "W"}
    if execution.propagation not in known:
        wanted = ", ".join(known)
        given = f"given the propagation {execution.propagation[:40]!r}"
        raise UserError(f"{given}, wanted one of {wanted}, in oneDNN's log")
    return known[execution.propagation]


_Request = tuple[Callable[[str, Mapping[str, str]], Problem], str, dict[str, str]]


def _conv(execution: _Execution) -> _Request:
    propagation = _propagation(execution)
    knobs = {"dir": {"F": "FWD_D", "D": "BWD_D", "W": "BWD_W"}[propagation]}
    if execution.bias and propagation != "D":
        knobs["bia-dt"] = execution.bias.dtype
    tensors = [execution.tensor(name) for name in ("src", "wei", "dst")]
    parse = {"deconvolution": Deconv.of, "inner_product": inner_product.of}.get(execution.primitive, Conv.of)
    return parse, execution.descriptor, knobs | _tensors(*tensors) | _attributes(execution)


def _matmul(execution: _Execution) -> _Request:
    knobs = _tensors(*(execution.tensor(name) for name in ("src", "wei", "dst"))) | _attributes(execution)
    grouped = execution.tensor("src").kind == _GROUPED
    if grouped:
        knobs["grouped"] = _even_groups(execution)
    if execution.bias is not None:
        mask = None if grouped else _MASK.search(execution.bias.flags)
        knobs |= {"bia-dt": execution.bias.dtype} | ({"bia_mask": mask[1]} if mask else {})
    return Matmul.of, _former_product(execution), knobs


def _even_groups(execution: _Execution) -> str:
    """Return groups of nearly equal sizes as `--grouped` has them: a log omits the sizes, which a launch reads."""
    tag = execution.tensor("src").tag
    match = re.fullmatch("([01]):([1-9][0-9]{0,5})", tag)
    sizes = re.match("([0-9]{1,10})x([0-9]{1,10}):", execution.descriptor)
    if match is None or sizes is None:
        raise Unsupported(f"groups {tag[:40]!r} of {execution.descriptor[:40]} in oneDNN's log", rule="grouped-gemm")
    total, count = int(sizes[int(match[1]) + 1]), int(match[2])
    ends = [n * total // count for n in range(count + 1)]
    return f"{tag}:{'+'.join(str(end - begin) for begin, end in pairwise(ends))}"


def _former_product(execution: _Execution) -> str:
    """The sizes of a product, which were `[bB]mMnNkK` before oneDNN 2.1."""
    if not re.fullmatch(r"(b[0-9]+)?m[0-9]+n[0-9]+k[0-9]+", execution.descriptor):
        return execution.descriptor
    b, m, n, k = (execution.sizes.get(key, 0) for key in "bmnk")
    if b and len(execution.tensor("dst").tag) > 3:
        given = f"given {execution.descriptor} of tensors of more than 3 dimensions"
        raise Unsupported(f"{given}, wanted the sizes of each, in oneDNN's log", rule="verbose-version")
    batch = f"{b}x" if b else ""
    return f"{batch}{m}x{k}:{batch}{k}x{n}"


_READERS: Mapping[str, Callable[[_Execution], _Request]] = {
    "convolution": _conv,
    "deconvolution": _conv,
    "inner_product": _conv,
    "matmul": _matmul,
}
