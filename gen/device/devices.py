"""Devices by name: the runtime's kind, a colon and a number."""

from __future__ import annotations

import re
from functools import cache

from convgen.backends import family as families
from convgen.backends.device import Device
from convgen.backends.family import Runtime
from convgen.ir.error import UserError, imported, named


@cache
def open_device(name: str) -> Device:
    """Return the device `KIND:NUMBER` of a runtime; without a number, device 0.

    Raises UserError for a name that is none, a missing library or a missing device.
    """
    runtime, number = runtime_of(name)
    device: Device = imported(runtime.module).Device(number)
    return device


def runtime_of(name: str) -> tuple[Runtime, int]:
    """Return the runtime and the number of a device `KIND:NUMBER`. Raises UserError for a name that is none."""
    kind, _, number = name.replace("-", "_").partition(":")
    runtimes = {family.runtime.kind: family.runtime for family in families.having("runtime") if family.runtime}
    if kind not in runtimes:
        raise UserError(
            f"given the device {named(name, runtimes)}, wanted one of {', '.join(f'{k}:0' for k in runtimes)}"
        )
    if not re.fullmatch("[0-9]{0,4}", number):
        raise UserError(f"given the device {name!r}, wanted a number behind {kind}:")
    return runtimes[kind], int(number or 0)
