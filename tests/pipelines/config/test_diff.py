"""Differences between configurations: names of settings, also in lists of features and tasks."""

from __future__ import annotations

from typing import Any

from pipelines.config.config import Config
from pipelines.config.diff import diff_configs

FEATURES = [
    {"name": "x", "kind": "numeric", "owner": "user"},
    {"name": "y", "kind": "numeric", "owner": "user"},
]
DOCUMENT: dict[str, Any] = {
    "name": "feed",
    "logs": {"path": "log", "validation_from": "2026-01-09T00:00:00", "test_from": "2026-01-10T00:00:00"},
    "features": FEATURES,
    "tasks": [{"name": "click", "kind": "binary"}, {"name": "like", "kind": "binary"}],
}


def differences(**sections: Any) -> list[tuple[str, Any, Any]]:
    return list(diff_configs(Config.model_validate(DOCUMENT), Config.model_validate({**DOCUMENT, **sections})))


def test_setting_of_a_feature_is_named() -> None:
    changed = [FEATURES[0], {**FEATURES[1], "bins": 3}]
    assert differences(features=changed) == [("features.y.bins", 8, 3)]


def test_added_feature_is_named() -> None:
    ((name, before, after),) = differences(features=[*FEATURES, {"name": "z", "kind": "numeric", "owner": "user"}])
    assert (name, before, after["name"]) == ("features.z", None, "z")


def test_another_order_is_a_difference() -> None:
    assert [name for name, *_ in differences(features=FEATURES[::-1])] == ["features"]
    assert [name for name, *_ in differences(tasks=DOCUMENT["tasks"][::-1])] == ["tasks"]


def test_equal_configurations_do_not_differ() -> None:
    assert differences() == []
