"""Batches of an epoch: read in threads, shuffled in blocks, divided among ranks, resumable at any batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate, chain, groupby, islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.config.config import LogsConfig, TrainingConfig
from pipelines.data.index import IndexedChunk, LogIndex
from pipelines.data.parquet import CHUNK_ROWS
from pipelines.data.reader import LogReader, as_log_error
from pipelines.training.labeled_batch import LabeledBatch
from pipelines.training.prefetch import SharedIterator, ordered_map, prefetch
from pipelines.training.ranking_groups import permute_groups
from ranking.errors import ConfigError

PREFETCHED_BATCHES = 8
"""Maximum number of batches that wait for the trainer. They cover the time in which the next block is assembled."""
GROUP_STREAM, ROW_STREAM = 0, 1
"""Identify the random streams of an epoch: the order of the row groups, and from 1 the rows of block 0, 1, …"""


class EpochSlice(NamedTuple):
    """Positions [start, stop) in the shuffled order of a block."""

    block: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


class ReadTask(NamedTuple):
    """Consecutive chunks of one file in one block, and a function that reads them, one table per chunk."""

    entries: list[IndexedChunk]
    read: Callable[[], list[pa.Table]]


class BatchLoader:
    """Batches of one split of a log for one rank.

    The row groups of the log (adjacent small ones as one unit), in an order drawn for the epoch, are cut into blocks of
    at least ``shuffle_rows`` rows, and the rows of each block are permuted; rows of a group of the ranking loss stay
    adjacent. An epoch is the sequence of the blocks. The ranks read consecutive parts of it. All have batches of the
    same size; fewer than two rows per rank are left out. The rows read do not depend on the number of threads.

    Without shuffling, the loader returns every row in log order. Several ranks take the same number of steps with
    batches of the same size, the last of which may contain copies of a row without labels.

    Args:
        reader: the log.
        index: usable rows of the log.
        encode: encodes a table of clean rows; called in threads.
        logs: boundaries of the splits.
        settings: batch size (over all ranks), shuffling and threads.
        split: the split to read.
        shuffle: shuffle, and drop a last batch that is too small to train on.
        rank: rank of this process, from 0.
        world_size: number of ranks.

    Raises:
        ConfigError: the batch size is not a multiple of the number of ranks.
    """

    def __init__(
        self,
        reader: LogReader,
        index: LogIndex,
        encode: Callable[[pa.Table], LabeledBatch],
        logs: LogsConfig,
        settings: TrainingConfig,
        split: str = "train",
        *,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if settings.batch_size % world_size:
            raise ConfigError(
                f"training.batch_size = {settings.batch_size} cannot be divided among {world_size} processes: "
                f"choose a multiple of {world_size}"
            )
        self._reader, self._encode, self._logs, self._settings = reader, encode, logs, settings
        self._split, self._shuffle, self._rank, self._world_size = split, shuffle, rank, world_size
        self._units = index.read_units(split)
        self._batch_size = settings.batch_size // world_size
        self.rows = index.num_rows(split)

    def steps(self, slices: Sequence[EpochSlice] | None = None) -> int:
        """Return the number of batches of an epoch or of these slices, which is the same on every rank.

        With shuffling, a last batch of fewer than two rows per rank is dropped, because batch norm needs two.
        """
        rows = self.rows if slices is None else _total_rows(slices)
        if not self._shuffle:
            return -(-rows // self._settings.batch_size)
        full, rest = divmod(rows, self._settings.batch_size)
        return full + (rest // self._world_size >= 2)

    def epoch(self, epoch: int, slices: Sequence[EpochSlice] | None = None) -> Generator[LabeledBatch, None, None]:
        """Return this rank's batches of an epoch, or of slices of it.

        Closing or dropping the iterator ends its threads.

        Raises:
            LogError: the log has changed since it was profiled, or cannot be read.
        """
        return prefetch(self._batches(epoch, slices), PREFETCHED_BATCHES)

    def remaining(self, epoch: int, slices: Sequence[EpochSlice] | None, steps: int) -> list[EpochSlice]:
        """Return the slices that all ranks together have not read after ``steps`` batches of an epoch or of slices.

        In a single process, reading them yields the batches that would have followed.
        """
        all_slices = self._full_epoch(epoch) if slices is None else slices
        parts = (_rank_part(all_slices, rank, self._world_size) for rank in range(self._world_size))
        return [rest for part in parts for rest in _cut(part, steps * self._batch_size, _total_rows(part))]

    def _full_epoch(self, epoch: int) -> list[EpochSlice]:
        return [EpochSlice(i, 0, sum(map(self._count_rows, block))) for i, block in enumerate(self._blocks(epoch))]

    def _count_rows(self, entries: Sequence[IndexedChunk]) -> int:
        return sum(entry.rows_by_split[self._split] for entry in entries)

    def _blocks(self, epoch: int) -> list[list[list[IndexedChunk]]]:
        """Return the blocks of an epoch, as runs of entries to read at once; a unit may span two blocks."""
        units, min_rows = self._units, CHUNK_ROWS
        if self._shuffle:
            order = np.random.default_rng((self._settings.seed, epoch, GROUP_STREAM)).permutation(len(units))
            units, min_rows = [units[i] for i in order], self._settings.shuffle_rows
        blocks: list[list[tuple[int, IndexedChunk]]] = []
        rows = min_rows
        for unit, entry in ((unit, entry) for unit, entries in enumerate(units) for entry in entries):
            if rows >= min_rows:
                blocks.append([])
                rows = 0
            blocks[-1].append((unit, entry))
            rows += entry.rows_by_split[self._split]
        return [[[entry for _, entry in run] for _, run in groupby(block, itemgetter(0))] for block in blocks]

    def _batches(self, epoch: int, slices: Sequence[EpochSlice] | None) -> Generator[LabeledBatch, None, None]:
        all_slices = self._full_epoch(epoch) if slices is None else slices
        # A rank without rows still reads one block, for a row to fill its batch with.
        part = _rank_part(all_slices, self._rank, self._world_size)
        if self._shuffle:  # as many rows as the other ranks
            part = _cut(part, 0, _total_rows(all_slices) // self._world_size)
        part = part or [epoch_slice._replace(stop=epoch_slice.start) for epoch_slice in all_slices[:1]]
        steps, blocks = self.steps(slices), self._blocks(epoch)
        runs = [blocks[epoch_slice.block] for epoch_slice in part]
        threads = self._settings.readers
        max_rows = max(self._settings.shuffle_rows, threads * CHUNK_ROWS)
        fragments: list[LabeledBatch] = []
        missing = self._batch_size
        tasks = self._read_tasks(chain.from_iterable(runs))
        with closing(
            ordered_map(self._read_batch, tasks, threads, lambda task: self._count_rows(task.entries), max_rows)
        ) as encoded:
            for epoch_slice, block_runs in zip(part, runs, strict=True):
                block = LabeledBatch.concat(list(islice(encoded, len(block_runs))))
                order = self._row_order(epoch, epoch_slice, block)
                for rows in np.split(order, range(missing, len(order), self._batch_size)):
                    fragments.append(block.take(rows))
                    missing -= len(rows)
                    if steps and not missing:
                        yield LabeledBatch.concat(fragments)
                        fragments, missing, steps = [], self._batch_size, steps - 1
                filler = block.take(np.zeros(1, np.int64)) if not self._shuffle and self._world_size > 1 else None
                del block  # frees its memory before the next block is assembled
        if steps:
            if filler is not None:
                fragments.append(filler.take(np.zeros(missing, np.int64)).without_labels())
            yield LabeledBatch.concat(fragments)

    def _row_order(self, epoch: int, epoch_slice: EpochSlice, block: LabeledBatch) -> npt.NDArray[np.int64]:
        """Return the rows of a block that belong to a slice, in reading order."""
        if not self._shuffle:
            return np.arange(epoch_slice.start, epoch_slice.stop)
        random = np.random.default_rng((self._settings.seed, epoch, ROW_STREAM + epoch_slice.block))
        order = random.permutation(len(block)) if block.groups is None else permute_groups(block.groups, random)
        return order[epoch_slice.start : epoch_slice.stop]

    def _read_tasks(self, runs: Iterable[list[IndexedChunk]]) -> Iterator[ReadTask]:
        """Yield one task per run; runs in the same row group share an iterator, so that it is decoded once."""
        for adjacent_runs in _group_by_row_group(runs):
            tables = SharedIterator(
                self._reader.read_indexed(list(chain.from_iterable(adjacent_runs)), self._split, self._logs)
            )
            yield from (ReadTask(run, tables.reserve(len(run))) for run in adjacent_runs)

    def _read_batch(self, task: ReadTask) -> LabeledBatch:
        with as_log_error(task.entries[0].chunk.file):
            return LabeledBatch.concat([self._encode(table) for table in task.read()])


def _group_by_row_group(runs: Iterable[list[IndexedChunk]]) -> Iterator[list[list[IndexedChunk]]]:
    """Group consecutive runs of which each continues in the row group in which the previous one ended."""
    group: list[list[IndexedChunk]] = []
    for run in runs:
        last, first = group[-1][-1].chunk if group else None, run[0].chunk
        if last and (last.file, last.group) == (first.file, first.group) and last.start < first.start:
            group.append(run)
            continue
        if group:
            yield group
        group = [run]
    if group:
        yield group


def _total_rows(slices: Sequence[EpochSlice]) -> int:
    return sum(epoch_slice.rows for epoch_slice in slices)


def _rank_part(slices: Sequence[EpochSlice], rank: int, world_size: int) -> list[EpochSlice]:
    """Return the part of the rows that a rank reads; parts differ by at most one row."""
    rows = _total_rows(slices)
    return _cut(slices, rank * rows // world_size, (rank + 1) * rows // world_size)


def _cut(slices: Sequence[EpochSlice], start: int, stop: int) -> list[EpochSlice]:
    """Return rows [start, stop) of the concatenated slices."""
    cut = []
    ends = accumulate(epoch_slice.rows for epoch_slice in slices)
    for epoch_slice, end in zip(slices, ends, strict=True):
        offset = epoch_slice.start - (end - epoch_slice.rows)
        first, last = max(epoch_slice.start, start + offset), min(epoch_slice.stop, stop + offset)
        if first < last:
            cut.append(EpochSlice(epoch_slice.block, first, last))
    return cut
