"""The contract: what a schema may say, and the one readable line for what it may not."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import tomli_w
from pydantic import ValidationError

from ranking.schema import BagFeature, CategoricalFeature, NumericFeature, Schema
from ranking.schema.validation_errors import format_validation_error

AGE = {"name": "age", "kind": "numeric", "owner": "user"}
CLICK = {"name": "click", "kind": "binary"}


def document(
    features: list[dict[str, Any]] | None = None, tasks: list[dict[str, Any]] | None = None, **keys: Any
) -> dict[str, Any]:
    """A valid document, with these features and tasks beside the ones it has."""
    return {"name": "shop", "features": [AGE, *(features or [])], "tasks": [CLICK, *(tasks or [])], **keys}


def refusal(data: dict[str, Any]) -> str:
    """What a user reads when this document is refused."""
    with pytest.raises(ValidationError) as caught:
        Schema.model_validate(data)
    return format_validation_error(caught.value, data)


def bag(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "kind": "bag", "owner": "item", **keys}


def categorical(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "kind": "categorical", "owner": "item", **keys}


# What is left out has a default.


def test_a_column_defaults_to_the_features_name() -> None:
    schema = Schema.model_validate(document([categorical("brand"), categorical("maker", column="made_by")]))
    assert [feature.column for feature in schema.features] == ["age", "brand", "made_by"]


def test_a_table_defaults_to_the_features_name() -> None:
    schema = Schema.model_validate(document([categorical("brand"), bag("brands", table="brand")]))
    assert [feature.table for feature in schema.sparse] == ["brand", "brand"]
    assert list(schema.tables) == ["brand"]


def test_a_label_defaults_to_the_tasks_name() -> None:
    schema = Schema.model_validate(document(tasks=[{"name": "like", "kind": "binary", "label": "is_like"}]))
    assert [task.label for task in schema.tasks] == ["click", "is_like"]


def test_features_are_grouped_by_kind_in_order_of_declaration(schema: Schema) -> None:
    assert [f.name for f in schema.categoricals] == ["user_id", "item_id", "tab"]
    assert [f.name for f in schema.bags] == ["tags"]
    assert [f.name for f in schema.sparse] == ["user_id", "item_id", "tab", "tags"]
    assert [f.name for f in schema.numerics] == ["age", "price"]
    assert schema.task_names == ["click", "watch"]


def test_kind_decides_the_class() -> None:
    schema = Schema.model_validate(document([categorical("brand"), bag("tags")]))
    assert [type(feature) for feature in schema.features] == [NumericFeature, CategoricalFeature, BagFeature]


def test_owned_columns_leave_out_the_id_column_and_repeats() -> None:
    features = [
        {"name": "user_id", "kind": "categorical", "owner": "user"},
        {"name": "age_again", "kind": "numeric", "owner": "user", "column": "age", "transform": "log1p"},
        categorical("brand"),
    ]
    schema = Schema.model_validate(document(features))
    assert schema.columns_of("user") == ["age"]
    assert schema.columns_of("item") == ["brand"]
    assert schema.columns_of("context") == []


def test_users_and_items_have_an_id_column_and_the_context_has_none() -> None:
    schema = Schema.model_validate(document(columns={"user": "uid"}))
    assert (schema.id_column("user"), schema.id_column("item"), schema.id_column("context")) == ("uid", "item_id", None)


def test_a_schema_cannot_be_changed(schema: Schema) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        schema.name = "other"


# A dump can be read back.


@pytest.mark.parametrize("form", ["json", "toml"])
def test_a_dump_reads_back_as_the_same_schema(schema: Schema, hand_schema: Schema, form: str) -> None:
    for original in (schema, hand_schema):
        dump = original.model_dump(mode="json", exclude_none=True)
        again = json.loads(json.dumps(dump)) if form == "json" else tomllib.loads(tomli_w.dumps(dump))
        assert Schema.model_validate(again) == original


# Unknown keys.


def test_an_unknown_key_of_the_document_is_named() -> None:
    assert refusal(document(modle={})) == "modle: unknown key"


def test_an_unknown_key_of_a_feature_is_named_with_its_feature() -> None:
    assert refusal(document([bag("tags", colour="red")])) == "features.'tags'.colour: unknown key of kind 'bag'"


def test_an_unknown_key_of_a_task_is_named_with_its_task() -> None:
    text = refusal(document(tasks=[{"name": "like", "kind": "binary", "wieght": 2.0}]))
    assert text == "tasks.'like'.wieght: unknown key"


def test_a_number_has_no_embedding() -> None:
    text = refusal(document([{"name": "price", "kind": "numeric", "owner": "item", "dim": 8}]))
    assert text == "features.'price'.dim: unknown key of kind 'numeric'"


def test_each_problem_is_told() -> None:
    text = refusal(document([bag("tags", colour="red")], [{"name": "like", "kind": "binary", "weight": 0}]))
    assert "features.'tags'.colour" in text
    assert "tasks.'like'.weight" in text


def test_only_what_is_wrong_is_told_when_no_feature_is_right() -> None:
    text = refusal({"name": "shop", "features": [bag("tags", colour="red")], "tasks": [CLICK]})
    assert text == "features.'tags'.colour: unknown key of kind 'bag'"


# Names.


def test_two_features_of_one_name_are_refused() -> None:
    assert "'age' is declared twice" in refusal(document([categorical("age", column="other")]))


def test_two_tasks_of_one_name_are_refused() -> None:
    text = refusal(document(tasks=[{"name": "click", "kind": "regression", "label": "other"}]))
    assert "'click' is declared twice" in text
    assert text.startswith("tasks")


@pytest.mark.parametrize("name", ["my tag", "../tags", "1st", ""])
def test_a_name_that_is_no_identifier_is_refused(name: str) -> None:
    assert "name" in refusal(document([bag(name, table="tags")]))


@pytest.mark.parametrize("name", ["a b", "../feed", "-feed", ""])
def test_a_ranker_name_that_is_no_folder_name_is_refused(name: str) -> None:
    assert refusal(document() | {"name": name}).startswith("name:")


@pytest.mark.parametrize("key", ["features", "tasks"])
def test_a_ranker_without_features_or_tasks_is_refused(key: str) -> None:
    assert refusal(document() | {key: []}).startswith(f"{key}:")


@pytest.mark.parametrize(
    "wrong",
    [document([categorical("brand", column="")]), document(tasks=[{"name": "like", "kind": "binary", "label": ""}])],
    ids=["column", "label"],
)
def test_an_empty_column_name_is_refused(wrong: dict[str, Any]) -> None:
    refusal(wrong)


# Evaluation.


def test_a_request_has_no_column_unless_one_is_named() -> None:
    assert Schema.model_validate(document()).columns.request is None
    assert Schema.model_validate(document(columns={"request": "request_id"})).columns.request == "request_id"


def test_a_request_column_that_is_a_label_is_refused() -> None:
    assert "'click' has the id or time column 'click' as its label" in refusal(document(columns={"request": "click"}))


def test_a_task_is_uncalibrated_unless_it_says_how() -> None:
    like = {"name": "like", "kind": "binary", "calibration": "isotonic"}
    assert [task.calibration for task in Schema.model_validate(document(tasks=[like])).tasks] == ["none", "isotonic"]


def test_only_probabilities_are_calibrated() -> None:
    watch = {"name": "watch", "kind": "regression", "calibration": "platt"}
    assert refusal(document(tasks=[watch])) == "tasks.'watch': only a binary task has probabilities to calibrate"


# Kind and owner.


def test_a_missing_owner_is_told_with_its_choices() -> None:
    text = refusal(document([{"name": "tags", "kind": "bag"}]))
    assert text == "features.'tags'.owner: missing; choose user, item or context"


def test_an_unknown_owner_is_told_with_its_choices() -> None:
    text = refusal(document([bag("tags", owner="shop")]))
    assert text.startswith("features.'tags'.owner:")
    for part in ("'user'", "'item'", "'context'", "'shop'"):
        assert part in text


@pytest.mark.parametrize("kind", [{}, {"kind": "text"}], ids=["missing", "unknown"])
def test_a_features_kind_must_be_one_of_three(kind: dict[str, str]) -> None:
    text = refusal(document([{"name": "tags", "owner": "item", **kind}]))
    assert text.startswith("features.'tags'")
    for part in ("kind", "categorical", "bag", "numeric", *kind.values()):
        assert part in text
    assert "{" not in text, "the feature's whole table is no part of one readable line"


@pytest.mark.parametrize("kind", [{}, {"kind": "rank"}], ids=["missing", "unknown"])
def test_a_tasks_kind_must_be_one_of_two(kind: dict[str, str]) -> None:
    text = refusal(document(tasks=[{"name": "like", **kind}]))
    assert text.startswith("tasks.'like'.kind: ")
    assert "missing" in text or ("binary" in text and "regression" in text and "'rank'" in text)


def test_a_binary_task_takes_no_transform() -> None:
    text = refusal(document(tasks=[{"name": "like", "kind": "binary", "transform": "log1p"}]))
    assert text == "tasks.'like': a binary label takes no transform"


@pytest.mark.parametrize("weight", [0, -1.0, "much"])
def test_a_task_weight_must_be_above_zero(weight: Any) -> None:
    assert refusal(document(tasks=[{"name": "like", "kind": "binary", "weight": weight}])).startswith(
        "tasks.'like'.weight:"
    )


# Ids.


@pytest.mark.parametrize("make", [categorical, bag])
def test_min_count_and_hash_buckets_exclude_each_other(make: Any) -> None:
    text = refusal(document([make("tags", min_count=2, hash_buckets=10)]))
    assert text.startswith("features.'tags': ")
    assert "min_count" in text
    assert "hash_buckets" in text


@pytest.mark.parametrize("key", ["dim", "min_count", "hash_buckets"])
def test_sizes_must_be_at_least_one(key: str) -> None:
    assert refusal(document([bag("tags", **{key: 0})])).startswith(f"features.'tags'.{key}:")


# Columns.


def test_a_label_cannot_be_a_feature() -> None:
    text = refusal(document([categorical("clicked", column="click")]))
    assert "feature 'clicked'" in text
    assert "column 'click'" in text
    assert "task 'click'" in text


def test_two_tasks_cannot_share_a_label() -> None:
    text = refusal(document(tasks=[{"name": "like", "kind": "binary", "label": "click"}]))
    assert "label column 'click'" in text


@pytest.mark.parametrize("column", ["user_id", "item_id", "time"])
def test_ids_and_time_cannot_be_labels(column: str) -> None:
    text = refusal(document(tasks=[{"name": "like", "kind": "binary", "label": column}]))
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
def test_an_id_column_belongs_to_its_owner(owner: str, column: str, right: str) -> None:
    text = refusal(document([categorical("who", column=column, owner=owner)]))
    assert "feature 'who'" in text
    assert f"'{column}'" in text
    assert f"its owner must be {right}" in text


def test_a_column_has_one_owner() -> None:
    text = refusal(document([{"name": "age_now", "kind": "numeric", "owner": "context", "column": "age"}]))
    assert "column 'age' has two owners" in text


def test_two_features_of_one_owner_may_share_a_column() -> None:
    again = {"name": "log_age", "kind": "numeric", "owner": "user", "column": "age", "transform": "log1p"}
    assert len(Schema.model_validate(document([again])).features) == 2


# Shared tables.


@pytest.mark.parametrize("key", ["dim", "min_count", "hash_buckets"])
def test_features_that_share_a_table_share_its_ids_and_width(key: str) -> None:
    text = refusal(document([categorical("brand"), bag("brands", table="brand", **{key: 5})]))
    for part in ("'brand'", "'brands'", "table 'brand'", key):
        assert part in text


def test_bags_that_share_a_table_share_its_pooling() -> None:
    text = refusal(document([bag("seen", table="tag"), bag("liked", table="tag", pooling="sum")]))
    for part in ("'seen'", "'liked'", "table 'tag'", "pooling"):
        assert part in text


def test_a_categorical_feature_may_share_a_table_with_a_bag_of_any_pooling() -> None:
    schema = Schema.model_validate(document([categorical("tag"), bag("tags", table="tag", pooling="sum")]))
    assert [feature.name for feature in schema.sparse] == ["tag", "tags"]


# Parts of a schema.


def test_a_restricted_schema_keeps_the_named_features_in_their_order() -> None:
    schema = Schema.model_validate(document([categorical("tag"), bag("tags"), categorical("brand")]))
    restricted = schema.restricted({"brand", "tag"})
    assert [feature.name for feature in restricted.features] == ["tag", "brand"]
    assert list(restricted.tables) == ["tag", "brand"]
    assert restricted.tasks == schema.tasks
    assert schema.restricted([]).inputs == []
