"""Selection as plain data, and its FLOPs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ranking.selection import RoutingCost, Selection, Shape, flops

SELECTION = Selection(5, 2, {"click": {0: 0.25, 3: 0.75}, "like": {3: 1.0}, "watch": {1: 0.5, 0: 0.5}})
SHAPE = Shape(inputs=10, expert_layers=(4, 3), tower_layers=(2,))


def test_selection_experts_used_is_union_over_tasks() -> None:
    assert SELECTION.experts_used == [0, 1, 3]


@pytest.mark.parametrize(
    ("tasks", "experts"),
    [(["click"], [0, 3]), (["like"], [3]), (["watch", "like"], [0, 1, 3]), (["click", "watch"], [0, 1, 3]), ([], [])],
)
def test_selection_experts_for_tasks_is_union_over_these_tasks(tasks: list[str], experts: list[int]) -> None:
    assert SELECTION.experts_for(tasks) == experts


def test_selection_to_json_has_documented_keys() -> None:
    assert SELECTION.to_json() == {
        "num_experts": 5,
        "k": 2,
        "per_example": False,
        "reading": "sum",
        "tasks": {"click": {"0": 0.25, "3": 0.75}, "like": {"3": 1.0}, "watch": {"1": 0.5, "0": 0.5}},
        "experts_used": [0, 1, 3],
    }


def test_selection_round_trips_through_json() -> None:
    assert Selection.from_json(json.loads(json.dumps(SELECTION.to_json()))) == SELECTION


def test_selection_from_json_reads_per_example_and_defaults_to_static() -> None:
    selection = Selection(3, 1, {"click": {0: 0.0, 2: 1.0}}, per_example=True)
    data = json.loads(json.dumps(selection.to_json()))
    assert Selection.from_json(data) == selection
    assert data["experts_used"] == [0, 2], "an expert with mean weight 0 may be needed"
    del data["per_example"], data["reading"]
    assert not Selection.from_json(data).per_example
    assert Selection.from_json(data).reading == "sum"


def test_selection_from_json_rejects_an_unknown_reading() -> None:
    with pytest.raises(ValueError, match="reading 'future' is unknown: update dselect-ranker"):
        Selection.from_json(SELECTION.to_json() | {"reading": "future"})


def test_shape_flops_of_parts_match_hand_calculation() -> None:
    assert SHAPE.expert == 2 * 10 * 4 + 2 * 4 * 3 == 104
    assert SHAPE.tower == 2 * 3 * 2 + 2 * 2 * 1 == 16
    assert SHAPE.mixing(2) == 2 * 2 * 3 == 12


def test_flops_of_static_selection_match_hand_calculation() -> None:
    assert flops(SELECTION, SHAPE) == {
        "dense": 5 * 104 + 3 * (2 * 5 * 3 + 16),
        "frozen": 3 * 104 + (12 + 6 + 12) + 3 * 16,
        "per_task": {"click": 2 * 104 + 12 + 16, "like": 104 + 6 + 16, "watch": 2 * 104 + 12 + 16},
    }


def test_flops_side_by_side_include_a_block_of_the_first_layer_per_expert() -> None:
    shape = replace(SHAPE, reading="side_by_side")
    assert (shape.mixing(1), shape.tower) == (2 * 3 * 2, 2 * 2 * 1)
    assert flops(SELECTION, shape) == {
        "dense": 5 * 104 + 3 * (5 * 12 + 4),
        "frozen": 3 * 104 + (24 + 12 + 24) + 3 * 4,
        "per_task": {"click": 2 * 104 + 24 + 4, "like": 104 + 12 + 4, "watch": 2 * 104 + 24 + 4},
    }
    assert flops(SELECTION, replace(SHAPE, reading="scaled")) == flops(SELECTION, SHAPE)


def test_flops_of_per_example_gate_use_gate_flops_and_mean_expert_counts() -> None:
    selection = Selection(5, 2, {"click": dict.fromkeys(range(5), 0.2), "like": dict.fromkeys(range(5), 0.2)}, True)
    routing_cost = RoutingCost(gate_flops=50, experts=2.75, experts_by_task={"click": 1.5, "like": 2.0})
    assert flops(selection, SHAPE, routing_cost) == {
        "dense": 5 * 104 + 2 * (2 * 5 * 3 + 16) + 50,
        "frozen": 286 + (9 + 12) + 2 * 16 + 50,  # 2.75 · 104, 1.5 · 6 and 2 · 6
        "per_task": {"click": 156 + 9 + 16 + 50, "like": 208 + 12 + 16 + 50},
    }


def test_flops_are_json_serializable() -> None:
    counts = flops(SELECTION, SHAPE)
    assert json.loads(json.dumps(counts)) == counts
