"""Training-only features from the log to the bundle, with negative sampling, masks and sample weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

import ranking
from pipelines.cli.main import main
from pipelines.config.config import Config
from pipelines.evaluation.evaluate import evaluate, evaluate_all
from pipelines.evaluation.sources import bundle_scorer, run_scorers
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.score import score_log
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.best_weights import TABLE_WEIGHT
from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch, read_split
from pipelines.training.model_factory import load_model
from pipelines.training.warm_start import WarmStart
from ranking.encoding.torch_batch import TorchBatch
from ranking.model.losses import task_losses
from ranking.schema import Schema
from ranking.schema.validation_errors import format_validation_error
from tests.support.one_model import weights_of

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

POSITION = {"name": "position", "kind": "categorical", "owner": "context", "dim": 2, "training_only": True}
TOWER = {"features": ["position", "tab"], "layers": [4]}


def with_position(shop: Shop, rows: int = 300) -> Shop:
    """Extend a log with the item's position, a mask of the click label, and a sample weight."""
    document = shop.schema.model_dump(exclude_none=True)
    document["features"] = [*document["features"], POSITION]
    document["columns"]["weight"] = "weight"
    click, watch = document["tasks"]
    document["tasks"] = [click | {"mask": "asked", "keep_negatives": 0.5}, watch]
    shop.schema = Schema.model_validate(document)
    table = shop.table(rows).append_column("position", pa.array(np.arange(rows) % 5))
    table = table.append_column("asked", pa.array(np.arange(rows) % 7 > 0))
    shop.write(table.append_column("weight", pa.array(1.0 + np.arange(rows) % 2)))
    return shop


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, RunFolder]:
    from tests.pipelines.conftest import Shop

    shop = with_position(Shop(tmp_path_factory.mktemp("with_position") / "shop"))
    config = shop.config(model={"side_tower": TOWER}, training={"loss_weighting": "uncertainty"})
    return shop, train(config, shop.folder / "run")


@pytest.fixture(scope="module")
def bundle(trained: tuple[Shop, RunFolder]) -> Path:
    shop, run = trained
    freeze_run(run.path, shop.folder / "bundle")  # fails if frozen and dense scores differ
    return shop.folder / "bundle"


# Configuration


@pytest.mark.parametrize(
    ("tower", "reason"),
    [
        (None, "feature 'position' is training_only: name it in model.side_tower.features"),
        ({"features": ["tab"]}, "feature 'position' is training_only: name it in model.side_tower.features"),
        (
            {"features": ["position", "pos"]},
            "model.side_tower.features names 'pos', which is not a feature; choose from user_id,",
        ),
        ({"features": ["position", "click"]}, "names 'click', which is a label, not a feature"),
        ({"features": ["position", "is_click"]}, "names 'is_click', which is a label, not a feature"),
        ({"features": ["position", "item_tab"]}, "names 'item_tab', a cross: name its parts"),
        ({"features": ["position", "position"]}, "model.side_tower.features names a feature twice"),
        ({"features": []}, "model.side_tower.features"),
        ({"features": ["position"], "layers": []}, "model.side_tower.layers"),
        ({"features": ["position"], "dropout": 1.0}, "model.side_tower.dropout"),
    ],
)
def test_config_with_inconsistent_training_only_features_is_rejected(shop: Shop, tower: Any, reason: str) -> None:
    with_position(shop)
    cross = {"name": "item_tab", "kind": "cross", "of": ["item_id", "tab"], "hash_buckets": 10}
    document = shop.schema.model_dump(exclude_none=True)
    document["features"] = [*document["features"], cross]
    document |= {"logs": shop.logs().model_dump(exclude_none=True)}
    document |= {"model": {} if tower is None else {"side_tower": tower}}
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(document)
    assert reason in format_validation_error(caught.value, document)


def test_config_with_only_training_only_features_is_rejected(shop: Shop) -> None:
    shop.schema = shop.schema.model_copy(
        update={
            "features": (
                Schema.model_validate(
                    {"name": "s", "features": [POSITION], "tasks": [{"name": "click", "kind": "binary"}]}
                ).features[0],
            )
        }
    )
    with pytest.raises(ValidationError, match="every feature is training_only"):
        shop.config(model={"side_tower": {"features": ["position"]}})


# From the log to the bundle


def test_bundle_contains_no_training_only_features(trained: tuple[Shop, RunFolder], bundle: Path) -> None:
    _, run = trained
    ranker = ranking.load(bundle)
    assert "position" not in [feature.name for feature in ranker.schema.features]
    assert not [name for name in weights_of(ranker) if "side" in name or "position" in name]
    assert not (bundle / "encoder" / "vocabularies" / "position.parquet").exists()
    assert (run.position_encoder / "vocabularies" / "position.parquet").exists()


def test_bundle_scores_and_evaluates_a_log_without_training_only_features(
    trained: tuple[Shop, RunFolder], bundle: Path, tmp_path: Path
) -> None:
    shop, _ = trained
    table = pq.read_table(shop.log / "part-0.parquet").drop_columns(["position"])
    pq.write_table(table, tmp_path / "log.parquet")
    ranker = ranking.load(bundle)
    assert score_log(ranker, tmp_path / "log.parquet", tmp_path / "scores.parquet")["scored"] == 300
    evaluation = evaluate(bundle_scorer(ranker, "bundle"), tmp_path / "log.parquet")
    assert evaluation["tasks"]["click"]["rows"] == sum(np.arange(300) % 7 > 0)


def test_dense_model_is_evaluated_without_training_only_features(trained: tuple[Shop, RunFolder]) -> None:
    _, run = trained
    assert run.load_evaluation()["tasks"]["click"]["rows"] > 0


def test_train_without_a_training_only_column_raises_a_log_error(shop: Shop) -> None:
    with_position(shop)
    shop.write(pq.read_table(shop.log / "part-0.parquet").drop_columns(["position"]))
    with pytest.raises(ranking.LogError, match=r"column 'position' \(feature 'position'\) is missing"):
        train(shop.config(model={"side_tower": TOWER}), shop.folder / "run")


def test_check_command_reports_training_only_features(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    with_position(shop)
    config = shop.config(model={"side_tower": TOWER})
    config.write(shop.folder / "ranker.toml")
    assert main(["check", str(shop.folder / "ranker.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["null_rate"]["position"] == 0.0


def test_train_with_position_tower_and_the_same_seed_gives_identical_weights(trained: tuple[Shop, RunFolder]) -> None:
    shop, run = trained
    again = train(run.load_config(), shop.folder / "again")
    assert again.best.read_bytes() == run.best.read_bytes()


def test_resume_with_position_tower_gives_identical_weights(trained: tuple[Shop, RunFolder], tmp_path: Path) -> None:
    _, run = trained
    checks = iter(range(5))

    def stop(_: dict[str, Any]) -> None:
        if next(checks) == 2:
            raise ranking.RankerError("enough")

    with pytest.raises(ranking.RankerError, match="enough"):
        train(run.load_config(), tmp_path / "run", on_check=stop)
    again = train(run.load_config(), tmp_path / "run", resume=True)
    assert again.best.read_bytes() == run.best.read_bytes()


def test_warm_start_continues_the_position_tower(trained: tuple[Shop, RunFolder], tmp_path: Path) -> None:
    shop, run = trained
    table = pq.read_table(shop.log / "part-0.parquet")
    position = pa.array(np.arange(300) % 7)  # the earlier run has not seen two of these
    (tmp_path / "log").mkdir()
    new = table.set_column(table.column_names.index("position"), "position", position)
    pq.write_table(new, tmp_path / "log" / "part-0.parquet")
    config = run.load_config()
    config = config.model_copy(update={"logs": config.logs.model_copy(update={"path": tmp_path / "log"})})
    warm = train(config, tmp_path / "run", warm_start=WarmStart(run, reopen=False))
    before, after = load_file(run.best), load_file(warm.best)
    side = "side." + TABLE_WEIGHT.format("position")
    assert len(after[side]) == len(before[side]) + 2
    assert not torch.equal(after["side.mean"], before["side.mean"])


def test_metrics_with_uncertainty_weighting_report_unweighted_losses(trained: tuple[Shop, RunFolder]) -> None:
    _, run = trained
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for line in lines:
        assert line["validation_total"] == pytest.approx(sum(line["validation"].values()), rel=1e-5)
        assert all(loss > 0 for loss in line["train"].values())


def test_validation_losses_are_weighted_means_without_the_position_tower(trained: tuple[Shop, RunFolder]) -> None:
    shop, run = trained
    config = run.load_config()
    model, encoder = load_model(run, config)
    whole = LabeledBatch.concat(list(read_split(shop.reader(), shop.logs(), encoder, "validation")))
    assert np.unique(whole.weights).tolist() == [1.0, 2.0]
    batch = DeviceBatch.from_labeled(whole)
    losses = task_losses(model(batch.inputs), batch.labels, config.tasks, batch.weights)
    best = [json.loads(line) for line in run.metrics.read_text().splitlines() if '"best": true' in line][-1]
    assert list(best["validation"].values()) == pytest.approx(losses.tolist(), rel=1e-4)


# Predictions of the trained model


def write_clicks_by_price(shop: Shop, rows: int, rate: float) -> None:
    """Write a log with an average click rate of ``rate``, higher for more expensive items."""
    random = np.random.default_rng(0)
    table = shop.table(rows)
    price = table["price"].to_numpy()
    logit = np.log(rate / (1 - rate)) + 0.8 * (np.log1p(price) - 2)
    clicked = pa.array((random.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int8))
    shop.write(table.set_column(table.column_names.index("is_click"), "is_click", clicked))


@pytest.mark.parametrize("keep", [pytest.param(1.0, marks=pytest.mark.nightly), 0.1])
def test_predictions_are_calibrated_for_any_fraction_of_kept_negatives(shop: Shop, keep: float) -> None:
    write_clicks_by_price(shop, 24_000, 0.05)
    click, _ = shop.schema.tasks
    shop.schema = shop.schema.model_copy(update={"tasks": (click.model_copy(update={"keep_negatives": keep}),)})
    training = {"batch_size": 128, "checks_per_epoch": 1, "learning_rate": {"trunk": 0.01}}
    run = train(shop.config(model={"gate": {"kind": "shared_bottom"}}, training=training), shop.folder / "run")
    evaluation = evaluate_all(run_scorers(run), shop.log)["tasks"]["click"]
    assert evaluation["calibration"] == pytest.approx(1.0, abs=0.15)  # without the correction it is about 6
    assert evaluation["auc"] > 0.55


def test_rows_with_zero_weight_do_not_affect_the_learned_base_rate(shop: Shop) -> None:
    """The learned base rate is that of the rows with a positive weight."""
    table = shop.table(4000)
    clicked = table["is_click"].to_numpy()
    random = np.random.default_rng(1)
    kept = (clicked == 1) | (random.random(4000) < 0.25)
    shop.schema = shop.schema.model_copy(
        update={"columns": shop.schema.columns.model_copy(update={"weight": "weight"})}
    )
    shop.write(table.append_column("weight", pa.array(kept.astype(float))))
    training = {"epochs": 3, "checks_per_epoch": 1, "learning_rate": {"trunk": 0.01}}
    run = train(shop.config(model={"gate": {"kind": "shared_bottom"}}, training=training), shop.folder / "run")
    model, encoder = load_model(run, run.load_config())
    (cleaned,) = shop.reader().scan()
    inputs = TorchBatch.from_numpy(encoder.encode(cleaned.rows))
    predicted = torch.sigmoid(model(inputs)[:, 0]).mean().item()
    assert predicted == pytest.approx(clicked[kept].mean(), abs=0.06)
    assert abs(predicted - clicked.mean()) > 0.15
