"""What a look-up makes of a store's answers and failures; here the store is a dictionary."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking import FrozenRanker
from service.backends.select import select_backend
from service.engine.model import LoadedModel
from service.engine.request import EMPTY, FeatureRequest, StoreFeatures
from service.engine.request_encoder import RequestEncoder
from service.engine.validation import ParsedRequest, validate
from service.feature_store.circuit_breaker import CircuitBreaker
from service.feature_store.key_value_store import Failure, KeyValueStoreError
from service.feature_store.lookup import StoreLookup
from service.protocol.messages import RankRequest
from service.telemetry.metrics import Metrics


class Dictionary:
    """A store that has its values at hand, or fails as it is told to."""

    kind, shown = "dictionary", "dictionary://here"

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.failure: Failure | None = None
        self.asked: list[Sequence[str]] = []

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        self.asked.append(keys)
        if self.failure is not None:
            raise KeyValueStoreError(self.failure, "as told")
        return [self.values.get(key) for key in keys]

    async def close(self) -> None:
        pass


class Room:
    """A look-up, and what lies around it."""

    def __init__(self, ranker: FrozenRanker) -> None:
        self.store, self.metrics = Dictionary(), Metrics()
        self.served = LoadedModel("feed", "1", ranker, RequestEncoder(ranker), select_backend(ranker, "torch"), 0.0)
        self.lookup = StoreLookup(self.store, "ranker", CircuitBreaker(failures=3, seconds=60.0), self.metrics)

    def find(self, asked: ParsedRequest) -> StoreFeatures:
        return asyncio.run(self.lookup.lookup(self.served, asked))

    def checked(self, asked: ParsedRequest) -> FeatureRequest:
        return validate(asked, self.served.encoder.readable, self.find(asked))

    def fallbacks(self) -> dict[str, float]:
        samples = [sample for metric in self.metrics.fallbacks.collect() for sample in metric.samples]
        return {sample.labels["reason"]: sample.value for sample in samples if sample.name.endswith("_total")}


@pytest.fixture
def room(hand_ranker: FrozenRanker) -> Room:
    return Room(hand_ranker)


def request(user: str | None = "u1", features: dict[str, Any] | None = None, items: Any = None) -> ParsedRequest:
    body = {"user": {"id": user, "features": features or {}}, "items": items or {"id": [1, 2]}}
    return ParsedRequest.from_message(RankRequest.model_validate(body), {})


ALL_OF_USER = {"country": "C1", "liked": [], "recent": [], "age": 31}
ALL_OF_ITEMS = {"genres": [[], []], "words": [[], []], "price": [1, 2]}


class TestWhatIsAskedFor:
    def test_one_read_for_all_candidates_and_the_user(self, room: Room) -> None:
        room.find(request())
        assert room.store.asked == [["ranker:feed:item:1", "ranker:feed:item:2", "ranker:feed:user:u1"]]

    def test_nobody_is_looked_up_of_whom_the_request_says_everything(self, room: Room) -> None:
        everything = {"id": [1, 2], "features": ALL_OF_ITEMS}
        room.find(request(features=ALL_OF_USER))
        room.find(request(items=everything))
        assert room.find(request(features=ALL_OF_USER, items=everything)) == EMPTY
        assert room.find(request(user=None, items=everything)) == EMPTY
        assert room.store.asked == [["ranker:feed:item:1", "ranker:feed:item:2"], ["ranker:feed:user:u1"]]

    def test_a_null_is_looked_up(self, room: Room) -> None:
        room.find(request(None, items={"id": [1, 2], "features": ALL_OF_ITEMS | {"price": [1, None]}}))
        room.find(request(features=ALL_OF_USER | {"age": None}, items={"id": [1, 2], "features": ALL_OF_ITEMS}))
        assert room.store.asked == [["ranker:feed:item:1", "ranker:feed:item:2"], ["ranker:feed:user:u1"]]

    def test_no_candidates_need_nothing(self, room: Room) -> None:
        assert room.find(request(items={"id": []})) == EMPTY
        assert room.store.asked == []


class TestFailures:
    def test_degrade_the_answer_and_are_counted(self, room: Room) -> None:
        failures: list[Failure] = ["timeout", "unreachable"]
        for room.store.failure in failures:
            found = room.find(request())
            assert (found.columns, found.degraded) == ({}, True)
        assert room.fallbacks() == {"timeout": 1, "unreachable": 1}

    def test_in_a_row_leave_the_store_alone_which_is_told_once(
        self, room: Room, caplog: pytest.LogCaptureFixture
    ) -> None:
        room.store.failure = "timeout"
        assert all(room.find(request()).degraded for _ in range(10))
        assert len(room.store.asked) == 3
        assert room.fallbacks() == {"timeout": 3, "breaker_open": 7}
        assert [record.message for record in caplog.records] == [
            "the store dictionary://here fails (timeout: as told): answers are degraded until it answers again"
        ]

    def test_end_when_it_answers_again(
        self, room: Room, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        room.store.failure = "timeout"
        for _ in range(5):
            room.find(request())
        room.store.failure = None
        assert room.find(request()).degraded
        monkeypatch.setattr("service.feature_store.circuit_breaker.time.monotonic", lambda: float("inf"))
        assert not room.find(request()).degraded
        assert not room.find(request()).degraded
        assert caplog.records[-1].message == "the store dictionary://here answers again"


class TestWhatCannotBeUsed:
    @pytest.mark.parametrize(
        ("value", "fault", "degraded"),
        [
            (b"oops", "undecodable", True),
            (b'{"price": "cheap"}', "wrong_type", True),
            (b'{"colour": "red"}', "unknown_column", False),
        ],
    )
    def test_is_counted(self, room: Room, value: bytes, fault: str, degraded: bool) -> None:
        room.store.values = {"ranker:feed:item:1": value, "ranker:feed:item:2": b'{"price": 2.0}'}
        found = room.find(request())
        assert found.columns["item"].get("price", [None, 2.0])[1] == 2.0
        assert found.degraded == degraded
        assert room.fallbacks() == {fault: 1}

    def test_is_told_once_a_minute_without_ids_or_values(
        self, room: Room, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 1000.0
        monkeypatch.setattr("service.feature_store.lookup.time.monotonic", lambda: now)
        room.store.values = {"ranker:feed:user:secret-user": b'{"age": "secret-age", "shoe_size": 43}'}
        for _ in range(3):
            room.find(request("secret-user"))
        assert len(caplog.records) == 1
        now += 60.0
        room.find(request("secret-user"))
        assert len(caplog.records) == 2
        assert all(record.levelno == logging.WARNING and "secret" not in record.message for record in caplog.records)
        assert "no feature of users reads 'shoe_size'" in caplog.text
        assert "values of users are of a wrong type in 'age'" in caplog.text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["C1", "news", "7", "-3", "", "9" * 30, "w1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
NAMES = st.sampled_from(["country", "liked", "recent", "age", "genres", "words", "price", "item_id", "else"])
OBJECTS = st.dictionaries(NAMES, JSON, max_size=5).map(lambda each: json.dumps(each).encode())
VALUES = OBJECTS | st.binary(max_size=5)
KEYS = ["ranker:feed:item:1", "ranker:feed:item:2", "ranker:feed:user:u1", "ranker:feed:user:u2"]


@pytest.fixture(scope="module")
def shared(hand_ranker: FrozenRanker) -> Room:
    return Room(hand_ranker)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_whatever_a_store_holds_requests_can_be_encoded_alone_and_with_others(
    shared: Room, values: dict[str, bytes]
) -> None:
    shared.store.values = values
    encode = shared.served.encoder
    one, other = shared.checked(request("u1")), shared.checked(request("u2", items={"id": [2, 3]}))
    for each in (one, other):
        encode(each)
        encode(each.slice(1, 2))
    if one.signature == other.signature:
        both = encode(FeatureRequest.concat([one, other]))
        assert both.items.ids.tolist() == [*encode(one).items.ids.tolist(), *encode(other).items.ids.tolist()]
        assert both.shared.missing.tolist() == [
            *encode(one).shared.missing.tolist(),
            *encode(other).shared.missing.tolist(),
        ]
