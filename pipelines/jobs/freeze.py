"""``ranker freeze``: writes the bundle of a run after verifying it on held-out rows."""

from __future__ import annotations

import copy
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from pipelines.config.config import LogsConfig
from pipelines.config.uri import redact_uri
from pipelines.console import print_status
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import split_range
from pipelines.features.joined import joined_columns
from pipelines.runs.run import RunFolder
from pipelines.training.model_factory import load_model
from ranking.artifacts import bundle
from ranking.artifacts.atomic_files import check_creatable
from ranking.counters.features import DerivedFeatures
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
"""Number of rows with their scores that the bundle contains for verification."""
VERIFIED_ROWS = 4096
"""Maximum number of held-out rows on which frozen and dense scores are compared."""
TOLERANCE = 1e-5
"""Maximum difference between a frozen score and the score of the dense model."""


def freeze_run(path: Path, out: Path) -> FrozenRanker:
    """Write the bundle of a run, after verifying on held-out rows that its scores equal those of the dense model.

    Args:
        path: folder of a finished run.
        out: new folder for the bundle.

    Raises:
        NotConvergedError: codes of the gate are not binary; names task, selector and distance.
        OutputError: ``out`` exists or cannot be written.
        BundleError: the scores of the frozen graph and the dense model differ, or the run is a single-task run.
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
        "training": config.training.model_dump(mode="json"),
        "model": config.model.model_dump(mode="json"),
        "evaluation": config.evaluation.model_dump(mode="json"),
    }
    calibration = run.load_calibration()
    ranker = frozen(model, encoder, tables, config.objective, details, routed, calibration)
    reader = LogReader(config.logs.path, schema, tables)
    with joined_columns(reader, encoder.schema, run.features if schema.derived else None) as joined:
        held_out = _held_out(reader.with_joined(joined), config.logs)
    difference = largest_difference(model, ranker, held_out, calibration)
    if not difference <= TOLERANCE:  # also true for NaN
        raise BundleError(
            f"frozen and dense scores differ by up to {difference:.2g} (allowed: {TOLERANCE:.0g}); "
            "the bundle is not written"
        )
    print_status(
        f"frozen and dense scores agree on {held_out.num_rows:,} held-out rows (maximum difference {difference:.1e})"
    )
    derived = DerivedFeatures.open(run.counters, encoder.schema) if schema.derived else None
    ranker = replace(ranker, body=onnx_body(ranker.graph, encoder), derived=derived)
    try:
        bundle.write_bundle(ranker, held_out.slice(0, GOLDEN_ROWS), out)
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
