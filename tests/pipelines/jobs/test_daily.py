"""The daily job on a small generated log whose last days arrive one by one."""

from __future__ import annotations

import io
import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import tomli_w

from pipelines.cli.main import main
from pipelines.jobs.daily import run_days
from pipelines.jobs.demo import post, service
from pipelines.runs.run import RunFolder
from ranking.artifacts import bundle, repository
from ranking.errors import LogError, QualityGateError
from tests.conftest import SMALL, Once
from tests.support.one_model import weights_of
from tests.support.waiting import wait_until

LENIENT = ("--margin", "0.3")
"""Margin for models that train on 600 new rows (five steps) and therefore learn noise."""

NINTH, TENTH = date(2026, 1, 9), date(2026, 1, 10)


class Feed:
    """A growing log with its runs and its repository.

    Args:
        folder: of everything.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.repository = folder / "repository"

    def copy_logs(self, logs: Path) -> None:
        """Copy a log and its configuration, which loses its counters and the rare tasks of its objective."""
        shutil.copytree(logs, self.folder / "logs")
        toml = self.folder / "logs" / "ranker.toml"
        settings = tomllib.loads(toml.read_text())
        del settings["counters"]
        settings["serving"]["objective"] = {"click": 1.0, "long_view": 1.0}
        toml.write_text(tomli_w.dumps(settings))

    def copy(self, folder: Path) -> Feed:
        """Copy everything to another folder."""
        shutil.copytree(self.folder, folder)
        return Feed(folder)

    def partition(self, day: date) -> Path:
        """Return the partition folder of a day."""
        return self.folder / "logs" / "log" / f"date={day.isoformat()}"

    def rewrite(self, day: date, change: Any) -> None:
        """Apply a function to the rows of a day."""
        for file in self.partition(day).glob("*.parquet"):
            pq.write_table(change(pq.ParquetFile(file).read()), file)

    def daily(self, day: date, *options: str) -> int:
        """Run the job; return its exit code."""
        settings = [part for setting in (*SMALL, "training.checks_per_epoch=2") for part in ("--set", setting)]
        where = ["--repository", str(self.repository), "--runs", str(self.runs), "--day", day.isoformat()]
        return main(["daily", str(self.folder / "logs" / "ranker.toml"), *where, *settings, *options])

    def record(self, day: date) -> dict[str, Any]:
        """Return ``daily.json`` of a day."""
        found: dict[str, Any] = json.loads((self.runs / day.isoformat() / "daily.json").read_text())
        return found

    @property
    def outcome(self) -> dict[str, Any]:
        """Exit code (``code``), stdout (``out``) and stderr (``err``) of the command that made the feed."""
        found: dict[str, Any] = json.loads((self.folder / "outcome.json").read_text())
        return found

    @property
    def published(self) -> list[int]:
        return repository.list_versions(self.repository, "feed")

    @property
    def current(self) -> int:
        return repository.read_release(self.repository, "feed").version


@pytest.fixture(scope="session")
def first(logs: Path, once: Once) -> Feed:
    """The feed after its first job, for 9 January; read only."""

    def run_first(folder: Path) -> None:
        feed = Feed(folder)
        feed.copy_logs(logs)
        shutil.rmtree(feed.partition(TENTH))
        assert feed.daily(NINTH) == 0

    return Feed(once("first_daily_job", run_first))


@pytest.fixture(scope="session")
def both(logs: Path, once: Once) -> Feed:
    """The feed after one command for both days, with its outcome in ``outcome.json``; read only."""

    def run_both(folder: Path) -> None:
        feed, out, err = Feed(folder), io.StringIO(), io.StringIO()
        feed.copy_logs(logs)
        with redirect_stdout(out), redirect_stderr(err):
            code = feed.daily(NINTH, "--last-day", TENTH.isoformat(), *LENIENT)
        (folder / "outcome.json").write_text(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()}))

    return Feed(once("two_daily_jobs", run_both))


@pytest.fixture
def feed(first: Feed, logs: Path, tmp_path: Path) -> Feed:
    """The feed with the log of 10 January."""
    feed = first.copy(tmp_path / "feed")
    shutil.copytree(logs / "log" / "date=2026-01-10", feed.partition(TENTH))
    return feed


def flip_clicks(table: pa.Table) -> pa.Table:
    """Invert every click."""
    place = table.column_names.index("click")
    return table.set_column(place, "click", pc.subtract(1, table["click"]).cast(table["click"].type))


@pytest.mark.parametrize("rejected", [["2026-01-10"], ["2026-01-09", "2026-01-10"]])
def test_rejected_day_does_not_stop_the_days_after_it(rejected: list[str]) -> None:
    def run_day(day: date) -> dict[str, Any]:
        if day.isoformat() in rejected:
            raise QualityGateError(f"{day} is worse")
        return {"day": day}

    days = run_days(NINTH, date(2026, 1, 11), run_day)
    for day in (NINTH, TENTH, date(2026, 1, 11)):
        if day.isoformat() not in rejected:
            assert next(days) == {"day": day}
    with pytest.raises(QualityGateError, match=f"not published, see the messages above: {', '.join(rejected)}"):
        next(days)


# First day.


def test_first_day_trains_from_scratch_and_publishes(first: Feed) -> None:
    assert first.record(NINTH) == {
        "day": "2026-01-09", "model": "feed", "from": None, "against": None, "comparison": None, "worse": [],
        "no_power": None, "version": 1, "refreshed": None,
    }  # fmt: skip
    assert first.current == 1


def test_first_day_tests_on_the_day_and_validates_on_the_day_before(first: Feed) -> None:
    logs = RunFolder.open(first.runs / "2026-01-09").load_config().logs
    assert (logs.train_from, logs.validation_from, logs.test_from) == (
        None, datetime(2026, 1, 8), datetime(2026, 1, 9)
    )  # fmt: skip


@pytest.mark.nightly(short="test_day_that_is_not_published_still_continues_the_counters")
def test_past_day_gives_the_model_of_the_time_when_it_was_the_newest(first: Feed, both: Feed) -> None:
    then, now = (RunFolder.open(each.runs / "2026-01-09") for each in (first, both))
    assert not first.partition(TENTH).exists()
    assert both.partition(TENTH).exists()
    assert now.load_evaluation() == then.load_evaluation()
    assert now.best.read_bytes() == then.best.read_bytes()
    assert json.loads(now.survey.read_text()) == json.loads(then.survey.read_text())


def test_days_in_order_are_one_command(both: Feed, feed: Feed, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = both.outcome
    assert outcome["code"] == 0, outcome["err"]
    assert outcome["out"].split() == [str(both.repository / "feed" / version) for version in ("1", "2")]
    assert (both.record(NINTH)["from"], both.record(TENTH)["from"]) == (None, "2026-01-09")
    assert feed.daily(TENTH, "--last-day", NINTH.isoformat()) == 2
    assert "--last-day 2026-01-09 is before the first day, 2026-01-10" in capsys.readouterr().err


# New day.


def test_new_day_continues_from_the_served_run_on_unseen_days(both: Feed) -> None:
    record = both.record(TENTH)
    comparison = record.pop("comparison")
    assert comparison["intervals"]["unit"] == "user"
    auc = comparison["tasks"]["click"]["measures"]["auc"]
    difference = re.escape(f"{auc['difference']:+.4f}")
    row = rf"click +auc +{auc['a']:.4f} +{auc['b']:.4f} +{difference}"
    assert re.search(row, both.outcome["err"])
    assert record == {
        "day": "2026-01-10", "model": "feed", "from": "2026-01-09", "against": 1, "worse": [], "no_power": None,
        "version": 2, "refreshed": None,
    }  # fmt: skip
    logs = RunFolder.open(both.runs / "2026-01-10").load_config().logs
    assert logs.train_from == datetime(2026, 1, 8)
    assert both.current == 2


def keep_few_positives(table: pa.Table) -> pa.Table:
    """Leave four positives of each binary label, and no other labels."""
    rows = len(table)
    few = pa.array([1] * 4 + [0] * (rows - 4), pa.int8())
    for name in ("click", "long_view", "share", "like", "follow", "dislike"):
        table = table.set_column(table.column_names.index(name), name, few.cast(table[name].type))
    for name in ("watch_time", "rating"):
        table = table.set_column(table.column_names.index(name), name, pa.nulls(rows, table[name].type))
    return table


def test_day_with_few_positives_has_no_power_and_keeps_the_served_version(
    feed: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    feed.rewrite(TENTH, keep_few_positives)
    assert feed.daily(TENTH, *LENIENT) == 3
    no_power = "fewer than 5 users have a positive, or a negative (positives: click 4, long_view 4, "
    assert f"no power to compare it with version 1 of feed, which is kept: {no_power}" in capsys.readouterr().err
    assert feed.record(TENTH)["no_power"].startswith(no_power)
    assert feed.published == [1]
    assert feed.daily(TENTH, *LENIENT, "--publish-without-power") == 0
    assert feed.published == [1, 2]


def test_published_day_is_not_repeated(feed: Feed, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if the previous job ended between the publication and the write of its record."""
    record = feed.runs / "2026-01-09" / "daily.json"
    record.write_text(json.dumps(feed.record(NINTH) | {"version": None}))
    assert feed.daily(NINTH) == 0
    assert "is already published" in capsys.readouterr().err
    assert feed.published == [1]
    assert feed.record(NINTH)["version"] == 1


def test_day_with_teachers_is_rejected(feed: Feed, capsys: pytest.CaptureFixture[str]) -> None:
    assert feed.daily(TENTH, "--set", "training.teachers=['run']") == 1
    assert "training.teachers: runs of other days cannot teach a daily training" in capsys.readouterr().err
    assert not (feed.runs / TENTH.isoformat()).exists()


@pytest.mark.nightly(short="test_first_day_trains_from_scratch_and_publishes")
def test_fresh_trains_from_scratch(feed: Feed, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "model.experts=3", "--set", "logs.train_from=2026-01-08"]
    assert feed.daily(TENTH, "--fresh", *settings, "--margin", "1") == 0
    assert "2026-01-10: trains from scratch because of --fresh, without the run of version 1" in capsys.readouterr().err
    assert feed.record(TENTH)["from"] is None
    assert feed.record(TENTH)["against"] == 1


def test_version_whose_run_has_no_bundle_names_the_command_that_helps(
    feed: Feed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was trained by hand is frozen outside of its folder, and the job cannot tell whose bundle it is."""

    def stop(*_: Any, **__: Any) -> None:
        raise LogError("stopped before the training")

    monkeypatch.setattr("pipelines.jobs.daily.train", stop)
    run = feed.runs / "2026-01-09"
    shutil.rmtree(run / "bundle")
    assert feed.daily(TENTH) == 1
    assert (
        f"2026-01-10: trains from scratch, because no {feed.runs}/*/bundle is that of version 1 of feed; to continue "
        f"from its run in {feed.runs}, stop and run 'ranker freeze RUN --out RUN/bundle'"
    ) in capsys.readouterr().err
    assert main(["freeze", str(run), "--out", str(run / "bundle")]) == 0
    assert feed.daily(TENTH) == 1
    assert f"2026-01-10: continues from {run}, version 1 of feed" in capsys.readouterr().err


def test_day_without_rows_is_rejected(first: Feed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feed = first.copy(tmp_path / "feed")
    assert feed.daily(TENTH) == 1
    assert "log: has no row of 2026-01-10" in capsys.readouterr().err
    assert not (feed.runs / "2026-01-10").exists()


@pytest.mark.parametrize(
    ("kept", "says"),
    [
        (
            [TENTH, date(2026, 1, 8)],
            "has rows of 2026-01-10, but none from 2026-01-09 00:00:00 to 2026-01-10 00:00:00 to validate its model on "
            "(the last row before is of 2026-01-08 ",
        ),
        (
            [TENTH, NINTH],
            "has no row to 2026-01-09 00:00:00 to train the model of 2026-01-10 on: specify a later --day",
        ),
        ([TENTH], "(nor any earlier row): specify a --day that follows days with rows, or run 'ranker train'"),
    ],
)
def test_day_after_days_without_rows_names_the_rows_that_exist(
    logs: Path, tmp_path: Path, kept: list[date], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job computes the splits, so that a hint to move those of the configuration would not help."""
    feed = Feed(tmp_path / "feed")
    feed.copy_logs(logs)
    for folder in (feed.folder / "logs" / "log").iterdir():
        if folder not in [feed.partition(day) for day in kept]:
            shutil.rmtree(folder)
    assert feed.daily(TENTH) == 1
    assert says in capsys.readouterr().err.splitlines()[-1]
    assert not (feed.runs / "2026-01-10").exists()


def test_day_before_the_served_day_is_rejected(feed: Feed, capsys: pytest.CaptureFixture[str]) -> None:
    assert feed.daily(date(2026, 1, 8)) == 2
    assert "2026-01-09, the run of the served version, trained until 2026-01-08" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["2026-02-30", "1969-12-31", "9999-12-31"])
def test_invalid_date_is_rejected(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["daily", "x.toml", "--repository", "r", "--runs", "s", "--day", text])
    assert f"'{text}' is not a date" in capsys.readouterr().err


def test_running_service_switches_to_the_new_version(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKER_POLL_SECONDS", "0.2")
    request = {"user": {"id": "u1"}, "context": {"hour": 9}, "items": [{"id": "v1"}, {"id": "v2"}]}
    with service(feed.repository) as url:
        assert post(f"{url}/v1/rank", request)["version"] == "1"
        assert feed.daily(TENTH, *LENIENT) == 0
        wait_until(lambda: post(f"{url}/v1/rank", request)["version"] == "2", "version 2 is served")


# Quality gate.


POISON = ("--set", "training.epochs=3", "--set", "training.learning_rate.trunk=0.05")


@pytest.fixture
def spoiled(feed: Feed) -> Feed:
    """The feed with inverted clicks on the new training days; the test day is unchanged."""
    for day in (date(2026, 1, 8), NINTH):
        feed.rewrite(day, flip_clicks)
    return feed


def test_worse_model_is_not_published_with_exit_code_3(
    spoiled: Feed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spoiled.daily(TENTH, *POISON) == 3
    output = capsys.readouterr()
    assert "ranker: 2026-01-10 is not published: it is worse than version 1 of feed by more than 1%: " in output.err
    assert "click auc" in output.err
    assert output.out == ""
    assert spoiled.published == [1]
    assert spoiled.current == 1
    record = spoiled.record(TENTH)
    assert record["version"] is None
    assert record["refreshed"] is None, "the model has no counters"
    assert {"task": "click", "measure": "auc"}.items() <= record["worse"][0].items()

    workers: list[int] = []

    def run_here(number: int, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
        workers.append(number)
        return map(function, tasks)

    # The run was kept, and is not trained again. An engine compares with the same result.
    monkeypatch.setattr("pipelines.engines.run_in_processes", run_here)
    assert spoiled.daily(TENTH, *POISON, "--margin", "1.0", "--workers", "2") == 0
    assert "training has already finished" in capsys.readouterr().err
    assert spoiled.record(TENTH)["comparison"] == record["comparison"]
    assert set(workers) == {2}
    assert spoiled.published == [1, 2]
    bundle.load(repository.bundle_folder(spoiled.repository, "feed", 2))


# Counters.


COUNTERS = """
[[counters]]
of = ["user_id"]
labels = ["click"]

[[histories]]
of = "item_id"
label = "click"
"""


@pytest.fixture(scope="session")
def first_counted(logs: Path, once: Once) -> Feed:
    """A feed with counters after its first job, with the log of 10 January; read only."""

    def run_first(folder: Path) -> None:
        feed = Feed(folder)
        feed.copy_logs(logs)
        with (feed.folder / "logs" / "ranker.toml").open("a") as stream:
            stream.write(COUNTERS)
        shutil.move(feed.partition(TENTH), feed.folder / "tenth")
        assert feed.daily(NINTH) == 0
        shutil.move(feed.folder / "tenth", feed.partition(TENTH))

    return Feed(once("first_counted_daily_job", run_first))


@pytest.fixture
def counted(first_counted: Feed, tmp_path: Path) -> Feed:
    """A copy of the feed with counters."""
    return first_counted.copy(tmp_path / "counted")


def test_day_that_is_not_published_still_continues_the_counters(
    counted: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    for day in (date(2026, 1, 8), NINTH):
        counted.rewrite(day, flip_clicks)
    assert counted.daily(TENTH, *POISON) == 3
    assert "Version 2 is version 1 with the counters of 2026-01-10." in capsys.readouterr().err
    first, second = (bundle.load(repository.bundle_folder(counted.repository, "feed", v)) for v in (1, 2))
    assert (counted.published, counted.current) == ([1, 2], 2)
    record = counted.record(TENTH)
    assert (record["version"], record["refreshed"]) == (None, 2)
    assert first.counter_features is not None
    assert second.counter_features is not None
    assert first.counter_features.clock is not None
    assert second.counter_features.clock is not None
    assert datetime.fromtimestamp(first.counter_features.clock.until / 1e6, UTC).date() == NINTH
    assert datetime.fromtimestamp(second.counter_features.clock.until / 1e6, UTC).date() == TENTH
    before, after = weights_of(first), weights_of(second)
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)

    assert counted.daily(TENTH, *POISON) == 3
    assert counted.published == [1, 2], "the counters of a day are published once"
    assert counted.daily(TENTH, *POISON, "--margin", "1.0") == 0
    assert counted.published == [1, 2, 3]


def test_log_without_its_past_is_not_published(counted: Feed, capsys: pytest.CaptureFixture[str]) -> None:
    """Protects the counters of all users against a folder that lost its files, or was named in place of the history."""
    for number in range(1, 8):
        shutil.rmtree(counted.partition(date(2026, 1, number)))
    assert counted.daily(TENTH, "--fresh", *LENIENT) == 3
    message = capsys.readouterr().err.splitlines()[-1]
    assert "2026-01-10 is not published: " in message
    assert f"has poorer counters than {counted.repository}/feed/1" in message
    assert "--allow-poorer-counters" in message
    assert counted.published == [1]
    assert counted.daily(TENTH, "--fresh", "--margin", "1.0", "--allow-poorer-counters") == 0
    assert counted.published == [1, 2]


def test_served_rows_are_not_joined_into_a_log_of_another_program(
    feed: Feed, capsys: pytest.CaptureFixture[str]
) -> None:
    served = ["--served", "served", "--feedback", "feedback", "--window", "1h"]
    assert feed.daily(TENTH, *served) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(f"ranker: {feed.folder}/logs/log: --served adds rows to the last folder of logs.path")
    assert "path = ['log', 'joined']" in message
