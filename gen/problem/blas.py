"""Log lines of rocBLAS and hipBLASLt, and command lines of `rocblas-bench` and `hipblaslt-bench`, as matrix products.

    hipblaslt-bench --api_method c -m 1024 -n 512 -k 64 --lda 64 --ldb 64 --transA T --transB N --a_type f16_r ...
    ./rocblas-bench -f gemm_ex --transposeA N --transposeB N -m 128 -n 64 -k 32 --alpha 1 --beta 0 --a_type f16_r ...

rocBLAS' trace, of which each line is a call (rocBLAS, library/src/blas_ex and blas3), and its profile in YAML:

    rocblas_gemm_ex,T,N,256,64,128,1,0x7f0000,f16_r,128,0x7f1000,f16_r,128,0,0x7f2000,f32_r,256,...
    - { rocblas_function: "rocblas_gemm_ex", transA: N, transB: T, M: 256, N: 64, K: 128, alpha: 1, a_type: f16_r, ...

These libraries store matrices column by column: D[m, n] = alpha * op(A) * op(B) + beta * C. convgen's product exchanges
rows and columns: dst[n, m] = src[n, k] * wei[k, m], with B as src and A as weights, uses identical memory. Flags that
tell how the product is measured have no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import isfinite

from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported
from convgen.ir.record import frozen
from convgen.problem import attributes, shell
from convgen.problem.matmul import Matmul

_PROGRAM = re.compile(r"(?:\S*/)?(?:hipblaslt|rocblas)-bench(?:\.exe)?")
_TYPES = {
    "f16_r": "f16",
    "bf16_r": "bf16",
    "f32_r": "f32",
    "f64_r": "f64",
    "i8_r": "s8",
    "u8_r": "u8",
    "i32_r": "s32",
    "f8_r": "f8_e4m3",
    "bf8_r": "f8_e5m2",
    "f8_fnuz_r": "f8_e4m3fnuz",
    "bf8_fnuz_r": "f8_e5m2fnuz",
}
_TYPES |= {"s": "f32", "d": "f64", "h": "f16"}  #: short names of --precision
_SUMS = {"f32_r": "f32", "c_f32_r": "f32", "f64_r": "f64", "i32_r": "s32", "s": "f32", "d": "f64"}
_ALIASES = {"transposeA": "transA", "transposeB": "transB", "precision": "r", "function": "f"}
_ALIASES |= {"sizem": "m", "sizen": "n", "sizek": "k", "M": "m", "N": "n", "K": "k", "rocblas_function": "f"}
_FUNCTIONS = ("gemm", "gemm_ex", "gemm_strided_batched", "gemm_strided_batched_ex", "matmul")
_SUBSTANTIAL = ("m", "n", "k", "f", "r", "a_type", "b_type", "yaml")  #: a command without any of these measures nothing

#: the letter of a function -> the type of its matrices
_LETTERS = {"s": "f32_r", "d": "f64_r", "h": "f16_r", "c": "f32_c", "z": "f64_c"}
_CALL = re.compile(r"(?<![\w/])rocblas_(?P<letter>[sdhcz](?=gemm))?(?P<function>\w+?)(?P<wide>_64)?,(?=\S)")
_HOUSEKEEPING = re.compile(r"rocblas_(create|destroy|set|get|initialize|start|stop|is|query|device|pointer)_")
_PROFILE = re.compile(r"\{[^{}]*?\b(?:rocblas_)?function\s*:[^{}]*\}")
_PAIR = re.compile(r"""(\w+)\s*:\s*("[^"]*"|'[^']*'|[^,{}"']*)""")
#: how many values a scale has, by the value of its flag (hipBLASLt, clients)
_SCALES = {"": "scalar", "1": "scalar", "s": "scalar", "true": "scalar", "2": "vector", "v": "vector"}
_OPERATIONS = {"111": "N", "112": "T", "113": "C"}  #: rocblas_operation
_ACTIVATIONS = {"none": "", "relu": "relu", "gelu": "gelu_tanh", "swish": "swish:1"}


@frozen
class _Flags:
    """The flags of a line: text and column of each value by the flag's name; a switch has no text."""

    line: str
    values: Mapping[str, tuple[str, int]]

    @classmethod
    def of(cls, line: str) -> _Flags:
        """Read the flags of a command line, of a call in a trace or of an entry of a profile."""
        if _PROFILE.search(line):
            return cls._of_profile(line)
        return cls._of_command(line) if _command(line) else cls._of_call(line)

    @classmethod
    def _of_command(cls, line: str) -> _Flags:
        values, name = dict[str, tuple[str, int]](), ""
        for column, word in _command(line):
            if glued := re.fullmatch(r"-([mnk])([0-9]+)", word):
                values[glued[1]], name = (glued[2], column + 2), ""
            elif re.fullmatch(r"-{1,2}[A-Za-z]\w*(=.*)?", word):
                spelled, equals, text = word.lstrip("-").partition("=")
                name = _ALIASES.get(spelled, spelled)
                values[name] = text, column + len(word) - len(text)
                name = "" if equals else name
            elif name:
                values[name], name = (word, column), ""
            else:
                raise PointedError(f"given {word[:40]!r}, wanted a flag such as -m or --a_type", line, column)
        return cls(line, values)

    @classmethod
    def _of_call(cls, line: str) -> _Flags:
        """The arguments of a call by their places."""
        call = _CALL.search(line)
        assert call is not None, line
        values = {"f": (call["function"], call.start())}
        if call["function"] not in _FUNCTIONS:
            return cls(line, values)
        is_typed, is_strided = call["function"].endswith("_ex"), "strided" in call["function"]
        names = ["transA", "transB", "m", "n", "k", "alpha"]
        for matrix in "abcd" if is_typed else "abc":
            names += ["beta"] if matrix == "c" else []
            names += ["", *([f"{matrix}_type"] if is_typed else []), f"ld{matrix}"]
            names += [f"stride_{matrix}"] if is_strided else []
        names += ["batch_count"] if is_strided else []
        names += ["compute_type"] if is_typed else []
        column, arguments = call.end(), line[call.end() :].split(",")
        if len(arguments) < len(names):
            raise PointedError(f"given {len(arguments)} arguments, wanted {len(names)}", line, len(line))
        for name, text in zip(names, arguments):
            if name:
                values[name] = _OPERATIONS.get(text.strip(), text.strip()), column
            column += len(text) + 1
        if not is_typed:
            values["r"] = _LETTERS.get(call["letter"] or "", "f32_r"), call.start()
        return cls(line, values)

    @classmethod
    def _of_profile(cls, line: str) -> _Flags:
        """The pairs of an entry."""
        entry = _PROFILE.search(line)
        assert entry is not None, line
        values = dict[str, tuple[str, int]]()
        for pair in _PAIR.finditer(entry[0]):
            name = _ALIASES.get(pair[1], pair[1]) if pair[1] != "function" else "f"
            values[name] = pair[2].strip().strip("\"'"), entry.start() + pair.start(2)
        function = re.fullmatch(r"(?:rocblas_)?([sdhcz](?=gemm))?(\w+?)(_64)?", values["f"][0])
        if function is not None:
            values["f"] = function[2], values["f"][1]
            if function[1]:
                values["r"] = _LETTERS[function[1]], values["f"][1]
        return cls(line, values)

    def has(self, name: str) -> bool:
        """Whether a switch is set."""
        text = self.values.get(name, ("0", 0))[0]
        return text not in ("0", "false", "none")

    def text(self, name: str, default: str | None = None) -> str:
        if name not in self.values and default is None:
            flag = f"-{name}" if len(name) == 1 else f"--{name}"
            raise PointedError(f"given no {flag}, wanted one", self.line, len(self.line))
        return self.values.get(name, (default or "", 0))[0]

    def one_of(self, name: str, words: Mapping[str, str], default: str | None = None) -> str:
        text = self.text(name, default)
        if text not in words:
            column = self.values.get(name, ("", 0))[1]
            raise PointedError(f"given {text!r} at --{name}, wanted one of {', '.join(words)}", self.line, column)
        return words[text]

    def whole(self, name: str, default: int | None = None) -> int:
        text = self.text(name, None if default is None else str(default))
        if not re.fullmatch("[0-9]{1,18}", text):
            raise PointedError(f"given {text!r} at {name}, wanted a number", self.line, self.values[name][1])
        return int(text)

    def real(self, name: str, default: float) -> float:
        text = self.text(name, str(default))
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not isfinite(number):
            raise PointedError(f"given {text!r} at --{name}, wanted a number", self.line, self.values[name][1])
        return number


def is_program(word: str) -> bool:
    """Whether a word of a command line calls one of the two programs."""
    return _PROGRAM.fullmatch(shell.called(word)) is not None


def is_line(text: str) -> bool:
    """Whether a text is a command line of rocblas-bench or hipblaslt-bench, perhaps after the prefix of a log.

    A sentence that names a program is no command line, nor is a command that measures nothing.
    """
    words = [word for _, word in _command(text)]
    names = [re.split(r"=|(?<=^[mnk])(?=[0-9])", word.lstrip("-"))[0] for word in words if word.startswith("-")]
    has_sizes = any(_ALIASES.get(name, name) in _SUBSTANTIAL for name in names)
    return has_sizes and not _has_prose(words)


def find(text: str) -> str | None:
    """Return the request within a text: a command, a call in a trace, or an entry of a profile; None without one."""
    if is_line(text):
        return text
    entry = _PROFILE.search(text)
    if entry is not None and ("rocblas_function" in entry[0] or re.search(r"\bM\s*:", entry[0])):
        return entry[0]
    call = _CALL.search(text)
    if call is None or _HOUSEKEEPING.match(text, call.start()) or text[call.end() :].count(",") < 2:
        return None
    return text[call.start() :].rstrip("\"'`")


def _command(text: str) -> list[shell.Word]:
    return shell.words(text, is_program)


def _has_prose(words: Sequence[str]) -> bool:
    """Whether a word that is neither a flag nor a flag's value looks like prose."""
    values = 1
    for word in words:
        values = 0 if re.match("-{1,2}[A-Za-z]", word) else values + 1
        if values > 1 and shell.is_prose(word):
            return True
    return False


def problems(line: str, knobs: Mapping[str, str]) -> tuple[Matmul, ...]:
    """Return the matrix product of a line; `knobs` override its own. Raises UserError, Unsupported."""
    flags = _Flags.of(line)
    _check(flags)
    m, n, k, batch = flags.whole("m"), flags.whole("n"), flags.whole("k"), flags.whole("batch_count", 1)
    transposed = {name: flags.one_of(f"trans{name}", {"N": "", "T": "T", "C": "T"}, "N") for name in "AB"}
    wei = _matrix(flags, "a", (k, m), bool(transposed["A"]), batch)
    src = _matrix(flags, "b", (n, k), bool(transposed["B"]), batch)
    dst = _matrix(flags, "d" if "ldd" in flags.values else "c", (n, m), False, batch)
    sizes = ["x".join(map(str, (*matrix.batch, *matrix.sizes))) for matrix in (src, wei)]
    knobs_of_line = {
        "dt": ":".join(_type(flags, name) for name in "bad"),
        "strides": ":".join("x".join(map(str, matrix.strides)) for matrix in (src, wei, dst)),
        "attr-post-ops": _post_ops(flags),
    }
    knobs_of_line |= attributes.knob("attr-scales", _scales(flags, 2 + (batch > 1)))
    if flags.has("bias_vector"):
        knobs_of_line |= {"bia-dt": _type(flags, "bias"), "bia_mask": str(1 << (1 + (batch > 1)))}
    tags = [matrix.tag for matrix in (src, wei, dst)]
    if all(tags):
        del knobs_of_line["strides"]
        knobs_of_line |= {f"{name}tag": tag for name, tag in zip("swd", tags)}
    return (Matmul.of(":".join(sizes), {name: text for name, text in knobs_of_line.items() if text} | dict(knobs)),)


@frozen
class _Matrix:
    """A matrix in convgen's row-major terms, with its strides in memory."""

    batch: tuple[int, ...]
    sizes: tuple[int, int]
    strides: tuple[int, ...]
    tag: str  #: empty where there are gaps, or one matrix for a whole batch


def _matrix(flags: _Flags, name: str, sizes: tuple[int, int], transposed: bool, batch: int) -> _Matrix:
    """Return the matrix of a letter: untransposed, our rows are their columns, a leading dimension apart."""
    contiguous = sizes[0] if transposed else sizes[1]
    leading = flags.whole(f"ld{name}", contiguous)
    if leading < contiguous:
        at = flags.values[f"ld{name}"][1]
        raise PointedError(f"given --ld{name} {leading}, wanted at least {contiguous}", flags.line, at)
    strides: tuple[int, ...] = (1, leading) if transposed else (leading, 1)
    inner, packed = "ba" if transposed else "ab", leading == contiguous
    if batch == 1:
        return _Matrix((), sizes, strides, inner if packed else "")
    dense = leading * (sizes[1] if transposed else sizes[0])
    between = flags.whole(f"stride_{name}", dense)
    count = batch if between else 1
    packed &= between == sizes[0] * sizes[1]
    tag = "acb" if transposed else "abc"
    return _Matrix((count,), sizes, (between or dense, *strides), tag if packed else "")


def _type(flags: _Flags, name: str) -> str:
    """Return the type of the matrix of a letter, from its own flag or from the flag for all matrices."""
    if name == "d" and "d_type" not in flags.values and "c_type" in flags.values:
        name = "c"
    flag = f"{name}_type"
    given = flags.text(flag, flags.text("r", ""))
    if given not in _TYPES and re.fullmatch(r"[a-z]{1,2}[0-9]*[a-z_0-9]*_[rcb]|[cz]", given):
        raise Unsupported(f"--{flag} {given[:40]}, wanted one of {', '.join(_TYPES)}", rule="blas-type")
    return flags.one_of(flag if flag in flags.values or "r" not in flags.values else "r", _TYPES)


def _post_ops(flags: _Flags) -> str:
    """Return the post-ops of alpha, beta and an activation; none for alpha 1, beta 0 without activation."""
    alpha, beta = flags.real("alpha", 1), flags.real("beta", 0)
    if alpha != 1 and flags.has("bias_vector"):
        raise Unsupported(f"a bias after alpha of {alpha:g}: biases are added to the sums", rule="blas-alpha")
    if beta and _type(flags, "c") != _type(flags, "d"):
        raise Unsupported(f"beta of {beta:g} with C of another type than D", rule="blas-beta")
    steps = [f"linear:{alpha:g}"] if alpha != 1 else []
    steps += [f"sum:{beta:g}" if beta != 1 else "sum"] if beta else []
    activation = flags.text("activation_type", "none")
    if activation not in _ACTIVATIONS:
        raise Unsupported(f"the activation {activation[:40]!r}", rule="blas-activation")
    return "+".join([*steps, *filter(None, [_ACTIVATIONS[activation]])])


def _scales(flags: _Flags, ndims: int) -> list[str]:
    """Return the scales of A, which becomes the weights, and of B: one value, or one per row of A or column of B."""
    entries = []
    for flag, role, dim in (("scaleB", "src", ndims - 2), ("scaleA", "wei", ndims - 1)):
        text = flags.text(flag, "0")
        if flags.has(flag) and text not in _SCALES:
            raise Unsupported(
                f"--{flag} {text[:40]}, wanted one of 0, {', '.join(filter(None, _SCALES))}", rule="blas-scale"
            )
        if flags.has(flag):
            entries.append(f"{role}:common:f32" if _SCALES[text] == "scalar" else f"{role}:{1 << dim}:f32")
    return entries


def _check(flags: _Flags) -> None:
    """Refuse a sound line whose product convgen does not generate. Raises Unsupported."""
    function = flags.text("f", "gemm")
    if function not in _FUNCTIONS:
        raise Unsupported(
            f"the function {function[:40]!r}, wanted one of {', '.join(_FUNCTIONS)}", rule="blas-function"
        )
    for name in ("grouped_gemm", "use_e", "gradient", "swizzleA", "swizzleB", "amaxD", "amaxScaleA", "amaxScaleB"):
        if flags.has(name):
            raise Unsupported(f"--{name} of hipblaslt-bench", rule="blas-option")
    if "yaml" in flags.values:
        given = f"--yaml {flags.text('yaml')[:40]}"
        raise Unsupported(f"{given}, wanted its lines: give the file itself", rule="blas-option")
    for name in ("scaleC", "scaleD", "scaleE", "scaleAlpha_vector"):
        if flags.has(name):
            raise Unsupported(f"--{name} of hipblaslt-bench", rule="blas-scale")
    sums = flags.text("compute_type", "")
    wide = _TYPES.get(flags.text("a_type", flags.text("r", "f32_r")))
    if wide is None:
        raise Unsupported("matrices of complex numbers, or of a type that is not known", rule="blas-type")
    wanted = {"f64": "f64", "s8": "s32", "u8": "s32"}.get(wide, "f32")
    if sums and _SUMS.get(sums) != wanted:
        raise Unsupported(f"--compute_type {sums[:40]}, wanted sums of {wide} in {wanted}", rule="blas-compute-type")
