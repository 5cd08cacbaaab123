"""Stands for an iga64 of 2023 and later: runs the installed one and prints its JSON in the new form.

The form follows IGC's FormatterJSON2.cpp: what is null, false, zero or empty is left out, regions are v, w and h (no v
where each row has an address of its own), a token is an object, a message's address has `areg` and `alen`. The platform
xe2 is encoded as 12p72, whose text is the same for what convgen writes.

    newer_iga64.py OPTIONS of iga64, with files in the folder that it runs in
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

_PC = re.compile(r"/\* \[([0-9A-F]+)\]\s*\*/")
_INDIRECT = re.compile(r"r\[a0\.\d+(?:,\s*-?\d+)?\]<([^>]*)>")


def main(arguments: list[str]) -> int:
    """What iga64 would do; its exit code."""
    tool = shutil.which("iga64")
    assert tool is not None
    given = [tool, *("-p=12p72" if word == "-p=xe2" else word for word in arguments)]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stderr)
    if "-Xprint-json" in arguments and not done.returncode:
        plain = [word for word in given if word != "-Xprint-json"]
        text = subprocess.run(plain, capture_output=True, text=True, check=True).stdout
        sys.stdout.write(renewed(done.stdout, text))
    else:
        sys.stdout.write(done.stdout)
    return done.returncode


def renewed(listing: str, text: str) -> str:
    """JSON of the old form in the new one; `text` has the regions that the old form leaves out."""
    whole = re.sub(r'^(\s*)("kind":"RD".*"defs":\[\])(,?)$', r"\1{\2}\3", listing, flags=re.MULTILINE)
    document = json.loads(whole)
    regions = {
        int(match[1], 16): iter(_INDIRECT.findall(line)) for line in text.splitlines() if (match := _PC.search(line))
    }
    elements = []
    for number, item in enumerate(document["insts"]):
        if item["kind"] == "L":
            elements.append({"kind": "L", "id": number, "pc": item["pc"], "symbol": item["value"]})
        else:
            elements.append(_instruction(item, regions.get(item["pc"], iter(()))))
    return json.dumps({"version": "2.0", "platform": document["platform"], "elems": elements}, indent=1)


def _instruction(item: dict[str, Any], regions: Iterator[str]) -> dict[str, Any]:
    sends = item["op"].startswith("send")
    found = {"kind": "I", "id": item["id"], "pc": item["pc"]}
    if item["pred"]:
        found["pred"] = {**({"inv": True} if item["pred"]["inv"] else {}), "func": item["pred"]["func"]}
    found |= {"wren": True} if item["wren"] else {}
    found["op"] = item["op"]
    found |= {"subop": item["subop"]} if item["subop"] else {}
    found["es"] = item["es"]
    found |= {"eo": item["eo"]} if item["eo"] else {}
    found |= {"fm": {"cond": item["fm"]["cond"]}} if item["fm"] else {}
    if item["pred"] or (item["fm"] and item["op"] != "sel"):
        found["freg"] = _register(item["freg"])
    if item["dst"]:
        found["dst"] = _payload(item["dst"]) if sends else _operand(item["dst"], regions)
    found["srcs"] = [_payload(s) if sends else _operand(s, regions) for s in item["srcs"]]
    found |= {"regDist": item["regDist"]} if item["regDist"] else {}
    if item["sbid"]:
        number, dot, event = item["sbid"][1:].partition(".")
        found["sbid"] = {"id": int(number), "func": dot + event}
    found |= {"opts": item["opts"]} if item["opts"] else {}
    return found


def _register(item: dict[str, Any]) -> dict[str, Any]:
    return {"rn": item["rn"], **{key: item[key] for key in ("r", "sr") if item.get(key)}}


def _payload(item: dict[str, Any]) -> dict[str, Any]:
    """An operand of a message."""
    if item["kind"] == "AD":
        return {"kind": "AD", "areg": _register(item["addr"]["reg"]), "alen": item["addr"]["len"], "stype": "flat"}
    if item["kind"] == "IM":
        return {"kind": "IM", "value": item["value"]}
    length = {"len": item["len"]} if "len" in item else {}
    return {"kind": item["kind"], "reg": _register(item["reg"]), **length}


def _operand(item: dict[str, Any], regions: Iterator[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": item["kind"]}
    found |= {"mods": item["mods"]} if item.get("mods") else {}
    for key in ("value", "target"):
        found |= {key: item[key]} if key in item else {}
    if "areg" in item:
        found |= {"areg": _register(item["areg"]), "aoff": item["aoff"]}
        numbers = [int(number) for number in re.findall(r"\d+", next(regions))]
        found["rgn"] = dict(zip("vwh"[-len(numbers) :], numbers, strict=True))
    if "reg" in item:
        found["reg"] = _register(item["reg"])
    found |= {"mme": item["mme"]} if "mme" in item else {}
    found |= {"sat": True} if item.get("sat") else {}
    if item.get("rgn"):
        names = {"Vt": "v", "Wi": "w", "Hz": "h"}
        found["rgn"] = {names[key]: value for key, value in item["rgn"].items()}
    found |= {"type": item["type"]} if item.get("type") else {}
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
