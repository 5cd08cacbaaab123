"""Kernels on a device: from tensors, through the runtime's calls and raw argument blocks, to results and back."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convgen as cg
from convgen import tile
from convgen.backends.amdgpu import hip
from convgen.device import dlpack
from convgen.device.allocated import DeviceArray
from convgen.device.loaded import DeviceKernel
from convgen.ir.record import evolve
from convgen.problem.matmul import Problem, parse_problem
from convgen.run import reference
from convgen.run.code import Code
from convgen.run.files import write_code
from convgen.run.launch_record import Buffer
from tests.gen.device.standin import StandIn, addresses_agree
from tests.gen.test_hand_written import saxpy
from tests.strategies import always
from tests.tile.kernels import gemm

Array = np.ndarray[Any, np.dtype[Any]]

#: name -> problem, config (what the chooser takes if None), launches
CASES: dict[str, tuple[str, str | None, int]] = {
    "forward": ("--dir=FWD_D --dt=f16 mb1ic16ih6oc16kh3ph1", None, 1),
    "bias and post-ops": ("--dir=FWD_B --dt=bf16 --attr-post-ops=relu+sum:0.5 mb1ic16ih5oc24kh3ph1", None, 1),
    "operands": ("--dir=FWD_D --dt=f16 --attr-post-ops=prelu:2+mul:f32:2 mb2ic16ih5oc16kh1", None, 1),
    "bytes": ("--dir=FWD_D --dt=u8:s8:s32 mb1ic16ih5oc16kh3ph1", None, 2),
    "channels outside": ("--dir=FWD_D --dt=f16 --stag=abx --dtag=abx mb1ic16ih6oc16kh3ph1", None, 1),
    "channels in blocks": ("--dir=FWD_D --dt=f16 --dtag=aBx16b mb1ic16ih6oc20kh1", None, 1),
    "backward data": ("--dir=BWD_D --dt=f16 mb1ic16ih6oc16kh3ph1", None, 1),
    "phases": (
        "--dir=BWD_D --dt=bf16 mb1ic32ih7oc32kh3sh2ph1",
        "tile=64x32x32 waves=2x1 mma=16x16x16 slots=1 taps=split acc=v",
        4,
    ),
    "backward weights and bias": ("--dir=BWD_WB --dt=f16 mb2ic16ih5oc16kh3ph1", None, 1),
    "slices": (
        "--dir=BWD_WB --dt=f16 mb2ic24oc32iw60kw2",
        "tile=32x32x16 waves=2x2 mma=16x16x16 slots=1 taps=fused acc=v slices=2",
        2,
    ),
    "slices that the last sums": (
        "--dir=BWD_WB --dt=f16 mb2ic24oc32iw60kw2",
        "tile=32x32x16 waves=2x2 mma=16x16x16 slots=1 taps=fused acc=v slices=2 sum=last",
        2,
    ),
    "reordered": (
        "--dir=FWD_D --dt=f16 --stag=abx mb1ic64ih6oc32kh3ph1",
        "tile=64x32x32 waves=2x1 mma=16x16x16 slots=1 taps=split acc=v reorder=src",
        2,
    ),
    "product": ("--dt=f16 --bia-dt=f32 48x64:64x40", None, 1),
    "products": ("--dt=bf16:bf16:f32 3x20x32:3x32x24", None, 1),
}


OF_TORCH = ("forward", "bias and post-ops", "slices", "product")  #: those that run always


@cache
def compiled(line: str, config: str | None = None) -> Code:
    return cg.compile(cg.build(parse_problem(line), "gfx942", config))


def code_of(name: str) -> Code:
    return compiled(*CASES[name][:2])


def right(problem: Problem, inputs: dict[str, Array]) -> dict[str, Array]:
    """The outputs by the reference."""
    found = {}
    for spec in problem.outputs:
        rows, columns = map(np.arange, reference.output_shape(problem, spec.name))
        found[spec.name] = np.empty(spec.dims, reference.numpy_type(spec.dtype))
        at = tuple(reference.output_index(problem, spec.name, rows, columns))
        found[spec.name][at] = reference.outputs(problem, inputs, spec.name, rows, columns)
    return found


def by_name(kernel: DeviceKernel, result: Any) -> dict[str, Any]:
    outputs = kernel.program.outputs
    return result if len(outputs) > 1 else {outputs[0]: result}


def same(found: Any, wanted: Array) -> bool:
    return bool(found.shape == wanted.shape and found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes())


def test_addresses_are_counted_alike() -> None:
    assert addresses_agree()


@pytest.mark.parametrize("name", ["forward", "slices that the last sums"])
def test_launches_at_addresses(name: str, standin: StandIn) -> None:
    """A caller that knows its tensors passes addresses of all buffers, workspaces included; launches leave zeros."""
    code = code_of(name)
    assert code.problem is not None
    kernel = cg.load(code)
    inputs = reference.fill(code.problem)
    memory = {name: kernel.put(name, array) for name, array in inputs.items()}
    buffers = kernel.program.record.buffers
    for other in buffers.keys() - inputs.keys():
        memory[other] = DeviceArray(kernel.device, buffers[other].tensor)
        if buffers[other].zero:
            kernel.device.fill(memory[other].address, buffers[other].tensor.bytes, 0, 0)
    for _ in range(2):
        kernel.launch({name: array.address for name, array in memory.items()}, 0)
        for output, wanted in right(code.problem, inputs).items():
            assert same(memory[output].numpy(), wanted), output
    assert not standin.findings


@pytest.mark.parametrize("name", CASES)
def test_arrays_of_the_host(name: str, standin: StandIn) -> None:
    code = code_of(name)
    assert code.problem is not None
    kernel = cg.load(code)
    inputs = reference.fill(code.problem)
    wanted = right(code.problem, inputs)
    found = by_name(kernel, kernel(**{name: array.copy() for name, array in inputs.items()}))
    assert found.keys() == wanted.keys()
    assert all(same(found[name], wanted[name]) for name in wanted)
    assert not standin.findings
    assert [launch.kernel for launch in standin.launches] == [launch.kernel for launch in code.record.launches]
    again = by_name(kernel, kernel(**inputs))  # with workspaces that were used before
    assert all(same(again[name], wanted[name]) for name in wanted if name not in inputs)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", CASES)
def test_arrays_on_the_device(name: str, standin: StandIn) -> None:
    code = code_of(name)
    assert code.problem is not None
    kernel = cg.load(code)
    inputs = reference.fill(code.problem)
    given = {name: kernel.put(name, array) for name, array in inputs.items()}
    found = by_name(kernel, kernel(**given))
    for output, wanted in right(code.problem, inputs).items():
        assert isinstance(found[output], DeviceArray)
        assert same(found[output].numpy(), wanted), output
    assert not standin.findings


@pytest.mark.parametrize("name", always([(name,) for name in CASES], lambda _, row: row[0] in OF_TORCH))
def test_tensors_of_torch(name: str, standin: StandIn) -> None:
    torch = pytest.importorskip("torch")
    code = code_of(name)
    assert code.problem is not None
    inputs = reference.fill(code.problem)

    def tensor(array: Array) -> Any:
        if array.dtype.name != "bfloat16":
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)

    kernel = cg.load(code)
    found = by_name(kernel, kernel(**{name: tensor(array) for name, array in inputs.items()}))
    for output, wanted in right(code.problem, reference.fill(code.problem)).items():
        assert isinstance(found[output], torch.Tensor)
        assert torch.equal(found[output], tensor(wanted)), output
    assert not standin.findings


def test_an_output_that_is_given_is_written(standin: StandIn) -> None:
    code = code_of("forward")
    assert code.problem is not None
    kernel, inputs = cg.load(code), reference.fill(code.problem)
    wide = np.zeros((1, 32, 6, 12), np.float16)
    view = wide[:, ::2, :, ::-2]  # any strides will do on the host
    assert kernel(**inputs, dst=view) is view
    assert same(view.copy(), right(code.problem, inputs)["dst"])
    assert not wide[:, 1::2].any()
    with kernel.put("dst", np.zeros((1, 16, 6, 6), np.float16)) as held:
        assert kernel(**inputs, dst=held) is held
        assert same(held.numpy(), view.copy())


class Shown:
    """A tensor on the device that is known by one protocol only."""

    def __init__(self, array: DeviceArray, how: str) -> None:
        self.array, self.how, self.streams = array, how, list[int | None]()

    def __getattr__(self, name: str) -> Any:
        if name == "__cuda_array_interface__" and self.how == "interface":
            seen = self.array.shared()
            steps = tuple(2 * stride for stride in seen.strides)
            return {"shape": seen.dims, "typestr": "<f2", "data": (seen.address, False), "strides": steps, "version": 3}
        raise AttributeError(name)


class ByDlpack(Shown):
    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **rest: Any) -> Any:
        self.streams.append(stream)
        if self.how == "legacy" and rest:
            raise TypeError("an argument that is not known")
        return self.array.__dlpack__(stream=stream, **rest)


@pytest.mark.parametrize("how", ["versioned", "legacy", "interface", "pointer", "flat", "bytes"])
def test_memory_of_the_device_is_used_where_it_lies(how: str, standin: StandIn) -> None:
    code = code_of("forward")
    assert code.problem is not None
    kernel, inputs = cg.load(code), reference.fill(code.problem)
    held = {name: kernel.put(name, array) for name, array in inputs.items()}
    held["dst"] = kernel.put("dst", np.zeros((1, 16, 6, 6), np.float16))

    def shown(array: DeviceArray) -> Any:
        if how == "pointer":
            return array.address
        if how in ("flat", "bytes"):
            size, dtype = (array.tensor.bytes, "u8") if how == "bytes" else (array.tensor.bytes // 2, "f16")
            seen = dlpack.SharedTensor(array.address, (size,), (1,), dtype, dlpack.ROCM, 0, True, array)
            return Flat(seen)
        return Shown(array, how) if how == "interface" else ByDlpack(array, how)

    kernel(**{name: shown(array) for name, array in held.items()})
    assert same(held["dst"].numpy(), right(code.problem, inputs)["dst"])
    assert not standin.findings


def test_each_tensor_is_shared_once_where_the_output_is_allocated(standin: StandIn) -> None:
    code = code_of("forward")
    assert code.problem is not None
    kernel = cg.load(code)
    inputs = {name: kernel.put(name, array) for name, array in reference.fill(code.problem).items()}
    shown = {name: ByDlpack(array, "versioned") for name, array in inputs.items()}
    assert isinstance(kernel(**shown), DeviceArray)
    assert [len(tensor.streams) for tensor in shown.values()] == [1] * len(shown)


class Flat:
    def __init__(self, seen: dlpack.SharedTensor) -> None:
        self.seen = seen

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.seen.kind, self.seen.device

    def __dlpack__(self, **_: Any) -> Any:
        return self.__dict__.get("capsule") or dlpack.share(self.seen, versioned=False)


def test_what_is_shared_is_let_go(standin: StandIn) -> None:
    code = code_of("forward")
    assert code.problem is not None
    kernel = cg.load(code)
    array = kernel.put("src", reference.fill(code.problem)["src"])
    for version in (None, (1, 1)):
        capsule = array.__dlpack__(max_version=version)
        assert len(dlpack._shared) == 1
        del capsule
        assert not dlpack._shared


def test_sizes_come_with_the_launch(standin: StandIn) -> None:
    """The minibatch of a convolution, and all of a product: from the tensors' own, or by name."""
    conv = compiled("--dir=FWD_D --dt=f16 --runtime_dims_masks=1 mb3ic16ih5oc16kh3ph1")
    assert conv.record.sizes == ("mb",)
    kernel = cg.load(conv)
    for minibatch in (1, 3):
        other = parse_problem(f"--dir=FWD_D --dt=f16 mb{minibatch}ic16ih5oc16kh3ph1")
        inputs = reference.fill(other)
        assert same(kernel(**inputs), right(other, inputs)["dst"])
        assert same(kernel(**inputs, mb=minibatch), right(other, inputs)["dst"])
        held = {name: DeviceArray.of(kernel.device, kernel.put(name, x).tensor, x) for name, x in inputs.items()}
        assert same(kernel(**held).numpy(), right(other, inputs)["dst"])
    product = cg.load(compiled("--dt=f16 --runtime_dims_masks=3:3 96x64:64x80"))
    other = parse_problem("--dt=f16 32x32:32x48")
    inputs = reference.fill(other)
    assert same(product(**inputs), right(other, inputs)["dst"])
    assert not standin.findings


def test_kernels_by_hand(standin: StandIn) -> None:
    x, y = np.arange(256, dtype=np.int32), np.full(256, 7, np.int32)
    kernel = cg.load(cg.compile(saxpy(), scalars={"n": 3}))
    assert np.array_equal(kernel(x=x, y=y.copy()), 3 * x + 7)
    assert np.array_equal(kernel(x=x, y=y.copy(), n=-2), 7 - 2 * x)
    m, n, k = (tile.size(name, 1 << 15) for name in "mnk")
    tensors = tile.Tensor((m, k), "f16"), tile.Tensor((k, n), "f16"), tile.Tensor((m, n), "f32")
    product = cg.load(cg.compile(gemm(*tensors, bm=64, bn=64, bk=32)))
    a, b = np.ones((40, 24), np.float16), np.arange(24 * 8, dtype=np.float16).reshape(24, 8)
    right = a.astype(np.float32) @ b.astype(np.float32)
    assert np.array_equal(product(m=40, n=8, k=24, a=a.ravel(), b=b.ravel()), right)
    assert np.array_equal(product(a=a, b=b), right)
    assert np.array_equal(product(a=product.put("a", a), b=product.put("b", b.ravel(), n=8, k=24)).numpy(), right)
    assert not standin.findings
    with pytest.raises(cg.UserError, match=r"given b of f16\[8, 24\], wanted f16\[24, 24\]"):
        product(a=a, b=b.T)


def test_arrays_for_kernels_by_hand_have_any_shape(standin: StandIn) -> None:
    x, y = np.arange(256, dtype=np.int32).reshape(4, 64), np.full((16, 16), 7, np.int32)
    kernel = cg.load(cg.compile(saxpy(), scalars={"n": 3}))
    given = y.copy()
    assert kernel(x=x, y=given) is given
    assert np.array_equal(given.ravel(), 3 * x.ravel() + 7)
    there = kernel.put("y", y)
    assert kernel(x=kernel.put("x", x), y=there) is there
    assert np.array_equal(there.numpy(), 3 * x.ravel() + 7)
    with pytest.raises(cg.UserError, match=r"given x of s32\[3, 64\], wanted s32\[256\]"):
        kernel(x=x[:3], y=given)
    assert not standin.findings


def test_files(standin: StandIn, tmp_path: Path) -> None:
    code = code_of("slices")
    assert code.problem is not None
    write_code(code, str(tmp_path / "k"), ".s", ".hsaco")
    inputs = reference.fill(code.problem)
    found = cg.load(tmp_path / "k.launch.json")(**inputs)
    assert all(same(found[name], wanted) for name, wanted in right(code.problem, inputs).items())


def test_streams_have_workspaces_of_their_own(standin: StandIn) -> None:
    code = code_of("slices")
    assert code.problem is not None
    kernel, inputs = cg.load(code, "hip:0"), reference.fill(code.problem)
    held = {name: kernel.put(name, array) for name, array in inputs.items()}
    streams = [kernel.device.new_stream() for _ in range(2)]
    found = [kernel(stream=stream, **held) for stream in streams]
    assert not standin.launches  # nobody has waited for them
    for stream, outputs in zip(streams, found):
        assert isinstance(outputs, dict)
        for name, wanted in right(code.problem, inputs).items():
            assert same(outputs[name].numpy(stream), wanted)
    assert {launch.stream for launch in standin.launches} == set(streams)
    assert kernel.workspace_bytes > 0
    blocks = {launch.stream: launch.block for launch in standin.launches if "main" in launch.kernel}
    assert blocks[streams[0]] != blocks[streams[1]]
    kernel(stream=streams[0], **held)
    kernel.device.synchronize(streams[0])
    again = [launch.block for launch in standin.launches if "main" in launch.kernel]
    assert again == [*blocks.values(), blocks[streams[0]]]
    kernel.unload()
    for stream in streams:
        kernel.device.end_stream(stream)


def test_workspaces_grow(standin: StandIn) -> None:
    kernel = cg.load(code_of("slices that the last sums"))
    first = kernel.workspace(kernel.program.record, 0)
    assert kernel.workspace(kernel.program.record, 0) == first
    launches = []
    for launch in kernel.program.record.launches:
        args = [
            evolve(a, tensor=evolve(a.tensor, bytes=2 * a.tensor.bytes)) if isinstance(a, Buffer) else a
            for a in launch.args
        ]
        launches.append(evolve(launch, args=tuple(args)))
    larger = evolve(kernel.program.record, launches=tuple(launches))
    found = kernel.workspace(larger, 0)
    for name, address in found.items():
        region = kernel.device.region(address)
        assert region is not None
        assert region.size == larger.buffers[name].tensor.bytes
    assert kernel.workspace(kernel.program.record, 0) == found


class Stream:
    def __init__(self, **attributes: int) -> None:
        self.__dict__ |= attributes


@pytest.mark.parametrize("how", ["cuda_stream", "ptr", "handle"])
def test_streams_of_others(how: str, standin: StandIn) -> None:
    """Of torch and of cupy."""
    kernel = cg.load(code_of("forward"))
    assert kernel.program.problem is not None
    stream = kernel.device.new_stream()
    kernel(stream=Stream(**{how: stream}), **reference.fill(kernel.program.problem))
    assert [launch.stream for launch in standin.launches] == [stream]
    kernel.device.end_stream(stream)


def test_tensors_of_the_host_that_run_backwards(standin: StandIn) -> None:
    """Strides may be negative, and an address may have an offset, as DLPack has it."""
    code = code_of("forward")
    assert code.problem is not None
    kernel, inputs = cg.load(code), reference.fill(code.problem)
    turned = np.ascontiguousarray(inputs["src"][:, :, ::-1])
    address = turned.ctypes.data + 2 * 5 * 6
    seen = dlpack.SharedTensor(address, turned.shape, (576, 36, -6, 1), "f16", dlpack.CPU, 0, True, turned)
    assert same(kernel(**{**inputs, "src": Flat(seen)}), right(code.problem, inputs)["dst"])
    capsule = dlpack.share(evolve(seen, address=address - 128), versioned=True)
    next(iter(dlpack._shared.values()))[0].tensor.byte_offset = 128
    moved = Flat(seen)
    moved.__dict__["capsule"] = capsule
    assert dlpack.receive(moved, None).address == address


def test_a_library_that_is_there_is_used(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch brings a runtime of its own: another copy would know nothing of its memory."""
    held = cg.load(code_of("forward")).put("src", np.zeros((1, 16, 6, 6), np.float16))
    monkeypatch.delenv("CONVGEN_HIP")
    device = hip.Device(0)
    assert device.library.name == str(standin.library)
    assert device.region(held.address) is not None


def test_memory_that_the_runtime_does_not_know(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch maps it page by page: a tensor's owner is believed, an address is not."""
    code = code_of("forward")
    assert code.problem is not None
    kernel, inputs = cg.load(code), reference.fill(code.problem)
    held = kernel.put("src", inputs["src"])
    monkeypatch.setattr(hip.Device, "region", lambda *_: None)
    assert same(
        kernel(src=ByDlpack(held, "versioned"), wei=inputs["wei"], dst=inputs["src"] * 0),
        right(code.problem, inputs)["dst"],
    )
    with pytest.raises(cg.UserError, match=r"this is freed, or of the host$"):
        kernel(src=held.address, wei=inputs["wei"])


def test_the_second_device(standin: StandIn) -> None:
    code = code_of("forward")
    assert code.problem is not None
    inputs = reference.fill(code.problem)
    kernel = cg.load(code, "hip:1")
    held = kernel.put("src", inputs["src"])
    assert kernel.device.region(held.address) is not None
    assert held.__dlpack_device__() == (dlpack.ROCM, 1)
    assert same(kernel(src=held, wei=inputs["wei"]).numpy(), right(code.problem, inputs)["dst"])
