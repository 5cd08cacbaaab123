"""`convgen export`: write kernels as C for programs without convgen."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from convgen.backends import family as families
from convgen.commands import session
from convgen.commands.arguments import Parser


def parser() -> argparse.ArgumentParser:
    having = [(family.vendor, family.runtime) for family in families.having("runtime") if family.runtime]
    runtimes = ", ".join(f"by {runtime.title} for {vendor}'s targets" for vendor, runtime in having)
    parser = Parser(
        "export",
        "Write the kernels of a launch record as C: PREFIX.h and PREFIX.c, which has the code object\n"
        f"in it, loads it and launches it: {runtimes}.",
        "convgen conv mb1ic64ih14oc64oh14kh3ph1 --dir FWD_D --dt f16 -o out/k",
        "convgen export out/k.launch.json --c out/k",
    )
    add = parser.add_argument
    add("record", metavar="LAUNCH.json", help="a launch record, whose object lies beside it")
    add("--c", dest="prefix", metavar="PREFIX", required=True, help="write PREFIX.h and PREFIX.c, named by PREFIX")
    add("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def run(arguments: Sequence[str]) -> int:
    options = parser().parse_intermixed_args(arguments)

    from convgen.device.c_export import export

    header, source = export(options.record, options.prefix)
    if options.json:
        print(json.dumps({"header": str(header), "source": str(source)}))
    else:
        print(f"{header}\n{source}")
    return session.FINE
