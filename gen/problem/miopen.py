"""MIOpenDriver lines: `./bin/MIOpenDriver convfp16 -n 128 -c 64 ... -F 1` as the convolutions that they measure.

IREE's boo driver takes such lines without the program's name. `CBAInfer` is a convolution with bias and activation.

Every flag takes a value, `-x V`, `--name V` or `--name=V`; the last of repeated flags wins, and a flag that the problem
does not use may have any value. Layouts and types become knobs of a convolution, so that each problem prints as a
benchdnn line. A pipe or redirection ends the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported, meant, named
from convgen.ir.record import evolve, frozen
from convgen.problem import grammar, shell
from convgen.problem.conv import Axis, Conv
from convgen.problem.deconv import Deconv


@frozen
class Flag:
    """One flag: its value is a number from `least` to `most`, or one of `words`; without either, any value is ignored.

    Values outside `only`, if it is set, are sound but not generated; `rule` names that limit.
    """

    short: str
    name: str
    default: str
    least: int | None = None
    most: int = grammar.LIMIT - 1
    words: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    rule: str = ""


#: layout -> the letters of its dimensions, outermost first, by spatial dimensions
_LAYOUTS = {2: {"NCHW": "nchw", "NHWC": "nhwc", "CHWN": "chwn"}, 3: {"NCDHW": "ncdhw", "NDHWC": "ndhwc"}}
_LAYOUT_NAMES = tuple(name for names in _LAYOUTS.values() for name in names)

_TENSORS = ("in", "out", "wei")

FLAGS = (
    Flag("F", "forw", "0", least=0, most=7),
    Flag("n", "batchsize", "100", least=0),
    Flag("c", "in_channels", "3", least=1),
    Flag("!", "in_d", "32", least=1),
    Flag("H", "in_h", "32", least=1),
    Flag("W", "in_w", "32", least=1),
    Flag("k", "out_channels", "32", least=1),
    Flag("@", "fil_d", "3", least=1),
    Flag("y", "fil_h", "3", least=1),
    Flag("x", "fil_w", "3", least=1),
    Flag("#", "conv_stride_d", "1", least=1),
    Flag("u", "conv_stride_h", "1", least=1),
    Flag("v", "conv_stride_w", "1", least=1),
    Flag("$", "pad_d", "0", least=0),
    Flag("p", "pad_h", "0", least=0),
    Flag("q", "pad_w", "0", least=0),
    Flag("^", "dilation_d", "1", least=1),
    Flag("l", "dilation_h", "1", least=1),
    Flag("j", "dilation_w", "1", least=1),
    Flag("g", "group_count", "1", least=1),
    Flag("_", "spatial_dim", "2", words=("2", "3")),
    Flag("m", "mode", "conv", words=("conv", "trans")),
    Flag("z", "pad_mode", "default", words=("same", "valid", "default")),
    Flag("r", "pad_val", "0", least=0, only=("0",), rule="pad-value"),
    Flag("I", "in_layout", "", words=_LAYOUT_NAMES),
    Flag("O", "out_layout", "", words=_LAYOUT_NAMES),
    Flag("f", "fil_layout", "", words=_LAYOUT_NAMES),
    Flag("Z", "tensor_vect", "0", words=("0", "1", "2"), only=("0",), rule="vectorised-layout"),
    Flag("L", "vector_length", "1", words=("1", "4", "8"), only=("1",), rule="vectorised-layout"),
    *(Flag(short, f"{name}_cast_type", "-1", only=("-1",), rule="cast") for short, name in zip("UTR", _TENSORS)),
    Flag("b", "bias", "0", words=("0", "1")),
    # of transposed convolutions only
    Flag("%", "trans_output_pad_d", "0", least=0),
    Flag("Y", "trans_output_pad_h", "0", least=0),
    Flag("X", "trans_output_pad_w", "0", least=0),
    # how MIOpen runs it, and on what data
    Flag("i", "iter", "10"),
    Flag("V", "verify", "1"),
    Flag("t", "time", "0"),
    Flag("w", "wall", "0"),
    Flag("s", "search", "0"),
    Flag("S", "solution", "-1"),
    Flag("P", "printconv", "1"),
    Flag("o", "dump_output", "0"),
    Flag("d", "in_data", ""),
    Flag("e", "weights", ""),
    Flag("a", "in_bias", ""),
    Flag("D", "dout_data", ""),
    Flag("C", "verification_cache", ""),
    Flag("G", "gpualloc", "0"),
)

#: names of very old versions
_ALIASES = {"conv_stride_0": "conv_stride_h", "conv_stride_1": "conv_stride_w"}

_FUSED = ("forw", "mode", "bias", "dout_data", "gpualloc", "in_data")  #: flags of conv that CBAInfer has not

#: those of CBAInfer (MIOpen, driver/CBAInferFusion_driver.hpp)
FUSION_FLAGS = (
    *(flag for flag in FLAGS if flag.name not in (*_FUSED, "batchsize", "in_d")),
    Flag("n", "batchsize", "32", least=0),
    Flag("!", "in_d", "1", least=1),
    Flag("J", "fusion_mode", "0", least=0, most=6),
    Flag("m", "activMode", "3", least=0, most=10),
    Flag("A", "alpha", "1"),
    Flag("B", "beta", "0"),
    Flag("G", "gamma", "1"),
    Flag("M", "bnMode", "0"),
    Flag("D", "dot_graph", ""),
)


def _spellings(flags: Sequence[Flag], **others: str) -> dict[str, Flag]:
    """Every spelling of flags; `others` are further short ones of some names."""
    spelled = {f"-{flag.short}": flag for flag in flags}
    spelled |= {f"{dashes}{flag.name}": flag for flag in flags for dashes in ("-", "--")}
    spelled |= {f"--{old}": spelled[f"--{new}"] for old, new in _ALIASES.items()}
    return spelled | {f"-{short}": spelled[f"--{name}"] for short, name in others.items()}


_SPELLED = _spellings(FLAGS)
_FUSION_SPELLED = _spellings(FUSION_FLAGS, F="fusion_mode")

#: fusion mode -> the steps after the convolution, of those that have no batch normalisation
_FUSIONS = {4: ("bias", "activation"), 5: ("activation",), 6: ("bias",)}

#: activation mode -> post-op, with A for alpha (miopenActivationMode_t)
_ACTIVATIONS = {0: "", 1: "logistic", 3: "relu", 4: "soft_relu:1", 5: "abs", 7: "clip:0:A", 8: "relu:A", 9: "elu:A"}

#: base argument -> types of source, weights and destination
_BASES = {
    "conv": "f32",
    "convfp16": "f16",
    "convbfp16": "bf16",
    "convint8": "s8:s8:s32",
    "convfp8": "f8_e4m3",
    "convbfp8": "f8_e5m2",
}

#: base argument of a fusion -> types
_FUSION_BASES = {"CBAInfer": "f32", "CBAInferfp16": "f16", "CBAInferbfp16": "bf16"}

BASES = _BASES | _FUSION_BASES  #: base argument -> types, of what is read

#: what MIOpenDriver measures besides, with the types after the name
_OTHERS = re.compile(
    r"(activ|adam|adamw|addlayernorm|argmax|argmin|avgpool|bnorm|cat|ctc|dropout|gemm|getitem|glu|groupnorm|kthvalue"
    r"|layernorm|lrn|mha|nllloss|pool|prelu|reduce|rnn|rnn_seq|rope|softmax|softmarginloss|sum|tensorop)"
    r"(fp16|bfp16|fp8|bfp8|fp64|int8)?"
)

_PROGRAM = re.compile(r"(?:\S*[/}])?(?:\$?MIOpenDriver|\$\{MIOpenDriver\}|iree-boo-driver|boo_driver\.py)(?:\.exe)?")


@frozen
class _Value:
    """The value of a flag, as it was given; `column` is None for a default."""

    flag: Flag
    text: str
    spelled: str = ""
    column: int | None = None

    @property
    def number(self) -> int:
        return int(self.text)


def is_program(word: str) -> bool:
    """Whether a word of a command line calls MIOpenDriver."""
    return _PROGRAM.fullmatch(shell.called(word)) is not None


def is_line(text: str) -> bool:
    """Whether a text is a MIOpenDriver line; the program may stand after variables or the prefix of a log.

    A sentence that names the program is none.
    """
    return bool(_command(text))


def find(text: str) -> str | None:
    """Return a text that is a MIOpenDriver line, whole: it has no prefix to cut; None for any other text."""
    return text if is_line(text) else None


def _command(text: str) -> list[shell.Word]:
    """The base argument and the words after it; none where a text calls no operator."""
    words_of_call = shell.words(text, is_program)
    if words_of_call:
        return words_of_call if _is_call([word for _, word in words_of_call]) else []
    words = [word for _, word in _without_program(text)]
    if len(words) < 3 or not _is_call(words):
        return []
    known = _SPELLED | _FUSION_SPELLED if words[0] in BASES else {}
    is_flag = words[1].partition("=")[0] in known if known else words[1].startswith("-")
    return _without_program(text) if is_flag else []


def _without_program(text: str) -> list[shell.Word]:
    """A base argument and the words after it, as IREE's driver has them."""
    for number, match in enumerate(re.finditer(r"\S+", text)):
        word = shell.called(match[0])
        other = _OTHERS.fullmatch(word)
        if _is_base(word) and (other is None or other[2] or not number):  # `sum` is a word like another
            column = match.start() + match[0].find(word)
            following = shell.words(text[match.start() :], word.__eq__)
            return [(column, word), *((match.start() + at, each) for at, each in following)]
    return []


def _is_base(word: str) -> bool:
    return word in _BASES or word in _FUSION_BASES or _OTHERS.fullmatch(word) is not None


def _is_call(words: Sequence[str]) -> bool:
    """Whether words after the program are an operator and flags, and no sentence."""
    base, *rest = words
    if not _is_base(base) and not shell.is_variable(base) and not (base.isidentifier() and rest and rest[0][:1] == "-"):
        return False
    flags = iter(rest)
    for word in flags:
        if word.startswith("-") and "=" not in word:
            next(flags, "")
        elif shell.is_prose(word):
            return False
    return True


def problems(line: str, knobs: Mapping[str, str] | None = None) -> tuple[Conv, ...]:
    """The convolutions of a line: forward, backward data, backward weights, as `-F` selects.

    `knobs` of `Conv.parse` win over what the line says. Raises UserError, or Unsupported for what is not generated.
    """
    words = shell.words(line, is_program) or _without_program(line)
    for _, word in words:
        if shell.is_variable(word):
            raise Unsupported(
                f"given {word}, wanted its value: no shell's variables are expanded", rule="shell-variable"
            )
    base, dtype = _base(line, words[:1])
    values = _values(line, words[1:], base in _FUSION_BASES)
    _check_consistent(line, values)
    knobs_of_line = {"dt": dtype} | _tags(line, values)
    if base in _FUSION_BASES:
        by_direction = [_fusion(values, dtype)]
    else:
        by_direction = [{"dir": name} for name in _directions(base, values)]
    kind = Deconv if _is_transposed(values) else Conv
    convolutions = [kind.of(_descriptor(values), own | knobs_of_line | dict(knobs or {})) for own in by_direction]
    _check_generated(values)
    return tuple(dict.fromkeys(convolutions))


def _base(line: str, words: Sequence[shell.Word]) -> tuple[str, str]:
    """The base argument, and the types that it names."""
    wanted = ", ".join(BASES)
    if not words:
        raise PointedError(f"given no base argument, wanted one of {wanted}", line, len(line))
    ((column, word),) = words
    if word not in BASES and (_OTHERS.fullmatch(word) or (word.isidentifier() and not meant(word, BASES))):
        raise Unsupported(
            f"given {word[:40]} of MIOpenDriver, wanted one of {wanted}: others are not generated", rule="driver"
        )
    if word not in BASES:
        raise PointedError(f"given the base argument {named(word, BASES)}, wanted one of {wanted}", line, column)
    return word, BASES[word]


def _fusion(values: Mapping[str, _Value], dtype: str) -> dict[str, str]:
    """The direction, the bias and the activation of a fusion."""
    mode = values["fusion_mode"]
    steps = _FUSIONS.get(mode.number)
    if steps is None:
        given = f"given fusion_mode {mode.number}, with batch normalisation"
        raise Unsupported(f"{given}, wanted one of {', '.join(map(str, _FUSIONS))}", rule="fusion")
    knobs = {"dir": "FWD_D"} | ({"bia-dt": dtype} if "bias" in steps else {})
    activation = values["activMode"].number if "activation" in steps else 0
    if activation not in _ACTIVATIONS:
        wanted = ", ".join(map(str, _ACTIVATIONS))
        raise Unsupported(f"given activMode {activation}, wanted one of {wanted}", rule="activation")
    post_op = _ACTIVATIONS[activation].replace("A", values["alpha"].text)
    return knobs | ({"attr-post-ops": post_op} if post_op else {})


def _values(line: str, words: Sequence[shell.Word], is_fusion: bool) -> dict[str, _Value]:
    """Return every flag's value by name. Raises PointedError for an unknown flag or a value that is not sound.

    Flags that the problem does not use have the value 1 and are not checked.
    """
    flags, known = (FUSION_FLAGS, _FUSION_SPELLED) if is_fusion else (FLAGS, _SPELLED)
    values = {flag.name: _Value(flag, flag.default) for flag in flags}
    rest = iter(words)
    for column, word in rest:
        spelled, equals, text = word.partition("=")
        flag = known.get(spelled)
        if flag is None:
            wanted = "a flag of MIOpenDriver conv such as -n or --in_h"
            raise PointedError(f"given {named(spelled, known)}, wanted {wanted}", line, column)
        at, text = (column + len(spelled) + 1, text) if equals else next(rest, (len(line), ""))
        if not text:
            raise PointedError(f"given {spelled} without a value, wanted one", line, at)
        if flag.name.endswith("_layout") and len(spelled) > 2:
            text = text.upper()
        values[flag.name] = _Value(flag, text, spelled, at)
    modes = (values[name].text for name in ("spatial_dim", "pad_mode", "mode") if name in values)
    unused = [name for mode in modes for name in _UNUSED.get(mode, ())]
    return {name: evolve(value, text="1" if name in unused else _value(line, value)) for name, value in values.items()}


_PADS = ("pad_d", "pad_h", "pad_w")

_TRANS_PADS = ("trans_output_pad_d", "trans_output_pad_h", "trans_output_pad_w")

#: a value of spatial_dim, pad_mode or mode -> the flags of which the problem then does not use any
_UNUSED = {
    "2": ("in_d", "fil_d", "conv_stride_d", "pad_d", "dilation_d", "trans_output_pad_d"),
    "conv": _TRANS_PADS,
    "same": _PADS,
    "valid": _PADS,
}


def _value(line: str, value: _Value) -> str:
    """The text of a value that is sound."""
    flag, text, spelled, at = value.flag, value.text, value.spelled, value.column or 0
    if flag.least is not None:
        if not (text.isascii() and text.isdigit() and len(text) < 19 and flag.least <= int(text) <= flag.most):
            wanted = f"a number from {flag.least} to {flag.most if flag.most < 100 else '2^31 - 1'}"
            raise PointedError(f"given {text[:20]!r} at {spelled}, wanted {wanted}", line, at)
        return str(int(text))
    if flag.words and text and text not in flag.words:
        wanted = f"one of {', '.join(flag.words)}"
        raise PointedError(f"given {named(text[:20], flag.words)} at {spelled}, wanted {wanted}", line, at)
    return text


def _check_generated(values: Mapping[str, _Value]) -> None:
    """Refuse requests that MIOpenDriver runs and convgen does not generate. Raises Unsupported."""
    for value in values.values():
        flag = value.flag
        if flag.only and value.text not in flag.only:
            given, wanted = f"{value.spelled} {value.text} ({flag.name})", f"{value.spelled} {flag.only[0]}"
            raise Unsupported(f"given {given}, wanted {wanted}: others are not generated yet", rule=flag.rule)


def _check_consistent(line: str, values: Mapping[str, _Value]) -> None:
    """Raise PointedError for flags that contradict each other."""
    groups = values["group_count"]
    for name in ("in_channels", "out_channels"):
        if values[name].number % groups.number:
            given = f"{values[name].text} {name} in {groups.text} groups"
            _refuse(f"given {given}, wanted a multiple of the groups", line, groups, values[name])
    if values["pad_mode"].text == "default":
        return
    axes = _axes(values)
    dense = all(values[f"dilation_{axis}"].number == 1 for axis in axes)
    if not dense and any(values[f"fil_{axis}"].number != 1 for axis in axes):
        mode = values["pad_mode"]
        _refuse(f"given pad_mode {mode.text} and a dilated filter, wanted dilations of 1", line, mode)


def _refuse(message: str, line: str, *values: _Value) -> NoReturn:
    """Raise PointedError, which points at the first of `values` that the line gives, else at its end."""
    column = next((value.column for value in values if value.column is not None), len(line))
    raise PointedError(message, line, column)


def _is_transposed(values: Mapping[str, _Value]) -> bool:
    """Whether the convolution is transposed; CBAInfer has no such mode."""
    return "mode" in values and values["mode"].text == "trans"


def _axes(values: Mapping[str, _Value]) -> str:
    return "dhw" if values["spatial_dim"].number == 3 else "hw"


def _directions(base: str, values: Mapping[str, _Value]) -> list[str]:
    """Return the directions that bits 1, 2 and 4 of `-F` select, all if none is set; 8-bit integers: forward alone."""
    mask = values["forw"].number or 7
    if base == "convint8":
        if not mask & 1:
            given = f"given convint8 and {values['forw'].spelled} {mask}, wanted a forward direction"
            raise Unsupported(f"{given}: MIOpenDriver has no other of 8-bit integers", rule="types")
        mask = 1
    names = ("FWD_B", "BWD_D", "BWD_WB") if values["bias"].number else ("FWD_D", "BWD_D", "BWD_W")
    return [name for bit, name in enumerate(names) if mask >> bit & 1]


def _tags(line: str, values: Mapping[str, _Value]) -> dict[str, str]:
    """The layouts as letter tags of source, weights and destination."""
    dims = values["spatial_dim"].number
    grouped = values["group_count"].number > 1
    tags = {}
    for knob, name in (("stag", "in_layout"), ("wtag", "fil_layout"), ("dtag", "out_layout")):
        value = values[name]
        layout = value.text or next(iter(_LAYOUTS[dims]))
        if layout not in _LAYOUTS[dims]:
            wanted = ", ".join(_LAYOUTS[dims])
            _refuse(f"given {layout} for {dims} spatial dimensions, wanted one of {wanted}", line, value)
        order = ["n", "c", *_axes(values)]
        letters = _LAYOUTS[dims][layout]
        if knob == "wtag" and _is_transposed(values):  # N counts the input channels, which are the second dim
            order[:2] = ["c", "n"]
        if knob == "wtag" and grouped:  # N counts the channels of all groups: group, then channel within it
            order.insert(0, "g")
            letters = letters.replace("n", "gn")
        tags[knob] = "".join("abcdef"[order.index(letter)] for letter in letters)
    return tags


def _descriptor(values: Mapping[str, _Value]) -> str:
    """The descriptor with every size; the output follows from the padding, which is symmetric."""
    groups = values["group_count"].number
    text = f"g{groups}" if groups > 1 else ""
    text += "".join(
        f"{key}{values[name].number}"
        for key, name in (("mb", "batchsize"), ("ic", "in_channels"), ("oc", "out_channels"))
    )
    for axis in _axes(values):
        i, k, s, d = (values[f"{name}_{axis}"].number for name in ("in", "fil", "conv_stride", "dilation"))
        p = _padding(values["pad_mode"].text, i, k, s, values[f"pad_{axis}"].number)
        text += f"i{axis}{i}k{axis}{k}s{axis}{s}p{axis}{p}d{axis}{d - 1}"
        if _is_transposed(values) and (more := values[f"trans_output_pad_{axis}"].number):
            text += f"o{axis}{Deconv.output_size(Axis(i, 0, k, s, p, d - 1)) + more}"
    return text


def _padding(mode: str, i: int, k: int, s: int, given: int) -> int:
    """The padding on either side of an axis of input `i`, kernel `k` and stride `s`."""
    if mode == "same":
        return max(k - (i % s or s), 0) // 2
    return 0 if mode == "valid" else given
