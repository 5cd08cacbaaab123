"""Damaged files: bytes changed, cut out or put in, by a seed."""

from __future__ import annotations

import ast
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


#: What may stand in a dump where an integer, a text or a name stood.
_NUMBERS = (0, 1, -1, 2, 3, 7, 31, 64, 255, 4096, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 63, 10**30)
_TEXTS = (
    *("at\n.section .rodata\n.incbin \"SECRET\"\n.text", "../../pwned", "\x1b[31m", "", "k", "i", "a b", "\udcff"),
    *("x" * 5000, "v_mfma_f32_32x32x8_f16\n.incbin", "a", "main", "s_endpgm"),
)  # fmt: skip
_WORDS = tuple("f16 f32 f64 s32 u32 u64 s8 bool REGISTER LANE SUBGROUP FIXED ROWS ROW_A_LANE Lane()".split())
_CALLS = tuple("Add Sub Mul Div Mod Shl Shr And Or Xor Min Max Lt Le Eq MulHi Block If GlobalLoad Barrier".split())


def dumps(text: str, count: int, seed: int) -> Iterator[str]:
    """`count` dump files with one to three arguments, names or calls changed, given twice or left out."""
    lines = text.splitlines()
    body = next(n for n, line in enumerate(lines) if not line.startswith("#"))
    for number in range(count):
        random = np.random.default_rng((seed, number))
        tree = ast.parse("\n".join(lines[body:]))
        for _ in range(int(random.choice([1, 1, 1, 2, 3]))):
            _change(tree, random)
        alone = random.integers(2)  # without its problem a kernel goes on as one written by hand
        header = [h for h in lines[:body] if not (alone and h.startswith(("# problem", "# config")))]
        yield "\n".join([*header, *map(ast.unparse, tree.body)]) + "\n"


def _change(tree: ast.Module, random: np.random.Generator) -> None:
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Constant | ast.Call | ast.Tuple)]
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
    node = nodes[int(random.integers(len(nodes)))]
    match node:
        case ast.Constant(value=bool()):
            node.value = not node.value
        case ast.Constant(value=int()):
            node.value = _NUMBERS[int(random.integers(len(_NUMBERS)))]
        case ast.Constant(value=str()):
            node.value = _TEXTS[int(random.integers(len(_TEXTS)))]
        case ast.Call(func=ast.Name() as function) if random.integers(2):
            function.id = _CALLS[int(random.integers(len(_CALLS)))]
        case ast.Call(args=arguments) | ast.Tuple(elts=arguments) if arguments:
            at = int(random.integers(len(arguments)))
            match int(random.integers(4)):
                case 0:
                    del arguments[at]
                case 1:
                    arguments.insert(at, arguments[int(random.integers(len(arguments)))])
                case 2:
                    arguments[at] = ast.parse(_WORDS[int(random.integers(len(_WORDS)))], mode="eval").body
                case _:
                    arguments[at] = ast.Name(names[int(random.integers(len(names)))])
        case _:
            pass
