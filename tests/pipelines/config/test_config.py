from __future__ import annotations

import re
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.config import config as configs
from pipelines.config.config import Config
from ranking.errors import ConfigError, UsageError
from ranking.gates.config import DSelectKConfig
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
def toml(tmp_path: Path) -> Path:
    file = tmp_path / "ranker.toml"
    file.write_text(DOCUMENT)
    return file


def message(file: Path, *overrides: str) -> str:
    """What loading says; it must begin with the file."""
    with pytest.raises((ConfigError, UsageError)) as caught:
        configs.load_config(file, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_holds_what_the_file_says(toml: Path) -> None:
    config = configs.load_config(toml)
    assert config.name == "shop"
    assert config.columns.time == "at"
    assert config.columns.user == "user_id"
    assert config.task_names == ["click", "watch"]
    assert [task.label for task in config.tasks] == ["is_click", "watch"]
    assert [feature.kind for feature in config.features] == ["categorical", "numeric", "bag"]
    assert config.logs.validation_from == datetime(2026, 1, 9)
    assert config.logs.test_from == datetime(2026, 1, 10)


def test_the_schema_alone_leaves_out_logs_model_training_and_serving(toml: Path) -> None:
    config = configs.load_config(toml)
    only = config.serving_schema
    assert set(only.model_dump()) == {"name", "columns", "features", "tasks"}
    assert only.features == config.features
    assert only.tasks == config.tasks


def test_the_objective_is_the_first_task_unless_one_is_given(toml: Path) -> None:
    assert configs.load_config(toml).objective == {"click": 1.0}
    assert configs.load_config(toml, ["serving.objective.watch=2"]).objective == {"watch": 2.0}


class TestPaths:
    def test_relative_ones_start_at_the_files_folder(self, toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        elsewhere = toml.parent / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        logs = configs.load_config(Path("../ranker.toml")).logs
        assert logs.path.is_absolute()
        assert logs.path.resolve() == toml.parent / "log"
        assert logs.users is not None
        assert logs.users.resolve() == toml.parent / "side" / "users.parquet"
        assert logs.items is None

    def test_absolute_ones_stay(self, toml: Path) -> None:
        assert configs.load_config(toml, ["logs.path=/data/log"]).logs.path == Path("/data/log")

    def test_uris_stay_as_they_are_through_a_run_folder(self, toml: Path, tmp_path: Path) -> None:
        uri = "s3://bucket/a//b?endpoint_override=localhost:9000&scheme=http"
        config = configs.load_config(toml, [f"logs.path='{uri}'", "logs.items='gs://bucket/items.parquet'"])
        assert (config.logs.path, config.logs.items) == (uri, "gs://bucket/items.parquet")
        config.write(tmp_path / "config.toml")
        assert configs.load_config(tmp_path / "config.toml") == config


class TestUnknownKeys:
    @pytest.mark.parametrize(
        "section",
        [
            "columns",
            "logs",
            "model",
            "model.gate",
            "training",
            "training.learning_rate",
            "training.convergence",
            "serving",
        ],
    )
    def test_in_a_section_are_errors_that_name_file_and_key(self, toml: Path, section: str) -> None:
        override = f"{section}.colour=1"
        kind = " of kind 'dselect_k'" if section == "model.gate" else ""
        assert message(toml, override) == f"{toml}: {section}.colour: unknown key{kind} (with --set {override})"

    def test_at_the_top_are_errors_too(self, toml: Path) -> None:
        assert message(toml, "colour=1") == f"{toml}: colour: unknown key (with --set colour=1)"

    @pytest.mark.parametrize(
        ("section", "name"), [("features", "user_id"), ("features", "age"), ("features", "tags"), ("tasks", "click")]
    )
    def test_in_a_list_are_named_by_the_entry_and_not_by_its_number(self, toml: Path, section: str, name: str) -> None:
        toml.write_text(DOCUMENT.replace(f'name = "{name}"', f'name = "{name}"\ncolour = 1'))
        assert message(toml).startswith(f"{toml}: {section}.'{name}'.colour: unknown key")

    def test_of_one_kind_of_feature_are_unknown_to_another(self, toml: Path) -> None:
        toml.write_text(DOCUMENT.replace('name = "age"', 'name = "age"\ndim = 8'))
        assert message(toml) == f"{toml}: features.'age'.dim: unknown key of kind 'numeric'"

    def test_are_all_reported_at_once(self, toml: Path) -> None:
        text = message(toml, "model.colour=1", "training.taste=2")
        assert "model.colour" in text
        assert "training.taste" in text


class TestValuesThatMakeNoRanker:
    """Each message names the file, the key and what to do."""

    @pytest.mark.parametrize(
        ("override", "says"),
        [
            ("logs.test_from=2026-01-09T00:00:00", "logs: validation_from must be earlier than test_from"),
            ("logs.test_from=2026-01-01T00:00:00", "logs: validation_from must be earlier than test_from"),
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
            ("serving.objective.clack=1", "serving.objective names 'clack', which is no task: click, watch"),
            ("serving.objective.click=much", "serving.objective.click: "),
            ("name=../up", "name: "),
            ("features=[]", "features: "),
            ("tasks=[]", "tasks: "),
            ("training=3", "training: "),
        ],
    )
    def test_are_refused(self, toml: Path, override: str, says: str) -> None:
        toml.write_text(DOCUMENT + "\n[model]\nexperts = 8\n")
        text = message(toml, override)
        assert text.startswith(f"{toml}: ")
        assert says in text

    @pytest.mark.parametrize(
        ("override", "says"),
        [
            ('training.batch_size="64"', "training.batch_size: must be a whole number (got '64')"),
            ("training.batch_size=64.0", "training.batch_size: must be a whole number (got 64.0)"),
            ("training.seed=-1", "training.seed: must be at least 0 (got -1)"),
            ('training.weight_decay="0.1"', "training.weight_decay: must be a number (got '0.1')"),
            (
                'training.learning_rate="1e-3"',
                "training.learning_rate: must be a table of keys and values (got '1e-3')",
            ),
            ("training.trackers=mlflow", "training.trackers: must be a list (got 'mlflow')"),
            (
                'training.trackers=["wandb"]',
                "training.trackers (entry 1): choose 'tensorboard' or 'mlflow' (got 'wandb')",
            ),
            ("logs.path=true", "logs.path: must be a path or a URI, in quotes (got true)"),
            ("logs.allow_missing_days=1", "logs.allow_missing_days: must be true or false (got 1)"),
            (
                "logs.train_from=5",
                "logs.train_from: must be a date or a moment, such as 2026-01-09 or 2026-01-09T06:00",
            ),
            ("logs.train_from=06:00:00", "logs.train_from: must be a date or a moment, such as "),
            ('evaluation.ndcg_at="10"', "evaluation.ndcg_at: must be a whole number (got '10')"),
            ('serving.objective={click = "1"}', "serving.objective.click: must be a number (got '1')"),
            ('tune="all"', "tune: must be a table of keys and values (got 'all')"),
            ("tune.model={gate = {k = [2]}}", 'tune.model: write the whole setting in quotes, such as "training.'),
            ("tune.x=None", "tune.x: must be a table with low and high, or a list of choices (got 'None')"),
            ("tune.x={choices = 2}", "tune.x.choices: must be a list (got 2)"),
            ("tune.x=[[1.5]]", "tune.x (entry 1): must be a number, text, true, false or a list of whole numbers"),
            ('tune.x={low = "1", high = 2}', "tune.x.low: must be a number (got '1')"),
            (
                "tune.x=[nan]",
                "tune.x (entry 1): must be a number, text, true, false or a list of whole numbers (got nan)",
            ),
            ("tune.x={low = nan, high = 2}", "tune.x.low: must be a number (got nan)"),
            ("tune.x=[]", "tune.x: must hold at least 1 entry (got [])"),
            ("tune.x={low = 1, high = 2, step = 1}", "tune.x.step: unknown key"),
        ],
    )
    def test_of_another_type_are_not_taken_for_what_they_look_like(self, toml: Path, override: str, says: str) -> None:
        assert message(toml, override).startswith(f"{toml}: {says}")

    def test_whole_numbers_are_numbers_and_dates_are_moments(self, toml: Path) -> None:
        config = configs.load_config(toml, ["training.weight_decay=1", "logs.validation_from=2026-01-08"])
        assert config.training.weight_decay == 1.0
        assert config.logs.validation_from == datetime(2026, 1, 8)

    def test_a_missing_section_is_named(self, toml: Path) -> None:
        toml.write_text(re.sub(r"\[logs\].*?\n\n", "", DOCUMENT, flags=re.DOTALL))
        assert message(toml) == f"{toml}: logs: missing"

    def test_a_missing_key_of_a_feature_is_named(self, toml: Path) -> None:
        toml.write_text(DOCUMENT.replace('kind = "numeric"\nowner = "user"', 'kind = "numeric"'))
        assert message(toml).startswith(f"{toml}: features.'age'.owner: missing")

    def test_an_unknown_kind_of_feature_is_named(self, toml: Path) -> None:
        toml.write_text(DOCUMENT.replace('"numeric"', '"number"'))
        assert message(toml).startswith(f"{toml}: features.'age'")

    def test_a_label_that_is_a_feature_is_refused(self, toml: Path) -> None:
        toml.write_text(DOCUMENT.replace('label = "is_click"', 'label = "age"'))
        assert "a label is unknown before the impression" in message(toml)

    def test_splits_of_which_only_one_has_a_time_zone_cannot_be_compared(self, toml: Path) -> None:
        text = message(toml, "logs.test_from=2026-01-10T00:00:00Z")
        assert text.startswith(f"{toml}: logs")


class TestGates:
    KINDS = "dselect_k, top_k, softmax, gumbel_softmax, softmax_selectors, attentive, shared_bottom or single_task"

    @pytest.mark.parametrize("kind", KINDS.replace(" or ", ", ").split(", "))
    def test_are_chosen_by_one_setting(self, toml: Path, kind: str) -> None:
        assert configs.load_config(toml, [f"model.gate.kind={kind}"]).model.gate.kind == kind

    def test_are_dselect_k_unless_a_kind_is_given(self, toml: Path) -> None:
        assert (
            configs.load_config(toml).model.gate
            == configs.load_config(toml, ["model.gate.k=2"]).model.gate
            == DSelectKConfig()
        )

    @pytest.mark.parametrize("kind", ["softmx", "3", "DSelectK"])
    def test_of_an_unknown_kind_are_refused_with_the_kinds(self, toml: Path, kind: str) -> None:
        override = f"model.gate.kind={kind}"
        assert message(toml, override) == (
            f"{toml}: model.gate: kind is {kind!r}; choose {self.KINDS} (with --set {override})"
        )

    def test_that_are_no_section_are_refused_without_talk_of_features(self, toml: Path) -> None:
        text = message(toml, "model.gate=softmax")
        assert text.startswith(f"{toml}: model.gate: ")
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
    def test_refuse_the_keys_of_other_kinds_with_their_path(self, toml: Path, kind: str, key: str) -> None:
        overrides = [f"model.gate.kind={kind}", f"model.gate.{key}=1"]
        expected = f"{toml}: model.gate.{key}: unknown key of kind '{kind}' (with --set {' --set '.join(overrides)})"
        assert message(toml, *overrides) == expected

    @pytest.mark.parametrize("kind", ["dselect_k", "softmax_selectors"])
    def test_cannot_use_more_experts_than_there_are(self, toml: Path, kind: str) -> None:
        overrides = [f"model.gate.kind={kind}", "model.experts=6"]
        assert configs.load_config(toml, [*overrides, "model.gate.experts_budget=6"]).model.gate.kind == kind
        assert "model: gate.experts_budget = 7 of 6 experts" in message(toml, *overrides, "model.gate.experts_budget=7")
        assert "model.gate.experts_budget: " in message(toml, *overrides, "model.gate.experts_budget=0")

    @pytest.mark.parametrize("kind", ["dselect_k", "softmax_selectors", "top_k"])
    def test_cannot_choose_more_experts_a_task_than_there_are(self, toml: Path, kind: str) -> None:
        overrides = [f"model.gate.kind={kind}", "model.experts=3", "model.gate.k=4"]
        assert "model: gate.k = 4 exceeds the 3 experts: choose k ≤ experts" in message(toml, *overrides)

    @pytest.mark.parametrize("kind", ["softmax", "attentive", "shared_bottom", "single_task"])
    def test_without_k_need_one_expert_only(self, toml: Path, kind: str) -> None:
        assert configs.load_config(toml, [f"model.gate.kind={kind}", "model.experts=1"]).model.experts == 1

    @pytest.mark.parametrize("kind", ["dselect_k", "top_k", "softmax"])
    @pytest.mark.parametrize("key", ["similarity_same", "similarity_different"])
    def test_compare_examples_only_if_they_see_examples(self, toml: Path, kind: str, key: str) -> None:
        overrides = [f"model.gate.kind={kind}", f"model.gate.{key}=0.1"]
        assert f"model.gate: {key.split('_')[0]}" in message(toml, *overrides)
        assert "set per_example = true" in message(toml, *overrides)
        assert configs.load_config(toml, [*overrides, "model.gate.per_example=true"]).model.gate.kind == kind

    @pytest.mark.parametrize("moment", ["0.6", "0.7"])
    def test_meet_their_budget_before_the_choice_is_final(self, toml: Path, moment: str) -> None:
        text = message(toml, "model.gate.experts_budget=2", f"training.convergence.budget_at={moment}")
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
    def test_may_use_a_quarter_of_the_experts_but_at_least_k_unless_a_budget_is_given(
        self, toml: Path, settings: list[str], budget: int | None
    ) -> None:
        assert configs.load_config(toml, ["model.experts=12", *settings]).model.experts_budget == budget

    @pytest.mark.parametrize(
        "settings", [settings for settings in GATES.values() if settings], ids=[name for name, s in GATES.items() if s]
    )
    def test_are_written_and_read_again(self, toml: Path, tmp_path: Path, settings: list[str]) -> None:
        config = configs.load_config(toml, settings)
        config.write(tmp_path / "config.toml")
        assert configs.load_config(tmp_path / "config.toml") == config


class TestOverrides:
    def test_numbers(self, toml: Path) -> None:
        training = configs.load_config(toml, ["training.epochs=3", "training.learning_rate.trunk=2e-4"]).training
        assert training.epochs == 3
        assert training.learning_rate.trunk == 2e-4

    def test_lists(self, toml: Path) -> None:
        assert configs.load_config(toml, ["model.expert_layers=[256, 64]"]).model.expert_layers == (256, 64)

    def test_bare_words_are_strings(self, toml: Path) -> None:
        config = configs.load_config(toml, ["name=feed", "logs.path=some/where.parquet"])
        assert config.name == "feed"
        assert config.logs.path == toml.parent / "some" / "where.parquet"

    def test_quoted_strings(self, toml: Path) -> None:
        assert configs.load_config(toml, ['name="feed"']).name == "feed"

    def test_moments(self, toml: Path) -> None:
        config = configs.load_config(toml, ["logs.validation_from=2026-01-08T12:30:00", "logs.test_from=2026-01-09"])
        assert config.logs.validation_from == datetime(2026, 1, 8, 12, 30)
        assert config.logs.test_from == datetime(2026, 1, 9)

    def test_of_sections_that_the_file_lacks(self, toml: Path) -> None:
        assert configs.load_config(toml, ["training.convergence.gamma=2.5"]).training.convergence.gamma == 2.5

    def test_the_last_of_two_holds(self, toml: Path) -> None:
        assert configs.load_config(toml, ["training.epochs=3", "training.epochs=4"]).training.epochs == 4

    @pytest.mark.parametrize("wrong", ["training.epochs", "", "=3", "training.=3", ".epochs=3", "training..epochs=3"])
    def test_of_another_form_are_errors_that_show_the_form(self, toml: Path, wrong: str) -> None:
        text = message(toml, wrong)
        assert text.startswith(f"--set {wrong}: ")
        assert "section.key=value" in text

    @pytest.mark.parametrize("wrong", ["name.first=1", "features.age=1", "training.epochs.first=1"])
    def test_below_what_is_no_section_are_errors(self, toml: Path, wrong: str) -> None:
        toml.write_text(DOCUMENT + "\n[training]\nepochs = 2\n")
        assert message(toml, wrong).startswith(f"--set {wrong}: ")


class TestWrittenAgain:
    def test_it_loads_as_the_same_configuration(self, toml: Path, tmp_path: Path) -> None:
        overrides = ["model.expert_layers=[32, 16]", "serving.objective={click = 1, watch = -0.5}", "training.seed=7"]
        config = configs.load_config(toml, overrides)
        again = tmp_path / "elsewhere" / "config.toml"
        again.parent.mkdir()
        config.write(again)
        assert configs.load_config(again) == config

    def test_it_holds_every_setting_with_its_default(self, toml: Path, tmp_path: Path) -> None:
        configs.load_config(toml).write(tmp_path / "config.toml")
        written = tomllib.loads((tmp_path / "config.toml").read_text())
        no_default = {"clip_norm"}
        assert set(written["training"]) == set(configs.TrainingConfig.model_fields) - no_default
        assert set(written["training"]["convergence"]) == set(configs.ConvergenceConfig.model_fields)
        assert Path(written["logs"]["path"]).is_absolute()

    def test_time_zones_survive(self, toml: Path, tmp_path: Path) -> None:
        zoned = ["logs.validation_from=2026-01-09T00:00:00Z", "logs.test_from=2026-01-10T00:00:00+08:00"]
        config = configs.load_config(toml, zoned)
        config.write(tmp_path / "config.toml")
        again = configs.load_config(tmp_path / "config.toml")
        assert again == config
        assert again.logs.validation_from == datetime(2026, 1, 9, tzinfo=UTC)

    @settings(deadline=None, max_examples=30)
    @given(
        seed=st.integers(0, 2**31),
        gamma=st.floats(1e-2, 1e3),
        rate=st.floats(1e-12, 1e3),
        weights=st.dictionaries(st.sampled_from(["click", "watch"]), st.floats(-1e6, 1e6), min_size=1),
    )
    def test_no_number_changes(self, seed: int, gamma: float, rate: float, weights: dict[str, float]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ranker.toml"
            file.write_text(DOCUMENT)
            overrides = [f"training.seed={seed}", f"training.convergence.gamma={gamma!r}"]
            overrides += [f"training.learning_rate.gates={rate!r}"]
            overrides += [f"serving.objective.{task}={weight!r}" for task, weight in weights.items()]
            config = configs.load_config(file, overrides)
            assert config.training.seed == seed
            assert config.training.convergence.gamma == gamma
            assert config.training.learning_rate.gates == rate
            assert config.objective == weights
            config.write(Path(folder) / "config.toml")
            assert configs.load_config(Path(folder) / "config.toml") == config


def test_a_configuration_cannot_be_changed(toml: Path) -> None:
    config = configs.load_config(toml)
    assert isinstance(config, Config)
    with pytest.raises(ValueError, match="frozen"):
        config.training.epochs = 3  # type: ignore[misc]
