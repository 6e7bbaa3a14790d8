"""Lookups with a store in memory: the keys that are read, failures, and unusable values."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking import FrozenRanker
from service.backends.select import select_backend
from service.engine.model import LoadedModel
from service.engine.request import EMPTY, FeatureRequest, StoreFeatures
from service.engine.request_encoder import RequestEncoder
from service.engine.validation import validate
from service.feature_store.key_value_store import Failure, KeyValueStoreError
from service.feature_store.lookup import CircuitBreaker, StoreLookup
from service.telemetry.metrics import Metrics
from tests.support.direct_ranking import ParsedRequest, parse


class MemoryStore:
    """A store in memory that can be made to fail."""

    kind, address, clustered = "memory", "memory://test", False

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.failure: Failure | None = None
        self.reads: list[Sequence[str]] = []

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        self.reads.append(keys)
        if self.failure is not None:
            raise KeyValueStoreError(self.failure, "on request")
        return [self.values.get(key) for key in keys]

    async def close(self) -> None:
        pass


class LookupSetup:
    """A lookup with its store, model and metrics."""

    def __init__(self, ranker: FrozenRanker) -> None:
        self.store, self.metrics = MemoryStore(), Metrics()
        self.model = LoadedModel("feed", "1", ranker, RequestEncoder(ranker), select_backend(ranker, "torch"), 0.0)
        self._lookup = StoreLookup(self.store, "ranker", CircuitBreaker(failures=3, seconds=60.0), self.metrics)

    def look_up(self, request: ParsedRequest) -> StoreFeatures:
        return asyncio.run(self._lookup.lookup(self.model, *request))

    def look_up_and_validate(self, request: ParsedRequest) -> FeatureRequest:
        return validate(*request, self.model.encoder.readable, self.look_up(request))

    def fallbacks(self) -> dict[str, float]:
        samples = [sample for metric in self.metrics.fallbacks.collect() for sample in metric.samples]
        return {sample.labels["reason"]: sample.value for sample in samples if sample.name.endswith("_total")}


@pytest.fixture
def setup(hand_ranker: FrozenRanker) -> LookupSetup:
    return LookupSetup(hand_ranker)


def parsed(user: str | None = "u1", features: dict[str, Any] | None = None, items: Any = None) -> ParsedRequest:
    body = {"user": {"id": user, "features": features or {}}, "items": items or {"id": [1, 2]}}
    return parse(body)


USER_FEATURES = {"country": "C1", "liked": [], "recent": [], "age": 31}
ITEM_FEATURES = {"genres": [[], []], "words": [[], []], "price": [1, 2]}


def test_lookup_reads_candidates_and_user_at_once(setup: LookupSetup) -> None:
    setup.look_up(parsed())
    assert setup.store.reads == [["ranker:feed:item:1", "ranker:feed:item:2", "ranker:feed:user:u1"]]


def test_lookup_skips_owners_whose_features_are_all_in_the_request(setup: LookupSetup) -> None:
    items = {"id": [1, 2], "features": ITEM_FEATURES}
    setup.look_up(parsed(features=USER_FEATURES))
    setup.look_up(parsed(items=items))
    assert setup.look_up(parsed(features=USER_FEATURES, items=items)) == EMPTY
    assert setup.look_up(parsed(user=None, items=items)) == EMPTY
    assert setup.store.reads == [["ranker:feed:item:1", "ranker:feed:item:2"], ["ranker:feed:user:u1"]]


def test_lookup_reads_owners_with_a_null_feature(setup: LookupSetup) -> None:
    setup.look_up(parsed(None, items={"id": [1, 2], "features": ITEM_FEATURES | {"price": [1, None]}}))
    setup.look_up(parsed(features=USER_FEATURES | {"age": None}, items={"id": [1, 2], "features": ITEM_FEATURES}))
    assert setup.store.reads == [["ranker:feed:item:1", "ranker:feed:item:2"], ["ranker:feed:user:u1"]]


def test_lookup_without_candidates_reads_nothing(setup: LookupSetup) -> None:
    assert setup.look_up(parsed(items={"id": []})) == EMPTY
    assert setup.store.reads == []


def test_failed_lookup_is_degraded_and_counted(setup: LookupSetup) -> None:
    failures: list[Failure] = ["timeout", "unreachable"]
    for setup.store.failure in failures:
        features = setup.look_up(parsed())
        assert (features.columns, features.degraded) == ({}, True)
    assert setup.fallbacks() == {"timeout": 1, "unreachable": 1}


def test_consecutive_failures_open_the_breaker_and_are_logged_once(
    setup: LookupSetup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.store.failure = "timeout"
    assert all(setup.look_up(parsed()).degraded for _ in range(10))
    assert len(setup.store.reads) == 3
    assert setup.fallbacks() == {"timeout": 3, "breaker_open": 7}
    assert [record.message for record in caplog.records] == [
        "store memory://test is unavailable (timeout: on request): responses are degraded until it recovers"
    ]


def test_lookup_recovers_when_a_probe_succeeds(
    setup: LookupSetup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.store.failure = "timeout"
    for _ in range(5):
        setup.look_up(parsed())
    setup.store.failure = None
    assert setup.look_up(parsed()).degraded
    monkeypatch.setattr("service.feature_store.lookup.time.monotonic", lambda: float("inf"))
    assert not setup.look_up(parsed()).degraded
    assert not setup.look_up(parsed()).degraded
    assert caplog.records[-1].message == "store memory://test is available again"


@pytest.mark.parametrize(
    ("value", "fault", "degraded"),
    [
        (b"oops", "undecodable", True),
        (b'{"price": "cheap"}', "wrong_type", True),
        (b'{"color": "red"}', "unknown_column", False),
    ],
)
def test_unusable_value_is_counted_and_the_others_are_used(
    setup: LookupSetup, value: bytes, fault: str, degraded: bool
) -> None:
    setup.store.values = {"ranker:feed:item:1": value, "ranker:feed:item:2": b'{"price": 2.0}'}
    features = setup.look_up(parsed())
    assert features.columns["item"].get("price", [None, 2.0])[1] == 2.0
    assert features.degraded == degraded
    assert setup.fallbacks() == {fault: 1}


def test_unusable_values_are_logged_once_per_minute_without_ids_or_values(
    setup: LookupSetup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("service.feature_store.lookup.time.monotonic", lambda: now)
    setup.store.values = {"ranker:feed:user:secret-user": b'{"age": "secret-age", "shoe_size": 43}'}
    for _ in range(3):
        setup.look_up(parsed("secret-user"))
    assert len(caplog.records) == 1
    now += 60.0
    setup.look_up(parsed("secret-user"))
    assert len(caplog.records) == 2
    assert all(record.levelno == logging.WARNING and "secret" not in record.message for record in caplog.records)
    assert "no feature of users reads 'shoe_size'" in caplog.text
    assert "values of users are of the wrong type in 'age'" in caplog.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["C1", "news", "7", "-3", "", "9" * 30, "w1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
COLUMN_NAMES = ["country", "liked", "recent", "age", "genres", "words", "price", "item_id", "else"]
OBJECTS = st.dictionaries(st.sampled_from(COLUMN_NAMES), JSON, max_size=5).map(lambda value: json.dumps(value).encode())
VALUES = OBJECTS | st.binary(max_size=5)
KEYS = ["ranker:feed:item:1", "ranker:feed:item:2", "ranker:feed:user:u1", "ranker:feed:user:u2"]


@pytest.fixture(scope="module")
def module_setup(hand_ranker: FrozenRanker) -> LookupSetup:
    return LookupSetup(hand_ranker)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_requests_with_arbitrary_stored_values_are_encoded_alone_and_in_batches(
    module_setup: LookupSetup, values: dict[str, bytes]
) -> None:
    module_setup.store.values = values
    encode = module_setup.model.encoder
    first = module_setup.look_up_and_validate(parsed("u1"))
    second = module_setup.look_up_and_validate(parsed("u2", items={"id": [2, 3]}))
    for request in (first, second):
        encode(request)
        encode(request.slice(1, 2))
    if first.signature == second.signature:
        batch = encode(FeatureRequest.concat([first, second]))
        assert batch.items.ids.tolist() == [*encode(first).items.ids.tolist(), *encode(second).items.ids.tolist()]
        assert batch.shared.missing.tolist() == [
            *encode(first).shared.missing.tolist(),
            *encode(second).shared.missing.tolist(),
        ]
