"""The snippets of README and docs that are marked `run`: a page's Python in one namespace, its shell in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^```(?P<language>\w+) run\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@attrs.frozen
class Snippet:
    """A fenced block and the line where its code begins."""

    page: Path
    line: int
    language: str
    code: str


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text()
    return [
        Snippet(page, text.count("\n", 0, found.start("code")) + 1, found["language"], found["code"])
        for found in _FENCE.finditer(text)
    ]


PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if snippets(page)]


def test_the_pages_have_snippets() -> None:
    assert {page.name for page in PAGES} >= {"README.md", "adding-a-pass.md", "adding-a-target.md"}
    readme = [snippet.language for snippet in snippets(ROOT / "README.md")]
    assert readme.count("python") >= 2
    assert readme.count("sh") >= 4


def test_every_block_that_could_run_is_run_or_plain() -> None:
    """A block that names a language is run: what is not must stand without one."""
    for page in PAGES:
        for info in re.findall(r"^```(.+)$", page.read_text(), re.MULTILINE):
            assert info in ("python run", "sh run"), f"{page.name}: {info}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": f"docs.{page.stem}"}
    for snippet in snippets(page):
        if snippet.language == "python":
            padded = "\n" * (snippet.line - 1) + snippet.code  # so that a traceback names the page's line
            exec(compile(padded, str(page), "exec", dont_inherit=True), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell(page: Path, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for snippet in snippets(page):
        if snippet.language == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", snippet.code],
                cwd=tmp_path,
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, f"{page.name}:{snippet.line}\n{done.stderr}"
