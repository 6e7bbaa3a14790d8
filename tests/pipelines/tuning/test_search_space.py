"""What a study searches: the paper's ranges, those of [tune], and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from pydantic import ValidationError

from pipelines.config.config import load_config
from pipelines.tuning.search_space import DEFAULTS, Range, override, search_space
from ranking.errors import ConfigError
from tests.conftest import GATES
from tests.pipelines.conftest import Shop


class TestRange:
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({}, "give low and high, or a list of choices"),
            ({"low": 1}, "give low and high"),
            ({"low": 2, "high": 1}, "low must be smaller than high"),
            ({"low": 0, "high": 1, "log": True}, "log needs low > 0"),
            ({"low": 0, "high": 1, "choices": [1]}, "either choices or low and high"),
            ([], "at least 1 item"),
            ({"low": 0, "high": 1, "step": 2}, "Extra inputs"),
        ],
    )
    def test_refuses(self, given: Any, says: str) -> None:
        with pytest.raises(ValidationError, match=says):
            Range.model_validate(given)

    @pytest.mark.parametrize(
        ("given", "low", "high", "kind"),
        [
            ({"low": 1, "high": 3}, 1, 3, int),
            ({"low": 0.5, "high": 3}, 0.5, 3, float),
            ({"low": 1e-4, "high": 1e-2, "log": True}, 1e-4, 1e-2, float),
        ],
    )
    def test_draws_numbers_of_its_kind_within_it(self, given: Any, low: float, high: float, kind: type) -> None:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        drawn = [Range.model_validate(given).draw(study.ask(), "x") for _ in range(30)]
        assert all(low <= x <= high for x in drawn)
        assert {type(x) for x in drawn} == {kind}
        assert len(set(drawn)) > 2

    def test_draws_choices_as_they_were_written(self) -> None:
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        choices = Range.model_validate([[64], [32, 16]])
        assert {tuple(choices.draw(study.ask(), "layers")) for _ in range(30)} == {(64,), (32, 16)}


class TestSpace:
    def test_has_the_ranges_of_the_papers_appendix_d(self, logs: Path) -> None:
        found = search_space(load_config(logs / "ranker.toml"))
        assert set(found) == set(DEFAULTS) - {"model.gate.sparsity_weight"}
        assert found["model.gate.k"].choices == (2, 4)
        assert found["training.convergence.gamma"].choices == (0.1, 1.0, 10.0)
        rate = found["training.learning_rate.trunk"]
        assert (rate.low, rate.high, rate.log) == (1e-5, 1e-2, True)

    @pytest.mark.parametrize("gate", [gate for gate in GATES if "experts" not in gate])
    def test_has_only_settings_that_the_gate_has(self, logs: Path, gate: str) -> None:
        config = load_config(logs / "ranker.toml", GATES[gate])
        for path, values in search_space(config).items():
            for value in values.extremes:
                override(config, {path: value})
        assert ("training.convergence.gamma" in search_space(config)) == gate.startswith("dselect_k")
        assert ("model.gate.sparsity_weight" in search_space(config)) == (gate == "gumbel_softmax")

    def test_leaves_out_a_default_that_does_not_fit(self, logs: Path) -> None:
        assert "model.gate.k" not in search_space(load_config(logs / "ranker.toml", ["model.experts=3"]))

    def test_takes_tune_of_the_document_before_the_defaults(self, shop: Shop) -> None:
        config = shop.config(tune={"model.dropout": [0.1], "training.weight_decay": {"low": 0.0, "high": 0.1}})
        found = search_space(config)
        assert found["model.dropout"].choices == (0.1,)
        assert found["training.weight_decay"].high == 0.1
        assert "training.learning_rate.trunk" in found

    @pytest.mark.parametrize(
        ("path", "values", "says"),
        [
            ("model.gate.kk", [1], 'tune."model.gate.kk": 1 cannot be tried: model.gate.kk: unknown key'),
            ("model.gate.k", [2, 9], 'tune."model.gate.k": 9 cannot be tried: model: gate.k = 9 of 3 experts'),
            ("training.nothing.here", [1], "there is no section training.nothing"),
            ("model.dropout", {"low": 0.0, "high": 1.5}, 'tune."model.dropout": 1.5 cannot be tried'),
            ("logs.path", ["x"], "only settings below model and training can be tuned"),
            ("name", ["x"], "only settings below model and training can be tuned"),
            ("training.seed.x", [1], "there is no section training.seed"),
        ],
    )
    def test_names_what_cannot_be_tried(self, shop: Shop, path: str, values: Any, says: str) -> None:
        with pytest.raises(ConfigError) as caught:
            search_space(shop.config(tune={path: values}))
        assert says in str(caught.value)

    def test_survives_being_written(self, shop: Shop, tmp_path: Path) -> None:
        config = shop.config(tune={"model.expert_layers": [[8], [16, 8]], "model.dropout": {"low": 0.0, "high": 0.5}})
        config.write(tmp_path / "ranker.toml")
        assert load_config(tmp_path / "ranker.toml").tune == config.tune


def test_settings_change_nothing_else(shop: Shop) -> None:
    config = shop.config(tune={"model.dropout": [0.1]})
    changed = override(config, {"model.dropout": 0.25, "training.learning_rate.gates": 0.5})
    assert (changed.model.dropout, changed.training.learning_rate.gates) == (0.25, 0.5)
    back = override(changed, {"model.dropout": 0.0, "training.learning_rate.gates": 1e-2})
    assert back == config.model_copy(update={"tune": {}})
