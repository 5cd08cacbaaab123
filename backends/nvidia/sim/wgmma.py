"""wgmma: products of a warpgroup with operands in shared memory (PTX ISA, Asynchronous Warpgroup Level Matrix
Instructions).

The fragment of A in registers is that of mma.sync, one warp of the warpgroup after the other along M. With g = lane / 4
and t = lane % 4, number i of D is (16 warp + g + 8 (i / 2 % 2), 8 (i / 4) + 2 t + i % 2). Each warp computes its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from convgen.backends.nvidia.sim.control import by_warps
from convgen.backends.nvidia.sim.descriptors import (
    K_BYTES,
    PIECE,
    Descriptor,
    decoded,
    matrix_along_k,
    matrix_along_rows,
    pieces_along_k,
    pieces_along_rows,
)
from convgen.backends.nvidia.sim.matrix import accumulated, factor, gathered, items_of, numbers_in, scatter, shape_of
from convgen.backends.nvidia.sim.matrix_sums import warpgroup_multiplier
from convgen.backends.nvidia.sim.operands import Getter, numbers_of, report_undefined, source, target, wrong
from convgen.backends.nvidia.sim.ptx_text import Instruction, Literal, Operand, Vector
from convgen.backends.nvidia.sim.ptx_types import TYPES
from convgen.backends.nvidia.sim.rounding import decode
from convgen.backends.nvidia.sim.shared_access import Access
from convgen.backends.nvidia.sim.state import LANES, PRODUCTS, WARPGROUP, Flight, WarpGroup
from convgen.backends.nvidia.sim.step import Context, Maker, Step, maker_of, unsupported, wants_target
from convgen.backends.nvidia.sim.warpgroup_products import Products
from convgen.backends.sim.wave_arrays import Array, Bools, any_along
from convgen.ir.record import frozen

_M, _WARP_M = 64, 16  #: rows of a product, of a warp
_NARROW, _BYTES = ("e4m3", "e5m2"), ("s8", "u8")
_INTEGER_N = frozenset({8, 16, 24, *range(32, 257, 16)})
_FLOAT_N = frozenset(range(8, 257, 8))


@frozen
class _Kind:
    """The products that PTX defines for a type of A."""

    results: tuple[str, ...]  #: types of D
    seconds: tuple[str, ...]  #: types of B
    n: frozenset[int] = _FLOAT_N
    has_scales: bool = True  #: whether operands scale A and B by 1 or -1
    transposes: bool = False  #: whether operands say which dimension of A and B is major


_KINDS: Mapping[str, _Kind] = {  # by the type of A
    "f16": _Kind(("f16", "f32"), ("f16",), transposes=True),
    "bf16": _Kind(("f32",), ("bf16",), transposes=True),
    "tf32": _Kind(("f32",), ("tf32",)),
    **dict.fromkeys(_NARROW, _Kind(("f16", "f32"), _NARROW)),
    **dict.fromkeys(_BYTES, _Kind(("s32",), _BYTES, _INTEGER_N, has_scales=False)),
}


@frozen(eq=False)
class _Product:
    """A product as the instruction states it."""

    n: int
    k: int
    result: str  #: type of D
    types: tuple[str, str]  #: types of A and B
    scales: tuple[int, int]  #: factors 1 or -1 of A and B
    transposed: tuple[bool, bool]  #: whether M of A, N of B is major, not K


def compile_warpgroup(instruction: Instruction, context: Context) -> Step | None:
    """Return the step of a wgmma instruction; None for other instructions."""
    if instruction.name != "wgmma":
        return None
    wants_target(instruction, context, "sm_90a")
    if not (instruction.has("sync") and instruction.has("aligned")):
        raise wrong(instruction, "wgmma without .sync.aligned", "both")
    makers: Mapping[str, Maker] = {
        "mma_async": _multiplies,
        "fence": _fence,
        "commit_group": _commit,
        "wait_group": _wait,
    }
    return maker_of(makers, instruction)(instruction, context)


def _fence(instruction: Instruction, context: Context) -> Step:
    def run(g: WarpGroup) -> None:
        g.touched, g.landed = 0, ()

    return by_warps(Step(instruction, "other", lambda g: None), run)


def _commit(instruction: Instruction, context: Context) -> Step:
    return by_warps(Step(instruction, "wait", lambda g: None), Products.commit)


def _wait(instruction: Instruction, context: Context) -> Step:
    """Return the step of wgmma.wait_group."""
    (count,) = instruction.operands
    if not isinstance(count, Literal):
        raise wrong(instruction, "a register", "a constant")
    allowed = count.bits
    step = Step(instruction, "wait", lambda g: None)

    def run(g: WarpGroup) -> None:
        products = g.env.products
        running = Products.remaining(g, allowed)
        complete = products.complete(g, len(running))
        if complete.all():
            products.land(g, running)
            return
        g.await_rows(complete, PRODUCTS, len(running))

    return by_warps(step, run)


# ---------------------------------------------------------------- products


def _stated(instruction: Instruction) -> _Product:
    """Return the product that an instruction states. Raises SimulatorError, Unsupported."""
    if instruction.has("sp", "and", "popc") or len(instruction.types) != 3:
        raise unsupported(instruction, "sparse and one-bit products are not simulated")
    m, n, k = shape_of(instruction)
    result, *types = instruction.types
    kind = _KINDS.get(types[0])
    if kind is None or types[1] not in kind.seconds or result not in kind.results:
        raise wrong(instruction, f"the types {' '.join(instruction.types)}", "a combination that wgmma has")
    if m != _M or n not in kind.n or k * TYPES[types[0]].bits != 8 * K_BYTES:
        raise wrong(instruction, f"the shape m{m}n{n}k{k}", f"m64, k of {K_BYTES} bytes and an n that the types have")
    in_registers = isinstance(instruction.operands[1], Vector)
    trailing = [o.bits if isinstance(o, Literal) else 2 for o in instruction.operands[4:]]
    flags = (1 if in_registers else 2) if kind.transposes else 0
    if len(instruction.operands) != 4 + 2 * kind.has_scales + flags:
        raise wrong(instruction, f"{len(instruction.operands)} operands", str(4 + 2 * kind.has_scales + flags))
    scales = trailing[:2] if kind.has_scales else [1, 1]
    majors = trailing[2:] if kind.transposes else [0, 0]
    if any(scale not in (1, -1) for scale in scales) or any(major not in (0, 1) for major in majors):
        raise wrong(
            instruction, "other trailing operands", "1 or -1 for each scale, then 0 or 1 for each transposition"
        )
    if in_registers and kind.transposes:
        majors = [0, *majors]
    return _Product(n, k, result, (types[0], types[1]), (scales[0], scales[1]), (bool(majors[0]), bool(majors[1])))


@lru_cache(maxsize=64)
def _places(n: int) -> tuple[Array, Array]:
    """Return row and column of each number of D of a warp [numbers, lanes]."""
    lane, number = np.arange(LANES), np.arange(n // 2)[:, None]
    return lane // 4 + 8 * (number // 2 % 2), 8 * (number // 4) + 2 * (lane % 4) + number % 2


def _multiplies(instruction: Instruction, context: Context) -> Step:
    """Return the step of wgmma.mma_async."""
    product = _stated(instruction)
    first, second, third, scale = instruction.operands[:4]
    count = product.n // 4 if product.result == "f16" else product.n // 2
    results = items_of(instruction, first, count)
    writes = [target(context, instruction, o, "b32") for o in results]
    reads = [source(context, instruction, o, "b32") for o in results]
    accumulators = [numbers_of(o) for o in results]
    read_a = _registers(instruction, context, second, product) if isinstance(second, Vector) else None
    describers = [] if read_a is not None else [source(context, instruction, second, "b64")]
    describers.append(source(context, instruction, third, "b64"))
    adds = source(context, instruction, scale, "pred")
    scalars = numbers_of(third, scale) if read_a is not None else numbers_of(second, third, scale)
    multiply = warpgroup_multiplier(*product.types, saturates=instruction.has("satfinite"))
    flight = _flight(instruction, product, results, second if read_a is not None else None)
    where = _places(product.n)
    step = Step(instruction, "mma", lambda g: None)

    def run(g: WarpGroup) -> None:
        report_undefined(g, step, scalars, "a descriptor or scale-d")
        Products.check_registers(g, step, flight)
        operands = [_uniform(g, step, read) for read in (*describers, adds)]
        a, b, poison = _factors(g, step, product, operands, read_a)
        added = operands[-1].astype(np.bool_)
        c = accumulated([read(g) for read in reads], where, (_WARP_M, product.n), product.result, g)
        c = np.where(added[:, None, None], c, np.zeros((), c.dtype))
        flags = np.stack([g.flags(numbers) for numbers in accumulators]) & added[:, None]
        if flags.any():
            flags = np.repeat(flags, 2, axis=0) if product.result == "f16" else flags
            own = np.zeros(c.shape, np.bool_)
            own[:, where[0], where[1]] = np.moveaxis(flags, 1, 0)
            poison = own if poison is None else poison | own
        scatter(g, multiply(a, b, c), where, product.result, writes, poison)
        g.fly((*g.flights, flight))
        g.env.memory.changes += 1

    return by_warps(step, run)


def _flight(instruction: Instruction, product: _Product, results: Sequence[Operand], a: Operand | None) -> Flight:
    """Return the product in flight with D in `results` and A in the registers of `a`; None: A is in shared memory."""
    numbers = tuple(number for operand in results for number in numbers_of(operand))
    factors = 0 if a is None else sum(1 << number for number in numbers_of(a))
    return Flight(numbers, sum(1 << number for number in set(numbers)), factors, f"n{product.n} {product.result}")


def _uniform(g: WarpGroup, step: Step, read: Getter) -> Array:
    """Return an operand of each warp [rows], which all its lanes have; report others."""
    values = np.broadcast_to(read(g), g.shape)
    apart = (values != values[:, :1]).any(axis=1)
    if apart.any():
        finding = "lanes of a warp give different descriptors or scale-d"
        g.env.reporter.at_first("operand", finding, step.instruction, g, apart)
    return values[:, 0]


_ReadA = Callable[[WarpGroup], tuple[Array, Bools | None]]


def _registers(instruction: Instruction, context: Context, operand: Operand, product: _Product) -> _ReadA:
    """Return a function that reads A from registers: numbers [rows, 16, k], and flags of undefined rows [rows, 16]."""
    kind = product.types[0]
    fragment = factor(_WARP_M, product.k, 32 // TYPES[kind].bits, second=False)
    items = items_of(instruction, operand, fragment.registers)
    reads = [source(context, instruction, o, "b32") for o in items]
    numbers = numbers_of(*items)

    def read(g: WarpGroup) -> tuple[Array, Bools | None]:
        values = gathered([one(g) for one in reads], fragment, kind, g)
        if g.undefined(numbers) is None:
            return values, None
        flags = np.stack([g.flags(numbers_of(o)) for o in items])
        return values, any_along(np.moveaxis(flags[fragment.register, :, fragment.lane], -1, 0), 2)

    return read


def _factors(
    g: WarpGroup, step: Step, product: _Product, operands: Sequence[Array], read_a: _ReadA | None
) -> tuple[Array, Array, Bools | None]:
    """Return A [rows, 16, k] and B [rows, k, n] of each warp, and flags of undefined results [rows, 16, n] or None.

    `operands` are the descriptors, then scale-d, by row.
    """
    lefts: list[Array] = [np.zeros(0)] * g.count
    rights: list[Array] = [np.zeros(0)] * g.count
    spoiled = np.zeros((g.count, _WARP_M, product.n), np.bool_)
    if read_a is not None:
        values, flags = read_a(g)
        lefts = list(values)
        if flags is not None:
            spoiled |= flags[:, :, None]
    for key, rows in g.env.products.warpgroups(g, step).items():
        given = g.env.products.issue(g, step, key, rows, operands)
        *others, last = (decoded(bits) for bits in given[:-1])
        b, b_flags = _operand(g, step, key, rows, last, product, second=True)
        for row in rows:
            rights[row] = b.T
        spoiled[rows] |= b_flags
        for descriptor in others:
            a, a_flags = _operand(g, step, key, rows, descriptor, product, second=False)
            for row in rows:
                part = slice(_WARP_M * (int(g.wave[row]) % WARPGROUP), None)
                lefts[row] = a[part][:_WARP_M]
                spoiled[row] |= a_flags[part][:_WARP_M, None]
    scales = [np.asarray(scale, lefts[0].dtype) for scale in product.scales]
    poison = spoiled if spoiled.any() else None
    return np.stack(lefts) * scales[0], np.stack(rights) * scales[1], poison


def _operand(
    g: WarpGroup,
    step: Step,
    key: tuple[int, int, int],
    rows: Sequence[int],
    descriptor: Descriptor,
    product: _Product,
    *,
    second: bool,
) -> tuple[Array, Bools]:
    """Return an operand in shared memory: numbers [m or n, k], and flags of undefined rows [m or n]."""
    slot, warpgroup, number = key
    kind, transposed = product.types[second], product.transposed[second]
    count = product.n if second else _M
    if not descriptor.is_valid or descriptor.base:
        finding = f"a descriptor with {'a matrix base offset' if descriptor.base else 'reserved bits'} that is not zero"
        g.env.reporter.add("operand", finding, step.instruction, g, rows[0])
    pieces = pieces_along_rows(descriptor, count) if transposed else pieces_along_k(descriptor, count)
    shared = g.env.local
    beyond = pieces > shared.size - PIECE
    if beyond.any():
        finding = (
            f"an operand's 16 bytes at {int(pieces[beyond][0]):#x} are outside the {shared.size} bytes of shared memory"
        )
        g.env.reporter.add("out-of-bounds", finding, step.instruction, g, rows[0])
        pieces = np.where(beyond, 0, pieces)
    place = pieces.reshape(-1) + slot * shared.stride
    row = np.full(len(place), rows[0])
    access = Access(shared, place, PIECE, row, g.slot[row], g.wave[row], np.zeros_like(row))
    agent = g.env.waves + warpgroup
    undefined = shared.note_agent_load(g, step, access, g.wave[np.asarray(rows)], agent, number + 1)
    words = np.ascontiguousarray(shared.load(access.stretch).T)
    content = words.view(np.uint8).reshape(*pieces.shape, PIECE)
    flags = np.zeros(pieces.shape, np.bool_) if undefined is None else any_along(undefined, 0).reshape(pieces.shape)
    g.env.counters["shared_load_bytes"] += PIECE * len(place)
    if transposed:
        return _decoded(matrix_along_rows(content), kind), np.repeat(flags.any(axis=0), 8)
    return _decoded(matrix_along_k(content, TYPES[kind].bits // 8), kind), any_along(flags, 1)


def _decoded(raw: Array, kind: str) -> Array:
    """Return the numbers of raw elements."""
    return decode(raw, kind) if raw.itemsize == 4 else numbers_in(raw.astype(np.uint32), kind)
