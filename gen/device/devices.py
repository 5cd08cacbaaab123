"""Devices by name: the runtime's kind, a colon and a number."""

from __future__ import annotations

import re
from functools import cache

from convgen.backends import family as families
from convgen.backends.device import Device
from convgen.ir.error import UserError, imported, named


@cache
def open_device(name: str) -> Device:
    """Return the device `KIND:NUMBER` of a runtime; without a number, device 0.

    Raises UserError for a name that is none, a missing library or a missing device.
    """
    kind, _, number = name.replace("-", "_").partition(":")
    modules = {family.runtime.kind: family.runtime.module for family in families.having("runtime") if family.runtime}
    if kind not in modules:
        raise UserError(
            f"given the device {named(name, modules)}, wanted one of {', '.join(f'{k}:0' for k in modules)}"
        )
    if not re.fullmatch("[0-9]{0,4}", number):
        raise UserError(f"given the device {name!r}, wanted a number behind {kind}:")
    device: Device = imported(modules[kind]).Device(int(number or 0))
    return device
