"""Tests of the search space: default ranges, the ``[tune]`` section, and invalid ranges."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config.config import load_config
from pipelines.config.types import Range
from pipelines.tuning.search_space import BUDGET, DEFAULTS, EXPERTS, LAYERS, K, override, search_space, suggest
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
    assert set(space) == set(DEFAULTS) - {"model.gate.sparsity_weight"} | {EXPERTS, K, BUDGET, *LAYERS}
    assert space[K].choices == (2, 4)
    assert space["training.convergence.gamma"].choices == (0.1, 1.0, 10.0)
    rate = space["training.learning_rate.trunk"]
    assert (rate.low, rate.high, rate.log) == (1e-5, 1e-2, True)


@pytest.mark.parametrize("gate", [gate for gate in GATES if "experts" not in gate])
def test_search_space_contains_only_settings_of_the_gate(logs: Path, gate: str) -> None:
    config = load_config(logs / "ranker.toml", GATES[gate])
    space = search_space(config)
    for path in space.keys() - {EXPERTS, K, BUDGET}:
        for value in space[path].extremes:
            override(config, {path: value})
    assert ("training.convergence.gamma" in space) == gate.startswith("dselect_k")
    assert ("model.gate.sparsity_weight" in space) == (gate == "gumbel_softmax")
    assert (EXPERTS in space) == (gate != "shared_bottom")
    per_task = gate != "shared_bottom" and gate != "attentive" and "per example" not in gate
    assert ("model.reading" in space, "training.learning_rate.gates" in space) == (per_task, per_task)
    assert (K in space) == gate.startswith(("dselect_k", "softmax_selectors", "top_k"))
    assert (BUDGET in space) == (gate in ("dselect_k", "dselect_k per example budget", "softmax_selectors"))


def test_search_space_varies_experts_and_budget_around_the_configured_ones(logs: Path) -> None:
    space = search_space(load_config(logs / "ranker.toml", ["model.experts=24", "model.gate.experts_budget=16"]))
    assert space[EXPERTS].choices == (24, 48)
    assert space[BUDGET].choices == (8, 16, 24)
    space = search_space(load_config(logs / "ranker.toml", ["model.experts=8"]))  # whose budget is 2 by default
    assert space[BUDGET].choices == (4, 8)


def test_search_space_contains_the_configured_values(logs: Path) -> None:
    overrides = [
        "model.dropout=0.1",
        "training.learning_rate.trunk=0.5",
        "model.gate.k=3",
        "model.gate.experts_budget=8",
    ]
    space = search_space(load_config(logs / "ranker.toml", [*overrides, "model.tower_layers=[34, 3]"]))
    assert space["model.dropout"].choices == (0.0, 0.25, 0.5, 0.1)
    assert (space["training.learning_rate.trunk"].low, space["training.learning_rate.trunk"].high) == (1e-5, 0.5)
    assert space[K].choices == (2, 3, 4)
    assert space["model.tower_layers"].choices == ([17, 2], [34, 3], [68, 6])


COUNTS = st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True)


@given(
    n=st.integers(1, 12),
    k=st.integers(1, 12),
    budget=st.none() | st.integers(1, 12),
    ranges=st.fixed_dictionaries({}, optional={EXPERTS: COUNTS, K: COUNTS, BUDGET: COUNTS}),
)
def test_search_space_every_combination_of_expert_counts_is_valid(
    logs: Path, n: int, k: int, budget: int | None, ranges: dict[str, list[int]]
) -> None:
    config = load_config(logs / "ranker.toml")
    gate = config.model.gate.model_copy(update={"k": k, "experts_budget": budget})
    model = config.model.model_copy(update={"experts": n, "gate": gate})
    tune = {path: Range(choices=tuple(values)) for path, values in ranges.items()}
    try:
        space = search_space(config.model_copy(update={"model": model, "tune": tune}))
    except ConfigError:  # the settings contradict each other
        return
    assert {path: list(space[path].choices or ()) for path in ranges} == ranges
    for counts in product(*(space[path].extremes for path in (EXPERTS, K, BUDGET))):
        override(config, dict(zip((EXPERTS, K, BUDGET), counts, strict=True)))


def test_search_space_with_ranges_that_contradict_each_other_names_them(shop: Shop) -> None:
    with pytest.raises(ConfigError, match=r'tune."model.experts": 4 is not .*experts_budget = 8 exceeds the 4 experts'):
        search_space(shop.config(model={"experts": 8}, tune={EXPERTS: [4, 16], BUDGET: [4, 8]}))
    with pytest.raises(ConfigError, match=r'tune."model.experts": 3 is not .*gate.k = 5 exceeds the 3 experts'):
        search_space(shop.config(tune={K: [2, 5], EXPERTS: [3, 8]}))


@pytest.mark.parametrize(
    "tune",
    [{EXPERTS: [8, 16], BUDGET: [4, 8]}, {EXPERTS: [2, 30]}, {K: [1, 20]}, {BUDGET: [1]}, {BUDGET: [50]}],
)
def test_search_space_moves_defaults_to_suit_the_tune_section(shop: Shop, tune: dict[str, list[int]]) -> None:
    space = search_space(shop.config(model={"experts": 24, "gate": {"k": 2, "experts_budget": 16}}, tune=tune))
    ends = {path: (min(space[path].extremes), max(space[path].extremes)) for path in (EXPERTS, K, BUDGET)}
    assert ends[K][1] <= ends[BUDGET][0] <= ends[BUDGET][1] <= ends[EXPERTS][0]


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
        ("model.gate.k", [2, 0], 'tune."model.gate.k": 0 is not a valid value: model.gate.k: '),
        ("model.gate.kind", ["top_k"], 'tune."model.gate.kind": kinds have different settings'),
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
