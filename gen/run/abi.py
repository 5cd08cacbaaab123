"""From kernels as emitted to the launch record: what each argument is, and which tensor a buffer holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, repeat

from convgen.backends.stages import Emitted
from convgen.ir.error import UserError
from convgen.ir.expr import Var
from convgen.ir.layout.argument import Argument
from convgen.ir.layout.memory import Global
from convgen.ir.layout.tags import Layout
from convgen.ir.mutate import statements
from convgen.ir.program import Kernel
from convgen.ir.stmt import Ticket
from convgen.problem.matmul import Problem
from convgen.run.record import Access, Buffer, Launch, LaunchRecord, Scalar, StoredTensor

Scalars = Mapping[str, int | float]


def launch_record(
    target: str,
    kernels: Sequence[Kernel],
    emitted: Sequence[Emitted],
    problem: Problem | None,
    scalars: Scalars,
    arguments: Sequence[Sequence[Argument]] = (),
) -> LaunchRecord:
    """The launches of `kernels` in order, each with its arguments where `emitted` placed them.

    `scalars` gives the scalar arguments of all kernels by name, `arguments` those that each kernel's mapping has.
    """
    tensors = {} if problem is None else _tensors_of(problem)
    launches = []
    for kernel, e, own in zip(kernels, emitted, chain(arguments, repeat(()))):
        accesses, zeroed = buffer_accesses(kernel), zeroed_buffers(kernel)
        args = tuple(
            Buffer(p.name, offset, accesses[p.name], tensors.get(p.name) or _flat(p), p in zeroed)
            if isinstance(p, Global)
            else _scalar(kernel, p, offset, scalars, own)
            for p, (_, offset, _) in zip(kernel.params, e.arguments)
        )
        workgroup = (kernel.subgroups * kernel.width, 1, 1)
        launches.append(Launch(kernel.name, kernel.grid, workgroup, args, e.kernarg_size, e.shared_bytes))
    return LaunchRecord(target, None, tuple(launches), None if problem is None else str(problem))


def _tensors_of(problem: Problem) -> dict[str, StoredTensor]:
    return {spec.name: StoredTensor.of(spec.layout, spec.dtype) for spec in problem.tensors}


def _flat(buffer: Global) -> StoredTensor:
    """A buffer that is no tensor of the problem: nothing is known but its elements."""
    return StoredTensor.of(Layout.dense((buffer.bytes // buffer.elem.bytes,), (0,)), buffer.elem.name)


def _scalar(kernel: Kernel, parameter: Var, offset: int, scalars: Scalars, arguments: Sequence[Argument]) -> Scalar:
    for a in arguments:
        if a.name == parameter.name:
            return Scalar(a.name, offset, a.type.name, a.value, a.expr)
    if parameter.name not in scalars:
        raise UserError(f"given no value for scalar {parameter.name} of kernel {kernel.name}, wanted one in scalars=")
    return Scalar(parameter.name, offset, parameter.type.name, scalars[parameter.name])


def zeroed_buffers(kernel: Kernel) -> list[Global]:
    """The buffers that begin with zeros and are left so: those from which tickets are taken."""
    return [s.buffer for s in statements(kernel.body) if isinstance(s, Ticket)]


def buffer_accesses(kernel: Kernel) -> dict[str, Access]:
    """How a kernel of either level uses each of its buffers; one that it never touches counts as read."""
    stmts = list(statements(kernel.body))
    read, written = {m for s in stmts for m in s.reads}, {m for s in stmts for m in s.writes}
    return {
        p.name: "readwrite" if p in read and p in written else "write" if p in written else "read"
        for p in kernel.params
        if isinstance(p, Global)
    }
