"""The rows that all contenders train on: a log for ranker, and the same rows as arrays for the rivals.

The rivals get what ranker has to work for: rows that are read, cleaned, joined with their side tables and encoded.
Their clocks run over training alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.config.config import Config, load
from pipelines.data.reader import LogReader, load_tables
from pipelines.training.labeled_batch import LabeledBatch, read
from ranking.encoding.encoder_fitter import EncoderFitter


@dataclass(frozen=True)
class Sparse:
    """A feature of ids: its embedding table's rows and width, and how many ids a row may have (1: exactly one)."""

    name: str
    rows: int
    dim: int
    length: int = 1


@dataclass(frozen=True)
class Rows:
    """Encoded training rows.

    Attributes:
        sparse: features of ids; where ``length`` > 1, ids are padded with 0.
        dense: names of numbers.
        tasks: name → whether it is binary.
        x: name → [rows] or [rows, length] int64, or [rows] float32.
        y: labels [rows, tasks] float32.
    """

    sparse: list[Sparse]
    dense: list[str]
    tasks: dict[str, bool]
    x: dict[str, npt.NDArray[Any]]
    y: npt.NDArray[np.float32]


def prepare(config: Path, folder: Path) -> None:
    """Writes the training split of a log as arrays."""
    loaded = load(config)
    schema = loaded.schema_only
    reader = LogReader(loaded.logs.path, schema, load_tables(loaded.logs, schema))
    fitter = EncoderFitter(schema)
    for cleaned in reader.scan(until=loaded.logs.validation_from):
        fitter.add(cleaned.rows)
    encoder = fitter.encoder()
    whole = LabeledBatch.concat(list(read(reader, loaded.logs, encoder, "train")))
    sizes = {name: space.size for name, space in encoder.id_spaces.items()}
    write(folder, loaded, whole, sizes)


def write(folder: Path, config: Config, rows: LabeledBatch, sizes: dict[str, int]) -> None:
    """Writes examples as arrays."""
    schema, arrays = config.schema_only, {}
    sparse, inputs = [], rows.inputs
    for i, feature in enumerate(schema.categoricals):
        sparse.append(Sparse(feature.name, sizes[feature.table], feature.dim))
        arrays[feature.name] = inputs.ids[:, i]
    for feature, bag in zip(schema.bags, inputs.bags, strict=True):
        lengths = bag.lengths
        padded = np.zeros((len(rows), max(2, int(lengths.max()))), np.int64)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = bag.values + 1
        sparse.append(Sparse(feature.name, sizes[feature.table] + 1, feature.dim, padded.shape[1]))
        arrays[feature.name] = padded
    dense = [f"number_{i}" for i in range(inputs.dense.shape[1])]
    arrays |= {name: inputs.dense[:, i].copy() for i, name in enumerate(dense)}
    labels = rows.labels
    if np.isnan(labels).any():
        raise SystemExit("the rivals cannot mask labels: choose a log without null labels")
    tasks = {task.name: task.kind == "binary" for task in schema.tasks}
    folder.mkdir(parents=True)
    np.savez(folder / "rows.npz", labels=labels, **arrays)
    about = {"sparse": [asdict(feature) for feature in sparse], "dense": dense, "tasks": tasks}
    (folder / "rows.json").write_text(json.dumps(about))


def restore(folder: Path) -> Rows:
    """What ``prepare`` wrote."""
    about = json.loads((folder / "rows.json").read_text())
    arrays = dict(np.load(folder / "rows.npz"))
    sparse = [Sparse(**feature) for feature in about["sparse"]]
    return Rows(sparse, about["dense"], about["tasks"], y=arrays.pop("labels"), x=arrays)
