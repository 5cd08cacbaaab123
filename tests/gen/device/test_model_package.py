"""The package of a model's kernels on a device: Python loads kernels by layer, a program in C links all of them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import convgen as cg
from convgen.commands import cli
from tests.gen.device.standin import StandIn
from tests.gen.device.test_export import compile_c

NET = """--dir=FWD_D --dt=f16
mb1_ic16oc16_ih6oh6kh3ph1n"first*3" mb1_ic16oc16_ih6oh6kh3ph1n"last"
--reset --dt=f16 64x64:64x128n"fc"
"""

MAIN = """
#include "net.h"
#include <stdio.h>
int main(void) {{
    int status = 0;
    {uses}
    return status;
}}
"""
USE = """{{
        net_{stem}_kernel *kernel;
        status |= net_{stem}_load(&kernel);
        status |= net_{stem}_launch(kernel, NULL, NULL, NULL) != NET_{upper}_INVALID;
        status |= net_{stem}_unload(kernel);
    }}"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net").write_text(NET)
    assert cli.main(["model", "net", "--no-run", "-o", "kernels", "--python", "--c", "net"]) == 0
    return tmp_path / "kernels"


def imported(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(folder.name, folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_layers_are_loaded_by_name(package: Path, standin: StandIn) -> None:
    module = imported(package)
    assert (module.MODEL, module.TARGET, [*module.LAYERS]) == ("net", "gfx942", ["first*3", "last", "fc"])
    assert module.load("first*3") is module.load("last")
    random = np.random.default_rng(0)
    src, wei = (random.integers(-4, 5, dims).astype(np.float16) for dims in ((64, 64), (64, 128)))
    assert np.array_equal(module.load("fc", "hip:0")(src=src, wei=wei), src @ wei)
    assert not standin.findings
    with pytest.raises(cg.UserError, match=r"^given the layer 'fd', wanted one of first\*3, last, fc$"):
        module.load("fd")


def test_a_program_in_c_links_all_kernels(package: Path, standin: StandIn) -> None:
    kernels = json.loads((package / "model.json").read_text())["kernels"]
    stems = [kernel["launch"].removesuffix(".launch.json") for kernel in kernels]
    header = (package / "net.h").read_text()
    assert f'#include "net_{stems[0]}.h" /* first*3 and 1 more */' in header
    uses = "\n    ".join(USE.format(stem=stem, upper=stem.upper()) for stem in stems)
    (package / "main.c").write_text(MAIN.format(uses=uses))
    sources = [path.name for path in sorted(package.glob("*.c"))]
    compile_c(package, *sources, str(standin.library), f"-Wl,-rpath,{standin.library.parent}", "-o", "main")
    subprocess.run(["./main"], cwd=package, check=True)
