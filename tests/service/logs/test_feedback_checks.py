"""Checks of feedback: each reason, as a rejection and as a count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ranking.schema import Schema
from service.logs.answered_requests import MIN_SEGMENT_BYTES, AnsweredRequests
from service.logs.feedback_checks import MAX_AGE, MAX_SKEW, FeedbackChecks, SuspectFeedbackError
from service.models.registry import ModelRegistry, ModelRouting
from service.protocol.messages import Feedback, SuspectReason

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
FEATURES = [{"name": "item_id", "kind": "categorical", "owner": "item"}]
FEED_TASKS = [
    {"name": "click", "kind": "binary", "label": "is_click", "mask": "is_seen"},
    {"name": "watch", "kind": "regression", "label": "seconds", "transform": "log1p", "max": 3600},
    {"name": "rating", "kind": "regression"},
]
SHOP_TASKS = [
    {"name": "buy", "kind": "binary"},
    {"name": "price", "kind": "regression", "label": "seconds", "min": -10},
]
ALL: frozenset[SuspectReason] = frozenset(
    {"unknown_model", "unknown_request", "unknown_item", "unknown_label", "value", "time"}
)


def routing(tasks: list[dict[str, Any]]) -> ModelRouting:
    schema = Schema.model_validate({"name": "feed", "features": FEATURES, "tasks": tasks})
    model: Any = SimpleNamespace(version="1", ranker=SimpleNamespace(schema=schema))
    return ModelRouting(model)


@pytest.fixture
def models() -> ModelRegistry:
    models = ModelRegistry(None)
    models.replace("feed", routing(FEED_TASKS))
    return models


@pytest.fixture
def answers() -> AnsweredRequests:
    answers = AnsweredRequests(MIN_SEGMENT_BYTES)
    answers.claim()
    answers.add("r-1", ["v1", "v2", 7])
    return answers


def feedback(*events: dict[str, Any], **fields: Any) -> Feedback:
    """Feedback whose events are valid except for these fields."""
    valid = {"item": "v1", "labels": {"is_click": 1}}
    return Feedback.model_validate({"request_id": "r-1", "events": [valid | event for event in events], **fields})


def labels(**values: float) -> dict[str, Any]:
    return {"labels": values}


VALID = [
    labels(is_click=0, is_seen=1, seconds=3600, rating=-1e15),
    labels(seconds=-0.999),
    {"item": 7},
    {"item": "7"},
    {"time": (NOW + MAX_SKEW).isoformat()},
    {"time": (NOW - MAX_AGE).isoformat()},
    labels(shown=1),
    labels(shown=0),
]
SUSPECT: list[tuple[dict[str, Any], str, str, str]] = [
    ({"item": "v3"}, "unknown_item", "item", "was not in the answer to this request"),
    ({"item": 8}, "unknown_item", "item", "was not in the answer to this request"),
    (
        labels(clicked=1),
        "unknown_label",
        "labels.clicked",
        "is not a label of the model: is_click, is_seen, rating, seconds, shown (",
    ),
    (labels(shown=2), "value", "labels.shown", "must be 0 or 1"),
    (labels(is_click=2), "value", "labels.is_click", "must be 0 or 1"),
    (labels(is_click=0.5), "value", "labels.is_click", "must be 0 or 1"),
    (labels(is_seen=-1), "value", "labels.is_seen", "must be 0 or 1"),
    (labels(seconds=3600.5), "value", "labels.seconds", "must be between -1 and 3600"),
    (labels(seconds=-1), "value", "labels.seconds", "must be greater than −1"),
    (labels(rating=1e300), "value", "labels.rating", "is beyond the range of float32"),
    (labels(rating=1e16), "value", "labels.rating", "must be between -1e+15 and 1e+15"),
    (labels(clicked=-1e39), "value", "labels.clicked", "is beyond the range of float32"),
    ({"time": (NOW + MAX_SKEW + timedelta(seconds=1)).isoformat()}, "time", "time", "is in the future"),
    ({"time": "9999-12-31T23:59:59Z"}, "time", "time", "is in the future"),
    ({"time": "0001-01-01T00:00:00Z"}, "time", "time", "is more than 366 days ago"),
]


@pytest.mark.parametrize("event", VALID, ids=range(len(VALID)))
def test_check_valid_event_is_not_flagged(
    models: ModelRegistry, answers: AnsweredRequests, event: dict[str, Any]
) -> None:
    assert FeedbackChecks(models, answers, ALL).check(feedback(event), NOW) == {}


@pytest.mark.parametrize(("event", "reason", "field", "text"), SUSPECT, ids=range(len(SUSPECT)))
def test_check_suspect_event_is_rejected_by_its_index_and_field_or_counted(
    models: ModelRegistry, answers: AnsweredRequests, event: dict[str, Any], reason: Any, field: str, text: str
) -> None:
    message = feedback({}, event, {})
    with pytest.raises(SuspectFeedbackError) as caught:
        FeedbackChecks(models, answers, {reason}).check(message, NOW)
    assert (caught.value.reason, caught.value.field) == (reason, f"events[1].{field}")
    assert text in caught.value.explanation
    assert f"('{reason}' is one of the reasons of the setting feedback_reject)" in caught.value.explanation
    counted = FeedbackChecks(models, answers, ALL - {reason, "value", "unknown_label"}).check(message, NOW)
    assert sum(counted.values()) == 1


def test_check_unknown_request_is_rejected_or_counts_each_event_once(
    models: ModelRegistry, answers: AnsweredRequests
) -> None:
    message = feedback({}, {"item": "v3"}, request_id="r-2")
    with pytest.raises(SuspectFeedbackError, match=r"^request_id: this service has not answered such a request"):
        FeedbackChecks(models, answers, {"unknown_request"}).check(message, NOW)
    assert FeedbackChecks(models, answers, {"unknown_item"}).check(message, NOW) == {"unknown_request": 2}
    assert FeedbackChecks(models, None, ALL).check(message, NOW) == {}, "answers are not remembered"


def test_check_items_of_a_large_answer_are_not_compared(models: ModelRegistry, answers: AnsweredRequests) -> None:
    answers.add("r-1", [f"item {number}" for number in range(5_000)])
    assert FeedbackChecks(models, answers, ALL).check(feedback({"item": "v3"}), NOW) == {}


def test_check_uses_the_labels_of_the_named_model_else_of_all_models(models: ModelRegistry) -> None:
    models.replace("shop", routing(SHOP_TASKS))
    checks = FeedbackChecks(models, None, ALL)
    assert checks.check(feedback(labels(buy=1), labels(seconds=-5), labels(seconds=9e9)), NOW) == {}
    assert checks.check(feedback(labels(seconds=-5), model="shop"), NOW) == {}
    with pytest.raises(SuspectFeedbackError, match=r"events\[0\].labels.buy: is not a label of the model"):
        checks.check(feedback(labels(buy=1), model="feed"), NOW)
    with pytest.raises(SuspectFeedbackError, match=r"events\[0\].labels.seconds: must be between -1 and 3600 \("):
        checks.check(feedback(labels(seconds=-5), model="feed"), NOW)
    with pytest.raises(SuspectFeedbackError, match="must be between -1 and 3600 or must be between -10 and 1e"):
        checks.check(feedback(labels(seconds=-11)), NOW)
    with pytest.raises(SuspectFeedbackError, match=r"^model: 'store' is not served: feed, shop"):
        checks.check(feedback({}, model="store"), NOW)


def test_check_labels_of_a_canary_are_known(models: ModelRegistry) -> None:
    canary = routing(SHOP_TASKS).current
    models.replace("feed", ModelRouting(routing(FEED_TASKS).current, canary=canary))
    assert FeedbackChecks(models, None, ALL).check(feedback(labels(buy=1, is_click=1)), NOW) == {}


def test_check_before_models_are_loaded_accepts_any_label_and_model() -> None:
    checks = FeedbackChecks(ModelRegistry(None), None, ALL)
    assert checks.check(feedback(labels(clicked=5), model="feed"), NOW) == {}
    with pytest.raises(SuspectFeedbackError, match="float32"):
        checks.check(feedback(labels(clicked=1e39)), NOW)
