"""The site of the documentation: every page has its place, the API is documented, and it builds without a warning."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import convgen as cg
from convgen import tile

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"
COLLECTED = ("index.md", "examples.md", "gallery.md", "api.md", "contributing.md", "changelog.md")


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(entry)


def test_every_page_has_its_place() -> None:
    config = yaml.safe_load((SITE / "mkdocs.yml").read_text())
    known = sorted(pages(config["nav"]))
    assert known == sorted([*COLLECTED, *(page.name for page in (ROOT / "docs").glob("*.md"))])


@pytest.mark.parametrize("name", cg.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    value = getattr(cg, name)
    assert inspect.getdoc(value)
    if not inspect.isclass(value):
        assert "Raises" in value.__doc__ or "Error" in value.__doc__ or "fall" in value.__doc__
        return
    for member in vars(value):
        if not member.startswith("_") and callable(getattr(value, member)):
            assert inspect.getdoc(getattr(value, member)), f"{name}.{member}"


def test_links_and_fences_are_those_of_the_site() -> None:
    spec = importlib.util.spec_from_file_location("build_site", SITE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    text = "[tuning](docs/tune.md#x)\n```python run\n```\n```output\n```\n"
    assert build._page(text) == "[tuning](tune.md#x)\n```python\n```\n```text\n```\n"
    assert "](docs/" not in build._page((ROOT / "README.md").read_text())
    api = "\n".join(build._api())
    assert all(f"`cg.{name}`" in api for name in cg.__all__)
    assert all(f"`tile.{name}`" in api for name in tile.__all__)
    assert "::: convgen.device.loaded.DeviceKernel" in api


def test_search_works_in_pages_opened_as_files() -> None:
    config = yaml.safe_load((SITE / "mkdocs.yml").read_text())
    assert "offline" in config["plugins"]


def test_the_version_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == cg.__version__
    assert f"## {cg.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.sweep
def test_it_builds_without_a_warning() -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (./dev docs does that)")
    done = subprocess.run(["./dev", "docs"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    for page in COLLECTED:
        assert (ROOT / "out" / "site" / page).with_suffix(".html").exists()
    assert (ROOT / "out" / "site" / "search" / "search_index.js").exists()
