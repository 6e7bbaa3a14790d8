"""Groups of rows that compete with each other, for the ranking loss."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipelines.config.config import RankingGroup
from pipelines.data.splits import local_days
from ranking.encoding.batch import Int64
from ranking.encoding.vocabulary import hash_column, mix_hashes
from ranking.schema import Columns


def ranking_groups(table: pa.Table, columns: Columns, within: RankingGroup) -> Int64:
    """Return the group of each row [rows] int64; 0 if its user or request is unknown.

    Args:
        table: rows of the log.
        columns: names of its columns.
        within: common value of the rows of a group. ``request`` needs ``columns.request``.
    """
    keys = local_days(table[columns.time]) if within == "user_day" else table[columns.request]
    return mix_hashes([hash_column(column.combine_chunks()) for column in (table[columns.user], keys)])


def permute_groups(groups: Int64, random: np.random.Generator) -> Int64:
    """Return the positions of all rows in a random order in which the rows of a group are adjacent.

    Args:
        groups: group of each row [rows]; 0 means none.
        random: source of the order of the groups, and of the rows within each.
    """
    rows = random.permutation(len(groups))
    alone = np.flatnonzero(groups == 0)
    keys = groups.copy()
    keys[alone] = -1 - alone
    numbers, group = np.unique(keys, return_inverse=True)
    rank = random.permutation(len(numbers))[group]
    return rows[np.argsort(rank[rows], kind="stable")]
