"""From problem and config to everything the builder needs; what does not fit is said here.

A plan fixes views, fragments, shared tiles and the grid, and estimates registers. `Unsupported` concerns the problem,
`DoesNotFit` the config.
"""

from __future__ import annotations

import attrs

from convgen import views
from convgen.config import Config
from convgen.ir.error import DoesNotFit, Unsupported
from convgen.ir.facts import TargetFacts
from convgen.ir.fragment import Digit, Fragment, Space
from convgen.ir.memory import Dim, Shared
from convgen.ir.mma import MmaAtom, MmaTile
from convgen.matmul import Problem
from convgen.passes.swizzle import find_swizzle
from convgen.problem import Conv, Direction

#: One chunk is what a lane brings into shared memory in one write, and reads as one fragment part.
CHUNK_BYTES = 16

_OUTPUT_TYPES = ("f16", "bf16", "f32")


def check_supported(problem: Problem, facts: TargetFacts) -> None:
    """Raise Unsupported, in one line, for problems outside what convgen generates so far."""
    if isinstance(problem, Conv):
        _check_convolution(problem)
    inputs = {atom.ab.name for atom in facts.atoms}
    if problem.src_type != problem.wei_type or problem.src_type not in inputs or problem.dst_type not in _OUTPUT_TYPES:
        types = f"{problem.src_type}:{problem.wei_type}:{problem.dst_type}"
        raise Unsupported(
            f"given --dt={types}, wanted src and wei both one of {', '.join(sorted(inputs))} and "
            f"dst one of {', '.join(_OUTPUT_TYPES)} on {facts.name}"
        )
    layouts = {"--stag": problem.src_layout, "--wtag": problem.wei_layout, "--dtag": problem.dst_layout}
    for knob, layout in layouts.items():
        if not layout.is_plain:
            raise Unsupported(f"given {knob}={layout.tag}, wanted a plain layout: blocked ones are not generated yet")


def _check_convolution(problem: Conv) -> None:
    if problem.direction not in (Direction.FWD_D, Direction.FWD_I):
        bias = " (bias)" if problem.direction.has_bias else ""
        raise Unsupported(
            f"given --dir={problem.direction.value}{bias}, wanted FWD_D or FWD_I: others are not generated yet"
        )
    if problem.groups != 1:
        raise Unsupported(f"given g{problem.groups}, wanted g1: grouped convolution is not generated yet")
    if problem.ndims != 4:
        raise Unsupported(f"given a {problem.ndims - 2}-D convolution, wanted a 2-D one: others are not generated yet")


@attrs.frozen
class Plan:
    """All decisions about one kernel."""

    problem: Problem
    config: Config
    facts: TargetFacts
    operands: views.Operands
    mma: MmaTile
    grid: tuple[int, int]  #: tiles along M and N
    k_blocks: int
    weights_tile: Shared  #: rows are output channels
    pixels_tile: Shared
    weights_copy: Fragment
    pixels_copy: Fragment
    registers: int  #: estimate, vector registers a lane (accumulators included)

    @property
    def subgroups(self) -> int:
        return self.config.waves[0] * self.config.waves[1]


def _atom(problem: Problem, config: Config, facts: TargetFacts) -> MmaAtom:
    for atom in facts.atoms:
        if (atom.rows, atom.cols, atom.k) == config.mma and atom.ab.name == problem.src_type:
            return atom
    shape = "x".join(map(str, config.mma))
    raise DoesNotFit(f"{facts.name} has no {shape} matrix instruction for {problem.src_type}")


def _divide(what: str, total: int, part: int) -> int:
    count, rest = divmod(total, part)
    if rest or not count:
        raise DoesNotFit(f"{what}: {total} is not a multiple of {part}")
    return count


def copy_split(rows: int, cols: int, elem_bytes: int, lanes: int, subgroups: int) -> Fragment:
    """How a workgroup shares the copy of a rows x cols tile: a lane takes whole chunks, neighbours along the row."""
    chunk = CHUNK_BYTES // elem_bytes
    across = _divide("chunks of a row", cols, chunk)
    if across > lanes:
        raise DoesNotFit(f"a row of {across} chunks is longer than {lanes} lanes")
    down = lanes // across
    rounds = _divide("rows copied a round", rows, down * subgroups)
    return Fragment(
        ("row", "k"),
        (
            Digit("k", chunk, Space.REGISTER, 1),
            Digit("k", across, Space.LANE, 1),
            Digit("row", down, Space.LANE, across),
            Digit("row", subgroups, Space.SUBGROUP, 1),
            Digit("row", rounds, Space.REGISTER, chunk),
        ),
    )


def make_plan(problem: Problem, config: Config, facts: TargetFacts) -> Plan:
    """The plan; raises DoesNotFit where the config does not suit problem or target."""
    tile_m, tile_n, tile_k = config.tile
    waves_m, waves_n = config.waves
    atom = _atom(problem, config, facts)
    subgroups = waves_m * waves_n
    if subgroups > facts.max_subgroups:
        raise DoesNotFit(f"{subgroups} waves, at most {facts.max_subgroups} make a workgroup")
    if config.acc == "a" and not facts.accumulators:
        raise DoesNotFit(f"{facts.name} has no accumulator registers")

    steps = _divide("tile K over the instruction's K", tile_k, atom.k)
    pack = max(1, min(steps, CHUNK_BYTES // (atom.a.registers * atom.ab.bytes)))
    mma = MmaTile(
        atom,
        _divide("tile N over waves x rows", tile_n, waves_n * atom.rows),
        _divide("tile M over waves x cols", tile_m, waves_m * atom.cols),
        steps,
        pack if steps % pack == 0 else 1,
        waves_n,
        waves_m,
        config.acc,
    )
    operands = views.operands(problem, tile_k if config.taps == "split" else 1)
    k_blocks = -(-operands.k // tile_k)

    split = {rows: copy_split(rows, tile_k, atom.ab.bytes, facts.subgroup_size, subgroups) for rows in (tile_m, tile_n)}
    weights_tile = _shared("wei_tile", tile_n, tile_k, mma.a, split[tile_n], config.slots, atom, facts)
    pixels_tile = _shared("src_tile", tile_m, tile_k, mma.b, split[tile_m], config.slots, atom, facts)
    lds = weights_tile.bytes + pixels_tile.bytes
    if lds > facts.shared_bytes:
        raise DoesNotFit(f"{lds} bytes of shared memory, at most {facts.shared_bytes}")

    plan = Plan(
        problem,
        config,
        facts,
        operands,
        mma,
        (-(-operands.m // tile_m), -(-operands.n // tile_n)),
        k_blocks,
        weights_tile,
        pixels_tile,
        split[tile_n],
        split[tile_m],
        0,
    )
    plan = attrs.evolve(plan, registers=_estimate_registers(plan))
    _check_registers(plan)
    return plan


def _shared(
    name: str, rows: int, cols: int, read: Fragment, write: Fragment, slots: int, atom: MmaAtom, facts: TargetFacts
) -> Shared:
    swizzle = find_swizzle(cols, atom.ab, CHUNK_BYTES, read, write, facts)
    return Shared(name, atom.ab, rows, cols, cols * atom.ab.bytes, slots, swizzle, CHUNK_BYTES)


def message_elems(inner: Dim, elem_bytes: int) -> int:
    """Elements along K that one load can bring: all of them exist, lie side by side and start aligned."""
    chunk = CHUNK_BYTES // elem_bytes
    while chunk > 1 and (inner.size % chunk or inner.padded % chunk):
        chunk //= 2
    return chunk


def accumulator_registers(plan: Plan) -> int:
    return plan.mma.d.registers


def _estimate_registers(plan: Plan) -> int:
    """Vector registers a lane: accumulators, fragments of a K block, copies in flight, addresses, a margin."""
    atom, mma = plan.mma.atom, plan.mma
    sets = 2 if plan.config.slots > 1 else 1  # one is read while the other multiplies
    fragments = sets * (mma.a.registers + mma.b.registers) * atom.ab.bytes // 4
    chunks = (plan.weights_copy.registers + plan.pixels_copy.registers) * atom.ab.bytes // CHUNK_BYTES
    elems = message_elems(plan.operands.k_inner, atom.ab.bytes)
    per_chunk = CHUNK_BYTES // atom.ab.bytes // elems
    in_flight = chunks * per_chunk * max(1, elems * atom.ab.bytes // 4)
    addresses = chunks * per_chunk * 3 + 2 * mma.steps
    return accumulator_registers(plan) + fragments + in_flight + addresses + 16


def _check_registers(plan: Plan) -> None:
    acc = accumulator_registers(plan)
    alu = plan.registers - (acc if plan.config.acc == "a" else 0)
    if alu > plan.facts.registers or (plan.config.acc == "a" and acc > plan.facts.accumulators):
        raise DoesNotFit(f"about {alu} registers and {acc} accumulators, at most {plan.facts.registers}")
