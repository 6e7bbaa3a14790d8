"""Encoded requests: user and context features stored once per request, item features once per candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.encoding.batch import EncodedBatch, Int64, Mask
from ranking.encoding.bins import Bins
from ranking.encoding.encoder import Encoder
from ranking.schema import Feature, PooledFeature, Schema, SingleFeature


@dataclass(frozen=True)
class RequestBatch:
    """Encoded candidates of one or more requests.

    Attributes:
        shared: features in ``SharedItemSplitter.shared`` [requests, …].
        items: features in ``SharedItemSplitter.items`` [candidates, …].
        request_index: row of ``shared`` for each candidate [candidates] int64.
        unseen_users: whether the ranker has never seen the user's id [requests]; None if it does not know any.
        unseen_items: whether the ranker has never seen the item's id [candidates]; None if it does not know any.
    """

    shared: EncodedBatch
    items: EncodedBatch
    request_index: Int64
    unseen_users: Mask | None = None
    unseen_items: Mask | None = None

    def __len__(self) -> int:
        return len(self.items)

    def slice(self, start: int, stop: int) -> RequestBatch:
        """Return candidates [start, stop) with all shared features."""
        items, unseen_items = self.items.take(np.arange(start, stop)), self.unseen_items
        unseen_items = None if unseen_items is None else unseen_items[start:stop]
        return RequestBatch(self.shared, items, self.request_index[start:stop], self.unseen_users, unseen_items)

    @staticmethod
    def concat(parts: list[RequestBatch]) -> RequestBatch:
        """Concatenate the requests and candidates of all parts."""
        if len(parts) == 1:
            return parts[0]
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + len(part.shared))
        return RequestBatch(
            EncodedBatch.concat([part.shared for part in parts]),
            EncodedBatch.concat([part.items for part in parts]),
            np.concatenate([part.request_index + start for part, start in zip(parts, starts, strict=False)]),
            _concat_masks([part.unseen_users for part in parts]),
            _concat_masks([part.unseen_items for part in parts]),
        )


def _concat_masks(parts: Sequence[Mask | None]) -> Mask | None:
    masks = [part for part in parts if part is not None]
    return np.concatenate(masks) if len(masks) == len(parts) else None


@dataclass(frozen=True)
class FeatureGroup:
    """Features that are stored together, and their positions in an ``EncodedBatch`` and in the model's input.

    Attributes:
        singles: features with one embedding per row, in order.
        bags: features with a list of ids per row, in order.
        ids: columns of ``EncodedBatch.ids``.
        lists: positions in ``EncodedBatch.bags``.
        dense: columns of ``EncodedBatch.dense``.
        missing: columns of ``EncodedBatch.missing``.
        bins: bins of the dense columns of the group.
        input_columns: columns of the model's input: embeddings of singles, embeddings of bags, dense values, bins.
    """

    singles: list[SingleFeature]
    bags: list[PooledFeature]
    ids: list[int]
    lists: list[int]
    dense: list[int]
    missing: list[int]
    bins: Bins
    input_columns: list[int]

    def select(self, inputs: EncodedBatch) -> EncodedBatch:
        """Return the columns of this group."""
        return EncodedBatch(
            inputs.ids[:, self.ids],
            tuple(inputs.bags[i] for i in self.lists),
            inputs.dense[:, self.dense],
            inputs.missing[:, self.missing],
        )


class SharedItemSplitter:
    """Splits encoded rows into shared and item features and merges them again.

    The candidates of a request share user and context features. Item features, and crosses with a part that is an
    item feature, differ between candidates.

    Args:
        encoder: the encoder of the rows.

    Attributes:
        shared: group of the user and context features.
        items: group of the item features.
    """

    def __init__(self, encoder: Encoder) -> None:
        item_names = {feature.name for feature in encoder.schema.inputs if feature.owner == "item"}
        item_names |= {cross.name for cross in encoder.schema.crosses if item_names.intersection(cross.of)}
        shared_names = {feature.name for feature in encoder.schema.features} - item_names
        self.shared = _feature_group(encoder, shared_names)
        self.items = _feature_group(encoder, item_names)

    def split(self, inputs: EncodedBatch, request_index: Int64) -> RequestBatch:
        """Split rows into shared and item features.

        Args:
            inputs: one row per candidate. Rows of the same request have the same shared features.
            request_index: request number of each row [candidates] int64, ascending from 0 without gaps.
        """
        first = np.searchsorted(request_index, np.arange(request_index[-1] + 1 if len(request_index) else 0))
        return RequestBatch(self.shared.select(inputs).take(first), self.items.select(inputs), request_index)

    def merge(self, batch: RequestBatch) -> EncodedBatch:
        """Return complete rows, one per candidate."""
        shared, items = batch.shared.take(batch.request_index), batch.items
        lists = dict(zip(self.shared.lists, shared.bags, strict=True))
        lists |= dict(zip(self.items.lists, items.bags, strict=True))
        return EncodedBatch(
            _merge_columns((shared.ids, self.shared.ids), (items.ids, self.items.ids)),
            tuple(lists[i] for i in sorted(lists)),
            _merge_columns((shared.dense, self.shared.dense), (items.dense, self.items.dense)),
            _merge_columns((shared.missing, self.shared.missing), (items.missing, self.items.missing)),
        )


def _feature_group(encoder: Encoder, names: set[str]) -> FeatureGroup:
    schema = encoder.schema

    def positions(features: Sequence[Feature]) -> list[int]:
        return [i for i, feature in enumerate(features) if feature.name in names]

    singles, bags = positions(schema.categoricals), positions(schema.bags)
    with_indicator = [number for number in schema.numerics if encoder.scales[number.name].has_missing_indicator]
    dense = positions([*schema.numerics, *with_indicator])
    starts = _embedding_offsets(schema)
    embeddings = [*singles, *(len(schema.categoricals) + i for i in bags)]
    input_columns = [column for i in embeddings for column in range(starts[i], starts[i + 1])]
    input_columns += [starts[-1] + i for i in dense]
    first_bin = starts[-1] + encoder.dense_size
    input_columns += [first_bin + i for i, column in enumerate(encoder.bins.columns) if column in dense]
    return FeatureGroup(
        [schema.categoricals[i] for i in singles],
        [schema.bags[i] for i in bags],
        singles,
        bags,
        dense,
        positions(schema.inputs),
        encoder.bins.select(dense),
        input_columns,
    )


def _embedding_offsets(schema: Schema) -> list[int]:
    """Return the first column of each embedding in the model's input, and the first column after all embeddings."""
    starts = [0]
    for feature in schema.sparse:
        starts.append(starts[-1] + feature.dim)
    return starts


def _merge_columns(*parts: tuple[npt.NDArray[Any], list[int]]) -> npt.NDArray[Any]:
    """Assemble an array from parts [rows, columns] and the positions of their columns in it."""
    first, _ = parts[0]
    merged = np.empty((len(first), sum(len(columns) for _, columns in parts)), first.dtype)
    for values, columns in parts:
        merged[:, columns] = values
    return merged
