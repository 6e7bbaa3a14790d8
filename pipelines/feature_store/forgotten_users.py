"""Users whose counters ``ranker forget`` removed from a feature store.

Their values are empty instead of absent, because absent ones start from the bundle. The store keeps when they were
forgotten, so that no bundle of an earlier time brings them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import redis

from pipelines.feature_store.counter_store import CounterStore, read_state, scan_keys
from pipelines.feature_store.totals import Totals
from pipelines.loop.attribution import EPOCH, FUTURE, MICROSECOND, microseconds
from ranking.artifacts.feature_store_keys import counter_key
from ranking.counters.state import StateClock
from ranking.counters.stored_sums import decode_records, decode_value, definition, encode_value
from ranking.encoding.vocabulary import IdArray, stable_hash
from ranking.errors import OutputError
from ranking.schema import Counter


def forget_user(store: CounterStore, user: str, features: str, counters: Sequence[Counter]) -> int:
    """Remove the counters and the features of a user; return how many of these two values there were.

    Args:
        store: the store.
        user: id of the user; the decimal text of an integer id.
        features: key of the features.
        counters: counters of users whose totals lose the sums of the user.

    Raises:
        OutputError: the store cannot be reached.
        redis.RedisError: the store cannot be reached or rejects a command.
    """
    root, now = stable_hash(user), datetime.now(UTC)
    removed: Any = store.client.delete(features)
    while True:
        with store.client.pipeline(transaction=True) as pipeline:
            pipeline.watch(store.state)
            state = read_state(store, store.state)
            key = None if state is None else counter_key(store.start, state.generation, "user", root)
            value: Any = None if key is None else store.client.get(key)
            totals = _without(store, counters, value)
            pipeline.multi()
            pipeline.hset(store.forgotten, str(root), str(microseconds(now)))
            if state is not None and key is not None:
                pipeline.set(store.state, state.encode())  # a writer that has read the old value starts again
                pipeline.set(key, encode_value([]))
                if totals is not None:
                    pipeline.set(store.totals, totals.encode())
            try:
                pipeline.execute()
            except redis.WatchError:
                continue
            earlier = _remove_others(store, root, key)
            return int(removed) + (_holds_counters(value) or earlier)


def were_forgotten(store: CounterStore, users: IdArray, clock: StateClock) -> npt.NDArray[np.bool_]:
    """Return which users were forgotten after a bundle was trained, so that its sums must not be used.

    Args:
        store: the store.
        users: hashes of ids [users].
        clock: time of the counters of the bundle.
    """
    if not len(users):
        return np.zeros(0, bool)
    times: Any = store.client.hmget(store.forgotten, [str(user) for user in users.tolist()])
    return np.array([time is not None and _is_later(time, clock) for time in times])


def forgotten_users(store: CounterStore, clock: StateClock) -> IdArray:
    """Return the hashes of all users that were forgotten after a bundle was trained [users]."""
    times: Any = store.client.hgetall(store.forgotten)
    return np.array([int(user) for user, time in times.items() if _is_later(time, clock)], np.int64)


def _remove_others(store: CounterStore, root: int, current: str | None) -> bool:
    """Remove the values of a user but the current one, such as of a load that was killed; return if there were any."""
    end = f":user:{root:x}"
    keys = [key for batch in scan_keys(store) for key in batch if key.endswith(end) and key != current]
    return bool(keys) and bool(store.client.unlink(*keys))


def _without(store: CounterStore, counters: Sequence[Counter], value: bytes | None) -> Totals | None:
    """Return the totals without the sums in a value; None if they do not change, or something is damaged."""
    try:
        totals, sections = Totals.read(store), {} if value is None else dict(decode_value(value))
        for counter in counters:
            totals.subtract(counter, decode_records(counter, sections.get(definition(counter), b"")))
    except (ValueError, OutputError):
        return None
    return totals if counters and sections else None


def _holds_counters(value: Any) -> bool:
    return value is not None and len(value) > len(encode_value([]))


def _is_later(time: bytes, clock: StateClock) -> bool:
    """Return whether a time is later than a bundle, whose last impression may be in the future, see ``FUTURE``."""
    return clock.at(EPOCH + int(time) * MICROSECOND + FUTURE) >= clock.until
