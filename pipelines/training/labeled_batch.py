"""Batches of impressions with labels: as NumPy arrays from the log, and as tensors on the training device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from pipelines.config.config import LogsConfig, RankingGroup
from pipelines.data.reader import LogReader, as_log_error
from pipelines.data.splits import split_range
from pipelines.training.ranking_groups import ranking_groups
from ranking.encoding.batch import EncodedBatch, Float32, Int64
from ranking.encoding.encoder import Encoder, encode_labels, encode_weights
from ranking.encoding.torch_batch import TorchBatch
from ranking.encoding.vocabulary import hash_column


@dataclass(frozen=True)
class LabeledBatch:
    """Encoded impressions with their labels.

    Attributes:
        inputs: encoded features.
        labels: [rows, tasks] float32, NaN where masked.
        users: hash of the user id [rows] int64, for metrics per user.
        weights: sample weights for the losses [rows] float32.
        position_inputs: encoded features of the position tower; None if the model has none.
        groups: see ``ranking_groups`` [rows] int64; None if training has no ranking loss.
    """

    inputs: EncodedBatch
    labels: Float32
    users: Int64
    weights: Float32
    position_inputs: EncodedBatch | None = None
    groups: Int64 | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def from_table(
        cls,
        table: pa.Table,
        encoder: Encoder,
        position_encoder: Encoder | None = None,
        ranking_within: RankingGroup | None = None,
    ) -> Self:
        """Encode a table of clean rows, see ``ScannedChunk.rows``.

        Args:
            table: rows of the log.
            encoder: encoder of the model's features.
            position_encoder: encoder of the position tower's features; None if the model has none.
            ranking_within: groups of the ranking loss; None if there is none.
        """
        schema = encoder.schema
        return cls(
            encoder.encode(table),
            encode_labels(table, schema.tasks),
            hash_column(table[schema.columns.user].combine_chunks()),
            encode_weights(table, schema.columns),
            None if position_encoder is None else position_encoder.encode(table),
            None if ranking_within is None else ranking_groups(table, schema.columns, ranking_within),
        )

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays by name, for debugging."""
        inputs = self.inputs
        bags = {f"bag.{i}.{key}": value for i, bag in enumerate(inputs.bags) for key, value in vars(bag).items()}
        rows = {"labels": self.labels, "users": self.users, "weights": self.weights}
        return {"ids": inputs.ids, "dense": inputs.dense, **rows, **bags}

    def take(self, rows: Int64) -> LabeledBatch:
        """Return the rows at these positions, in this order."""
        position_inputs = None if self.position_inputs is None else self.position_inputs.take(rows)
        labels, users, weights = self.labels.take(rows, 0), self.users.take(rows), self.weights.take(rows)
        groups = None if self.groups is None else self.groups.take(rows)
        return LabeledBatch(self.inputs.take(rows), labels, users, weights, position_inputs, groups)

    def without_labels(self) -> LabeledBatch:
        """Return the same rows with all labels masked, so that they do not count."""
        return self.with_labels(np.full_like(self.labels, np.nan))

    def with_labels(self, labels: Float32) -> LabeledBatch:
        """Return the same rows with other labels [rows, tasks]."""
        return replace(self, labels=labels)

    @staticmethod
    def concat(batches: list[LabeledBatch]) -> LabeledBatch:
        """Concatenate batches; either all or none of them have ``position_inputs``, and likewise ``groups``."""
        if len(batches) == 1:
            return batches[0]
        position_inputs = [batch.position_inputs for batch in batches if batch.position_inputs is not None]
        groups = [batch.groups for batch in batches if batch.groups is not None]
        return LabeledBatch(
            EncodedBatch.concat([batch.inputs for batch in batches]),
            np.concatenate([batch.labels for batch in batches]),
            np.concatenate([batch.users for batch in batches]),
            np.concatenate([batch.weights for batch in batches]),
            EncodedBatch.concat(position_inputs) if position_inputs else None,
            np.concatenate(groups) if groups else None,
        )


@dataclass(frozen=True)
class DeviceBatch:
    """A labeled batch as tensors on the device that trains.

    Attributes:
        inputs: encoded features.
        labels: [rows, tasks] float32, NaN where masked.
        weights: sample weights for the losses [rows] float32.
        position_inputs: encoded features of the position tower; None if the model has none.
        groups: see ``LabeledBatch``.
    """

    inputs: TorchBatch
    labels: Tensor
    weights: Tensor
    position_inputs: TorchBatch | None = None
    groups: Tensor | None = None

    @classmethod
    def from_labeled(cls, batch: LabeledBatch, device: torch.device | None = None) -> Self:
        """Copy a batch to a device; on the CPU, the tensors share the memory of the arrays."""
        position_inputs = batch.position_inputs
        return cls(
            TorchBatch.from_numpy(batch.inputs, device),
            torch.from_numpy(batch.labels).to(device),
            torch.from_numpy(batch.weights).to(device),
            None if position_inputs is None else TorchBatch.from_numpy(position_inputs, device),
            None if batch.groups is None else torch.from_numpy(batch.groups).to(device),
        )


def read_split(
    reader: LogReader, logs: LogsConfig, encoder: Encoder, split: str, ranking_within: RankingGroup | None = None
) -> Iterator[LabeledBatch]:
    """Stream one split of a log, one batch per chunk, in file order; ``ranking_within`` as in ``from_table``."""
    for chunk in reader.scan(split_range(logs, split)):
        if chunk.rows.num_rows:
            with as_log_error(chunk.file):
                batch = LabeledBatch.from_table(chunk.rows, encoder, ranking_within=ranking_within)
            yield batch
