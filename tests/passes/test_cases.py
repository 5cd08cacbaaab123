"""Passes on small kernels in files: `cases/PASS.ir` has what stands before a pass and what it makes of it.

A case begins with a line `# run: PASS … target=TARGET [SCALAR=VALUE …]`, and has a kernel, a line `# ---` and the
kernel behind the passes, or `# unchanged`. Remarks may stand above the first kernel. `./dev bless`, or
`CONVGEN_BLESS=1` with this test, writes the second kernel anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from convgen.backends import target as targets
from convgen.ir.record import frozen
from convgen.ir.text import parse
from convgen.ir.verify import verify
from convgen.passes.pipeline import PASSES
from convgen.show.pass_checker import PassChecker
from tests.conftest import blessing
from tests.passes.texts import ranked

FOLDER = Path(__file__).parent / "cases"
BY_NAME = {p.name: p for p in PASSES}
RUN, BETWEEN, UNCHANGED = "# run: ", "\n# ---", "# unchanged"


@frozen
class Case:
    """One case of a file, by its number there."""

    file: str
    number: int
    passes: tuple[str, ...]
    target: str
    scalars: dict[str, int]
    head: str  #: the line `# run` and the remarks below it
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.file} {self.number} {self.target}"

    def with_after(self, after: str) -> str:
        return f"{self.head}{self.before}{BETWEEN}\n{after}\n"


def read(path: Path) -> list[Case]:
    """The cases of a file in order."""
    _, *texts = ("\n" + path.read_text()).split(f"\n{RUN}")
    return [_case(path.stem, number, text.strip("\n")) for number, text in enumerate(texts, 1)]


def _case(file: str, number: int, text: str) -> Case:
    asked, _, rest = text.partition("\n")
    before, between, after = rest.partition(BETWEEN)
    assert between, f"{file} {number} has no line # ---"
    kernel = before.index("kernel ")
    names = tuple(word for word in asked.split() if "=" not in word)
    values = dict(word.split("=") for word in asked.split() if "=" in word)
    head = f"{RUN}{asked}\n{before[:kernel]}"
    scalars = {name: int(value) for name, value in values.items() if name != "target"}
    return Case(file, number, names, values["target"], scalars, head, before[kernel:], after.strip("\n"))


CASES = [case for path in sorted(FOLDER.glob("*.ir")) for case in read(path)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    """The passes make of the kernel what stands in the file, which computes the same and can be read again."""
    facts, checker = targets.get(case.target).facts, PassChecker(case.scalars)
    given = kernel = verify(parse(case.before))
    for p in (BY_NAME[name] for name in case.passes):
        before, kernel = kernel, p.run(kernel, facts)
        checker.observe(p, before, kernel, 0.0)
    after = UNCHANGED if kernel is given else ranked(kernel)
    if blessing():
        path = FOLDER / f"{case.file}.ir"
        cases = [c.with_after(after if c.number == case.number else c.after) for c in read(path)]
        path.write_text("\n".join(cases))
    else:
        assert after == case.after, f"{case.file}.ir, case {case.number} differs: look at the change, then ./dev bless"
    if kernel is not given:
        assert ranked(parse(after)) == after


@pytest.mark.parametrize("name", BY_NAME)
def test_each_pass_has_a_case_and_a_file_of_tests(name: str) -> None:
    changed = [case for case in CASES if case.passes[-1] == name and case.after != UNCHANGED]
    assert changed, f"no case in {FOLDER.name}/{name}.ir changes"
    assert list(Path(__file__).parents[1].glob(f"*/test_{name}.py"))
