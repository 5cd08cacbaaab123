"""The time of compiled code in short: what a table of many problems shows of each.

A family with a model of launches gives a time; one with a model of a unit alone gives the bound of the loop.
"""

from __future__ import annotations

from convgen.backends import target as targets
from convgen.ir.error import Unsupported, UserError
from convgen.ir.record import frozen
from convgen.profile import launch_times
from convgen.profile.launch_times import Times
from convgen.run import prepared
from convgen.run.code import Code


@frozen
class Summary:
    """The predicted time and bound of a problem's launches."""

    us: float | None  #: all launches; None without a model of launches
    bound: str  #: of the longest launch, or of the loop of the kernel that multiplies most; "" if not known
    matrix: float | None  #: share of matrix units at work, in all launches, or in that loop
    model: str  #: the chip of the time, or "loop"; "" without either
    why: str = ""  #: reason why there is no time


def times(code: Code) -> Times:
    """Return the times of a problem's launches, by the model (docs/time.md).

    Raises UserError if the target has no model of launches.
    """
    return launch_times.profile(prepared.of_launches(code.record, code.object, str(code.problem)))


def summary(code: Code) -> Summary:
    """Return the time of compiled code by the model of launches, else the bound of its loop. Raises nothing that a
    model refuses: `why` has the reason.
    """
    family = targets.get(code.target).family
    if not code.record.launches:
        return Summary(0.0, "", None, "", "nothing is launched")
    try:
        return _of_loop(code) if family.model and not family.timer else _of_launches(code)
    except (UserError, Unsupported) as error:
        return Summary(None, "", None, "", " ".join(str(error).split()))


def _of_launches(code: Code) -> Summary:
    predicted = times(code)
    total = predicted.total
    matrix = sum(time.used * time.total for time in predicted.launches) / (total or 1)
    return Summary(total, predicted.longest.bound, matrix, predicted.chip.name)


def _of_loop(code: Code) -> Summary:
    """Return the bound of the loop with as many workgroups as a unit holds."""
    family = targets.get(code.target).family
    why = f"{family.vendor}'s {family.title} has no model of launches"
    content = code.record.required(code.object, str(code.problem))
    profiles = targets.profile_code(content, f"{code.name}{family.object_suffix}")
    kernel = max(profiles, key=lambda each: each.flop)
    loop = kernel.loops[-1]
    return Summary(None, loop.bound, loop.busy.get("matrix", 0.0) / (loop.clocks or 1), "loop", why)
