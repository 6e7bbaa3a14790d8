"""The sparse inference graph: the dense model's numbers from the chosen experts alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from pipelines.config import Config
from pipelines.logs.reader import LogReader, load_tables
from pipelines.logs.splits import split_bounds
from pipelines.run_folder import RunFolder
from pipelines.training.building import load_model
from ranking.calibration import Calibration, Isotonic, Platt
from ranking.encoding import Encoder
from ranking.errors import InvalidInputError, NotConvergedError
from ranking.features import FeatureTable, complete
from ranking.frozen import SCORE_ROWS, FrozenRanker, freeze
from ranking.gates import DSelectK
from ranking.gates.config import GateConfig, SoftmaxConfig
from ranking.graph import FrozenGraph
from ranking.losses import scores
from ranking.model import Mixture
from ranking.schema import Owner, Schema
from ranking.selection import Selection

MakeModel = Callable[[], Mixture]
DrawRows = Callable[[int, int], pa.Table]


@dataclass(frozen=True)
class Pair:
    """A dense model, what it was frozen to, and completed rows."""

    model: Mixture
    ranker: FrozenRanker
    rows: pa.Table


@pytest.fixture(scope="module")
def trained(run: RunFolder, config: Config) -> Pair:
    """The run's model, and some rows of its validation split."""
    model, encoder = load_model(run, config)
    tables = load_tables(config.logs, config.schema_only)
    ranker = freeze(model, encoder, tables, config.objective)
    reader = LogReader(config.logs.path, config.schema_only, tables)
    rows = pa.concat_tables(cleaned.rows for cleaned in reader.clean(*split_bounds(config.logs, "validation")))
    return Pair(model, ranker, rows.slice(0, 200))


@pytest.fixture(scope="module")
def by_hand(make_model: MakeModel, hand_ranker: FrozenRanker, draw_rows: DrawRows) -> Pair:
    return Pair(make_model(), hand_ranker, hand_ranker.complete(draw_rows(300, 5)))


@pytest.fixture(params=["trained", "by_hand"])
def pair(request: pytest.FixtureRequest) -> Pair:
    found: Pair = request.getfixturevalue(request.param)
    return found


def subsets(tasks: list[str]) -> Iterable[tuple[str, ...]]:
    """Each task, each pair, and all, forwards and backwards."""
    return [
        *itertools.combinations(tasks, 1),
        *itertools.combinations(tasks, 2),
        tuple(tasks),
        tuple(reversed(tasks)),
    ]


# The same numbers.


def test_frozen_is_dense_for_every_subset_of_tasks(pair: Pair) -> None:
    schema, inputs = pair.ranker.schema, pair.ranker.encoder.encode(pair.rows)
    assert len(inputs) >= 100
    with torch.inference_mode():
        outputs = pair.model(inputs)
        dense = scores(outputs, schema.tasks)
        assert float(outputs.std(0).min()) > 1e-3, "a constant would prove nothing"
        for names in subsets(schema.task_names):
            columns = [schema.task_names.index(name) for name in names]
            for found, expected in (
                (pair.ranker.graph(inputs, names), outputs),
                (pair.ranker.score_completed(pair.rows, pair.ranker.tasks(names))[0], dense),
            ):
                assert found.shape == (len(inputs), len(names))
                assert float((found - expected[:, columns]).abs().max()) <= 1e-5, names


def test_a_pruned_model_freezes_to_the_same_graph(
    make_model: MakeModel, hand_ranker: FrozenRanker, set_codes: Callable[[DSelectK, list[list[int]]], None]
) -> None:
    dense, pruned = make_model(), make_model()
    for model in (dense, pruned):
        set_codes(model.gate, [[1, 4], [4, 3], [3, 3], [1, 3]])  # experts 0 and 2 are dropped: positions move
    pruned.keep_experts([1, 3, 4])
    expected, found = (freeze(model, hand_ranker.encoder, hand_ranker.tables, {}) for model in (dense, pruned))
    assert found.selection == expected.selection
    assert found.graph.weights.keys() == expected.graph.weights.keys()
    for name, weight in expected.graph.weights.items():
        assert torch.equal(found.graph.weights[name], weight), name


def test_training_on_does_not_change_what_was_frozen(
    make_model: MakeModel, hand_ranker: FrozenRanker, draw_rows: DrawRows
) -> None:
    model = make_model()
    ranker = freeze(model, hand_ranker.encoder, hand_ranker.tables, {})
    before = ranker.score(draw_rows(5, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert ranker.score(draw_rows(5, 1)).equals(before)


CALIBRATION = Calibration(
    {"click": Platt(slope=0.5, shift=-1.0), "like": Isotonic(inputs=(-1.0, 0.5), outputs=(-2.0, -1.0))}
)


@pytest.mark.parametrize("per_example", [False, True])
def test_a_calibration_is_applied_to_its_tasks_in_every_subset(
    make_model: MakeModel,
    make_mixture: Callable[[GateConfig], Mixture],
    hand_ranker: FrozenRanker,
    draw_rows: DrawRows,
    per_example: bool,
) -> None:
    routed = None
    model = make_model()
    if per_example:
        gate = SoftmaxConfig(kind="softmax", per_example=True)
        model = make_mixture(gate)
        names = hand_ranker.schema.task_names
        routed = (gate, Selection(5, 5, {task: dict.fromkeys(range(5), 0.2) for task in names}, True))
    ranker = freeze(model, hand_ranker.encoder, hand_ranker.tables, {}, None, routed, CALIBRATION)
    names = ranker.schema.task_names
    inputs = ranker.encoder.encode(ranker.complete(draw_rows(60, 5)))
    with torch.inference_mode():
        outputs = model(inputs).double()
        expected = CALIBRATION(outputs, names)
        assert float((expected - outputs)[:, :2].abs().min()) > 1e-3
        assert torch.equal(expected[:, 2:], outputs[:, 2:])
        for some in subsets(names):
            columns = [names.index(name) for name in some]
            assert float((ranker.graph(inputs, some) - expected[:, columns]).abs().max()) <= 1e-5, some
            assert float((ranker.graph.uncalibrated(inputs, some) - outputs[:, columns]).abs().max()) <= 1e-5, some


# Only what was chosen.


def test_weights_are_named_as_documented_and_experts_that_nobody_chose_do_not_exist(hand_ranker: FrozenRanker) -> None:
    expected = {
        f"embedding.{table}"
        for table in ("user_id", "item_id", "country", "tab", "genres", "words", "country_tab", "age_band", "day_part")
    }
    expected |= {f"expert.{e}.{layer}.{part}" for e in range(4) for layer in (0, 1) for part in ("weight", "bias")}
    expected |= {
        f"tower.{task}.{layer}.{part}"
        for task in hand_ranker.schema.task_names
        for layer in (0, 1)
        for part in ("weight", "bias")
    }
    assert set(hand_ranker.graph.weights) == expected
    for weight in hand_ranker.graph.weights.values():
        assert weight.dtype == torch.float32
        assert not weight.requires_grad


def test_the_hand_made_selection_is_what_its_codes_say(hand_ranker: FrozenRanker) -> None:
    chosen = {task: list(weights) for task, weights in hand_ranker.selection.tasks.items()}
    assert chosen == {"click": [0, 1], "like": [1, 3], "watch": [2], "rating": [0, 3]}


def changed(ranker: FrozenRanker, prefixes: list[str], change: Callable[[Tensor], Tensor]) -> FrozenGraph:
    """The graph with every weight changed whose name starts so."""
    weights = {
        name: change(weight) if name.startswith(tuple(prefixes)) else weight
        for name, weight in ranker.graph.weights.items()
    }
    return FrozenGraph(ranker.schema, ranker.selection, weights)


def poison(weight: Tensor) -> Tensor:
    """Spoils every number that it has a part in, even with a weight of 0."""
    return torch.full_like(weight, torch.nan)


def break_(weight: Tensor) -> Tensor:
    """Raises where it is used."""
    return weight.new_empty(0)


@pytest.mark.parametrize("change", [poison, break_])
@pytest.mark.parametrize("asked", [*itertools.combinations(["click", "like", "watch", "rating"], 1), ("click", "like")])
def test_what_no_asked_for_task_needs_does_not_run(
    by_hand: Pair, asked: tuple[str, ...], change: Callable[[Tensor], Tensor]
) -> None:
    ranker = by_hand.ranker
    inputs = ranker.encoder.encode(by_hand.rows)
    expected = ranker.graph(inputs, asked)
    needed = ranker.selection.experts_for(asked)
    others = [f"expert.{e}." for e in ranker.selection.experts_used if e not in needed]
    assert others
    others += [f"tower.{task}." for task in ranker.schema.task_names if task not in asked]
    found = changed(ranker, others, change)(inputs, asked)
    assert found.isfinite().all()
    assert torch.equal(found, expected)


def test_an_expert_that_a_task_chose_does_run(by_hand: Pair) -> None:
    ranker = by_hand.ranker
    inputs = ranker.encoder.encode(by_hand.rows)
    for task, chosen in ranker.selection.tasks.items():
        for expert in chosen:
            assert changed(ranker, [f"expert.{expert}."], poison)(inputs, [task]).isnan().all()
            with pytest.raises(RuntimeError):
                changed(ranker, [f"expert.{expert}."], break_)(inputs, [task])


def test_freezing_refuses_a_gate_that_has_not_converged(make_model: MakeModel, hand_encoder: Encoder) -> None:
    model = make_model()
    with torch.no_grad():
        model.gate.z[1, 0, 2] = 0.3
    with pytest.raises(NotConvergedError, match=r"task 'like' selector 0 is 40\.0% of γ/2 away"):
        freeze(model, hand_encoder, {}, {})


# score().


def table_scores(table: pa.Table) -> np.ndarray[Any, Any]:
    return np.stack([column.to_numpy() for column in table.columns], 1)


def test_scores_are_a_float32_column_for_each_task(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    found = hand_ranker.score(draw_rows(10, 1))
    assert found.column_names == ["click", "like", "watch", "rating"]
    assert [field.type for field in found.schema] == [pa.float32()] * 4
    assert found.num_rows == 10
    probabilities = table_scores(found.select(["click", "like"]))
    assert ((probabilities > 0) & (probabilities < 1)).all()


def test_columns_stand_in_the_order_asked_for(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    every = hand_ranker.score(draw_rows(10, 1))
    some = hand_ranker.score(draw_rows(10, 1), tasks=["rating", "click"])
    assert some.column_names == ["rating", "click"]
    np.testing.assert_allclose(table_scores(some), table_scores(every.select(["rating", "click"])), atol=1e-6)


@pytest.mark.parametrize("empty", [pa.table({}), pa.table({"item_id": pa.array([], pa.int64())})])
def test_no_rows_give_no_scores(hand_ranker: FrozenRanker, empty: pa.Table) -> None:
    found = hand_ranker.score(empty, tasks=["like", "click"])
    assert found.num_rows == 0
    assert found.schema == pa.schema([("like", pa.float32()), ("click", pa.float32())])


def test_an_unknown_task_is_refused_with_those_that_there_are(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    with pytest.raises(InvalidInputError, match="unknown task 'klick': choose from click, like, watch, rating"):
        hand_ranker.score(draw_rows(2, 1), tasks=["click", "klick"])


def test_a_task_asked_for_twice_is_refused(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    with pytest.raises(InvalidInputError, match="twice"):
        hand_ranker.score(draw_rows(2, 1), tasks=["click", "like", "click"])


def test_asking_for_no_task_is_refused(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    with pytest.raises(InvalidInputError) as bad:
        hand_ranker.score(draw_rows(2, 1), tasks=[])
    assert bad.value.field == "tasks"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused_with_its_column_and_row(
    hand_ranker: FrozenRanker, value: float
) -> None:
    rows = pa.table({"item_id": [1, 2, 3, 4], "age": [30.0, None, value, value]})
    with pytest.raises(InvalidInputError, match=r"'age', row 2: is NaN or infinite") as bad:
        hand_ranker.score(rows)
    assert (bad.value.field, bad.value.row) == ("age", 2)


def test_a_number_without_a_logarithm_is_refused_with_its_column_and_row(hand_ranker: FrozenRanker) -> None:
    with pytest.raises(InvalidInputError, match="log1p") as bad:
        hand_ranker.score(pa.table({"price": [1.0, -1.0]}))
    assert (bad.value.field, bad.value.row) == ("price", 1)


@pytest.mark.parametrize("value", [1e30, 1e300, -1e300])
def test_a_finite_number_of_any_size_is_scored_or_refused_never_nan(hand_ranker: FrozenRanker, value: float) -> None:
    try:
        found = table_scores(hand_ranker.score(pa.table({"item_id": [1], "age": [value]})))
    except InvalidInputError:
        return
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("column", "values"), [("age", ["old"]), ("genres", ["drama"]), ("country", [[1]]), ("item_id", ["one"])]
)
def test_a_column_of_the_wrong_type_is_refused_by_name(
    hand_ranker: FrozenRanker, column: str, values: list[Any]
) -> None:
    with pytest.raises(InvalidInputError) as bad:
        hand_ranker.score(pa.table({column: values}))
    assert bad.value.field == column


def test_features_that_are_left_out_score_as_if_they_were_given(
    hand_ranker: FrozenRanker, hand_schema: Schema, hand_tables: dict[Owner, FeatureTable], draw_rows: DrawRows
) -> None:
    ids = draw_rows(50, 2)
    whole = complete(ids, hand_schema, hand_tables)
    assert "genres" not in ids.column_names
    without_tables = FrozenRanker(hand_schema, hand_ranker.encoder, hand_ranker.graph, {}, {})
    assert hand_ranker.score(ids).equals(without_tables.score(whole))
    assert not hand_ranker.score(ids).equals(without_tables.score(ids)), "the tables matter"


def test_what_is_unknown_everywhere_is_missing(hand_ranker: FrozenRanker) -> None:
    whole = hand_ranker.complete(pa.table({"user_id": ["nobody"], "item_id": [10**6], "tab": ["home"]}))
    scored, missing = hand_ranker.score_completed(whole, hand_ranker.schema.tasks)
    names = [feature.name for feature in hand_ranker.schema.given]
    assert [name for name, gone in zip(names, missing[0].tolist(), strict=True) if not gone] == [
        "user_id",
        "item_id",
        "tab",
    ]
    assert scored.isfinite().all()


def test_a_table_without_any_column_of_the_schema_is_scored(hand_ranker: FrozenRanker) -> None:
    found = table_scores(hand_ranker.score(pa.table({"note": ["a", "b"]})))
    assert np.isfinite(found).all()
    assert (found[0] == found[1]).all()


def test_a_table_longer_than_a_batch_scores_as_its_parts_do(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(SCORE_ROWS + 500, 3)
    whole = table_scores(hand_ranker.score(rows))
    cuts = [0, 700, SCORE_ROWS - 1, SCORE_ROWS + 3, len(rows)]
    parts = [hand_ranker.score(rows.slice(a, b - a)) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_allclose(whole, np.concatenate([table_scores(part) for part in parts]), rtol=0.0, atol=1e-6)


def test_a_row_scores_alike_in_any_company(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(40, 4)
    whole = table_scores(hand_ranker.score(rows))
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_allclose(table_scores(hand_ranker.score(rows.take(order))), whole[order], rtol=0.0, atol=1e-6)
    for row in range(0, 40, 7):
        alone = table_scores(hand_ranker.score(rows.slice(row, 1)))
        np.testing.assert_allclose(alone, whole[row : row + 1], rtol=0.0, atol=1e-6)


def test_chunks_extra_columns_and_column_order_do_not_matter(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(20, 6)
    expected = hand_ranker.score(rows)
    chunked = pa.concat_tables([rows.slice(0, 7), rows.slice(7, 0), rows.slice(7)])
    assert hand_ranker.score(chunked).equals(expected)
    assert hand_ranker.score(rows.select(rows.column_names[::-1])).equals(expected)
    assert hand_ranker.score(rows.append_column("note", pa.array(["x"] * 20))).equals(expected)


@pytest.mark.parametrize("bags", [[[], []], [["drama"], []], [[], ["drama", "news"]]])
def test_bags_may_be_empty(hand_ranker: FrozenRanker, make_model: MakeModel, bags: list[list[str]]) -> None:
    rows = hand_ranker.complete(
        pa.table({"genres": pa.array(bags, pa.list_(pa.string())), "words": [[], []], "liked": [[], []]})
    )
    found, _ = hand_ranker.score_completed(rows, hand_ranker.schema.tasks)
    dense = scores(make_model()(hand_ranker.encoder.encode(rows)), hand_ranker.schema.tasks)
    torch.testing.assert_close(found, dense, rtol=0.0, atol=1e-5)


def test_scoring_changes_nothing(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    before = {name: weight.clone() for name, weight in hand_ranker.graph.weights.items()}
    first = hand_ranker.score(draw_rows(30, 8))
    assert hand_ranker.score(draw_rows(30, 8)).equals(first)
    for name, weight in hand_ranker.graph.weights.items():
        assert torch.equal(weight, before[name]), name
