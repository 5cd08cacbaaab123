"""The command line: dispatch to a command, and exit codes.

Exit codes: 0 success, 1 a wrong result or a finding, 2 a wrong or unsupported request, 3 an internal error. Errors are
one line on stderr. Heavy modules are imported on use, so that `--help` is fast.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, TextIO

from convgen.commands.session import FINE, guarded
from convgen.ir.error import UserError, imported, named
from convgen.version import __version__

#: name -> module in `commands`, its functions that return the parser and run the command, arguments and summary
COMMANDS: dict[str, tuple[str, str, str, str, str]] = {
    "conv": ("generate", "conv_parser", "conv", "[KNOBS] DESC ...", "generate, assemble and verify convolutions"),
    "deconv": (
        "generate",
        "deconv_parser",
        "deconv",
        "[KNOBS] DESC ...",
        "generate, assemble and verify transposed convolutions",
    ),
    "gemm": ("generate", "gemm_parser", "gemm", "[KNOBS] MxK:KxN ...", "generate, assemble and verify matrix products"),
    "batch": ("batch", "parser", "batch", "FILE [KNOBS]", "generate every problem of a benchdnn batch file"),
    "model": ("model", "parser", "model", "FILE [KNOBS]", "generate, verify and profile all layers of a model"),
    "tune": ("tune", "parser", "tune", "LIST|PROBLEM ...", "time the best configs and keep the fastest in a registry"),
    "run": ("execute", "parser", "run", "LAUNCH.json|CODE", "execute a code object on the simulator"),
    "check": (
        "judge",
        "parser",
        "run",
        "FILE|FOLDER",
        "check code of any compiler for races, missing waits, undefined values",
    ),
    "export": ("export", "parser", "run", "LAUNCH.json --c PREFIX", "write kernels as C, to link into other programs"),
    "analyze": (
        "analyze",
        "parser",
        "analyze",
        "FILE of code",
        "report registers, hot loop, instruction mix and bound",
    ),
    "profile": ("profile", "parser", "profile", "LAUNCH.json|CODE", "predict time, bottleneck and stalls of launches"),
    "explain": ("explain", "parser", "explain", "PROBLEM|FILE -o K.html", "write a page on how a kernel was generated"),
    "diff": ("diff", "parser", "diff", "A [B]", "compare two kernels and say why one is faster"),
    "map": ("map", "parser", "run", "PROBLEM|--grid MxN", "show orders of workgroups and their cache traffic"),
    "layout": ("layout", "parser", "run", "LAYOUT|--mma NAME", "show which lane owns which element of a vector"),
    "replay": ("replay", "parser", "replay", "DUMP", "continue from dumped IR"),
    "passes": ("catalogue", "passes_parser", "passes", "", "list the passes"),
    "targets": ("catalogue", "targets_parser", "targets", "", "list the targets"),
    "completion": ("completion", "parser", "completion", "bash|zsh", "print a completion script for a shell"),
}

_YOUNG = 1_000_000  #: objects between garbage collections: a kernel allocates fewer, and keeps most

_USAGE = """\
usage: convgen COMMAND ...

GPU convolution and matrix multiplication kernels from a problem line, verified without a GPU.

commands:
{commands}

examples:
  convgen conv mb1ic64ih56oc64oh56kh3ph1 --dir FWD_D --dt f16 -o out/k --run
  convgen gemm 1024x512:512x256 --dt f16 --run-groups 8
  convgen batch problems.txt --run-groups 8 --jobs 4 --resume problems.journal
  convgen profile out/k.launch.json

`convgen COMMAND --help` (or `convgen help COMMAND`) explains a command, `convgen --version` prints the version."""


def entry(run: Callable[[Sequence[str]], int] | None = None) -> NoReturn:
    """Run the `convgen` program, or `run`, which takes the words of a command line and returns the exit code."""
    if not any(word.startswith("--run") for word in sys.argv):  # only the reference uses linear algebra;
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # starting its threads takes time
    gc.set_threshold(_YOUNG)
    try:
        sys.stdout, sys.stderr = _stream(1, sys.stdout, _Results), _stream(2, sys.stderr, _Remarks)
        try:
            code = (run or main)(sys.argv[1:])
        except SystemExit as left:  # a command's --help
            code = int(left.code or 0)
        code = max(code, guarded(_flushed))
    except BrokenPipeError:  # the reader of our output has left: `convgen ... | head`
        _Results.broken()
        code = 141
    except KeyboardInterrupt:
        code = 130
    gc.freeze()  # the process ends: skip the last collection
    sys.exit(code)


def _flushed() -> int:
    sys.stdout.flush()
    return FINE


class _Results(io.FileIO):
    """stdout, which carries results: a failed write is an error of one line."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.broken()
            raise UserError(f"cannot write to stdout: {error.strerror}") from None

    @staticmethod
    def broken() -> None:
        """Discard what is still buffered."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class _Remarks(io.FileIO):
    """stderr: a failed write is ignored."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _stream(number: int, given: TextIO | None, kind: type[io.FileIO]) -> TextIO:
    """Return a standard stream that writes as `kind` does; characters that its encoding lacks are escaped.

    A closed stream's file number is occupied by a file that cannot be written, so that no opened file gets it.
    """
    if given is None:
        at = os.open(os.devnull, os.O_RDONLY)
        if at != number:
            os.dup2(at, number)
    encoding = "utf-8" if given is None else given.encoding
    raw = kind(number, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=number == 2 or raw.isatty()
    )


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit code. Only a command's `--help` raises SystemExit."""
    return guarded(partial(_dispatch, arguments))


def _dispatch(arguments: Sequence[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if command == "help" and rest:
        command, rest = rest[0], ["--help"]
    if command in ("--help", "-h", "help"):
        print(_usage())
        return FINE
    if command == "--version":
        print(f"convgen {__version__}")
        return FINE
    if command not in COMMANDS:
        given = named(command, COMMANDS) if command else "no command"
        raise UserError(f"given {given}, wanted one of {', '.join(COMMANDS)}; see convgen --help")
    module, _, run, *_ = COMMANDS[command]
    code: int = _function(module, run)(rest)
    return code


def make_parser(command: str) -> Any:
    """Return the argument parser of a command."""
    module, parser, *_ = COMMANDS[command]
    return _function(module, parser)()


def _function(module: str, name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(imported(f"convgen.commands.{module}"), name)
    return function


def _usage() -> str:
    rows = [(f"{name} {takes}", summary) for name, (*_, takes, summary) in COMMANDS.items()]
    width = max(len(words) for words, _ in rows)
    return _USAGE.format(commands="\n".join(f"  {words:<{width}}  {summary}" for words, summary in rows))
