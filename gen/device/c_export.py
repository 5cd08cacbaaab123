"""Export a program as C: a header, and a source with the code object, which links with its family's runtime only.

Templates of the runtime's parts are in the family's folder (`backends.family.Runtime`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import jinja2

from convgen.backends import target as targets
from convgen.backends.family import Runtime
from convgen.device.loaded import Program
from convgen.ir import arithmetic, types
from convgen.ir.error import Unsupported, UserError, visible
from convgen.ir.record import frozen
from convgen.ir.sizes import Promise
from convgen.run.code import Code
from convgen.run.files import write_all
from convgen.run.launch_record import Buffer, Launch, MapArgument, Scalar
from convgen.version import __version__

_ELF = b"\x7fELF"
_ALIGNMENT = 256  #: bytes; alignment of the parts of a workspace
_TYPES = {
    "s8": "int8_t",
    "u8": "uint8_t",
    "s16": "int16_t",
    "u16": "uint16_t",
    "s32": "int32_t",
    "u32": "uint32_t",
    "s64": "int64_t",
    "u64": "uint64_t",
    "f32": "float",
    "f64": "double",
}
_RESERVED = frozenset(  # keywords of C and C++
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const"
    " constexpr continue default delete do double else end_ enum explicit export extern false float for"
    " friend goto if inline int long mutable namespace new not not_eq nullptr operator or or_eq private"
    " protected public register restrict return short signed sizeof static struct switch template this"
    " throw true try typedef typeid typename union unsigned using virtual void volatile while xor xor_eq".split()
)


def _member(name: str) -> str:
    """Return a name as an identifier of a member in C."""
    identifier = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"{identifier}_" if identifier in _RESERVED or identifier[:1].isdigit() else identifier


@frozen
class _C:
    """A 64-bit expression of C, and the functions that it calls."""

    text: str
    calls: frozenset[str] = frozenset()

    @classmethod
    def of(cls, given: _C | int) -> _C:
        return given if isinstance(given, _C) else cls(f"(int64_t){given}")

    def _with(self, pattern: str, other: _C | int, *calls: str) -> _C:
        that = _C.of(other)
        return _C(pattern.format(self.text, that.text), self.calls | that.calls | {*calls})

    def __add__(self, other: _C | int) -> _C:
        return self._with("({} + {})", other)

    def __sub__(self, other: _C | int) -> _C:
        return self._with("({} - {})", other)

    def __mul__(self, other: _C | int) -> _C:
        return self._with("({} * {})", other)

    def __floordiv__(self, other: _C | int) -> _C:
        return self._with("quotient({}, {})", other, "//")

    def __mod__(self, other: _C | int) -> _C:
        return self._with("rest({}, {})", other, "%", "//")

    def __neg__(self) -> _C:
        return _C(f"(-{self.text})", self.calls)

    def __radd__(self, other: int) -> _C:
        return _C.of(other) + self

    def __rsub__(self, other: int) -> _C:
        return _C.of(other) - self

    def __rmul__(self, other: int) -> _C:
        return _C.of(other) * self

    def __rfloordiv__(self, other: int) -> _C:
        return _C.of(other) // self

    def __rmod__(self, other: int) -> _C:
        return _C.of(other) % self


def _two(name: str, function: str) -> Any:
    return lambda a, b: _C.of(a)._with(f"{function}({{}}, {{}})", b, name)


def _one(name: str) -> Any:
    return lambda d: _C(f"{name}({_C.of(d).text})", _C.of(d).calls | {name, "shift"})


_CALLED = {"min": _two("min", "least"), "max": _two("max", "most"), "shift": _one("shift"), "magic": _one("magic")}


class _Writer:
    """Collects the values of the templates from a program."""

    def __init__(self, program: Program, runtime: Runtime, stem: str) -> None:
        self.program, self.runtime, self.stem = program, runtime, stem
        self.end = b"" if program.content.startswith(_ELF) else b"\0"  #: text ends as strings of C do
        self.calls: set[str] = set()
        self.free = program.record.free_scalars
        for scalar in self.free.values():
            if scalar.dtype not in _TYPES:
                raise Unsupported(f"scalars of {scalar.dtype} ({scalar.name}) in exported C", rule="export-c")

    def expression(self, text: str) -> str:
        """Return a launch expression in C."""
        names = {name: _C(f"(int64_t)scalars->{_member(name)}") for name in self.free}
        try:
            expression = _C.of(arithmetic.value(text, names, _CALLED))
        except ValueError:
            raise UserError(f"given the launch expression {text!r}, wanted one of known scalars") from None
        self.calls |= expression.calls
        return expression.text

    def bytes_of(self, buffer: Buffer) -> str:
        """Return a C expression of the bytes of a buffer."""
        if not buffer.shape:
            return str(buffer.tensor.bytes)
        elements = " * ".join(map(self.expression, buffer.shape))
        return f"({elements} * {types.scalar(buffer.tensor.dtype).spacing} + 7) / 8"

    def buffer(self, name: str) -> dict[str, Any]:
        buffer, tensor = self.program.record.buffers[name], self.program.record.buffers[name].tensor
        sizes = buffer.shape or tuple(map(str, tensor.dims))
        remark = f"{tensor.dtype} [{', '.join(sizes)}] {tensor.tag}"
        remark += "" if buffer.shape else f", {tensor.bytes} bytes"
        return {"name": _member(name), "written": name in self.program.outputs, "remark": _comment(remark)}

    def scalar(self, scalar: Scalar) -> dict[str, Any]:
        kind, name, promise = types.scalar(scalar.dtype), _member(scalar.name), scalar.promise
        if promise is None and kind.is_int:
            promise = Promise(kind.min, kind.max, 1)
        range_text = scalar.dtype
        if promise:
            range_text = f"from {promise.least} to {promise.most}"
            range_text += f", a multiple of {promise.multiple}" if promise.multiple > 1 else ""
        field, default = "int64_t" if kind.is_int else "double", f".{name} = {scalar.value!r}"
        return {"name": name, "field": field, "remark": range_text, "promise": promise, "default": default}

    def place(self, name: str) -> str:
        """Return a C expression of the address of a buffer."""
        inside = name in self.program.workspaces
        return f"(char *)workspace + at.{_member(name)}" if inside else f"buffers->{_member(name)}"

    def tensor_map(self, arg: MapArgument) -> dict[str, Any]:
        """Return a tensor map for the family's template.

        Raises Unsupported if the runtime encodes none, and for a buffer whose size is known at launch only.
        """
        name = arg.tensor.buffer
        if not self.runtime.encodes_maps:
            given = f"given a tensor map of {name} for {self.runtime.title}, which encodes none"
            raise Unsupported(f"{given}; wanted code whose arguments are buffers and scalars", rule="export-c")
        if self.program.record.buffers[name].shape:
            raise Unsupported(f"given a tensor map of {name}, wanted {name} of a fixed size for C", rule="export-c")
        return {
            "offset": arg.offset,
            "tensor": arg.tensor,
            "place": f"(const char *)({self.place(name)}) + {arg.tensor.shift}",
        }

    def argument(self, arg: Buffer | Scalar) -> dict[str, Any]:
        if isinstance(arg, Buffer):
            return {"offset": arg.offset, "type": "const void *", "value": self.place(arg.name)}
        value = f"scalars->{_member(arg.name)}" if arg.expr is None else self.expression(arg.expr)
        return {"offset": arg.offset, "type": _TYPES[arg.dtype], "value": value}

    def launch(self, launch: Launch, kernels: list[str]) -> dict[str, Any]:
        grid = [
            str(n) if expr is None else f"(unsigned){self.expression(expr)}"
            for n, expr in zip(launch.grid, launch.grid_expr)
        ]
        counted = [axis for axis, expr in enumerate(launch.grid_expr) if expr is not None]  # extents that may be zero
        return {
            "counted": counted,
            "kernel": launch.kernel,
            "number": kernels.index(launch.kernel),
            "grid": grid,
            "group": launch.workgroup,
            "shared_bytes": launch.shared_bytes,
            "size": launch.kernarg_size,
            "arguments": [self.argument(arg) for arg in launch.args if not isinstance(arg, MapArgument)],
            "offsets": sorted(arg.offset for arg in launch.args),
            "maps": [self.tensor_map(arg) for arg in launch.args if isinstance(arg, MapArgument)],
        }

    def values(self) -> dict[str, Any]:
        program, record, name = self.program, self.program.record, _identifier(self.stem)
        runtime = self.runtime
        kernels = list(dict.fromkeys(launch.kernel for launch in record.launches))
        parts = [
            {"name": _member(n), "bytes": self.bytes_of(record.buffers[n]), "zero": record.buffers[n].zero}
            for n in program.workspaces
        ]
        launches = [self.launch(launch, kernels) for launch in record.launches]
        scalars = [f"const {name}_scalars *scalars"] if self.free else []
        parameters = [f"const {name}_kernel *kernel", f"const {name}_buffers *buffers", *scalars, "void *workspace"]
        return {
            "title": _comment(program.name),
            "target": record.target,
            "version": __version__,
            "stem": self.stem,
            "name": name,
            "runtime": runtime,
            "room": _ALIGNMENT,
            "buffers": [self.buffer(n) for n in dict.fromkeys((*program.inputs, *program.outputs))],
            "scalars": [self.scalar(scalar) for scalar in self.free.values()],
            "parts": parts,
            "cleared": any(part["zero"] for part in parts),
            "kernels": kernels,
            "launches": launches,
            "map_kinds": sorted({one["tensor"].kind for launch in launches for one in launch["maps"]}),
            "content": list(program.content + self.end),
            "calls": self.calls,
            "clear_parameters": ", ".join(["void *workspace", *scalars, runtime.c_queue]),
            "launch_parameters": ", ".join([*parameters, runtime.c_queue]),
        }


def _comment(text: str) -> str:
    """Return text that cannot end a C comment."""
    return visible(text).replace("*/", "* /").replace("/*", "/ *")


def _identifier(stem: str) -> str:
    """Return the identifier in C for a file's name."""
    check_name(stem)
    return re.sub(r"[.-]", "_", stem)


def check_name(stem: str) -> None:
    """Raise UserError for the name of a file that gives no identifier in C."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", stem):
        raise UserError(f"given the name {stem!r} for C, wanted a letter, and letters, digits, _, - or .")


@cache
def _templates(package: str) -> jinja2.Environment:
    """Return the templates: those of all runtimes, and those of one runtime in its package."""
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader("convgen.device"), jinja2.PackageLoader(package)]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def export(code: Code | str | PathLike[str], prefix: str | PathLike[str]) -> tuple[Path, Path]:
    """Write code, or the code of a launch record, as C to PREFIX.h and PREFIX.c; return the two paths.

    They launch through the runtime of the target's family. Raises UserError, with nothing written, for a prefix that is
    no name in C, files that cannot be written, and a record without a code object; Unsupported for a family without a
    runtime.
    """
    if not isinstance(prefix, str | PathLike):
        raise UserError(f"given prefix of type {type(prefix).__name__}, wanted a path")
    stem = Path(prefix)
    contents = contents_of(Program.of(code), stem)
    write_all(contents, "--c")
    header, source = contents
    return header, source


def contents_of(program: Program, stem: Path) -> dict[Path, bytes]:
    """Return the paths STEM.h and STEM.c with their bytes. Raises UserError and Unsupported as `export` does."""
    runtime = runtime_of(program)
    values: Mapping[str, Any] = _Writer(program, runtime, stem.name).values()
    texts, templates = {".h": "kernel.h.j2", ".c": "kernel.c.j2"}, _templates(runtime.package)
    return {
        stem.parent / f"{stem.name}{suffix}": templates.get_template(file).render(values).encode()
        for suffix, file in texts.items()
    }


def contents_of_all(programs: Mapping[str, Program], stem: Path, remarks: Mapping[str, str]) -> dict[Path, bytes]:
    """Return the files of several programs by path: STEM_NAME.h and STEM_NAME.c of each, and STEM.h, which includes the
    headers, with a remark on each program.

    Raises UserError and Unsupported as `export` does; UserError without programs.
    """
    if not programs:
        raise UserError("given no code with launches, wanted some to write as C")
    parts = {name: stem.parent / f"{stem.name}_{name}" for name in programs}
    contents = {path: text for name, part in parts.items() for path, text in contents_of(programs[name], part).items()}
    first = next(iter(programs.values()))
    kernels = [{"stem": part.name, "remark": _comment(remarks[name])} for name, part in parts.items()]
    values = {
        "name": _identifier(stem.name),
        "version": __version__,
        "target": first.record.target,
        "runtime": runtime_of(first),
        "kernels": kernels,
    }
    header = _templates(runtime_of(first).package).get_template("kernels.h.j2").render(values)
    return contents | {stem.parent / f"{stem.name}.h": header.encode()}


def runtime_of(program: Program) -> Runtime:
    """Return the runtime that launches a program. Raises Unsupported for a family without one."""
    family = targets.get(program.record.target).family
    if family.runtime is None:
        raise Unsupported(
            f"C for {program.record.target}: {family.vendor}'s {family.title} has no runtime", rule="export-c"
        )
    return family.runtime
