"""Tests of ``pipelines.evaluation.importance.subjects``."""

from __future__ import annotations

from typing import Any

from pipelines.evaluation.importance.subjects import Subject, subjects_of
from ranking.schema import Schema
from tests.conftest import RAW_SCHEMA


def subjects(**sections: Any) -> dict[tuple[str, str], Subject]:
    features = [*RAW_SCHEMA["features"], *sections.pop("more", [])]
    schema = Schema.model_validate({**RAW_SCHEMA, **sections, "features": features})
    return {(subject.kind, subject.name): subject for subject in subjects_of(schema)}


def test_subjects_of_columns_with_one_feature_are_the_features() -> None:
    assert list(subjects()) == [("feature", f["name"]) for f in RAW_SCHEMA["features"]]


def test_subjects_move_user_features_between_units_and_others_between_rows() -> None:
    levels = {name: subject.level for (_, name), subject in subjects().items()}
    assert {name for name, level in levels.items() if level == "unit"} == {"user_id", "age"}


def test_subjects_of_a_shared_column_are_a_group_with_its_crosses() -> None:
    more = [
        {"name": "age_group", "column": "age", "kind": "buckets", "owner": "user", "boundaries": [30.0]},
        {"name": "tab_item", "kind": "cross", "of": ["tab", "item_id"], "hash_buckets": 16},
    ]
    found = subjects(more=more)
    assert found["column", "age"].features == ("age", "age_group")
    assert found["column", "age"].crosses == ()
    assert (found["column", "tab"].features, found["column", "tab"].crosses) == (("tab",), ("tab_item",))
    assert found["column", "item_id"].to_json()["features"] == ["item_id", "tab_item"]
    assert found["feature", "tab"].crosses == (), "a feature alone leaves its crosses as they are"
    assert ("column", "price") not in found


def test_subjects_with_a_cross_of_users_and_items_move_it_between_rows() -> None:
    more = [
        {"name": "segment", "kind": "categorical", "owner": "user"},
        {"name": "of_user", "kind": "cross", "of": ["user_id", "segment"], "hash_buckets": 16},
        {"name": "of_both", "kind": "cross", "of": ["user_id", "item_id"], "hash_buckets": 16},
    ]
    found = subjects(more=more)
    assert found["feature", "of_user"].level == "unit"
    assert found["feature", "of_both"].level == "row"


def test_subjects_of_a_counter_are_a_group() -> None:
    counters = [{"of": ["user_id"], "labels": ["click"]}, {"of": ["user_id", "tab"], "labels": ["click"]}]
    found = subjects(counters=counters, histories=[{"of": "item_id", "label": "click"}])
    group = found["counter", "user_id"]
    assert group.features == ("user_id_click_rate", "user_id_count", "user_id_age")
    assert group.level == "unit"
    assert found["counter", "user_id_tab"].level == "row", "the tab changes from row to row"
    assert found["feature", "click_item_id_history"].level == "unit"
