"""Damaged files: bytes changed, cut out or put in, by a seed."""

from __future__ import annotations

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
