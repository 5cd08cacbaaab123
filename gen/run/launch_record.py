"""Launch records: all that a host needs to launch a code object, as JSON beside it.

A record has buffers, scalars and tensor maps with their place in the argument block. Buffers keep their names across
launches.
Reading validates: a malformed file is a UserError of one line that names the wrong entry.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np

from convgen.backends import target as targets
from convgen.backends.simulation import KernelArg, LaunchRequest
from convgen.ir import types, untrusted
from convgen.ir.error import UserError
from convgen.ir.layout.argument import evaluate
from convgen.ir.layout.memory import MOST_BYTES
from convgen.ir.layout.tags import LETTERS, Layout
from convgen.ir.layout.tensor_map import ELEMENT_BYTES, MAP_ALIGN, MAP_BYTES, TensorMap
from convgen.ir.record import as_dict, evolve, fields_of, frozen
from convgen.ir.sizes import Promise
from convgen.run.schema import Entry, Json

Access: TypeAlias = Literal["read", "write", "readwrite"]
Extents: TypeAlias = tuple[int, int, int]

_POINTER_BYTES = 8
_MOST_LAUNCHES = 4096
_MOST_ARGUMENTS = 1024
_MOST_GROUPS = (1 << 31) - 1  #: workgroups along an axis of the grid
MOST_ITEMS = 1024  #: work-items of a workgroup, on every target
_MOST_BLOCK = 1 << 16  #: bytes of an argument block
_MOST_RANK = 5  #: dimensions of a tensor map
_MOST_OF_MAP = 1 << 48  #: magnitude of numbers in a tensor map, which limits most of them further
MOST_SHARED = 1 << 24  #: bytes of local memory that are worth a finding; devices have up to 160 KiB


@frozen
class StoredTensor:
    """The tensor in a buffer: logical size, layout tag, element type, allocation in bytes."""

    dims: tuple[int, ...]
    tag: str
    dtype: str
    bytes: int  #: `layout_bytes` or more

    @classmethod
    def of(cls, layout: Layout, dtype: str) -> StoredTensor:
        return cls(layout.dims, layout.tag, dtype, types.scalar(dtype).size(layout.size_elems))

    @cached_property
    def layout(self) -> Layout:
        return Layout.from_tag(self.tag, self.dims)

    @cached_property
    def layout_bytes(self) -> int:
        """Return the bytes from the first element to the last, gaps and padding included."""
        return types.scalar(self.dtype).size(self.layout.size_elems)


@frozen
class Buffer:
    """A kernel argument that is a 64-bit device address, at byte `offset` of the argument block."""

    name: str
    offset: int
    access: Access
    tensor: StoredTensor
    zero: bool = False  #: whether it holds zeros before the first launch; launches leave it so
    shape: tuple[str, ...] = ()  #: expressions by which a host computes the tensor's dims
    size: int = _POINTER_BYTES

    def sized(self, integers: Mapping[str, int]) -> Buffer:
        """Return the buffer with its tensor at the sizes given for a launch."""
        if not self.shape:
            return self
        dims = tuple(evaluate(expr, integers) for expr in self.shape)
        return evolve(self, tensor=StoredTensor.of(Layout.from_tag(self.tensor.tag, dims), self.tensor.dtype))

    @property
    def is_read(self) -> bool:
        return self.access != "write"

    @property
    def is_written(self) -> bool:
        return self.access != "read"


@frozen
class Scalar:
    """A kernel argument passed by value; `expr` says how a host computes it for other sizes.

    Raises UserError for a value that breaks the promise.
    """

    name: str
    offset: int
    dtype: str
    value: int | float
    expr: str | None = None
    promise: Promise | None = None

    def __attrs_post_init__(self) -> None:
        if self.promise:
            self.promise.check(self.name, self.value)

    @property
    def size(self) -> int:
        return types.scalar(self.dtype).bytes

    @property
    def encoded(self) -> bytes:
        """Return the little-endian bytes of the value."""
        return np.array(self.value, types.scalar(self.dtype).numpy).tobytes()


@frozen
class MapArgument:
    """A kernel argument that is a tensor map, which the host encodes from the address of its buffer at the launch."""

    offset: int
    tensor: TensorMap
    size: int = MAP_BYTES

    @property
    def end(self) -> int:
        """Return the byte of the buffer behind the tensor's last element."""
        steps = (self.tensor.size, *self.tensor.strides)
        inside = sum((dim - 1) * step for dim, step in zip(self.tensor.dims, steps, strict=True))
        return self.tensor.shift + inside + self.tensor.size

    def refusal(self, buffers: Mapping[str, Buffer]) -> tuple[str, str] | None:
        """Return the wrong field of the map in a launch with these buffers by name, and the wanted value; else None."""
        buffer = buffers.get(self.tensor.buffer)
        if buffer is None:
            return "buffer", "a buffer of the launch"
        if self.end > buffer.tensor.bytes:
            return "dims", f"a tensor map within the {buffer.tensor.bytes} bytes of {buffer.name}, not to {self.end}"
        return None


KernelArgument: TypeAlias = Buffer | Scalar | MapArgument


@frozen
class Launch:
    """One kernel launch. `grid` counts workgroups, `workgroup` work-items, both x, y, z; `grid_expr` says how a host
    computes the grid for other sizes. `shared_bytes` is the local memory of a workgroup, in all.
    """

    kernel: str
    grid: Extents
    workgroup: Extents
    args: tuple[KernelArgument, ...]
    kernarg_size: int
    shared_bytes: int = 0
    grid_expr: tuple[str | None, str | None, str | None] = (None, None, None)

    @property
    def buffers(self) -> dict[str, Buffer]:
        """Return the buffers among the arguments, by name."""
        return {arg.name: arg for arg in self.args if isinstance(arg, Buffer)}

    def renamed(self, name: Callable[[str], str]) -> Launch:
        """Return the launch with other names of its buffers."""

        def argument(arg: KernelArgument) -> KernelArgument:
            if isinstance(arg, MapArgument):
                return evolve(arg, tensor=evolve(arg.tensor, buffer=name(arg.tensor.buffer)))
            return evolve(arg, name=name(arg.name)) if isinstance(arg, Buffer) else arg

        return evolve(self, args=tuple(map(argument, self.args)))

    def with_scalars(self, values: Mapping[str, int]) -> Launch:
        """Return the launch with other values of scalars that a host may choose, and with a grid that fits them.

        Raises UserError for a value that its type does not have, and if a tensor map leaves its buffer at these sizes.
        """
        chosen = {a.name: values.get(a.name, a.value) for a in self.args if isinstance(a, Scalar) and a.expr is None}
        integers = {name: value for name, value in chosen.items() if isinstance(value, int)}

        def with_value(arg: KernelArgument) -> KernelArgument:
            if isinstance(arg, Buffer):
                return arg.sized(integers)
            if isinstance(arg, MapArgument):
                return arg
            value = chosen[arg.name] if arg.expr is None else evaluate(arg.expr, integers)
            kind = types.scalar(arg.dtype)
            if kind.is_int and not kind.min <= value <= kind.max:
                raise UserError(f"given {arg.name}={value} of kernel {self.kernel}, wanted one of type {arg.dtype}")
            return evolve(arg, value=value)

        counts = [n if e is None else evaluate(e, integers) for n, e in zip(self.grid, self.grid_expr)]
        launch = evolve(self, args=tuple(map(with_value, self.args)), grid=(counts[0], counts[1], counts[2]))
        for arg in launch.args:
            if isinstance(arg, MapArgument) and (refusal := arg.refusal(launch.buffers)):
                raise UserError(f"given the sizes of kernel {self.kernel}, wanted {refusal[1]}")
        return launch

    def request(self, groups: Sequence[int] | None = None) -> LaunchRequest:
        """Return the launch as a request to a simulator; `groups` are the linear workgroup ids to run (None: all)."""
        args = tuple(KernelArg(arg.offset, arg.size, _requested(arg)) for arg in self.args)
        chosen = None if groups is None else tuple(groups)
        return LaunchRequest(
            self.kernel, self.grid, self.workgroup, args, self.shared_bytes, self.kernarg_size, groups=chosen
        )


@frozen(cache_hash=True)
class LaunchRecord:
    """The launches of one code object, in order. `object` is its file, relative to the record; None without one.

    `problem` is the replayable problem line, where there is a problem.
    """

    target: str
    object: str | None
    launches: tuple[Launch, ...]
    problem: str | None = None

    @cached_property
    def buffers(self) -> dict[str, Buffer]:
        """Return each buffer once, in order of appearance, with the access of all launches together."""
        merged: dict[str, Buffer] = {}
        for launch in self.launches:
            for arg in launch.args:
                if isinstance(arg, Buffer):
                    before = merged.get(arg.name, arg)
                    access: Access = before.access if before.access == arg.access else "readwrite"
                    merged[arg.name] = evolve(before, access=access)
        return merged

    @cached_property
    def free_scalars(self) -> dict[str, Scalar]:
        """Return the scalars that a host may choose, by name, in order of appearance."""
        args = [arg for launch in self.launches for arg in launch.args]
        return {arg.name: arg for arg in args if isinstance(arg, Scalar) and arg.expr is None}

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """Return the names of the sizes known at launch: free scalars about whose value the host makes a promise."""
        return tuple(name for name, scalar in self.free_scalars.items() if scalar.promise)

    def sizes_of(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the values of free scalars that are dims of buffers, given the shapes of these buffers by name."""
        free, buffers = self.free_scalars, self.buffers
        values: dict[str, int] = {}
        for name, shape in shapes.items():
            exprs = buffers[name].shape if name in buffers else ()
            pairs = zip(exprs, shape) if len(exprs) == len(shape) else ()
            for expr, size in pairs:
                if expr in free:
                    values.setdefault(expr, size)
        return values

    def with_scalars(self, values: Mapping[str, int]) -> LaunchRecord:
        """Return the record with other values of scalars that a host may choose. Raises UserError for unknown names."""
        free = self.free_scalars
        for name in values:
            if name not in free:
                known = ", ".join(free) or "none"
                raise UserError(f"given the scalar {name}, wanted one that a host may choose: {known}")
        return evolve(self, launches=tuple(launch.with_scalars(values) for launch in self.launches))

    def requests(self, groups: Sequence[Sequence[int]] | None = None) -> tuple[LaunchRequest, ...]:
        """Return the requests to a simulator: all launches, or those with workgroups in `groups`.

        `groups` has one list of linear workgroup ids per launch.
        """
        if groups is None:
            return tuple(launch.request() for launch in self.launches)
        return tuple(launch.request(ids) for launch, ids in zip(self.launches, groups, strict=True) if ids)

    def to_json(self) -> str:
        """Return the record as indented JSON text; equal records give equal bytes."""
        problem = {} if self.problem is None else {"problem": self.problem}
        launches = [_launch_json(launch) for launch in self.launches]
        return json.dumps({**problem, "target": self.target, "object": self.object, "launches": launches}, indent=2)

    @classmethod
    def read(cls, path: Path) -> LaunchRecord:
        """Read the record in a file. Raises UserError."""
        content = untrusted.read(path, "a launch record", untrusted.MOST_RECORD)
        return cls.from_json(content.decode(errors="replace"), path.name)

    def read_object(self, path: Path) -> bytes | None:
        """Return the code object beside the record's file `path`; None if the record has none. Raises UserError."""
        return None if self.object is None else targets.read(path.parent / self.object)

    def required(self, code_object: bytes | None, where: str) -> bytes:
        """Return the code object. Raises UserError, which names the record `where`, if there is nothing to launch."""
        if code_object is None or not self.launches:
            missing = "a code object" if self.launches else "launches"
            raise UserError(f"given {where} without {missing}, wanted a record that has both")
        return code_object

    @classmethod
    def from_json(cls, text: str, where: str = "launch record") -> LaunchRecord:
        """Read the record of a JSON text. Raises UserError, which names the missing or wrong entry of file `where`."""
        root = Entry.parse(text, where)
        record = cls(
            target=root["target"].text(),
            object=root.optional_text("object"),
            launches=tuple(_read_launch(entry) for entry in root["launches"].items(_MOST_LAUNCHES)),
            problem=root.optional_text("problem"),
        )
        _check_shared_buffers(record, root)
        return record


def _requested(arg: KernelArgument) -> str | bytes | TensorMap:
    """Return the value of an argument as a simulator takes it."""
    match arg:
        case Buffer():
            return arg.name
        case Scalar():
            return arg.encoded
    return arg.tensor


def size_given(name: str, given: object) -> int:
    """Return a size known at launch that a caller passes. Raises UserError unless it is an integer."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise UserError(f"given {name} of type {type(given).__name__}, wanted a number")
    return int(given)


def _launch_json(launch: Launch) -> dict[str, Json]:
    grid: list[Json] = [
        value if expr is None else {"value": value, "expr": expr} for value, expr in zip(launch.grid, launch.grid_expr)
    ]
    return {
        "kernel": launch.kernel,
        "grid": grid,
        "workgroup": list(launch.workgroup),
        "lds_bytes": launch.shared_bytes,
        "kernarg_size": launch.kernarg_size,
        "args": [_arg_json(arg) for arg in launch.args],
    }


def _arg_json(arg: KernelArgument) -> dict[str, Json]:
    if isinstance(arg, MapArgument):
        return {"kind": "tensor_map", "offset": arg.offset, "size": arg.size, "map": _map_json(arg.tensor)}
    place: dict[str, Json] = {"name": arg.name, "kind": "buffer", "offset": arg.offset, "size": arg.size}
    if isinstance(arg, Buffer):
        tensor: dict[str, Json] = {
            "dims": list(arg.tensor.dims),
            "tag": arg.tensor.tag,
            "dtype": arg.tensor.dtype,
            "bytes": arg.tensor.bytes,
        }
        zero: dict[str, Json] = {"zero": True} if arg.zero else {}
        shape: dict[str, Json] = {"shape": list(arg.shape)} if arg.shape else {}
        return {**place, "access": arg.access, "tensor": tensor, **zero, **shape}
    expr: dict[str, Json] = {} if arg.expr is None else {"expr": arg.expr}
    promise: dict[str, Json] = {} if arg.promise is None else dict(zip(_PROMISE, as_dict(arg.promise).values()))
    return {**place, "kind": "scalar", "dtype": arg.dtype, "value": arg.value, **expr, **promise}


def _map_json(tensor: TensorMap) -> dict[str, Json]:
    """Return the fields of a tensor map that are not empty."""
    return {name: value for name, value in as_dict(tensor).items() if value or name in _MAP_NEEDED}


_MAP_NEEDED = ("kind", "element", "buffer", "dims", "strides")
_MAP_LISTS = ("dims", "strides", "box", "lower", "upper", "element_strides")
_MAP_NUMBERS = ("channels", "pixels", "swizzle", "shift")
_PROMISE = tuple(field.name for field in fields_of(Promise))


def _read_launch(entry: Entry) -> Launch:
    grid = [axis["value"] if axis.has("value") else axis for axis in entry["grid"].items(3)]
    exprs = [axis.optional_text("expr") for axis in entry["grid"].items(3)]
    workgroup = entry["workgroup"].items(3)
    for key, axes in (("grid", grid), ("workgroup", workgroup)):
        if len(axes) != 3:
            raise entry[key].error("x, y and z")
    launch = Launch(
        kernel=entry["kernel"].text(),
        grid=_extents(grid, _MOST_GROUPS),
        workgroup=_extents(workgroup, MOST_ITEMS),
        args=tuple(_read_arg(arg) for arg in entry["args"].items(_MOST_ARGUMENTS)),
        kernarg_size=entry["kernarg_size"].integer(0, _MOST_BLOCK),
        shared_bytes=entry["lds_bytes"].integer(0, MOST_SHARED),
        grid_expr=(exprs[0], exprs[1], exprs[2]),
    )
    if math.prod(launch.workgroup) > MOST_ITEMS:
        raise entry["workgroup"].error(f"at most {MOST_ITEMS} work-items")
    entries = entry["args"].items(_MOST_ARGUMENTS)
    _check_argument_block(launch, entries)
    for arg, place in zip(launch.args, entries):
        if isinstance(arg, MapArgument) and (refusal := arg.refusal(launch.buffers)):
            field, wanted = refusal
            raise place["map"][field].error(wanted)
    return launch


def _extents(axes: Sequence[Entry], most: int) -> Extents:
    x, y, z = (axis.integer(1, most) for axis in axes)
    return x, y, z


def _read_arg(entry: Entry) -> KernelArgument:
    kind = entry["kind"].one_of("buffer", "scalar", "tensor_map")
    arg: KernelArgument
    match kind:
        case "buffer":
            arg = _read_buffer(entry)
        case "scalar":
            arg = _read_scalar(entry)
        case _:
            arg = _read_map_argument(entry)
    if entry["size"].integer(1, _MOST_BLOCK) != arg.size:
        raise entry["size"].error(f"the {arg.size} bytes of the {kind}")
    return arg


def _read_buffer(entry: Entry) -> Buffer:
    access = cast(Access, entry["access"].one_of(*get_args(Access)))
    name, offset = entry["name"].name("buffer"), entry["offset"].integer(0, _MOST_BLOCK)
    zero = entry.has("zero") and entry["zero"].flag()
    shape = tuple(e.text() for e in entry["shape"].items(len(LETTERS))) if entry.has("shape") else ()
    tensor = _read_tensor(entry["tensor"])
    if shape and len(shape) != len(tensor.dims):
        raise entry["shape"].error(f"{len(tensor.dims)} expressions")
    return Buffer(name, offset, access, tensor, zero, shape)


def _read_scalar(entry: Entry) -> Scalar:
    dtype = _read_dtype(entry["dtype"])
    return Scalar(
        entry["name"].name("scalar"),
        entry["offset"].integer(0, _MOST_BLOCK),
        dtype,
        _read_value(entry["value"], types.scalar(dtype)),
        entry.optional_text("expr"),
        _read_promise(entry),
    )


def _read_map_argument(entry: Entry) -> MapArgument:
    offset = entry["offset"].integer(0, _MOST_BLOCK)
    if offset % MAP_ALIGN:
        raise entry["offset"].error(f"a multiple of {MAP_ALIGN}")
    return MapArgument(offset, _read_map(entry["map"]))


def _read_map(entry: Entry) -> TensorMap:
    fields: dict[str, Any] = {
        "kind": entry["kind"].one_of("tiled", "im2col"),
        "element": entry["element"].one_of(*ELEMENT_BYTES),
        "buffer": entry["buffer"].name("buffer"),
    }
    for field in _MAP_LISTS:
        if field in _MAP_NEEDED or entry.has(field):
            numbers = entry[field].items(_MOST_RANK)
            fields[field] = tuple(number.integer(-_MOST_OF_MAP, _MOST_OF_MAP) for number in numbers)
    fields |= {field: entry[field].integer(0, _MOST_OF_MAP) for field in _MAP_NUMBERS if entry.has(field)}
    try:
        return TensorMap(**fields)
    except UserError as error:
        raise UserError(f"{error}, at {entry.place}") from None


def _read_promise(entry: Entry) -> Promise | None:
    if not any(map(entry.has, _PROMISE)):
        return None
    least, most, multiple = (entry[name].integer(0 if name == "least" else 1, _MOST_GROUPS) for name in _PROMISE)
    return Promise(least, most, multiple)


def _read_value(entry: Entry, dtype: types.Type) -> int | float:
    value = entry.value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**64:
        if dtype.is_float or dtype.min <= value <= dtype.max:
            return value
    elif isinstance(value, float) and dtype.is_float and math.isfinite(value):
        return value
    raise entry.error(f"a number of type {dtype.name}")


def _read_tensor(entry: Entry) -> StoredTensor:
    tensor = StoredTensor(
        tuple(size.integer(0, MOST_BYTES) for size in entry["dims"].items(len(LETTERS))),
        entry["tag"].text(),
        _read_dtype(entry["dtype"]),
        entry["bytes"].integer(0, MOST_BYTES),
    )
    try:
        needed = tensor.layout_bytes
    except UserError as error:
        raise UserError(f"{error} ({entry['tag'].place})") from None
    if tensor.bytes < needed:
        raise entry["bytes"].error(f"at least the {needed} bytes of the tensor")
    return tensor


def _read_dtype(entry: Entry) -> str:
    if entry.text() not in types.SCALARS:
        raise entry.error(f"one of {' '.join(types.SCALARS)}")
    return entry.text()


def _check_argument_block(launch: Launch, entries: Sequence[Entry]) -> None:
    """Refuse arguments that leave the block, overlap, or share a name."""
    end, names = 0, [arg.name for arg in launch.args if not isinstance(arg, MapArgument)]
    if len({*names}) != len(names):
        raise UserError(f"given two arguments of one name, wanted distinct names, in kernel {launch.kernel}")
    for arg, entry in sorted(zip(launch.args, entries), key=lambda pair: pair[0].offset):
        if arg.offset < end:
            raise entry["offset"].error(f"at least {end}, where the argument before ends")
        end = arg.offset + arg.size
        if end > launch.kernarg_size:
            raise entry["offset"].error(f"an argument inside the {launch.kernarg_size} bytes of kernarg_size")


def _check_shared_buffers(record: LaunchRecord, root: Entry) -> None:
    """Refuse a buffer whose tensor differs between launches."""
    for name, buffer in record.buffers.items():
        for launch in record.launches:
            for arg in launch.args:
                if isinstance(arg, Buffer) and arg.name == name and arg.tensor != buffer.tensor:
                    raise UserError(f"given two tensors for buffer {name}, wanted one, at {root.place}")
