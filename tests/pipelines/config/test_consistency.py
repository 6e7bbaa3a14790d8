"""Settings that contradict each other are rejected for new trainings, and accepted for runs that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.config.config import load_config
from pipelines.runs.run import RunFolder
from pipelines.tuning.search_space import search_space
from ranking.errors import ConfigError

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

CONTRADICTIONS = [
    (["model.gate.k=3", "model.gate.experts_budget=2"], "model.gate: k = 3 exceeds experts_budget = 2"),
    (['model.gate={kind = "softmax_selectors", k = 3, experts_budget = 1}'], "k = 3 exceeds experts_budget = 1"),
    (["model.gate.surplus_weight=0.5"], "model.gate: surplus_weight = 0.5 has no effect with surplus = 'fold'"),
    (["columns.user=n", "columns.item=n"], "columns: user and item are the same column 'n'"),
    (["columns.request=time"], "columns: time and request are the same column 'time'"),
    (["columns.weight=seconds"], "tasks.'watch'.label: column 'seconds' is the weight column"),
    (["training.convergence.gamma=1e308"], "training.convergence.gamma: must be from 1e-12 to 1e+06 (got 1e+308)"),
    (["training.convergence.final_gamma=1e-320"], "training.convergence.final_gamma: must be from 1e-12"),
    (["evaluation.bootstrap=100001"], "evaluation.bootstrap: 100,001 draws need too much memory"),
    (["training.ranking_loss.within=request", "columns={}"], "within = 'request' needs the column of the request id"),
    (["columns.weight=age"], "features.'age': column 'age' is the weight column"),
    (
        ["training.ranking_loss.weight=0.5", 'tasks=[{name = "watch", kind = "regression", label = "seconds"}]'],
        "training.ranking_loss: no task is binary, and only binary tasks have this loss: remove it",
    ),
]


@pytest.mark.parametrize(("overrides", "expected"), CONTRADICTIONS)
def test_contradicting_settings_are_rejected(shop: Shop, overrides: list[str], expected: str) -> None:
    shop.config().write(shop.folder / "ranker.toml")
    with pytest.raises(ConfigError) as caught:
        load_config(shop.folder / "ranker.toml", overrides)
    assert expected in str(caught.value)
    assert str(caught.value).startswith(f"{shop.folder}/ranker.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.gate.k=2", "model.gate.experts_budget=2"],
        ["model.gate.surplus=penalty", "model.gate.surplus_weight=0.5"],
        ["training.ranking_loss.weight=0.5"],
    ],
)
def test_consistent_settings_are_accepted(shop: Shop, overrides: list[str]) -> None:
    shop.config().write(shop.folder / "ranker.toml")
    load_config(shop.folder / "ranker.toml", overrides)


def test_run_of_an_earlier_version_with_contradicting_settings_is_loaded(shop: Shop) -> None:
    run = RunFolder.create(shop.folder / "run", shop.config(model={"gate": {"k": 3, "experts_budget": 2}}))
    assert run.load_config().model.gate.k == 3


def test_study_does_not_search_more_experts_per_task_than_the_budget(shop: Shop) -> None:
    tune = {"model.gate.k": [2, 4], "model.gate.experts_budget": [3]}
    with pytest.raises(ConfigError, match=r"k = 4 exceeds experts_budget = 3"):
        search_space(shop.config(model={"experts": 8}, tune=tune))
