"""Train torch-rechub's MMOE with its MTLTrainer on prepared rows.

    python -m benchmarks.training.rechub ROWS EPOCHS generator|batches

``generator`` loads rows as its documentation does (``DataGenerator``: one row at a time, then collated). ``batches``
gives its ``TorchDataset`` a batch sampler, so that a batch is one indexing operation. Its layers have a batch norm
each, which cannot be disabled, and its gates are per-example softmax gates. Like ranker, it uses no weight decay here
and no validation. Its optimizer is Adam.
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
    """Train once and return the rows/s after the first epoch, which is a warm-up."""
    rows = restore(folder)
    types = ["classification" if binary else "regression" for binary in rows.tasks.values()]
    model = MMOE(
        make_features(rows),
        types,
        n_expert=shape.EXPERTS,
        expert_params={"dims": list(shape.EXPERT_LAYERS)},
        tower_params_list=[{"dims": list(shape.TOWER_LAYERS)}] * len(types),
    )
    trainer = MTLTrainer(model, types, optimizer_params={"lr": shape.LEARNING_RATE, "weight_decay": 0.0})
    loader = make_loader(rows, loading)
    with (
        Path(os.devnull).open("w") as devnull,
        contextlib.redirect_stdout(devnull),
        contextlib.redirect_stderr(devnull),
    ):
        trainer.train_one_epoch(loader)
        start = time.perf_counter()
        for _ in range(epochs - 1):
            losses = trainer.train_one_epoch(loader)
    seconds = time.perf_counter() - start
    return {"rows_per_second": (epochs - 1) * len(rows.y) / seconds, "losses": list(losses)}


def make_features(rows: Rows) -> list[Any]:
    """Return torch-rechub's feature objects."""
    features: list[Any] = []
    for f in rows.sparse:
        if f.length == 1:
            features.append(SparseFeature(f.name, f.rows, f.dim))
        else:
            features.append(SequenceFeature(f.name, f.rows, f.dim, pooling="mean", padding_idx=0))
    return features + [DenseFeature(name) for name in rows.dense]


def make_loader(rows: Rows, loading: str) -> DataLoader[Any]:
    """Return torch-rechub's loader of single rows, or a loader of whole batches."""
    if loading == "generator":
        generator = DataGenerator(rows.x, rows.y)
        return generator.generate_dataloader(split_ratio=[1.0, 0.0], batch_size=shape.BATCH)[0]
    tensors = {name: torch.from_numpy(column) for name, column in rows.x.items()}
    data = TorchDataset(tensors, torch.from_numpy(rows.y))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), shape.BATCH, drop_last=False), batch_size=None)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
