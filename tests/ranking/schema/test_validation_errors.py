"""What is wrong with a document, in plain words: each message names the key and says what is expected."""

from __future__ import annotations

from datetime import date, time
from typing import Any

import pytest
from pydantic import ValidationError

from ranking.model.mmoe import ModelConfig
from ranking.schema import Schema
from ranking.schema.validation_errors import format_validation_error

AGE = {"name": "age", "kind": "numeric", "owner": "user"}
TAB = {"name": "tab", "kind": "categorical", "owner": "context"}
CLICK = {"name": "click", "kind": "binary"}


def refusal(of: Any, data: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        of.model_validate(data)
    return format_validation_error(caught.value, data)


@pytest.mark.parametrize(
    ("wrong", "says"),
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
        ({"table": "a b"}, "table: 'a b' is no name: use letters, digits and '_', with no digit at the start"),
        ({"default": 1.5}, "default: must be an id: a whole number of 64 bits, text, true or false (got 1.5)"),
    ],
)
def test_a_feature(wrong: dict[str, Any], says: str) -> None:
    data = {"name": "shop", "features": [AGE, {**TAB, **wrong}], "tasks": [CLICK]}
    assert refusal(Schema, data) == f"features.'tab'.{says}"


@pytest.mark.parametrize(
    ("feature", "says"),
    [
        (5, "features (entry 2): must be a table of keys and values (got 5)"),
        ({**TAB, "name": 5}, "features (entry 2).name: must be text in quotes (got 5)"),
        ({**TAB, "name": "my tab"}, "features.'my tab'.name: 'my tab' is no name: use letters, digits and '_', "),
        ({"name": "tab", "owner": "context"}, "features.'tab': kind is missing; choose categorical, bag, "),
        ({**TAB, "kind": "bag", "default": "x"}, "features.'tab'.default: must be a list (got 'x')"),
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
    ],
)
def test_an_entry_is_named_by_its_name_or_counted_from_1(feature: Any, says: str) -> None:
    text = refusal(Schema, {"name": "shop", "features": [AGE, feature], "tasks": [CLICK]})
    assert text.startswith(says)
    assert ";" not in text.removeprefix(says).replace("; choose", ""), "told once"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"features": []}, "features: declare at least one, each under [[features]]"),
        ({"tasks": AGE}, "tasks: must be a list of tables: write each under [[tasks]]"),
        ({"columns": "time"}, "columns: must be a table of keys and values (got 'time')"),
        ({"name": "-shop"}, "name: '-shop' is no model's name: use letters, digits, '_' and '-', with no mark"),
        ({"a.b": 1}, 'a.b": unknown key'),
    ],
)
def test_a_schema(wrong: dict[str, Any], says: str) -> None:
    assert says in refusal(Schema, {"name": "shop", "features": [AGE], "tasks": [CLICK], **wrong})


def test_what_is_left_out_must_be_declared() -> None:
    assert refusal(Schema, {"name": "shop", "tasks": [CLICK]}) == (
        "features: missing; declare at least one, each under [[features]]"
    )
    assert refusal(ModelConfig, {"side_tower": {}}) == "side_tower.features: missing"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"dropout": 1}, "dropout: must be less than 1 (got 1)"),
        ({"dropout": -0.5}, "dropout: must be at least 0 (got -0.5)"),
        ({"dropout": float("nan")}, "dropout: must be a finite number (got nan)"),
        ({"expert_layers": 64}, "expert_layers: must be a list (got 64)"),
        ({"expert_layers": ["64"]}, "expert_layers (entry 1): must be a whole number (got '64')"),
        ({"gate": "softmax"}, "gate: must be a table with a kind (got 'softmax')"),
        ({"gate": {"k": "2"}}, "gate.k: must be a whole number (got '2')"),
        ({"gate": {"similarity_same": 0.1}}, "gate: similarity_same and similarity_different compare examples"),
    ],
)
def test_a_model(wrong: dict[str, Any], says: str) -> None:
    assert refusal(ModelConfig, wrong).startswith(says)
