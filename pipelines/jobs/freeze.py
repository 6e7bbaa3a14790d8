"""``ranker freeze``: writes the bundle of a run, or of the mean of several, after verifying it on held-out rows."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn

from pipelines.config.config import Config, LogsConfig
from pipelines.config.uri import redact_uri
from pipelines.console import print_status
from pipelines.counters.columns import joined_columns
from pipelines.data.log_schema import masked_labels
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import split_range
from pipelines.evaluation.evaluate import evaluate
from pipelines.evaluation.sources import bundle_scorer
from pipelines.runs.run import RunFolder
from pipelines.runs.same_inputs import require_distinct, require_same_inputs, require_same_settings
from pipelines.runs.single_task import joint_record
from pipelines.training.calibration import fit_calibration
from pipelines.training.labeled_batch import read_split
from pipelines.training.model_factory import load_model
from ranking.artifacts import bundle
from ranking.artifacts.atomic_files import check_creatable
from ranking.counters.features import CounterFeatures
from ranking.encoding.encoder import Encoder
from ranking.encoding.feature_table import FeatureTable
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import BundleError, InvalidInputError, LogError, NotConvergedError
from ranking.frozen.calibration import Calibration, to_probabilities
from ranking.frozen.embedding_rows import RowType, encoded
from ranking.frozen.freeze import freeze as frozen
from ranking.frozen.ranker import FrozenRanker
from ranking.metrics.binary import auc
from ranking.model.mmoe import MMoE
from ranking.schema import Owner, Task
from ranking.selection import Selection
from ranking.settings.gate import SingleTaskConfig

GOLDEN_ROWS = 32
"""Number of rows with their scores that the bundle contains for verification."""
VERIFIED_ROWS = 4096
"""Maximum number of held-out rows on which frozen and dense scores are compared."""
MAX_SCORE_CHANGE, MAX_AUC_CHANGE = 0.1, 0.001
"""Largest changes by embeddings of another type: of a score, in standard deviations of its task, and of an AUC."""
TOLERANCE = 1e-5
"""Maximum difference between a frozen score and the score of the dense model."""


def with_embeddings(ranker: FrozenRanker, embeddings: RowType, rows: pa.Table) -> FrozenRanker:
    """Return the ranker with another type of the rows of embedding tables; its details record the changes of scores.

    Args:
        ranker: ranker with rows in float32.
        embeddings: new type.
        rows: completed rows with labels.

    Raises:
        BundleError: the scores, or the AUC, of a task change by more than ``MAX_SCORE_CHANGE`` or ``MAX_AUC_CHANGE``.
    """
    tasks = ranker.schema.tasks
    compact = ranker.map_weights(partial(encoded, row_type=embeddings))
    before, after = (one.score_completed(rows, tasks)[0].astype(np.float64) for one in (ranker, compact))
    changes: dict[str, dict[str, float]] = {}
    for task, old, new in zip(tasks, before.T, after.T, strict=True):
        spread = float(old.std()) or float(np.abs(old).max()) or 1.0  # the score itself if it is constant
        change = float(np.abs(new - old).max()) / spread
        if not change <= MAX_SCORE_CHANGE:  # also true for NaN
            raise BundleError(
                f"embeddings in {embeddings} change scores of '{task.name}' by up to {change:.1%} of their standard "
                f"deviation (allowed: {MAX_SCORE_CHANGE:.0%}): {_alternative(embeddings)}"
            )
        changes[task.name] = {"scores": change}
        auc_change = _auc_change(rows, task, old, new)
        if auc_change is None:
            continue
        if abs(auc_change) > MAX_AUC_CHANGE:
            raise BundleError(
                f"embeddings in {embeddings} change the AUC of '{task.name}' by {auc_change:+.4f} "
                f"(allowed: {MAX_AUC_CHANGE:g}): {_alternative(embeddings)}"
            )
        changes[task.name]["auc"] = auc_change
    worst = max(changes, key=lambda name: changes[name]["scores"])
    print_status(
        f"embeddings in {embeddings} change scores by up to {changes[worst]['scores']:.2%} of their standard deviation "
        f"('{worst}')"
    )
    return replace(compact, details={**ranker.details, "embeddings": {"type": embeddings, "changes": changes}})


def _alternative(embeddings: RowType) -> str:
    """Return the advice for a type of embeddings that changes scores too much."""
    return "freeze with --embeddings float32" + (", or float16" if embeddings == "int8" else "")


def _auc_change(
    rows: pa.Table, task: Task, before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]
) -> float | None:
    """Return the change of the AUC; None for a regression, or if a class is absent."""
    if task.kind != "binary":
        return None
    labels = masked_labels(rows, task).to_numpy(zero_copy_only=False)
    known = ~np.isnan(labels)
    old, new = (auc(labels[known], scores[known]) for scores in (before, after))
    return None if old is None or new is None else new - old


def freeze_run(path: Path, out: Path, embeddings: RowType = "float32", others: Sequence[Path] = ()) -> FrozenRanker:
    """Write the bundle of a run, after verifying on held-out rows that its scores equal those of the dense model.

    The bundle of several runs averages their outputs. The mean is calibrated on the validation split, if the tasks ask
    for it, and evaluated on the test split, if there is one.

    Args:
        path: folder of a finished run.
        out: new folder for the bundle.
        embeddings: type of the rows of embedding tables. Scores on the held-out rows may differ from those with float32
            by at most ``MAX_SCORE_CHANGE`` and ``MAX_AUC_CHANGE``.
        others: runs of the same log and features. The objective and the evaluation settings are those of ``path``.

    Raises:
        NotConvergedError: codes of the gate are not binary; names task, selector and distance.
        OutputError: ``out`` exists or cannot be written.
        BundleError: the scores of a frozen graph and the dense model differ, or the run is a single-task run, or the
            type of embeddings changes the scores of a task too much.
        ConfigError: the runs have other features, tasks or rows than each other.
        UsageError: a run is named twice.
        LogError: a run or its log cannot be used.
    """
    check_creatable(out)
    run, *rest = runs = [RunFolder.open(folder) for folder in (path, *others)]
    config = run.load_config()
    if isinstance(config.model.gate, SingleTaskConfig):
        folders = ", ".join(str(run.task_folder(task)) for task in config.task_names)
        raise BundleError(f"{path} contains an independent model for each task: freeze each of them ({folders})")
    require_distinct(runs)
    for other in rest:
        require_same_settings(config, other)
    require_same_inputs(run, rest)
    schema = config.serving_schema
    tables = load_tables(config.logs, schema)
    reader = LogReader(config.logs.path, schema, tables, until=config.logs.test_until)
    model, encoder = load_model(run, config)
    with joined_columns(reader, encoder.schema, run.features if schema.counter_features else None) as joined:
        reader = reader.with_joined(joined)
        held_out = _held_out(reader, config.logs)
        ranker = _frozen_run(run, model, encoder, tables, held_out)
        if rest:
            added = (_frozen_run(each, *load_model(each, each.load_config()), tables, held_out) for each in rest)
            ranker = replace(ranker, models=(*ranker.models, *(frozen for each in added for frozen in each.models)))
            if any(task.calibration != "none" for task in schema.tasks):
                batches = read_split(reader, config.logs, encoder, "validation")
                outputs = ((ranker.outputs(batch.inputs, schema.task_names), batch.labels) for batch in batches)
                ranker = replace(ranker, calibration=fit_calibration(schema.tasks, outputs, Calibration()))
    if embeddings != "float32":
        ranker = with_embeddings(ranker, embeddings, held_out)
    selection = run.load_selection() if not rest else _joint_record(ranker, runs)
    details = {
        "made_by": f"dselect-ranker {version('dselect-ranker')}",
        "flops": selection["flops"],
        "selection": selection,
        "trained_until": config.logs.validation_from.isoformat(),
        "validated_until": config.logs.test_from.isoformat(),
        "training": config.training.model_dump(mode="json"),
        "model": config.model.model_dump(mode="json"),
        "evaluation": config.evaluation.model_dump(mode="json"),
        "time_zone": getattr(held_out.schema.field(schema.columns.time).type, "tz", None),
        **ranker.details,
    }
    counter_features = CounterFeatures.open(run.counters, encoder.schema) if schema.counter_features else None
    ranker = replace(ranker, counter_features=counter_features, details=details)
    if rest:
        documents = _evaluated(ranker, run, config)
    else:
        files = (run.path / name for name in bundle.DOCUMENTS)
        documents = {file.name: file.read_bytes() for file in files if file.exists()}
    try:
        bundle.write_bundle(ranker, held_out.slice(0, GOLDEN_ROWS), out, documents)
    except InvalidInputError as error:  # encoding the side tables found an invalid value
        owner = next(feature.owner for feature in schema.inputs if feature.column == error.field)
        where = config.logs.users if owner == "user" else config.logs.items
        assert where is not None
        raise LogError(f"{redact_uri(where)}: column {error}") from None
    return ranker


def _frozen_run(
    run: RunFolder, model: MMoE, encoder: Encoder, tables: Mapping[Owner, FeatureTable], held_out: pa.Table
) -> FrozenRanker:
    """Freeze the model of a run and verify its scores on held-out rows."""
    config = run.load_config()
    per_example = model.gate.per_example
    routed = (config.model.gate, Selection.from_json(run.load_selection())) if per_example else None
    calibration = run.load_calibration()
    try:
        ranker = frozen(model, encoder, tables, config.objective, {}, routed, calibration)
    except NotConvergedError as error:
        raise NotConvergedError(f"{run.path}: {error}") from None
    difference = largest_difference(model, ranker, held_out, calibration)
    if not difference <= TOLERANCE:  # also true for NaN
        raise BundleError(
            f"{run.path}: frozen and dense scores differ by up to {difference:.2g} (allowed: {TOLERANCE:.0g}); "
            "the bundle is not written"
        )
    print_status(
        f"{run.path}: frozen and dense scores agree on {held_out.num_rows:,} held-out rows "
        f"(maximum difference {difference:.1e})"
    )
    return ranker


def _joint_record(ranker: FrozenRanker, runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return ``selection.json`` of the mean of runs, whose FLOPs are the sums of theirs."""
    records = [run.load_selection() for run in runs]
    flops = [record["flops"] for record in records]
    total = {key: sum(of_run[key] for of_run in flops) for key in ("dense", "frozen")}
    per_task = {task: sum(of_run["per_task"][task] for of_run in flops) for task in ranker.schema.task_names}
    kind = ", ".join(dict.fromkeys(record["kind"] for record in records))
    return joint_record(ranker.selection, kind, records, {**total, "per_task": per_task})


def _evaluated(ranker: FrozenRanker, run: RunFolder, config: Config) -> dict[str, bytes]:
    """Evaluate the mean of runs on the test split; returns the document, or nothing if the split is empty."""
    if not run.load_survey().get("rows", {}).get("test"):
        return {}
    features = run.features if ranker.schema.counter_features else None
    scorer = replace(bundle_scorer(ranker, "the mean of the runs"), logs=config.logs, features=features)
    return {bundle.EVALUATION: (json.dumps(evaluate(scorer), indent=2) + "\n").encode()}


def _held_out(reader: LogReader, logs: LogsConfig) -> pa.Table:
    """Return up to VERIFIED_ROWS rows of the validation split."""
    for chunk in reader.scan(split_range(logs, "validation")):
        if chunk.rows.num_rows:
            return chunk.rows.slice(0, VERIFIED_ROWS)
    raise LogError(
        f"{redact_uri(logs.path)}: the validation split has no rows to verify the frozen graph on; restore the log"
    )


@torch.inference_mode()
def largest_difference(
    model: MMoE, ranker: FrozenRanker, rows: pa.Table, calibration: Calibration | None = None
) -> float:
    """Return the maximum difference between dense and frozen scores, over all tasks together and each task alone.

    The dense model runs in float64 above the embeddings, like the frozen graph: in float32, rounding can route an
    example at the boundary between two experts to the other expert.

    Args:
        model: dense model.
        ranker: frozen ranker of the model.
        rows: completed rows.
        calibration: calibration of the outputs of the dense model; default: none.
    """
    tasks = ranker.schema.tasks
    inputs = TorchBatch.from_numpy(ranker.encoder.encode(rows))
    dense_model = copy.deepcopy(model, {id(model.embeddings): nn.Identity()}).double()  # without copying the tables
    dense_model.embeddings = model.embeddings
    outputs = dense_model(replace(inputs, dense=inputs.dense.double()))
    dense = to_probabilities((calibration or Calibration())(outputs.numpy(), ranker.schema.task_names), tasks)
    together, _ = ranker.score_completed(rows, tasks)
    alone = np.concatenate([ranker.score_completed(rows, [task])[0] for task in tasks], 1)
    return float(np.max([np.abs(dense - scores).max() for scores in (together, alone)]))  # np.max propagates NaN
