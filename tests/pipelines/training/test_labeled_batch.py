from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from pipelines.data.splits import SPLITS
from pipelines.training.labeled_batch import LabeledBatch, read_split
from ranking.encoding.batch import EncodedBatch, RaggedIds
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


def parts(sizes: list[int]) -> list[LabeledBatch]:
    """Parts of these sizes; row i holds i in its ids, labels and users, and a bag of i % 3 times i."""
    made, start = [], 0
    for size in sizes:
        n = np.arange(start, start + size)
        numbers, lengths = n.astype(np.float32), n % 3
        inputs = EncodedBatch(
            n[:, None], (RaggedIds(np.repeat(n, lengths), lengths),), numbers[:, None], n[:, None] < 0
        )
        made.append(LabeledBatch(inputs, numbers[:, None], n, numbers, inputs))
        start += size
    return made


def rows(stream: list[LabeledBatch]) -> list[int]:
    """The rows of a stream; checks that everything that belongs to a row came along with it."""
    for part in stream:
        n = part.users
        assert np.array_equal(part.inputs.ids[:, 0], n)
        assert np.array_equal(part.inputs.dense[:, 0], n)
        assert np.array_equal(part.labels[:, 0], n)
        assert np.array_equal(part.weights, n)
        assert part.position_inputs is not None
        assert np.array_equal(part.position_inputs.ids[:, 0], n)
        assert np.array_equal(part.inputs.bags[0].lengths, n % 3)
        assert np.array_equal(part.inputs.bags[0].values, np.repeat(n, n % 3))
        assert len(part.inputs.missing) == len(part) == len(n)
    return [n for part in stream for n in part.users.tolist()]


class TestExamples:
    def test_take_gives_the_rows_at_these_positions_in_their_order(self) -> None:
        (part,) = parts([10])
        assert rows([part.take(np.array([7, 2, 2, 9]))]) == [7, 2, 2, 9]

    def test_concat_puts_one_part_after_the_other(self) -> None:
        assert rows([LabeledBatch.concat(parts([3, 0, 4]))]) == list(range(7))


class TestReadFromALog:
    @pytest.fixture
    def encoder(self, shop: Shop) -> Encoder:
        fitter = EncoderFitter(shop.schema)
        shop.write(shop.table(100))
        for batch in shop.reader().scan():
            fitter.add(batch.rows)
        return fitter.encoder()

    def test_labels_are_transformed_and_masked_where_null(self, shop: Shop, encoder: Encoder) -> None:
        (batch,) = shop.reader().scan()
        labels = LabeledBatch.from_table(batch.rows, encoder).labels
        seconds = batch.rows["seconds"].to_numpy()
        assert labels.dtype == np.float32
        assert labels[:, 0].tolist() == batch.rows["is_click"].to_pylist()
        assert np.isnan(seconds).any()
        np.testing.assert_allclose(labels[:, 1], np.log1p(seconds).astype(np.float32), rtol=1e-6)

    def test_users_are_alike_where_their_ids_are(self, shop: Shop, encoder: Encoder) -> None:
        (batch,) = shop.reader().scan()
        users, ids = LabeledBatch.from_table(batch.rows, encoder).users.tolist(), batch.rows["user_id"].to_pylist()
        assert len(set(zip(users, ids, strict=True))) == len(set(users)) == len(set(ids))

    def test_a_split_is_read_whole_and_alone(self, shop: Shop, encoder: Encoder) -> None:
        counts = {split: sum(map(len, read_split(shop.reader(), shop.logs(), encoder, split))) for split in SPLITS}
        assert counts == {"train": 80, "validation": 10, "test": 10}

    def test_a_split_without_rows_is_an_empty_stream(self, shop: Shop, encoder: Encoder) -> None:
        (shop.log / "part-0.parquet").unlink()
        shop.write(shop.table(100).slice(0, 50))
        assert list(read_split(shop.reader(), shop.logs(), encoder, "test")) == []

    def test_bad_rows_and_duplicates_are_left_out(self, shop: Shop, encoder: Encoder) -> None:
        table = shop.with_value(shop.table(100), "item_id", 5, None)
        shop.write(pa.concat_tables([table, table]))
        assert sum(map(len, read_split(shop.reader(), shop.logs(), encoder, "train"))) == 79
