"""The site of the documentation: pages of `docs/` and of the checkout, the API, examples and a gallery.

`collect` writes the input of MkDocs to `out/docs`; MkDocs writes `out/site`. Each picture of the gallery is made by the
command that is shown below it.
"""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import convgen as cg
from convgen import tile
from convgen.commands import cli

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "out" / "docs"

#: Fence of a tested block -> its language for MkDocs.
_FENCES = {"python run": "python", "python continued": "python", "sh run": "sh", "sh continued": "sh", "output": "text"}
_LINK = re.compile(r"\]\(docs/([^)]*)\)")

#: Title of a picture, its description, and the command, whose -o names the picture.
_GALLERY = (
    (
        "A matrix product on eight dies",
        "Colours are dies; workgroups go to them round robin. In the chosen order each die has one block.",
        "map 4096x4096:4096x4096 --dt f16 -o pictures/chosen-gemm.svg",
    ),
    (
        "Groups without a remap",
        "Each die has every eighth tile.",
        "map --grid 16x16 --map group:4m -o pictures/groups.svg",
    ),
    (
        "A Hilbert curve on eight dies",
        "Each die has one piece of the curve.",
        "map --grid 16x16 --map xcc:8+hilbert -o pictures/hilbert.svg",
    ),
    (
        "The result of a matrix instruction",
        "The lane and the register that hold each element of D.",
        "layout --mma 32x32x8 --operand d -o pictures/mfma-d.svg",
    ),
    (
        "An operand on Xe",
        "The lane and the register that hold each element of the rows of a dpas.",
        "layout --mma 16x8x16 --operand b --target xehpc -o pictures/dpas-b.svg",
    ),
    (
        "XeTile's round robin",
        "Four blocks on two rows of subgroups.",
        "layout --wg-map 'sg_layout = [2, 2], sg_data = [32, 128]' --tile 128x128 -o pictures/wg-map.svg",
    ),
    (
        "Waves and pipes over time",
        "A compute unit with as many workgroups as it holds.",
        "profile k.launch.json --timeline pictures/timeline.svg",
    ),
)
_RETURNED = (
    "convgen.driver.Build",
    "convgen.run.code.Code",
    "convgen.run.launch_record.LaunchRecord",
    "convgen.device.loaded.DeviceKernel",
    "convgen.device.benchmark.Benchmark",
)
_OF_PROBLEMS = (
    "parse",
    "from_sizes",
    "src_dims",
    "wei_dims",
    "dst_dims",
    "bias_dims",
    "macs",
    "descriptor",
)  #: members of problem classes that the API page lists
_LAYER = "mb1ic64ih56oc64oh56kh3ph1 --dir FWD_D --dt f16"  #: the layer of `./dev demo`
_EXPLAINED = ("gfx942", "xehpc")


def collect() -> None:
    """Write all pages to `PAGES`, which is emptied first."""
    shutil.rmtree(PAGES, ignore_errors=True)
    (PAGES / "pictures").mkdir(parents=True)
    for page in sorted((ROOT / "docs").glob("*.md")):
        (PAGES / page.name).write_text(_page(page.read_text()))
    for picture in (ROOT / "docs" / "pictures").iterdir():
        shutil.copy(picture, PAGES / "pictures")
    for source, name in (("README", "index"), ("CONTRIBUTING", "contributing"), ("CHANGELOG", "changelog")):
        (PAGES / f"{name}.md").write_text(_page((ROOT / f"{source}.md").read_text()))
    (PAGES / "examples.md").write_text("\n".join(_examples()))
    (PAGES / "api.md").write_text("\n".join(_api()))
    (PAGES / "gallery.md").write_text("\n".join(_gallery()))


def _page(text: str) -> str:
    """Return a page for MkDocs, with its fences, and with links between pages of one folder."""
    for fence, language in _FENCES.items():
        text = text.replace(f"```{fence}\n", f"```{language}\n")
    return _LINK.sub(r"](\1)", text)


def _examples() -> Iterator[str]:
    yield "# Examples\n"
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield f"## {path.stem.replace('_', ' ').capitalize()}\n"
        yield f"`examples/{path.name}`\n"
        yield f"```python\n{path.read_text()}```\n"


def _api() -> Iterator[str]:
    """Yield the API page: each public name, then the classes that functions return, with their docstrings."""
    yield "# Python\n"
    yield "All of it is in the module `convgen`, here `import convgen as cg`; the README shows how it goes together.\n"
    kinds: dict[str, list[str]] = {
        title: [] for title in ("Problems", "From a problem to a result", "Kernels by hand", "Errors")
    }
    for name in cg.__all__:
        value = getattr(cg, name)
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        kind = "Errors" if is_error else "Problems" if hasattr(value, "parse") else "Kernels by hand"
        kinds[kind if inspect.isclass(value) else "From a problem to a result"].append(name)
    for title, names in kinds.items():
        yield f"## {title}\n"
        for name in names:
            value = getattr(cg, name)
            yield f"`cg.{name}`\n\n::: {value.__module__}.{value.__name__}"
            if hasattr(value, "parse"):
                yield f"    options: {{members: [{', '.join(_OF_PROBLEMS)}]}}\n"
            else:  # the builder of kernels inherits the methods that nest statements
                yield f"    options: {{inherited_members: {str(name == 'Kernel').lower()}}}\n"
    yield "## What functions return\n"
    yield from (f"::: {name}\n" for name in _RETURNED)
    yield "## The tile language\n"
    yield "All of it is in the module `convgen.tile`; [the tile language](tile.md) shows how it goes together.\n"
    for name in tile.__all__:
        yield f"`tile.{name}`\n\n{_documented(getattr(tile, name))}\n"


def _documented(value: Any) -> str:
    """Return the entry of a name of the tile language; functions made at run time are documented by inspection."""
    if not callable(value):
        return f"Either of the types `{value}`."
    if "<locals>" in value.__qualname__:
        return f"```python\n{value.__name__}{inspect.signature(value)}\n```\n\n{inspect.getdoc(value)}"
    home = vars(sys.modules[value.__module__])
    return f"::: {value.__module__}.{next(name for name, other in home.items() if other is value)}"


def _gallery() -> Iterator[str]:
    """Yield the gallery: pictures that commands make, and pages on the demo layer."""
    yield "# Gallery\n"
    yield "The command below each picture writes it.\n"
    _run(f"conv {_LAYER} -o k")
    for title, description, command in _GALLERY:
        _run(command)
        words = shlex.split(command)
        picture = next(word for word in words if word.startswith("pictures/"))
        yield f"## {title}\n\n{description}\n\n![{title}: {description}]({picture})\n\n```sh\nconvgen {command}\n```\n"
    yield "## Kernels, explained\n"
    for target in _EXPLAINED:
        command = f"explain {_LAYER} --target {target} -o {target}.html"
        _run(command)
        yield f"- [A layer of ResNet-50 for {target}]({target}.html): `convgen {command}`"
    for file_of_layer in PAGES.glob("k.*"):
        file_of_layer.unlink()


def _run(command: str) -> None:
    """Run a command of convgen in `PAGES`; a failure ends the build."""
    from contextlib import chdir, redirect_stdout
    from io import StringIO

    with chdir(PAGES), redirect_stdout(StringIO()):
        status = cli.main(shlex.split(command))
    if status:
        sys.exit(f"convgen {command} ended with {status}")


if __name__ == "__main__":
    collect()
