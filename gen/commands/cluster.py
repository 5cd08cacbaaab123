"""Work on the machines of a Dask cluster. The package is imported on use."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from convgen.commands.workers import Died
from convgen.ir.error import UserError
from convgen.ir.untrusted import shown

_SECONDS = 10  #: seconds to wait for the scheduler


def run(work: Callable[[Any], Any], items: Sequence[Any], address: str) -> Generator[tuple[int, Any], None, None]:
    """Apply `work`, which raises nothing, to every item; yield number and result of each, as they complete.

    Raises UserError without the package, or if no scheduler answers. Closing the generator cancels the rest.
    """
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise UserError("given --dask without the package distributed, wanted it: pip install distributed") from None
    try:
        client = Client(address, timeout=_SECONDS)
    except (OSError, ValueError) as error:  # a timeout is an OSError
        why = " ".join(str(error).split())
        raise UserError(f"given --dask {address}, wanted a scheduler that answers: {why}") from None
    try:
        numbers = {client.submit(work, item, pure=False): number for number, item in enumerate(items)}
        for future in as_completed(numbers):
            failed = future.exception()
            yield (
                numbers[future],
                future.result() if failed is None else Died(f"failed: {shown(' '.join(str(failed).split()), 500)}"),
            )
    finally:
        client.close()
