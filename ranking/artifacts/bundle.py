"""The artefact on disk: write it whole, verify every byte, load it. Data only; nothing in it can execute.

manifest.json         schema, selection, calibration, objective, costs, how it was trained
weights.safetensors   the frozen graph's weights, by the names of ``frozen.FrozenGraph``
body.onnx             the graph behind the embeddings, for ONNX Runtime; a per-example gate has none
encoder/              vocabularies and scales (Parquet)
users.parquet, items.parquet   features by id, where the ranker has any to look up
users/, items/        the same already encoded, to be mapped (``encoded_table``); new in format 2
golden.parquet        inputs and the scores that they must give
SHA256SUMS            of every other file, as sha256sum writes it
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ranking.artifacts.atomic_files import atomic_directory
from ranking.artifacts.checksums import verify_files, write_sums
from ranking.artifacts.feature_tables import LazyFeatureTables
from ranking.encoding.encoder import Encoder
from ranking.errors import BundleError, RankerError
from ranking.frozen.calibration import Calibration
from ranking.frozen.ranker import FrozenRanker, score_table
from ranking.frozen.weights import validate_weight_shapes
from ranking.lookup import feature_index
from ranking.lookup.feature_index import FeatureIndex
from ranking.schema import Schema
from ranking.schema.validation_errors import format_validation_error
from ranking.selection import Selection

if TYPE_CHECKING:
    from ranking.gates.config import GateConfig

FORMAT = 2
BODY = "body.onnx"
TOLERANCE = 1e-5
"""Largest difference, absolute and relative, between golden scores and those of another machine."""

MISFITS = (
    *(LookupError, AttributeError, RuntimeError, ValueError, TypeError, OSError),
    *(pa.ArrowException, SafetensorError, RankerError),
)
"""What reading files raises that are whole, but do not fit together."""


def write(ranker: FrozenRanker, golden: pa.Table, folder: Path) -> None:
    """Writes the bundle; the folder appears whole or not at all.

    Args:
        ranker: what to write.
        golden: completed rows whose scores are kept, so that whoever loads the bundle can check theirs.
        folder: where; must not exist.

    Raises:
        OutputError: the folder exists or cannot be written.
    """
    schema = ranker.schema
    manifest = {
        "format": FORMAT,
        "name": schema.name,
        "schema": schema.model_dump(mode="json", exclude_none=True),
        "selection": ranker.selection.to_json(),
        "gate": None if ranker.gate is None else ranker.gate.model_dump(mode="json"),
        "calibration": ranker.calibration.to_json(),
        "backends": ranker.backends,
        "objective": dict(ranker.objective),
        "details": dict(ranker.details),
    }
    with atomic_directory(folder) as draft:
        (draft / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        as_they_lie = {name: np.asarray(weight, order="C") for name, weight in ranker.weights.items()}
        save_file(as_they_lie, draft / "weights.safetensors")  # writes memory, whatever the strides
        if ranker.body is not None:
            (draft / BODY).write_bytes(ranker.body)
        ranker.encoder.write(draft / "encoder")
        for owner, table in ranker.tables.items():
            pq.write_table(table.table, draft / f"{owner}s.parquet")
            if owner in schema.owners:
                feature_index.write_feature_index(table, ranker.encoder, owner, draft / f"{owner}s")
        columns = list(dict.fromkeys(feature.column for feature in schema.inputs))
        inputs = golden.select(columns)
        scores, _ = ranker.score_completed(inputs, schema.tasks)
        rows = {"inputs": _struct(inputs), "scores": _struct(score_table(scores, schema.tasks))}
        pq.write_table(pa.table(rows), draft / "golden.parquet")
        write_sums(draft)


def load(folder: str | Path) -> FrozenRanker:
    """Verifies a bundle and loads it.

    Raises:
        BundleError: a file is missing, altered or not listed, the format is unknown, or a golden row scores otherwise.
    """
    folder = Path(folder)
    ranker = read(folder)
    inputs, expected = golden(folder, ranker.schema)
    with as_bundle_error(folder):
        scores, _ = ranker.score_completed(inputs, ranker.schema.tasks)
    require_golden(scores, expected, f"{folder}: golden rows score differently here")
    return ranker


def read(folder: str | Path) -> FrozenRanker:
    """Verifies a bundle's files and loads it, for whoever scores the golden rows another way than ``load`` does.

    Raises:
        BundleError: a file is missing, altered or not listed, the format is unknown, or files do not fit together.
    """
    folder = Path(folder)
    verify_files(folder)
    with as_bundle_error(folder):
        return _read(folder)


@contextmanager
def as_bundle_error(folder: Path) -> Iterator[None]:
    """What reading this bundle's files raises, if they do not fit together, as a BundleError that says so."""
    try:
        yield
    except BundleError:
        raise
    except MISFITS as error:
        raise BundleError(f"{folder} does not hold together: {error}; freeze the run again") from error


def require_golden(
    scores: npt.NDArray[np.float32], expected: pa.Table, otherwise: str, tolerance: float = TOLERANCE, mend: str = ""
) -> None:
    """Compares scores of the golden rows [rows, tasks] with those that they must give.

    Args:
        scores: found.
        expected: a column a task, in the same order.
        otherwise: begins the message.
        tolerance: largest difference, absolute and relative.
        mend: ends the message.

    Raises:
        BundleError: a score differs by more; names the task.
    """
    for task, column in zip(expected.column_names, scores.T, strict=True):
        golden_scores = expected[task].to_numpy()
        if not np.allclose(column, golden_scores, rtol=tolerance, atol=tolerance):
            worst = float(np.abs(column - golden_scores).max())
            raise BundleError(f"{otherwise} (task '{task}', by up to {worst:.2g}){mend}")


def golden(folder: Path, schema: Schema) -> tuple[pa.Table, pa.Table]:
    """Completed rows, and the scores of each task that they must give.

    Raises:
        BundleError: they cannot be read, or are not those of the schema's tasks.
    """
    with as_bundle_error(folder):
        rows = pq.read_table(folder / "golden.parquet")
        inputs, scores = _table(rows["inputs"]), _table(rows["scores"])
    if scores.column_names != schema.task_names:
        raise BundleError(f"{folder}/golden.parquet holds scores of other tasks: freeze the run again")
    return inputs, scores


def _read(folder: Path) -> FrozenRanker:
    file = folder / "manifest.json"
    manifest: dict[str, Any] = json.loads(file.read_text())
    if manifest["format"] != FORMAT:
        raise BundleError(
            f"{file}: format {manifest['format']} is not known here (known: {FORMAT}); update dselect-ranker, "
            "or freeze the run again with the one at hand"
        )
    try:
        schema = Schema.model_validate(manifest["schema"])
    except ValidationError as error:
        raise BundleError(f"{file}: {format_validation_error(error, manifest['schema'])}") from None
    calibration = _calibration(manifest.get("calibration", {}), schema, file)
    encoder = Encoder.read(folder / "encoder", schema)
    tables = LazyFeatureTables(folder, schema)
    encoded = {
        owner: FeatureIndex.open(folder / f"{owner}s", encoder, owner) for owner in tables if owner in schema.owners
    }
    selection = Selection.from_json(manifest["selection"])
    if selection.tasks.keys() != set(schema.task_names):
        raise ValueError("the selection is not that of the schema's tasks")
    weights = load_file(folder / "weights.safetensors")
    validate_weight_shapes(weights, encoder, selection)
    return FrozenRanker(
        schema,
        encoder,
        selection,
        weights,
        tables,
        manifest["objective"],
        manifest["details"],
        _gate(manifest.get("gate"), folder),
        calibration,
        (folder / BODY).read_bytes() if (folder / BODY).exists() else None,
        encoded,
    )


def _gate(settings: Any, folder: Path) -> GateConfig | None:
    """A per-example gate's settings; they lie beside the gates, which need PyTorch, as does whoever runs one."""
    if settings is None:
        return None
    try:
        from ranking.gates.config import GateConfig
    except ImportError:
        raise BundleError(
            f"{folder} has a per-example gate, which needs PyTorch: install it, or load another bundle"
        ) from None
    gate: GateConfig = TypeAdapter(GateConfig).validate_python(settings)
    return gate


def _calibration(data: Any, schema: Schema, file: Path) -> Calibration:
    try:
        calibration = Calibration.from_json(data)
    except ValidationError as error:
        raise BundleError(f"{file}: calibration: {format_validation_error(error, data)}") from None
    binary = [task.name for task in schema.tasks if task.kind == "binary"]
    for task in calibration.tasks:
        if task not in binary:
            raise BundleError(f"{file}: calibration: '{task}' is no binary task: {', '.join(binary)}")
    return calibration


def _struct(table: pa.Table) -> pa.Array:
    columns = table.combine_chunks()
    return pa.StructArray.from_arrays([c.combine_chunks() for c in columns.columns], names=columns.column_names)


def _table(column: pa.ChunkedArray) -> pa.Table:
    return pa.Table.from_struct_array(column.combine_chunks())
