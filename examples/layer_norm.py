"""Layer norm of rows that are as wide as a block.

python examples/layer_norm.py [TARGET]
"""

from __future__ import annotations

import sys

import numpy as np

import convgen as cg
from convgen import tile
from convgen.tile import Tensor


@tile.kernel(subgroups=(4, 1))
def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, y: Tensor, *, rows: int = 4) -> None:
    _, cols = x.shape
    m, _ = tile.grid(y, (rows, cols))
    values = tile.load_tile(tile.init_tile(x, (m, 0), (rows, cols)))
    centred = values - tile.reduce("sum", values, 1) * (1 / cols)
    variance = tile.reduce("sum", centred * centred, 1) * (1 / cols)
    scale, shift = (tile.load_tile(tile.init_tile(t, (0, 0), (1, cols))) for t in (gamma, beta))
    normed = centred * tile.rsqrt(variance + 1e-5) * scale + shift
    tile.store_tile(normed, tile.init_tile(y, (m, 0), (rows, cols)))


def main(target: str) -> None:
    shape = (10, 1024)
    random = np.random.default_rng(0)
    x, gamma, beta = (random.standard_normal(s).astype(np.float32) for s in (shape, shape[1:], shape[1:]))
    row = Tensor((1, shape[1]), "f32")
    code = cg.compile(layer_norm(Tensor(shape, "f32"), row, row, Tensor(shape, "f32")), target)
    found = cg.simulate(code, x=x, gamma=gamma, beta=beta)
    centred = x - x.mean(1, keepdims=True, dtype=np.float64)
    wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * gamma + beta
    print(f"{code.name} on {target}: greatest error {np.abs(found - wanted).max():.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["gfx942"])
