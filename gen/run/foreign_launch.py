"""Launches without a record: code objects of any compiler, with arguments by name or number.

An argument is `NAME=VALUE`: a number, an array from FILE.npy, undefined memory TYPE:DIMS (`f32:64x64`), or zeros
(`zeros:f32:64x64`). NAME is the argument's name or its number, hidden arguments not counted. A pointer without a value
is null: compilers add pointers to memory of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from convgen.backends import target as targets
from convgen.backends.simulation import STRICT, KernelArg, LaunchRequest, Pages, Parameter, Scrutiny, Signature
from convgen.ir import types
from convgen.ir.error import UserError, named
from convgen.ir.record import evolve, frozen
from convgen.run import defaults, npy, reference
from convgen.run.comparison import Comparison
from convgen.run.defaults import Defaults
from convgen.run.execution import Executor, Progress, check_workgroups
from convgen.run.launch_record import Extents
from convgen.run.verdict import Outcome, outcome_of

Array: TypeAlias = npt.NDArray[Any]

_SHAPED = re.compile(r"(?P<zeros>zeros:)?(?P<type>[a-z]+[0-9][a-z0-9_]*):(?P<dims>[0-9]+(?:x[0-9]+)*)$")
_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-fA-F]+|[0-9]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|inf|nan)$")
_FLOATS: Mapping[int, types.Type] = {
    2: types.f16,
    4: types.f32,
    8: types.f64,
}  #: by bytes, for a type that is not recorded
_MOST_BYTES = 1 << 34  #: bytes of an array given by TYPE:DIMS


@frozen
class LaunchOptions:
    """The options of a launch without a record, as the command line gives them."""

    kernel: str | None  #: None: the only kernel of the object
    grid: Extents | None  #: workgroups
    block: Extents | None  #: work-items of a workgroup
    dynamic_lds: int = 0  #: bytes; shared memory beyond that of the kernel
    arguments: Sequence[tuple[str, str]] = ()  #: name or number, and value


@frozen
class ForeignLaunch:
    """A launch with its buffers."""

    request: LaunchRequest
    arrays: Mapping[str, Array]  #: buffers that options give, by argument
    undefined: tuple[str, ...]  #: names of arrays whose content is undefined
    made_up: Mapping[str, Pages] = {}  #: buffers of pointers without a value
    settings: tuple[tuple[str, str], ...] = ()  #: name or number of each argument, and its value for people

    @property
    def array_bytes(self) -> dict[str, npt.NDArray[np.uint8]]:
        """Return the arrays' bytes, which a run changes in place."""
        return {name: array.reshape(-1).view(np.uint8) for name, array in self.arrays.items()}

    @property
    def buffers(self) -> dict[str, Any]:
        """Return all buffers, which a run changes in place."""
        return {**self.array_bytes, **self.made_up}


def run(
    path: Path,
    options: LaunchOptions,
    *,
    outputs: Sequence[tuple[str, str]] = (),
    progress: Progress | None = None,
    advice: bool = False,
    scrutiny: Scrutiny = STRICT,
    on: Executor | None = None,
) -> Outcome:
    """Execute a code object, on the device `on` if one is given, and write `outputs`, arrays by argument as FILE.npy.

    Raises UserError, Unsupported.
    """
    content, launch = read(path, options)
    unknown = [name for name, _ in outputs if name not in launch.arrays]
    if unknown:
        wanted = ", ".join(launch.arrays) or "none: no --arg is an array"
        raise UserError(f"given --out {unknown[0]}, wanted one of {wanted}")
    outcome = execute(content, path.name, launch, progress=progress, advice=advice, scrutiny=scrutiny, on=on)
    npy.save({Path(file): launch.arrays[name] for name, file in outputs})
    return outcome


def execute(
    content: bytes,
    name: str,
    launch: ForeignLaunch,
    *,
    progress: Progress | None = None,
    advice: bool = False,
    scrutiny: Scrutiny = STRICT,
    on: Executor | None = None,
) -> Outcome:
    """Execute a launch of a code object, which `name` names in errors; its buffers change in place.

    Raises UserError, Unsupported.
    """
    if on is not None:
        report = on.execute(content, [launch.request], launch.buffers)
    else:
        check_workgroups(launch.request.kernel, launch.request.grid)
        report = targets.executor(content, name).simulate(
            content,
            [launch.request],
            launch.buffers,
            progress=progress,
            uninitialised=launch.undefined,
            scrutiny=scrutiny,
        )
    return evolve(outcome_of(report, Comparison(), on), compared=False, advice=advice)


def read(path: Path, options: LaunchOptions) -> tuple[bytes, ForeignLaunch]:
    """Return the bytes of a code object and a launch of it. Raises UserError."""
    content = targets.read(path)
    known = targets.executor(content, path.name).signatures(content)
    if options.grid is None or options.block is None:
        missing = "--grid" if options.grid is None else "--block"
        raise UserError(f"given no {missing}, wanted one to launch {path.name}")
    return content, prepare(known, options)


def prepare(
    signatures: Mapping[str, Signature], options: LaunchOptions, filling: Defaults | None = None
) -> ForeignLaunch:
    """Return a launch, whose options have a grid and a block; `filling` makes up missing arguments.

    Without `filling` a missing pointer is null, and a missing scalar is a UserError.
    """
    assert options.grid is not None
    assert options.block is not None
    chosen = _kernel(signatures, options.kernel)
    if chosen.wants_shared and not options.dynamic_lds:
        raise UserError(
            f"given no --lds for {chosen.kernel}, wanted one: the launch gives the size of its shared memory"
        )
    missing = dict(enumerate(chosen.parameters))
    values: list[tuple[Parameter, str | bytes]] = []  #: name of a buffer, or bytes
    arrays: dict[str, Array] = {}
    for name, text in options.arguments:
        parameter = missing.pop(_place(name, chosen), None)
        if parameter is None:
            raise UserError(f"given the argument {name} twice, wanted it once")
        if parameter.is_pointer:
            arrays[name] = _array(text, name)
        values.append((parameter, name if parameter.is_pointer else _encoded(text, name, parameter)))
    made_up: dict[str, Pages] = {}
    settings = list(options.arguments)
    for number, parameter in missing.items():
        name = _unused(parameter.name or str(number), arrays)
        value, shown = _assumed(name, parameter, number, filling, made_up)
        values.append((parameter, value))
        settings.append((name, shown))
    args = tuple(KernelArg(parameter.offset, parameter.size, value) for parameter, value in values)
    shared_bytes = chosen.shared_bytes + options.dynamic_lds
    request = LaunchRequest(chosen.kernel, options.grid, options.block, args, shared_bytes)
    undefined = [n for n, t in options.arguments if n in arrays and _SHAPED.match(t) and not t.startswith("zeros:")]
    return ForeignLaunch(request, arrays, tuple(undefined), made_up, tuple(settings))


def _assumed(
    name: str, parameter: Parameter, number: int, filling: Defaults | None, made_up: dict[str, Pages]
) -> tuple[str | bytes, str]:
    """Return the value of an argument that no option gives, and the value for people; add a buffer to `made_up`.

    Raises UserError for a scalar without `filling`.
    """
    if filling is None:
        if not parameter.is_pointer:
            raise UserError(f"given no argument {name}, wanted its value")
        return bytes(parameter.size), "zeros"
    if parameter.is_pointer:
        made_up[name] = filling.buffer(parameter, number)
        return name, f"{len(made_up[name].data)} bytes"
    text = filling.scalar(parameter, number)
    return (_encoded(text, name, parameter), text) if text else (bytes(parameter.size), "zeros")


def _unused(name: str, taken: Mapping[str, object]) -> str:
    """Return a buffer name that is not taken."""
    while name in taken:
        name += "'"
    return name


def _kernel(signatures: Mapping[str, Signature], name: str | None) -> Signature:
    if name is not None and name not in signatures:
        raise UserError(f"given the kernel {named(name, signatures)}, wanted one of {', '.join(signatures)}")
    if name is None and len(signatures) != 1:
        raise UserError(f"given no --kernel, wanted one of {', '.join(signatures) or 'none, for there is none'}")
    return signatures[name or next(iter(signatures))]


def _place(name: str, signature: Signature) -> int:
    """Return the number of an argument given by name or number. Raises UserError for an unknown one."""
    names = [parameter.name for parameter in signature.parameters]
    if name in names:
        return names.index(name)
    if name.isascii() and name.isdigit() and int(name) < len(names):
        return int(name)
    wanted = ", ".join(label or str(number) for number, label in enumerate(names)) or "none"
    raise UserError(f"given the argument {name} of {signature.kernel}, wanted one of {wanted}")


def _encoded(text: str, name: str, parameter: Parameter) -> bytes:
    """Return the bytes of an argument passed by value. Raises UserError for text that does not fit it."""
    size = parameter.size
    if not _NUMBER.match(text):
        array = _array(text, name) if text.endswith(".npy") else None
        if array is None or array.nbytes != size:
            raise UserError(f"given {name}={text}, wanted a number, or an array of {size} bytes")
        return array.tobytes()
    whole = re.fullmatch(r"[-+]?(0x[0-9a-fA-F]+|[0-9]+)", text) is not None
    elem = defaults.element(parameter.type_name)
    is_float = elem is not None and elem.kind is types.Kind.FLOAT and elem.bytes == size
    if whole and not is_float:
        number = int(text, 0)
        if not -(1 << 8 * size - 1) <= number < 1 << 8 * size:
            raise UserError(f"given {name}={text}, wanted a number of {size} bytes")
        return (number & (1 << 8 * size) - 1).to_bytes(size, "little")
    if not is_float and size not in _FLOATS:
        raise UserError(f"given {name}={text}, wanted a whole number of {size} bytes")
    numbers = elem if elem is not None and is_float else _FLOATS[size]
    return bytes(np.array(float(text)).astype(numbers.numpy).tobytes())


def _array(text: str, name: str) -> Array:
    """Return the array that an argument gives for a pointer. Raises UserError."""
    shaped = _SHAPED.match(text)
    if shaped is None:
        return _loaded(Path(text), name)
    dims = tuple(int(size) for size in shaped["dims"].split("x"))
    try:
        dtype = reference.numpy_type(types.scalar(shaped["type"]).name)
    except (KeyError, ValueError, UserError):
        raise UserError(f"given the type {shaped['type']} of {name}, wanted one such as f32, bf16 or s8") from None
    if dtype in types.half_bytes():
        raise UserError(
            f"given the type {shaped['type']} of {name}, wanted one of whole bytes; use u8 for a pair of elements"
        )
    if np.prod([float(size) for size in dims]) * dtype.itemsize > _MOST_BYTES:
        raise UserError(f"given {name}={text}, wanted at most {_MOST_BYTES} bytes")
    return np.zeros(dims, dtype)


def _loaded(path: Path, name: str) -> Array:
    if path.suffix != ".npy":
        raise UserError(f"given {name}={path}, wanted FILE.npy, TYPE:DIMS (such as f32:64x64) or zeros:TYPE:DIMS")

    def check(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
        if math.prod(shape) * dtype.itemsize > _MOST_BYTES:
            raise UserError(f"given {name}={path}, wanted at most {_MOST_BYTES} bytes")

    return np.ascontiguousarray(npy.load(path, check))
