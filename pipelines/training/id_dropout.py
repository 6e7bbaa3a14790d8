"""Hide ids in training batches: as many become OOV as are unknown in later rows, and histories lose some of theirs.

Ids of the training split are all known, so that without this the model would never use the embedding of unknown ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from pipelines.config.config import LogsConfig, TrainingConfig
from pipelines.data.file_scans import FileCall, scan_files
from pipelines.data.reader import LogReader, ScannedChunk, as_log_error, open_log
from pipelines.data.splits import split_range
from pipelines.engines import Engine
from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.batch import EncodedBatch, Int64, RaggedIds
from ranking.encoding.encoder import Encoder
from ranking.encoding.id_rows import MISSING, OOV
from ranking.encoding.vocabulary import HashBuckets, Vocabulary
from ranking.schema import CrossFeature

MIN_RATE, MAX_RATE = 0.002, 0.3
"""Measured shares below the first are too small to learn from. Rates above the second gain little more, and the other
features then also have to explain what differs between the hidden users (docs/results.md)."""
STREAM = 2
"""Identifies the random stream of these draws among the streams of one seed."""


def unknown_shares(
    reader: LogReader, logs: LogsConfig, encoder: Encoder, rare: Mapping[str, float], engine: Engine | None = None
) -> dict[str, float]:
    """Return the share of unknown ids in the validation split by feature, without features that have no vocabulary.

    It reads the features of the split, not its labels.

    Args:
        reader: the log.
        logs: the log and the boundaries of its splits.
        encoder: encoder of the log.
        rare: share of the training ids that are OOV by table, see ``EncoderFitter.rare_shares``. Hiding ids at the
            returned share v' makes 1 − (1 − rare) (1 − v') of the training ids OOV, as many as in the validation split.
        engine: lets its workers read the files of the log; None: this process does.
    """
    schema = encoder.schema
    names = _with_vocabulary(encoder)
    if not names:
        return {}
    unknown, known = Counter[str](), Counter[str]()
    call = FileCall(partial(open_log, logs, reader.schema), _count_ids, encoder, split_range(logs, "validation"))
    for part_unknown, part_known in scan_files(reader, call, "unknown ids: reading the validation split", engine):
        unknown += part_unknown
        known += part_known
    shares = {}
    for feature in schema.sparse:
        if (name := feature.name) in names:
            known_share = known[name] / max(unknown[name] + known[name], 1)
            known_in_training = 1 - rare.get(feature.table, 0.0)
            is_measurable = unknown[name] and known_in_training
            shares[name] = max(0.0, 1 - known_share / known_in_training) if is_measurable else 0.0
    return shares


def _count_ids(chunks: Iterator[ScannedChunk], _: int, encoder: Encoder) -> tuple[Counter[str], Counter[str]]:
    """Return the number of unknown and of known ids of a file of a log by feature."""
    unknown, known = Counter[str](), Counter[str]()
    for chunk in chunks:
        if not chunk.rows.num_rows:
            continue
        with as_log_error(chunk.file):
            inputs = encoder.encode(chunk.rows)
        columns = [*inputs.ids.T, *(bag.values for bag in inputs.bags)]
        for feature, ids in zip(encoder.schema.sparse, columns, strict=True):
            unknown[feature.name] += int(np.count_nonzero(ids == OOV))
            known[feature.name] += int(np.count_nonzero(ids > OOV))
    return unknown, known


def _with_vocabulary(encoder: Encoder) -> set[str]:
    """Return the names of the features whose table has a vocabulary, and so a row of OOV."""
    return {f.name for f in encoder.schema.sparse if isinstance(encoder.id_mappings[f.table], Vocabulary)}


class IdDropout:
    """Hides ids of training batches.

    Each id becomes OOV with the rate of its feature. A cross with such a part takes a random bucket, as crosses of
    unknown ids do. An id of a history is removed with the rate ``training.history_dropout``.

    Args:
        encoder: encoder of the batches.
        shares: result of ``unknown_shares``.
        settings: settings of the training.
    """

    def __init__(self, encoder: Encoder, shares: Mapping[str, float], settings: TrainingConfig) -> None:
        schema, mappings = encoder.schema, encoder.id_mappings
        names = _with_vocabulary(encoder)
        if settings.oov_dropout == "measured":
            rates = {
                name: min(share, MAX_RATE) for name, share in shares.items() if name in names and share >= MIN_RATE
            }
        else:
            rates = dict.fromkeys(names, settings.oov_dropout)
        self.rates = {name: rate for name, rate in sorted(rates.items()) if rate}
        self._singles = {i: self.rates[f.name] for i, f in enumerate(schema.categoricals) if f.name in self.rates}
        self._bags = [self.rates.get(bag.name, 0.0) for bag in schema.bags]
        histories = {history.name for history in schema.histories}
        self._removed = [settings.history_dropout if bag.name in histories else 0.0 for bag in schema.bags]
        columns = {feature.name: i for i, feature in enumerate(schema.categoricals)}
        self._crosses: dict[int, tuple[list[int], int]] = {}
        for i, feature in enumerate(schema.categoricals):
            parts = [columns[name] for name in feature.of] if isinstance(feature, CrossFeature) else []
            mapping = mappings[feature.table]
            if any(part in self._singles for part in parts) and isinstance(mapping, HashBuckets):
                self._crosses[i] = parts, mapping.size
        self._seed = settings.seed

    def __call__(self, batch: LabeledBatch, step: int) -> LabeledBatch:
        """Return the batch of a step with hidden ids; the draws depend only on the seed and the step."""
        if not self._singles and not any(self._bags) and not any(self._removed):
            return batch
        random = np.random.default_rng((self._seed, step, STREAM))
        return replace(batch, inputs=self._hide(batch.inputs, random))

    def _hide(self, inputs: EncodedBatch, random: np.random.Generator) -> EncodedBatch:
        ids, rows = inputs.ids.copy(), len(inputs)
        hidden = {
            column: (random.random(rows) < rate) & (ids[:, column] != MISSING) for column, rate in self._singles.items()
        }
        for column, is_hidden in hidden.items():
            ids[is_hidden, column] = OOV
        for column, (parts, size) in self._crosses.items():
            is_hidden = np.any([hidden[part] for part in parts if part in hidden], axis=0)
            is_hidden &= ids[:, column] != MISSING
            ids[is_hidden, column] = random.integers(1, size, np.count_nonzero(is_hidden))
        bags = tuple(
            _hide_in_lists(bag, rate, removed, random)
            for bag, rate, removed in zip(inputs.bags, self._bags, self._removed, strict=True)
        )
        return replace(inputs, ids=ids, bags=bags)


def _hide_in_lists(bag: RaggedIds, rate: float, removed: float, random: np.random.Generator) -> RaggedIds:
    """Remove ids with the rate ``removed``, and replace others by OOV; the mark of a missing list remains."""
    values: Int64 = bag.values
    if rate:
        values = np.where((random.random(len(values)) < rate) & (values != MISSING), OOV, values)
    if not removed:
        return RaggedIds(values, bag.lengths)
    kept = (random.random(len(values)) >= removed) | (values == MISSING)
    parents = np.repeat(np.arange(len(bag.lengths)), bag.lengths)[kept]
    return RaggedIds(values[kept], np.bincount(parents, minlength=len(bag.lengths)))
