"""[[counters]] and [[histories]]: the features that they become, and messages about mistakes."""

from typing import Any

import pytest
from pydantic import ValidationError

from ranking.schema import NumericFeature, Schema, SequenceFeature
from ranking.schema.validation_errors import format_validation_error

BASE: dict[str, Any] = {
    "name": "shop",
    "features": [
        {"name": "user_id", "kind": "categorical", "owner": "user"},
        {"name": "item_id", "kind": "categorical", "owner": "item", "dim": 8, "min_count": 2},
        {"name": "tab", "kind": "categorical", "owner": "context"},
        {"name": "slot", "kind": "categorical", "owner": "context", "training_only": True},
        {"name": "tags", "kind": "bag", "owner": "item"},
        {"name": "seen", "kind": "sequence", "owner": "user"},
        {"name": "age", "kind": "numeric", "owner": "user"},
        {"name": "user_tab", "kind": "cross", "of": ["user_id", "tab"], "hash_buckets": 10},
    ],
    "tasks": [{"name": "click", "kind": "binary"}, {"name": "watch", "kind": "regression"}],
}


def schema(**entries: Any) -> Schema:
    return Schema.model_validate(BASE | entries)


def message(**entries: Any) -> str:
    data = BASE | entries
    with pytest.raises(ValidationError) as error:
        Schema.model_validate(data)
    return format_validation_error(error.value, data)


@pytest.mark.parametrize(
    ("of", "owner"),
    [
        (["user_id"], "user"),
        (["item_id"], "item"),
        (["tab"], "context"),
        (["user_id", "tab"], "context"),
        (["user_id", "tags"], "item"),
        (["item_id", "tab"], "item"),
    ],
)
def test_features_of_a_counter_vary_with_the_most_specific_part(of: list[str], owner: str) -> None:
    counter_features = schema(counters=[{"of": of, "labels": ["click", "watch"]}]).counter_features
    name = "_".join(of)
    assert [feature.name for feature in counter_features] == [
        f"{name}_click_rate",
        f"{name}_watch_rate",
        f"{name}_count",
        f"{name}_age",
    ]
    assert {feature.owner for feature in counter_features} == {owner}
    assert [feature.transform for feature in counter_features if isinstance(feature, NumericFeature)] == [
        *("standardise", "standardise"),
        *("log1p", "log1p"),
    ]


def test_history_is_a_sequence_that_shares_the_table_of_its_items() -> None:
    (history,) = schema(histories=[{"of": "item_id", "label": "click", "max_length": 7}]).counter_features
    assert isinstance(history, SequenceFeature)
    assert (history.name, history.owner, history.max_length) == ("click_item_id_history", "user", 7)
    assert (history.table, history.dim, history.min_count) == ("item_id", 8, 2)


def test_declared_feature_replaces_that_of_a_counter() -> None:
    declared = {"name": "tab_count", "kind": "numeric", "owner": "context", "transform": "none"}
    features = schema(
        counters=[{"of": ["tab"], "labels": ["click"]}], features=[*BASE["features"], declared]
    ).counter_features
    assert [(f.name, f.transform) for f in features if isinstance(f, NumericFeature)] == [
        ("tab_count", "none"),
        ("tab_click_rate", "standardise"),
        ("tab_age", "log1p"),
    ]


def test_schema_survives_json() -> None:
    original = schema(
        counters=[{"of": ["user_id"], "labels": ["click"], "delay": "1h", "half_life": "3d"}],
        histories=[{"of": "item_id", "label": "click", "value": 0}],
    )
    assert Schema.model_validate(original.model_dump(mode="json", exclude_none=True)) == original


def test_restricted_schema_has_no_counters() -> None:
    restricted = schema(counters=[{"of": ["tab"], "labels": ["click"]}]).restricted(["tab", "tab_count"])
    assert (restricted.counters, restricted.counter_features) == ((), [])
    assert [feature.name for feature in restricted.features] == ["tab", "tab_count"]


def test_window_is_divided_into_days_or_hours() -> None:
    windows = [{"of": ["tab"], "labels": ["click"], "window": window, "name": f"w{window}"} for window in ("6h", "7d")]
    assert [(c.buckets, c.bucket_seconds) for c in schema(counters=windows).counters] == [(6, 3_600), (7, 86_400)]


COUNTER: dict[str, Any] = {"of": ["user_id"], "labels": ["click"]}
HISTORY: dict[str, Any] = {"of": "item_id", "label": "click"}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            {"of": ["users"]},
            "counter 'users': of names 'users', which is not a declared feature; choose from user_id, ",
        ),
        ({"of": ["age"]}, "counter 'age': of names 'age', a numeric feature: use categorical, bag or sequence"),
        ({"of": ["user_tab"]}, "counter 'user_tab': of names 'user_tab', a cross feature: name its parts"),
        ({"of": ["slot"]}, "counter 'slot': of names 'slot', which is training_only: it is unknown when serving"),
        ({"of": ["tags", "seen"]}, "of names 2 features with lists (tags, seen): use at most one"),
        ({"of": ["tab", "tab"]}, "counters (entry 1): of contains 'tab' twice: remove one"),
        ({"of": []}, "counters (entry 1).of: must hold at least 1 entry"),
        ({"labels": ["clicks"]}, "labels names 'clicks', which is not a task; choose from click, watch"),
        ({"labels": ["click", "click"]}, "counters (entry 1): labels contains 'click' twice: remove one"),
        ({"prior": 0.0}, "counters (entry 1).prior: must be greater than 0"),
        ({"as_of": "day", "delay": "1h"}, "give either as_of or delay"),
        ({"as_of": "hour"}, "counters (entry 1).as_of: choose 'day'"),
        (
            {"delay": "1 hour"},
            "'1 hour' is not a duration: write a number and s, m, h or d in quotes, such as '1h' or '7d'",
        ),
        (
            {"delay": 3600},
            "counters (entry 1).delay: 3600 is not a duration: write a number and s, m, h or d in quotes",
        ),
        ({"window": "0d"}, "counters (entry 1).window: must be longer than 0 seconds"),
        ({"window": "25h"}, "window = '25h' must be whole hours up to a day, and whole days beyond"),
        ({"window": "90m"}, "window = '90m' must be whole hours"),
        ({"window": "400d"}, "window = '400d' must be at most 366 days"),
        ({"window": "7d", "half_life": "1d"}, "give either window or half_life"),
        ({"labells": 1}, "counters (entry 1).labells: unknown key"),
    ],
)
def test_mistake_in_a_counter_names_the_entry_and_the_fix(entry: dict[str, Any], expected: str) -> None:
    text = message(counters=[COUNTER | entry])
    assert expected in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            {"of": "tab"},
            "history 'click_tab_history': of names 'tab', which is not a categorical item feature; choose from",
        ),
        ({"of": "tags"}, "of names 'tags', which is not a categorical item feature"),
        ({"of": "items"}, "history 'click_items_history': of names 'items', which is not a declared feature"),
        ({"label": "watch"}, "label names 'watch', which is not a binary task; choose from click"),
        ({"value": 2}, "histories (entry 1).value: choose 0 or 1"),
        ({"max_length": 0}, "histories (entry 1).max_length: must be greater than 0"),
    ],
)
def test_mistake_in_a_history_names_the_entry_and_the_fix(entry: dict[str, Any], expected: str) -> None:
    text = message(histories=[HISTORY | entry])
    assert expected in text
    assert "\n" not in text


def test_two_entries_of_one_name_are_rejected() -> None:
    assert "counters: 'user_id' is declared twice" in message(counters=[COUNTER, COUNTER])


def test_table_in_place_of_a_list_is_rejected() -> None:
    assert message(counters=COUNTER) == "counters: must be a list of tables: write each under [[counters]]"


def test_declared_feature_of_the_wrong_kind_is_rejected() -> None:
    features = [*BASE["features"], {"name": "tab_count", "kind": "categorical", "owner": "context"}]
    text = message(features=features, counters=[{"of": ["tab"], "labels": ["click"]}])
    assert "counter 'tab': declare feature 'tab_count' as numeric, or give the counter another name" in text


def test_column_of_a_declared_counter_feature_is_rejected() -> None:
    declared = {"name": "tab_count", "kind": "numeric", "owner": "context", "column": "other"}
    entries = {"counters": [{"of": ["tab"], "labels": ["click"]}], "features": [*BASE["features"], declared]}
    assert "sets column = 'other', but its values are computed: remove column" in message(**entries)
