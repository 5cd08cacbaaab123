"""A kernel's assembly line by line: labels, remarks, IR lines and stalls.

Printed text has no offsets, and decoded code no remarks. If both have equal instructions in equal order, they are
combined; else the decoded code alone is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from convgen.backends.analysis import KernelAnalysis
from convgen.backends.timing import TimedLine
from convgen.ir.record import evolve, frozen

_LABEL = re.compile(r"([.\w$]+):(?:\s*//\s*(?P<remark>.*))?$")
_LINE = re.compile(r"\s*\.loc \d+ (\d+)|// \S+\.ir:(\d+)$")
_MNEMONIC = re.compile(r"(?:\([^)]*\)\s*)?([a-z][\w.]*)")


@frozen
class Row:
    """An instruction, or a label in front of one."""

    text: str
    remark: str = ""
    label: str = ""  #: label, for a row that is no instruction
    number: int = 0  #: number of the row within its kernel
    offset: int = -1  #: bytes from the kernel's start; -1 for a row that was not decoded
    line: int = 0  #: line of the IR at selection; 0 if unknown
    source: str = ""  #: FILE:LINE, where debug information says so
    kind: str = ""
    times: float = 0.0  #: executions by a subgroup, if it was timed
    stalled: float = 0.0  #: clocks
    share: float = 0.0  #: share of all stalls
    is_timed: bool = False
    is_hot: bool = False  #: whether it is of the hot loop

    @property
    def each(self) -> float:
        """Return the mean stall in clocks per execution."""
        return self.stalled / self.times if self.times else 0.0


@frozen
class Waits:
    """The instructions that wait longest."""

    rows: Sequence[Row] = ()  #: by total stall, longest first
    alike: int = 0  #: further rows that wait as long as the first
    count: int = 0  #: rows that wait a clock or more
    longest_each: Row | None = None  #: row with the longest mean stall, if it is not the first one


def printed_rows(text: str, kernel: str) -> list[Row]:
    """Return all rows of a kernel from the text of its module."""
    return [evolve(row, number=number) for number, row in enumerate(_printed(text, kernel))]


def rows_of(text: str | None, kernel: KernelAnalysis, timed: Sequence[TimedLine]) -> list[Row]:
    """Return all rows of a decoded kernel; `text` is the assembly of its module, if available."""
    clocks = {t.line.offset: t for t in timed}
    total = sum(t.stalled for t in timed) or 1.0
    hot = {line.offset for line in kernel.hot.lines} if enters_loop(kernel, timed) else set()
    printed = [] if text is None else list(_printed(text, kernel.name))
    decoded = [Row(line.text, offset=line.offset, kind=line.kind) for line in kernel.lines]
    rows = []
    for number, row in enumerate(_together(printed, decoded)):
        timed_line = clocks.get(row.offset)
        rows.append(evolve(
            row,
            number=number,
            source=kernel.sources.get(row.offset, ""),
            is_timed=timed_line is not None,
            times=timed_line.times if timed_line else 0.0,
            stalled=timed_line.stalled if timed_line else 0.0,
            share=timed_line.stalled / total if timed_line else 0.0,
            is_hot=row.offset in hot and (not timed or (timed_line is not None and timed_line.times > 0)),
        ))  # fmt: skip
    return rows


def enters_loop(kernel: KernelAnalysis, timed: Sequence[TimedLine]) -> bool:
    """Return whether the kernel has a hot loop, which was executed if any instruction was."""
    executed = {t.line.offset for t in timed if t.times}
    return kernel.hot.is_loop and (not executed or any(line.offset in executed for line in kernel.hot.lines))


def _together(printed: Sequence[Row], decoded: Sequence[Row]) -> Iterator[Row]:
    """Yield the printed rows with the offsets and kinds of decoded ones; decoded rows alone if the instructions differ.

    Decoded code ends with the last instruction that control flow reaches; padding after it is printed only.
    """
    instructions = [row for row in printed if not row.label]
    if len(instructions) < len(decoded) or not all(map(_is_same, instructions, decoded)):
        yield from decoded
        return
    remaining = iter(decoded)
    for row in printed:
        match = None if row.label else next(remaining, None)
        yield row if match is None else evolve(row, offset=match.offset, kind=match.kind)


def _is_same(printed: Row, decoded: Row) -> bool:
    """Return whether two rows are one operation; decoders append the encoding to the mnemonic."""
    ours, theirs = (_MNEMONIC.match(row.text) for row in (printed, decoded))
    return bool(ours and theirs and theirs[1].startswith(ours[1]))


def _printed(text: str, kernel: str) -> Iterator[Row]:
    """Yield the rows of a kernel from the text of its module."""
    line = 0
    for raw in _body(text.splitlines(), kernel):
        if match := _LINE.match(raw):
            line = int(match[1] or match[2])
        elif match := _LABEL.match(raw):
            name = match[1].removeprefix(f".L{kernel}.")
            yield Row("", match["remark"] or "", label=name)
        elif raw.strip() and not raw.lstrip().startswith((".", "//")):
            code, _, remark = raw.partition("//")
            yield Row(" ".join(code.split()), remark.strip(), line=line)


def _body(lines: Sequence[str], kernel: str) -> Iterator[str]:
    """Yield the lines from a kernel's name to the next section or kernel."""
    inside = False
    for line in lines:
        if line == f"{kernel}:" or line == f"//.kernel {kernel}":
            inside = True
        elif inside and (line.lstrip().startswith(".section") or line.startswith("//.kernel ")):
            return
        elif inside:
            yield line


def by_line(rows: Sequence[Row]) -> Mapping[int, list[Row]]:
    """Return the instructions of each line of the IR."""
    known = sorted((row for row in rows if row.line), key=lambda row: row.line)
    return {line: list(group) for line, group in groupby(known, key=lambda row: row.line)}


def longest(rows: Sequence[Row], count: int) -> Waits:
    """Return up to `count` instructions with the longest stalls."""
    by_stall = sorted((row for row in rows if row.stalled >= 1), key=lambda row: -row.stalled)
    if not by_stall:
        return Waits()
    alike = sum(round(row.stalled) == round(by_stall[0].stalled) for row in by_stall) - 1
    longest_each = max(by_stall, key=lambda row: row.each)
    is_another = round(longest_each.each) > round(by_stall[0].each)
    return Waits(by_stall[:count], alike, len(by_stall), longest_each if is_another else None)
