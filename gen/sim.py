"""The strict simulators without the generator: `python -m convgen.sim FILE ...` (docs/simulators.md).

The commands are `convgen check` and `convgen run` for code objects of any compiler. No module of the generator is
imported: no plan, chooser, kernel, pass or emitter (tests/gen/test_sim.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from convgen.backends import family as families
from convgen.commands import cli

_USAGE = """\
usage: python -m convgen.sim [check] FILE|FOLDER [OPTIONS]
       python -m convgen.sim run FILE [OPTIONS]

Run kernels of any compiler strictly, without a GPU, for these targets:

{targets}

A finding names the instruction, the rule that it breaks, and the document that states the rule.

  check  judge every kernel of a file, an offload bundle or a folder; arguments that no option gives are made up
  run    launch one kernel with your grid, workgroup and arguments; write results, a trace, or registers at a place

exit code: 0 no finding, 1 findings, 2 the file or the request cannot be judged

examples:
  python -m convgen.sim k{object}
  python -m convgen.sim k{object} --grid 4 --block 256 --lds 8192 --arg 0=a.npy --arg 2=f32:64x64 --arg n=64
  python -m convgen.sim run k{object} --grid 4 --block 256 --arg A=a.npy --arg C=f32:64x64 --arg n=64 --out C=c.npy

`python -m convgen.sim check --help` and `python -m convgen.sim run --help` list the options."""

_COMMANDS = ("check", "run")


def command_line(arguments: Sequence[str]) -> list[str]:
    """Return the words of `convgen` for the words behind `python -m convgen.sim`: a command, `check` by default."""
    words = list(arguments)
    return words if words[0] in _COMMANDS else ["check", *words]


def _usage() -> str:
    """Return the help: the families that have a simulator, and examples for the default target."""
    simulated = [family for family in families.families() if family.executor]
    rows = [f"  {f.vendor} {', '.join(f.targets)} ({f.object_suffix})" for f in simulated]
    return _USAGE.format(targets="\n".join(rows), object=simulated[0].object_suffix)


def main(arguments: Sequence[str]) -> int:
    """Run one command line; return the exit code of `convgen check` or `convgen run`."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    return cli.main(command_line(arguments))


if __name__ == "__main__":
    cli.entry(main)
