from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
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
from pipelines.data.reader import LogReader
from pipelines.data.splits import TimeRange
from pipelines.inspection.profile import profile_log
from pipelines.training.dataloader import BatchLoader, EpochSlice
from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.errors import ConfigError, LogError
from ranking.schema import Schema
from tests.pipelines.conftest import FIRST_DAY, Shop


class NumberedLog:
    """Fake reader of a log with files of these sizes, whose rows are numbered from 0."""

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


def encode_numbers(table: pa.Table) -> LabeledBatch:
    """Encode a table so that all parts of row n contain n."""
    n = table["n"].to_numpy().astype(np.int64)
    numbers = n.astype(np.float32)
    inputs = EncodedBatch(n[:, None], (), numbers[:, None], n[:, None] < 0)
    return LabeledBatch(inputs, numbers[:, None], n, numbers)


def encode_groups_of_three(table: pa.Table) -> LabeledBatch:
    """Encode a table as ``encode_numbers`` does, with rows 0 to 2 as a group of the ranking loss, rows 3 to 5, …"""
    batch = encode_numbers(table)
    return replace(batch, groups=1 + batch.users // 3)


def make_loaders(
    sizes: list[int], world_size: int, *, shuffle: bool = True, encode: Any = encode_numbers, **options: Any
) -> list[BatchLoader]:
    """Return the loaders of all ranks."""
    log = NumberedLog(sizes)
    training = TrainingConfig(**{"batch_size": 4 * world_size, "shuffle_rows": 10, **options})
    return [
        BatchLoader(log, log.index, encode, LOGS, training, shuffle=shuffle, rank=rank, world_size=world_size)  # type: ignore[arg-type]
        for rank in range(world_size)
    ]


def rows(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch.users.tolist()]


SIZES = st.lists(st.integers(1, 25), min_size=1, max_size=8)
WORLD_SIZES = st.integers(1, 4)
QUICK = settings(max_examples=60)


@QUICK
@given(SIZES, WORLD_SIZES, st.integers(1, 30), st.integers(0, 3))
def test_epoch_over_all_ranks_yields_every_row_once_except_a_dropped_last_batch(
    sizes: list[int], world_size: int, block: int, epoch: int
) -> None:
    loaders = make_loaders(sizes, world_size, shuffle_rows=block)
    batches_by_rank = [list(loader.epoch(epoch)) for loader in loaders]
    read = [n for batches in batches_by_rank for n in rows(batches)]
    assert len(set(read)) == len(read)
    assert set(read) <= set(range(sum(sizes)))
    assert sum(sizes) - len(read) < 2 * world_size
    assert {len(batches) for batches in batches_by_rank} == {loaders[0].steps()}


@QUICK
@given(st.integers(2, 60), WORLD_SIZES, st.integers(0, 3))
def test_epoch_keeps_groups_of_the_ranking_loss_together(size: int, world_size: int, epoch: int) -> None:
    loaders = make_loaders([size], world_size, encode=encode_groups_of_three, shuffle_rows=100)
    read = [rows(loader.epoch(epoch)) for loader in loaders]
    assert len({n for part in read for n in part}) == sum(map(len, read)) >= size - 2 * world_size
    for part in read:
        runs = [group for group, _ in groupby(n // 3 for n in part)]
        assert len(runs) == len(set(runs))


@QUICK
@given(SIZES, WORLD_SIZES)
def test_epoch_yields_full_batches_except_the_last(sizes: list[int], world_size: int) -> None:
    for loader in make_loaders(sizes, world_size):
        *full, last = [len(batch) for batch in loader.epoch(0)] or [2]
        assert all(size == 4 for size in full)
        assert 2 <= last <= 4


@QUICK
@given(SIZES, WORLD_SIZES)
def test_epoch_without_shuffling_yields_every_row_in_order(sizes: list[int], world_size: int) -> None:
    loaders = make_loaders(sizes, world_size, shuffle=False)
    batches_by_rank = [list(loader.epoch(0)) for loader in loaders]
    labels = [batch.labels[:, 0] for batches in batches_by_rank for batch in batches]
    assert [n for part in labels for n in part[~np.isnan(part)]] == list(range(sum(sizes)))
    assert {len(batches) for batches in batches_by_rank} == {loaders[0].steps()}


@QUICK
@given(SIZES, WORLD_SIZES, st.booleans())
def test_epoch_yields_batches_of_the_same_sizes_on_all_ranks(sizes: list[int], world_size: int, shuffle: bool) -> None:
    """Collective operations of sharded tables need equal sizes."""
    loaders = make_loaders(sizes, world_size, shuffle=shuffle)
    assert len({tuple(len(batch) for batch in loader.epoch(0)) for loader in loaders}) == 1


@QUICK
@given(SIZES, st.integers(0, 100))
def test_epoch_order_does_not_depend_on_the_number_of_threads(sizes: list[int], seed: int) -> None:
    orders = {
        tuple(rows(make_loaders(sizes, 1, seed=seed, readers=readers, shuffle_rows=block)[0].epoch(1)))
        for readers, block in ((1, 10), (3, 10), (8, 10))
    }
    assert len(orders) == 1


def test_epoch_order_depends_on_seed_and_epoch() -> None:
    orders = {
        tuple(rows(make_loaders([40], 1, seed=s, shuffle_rows=40)[0].epoch(e))) for s in range(3) for e in range(3)
    }
    assert len(orders) == 9


def test_epoch_shuffles_files_and_rows_independently() -> None:
    (loader,) = make_loaders([1] * 30, 1, shuffle_rows=30)
    order = [int(run[0].chunk.file.split(".")[0]) for block in loader._blocks(0) for run in block]
    assert sorted(order) == list(range(30))
    assert rows(loader.epoch(0)) != [order[n] for n in order]


def test_epoch_mixes_all_files_of_a_block() -> None:
    (loader,) = make_loaders([100, 100, 100], 1, batch_size=60, shuffle_rows=300)
    assert {n // 100 for n in next(loader.epoch(0)).users.tolist()} == {0, 1, 2}


def test_epoch_without_rows_is_empty() -> None:
    for shuffle in (True, False):
        (loader,) = make_loaders([], 1, shuffle=shuffle)
        assert loader.steps() == 0
        assert list(loader.epoch(0)) == []


def test_epoch_keeps_all_parts_of_a_row_together() -> None:
    for batch in make_loaders([30, 20], 1)[0].epoch(0):
        assert batch.inputs.ids[:, 0].tolist() == batch.users.tolist() == batch.labels[:, 0].tolist()


def test_batch_size_that_is_not_a_multiple_of_the_ranks_raises_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"training\.batch_size = 10 cannot be divided among 4 processes"):
        make_loaders([10], 4, batch_size=10)


@QUICK
@given(SIZES, WORLD_SIZES, WORLD_SIZES, st.data())
def test_remaining_rows_are_yielded_once_by_another_number_of_ranks(
    sizes: list[int], before: int, after: int, data: st.DataObject
) -> None:
    loaders = make_loaders(sizes, before)
    steps = data.draw(st.integers(0, loaders[0].steps()))
    read = [n for loader in loaders for n in rows(list(loader.epoch(2))[:steps])]
    remaining_slices = loaders[0].remaining(2, None, steps)
    left_out = sum(sizes) - len(read) - sum(epoch_slice.rows for epoch_slice in remaining_slices)
    assert 0 <= left_out < before
    assert steps == loaders[0].steps() or not left_out
    rest = [n for loader in make_loaders(sizes, after) for n in rows(loader.epoch(2, remaining_slices))]
    assert len(set(read + rest)) == len(read) + len(rest)
    assert sum(sizes) - left_out - len(read) - len(rest) < 2 * after


@QUICK
@given(SIZES, st.data())
def test_remaining_batches_in_one_process_equal_those_of_the_whole_epoch(sizes: list[int], data: st.DataObject) -> None:
    (loader,) = make_loaders(sizes, 1)
    whole = [batch.users.tolist() for batch in loader.epoch(0)]
    steps = data.draw(st.integers(0, len(whole)))
    remaining_slices = loader.remaining(0, None, steps)
    assert [batch.users.tolist() for batch in loader.epoch(0, remaining_slices)] == whole[steps:]
    more = data.draw(st.integers(0, len(whole) - steps))
    assert loader.remaining(0, remaining_slices, more) == loader.remaining(0, None, steps + more)


def test_remaining_after_a_complete_epoch_is_empty() -> None:
    (loader,) = make_loaders([16, 8], 1)
    assert loader.remaining(0, None, loader.steps()) == []


def test_remaining_slices_survive_conversion_to_lists() -> None:
    (loader,) = make_loaders([7, 9], 1)
    remaining_slices = loader.remaining(0, None, 1)
    assert [
        EpochSlice(*numbers) for numbers in [list(epoch_slice) for epoch_slice in remaining_slices]
    ] == remaining_slices


def thread_ids() -> set[int | None]:
    return {thread.ident for thread in threading.enumerate()}


def test_threads_end_with_the_epoch() -> None:
    before = thread_ids()
    list(make_loaders([50] * 10, 1)[0].epoch(0))
    assert thread_ids() <= before


def test_threads_end_when_the_iterator_is_closed() -> None:
    before = thread_ids()
    batches = make_loaders([50] * 100, 1, readers=4)[0].epoch(0)
    next(batches)
    assert thread_ids() - before
    batches.close()
    assert thread_ids() <= before


def test_threads_end_when_the_consumer_raises() -> None:
    before = thread_ids()

    def consume() -> None:
        for _ in make_loaders([50] * 100, 1, readers=4)[0].epoch(0):
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        consume()
    assert thread_ids() <= before


def test_threads_read_at_most_one_block_ahead() -> None:
    log, read = NumberedLog([CHUNK_ROWS] * 12), []
    training = TrainingConfig(batch_size=512, shuffle_rows=2 * CHUNK_ROWS, readers=2)

    def encode_and_count(table: pa.Table) -> LabeledBatch:
        read.append(table.num_rows)
        return encode_numbers(table)

    batches = BatchLoader(log, log.index, encode_and_count, LOGS, training).epoch(0)  # type: ignore[arg-type]
    for _ in range(20):
        next(batches)
    assert len(read) <= 4  # the current block and the next one
    batches.close()


def test_error_in_a_thread_is_raised_in_the_consumer() -> None:
    log = NumberedLog([50] * 10)
    training = TrainingConfig(batch_size=10, shuffle_rows=10)
    before = thread_ids()

    def encode_or_fail(table: pa.Table) -> LabeledBatch:
        if 222 in table["n"].to_pylist():
            raise MemoryError("too large")
        return encode_numbers(table)

    with pytest.raises(MemoryError, match="too large"):
        list(BatchLoader(log, log.index, encode_or_fail, LOGS, training).epoch(0))  # type: ignore[arg-type]
    assert thread_ids() <= before


class ProfiledLog:
    """A log with its index and a fitted encoder."""

    def __init__(self, shop: Shop) -> None:
        fitter = EncoderFitter(shop.schema)
        self.shop = shop
        self.index = profile_log(shop.reader(), shop.logs(), shop.schema, fitters=[fitter]).index
        self.encoder = fitter.encoder()

    def loader(self, split: str = "train", **options: Any) -> BatchLoader:
        training = TrainingConfig(batch_size=10, shuffle_rows=20)
        make: Callable[[pa.Table], LabeledBatch] = lambda table: LabeledBatch.from_table(table, self.encoder)  # noqa: E731
        return BatchLoader(self.shop.reader(), self.index, make, self.shop.logs(), training, split, **options)


def test_epoch_of_a_log_equals_a_scan_of_the_log(shop: Shop) -> None:
    table = shop.with_value(shop.with_value(shop.table(200), "item_id", 5, None), "is_click", 171, 3)
    for i in range(4):
        part = table.slice(50 * i, 50)
        shop.write(pa.concat_tables([part, part.slice(7, 9)]), f"date=2026-01-0{i + 1}/part.parquet", row_group_size=13)
    profiled = ProfiledLog(shop)
    for split, time_range in {
        "train": TimeRange(None, shop.logs().validation_from),
        "validation": TimeRange(shop.logs().validation_from, shop.logs().test_from),
    }.items():
        whole = LabeledBatch.concat(
            [LabeledBatch.from_table(c.rows, profiled.encoder) for c in shop.reader().scan(time_range)]
        )
        read = LabeledBatch.concat(list(profiled.loader(split, shuffle=False).epoch(0)))
        assert np.array_equal(read.inputs.dense, whole.inputs.dense)
        assert np.array_equal(read.inputs.ids, whole.inputs.ids)
        assert np.array_equal(read.labels, whole.labels, equal_nan=True)
        assert np.array_equal(read.users, whole.users)


def test_epoch_with_a_changed_file_raises_a_log_error_that_names_it(shop: Shop) -> None:
    table = shop.table(100)
    shop.write(table.slice(0, 50), "part-0.parquet")
    file = shop.write(table.slice(50), "part-1.parquet")
    profiled = ProfiledLog(shop)
    shop.write(shop.with_value(table.slice(50), "price", 3, 7e6), "part-1.parquet")
    with pytest.raises(LogError, match="changed after the log was indexed; restore it, or train again") as caught:
        list(profiled.loader().epoch(0))
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize("when", ["before the log is opened", "after"])
def test_epoch_with_a_removed_file_raises_a_log_error_that_names_it(shop: Shop, when: str) -> None:
    table = shop.table(100)
    shop.write(table.slice(0, 50), "part-0.parquet")
    file = shop.write(table.slice(50), "part-1.parquet")
    profiled = ProfiledLog(shop)
    loader = profiled.loader() if when == "after" else None
    file.unlink()
    with pytest.raises(LogError, match=r"part-1\.parquet: was removed after the log was indexed"):
        list((loader or profiled.loader()).epoch(0))


def test_epoch_with_a_damaged_file_raises_a_log_error_that_names_it(shop: Shop) -> None:
    file = shop.write(shop.table(1000))
    profiled = ProfiledLog(shop)
    content = bytearray(file.read_bytes())
    content[4 : len(content) // 2] = b"\xff" * (len(content) // 2 - 4)
    file.write_bytes(content)
    with pytest.raises(LogError, match="cannot be read") as caught:
        list(profiled.loader().epoch(0))
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize("shuffle", [True, False])
def test_epoch_decodes_a_row_group_larger_than_a_block_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
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
    index = profile_log(reader, logs, schema, fitters=[fitter]).index
    assert [entry.chunk.start for entry in index.entries] == [i * CHUNK_ROWS for i in range(5)]
    encoder = fitter.encoder()
    training = TrainingConfig(batch_size=1000, shuffle_rows=CHUNK_ROWS, readers=3)
    loader = BatchLoader(
        reader, index, lambda table: LabeledBatch.from_table(table, encoder), logs, training, shuffle=shuffle
    )
    assert len(loader._blocks(0)) == 5
    decoded: list[int] = []

    def counted_batches(parquet: pq.ParquetFile, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in iter_batches(parquet, *args, **options):
            decoded.append(batch.num_rows)
            yield batch

    iter_batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted_batches)
    read = np.concatenate([batch.labels[:, 0] for batch in loader.epoch(0)])
    assert np.array_equal(np.sort(read), np.arange(rows))
    assert sum(decoded) == rows
