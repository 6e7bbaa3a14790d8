"""Prepare the training rows of a log as arrays for the other libraries.

The other libraries start from rows that are already read, cleaned, joined with feature tables and encoded. Their
clocks measure training only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.config.config import Config, load_config
from pipelines.counters.columns import joined_columns
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import TimeRange
from pipelines.training.labeled_batch import LabeledBatch, read_split
from ranking.encoding.encoder_fitter import EncoderFitter


@dataclass(frozen=True)
class SparseFeature:
    """A categorical feature or a list of ids.

    Attributes:
        name: name of the feature.
        rows: rows of its embedding table.
        dim: width of its embedding table.
        length: maximum number of ids per row; 1 for exactly one id.
    """

    name: str
    rows: int
    dim: int
    length: int = 1


@dataclass(frozen=True)
class Rows:
    """Encoded training rows.

    Attributes:
        sparse: features of ids; lists are padded with 0.
        dense: names of numeric features.
        tasks: name → whether the task is binary.
        x: name → ids [rows] or [rows, length] int64, or numbers [rows] float32.
        y: labels [rows, tasks] float32.
    """

    sparse: list[SparseFeature]
    dense: list[str]
    tasks: dict[str, bool]
    x: dict[str, npt.NDArray[Any]]
    y: npt.NDArray[np.float32]


def prepare(config: Path, folder: Path) -> None:
    """Write the training split of a log as arrays."""
    loaded = load_config(config)
    schema = loaded.serving_schema
    reader = LogReader(loaded.logs.path, schema, load_tables(loaded.logs, schema))
    fitter = EncoderFitter(schema)
    with joined_columns(reader, schema) as joined:
        reader = reader.with_joined(joined)
        for cleaned in reader.scan(TimeRange(until=loaded.logs.validation_from)):
            fitter.add(cleaned.rows)
        encoder = fitter.encoder()
        batch = LabeledBatch.concat(list(read_split(reader, loaded.logs, encoder, "train")))
    sizes = {name: mapping.size for name, mapping in encoder.id_mappings.items()}
    write(folder, loaded, batch, sizes)


def write(folder: Path, config: Config, batch: LabeledBatch, sizes: dict[str, int]) -> None:
    """Write encoded rows as arrays.

    Raises:
        SystemExit: a label is null.
    """
    schema = config.serving_schema
    arrays: dict[str, npt.NDArray[Any]] = {}
    sparse, inputs = list[SparseFeature](), batch.inputs
    for i, feature in enumerate(schema.categoricals):
        sparse.append(SparseFeature(feature.name, sizes[feature.table], feature.dim))
        arrays[feature.name] = inputs.ids[:, i]
    for pooled, bag in zip(schema.bags, inputs.bags, strict=True):
        lengths = bag.lengths
        padded = np.zeros((len(batch), max(2, int(lengths.max()))), np.int64)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = bag.values + 1
        sparse.append(SparseFeature(pooled.name, sizes[pooled.table] + 1, pooled.dim, padded.shape[1]))
        arrays[pooled.name] = padded
    dense = [f"number_{i}" for i in range(inputs.dense.shape[1])]
    arrays |= {name: inputs.dense[:, i].copy() for i, name in enumerate(dense)}
    labels = batch.labels
    if np.isnan(labels).any():
        raise SystemExit("the other libraries cannot mask labels: use a log without null labels")
    tasks = {task.name: task.kind == "binary" for task in schema.tasks}
    folder.mkdir(parents=True)
    np.savez(folder / "rows.npz", labels=labels, **arrays)  # type: ignore[arg-type]  # NumPy declares its own keyword beside them
    metadata = {"sparse": [asdict(feature) for feature in sparse], "dense": dense, "tasks": tasks}
    (folder / "rows.json").write_text(json.dumps(metadata))


def restore(folder: Path) -> Rows:
    """Read the output of ``prepare``."""
    metadata = json.loads((folder / "rows.json").read_text())
    arrays = dict(np.load(folder / "rows.npz"))
    sparse = [SparseFeature(**feature) for feature in metadata["sparse"]]
    return Rows(sparse, metadata["dense"], metadata["tasks"], y=arrays.pop("labels"), x=arrays)
