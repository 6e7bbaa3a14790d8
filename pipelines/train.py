"""The main job: a log in, a run folder with a converged and evaluated model out."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from pipelines.config import Config
from pipelines.evaluation import evaluate_run
from pipelines.logs.reader import LogReader, load_tables
from pipelines.logs.survey import Survey, survey
from pipelines.progress import say
from pipelines.run_folder import RunFolder, build_model, write_json
from pipelines.training.loop import Trainer
from ranking.errors import LogError
from ranking.fitting import EncoderFitter
from ranking.selection import flops

BASE_RATE_FLOOR = 1e-6
"""A rate of 0 or 1 has no logit."""


def train(config: Config, folder: Path) -> RunFolder:
    """Trains on the configured log.

    Raises:
        LogError: the log cannot be used (says why), or the run folder exists.
        RankerError: the loss became NaN.
    """
    schema = config.schema_only
    reader = LogReader(config.logs.path, schema, load_tables(config.logs, schema))
    run = RunFolder.create(folder, config)
    fitter = EncoderFitter(schema)
    found = survey(reader, config.logs, schema, run.quarantine, on_train=fitter.add)
    require_learnable(found, config)
    if found.bad:
        say(f"{found.bad.total():,} bad rows are left out, see {run.quarantine}")
    encoder = fitter.encoder()
    encoder.write(run.encoder)

    torch.manual_seed(config.training.seed)
    model = build_model(config, encoder)
    model.start_at(base_outputs(found, config))
    trainer = Trainer(config, run, reader, encoder, model, found.rows["train"])
    trainer.fit()

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
        write_json(evaluate_run(run), run.evaluation)
    return run


def require_learnable(found: Survey, config: Config) -> None:
    """Refuses a log from which some task cannot be learnt or judged.

    Raises:
        LogError: an empty training or validation split, or a label that is absent or constant in training.
    """
    logs = config.logs
    if found.rows["train"] < 2:
        raise LogError(f"{logs.path}: no row before logs.validation_from = {logs.validation_from}: nothing to train on")
    if not found.rows["validation"]:
        raise LogError(
            f"{logs.path}: no row from {logs.validation_from} to {logs.test_from}: nothing to validate on; "
            "move logs.validation_from or logs.test_from"
        )
    for task in config.tasks:
        label = found.labels["train"][task.name]
        if not label.rows:
            raise LogError(f"{logs.path}: label '{task.label}' of task '{task.name}' is null in every training row; drop the task")
        if label.low == label.high:
            raise LogError(
                f"{logs.path}: label '{task.label}' of task '{task.name}' is {label.low:g} in every training row: "
                "a constant cannot be learnt; drop the task or mend the label"
            )


def base_outputs(found: Survey, config: Config) -> torch.Tensor:
    """Outputs [tasks] of a model that knows only the training split's base rates and means."""
    outputs = []
    for task in config.tasks:
        mean = found.labels["train"][task.name].mean or 0.0
        rate = min(max(mean, BASE_RATE_FLOOR), 1 - BASE_RATE_FLOOR)
        outputs.append(math.log(rate / (1 - rate)) if task.kind == "binary" else mean)
    return torch.tensor(outputs)
