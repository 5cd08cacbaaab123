"""A kernel called by way of Level Zero, in a process of its own: what was put where, as JSON on standard output.

The arguments are a launch record; the driver and its switches come from the environment.
"""

from __future__ import annotations

import json
import sys

import convgen as cg
from convgen.device.tensor_arguments import Argument
from convgen.run import reference


def main() -> None:
    """A call with arrays of the host, then one with arrays on the device in a stream."""
    kernel = cg.load(sys.argv[1], "level_zero:0")
    assert kernel.program.problem is not None
    device = kernel.device
    inputs = reference.fill(kernel.program.problem)
    kernel(**inputs)
    held = {name: kernel.put(name, array) for name, array in inputs.items()}
    stream = device.new_stream()
    results = kernel(stream=stream, **held)
    outputs = results if isinstance(results, dict) else {kernel.program.outputs[0]: results}
    workspaces = kernel.workspace(kernel.program.record, stream)
    first = device.record(stream)
    seconds = device.seconds(first, device.record(stream))
    device.synchronize(stream)
    regions = [device.region(array.address) for array in held.values()]
    wrong = []
    for given in (inputs["src"].ctypes.data, held["src"]):
        try:
            other = given if isinstance(given, int) else given.address + 64
            arguments: dict[str, Argument] = {**held, "src": other}
            kernel(**arguments)
        except cg.UserError as error:
            wrong.append(str(error))
    addresses = {name: array.address for name, array in (held | outputs).items()} | workspaces
    answer = {
        "title": device.title,
        "addresses": addresses,
        "regions": [region is not None and region.device == 0 for region in regions],
        "wrong": wrong,
        "seconds": seconds,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
