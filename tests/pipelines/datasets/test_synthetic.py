from __future__ import annotations

from datetime import date, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pipelines.config.config import load_config
from pipelines.data.reader import LogReader, load_tables
from pipelines.datasets import synthetic
from pipelines.datasets.synthetic import generate
from pipelines.inspection.profile import profile_log
from pipelines.inspection.quality import require_learnable
from ranking.errors import OutputError
from ranking.metrics import Array, auc

ROWS = 50_000
BASE_RATES = {"click": 0.40, "long_view": 0.20, "share": 0.02, "like": 0.05, "follow": 0.01, "dislike": 0.005}
REGRESSIONS = ["watch_time", "rating"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synthetic") / "large"
    generate(folder, ROWS, seed=0)
    return folder


@pytest.fixture(scope="module")
def log(large: Path) -> pa.Table:
    return pq.read_table(large / "log")


@pytest.fixture(scope="module")
def features(large: Path, log: pa.Table) -> dict[str, Array]:
    """Features of each row as numbers; groups such as C0 … C11 have an order, and it is kept."""
    columns = {"hour": log["hour"].to_numpy().astype(float)}
    for key in ("user_id", "item_id"):
        side = pq.read_table(large / f"{key.removesuffix('_id')}s.parquet")
        row = pc.index_in(log[key], side[key])
        for name in side.column_names:
            values = side[name]
            if pa.types.is_list(values.type):
                continue
            if pa.types.is_string(values.type):
                values = pc.replace_substring_regex(values, "[^0-9]", "").cast(pa.int64())
            columns[name] = values.take(row).cast(pa.float64()).fill_null(0.0).to_numpy()
    return columns


def contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


# Seed.


def test_generate_with_the_same_seed_gives_identical_files(tmp_path: Path) -> None:
    for name in ("first", "second"):
        generate(tmp_path / name, 2000, seed=5)
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_generate_with_another_seed_gives_another_log(tmp_path: Path) -> None:
    for seed in (5, 6):
        generate(tmp_path / str(seed), 2000, seed=seed)
    first, second = contents(tmp_path / "5"), contents(tmp_path / "6")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] == second[name]] == ["ranker.toml"]


# Files.


def test_first_day_moves_times_and_splits_only(tmp_path: Path) -> None:
    generate(tmp_path / "usual", 2000)
    generate(tmp_path / "other", 2000, first_day=date(2027, 12, 27))
    usual, other = (pq.read_table(tmp_path / name / "log", partitioning=None) for name in ("usual", "other"))
    moved = pc.subtract(other["time"], usual["time"]).unique().to_pylist()
    assert moved == [date(2027, 12, 27) - date(2026, 1, 1)]
    assert other.drop(["time"]) == usual.drop(["time"])
    logs = load_config(tmp_path / "other" / "ranker.toml").logs
    assert (logs.validation_from, logs.test_from) == (datetime(2028, 1, 4), datetime(2028, 1, 5))


def test_generate_writes_daily_partitions_side_tables_and_config(logs: Path) -> None:
    assert {f.name for f in logs.iterdir()} == {"ranker.toml", "log", "users.parquet", "items.parquet"}
    assert sorted(f.name for f in (logs / "log").iterdir()) == [f"date=2026-01-{day:02d}" for day in range(1, 11)]
    for fragment in ds.dataset(logs / "log", format="parquet", partitioning="hive").get_fragments():
        (key,) = ds.get_partition_keys(fragment.partition_expression).values()
        days = pc.unique(pc.strftime(fragment.to_table()["time"], "%Y-%m-%d")).to_pylist()
        assert days == [str(key)]


def test_generated_log_has_the_requested_number_of_rows(log: pa.Table) -> None:
    assert log.num_rows == ROWS


@pytest.mark.parametrize("rows", [1, 2, 50, 777])
def test_generated_small_log_has_the_requested_number_of_rows(tmp_path: Path, rows: int) -> None:
    generate(tmp_path / "logs", rows)
    log = pq.read_table(tmp_path / "logs" / "log")
    assert log.num_rows == rows
    assert all(np.isfinite(log[f"true_{task}"].to_numpy()).all() for task in [*BASE_RATES, *REGRESSIONS])


def test_side_tables_have_every_user_and_item_of_the_log_once(large: Path, log: pa.Table) -> None:
    for side, key in (("users", "user_id"), ("items", "item_id")):
        ids = pq.read_table(large / f"{side}.parquet")[key].to_pylist()
        assert len(ids) == len(set(ids))
        assert set(log[key].to_pylist()) <= set(ids)


def test_generate_into_nonempty_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(OutputError, match="exists and is never overwritten: name another folder") as caught:
        generate(tmp_path, 100)
    assert str(caught.value).startswith(f"{tmp_path} ")
    assert [f.name for f in tmp_path.iterdir()] == ["mine.txt"]


def test_generate_into_empty_folder_is_accepted(tmp_path: Path) -> None:
    generate(tmp_path, 100)
    assert (tmp_path / "ranker.toml").is_file()


# Configuration.


def test_generated_config_has_eight_tasks(large: Path) -> None:
    config = load_config(large / "ranker.toml")
    kinds = {task.name: task.kind for task in config.tasks}
    assert kinds == {**dict.fromkeys(BASE_RATES, "binary"), **dict.fromkeys(REGRESSIONS, "regression")}
    assert {task.group for task in config.tasks} == {"engagement", "satisfaction"}


def test_generated_config_has_every_feature_kind_and_owner_and_no_label_as_feature(large: Path) -> None:
    config = load_config(large / "ranker.toml")
    assert {feature.kind for feature in config.features} == {"categorical", "bag", "numeric"}
    assert {feature.owner for feature in config.features} == {"user", "item", "context"}
    labels = {task.label for task in config.tasks}
    columns = {feature.column for feature in config.features}
    assert not columns & labels
    assert not [column for column in columns if column.startswith("true_")]


@pytest.mark.parametrize(("rows", "size"), [(2_000, 32), (20_000, 64), (100_000, 512), (1_000_000, 512)])
def test_generated_batch_size_grows_with_the_log(rows: int, size: int) -> None:
    assert synthetic._config(rows, synthetic.FIRST_DAY)["training"] == {"batch_size": size}


def test_profile_of_generated_log_has_no_bad_rows(large: Path) -> None:
    config = load_config(large / "ranker.toml")
    schema = config.serving_schema.logged
    found = profile_log(LogReader(config.logs.path, schema, load_tables(config.logs, schema)), config.logs, schema)
    require_learnable(found, config)
    assert not found.bad
    assert found.duplicates == 0
    assert sum(found.rows.values()) == ROWS
    assert found.rows["train"] / ROWS == pytest.approx(0.8, abs=0.01)
    assert found.rows["validation"] / ROWS == pytest.approx(0.1, abs=0.01)
    assert 0 < found.nulls["age"] < 0.2 * ROWS


# Labels.


@pytest.mark.parametrize(("task", "rate"), BASE_RATES.items())
def test_binary_labels_have_their_base_rate(log: pa.Table, task: str, rate: float) -> None:
    assert set(pc.unique(log[task]).to_pylist()) == {0, 1}
    assert pc.mean(log[task]).as_py() == pytest.approx(rate, rel=0.15)


def test_ratings_exist_for_30_percent_of_the_rows(log: pa.Table) -> None:
    known = 1 - log["rating"].null_count / ROWS
    assert known == pytest.approx(0.3, abs=0.01)
    assert all(log[task].null_count == 0 for task in [*BASE_RATES, "watch_time"])


def test_watch_times_are_not_negative(log: pa.Table) -> None:
    assert pc.min(log["watch_time"]).as_py() >= 0


# Truth.


@pytest.mark.parametrize("task", BASE_RATES)
def test_true_probability_is_calibrated_in_every_quintile(log: pa.Table, task: str) -> None:
    truth, label = log[f"true_{task}"].to_numpy(), log[task].to_numpy()
    assert truth.min() > 0
    assert truth.max() < 1
    for fifth in np.array_split(np.argsort(truth), 5):
        deviation = np.sqrt((truth[fifth] * (1 - truth[fifth])).sum())
        assert abs(label[fifth].sum() - truth[fifth].sum()) < 4 * deviation + 1


def test_true_rating_is_the_mean_in_every_quintile(log: pa.Table) -> None:
    known = log.filter(log["rating"].is_valid())
    truth, label = known["true_rating"].to_numpy(), known["rating"].to_numpy()
    for fifth in np.array_split(np.argsort(truth), 5):
        assert label[fifth].mean() == pytest.approx(truth[fifth].mean(), abs=4 * 0.7 / np.sqrt(len(fifth)))


def test_true_watch_time_is_the_mean_of_the_logarithm(log: pa.Table) -> None:
    truth, label = log["true_watch_time"].to_numpy(), np.log1p(log["watch_time"].to_numpy())
    typical = np.abs(truth - 2.0) < 0.6  # far from 0, where times are cut off
    assert label[typical].mean() == pytest.approx(truth[typical].mean(), abs=0.03)


@pytest.mark.parametrize("task", BASE_RATES)
def test_true_probability_ranks_better_than_every_feature(features: dict[str, Array], log: pa.Table, task: str) -> None:
    label = log[task].to_numpy().astype(float)
    best = auc(label, log[f"true_{task}"].to_numpy())
    assert best is not None
    assert best > 0.75
    for name, values in features.items():
        one = auc(label, values)
        assert one is not None
        assert max(one, 1 - one) < best - 0.02, name


# Popularity.


@pytest.mark.parametrize(("key", "exponent"), [("user_id", 0.6), ("item_id", 0.8)])
def test_popularity_follows_a_power_law(log: pa.Table, key: str, exponent: float) -> None:
    counts = np.sort(pc.value_counts(log[key]).field("counts").to_numpy())[::-1][:100]
    slope, _ = np.polyfit(np.log(np.arange(1, 101)), np.log(counts), 1)
    assert -slope == pytest.approx(exponent, abs=0.1)
