"""`convgen completion`: scripts that let a shell complete commands, options and their values."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from convgen.commands.arguments import Parser, one_of
from convgen.commands.session import FINE

_BASH = """\
# bash completion for convgen:  source <(convgen completion bash)
_convgen() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words
    if [ "$COMP_CWORD" = 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}}:$before" in
{values}
            *) case "${{COMP_WORDS[1]}}" in
{options}
            esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _convgen convgen
"""
_ZSH = """\
#compdef convgen
# zsh completion for convgen:  convgen completion zsh >~/.zfunc/_convgen
autoload -U +X bashcompinit && bashcompinit
"""

_SHELLS = ("bash", "zsh")


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "completion",
        "Print a script that completes commands, options and their values.",
        "source <(convgen completion bash)",
        "convgen completion zsh >~/.zfunc/_convgen",
    )
    parser.add_argument("shell", type=one_of(*_SHELLS), metavar="SHELL", help=" or ".join(_SHELLS))
    return parser


def completion(arguments: Sequence[str]) -> int:
    """`convgen completion`: zsh reads the bash script through its bashcompinit."""
    options = parser().parse_args(arguments)
    print((_ZSH if options.shell == "zsh" else "") + _bash(), end="")
    return FINE


def _bash() -> str:
    from convgen.commands.cli import COMMANDS, make_parser

    parsers = {command: make_parser(command) for command in COMMANDS}
    options = [f'                {name}) words="{" ".join(_words(p))}" ;;' for name, p in parsers.items()]
    values = [f'            *:{option}) words="{" ".join(words)}" ;;' for option, words in _values().items()]
    return _BASH.format(commands=" ".join(COMMANDS), options="\n".join(options), values="\n".join(values))


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a command, and the shells for one that takes a shell."""
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    words = [option for action in shown for option in action.option_strings]
    return [*words, *(_SHELLS if parser.prog.endswith(" completion") else ())]


def _values() -> dict[str, list[str]]:
    from convgen.backends import target
    from convgen.compile_steps import steps
    from convgen.passes.pipeline import OPTIMISING
    from convgen.problem.conv import Direction
    from convgen.problem.grammar import DATA_TYPES, FPMATH_MODES

    known = steps(None)
    return {
        "--dir": [direction.value for direction in Direction],
        "--dt": list(DATA_TYPES),
        "--attr-deterministic": ["true", "false"],
        "--attr-fpmath": list(FPMATH_MODES),
        "--target": list(target.names()),
        "--dump": ["all", "changed", *dict.fromkeys(f"after:{step.name}" for step in known)],
        "--disable": list(dict.fromkeys(step.name for step in known if step.kind == OPTIMISING)),
    }
