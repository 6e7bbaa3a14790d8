"""A bounded sample of the evaluated rows, and their encoded features with some of them shuffled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pipelines.counters.columns import joined_columns
from pipelines.data.reader import LogReader, as_log_error
from pipelines.evaluation.importance.subjects import Level, Subject
from pipelines.evaluation.predictions import MAX_ROWS_PER_FILE
from pipelines.evaluation.sources import LogRange, Scorer
from ranking.encoding.batch import EncodedBatch, Int64
from ranking.encoding.encoder import Encoder
from ranking.encoding.vocabulary import HashBuckets
from ranking.errors import LogError
from ranking.metrics import Ids, SamplingUnits
from ranking.schema import CrossFeature

SEED = 0
"""Seed of the sample and of the shuffles."""


def sample_rows(units: SamplingUnits, limit: int) -> Ids:
    """Choose at most ``limit`` rows: all rows of random units; those of the last unit may be incomplete.

    Returns:
        Indices of the rows, ascending; the same for the same units.
    """
    if len(units.codes) <= limit:
        return np.arange(len(units.codes))
    order = np.random.default_rng(SEED).permutation(units.count)
    return np.sort(np.argsort(order[units.codes], kind="stable")[:limit])


def donor_rows(codes: Ids, level: Level, seed: int) -> Ids:
    """Return the row [rows] whose values each row takes.

    By row, the result is a permutation. By unit, all rows of a unit take their values from the rows of one other unit,
    in their order, from a random one on and from the start again if there are too few. Units are drawn in proportion
    to their rows, so that the distribution of the values over the rows stays the same on average.

    Args:
        codes: sampling unit of each row [rows].
        level: unit between which the values move: rows, or sampling units.
        seed: seed of the shuffle.
    """
    rows = np.random.default_rng([SEED, seed]).permutation(len(codes))
    if level == "row":
        return rows
    _, first, unit, sizes = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    starts = np.cumsum(sizes) - sizes
    by_unit = np.argsort(unit, kind="stable")
    rank = np.empty(len(codes), np.int64)  # position of each row among the rows of its unit
    rank[by_unit] = np.arange(len(codes)) - np.repeat(starts, sizes)
    donor = rows[first][unit]
    return by_unit[starts[unit[donor]] + (rank[donor] + rank) % sizes[unit[donor]]]


@dataclass(frozen=True)
class EncodedSample:
    """Encoded features of the sampled rows.

    Attributes:
        encoder: encoder of the features.
        inputs: the encoded rows.
        hashes: hashes of the parts of crosses, by feature [rows] each.
    """

    encoder: Encoder
    inputs: EncodedBatch
    hashes: Mapping[str, Int64]

    @classmethod
    def read(cls, source: Scorer, log_range: LogRange, files: tuple[str, ...], positions: Ids) -> Self:
        """Read and encode rows of a log.

        Args:
            source: the model.
            log_range: the evaluated rows.
            files: names of the log's files.
            positions: positions of the sampled rows, as in ``Predictions.positions``.

        Raises:
            LogError: the log cannot be used, or changed since it was evaluated.
        """
        encoder, schema = source.encoder, source.schema
        parts = list(dict.fromkeys(name for cross in schema.crosses for name in cross.of))
        inputs: list[EncodedBatch] = []
        hashes: list[Int64] = []
        indices = {file: index for index, file in enumerate(files)}
        reader = LogReader(log_range.path, schema, dict(source.tables), until=log_range.time_range.until)
        with joined_columns(reader, schema, log_range.features, source.counter_features) as joined:
            for chunk in reader.with_joined(joined).scan(log_range.time_range, users=log_range.users):
                first = indices.get(chunk.file, len(files)) * MAX_ROWS_PER_FILE
                rows = np.flatnonzero(np.isin(first + chunk.positions, positions))
                if len(rows):
                    table = chunk.rows.take(rows)
                    with as_log_error(chunk.file):
                        inputs.append(encoder.encode(table))
                        hashes.append(encoder.hash_features(table, parts))
        if sum(map(len, inputs)) != len(positions):
            raise LogError(f"{log_range.path}: the log changed while it was evaluated: evaluate again")
        columns = np.concatenate(hashes)
        return cls(encoder, EncodedBatch.concat(inputs), {name: columns[:, i] for i, name in enumerate(parts)})

    def shuffled(self, subject: Subject, donors: Ids) -> EncodedBatch:
        """Return the encoded rows in which the features of a subject have the values of other rows.

        Args:
            subject: the features.
            donors: row whose values each row takes [rows].
        """
        schema, inputs, moved = self.encoder.schema, self.inputs, set(subject.features)
        ids, dense, missing = inputs.ids.copy(), inputs.dense.copy(), inputs.missing.copy()
        for i, single in enumerate(schema.categoricals):
            if single.name in moved:
                ids[:, i] = inputs.ids[donors, i]
        for cross in schema.crosses:
            if cross.name in subject.crosses:
                ids[:, schema.categoricals.index(cross)] = self._cross_rows(cross, moved, donors)
        for name, columns in self._dense_columns().items():
            if name in moved:
                for column in columns:
                    dense[:, column] = inputs.dense[donors, column]
        for i, feature in enumerate(schema.inputs):
            if feature.name in moved:
                missing[:, i] = inputs.missing[donors, i]
        bags = tuple(
            encoded.take(donors) if bag.name in moved else encoded
            for bag, encoded in zip(schema.bags, inputs.bags, strict=True)
        )
        return replace(inputs, ids=ids, bags=bags, dense=dense, missing=missing)

    def _cross_rows(self, cross: CrossFeature, moved: set[str], donors: Ids) -> Int64:
        """Return the embedding rows of a cross whose moved parts have the values of other rows [rows]."""
        mapping = self.encoder.id_mappings[cross.table]
        assert isinstance(mapping, HashBuckets)
        parts = (self.hashes[name][donors] if name in moved else self.hashes[name] for name in cross.of)
        return mapping.cross_rows(list(parts))

    def _dense_columns(self) -> dict[str, list[int]]:
        """Return the dense columns of each number: its own and, if it has one, its missing indicator."""
        columns: dict[str, list[int]] = {}
        indicator = len(self.encoder.schema.numerics)
        for i, number in enumerate(self.encoder.schema.numerics):
            columns[number.name] = [i]
            if self.encoder.scales[number.name].has_missing_indicator:
                columns[number.name].append(indicator)
                indicator += 1
        return columns
