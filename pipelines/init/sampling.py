"""Sample of the blocks of a log, drawn while the log is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.errors import LogError

SAMPLED_ROWS = 200_000
"""Maximum number of rows from which everything is guessed."""
BLOCK_ROWS = 512
"""Rows of a block. Consecutive rows show sessions and repeated ids, which single rows would not."""

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LogSample:
    """Rows of a log.

    Attributes:
        rows: the rows, in the order of the log.
        positions: position of each row in the log [rows].
        total: number of rows of the log.
    """

    rows: pa.Table
    positions: Positions
    total: int

    @property
    def complete(self) -> bool:
        """Whether the sample is the whole log."""
        return len(self.positions) == self.total


class BlockSample:
    """Uniform sample of blocks of consecutive rows, of bounded size (bottom-k sampling).

    The sample is the same in every run.
    """

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._blocks: list[tuple[float, int, pa.Table]] = []
        self._bound = 1.0

    def add(self, table: pa.Table, first_row: int) -> None:
        """Add consecutive rows; ``first_row`` is the position of the first one in the log."""
        for start in range(0, table.num_rows, BLOCK_ROWS):
            key = float(self._random.random())
            if key < self._bound:
                block = table.slice(start, BLOCK_ROWS)
                # A slice would keep the memory of the whole table.
                copy = block.take(pa.array(np.arange(block.num_rows))) if block.num_rows < table.num_rows else block
                self._blocks.append((key, first_row + start, copy))
        if sum(block.num_rows for *_, block in self._blocks) > 2 * SAMPLED_ROWS:
            self._prune()

    def sample(self, total: int, location: str) -> LogSample:
        """Return the sampled rows.

        Args:
            total: number of rows of the log.
            location: name of the log in messages.

        Raises:
            LogError: a column has different types in the files of the log.
        """
        if sum(block.num_rows for *_, block in self._blocks) > SAMPLED_ROWS:
            self._prune()
        blocks = sorted((first_row, block) for _, first_row, block in self._blocks)
        positions = [np.arange(first_row, first_row + block.num_rows) for first_row, block in blocks]
        try:
            rows = pa.concat_tables([block for _, block in blocks], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            reason = " ".join(str(error).split())
            raise LogError(f"{location}: files have different types ({reason}): write one type in all files") from None
        return LogSample(rows.combine_chunks(), np.concatenate(positions), total)

    def _prune(self) -> None:
        """Keep the blocks with the smallest keys."""
        self._blocks.sort(key=lambda block: block[0])
        kept: list[tuple[float, int, pa.Table]] = []
        rows = 0
        for block in self._blocks:
            rows += block[2].num_rows
            if rows > SAMPLED_ROWS and kept:
                break
            kept.append(block)
        self._blocks, self._bound = kept, kept[-1][0]
