"""Sequences, buckets, crosses, defaults and training-only features in a schema."""

from __future__ import annotations

from typing import Any

import pytest

from ranking.schema import BucketsFeature, CrossFeature, Schema, SequenceFeature
from tests.support.validation_messages import validation_message

ITEM = {"name": "item_id", "kind": "categorical", "owner": "item"}
TAB = {"name": "tab", "kind": "categorical", "owner": "context"}
AGE = {"name": "age", "kind": "numeric", "owner": "user"}
RECENT = {"name": "recent", "kind": "sequence", "owner": "user", "table": "item_id", "max_length": 3}
BAND = {"name": "band", "column": "age", "kind": "buckets", "owner": "user", "count": 4}
CROSS = {"name": "item_tab", "kind": "cross", "of": ["item_id", "tab"], "hash_buckets": 100}


def document(*features: dict[str, Any]) -> dict[str, Any]:
    tasks = [{"name": "click", "kind": "binary"}]
    return {"name": "shop", "features": [ITEM, TAB, AGE, *features], "tasks": tasks}


def message(*features: dict[str, Any]) -> str:
    """Return the error message of a schema with these features."""
    return validation_message(Schema, document(*features))


def test_schema_orders_features_of_all_kinds() -> None:
    schema = Schema.model_validate(document(RECENT, BAND, CROSS))
    assert [type(f) for f in schema.features[3:]] == [SequenceFeature, BucketsFeature, CrossFeature]
    assert [f.name for f in schema.categoricals] == ["item_id", "tab", "band", "item_tab"]
    assert [f.name for f in schema.bags] == ["recent"]
    assert [f.name for f in schema.numerics] == ["age"]
    assert [f.name for f in schema.numbers] == ["age", "band"]
    assert list(schema.tables) == ["item_id", "tab", "band", "item_tab"]


def test_cross_has_no_column() -> None:
    schema = Schema.model_validate(document(CROSS))
    assert [f.name for f in schema.inputs] == ["item_id", "tab", "age"]
    assert schema.columns_of("context") == ["tab"]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({}, "set either boundaries = [...] or count = N"),
        ({"boundaries": [1], "count": 2}, "set either boundaries = [...] or count = N"),
        ({"boundaries": [2, 1]}, "boundaries must be strictly ascending"),
        ({"boundaries": [1, 1]}, "boundaries must be strictly ascending"),
        ({"boundaries": []}, "boundaries"),
        ({"count": 1}, "count"),
    ],
)
def test_invalid_buckets_are_rejected(keys: dict[str, Any], reason: str) -> None:
    text = message({"name": "band", "column": "age", "kind": "buckets", "owner": "user", **keys})
    assert text.startswith("features.'band'")
    assert reason in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"of": ["item_id", "hour"]},
            "cross 'item_tab' combines 'hour', which is not a feature: choose from item_id, tab, age",
        ),
        ({"of": ["item_id", "age"]}, "cross 'item_tab' combines 'age', a numeric feature: use categorical features"),
        ({"of": ["tab", "tab"]}, "features.'item_tab': of names a feature twice"),
        ({"of": ["tab"]}, "features.'item_tab'.of"),
        ({"owner": "item"}, "features.'item_tab'.owner: unknown key of kind 'cross'"),
        ({"default": 1}, "features.'item_tab'.default: unknown key of kind 'cross'"),
    ],
)
def test_invalid_cross_is_rejected(changes: dict[str, Any], reason: str) -> None:
    assert reason in message({**CROSS, **changes})


def test_cross_without_hash_buckets_is_rejected() -> None:
    assert message({k: v for k, v in CROSS.items() if k != "hash_buckets"}) == (
        "features.'item_tab'.hash_buckets: missing; give the number of rows of its embedding table, such as "
        "hash_buckets = 100000"
    )


@pytest.mark.parametrize("own", [{**BAND, "name": "item_id_band"}, {**CROSS, "name": "item_id_tab"}])
@pytest.mark.parametrize("order", [1, -1])
def test_table_of_buckets_or_cross_cannot_be_shared(own: dict[str, Any], order: int) -> None:
    other = {"name": "seen", "kind": "bag", "owner": "user", "table": own["name"]}
    text = message(*[own, other][::order])
    assert (
        f"share table '{own['name']}', but a {own['kind']} feature cannot share its table: name another table" in text
    )


def test_sequence_sharing_a_table_must_agree_on_dim() -> None:
    assert "share table 'item_id' but differ in dim" in message({**RECENT, "dim": 3})


@pytest.mark.parametrize(
    ("feature", "default"),
    [(TAB, "home"), (TAB, 3), (TAB, True), (RECENT, []), (RECENT, ["a", "b"]), (AGE, 30.5), (BAND, 30)],
)
def test_default_of_the_features_type_is_accepted(feature: dict[str, Any], default: Any) -> None:
    stored = Schema.model_validate(document({**feature, "name": "other", "default": default})).inputs[-1].default
    assert (list(stored) if isinstance(stored, tuple) else stored) == default


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
def test_default_of_another_type_is_rejected(feature: dict[str, Any], default: Any, reason: str) -> None:
    text = message({**feature, "name": "other", "default": default})
    assert text.startswith("features.'other'")
    assert reason in text


def test_cross_with_a_training_only_part_is_rejected() -> None:
    position = {"name": "position", "kind": "categorical", "owner": "context", "training_only": True}
    text = message(position, {**CROSS, "of": ["tab", "position"]})
    assert "cross 'item_tab' combines 'position', which is training_only" in text


def test_features_sharing_a_column_must_agree_on_training_only() -> None:
    again = {"name": "log_age", "column": "age", "kind": "numeric", "owner": "user", "training_only": True}
    assert "features 'age' and 'log_age' share column 'age' but differ in training_only" in message(again)
