"""The package of a model's kernels: code objects, launch records, a list of layers; as C, or as a Python package."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convgen.device import c_export
from convgen.device.loaded import Program
from convgen.ir.error import UserError
from convgen.ir.record import frozen
from convgen.problem.matmul import parse_problem
from convgen.run.launch_record import LaunchRecord
from convgen.version import __version__

LIST = "model.json"  #: the file that lists kernels and layers
_RECORD = ".launch.json"

_SOURCE = '''\
"""Kernels of a model by layer, written by convgen {version}: `load(layer)(src=x, wei=w)`."""

from functools import cache
from pathlib import Path

import convgen as cg

MODEL, TARGET = {model!r}, {target!r}

#: layer -> launch record beside this file
LAYERS = {{
{layers}}}


def load(layer, device=None):
    """Return the kernel of a layer on a device, loaded once (`cg.load`). Raises cg.UserError for an unknown layer."""
    if layer not in LAYERS:
        raise cg.UserError(f"given the layer {{layer!r}}, wanted one of {{', '.join(LAYERS)}}")
    return _loaded(LAYERS[layer], device)


@cache
def _loaded(record, device):
    return cg.load(Path(__file__).parent / record, device)
'''


@frozen
class Kernel:
    """The code of a distinct problem, and the layers that it is for."""

    problem: str
    config: str
    layers: tuple[str, ...]
    count: int  #: layers; more than there are names where one name counts several
    files: Mapping[str, bytes]  #: name in the folder -> content; none for a problem that launches nothing
    us: float | None  #: predicted time of a call; None without one

    @property
    def record(self) -> str | None:
        """Return the name of the launch record; None for a problem that launches nothing."""
        return next((name for name in self.files if name.endswith(_RECORD)), None)


@frozen
class Package:
    """The kernels of a model for a target, and why layers have none."""

    model: str
    target: str
    kernels: tuple[Kernel, ...]
    left_out: tuple[tuple[tuple[str, ...], str], ...]  #: layers, and the reason

    @property
    def layers(self) -> dict[str, str]:
        """Return the name of the launch record of each layer that has one."""
        return {layer: kernel.record for kernel in self.kernels if kernel.record for layer in kernel.layers}

    def contents(self, folder: Path, c: str | None = None, *, python: bool = False) -> dict[Path, bytes]:
        """Return the files of the package by path: those of the kernels and `model.json`.

        `c` adds the kernels as C, under names that begin with it; `python` adds `__init__.py`. Raises UserError for a
        name that is none in C, a folder that no program can import, and records without a code object; Unsupported for
        C of a family without a runtime.
        """
        contents = {folder / name: content for kernel in self.kernels for name, content in kernel.files.items()}
        contents[folder / LIST] = self._list().encode()
        if c is not None:
            programs = {str(kernel.record).removesuffix(_RECORD): _program(kernel) for kernel in self._launched}
            remarks = {name: shortened(kernel.layers) for name, kernel in zip(programs, self._launched)}
            contents |= c_export.contents_of_all(programs, folder / c, remarks)
        if python:
            check_importable(folder)
            layers = "".join(f"    {layer!r}: {record!r},\n" for layer, record in self.layers.items())
            text = _SOURCE.format(version=__version__, model=self.model, target=self.target, layers=layers)
            contents[folder / "__init__.py"] = text.encode()
        return contents

    @property
    def _launched(self) -> list[Kernel]:
        return [kernel for kernel in self.kernels if kernel.record]

    def _list(self) -> str:
        kernels = [
            {
                "launch": kernel.record,
                "problem": kernel.problem,
                "config": kernel.config,
                "count": kernel.count,
                "layers": list(kernel.layers),
                "us": None if kernel.us is None else round(kernel.us, 3),
            }
            for kernel in self.kernels
        ]
        left_out = [{"layers": list(layers), "why": why} for layers, why in self.left_out]
        entries: dict[str, Any] = {"model": self.model, "target": self.target, "convgen": __version__}
        return json.dumps({**entries, "kernels": kernels, "left_out": left_out}, indent=1) + "\n"


def check_importable(folder: Path) -> None:
    """Raise UserError unless a program can import a folder by its name."""
    name = folder.absolute().name
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"given the folder {str(folder)!r} with --python, wanted a name that Python can import")


def _program(kernel: Kernel) -> Program:
    """Return the program of a kernel's files. Raises UserError for a record without a code object."""
    name = str(kernel.record)
    record = LaunchRecord.from_json(kernel.files[name].decode(), name)
    content = None if record.object is None else kernel.files[record.object]
    return Program(kernel.problem, record, record.required(content, kernel.problem), parse_problem(kernel.problem))


def shortened(layers: Sequence[str]) -> str:
    """Return the first name of layers, and how many more there are."""
    more = len(layers) - 1
    return f"{layers[0]} and {more} more" if more > 0 else "".join(layers)
