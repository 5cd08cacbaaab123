"""`convgen check`: run code objects of any compiler on the strict simulator, with a made-up launch if none is
recorded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convgen.backends import family as families
from convgen.commands import session
from convgen.commands.arguments import Parser, add_finding_options, number
from convgen.commands.execute import add_launch_options, launch_of
from convgen.ir.error import Unsupported, UserError, named
from convgen.ir.record import evolve, frozen

if TYPE_CHECKING:
    from convgen.backends.simulation import Signature
    from convgen.run.foreign_launch import ForeignLaunch
    from convgen.run.subjects import Subject
    from convgen.run.verdict import Outcome

_BUFFER_BYTES = 1 << 28  #: bytes of a buffer without --arg
_GRID = (1, 1, 1)  #: workgroups without --grid; most kernels can run with one

CLEAN, FINDINGS, NOT_JUDGED = "clean", "findings", "not judged"
_EXITS = {CLEAN: session.FINE, FINDINGS: session.WRONG, NOT_JUDGED: session.REFUSED}


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "check",
        "Check code objects of any compiler for races, missing waits, undefined values and accesses out of bounds.\n"
        "convgen makes up and reports what no option gives: one workgroup of the size that the object states, large\n"
        "buffers of small numbers, scalars of 1. Exit code 0: clean, 1: findings, 2: cannot be judged.",
        "convgen check k{object}",
        "convgen check ~/.triton/cache --kernel gemm --grid 4 --arg M=128 --arg N=128 --arg K=256",
        "convgen check k{object} --block 256 --lds 8192 --arg 0=a.npy --arg 2=f32:64x64 --arg n=64",
        "convgen check bundle.o --json",
    )
    add = parser.add_argument
    objects = ", ".join(family.object_suffix for family in families.families())
    add("path", metavar="FILE|FOLDER", help=f"{objects}, an offload bundle, or a folder such as Triton's cache")
    add_finding_options(add)
    add("--json", action="store_true", help="print one JSON object on stdout")
    add_launch_options(parser)
    size = "size of each buffer without --arg (default 256 MiB; only pages that are touched take memory)"
    add("--buffer", type=number(1), default=_BUFFER_BYTES, metavar="BYTES", help=size)
    return parser


@frozen(eq=False)
class Judgement:
    """The verdict on a kernel, or on an object that cannot be read: then `kernel` is empty and `reason` says why."""

    name: str
    verdict: str
    kernel: str = ""
    target: str = ""
    launch: ForeignLaunch | None = None
    outcome: Outcome | None = None
    reason: str = ""


def run(arguments: Sequence[str]) -> int:
    """`convgen check`: print the verdict on each kernel; the exit code is the worst."""
    options = parser().parse_intermixed_args(arguments)
    from convgen.run import defaults

    if options.path.endswith(".json"):
        given = f"given the launch record {options.path}"
        raise UserError(f"{given}, wanted a code object; `convgen run` executes records")
    if options.buffer > defaults.MOST_BYTES:
        raise UserError(f"given --buffer {options.buffer}, wanted at most {defaults.MOST_BYTES} bytes")
    judged = []
    for judgement in _judgements(options):
        judged.append(judgement)
        if judgement.reason:
            session.complain(f"{judgement.name}: {judgement.reason}")
        elif not options.json:
            _show(judgement)
    if not judged:
        raise UserError(f"given --kernel {options.kernel}, wanted a kernel of {options.path}")
    counts = Counter(judgement.verdict for judgement in judged)
    if options.json:
        print(json.dumps(_as_json(options.path, judged)))
    elif len(judged) > 1:
        print(", ".join(f"{counts[verdict]} {verdict}" for verdict in _EXITS))
    return max(_EXITS[verdict] for verdict in counts)


def _judgements(options: argparse.Namespace) -> Iterator[Judgement]:
    """Judge all kernels, or those that --kernel names; one that cannot be judged does not stop the others."""
    from convgen.run import subjects

    path = Path(options.path)
    for file in subjects.files(path):
        try:
            for subject in subjects.of_file(file):
                yield from _of_subject(subject, options, selects=path.is_dir())
        except (UserError, Unsupported) as error:
            yield Judgement(str(file), NOT_JUDGED, reason=session.failure(error)[1])


def _of_subject(subject: Subject, options: argparse.Namespace, *, selects: bool) -> Iterator[Judgement]:
    """Judge the kernels of a code object. If --kernel `selects`, an object without that kernel is passed over."""
    target = ""
    try:
        target, known = _described(subject)
        for name in _chosen(known, options.kernel, subject.name, selects=selects):
            yield _guarded(subject, target, known[name], options)
    except (UserError, Unsupported) as error:
        yield Judgement(subject.name, NOT_JUDGED, target=target, reason=session.failure(error)[1])


def _described(subject: Subject) -> tuple[str, dict[str, Signature]]:
    """Return the target and the kernels of a code object. Raises UserError, Unsupported."""
    from convgen.backends import target as targets

    machine = targets.executor(subject.content, subject.name)
    signatures: dict[str, Signature] = machine.signatures(subject.content)
    known = {name: subject.hints_of(name).applied(signature) for name, signature in signatures.items()}
    return str(machine.architecture(subject.content)), known


def _chosen(known: Mapping[str, Signature], kernel: str | None, where: str, *, selects: bool) -> Sequence[str]:
    """Return the names of the kernels to judge. Raises UserError if there are none."""
    if not known:
        raise UserError(f"given {where} without kernels, wanted at least one")
    if kernel is None:
        return list(known)
    if kernel not in known and not selects:
        raise UserError(f"given the kernel {named(kernel, known)}, wanted one of {', '.join(known)}")
    return [kernel] if kernel in known else []


def _guarded(subject: Subject, target: str, signature: Signature, options: argparse.Namespace) -> Judgement:
    """Return the verdict on a kernel; NOT_JUDGED with the reason after an error."""
    try:
        return _judged(subject, target, signature, options)
    except (UserError, Unsupported) as error:
        return Judgement(subject.name, NOT_JUDGED, signature.kernel, target, reason=session.failure(error)[1])


def _judged(subject: Subject, target: str, signature: Signature, options: argparse.Namespace) -> Judgement:
    """Execute a kernel strictly. Raises UserError, Unsupported."""
    from convgen.backends.simulation import Budget, Scrutiny
    from convgen.run import footprint, foreign_launch
    from convgen.run.defaults import Defaults

    given = launch_of(options)
    given = evolve(
        given,
        kernel=signature.kernel,
        grid=given.grid or _GRID,
        block=given.block or signature.workgroup,
        dynamic_lds=given.dynamic_lds or subject.hints_of(signature.kernel).dynamic_lds,
    )
    if given.block is None:
        raise UserError(f"given no --block for {signature.kernel}, wanted one: the object does not state its workgroup")
    filling = Defaults(options.buffer, Budget(footprint.available()))
    launch = foreign_launch.prepare({signature.kernel: signature}, given, filling)
    with session.progress_bar(subject.name) as progress:
        outcome = foreign_launch.execute(
            subject.content,
            subject.name,
            launch,
            progress=progress,
            advice=options.strict == "llvm",
            scrutiny=Scrutiny(options.allow),
        )
    verdict = CLEAN if outcome.passed else FINDINGS
    return Judgement(subject.name, verdict, signature.kernel, target, launch, outcome)


def _show(judgement: Judgement) -> None:
    from convgen.show import report

    launch, outcome = judgement.launch, judgement.outcome
    assert launch is not None
    assert outcome is not None
    request, family = launch.request, families.of_target(judgement.target)
    shared = "shared memory" if family is None else family.terms.shared
    counted = [finding for finding in outcome.findings if outcome.advice or finding.source.required]
    advice = [finding for finding in outcome.findings if finding not in counted]
    grid, block = ("x".join(map(str, extents)) for extents in (request.grid, request.workgroup))
    rows = [
        ("object", judgement.name),
        ("kernel", f"{judgement.kernel} for {judgement.target}"),
        ("launch", f"grid {grid}, workgroup {block}, {request.shared_bytes} bytes of {shared}"),
        ("arguments", ", ".join(f"{name}={value}" for name, value in launch.settings) or "none"),
        *report.execution_rows(outcome),
        *(report.finding_rows(advice, "advice") if advice else []),
        *report.finding_rows(counted),
        *report.hint_rows(outcome),
        ("verdict", judgement.verdict.upper()),
    ]
    report.show(rows, sys.stdout)


def _as_json(path: str, judged: Sequence[Judgement]) -> dict[str, Any]:
    worst = max((judgement.verdict for judgement in judged), key=lambda verdict: _EXITS[verdict])
    return {"path": path, "verdict": worst, "kernels": [_kernel_json(judgement) for judgement in judged]}


def _kernel_json(judgement: Judgement) -> dict[str, Any]:
    from convgen.show import report

    entry: dict[str, Any] = {
        "object": judgement.name,
        "kernel": judgement.kernel,
        "target": judgement.target,
        "verdict": judgement.verdict,
        "reason": judgement.reason or None,
    }
    if judgement.launch is None or judgement.outcome is None:
        return entry
    request, outcome = judgement.launch.request, judgement.outcome
    return entry | {
        "grid": list(request.grid),
        "workgroup": list(request.workgroup),
        "lds_bytes": request.shared_bytes,
        "arguments": dict(judgement.launch.settings),
        "findings": [report.finding_json(finding) for finding in outcome.findings],
        "seconds": round(outcome.seconds, 6),
        "instructions": dict(outcome.instructions),
        "places": report.coverage_json(outcome.coverage),
    }
