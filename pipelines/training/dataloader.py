"""The batches of an epoch: read ahead by threads, shuffled in blocks, divided among ranks, continued anywhere."""

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
from ranking.errors import ConfigError

BATCHES_AHEAD = 8
"""Batches that wait for the trainer; they bridge the moment in which a block is put together."""
ORDER, ROWS = 0, 1
"""What a random generator is for: the order of the row groups, or (from here on) the rows of a block."""


class EpochSlice(NamedTuple):
    """Positions [start, stop) in the shuffled order of a block."""

    block: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start


class Read(NamedTuple):
    """Neighbouring chunks of one file, which belong to one block, and what reads a table of each."""

    run: list[IndexedChunk]
    tables: Callable[[], list[pa.Table]]


class BatchLoader:
    """Batches of one split of a log for one rank.

    The row groups of the log (small neighbours together), in an order drawn for the epoch, are cut into blocks of at
    least ``shuffle_rows`` rows, and each block's rows are permuted. The blocks one after the other are the epoch; the
    ranks take consecutive parts of it that differ by a row at most. What is read does not depend on the number of
    threads or, taken over all ranks, on that of ranks.

    Not shuffled, a feed gives the rows in order of the log and every one of them: its last batch may hold one row or
    none on some ranks, so that all ranks take equally many steps.

    Args:
        reader: the log.
        index: what its survey found.
        encode: makes examples of completed rows; called by threads.
        logs: how time splits the log.
        settings: batch size (of all ranks together), shuffling and threads.
        split: which rows.
        shuffled: for training; else for measuring.
        rank: this process, from 0.
        world: number of processes.

    Raises:
        ConfigError: the batch size cannot be divided among the ranks.
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
        shuffled: bool = True,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if settings.batch_size % world:
            raise ConfigError(
                f"training.batch_size = {settings.batch_size} cannot be divided among {world} processes: "
                f"choose a multiple of {world}"
            )
        self._reader, self._encode, self._logs, self._settings = reader, encode, logs, settings
        self._split, self._shuffled, self._rank, self._world = split, shuffled, rank, world
        self._units = index.read_units(split)
        self._batch = settings.batch_size // world
        self.rows = index.num_rows(split)

    def steps(self, pieces: Sequence[EpochSlice] | None = None) -> int:
        """Batches of an epoch, or of these pieces: the same on every rank.

        A shuffled feed leaves out a last batch of fewer than two rows a rank, which batch norm cannot use.
        """
        rows = self.rows if pieces is None else _total(pieces)
        if not self._shuffled:
            return -(-rows // self._settings.batch_size)
        full, rest = divmod(rows, self._settings.batch_size)
        return full + (rest // self._world >= 2)

    def epoch(self, epoch: int, pieces: Sequence[EpochSlice] | None = None) -> Generator[LabeledBatch, None, None]:
        """This rank's batches of an epoch, or of the pieces of it that are left.

        Close the iterator (or let it go) to end its threads before its end.

        Raises:
            LogError: the log changed since its survey, or cannot be read.
        """
        return prefetch(self._batches(epoch, pieces), BATCHES_AHEAD)

    def remaining(self, epoch: int, pieces: Sequence[EpochSlice] | None, steps: int) -> list[EpochSlice]:
        """What all ranks together have not read after so many batches of an epoch, or of pieces of it.

        In one process, going on with it gives the batches that would have followed.
        """
        every = self._every(epoch) if pieces is None else pieces
        shares = (_share(every, rank, self._world) for rank in range(self._world))
        return [piece for share in shares for piece in _cut(share, steps * self._batch, _total(share))]

    def _every(self, epoch: int) -> list[EpochSlice]:
        return [EpochSlice(i, 0, sum(map(self._rows_of, block))) for i, block in enumerate(self._blocks(epoch))]

    def _rows_of(self, entries: Sequence[IndexedChunk]) -> int:
        return sum(entry.rows_by_split[self._split] for entry in entries)

    def _blocks(self, epoch: int) -> list[list[list[IndexedChunk]]]:
        """The epoch's blocks of what is read at once; a unit of the index may begin in one and end in the next."""
        units, least = self._units, CHUNK_ROWS
        if self._shuffled:
            order = np.random.default_rng((self._settings.seed, epoch, ORDER)).permutation(len(units))
            units, least = [units[i] for i in order], self._settings.shuffle_rows
        blocks: list[list[tuple[int, IndexedChunk]]] = []
        rows = least
        for unit, entry in ((unit, entry) for unit, entries in enumerate(units) for entry in entries):
            if rows >= least:
                blocks.append([])
                rows = 0
            blocks[-1].append((unit, entry))
            rows += entry.rows_by_split[self._split]
        return [[[entry for _, entry in run] for _, run in groupby(block, itemgetter(0))] for block in blocks]

    def _batches(self, epoch: int, pieces: Sequence[EpochSlice] | None) -> Generator[LabeledBatch, None, None]:
        every = self._every(epoch) if pieces is None else pieces
        # A rank without a row reads a block all the same, for the shape of its empty batch.
        share = _share(every, self._rank, self._world) or [piece._replace(stop=piece.start) for piece in every[:1]]
        steps, blocks = self.steps(pieces), self._blocks(epoch)
        runs = [blocks[piece.block] for piece in share]
        threads = self._settings.readers
        most = max(self._settings.shuffle_rows, threads * CHUNK_ROWS)
        held: list[LabeledBatch] = []
        missing = self._batch
        reads = self._reads(chain.from_iterable(runs))
        with closing(ordered_map(self._examples, reads, threads, lambda read: self._rows_of(read.run), most)) as read:
            for piece, own in zip(share, runs, strict=True):
                block = LabeledBatch.concat(list(islice(read, len(own))))
                order = self._order(epoch, piece, len(block))
                for rows in np.split(order, range(missing, len(order), self._batch)):
                    held.append(block.take(rows))
                    missing -= len(rows)
                    if steps and not missing:
                        last = LabeledBatch.concat(held)
                        yield last
                        held, missing, steps = [], self._batch, steps - 1
                del block  # before the next one is put together
        if steps:
            yield LabeledBatch.concat(held) if held else last.take(np.empty(0, np.int64))

    def _order(self, epoch: int, piece: EpochSlice, rows: int) -> npt.NDArray[np.int64]:
        """Rows of a block that a piece of it stands for, in their order."""
        if not self._shuffled:
            return np.arange(piece.start, piece.stop)
        random = np.random.default_rng((self._settings.seed, epoch, ROWS + piece.block))
        return random.permutation(rows)[piece.start : piece.stop]

    def _reads(self, runs: Iterable[list[IndexedChunk]]) -> Iterator[Read]:
        """What threads read: a row group that many blocks share is decoded once, one part after the other."""
        for those in _continued(runs):
            tables = SharedIterator(
                self._reader.read_indexed(list(chain.from_iterable(those)), self._split, self._logs)
            )
            yield from (Read(run, tables.turn(len(run))) for run in those)

    def _examples(self, read: Read) -> LabeledBatch:
        with as_log_error(read.run[0].chunk.file):
            return LabeledBatch.concat([self._encode(table) for table in read.tables()])


def _continued(runs: Iterable[list[IndexedChunk]]) -> Iterator[list[list[IndexedChunk]]]:
    """Consecutive runs together where each goes on in the row group in which the one before it ended."""
    those: list[list[IndexedChunk]] = []
    for run in runs:
        last, first = those[-1][-1].chunk if those else None, run[0].chunk
        if last and (last.file, last.group) == (first.file, first.group) and last.start < first.start:
            those.append(run)
            continue
        if those:
            yield those
        those = [run]
    if those:
        yield those


def _total(pieces: Sequence[EpochSlice]) -> int:
    return sum(piece.rows for piece in pieces)


def _share(pieces: Sequence[EpochSlice], rank: int, world: int) -> list[EpochSlice]:
    """A rank's part of the rows."""
    rows = _total(pieces)
    return _cut(pieces, rank * rows // world, (rank + 1) * rows // world)


def _cut(pieces: Sequence[EpochSlice], start: int, stop: int) -> list[EpochSlice]:
    """Rows [start, stop) of the pieces put one after the other."""
    cut = []
    for piece, end in zip(pieces, accumulate(piece.rows for piece in pieces), strict=True):
        offset = piece.start - (end - piece.rows)
        first, last = max(piece.start, start + offset), min(piece.stop, stop + offset)
        if first < last:
            cut.append(EpochSlice(piece.block, first, last))
    return cut
