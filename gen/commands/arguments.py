"""Options that several commands share, and an argument parser with errors in convgen's form."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from convgen.backends import family as families
from convgen.default_target import DEFAULT_TARGET
from convgen.ir.error import UserError, meant, named

_COLUMNS = 80  #: width without a terminal
_MOST_OPTIONS = 10  #: options in a usage line

#: Positional argument in a usage line, by argparse's `nargs`.
_USAGE: dict[int | str | None, str] = {None: "{}", "?": "[{}]", "*": "[{} ...]"}

#: argparse's complaints in our words: given, wanted, where
_COMPLAINTS = (
    (r"^unrecognized arguments: (.*)$", r"given \1, wanted what `{prog} --help` lists"),
    (r"^the following arguments are required: (.*)$", r"given no \1, wanted one; see {prog} --help"),
    (r"^argument (\S+): expected one argument$", r"given \1 without a value, wanted one"),
    (r"^argument (\S+): ignored explicit argument (.*)$", r"given the value \2, wanted none, at \1"),
    (r"^argument (\S+): (given .*)$", r"\2, at \1"),
)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal. argparse would import a slow module for the width at each option."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)

    def add_usage(self, usage: str | None, actions: Iterable[argparse.Action], *others: Any) -> None:
        """Add a usage line; it omits the options if they are many, as the help lists them below.

        A `usage` that is given stays: `parse_intermixed_args` stores it before it hides the positional arguments.
        """
        shown = [action for action in actions if not action.option_strings or action.help != argparse.SUPPRESS]
        if usage is None and sum(bool(action.option_strings) for action in shown) > _MOST_OPTIONS:
            words = [_USAGE[action.nargs].format(action.metavar) for action in shown if not action.option_strings]
            usage = " ".join((self._prog, "[OPTIONS]", *words))
        super().add_usage(usage, shown, *others)


def _columns() -> int:
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size().columns or _COLUMNS
    except OSError:  # no terminal
        return _COLUMNS


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line and exit code 2, and examples that keep their lines."""

    def __init__(self, command: str, description: str, *examples: str) -> None:
        lines = ["examples:", *(f"  {example}" for example in map(filled, examples))]
        super().__init__(
            prog=f"convgen {command}",
            description=description,
            epilog="\n".join(lines),
            formatter_class=_Formatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        text = " ".join(message.split())
        if unknown := re.search(r"^unrecognized arguments: (-[^\s=]+)", text):
            shown = (action for action in self._actions if action.help != argparse.SUPPRESS)
            known = [option for action in shown for option in action.option_strings]
            # Python releases differ in whether the words behind the option belong to it.
            text = text[: unknown.end()] + meant(unknown[1], known)
        for pattern, ours in _COMPLAINTS:
            text = re.sub(pattern, ours, text)
        raise UserError(text.replace("{prog}", self.prog))


def filled(example: str) -> str:
    """Return an example command line with placeholders filled in.

    `{target}` is the default target, `{newest}` the newest of its family, `{other}` the first one of another family;
    `{text}` and `{object}` are the suffixes of files of code of the default target, `{device}` is a device that runs
    it.
    """
    family, known = families.of_target(DEFAULT_TARGET), families.families()
    assert family is not None
    words = {
        "target": DEFAULT_TARGET,
        "newest": family.targets[-1],
        "other": next((each for each in known if each is not family), family).targets[0],
        "text": family.text_suffix,
        "object": family.object_suffix,
        "device": family.runtime.option if family.runtime else "DEVICE",
    }
    for word, text in words.items():
        example = example.replace(f"{{{word}}}", text)
    return example


def files_of_code() -> str:
    """Return the files of code that an argument takes, for its help."""
    objects, texts = (families.suffixes(kind) for kind in ("object_suffix", "text_suffix"))
    return f"a code object ({objects}) or assembly ({texts})"


def add_workers(add: Callable[..., object], default: str = "one a core") -> None:
    """Add the options of worker processes, of which there are by `default` as many as the help says."""
    add("--jobs", type=number(1), metavar="N", help=f"worker processes (default: {default})")
    add("--timeout", type=number(1), metavar="SECONDS", help="give up a problem that takes longer")


def add_selection(add: Callable[..., object]) -> None:
    """Add the options of worker processes, and those that select some problems of a file."""
    add_workers(add)
    add("--match", metavar="REGEX", help="only problems whose line matches")
    add("--start", type=number(0), metavar="N", help="skip the first N of these")


def one_of(*names: str) -> Callable[[str], str]:
    """Return an argparse type: one of `names`."""

    def convert(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"given {named(text, names)}, wanted one of {', '.join(names)}")
        return text

    return convert


def rectangle(wanted: str) -> Callable[[str], tuple[int, int]]:
    """Return an argparse type: two sizes from 1, joined by x; `wanted` shows their form."""

    def convert(text: str) -> tuple[int, int]:
        if not re.fullmatch(r"[1-9]\d{0,8}x[1-9]\d{0,8}", text):
            raise argparse.ArgumentTypeError(f"given {text!r}, wanted {wanted}")
        first, _, second = text.partition("x")
        return int(first), int(second)

    return convert


def number(least: int) -> Callable[[str], int]:
    """Return an argparse type: a decimal integer from `least`."""

    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= least):
            raise argparse.ArgumentTypeError(f"given {text!r}, wanted an integer from {least}")
        return int(text)

    return convert


def refuse(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise UserError if one of the named options is given; `why` continues "given --NAME"."""
    for name in names:
        if getattr(options, name):
            raise UserError(f"given --{name.replace('_', '-')} {why}")


def add_target(parser: Any, default: str | None = DEFAULT_TARGET) -> None:
    parser.add_argument("--target", default=default, help=f"see `convgen targets` (default {DEFAULT_TARGET})")


def add_config_options(parser: Any) -> None:
    """Add the options that select the config of a problem."""
    parser.add_argument("--config", metavar="LINE", help="use this config instead of choosing one")
    parser.add_argument("--registry", metavar="FILE", help="file of tuned configs (default: CONVGEN_REGISTRY)")


def add_disable(add: Callable[..., object]) -> None:
    add("--disable", action="append", default=[], metavar="PASS", help="switch an optimising step off (repeatable)")


#: The value of -o in a usage line, and its help.
OUTPUT = "PREFIX", "write PREFIX{text}, PREFIX{object}, PREFIX.launch.json; DIR/ names by kernel"


def add_result_options(parser: argparse.ArgumentParser, output: tuple[str, str] = OUTPUT) -> None:
    """Add the options that write, run and report code; `output` is the value of -o and its help."""
    add = parser.add_argument_group("results").add_argument
    add("-o", dest="output", metavar=output[0], help=filled(output[1]))
    add("--run", action="store_true", help="execute on the simulator and compare every output with the reference")
    add("--run-groups", type=number(1), metavar="N", help="execute and compare only N sampled output tiles")
    add_device(add)
    add(
        "-g",
        dest="debug",
        action="store_true",
        help="add line information that refers to the IR; -o writes it as KERNEL.ir",
    )
    add("--seed", type=number(0), default=0, metavar="N", help="seed of inputs and samples (default 0)")
    add("--json", action="store_true", help="print one JSON object per problem on stdout, and nothing else")


def add_finding_options(add: Callable[..., object]) -> None:
    """Add the options that select the simulator's findings."""
    strict = "rules that fail a run: those of the ISA manuals (default), or also those of LLVM alone"
    add("--strict", type=one_of("manual", "llvm"), default="manual", metavar="manual|llvm", help=strict)
    add("--allow", action="append", default=[], metavar="CHECK", help="ignore findings of this kind (repeatable)")


def add_device(add: Callable[..., object], use: str = "run on a device instead") -> None:
    """Add the option that selects the device; `use` is what happens there."""
    kinds = [family.runtime.option for family in families.having("runtime") if family.runtime]
    number = f", or one by number such as {kinds[0]}:1" if kinds else ""
    add("--on", metavar="DEVICE", help=f"{use}: {', '.join(kinds)}{number}")


def add_pass_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that switch passes off and report on them."""
    add = parser.add_argument_group("watching").add_argument
    add_disable(add)
    add("--dump", metavar="WHAT", help="print each step to stderr: all, changed (as diffs) or after:PASS")
    add("--dump-dir", metavar="DIR", help="write these dumps (default: all) as files for `convgen replay` instead")
    add("--check-passes", action="store_true", help="verify each step and interpret the IR after each pass (slow)")
    add("--time-passes", action="store_true", help="print the time of each stage on stderr")
    add("-v", dest="verbose", action="store_true", help="print each config that is tried, with its cost")
