"""``ranker counters check`` with a real Redis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.feature_store.counter_store import CounterStore, read_state
from ranking.artifacts.feature_store_keys import DEFAULT_KEY_PREFIX, counter_key
from ranking.encoding.vocabulary import stable_hash
from tests.support.command import ranker
from tests.support.counted_loop import ROUNDS, CountedLoop
from tests.support.redis_server import RedisServer


@pytest.fixture
def loop(tmp_path: Path, empty_redis: RedisServer) -> CountedLoop:
    loop = CountedLoop(tmp_path, empty_redis.url)
    loop.load()
    return loop


def check(loop: CountedLoop) -> tuple[int, dict[str, Any], str]:
    """Run the command and return its status, its result and its last message."""
    code, out, err = ranker("counters", "check", loop.folder / "repository", "--to", loop.url)
    return code, json.loads(out or "{}"), err.splitlines()[-1] if err else ""


def missing(result: dict[str, Any]) -> dict[str, float]:
    return {name: counter["missing"] for name, counter in result["counters"].items() if counter["missing"]}


def test_complete_sums_pass_also_after_impressions_were_added_and_a_user_was_forgotten(loop: CountedLoop) -> None:
    loop.serve(ROUNDS[0], 5, user="u1")
    code, result, _ = check(loop)
    assert (code, missing(result)) == (0, {})
    assert result["counters"]["user_id"]["impressions"] == 400
    loop.follower().step(ROUNDS[4])
    code, result, _ = check(loop)
    assert (code, missing(result)) == (0, {})
    assert result["counters"]["user_id"]["impressions"] == 430
    assert ranker("forget", "u1", "--repository", loop.folder / "repository", "--to", loop.url)[0] == 0
    code, result, _ = check(loop)
    assert (code, missing(result)) == (0, {})
    assert result["counters"]["user_id"]["impressions"] < 400
    loop.load()
    code, result, _ = check(loop)
    assert (code, missing(result)) == (0, {})


@pytest.mark.parametrize("damage", ["delete", "set"])
def test_lost_value_is_reported_with_the_fix(loop: CountedLoop, empty_redis: RedisServer, damage: str) -> None:
    store = CounterStore(loop.url, DEFAULT_KEY_PREFIX, "counted")
    state = read_state(store, store.state)
    assert state is not None
    key = counter_key(store.start, state.generation, "user", stable_hash("u1"))
    (empty_redis.client.delete(key) if damage == "delete" else empty_redis.client.set(key, "damaged"))
    code, result, message = check(loop)
    assert code == 1
    lost = missing(result)
    assert {name for name in lost if "user" in name} == lost.keys() != set()
    name, number = max(lost.items(), key=lambda item: item[1])
    assert f"lacks {number:,.0f} impressions of counter {name}" in message
    assert "run 'ranker counters load'" in message


def test_impressions_that_count_twice_are_reported(loop: CountedLoop, empty_redis: RedisServer) -> None:
    store = CounterStore(loop.url, DEFAULT_KEY_PREFIX, "counted")
    totals = empty_redis.client.get(store.totals)
    loop.serve(ROUNDS[0])
    loop.follower().step(ROUNDS[4])
    empty_redis.client.set(store.totals, totals)
    code, result, message = check(loop)
    assert (code, min(missing(result).values()) < 0) == (1, True)
    assert "impressions of counter" in message
    assert "too many" in message


def test_store_without_counters_is_an_error(loop: CountedLoop, empty_redis: RedisServer) -> None:
    empty_redis.client.flushall()
    code, _, message = check(loop)
    assert (code, "holds no counters of this model: run 'ranker counters load' first" in message) == (1, True)
