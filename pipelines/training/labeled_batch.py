"""Impressions as arrays: encoded features with their labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.config.config import LogsConfig
from pipelines.data.reader import LogReader, ScannedChunk, as_log_error
from pipelines.data.splits import split_range
from ranking.encoding.batch import EncodedBatch, Float32, Int64
from ranking.encoding.encoder import Encoder, encode_labels, encode_weights
from ranking.encoding.vocabulary import hash_column


@dataclass(frozen=True)
class LabeledBatch:
    """Impressions with their labels.

    Attributes:
        inputs: encoded features.
        labels: [rows, tasks] float32, NaN where masked.
        users: hash of each row's user id [rows] int64, for what is measured by user.
        weights: how much each row counts in the losses [rows] float32.
        side: what the side tower reads; None where nobody trains one.
    """

    inputs: EncodedBatch
    labels: Float32
    users: Int64
    weights: Float32
    side: EncodedBatch | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All of it by name, to be looked at."""
        inputs = self.inputs
        bags = {f"bag.{i}.{key}": value for i, bag in enumerate(inputs.bags) for key, value in vars(bag).items()}
        rows = {"labels": self.labels, "users": self.users, "weights": self.weights}
        return {"ids": inputs.ids, "dense": inputs.dense, **rows, **bags}

    def take(self, rows: Int64) -> LabeledBatch:
        """The rows at these positions."""
        side = None if self.side is None else self.side.take(rows)
        labels, users, weights = self.labels.take(rows, 0), self.users.take(rows), self.weights.take(rows)
        return LabeledBatch(self.inputs.take(rows), labels, users, weights, side)

    def with_labels(self, labels: Float32) -> LabeledBatch:
        """The same rows with other labels [rows, tasks]."""
        return replace(self, labels=labels)

    @staticmethod
    def concat(parts: list[LabeledBatch]) -> LabeledBatch:
        """All rows of the parts, in order; all of them with inputs for the side tower, or none."""
        if len(parts) == 1:
            return parts[0]
        sides = [part.side for part in parts if part.side is not None]
        return LabeledBatch(
            EncodedBatch.concat([part.inputs for part in parts]),
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.users for part in parts]),
            np.concatenate([part.weights for part in parts]),
            EncodedBatch.concat(sides) if sides else None,
        )


def encode(table: pa.Table, encoder: Encoder, side: Encoder | None = None) -> LabeledBatch:
    """Examples of a cleaned table of a log.

    Args:
        table: cleaned.
        encoder: of what the model reads.
        side: of what the side tower reads, where one is trained.
    """
    schema = encoder.schema
    return LabeledBatch(
        encoder.encode(table),
        encode_labels(table, schema.tasks),
        hash_column(table[schema.columns.user].combine_chunks()),
        encode_weights(table, schema.columns),
        None if side is None else side.encode(table),
    )


def read(reader: LogReader, logs: LogsConfig, encoder: Encoder, split: str) -> Iterator[LabeledBatch]:
    """Streams one split of a log as examples, in order of files."""
    return _encoded(reader.scan(*split_range(logs, split)), encoder)


def _encoded(stream: Iterable[ScannedChunk], encoder: Encoder, side: Encoder | None = None) -> Iterator[LabeledBatch]:
    for cleaned in stream:
        if cleaned.rows.num_rows:
            with as_log_error(cleaned.file):
                examples = encode(cleaned.rows, encoder, side)
            yield examples
