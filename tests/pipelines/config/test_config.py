from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, date, datetime, time
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pipelines.config.config import Config, ConvergenceConfig, TrainingConfig, load_config
from ranking.errors import ConfigError, UsageError
from ranking.schema.validation_errors import format_validation_error
from ranking.settings.gate import DSelectKConfig
from tests.conftest import GATES

DOCUMENT = """
name = "shop"

[columns]
time = "at"

[logs]
path = "log"
users = "side/users.parquet"
validation_from = 2026-01-09T00:00:00
test_from = 2026-01-10T00:00:00

[[features]]
name = "user_id"
kind = "categorical"
owner = "user"

[[features]]
name = "age"
kind = "numeric"
owner = "user"

[[features]]
name = "tags"
kind = "bag"
owner = "item"

[[tasks]]
name = "click"
kind = "binary"
label = "is_click"

[[tasks]]
name = "watch"
kind = "regression"
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "ranker.toml"
    file.write_text(DOCUMENT)
    return file


def error_message(file: Path, *overrides: str) -> str:
    """Return the error of loading the file; it must be one line."""
    with pytest.raises((ConfigError, UsageError)) as caught:
        load_config(file, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_load_config_returns_the_content_of_the_file(config_file: Path) -> None:
    config = load_config(config_file)
    assert config.name == "shop"
    assert config.columns.time == "at"
    assert config.columns.user == "user_id"
    assert config.task_names == ["click", "watch"]
    assert [task.label for task in config.tasks] == ["is_click", "watch"]
    assert [feature.kind for feature in config.features] == ["categorical", "numeric", "bag"]
    assert config.logs.validation_from == datetime(2026, 1, 9)
    assert config.logs.test_from == datetime(2026, 1, 10)


def test_serving_schema_contains_only_the_schema_sections(config_file: Path) -> None:
    config = load_config(config_file)
    only = config.serving_schema
    assert set(only.model_dump()) == {"name", "columns", "counters", "histories", "features", "tasks"}
    assert only.features == config.features
    assert only.tasks == config.tasks


def test_objective_defaults_to_the_first_task(config_file: Path) -> None:
    assert load_config(config_file).objective == {"click": 1.0}
    assert load_config(config_file, ["serving.objective.watch=2"]).objective == {"watch": 2.0}


# Paths.


def test_relative_paths_start_at_the_folder_of_the_file(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = config_file.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    logs = load_config(Path("../ranker.toml")).logs
    assert logs.path.is_absolute()
    assert logs.path.resolve() == config_file.parent / "log"
    assert logs.users is not None
    assert logs.users.resolve() == config_file.parent / "side" / "users.parquet"
    assert logs.items is None


def test_absolute_paths_are_unchanged(config_file: Path) -> None:
    assert load_config(config_file, ["logs.path=/data/log"]).logs.path == Path("/data/log")


def test_several_locations_start_at_the_folder_of_the_file_and_are_unchanged_after_writing(
    config_file: Path, tmp_path: Path
) -> None:
    config = load_config(config_file, ["logs.path=['log', '/data/joined', 's3://bucket/log']"])
    assert config.logs.path == (config_file.parent / "log", Path("/data/joined"), "s3://bucket/log")
    config.write(tmp_path / "config.toml")
    assert load_config(tmp_path / "config.toml") == config


@pytest.mark.parametrize("value", ["[]", "['log', 'log']", "['log', 5]"])
def test_invalid_list_of_locations_is_named(config_file: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"logs\.path.*: must "):
        load_config(config_file, [f"logs.path={value}"])


def test_uris_are_unchanged_after_writing_and_loading(config_file: Path, tmp_path: Path) -> None:
    uri = "s3://bucket/a//b?endpoint_override=localhost:9000&scheme=http"
    config = load_config(config_file, [f"logs.path='{uri}'", "logs.items='gs://bucket/items.parquet'"])
    assert (config.logs.path, config.logs.items) == (uri, "gs://bucket/items.parquet")
    config.write(tmp_path / "config.toml")
    assert load_config(tmp_path / "config.toml") == config


# Unknown keys.


@pytest.mark.parametrize(
    "section",
    ["columns", "logs", "model", "model.gate", "training", "training.learning_rate", "training.convergence", "serving"],
)
def test_unknown_key_in_a_section_is_named_with_its_path(config_file: Path, section: str) -> None:
    override = f"{section}.colour=1"
    kind = " of kind 'dselect_k'" if section == "model.gate" else ""
    assert (
        error_message(config_file, override)
        == f"{config_file}: {section}.colour: unknown key{kind} (with --set {override})"
    )


def test_unknown_key_at_the_top_is_named(config_file: Path) -> None:
    assert error_message(config_file, "colour=1") == f"{config_file}: colour: unknown key (with --set colour=1)"


@pytest.mark.parametrize(
    ("section", "name"), [("features", "user_id"), ("features", "age"), ("features", "tags"), ("tasks", "click")]
)
def test_unknown_key_in_a_list_is_named_by_the_entry_name(config_file: Path, section: str, name: str) -> None:
    config_file.write_text(DOCUMENT.replace(f'name = "{name}"', f'name = "{name}"\ncolour = 1'))
    assert error_message(config_file).startswith(f"{config_file}: {section}.'{name}'.colour: unknown key")


def test_width_that_training_does_not_support_is_named(config_file: Path) -> None:
    config_file.write_text(DOCUMENT.replace('name = "tags"', 'name = "tags"\ndim = 6'))
    assert error_message(config_file) == f"{config_file}: feature 'tags' has dim = 6; choose a multiple of 4"


def test_key_of_another_feature_kind_is_unknown(config_file: Path) -> None:
    config_file.write_text(DOCUMENT.replace('name = "age"', 'name = "age"\ndim = 8'))
    assert error_message(config_file) == f"{config_file}: features.'age'.dim: unknown key of kind 'numeric'"


def test_unknown_keys_are_all_reported(config_file: Path) -> None:
    text = error_message(config_file, "model.colour=1", "training.taste=2")
    assert "model.colour" in text
    assert "training.taste" in text


# Each message names the file, the key and the fix.


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("logs.test_from=2026-01-09T00:00:00", "logs: validation_from must be earlier than test_from"),
        ("logs.test_from=2026-01-01T00:00:00", "logs: validation_from must be earlier than test_from"),
        ("logs.test_until=2026-01-09T23:59:59", "logs: test_until must not be earlier than test_from"),
        ("logs.test_until=2026-01-11T00:00:00Z", "logs: test_from and test_until: give both a time zone or neither"),
        ("logs.test_from=soon", "logs.test_from: "),
        ("logs.train_from=2026-01-09T00:00:00", "logs: train_from must be earlier than validation_from"),
        ("logs.train_from=2026-01-01T00:00:00Z", "logs: train_from and validation_from: give both a time zone"),
        ("logs.path=5", "logs.path: "),
        ("training.readers=0", "training.readers: "),
        ("model.gate.k=9", "model: gate.k = 9 exceeds the 8 experts: choose k ≤ experts"),
        ("model.gate.k=0", "model.gate.k: "),
        ("model.experts=0", "model.experts: "),
        ("model.expert_layers=[]", "model.expert_layers: "),
        ("model.dropout=1.0", "model.dropout: "),
        ("training.epochs=0", "training.epochs: "),
        ("training.epochs=two", "training.epochs: "),
        ("training.batch_size=1", "training.batch_size: "),
        ("training.learning_rate.trunk=-1", "training.learning_rate.trunk: "),
        ("training.weight_decay=-0.1", "training.weight_decay: "),
        ("training.convergence.anneal_until=1", "training.convergence: choose anneal_from < anneal_until < 1"),
        ("training.convergence.anneal_from=0.9", "training.convergence: choose anneal_from < anneal_until < 1"),
        ("training.convergence.final_gamma=2", "training.convergence: final_gamma must not be larger than gamma"),
        ("training.convergence.overlap_until=0", "training.convergence.overlap_until: "),
        ("evaluation.ndcg_at=0", "evaluation.ndcg_at: "),
        ("evaluation.bootstrap=-1", "evaluation.bootstrap: "),
        ('evaluation.slices=["colour"]', "evaluation.slices names 'colour'; choose from "),
        ("serving.objective.clack=1", "serving.objective names 'clack', which is not a task; choose from click, watch"),
        ("serving.objective.click=much", "serving.objective.click: "),
        (
            "serving.objective={click = 0, watch = 0.0}",
            "serving.objective: every weight is 0, so that no task determine",
        ),
        ("serving.objective.click=1e308", "serving.objective.click: must be at most 1e+06 (got 1e+308)"),
        ("serving.objective.click=-1e308", "serving.objective.click: must be at least -1e+06 (got -1e+308)"),
        ("serving.objective.click=nan", "serving.objective.click: "),
        ("serving.objective.click=inf", "serving.objective.click: "),
        ("name=../up", "name: "),
        ("features=[]", "features: "),
        ("tasks=[]", "tasks: "),
        ("training=3", "training: "),
    ],
)
def test_invalid_value_is_rejected_with_its_key(config_file: Path, override: str, expected: str) -> None:
    config_file.write_text(DOCUMENT + "\n[model]\nexperts = 8\n")
    text = error_message(config_file, override)
    assert text.startswith(f"{config_file}: ")
    assert expected in text


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ('training.batch_size="64"', "training.batch_size: must be a whole number (got '64')"),
        ("training.batch_size=64.0", "training.batch_size: must be a whole number (got 64.0)"),
        ("training.seed=-1", "training.seed: must be at least 0 (got -1)"),
        ('training.weight_decay="0.1"', "training.weight_decay: must be a number (got '0.1')"),
        (
            'training.learning_rate="1e-3"',
            "training.learning_rate: must be a table of keys and values, such as { embeddings = 0.05 } (got '1e-3')",
        ),
        ("training.trackers=mlflow", "training.trackers: must be a list, such as ['mlflow'] (got 'mlflow')"),
        ('training.trackers=["wandb"]', "training.trackers (entry 1): choose 'tensorboard' or 'mlflow' (got 'wandb')"),
        ("logs.path=true", "logs.path: must be a path or a URI, in quotes (got true)"),
        ("logs.allow_missing_days=1", "logs.allow_missing_days: must be true or false (got 1)"),
        ("logs.train_from=5", "logs.train_from: must be a date or a timestamp, such as 2026-01-09 or 2026-01-09T06:00"),
        ("logs.train_from=06:00:00", "logs.train_from: must be a date or a timestamp, such as "),
        ('evaluation.ndcg_at="10"', "evaluation.ndcg_at: must be a whole number (got '10')"),
        ('serving.objective={click = "1"}', "serving.objective.click: must be a number (got '1')"),
        ('tune="all"', "tune: must be a table of keys and values (got 'all')"),
        ("tune.model={gate = {k = [2]}}", 'tune.model: write the whole setting in quotes, such as "training.'),
        ("tune.x=None", "tune.x: must be a table with low and high, or a list of choices (got 'None')"),
        ("tune.x={choices = 2}", "tune.x.choices: must be a list, such as [2] (got 2)"),
        ("tune.x=[[1.5]]", "tune.x (entry 1): must be a number, text, true, false or a list of whole numbers"),
        ('tune.x={low = "1", high = 2}', "tune.x.low: must be a number (got '1')"),
        ("tune.x=[nan]", "tune.x (entry 1): must be a number, text, true, false or a list of whole numbers (got nan)"),
        ("tune.x={low = nan, high = 2}", "tune.x.low: must be a number (got nan)"),
        ("tune.x=[]", "tune.x: must hold at least 1 entry (got [])"),
        ("tune.x={low = 1, high = 2, step = 1}", "tune.x.step: unknown key"),
    ],
)
def test_value_of_another_type_is_rejected(config_file: Path, override: str, expected: str) -> None:
    assert error_message(config_file, override).startswith(f"{config_file}: {expected}")


def test_whole_numbers_are_floats_and_dates_are_timestamps(config_file: Path) -> None:
    config = load_config(config_file, ["training.weight_decay=1", "logs.validation_from=2026-01-08"])
    assert config.training.weight_decay == 1.0
    assert config.logs.validation_from == datetime(2026, 1, 8)


def test_missing_section_is_named(config_file: Path) -> None:
    config_file.write_text(re.sub(r"\[logs\].*?\n\n", "", DOCUMENT, flags=re.DOTALL))
    assert error_message(config_file) == f"{config_file}: logs: missing"


def test_missing_key_of_a_feature_is_named(config_file: Path) -> None:
    config_file.write_text(DOCUMENT.replace('kind = "numeric"\nowner = "user"', 'kind = "numeric"'))
    assert error_message(config_file).startswith(f"{config_file}: features.'age'.owner: missing")


def test_unknown_feature_kind_is_named(config_file: Path) -> None:
    config_file.write_text(DOCUMENT.replace('"numeric"', '"number"'))
    assert error_message(config_file).startswith(f"{config_file}: features.'age'")


def test_label_that_is_a_feature_is_rejected(config_file: Path) -> None:
    config_file.write_text(DOCUMENT.replace('label = "is_click"', 'label = "age"'))
    assert "a label is unknown before the impression" in error_message(config_file)


def test_split_bounds_with_mixed_time_zones_are_rejected(config_file: Path) -> None:
    text = error_message(config_file, "logs.test_from=2026-01-10T00:00:00Z")
    assert text.startswith(f"{config_file}: logs")


# Gates.


KINDS = "dselect_k, top_k, softmax, gumbel_softmax, softmax_selectors, attentive, shared_bottom or single_task"


@pytest.mark.parametrize("kind", KINDS.replace(" or ", ", ").split(", "))
def test_gate_kind_selects_the_gate(config_file: Path, kind: str) -> None:
    assert load_config(config_file, [f"model.gate.kind={kind}"]).model.gate.kind == kind


def test_gate_without_kind_is_dselect_k(config_file: Path) -> None:
    assert (
        load_config(config_file).model.gate
        == load_config(config_file, ["model.gate.k=2"]).model.gate
        == DSelectKConfig()
    )


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("softmx", "'softmx'"),
        ("3", "3"),
        ("DSelectK", "'DSelectK'"),
        ("true", "true"),
        ("2026-01-09", "2026-01-09"),
        ("{items = [1, 2]}", "a table"),
        ("[{items = [true]}]", "[a table]"),
    ],
)
def test_unknown_gate_kind_is_rejected_with_a_list_of_kinds(config_file: Path, kind: str, shown: str) -> None:
    override = f"model.gate.kind={kind}"
    assert error_message(config_file, override) == (
        f"{config_file}: model.gate: kind is {shown}; choose {KINDS} (with --set {override})"
    )


def test_gate_that_is_not_a_section_is_rejected(config_file: Path) -> None:
    text = error_message(config_file, "model.gate=softmax")
    assert text.startswith(f"{config_file}: model.gate: ")
    assert "categorical" not in text


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("dselect_k", "noise"),
        ("dselect_k", "sparsity_weight"),
        ("top_k", "experts_budget"),
        ("top_k", "overlap_weight"),
        ("softmax", "k"),
        ("gumbel_softmax", "per_example"),
        ("softmax_selectors", "per_example"),
        ("softmax_selectors", "surplus"),
        ("attentive", "per_example"),
        ("shared_bottom", "importance_weight"),
        ("single_task", "k"),
    ],
)
def test_key_of_another_gate_kind_is_rejected_with_its_path(config_file: Path, kind: str, key: str) -> None:
    overrides = [f"model.gate.kind={kind}", f"model.gate.{key}=1"]
    expected = f"{config_file}: model.gate.{key}: unknown key of kind '{kind}' (with --set {' --set '.join(overrides)})"
    assert error_message(config_file, *overrides) == expected


@pytest.mark.parametrize("kind", ["dselect_k", "softmax_selectors"])
def test_experts_budget_above_the_number_of_experts_is_rejected(config_file: Path, kind: str) -> None:
    overrides = [f"model.gate.kind={kind}", "model.experts=6"]
    assert load_config(config_file, [*overrides, "model.gate.experts_budget=6"]).model.gate.kind == kind
    assert "model: gate.experts_budget = 7 exceeds the 6 experts" in error_message(
        config_file, *overrides, "model.gate.experts_budget=7"
    )
    assert "model.gate.experts_budget: " in error_message(config_file, *overrides, "model.gate.experts_budget=0")


@pytest.mark.parametrize("kind", ["dselect_k", "softmax_selectors", "top_k"])
def test_k_above_the_number_of_experts_is_rejected(config_file: Path, kind: str) -> None:
    overrides = [f"model.gate.kind={kind}", "model.experts=3", "model.gate.k=4"]
    assert "model: gate.k = 4 exceeds the 3 experts: choose k ≤ experts" in error_message(config_file, *overrides)


@pytest.mark.parametrize("kind", ["softmax", "attentive", "shared_bottom", "single_task"])
def test_gate_without_k_accepts_one_expert(config_file: Path, kind: str) -> None:
    assert load_config(config_file, [f"model.gate.kind={kind}", "model.experts=1"]).model.experts == 1


@pytest.mark.parametrize("kind", ["dselect_k", "top_k", "softmax"])
@pytest.mark.parametrize("key", ["similarity_same", "similarity_different"])
def test_similarity_weights_require_a_per_example_gate(config_file: Path, kind: str, key: str) -> None:
    overrides = [f"model.gate.kind={kind}", f"model.gate.{key}=0.1"]
    assert f"model.gate: {key.split('_')[0]}" in error_message(config_file, *overrides)
    assert "set per_example = true" in error_message(config_file, *overrides)
    assert load_config(config_file, [*overrides, "model.gate.per_example=true"]).model.gate.kind == kind


@pytest.mark.parametrize("time", ["0.6", "0.7"])
def test_budget_at_after_annealing_is_rejected(config_file: Path, time: str) -> None:
    text = error_message(config_file, "model.gate.experts_budget=2", f"training.convergence.budget_at={time}")
    assert "training.convergence: choose budget_at < anneal_until" in text


@pytest.mark.parametrize(
    ("settings", "budget"),
    [
        ([], 3),
        (["model.gate.k=4"], 4),
        (["model.experts=5"], 2),
        (["model.gate.experts_budget=12"], 12),
        (["model.gate.kind=softmax_selectors"], 3),
        (["model.gate.per_example=true"], None),
        (["model.gate.per_example=true", "model.gate.experts_budget=5"], 5),
        (["model.gate.kind=top_k"], None),
        (["model.gate.kind=softmax"], None),
        (["model.gate.kind=gumbel_softmax"], None),
        (["model.gate.kind=attentive"], None),
        (["model.gate.kind=shared_bottom"], None),
    ],
    ids=str,
)
def test_experts_budget_defaults_to_a_quarter_of_the_experts_and_at_least_k(
    config_file: Path, settings: list[str], budget: int | None
) -> None:
    assert load_config(config_file, ["model.experts=12", *settings]).model.experts_budget == budget


@pytest.mark.parametrize(
    "settings", [settings for settings in GATES.values() if settings], ids=[name for name, s in GATES.items() if s]
)
def test_gate_round_trips_through_a_file(config_file: Path, tmp_path: Path, settings: list[str]) -> None:
    config = load_config(config_file, settings)
    config.write(tmp_path / "config.toml")
    assert load_config(tmp_path / "config.toml") == config


# Overrides.


def test_override_with_a_number(config_file: Path) -> None:
    training = load_config(config_file, ["training.epochs=3", "training.learning_rate.trunk=2e-4"]).training
    assert training.epochs == 3
    assert training.learning_rate.trunk == 2e-4


def test_override_with_a_list(config_file: Path) -> None:
    assert load_config(config_file, ["model.expert_layers=[256, 64]"]).model.expert_layers == (256, 64)


def test_override_with_a_bare_word_is_a_string(config_file: Path) -> None:
    config = load_config(config_file, ["name=feed", "logs.path=some/where.parquet"])
    assert config.name == "feed"
    assert config.logs.path == config_file.parent / "some" / "where.parquet"


def test_override_with_a_quoted_string(config_file: Path) -> None:
    assert load_config(config_file, ['name="feed"']).name == "feed"


def test_override_with_a_timestamp(config_file: Path) -> None:
    config = load_config(config_file, ["logs.validation_from=2026-01-08T12:30:00", "logs.test_from=2026-01-09"])
    assert config.logs.validation_from == datetime(2026, 1, 8, 12, 30)
    assert config.logs.test_from == datetime(2026, 1, 9)


def test_override_in_a_section_that_the_file_does_not_have(config_file: Path) -> None:
    assert load_config(config_file, ["training.convergence.gamma=2.5"]).training.convergence.gamma == 2.5


def test_later_override_of_the_same_key_wins(config_file: Path) -> None:
    assert load_config(config_file, ["training.epochs=3", "training.epochs=4"]).training.epochs == 4


@pytest.mark.parametrize("override", ["training.epochs", "", "=3", "training.=3", ".epochs=3", "training..epochs=3"])
def test_malformed_override_is_rejected_with_the_expected_form(config_file: Path, override: str) -> None:
    text = error_message(config_file, override)
    assert text.startswith(f"--set {override}: ")
    assert "section.key=value" in text


@pytest.mark.parametrize("override", ["name.first=1", "features.age=1", "training.epochs.first=1"])
def test_override_below_a_value_is_rejected(config_file: Path, override: str) -> None:
    config_file.write_text(DOCUMENT + "\n[training]\nepochs = 2\n")
    assert error_message(config_file, override).startswith(f"--set {override}: ")


# Write.


def test_written_config_loads_as_the_same_config(config_file: Path, tmp_path: Path) -> None:
    overrides = ["model.expert_layers=[32, 16]", "serving.objective={click = 1, watch = -0.5}", "training.seed=7"]
    config = load_config(config_file, overrides)
    reloaded = tmp_path / "elsewhere" / "config.toml"
    reloaded.parent.mkdir()
    config.write(reloaded)
    assert load_config(reloaded) == config


def test_written_config_contains_every_default(config_file: Path, tmp_path: Path) -> None:
    load_config(config_file).write(tmp_path / "config.toml")
    written = tomllib.loads((tmp_path / "config.toml").read_text())
    no_default = {"clip_norm", "ranking_loss"}
    assert set(written["training"]) == set(TrainingConfig.model_fields) - no_default
    assert set(written["training"]["convergence"]) == set(ConvergenceConfig.model_fields)
    assert Path(written["logs"]["path"]).is_absolute()


def test_written_config_keeps_time_zones(config_file: Path, tmp_path: Path) -> None:
    zoned = ["logs.validation_from=2026-01-09T00:00:00Z", "logs.test_from=2026-01-10T00:00:00+08:00"]
    config = load_config(config_file, zoned)
    config.write(tmp_path / "config.toml")
    reloaded = load_config(tmp_path / "config.toml")
    assert reloaded == config
    assert reloaded.logs.validation_from == datetime(2026, 1, 9, tzinfo=UTC)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**31),
    gamma=st.floats(1e-2, 1e3),
    rate=st.floats(1e-12, 1e3),
    weights=st.dictionaries(st.sampled_from(["click", "watch"]), st.floats(-1e6, 1e6), min_size=1).filter(
        lambda weights: any(weights.values())
    ),
)
def test_written_config_keeps_numbers_exactly(seed: int, gamma: float, rate: float, weights: dict[str, float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ranker.toml"
        file.write_text(DOCUMENT)
        overrides = [f"training.seed={seed}", f"training.convergence.gamma={gamma!r}"]
        overrides += [f"training.learning_rate.gates={rate!r}"]
        overrides += [f"serving.objective.{task}={weight!r}" for task, weight in weights.items()]
        config = load_config(file, overrides)
        assert config.training.seed == seed
        assert config.training.convergence.gamma == gamma
        assert config.training.learning_rate.gates == rate
        assert config.objective == weights
        config.write(Path(folder) / "config.toml")
        assert load_config(Path(folder) / "config.toml") == config


def test_config_is_immutable(config_file: Path) -> None:
    config = load_config(config_file)
    assert isinstance(config, Config)
    with pytest.raises(ValueError, match="frozen"):
        config.training.epochs = 3  # type: ignore[misc]


# Python syntax in messages.

WRONG_VALUES: list[Any] = [
    {"items": [1, 2]},
    {"kind": {"a": True}},
    [{"a": [True]}],
    [True, {"a": 1}],
    True,
    1.5,
    "x",
    date(2026, 1, 9),
    datetime(2026, 1, 9, 3),
    time(6),
]
PYTHON = re.compile(r"[{(]'|\b(None|True|False|dict|tuple|list\(|datetime|Input should)\b|<class|\(\)")


def places(node: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value of a configuration."""
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, entry in entries:
        yield (*place, key)
        yield from places(entry, (*place, key))


def test_messages_show_no_python(tmp_path: Path) -> None:
    """Replaces each value of a configuration by values of the wrong types."""
    table = tomllib.loads(Path(__file__).with_name("all_keys.toml").read_text())
    Config.model_validate(table)
    messages = set()
    for *place, last in places(table):
        for value in WRONG_VALUES:
            changed = deepcopy(table)
            reduce(getitem, place, changed)[last] = value
            try:
                Config.model_validate(changed)
            except ValidationError as error:
                messages.add(format_validation_error(error, changed, Config))
    assert len(messages) > 300
    assert not [message for message in messages if PYTHON.search(message)]
