"""Halves of requests: split, joined, sliced and put together without losing or mixing anything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch, Int64
from ranking.encoding.encoder import Encoder
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from tests.support.encoded_batches import assert_equal_batches

DrawRows = Callable[[int, int], pa.Table]

QUICK = settings(deadline=None, max_examples=40)
SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def requests(ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int], seed: int = 0) -> tuple[EncodedBatch, Int64]:
    """Encoded candidates of requests of these sizes, and which request each belongs to."""
    shared = draw_rows(len(sizes), seed).select(["user_id", "tab", "hour"])
    request = np.repeat(np.arange(len(sizes)), sizes)
    rows = draw_rows(sum(sizes), seed + 1).select(["item_id"])
    for name in shared.column_names:
        rows = rows.append_column(name, shared[name].take(pa.array(request)))
    return ranker.encoder.encode(ranker.complete(rows)), request


class TestSides:
    def test_a_feature_is_in_the_half_of_its_owner(self, hand_encoder: Encoder) -> None:
        sides = SharedItemSplitter(hand_encoder)
        assert [f.name for f in sides.items.singles] == ["item_id"]
        assert [f.name for f in sides.items.bags] == ["genres", "words"]
        assert "country_tab" in [f.name for f in sides.shared.singles]  # a cross of user and context

    def test_a_cross_with_an_items_feature_is_in_the_items_half(self, hand_encoder: Encoder) -> None:
        schema = hand_encoder.schema
        crossed = [f.model_copy(update={"of": ("item_id", "tab")}) if f.kind == "cross" else f for f in schema.features]
        encoder = Encoder(
            schema.model_copy(update={"features": tuple(crossed)}), hand_encoder.id_mappings, hand_encoder.scales
        )
        assert [f.name for f in SharedItemSplitter(encoder).items.singles] == ["item_id", "country_tab"]

    def test_every_column_of_the_models_input_is_in_one_half(self, hand_encoder: Encoder) -> None:
        sides = SharedItemSplitter(hand_encoder)
        width = sum(f.dim for f in hand_encoder.schema.sparse) + hand_encoder.dense_size
        assert sorted(sides.shared.input_columns + sides.items.input_columns) == list(range(width))

    @QUICK
    @given(sizes=SIZES, seed=st.integers(0, 100))
    def test_what_was_split_joins_to_the_same(
        self, hand_ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int], seed: int
    ) -> None:
        inputs, request = requests(hand_ranker, draw_rows, sizes, seed)
        sides = SharedItemSplitter(hand_ranker.encoder)
        halves = sides.split(inputs, request)
        assert (len(halves.shared), len(halves)) == (len(sizes), sum(sizes))
        assert_equal_batches(sides.merge(halves), inputs)

    def test_no_candidates(self, hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
        inputs, _ = requests(hand_ranker, draw_rows, [1])
        sides, none = SharedItemSplitter(hand_ranker.encoder), np.empty(0, np.int64)
        halves = sides.split(inputs.take(none), none)
        assert (len(halves.shared), len(halves)) == (0, 0)
        assert len(sides.merge(halves)) == 0


class TestHalves:
    @QUICK
    @given(sizes=SIZES, data=st.data())
    def test_parts_of_requests_put_together_are_the_requests(
        self, hand_ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int], data: st.DataObject
    ) -> None:
        sides = SharedItemSplitter(hand_ranker.encoder)
        wholes = [requests(hand_ranker, draw_rows, [size], 7 * i) for i, size in enumerate(sizes)]
        parts = []
        for inputs, request in wholes:
            halves, cut = sides.split(inputs, request), data.draw(st.integers(0, len(inputs)))
            parts += [halves.slice(0, cut), halves.slice(cut, len(inputs))]
        together = RequestBatch.concat(parts)
        assert_equal_batches(sides.merge(together), EncodedBatch.concat([inputs for inputs, _ in wholes]))

    @pytest.mark.parametrize(("start", "stop"), [(0, 0), (1, 3), (0, 4)])
    def test_a_slice_keeps_what_is_shared(
        self, hand_ranker: FrozenRanker, draw_rows: DrawRows, start: int, stop: int
    ) -> None:
        inputs, request = requests(hand_ranker, draw_rows, [4])
        sides = SharedItemSplitter(hand_ranker.encoder)
        part = sides.split(inputs, request).slice(start, stop)
        assert len(part.shared) == 1
        assert_equal_batches(sides.merge(part), inputs.take(np.arange(start, stop)))
