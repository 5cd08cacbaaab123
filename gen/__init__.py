"""convgen: GPU convolution and GEMM kernels from a problem line, verified without a GPU.

import convgen as cg

p = cg.Conv.parse("mb1ic64ih56oc64oh56kh3ph1", dir="FWD_D", dt="f16")
k = cg.build(p)
code = cg.compile(k)
out = cg.simulate(code, src=x, wei=w)

`cg.Deconv` is a transposed convolution, `cg.Matmul` a matrix product, `cg.Kernel` builds a kernel by hand; both go the
same way. `cg.torch` puts kernels into PyTorch's models.

Errors are ConvgenError: UserError for a wrong request, Unsupported (with the name of a `rule`) for a sound one that is
not generated, SimulationError for what the simulator finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if __name__ != "convgen":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen, not as {__name__}")

from convgen.version import __version__ as __version__

if TYPE_CHECKING:
    from convgen import torch as torch
    from convgen.device.c_export import export
    from convgen.device.loaded import load
    from convgen.driver import build, compile, facts
    from convgen.ir.build import KernelBuilder as Kernel
    from convgen.ir.error import ConvgenError, Unsupported, UserError
    from convgen.problem.conv import Conv
    from convgen.problem.deconv import Deconv
    from convgen.problem.matmul import Matmul
    from convgen.simulated_calls import SimulationError, simulate

__all__ = [
    "Conv",
    "ConvgenError",
    "Deconv",
    "Kernel",
    "Matmul",
    "SimulationError",
    "Unsupported",
    "UserError",
    "build",
    "compile",
    "export",
    "facts",
    "load",
    "simulate",
]

#: public name -> its module and its name there
_HOMES = {
    "Conv": ("problem.conv", "Conv"),
    "ConvgenError": ("ir.error", "ConvgenError"),
    "Deconv": ("problem.deconv", "Deconv"),
    "Kernel": ("ir.build", "KernelBuilder"),
    "Matmul": ("problem.matmul", "Matmul"),
    "SimulationError": ("simulated_calls", "SimulationError"),
    "Unsupported": ("ir.error", "Unsupported"),
    "UserError": ("ir.error", "UserError"),
    "build": ("driver", "build"),
    "compile": ("driver", "compile"),
    "export": ("device.c_export", "export"),
    "facts": ("driver", "facts"),
    "load": ("device.loaded", "load"),
    "simulate": ("simulated_calls", "simulate"),
}


#: public modules that need an extra
_MODULES = ("torch",)


def __getattr__(name: str) -> object:
    """The public names, imported when first asked for: `import convgen` stays quick."""
    if name in _MODULES:
        from convgen.ir.error import imported

        return imported(f"convgen.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'convgen' has no attribute {name!r}")
    from convgen.ir.error import imported

    module, there = _HOMES[name]
    value = getattr(imported(f"convgen.{module}"), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
