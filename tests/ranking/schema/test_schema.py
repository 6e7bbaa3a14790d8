"""Schema: defaults, properties, and the messages of invalid schemas."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import tomli_w
from pydantic import ValidationError

from ranking.schema import BagFeature, CategoricalFeature, NumericFeature, Schema
from tests.support.validation_messages import validation_message

AGE = {"name": "age", "kind": "numeric", "owner": "user"}
CLICK = {"name": "click", "kind": "binary"}


def document(
    features: list[dict[str, Any]] | None = None, tasks: list[dict[str, Any]] | None = None, **keys: Any
) -> dict[str, Any]:
    """Return a valid configuration with these features and tasks in addition to its own."""
    return {"name": "shop", "features": [AGE, *(features or [])], "tasks": [CLICK, *(tasks or [])], **keys}


def message(data: dict[str, Any]) -> str:
    """Return the error message of an invalid configuration."""
    return validation_message(Schema, data)


def bag(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "kind": "bag", "owner": "item", **keys}


def categorical(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "kind": "categorical", "owner": "item", **keys}


def binary(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "kind": "binary", **keys}


# Defaults.


def test_column_defaults_to_the_feature_name() -> None:
    schema = Schema.model_validate(document([categorical("brand"), categorical("maker", column="made_by")]))
    assert [feature.column for feature in schema.features] == ["age", "brand", "made_by"]


def test_table_defaults_to_the_feature_name() -> None:
    schema = Schema.model_validate(document([categorical("brand"), bag("brands", table="brand")]))
    assert [feature.table for feature in schema.sparse] == ["brand", "brand"]
    assert list(schema.tables) == ["brand"]


def test_label_defaults_to_the_task_name() -> None:
    schema = Schema.model_validate(document(tasks=[{"name": "like", "kind": "binary", "label": "is_like"}]))
    assert [task.label for task in schema.tasks] == ["click", "is_like"]


def test_schema_groups_features_by_kind_in_order_of_declaration(schema: Schema) -> None:
    assert [f.name for f in schema.categoricals] == ["user_id", "item_id", "tab"]
    assert [f.name for f in schema.bags] == ["tags"]
    assert [f.name for f in schema.sparse] == ["user_id", "item_id", "tab", "tags"]
    assert [f.name for f in schema.numerics] == ["age", "price"]
    assert schema.task_names == ["click", "watch"]


def test_feature_class_depends_on_kind() -> None:
    schema = Schema.model_validate(document([categorical("brand"), bag("tags")]))
    assert [type(feature) for feature in schema.features] == [NumericFeature, CategoricalFeature, BagFeature]


def test_columns_of_owner_exclude_id_column_and_duplicates() -> None:
    features = [
        {"name": "user_id", "kind": "categorical", "owner": "user"},
        {"name": "age_again", "kind": "numeric", "owner": "user", "column": "age", "transform": "log1p"},
        categorical("brand"),
    ]
    schema = Schema.model_validate(document(features))
    assert schema.columns_of("user") == ["age"]
    assert schema.columns_of("item") == ["brand"]
    assert schema.columns_of("context") == []


def test_id_column_exists_for_users_and_items_but_not_for_context() -> None:
    schema = Schema.model_validate(document(columns={"user": "uid"}))
    assert (schema.id_column("user"), schema.id_column("item"), schema.id_column("context")) == ("uid", "item_id", None)


def test_schema_is_immutable(schema: Schema) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        schema.name = "other"


# Serialization.


@pytest.mark.parametrize("form", ["json", "toml"])
def test_dumped_schema_reads_back_equal(schema: Schema, hand_schema: Schema, form: str) -> None:
    for original in (schema, hand_schema):
        dump = original.model_dump(mode="json", exclude_none=True)
        again = json.loads(json.dumps(dump)) if form == "json" else tomllib.loads(tomli_w.dumps(dump))
        assert Schema.model_validate(again) == original


# Unknown keys.


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (document(modle={}), "modle: unknown key"),
        (document([bag("tags", colour="red")]), "features.'tags'.colour: unknown key of kind 'bag'"),
        (document() | {"features": [bag("tags", colour="red")]}, "features.'tags'.colour: unknown key of kind 'bag'"),
        (
            document([categorical("price", kind="numeric", dim=8)]),
            "features.'price'.dim: unknown key of kind 'numeric'",
        ),
        (document(tasks=[binary("like", wieght=2.0)]), "tasks.'like'.wieght: unknown key; did you mean 'weight'?"),
    ],
    ids=["top level", "feature", "only feature", "key of another kind", "task"],
)
def test_unknown_key_is_named_with_its_feature_or_task(data: dict[str, Any], expected: str) -> None:
    assert message(data) == expected


def test_message_lists_every_problem() -> None:
    text = message(document([bag("tags", colour="red")], [{"name": "like", "kind": "binary", "weight": 0}]))
    assert "features.'tags'.colour" in text
    assert "tasks.'like'.weight" in text


# Names.


def test_duplicate_feature_name_is_rejected() -> None:
    assert "'age' is declared twice" in message(document([categorical("age", column="other")]))


def test_duplicate_task_name_is_rejected() -> None:
    text = message(document(tasks=[{"name": "click", "kind": "regression", "label": "other"}]))
    assert "'click' is declared twice" in text
    assert text.startswith("tasks")


@pytest.mark.parametrize("name", ["my tag", "../tags", "1st", ""])
def test_feature_name_that_is_not_an_identifier_is_rejected(name: str) -> None:
    assert "name" in message(document([bag(name, table="tags")]))


@pytest.mark.parametrize("name", ["a b", "../feed", "-feed", ""])
def test_ranker_name_that_is_not_a_folder_name_is_rejected(name: str) -> None:
    assert message(document() | {"name": name}).startswith("name:")


@pytest.mark.parametrize("key", ["features", "tasks"])
def test_schema_without_features_or_tasks_is_rejected(key: str) -> None:
    assert message(document() | {key: []}).startswith(f"{key}:")


@pytest.mark.parametrize(
    "wrong",
    [document([categorical("brand", column="")]), document(tasks=[{"name": "like", "kind": "binary", "label": ""}])],
    ids=["column", "label"],
)
def test_empty_column_name_is_rejected(wrong: dict[str, Any]) -> None:
    message(wrong)


# Evaluation.


def test_request_column_defaults_to_none() -> None:
    assert Schema.model_validate(document()).columns.request is None
    assert Schema.model_validate(document(columns={"request": "request_id"})).columns.request == "request_id"


def test_request_column_that_is_a_label_is_rejected() -> None:
    assert "'click' has the id or time column 'click' as its label" in message(document(columns={"request": "click"}))


def test_calibration_defaults_to_none() -> None:
    like = {"name": "like", "kind": "binary", "calibration": "isotonic"}
    assert [task.calibration for task in Schema.model_validate(document(tasks=[like])).tasks] == ["none", "isotonic"]


# Kind and owner.


def test_missing_owner_message_lists_the_choices() -> None:
    text = message(document([{"name": "tags", "kind": "bag"}]))
    assert text == "features.'tags'.owner: missing; choose user, item or context"


def test_unknown_owner_message_lists_the_choices() -> None:
    text = message(document([bag("tags", owner="shop")]))
    assert text.startswith("features.'tags'.owner:")
    for part in ("'user'", "'item'", "'context'", "'shop'"):
        assert part in text


@pytest.mark.parametrize("kind", [{}, {"kind": "text"}], ids=["missing", "unknown"])
def test_invalid_feature_kind_message_lists_the_choices(kind: dict[str, str]) -> None:
    text = message(document([{"name": "tags", "owner": "item", **kind}]))
    assert text.startswith("features.'tags'")
    for part in ("kind", "categorical", "bag", "numeric", *kind.values()):
        assert part in text
    assert "{" not in text, "the message does not quote the feature's table"


@pytest.mark.parametrize("kind", [{}, {"kind": "rank"}], ids=["missing", "unknown"])
def test_invalid_task_kind_message_lists_the_choices(kind: dict[str, str]) -> None:
    text = message(document(tasks=[{"name": "like", **kind}]))
    assert text.startswith("tasks.'like'.kind: ")
    assert "missing" in text or ("binary" in text and "regression" in text and "'rank'" in text)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (binary("like", transform="log1p"), "transform is for regression tasks: a binary label has no transform"),
        (
            {"name": "like", "kind": "regression", "calibration": "platt"},
            "calibration is for binary tasks: a regression has no probabilities",
        ),
    ],
    ids=["transform", "calibration"],
)
def test_task_setting_of_the_other_kind_is_rejected(task: dict[str, Any], expected: str) -> None:
    assert message(document(tasks=[task])) == f"tasks.'like': {expected}"


@pytest.mark.parametrize("weight", [0, -1.0, "much"])
def test_task_weight_that_is_not_positive_is_rejected(weight: Any) -> None:
    assert message(document(tasks=[{"name": "like", "kind": "binary", "weight": weight}])).startswith(
        "tasks.'like'.weight:"
    )


# Ids.


@pytest.mark.parametrize("make", [categorical, bag])
def test_min_count_with_hash_buckets_is_rejected(make: Any) -> None:
    text = message(document([make("tags", min_count=2, hash_buckets=10)]))
    assert text.startswith("features.'tags': ")
    assert "min_count" in text
    assert "hash_buckets" in text


@pytest.mark.parametrize("key", ["dim", "min_count", "hash_buckets"])
def test_size_below_one_is_rejected(key: str) -> None:
    assert message(document([bag("tags", **{key: 0})])).startswith(f"features.'tags'.{key}:")


# Columns.


def test_label_that_is_a_feature_is_rejected() -> None:
    text = message(document([categorical("clicked", column="click")]))
    assert "feature 'clicked'" in text
    assert "column 'click'" in text
    assert "task 'click'" in text


def test_label_shared_by_two_tasks_is_rejected() -> None:
    text = message(document(tasks=[{"name": "like", "kind": "binary", "label": "click"}]))
    assert "label column 'click'" in text


@pytest.mark.parametrize("column", ["user_id", "item_id", "time"])
def test_id_or_time_column_as_label_is_rejected(column: str) -> None:
    text = message(document(tasks=[{"name": "like", "kind": "binary", "label": column}]))
    assert "task 'like'" in text
    assert f"'{column}'" in text


@pytest.mark.parametrize(
    ("owner", "column", "right"),
    [
        ("item", "user_id", "user"),
        ("context", "user_id", "user"),
        ("user", "item_id", "item"),
        ("context", "item_id", "item"),
    ],
)
def test_id_column_with_another_owner_is_rejected(owner: str, column: str, right: str) -> None:
    text = message(document([categorical("owned", column=column, owner=owner)]))
    assert "feature 'owned'" in text
    assert f"'{column}'" in text
    assert f"its owner must be {right}" in text


def test_column_with_two_owners_is_rejected() -> None:
    text = message(document([{"name": "age_now", "kind": "numeric", "owner": "context", "column": "age"}]))
    assert "column 'age' has two owners" in text


def test_features_of_one_owner_may_share_a_column() -> None:
    again = {"name": "log_age", "kind": "numeric", "owner": "user", "column": "age", "transform": "log1p"}
    assert len(Schema.model_validate(document([again])).features) == 2


# Shared tables.


@pytest.mark.parametrize(
    ("feature", "key", "value"),
    [(categorical, "dim", 5), (categorical, "min_count", 5), (categorical, "hash_buckets", 5)],
)
def test_features_sharing_a_table_with_different_settings_are_rejected(feature: Any, key: str, value: Any) -> None:
    text = message(document([feature("brand", table="brand"), bag("brands", table="brand", **{key: value})]))
    for part in ("'brand'", "'brands'", "table 'brand'", key):
        assert part in text


def test_features_that_share_a_table_may_differ_in_pooling() -> None:
    bags = [bag(pooling, table="tag", pooling=pooling) for pooling in ("mean", "sum", "shrunk")]
    schema = Schema.model_validate(document([categorical("tag"), *bags]))
    assert [feature.name for feature in schema.sparse] == ["tag", "mean", "sum", "shrunk"]


# Restricted schemas.


def test_restricted_schema_keeps_named_features_in_order() -> None:
    schema = Schema.model_validate(document([categorical("tag"), bag("tags"), categorical("brand")]))
    restricted = schema.restricted({"brand", "tag"})
    assert [feature.name for feature in restricted.features] == ["tag", "brand"]
    assert list(restricted.tables) == ["tag", "brand"]
    assert restricted.tasks == schema.tasks
    assert schema.restricted([]).inputs == []
