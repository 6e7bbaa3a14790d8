from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
import torch

from pipelines.data.splits import SPLITS
from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch, read_split
from ranking.encoding.batch import EncodedBatch, RaggedIds
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


def numbered_batches(sizes: list[int]) -> list[LabeledBatch]:
    """Return batches of these sizes; row i has i in its ids, labels and users, and i % 3 times i in its bag."""
    batches, start = [], 0
    for size in sizes:
        n = np.arange(start, start + size)
        numbers, lengths = n.astype(np.float32), n % 3
        inputs = EncodedBatch(
            n[:, None], (RaggedIds(np.repeat(n, lengths), lengths),), numbers[:, None], n[:, None] < 0
        )
        batches.append(LabeledBatch(inputs, numbers[:, None], n, numbers, inputs))
        start += size
    return batches


def row_numbers(batch: LabeledBatch) -> list[int]:
    """Return the row numbers of a batch, after checking that all parts of each row match."""
    n = batch.users
    assert np.array_equal(batch.inputs.ids[:, 0], n)
    assert np.array_equal(batch.inputs.dense[:, 0], n)
    assert np.array_equal(batch.labels[:, 0], n)
    assert np.array_equal(batch.weights, n)
    assert batch.position_inputs is not None
    assert np.array_equal(batch.position_inputs.ids[:, 0], n)
    assert np.array_equal(batch.inputs.bags[0].lengths, n % 3)
    assert np.array_equal(batch.inputs.bags[0].values, np.repeat(n, n % 3))
    assert len(batch.inputs.missing) == len(batch) == len(n)
    numbers: list[int] = n.tolist()
    return numbers


def test_take_returns_the_rows_at_these_positions_in_order() -> None:
    (batch,) = numbered_batches([10])
    assert row_numbers(batch.take(np.array([7, 2, 2, 9]))) == [7, 2, 2, 9]


def test_concat_returns_the_rows_of_all_batches_in_order() -> None:
    assert row_numbers(LabeledBatch.concat(numbered_batches([3, 0, 4]))) == list(range(7))


@pytest.fixture
def encoder(shop: Shop) -> Encoder:
    """An encoder fitted on a log of 100 rows."""
    fitter = EncoderFitter(shop.schema)
    shop.write(shop.table(100))
    for chunk in shop.reader().scan():
        fitter.add(chunk.rows)
    return fitter.encoder()


def test_from_table_transforms_labels_and_masks_null_labels(shop: Shop, encoder: Encoder) -> None:
    (chunk,) = shop.reader().scan()
    labels = LabeledBatch.from_table(chunk.rows, encoder).labels
    seconds = chunk.rows["seconds"].to_numpy()
    assert labels.dtype == np.float32
    assert labels[:, 0].tolist() == chunk.rows["is_click"].to_pylist()
    assert np.isnan(seconds).any()
    np.testing.assert_allclose(labels[:, 1], np.log1p(seconds).astype(np.float32), rtol=1e-6)


def test_from_table_gives_equal_hashes_to_equal_user_ids_only(shop: Shop, encoder: Encoder) -> None:
    (chunk,) = shop.reader().scan()
    hashes = LabeledBatch.from_table(chunk.rows, encoder).users.tolist()
    ids = chunk.rows["user_id"].to_pylist()
    assert len(set(zip(hashes, ids, strict=True))) == len(set(hashes)) == len(set(ids))


def test_read_split_returns_all_rows_of_the_split_and_no_others(shop: Shop, encoder: Encoder) -> None:
    counts = {split: sum(map(len, read_split(shop.reader(), shop.logs(), encoder, split))) for split in SPLITS}
    assert counts == {"train": 80, "validation": 10, "test": 10}


def test_read_split_without_rows_returns_no_batch(shop: Shop, encoder: Encoder) -> None:
    (shop.log / "part-0.parquet").unlink()
    shop.write(shop.table(100).slice(0, 50))
    assert list(read_split(shop.reader(), shop.logs(), encoder, "test")) == []


def test_read_split_skips_bad_rows_and_duplicates(shop: Shop, encoder: Encoder) -> None:
    table = shop.with_value(shop.table(100), "item_id", 5, None)
    shop.write(pa.concat_tables([table, table]))
    assert sum(map(len, read_split(shop.reader(), shop.logs(), encoder, "train"))) == 79


@pytest.fixture
def batch_of_20(shop: Shop) -> LabeledBatch:
    """Twenty rows, with inputs for a position tower."""
    shop.write(shop.table(20))
    (chunk,) = shop.reader().scan()
    fitter = EncoderFitter(shop.schema)
    fitter.add(chunk.rows)
    return LabeledBatch.from_table(chunk.rows, fitter.encoder(), position_encoder=fitter.encoder())


def test_device_batch_contains_the_values_of_the_labeled_batch(batch_of_20: LabeledBatch) -> None:
    batch = DeviceBatch.from_labeled(batch_of_20)
    assert np.array_equal(batch.labels, batch_of_20.labels, equal_nan=True)
    assert np.array_equal(batch.weights, batch_of_20.weights)
    assert batch_of_20.position_inputs is not None
    assert batch.position_inputs is not None
    pairs = ((batch.inputs, batch_of_20.inputs), (batch.position_inputs, batch_of_20.position_inputs))
    for tensors, arrays in pairs:
        assert np.array_equal(tensors.ids, arrays.ids)
        assert np.array_equal(tensors.dense, arrays.dense)
        assert [bag.values.tolist() for bag in tensors.bags] == [bag.values.tolist() for bag in arrays.bags]
        assert [bag.lengths.tolist() for bag in tensors.bags] == [bag.lengths.tolist() for bag in arrays.bags]


def test_device_batch_has_the_dtypes_that_models_and_losses_expect(batch_of_20: LabeledBatch) -> None:
    batch = DeviceBatch.from_labeled(batch_of_20)
    assert {tensor.dtype for tensor in (batch.labels, batch.weights, batch.inputs.dense)} == {torch.float32}
    assert {tensor.dtype for bag in batch.inputs.bags for tensor in (bag.values, bag.lengths)} == {torch.int64}
    assert batch.inputs.ids.dtype == torch.int64


def test_device_batch_on_the_cpu_shares_the_memory_of_the_arrays(batch_of_20: LabeledBatch) -> None:
    batch = DeviceBatch.from_labeled(batch_of_20)
    batch_of_20.labels[3, 0] = 7.0
    batch_of_20.inputs.dense[5, 0] = 8.0
    assert batch.labels[3, 0] == 7.0
    assert batch.inputs.dense[5, 0] == 8.0


def test_device_batch_is_on_the_requested_device(batch_of_20: LabeledBatch) -> None:
    batch = DeviceBatch.from_labeled(batch_of_20, torch.device("meta"))
    assert batch.position_inputs is not None
    tensors = [batch.labels, batch.weights]
    for inputs in (batch.inputs, batch.position_inputs):
        tensors += [inputs.ids, inputs.dense, *(tensor for bag in inputs.bags for tensor in (bag.values, bag.lengths))]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_device_batch_without_position_tower_has_no_position_inputs(batch_of_20: LabeledBatch) -> None:
    assert DeviceBatch.from_labeled(replace(batch_of_20, position_inputs=None)).position_inputs is None
