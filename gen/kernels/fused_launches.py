"""The launches of a fused call, whose members are problems that are computed one after another."""

from __future__ import annotations

from collections.abc import Sequence

from convgen.ir.program import Program
from convgen.ir.record import evolve
from convgen.kernels.launches import Section, TiledKernel, Tiles
from convgen.problem.fused_conv import Member
from convgen.problem.matmul import Problem


def named(program: Program, tiles: Tiles, member: Member) -> tuple[Program, Tiles]:
    """Return a member's program and output tiles with the names of kernels and outputs in the fused call.

    Parameters keep the names that they have in kernels; the launch record has their names in the call.
    """
    kernels = {kernel: evolve(kernel, name=f"{member.prefix}{kernel.name}") for kernel in program.kernels}

    def launch(tiled: TiledKernel) -> TiledKernel:
        return evolve(tiled, kernel=kernels[tiled.kernel])

    def section(own: Section) -> Section:
        launches = {number: launch(tiled) for number, tiled in own.launches.items()}
        return evolve(own, output=member.name(own.output), launches=launches)

    sections = tuple(map(section, tiles.sections))
    return evolve(program, kernels=tuple(kernels.values())), evolve(
        tiles, launches=tuple(map(launch, tiles.launches)), sections=sections
    )


def joined_program(programs: Sequence[Program]) -> Program:
    """Return the program that launches the kernels of several, in order; each has its own names of buffers."""
    kernels = tuple(kernel for program in programs for kernel in program.kernels)
    return Program(kernels, tuple(dict.fromkeys(buffer for program in programs for buffer in program.buffers)))


def joined_tiles(problem: Problem, members: Sequence[Tiles]) -> Tiles:
    """Return the output tiles of the last member; each needs all workgroups of the members before it."""
    launches = tuple(launch for tiles in members for launch in tiles.launches)
    before = len(launches) - len(members[-1].launches)
    whole = {number: evolve(launch, tile=None) for number, launch in enumerate(launches[:before])}

    def section(own: Section) -> Section:
        shifted = {number + before: launch for number, launch in own.launches.items()}
        return evolve(own, launches={**whole, **shifted})

    return Tiles(problem, launches, tuple(map(section, members[-1].sections)))
