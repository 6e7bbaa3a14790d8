from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.logs.splits import SPLITS
from pipelines.training.examples import Examples, batches, encode, read
from ranking.encoding import Bag, Encoder, Inputs
from ranking.fitting import EncoderFitter

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

SIZES = st.lists(st.integers(0, 12), max_size=8)


def parts(sizes: list[int]) -> list[Examples]:
    """Parts of these sizes; row i holds i in its ids, labels and users, and a bag of i % 3 times i."""
    made, start = [], 0
    for size in sizes:
        n = torch.arange(start, start + size)
        lengths = n % 3
        inputs = Inputs(n[:, None], (Bag(n.repeat_interleave(lengths), lengths),), n[:, None].float(), n[:, None] < 0)
        made.append(Examples(inputs, n[:, None].float(), n, n.float(), inputs))
        start += size
    return made


def rows(stream: list[Examples]) -> list[int]:
    """The rows of a stream; checks that everything that belongs to a row came along with it."""
    for part in stream:
        n = part.users
        assert torch.equal(part.inputs.ids[:, 0], n)
        assert torch.equal(part.inputs.dense[:, 0].long(), n)
        assert torch.equal(part.labels[:, 0].long(), n)
        assert torch.equal(part.weights.long(), n)
        assert part.side is not None
        assert torch.equal(part.side.ids[:, 0], n)
        assert torch.equal(part.inputs.bags[0].lengths, n % 3)
        assert torch.equal(part.inputs.bags[0].values, n.repeat_interleave(n % 3))
        assert len(part.inputs.missing) == len(part) == len(n)
    return [n for part in stream for n in part.users.tolist()]


class TestBatches:
    @settings(deadline=None, max_examples=100)
    @given(SIZES, st.integers(1, 15), st.integers(0, 40), st.integers(0, 3))
    def test_hold_every_row_exactly_once(self, sizes: list[int], batch_size: int, block: int, seed: int) -> None:
        cut = list(batches(parts(sizes), batch_size, block, np.random.default_rng(seed)))
        assert sorted(rows(cut)) == list(range(sum(sizes)))

    @settings(deadline=None, max_examples=60)
    @given(SIZES, st.integers(1, 15), st.integers(0, 40))
    def test_are_full_but_for_the_last(self, sizes: list[int], batch_size: int, block: int) -> None:
        *full, last = [len(b) for b in batches(parts(sizes), batch_size, block, np.random.default_rng(0))] or [1]
        assert all(size == batch_size for size in full)
        assert 1 <= last <= batch_size

    @settings(deadline=None, max_examples=60)
    @given(SIZES, st.integers(1, 15), st.integers(0, 40))
    def test_keep_the_order_unless_they_are_shuffled(self, sizes: list[int], batch_size: int, block: int) -> None:
        assert rows(list(batches(parts(sizes), batch_size, block))) == list(range(sum(sizes)))

    @settings(deadline=None, max_examples=40)
    @given(SIZES, st.integers(1, 15), st.integers(0, 40), st.integers(0, 100))
    def test_are_the_same_for_a_seed(self, sizes: list[int], batch_size: int, block: int, seed: int) -> None:
        first, second = (
            rows(list(batches(parts(sizes), batch_size, block, np.random.default_rng(seed)))) for _ in range(2)
        )
        assert first == second

    def test_differ_from_seed_to_seed(self) -> None:
        orders = {tuple(rows(list(batches(parts([50]), 10, 50, np.random.default_rng(seed))))) for seed in range(5)}
        assert len(orders) == 5

    def test_mix_all_parts_of_a_block(self) -> None:
        first = next(batches(parts([100, 100, 100]), 60, 300, np.random.default_rng(0)))
        assert {n // 100 for n in first.users.tolist()} == {0, 1, 2}

    def test_never_wait_for_more_than_a_block(self) -> None:
        taken = []

        def stream() -> list[Examples]:
            for part in parts([10] * 10):
                taken.append(len(part))
                yield part

        next(batches(stream(), 5, 30, np.random.default_rng(0)))
        assert sum(taken) == 30

    def test_of_an_empty_stream_are_none(self) -> None:
        assert list(batches([], 10)) == []


class TestExamples:
    def test_take_gives_the_rows_at_these_positions_in_their_order(self) -> None:
        (part,) = parts([10])
        assert rows([part.take(torch.tensor([7, 2, 2, 9]))]) == [7, 2, 2, 9]

    def test_concat_puts_one_part_after_the_other(self) -> None:
        assert rows([Examples.concat(parts([3, 0, 4]))]) == list(range(7))


class TestReadFromALog:
    @pytest.fixture
    def encoder(self, shop: Shop) -> Encoder:
        fitter = EncoderFitter(shop.schema)
        shop.write(shop.table(100))
        for batch in shop.reader().clean():
            fitter.add(batch.rows)
        return fitter.encoder()

    def test_labels_are_transformed_and_masked_where_null(self, shop: Shop, encoder: Encoder) -> None:
        (batch,) = shop.reader().clean()
        labels = encode(batch.rows, encoder).labels
        seconds = batch.rows["seconds"].to_numpy()
        assert labels.dtype == torch.float32
        assert labels[:, 0].tolist() == batch.rows["is_click"].to_pylist()
        assert np.isnan(seconds).any()
        np.testing.assert_allclose(labels[:, 1].numpy(), np.log1p(seconds).astype(np.float32), rtol=1e-6)

    def test_users_are_alike_where_their_ids_are(self, shop: Shop, encoder: Encoder) -> None:
        (batch,) = shop.reader().clean()
        users, ids = encode(batch.rows, encoder).users.tolist(), batch.rows["user_id"].to_pylist()
        assert len(set(zip(users, ids, strict=True))) == len(set(users)) == len(set(ids))

    def test_a_split_is_read_whole_and_alone(self, shop: Shop, encoder: Encoder) -> None:
        counts = {split: sum(map(len, read(shop.reader(), shop.logs(), encoder, split))) for split in SPLITS}
        assert counts == {"train": 80, "validation": 10, "test": 10}

    def test_a_split_without_rows_is_an_empty_stream(self, shop: Shop, encoder: Encoder) -> None:
        (shop.log / "part-0.parquet").unlink()
        shop.write(shop.table(100).slice(0, 50))
        assert list(read(shop.reader(), shop.logs(), encoder, "test")) == []

    def test_bad_rows_and_duplicates_are_left_out(self, shop: Shop, encoder: Encoder) -> None:
        table = shop.replaced(shop.table(100), "item_id", 5, None)
        shop.write(pa.concat_tables([table, table]))
        assert sum(map(len, read(shop.reader(), shop.logs(), encoder, "train"))) == 79
