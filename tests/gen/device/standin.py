"""A HIP runtime without a GPU for tests: a library built from C, whose launches the simulator executes.

The library (`standin_hip.c`) keeps the device's memory in files, and hands each launch over a socket: the code object,
the kernel, grid, workgroup, dynamic local memory, and the bytes of the argument block as they are. So nothing is shared
with how convgen places arguments for its own simulator. It serves this process by ctypes, and others that link it.
"""

from __future__ import annotations

import os
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import ClassVar, TypeVar
from unittest.mock import patch

import attrs
import numpy as np

from convgen.backends.amdgpu.sim import CodeObject, simulate
from convgen.backends.sim.device_memory import FIRST_ADDRESS, SPACING
from convgen.backends.simulation import Encoded, KernelArg, LaunchRequest, SimReport
from convgen.backends.toolchain import CLANG
from convgen.ir.layout.tensor_map import MAP_BYTES

Served = TypeVar("Served", bound="StandIn")

SOURCE = Path(__file__).with_name("standin_hip.c")
LIBRARY = "libamdhip64.so"

_NO_BINARY, _NOT_FOUND, _LAUNCH_FAILURE = 209, 500, 719


def build(folder: Path, source: Path = SOURCE, library: str = LIBRARY, *further: str) -> Path:
    """The library, in a folder; `further` are flags of the compiler."""
    clang = CLANG.find()
    assert clang is not None, "the stand-in is built by clang"
    made = folder / library
    flags = "-shared -fPIC -O1 -Wall -Wextra -Werror -pthread"
    subprocess.run([clang, *flags.split(), *further, str(source), "-o", str(made)], check=True)
    return made


@attrs.frozen
class Launched:
    """A launch as it came over the socket."""

    kernel: str
    grid: tuple[int, int, int]
    workgroup: tuple[int, int, int]
    dynamic_bytes: int
    stream: int
    block: bytes


@attrs.frozen
class Needs:
    """Needs of a kernel: bytes of static local memory, and of arguments."""

    shared_bytes: int
    block_bytes: int
    maps: tuple[int, ...] = ()  #: offsets of arguments that the host encodes
    parameters: tuple[tuple[int, int], ...] = ()  #: offset and bytes of each, for a library that takes them one by one


@attrs.define
class StandIn:
    """A device that is being served."""

    folder: Path
    library: Path
    arch: str = "gfx942"
    launches: list[Launched] = attrs.field(factory=list)
    findings: list[str] = attrs.field(factory=list)

    @property
    def variables(self) -> dict[str, str]:
        """Of the environment, for whoever uses the library."""
        return {
            "CONVGEN_HIP": str(self.library),
            "CONVGEN_STANDIN": str(self.folder),
            "CONVGEN_STANDIN_ARCH": self.arch,
        }

    invalid_image: ClassVar = 200
    simulate: ClassVar[Callable[..., SimReport]] = staticmethod(simulate)

    def read(self, content: bytes) -> tuple[str, dict[str, Needs]]:
        """The target of a code object, and what each kernel needs; raises anything for content that is none."""
        code = CodeObject.load(content)
        descriptors = {name: kernel.descriptor for name, kernel in code.kernels.items()}
        return code.arch.name, {name: Needs(d.group_segment, d.kernarg_size) for name, d in descriptors.items()}

    def encoded(self, content: bytes) -> Encoded:
        """What the bytes of an argument that the host encodes stand for."""
        raise NotImplementedError

    def answer(self, line: str) -> str:
        what, path, *rest = line.split(" ")
        try:
            arch, kernels = self.read(Path(path).read_bytes())
        except Exception as error:
            return f"{self.invalid_image} {error}"
        if what == "load":
            return "0" if arch == self.arch else f"{_NO_BINARY}"
        if rest[0] not in kernels:
            return f"{_NOT_FOUND}"
        if what == "function":
            needs = kernels[rest[0]]
            return " ".join(map(str, (0, needs.shared_bytes, *chain.from_iterable(needs.parameters))))
        return self._launch(Path(path), kernels[rest[0]], rest)

    def _launch(self, path: Path, needs: Needs, words: Sequence[str]) -> str:
        name, block = words[0], bytes.fromhex(words[-1])
        grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic, stream = map(int, words[1:-1])
        launched = Launched(name, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), dynamic, stream, block)
        self.launches.append(launched)
        wanted = needs.block_bytes
        if len(block) != wanted:
            self.findings.append(f"an argument block of {len(block)} bytes, {wanted} are wanted")
            return f"{_LAUNCH_FAILURE}"
        shared = needs.shared_bytes + dynamic
        arguments = [KernelArg(0, len(block), block)] if block else []
        arguments += [KernelArg(at, MAP_BYTES, self.encoded(block[at : at + MAP_BYTES])) for at in needs.maps]
        request = LaunchRequest(name, launched.grid, launched.workgroup, tuple(arguments), shared, len(block))
        report = self.simulate(path.read_bytes(), [request], dict(memory_of(path)))
        self.findings += map(str, report.findings)
        return f"{_LAUNCH_FAILURE if report.findings else 0}"


def memory_of(module: Path) -> Iterator[tuple[str, np.ndarray[tuple[int], np.dtype[np.uint8]]]]:
    """All allocations, by number, of the process that loaded a module, so that the simulator, which counts up, has each
    at the address that the library gave; nothing where one was freed.
    """
    process = module.name.split("-")[0]
    numbers = {int(path.stem.split("-")[1]): path for path in module.parent.glob(f"{process}-*.memory")}
    for number in range(max(numbers, default=-1) + 1):
        there = number in numbers
        yield str(number), np.memmap(numbers[number], np.uint8, "r+") if there else np.empty(0, np.uint8)


def addresses_agree() -> bool:
    """Whether the library counts addresses as the simulator does."""
    text = SOURCE.read_text()
    return f"#define FIRST {FIRST_ADDRESS:#x}ull" in text and f"(1ull << {SPACING.bit_length() - 1})" in text


@contextmanager
def serving(standin: Served) -> Iterator[Served]:
    """A stand-in that is listened to within, for this process and those that it starts."""
    folder = standin.folder

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(standin.answer(self.rfile.readline().decode().rstrip("\n")).encode())

    with socketserver.ThreadingUnixStreamServer(str(folder / "socket"), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with patch.dict(os.environ, standin.variables):
                yield standin
        finally:
            server.shutdown()
            thread.join()
