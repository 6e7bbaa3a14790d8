"""The ``train`` job: from a log to a run folder with a converged and evaluated model."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pipelines.config.config import Config
from pipelines.console import print_status
from pipelines.engines import Engine
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.predict import NoRowsError
from pipelines.evaluation.sources import Scorer, run_scorer
from pipelines.runs import single_task
from pipelines.runs.provenance import provenance
from pipelines.runs.run import RunFolder
from pipelines.runs.trackers import Trackers, require_installed
from pipelines.training.calibration import calibrate
from pipelines.training.checkpoint import Checkpoints
from pipelines.training.dataloader import BatchLoader
from pipelines.training.distributed import DistContext, get_world_size, init_distributed
from pipelines.training.gate_schedule import GateSchedule
from pipelines.training.id_dropout import IdDropout
from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch
from pipelines.training.model_factory import build_model, load_model
from pipelines.training.setup import TrainingData, base_rate_outputs, prepare, prepare_log
from pipelines.training.task_similarity import start_similar_tasks_alike
from pipelines.training.teachers import load_teachers, open_teachers
from pipelines.training.trainer import OnCheck, Trainer
from pipelines.training.warm_start import WarmStart, limit_batch_size
from ranking.artifacts.atomic_files import write_json
from ranking.errors import ConfigError, RankerError, UsageError
from ranking.frozen.calibration import Calibration
from ranking.gates import DSelectK, Gate
from ranking.gates.base import mean_selection
from ranking.model.gate_stats import GateStatistics
from ranking.model.mmoe import MMoE
from ranking.schema import Schema
from ranking.selection import RoutingCost, Selection, flops
from ranking.settings.gate import SingleTaskConfig

SINGLE_TASKS = "single_task trains a run for each task, and each of them reads the log: train it without a preparation"


def train(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    warm_start: WarmStart | None = None,
    on_check: OnCheck | None = None,
    prepared: RunFolder | None = None,
    command: Sequence[str] = (),
    baselines: bool = False,
    engine: Engine | None = None,
) -> RunFolder:
    """Train on the configured log; the single-task baseline trains its models one after the other.

    Under torchrun, every rank calls this function and the main rank writes.

    Args:
        config: the whole configuration.
        folder: the run folder; must be new or empty unless ``resume`` or ``overwrite`` is set.
        resume: continue the run in the folder from its last checkpoint, or start it.
        overwrite: replace an unfinished run in the folder.
        warm_start: earlier run to start from.
        on_check: callback for each line of metrics.jsonl; an exception that it raises ends the training.
        prepared: run whose preparation is used if it fits, see ``require_preparation``.
        command: arguments of the command line, stored in the run; empty if the training was started from Python.
        baselines: whether the final evaluation compares the model with the configured baselines.
        engine: lets its workers read the files of the log before the training, and score its rows in the evaluation.

    Raises:
        LogError: the log cannot be used.
        ConfigError: the warm start or a teacher does not fit the configuration, or a tracker is not installed.
        OutputError: the run folder is not empty, is in use, or cannot be written.
        RankerError: a loss became NaN or infinite, or another rank failed.
    """
    require_installed(config.training.trackers)
    if warm_start is not None:
        config = warm_start.adapted(config)
    if not (resume and RunFolder(folder).finished):
        open_teachers(config)  # wrong ones are reported before the log is read
    if isinstance(config.model.gate, SingleTaskConfig):
        options = {"command": command, "baselines": baselines, "engine": engine}
        return _train_single_tasks(config, folder, resume=resume, overwrite=overwrite, options=options)
    with init_distributed() as context:
        _require_divisible(config, context)
        with _open_run_folder(config, folder, context, command, resume=resume, overwrite=overwrite) as run:
            if run.finished:
                print_status(f"{folder}: training has already finished")
            else:
                preparation = partial(prepare, config, run, context, warm_start, prepared, engine)
                importance = config.evaluation.importance
                evaluation = partial(evaluate, baselines=baselines, importance=importance, engine=engine)
                _train_with_trackers(config, run, context, preparation, warm_start, on_check, evaluation)
    return run


def prepare_run(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    engine: Engine | None = None,
) -> RunFolder:
    """Do what a training does before its first step; ``train`` continues the run, or uses its preparation for others.

    Args:
        config: the whole configuration.
        folder: the run folder, see ``train``.
        resume: continue the run in the folder, or start it.
        overwrite: replace an unfinished run in the folder.
        engine: lets its workers read the files of the log, see ``prepare``.

    Raises:
        As ``train``, but the training need not fit into the memory of this machine.
    """
    if isinstance(config.model.gate, SingleTaskConfig):
        raise UsageError(SINGLE_TASKS)
    if get_world_size() > 1:
        raise UsageError("one process prepares a training: run 'ranker prepare' without torchrun")
    with _open_run_folder(config, folder, DistContext(), None, resume=resume, overwrite=overwrite) as run:
        prepare_log(config, run, engine=engine)
    return run


def _train_single_tasks(
    config: Config, folder: Path, *, resume: bool, overwrite: bool, options: dict[str, Any]
) -> RunFolder:
    """Train one model per task; ``options`` are arguments of ``train``."""
    if get_world_size() > 1:
        raise UsageError("single_task trains its models one after the other in one process: run it without torchrun")
    command = options["command"]
    with _open_run_folder(config, folder, DistContext(), command, resume=resume, overwrite=overwrite) as run:
        runs = {}
        for task, task_config in single_task.task_configs(config).items():
            print_status(f"training the model of task {task}")
            runs[task] = train(task_config, run.task_folder(task), resume=resume, **options)
        if all(task_run.evaluation.exists() for task_run in runs.values()):
            evaluations = (task_run.load_evaluation() for task_run in runs.values())
            write_json(single_task.merge_evaluations(evaluations), run.evaluation)
        write_json(single_task.merge_selections(runs), run.selection)
    return run


@contextmanager
def _open_run_folder(
    config: Config, folder: Path, context: DistContext, command: Sequence[str] | None, *, resume: bool, overwrite: bool
) -> Iterator[RunFolder]:
    """Create or resume the run folder and lock it on the main rank; delete it if the run failed before training.

    The command is not recorded if it is None.
    """
    if not context.is_main:
        context.barrier()
        yield RunFolder(folder)
        return
    run = RunFolder.resume(folder, config) if resume else RunFolder.create(folder, config, overwrite=overwrite)
    with run.lock():
        if command is not None and not run.command.exists():  # a resumed run keeps its original command
            write_json(provenance(command), run.command)
        context.barrier()
        try:
            yield run
        except RankerError:
            if not any(folder.rglob(run.encoder.name)):
                shutil.rmtree(folder)
            raise


def _require_divisible(config: Config, context: DistContext) -> None:
    """Check that the batch size gives every rank the same number of rows, at least the two that batch norm needs."""
    size, ranks = config.training.batch_size, context.world_size
    if size % ranks or size < 2 * ranks:
        raise ConfigError(
            f"training.batch_size = {size} is the total over all {ranks} ranks: "
            f"choose a multiple of {ranks}, at least {2 * ranks}"
        )


def _train_with_trackers(
    config: Config,
    run: RunFolder,
    context: DistContext,
    preparation: Callable[[], TrainingData],
    warm_start: WarmStart | None,
    on_check: OnCheck | None,
    evaluation: Callable[[Scorer], dict[str, Any]],
) -> None:
    """Train, and record the training with the configured trackers."""
    with Trackers(config, run) as trackers:

        def log_check(line: dict[str, Any]) -> None:
            trackers.log_check(line)
            if on_check is not None:
                on_check(line)

        _train_model(config, run, context, preparation(), warm_start, log_check, evaluation)
        if context.is_main:
            trackers.finish()


def _train_model(
    config: Config,
    run: RunFolder,
    context: DistContext,
    data: TrainingData,
    warm_start: WarmStart | None,
    on_check: OnCheck | None,
    evaluation: Callable[[Scorer], dict[str, Any]],
) -> None:
    fitted = _fit(config, run, context, data, warm_start, on_check)
    if context.is_main:
        gc.collect()  # frees the model in training before its best weights are loaded
        encode = partial(LabeledBatch.from_table, encoder=data.encoder)
        validation = BatchLoader(
            data.reader, data.index, encode, config.logs, config.training, "validation", shuffle=False
        )
        _write_results(config, run, fitted, validation, data.survey, warm_start, evaluation)
        Checkpoints(run.checkpoints, run.best, context, config.training.keep_checkpoints).remove()


class _Fitted(NamedTuple):
    """Result of a training besides the best weights.

    Attributes:
        schedule: the gate schedule.
        steps: optimizer steps of the whole training.
        mean_experts_evaluated: experts with a positive weight for a task, averaged over the tasks and steps.
    """

    schedule: GateSchedule
    steps: int
    mean_experts_evaluated: float


def _fit(
    config: Config,
    run: RunFolder,
    context: DistContext,
    data: TrainingData,
    warm_start: WarmStart | None,
    on_check: OnCheck | None,
) -> _Fitted:
    """Train a model; its best weights are in the run folder."""
    torch.manual_seed(config.training.seed + context.rank)
    model = build_model(config, data.encoder, data.position_encoder)
    continuation, table_weights = None, None
    if warm_start is None:
        model.set_output_bias(base_rate_outputs(data.survey, config))
    else:
        rows = data.index.num_rows("train")
        config = _with_batch_size(config, limit_batch_size(config.training.batch_size, rows, context.world_size))
        continuation = warm_start.continuation(rows, config.training.convergence)
        table_weights = warm_start.initialize(model)
        if warm_start.reopen:
            model.gate.reopen(config.training.convergence.gamma)
    loader = partial(
        BatchLoader,
        data.reader,
        data.index,
        logs=config.logs,
        settings=config.training,
        rank=context.rank,
        world_size=context.world_size,
    )
    encode = partial(LabeledBatch.from_table, encoder=data.encoder)
    ranking = config.training.ranking_loss
    within = None if ranking is None else ranking.within
    train_batches = loader(encode=partial(encode, position_encoder=data.position_encoder, ranking_within=within))
    trainer = Trainer(
        config,
        run,
        context,
        train_batches,
        loader(encode=encode, split="validation", shuffle=False),
        model,
        IdDropout(data.encoder, data.survey.get("unknown_ids", {}), config.training),
        teachers=load_teachers(run, config, context.device),
        table_weights=table_weights,
        continuation=continuation,
        on_check=on_check,
    )
    if not trainer.resume() and warm_start is None:
        start_similar_tasks_alike(config, run, model, train_batches, context)
    trainer.fit()
    return _Fitted(trainer.schedule, trainer.steps, trainer.mean_experts_evaluated)


def _with_batch_size(config: Config, batch_size: int) -> Config:
    """Return the configuration with another batch size."""
    return config.model_copy(update={"training": config.training.model_copy(update={"batch_size": batch_size})})


def _write_results(
    config: Config,
    run: RunFolder,
    fitted: _Fitted,
    validation: BatchLoader,
    survey: dict[str, Any],
    warm_start: WarmStart | None,
    evaluation: Callable[[Scorer], dict[str, Any]],
) -> None:
    """Calibrate and evaluate a trained model; selection.json is written last and marks the run as finished.

    Args:
        config: the whole configuration.
        run: the run folder.
        fitted: the finished training.
        validation: batches of the validation split.
        survey: content of ``survey.json``.
        warm_start: the earlier run that the training started from, if any.
        evaluation: function that returns the content of ``evaluation.json``.
    """
    schema = config.serving_schema
    model, encoder = load_model(run, config)  # the best weights, which may be older than the last ones
    selection, routing_cost = measure_selection(model, schema, validation.epoch(0))
    schedule = fitted.schedule
    gate: Gate = model.gate
    codes_changed = gate.codes_changed() if isinstance(gate, DSelectK) and not gate.per_example else None
    experts_of_top_k = fitted.mean_experts_evaluated / gate.k if gate.k < gate.num_experts else None
    record = {
        **selection.to_json(),
        "kind": config.model.gate.kind,
        "converged": bool(gate.converged().all()),
        "binary_at_step": schedule.binary_at_step,
        "snapped_codes": schedule.snapped_codes,
        "codes_changed": codes_changed,
        "steps": fitted.steps,
        "trained_rows": survey["rows"]["train"] + (0 if warm_start is None else warm_start.trained_rows()),
        "training_experts_of_top_k": experts_of_top_k,
        "flops": flops(selection, model.shape, routing_cost),
    }
    earlier = Calibration() if warm_start is None else warm_start.run.load_calibration()
    calibrate(run, model, schema.tasks, validation.epoch(0), earlier)
    if survey["rows"]["test"]:
        scorer = run_scorer(run, config, model, encoder, record)
        try:
            write_json(evaluation(scorer), run.evaluation)
        except NoRowsError as error:  # a small share of the users; the model is kept
            print_status(f"the run has no evaluation: {error}")
    write_json(record, run.selection)


@torch.no_grad()
def measure_selection(
    model: MMoE, schema: Schema, batches: Iterable[LabeledBatch]
) -> tuple[Selection, RoutingCost | None]:
    """Return the selection of a trained model, and the routing cost if its gate decides per example.

    The selection of a per-example gate has its mean weights over these batches; a static gate does not read them.
    """
    gate = model.gate
    if not gate.per_example:
        return model.selection(schema.task_names), None
    statistics = GateStatistics(schema.tasks, gate.num_experts)
    for labeled_batch in batches:
        batch = DeviceBatch.from_labeled(labeled_batch)
        statistics.add(model.forward_with_routing(batch.inputs).routing.weights, batch.labels)
    selection = mean_selection(statistics.mean_weights, schema.task_names, gate.k, gate.available)
    gate_flops = 2 * sum(parameter.numel() for parameter in gate.parameters())
    return selection, RoutingCost(gate_flops, statistics.experts_per_row, statistics.experts_per_task)
