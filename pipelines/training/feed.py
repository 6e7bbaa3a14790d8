"""TEMPORARY"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from pipelines.training.examples import Examples, read


class Piece(NamedTuple):
    block: int
    start: int
    stop: int


class Feed:
    def __init__(self, reader, logs, encoder, split, batch_size, seed=None, world=None):
        parts = list(read(reader, logs, encoder, split))
        self.all = Examples.concat(parts)
        self.b = batch_size
        self.seed = seed
        self.w = world
        n = len(self.all)
        self.n = n
        full, rest = divmod(n, batch_size)
        self.steps = full + (rest >= 2 * world.size)

    def epoch(self, epoch, pieces=None):
        pieces = [Piece(0, 0, self.n)] if pieces is None else pieces
        perm = np.arange(self.n) if self.seed is None else np.random.default_rng((self.seed, epoch)).permutation(self.n)
        idx = np.concatenate([perm[p.start : p.stop] for p in pieces] + [np.zeros(0, np.int64)])
        W = self.w.size
        r = self.w.rank
        lo = len(idx) * r // W
        hi = len(idx) * (r + 1) // W
        mine = idx[lo:hi]
        b = self.b // W
        steps = len(idx) // self.b
        steps += (len(idx) - steps * self.b) >= 2 * W
        for i in range(steps):
            yield self.all.take(torch.from_numpy(mine[i * b : (i + 1) * b]))

    def left(self, epoch, pieces, steps):
        pieces = [Piece(0, 0, self.n)] if pieces is None else pieces
        flat = [(p.block, i) for p in pieces for i in range(p.start, p.stop)]
        W = self.w.size
        b = self.b // W
        out = []
        for r in range(W):
            part = flat[len(flat) * r // W : len(flat) * (r + 1) // W][steps * b :]
            if part:
                out.append(Piece(0, part[0][1], part[-1][1] + 1))
        return out
