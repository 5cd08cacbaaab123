"""benchdnn's options, one row each: its drivers, grammar and default, and the rule that refuses other values.

A driver line is `{--option=value | --option value} descriptor`; an empty value is the default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, NoReturn

from convgen.ir.caret import PointedError
from convgen.ir.error import Unsupported, UserError, meant, named
from convgen.ir.record import frozen
from convgen.problem import attributes, grammar, post_ops, scales, zero_points

CONV, DECONV, MATMUL, IP = "conv", "deconv", "matmul", "ip"
_WINDOWS = (CONV, DECONV)
DRIVERS = (CONV, DECONV, MATMUL, IP)

#: benchdnn's other drivers, whose problems convgen does not generate
OTHER_DRIVERS = (
    *("binary", "bnorm", "brgemm", "concat", "eltwise", "gnorm", "graph", "lnorm", "lrn", "pool"),
    *("prelu", "reduction", "reorder", "resampling", "rnn", "sdpa", "self", "shuffle", "softmax", "sum", "zeropad"),
)


@frozen
class Option:
    """One option of benchdnn, with its grammar and the values that convgen generates."""

    name: str
    default: str
    read: Callable[[str], Any]  #: returns the value of a text, or raises PointedError
    help: str
    drivers: tuple[str, ...] = DRIVERS
    #: name of the rule that refuses values, or a function from a text to it ("" if it is generated); "": refuses none
    rule: str | Callable[[str], str] = ""
    generated: Callable[[Any], bool] | None = None  #: with a rule's name: values not refused; None: the default alone
    beside: str = ""  #: an option without which this one has no meaning
    aliases: tuple[str, ...] = ()
    runs: bool = False  #: whether it only controls how benchdnn runs
    idle: bool = False  #: whether it has no effect on code

    @property
    def is_useful(self) -> bool:
        """Whether any value other than the default changes the generated code."""
        return not self.idle and (not isinstance(self.rule, str) or not self.rule or self.generated is not None)

    @property
    def keyword(self) -> str:
        """Its name as an argument of Python."""
        return self.name.replace("-", "_")

    def value(self, text: str) -> Any:
        """The value of a text; an empty one is the default. Raises OptionError."""
        return _value(self, text)

    def is_generated(self, value: Any) -> bool:
        """Whether convgen generates code for a value."""
        if not self.rule:
            return True
        if callable(self.rule):
            return not self.rule(value)
        return value == self.value("") if self.generated is None else self.generated(value)

    def refuse(self, text: str) -> NoReturn:
        """Raise Unsupported for a value that is not generated."""
        rule = self.rule if isinstance(self.rule, str) else self.rule(text)
        given = text if len(text) <= 60 else f"{text[:57]}..."
        wanted = self.default or "none"
        raise Unsupported(f"given {self.name} {given}, wanted {wanted}: other values are not generated yet", rule=rule)


class OptionError(PointedError):
    """A wrong character in the value of an option, which is an argument if it was given as one."""

    def __init__(self, message: str, option: str, text: str, column: int, *, argument: bool = False) -> None:
        super().__init__(f"{message} in {option if argument else f'--{option}'}", text, column)
        self.bare, self.option = message, option

    @property
    def flag(self) -> str:
        """The option as a driver line has it."""
        return f"--{self.option.split()[0]}"

    def of_argument(self) -> OptionError:
        """Return the error with its text about an argument instead of an option."""
        return OptionError(self.bare, self.option.replace("-", "_"), self.text, self.column, argument=True)


class Misfit(OptionError, Unsupported):
    """The value of an option is sound, but does not suit the problem."""

    def __init__(self, message: str, option: str, text: str, column: int, *, rule: str, argument: bool = False) -> None:
        super().__init__(message, option, text, column, argument=argument)
        self.rule = rule

    def of_argument(self) -> Misfit:
        return Misfit(self.bare, self.option, self.text, self.column, rule=self.rule, argument=True)


@lru_cache(maxsize=2**12)
def _value(option: Option, text: str) -> Any:
    try:
        return option.read(text or option.default)
    except PointedError as error:
        raise OptionError(error.message, option.name, error.text, error.column) from None


def _one_of(*names: str) -> Callable[[str], str]:
    return lambda text: grammar.choose(text, names)


def _flag(text: str) -> bool:
    return grammar.FLAGS[grammar.choose(text, tuple(grammar.FLAGS))]


def _pattern(pattern: str, wanted: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def read(text: str) -> str:
        if not compiled.fullmatch(text):
            raise PointedError(f"given {text[:40]!r}, wanted {wanted}", text, 0)
        return text

    return read


def _bias_type(text: str) -> str:
    return "undef" if text in ("undef", "dnnl_data_type_undef") else grammar.parse_type(text, text, 0)


def _accumulation(text: str) -> str:
    """Return the mode in which products are summed; `any` permits what `relaxed` does."""
    mode = grammar.choose(text, (*_ACCUMULATIONS, "any", "f32", "s32", "f16"))
    return "relaxed" if mode == "any" else mode


_ACCUMULATIONS = ("strict", "relaxed")  #: modes of summing that are generated
_whole = _pattern("[0-9]{1,18}", "a number from 0")
_real = _pattern(r"[0-9.]{1,18}([eE][+-]?[0-9]{1,3})?", "a number")
_threads = _pattern("(auto|[0-9]{1,9})(:(auto|[0-9]{1,9})){0,2}", "auto or numbers such as 4:0:1")

_ALGORITHMS = tuple(
    f"{prefix}{name}" for prefix in ("", "convolution_", "deconvolution_") for name in ("direct", "wino", "auto")
)

#: options that describe a problem, in the order of benchdnn's product
KNOBS = (
    Option(
        "dir",
        "FWD_B",
        _one_of("FWD_B", "FWD_D", "FWD_I", "BWD_D", "BWD_W", "BWD_WB"),
        "FWD_B (default), FWD_D, FWD_I, BWD_D, BWD_W or BWD_WB",
        (*_WINDOWS, IP),
    ),
    Option("dt", "f32", grammar.parse_types, "one type, or src:wei:dst (default f32)"),
    Option(
        "bia-dt",
        "undef",
        _bias_type,
        "type of the bias of FWD_D, FWD_I and BWD_W (default undef: none)",
        (*_WINDOWS, IP),
    ),
    Option("stag", "any", str, "layout of the source or first matrix (default any)"),
    Option("wtag", "any", str, "layout of the weights or second matrix (default any)"),
    Option("dtag", "any", str, "layout of the destination or result (default any)"),
    Option("encoding", "", attributes.encoding, "sparse encodings src:wei:dst", (MATMUL,), "sparse"),
    Option(
        "grouped",
        "",
        attributes.grouped,
        "groups of rows (DIM 0) or of terms (1) of a product, DIM:COUNT:SIZES[:LARGEST], such as 0:3:8+0+24",
        (MATMUL,),
    ),
    Option(
        "routing",
        "",
        attributes.routing,
        "rows by number of a product in groups of rows: gather:TOKENS[:TOPK] of src, scatter:TOKENS[:TOPK] of dst",
        (MATMUL,),
    ),
    Option("strides", "", grammar.parse_strides, "strides in place of tags: 3200x1x160x16::12800x1x640x64"),
    Option(
        "runtime_dims_masks",
        "",
        attributes.masks,
        "dimensions known only at run time, up to the problem's, SRC:WEI; of a convolution 1, the minibatch",
        (*_WINDOWS, MATMUL),
        rule="runtime-sizes",
        generated=lambda masks: True,  # of a product's sizes and the minibatch; the problem says so
    ),
    Option("alg", "direct", _one_of(*_ALGORITHMS), "direct, wino or auto: the result is the same", _WINDOWS, idle=True),
    Option("attr-scales", "", attributes.scales, "ARG:MASK[:SCALE[:TYPE[:GROUPS]]][+...]", rule=scales.refused),
    Option(
        "attr-zero-points",
        "",
        attributes.zero_points,
        "ARG:MASK[:VALUE[:TYPE[:GROUPS]]][+...]",
        rule=zero_points.refused,
    ),
    Option(
        "attr-precomputed-reductions",
        "",
        attributes.precomputed_reductions,
        "src:MASK:TYPE:GROUPS: sums of src, which convgen computes itself: no effect",
        rule=attributes.refused_reductions,
        idle=True,
    ),
    Option(
        "attr-post-ops",
        "",
        attributes.post_ops,
        "sum, element-wise, binary, prelu or dw, joined by +",
        (CONV,),
        rule=post_ops.refused_beside("glu"),
    ),
    Option(
        "attr-post-ops",
        "",
        attributes.post_ops,
        "sum, element-wise, binary, prelu or glu, joined by +",
        (MATMUL,),
        rule=post_ops.refused_beside("dw"),
    ),
    Option(
        "attr-post-ops",
        "",
        attributes.post_ops,
        "sum, element-wise, binary or prelu, joined by +",
        (DECONV, IP),
        rule=post_ops.refused_beside("dw", "glu"),
    ),
    Option(
        "attr-scratchpad", "library", _one_of("library", "user"), "library or user: the result is the same", idle=True
    ),
    Option(
        "attr-fpmath",
        "strict",
        attributes.fpmath,
        "strict (default), tf32, bf16, f16 or any; with :true also for weights that are integers",
    ),
    Option(
        "attr-acc-mode",
        "strict",
        _accumulation,
        "strict (default); relaxed or any: sums may have fewer bits than f32 where that is faster",
        rule="acc-mode",
        generated=lambda mode: mode in _ACCUMULATIONS,
    ),
    Option("attr-deterministic", "false", _flag, "the same bits in every run (default false)"),
    Option("attr-dropout", "", attributes.dropout, "P[:SEED[:TAG[:OFFSET[:HOST]]]]", rule="dropout"),
    Option(
        "attr-rounding-mode", "", attributes.rounding_mode, "ARG:environment|stochastic[:SEED]", rule="rounding-mode"
    ),
    Option("ctx-init", "auto", _threads, "threads of benchdnn: no effect", idle=True),
    Option("ctx-exe", "auto", _threads, "threads of benchdnn: no effect", idle=True),
    Option("bia-dt", "undef", _bias_type, "type of a bias (default undef: none)", (MATMUL,), aliases=("bia_dt",)),
    Option("bia_mask", "2", _whole, "dimensions along which a bias differs", (MATMUL,), beside="bia-dt"),
    Option("mb", "0", grammar.parse_minibatch, "minibatch; 0 (default) keeps the descriptor's", (*_WINDOWS, IP)),
    Option(
        "cfg",
        "f32",
        _pattern(r"(?:(?:bf16|f16|f32|f64|s32|s8|u8){1,3})(?:_wino)?", "types such as u8s8f32"),
        "benchdnn's former --dt",
        _WINDOWS,
        "cfg",
    ),
)

_RUNS: dict[Callable[[str], Any], dict[str, str]] = {
    _flag: {
        **dict.fromkeys(("attr-same-pd-check", "canonical", "check-ref-impl"), "false"),
        **dict.fromkeys(("allow-enum-tags-only", "fast-ref", "mem-check"), "true"),
    },
    _whole: {"fix-times-per-prb": "0", "num-streams": "1", "repeats-per-prb": "1", "verbose": "0"},
    _real: {"max-ms-per-prb": "3000"},
    str: dict.fromkeys(
        ("buffer-prefix", "impl", "skip-impl", "global-impl", "global-skip-impl", "perf-template", "summary"), ""
    ),
    _pattern(r"(none|wei|all|custom)(\+tlb(:[0-9.]+[gGmM])?)?", "none, wei, all or custom"): {"cold-cache": "none"},
    _one_of("none", "no_hints", "prefer_ymm"): {"cpu-isa-hints": "none"},
    _pattern("(cpu|gpu)(:[0-9]{1,4})?", "cpu or gpu[:INDEX]"): {"engine": "cpu"},
    _one_of("direct", "graph", "native_graph"): {"execution-mode": "direct"},
    _one_of("usm", "buffer", "usm_device", "usm_shared"): {"memory-kind": "usm"},
    _pattern("[LIRCPFBSlircpfbs]{1,4}", "L, I, R, C, P, F, B or S"): {"mode": "C"},
    _pattern("[PMpm]*", "P or M"): {"mode-modifier": ""},
    _one_of("def", "in_order", "out_of_order"): {"stream-kind": "def"},
}

#: options on how benchdnn runs and what it prints, without effect on convgen
RUN_OPTIONS = tuple(
    Option(name, default, read, "", runs=True) for read, names in _RUNS.items() for name, default in names.items()
)


def _spelled(driver: str) -> dict[str, Option]:
    rows = [option for option in (*KNOBS, *RUN_OPTIONS) if driver in option.drivers]
    return {name: option for option in rows for name in (option.name, *option.aliases)}


#: driver -> every option by each of its spellings
SPELLED = {driver: _spelled(driver) for driver in DRIVERS}

#: driver -> its knobs in the order of the product
KNOBS_OF = {driver: tuple(option for option in KNOBS if driver in option.drivers) for driver in DRIVERS}


def find(word: str, driver: str, others: Collection[str] = ()) -> Option:
    """The option that a word `--option[=value]` names. Raises UserError, which knows of `others`, too."""
    name = word.removeprefix("--").partition("=")[0]
    option = SPELLED[driver].get(name) if word.startswith("--") else None
    if option is None:
        known = [*(f"--{option.name}" for option in KNOBS_OF[driver]), *(f"--{other}" for other in others)]
        raise UserError(f"given the option {word!r}{meant(name, known)}, wanted one of {' '.join(known)}")
    return option


def split_line(line: str, driver: str) -> tuple[dict[str, str], str]:
    """A driver line as the texts of its options and its descriptor."""
    texts: dict[str, str] = {}
    descriptors: list[str] = []
    words = iter(line.split())
    for word in words:
        if not word.startswith("--"):
            descriptors.append(word)
        elif word == "--reset":
            texts = {}
        elif word != f"--{driver}":
            _, equals, text = word.partition("=")
            value = text if equals else next(words, None)
            if value is None:
                raise UserError(f"given {word} without a value, wanted one")
            texts[find(word, driver).name] = value
    if len(descriptors) != 1:
        raise UserError(f"given {len(descriptors)} descriptors in {line!r}, wanted one")
    return texts, descriptors[0]


@frozen
class Knobs:
    """The values of all knobs of a driver; `others` are the texts of those that are not generated, by name."""

    values: Mapping[str, Any]
    others: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def read(driver: str, texts: Mapping[str, str]) -> Knobs:
    """The values of the knobs that were given, and the others' defaults. Raises OptionError."""
    values = dict(_DEFAULTS[driver])
    for name, text in texts.items():
        values[name] = SPELLED[driver][name].value(text)
    others = tuple(
        (option.name, texts[option.name])
        for option in _RULED[driver]
        if option.name in texts and not option.is_generated(values[option.name])
    )
    return Knobs(values, others)


def of_arguments(driver: str, arguments: Mapping[str, object]) -> dict[str, str]:
    """The texts of options that were given as arguments of Python. Raises UserError for one that there is not."""
    known = {option.keyword: option.name for option in KNOBS_OF[driver]}
    for name in arguments:
        if name not in known:
            raise UserError(f"given the argument {named(name, known)}, wanted one of {', '.join(known)}")
    return {known[name]: str(value) for name, value in arguments.items()}


_DEFAULTS = {driver: {option.name: option.value("") for option in knobs} for driver, knobs in KNOBS_OF.items()}
_RULED = {driver: tuple(option for option in knobs if option.rule) for driver, knobs in KNOBS_OF.items()}
