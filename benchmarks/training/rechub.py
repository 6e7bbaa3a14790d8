"""torch-rechub's MMOE and MTLTrainer on prepared rows.

    python -m benchmarks.training.rechub ROWS EPOCHS generator|batches

``generator`` loads as its documentation does (``DataGenerator``: one row at a time, then collated); ``batches`` gives
its ``TorchDataset`` a batch sampler, so that a batch is one indexing operation. Its layers have a batch norm each,
which cannot be switched off; its gates are per example and softmax. Adam, no weight decay, no validation, as ranker.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
from torch_rechub.models.multi_task import MMOE
from torch_rechub.trainers import MTLTrainer
from torch_rechub.utils.data import DataGenerator, TorchDataset

from benchmarks.training import shape
from benchmarks.training.prepared import Rows, restore


def main(folder: Path, epochs: int, loading: str) -> dict[str, Any]:
    """Trains once; the first epoch warms up."""
    rows = restore(folder)
    types = ["classification" if binary else "regression" for binary in rows.tasks.values()]
    model = MMOE(
        features(rows),
        types,
        n_expert=shape.EXPERTS,
        expert_params={"dims": list(shape.EXPERT_LAYERS)},
        tower_params_list=[{"dims": list(shape.TOWER_LAYERS)}] * len(types),
    )
    trainer = MTLTrainer(model, types, optimizer_params={"lr": shape.LEARNING_RATE, "weight_decay": 0.0})
    batches = loader(rows, loading)
    with (
        Path(os.devnull).open("w") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
    ):
        trainer.train_one_epoch(batches)
        start = time.perf_counter()
        for _ in range(epochs - 1):
            losses = trainer.train_one_epoch(batches)
    seconds = time.perf_counter() - start
    return {"rows_per_second": (epochs - 1) * len(rows.y) / seconds, "losses": list(losses)}


def features(rows: Rows) -> list[Any]:
    """Its feature objects."""
    found: list[Any] = []
    for f in rows.sparse:
        if f.length == 1:
            found.append(SparseFeature(f.name, f.rows, f.dim))
        else:
            found.append(SequenceFeature(f.name, f.rows, f.dim, pooling="mean", padding_idx=0))
    return found + [DenseFeature(name) for name in rows.dense]


def loader(rows: Rows, loading: str) -> DataLoader[Any]:
    """Its loader of rows, or one of whole batches."""
    if loading == "generator":
        generator = DataGenerator(rows.x, rows.y)
        return generator.generate_dataloader(split_ratio=[1.0, 0.0], batch_size=shape.BATCH)[0]
    tensors = {name: torch.from_numpy(column) for name, column in rows.x.items()}
    data = TorchDataset(tensors, torch.from_numpy(rows.y))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), shape.BATCH, drop_last=False), batch_size=None)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
