"""The snippets of README and docs: each runs alone, and the output that a page shows is what comes out.

A block `python run` or `sh run` starts in a namespace or folder of its own; one marked `continued` goes on in that of
the block before. A block `output` behind it is all that it prints; `./dev bless` rewrites it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from convgen.backends.target import get, names
from convgen.commands import cli
from convgen.plan import config
from tests.conftest import blessing
from tests.gen.device.standin import StandIn, serving

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(
    r"^```(?P<language>\w+) (?P<how>run|continued)\n(?P<code>.*?)^```$(?:\n\n```output\n(?P<output>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)


@attrs.frozen
class Snippet:
    """A fenced block, the line where its code begins, and where the page holds its output."""

    page: Path
    number: int
    line: int
    language: str
    code: str
    continued: bool
    output: tuple[int, int] | None


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text()
    return [
        Snippet(
            page,
            number,
            text.count("\n", 0, found.start("code")) + 1,
            found["language"],
            found["code"],
            found["how"] == "continued",
            None if found["output"] is None else found.span("output"),
        )
        for number, found in enumerate(_FENCE.finditer(text))
    ]


PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if snippets(page)]


def test_the_pages_have_snippets() -> None:
    wanted = {
        "README.md",
        "adding-a-pass.md",
        "adding-a-target.md",
        "config.md",
        "embed.md",
        "generate.md",
        "inspect.md",
    }
    assert {page.name for page in PAGES} >= wanted
    assert {snippet.language for snippet in snippets(ROOT / "README.md")} == {"sh", "python"}


def test_the_readme_lists_the_types_of_matrix_instructions() -> None:
    """The rows of the support matrix that differ from target to target agree with the targets' facts."""
    page = (ROOT / "README.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    targets = next(row[1:] for row in rows if row[1:2] == ["gfx90a"])
    facts = [get(name).facts for name in targets]
    assert targets == list(names())

    def shown(label: str) -> list[str]:
        return next(row[1:] for row in rows if row[0] == label)

    assert shown("tf32") == ["yes" if any(a.rounds_to == "xf32" for a in f.atoms) else "" for f in facts]
    assert shown("f64") == ["yes" if any(a.acc.name == "f64" for a in f.atoms) else "" for f in facts]
    narrow = [{a.a_elem.name for a in f.atoms if a.a_elem.name.startswith("f8")} for f in facts]
    kinds = ["FNUZ" if any(n.endswith("fnuz") for n in found) else "OCP" if found else "" for found in narrow]
    assert shown("fp8 matrix instructions") == kinds


def test_the_readme_shows_its_first_command_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report is shortened, and its wall time differs; the lines of assembly follow one another."""
    page = (ROOT / "README.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("convgen conv"))
    report, assembly = (block.strip("\n").split("\n") for block in re.findall(r"(?:^    .*\n)+", page, re.M)[:2])
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(command)[1:]) == 0
    printed = re.sub(r"in \d+\.\d+ s", "in TIME", capsys.readouterr().out).splitlines()
    assert {re.sub(r"in \d+\.\d+ s", "in TIME", line[4:]) for line in report} <= set(printed)
    assert "\n".join(assembly) in (tmp_path / "out/k.s").read_text()


def test_pages_count_the_kept_kernels() -> None:
    count = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests/golden/kept").glob("*.txt"))
    assert f"pinned by the tests | {count} |" in (ROOT / "README.md").read_text()
    assert f"instructions of {count} kernels" in (ROOT / "CONTRIBUTING.md").read_text()


def test_every_block_that_could_run_is_run_or_plain() -> None:
    """A block that names a language is run: what is not must stand without one; output follows what prints it."""
    for page in PAGES:
        text = page.read_text()
        for info in re.findall(r"^```(.+)$", text, re.MULTILINE):
            assert info in ("python run", "python continued", "sh run", "sh continued", "output", "text"), (
                f"{page.name}: {info}"
            )
        assert len(re.findall(r"^```output$", text, re.MULTILINE)) == sum(s.output is not None for s in snippets(page))


def test_the_config_page_has_every_word() -> None:
    page = (ROOT / "docs/config.md").read_text()
    for word in config.FIELDS:
        assert re.search(rf"^\| `{word}=", page, re.MULTILINE), word


def check(snippet: Snippet, printed: str) -> None:
    """The page shows what was printed; or, while blessing, is made to."""
    if snippet.output is None:
        return
    text = snippet.page.read_text()
    first, last = snippets(snippet.page)[snippet.number].output or (0, 0)  # as it is now, others blessed before
    if blessing():
        snippet.page.write_text(text[:first] + printed + text[last:])
        return
    assert text[first:last] == printed, f"{snippet.page.name}:{snippet.line}: look at the change, then ./dev bless"


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Pages about devices find one: a stand-in."""
    page = request.node.callspec.params.get("page") if hasattr(request.node, "callspec") else None
    with contextlib.ExitStack() as held:
        if page is not None and re.search(r"cg\.load\(|--on hip", page.read_text()):
            library = request.getfixturevalue("hip_library")
            held.enter_context(serving(StandIn(tmp_path_factory.mktemp("device"), library)))
        yield


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for snippet in [s for s in snippets(page) if s.language == "python"]:
        if not snippet.continued:
            namespace = {"__name__": f"docs.{page.stem}"}
        padded = "\n" * (snippet.line - 1) + snippet.code  # so that a traceback names the page's line
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(padded, str(page), "exec", dont_inherit=True), namespace)
        check(snippet, printed.getvalue())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell(page: Path, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folder = tmp_path
    for number, snippet in enumerate(s for s in snippets(page) if s.language == "sh"):
        if not snippet.continued:
            folder = tmp_path / str(number)
            folder.mkdir()
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", snippet.code],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )
        if "no assembler was found" in done.stderr or re.search(r"-22: command not found", done.stderr):
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, f"{page.name}:{snippet.line}\n{done.stderr}"
        check(snippet, done.stdout)
