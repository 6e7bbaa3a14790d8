"""The main job: a log in, a run folder with a converged and evaluated model out."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipelines.config.config import Config
from pipelines.console import print_status
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.sources import run_scorer
from pipelines.runs import single_task
from pipelines.runs.provenance import provenance
from pipelines.runs.run import RunFolder
from pipelines.runs.trackers import Trackers, require_installed
from pipelines.training.calibration import calibrate
from pipelines.training.dataloader import BatchLoader
from pipelines.training.distributed import DistContext, init_distributed, world_size
from pipelines.training.labeled_batch import LabeledBatch, encode
from pipelines.training.model_factory import build_model, load_model
from pipelines.training.setup import base_outputs, prepare
from pipelines.training.torch_batch import DeviceBatch
from pipelines.training.trainer import OnCheck, Trainer
from pipelines.training.warm_start import WarmStart
from ranking.artifacts.atomic_files import write_json
from ranking.errors import ConfigError, RankerError, UsageError
from ranking.gates import DSelectK
from ranking.gates.base import mean_selection
from ranking.gates.config import SingleTaskConfig
from ranking.model.gate_stats import GateStatistics
from ranking.model.mmoe import MMoE
from ranking.schema import Schema
from ranking.selection import RoutingCost, Selection, flops


def train(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    warm: WarmStart | None = None,
    on_check: OnCheck | None = None,
    command: Sequence[str] = (),
) -> RunFolder:
    """Trains on the configured log; the single-task baseline trains one model after the other.

    Under torchrun every rank calls this, and the first one writes.

    Args:
        config: the whole configuration.
        folder: of the run; new, unless ``resume``.
        resume: go on with what is in the folder, from the last checkpoint or from the start.
        warm: an earlier run to go on from.
        on_check: called with each line of metrics.jsonl; raising from it stops the training.
        command: what was given on the command line, kept in the run; nothing if it was started from Python.

    Raises:
        LogError: the log cannot be used; says why.
        ConfigError: a warm start from a run of another kind, or a tracker that is not installed.
        OutputError: the run folder holds something already, is in use, or cannot be written.
        RankerError: the loss became NaN, or another rank was lost.
    """
    require_installed(config.training.trackers)
    if warm is not None:
        warm.require_alike(config)
    if isinstance(config.model.gate, SingleTaskConfig):
        return _train_each(config, folder, resume, command)
    with init_distributed() as world:
        _require_divisible(config, world)
        with _run_folder(config, folder, world, command, resume=resume) as run:
            if run.finished:
                print_status(f"{folder}: training has finished already")
            else:
                _tracked(config, run, world, warm, on_check)
    return run


def _train_each(config: Config, folder: Path, resume: bool, command: Sequence[str]) -> RunFolder:
    """A run for each task."""
    if world_size() > 1:
        raise UsageError("single_task trains a model for each task, one by one: leave torchrun away")
    with _run_folder(config, folder, DistContext(), command, resume=resume) as run:
        each = {}
        for task, alone in single_task.configs(config).items():
            print_status(f"task {task} by itself")
            each[task] = train(alone, run.of_task(task), resume=resume, command=command)
        if all(part.evaluation.exists() for part in each.values()):
            write_json(single_task.evaluation(part.load_evaluation() for part in each.values()), run.evaluation)
        write_json(single_task.selection(each), run.selection)
    return run


@contextmanager
def _run_folder(
    config: Config, folder: Path, world: DistContext, command: Sequence[str], *, resume: bool
) -> Iterator[RunFolder]:
    """The run's folder, claimed by the first rank; removed if nothing was learnt, so that one may try again."""
    if not world.first:
        world.wait()
        yield RunFolder(folder)
        return
    run = RunFolder.resumed(folder, config) if resume else RunFolder.create(folder, config)
    with run.claimed():
        if not run.command.exists():  # a resumed run keeps the command that began it
            write_json(provenance(command), run.command)
        world.wait()
        try:
            yield run
        except RankerError:
            if not any(folder.rglob(run.encoder.name)):
                shutil.rmtree(folder)
            raise


def _require_divisible(config: Config, world: DistContext) -> None:
    size = config.training.batch_size
    if size % world.size or size < 2 * world.size:  # batch norm needs two rows a rank
        raise ConfigError(
            f"training.batch_size = {size} is that of all {world.size} ranks together: "
            f"choose a multiple of {world.size}, at least {2 * world.size}"
        )


def _tracked(
    config: Config, run: RunFolder, world: DistContext, warm: WarmStart | None, on_check: OnCheck | None
) -> None:
    """Trains, and tells the configured trackers."""
    with Trackers(config, run) as trackers:

        def tell(line: dict[str, Any]) -> None:
            trackers.check(line)
            if on_check is not None:
                on_check(line)

        _train(config, run, world, warm, tell)
        if world.first:
            trackers.finish()


def _train(
    config: Config, run: RunFolder, world: DistContext, warm: WarmStart | None, on_check: OnCheck | None
) -> None:
    prepared = prepare(config, run, world, warm)
    torch.manual_seed(config.training.seed + world.rank)
    model = build_model(config, prepared.encoder, prepared.side_encoder)
    if warm is None:
        model.start_at(base_outputs(prepared.survey, config))
    else:
        warm.fill(model)
        if warm.reopened:
            model.gate.reopen(config.training.convergence.gamma)
    feed = partial(BatchLoader, prepared.reader, prepared.index, logs=config.logs, settings=config.training)
    validation = partial(feed, encode=partial(encode, encoder=prepared.encoder), split="validation", shuffled=False)
    with_side = partial(encode, encoder=prepared.encoder, side=prepared.side_encoder)
    trainer = Trainer(
        config,
        run,
        world,
        feed(encode=with_side, rank=world.rank, world=world.size),
        validation(rank=world.rank, world=world.size),
        model,
        chosen=warm is not None and not warm.reopened and model.gate.concludes,
        on_check=on_check,
    )
    trainer.resume()
    trainer.fit()
    if world.first:
        _conclude(config, run, trainer, validation(), prepared.survey)
        trainer.clean_up()


def _conclude(config: Config, run: RunFolder, trainer: Trainer, validation: BatchLoader, found: dict[str, Any]) -> None:
    """What is told of a finished training; selection.json comes last and says that it is finished."""
    schema = config.serving_schema
    model, encoder = load_model(run, config)  # the best weights, which need not be the last
    selection, load = chosen(model, schema, validation.epoch(0))
    convergence = trainer.convergence
    trained = {
        **selection.to_json(),
        "kind": config.model.gate.kind,
        "converged": bool(model.gate.converged().all()),
        "binary_at_step": convergence.binary_at_step,
        "snapped_codes": convergence.snapped_codes,
        "codes_changed": model.gate.codes_changed() if _draws_codes(model) else None,
        "steps": trainer.steps,
        "training_experts_of_top_k": trainer.experts_evaluated / selection.k if _bounded(model) else None,
        "flops": flops(selection, model.shape, load),
    }
    calibrate(run, model, schema.tasks, validation.epoch(0))
    if found["rows"]["test"]:
        write_json(evaluate(run_scorer(run, config, model, encoder, trained)), run.evaluation)
    write_json(trained, run.selection)


@torch.no_grad()
def chosen(model: MMoE, schema: Schema, rows: Iterable[LabeledBatch]) -> tuple[Selection, RoutingCost | None]:
    """The selection of a trained model; of a per-example gate its means over these rows, and what they cost."""
    gate = model.gate
    if not gate.per_example:
        return gate.selection(schema.task_names), None
    found = GateStatistics(schema.tasks, gate.num_experts)
    for examples in rows:
        batch = DeviceBatch.from_labeled(examples)
        found.add(model.forward_with_routing(batch.inputs).routing.weights, batch.labels)
    selection = mean_selection(found.mean_weights, schema.task_names, gate.k, gate.available)
    gate_flops = 2 * sum(parameter.numel() for parameter in gate.parameters())
    return selection, RoutingCost(gate_flops, found.experts_a_row, found.experts_a_task)


def _bounded(model: MMoE) -> bool:
    """Whether the gate has a k that Top-k could have too."""
    return model.gate.k < model.gate.num_experts


def _draws_codes(model: MMoE) -> bool:
    return isinstance(model.gate, DSelectK) and not model.gate.per_example
