"""Run kernels of other compilers and libraries strictly, from a folder with a manifest, and compare them with numpy.

FOLDER holds code objects and `manifest.json`, a list with an entry a code object:

    file              the code object
    kernel            its symbol; grid in workgroups, block in threads; or `launches`, a list of one with these keys
    shared            bytes of LDS that the host asks for
    args              in order: n (name), t (type: `f16*`, `*fp32`, `i32`, `ptr`), shape or value; offset in bytes,
                      which the code object's metadata gives where it is missing; what, zero_before_launch; fill
    reference, rtol   what the kernel computes, by its name in `lib/references.py`, and how far a result may be from it:
                      0, relative to it, or {"rel": .., "abs": ..}
    problem, knobs    of a convolution, as benchdnn writes it; its tensors are p_in, p_wei and p_out
    needless          of waits and barriers: address -> why nothing in this launch depends on it, for --delete

With a reference the tensors that have a fill are read: "integers" (-2..2), "normal", [least, most], a format of bytes
(e2m1, e4m3, e5m2, e8m0) or "zero", which the kernel updates; those without one, and these, are written.

Another entry without `problem` is a convolution of X and Wt to Y, which keeps the size, or a product C (or D) = A Bᵀ.
Where `what` says so B stands in blocks of 16 rows x 32 bytes; SA and SB are scales. Without arguments the kernel's name
must end in sizes and types, such as `128x128x128_f16xf16xf32`. Inputs are integers in -2..2, scales powers of two
(those in e8m0 are 1), so that every sum is exact in the type of the result: comparison is bit for bit.

Exit codes: 0 all equal, and nothing found that a manual asks for but what is known of a kernel that ships (`KNOWN`),
or all deletions noticed but those that are needless; 1 not so; 2 the request is wrong.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from lib.cases import Case, Entry, read_manifest, understand
from lib.deletion import deletions
from rich.console import Console
from rich.table import Table

from convgen.backends.amdgpu.sim import CodeObject, SimulatorError, simulate
from convgen.backends.simulation import STRICT, Finding, Scrutiny, SimReport
from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import evolve

#: What kernels that ship do against the manuals, and are right by timing: (part of the file's name, kind) -> what.
KNOWN: Mapping[tuple[str, str], str] = {
    ("I8gemm_bf16_perTokenI8_BpreShuffle_112x256", "lds-race"): (
        "the epilogue has one barrier an exchange: a wave overwrites what a slower one may still have to read"
    )
}
_OWN = Path(__file__).parents[1] / "tests" / "data" / "foreign"
_WIDTH = 140  #: columns of the table, where the terminal does not say that it has more


@attrs.frozen
class Result:
    """The result of an entry."""

    file: str
    checked: int
    mismatches: int
    findings: tuple[Finding, ...]
    instructions: int
    seconds: float
    error: str = ""

    def passed(self, *, llvm: bool) -> bool:
        """Whether all elements are right and no finding counts; rules of LLVM alone count only with --strict llvm."""
        counts = any(f.source.required or llvm for f in self.findings if self._known(f) is None)
        return not self.error and not self.mismatches and not counts

    @property
    def sources(self) -> Mapping[str, int]:
        """Count findings by the document of their rule, known findings by their explanation."""
        return Counter(f.source.text if (why := self._known(f)) is None else f"known: {why}" for f in self.findings)

    def _known(self, finding: Finding) -> str | None:
        found = (why for (part, kind), why in KNOWN.items() if part in self.file and kind == finding.kind)
        return next(found, None)


def execute(raw: bytes, case: Case, *, max_findings: int = 20, scrutiny: Scrutiny = STRICT) -> tuple[SimReport, int]:
    """Run a case on a code object: the report, and how many elements are wrong."""
    buffers = case.buffers()
    report = simulate(raw, [case.launch], buffers, max_findings=max_findings, scrutiny=scrutiny)
    return report, sum(case.wrong(name, buffers[name]) for name in case.expected)


def run(folder: Path, entry: Entry) -> Result:
    """Execute an entry strictly. Raises UserError."""
    file = str(entry["file"])
    try:
        raw = (folder / file).read_bytes()
        case = understand(entry, CodeObject.load(raw))
        report, wrong = execute(raw, case)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except (SimulatorError, Unsupported) as error:
        return Result(file, 0, 0, (), 0, 0.0, str(error))
    checked = sum(right.size for right in case.expected.values())
    executed = sum(report.instructions.values())
    return Result(file, checked, wrong, report.findings, executed, report.seconds)


def results(folder: Path, chosen: Callable[[str], bool]) -> Iterator[Result]:
    """Run the entries of a folder whose file is selected, one after the other. Raises UserError."""
    for entry in read_manifest(folder):
        if chosen(str(entry["file"])):
            try:
                yield run(folder, entry)
            except (KeyError, TypeError, ValueError, struct.error) as error:
                raise UserError(f"given {entry['file']} in the manifest, which is not understood: {error!r}") from None


def as_json(result: Result, *, llvm: bool) -> dict[str, Any]:
    """A result for --json."""
    return {
        "file": result.file,
        "status": "passed" if result.passed(llvm=llvm) else "failed",
        "checked": result.checked,
        "mismatches": result.mismatches,
        "sources": dict(result.sources),
        "findings": [
            {"kind": f.kind, "text": str(f), "source": f.source.text, "required": f.source.required}
            for f in result.findings
        ],
        "instructions": result.instructions,
        "seconds": round(result.seconds, 3),
        "error": result.error,
    }


def _row(result: Result, *, llvm: bool) -> tuple[str, ...]:
    found = "\n".join(f"{count} x {text}" for text, count in result.sources.items())
    verdict = "PASSED" if result.passed(llvm=llvm) else "FAILED"
    wrong = f"{result.mismatches} of {result.checked} wrong" if result.mismatches else str(result.checked)
    return (
        result.file.removesuffix(".hsaco"),
        verdict,
        result.error or wrong,
        found,
        str(result.instructions),
        f"{result.seconds:.1f}",
    )


def _deleted(folder: Path, chosen: Callable[[str], bool]) -> int:
    """Report the noticed deletions of each kernel; exit code 1 if one is missed that the manifest does not permit."""
    noticed_all = True
    for entry in filter(lambda entry: chosen(str(entry["file"])), read_manifest(folder)):
        raw = (folder / str(entry["file"])).read_bytes()
        case = understand(entry, CodeObject.load(raw))

        known = [kind for part, kind in KNOWN if part in str(entry["file"])]

        def noticed(code: bytes, scrutiny: Scrutiny, case: Case = case, known: Sequence[str] = known) -> bool:
            report, wrong = execute(code, case, max_findings=1, scrutiny=evolve(scrutiny, allow=known))
            return wrong > 0 or any(finding.source.required for finding in report.findings)

        needless = {int(address, 0): why for address, why in entry.get("needless", {}).items()}
        found = list(deletions(raw, case.launch.kernel, noticed))
        missed = {instruction.address: instruction.text for instruction, seen in found if not seen}
        print(f"{entry['file']}: {len(found) - len(missed)} of {len(found)} noticed")
        for address in sorted({**missed, **needless}):
            what = missed.get(address, "NOTICED, or no case")
            print(f"  {address:#x}: {what}: {needless.get(address, 'MISSED')}")
        noticed_all &= missed.keys() == needless.keys()
    return 0 if noticed_all else 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", nargs="?", default=_OWN, help="by default the tests' own"
    )
    parser.add_argument("--match", default="", metavar="TEXT", help="only files whose name holds TEXT")
    parser.add_argument("--strict", choices=("manual", "llvm"), default="manual", help="whose rules make a run fail")
    parser.add_argument("--json", action="store_true", help="print one JSON object a kernel")
    parser.add_argument("--delete", action="store_true", help="delete each wait and barrier in turn: which are missed")
    options = parser.parse_args(arguments)
    llvm = options.strict == "llvm"
    chosen = lambda file: options.match in file  # noqa: E731
    table = Table("kernel", "result", "checked", "findings by source", "wave-instr.", "s")
    done = []
    try:
        if options.delete:
            return _deleted(options.folder, chosen)
        for result in results(options.folder, chosen):
            done.append(result)
            table.add_row(*_row(result, llvm=llvm))
            if options.json:
                print(json.dumps(as_json(result, llvm=llvm)), flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not options.json:
        console = Console()
        console.width = max(console.width, _WIDTH)
        console.print(table)
    return 0 if all(result.passed(llvm=llvm) for result in done) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
