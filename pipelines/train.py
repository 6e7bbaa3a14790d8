"""The main job: a log in, a run folder with a converged and evaluated model out."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from pipelines import single_task
from pipelines.config import Config
from pipelines.evaluation import evaluate_stream, predict
from pipelines.logs.reader import LogReader, load_tables
from pipelines.logs.survey import Survey, require_learnable, survey
from pipelines.progress import say
from pipelines.run_folder import RunFolder
from pipelines.training.building import build_model, load_model
from pipelines.training.examples import Examples, read, read_whole
from pipelines.training.loop import Trainer
from ranking.encoding import Encoder, Inputs
from ranking.errors import LogError, RankerError
from ranking.files import write_json
from ranking.fitting import EncoderFitter
from ranking.gates import DSelectK
from ranking.gates.base import mean_selection
from ranking.gates.config import SingleTaskConfig
from ranking.losses import scores as to_scores
from ranking.model import Mixture
from ranking.schema import Schema
from ranking.selection import Load, Selection, flops
from ranking.specialisation import Specialisation

OnCheck = Callable[[dict[str, Any]], None]

BASE_RATE_FLOOR = 1e-6
"""A rate of 0 or 1 has no logit."""


def train(config: Config, folder: Path, *, on_check: OnCheck | None = None) -> RunFolder:
    """Trains on the configured log; the single-task baseline trains one model after the other.

    Args:
        config: the whole configuration.
        folder: new folder for the run.
        on_check: gets each line of metrics.jsonl; what it raises stops the training.

    Raises:
        LogError: the log cannot be used; says why.
        OutputError: the run folder holds something already, or cannot be written.
        RankerError: the loss became NaN.
    """
    if isinstance(config.model.gate, SingleTaskConfig):
        run, *_ = _begun(config, folder)
        each = {}
        for task, alone in single_task.configs(config).items():
            say(f"task {task} by itself")
            each[task] = train(alone, run.of_task(task), on_check=on_check)
        write_json(single_task.selection(each), run.selection)
        if all(part.evaluation.exists() for part in each.values()):
            write_json(single_task.evaluation(part.load_evaluation() for part in each.values()), run.evaluation)
        return run
    return _train(config, folder, on_check)


def _begun(config: Config, folder: Path) -> tuple[RunFolder, LogReader, Survey, Encoder]:
    """A new run folder, the log, what it holds, and the encoder fitted on it; no folder if nothing can be learnt."""
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
    return run, reader, found, fitter.encoder()


def _train(config: Config, folder: Path, on_check: OnCheck | None) -> RunFolder:
    run, reader, found, encoder = _begun(config, folder)
    encoder.write(run.encoder)
    schema = config.schema_only

    torch.manual_seed(config.training.seed)
    model = build_model(config, encoder)
    model.start_at(base_outputs(found, config))
    trainer = Trainer(config, run, reader, encoder, model, found.rows["train"], on_check)
    trainer.fit()

    model, encoder = load_model(run, config)  # the best weights, which need not be the last
    selection, load = chosen(model, schema, read(reader, config.logs, encoder, "validation"))
    convergence = trainer.convergence
    write_json(
        {
            **selection.to_json(),
            "kind": config.model.gate.kind,
            "converged": bool(model.gate.converged().all()),
            "binary_at_step": convergence.binary_at_step,
            "snapped_codes": convergence.snapped_codes,
            "codes_changed": model.gate.codes_changed() if _draws_codes(model) else None,
            "steps": trainer.steps,
            "training_experts_of_top_k": trainer.experts_evaluated / selection.k if _bounded(model) else None,
            "flops": flops(selection, model.shape, load),
        },
        run.selection,
    )
    if found.rows["test"]:
        write_json(_evaluate(run, model, read(reader, config.logs, encoder, "test"), schema), run.evaluation)
    return run


def base_outputs(found: Survey, config: Config) -> torch.Tensor:
    """Outputs [tasks] of a model that knows only the training split's base rates and means."""
    outputs = []
    for task in config.tasks:
        mean = found.labels["train"][task.name].mean or 0.0
        rate = min(max(mean, BASE_RATE_FLOOR), 1 - BASE_RATE_FLOOR)
        outputs.append(math.log(rate / (1 - rate)) if task.kind == "binary" else mean)
    return torch.tensor(outputs)


def chosen(model: Mixture, schema: Schema, rows: Iterable[Examples]) -> tuple[Selection, Load | None]:
    """The selection of a trained model; of a per-example gate its means over these rows, and what they cost."""
    gate = model.gate
    if not gate.per_example:
        return gate.selection(schema.task_names), None
    found = Specialisation(schema.tasks, gate.num_experts)
    predict(rows, lambda inputs: _scored(model, inputs, schema), found)
    selection = mean_selection(found.mean_weights, schema.task_names, gate.k, gate.available)
    gate_flops = 2 * sum(parameter.numel() for parameter in gate.parameters())
    return selection, Load(gate_flops, found.experts_a_row, found.experts_a_task)


def evaluate_run(run: RunFolder, logs: Path | None = None) -> dict[str, Any]:
    """Measures a run's best weights on its test split, or on the whole of another log.

    Raises:
        LogError: the run or the log cannot be used, or holds no row to evaluate.
    """
    config = run.load_config()
    if isinstance(config.model.gate, SingleTaskConfig):
        parts = [RunFolder.open(run.of_task(task)) for task in config.task_names]
        return single_task.evaluation(evaluate_run(part, logs) for part in parts)
    model, encoder = load_model(run, config)
    schema = config.schema_only
    tables = load_tables(config.logs, schema)
    if logs is None:
        stream = read(LogReader(config.logs.path, schema, tables), config.logs, encoder, "test")
    else:
        stream = read_whole(LogReader(logs, schema, tables), encoder)
    return _evaluate(run, model, stream, schema)


def _evaluate(run: RunFolder, model: Mixture, stream: Iterable[Examples], schema: Schema) -> dict[str, Any]:
    trained = run.load_selection()
    try:
        return evaluate_stream(
            stream, lambda inputs: _scored(model, inputs, schema), schema.tasks, model.gate.num_experts, trained
        )
    except KeyError as error:
        raise LogError(f"{run.selection} lacks {error}: the run is of another version; train again") from None


def _scored(model: Mixture, inputs: Inputs, schema: Schema) -> tuple[torch.Tensor, torch.Tensor]:
    done = model.trace(inputs)
    return to_scores(done.outputs, schema.tasks), done.routing.weights


def _bounded(model: Mixture) -> bool:
    """Whether the gate has a k that Top-k could have too."""
    return model.gate.k < model.gate.num_experts


def _draws_codes(model: Mixture) -> bool:
    return isinstance(model.gate, DSelectK) and not model.gate.per_example
