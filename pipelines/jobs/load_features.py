"""``ranker items load`` and ``ranker users load``: a side table into a Redis that running services look into."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import redis

from pipelines.config.uri import Uri, single_line
from pipelines.console import Progress, print_status
from pipelines.data.side_table import SideTableChunk, SideTableReader
from ranking.artifacts.feature_store_keys import key_prefix, redact_address, unsupported_option_message
from ranking.errors import OutputError, UsageError
from ranking.schema import Owner, Schema

BATCH = 1_000
"""Values that are sent before their answers are awaited."""
SECONDS = 30.0
"""In which the store must answer a batch."""


def load_features(
    where: Uri, owner: Owner, schema: Schema, model: str, url: str, prefix: str, ttl: int | None
) -> dict[str, Any]:
    """Checks all rows, then writes each with one SET, so that no reader sees half of it.

    Args:
        where: Parquet file or folder, one row an id.
        owner: whose features these are.
        schema: of the ranker that will read them; nothing else is written.
        model: name under which that ranker is served.
        url: the store's address, see ``ranking.artifacts.feature_store_keys``.
        prefix: of the keys.
        ttl: seconds after which a value goes; None: never.

    Returns:
        Where to, the pattern of the keys, which columns and how many values.

    Raises:
        LogError: a row that cannot be used; nothing is written.
        OutputError: the store cannot be reached, or refuses; says how much it holds already.
        UsageError: an option of the address means nothing.
    """
    writer, rows = Writer(url, ttl), SideTableReader(where, schema, owner)
    if rows.ignored_columns:
        print_status(f"left out, for the ranker does not read them: {', '.join(rows.ignored_columns)}")
    if rows.missing_columns:
        print_status(f"not there, and as the bundle has them: {', '.join(rows.missing_columns)}")
    checking = Progress(f"checking {owner}s", unit="rows", total=rows.num_rows)
    for count in rows.check():
        checking.advance(count)
    checking.close()
    begin = key_prefix(prefix, model, owner)
    loading = Progress(f"loading {owner}s", unit="rows", total=rows.num_rows)
    written = 0
    try:
        for batch in _batches(rows, begin):
            writer.write(batch)
            written += len(batch)
            loading.advance(len(batch))
    except redis.RedisError as error:
        raise OutputError(
            f"{redact_address(url)}: cannot be written ({single_line(error)}); "
            f"it has {written:,} of {rows.num_rows:,} {owner}s, "
            "each of them whole: mend it and load again"
        ) from None
    loading.close()
    return {"to": redact_address(url), "keys": f"{begin}*", "columns": rows.columns, f"{owner}s": written}


class Writer:
    """Writes to Redis.

    Args:
        url: address.
        ttl: of all values, in seconds; None: they stay.

    Raises:
        OutputError: it cannot be reached.
        UsageError: an option of the address means nothing.
    """

    def __init__(self, url: str, ttl: int | None) -> None:
        self._ttl = ttl
        try:
            self._redis = redis.Redis.from_url(url, protocol=2, socket_timeout=SECONDS, socket_connect_timeout=SECONDS)
            self._redis.connection_pool.make_connection()
        except (TypeError, ValueError, redis.RedisError):
            raise UsageError(unsupported_option_message(url)) from None
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise OutputError(
                f"{redact_address(url)}: cannot be reached ({single_line(error)}); "
                "check the address, the password and the network"
            ) from None

    def write(self, values: dict[str, bytes]) -> None:
        """Sets each key to its value.

        Raises:
            redis.RedisError: it cannot be reached, or refuses one; the message quotes none of them.
        """
        pipeline = self._redis.pipeline(transaction=False)
        for key, value in values.items():
            pipeline.set(key, value, ex=self._ttl)
        for answer in pipeline.execute(raise_on_error=False):
            if isinstance(answer, redis.RedisError):
                raise answer


def _batches(rows: SideTableReader, begin: str) -> Iterator[dict[str, bytes]]:
    """Key → value of ``BATCH`` rows at a time."""
    for chunk in rows:
        values = list(_values(chunk))
        keys = [f"{begin}{each}" for each in chunk.ids.to_pylist()]
        for start in range(0, len(keys), BATCH):
            stop = start + BATCH
            yield dict(zip(keys[start:stop], values[start:stop], strict=True))


def _values(rows: SideTableChunk) -> Iterator[bytes]:
    """Each row as JSON."""
    names = rows.features.column_names
    for cells in zip(*(column.to_pylist() for column in rows.features.columns), strict=True):
        yield orjson.dumps(dict(zip(names, cells, strict=True)))
