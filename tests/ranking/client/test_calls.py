"""Requests that the client builds are those of the service's messages; invalid ones are not sent."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.client import InvalidRequestError
from ranking.client.calls import feedback_call, model_call, rank_call, rank_table_call
from service.protocol.messages import Feedback, RankOptions, RankRequest

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
IDS = st.integers(-(2**63), 2**63 - 1) | TEXT
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
FEATURES = st.dictionaries(TEXT, NUMBERS | TEXT | st.lists(TEXT, max_size=3) | st.none(), max_size=3)
TIMES = st.datetimes(
    datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC) | st.just(timezone(timedelta(hours=9)))
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "user": IDS | st.fixed_dictionaries({"id": IDS, "features": FEATURES}),
        "context": FEATURES,
        "tasks": st.lists(TEXT, min_size=1, max_size=3),
        "objective": st.dictionaries(TEXT, st.floats(-1e6, 1e6), min_size=1, max_size=3).filter(
            lambda weights: any(weights.values())
        ),
        "top_n": st.integers(1, 10_000),
        "deadline_ms": st.floats(0.001, 86_400_000.0),
        "explain": st.booleans(),
        "time": TIMES,
        "request_id": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=256),
    },
)
ROWS = st.lists(st.fixed_dictionaries({"id": IDS}, optional={"features": FEATURES}), min_size=1, max_size=4)


def assert_options(message: RankOptions, options: dict[str, Any]) -> None:
    """Assert that a message has these options, and the defaults of all others but the request id."""
    expected = {"request_id": message.request_id, **options}
    if "user" in expected and not isinstance(expected["user"], dict):
        expected["user"] = {"id": expected["user"]}
    reference = RankOptions.model_validate(
        {name: value.isoformat() if isinstance(value, datetime) else value for name, value in expected.items()}
    )
    assert RankOptions.model_validate(message.model_dump(exclude={"items", "time"})) == reference.model_copy(
        update={"time": None}
    )
    assert message.time == reference.time
    assert message.request_id


@given(items=ROWS, options=OPTIONS)
def test_rank_request_of_rows_is_what_was_passed(items: list[dict[str, Any]], options: dict[str, Any]) -> None:
    call = rank_call(items, **options)
    message = RankRequest.model_validate(json.loads(call.body or b""))
    assert_options(message, options)
    assert isinstance(message.items, list)
    assert [item.model_dump(exclude_unset=True) for item in message.items] == items
    assert call.deadline == (options["deadline_ms"] / 1000 if "deadline_ms" in options else None)


@given(ids=st.lists(IDS, max_size=4), prices=st.data(), options=OPTIONS)
def test_rank_request_of_ids_and_columns_is_what_was_passed(
    ids: list[int | str], prices: st.DataObject, options: dict[str, Any]
) -> None:
    message = RankRequest.model_validate(json.loads(rank_call(ids, **options).body or b""))
    assert_options(message, options)
    assert message.items.model_dump() == {"id": ids, "features": {}}  # type: ignore[union-attr]
    column = prices.draw(st.lists(NUMBERS | st.none(), min_size=len(ids), max_size=len(ids)))
    columns = {"id": ids, "features": {"price": column}}
    message = RankRequest.model_validate(json.loads(rank_call(columns, **options).body or b""))
    assert message.items.model_dump() == columns  # type: ignore[union-attr]


@given(options=OPTIONS)
def test_rank_table_request_is_what_was_passed(options: dict[str, Any]) -> None:
    table = pa.table({"item_id": ["v1", "v2"], "price": [1.5, None]})
    call = rank_table_call(table, **options)
    received = pa.ipc.open_stream(call.body).read_all()
    assert received.equals(table)
    assert_options(RankOptions.model_validate(json.loads(received.schema.metadata[b"request"])), options)


EVENTS = st.lists(
    st.fixed_dictionaries(
        {"item": IDS, "labels": st.dictionaries(TEXT.filter(bool), NUMBERS, min_size=1, max_size=3)},
        optional={"time": TIMES},
    ),
    min_size=1,
    max_size=4,
)


@given(events=EVENTS, model=st.none() | TEXT.filter(bool))
def test_feedback_request_is_what_was_passed(events: list[dict[str, Any]], model: str | None) -> None:
    call = feedback_call("r-1", events, model=model)
    message = Feedback.model_validate(json.loads(call.body or b""))
    assert (message.request_id, message.model) == ("r-1", model)
    assert [event.model_dump(exclude_unset=True) for event in message.events] == events
    assert call.repeatable == all("time" in event for event in events)


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ("v1", {}, "items: must be a list of ids or rows, or columns"),
        (None, {}, "items: must be a list of ids or rows, or columns"),
        (7, {}, "items: must be a list of ids or rows, or columns"),
        (["v1"], {"time": datetime(2026, 1, 1)}, "time: must be a time with a time zone"),
        (["v1"], {"request_id": "x" * 257}, "request_id: must be a text of 1 to 256 characters"),
        (["v1"], {"request_id": 7}, "request_id: must be a text of 1 to 256 characters"),
        (["v1"], {"model": ""}, "model: must not be empty"),
        (["v1"], {"context": {"surface": object()}}, "body: cannot be sent as JSON"),
    ],
)
def test_invalid_rank_request_names_the_field(items: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as error:
        rank_call(items, **options)
    assert error.value.status is None


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ({"item": "v1", "labels": {"click": 1}}, r"events\[0\]: must be a mapping"),
        ([{"item": "v1", "labels": {"click": 1}, "time": datetime(2026, 1, 1)}], r"events\[0\]\.time: must be a time"),
    ],
)
def test_invalid_feedback_names_the_field(events: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        feedback_call("r-1", events)


def test_ids_of_an_iterator_are_all_sent() -> None:
    assert json.loads(rank_call(iter(["v1", "v2"])).body or b"")["items"] == {"id": ["v1", "v2"]}  # type: ignore[arg-type]


def test_ids_of_numpy_are_sent_as_numbers() -> None:
    body = json.loads(rank_call(np.arange(2), user=np.int64(3)).body or b"")
    assert (body["items"], body["user"]) == ({"id": [0, 1]}, {"id": 3})


def test_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="topn"):
        rank_call(["v1"], topn=3)


def test_request_id_is_a_header_only_if_it_is_visible_ascii() -> None:
    assert rank_call(["v1"], request_id="r-1").headers["X-Request-ID"] == "r-1"
    assert "X-Request-ID" not in rank_call(["v1"], request_id="r 1").headers
    assert "X-Request-ID" not in rank_call(["v1"], request_id="é").headers


def test_model_names_are_escaped() -> None:
    assert model_call("a/b").path == "/v2/models/a%2Fb"
