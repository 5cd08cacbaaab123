"""Kernels on a device: `load` turns compiled code into an object that is called with tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property, lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, overload

import numpy.typing as npt

from convgen.backends import target as targets
from convgen.backends.device import Device, Function, Launcher
from convgen.device import frameworks
from convgen.device.allocated import DeviceArray, fetched
from convgen.device.benchmark import Benchmark, benchmark
from convgen.device.devices import open_device
from convgen.device.tensor_arguments import Argument, Given, OnDevice, OnHost, TorchT, check, locate
from convgen.ir.error import Unsupported, UserError, named
from convgen.ir.record import evolve, frozen
from convgen.problem.matmul import Problem, parse_problem
from convgen.run.code import Code
from convgen.run.execution import logical
from convgen.run.launch_record import LaunchRecord, StoredTensor, size_given
from convgen.run.reference import Array, pack
from convgen.run.verdict import check_buffers

_SIZES_KEPT = 64  #: sized launch records that are cached


@frozen(eq=False)
class Program:
    """Launches and their code object; `name` is for errors."""

    name: str
    record: LaunchRecord
    content: bytes
    problem: Problem | None

    @classmethod
    def of(cls, code: Code | str | PathLike[str]) -> Program:
        """Return the program of compiled code, or of a launch record's file. Raises UserError if there is nothing to
        launch.
        """
        if not isinstance(code, Code | str | PathLike):
            raise UserError(f"given code of type {type(code).__name__}, wanted Code or the path of a launch record")
        if isinstance(code, Code):
            name, record, content, problem = str(code.problem or code.name), code.record, code.object, code.problem
        else:
            path = Path(code)
            name, record = path.name, LaunchRecord.read(path)
            content = record.read_object(path)
            problem = None if record.problem is None else parse_problem(record.problem)
            if problem is not None:
                check_buffers(record, problem, name)
        return cls(name, record, record.required(content, name), problem)

    @property
    def suffix(self) -> str:
        """Return the suffix of code object files for its target."""
        return targets.get(self.record.target).family.object_suffix

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Return the buffers whose content the caller passes."""
        if self.problem is not None:
            return tuple(spec.name for spec in self.problem.inputs if spec.name in self.record.buffers)
        return tuple(name for name, buffer in self.record.buffers.items() if buffer.is_read and not buffer.zero)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        if self.problem is not None:
            return tuple(spec.name for spec in self.problem.outputs)
        return tuple(name for name, b in self.record.buffers.items() if b.is_written and not b.zero)

    @cached_property
    def workspaces(self) -> tuple[str, ...]:
        """Return the internal buffers: partial sums of slices, reordered tensors, counters."""
        return tuple(name for name in self.record.buffers if name not in (*self.inputs, *self.outputs))

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """Return the names of the scalars that a host may choose."""
        return tuple(self.record.free_scalars)


def load(code: Code | str | PathLike[str], device: str | None = None) -> DeviceKernel:
    """Load compiled code on a device; return the kernel, which is called with tensors (`DeviceKernel`).

    `code` is the result of `compile`, or the path of a launch record with its code object beside it. `device` is a kind
    of runtime, a colon and a number; by default the first device of the runtime for the code's target. Raises UserError
    for a device or a runtime that is missing, and for code of another target; Unsupported for a target without a
    runtime.
    """
    if device is not None and not isinstance(device, str):
        raise UserError(f"given device of type {type(device).__name__}, wanted a name KIND:NUMBER")
    program = Program.of(code)
    return DeviceKernel(program, open_device(device or _first_device(program.record.target)))


def _first_device(target: str) -> str:
    """Return the name of the first device of a target's runtime. Raises Unsupported."""
    family = targets.get(target).family
    if family.runtime is None:
        why = f"{family.vendor}'s {family.title} has no runtime"
        raise Unsupported(f"code for {target} on a device: {why}", rule="device")
    return f"{family.runtime.kind}:0"


def check_target(given: str, target: str, device: Device) -> None:
    """Refuse code for a target that the device does not run, if the device reports its own. Raises UserError."""
    if (device.runs and target not in device.runs) or targets.get(target).family.object_suffix != device.suffix:
        runs = f"{device.runs[-1] if device.runs else device.suffix} code, which {device.name} ({device.title}) runs"
        raise UserError(f"given {given}, wanted {runs}")


@frozen(eq=False)
class Ready:
    """A call ready to be enqueued. `staged`: host arrays to which outputs are copied after it."""

    record: LaunchRecord
    addresses: Mapping[str, int]
    stream: int
    staged: Mapping[str, Array]
    results: Mapping[str, Any]


class DeviceKernel:
    """A program on a device, made by `load`; it keeps its workspaces between calls, one set a stream."""

    def __init__(self, program: Program, device: Device) -> None:
        self.program, self.device = program, device
        check_target(f"{program.name} for {program.record.target}", program.record.target, device)
        self.module = device.load(program.content)
        names = dict.fromkeys(launch.kernel for launch in program.record.launches)
        self.functions: dict[str, Function] = {name: self.module.function(name) for name in names}
        self._workspaces: dict[tuple[int, str], DeviceArray] = {}
        self._sized = lru_cache(_SIZES_KEPT)(lambda sizes: program.record.with_scalars(dict(sizes)))
        self._launchers = lru_cache(_SIZES_KEPT)(self._new_launchers)

    def __repr__(self) -> str:
        return f"<{self.program.name} on {self.device.name}>"

    @overload
    def __call__(self, *, stream: object = None, **given: npt.NDArray[Any] | int) -> npt.NDArray[Any] | Any: ...

    @overload
    def __call__(self, *, stream: object = None, **given: DeviceArray | int) -> DeviceArray | Any: ...

    @overload
    def __call__(self, *, stream: object = None, **given: TorchT | int) -> TorchT | Any: ...

    @overload
    def __call__(self, *, stream: object = None, **given: Argument) -> Any: ...

    def __call__(self, *, stream: object = None, **given: Argument) -> Any:
        """Launch all kernels; return the output, or a dict by name if there are several.

        Tensors come by name: inputs such as src and wei, in logical order (n, c, h, w; oc, ic, h, w; m, k), and outputs
        to write, such as dst. Kernels built by hand take tensors of any shape with as many elements. A missing output
        is allocated: by numpy or torch if the caller's tensors are theirs, else as a `DeviceArray`. Host arrays are
        copied, and the call returns when the kernels are complete; tensors on the device are used in place, and the
        call returns at once. Sizes known at launch only are numbers by name, or follow from a tensor's dimensions. A
        `stream` is a number, or a stream of torch or cupy.

        Raises UserError for arguments that do not fit the launch record, DeviceError if the runtime fails.
        """
        with self.ready(given, stream) as ready:
            self.enqueue(ready.record, ready.addresses, ready.stream)
            for name, array in ready.staged.items():
                tensor = ready.record.buffers[name].tensor
                result = fetched(self.device, tensor, ready.addresses[name], ready.stream)
                array[...] = result.reshape(array.shape)
        results = ready.results
        return results if len(results) != 1 else results[self.program.outputs[0]]

    def benchmark(
        self,
        *,
        warmup: int = 3,
        repeats: int = 20,
        cold: bool = True,
        flush_bytes: int | None = None,
        predict: bool = True,
        stream: object = None,
        **given: Argument,
    ) -> Benchmark:
        """Time calls on the device, by events around all launches of each, after `warmup` calls that do not count.

        Tensors and numbers are passed as for a call; without tensors the problem's inputs are filled. With `cold`,
        caches are flushed before each call: `flush_bytes` of other memory are written, by default twice the target's
        largest cache. With `predict`, the model behind `convgen profile` predicts the time of the launches, if the
        target has one. Outputs are overwritten; an output that is also an input changes with every call.

        Raises UserError for arguments that a call would refuse, and for invalid counts.
        """
        return benchmark(
            self, given, stream, warmup=warmup, repeats=repeats, flush_bytes=flush_bytes if cold else 0, predict=predict
        )

    @contextmanager
    def ready(self, given: Mapping[str, Argument], stream: object) -> Iterator[Ready]:
        """Yield a call with checked arguments on the device; memory of host arrays is freed after the block."""
        if not self.functions:
            raise UserError(f"given {self!r}, which was unloaded; load it again")
        tensors = {name: value for name, value in given.items() if name not in self.program.scalars}
        numbers = {name: size_given(name, value) for name, value in given.items() if name in self.program.scalars}
        self._check_names(tensors)
        queue = self._stream(stream, tensors)
        located = {name: locate(name, value, self.device, queue) for name, value in tensors.items()}
        record = self.sized(numbers, located)
        for name, each in located.items():
            tensor = record.buffers[name].tensor
            check(self._shaped(each, tensor), tensor, self.device, written=name in self.program.outputs)
        results = {name: given.get(name) for name in self.program.outputs}
        on_device = any(isinstance(tensor, OnDevice) for tensor in located.values())
        for name in self.program.outputs:
            if name not in located:
                results[name] = self._allocated(record.buffers[name].tensor, tensors, on_device=on_device)
                located[name] = locate(name, results[name], self.device, queue)
        self._check_apart(record, located)
        with ExitStack() as held:
            addresses = self._addresses(record, located, queue, held)
            staged = {n: g.array for n, g in located.items() if isinstance(g, OnHost) and n in self.program.outputs}
            yield Ready(record, addresses, queue, staged, results)

    def _shaped(self, given: Given, tensor: StoredTensor) -> Given:
        """Return a host array in the tensor's shape, if it has the tensor's elements in another shape.

        An output must be able to take the result back: elements in memory order are an input only.
        """
        if self.program.problem is not None or isinstance(given, OnDevice):
            return given
        if given.name in self.program.outputs and len(tensor.dims) > 1:
            return given
        array = logical(tensor, given.array)
        return given if array is None else evolve(given, array=array)

    def put(self, name: str, array: Argument, **sizes: int) -> DeviceArray:
        """Copy a host array to the device in the layout of argument `name`. Raises UserError.

        The array's shape gives sizes that are known at launch only.
        """
        if name not in self.program.record.buffers:
            raise UserError(f"given the argument {named(name, self.program.record.buffers)}, wanted {self._wanted()}")
        located = locate(name, array, self.device, 0)
        if not isinstance(located, OnHost):
            raise UserError(f"given {name} on {self.device.name}, wanted an array of the host")
        all_sizes = self.program.record.sizes_of({name: located.array.shape}) | sizes
        tensor = self._sized(tuple(sorted(all_sizes.items()))).buffers[name].tensor
        shaped = self._shaped(located, tensor)
        assert isinstance(shaped, OnHost)
        check(shaped, tensor, self.device, written=False)
        return DeviceArray.of(self.device, tensor, shaped.array)

    def sized(self, numbers: Mapping[str, int], located: Mapping[str, Given]) -> LaunchRecord:
        """Return the launches at the sizes that are given, or that tensors have."""
        dims = {name: g.array.shape if isinstance(g, OnHost) else g.dims for name, g in located.items()}
        shapes = {name: shape for name, shape in dims.items() if shape is not None}
        sizes = self.program.record.sizes_of(shapes) | dict(numbers)
        missing = [name for name in self.program.record.sizes if name not in sizes]
        if missing and self.program.problem is None:
            raise UserError(f"given no {missing[0]}, wanted a number")
        return self._sized(tuple(sorted(sizes.items()))) if sizes else self.program.record

    def enqueue(self, record: LaunchRecord, addresses: Mapping[str, int], stream: int) -> None:
        """Enqueue all launches in a stream, with every buffer at its address."""
        for launcher in self._launchers(record):
            launcher(addresses, stream)

    def launch(self, addresses: Mapping[str, int], stream: int) -> None:
        """Enqueue all launches at the record's sizes, with every buffer at its address, workspaces included.

        Nothing is checked or allocated: for callers that derived the problem from their tensors.
        """
        self.enqueue(self.program.record, addresses, stream)

    def _new_launchers(self, record: LaunchRecord) -> tuple[Launcher, ...]:
        """Return the launchers of all launches that have workgroups."""
        requests = [request for request in record.requests() if 0 not in request.grid]
        return tuple(self.device.launcher(self.functions[request.kernel], request) for request in requests)

    def workspace(self, record: LaunchRecord, stream: int) -> dict[str, int]:
        """Return the addresses of the internal buffers; those that are zero between calls are cleared when
        allocated.
        """
        addresses = {}
        for name in self.program.workspaces:
            buffer = record.buffers[name]
            array = self._workspaces.get((stream, name))
            if array is None or array.tensor.bytes < buffer.tensor.bytes:
                array = self._workspaces[stream, name] = DeviceArray(self.device, buffer.tensor)
                if buffer.zero:
                    self.device.fill(array.address, buffer.tensor.bytes, 0, stream)
            addresses[name] = array.address
        return addresses

    def unload(self) -> None:
        """Free code and workspaces once all calls are complete; no call is possible afterwards."""
        for stream in dict.fromkeys(stream for stream, _ in self._workspaces):
            self.device.synchronize(stream)
        self.device.synchronize(0)
        while self._workspaces:
            self._workspaces.popitem()[1].free()
        self.functions.clear()
        self._launchers.cache_clear()
        self.module.unload()

    @property
    def workspace_bytes(self) -> int:
        """Return the bytes of device memory that a call needs besides its tensors, at the record's sizes."""
        return sum(self.program.record.buffers[name].tensor.bytes for name in self.program.workspaces)

    # ------------------------------------------------------------ arguments

    def _wanted(self) -> str:
        return ", ".join(dict.fromkeys((*self.program.inputs, *self.program.outputs, *self.program.scalars)))

    def _check_names(self, tensors: Mapping[str, Argument]) -> None:
        known = (*self.program.inputs, *self.program.outputs)
        for name in tensors:
            if name not in known:
                raise UserError(f"given the argument {named(name, known)}, wanted {self._wanted()}")
        for name in self.program.inputs:
            if name not in tensors:
                raise UserError(f"given no {name}, wanted {', '.join(self.program.inputs)}")

    def _stream(self, stream: object, tensors: Mapping[str, Argument]) -> int:
        if stream is not None:
            return frameworks.stream_of(stream)
        return max(map(frameworks.current_stream, tensors.values()), default=0)

    def _allocated(self, tensor: StoredTensor, tensors: Mapping[str, Argument], *, on_device: bool) -> Any:
        """Return a new output: a torch tensor beside torch tensors, else on the device or the host."""
        like = next(filter(frameworks.is_torch, tensors.values()), None)
        if like is not None:
            return frameworks.empty_torch(tensor, like)
        if on_device:
            return DeviceArray(self.device, tensor)
        return frameworks.empty_numpy(tensor)

    def _check_apart(self, record: LaunchRecord, located: Mapping[str, Given]) -> None:
        regions = [
            (n, g.address, record.buffers[n].tensor.bytes) for n, g in located.items() if isinstance(g, OnDevice)
        ]
        for name, start, size in regions:
            for other, begin, length in regions:
                meets = name != other and start < begin + length and begin < start + size
                if meets and name in self.program.outputs:
                    raise UserError(f"given {name} and {other} in the same memory, wanted separate memory")

    # ------------------------------------------------------------ memory

    def _addresses(
        self, record: LaunchRecord, located: Mapping[str, Given], stream: int, staged: ExitStack
    ) -> dict[str, int]:
        """Return the address of each buffer; host arrays are copied to memory that `staged` frees."""
        addresses = self.workspace(record, stream)
        for name, given in located.items():
            if isinstance(given, OnDevice):
                addresses[name] = given.address
                continue
            tensor = record.buffers[name].tensor
            memory = staged.enter_context(DeviceArray(self.device, tensor))
            if name in self.program.inputs:
                shaped = self._shaped(given, tensor)
                assert isinstance(shaped, OnHost)
                self.device.upload(memory.address, pack(tensor, shaped.array), stream)
            addresses[name] = memory.address
        return addresses
