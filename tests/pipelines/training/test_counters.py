"""Training with counters and histories."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.counters.columns import joined_columns
from pipelines.data.reader import LogReader
from pipelines.evaluation.compare import compare
from pipelines.evaluation.evaluate import evaluate_all
from pipelines.evaluation.sources import resolve_scorers
from pipelines.jobs.check import check
from pipelines.jobs.daily import daily
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.warm_start import WarmStart
from ranking.artifacts.bundle import load
from ranking.artifacts.repository import bundle_folder
from ranking.counters.features import CounterFeatures
from ranking.errors import ConfigError, LogError
from tests.pipelines.conftest import Shop

COUNTERS = [
    {"of": ["user_id"], "labels": ["click"], "delay": "1h"},
    {"of": ["item_id"], "labels": ["click", "watch"]},
    {"of": ["user_id", "tags"], "labels": ["click"], "window": "3d"},
]
FEW_STEPS = {"batch_size": 200, "checks_per_epoch": 1}
HISTORIES = [{"of": "item_id", "label": "click", "max_length": 5, "name": "clicked"}]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(tmp_path_factory.mktemp("counters") / "shop")
    table = shop.table(2_000)
    shop.write(table.slice(0, 1_200), "a/part-0.parquet", row_group_size=500)
    shop.write(table.slice(1_200), "b/part-0.parquet")
    return shop


@pytest.fixture(scope="module")
def run(shop: Shop) -> RunFolder:
    return train(shop.config(counters=COUNTERS, histories=HISTORIES, training=FEW_STEPS), shop.folder / "run")


def test_run_holds_the_columns_and_the_state(run: RunFolder) -> None:
    config = run.load_config()
    table = pq.read_table(run.features / "files" / "a" / "part-0.parquet")
    assert set(table.column_names) == {feature.name for feature in config.training_schema.counter_features}
    assert pq.read_metadata(run.features / "files" / "a" / "part-0.parquet").num_row_groups == 3
    counter_features = CounterFeatures.open(run.counters, config.training_schema)
    assert counter_features.clock is not None
    assert len(counter_features.counters["item_id"].rows) == 30


def test_evaluation_of_the_run_equals_that_of_its_training(run: RunFolder) -> None:
    evaluation = evaluate_all(resolve_scorers(run.path))
    assert json.loads(json.dumps(evaluation)) == run.load_evaluation()


def test_bundle_evaluates_like_its_run(run: RunFolder, shop: Shop) -> None:
    freeze_run(run.path, shop.folder / "bundle")
    comparison = compare(resolve_scorers(run.path), resolve_scorers(shop.folder / "bundle"))
    assert comparison["rows"] == 200
    measures = [measure for task in comparison["tasks"].values() for measure in task["measures"].values()]
    assert max(abs(measure["difference"]) for measure in measures if measure["difference"] is not None) < 1e-5
    counter_features = load(shop.folder / "bundle").counter_features
    assert counter_features is not None
    assert set(counter_features.counters) == {"user_id", "item_id", "user_id_tags"}


def test_later_log_continues_from_the_state(run: RunFolder, shop: Shop, tmp_path: Path) -> None:
    config = run.load_config()
    schema = config.training_schema
    table = shop.table(100, seed=3)
    late = pa.array([value + timedelta(days=30) for value in table["time"].to_pylist()], pa.timestamp("us"))
    pq.write_table(table.set_column(table.column_names.index("time"), "time", late), tmp_path / "late.parquet")
    reader = LogReader(tmp_path / "late.parquet", schema, {})
    counter_features = CounterFeatures.open(run.counters, schema)
    with joined_columns(reader, schema, earlier=counter_features) as joined:
        (chunk,) = reader.with_joined(joined).scan()
    first = chunk.rows.slice(0, 1)
    user, item, clicked = (first[name].to_pylist()[0] for name in ("user_id_count", "item_id_count", "clicked"))
    assert user > 50
    assert item > 30
    assert len(clicked) == 5
    last = chunk.rows.slice(99)
    assert last["user_id_tags_count"].to_pylist()[0] < 30, "the window excludes the earlier log"


def test_resumed_training_keeps_the_columns(shop: Shop) -> None:
    class StoppedError(Exception):
        pass

    def interrupt(line: dict[str, Any]) -> None:
        raise StoppedError

    config, folder = shop.config(counters=COUNTERS, training={"batch_size": 200}), shop.folder / "resumed"
    with pytest.raises(StoppedError):
        train(config, folder, on_check=interrupt)
    before = (folder / "features" / "meta.json").stat().st_mtime_ns
    assert train(config, folder, resume=True).finished
    assert (folder / "features" / "meta.json").stat().st_mtime_ns == before


def test_single_task_models_use_counters_of_their_own_label(shop: Shop) -> None:
    gate = {"gate": {"kind": "single_task"}}
    config = shop.config(counters=COUNTERS, histories=HISTORIES, model=gate, training=FEW_STEPS)
    run = train(config, shop.folder / "single")
    assert set(run.load_evaluation()["tasks"]) == {"click", "watch"}
    counter_features = RunFolder.open(run.task_folder("watch")).load_config().counter_columns
    assert counter_features == {"item_id_watch_rate", "item_id_count", "item_id_age"}


def test_check_profiles_computed_columns(shop: Shop) -> None:
    result = check(shop.config(counters=COUNTERS))
    assert 0 < result.profile.nulls["user_id_age"] < 200


def test_check_suggests_a_delay_for_a_history_that_most_rows_do_not_have(tmp_path: Path) -> None:
    """As in a log of users who all come on one day only."""
    shop = Shop(tmp_path / "shop")
    table = shop.table(300)
    users = pa.array([f"u{row // 10}" for row in range(300)])
    shop.write(table.set_column(table.column_names.index("user_id"), "user_id", users))
    history = {"of": "item_id", "label": "click", "name": "clicked"}
    (hint,) = [text for text in check(shop.config(histories=[history])).warnings if "history" in text]
    assert hint.startswith("history 'clicked' is null in ")
    assert "such as delay = '1h'" in hint
    delayed = check(shop.config(histories=[history | {"delay": "1h"}])).warnings
    assert [text for text in delayed if "history" in text] == []


def test_column_of_the_log_with_the_name_of_a_computed_one_must_hold_its_type(shop: Shop, tmp_path: Path) -> None:
    table = shop.table(300).append_column("user_id_count", pa.array(["text"] * 300))
    pq.write_table(table, tmp_path / "log.parquet")
    config = shop.config(counters=COUNTERS[:1], logs={"path": tmp_path / "log.parquet"})
    reader = LogReader(config.logs.path, config.training_schema, {})
    message = "column 'user_id_count': holds string, but 'user_id_count' is numeric: write numbers"
    with pytest.raises(LogError, match=message), joined_columns(reader, config.training_schema):
        pass


def test_changed_log_is_rejected_by_its_reader(shop: Shop, tmp_path: Path) -> None:
    config = shop.config(counters=COUNTERS, logs={"path": tmp_path / "log.parquet"})
    pq.write_table(shop.table(300), tmp_path / "log.parquet")
    reader = LogReader(config.logs.path, config.training_schema, {})
    with joined_columns(reader, config.training_schema) as joined:
        pq.write_table(shop.table(200), tmp_path / "log.parquet")
        with pytest.raises(LogError, match="changed after counters and histories were computed"):
            list(reader.with_joined(joined).scan())


def test_half_life_that_is_too_short_for_the_log_is_rejected(shop: Shop) -> None:
    counters = [{"of": ["item_id"], "labels": ["click"], "half_life": "1m"}]
    with pytest.raises(ConfigError, match=r"counter 'item_id': half_life = '1m' is too short for a log of 10 days"):
        check(shop.config(counters=counters))


def test_daily_counts_the_rows_of_earlier_days(shop: Shop, tmp_path: Path) -> None:
    config = shop.config(counters=COUNTERS, histories=HISTORIES, training=FEW_STEPS)
    runs, repository = tmp_path / "runs", tmp_path / "repository"
    for day in (9, 10):
        record = daily(config, runs, repository, date(2026, 1, day), margin=10.0)
    assert record["from"] == "2026-01-09"
    assert record["version"] == 2
    served = load(bundle_folder(repository, "shop", 2))
    assert served.counter_features is not None
    assert served.counter_features.counters["user_id"].rows["count"].sum() == 2_000


def test_warm_start_rejects_other_counters(run: RunFolder, shop: Shop) -> None:
    changed = [{**COUNTERS[0], "delay": "2h"}, *COUNTERS[1:]]
    with pytest.raises(ConfigError, match=r"\[counters\] differs from that of"):
        WarmStart(run, reopen=False).adapted(shop.config(counters=changed, histories=HISTORIES))


def test_warm_start_keeps_the_pooling_of_histories(run: RunFolder, shop: Shop) -> None:
    config = shop.config(counters=COUNTERS, histories=HISTORIES)
    text = run.config.read_text()
    assert text.count('pooling = "shrunk"') == len(HISTORIES)
    run.config.write_text(text.replace('pooling = "shrunk"', 'pooling = "mean"'))  # The default of version 0.1.0.
    try:
        adapted = WarmStart(run, reopen=False).adapted(config)
    finally:
        run.config.write_text(text)
    names = {history.name for history in config.histories}
    assert {bag.pooling for bag in adapted.bags if bag.name in names} == {"mean"}
    assert WarmStart(run, reopen=False).adapted(config) == config
    declared = [bag.model_copy(update={"pooling": "sum"}) if bag.name in names else bag for bag in config.features]
    with pytest.raises(ConfigError, match=r"pooling is 'sum', there 'shrunk'"):
        WarmStart(run, reopen=False).adapted(config.model_copy(update={"features": tuple(declared)}))


def test_run_reuses_the_columns_of_another_run_of_the_same_log(run: RunFolder, shop: Shop) -> None:
    config = shop.config(counters=COUNTERS, histories=HISTORIES, training={**FEW_STEPS, "seed": 1})
    again = train(config, shop.folder / "again", prepared=run)
    name = Path("files", "a", "part-0.parquet")
    assert (again.features / name).samefile(run.features / name)
    other = train(shop.config(counters=COUNTERS[:1], training=FEW_STEPS), shop.folder / "other", prepared=run)
    assert not (other.features / name).samefile(run.features / name)
