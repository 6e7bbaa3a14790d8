"""The main job: a log in, a run folder with a converged and evaluated model out."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines.config import Config
from pipelines.evaluation import evaluate, predict
from pipelines.logs.reader import LogReader, load_tables
from pipelines.logs.survey import Survey, require_learnable, survey
from pipelines.progress import say
from pipelines.run_folder import RunFolder
from pipelines.training.building import build_model, load_model
from pipelines.training.examples import Examples, read, read_whole
from pipelines.training.loop import Trainer
from ranking.errors import RankerError
from ranking.files import write_json
from ranking.fitting import EncoderFitter
from ranking.losses import scores as to_scores
from ranking.model import Mixture
from ranking.schema import Task
from ranking.selection import flops

BASE_RATE_FLOOR = 1e-6
"""A rate of 0 or 1 has no logit."""


def train(config: Config, folder: Path) -> RunFolder:
    """Trains on the configured log.

    Raises:
        LogError: the log cannot be used; says why.
        OutputError: the run folder holds something already, or cannot be written.
        RankerError: the loss became NaN.
    """
    schema = config.schema_only
    reader = LogReader(config.logs.path, schema, load_tables(config.logs, schema))
    run = RunFolder.create(folder, config)
    fitter = EncoderFitter(schema)
    try:
        found = survey(reader, config.logs, schema, run.quarantine, on_train=fitter.add)
        require_learnable(found, config)
    except RankerError:
        shutil.rmtree(run.path)  # nothing was learnt: the same command may be given again, once the log is mended
        raise
    if found.bad:
        say(f"{found.bad.total():,} bad rows are left out, see {run.quarantine}")
    encoder = fitter.encoder()
    encoder.write(run.encoder)

    torch.manual_seed(config.training.seed)
    model = build_model(config, encoder)
    model.start_at(base_outputs(found, config))
    trainer = Trainer(config, run, reader, encoder, model, found.rows["train"])
    trainer.fit()

    model, encoder = load_model(run, config)  # the best weights, which need not be the last
    selection = model.gate.selection(schema.task_names)
    write_json(
        {
            **selection.to_json(),
            "converged": True,
            "binary_at_step": trainer.convergence.binary_at_step,
            "snapped_codes": trainer.convergence.snapped_codes,
            "codes_changed": model.gate.codes_changed(),
            "steps": trainer.steps,
            "flops": flops(selection, model.shape),
        },
        run.selection,
    )
    if found.rows["test"]:
        write_json(_evaluate(model, read(reader, config.logs, encoder, "test"), schema.tasks), run.evaluation)
    return run


def base_outputs(found: Survey, config: Config) -> torch.Tensor:
    """Outputs [tasks] of a model that knows only the training split's base rates and means."""
    outputs = []
    for task in config.tasks:
        mean = found.labels["train"][task.name].mean or 0.0
        rate = min(max(mean, BASE_RATE_FLOOR), 1 - BASE_RATE_FLOOR)
        outputs.append(math.log(rate / (1 - rate)) if task.kind == "binary" else mean)
    return torch.tensor(outputs)


def evaluate_run(run: RunFolder, logs: Path | None = None) -> dict[str, Any]:
    """Measures a run's best weights on its test split, or on the whole of another log.

    Raises:
        LogError: the run or the log cannot be used, or holds no row to evaluate.
    """
    config = run.load_config()
    model, encoder = load_model(run, config)
    schema = config.schema_only
    tables = load_tables(config.logs, schema)
    if logs is None:
        stream = read(LogReader(config.logs.path, schema, tables), config.logs, encoder, "test")
    else:
        stream = read_whole(LogReader(logs, schema, tables), encoder)
    return _evaluate(model, stream, schema.tasks)


def _evaluate(model: Mixture, stream: Iterator[Examples], tasks: Sequence[Task]) -> dict[str, Any]:
    return evaluate(predict(stream, lambda inputs: to_scores(model(inputs), tasks)), tasks)
