"""``ranker items load`` and ``ranker users load``: loads a side table into the Redis feature store of the service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import redis

from pipelines.config.uri import Uri
from pipelines.console import Progress, print_status
from pipelines.data.side_table import SideTableChunk, SideTableReader
from pipelines.feature_store.client import STORE_ERRORS, connect, store_error
from ranking.artifacts.feature_store_keys import key_prefix
from ranking.artifacts.store_address import redact_address
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner

BATCH_SIZE = 1_000
"""Number of values per pipelined batch of commands."""


def load_features(
    where: Uri, owner: Owner, ranker: FrozenRanker, model: str, url: str, prefix: str, ttl: int | None
) -> dict[str, Any]:
    """Check all rows, then write each row with one SET command, so that every read sees a whole row.

    Ids are converted to the type of the ids that the ranker has seen, so that keys are those that the service reads.

    Args:
        where: Parquet file or folder with one row per id.
        owner: owner of the features.
        ranker: ranker that uses the features; columns that it does not read are not written.
        model: name under which the ranker is served.
        url: address of the store, see ``ranking.artifacts.store_address``.
        prefix: prefix of the keys.
        ttl: seconds after which values expire; None: never.

    Returns:
        The address, the key pattern, the columns, the number of values, and how many of their ids the ranker has seen.

    Raises:
        LogError: a row cannot be used; nothing is written.
        OutputError: the store cannot be reached or rejects a command; says how many rows are already written.
        UsageError: the address has an unsupported option.
    """
    writer, rows = Writer(url, ttl), SideTableReader(where, ranker, owner)
    known_ids = rows.known_ids
    if rows.ignored_columns:
        print_status(f"ignored columns that the ranker does not use: {', '.join(rows.ignored_columns)}")
    if rows.missing_columns:
        print_status(f"columns that are missing and are taken from the bundle: {', '.join(rows.missing_columns)}")
    checking = Progress(f"checking {owner}s", unit="rows", total=rows.num_rows)
    for count in rows.check():
        checking.advance(count)
    checking.close()
    if known_ids is not None and len(known_ids) and rows.num_rows and not rows.known_rows:
        known = f"whose {owner} ids look like {known_ids[0].as_py()!r:.40}"
        print_status(f"none of the {rows.num_rows:,} {owner}s are known to the bundle, {known}")
    key_start = key_prefix(prefix, model, owner)
    loading = Progress(f"loading {owner}s", unit="rows", total=rows.num_rows)
    written = 0
    try:
        for batch in _batches(rows, key_start):
            writer.write(batch)
            written += len(batch)
            loading.advance(len(batch))
    except STORE_ERRORS as error:
        done = f"{written:,} of {rows.num_rows:,} {owner}s are written completely"
        raise store_error(url, error, "cannot be written", f"{done}: fix the store and load again") from None
    loading.close()
    result = {"to": redact_address(url), "keys": f"{key_start}*", "columns": rows.columns, f"{owner}s": written}
    return result if known_ids is None else result | {"known": rows.known_rows}


class Writer:
    """Client that writes values to Redis.

    Args:
        url: address of the store.
        ttl: seconds after which values expire; None: never.

    Raises:
        OutputError: the store cannot be reached.
        UsageError: the address has an unsupported option.
    """

    def __init__(self, url: str, ttl: int | None) -> None:
        self._ttl, self._redis = ttl, connect(url)

    def write(self, values: dict[str, bytes]) -> None:
        """Set each key to its value.

        Raises:
            redis.RedisError: the store cannot be reached or rejects a command; the message contains no value.
        """
        pipeline = self._redis.pipeline(transaction=False)
        for key, value in values.items():
            pipeline.set(key, value, ex=self._ttl)
        for reply in pipeline.execute(raise_on_error=False):
            if isinstance(reply, redis.RedisError):
                raise reply


def _batches(rows: SideTableReader, key_start: str) -> Iterator[dict[str, bytes]]:
    """Yield keys and values of up to ``BATCH_SIZE`` rows."""
    for chunk in rows:
        values = list(_values(chunk))
        keys = [f"{key_start}{row_id}" for row_id in chunk.ids.to_pylist()]
        for start in range(0, len(keys), BATCH_SIZE):
            stop = start + BATCH_SIZE
            yield dict(zip(keys[start:stop], values[start:stop], strict=True))


def _values(chunk: SideTableChunk) -> Iterator[bytes]:
    """Yield each row as JSON."""
    names = chunk.features.column_names
    for cells in zip(*(column.to_pylist() for column in chunk.features.columns), strict=True):
        yield orjson.dumps(dict(zip(names, cells, strict=True)))
