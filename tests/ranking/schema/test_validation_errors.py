"""Messages of invalid configurations name the key and the expected value."""

from __future__ import annotations

from datetime import date, time
from typing import Any

import pytest

from ranking.schema import Schema
from ranking.settings.model import ModelConfig
from tests.support.validation_messages import validation_message

AGE = {"name": "age", "kind": "numeric", "owner": "user"}
TAB = {"name": "tab", "kind": "categorical", "owner": "context"}
CLICK = {"name": "click", "kind": "binary"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dim": "8"}, "dim: must be a whole number (got '8')"),
        ({"dim": 8.0}, "dim: must be a whole number (got 8.0)"),
        ({"dim": True}, "dim: must be a whole number (got true)"),
        ({"dim": 0}, "dim: must be greater than 0 (got 0)"),
        ({"training_only": 1}, "training_only: must be true or false (got 1)"),
        ({"column": 5}, "column: must be text in quotes (got 5)"),
        ({"column": ""}, "column: must not be empty"),
        ({"column": {}}, "column: must be text in quotes (got a table)"),
        ({"column": date(2026, 1, 9)}, "column: must be text in quotes (got 2026-01-09)"),
        ({"column": time(6)}, "column: must be text in quotes (got 06:00:00)"),
        ({"owner": "shop"}, "owner: choose 'user', 'item' or 'context' (got 'shop')"),
        (
            {"table": "a b"},
            "table: 'a b' is not a valid name: use the letters a to z, digits and '_', and do not start with a digit",
        ),
        ({"table": "a" * 300}, "table: 'aaaaaaaaaaaaaaaaaaaa'… has 300 characters: a name has at most 200"),
        ({"default": 1.5}, "default: must be an id: a 64-bit integer, text, true or false (got 1.5)"),
    ],
)
def test_message_of_an_invalid_feature_key(changes: dict[str, Any], expected: str) -> None:
    data = {"name": "shop", "features": [AGE, {**TAB, **changes}], "tasks": [CLICK]}
    assert validation_message(Schema, data) == f"features.'tab'.{expected}"


@pytest.mark.parametrize(
    ("feature", "expected"),
    [
        (5, "features (entry 2): must be a table of keys and values (got 5)"),
        ({**TAB, "name": 5}, "features (entry 2).name: must be text in quotes (got 5)"),
        ({**TAB, "name": "my tab"}, "features.'my tab'.name: 'my tab' is not a valid name: use the letters "),
        ({"name": "tab", "owner": "context"}, "features.'tab': kind is missing; choose categorical, bag, "),
        ({**TAB, "kind": "bag", "default": "x"}, "features.'tab'.default: must be a list, such as ['x'] (got 'x')"),
        ({**TAB, "kind": "bag", "default": [1.5]}, "features.'tab'.default (entry 1): must be an id: "),
        (
            {**TAB, "kind": "buckets", "boundaries": []},
            "features.'tab'.boundaries: must hold at least 1 entry (got [])",
        ),
        ({**TAB, "kind": "numeric", "default": "5"}, "features.'tab'.default: must be a number (got '5')"),
        (
            {"name": "tab", "kind": "cross", "of": ["age"], "hash_buckets": 9},
            "features.'tab'.of: must hold at least 2 entries (got ['age'])",
        ),
        (
            {"name": "tab", "kind": "cross", "of": ["age", "tab"]},
            "features.'tab'.hash_buckets: missing; give the number of rows of its embedding table, such as",
        ),
        ({"name": "tab", "kind": "numeric"}, "features.'tab'.owner: missing; choose user, item or context"),
        (
            {**AGE, "name": "tab", "transfrm": "log1p"},
            "features.'tab'.transfrm: unknown key of kind 'numeric'; did you",
        ),
        ({**TAB, "hash_bucket": 5}, "features.'tab'.hash_bucket: unknown key of kind 'categorical'; did you mean"),
    ],
)
def test_message_identifies_a_list_entry_by_name_or_position(feature: Any, expected: str) -> None:
    text = validation_message(Schema, {"name": "shop", "features": [AGE, feature], "tasks": [CLICK]})
    assert text.startswith(expected)
    assert ";" not in text.removeprefix(expected).replace("; choose", ""), "the message names each problem once"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"features": []}, "features: declare at least one, each under [[features]]"),
        ({"tasks": AGE}, "tasks: must be a list of tables: write each under [[tasks]]"),
        ({"columns": "t"}, "columns: must be a table of keys and values, such as { time = 'time' } (got 't')"),
        ({"tasks": [{"name": "click", "weight": 2.0}]}, "tasks.'click'.kind: missing; choose binary or regression"),
        ({"task": []}, "task: unknown key; did you mean 'tasks'?"),
        ({"name": "-shop"}, "name: '-shop' is not a valid model name: use letters, digits, '_' and '-', and"),
        ({"a.b": 1}, 'a.b": unknown key'),
    ],
)
def test_message_of_an_invalid_schema_key(changes: dict[str, Any], expected: str) -> None:
    assert expected in validation_message(Schema, {"name": "shop", "features": [AGE], "tasks": [CLICK], **changes})


def test_message_of_a_missing_key() -> None:
    assert validation_message(Schema, {"name": "shop", "tasks": [CLICK]}) == (
        "features: missing; declare at least one, each under [[features]]"
    )
    assert validation_message(ModelConfig, {"side_tower": {}}) == "side_tower.features: missing"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dropout": 1}, "dropout: must be less than 1 (got 1)"),
        ({"dropout": -0.5}, "dropout: must be at least 0 (got -0.5)"),
        ({"dropout": float("nan")}, "dropout: must be a finite number (got nan)"),
        ({"expert_layers": 64}, "expert_layers: must be a list, such as [64] (got 64)"),
        ({"expert_layers": ["64"]}, "expert_layers (entry 1): must be a whole number (got '64')"),
        ({"expert_layers": [64, {"a": 1}]}, "expert_layers (entry 2): must be a whole number (got a table)"),
        ({"gate": "softmax"}, "gate: must be a table with a kind, such as { kind = 'softmax' } (got 'softmax')"),
        ({"gate": {"entropy_wieght": 1.0}}, "gate.entropy_wieght: unknown key of kind 'dselect_k'; did you mean"),
        ({"dropout": [True, None, date(2026, 1, 9)]}, "dropout: must be a number (got [true, null, 2026-01-09])"),
        ({"gate": {"k": "2"}}, "gate.k: must be a whole number (got '2')"),
        ({"gate": {"similarity_same": 0.1}}, "gate: similarity_same and similarity_different compare examples"),
    ],
)
def test_message_of_an_invalid_model_key(changes: dict[str, Any], expected: str) -> None:
    assert validation_message(ModelConfig, changes).startswith(expected)
