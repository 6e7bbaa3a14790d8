"""``ranker init`` on logs in the formats of other projects: the configuration passes ``check`` and trains."""

from __future__ import annotations

import io
import json
import re
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipelines.cli.main import main
from pipelines.datasets.kuairand import convert
from pipelines.datasets.synthetic import generate
from ranking.artifacts import bundle
from tests.support.foreign_logs import clicks, write_census, write_clicks, write_movielens

FAST = ["--set", "training.epochs=1", "--set", "model.expert_layers=[8]", "--set", "model.tower_layers=[4]"]


def ranker(*arguments: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def init(*arguments: object) -> tuple[dict[str, Any], str, str]:
    """Run ``ranker init``; return the configuration, stdout and stderr."""
    out = Path(str(arguments[arguments.index("--out") + 1]))
    code, text, err = ranker("init", *arguments)
    assert code == 0, err
    return tomllib.loads(out.read_text()), text, err


def error(*arguments: object) -> str:
    """Run ``ranker init``; return its error, which is one line."""
    code, _, err = ranker("init", *arguments)
    assert code == 1
    (line,) = (line for line in err.splitlines() if line.startswith("ranker: "))
    return line.removeprefix("ranker: ")


def by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in entries}


def train(folder: Path) -> None:
    """Check the configuration in a folder, train and freeze."""
    code, text, err = ranker("check", folder / "ranker.toml", "--json")
    assert code == 0, err
    assert json.loads(text)["errors"] == []
    code, _, err = ranker("train", folder / "ranker.toml", "--run", folder / "run", *FAST)
    assert code == 0, err
    code, _, err = ranker("freeze", folder / "run", "--out", folder / "bundle")
    assert code == 0, err


def comment(folder: Path, line: str) -> str:
    """Return the comment of the first line of the configuration that starts with ``line``."""
    lines = (folder / "ranker.toml").read_text().splitlines()
    return next(text for text in lines if text.startswith(line)).partition("# ")[2]


def test_init_movielens_trains(tmp_path: Path) -> None:
    write_movielens(tmp_path, 1500)
    config, out, _ = init(
        tmp_path / "ratings.csv", "--items", tmp_path / "movies.csv", "--out", tmp_path / "ranker.toml"
    )
    assert config["name"] == "ratings"
    assert config["columns"] == {"time": "timestamp", "user": "userId", "item": "movieId"}
    assert config["logs"]["path"] == "ranker-log.parquet"
    assert config["logs"]["items"] == "ranker-items.parquet"
    assert {name: entry["kind"] for name, entry in by_name(config["features"]).items()} == {
        "userId": "categorical",
        "movieId": "categorical",
        "genres": "bag",
    }
    assert config["tasks"] == [{"name": "rating", "kind": "regression"}]
    assert pq.read_table(tmp_path / "ranker-items.parquet")["genres"].type == pa.list_(pa.string())
    assert pq.read_schema(tmp_path / "ranker-log.parquet").field("timestamp").type.tz == "UTC"
    assert comment(tmp_path, "time = ").startswith("Unix time in s, about 2004")
    assert "#   title: a different value in every row\n" in (tmp_path / "ranker.toml").read_text()
    assert out.splitlines()[0] == str(tmp_path / "ranker.toml")
    assert out.splitlines()[-1] == f"next: ranker check {tmp_path / 'ranker.toml'}"
    train(tmp_path)


@pytest.mark.parametrize("when", [True, False])
def test_init_of_one_day_reads_the_next_time_column(tmp_path: Path, when: bool) -> None:
    """A joined log has a partition column of days, which cannot divide the rows of a day."""
    table = clicks(400)
    start = 1_767_225_600_000_000
    times = pa.array([start + 60_000_000 * row for row in range(400)], pa.timestamp("us", "UTC"))
    table = table.drop_columns(["ts"]).append_column("when", times) if when else table.drop_columns(["ts"])
    (tmp_path / "joined" / "day=2026-01-01").mkdir(parents=True)
    pq.write_table(table, tmp_path / "joined" / "day=2026-01-01" / "part-0.parquet")
    config, out, _ = init(tmp_path / "joined", "--out", tmp_path / "ranker.toml")
    assert config["columns"]["time"] == ("when" if when else "row_time")
    assert ("rows are divided at random" in out) is not when
    text = (tmp_path / "ranker.toml").read_text()
    assert "#   day: a time with too few different values to divide the rows by\n" in text
    assert ("'day' has too few different times" in text) is not when


def test_init_census_trains_and_scores(tmp_path: Path) -> None:
    write_census(tmp_path / "adult.csv", 1500)
    config, out, _ = init(tmp_path / "adult.csv", "--out", tmp_path / "ranker.toml")
    assert config["columns"] == {"time": "row_time", "user": "user_id", "item": "item_id"}
    assert config["tasks"] == [{"name": "income", "kind": "binary"}]
    features = by_name(config["features"])
    assert {entry["owner"] for entry in features.values()} == {"item"}
    assert features["capital_gain"]["transform"] == "log1p"
    assert features["education"]["kind"] == "categorical"
    assert '">50K" is 1, "<=50K" is 0' in (tmp_path / "ranker.toml").read_text()
    assert "rows are divided at random, not by time" in out
    rows = pq.read_table(tmp_path / "ranker-log.parquet")
    assert rows["workclass"].null_count > 0
    assert set(rows["income"].to_pylist()) == {0, 1}
    assert rows["item_id"].to_pylist() == list(range(1500))
    train(tmp_path)
    scores = bundle.load(tmp_path / "bundle").score(rows.slice(0, 20))
    assert scores.num_rows == 20


@pytest.mark.nightly(short="test_init_census_trains_and_scores")
def test_init_clicks_trains_with_position_and_warns_about_leakage(tmp_path: Path) -> None:
    write_clicks(tmp_path / "clicks.parquet", 1600)
    config, _, err = init(tmp_path / "clicks.parquet", "--out", tmp_path / "ranker.toml")
    assert config["columns"] == {"time": "ts", "user": "user_id", "item": "item_id", "request": "request_id"}
    assert by_name(config["tasks"]).keys() == {"click", "dwell_seconds", "purchased"}
    owners = {name: entry["owner"] for name, entry in by_name(config["features"]).items()}
    assert owners == {
        "user_id": "user",
        "item_id": "item",
        "country": "user",
        "price": "item",
        "device": "context",
        "position": "context",
    }
    assert config["model"]["side_tower"] == {"features": ["position"]}
    assert "warning: column 'clicked_twice' is left out, leakage: alone predicts 'is_click' with AUC 1.000" in err
    text = (tmp_path / "ranker.toml").read_text()
    assert "#   campaign: constant: spring\n" in text
    assert "#   payload: type struct<a: int64>" in text
    train(tmp_path)


def test_init_log_that_training_reads_is_not_copied(tmp_path: Path) -> None:
    table = clicks(1600).drop_columns(["ts", "clicked_twice", "payload"])
    time = pc.add(pa.scalar(1_767_225_600, pa.int64()), pa.array([600 * i for i in range(1600)])).cast(
        pa.timestamp("s")
    )
    (tmp_path / "log").mkdir()
    pq.write_table(table.append_column("time", time), tmp_path / "log" / "part.parquet")
    config, out, _ = init(tmp_path / "log", "--out", tmp_path / "ranker.toml", "--name", "feed")
    assert config["name"] == "feed"
    assert config["logs"]["path"] == str(tmp_path / "log")
    assert {path.name for path in tmp_path.iterdir()} == {"log", "ranker.toml"}
    assert "copy" not in out


def test_init_every_guess_has_a_comment(tmp_path: Path) -> None:
    write_clicks(tmp_path / "clicks.parquet", 1600)
    init(tmp_path / "clicks.parquet", "--out", tmp_path / "ranker.toml")
    for line in (tmp_path / "ranker.toml").read_text().splitlines():
        if re.match(r"(kind|owner|time|user|item|request|validation_from|test_from|batch_size) =", line):
            assert " # " in line, line


def test_init_overrides_replace_guesses(tmp_path: Path) -> None:
    write_clicks(tmp_path / "clicks.parquet", 1600)
    config, _, err = init(
        *(tmp_path / "clicks.parquet", "--out", tmp_path / "ranker.toml"),
        *("--user", "country", "--item", "item_id", "--time", "ts"),
        *("--label", "purchased", "--label", "dwell_seconds"),
    )
    assert config["columns"]["user"] == "country"
    assert by_name(config["tasks"]).keys() == {"purchased", "dwell_seconds"}
    assert "is_click" not in by_name(config["features"])
    assert "warning: column 'is_click' is left out, leakage: by its name another label" in err


def test_init_relative_paths_start_at_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = clicks(1600).drop_columns(["ts", "clicked_twice"])
    time = pa.array([1_767_225_600 + 600 * i for i in range(1600)]).cast(pa.timestamp("s"))
    pq.write_table(table.append_column("time", time), tmp_path / "log.parquet")
    (tmp_path / "configs").mkdir()
    monkeypatch.chdir(tmp_path)
    config, _, _ = init("log.parquet", "--out", "configs/ranker.toml")
    assert config["logs"]["path"] == "../log.parquet"
    assert ranker("check", "configs/ranker.toml")[0] == 0


def test_init_never_overwrites(tmp_path: Path) -> None:
    write_movielens(tmp_path, 1500)
    arguments = (tmp_path / "ratings.csv", "--out", tmp_path / "ranker.toml")
    copy = tmp_path / "ranker-log.parquet"
    copy.write_text("mine")
    assert error(*arguments).startswith(f"{copy} exists and is never overwritten")
    assert copy.read_text() == "mine"
    assert not (tmp_path / "ranker.toml").exists()
    copy.unlink()
    init(*arguments)
    assert error(*arguments).startswith(f"{tmp_path / 'ranker.toml'} exists and is never overwritten")


def test_init_failure_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_movielens(tmp_path, 1500)
    before = set(tmp_path.iterdir())

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pipelines.jobs.init.write_copy", fail)
    message = error(tmp_path / "ratings.csv", "--out", tmp_path / "ranker.toml")
    assert message == f"{tmp_path}: cannot be written (No space left on device)"
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.csv",), "no such log"),
        (("ratings.csv", "--label", "stars"), "--label stars: ratings.csv has no such column; choose from userId"),
        (("ratings.csv", "--label", "rating", "--time", "rating"), "--label rating: --time names this column too"),
        (("ratings.csv", "--time", "movieId"), "--time movieId: holds values such as"),
        (("movies.csv",), "no label found among 'title', 'genres': name it with --label COLUMN"),
        (("ratings.csv", "--items", "users.csv"), "users.csv: has no column 'movieId', the item id of the log"),
        (("ratings.csv", "--items", "twice.csv"), "twice.csv: column 'movieId', row 0: id 3 occurs twice"),
        (("ratings.csv", "--items", "text.csv"), "text.csv: column 'movieId' holds text such as 'm3'"),
        (("ratings.csv", "--name", "a b"), "not a valid model name"),
        (("short.csv",), "short.csv: has 3 usable rows; at least 20 are needed"),
    ],
)
def test_init_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    write_movielens(tmp_path, 1500)
    (tmp_path / "users.csv").write_text("userId,age\n1,20\n")
    (tmp_path / "twice.csv").write_text("movieId,year\n3,1990\n3,1991\n")
    (tmp_path / "text.csv").write_text("movieId,year\nm3,1990\nm4,1991\nm5,1990\n")
    (tmp_path / "short.csv").write_text("userId,movieId,rating\n1,2,3.0\n1,3,4.0\n2,2,5.0\n")
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert message in error(*arguments)
    assert set(tmp_path.iterdir()) == before


def test_init_labels_without_positives_in_training_are_left_out(tmp_path: Path) -> None:
    table = clicks(1600)
    last = pa.array([int(i >= 1590) for i in range(1600)])
    pq.write_table(table.append_column("is_follow", last), tmp_path / "log.parquet")
    config, _, _ = init(tmp_path / "log.parquet", "--out", tmp_path / "ranker.toml")
    assert "follow" not in by_name(config["tasks"])
    assert "#   is_follow: a label with one value in the training split" in (tmp_path / "ranker.toml").read_text()


def every_nth_row(log: Path, step: int, folder: Path) -> Path:
    """Write a log with every n-th row of each file of a log to a new folder."""
    for file in log.rglob("*.parquet"):
        rows = pq.ParquetFile(file).read()
        part = folder / file.relative_to(log)
        part.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.take(pa.array(range(0, len(rows), step))), part)
    return folder


@pytest.mark.parametrize(("step", "batch_size"), [(4, 64), pytest.param(1, 256, marks=pytest.mark.nightly)])
def test_init_kuairand_passes_check(kuairand_raw: Path, tmp_path: Path, step: int, batch_size: int) -> None:
    log = kuairand_raw / "log"
    config, _, _ = init(
        log if step == 1 else every_nth_row(log, step, tmp_path / "log"),
        *("--users", kuairand_raw / "user_features_pure.parquet"),
        *("--items", kuairand_raw / "video_features_basic_pure.parquet"),
        *("--out", tmp_path / "ranker.toml"),
    )
    assert config["columns"] == {"time": "time_ms", "user": "user_id", "item": "video_id"}
    tasks = by_name(config["tasks"])
    assert {name for name, task in tasks.items() if task["kind"] == "binary"} == {
        *("click", "like", "follow", "comment", "forward", "hate", "long_view", "profile_enter")
    }
    assert tasks["play_time_ms"]["transform"] == "log1p"
    assert config["serving"]["objective"]["hate"] == -1
    features = by_name(config["features"])
    assert features["tag"]["kind"] == "bag"
    assert {features[name]["owner"] for name in ("tab", "hourmin")} == {"context"}
    assert features["duration_ms"]["owner"] == "item"
    unknown = {"comment_stay_time", "profile_stay_time", "is_rand", "date", "play_time_ms"}
    assert not unknown & {feature.get("column", name) for name, feature in features.items()}
    assert config["training"]["batch_size"] == batch_size
    code, text, err = ranker("check", tmp_path / "ranker.toml", "--json")
    assert code == 0, err
    warnings = json.loads(text)["warnings"]
    assert [text for text in warnings if step == 1 or not re.search(r"has only \d+ positive label", text)] == []


def test_init_reads_the_folder_of_an_adapter(tmp_path: Path) -> None:
    generate(tmp_path / "synthetic", 2_000)
    config, out, _ = init(tmp_path / "synthetic", "--out", tmp_path / "ranker.toml")
    assert config["name"] == "synthetic"
    assert config["columns"]["time"] == "time"
    assert config["logs"]["items"] == str(tmp_path / "synthetic" / "items.parquet")
    assert config["logs"]["validation_from"].isoformat() == "2026-01-08"
    assert by_name(config["features"])["price"]["owner"] == "item"
    assert "copy" not in out
    assert ranker("check", tmp_path / "ranker.toml")[0] == 0


@pytest.mark.nightly(short="test_init_reads_the_folder_of_an_adapter")
def test_init_reads_the_folder_of_kuairand(kuairand_raw: Path, tmp_path: Path) -> None:
    convert(kuairand_raw, tmp_path / "kuairand")
    config, out, _ = init(tmp_path / "kuairand", "--out", tmp_path / "ranker.toml")
    assert config["name"] == "kuairand"
    assert config["columns"]["time"] == "time"
    assert config["logs"]["items"] == str(tmp_path / "kuairand" / "items.parquet")
    assert config["logs"]["validation_from"].isoformat() == "2022-05-03"
    assert by_name(config["features"])["upload_age"]["owner"] == "item"
    assert "copy" not in out
    assert ranker("check", tmp_path / "ranker.toml")[0] == 0


@pytest.mark.nightly(short="test_init_movielens_trains")
def test_init_kuairand_trains(kuairand_raw: Path, tmp_path: Path) -> None:
    init(kuairand_raw / "log", "--out", tmp_path / "ranker.toml")
    options = ["--set", "evaluation.baselines=[]", "--json"]
    code, text, err = ranker("train", tmp_path / "ranker.toml", "--run", tmp_path / "run", *options)
    assert code == 0, err
    result = json.loads(text)
    assert result["selection"]["converged"]
    assert result["evaluation"]["tasks"]["click"]["auc"] > 0.65
