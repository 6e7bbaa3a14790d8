from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.config.config import LogsConfig, TrainingConfig
from pipelines.data.index import Chunk, IndexedChunk, LogIndex
from pipelines.data.parquet import CHUNK_ROWS
from pipelines.data.profile import profile_log
from pipelines.data.reader import LogReader
from pipelines.data.splits import TimeRange
from pipelines.training.dataloader import BatchLoader, EpochSlice
from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.errors import ConfigError, LogError
from ranking.schema import Schema
from tests.pipelines.conftest import FIRST_DAY, Shop


class Numbered:
    """Stands for a reader: a log of files of these sizes whose rows are numbers from 0 on."""

    def __init__(self, sizes: list[int]) -> None:
        starts = np.cumsum([0, *sizes])
        self.first = {f"{group}.parquet": int(start) for group, start in enumerate(starts[:-1])}
        self.index = LogIndex(
            [
                IndexedChunk(
                    Chunk(file, "", 0, 0, size), {"train": size, "validation": size, "test": 0}, np.empty(0, np.int32)
                )
                for file, size in zip(self.first, sizes, strict=True)
            ]
        )

    def read_indexed(self, entries: list[IndexedChunk], split: str, logs: LogsConfig) -> Iterator[pa.Table]:
        for entry in entries:
            start = self.first[entry.chunk.file] + entry.chunk.start
            yield pa.table({"n": range(start, start + entry.rows_by_split[split])})


LOGS = LogsConfig(path=Path("log"), validation_from=FIRST_DAY, test_from=FIRST_DAY.replace(day=2))


def numbered(table: pa.Table) -> LabeledBatch:
    """Row n has n everywhere."""
    n = table["n"].to_numpy().astype(np.int64)
    numbers = n.astype(np.float32)
    inputs = EncodedBatch(n[:, None], (), numbers[:, None], n[:, None] < 0)
    return LabeledBatch(inputs, numbers[:, None], n, numbers)


def feeds(sizes: list[int], world: int, *, shuffled: bool = True, **how: Any) -> list[BatchLoader]:
    """The feeds of all ranks."""
    log = Numbered(sizes)
    training = TrainingConfig(**{"batch_size": 4 * world, "shuffle_rows": 10, **how})
    return [
        BatchLoader(log, log.index, numbered, LOGS, training, shuffle=shuffled, rank=rank, world_size=world)  # type: ignore[arg-type]
        for rank in range(world)
    ]


def rows(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch.users.tolist()]


SIZES = st.lists(st.integers(1, 25), min_size=1, max_size=8)
WORLDS = st.integers(1, 4)
QUICK = settings(deadline=None, max_examples=60)


class TestAnEpoch:
    @QUICK
    @given(SIZES, WORLDS, st.integers(1, 30), st.integers(0, 3))
    def test_gives_every_row_once_but_for_a_rest_too_small_to_train_on(
        self, sizes: list[int], world: int, block: int, epoch: int
    ) -> None:
        ranks = feeds(sizes, world, shuffle_rows=block)
        given = [list(feed.epoch(epoch)) for feed in ranks]
        read = [n for batches in given for n in rows(batches)]
        assert len(set(read)) == len(read)
        assert set(read) <= set(range(sum(sizes)))
        assert sum(sizes) - len(read) < 2 * world
        assert {len(batches) for batches in given} == {ranks[0].steps()}

    @QUICK
    @given(SIZES, WORLDS)
    def test_has_full_batches_but_for_the_last(self, sizes: list[int], world: int) -> None:
        for feed in feeds(sizes, world):
            *full, last = [len(batch) for batch in feed.epoch(0)] or [2]
            assert all(size == 4 for size in full)
            assert 2 <= last <= 4

    @QUICK
    @given(SIZES, WORLDS)
    def test_not_shuffled_gives_every_row_in_order(self, sizes: list[int], world: int) -> None:
        ranks = feeds(sizes, world, shuffled=False)
        given = [list(feed.epoch(0)) for feed in ranks]
        assert [n for batches in given for n in rows(batches)] == list(range(sum(sizes)))
        assert {len(batches) for batches in given} == {ranks[0].steps()}
        assert max(map(len, map(rows, given))) - min(map(len, map(rows, given))) <= 1

    @QUICK
    @given(SIZES, st.integers(0, 100))
    def test_is_the_same_for_a_seed_whatever_the_number_of_threads(self, sizes: list[int], seed: int) -> None:
        orders = {
            tuple(rows(feeds(sizes, 1, seed=seed, readers=readers, shuffle_rows=block)[0].epoch(1)))
            for readers, block in ((1, 10), (3, 10), (8, 10))
        }
        assert len(orders) == 1

    def test_differs_from_seed_to_seed_and_from_epoch_to_epoch(self) -> None:
        orders = {tuple(rows(feeds([40], 1, seed=s, shuffle_rows=40)[0].epoch(e))) for s in range(3) for e in range(3)}
        assert len(orders) == 9

    def test_orders_files_and_rows_by_different_draws(self) -> None:
        (feed,) = feeds([1] * 30, 1, shuffle_rows=30)
        order = [int(run[0].chunk.file.split(".")[0]) for block in feed._blocks(0) for run in block]
        assert sorted(order) == list(range(30))
        assert rows(feed.epoch(0)) != [order[n] for n in order]

    def test_mixes_all_files_of_a_block(self) -> None:
        (feed,) = feeds([100, 100, 100], 1, batch_size=60, shuffle_rows=300)
        assert {n // 100 for n in next(feed.epoch(0)).users.tolist()} == {0, 1, 2}

    def test_of_no_rows_is_empty(self) -> None:
        for shuffled in (True, False):
            (feed,) = feeds([], 1, shuffled=shuffled)
            assert feed.steps() == 0
            assert list(feed.epoch(0)) == []

    def test_everything_of_a_row_comes_along_with_it(self) -> None:
        for batch in feeds([30, 20], 1)[0].epoch(0):
            assert batch.inputs.ids[:, 0].tolist() == batch.users.tolist() == batch.labels[:, 0].tolist()

    def test_needs_a_batch_that_the_ranks_can_share(self) -> None:
        with pytest.raises(ConfigError, match=r"training\.batch_size = 10 cannot be divided among 4 processes"):
            feeds([10], 4, batch_size=10)


class TestWhatIsLeft:
    @QUICK
    @given(SIZES, WORLDS, WORLDS, st.data())
    def test_is_given_by_another_number_of_ranks_exactly_once(
        self, sizes: list[int], before: int, after: int, data: st.DataObject
    ) -> None:
        ranks = feeds(sizes, before)
        steps = data.draw(st.integers(0, ranks[0].steps()))
        read = [n for feed in ranks for n in rows(list(feed.epoch(2))[:steps])]
        left = ranks[0].remaining(2, None, steps)
        assert sum(piece.rows for piece in left) == sum(sizes) - len(read)
        rest = [n for feed in feeds(sizes, after) for n in rows(feed.epoch(2, left))]
        assert len(set(read + rest)) == len(read) + len(rest)
        assert sum(sizes) - len(read) - len(rest) < 2 * after

    @QUICK
    @given(SIZES, st.data())
    def test_in_one_process_is_what_would_have_followed(self, sizes: list[int], data: st.DataObject) -> None:
        (feed,) = feeds(sizes, 1)
        whole = [batch.users.tolist() for batch in feed.epoch(0)]
        steps = data.draw(st.integers(0, len(whole)))
        left = feed.remaining(0, None, steps)
        assert [batch.users.tolist() for batch in feed.epoch(0, left)] == whole[steps:]
        more = data.draw(st.integers(0, len(whole) - steps))
        assert feed.remaining(0, left, more) == feed.remaining(0, None, steps + more)

    def test_is_nothing_after_an_epoch_that_used_all(self) -> None:
        (feed,) = feeds([16, 8], 1)
        assert feed.remaining(0, None, feed.steps()) == []

    def test_is_plain_data(self) -> None:
        (feed,) = feeds([7, 9], 1)
        left = feed.remaining(0, None, 1)
        assert [EpochSlice(*numbers) for numbers in [list(piece) for piece in left]] == left


class TestThreads:
    @staticmethod
    def names() -> set[int | None]:
        return {thread.ident for thread in threading.enumerate()}

    def test_end_with_an_epoch(self) -> None:
        before = self.names()
        list(feeds([50] * 10, 1)[0].epoch(0))
        assert self.names() == before

    def test_end_when_the_consumer_stops_early(self) -> None:
        before = self.names()
        batches = feeds([50] * 100, 1, readers=4)[0].epoch(0)
        next(batches)
        assert self.names() > before
        batches.close()
        assert self.names() == before

    def test_end_when_the_consumer_fails(self) -> None:
        before = self.names()

        def consume() -> None:
            for _ in feeds([50] * 100, 1, readers=4)[0].epoch(0):
                raise RuntimeError("no more")

        with pytest.raises(RuntimeError):
            consume()
        assert self.names() == before

    def test_read_no_further_ahead_than_a_block(self) -> None:
        log, read = Numbered([CHUNK_ROWS] * 12), []
        training = TrainingConfig(batch_size=512, shuffle_rows=2 * CHUNK_ROWS, readers=2)

        def noted(table: pa.Table) -> LabeledBatch:
            read.append(table.num_rows)
            return numbered(table)

        batches = BatchLoader(log, log.index, noted, LOGS, training).epoch(0)  # type: ignore[arg-type]
        for _ in range(20):
            next(batches)
        assert len(read) <= 4  # the block that is used, and one more
        batches.close()

    def test_hand_errors_to_the_consumer(self) -> None:
        log = Numbered([50] * 10)
        training = TrainingConfig(batch_size=10, shuffle_rows=10)
        before = self.names()

        def failing(table: pa.Table) -> LabeledBatch:
            if 222 in table["n"].to_pylist():
                raise MemoryError("too large")
            return numbered(table)

        with pytest.raises(MemoryError, match="too large"):
            list(BatchLoader(log, log.index, failing, LOGS, training).epoch(0))  # type: ignore[arg-type]
        assert self.names() == before


class Fed:
    """A shop's log with its survey and an encoder."""

    def __init__(self, shop: Shop) -> None:
        fitter = EncoderFitter(shop.schema)
        self.shop = shop
        self.index = profile_log(shop.reader(), shop.logs(), shop.schema, on_train=fitter.add).index
        self.encoder = fitter.encoder()

    def feed(self, split: str = "train", **how: Any) -> BatchLoader:
        training = TrainingConfig(batch_size=10, shuffle_rows=20)
        make: Callable[[pa.Table], LabeledBatch] = lambda table: LabeledBatch.from_table(table, self.encoder)  # noqa: E731
        return BatchLoader(self.shop.reader(), self.index, make, self.shop.logs(), training, split, **how)


class TestOfALog:
    def test_gives_what_a_pass_over_the_log_gives(self, shop: Shop) -> None:
        table = shop.with_value(shop.with_value(shop.table(200), "item_id", 5, None), "is_click", 171, 3)
        for i in range(4):
            part = table.slice(50 * i, 50)
            shop.write(
                pa.concat_tables([part, part.slice(7, 9)]), f"date=2026-01-0{i + 1}/part.parquet", row_group_size=13
            )
        fed = Fed(shop)
        for split, time_range in {
            "train": TimeRange(None, shop.logs().validation_from),
            "validation": TimeRange(shop.logs().validation_from, shop.logs().test_from),
        }.items():
            whole = LabeledBatch.concat(
                [LabeledBatch.from_table(c.rows, fed.encoder) for c in shop.reader().scan(time_range)]
            )
            read = LabeledBatch.concat(list(fed.feed(split, shuffle=False).epoch(0)))
            assert np.array_equal(read.inputs.dense, whole.inputs.dense)
            assert np.array_equal(read.inputs.ids, whole.inputs.ids)
            assert np.array_equal(read.labels, whole.labels, equal_nan=True)
            assert np.array_equal(read.users, whole.users)

    def test_a_file_that_changed_meanwhile_is_named(self, shop: Shop) -> None:
        table = shop.table(100)
        shop.write(table.slice(0, 50), "part-0.parquet")
        file = shop.write(table.slice(50), "part-1.parquet")
        fed = Fed(shop)
        shop.write(shop.with_value(table.slice(50), "price", 3, 7e6), "part-1.parquet")
        with pytest.raises(LogError, match="changed after the log was indexed; restore it, or train again") as caught:
            list(fed.feed().epoch(0))
        assert str(caught.value).startswith(f"{file}: ")

    @pytest.mark.parametrize("when", ["before the log is opened", "after"])
    def test_a_file_that_was_removed_meanwhile_is_named(self, shop: Shop, when: str) -> None:
        table = shop.table(100)
        shop.write(table.slice(0, 50), "part-0.parquet")
        file = shop.write(table.slice(50), "part-1.parquet")
        fed = Fed(shop)
        feed = fed.feed() if when == "after" else None
        file.unlink()
        with pytest.raises(LogError, match=r"part-1\.parquet: was removed after the log was indexed"):
            list((feed or fed.feed()).epoch(0))

    def test_a_file_that_is_damaged_meanwhile_is_named(self, shop: Shop) -> None:
        file = shop.write(shop.table(1000))
        fed = Fed(shop)
        content = bytearray(file.read_bytes())
        content[4 : len(content) // 2] = b"\xff" * (len(content) // 2 - 4)
        file.write_bytes(content)
        with pytest.raises(LogError, match="cannot be read") as caught:
            list(fed.feed().epoch(0))
        assert str(caught.value).startswith(f"{file}: ")

    @pytest.mark.parametrize("shuffled", [True, False])
    def test_a_row_group_larger_than_a_block_is_read_in_parts_and_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffled: bool
    ) -> None:
        rows = 4 * CHUNK_ROWS + 500
        schema = Schema.model_validate(
            {
                "name": "s",
                "features": [{"name": "item_id", "kind": "categorical", "owner": "item", "hash_buckets": 9}],
                "tasks": [{"name": "watch", "kind": "regression"}],
            }
        )
        n = np.arange(rows)
        moments = np.datetime64(FIRST_DAY, "us") + n.astype("timedelta64[us]")
        table = {"time": moments, "user_id": n % 7, "item_id": n % 50, "watch": n}
        pq.write_table(pa.table(table), tmp_path / "log.parquet", row_group_size=rows)
        logs = LOGS.model_copy(
            update={
                "path": tmp_path / "log.parquet",
                "validation_from": LOGS.test_from,
                "test_from": LOGS.test_from.replace(day=3),
            }
        )
        reader, fitter = LogReader(logs.path, schema, {}), EncoderFitter(schema)
        index = profile_log(reader, logs, schema, on_train=fitter.add).index
        assert [entry.chunk.start for entry in index.entries] == [i * CHUNK_ROWS for i in range(5)]
        encoder = fitter.encoder()
        training = TrainingConfig(batch_size=1000, shuffle_rows=CHUNK_ROWS, readers=3)
        feed = BatchLoader(
            reader, index, lambda table: LabeledBatch.from_table(table, encoder), logs, training, shuffle=shuffled
        )
        assert len(feed._blocks(0)) == 5
        decoded: list[int] = []

        def batches(parquet: pq.ParquetFile, *how: Any, **more: Any) -> Iterator[pa.RecordBatch]:
            for batch in whole(parquet, *how, **more):
                decoded.append(batch.num_rows)
                yield batch

        whole = pq.ParquetFile.iter_batches
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", batches)
        read = np.concatenate([batch.labels[:, 0] for batch in feed.epoch(0)])
        assert np.array_equal(np.sort(read), np.arange(rows))
        assert sum(decoded) == rows
