"""Uses of a kernel on a GPU, each executed once: tensors of torch, DLPack, a graph, C, the command line, a fault."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from lib.cuda_checks import DEVICE
from lib.cuda_times import TARGET, strides

from convgen.ir.error import ConvgenError

_PRODUCT = "--dt=f16 256x192:192x320"
_LAYER = "--dir=FWD_D --dt=f16 --stag=axb --wtag=axb --dtag=axb mb5ic32ih14oc48oh14kh3ph1"
#: Sums of slices meet in a workspace, and a second launch adds them.
_SLICES = "tile=64x64x32 waves=2x2 mma=8x16x16 slots=2 taps=split acc=v slices=3 sum=launch"


def _compiled(line: str, config: str | None = None) -> Any:
    from convgen import driver
    from convgen.problem.matmul import parse_problem

    return driver.compile(driver.build(parse_problem(line), TARGET, config=config))


def _factors(torch: Any) -> tuple[Any, Any]:
    """Return f16 matrices [256, 192] and [192, 320] of small integers, whose products are exact."""
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = (256, 192), (192, 320)
    left, right = (torch.randint(-3, 4, each, generator=generator, device="cuda").half() for each in shapes)
    return left, right


def _loaded(line: str = _PRODUCT, config: str | None = None) -> Any:
    import convgen as cg

    return cg.load(_compiled(line, config), device=DEVICE)


def _strided(kernel: Any, name: str, tensor: Any) -> Any:
    """Return a copy of a tensor with the strides of the launch record, which are plain."""
    stored = kernel.program.record.buffers[name].tensor
    found = tensor.new_empty_strided(tensor.shape, strides(stored))
    return found.copy_(tensor)


def tensors_of_torch(folder: Path) -> None:
    """A product in torch's current stream, with an output that torch owns."""
    import torch

    kernel, (left, right) = _loaded(), _factors(torch)
    result = kernel(src=_strided(kernel, "src", left), wei=_strided(kernel, "wei", right))
    assert isinstance(result, torch.Tensor)
    assert torch.equal(result, left @ right)


def arrays_of_numpy(folder: Path) -> None:
    """A product of arrays on the host."""
    import torch

    left, right = (each.cpu().numpy() for each in _factors(torch))
    assert np.array_equal(_loaded()(src=left, wei=right), (left.astype(np.float32) @ right).astype(np.float16))


def tensors_by_dlpack(folder: Path) -> None:
    """A product whose factors are known by DLPack only, and whose result torch takes by DLPack."""
    import torch

    class Known:
        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, **words: Any) -> Any:
            return self.tensor.__dlpack__(**words)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    kernel, (left, right) = _loaded(), _factors(torch)
    result = kernel(src=Known(_strided(kernel, "src", left)), wei=Known(_strided(kernel, "wei", right)))
    assert torch.equal(torch.from_dlpack(result), left @ right)


def a_graph(folder: Path) -> None:
    """A graph of torch that holds three launches with workspaces, replayed with other inputs."""
    import torch

    kernel, (left, right) = _loaded(_PRODUCT, _SLICES), _factors(torch)
    left, right = _strided(kernel, "src", left), _strided(kernel, "wei", right)
    result = _strided(kernel, "dst", left.new_zeros(256, 320))
    stream = torch.cuda.Stream()

    def call() -> None:
        kernel(src=left, wei=right, dst=result, stream=torch.cuda.current_stream())

    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(3):
            call()
    left.neg_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, left @ right)


def sizes_at_launch(folder: Path) -> None:
    """A convolution whose minibatch is known at launch only."""
    import torch

    import convgen as cg
    from convgen.problem.matmul import parse_problem

    problem = parse_problem("--runtime_dims_masks=1 " + _LAYER)
    kernel = cg.load(cg.compile(cg.build(problem, target=TARGET)), device=DEVICE)
    generator = torch.Generator("cuda").manual_seed(0)
    for images in (1, 3, 5):
        shapes = (images, 32, 14, 14), (48, 32, 3, 3)
        src, wei = (torch.randint(-2, 3, each, generator=generator, device="cuda").half() for each in shapes)
        src, wei = (each.contiguous(memory_format=torch.channels_last) for each in (src, wei))
        wanted = torch.nn.functional.conv2d(src.double(), wei.double(), padding=1).half()
        assert torch.equal(kernel(src=src, wei=wei), wanted)


def a_benchmark(folder: Path) -> None:
    """`kernel.benchmark()` with and without cold caches."""
    kernel = _loaded()
    for cold in (True, False):
        found = kernel.benchmark(warmup=1, repeats=3, cold=cold)
        assert len(found.times) == 3, found
        assert all(0 < us < 1e4 for us in found.times), found.times


def exported_c(folder: Path) -> None:
    """Exported C, compiled by the system's compiler and called in torch's context."""
    import torch

    import convgen as cg

    code = _compiled(_PRODUCT, _SLICES)
    cg.export(code, folder / "k")
    flags = ["-std=c11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC"]
    command = ["cc", *flags, str(folder / "k.c"), "-o", str(folder / "k.so"), "-l:libcuda.so.1"]
    subprocess.run(command, check=True, capture_output=True)
    kernel, (left, right) = _loaded(_PRODUCT, _SLICES), _factors(torch)  # the record's strides
    given = [_strided(kernel, name, each) for name, each in (("src", left), ("wei", right))]
    result = _strided(kernel, "dst", left.new_zeros(256, 320))
    library, loaded = ctypes.CDLL(str(folder / "k.so")), ctypes.c_void_p()
    library.k_workspace_bytes.restype = ctypes.c_size_t
    workspace = torch.zeros(library.k_workspace_bytes(), dtype=torch.uint8, device="cuda")
    buffers = (ctypes.c_void_p * 3)(*(each.data_ptr() for each in (*given, result)))
    torch.cuda.synchronize()
    assert library.k_load(ctypes.byref(loaded)) == 0
    assert library.k_launch(loaded, buffers, ctypes.c_void_p(workspace.data_ptr()), None) == 0
    torch.cuda.synchronize()
    assert library.k_unload(loaded) == 0
    assert torch.equal(result, left @ right)


def a_tuned_config(folder: Path) -> None:
    """`convgen tune --on` writes the fastest of two configs, with the device's name, to a registry."""
    file = folder / "r.registry"
    words = ["256x192:192x320", "--dt=f16", f"--target={TARGET}", "--on=cuda", "--configs=2", f"--registry={file}"]
    done = subprocess.run([sys.executable, "-m", "convgen", "tune", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NVIDIA" in file.read_text()


def a_fault(folder: Path) -> None:
    """A kernel that writes outside its memory is one line of `convgen run`, and the next program is right."""
    from convgen.run.files import write_code

    write_code(_compiled(_PRODUCT), str(folder / "k"), ".ptx", ".ptx")
    right = (folder / "k.ptx").read_text()
    name, wrong = "cvta.to.global.u64 %rd6, %rd5;", "add.s64 %rd6, %rd5, 0x7f0000000000;"
    assert right.count(name) == 1
    outcomes = []
    for text in (right.replace(name, wrong), right):
        (folder / "k.ptx").write_text(text)
        command = [sys.executable, "-m", "convgen", "run", str(folder / "k.launch.json"), "--on", "cuda"]
        outcomes.append(subprocess.run(command, capture_output=True, text=True))
    fault, passed = outcomes
    assert (passed.returncode, "PASSED" in passed.stdout) == (0, True), passed.stdout + passed.stderr
    assert fault.returncode in (1, 2), fault.stdout + fault.stderr
    assert "Traceback" not in fault.stderr
    assert len(fault.stderr.splitlines()) == 1, fault.stderr


USES: tuple[Callable[[Path], None], ...] = (
    tensors_of_torch,
    arrays_of_numpy,
    tensors_by_dlpack,
    a_graph,
    sizes_at_launch,
    a_benchmark,
    exported_c,
    a_tuned_config,
    a_fault,
)


def uses() -> dict[str, str]:
    """Return for each use "right", or what went wrong."""
    found = {}
    for use in USES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                use(Path(folder))
                outcome = "right"
            except (AssertionError, OSError, ConvgenError, subprocess.CalledProcessError) as error:
                outcome = f"{type(error).__name__}: {error}"
        found[use.__name__.replace("_", " ")] = outcome
    return found
