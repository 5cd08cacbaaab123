"""Execute any zebin for an Intel GPU: the simulator, and launches as `.ze_info` describes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from convgen.backends.intel.sim import CodeObject, KernelInfo
from convgen.backends.intel.sim import simulate as simulate_strictly
from convgen.backends.sim import elf as elf_files
from convgen.backends.sim.errors import reading
from convgen.backends.simulation import Parameter, Signature, with_offsets
from convgen.ir import untrusted

__all__ = ["architecture", "signatures", "simulate"]

#: The simulator, which accepts assumptions of Intel's compiler that foreign objects rely on (`sim.scoreboard`).
simulate = partial(simulate_strictly, trust_igc=True)

_BUFFERS = ("arg_bypointer", "buffer_address")  #: kinds of payload arguments that hold an address
_GIVEN = (*_BUFFERS, "arg_byvalue")  #: kinds that the host passes; runtimes fill in all others


def architecture(code_object: bytes) -> str:
    """Return the name of the platform, such as xehpc. Raises SimulatorError."""
    return CodeObject.load(code_object).platform.name


def signatures(code_object: bytes) -> dict[str, Signature]:
    """Return the arguments and resources of a zebin's kernels, by kernel name. Raises SimulatorError."""
    kernels = CodeObject.load(code_object).kernels
    with reading(".ze_info"):
        info = _info(code_object)
        local = {str(entry["name"]): set(_local(entry)) for entry in info["kernels"]}
        described = {str(entry["name"]): entry.get("args_info") or () for entry in info.get("kernels_misc_info") or ()}
        return {
            name: _signature(kernel, local[name], {int(arg["index"]): arg for arg in described.get(name, ())})
            for name, kernel in kernels.items()
        }


@lru_cache(maxsize=8)
def _info(code_object: bytes) -> Any:
    section = elf_files.opened(code_object).get_section_by_name(".ze_info")
    assert section is not None, "CodeObject.load refuses a zebin without"
    return untrusted.yaml_of(section.data().rstrip(b"\0"), ".ze_info")


def _local(entry: Mapping[str, Any]) -> Iterator[int]:
    """Yield the numbers of arguments that point into SLM: each is an offset there, not an address."""
    for item in entry.get("payload_arguments") or ():
        if item.get("addrmode") == "slm":
            yield int(item["arg_index"])


def _signature(kernel: KernelInfo, local: set[int], described: Mapping[int, Mapping[str, Any]]) -> Signature:
    """Return the signature, its arguments by number. The number names an argument without a name (`args_info`)."""
    passed = sorted(
        (item for item in kernel.payload if item.size and item.kind in _GIVEN),
        key=lambda item: (item.index, item.offset),
    )
    parameters = []
    for before, item in zip([None, *passed], passed):
        about = described.get(item.index, {})
        part = f"+{item.offset}" if before is not None and before.index == item.index else ""
        name = f"{about.get('name') or item.index}{part}"
        is_pointer = item.kind in _BUFFERS and item.index not in local
        parameters.append(Parameter(name, item.offset, item.size, is_pointer, str(about.get("type_name", ""))))
    offsets = [number for number, item in enumerate(passed) if item.index in local]
    known = Signature(kernel.name, tuple(parameters), kernel.slm, kernel.required_size)
    return with_offsets(known, offsets, kernel.slm)
