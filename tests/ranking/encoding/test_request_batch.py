"""Splitting, merging, slicing and concatenation of requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch, Int64
from ranking.encoding.encoder import Encoder
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from tests.support.encoded_batches import assert_equal_batches

DrawRows = Callable[[int, int], pa.Table]

SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def requests(ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int], seed: int = 0) -> tuple[EncodedBatch, Int64]:
    """Return encoded candidates of requests of these sizes, and the request number of each candidate."""
    shared = draw_rows(len(sizes), seed).select(["user_id", "tab", "hour"])
    request_index = np.repeat(np.arange(len(sizes)), sizes)
    rows = draw_rows(sum(sizes), seed + 1).select(["item_id"])
    for name in shared.column_names:
        rows = rows.append_column(name, shared[name].take(pa.array(request_index)))
    return ranker.encoder.encode(ranker.complete(rows)), request_index


# Shared item splitter.


def test_splitter_groups_features_by_owner(hand_encoder: Encoder) -> None:
    splitter = SharedItemSplitter(hand_encoder)
    assert [f.name for f in splitter.items.singles] == ["item_id"]
    assert [f.name for f in splitter.items.bags] == ["genres", "words"]
    assert "country_tab" in [f.name for f in splitter.shared.singles]  # A cross of user and context features.


def test_splitter_puts_cross_with_an_item_feature_in_items(hand_encoder: Encoder) -> None:
    schema = hand_encoder.schema
    crossed = [f.model_copy(update={"of": ("item_id", "tab")}) if f.kind == "cross" else f for f in schema.features]
    encoder = Encoder(
        schema.model_copy(update={"features": tuple(crossed)}), hand_encoder.id_mappings, hand_encoder.scales
    )
    assert [f.name for f in SharedItemSplitter(encoder).items.singles] == ["item_id", "country_tab"]


def test_splitter_input_columns_cover_the_model_input(hand_encoder: Encoder) -> None:
    splitter = SharedItemSplitter(hand_encoder)
    width = sum(f.dim for f in hand_encoder.schema.sparse) + hand_encoder.dense_size + len(hand_encoder.bins)
    assert sorted(splitter.shared.input_columns + splitter.items.input_columns) == list(range(width))


@given(sizes=SIZES, seed=st.integers(0, 100))
def test_splitter_merge_restores_the_split_rows(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int], seed: int
) -> None:
    inputs, request_index = requests(hand_ranker, draw_rows, sizes, seed)
    splitter = SharedItemSplitter(hand_ranker.encoder)
    batch = splitter.split(inputs, request_index)
    assert (len(batch.shared), len(batch)) == (len(sizes), sum(sizes))
    assert_equal_batches(splitter.merge(batch), inputs)


def test_splitter_split_of_no_candidates_is_empty(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    inputs, _ = requests(hand_ranker, draw_rows, [1])
    splitter, empty = SharedItemSplitter(hand_ranker.encoder), np.empty(0, np.int64)
    batch = splitter.split(inputs.take(empty), empty)
    assert (len(batch.shared), len(batch)) == (0, 0)
    assert len(splitter.merge(batch)) == 0


# Request batch.


@given(sizes=SIZES, data=st.data())
def test_request_batch_concat_of_slices_restores_the_requests(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int], data: st.DataObject
) -> None:
    splitter = SharedItemSplitter(hand_ranker.encoder)
    originals = [requests(hand_ranker, draw_rows, [size], 7 * i) for i, size in enumerate(sizes)]
    parts = []
    for inputs, request_index in originals:
        batch, cut = splitter.split(inputs, request_index), data.draw(st.integers(0, len(inputs)))
        parts += [batch.slice(0, cut), batch.slice(cut, len(inputs))]
    batch = RequestBatch.concat(parts)
    assert_equal_batches(splitter.merge(batch), EncodedBatch.concat([inputs for inputs, _ in originals]))


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (1, 3), (0, 4)])
def test_request_batch_slice_keeps_shared_features(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, start: int, stop: int
) -> None:
    inputs, request_index = requests(hand_ranker, draw_rows, [4])
    splitter = SharedItemSplitter(hand_ranker.encoder)
    part = splitter.split(inputs, request_index).slice(start, stop)
    assert len(part.shared) == 1
    assert_equal_batches(splitter.merge(part), inputs.take(np.arange(start, stop)))
