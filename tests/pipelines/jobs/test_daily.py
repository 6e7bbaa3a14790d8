"""The daily job on a small generated log, whose last days come one by one."""

from __future__ import annotations

import json
import shutil
import time
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipelines.cli.main import main
from pipelines.jobs.demo import post, service
from pipelines.runs.run import RunFolder
from ranking.artifacts import bundle, repository
from tests.conftest import SMALL

LENIENT = ("--margin", "0.3")
"""A day of this log is 600 rows: five steps, in which a model learns noise."""

NINTH, TENTH = date(2026, 1, 9), date(2026, 1, 10)


class Feed:
    """A log that grows, its runs and its repository.

    Args:
        folder: of everything.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.repository = folder / "repository"

    def copied(self, folder: Path) -> Feed:
        """The same somewhere else."""
        shutil.copytree(self.folder, folder)
        return Feed(folder)

    def partition(self, day: date) -> Path:
        """The folder of the log's rows of one day."""
        return self.folder / "logs" / "log" / f"date={day.isoformat()}"

    def rewrite(self, day: date, change: Any) -> None:
        """Changes a day's rows."""
        for file in self.partition(day).glob("*.parquet"):
            pq.write_table(change(pq.ParquetFile(file).read()), file)

    def daily(self, day: date, *options: str) -> int:
        """The exit status of the job."""
        settings = [part for setting in SMALL for part in ("--set", setting)]
        where = ["--repository", str(self.repository), "--runs", str(self.runs), "--day", day.isoformat()]
        return main(["daily", str(self.folder / "logs" / "ranker.toml"), *where, *settings, *options])

    def record(self, day: date) -> dict[str, Any]:
        """What became of a day."""
        found: dict[str, Any] = json.loads((self.runs / day.isoformat() / "daily.json").read_text())
        return found

    @property
    def published(self) -> list[int]:
        return repository.list_versions(self.repository, "feed")

    @property
    def current(self) -> int:
        return repository.read_release(self.repository, "feed").version


@pytest.fixture(scope="module")
def first(logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Feed:
    """A feed after its first job, on 9 January; read only."""
    feed = Feed(tmp_path_factory.mktemp("daily") / "feed")
    shutil.copytree(logs, feed.folder / "logs")
    shutil.rmtree(feed.partition(TENTH))
    assert feed.daily(NINTH) == 0
    return feed


@pytest.fixture
def feed(first: Feed, logs: Path, tmp_path: Path) -> Feed:
    """The feed on the morning after, with the log of 10 January."""
    feed = first.copied(tmp_path / "feed")
    shutil.copytree(logs / "log" / "date=2026-01-10", feed.partition(TENTH))
    return feed


def flipped(table: pa.Table) -> pa.Table:
    """Every click taken for none, and the other way round: a log that teaches the contrary."""
    place = table.column_names.index("click")
    return table.set_column(place, "click", pc.subtract(1, table["click"]).cast(table["click"].type))


class TestFirstDay:
    def test_trains_from_the_start_and_publishes(self, first: Feed) -> None:
        assert first.record(NINTH) == {
            "day": "2026-01-09", "model": "feed", "from": None, "against": None, "worse": [], "version": 1
        }  # fmt: skip
        assert first.current == 1

    def test_leaves_the_day_to_judge_and_the_one_before_to_validate(self, first: Feed) -> None:
        logs = RunFolder.open(first.runs / "2026-01-09").load_config().logs
        assert (logs.train_from, logs.validation_from, logs.test_from) == (
            None, datetime(2026, 1, 8), datetime(2026, 1, 9)
        )  # fmt: skip


class TestNewDay:
    def test_goes_on_from_what_is_served_with_the_days_it_has_not_seen(self, feed: Feed) -> None:
        assert feed.daily(TENTH, *LENIENT) == 0
        assert feed.record(TENTH) == {
            "day": "2026-01-10", "model": "feed", "from": "2026-01-09", "against": 1, "worse": [], "version": 2
        }  # fmt: skip
        logs = RunFolder.open(feed.runs / "2026-01-10").load_config().logs
        assert logs.train_from == datetime(2026, 1, 8)
        assert feed.current == 2

    def test_is_done_once(self, feed: Feed, capsys: pytest.CaptureFixture[str]) -> None:
        """Also if the job ended after it had published, and before it wrote that down."""
        record = feed.runs / "2026-01-09" / "daily.json"
        record.write_text(json.dumps(feed.record(NINTH) | {"version": None}))
        assert feed.daily(NINTH) == 0
        assert "published already" in capsys.readouterr().err
        assert feed.published == [1]
        assert feed.record(NINTH)["version"] == 1

    def test_starts_anew_when_asked(self, feed: Feed) -> None:
        assert feed.daily(TENTH, "--fresh", "--set", "model.experts=3", "--margin", "1") == 0
        assert feed.record(TENTH)["from"] is None
        assert feed.record(TENTH)["against"] == 1

    def test_needs_rows_of_the_day(self, first: Feed, capsys: pytest.CaptureFixture[str]) -> None:
        assert first.daily(TENTH) == 1
        assert "log: has no row of 2026-01-10" in capsys.readouterr().err
        assert not (first.runs / "2026-01-10").exists()

    def test_comes_after_the_served_one(self, first: Feed, capsys: pytest.CaptureFixture[str]) -> None:
        assert first.daily(date(2026, 1, 8)) == 2
        assert "2026-01-09, whose run is served, trained until 2026-01-08" in capsys.readouterr().err

    def test_names_a_date(self, first: Feed, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["daily", "x.toml", "--repository", "r", "--runs", "s", "--day", "2026-02-30"])
        assert "'2026-02-30' is no date" in capsys.readouterr().err


def test_a_running_service_swaps_to_the_new_day(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKER_POLL_SECONDS", "0.2")
    request = {"user": {"id": "u1"}, "context": {"hour": 9}, "items": [{"id": "v1"}, {"id": "v2"}]}
    with service(feed.repository) as url:
        assert post(f"{url}/v1/rank", request)["version"] == "1"
        assert feed.daily(TENTH, *LENIENT) == 0
        deadline = time.monotonic() + 30
        while (version := post(f"{url}/v1/rank", request)["version"]) == "1" and time.monotonic() < deadline:
            time.sleep(0.1)
        assert version == "2"


class TestWorseModel:
    POISON = ("--set", "training.epochs=8", "--set", "training.learning_rate.trunk=0.02")

    @pytest.fixture
    def spoilt(self, feed: Feed) -> Feed:
        """What is new in the log, but for the day that judges, teaches the contrary."""
        for day in (date(2026, 1, 8), NINTH):
            feed.rewrite(day, flipped)
        return feed

    def test_is_refused(self, spoilt: Feed, capsys: pytest.CaptureFixture[str]) -> None:
        assert spoilt.daily(TENTH, *self.POISON) == 3
        said = capsys.readouterr()
        assert "ranker: 2026-01-10 is not published, it is worse than version 1 of feed by more than 1.0%" in said.err
        assert "click auc" in said.err
        assert said.out == ""
        assert spoilt.published == [1]
        assert spoilt.current == 1
        record = spoilt.record(TENTH)
        assert record["version"] is None
        assert {"task": "click", "measure": "auc"}.items() <= record["worse"][0].items()

        assert spoilt.daily(TENTH, *self.POISON, "--margin", "1.0") == 0  # the run was kept, and is not trained again
        assert "training has already finished" in capsys.readouterr().err
        assert spoilt.published == [1, 2]
        bundle.load(repository.bundle_folder(spoilt.repository, "feed", 2))
