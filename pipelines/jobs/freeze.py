"""``ranker freeze``: writes the bundle of a run after verifying it on held-out rows."""

from __future__ import annotations

import copy
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from pipelines.config.config import LogsConfig
from pipelines.config.uri import redact_uri
from pipelines.console import print_status
from pipelines.counters.columns import joined_columns
from pipelines.data.log_schema import masked_labels
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import split_range
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import load_model
from ranking.artifacts import bundle
from ranking.artifacts.atomic_files import check_creatable
from ranking.counters.features import DerivedFeatures
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import BundleError, InvalidInputError, LogError
from ranking.frozen.calibration import Calibration, to_probabilities
from ranking.frozen.embedding_rows import RowType, encoded
from ranking.frozen.freeze import freeze as frozen
from ranking.frozen.ranker import FrozenRanker
from ranking.gates.config import SingleTaskConfig
from ranking.metrics.binary import auc
from ranking.model.mmoe import MMoE
from ranking.schema import Task
from ranking.selection import Selection

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
    compact = replace(ranker, weights=encoded(ranker.weights, embeddings))
    before, after = (one.score_completed(rows, tasks)[0].astype(np.float64) for one in (ranker, compact))
    changes: dict[str, dict[str, float]] = {}
    for task, old, new in zip(tasks, before.T, after.T, strict=True):
        spread = float(old.std())
        change = float(np.abs(new - old).max()) / spread if spread else 0.0
        if not change <= MAX_SCORE_CHANGE:  # also true for NaN
            raise BundleError(
                f"embeddings in {embeddings} change scores of '{task.name}' by up to {change:.1%} of their standard "
                f"deviation (allowed: {MAX_SCORE_CHANGE:.0%}): freeze with --embeddings float32, or float16"
            )
        changes[task.name] = {"scores": change}
        auc_change = _auc_change(rows, task, old, new)
        if auc_change is None:
            continue
        if abs(auc_change) > MAX_AUC_CHANGE:
            raise BundleError(
                f"embeddings in {embeddings} change the AUC of '{task.name}' by {auc_change:+.4f} "
                f"(allowed: {MAX_AUC_CHANGE:g}): freeze with --embeddings float32, or float16"
            )
        changes[task.name]["auc"] = auc_change
    worst = max(changes, key=lambda name: changes[name]["scores"])
    print_status(
        f"embeddings in {embeddings} change scores by up to {changes[worst]['scores']:.2%} of their standard deviation "
        f"('{worst}')"
    )
    return replace(compact, details={**ranker.details, "embeddings": {"type": embeddings, "changes": changes}})


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


def freeze_run(path: Path, out: Path, embeddings: RowType = "float32") -> FrozenRanker:
    """Write the bundle of a run, after verifying on held-out rows that its scores equal those of the dense model.

    Args:
        path: folder of a finished run.
        out: new folder for the bundle.
        embeddings: type of the rows of embedding tables. Scores on the held-out rows may differ from those with float32
            by at most ``MAX_SCORE_CHANGE`` and ``MAX_AUC_CHANGE``.

    Raises:
        NotConvergedError: codes of the gate are not binary; names task, selector and distance.
        OutputError: ``out`` exists or cannot be written.
        BundleError: the scores of the frozen graph and the dense model differ, or the run is a single-task run, or the
            type of embeddings changes the scores of a task too much.
        LogError: the run or its log cannot be used.
    """
    check_creatable(out)
    run = RunFolder.open(path)
    config = run.load_config()
    if isinstance(config.model.gate, SingleTaskConfig):
        folders = ", ".join(str(run.task_folder(task)) for task in config.task_names)
        raise BundleError(f"{path} contains an independent model for each task: freeze each of them ({folders})")
    schema = config.serving_schema
    model, encoder = load_model(run, config)
    tables = load_tables(config.logs, schema)
    selection = run.load_selection()
    routed = (config.model.gate, Selection.from_json(selection)) if model.gate.per_example else None
    details = {
        "made_by": f"dselect-ranker {version('dselect-ranker')}",
        "flops": selection["flops"],
        "selection": selection,
        "trained_until": config.logs.validation_from.isoformat(),
        "validated_until": config.logs.test_from.isoformat(),
        "training": config.training.model_dump(mode="json"),
        "model": config.model.model_dump(mode="json"),
        "evaluation": config.evaluation.model_dump(mode="json"),
    }
    reader = LogReader(config.logs.path, schema, tables, until=config.logs.test_until)
    with joined_columns(reader, encoder.schema, run.features if schema.derived else None) as joined:
        held_out = _held_out(reader.with_joined(joined), config.logs)
    details["time_zone"] = getattr(held_out.schema.field(schema.columns.time).type, "tz", None)
    calibration = run.load_calibration()
    ranker = frozen(model, encoder, tables, config.objective, details, routed, calibration)
    difference = largest_difference(model, ranker, held_out, calibration)
    if not difference <= TOLERANCE:  # also true for NaN
        raise BundleError(
            f"frozen and dense scores differ by up to {difference:.2g} (allowed: {TOLERANCE:.0g}); "
            "the bundle is not written"
        )
    print_status(
        f"frozen and dense scores agree on {held_out.num_rows:,} held-out rows (maximum difference {difference:.1e})"
    )
    if embeddings != "float32":
        ranker = with_embeddings(ranker, embeddings, held_out)
    derived = DerivedFeatures.open(run.counters, encoder.schema) if schema.derived else None
    ranker = replace(ranker, derived=derived)
    try:
        documents = [run.path / name for name in bundle.DOCUMENTS if (run.path / name).exists()]
        bundle.write_bundle(ranker, held_out.slice(0, GOLDEN_ROWS), out, documents)
    except InvalidInputError as error:  # encoding the side tables found an invalid value
        owner = next(feature.owner for feature in schema.inputs if feature.column == error.field)
        where = config.logs.users if owner == "user" else config.logs.items
        assert where is not None
        raise LogError(f"{redact_uri(where)}: column {error}") from None
    return ranker


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

    The dense model runs in float64, like the frozen graph: in float32, rounding can route an example at the boundary
    between two experts to the other expert.

    Args:
        model: dense model.
        ranker: frozen ranker of the model.
        rows: completed rows.
        calibration: calibration of the outputs of the dense model; default: none.
    """
    tasks = ranker.schema.tasks
    inputs = TorchBatch.from_numpy(ranker.encoder.encode(rows))
    outputs = copy.deepcopy(model).double()(replace(inputs, dense=inputs.dense.double()))
    dense = to_probabilities((calibration or Calibration())(outputs.numpy(), ranker.schema.task_names), tasks)
    together, _ = ranker.score_completed(rows, tasks)
    alone = np.concatenate([ranker.score_completed(rows, [task])[0] for task in tasks], 1)
    return float(np.max([np.abs(dense - scores).max() for scores in (together, alone)]))  # np.max propagates NaN
