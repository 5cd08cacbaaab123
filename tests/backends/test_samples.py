"""The code of the samples stays what it was (digests of the text), and keeps the rules behind each stage.

Where a change is meant, look at it with `convgen conv ... -o` before and after, and accept it with `./dev bless`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from convgen.backends.stages import Emitted, MachineKernel, Stage
from tests import samples


def verified(stage: Stage, before: MachineKernel, after: MachineKernel, seconds: float) -> None:
    """Every stage leaves a function that keeps the rules of the machine layer."""
    after.verify()


def described(e: Emitted) -> str:
    registers = " ".join(f"{count} {name}" for name, count in e.registers.items())
    arguments = " ".join(f"{name} {offset}" for name, offset, _ in e.arguments)
    return f"{samples.digest(e.text)}, {registers}, {e.shared_bytes} shared, {arguments} of {e.kernarg_size}"


@pytest.mark.parametrize("target", samples.TARGETS)
def test_code(target: str, golden: Callable[[str, str], None]) -> None:
    rows = []
    for name in samples.names(target):
        to = samples.program(target, name).target
        emitted = [
            to.emit(kernel, ["header"], debug=name == "gemm", observe=verified)
            for kernel in samples.lowered(target, name)
        ]
        rows += [f"{name}:", *(f"    {described(e)}" for e in emitted)]
        rows.append(f"    {samples.digest(to.module(emitted))} in all")
    golden(f"code/{target}.txt", "\n".join(rows) + "\n")
