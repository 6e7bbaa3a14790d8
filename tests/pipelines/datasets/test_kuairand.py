from __future__ import annotations

from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pipelines.config.config import Config, load_config
from pipelines.data.reader import LogReader, load_tables
from pipelines.datasets.kuairand import UNKNOWN, convert
from pipelines.inspection.profile import LogProfile, profile_log
from ranking.errors import LogError, OutputError

IMPRESSIONS, DISTINCT = 171_671, 167_281
TASKS = {"click", "long_view", "like", "profile_enter", "comment", "follow", "forward", "hate", "watch_time"}
AFTER_THE_IMPRESSION = {"play_time_ms", "profile_stay_time", "comment_stay_time", "long_view", "watch_time"}


@pytest.fixture(scope="module")
def converted(kuairand_raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kuairand") / "logs"
    convert(kuairand_raw, folder)
    return folder


@pytest.fixture(scope="module")
def config(converted: Path) -> Config:
    return load_config(converted / "ranker.toml")


@pytest.fixture(scope="module")
def raw(kuairand_raw: Path) -> pa.Table:
    return ds.dataset(kuairand_raw / "log", format="parquet", partitioning="hive").to_table()


@pytest.fixture(scope="module")
def log(converted: Path) -> pa.Table:
    return pq.read_table(converted / "log")


@pytest.fixture(scope="module")
def profile(config: Config) -> LogProfile:
    schema = config.serving_schema.logged
    reader = LogReader(config.logs.path, schema, load_tables(config.logs, schema))
    return profile_log(reader, config.logs, schema)


# Converted log.


def test_convert_keeps_every_impression(log: pa.Table) -> None:
    assert log.num_rows == IMPRESSIONS


def test_convert_keeps_every_original_column_and_value(log: pa.Table, raw: pa.Table) -> None:
    columns = [c for c in raw.column_names if c != "date"]
    keys = [(c, "ascending") for c in columns]
    assert log.select(columns).sort_by(keys).equals(raw.select(columns).sort_by(keys))


def test_profile_of_converted_log_has_known_duplicates_and_no_bad_rows(profile: LogProfile) -> None:
    assert sum(profile.rows.values()) == DISTINCT
    assert profile.duplicates == IMPRESSIONS - DISTINCT
    assert not profile.bad


def test_converted_times_are_local(log: pa.Table) -> None:
    utc = log["time_ms"].cast(pa.timestamp("ms"))
    hours = pc.divide(pc.subtract(log["time"].cast(pa.int64()), utc.cast(pa.int64())), 3_600_000)
    assert pc.unique(hours).to_pylist() == [8]
    assert log["time"].type.tz is None


def test_converted_times_match_the_day_and_hour_columns_of_the_data_set(log: pa.Table, raw: pa.Table) -> None:
    local = pc.add(raw["time_ms"], 8 * 3_600_000).cast(pa.timestamp("ms"))
    same_day = pc.equal(pc.strftime(local, "%Y%m%d").cast(pa.int32()), raw["date"])
    assert pc.mean(same_day.cast(pa.int8())).as_py() > 0.98
    noted = log["hourmin"].to_numpy() // 100
    assert np.median(log["hour"].to_numpy() - noted) == 0


def test_converted_hour_and_weekday_are_local(log: pa.Table) -> None:
    for row in log.slice(0, IMPRESSIONS).take(list(range(0, IMPRESSIONS, 5000))).to_pylist():
        assert row["hour"] == row["time"].hour
        assert row["weekday"] == row["time"].weekday()


def test_converted_watch_time_is_in_seconds(log: pa.Table) -> None:
    assert np.allclose(log["watch_time"].to_numpy() * 1000, log["play_time_ms"].to_numpy())


def test_converted_upload_age_is_in_days(log: pa.Table, kuairand_raw: Path) -> None:
    videos = pq.read_table(kuairand_raw / "video_features_basic_pure.parquet")
    uploaded = dict(zip(videos["video_id"].to_pylist(), videos["upload_dt"].to_pylist(), strict=True))
    for row in log.take(list(range(0, IMPRESSIONS, 5000))).to_pylist():
        age = row["time"] - datetime.fromisoformat(uploaded[row["video_id"]])
        assert row["upload_age"] == pytest.approx(age.total_seconds() / 86_400)


# Configuration.


def test_config_has_the_eight_signals_and_watch_time(config: Config) -> None:
    assert set(config.task_names) == TASKS
    kinds = {task.name: task.kind for task in config.tasks}
    assert kinds == {**dict.fromkeys(TASKS, "binary"), "watch_time": "regression"}


def test_config_has_no_feature_from_after_the_impression(config: Config, raw: pa.Table) -> None:
    signals = {c for c in raw.column_names if c.startswith("is_")}
    columns = {feature.column for feature in config.features}
    assert signals
    assert not columns & (AFTER_THE_IMPRESSION | signals)
    assert not columns & {task.label for task in config.tasks}


def test_config_has_tab_as_context_feature(config: Config) -> None:
    (tab,) = [feature for feature in config.features if feature.name == "tab"]
    assert tab.owner == "context"


def test_config_validates_on_3_may_and_tests_on_4_may(profile: LogProfile, log: pa.Table) -> None:
    days = pc.strftime(log["time"], "%Y-%m-%d").to_pylist()
    assert min(days) == "2022-04-24"  # local time, a few minutes before the first partition's day
    assert max(days) == "2022-05-04"
    distinct = log.drop_columns(["date"]).group_by([c for c in log.column_names if c != "date"]).aggregate([])
    day = np.array(pc.strftime(distinct["time"], "%Y-%m-%d").to_pylist())
    assert profile.rows == {
        "train": int((day <= "2022-05-02").sum()),
        "validation": int((day == "2022-05-03").sum()),
        "test": int((day == "2022-05-04").sum()),
    }


def test_objective_has_positive_like_and_negative_hate(config: Config) -> None:
    assert config.objective["like"] > 0
    assert config.objective["hate"] < 0


# Side tables.


@pytest.mark.parametrize("side", ["users", "items"])
def test_side_tables_contain_no_sentinel(converted: Path, side: str) -> None:
    table = pq.read_table(converted / f"{side}.parquet")
    for name in table.column_names:
        if pa.types.is_integer(table[name].type) or pa.types.is_floating(table[name].type):
            assert not pc.any(pc.equal(table[name], UNKNOWN)).as_py(), name


def test_users_have_null_for_every_sentinel(converted: Path, kuairand_raw: Path) -> None:
    users = pq.read_table(converted / "users.parquet")
    original = pq.read_table(kuairand_raw / "user_features_pure.parquet").select(users.column_names)
    sentinels = 0
    for name in users.column_names:
        before = original[name].to_pylist()
        assert users[name].to_pylist() == [None if value == UNKNOWN else value for value in before]
        sentinels += before.count(UNKNOWN)
    assert sentinels > 0


def test_items_have_tags_as_lists(converted: Path, kuairand_raw: Path) -> None:
    videos = pq.read_table(kuairand_raw / "video_features_basic_pure.parquet")
    tags = [None if tag is None else tag.split(",") for tag in videos["tag"].to_pylist()]
    assert pq.read_table(converted / "items.parquet")["tag"].to_pylist() == tags
    assert any(len(tag) > 1 for tag in tags if tag)


def test_items_have_upload_age_at_the_end_of_the_log(converted: Path, log: pa.Table) -> None:
    items = pq.read_table(converted / "items.parquet")
    at_end = dict(zip(items["video_id"].to_pylist(), items["upload_age"].to_pylist(), strict=True))
    row = log.sort_by([("time", "descending")]).slice(0, 1).to_pylist()[0]
    assert at_end[row["video_id"]] == pytest.approx(row["upload_age"])


# The data set exists as CSV and as Parquet; both give the same rows.


LOGS = ("log_standard_4_08_to_4_21_pure", "log_standard_4_22_to_5_08_pure")


@pytest.fixture
def sample(raw: pa.Table, kuairand_raw: Path) -> dict[str, pa.Table]:
    """A few rows of each original table."""
    log = raw.take(list(range(0, IMPRESSIONS, 3000)))
    users = pq.read_table(kuairand_raw / "user_features_pure.parquet")
    videos = pq.read_table(kuairand_raw / "video_features_basic_pure.parquet")
    known = pc.is_in(users["user_id"], log["user_id"].combine_chunks())
    shown = pc.is_in(videos["video_id"], log["video_id"].combine_chunks())
    return {
        LOGS[0]: log.slice(0, 20),
        LOGS[1]: log.slice(20),
        "user_features_pure": users.filter(known),
        "video_features_basic_pure": videos.filter(shown),
    }


def read_rows(folder: Path) -> pa.Table:
    """Return the log as training reads it, completed with users and items, sorted by time."""
    config = load_config(folder / "ranker.toml")
    schema = config.serving_schema.logged
    chunks = LogReader(config.logs.path, schema, load_tables(config.logs, schema)).scan()
    columns = [feature.column for feature in schema.features] + [task.label for task in schema.tasks]
    table = pa.concat_tables([chunk.rows.select(["time", *columns]) for chunk in chunks], promote_options="default")
    return table.sort_by([("time", "ascending"), ("user_id", "ascending"), ("video_id", "ascending")])


@pytest.fixture
def expected(sample: dict[str, pa.Table], tmp_path: Path) -> pa.Table:
    """Rows that the Parquet layout gives."""
    original = tmp_path / "parquet"
    for i, name in enumerate(LOGS):
        (original / "log" / f"date=2022042{i}").mkdir(parents=True)
        log = sample[name].drop_columns(["date"])
        pq.write_table(log, original / "log" / f"date=2022042{i}" / "part-0.parquet")
    for name in ("user_features_pure", "video_features_basic_pure"):
        pq.write_table(sample[name], original / f"{name}.parquet")
    convert(original, tmp_path / "from_parquet")
    return read_rows(tmp_path / "from_parquet")


@pytest.mark.parametrize("sub_folder", [".", "data"])
def test_csv_layout_gives_the_same_rows_as_parquet(
    sample: dict[str, pa.Table], expected: pa.Table, tmp_path: Path, sub_folder: str
) -> None:
    original = tmp_path / "csv" / sub_folder
    original.mkdir(parents=True)
    for name, table in sample.items():
        pa_csv.write_csv(table, original / f"{name}.csv")
    (original / "log_random_4_22_to_5_08_pure.csv").write_text("another policy chose these\n")
    convert(tmp_path / "csv", tmp_path / "from_csv")
    rows = read_rows(tmp_path / "from_csv")
    assert rows.num_rows == expected.num_rows == sample[LOGS[0]].num_rows + sample[LOGS[1]].num_rows
    for name in expected.column_names:
        assert rows[name].to_pylist() == expected[name].to_pylist(), name


def test_parquet_files_with_csv_names_give_the_same_rows(
    sample: dict[str, pa.Table], expected: pa.Table, tmp_path: Path
) -> None:
    (tmp_path / "flat").mkdir()
    for name, table in sample.items():
        pq.write_table(table, tmp_path / "flat" / f"{name}.parquet")
    convert(tmp_path / "flat", tmp_path / "from_flat")
    assert read_rows(tmp_path / "from_flat").to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("missing", ["log_standard", "user_features", "video_features_basic"])
def test_missing_file_is_named_with_the_folder(sample: dict[str, pa.Table], tmp_path: Path, missing: str) -> None:
    (tmp_path / "csv").mkdir()
    for name, table in sample.items():
        if not name.startswith(missing):
            pa_csv.write_csv(table, tmp_path / "csv" / f"{name}.csv")
    with pytest.raises(LogError) as caught:
        convert(tmp_path / "csv", tmp_path / "out")
    assert str(caught.value).startswith(f"{tmp_path}/csv: ")
    assert missing in str(caught.value)
    assert "--raw" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("file", "column"),
    [
        ("log_standard_4_22_to_5_08_pure", "time_ms"),
        ("log_standard_4_22_to_5_08_pure", "play_time_ms"),
        ("user_features_pure", "register_days"),
        ("video_features_basic_pure", "upload_dt"),
        ("video_features_basic_pure", "tag"),
    ],
)
def test_missing_column_is_named(sample: dict[str, pa.Table], tmp_path: Path, file: str, column: str) -> None:
    (tmp_path / "csv").mkdir()
    for name, table in sample.items():
        if name != LOGS[0]:
            written = table.drop_columns([column]) if name == file else table
            pa_csv.write_csv(written, tmp_path / "csv" / f"{name}.csv")
    with pytest.raises(LogError, match=column):
        convert(tmp_path / "csv", tmp_path / "out")


def test_damaged_file_is_named(sample: dict[str, pa.Table], tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    for name, table in sample.items():
        pa_csv.write_csv(table, tmp_path / "csv" / f"{name}.csv")
    with (tmp_path / "csv" / "user_features_pure.csv").open("a") as file:
        file.write("1,2,3\n")
    with pytest.raises(LogError, match=r"user_features_pure\.csv: cannot be read"):
        convert(tmp_path / "csv", tmp_path / "out")


def test_convert_into_nonempty_folder_is_rejected(kuairand_raw: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(OutputError, match="exists and is never overwritten"):
        convert(kuairand_raw, tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["mine.txt"]
