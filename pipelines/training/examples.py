"""Impressions as tensors: encoded features with their labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import torch
from torch import Tensor

from pipelines.config import LogsConfig
from pipelines.logs.reader import Cleaned, LogReader, blaming
from pipelines.logs.splits import split_bounds
from ranking.encoding import Bag, Encoder, Inputs, encode_labels, hash_column


@dataclass(frozen=True)
class Examples:
    """Impressions with their labels.

    Attributes:
        inputs: encoded features.
        labels: [rows, tasks] float32, NaN where masked.
        users: hash of each row's user id [rows] int64, for what is measured by user.
    """

    inputs: Inputs
    labels: Tensor
    users: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Examples:
        """The same on this device."""
        inputs = self.inputs
        bags = tuple(Bag(bag.values.to(device), bag.lengths.to(device)) for bag in inputs.bags)
        moved = Inputs(inputs.ids.to(device), bags, inputs.dense.to(device), inputs.missing)
        return Examples(moved, self.labels.to(device), self.users)

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, to be looked at."""
        inputs = self.inputs
        bags = {f"bag.{i}.{key}": value for i, bag in enumerate(inputs.bags) for key, value in vars(bag).items()}
        return {"ids": inputs.ids, "dense": inputs.dense, "labels": self.labels, "users": self.users} | bags

    def take(self, rows: Tensor) -> Examples:
        """The rows at these positions."""
        return Examples(self.inputs.take(rows), self.labels[rows], self.users[rows])

    @staticmethod
    def concat(parts: list[Examples]) -> Examples:
        """All rows of the parts, in order."""
        if len(parts) == 1:
            return parts[0]
        inputs = Inputs.concat([part.inputs for part in parts])
        return Examples(inputs, torch.cat([p.labels for p in parts]), torch.cat([p.users for p in parts]))


def encode(table: pa.Table, encoder: Encoder) -> Examples:
    """Examples of a cleaned table of a log."""
    schema = encoder.schema
    users = torch.from_numpy(hash_column(table[schema.columns.user].combine_chunks()))
    return Examples(encoder.encode(table), encode_labels(table, schema.tasks), users)


def read(reader: LogReader, logs: LogsConfig, encoder: Encoder, split: str) -> Iterator[Examples]:
    """Streams one split of a log as examples, in order of files."""
    return _encoded(reader.clean(*split_bounds(logs, split)), encoder)


def read_whole(reader: LogReader, encoder: Encoder) -> Iterator[Examples]:
    """Streams every good row of a log as examples."""
    return _encoded(reader.clean(), encoder)


def _encoded(stream: Iterable[Cleaned], encoder: Encoder) -> Iterator[Examples]:
    for cleaned in stream:
        if cleaned.rows.num_rows:
            with blaming(cleaned.file):
                examples = encode(cleaned.rows, encoder)
            yield examples
