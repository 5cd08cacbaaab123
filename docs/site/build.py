"""The site of the documentation: pages of this folder's parent and of the checkout, the API, examples and a gallery.

What MkDocs reads is collected in `out/docs`, and becomes `out/site`. Pictures of the gallery are made by the commands
that stand below them.
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

#: Fences of pages, whose blocks are tests, as MkDocs knows them.
_FENCES = {"python run": "python", "python continued": "python", "sh run": "sh", "sh continued": "sh", "output": "text"}
_LINK = re.compile(r"\]\(docs/([^)]*)\)")

#: Title of a picture, what one sees, and the command, whose -o names the picture.
_GALLERY = (
    (
        "A matrix product on eight dies",
        "Colours are dies, which workgroups come to in turns. In the order that is chosen each has a block of its own.",
        "map 4096x4096:4096x4096 --dt f16 -o pictures/chosen-gemm.svg",
    ),
    (
        "Groups without a remap",
        "Each die has every eighth tile.",
        "map --grid 16x16 --map group:4m -o pictures/groups.svg",
    ),
    (
        "A Hilbert curve on eight dies",
        "Pieces of one curve.",
        "map --grid 16x16 --map xcc:8+hilbert -o pictures/hilbert.svg",
    ),
    (
        "The result of a matrix instruction",
        "Who holds which element of D: the lane, and the register there.",
        "layout --mma 32x32x8 --operand d -o pictures/mfma-d.svg",
    ),
    (
        "An operand on Xe",
        "The rows of a dpas as its lanes hold them.",
        "layout --mma 16x8x16 --operand b --target xehpc -o pictures/dpas-b.svg",
    ),
    (
        "XeTile's round robin",
        "Four blocks on two rows of subgroups.",
        "layout --wg-map 'sg_layout = [2, 2], sg_data = [32, 128]' --tile 128x128 -o pictures/wg-map.svg",
    ),
    (
        "What waves and pipes do when",
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
)  #: that people need
_LAYER = "mb1ic64ih56oc64oh56kh3ph1 --dir FWD_D --dt f16"  #: of `./dev demo`
_EXPLAINED = ("gfx942", "xehpc")


def collect() -> None:
    """Everything into `PAGES`, anew."""
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
    """A page as MkDocs reads it: its fences, and links as files now stand."""
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
    """Each public name, and what functions return, with the documentation that stands in the code."""
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
            yield f"    options: {{members: [{', '.join(_OF_PROBLEMS)}]}}\n" if hasattr(value, "parse") else ""
    yield "## What functions return\n"
    yield from (f"::: {name}\n" for name in _RETURNED)
    yield "## The tile language\n"
    yield "All of it is in the module `convgen.tile`; [the tile language](tile.md) shows how it goes together.\n"
    for name in tile.__all__:
        yield f"`tile.{name}`\n\n{_documented(getattr(tile, name))}\n"


def _documented(value: Any) -> str:
    """Document a name of the tile language: from its source, or by inspection where a function is made at run time."""
    if not callable(value):
        return f"Either of the types `{value}`."
    if "<locals>" in value.__qualname__:
        return f"```python\n{value.__name__}{inspect.signature(value)}\n```\n\n{inspect.getdoc(value)}"
    home = vars(sys.modules[value.__module__])
    return f"::: {value.__module__}.{next(name for name, other in home.items() if other is value)}"


def _gallery() -> Iterator[str]:
    """Pictures that commands made, and pages of the demo layer."""
    yield "# Gallery\n"
    yield "Each picture is what the command below it writes.\n"
    _run(f"conv {_LAYER} -o k")
    for title, what, command in _GALLERY:
        _run(command)
        words = shlex.split(command)
        picture = next(word for word in words if word.startswith("pictures/"))
        yield f"## {title}\n\n{what}\n\n![{title}: {what}]({picture})\n\n```sh\nconvgen {command}\n```\n"
    yield "## Kernels, explained\n"
    for target in _EXPLAINED:
        command = f"explain {_LAYER} --target {target} -o {target}.html"
        _run(command)
        yield f"- [A layer of ResNet-50 for {target}]({target}.html): `convgen {command}`"
    for left in PAGES.glob("k.*"):
        left.unlink()


def _run(command: str) -> None:
    """A command of convgen in `PAGES`; ends the build where it fails."""
    from contextlib import chdir, redirect_stdout
    from io import StringIO

    with chdir(PAGES), redirect_stdout(StringIO()):
        status = cli.main(shlex.split(command))
    if status:
        sys.exit(f"convgen {command} ended with {status}")


if __name__ == "__main__":
    collect()
