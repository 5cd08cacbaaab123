"""`convgen replay`: continue from a dump file through the remaining passes and the back end."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from convgen.commands import session
from convgen.commands.arguments import Parser, add_pass_options, add_result_options
from convgen.ir.error import UserError


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "replay",
        "Continue from a dump file of --dump-dir or an internal error: run the remaining passes and the back end.",
        "convgen replay dumps/conv_fwd_d_1234abcd_main.03.lower_tiles.dump >k.s",
        "convgen replay dumps/conv_fwd_d_1234abcd_main.00.built.dump --disable simplify --run",
    )
    parser.add_argument("file", metavar="FILE", help="a dump file")
    add_result_options(parser)
    add_pass_options(parser)
    return parser


def replay(arguments: Sequence[str]) -> int:
    options = parser().parse_intermixed_args(arguments)
    if options.output == "":
        raise UserError("given an empty prefix, wanted a file prefix or DIR/, at -o")
    session.check_device(options)
    return session.guarded(lambda: _replay(options), options.verbose)


def _replay(options: argparse.Namespace) -> int:
    from convgen import driver
    from convgen.show import dumps

    with session.watching(options) as watch:
        program = dumps.read(Path(options.file), watch.options(tuple(options.disable)))
        code = driver.compile(watch.begin(program))
    return session.deliver(options, code)
