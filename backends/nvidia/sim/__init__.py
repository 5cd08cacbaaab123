"""A strict simulator of NVIDIA PTX.

`simulate` runs launches of PTX text: `ptx_reader` reads its tokens (`ptx_tokens`) into records (`ptx_text`) and inlines
device functions (`ptx_calls`), `flow` orders blocks so that diverged threads meet again, `engine` executes groups of
warps (`state`) that are at one instruction, each instruction compiled once (`ptx_program`) into a `step`. Instructions
are implemented in `moves`, `integers`, `float_alu`, `conversions`, `lanes`, `memory_access`, `atomics`, `fences`,
`async_copies`, `matrix`, `wgmma` (operands by `descriptors`), `register_pool`, `mbarrier_steps`, `bulk_steps` (places
by `tensor_boxes`), `one_cluster` and `control`; `matrix_sums` adds products. Checks: `shared_memory` (races, copies in
flight, proxies), `warpgroup_products` (products in flight), `mbarriers` (phases), `bulk_copies`,
`backends.sim.global_access` (races, visibility), undefined values (`state`). `sources` names the document of each rule.
`outline` leaves out what computes data, for a caller that records how a launch goes (`recording`).

Not simulated: tensor maps in memory, clusters of several workgroups, textures, calls by address and recursion, the
exact error of approximate functions (they are rounded correctly), what ptxas makes of the text. Between lanes of one
warp, only accesses to shared memory are checked for races. A barrier of some warps, or an mbarrier's phase, orders
accesses to global memory as a barrier of all does. Global memory has no proxies.

May import: convgen.ir.record, convgen.backends.sim, convgen.backends.simulation, and the tensor maps of launches
(convgen.ir.layout.tensor_map); nothing from selection or emission (two rooms, no shared mistakes)."""

from convgen.backends.nvidia.sim.ptx_reader import is_ptx
from convgen.backends.nvidia.sim.simulate import architecture, signatures, simulate
from convgen.backends.sim.errors import SimulatorError, Unsupported

if __name__ != "convgen.backends.nvidia.sim":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.nvidia.sim, not as {__name__}")

__all__ = ["SimulatorError", "Unsupported", "architecture", "is_ptx", "signatures", "simulate"]
