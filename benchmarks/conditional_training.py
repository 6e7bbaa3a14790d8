"""Conditional training: how much faster a step is once only the chosen experts train.

Takes a log and, for several shapes, times whole optimiser steps (embeddings, experts, towers, backward, AdamW) of two
copies of one converged model on the same batches, one with all experts and one with the chosen experts only, turn by
turn. Prints a Markdown table: the ratio of the medians beside n/|union|, which it approaches as experts dominate.

    ranker logs synthetic --out syn --rows 50000
    python benchmarks/conditional_training.py syn/ranker.toml
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from pipelines.config.config import Config, load
from pipelines.data.profile import profile_log
from pipelines.data.reader import LogReader, load_tables
from pipelines.training.dataloader import BatchLoader
from pipelines.training.distributed import DistContext
from pipelines.training.embedding_tables import EmbeddingTables
from pipelines.training.expert_pruning import keep_experts
from pipelines.training.labeled_batch import LabeledBatch, encode
from pipelines.training.model_factory import build_model
from pipelines.training.optimizer import make_optimizer
from pipelines.training.torch_batch import DeviceBatch
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.gates import DSelectK
from ranking.model.losses import task_losses
from ranking.model.mmoe import MMoE

SHAPES = (([128], 8, 2), ([128], 8, 4), ([256, 256], 8, 2), ([256, 256], 8, 4), ([256, 256], 16, 4))
"""Widths of an expert's layers, n, and |union|."""


@dataclass
class Training:
    """A model with its optimiser."""

    model: MMoE
    optimiser: torch.optim.Optimizer

    def step(self, config: Config, examples: LabeledBatch) -> float:
        """Seconds of one step."""
        start = time.perf_counter()
        batch = DeviceBatch.from_labeled(examples)
        losses = task_losses(self.model(batch.inputs), batch.labels, config.tasks)
        self.optimiser.zero_grad(set_to_none=True)
        losses.sum().backward()
        self.optimiser.step()
        return time.perf_counter() - start


def converged(config: Config, encoder: Encoder, union: int) -> MMoE:
    """A model whose tasks have chosen so many experts between them."""
    model = build_model(config, encoder)
    gate = model.gate
    assert isinstance(gate, DSelectK)
    gate.restrict(list(range(union)))
    with torch.no_grad():  # task t takes experts t and t + 1, counted round
        for t, i in itertools.product(range(gate.num_tasks), range(gate.k)):
            code = (t + i) % union
            for j in range((union - 1).bit_length()):
                gate.z[t, i, j] = 1.0 if code >> j & 1 else -1.0
    gate.finalize()
    assert len(gate.selection().experts_used) == union
    return model.train()


def measure(config: Config, encoder: Encoder, union: int, rows: list[LabeledBatch], steps: int) -> tuple[float, float]:
    """Median seconds of a step with all experts, and with the chosen ones."""
    everyone = converged(config, encoder, union)
    chosen = copy.deepcopy(everyone)
    for model in (everyone, chosen):
        EmbeddingTables(model.embeddings, config.training.learning_rate.embeddings, len(rows[0]), DistContext())
    both = [Training(model, make_optimizer(model, config.training)) for model in (everyone, chosen)]
    keep_experts(chosen, both[1].optimiser, chosen.gate.selection().experts_used)
    times: tuple[list[float], list[float]] = ([], [])
    for i, examples in enumerate(itertools.islice(itertools.cycle(rows), steps)):
        for training, taken in zip(both, times, strict=True):
            seconds = training.step(config, examples)
            if i >= 5:  # the first ones warm up
                taken.append(seconds)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Measures every shape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("config", type=Path, help="a ranker.toml")
    parser.add_argument("--steps", type=int, default=60, help="steps of each model and shape")
    parser.add_argument("--batch", type=int, default=512, help="rows a step")
    arguments = parser.parse_args()
    config = load(arguments.config)
    schema = config.schema_only
    reader = LogReader(config.logs.path, schema, load_tables(config.logs, schema))
    fitter = EncoderFitter(schema)
    found = profile_log(reader, config.logs, schema, on_train=fitter.add)
    encoder = fitter.encoder()
    settings = config.training.model_copy(update={"batch_size": arguments.batch})
    feed = BatchLoader(reader, found.index, partial(encode, encoder=encoder), config.logs, settings)
    rows = list(itertools.islice(feed.epoch(0), 20))
    print(f"batches of {arguments.batch}, {torch.get_num_threads()} threads\n")
    print("| experts | n | union | all experts, ms | chosen only, ms | speed-up | n / union |\n" + 7 * "|---" + "|")
    for layers, n, union in SHAPES:
        gate = config.model.gate.model_copy(update={"k": 2, "experts_budget": n})
        model = config.model.model_copy(update={"experts": n, "expert_layers": tuple(layers), "gate": gate})
        shaped = config.model_copy(update={"model": model})
        slow, fast = measure(shaped, encoder, union, rows, arguments.steps)
        print(
            f"| {layers} | {n} | {union} | {1e3 * slow:.1f} | {1e3 * fast:.1f} | {slow / fast:.2f} | {n / union:.1f} |"
        )


if __name__ == "__main__":
    main()
