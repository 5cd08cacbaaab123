"""A built wheel installs into a fresh virtual environment, and `convgen` works there, outside the tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Index and build environments are kept out: the build uses the setuptools that is here.
OFFLINE = ["--no-deps", "--no-index", "--disable-pip-version-check", "--quiet"]


def version_of(package: str) -> tuple[int, ...]:
    """Major and minor; empty if it is not installed."""
    try:
        return tuple(int(part) for part in metadata.version(package).split(".")[:2])
    except metadata.PackageNotFoundError:
        return ()


def pip(*arguments: str | Path, python: str = sys.executable) -> None:
    done = subprocess.run([python, "-m", "pip", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what git knows or would add, built in a copy so that the checkout stays as it is."""
    if not (version_of("pip") and version_of("setuptools") >= (70, 1)):
        pytest.skip("building a wheel without an index needs pip, and setuptools from 70.1")
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout: nobody says which files are source")
    for name in listed.stdout.splitlines():
        source = ROOT / name
        if source.is_file() and not name.startswith("tests/"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(source.read_bytes())
    pip("wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", out, copy)
    (built,) = out.glob("convgen-*.whl")
    return built


def test_the_wheel_holds_the_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = {f"convgen/{p.relative_to(ROOT / 'gen')}" for p in (ROOT / "gen").rglob("*.py")}
    assert tracked <= names
    assert {f"convgen/device/templates/{p.name}" for p in (ROOT / "gen/device/templates").iterdir()} <= names
    templates = {f"convgen/{p.relative_to(ROOT)}" for p in (ROOT / "backends").glob("*/templates/*")}
    assert templates
    assert templates <= names
    for room in ("ir", "passes", "backends"):
        assert {f"convgen/{p.relative_to(ROOT)}" for p in (ROOT / room).rglob("*.py")} <= names
    top = {name.split("/")[0] for name in names}
    assert top == {"convgen", next(name for name in top if name.endswith(".dist-info"))}


def test_it_works_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    """In a fresh environment whose only other packages are those that convgen depends on."""
    venv.create(tmp_path / "env", with_pip=False)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    pip("install", *OFFLINE, "--target", site, wheel)
    dependencies = next(path for path in sys.path if path.endswith("site-packages") and (Path(path) / "numpy").is_dir())
    link_dependencies(Path(dependencies), site)
    python = tmp_path / "env" / "bin" / "python"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(python), "-I", *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run("-c", "import convgen, convgen.ir, convgen.backends; print(convgen.__file__, convgen.ir.__file__)")
    assert all(path.startswith(str(site)) for path in where.split())
    entry = "import sys; from convgen.commands.cli import entry; sys.argv[0] = 'convgen'; entry()"
    line = "conv mb1ic16ih6oc16kh3ph1 --dir FWD_D --dt f16 --run --json -o k".split()
    data = json.loads(run("-c", entry, *line))
    assert data["run"]["status"] == "passed"
    assert (tmp_path / "k.launch.json").exists()
    run("-c", entry, "explain", "k.launch.json", "-o", "k.html")
    assert (tmp_path / "k.html").read_text().startswith("<!doctype html>")
    assert "usage: convgen" in run("-m", "convgen", "--help")
    assert (site / "bin" / "convgen").exists()


def link_dependencies(installed: Path, site: Path) -> None:
    """Everything that is installed but convgen itself."""
    for entry in installed.iterdir():
        if not entry.name.startswith(("convgen", "__editable__", "__pycache__", "_distutils_hack", "distutils-")):
            target = site / entry.name
            if not target.exists():
                target.symlink_to(entry)


_WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(("PIL", "jinja2", "rich", "yaml")))
import numpy as np
import convgen as cg
from convgen.commands.cli import main

problem = cg.Matmul.parse("32x32:32x32", dt="f16")
ones = np.ones((32, 32), np.float16)
result = cg.simulate(cg.compile(cg.build(problem, target="gfx942")), src=ones, wei=ones)
assert (result == 32).all()
code = cg.compile(cg.build(problem, target="gfx942"))
sys.exit(main(["explain", "32x32:32x32", "-o", "k.html"]))
"""


def test_the_library_needs_no_extra_and_commands_name_theirs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_EXTRAS], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    (said,) = done.stderr.strip().splitlines()
    assert said.endswith("is not installed, which this needs: pip install 'convgen[cli]'")
