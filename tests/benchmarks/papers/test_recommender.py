"""Tests of the recommender experiment: equal costs, claims, and the original data."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import recommender
from benchmarks.papers.__main__ import main
from benchmarks.papers.recommender import (
    DSELECT_K,
    EQUAL_COMPUTE,
    EQUAL_PARAMETERS,
    EXPERTS,
    GATED_TRIALS,
    GATES,
    KUAIRAND,
    RIVALS,
    SETTINGS,
    SHARED_TRIALS,
    TOWER,
    WIDTH,
    K,
)
from pipelines.config.config import load_config
from ranking.model.experts import StackedLinear, StackedMLP
from ranking.selection import Selection, Shape, flops

INPUTS, TASKS = 597, 9


def parameters(bottoms: int, width: int) -> int:
    """Count the parameters of bottoms, towers and outputs."""
    layers = (
        StackedMLP(bottoms, INPUTS, [width]),
        StackedMLP(TASKS, width, [TOWER]),
        StackedLinear(TASKS, TOWER, 1),
    )
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())


def test_shared_bottoms_have_the_cost_of_a_task_and_the_parameters_of_the_mixture() -> None:
    widths = recommender.shared_widths(INPUTS, TASKS)
    task = Selection(EXPERTS, K, {"click": {0: 0.5, 3: 0.5}})
    cost = flops(task, Shape(INPUTS, (WIDTH,), (TOWER,)))["per_task"]["click"]
    bottom = Shape(INPUTS, (widths[EQUAL_COMPUTE],), (TOWER,))
    assert bottom.expert + bottom.tower == pytest.approx(cost, rel=0.005)
    assert parameters(1, widths[EQUAL_PARAMETERS]) == pytest.approx(parameters(EXPERTS, WIDTH), rel=0.005)


def test_num_inputs_is_that_of_a_model_with_all_experts() -> None:
    everything = Selection(EXPERTS, EXPERTS, {f"task {i}": dict.fromkeys(range(EXPERTS), 0.125) for i in range(TASKS)})
    dense = flops(everything, Shape(INPUTS, (WIDTH,), (TOWER,)))["dense"]
    assert recommender.num_inputs(dense, TASKS) == INPUTS


def test_relative_flops_of_a_training_are_those_of_its_experts_and_tower() -> None:
    shape = Shape(INPUTS, (WIDTH,), (TOWER,))
    expert = shape.expert + shape.mixing(1)
    selection = Selection(EXPERTS, K, {"click": {5: 1.0}})
    run = {"weights": selection.tasks, "flops": flops(selection, shape), "experts_of_top_k": 1.0}
    assert recommender.relative_flops(run) == pytest.approx(1.0)
    assert recommender.relative_flops(run | {"experts_of_top_k": 1.75}) == pytest.approx(
        (1.75 * K * expert + shape.tower) / (K * expert + shape.tower)
    )


def test_every_method_has_as_many_valid_trials(logs: Path) -> None:
    assert len(GATED_TRIALS) == len(SHARED_TRIALS)
    for settings in GATES.values():
        for trial in GATED_TRIALS:
            config = load_config(logs / "ranker.toml", [*SETTINGS, *settings, *trial])
            assert config.model.experts_budget in (None, EXPERTS)


def test_random_sharing_is_the_share_of_all_choices() -> None:
    choices = list(itertools.combinations(range(EXPERTS), K))
    triples = list(itertools.product(choices, repeat=3))
    sharing = [len(set(a) | set(b) | set(c)) < 3 * K for a, b, c in triples]
    assert recommender.random_sharing(3) == pytest.approx(sum(sharing) / len(triples))
    assert recommender.random_sharing(1) == 0
    assert recommender.random_sharing(5) == 1, "five tasks need more experts than there are"


def made_up(gains: dict[str, float]) -> dict[str, Any]:
    """Return results in which DSelect-k is better than the other methods by these amounts, ± 0.001 over two seeds."""

    def runs(ahead: bool) -> list[dict[str, Any]]:
        values = [{task: 0.7 + ahead * (gain + noise) for task, gain in gains.items()} for noise in (-1e-4, 1e-4)]
        weights = {task: {str(expert): 0.5 for expert in (0, 1)} for task in gains}
        return [{"tasks": tasks, "weights": weights} for tasks in values]

    tasks = {
        task: {
            "group": "satisfaction" if task == "like" else "engagement",
            "metric": "rmse" if task == "time" else "auc",
        }
        for task in gains
    }
    methods = {name: {"runs": runs(name == DSELECT_K)} for name in (DSELECT_K, *RIVALS)}
    return {"logs": {KUAIRAND: {"tasks": tasks, "methods": methods}}}


def test_claims_hold_if_every_task_is_better_beyond_its_interval() -> None:
    def verdicts(gains: dict[str, float]) -> list[str]:
        return [verdict for _, verdict in recommender.claims(made_up(gains))]

    assert verdicts({"click": 0.1, "time": -0.1, "like": 0.2}) == ["held", "held", "held", "failed"]
    assert verdicts({"click": 0.1, "time": 0.1, "like": 0.05})[:2] == ["failed", "failed"], "a higher RMSE is worse"
    assert verdicts({"click": 0.0, "time": -0.1, "like": 0.2})[0] == "not decided", "equal within the interval"
    claim, _ = recommender.claims(made_up({"click": -0.1, "time": -0.1, "like": 0.2}))[0]
    assert claim.endswith("(here beyond the interval: ahead on 2, behind on 1)")


def test_full_form_without_the_original_files_says_where_to_get_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, problem in (
        ([], "--raw DIR is missing"),
        (["--raw", str(tmp_path)], f"{tmp_path}: no file video_features_basic*.csv"),
    ):
        with pytest.raises(SystemExit) as exit_:
            main(["recommender", "--out", str(tmp_path / "out"), *options])
        assert exit_.value.code == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert problem in message
        assert "recommender reads the folder of KuaiRand-Pure (https://kuairand.com) with log_standard_*.csv" in message
