"""From a run to a bundle, checked on held-out rows before it is written."""

from __future__ import annotations

import copy
from dataclasses import replace
from importlib.metadata import version as installed
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from pipelines.config.config import LogsConfig
from pipelines.config.uri import redact_uri
from pipelines.console import print_status
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import split_range
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import load_model
from ranking.artifacts import bundle
from ranking.artifacts.atomic_files import check_creatable
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import BundleError, InvalidInputError, LogError
from ranking.frozen.calibration import Calibration, to_probabilities
from ranking.frozen.freeze import freeze as frozen
from ranking.frozen.onnx_export import onnx_body
from ranking.frozen.ranker import FrozenRanker
from ranking.gates.config import SingleTaskConfig
from ranking.model.mmoe import MMoE
from ranking.selection import Selection

GOLDEN_ROWS = 32
VERIFIED_ROWS = 4096
TOLERANCE = 1e-5
"""Largest difference between a frozen score and the dense model's."""


def freeze_run(path: Path, out: Path) -> FrozenRanker:
    """Writes the bundle of a run, after checking on held-out rows that it scores as the dense model does.

    Raises:
        NotConvergedError: a gate's codes are not binary; names task, selector and distance.
        OutputError: ``out`` exists or cannot be written.
        BundleError: the frozen graph scores otherwise than the dense model.
        LogError: the run or its log cannot be used.
    """
    check_creatable(out)
    run = RunFolder.open(path)
    config = run.load_config()
    if isinstance(config.model.gate, SingleTaskConfig):
        parts = ", ".join(str(run.task_folder(task)) for task in config.task_names)
        raise BundleError(f"{path} holds a model for each task, which share nothing: freeze them one by one ({parts})")
    schema = config.serving_schema
    model, encoder = load_model(run, config)
    tables = load_tables(config.logs, schema)
    trained = run.load_selection()
    routed = (config.model.gate, Selection.from_json(trained)) if model.gate.per_example else None
    details = {
        "made_by": f"dselect-ranker {installed('dselect-ranker')}",
        "flops": trained["flops"],
        "selection": trained,
        "trained_until": config.logs.validation_from.isoformat(),
        "training": config.training.model_dump(mode="json"),
        "model": config.model.model_dump(mode="json"),
        "evaluation": config.evaluation.model_dump(mode="json"),
    }
    calibration = run.load_calibration()
    ranker = frozen(model, encoder, tables, config.objective, details, routed, calibration)
    held_out = _held_out(LogReader(config.logs.path, schema, tables), config.logs)
    difference = largest_difference(model, ranker, held_out, calibration)
    if not difference <= TOLERANCE:  # NaN is not
        raise BundleError(
            f"frozen and dense scores differ by up to {difference:.2g} (allowed {TOLERANCE:.0g}): not written"
        )
    print_status(f"frozen = dense on {held_out.num_rows:,} held-out rows (largest difference {difference:.1e})")
    ranker = replace(ranker, body=onnx_body(ranker.graph, encoder))
    try:
        bundle.write_bundle(ranker, held_out.slice(0, GOLDEN_ROWS), out)
    except InvalidInputError as error:  # what a table holds is encoded now, row by row
        owner = next(feature.owner for feature in schema.inputs if feature.column == error.field)
        place = {"user": config.logs.users, "item": config.logs.items}[owner]
        raise LogError(f"{redact_uri(place)}: column {error}") from None
    return ranker


def _held_out(reader: LogReader, logs: LogsConfig) -> pa.Table:
    """Up to VERIFIED_ROWS rows of the validation split."""
    for cleaned in reader.scan(split_range(logs, "validation")):
        if cleaned.rows.num_rows:
            return cleaned.rows.slice(0, VERIFIED_ROWS)
    raise LogError(
        f"{redact_uri(logs.path)}: the validation split has no rows left to verify the frozen graph on; restore the log"
    )


@torch.inference_mode()
def largest_difference(
    model: MMoE, ranker: FrozenRanker, rows: pa.Table, calibration: Calibration | None = None
) -> float:
    """Largest difference between dense and frozen scores of completed rows, over all tasks and each task alone.

    The dense model runs in float64 as the frozen graph does: in float32 an example on the border between two experts
    may fall on the other side.

    Args:
        model: the dense model.
        ranker: what it was frozen to.
        rows: completed rows.
        calibration: of the dense model's outputs; none by default.
    """
    tasks = ranker.schema.tasks
    inputs = TorchBatch.from_numpy(ranker.encoder.encode(rows))
    outputs = copy.deepcopy(model).double()(replace(inputs, dense=inputs.dense.double()))
    dense = to_probabilities((calibration or Calibration())(outputs.numpy(), ranker.schema.task_names), tasks)
    together, _ = ranker.score_completed(rows, tasks)
    alone = np.concatenate([ranker.score_completed(rows, [task])[0] for task in tasks], 1)
    return float(np.max([np.abs(dense - frozen).max() for frozen in (together, alone)]))  # keeps a NaN
