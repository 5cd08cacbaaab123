"""Build the launch record of emitted kernels: the place of each argument, and the tensor in each buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convgen.backends.stages import Emitted
from convgen.ir.error import UserError
from convgen.ir.expr import Var
from convgen.ir.layout.argument import launch_expression
from convgen.ir.layout.memory import Global, SizedGlobal
from convgen.ir.layout.tags import Layout
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.sizes import Extent, HostValue, Size
from convgen.ir.stmt import Ticket
from convgen.problem.matmul import Problem
from convgen.run.launch_record import Access, Buffer, Launch, LaunchRecord, MapArgument, Scalar, StoredTensor

Scalars = Mapping[str, int | float]


def launch_record(
    target: str,
    kernels: Sequence[Kernel],
    emitted: Sequence[Emitted],
    problem: Problem | None,
    scalars: Scalars,
    tensors: Mapping[str, StoredTensor],
) -> LaunchRecord:
    """Return the launches of `kernels` in order, each with its arguments where `emitted` placed them.

    `tensors` are those of buffers by name; a buffer without one is a row of elements. `scalars` has the values of
    scalar arguments by name; a size without a value there is the largest one possible.
    """
    launches = []
    for kernel, e in zip(kernels, emitted):
        accesses, zeroed = buffer_accesses(kernel), zeroed_buffers(kernel)
        args = tuple(
            _buffer(p, offset, accesses[p.name], tensors.get(p.name), zero=p in zeroed)
            if isinstance(p, Global)
            else _scalar(kernel, p, offset, scalars)
            for p, (_, offset, _) in zip(kernel.params, e.arguments)
        )
        maps = tuple(MapArgument(offset, tensor) for tensor, offset in e.maps)
        workgroup = (e.lanes, 1, 1)
        x, y, z = (None if isinstance(count, int) else launch_expression(count) for count in kernel.workgroups)
        launch = Launch(kernel.name, kernel.grid, workgroup, (*args, *maps), e.kernarg_size, e.shared_bytes, (x, y, z))
        launches.append(launch.with_scalars({}))
    return LaunchRecord(target, None, tuple(launches), None if problem is None else str(problem))


def tensors_of(problem: Problem) -> dict[str, StoredTensor]:
    return {spec.name: StoredTensor.of(spec.layout, spec.dtype) for spec in problem.tensors}


def _flat(buffer: Global) -> StoredTensor:
    """Return the 1-D tensor of a buffer of which only the number of elements is known."""
    return StoredTensor.of(Layout.dense((buffer.bytes * 8 // buffer.elem.spacing,), (0,)), buffer.elem.name)


def _buffer(p: Global, offset: int, access: Access, tensor: StoredTensor | None, *, zero: bool) -> Buffer:
    """Return a buffer with its tensor, and with the expressions of dims that a host computes."""
    shape: tuple[Extent, ...] = ()
    if isinstance(p, SizedGlobal):
        shape = (p.elements,) if tensor is None else p.shape
    return Buffer(p.name, offset, access, tensor or _flat(p), zero, tuple(map(launch_expression, shape)))


def _scalar(kernel: Kernel, parameter: Var, offset: int, scalars: Scalars) -> Scalar:
    match parameter:
        case HostValue(name, _, dtype, value, how):
            return Scalar(name, offset, dtype.elem.name, scalars.get(name, value), how or None)
        case Size(name, _, dtype):
            chosen = scalars.get(name, parameter.range[1])
            return Scalar(name, offset, dtype.elem.name, chosen, promise=parameter.promise)
    if parameter.name not in scalars:
        raise UserError(f"given no value for scalar {parameter.name} of kernel {kernel.name}, wanted one in scalars=")
    return Scalar(parameter.name, offset, parameter.type.name, scalars[parameter.name])


def zeroed_buffers(kernel: Kernel) -> list[Global]:
    """Return the buffers that are zero before and after a run: those from which tickets are taken."""
    return [s.buffer for s in statements(kernel.body) if isinstance(s, Ticket)]


def buffer_accesses(kernel: Kernel) -> dict[str, Access]:
    """Return a kernel's access to each of its buffers, at tile or message level; an unused one counts as read."""
    stmts = list(statements(kernel.body))
    read, written = {m for s in stmts for m in s.reads}, {m for s in stmts for m in s.writes}
    return {
        p.name: "readwrite" if p in read and p in written else "write" if p in written else "read"
        for p in kernel.params
        if isinstance(p, Global)
    }
