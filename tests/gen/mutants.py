"""Damaged files: bytes changed, cut out or put in, by a seed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np


def mutants(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """`count` damaged copies: one in three loses its order, the others keep it but for one to eight bits."""
    for number in range(count):
        random = np.random.default_rng((seed, number))
        data = bytearray(content)
        for _ in range(int(random.integers(1, 9))):
            if number % 3 == 0:
                _damage(data, random)
            else:
                data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
        yield bytes(data)


def _damage(data: bytearray, random: np.random.Generator) -> None:
    at, size = int(random.integers(max(1, len(data)))), int(2 ** random.integers(0, 5))
    match random.choice(["cut", "end", "insert", "fill", "overwrite"], p=[0.2, 0.1, 0.2, 0.25, 0.25]):
        case "cut":
            del data[at : at + size]
        case "end":
            del data[at:]
        case "insert":
            data[at:at] = random.bytes(size)
        case "fill":
            data[at : at + size] = bytes([int(random.choice([0, 0x7F, 0x80, 0xFF]))]) * len(data[at : at + size])
        case _:
            data[at : at + size] = random.bytes(len(data[at : at + size]))


#: Hostile tokens of dumps: numbers, texts, words and signs.
_NUMBERS = (0, 1, -1, 2, 3, 7, 31, 64, 255, 4096, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 63, 10**30)
_TEXTS = (
    *("at\n.section .rodata\n.incbin \"SECRET\"\n.text", "../../pwned", "\x1b[31m", "", "k", "i", "a b", "\udcff"),
    *("x" * 5000, "v_mfma_f32_32x32x8_f16\n.incbin", "a", "main", "s_endpgm"),
)  # fmt: skip
_WORDS = tuple(
    "f16 f32 f64 s32 u32 u64 s8 bool f16x8 lane true inf -1 min select surface mma.x k4r1 if: do: pass".split()
)
_SIGNS = tuple("+ - * // % << >> & | ^ < <= == ( ) [ ] , : = -> # ` .".split())
_TOKEN = re.compile(r"[0-9]+|[A-Za-z_][\w.]*|`[^`]*`|[^ \w]")


def dumps(text: str, count: int, seed: int) -> Iterator[str]:
    """`count` dump files with one to three tokens or lines changed, given twice or left out."""
    lines = text.splitlines()
    body = next(n for n, line in enumerate(lines) if not line.startswith("#"))
    names = _TOKEN.findall("\n".join(lines[body:]))
    for number in range(count):
        random = np.random.default_rng((seed, number))
        changed = lines[body:]
        for _ in range(int(random.choice([1, 1, 1, 2, 3]))):
            _change(changed, names, random)
        alone = random.integers(2)  # without its problem a kernel goes on as one written by hand
        header = [h for h in lines[:body] if not (alone and h.startswith(("# problem", "# config")))]
        yield "\n".join([*header, *changed]) + "\n"


def _change(lines: list[str], names: list[str], random: np.random.Generator) -> None:
    at = int(random.integers(len(lines)))
    match int(random.integers(12)):
        case 0:
            lines.insert(at, lines[int(random.integers(len(lines)))])
        case 1 if len(lines) > 1:
            del lines[at]
        case 2:
            lines[at] = " " * int(random.integers(9)) + lines[at].lstrip(" ")
        case _:
            tokens = list(_TOKEN.finditer(lines[at]))
            if tokens:
                found = tokens[int(random.integers(len(tokens)))]
                lines[at] = lines[at][: found.start()] + _instead(found[0], names, random) + lines[at][found.end() :]


def _instead(token: str, names: list[str], random: np.random.Generator) -> str:
    """What stands in place of a token."""
    if token.isdigit() and random.integers(2):
        return str(_NUMBERS[int(random.integers(len(_NUMBERS)))])
    match int(random.integers(6)):
        case 0:
            return ""
        case 1:
            return f"{token} {token}"
        case 2:
            return _TEXTS[int(random.integers(len(_TEXTS)))]
        case 3:
            return _WORDS[int(random.integers(len(_WORDS)))]
        case 4:
            return _SIGNS[int(random.integers(len(_SIGNS)))]
    return names[int(random.integers(len(names)))]
