"""Measure the gain of conditional training: the step time with the selected experts only, relative to all experts.

For several model shapes without counters, times whole optimizer steps (embeddings, experts, towers, backward, AdamW)
of two copies of a converged model on the same batches, one with all experts and one with the selected experts only, in
turns. Prints a Markdown table with the ratio of the medians and n/|union|, which the ratio approaches as experts
dominate the cost.

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

from pipelines.config.config import Config, load_config
from pipelines.data.reader import LogReader, load_tables
from pipelines.inspection.profile import profile_log
from pipelines.training.dataloader import BatchLoader
from pipelines.training.distributed import DistContext
from pipelines.training.embedding_tables import EmbeddingTables
from pipelines.training.expert_pruning import keep_experts
from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch
from pipelines.training.model_factory import build_model
from pipelines.training.optimizer import make_optimizer
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.gates import DSelectK
from ranking.model.losses import task_losses
from ranking.model.mmoe import MMoE

SHAPES = (([128], 8, 2), ([128], 8, 4), ([256, 256], 8, 2), ([256, 256], 8, 4), ([256, 256], 16, 4))
"""(widths of an expert's layers, n, |union|)."""
WARMUP_STEPS = 5


@dataclass
class Trainee:
    """A model with its optimizer."""

    model: MMoE
    optimizer: torch.optim.Optimizer

    def step(self, config: Config, batch: LabeledBatch) -> float:
        """Run one step and return its duration in seconds."""
        start = time.perf_counter()
        tensors = DeviceBatch.from_labeled(batch)
        losses = task_losses(self.model(tensors.inputs), tensors.labels, config.tasks)
        self.optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()
        self.optimizer.step()
        return time.perf_counter() - start


def converged_model(config: Config, encoder: Encoder, union: int) -> MMoE:
    """Return a converged model whose tasks together select ``union`` experts."""
    model = build_model(config, encoder)
    gate = model.gate
    assert isinstance(gate, DSelectK)
    gate.restrict(list(range(union)))
    with torch.no_grad():  # Task t selects experts t and t + 1, modulo the union.
        for t, i in itertools.product(range(gate.num_tasks), range(gate.k)):
            code = (t + i) % union
            for j in range((union - 1).bit_length()):
                gate.z[t, i, j] = 1.0 if code >> j & 1 else -1.0
    gate.finalize()
    assert len(gate.selection().experts_used) == union
    return model.train()


def measure(
    config: Config, encoder: Encoder, union: int, batches: list[LabeledBatch], steps: int
) -> tuple[float, float]:
    """Return the median seconds per step with all experts and with the selected experts only."""
    dense = converged_model(config, encoder, union)
    pruned = copy.deepcopy(dense)
    rate, seed = config.training.learning_rate.embeddings, config.training.seed
    for model in (dense, pruned):
        EmbeddingTables(model.embeddings, rate, len(batches[0]), DistContext(), seed)
    trainees = [Trainee(model, make_optimizer(model, config.training)) for model in (dense, pruned)]
    keep_experts(pruned, trainees[1].optimizer, pruned.gate.selection().experts_used)
    durations: tuple[list[float], list[float]] = ([], [])
    for step, batch in enumerate(itertools.islice(itertools.cycle(batches), steps)):
        for trainee, seconds in zip(trainees, durations, strict=True):
            duration = trainee.step(config, batch)
            if step >= WARMUP_STEPS:
                seconds.append(duration)
    return statistics.median(durations[0]), statistics.median(durations[1])


def main() -> None:
    """Measure every shape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("config", type=Path, help="a ranker.toml")
    parser.add_argument("--steps", type=int, default=60, help="steps of each model and shape")
    parser.add_argument("--batch", type=int, default=512, help="rows per step")
    arguments = parser.parse_args()
    config = load_config(arguments.config, ["counters=[]", "histories=[]"])
    schema = config.serving_schema
    reader = LogReader(config.logs.path, schema, load_tables(config.logs, schema))
    fitter = EncoderFitter(schema)
    settings = config.training.model_copy(update={"batch_size": arguments.batch})
    profile = profile_log(reader, config.logs, schema, fitters=[fitter])
    encoder = fitter.encoder()
    loader = BatchLoader(
        reader, profile.index, partial(LabeledBatch.from_table, encoder=encoder), config.logs, settings
    )
    batches = list(itertools.islice(loader.epoch(0), 20))
    print(f"batches of {arguments.batch}, {torch.get_num_threads()} threads\n")
    print("| experts | n | union | all experts, ms | selected only, ms | speedup | n / union |\n" + 7 * "|---" + "|")
    for layers, n, union in SHAPES:
        gate = config.model.gate.model_copy(update={"k": 2, "experts_budget": n})
        model = config.model.model_copy(update={"experts": n, "expert_layers": tuple(layers), "gate": gate})
        shaped = config.model_copy(update={"model": model})
        dense, pruned = measure(shaped, encoder, union, batches, arguments.steps)
        times = f"{1e3 * dense:.1f} | {1e3 * pruned:.1f} | {dense / pruned:.2f}"
        print(f"| {layers} | {n} | {union} | {times} | {n / union:.1f} |")


if __name__ == "__main__":
    main()
