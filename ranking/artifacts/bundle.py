"""Write, verify and load bundles. A bundle holds only data: nothing in it can execute.

manifest.json         schema, selection, calibration, objective, costs, training details
weights.safetensors   weights of the frozen graph, named as in ``FrozenGraph``
                      (if several models are averaged: ``0/NAME``, ``1/NAME``, …)
body.onnx             the graph after the embeddings, for other runtimes; absent for a per-example gate
encoder/              vocabularies, buckets and scales (Parquet); arrays for the lookup in large vocabularies
users.parquet, items.parquet   features by id, if the ranker has feature tables
users/, items/        the same features encoded (``FeatureIndex``); text ids as hashes since format 3
counters/             state of counters and histories, if the ranker has some, see ``ranking.counters``
golden.parquet        inputs and their expected scores
evaluation.json, report.html   evaluation and report of the run, for people, if it had them
SHA256SUMS            checksums of all other files, in the format of sha256sum
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ranking.artifacts.atomic_files import atomic_directory
from ranking.artifacts.checksums import CHECKSUM_FILE, file_signature, verify_files, write_checksums
from ranking.counters.features import CounterFeatures
from ranking.encoding.encoder import Encoder
from ranking.encoding.feature_table import LazyFeatureTables
from ranking.errors import BundleError, RankerError
from ranking.frozen.calibration import Calibration
from ranking.frozen.ranker import FrozenRanker, score_table
from ranking.frozen.weights import FrozenModel, Weights, prefixes, validate_weight_shapes
from ranking.ids.npy import ReadFile, map_file
from ranking.lookup.feature_index import FeatureIndex, write_feature_index
from ranking.regular_files import read_parquet, read_regular
from ranking.schema import Objective, Schema
from ranking.schema.validation_errors import format_validation_error
from ranking.selection import Selection
from ranking.settings.gate import GateConfig

FORMAT, COMPACT_FORMAT, READING_FORMAT, MEAN_FORMAT = 3, 4, 5, 6
"""Formats that are written: 6 for the mean of several models, else 5 if the reading is not ``sum``, else 4 if
embeddings are float16 or int8.

Services of earlier formats cannot read them.
"""
SUPPORTED_FORMATS = (2, FORMAT, COMPACT_FORMAT, READING_FORMAT, MEAN_FORMAT)
"""Formats that can be read. Format 2 has the text of ids in place of hashes."""
MANIFEST, BODY, COUNTERS = "manifest.json", "body.onnx", "counters"
DOCUMENTS = EVALUATION, REPORT = "evaluation.json", "report.html"
"""Documents of the run that a bundle may contain. Scoring does not read them."""
TOLERANCE = 1e-5
"""Maximum absolute and relative difference between golden scores and the scores of another machine."""

READ_ERRORS = (
    *(LookupError, AttributeError, RuntimeError, ValueError, TypeError, OSError),
    *(pa.ArrowException, SafetensorError, RankerError),
)
"""Exceptions of reading intact files that are inconsistent with each other."""


def write_bundle(
    ranker: FrozenRanker, golden: pa.Table, folder: Path, documents: Mapping[str, bytes] | None = None
) -> None:
    """Write a bundle atomically.

    Args:
        ranker: the ranker.
        golden: completed rows that are stored with their scores, which ``load`` verifies.
        folder: must not exist.
        documents: contents of files by name, a part of ``DOCUMENTS``.

    Raises:
        OutputError: the folder exists or cannot be written.
    """
    from ranking.frozen.onnx_export import onnx_body  # Only writing needs the onnx package.

    schema = ranker.schema
    manifest = {
        "format": _format(ranker),
        "name": schema.name,
        "schema": schema.model_dump(mode="json", exclude_none=True),
        "selection": ranker.selection.to_json(),
        **_models(ranker.models),
        "calibration": ranker.calibration.to_json(),
        "backends": ranker.backends,
        "objective": dict(ranker.objective),
        "details": dict(ranker.details),
    }
    with atomic_directory(folder) as draft:
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        weights = {
            f"{prefix}{name}": np.asarray(weight, order="C")  # save_file writes the memory and ignores strides
            for prefix, model in zip(prefixes(len(ranker.models)), ranker.models, strict=True)
            for name, weight in model.weights.items()
        }
        save_file(weights, draft / "weights.safetensors")
        if not ranker.per_example:
            (draft / BODY).write_bytes(onnx_body(ranker, schema.task_names))
        ranker.encoder.write(draft / "encoder")
        for owner, table in ranker.tables.items():
            pq.write_table(table.table, draft / f"{owner}s.parquet")
            if owner in schema.owners:
                write_feature_index(table, ranker.encoder, owner, draft / f"{owner}s")
        if ranker.counter_features is not None and ranker.counter_features.folder is not None:
            shutil.copytree(ranker.counter_features.folder, draft / COUNTERS)
        columns = list(dict.fromkeys(feature.column for feature in schema.inputs))
        inputs = golden.select(columns)
        scores, _ = ranker.score_completed(inputs, schema.tasks)
        rows = {"inputs": _struct(inputs), "scores": _struct(score_table(scores, schema.tasks))}
        pq.write_table(pa.table(rows), draft / "golden.parquet")
        for name, content in (documents or {}).items():
            (draft / name).write_bytes(content)
        write_checksums(draft)


def _models(models: Sequence[FrozenModel]) -> dict[str, Any]:
    """Return the entry ``gate`` of a manifest with one model, else the entry ``models``."""
    gates = [None if model.gate is None else model.gate.model_dump(mode="json") for model in models]
    if len(models) == 1:
        return {"gate": gates[0]}
    entries = zip(models, gates, strict=True)
    return {"models": [{"selection": model.selection.to_json(), "gate": gate} for model, gate in entries]}


def _format(ranker: FrozenRanker) -> int:
    if len(ranker.models) > 1:
        return MEAN_FORMAT
    if ranker.selection.reading != "sum":
        return READING_FORMAT
    return FORMAT if ranker.embeddings == "float32" else COMPACT_FORMAT


def replace_state(source: Path, state: Path, folder: Path) -> None:
    """Copy a bundle with another state of its counters and histories, atomically.

    Args:
        source: the bundle.
        state: folder of the state, see ``ranking.counters``.
        folder: the copy; must not exist.

    Raises:
        BundleError: a file of the bundle is missing or altered.
        OutputError: the folder exists or cannot be written.
    """
    verify_files(source)
    with atomic_directory(folder) as draft:
        shutil.copytree(source, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(COUNTERS, CHECKSUM_FILE))
        shutil.copytree(state, draft / COUNTERS)
        write_checksums(draft)


def load(folder: str | Path) -> FrozenRanker:
    """Verify the files and golden scores of a bundle and load it.

    The ranker can be pickled. A process that receives it loads the bundle from the same path, once for all rankers that
    it receives.

    Raises:
        BundleError: a file is missing, altered or not listed, the format is unknown, or a golden score differs.
    """
    folder = Path(folder)
    ranker = read_bundle(folder)
    inputs, expected = read_golden(folder, ranker.schema)
    with as_bundle_error(folder):
        scores, _ = ranker.score_completed(inputs, ranker.schema.tasks)
    check_golden_scores(scores, expected, f"{folder}: golden rows score differently on this machine")
    object.__setattr__(ranker, "reload", (_load_once, str(folder.absolute())))  # Copies with changes do not have it.
    return ranker


@lru_cache(maxsize=4)
def _load_once(folder: str) -> FrozenRanker:
    return load(folder)


def read_bundle(folder: str | Path, read_file: ReadFile = map_file) -> FrozenRanker:
    """Verify the files of a bundle and load it without verifying the golden scores.

    Args:
        folder: the bundle.
        read_file: returns the content of a file with arrays for lookups; the ranker keeps it.

    Raises:
        BundleError: a file is missing, altered or not listed, the format is unknown, files are inconsistent, or a file
            changes in the meantime.
    """
    folder = Path(folder)
    signature = file_signature(folder)
    verify_files(folder)
    with as_bundle_error(folder):
        ranker = _read(folder, read_file)
    if file_signature(folder) != signature:
        raise BundleError(f"{folder} was changed while it was read: copy the bundle again")
    return ranker


@contextmanager
def as_bundle_error(folder: Path) -> Iterator[None]:
    """Convert exceptions of reading inconsistent files of this bundle to BundleError."""
    try:
        yield
    except BundleError:
        raise
    except READ_ERRORS as error:
        raise BundleError(f"{folder} contains inconsistent files: {error}; freeze the run again") from error


def check_golden_scores(scores: npt.NDArray[np.float32], expected: pa.Table, message: str, fix: str = "") -> None:
    """Compare scores of the golden rows with the expected scores.

    Args:
        scores: computed scores [rows, tasks].
        expected: expected scores, one column per task in the same order.
        message: start of the error message.
        fix: end of the error message.

    Raises:
        BundleError: a score differs by more than ``TOLERANCE``; names the task.
    """
    for task, column in zip(expected.column_names, scores.T, strict=True):
        golden_scores = expected[task].to_numpy()
        if not np.allclose(column, golden_scores, rtol=TOLERANCE, atol=TOLERANCE):
            worst = float(np.abs(column - golden_scores).max())
            raise BundleError(f"{message} (task '{task}', by up to {worst:.2g}){fix}")


def read_schema(folder: Path) -> Schema:
    """Return the schema of a bundle, whose files are not verified.

    Raises:
        BundleError: it cannot be read.
    """
    file = folder / MANIFEST
    with as_bundle_error(folder):
        return parse_schema(json.loads(read_regular(file))["schema"], file)


def parse_schema(data: Any, file: Path) -> Schema:
    """Return the schema in a manifest.

    Raises:
        BundleError: it is not valid.
    """
    try:
        return Schema.model_validate(data)
    except ValidationError as error:
        raise BundleError(f"{file}: {format_validation_error(error, data)}") from None


def read_golden(folder: Path, schema: Schema) -> tuple[pa.Table, pa.Table]:
    """Read the golden rows, completed, and their expected scores, one column per task.

    Raises:
        BundleError: they cannot be read, or their tasks are not those of the schema.
    """
    with as_bundle_error(folder):
        rows = read_parquet(folder / "golden.parquet")
        inputs, scores = _table(rows["inputs"]), _table(rows["scores"])
    if scores.column_names != schema.task_names:
        raise BundleError(f"{folder}/golden.parquet holds the scores of other tasks: freeze the run again")
    return inputs, scores


def _read(folder: Path, read_file: ReadFile) -> FrozenRanker:
    file = folder / MANIFEST
    manifest: dict[str, Any] = json.loads(read_regular(file))
    if manifest["format"] not in SUPPORTED_FORMATS:
        supported = ", ".join(map(str, SUPPORTED_FORMATS))
        raise BundleError(
            f"{file}: format {manifest['format']} is not supported (supported: {supported}); update dselect-ranker, "
            "or freeze the run again with the installed version"
        )
    schema = parse_schema(manifest["schema"], file)
    calibration = _calibration(manifest.get("calibration", {}), schema, file)
    encoder = Encoder.read(folder / "encoder", schema, read_file)
    tables = LazyFeatureTables(folder, schema)
    encoded = {
        owner: FeatureIndex.open(folder / f"{owner}s", encoder, owner, read_file)
        for owner in tables
        if owner in schema.owners
    }
    # A memory map, the default, would end the process if the file were truncated in the meantime.
    weights = load_file(folder / "weights.safetensors", backend="pread")
    entries = manifest["models"] if manifest["format"] == MEAN_FORMAT else [manifest]
    models = tuple(
        _read_model(
            entry, {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}, encoder, folder
        )
        for entry, prefix in zip(entries, prefixes(len(entries)), strict=True)
    )
    return FrozenRanker(
        encoder.schema,
        encoder,
        models,
        tables,
        _objective(manifest["objective"], schema, file),
        manifest["details"],
        calibration,
        encoded,
        CounterFeatures.open(folder / COUNTERS, schema, read_file) if schema.counter_features else None,
    )


def _read_model(entry: Any, weights: Weights, encoder: Encoder, folder: Path) -> FrozenModel:
    """Return a model of a manifest, whose weights are checked."""
    selection = Selection.from_json(entry["selection"])
    if selection.tasks.keys() != set(encoder.schema.task_names):
        raise ValueError("the tasks of the selection are not those of the schema")
    validate_weight_shapes(weights, encoder, selection)
    return FrozenModel(selection, weights, _gate(entry.get("gate"), folder))


def _gate(settings: Any, folder: Path) -> GateConfig | None:
    """Return the settings of a per-example gate, which needs PyTorch."""
    if settings is None:
        return None
    try:
        import torch  # noqa: F401 — whether it can be imported
    except ImportError:
        raise BundleError(
            f"{folder} has a per-example gate, which needs PyTorch: install it, or load another bundle"
        ) from None
    gate: GateConfig = TypeAdapter(GateConfig).validate_python(settings)
    return gate


def _objective(data: Any, schema: Schema, file: Path) -> dict[str, float]:
    try:
        objective = TypeAdapter(Objective).validate_python(data)
    except ValidationError as error:
        raise BundleError(f"{file}: objective: {format_validation_error(error, data)}") from None
    for task in objective:
        if task not in schema.task_names:
            raise BundleError(f"{file}: objective: '{task}' is not a task (tasks: {', '.join(schema.task_names)})")
    return objective


def _calibration(data: Any, schema: Schema, file: Path) -> Calibration:
    try:
        calibration = Calibration.from_json(data)
    except ValidationError as error:
        raise BundleError(f"{file}: calibration: {format_validation_error(error, data)}") from None
    binary = [task.name for task in schema.tasks if task.kind == "binary"]
    for task in calibration.tasks:
        if task not in binary:
            raise BundleError(f"{file}: calibration: '{task}' is not a binary task (binary tasks: {', '.join(binary)})")
    return calibration


def _struct(table: pa.Table) -> pa.Array:
    columns = table.combine_chunks()
    return pa.StructArray.from_arrays([c.combine_chunks() for c in columns.columns], names=columns.column_names)


def _table(column: pa.ChunkedArray) -> pa.Table:
    return pa.Table.from_struct_array(column.combine_chunks())
