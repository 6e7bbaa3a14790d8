"""Last items of all users at the end of a log, in arrays that processes share.

NAME/keys.npy, starts.npy   index from the hash of the user id to rows, see ``ids.index``
NAME/items.arrow            one list of ids per user, newest last (an uncompressed Arrow file with the column ``ids``)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from ranking.encoding.vocabulary import IdArray
from ranking.ids.index import NOT_FOUND, IdIndex, write_id_index
from ranking.ids.npy import ReadFile, map_file
from ranking.schema import History


class HistoryState:
    """Last items of all users for one history.

    Args:
        index: index from the hash of the user id to rows.
        items: ids of each user, newest last [rows] large_list of int64 or string.
    """

    def __init__(self, index: IdIndex, items: pa.LargeListArray) -> None:
        self.items, self._index = items, index

    @classmethod
    def open(cls, folder: Path, history: History, read_file: ReadFile = map_file) -> Self:
        """Open the state of one history in the folder of all states.

        Raises:
            OSError, ValueError, ArrowException: the files are not those of a history.
        """
        path = folder / history.name
        index = IdIndex.open(path, pa.int64(), read_file)
        table = pa.ipc.open_file(pa.py_buffer(read_file(path / "items.arrow"))).read_all()
        items = table["ids"].combine_chunks()
        if len(items) != len(index):
            raise ValueError(f"{history.name}/items.arrow holds {len(items)} rows, not {len(index)}")
        return cls(index, items)

    def lists(self, users: IdArray) -> pa.LargeListArray:
        """Return the ids of each user [n] by hash; null for an unknown user."""
        rows = self._index.rows_from_values(users)
        return self.items.take(pa.array(rows, mask=rows == NOT_FOUND))

    def item_lists(self, users: IdArray) -> list[list[int | str] | None]:
        """Return the same as ``lists`` as Python objects, faster for a few users."""
        rows = self._index.rows_from_values(users).tolist()
        return [None if row == NOT_FOUND else self.items[row].as_py() for row in rows]


def write_history_state(folder: Path, history: History, users: IdArray, items: pa.LargeListArray) -> None:
    """Write the state of one history to a new folder ``folder/NAME``.

    Args:
        folder: folder of all states.
        history: the history.
        users: distinct hashes of user ids [rows].
        items: ids of each user, newest last [rows].
    """
    path = folder / history.name
    path.mkdir(parents=True)
    order = write_id_index(pa.array(np.asarray(users, np.int64)), path)
    table = pa.table({"ids": items.take(pa.array(order))}).combine_chunks()
    with pa.OSFile(str(path / "items.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=max(table.num_rows, 1))


def open_history_states(
    folder: Path, histories: tuple[History, ...], read_file: ReadFile = map_file
) -> Mapping[str, HistoryState]:
    """Open the states of histories by name.

    Raises:
        OSError, ValueError, ArrowException: the files are not those of these histories.
    """
    return {history.name: HistoryState.open(folder, history, read_file) for history in histories}
