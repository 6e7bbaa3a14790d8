"""Tests of the search space: default ranges, the ``[tune]`` section, and invalid ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from pipelines.config.config import load_config
from pipelines.config.types import Range
from pipelines.tuning.search_space import DEFAULTS, override, search_space, suggest
from ranking.errors import ConfigError
from tests.conftest import GATES
from tests.pipelines.conftest import Shop

# Suggest.


@pytest.mark.parametrize(
    ("values", "low", "high", "kind"),
    [
        ({"low": 1, "high": 3}, 1, 3, int),
        ({"low": 0.5, "high": 3}, 0.5, 3, float),
        ({"low": 1e-4, "high": 1e-2, "log": True}, 1e-4, 1e-2, float),
    ],
)
def test_suggest_from_a_range_returns_numbers_of_its_type(values: Any, low: float, high: float, kind: type) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    space = {"x": Range.model_validate(values)}
    samples = [suggest(study.ask(), space)["x"] for _ in range(30)]
    assert all(low <= x <= high for x in samples)
    assert {type(x) for x in samples} == {kind}
    assert len(set(samples)) > 2


def test_suggest_from_choices_returns_the_original_values() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    space = {"layers": Range.model_validate([[64], [32, 16]])}
    assert {tuple(suggest(study.ask(), space)["layers"]) for _ in range(30)} == {(64,), (32, 16)}


# Search space.


def test_search_space_default_ranges_match_appendix_d_of_the_paper(logs: Path) -> None:
    space = search_space(load_config(logs / "ranker.toml"))
    assert set(space) == set(DEFAULTS) - {"model.gate.sparsity_weight"}
    assert space["model.gate.k"].choices == (2, 4)
    assert space["training.convergence.gamma"].choices == (0.1, 1.0, 10.0)
    rate = space["training.learning_rate.trunk"]
    assert (rate.low, rate.high, rate.log) == (1e-5, 1e-2, True)


@pytest.mark.parametrize("gate", [gate for gate in GATES if "experts" not in gate])
def test_search_space_contains_only_settings_of_the_gate(logs: Path, gate: str) -> None:
    config = load_config(logs / "ranker.toml", GATES[gate])
    for path, values in search_space(config).items():
        for value in values.extremes:
            override(config, {path: value})
    assert ("training.convergence.gamma" in search_space(config)) == gate.startswith("dselect_k")
    assert ("model.gate.sparsity_weight" in search_space(config)) == (gate == "gumbel_softmax")


def test_search_space_omits_a_default_that_is_invalid(logs: Path) -> None:
    assert "model.gate.k" not in search_space(load_config(logs / "ranker.toml", ["model.experts=3"]))


def test_search_space_with_tune_section_replaces_defaults(shop: Shop) -> None:
    config = shop.config(tune={"model.dropout": [0.1], "training.weight_decay": {"low": 0.0, "high": 0.1}})
    space = search_space(config)
    assert space["model.dropout"].choices == (0.1,)
    assert space["training.weight_decay"].high == 0.1
    assert "training.learning_rate.trunk" in space


@pytest.mark.parametrize(
    ("path", "values", "message"),
    [
        ("model.gate.kk", [1], 'tune."model.gate.kk": 1 is not a valid value: model.gate.kk: unknown key'),
        (
            "model.gate.k",
            [2, 9],
            'tune."model.gate.k": 9 is not a valid value: model: gate.k = 9 exceeds the 3 experts',
        ),
        ("training.nothing.here", [1], "there is no section training.nothing"),
        ("model.dropout", {"low": 0.0, "high": 1.5}, 'tune."model.dropout": 1.5 is not a valid value'),
        ("logs.path", ["x"], "only settings below model and training can be tuned"),
        ("name", ["x"], "only settings below model and training can be tuned"),
        ("training.seed.x", [1], "there is no section training.seed"),
    ],
)
def test_search_space_with_an_invalid_value_names_the_setting(shop: Shop, path: str, values: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        search_space(shop.config(tune={path: values}))
    assert message in str(caught.value)


def test_tune_section_survives_writing_and_loading(shop: Shop, tmp_path: Path) -> None:
    config = shop.config(tune={"model.expert_layers": [[8], [16, 8]], "model.dropout": {"low": 0.0, "high": 0.5}})
    config.write(tmp_path / "ranker.toml")
    assert load_config(tmp_path / "ranker.toml").tune == config.tune


def test_override_changes_only_the_given_settings(shop: Shop) -> None:
    config = shop.config(tune={"model.dropout": [0.1]})
    changed = override(config, {"model.dropout": 0.25, "training.learning_rate.gates": 0.5})
    assert (changed.model.dropout, changed.training.learning_rate.gates) == (0.25, 0.5)
    back = override(changed, {"model.dropout": 0.0, "training.learning_rate.gates": 1e-2})
    assert back == config.model_copy(update={"tune": {}})
