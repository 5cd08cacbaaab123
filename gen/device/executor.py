"""Execute a simulator's requests on a device, on the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress

import numpy as np

from convgen.backends.device import Device
from convgen.backends.library import DeviceError
from convgen.backends.simulation import Bytes, LaunchRequest, Pages, SimReport
from convgen.device.loaded import check_target
from convgen.ir.record import frozen


@frozen
class Executor:
    """An executor that runs verification on `device` in place of a simulator."""

    device: Device

    def __str__(self) -> str:
        return f"{self.device.name} ({self.device.title})"

    def execute(
        self, content: bytes, requests: Sequence[LaunchRequest], buffers: Mapping[str, Bytes | Pages], target: str = ""
    ) -> SimReport:
        """Run all launches; buffers change in place. The report's seconds are the device's.

        `target` is the target of the code, if known. Raises UserError, DeviceError.
        """
        if target:
            check_target(f"code for {target}", target, self.device)
        device = self.device
        with ExitStack() as held:
            module = device.load(content)
            held.callback(_quietly, module.unload)
            addresses = {}
            for name, buffer in buffers.items():
                data = contiguous(buffer)
                addresses[name] = device.allocate(data.nbytes)
                held.callback(_quietly, device.free, addresses[name])
                device.upload(addresses[name], data, 0)
            functions = {name: module.function(name) for name in dict.fromkeys(r.kernel for r in requests)}
            first = device.record(0)
            for request in requests:
                device.launcher(functions[request.kernel], request)(addresses, 0)
            seconds = device.seconds(first, device.record(0))
            for name, buffer in buffers.items():
                device.download(contiguous(buffer), addresses[name], 0)
        return SimReport((), {}, {}, seconds)


def _quietly(release: Callable[..., None], *arguments: int) -> None:
    """Release something; after a failed launch releasing fails, too, and the launch's error is the one to report."""
    with suppress(DeviceError):
        release(*arguments)


def contiguous(buffer: Bytes | Pages) -> Bytes:
    """Return all bytes of a buffer, which change with the array."""
    return np.ascontiguousarray(buffer.whole() if isinstance(buffer, Pages) else buffer)
