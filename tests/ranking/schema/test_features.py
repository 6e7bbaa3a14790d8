"""Sequences, buckets, crosses, defaults and training-only features: what a schema may say of them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ranking.schema import BucketsFeature, CrossFeature, Schema, SequenceFeature
from ranking.schema.validation_errors import format_validation_error

ITEM = {"name": "item_id", "kind": "categorical", "owner": "item"}
TAB = {"name": "tab", "kind": "categorical", "owner": "context"}
AGE = {"name": "age", "kind": "numeric", "owner": "user"}
RECENT = {"name": "recent", "kind": "sequence", "owner": "user", "table": "item_id", "max_length": 3}
BAND = {"name": "band", "column": "age", "kind": "buckets", "owner": "user", "count": 4}
CROSS = {"name": "item_tab", "kind": "cross", "of": ["item_id", "tab"], "hash_buckets": 100}


def document(*features: dict[str, Any]) -> dict[str, Any]:
    tasks = [{"name": "click", "kind": "binary"}]
    return {"name": "shop", "features": [ITEM, TAB, AGE, *features], "tasks": tasks}


def refusal(*features: dict[str, Any]) -> str:
    """What a user reads when these features are refused."""
    data = document(*features)
    with pytest.raises(ValidationError) as caught:
        Schema.model_validate(data)
    return format_validation_error(caught.value, data)


def test_each_kind_has_its_place_in_the_models_input() -> None:
    schema = Schema.model_validate(document(RECENT, BAND, CROSS))
    assert [type(f) for f in schema.features[3:]] == [SequenceFeature, BucketsFeature, CrossFeature]
    assert [f.name for f in schema.categoricals] == ["item_id", "tab", "band", "item_tab"]
    assert [f.name for f in schema.bags] == ["recent"]
    assert [f.name for f in schema.numerics] == ["age"]
    assert [f.name for f in schema.numbers] == ["age", "band"]
    assert list(schema.tables) == ["item_id", "tab", "band", "item_tab"]


def test_a_cross_is_read_from_no_column() -> None:
    schema = Schema.model_validate(document(CROSS))
    assert [f.name for f in schema.inputs] == ["item_id", "tab", "age"]
    assert schema.columns_of("context") == ["tab"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "give boundaries = [...] or count = N, one of the two"),
        ({"boundaries": [1], "count": 2}, "give boundaries = [...] or count = N, one of the two"),
        ({"boundaries": [2, 1]}, "boundaries must ascend, without repeats"),
        ({"boundaries": [1, 1]}, "boundaries must ascend, without repeats"),
        ({"boundaries": []}, "boundaries"),
        ({"count": 1}, "count"),
    ],
)
def test_buckets_are_cut_one_way_and_in_order(given: dict[str, Any], reason: str) -> None:
    text = refusal({"name": "band", "column": "age", "kind": "buckets", "owner": "user", **given})
    assert text.startswith("features.'band'")
    assert reason in text


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"of": ["item_id", "hour"]}, "cross 'item_tab' is of 'hour', which is no feature: item_id, tab, age"),
        ({"of": ["item_id", "age"]}, "cross 'item_tab' is of 'age', a numeric feature: cross categorical ones"),
        ({"of": ["tab", "tab"]}, "features.'item_tab': of names a feature twice"),
        ({"of": ["tab"]}, "features.'item_tab'.of"),
        ({"owner": "item"}, "features.'item_tab'.owner: unknown key of kind 'cross'"),
        ({"default": 1}, "features.'item_tab'.default: unknown key of kind 'cross'"),
    ],
)
def test_a_cross_is_of_several_categorical_features(changed: dict[str, Any], reason: str) -> None:
    assert reason in refusal({**CROSS, **changed})


def test_a_cross_without_buckets_is_told_so() -> None:
    assert refusal({k: v for k, v in CROSS.items() if k != "hash_buckets"}) == (
        "features.'item_tab'.hash_buckets: missing"
    )


@pytest.mark.parametrize("own", [{**BAND, "name": "item_id_band"}, {**CROSS, "name": "item_id_tab"}])
@pytest.mark.parametrize("order", [1, -1])
def test_a_table_of_their_own_is_shared_with_nobody(own: dict[str, Any], order: int) -> None:
    other = {"name": "seen", "kind": "bag", "owner": "user", "table": own["name"]}
    text = refusal(*[own, other][::order])
    assert f"share table '{own['name']}', but a {own['kind']} feature has a table of its own: name another" in text


def test_a_sequence_shares_a_table_as_a_bag_does() -> None:
    assert "share table 'item_id', not dim" in refusal({**RECENT, "dim": 3})
    text = refusal(RECENT, {"name": "liked", "kind": "bag", "owner": "user", "table": "item_id", "pooling": "sum"})
    assert "'recent' and 'liked' share table 'item_id' but differ in pooling" in text


@pytest.mark.parametrize(
    ("feature", "default"),
    [(TAB, "home"), (TAB, 3), (TAB, True), (RECENT, []), (RECENT, ["a", "b"]), (AGE, 30.5), (BAND, 30)],
)
def test_a_default_is_a_value_of_its_kind(feature: dict[str, Any], default: Any) -> None:
    read = Schema.model_validate(document({**feature, "name": "other", "default": default})).inputs[-1].default
    assert (list(read) if isinstance(read, tuple) else read) == default


@pytest.mark.parametrize(
    ("feature", "default", "reason"),
    [
        (TAB, 1.5, "default"),
        (TAB, 2**63, "default"),
        (RECENT, "a", "default"),
        (RECENT, ["a", 1], "default mixes integers and strings: write ids of one type"),
        (AGE, "old", "default"),
        (AGE, float("nan"), "default"),
        ({**AGE, "transform": "log1p"}, -1, "default = -1 is −1 or less, but the transform is log1p"),
        (BAND, [1], "default"),
    ],
)
def test_a_default_of_another_kind_is_refused(feature: dict[str, Any], default: Any, reason: str) -> None:
    text = refusal({**feature, "name": "other", "default": default})
    assert text.startswith("features.'other'")
    assert reason in text


def test_a_cross_is_of_nothing_that_is_unknown_when_scores_are_asked_for() -> None:
    position = {"name": "position", "kind": "categorical", "owner": "context", "training_only": True}
    text = refusal(position, {**CROSS, "of": ["tab", "position"]})
    assert "cross 'item_tab' is of 'position', which is training_only" in text


def test_a_training_only_column_is_so_for_every_feature() -> None:
    again = {"name": "log_age", "column": "age", "kind": "numeric", "owner": "user", "training_only": True}
    assert "features 'age' and 'log_age' share column 'age', not training_only" in refusal(again)
