"""The two halves of what a request asks to have scored: what its candidates share, once, and what they do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.encoding.batch import EncodedBatch, Int64
from ranking.encoding.encoder import Encoder
from ranking.schema import Feature, NumericFeature, PooledFeature, Schema, SingleFeature


@dataclass(frozen=True)
class RequestBatch:
    """Encoded candidates of one request, or of many.

    Attributes:
        shared: features of users and contexts [requests, …], see ``SharedItemSplitter.shared``.
        items: features of items, and crosses with them [candidates, …], see ``SharedItemSplitter.items``.
        request: row of ``shared`` that each candidate belongs to [candidates] int64.
    """

    shared: EncodedBatch
    items: EncodedBatch
    request: Int64

    def __len__(self) -> int:
        return len(self.items)

    def slice(self, start: int, stop: int) -> RequestBatch:
        """Candidates [start, stop) with all that is shared."""
        return RequestBatch(self.shared, self.items.take(np.arange(start, stop)), self.request[start:stop])

    @staticmethod
    def concat(parts: list[RequestBatch]) -> RequestBatch:
        """The candidates of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + len(part.shared))
        return RequestBatch(
            EncodedBatch.concat([part.shared for part in parts]),
            EncodedBatch.concat([part.items for part in parts]),
            np.concatenate([part.request + start for part, start in zip(parts, starts, strict=False)]),
        )


@dataclass(frozen=True)
class FeatureGroup:
    """Where the features of one half stand among those of a whole ``EncodedBatch``, and in the model's input.

    Attributes:
        singles: the half's features with one embedding a row, in order.
        bags: those with a list of ids.
        ids: columns of ``EncodedBatch.ids``.
        lists: positions in ``EncodedBatch.bags``.
        dense: columns of ``EncodedBatch.dense``.
        missing: columns of ``EncodedBatch.missing``.
        joined: columns of embeddings and dense values side by side, as the model reads them: singles, bags, dense.
    """

    singles: list[SingleFeature]
    bags: list[PooledFeature]
    ids: list[int]
    lists: list[int]
    dense: list[int]
    missing: list[int]
    joined: list[int]

    def select(self, inputs: EncodedBatch) -> EncodedBatch:
        """This half of the rows."""
        return EncodedBatch(
            inputs.ids[:, self.ids],
            tuple(inputs.bags[i] for i in self.lists),
            inputs.dense[:, self.dense],
            inputs.missing[:, self.missing],
        )


class SharedItemSplitter:
    """Divides encoded rows into halves and puts them together again.

    What users and contexts own is shared by the candidates of a request; what items own is not, nor is a cross with a
    part that an item owns.

    Args:
        encoder: that encodes the rows.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.shared = _feature_group(encoder, items=False)
        self.items = _feature_group(encoder, items=True)

    def split(self, inputs: EncodedBatch, request: Int64) -> RequestBatch:
        """Halves of whole rows.

        Args:
            inputs: one row a candidate.
            request: number of the request that each belongs to [candidates] int64, rising from 0 without a gap;
                candidates of one request agree in all that is shared.
        """
        first = np.searchsorted(request, np.arange(request[-1] + 1 if len(request) else 0))
        return RequestBatch(self.shared.select(inputs).take(first), self.items.select(inputs), request)

    def merge(self, halves: RequestBatch) -> EncodedBatch:
        """Whole rows, one a candidate."""
        shared, items = halves.shared.take(halves.request), halves.items
        lists = dict(zip(self.shared.lists, shared.bags, strict=True))
        lists |= dict(zip(self.items.lists, items.bags, strict=True))
        return EncodedBatch(
            _merge_columns(shared.ids, self.shared.ids, items.ids, self.items.ids),
            tuple(lists[i] for i in sorted(lists)),
            _merge_columns(shared.dense, self.shared.dense, items.dense, self.items.dense),
            _merge_columns(shared.missing, self.shared.missing, items.missing, self.items.missing),
        )


def _feature_group(encoder: Encoder, *, items: bool) -> FeatureGroup:
    schema = encoder.schema
    of_items = {feature.name for feature in schema.inputs if feature.owner == "item"}
    of_items |= {cross.name for cross in schema.crosses if of_items.intersection(cross.of)}

    def here(feature: Feature) -> bool:
        return (feature.name in of_items) == items

    singles, bags = schema.categoricals, schema.bags
    flagged = [number for number in schema.numerics if encoder.scales[number.name].has_missing_indicator]
    numbers: list[NumericFeature] = [*schema.numerics, *flagged]
    ids = [i for i, feature in enumerate(singles) if here(feature)]
    lists = [i for i, bag in enumerate(bags) if here(bag)]
    dense = [i for i, number in enumerate(numbers) if here(number)]
    starts = _embedding_offsets(schema)
    joined = [c for i in ids for c in range(starts[i], starts[i + 1])]
    joined += [c for i in lists for c in range(starts[len(singles) + i], starts[len(singles) + i + 1])]
    joined += [starts[-1] + i for i in dense]
    return FeatureGroup(
        [singles[i] for i in ids],
        [bags[i] for i in lists],
        ids,
        lists,
        dense,
        [i for i, feature in enumerate(schema.inputs) if here(feature)],
        joined,
    )


def _embedding_offsets(schema: Schema) -> list[int]:
    """First column of each embedding in the model's input, and the first after them all."""
    starts = [0]
    for feature in schema.sparse:
        starts.append(starts[-1] + feature.dim)
    return starts


def _merge_columns(
    one: npt.NDArray[Any], its: list[int], other: npt.NDArray[Any], others: list[int]
) -> npt.NDArray[Any]:
    """Columns of two halves at their places in the whole."""
    whole = np.empty((len(one), len(its) + len(others)), one.dtype)
    whole[:, its], whole[:, others] = one, other
    return whole
