"""Publishing, loading and rolling back never lose counters silently."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.cli.main import main
from pipelines.jobs.counter_loss import Coverage
from pipelines.jobs.load_counters import load_counters
from pipelines.jobs.publish import publish
from ranking.artifacts import bundle, repository
from ranking.artifacts.release import Release
from ranking.counters.features import CounterFeatures
from ranking.errors import QualityGateError
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Schema
from tests.support.counted_ranker import COUNTED, NOW, draw_events, make_counted_ranker, make_tables, write_state
from tests.support.redis_server import RedisServer

SCHEMA = Schema.model_validate(COUNTED)
DAY = 86_400_000_000
"""A day in microseconds."""


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> FrozenRanker:
    return make_counted_ranker(tmp_path_factory.mktemp("ranker") / "counters", text=True)


def features_of(folder: Path, events: pa.Table) -> CounterFeatures:
    write_state(folder, SCHEMA, events, make_tables(text=True))
    return CounterFeatures.open(folder, SCHEMA)


def write_bundle(folder: Path, ranker: FrozenRanker, events: pa.Table) -> Path:
    """Write a bundle whose counters are those of some events."""
    counted = replace(ranker, counter_features=features_of(folder / "state", events))
    bundle.write_bundle(counted, counted.complete(draw_events(8, 3, text=True)), folder / "bundle")
    return folder / "bundle"


def coverage(folder: Path, events: pa.Table) -> Coverage:
    found = Coverage.of_bundle(features_of(folder, events))
    assert found is not None
    return found


HISTORY = draw_events(400, 0, text=True)
RECENT = draw_events(60, 1, text=True, end=NOW + 2 * DAY).slice(40)
BOTH = pa.concat_tables([HISTORY, RECENT])
"""A history of six days, the impressions after it, and both."""


def test_counters_of_a_log_that_continues_the_history_lose_nothing(tmp_path: Path) -> None:
    assert coverage(tmp_path / "a", HISTORY).losses(coverage(tmp_path / "b", BOTH)) == []


def test_counters_of_the_recent_log_alone_lose_the_history(tmp_path: Path) -> None:
    losses = coverage(tmp_path / "a", HISTORY).losses(coverage(tmp_path / "b", RECENT))
    by_name = {loss.name: loss for loss in losses}
    assert (by_name["user_id"].before, by_name["user_id"].after) == (400, 20)
    assert str(by_name["user_id"]) == "user_id 20 instead of 400 and none before 2025-06-15T20:53:56Z"
    assert not by_name["user_id"].is_tolerated
    assert "clicked" in by_name


def test_richer_counters_that_start_later_lose_the_history(tmp_path: Path) -> None:
    """Impressions alone do not show that a log starts anew."""
    anew = draw_events(800, 1, text=True, end=NOW + 7 * DAY).slice(200)
    losses = coverage(tmp_path / "a", HISTORY).losses(coverage(tmp_path / "b", anew))
    (loss,) = [loss for loss in losses if loss.name == "user_id"]
    assert (loss.before, loss.after) == (400, 600)
    assert str(loss).startswith("user_id none before 2025-06-1")
    assert not loss.is_tolerated


def test_a_log_that_keeps_some_days_loses_nothing_that_counts(tmp_path: Path) -> None:
    start = int(HISTORY["time"].cast(pa.int64()).to_numpy().min())
    kept = BOTH.filter(pa.array(BOTH["time"].cast(pa.int64()).to_numpy() >= start + DAY))
    losses = coverage(tmp_path / "a", HISTORY).losses(coverage(tmp_path / "b", kept))
    assert [loss for loss in losses if loss.since is not None] == []


@pytest.mark.parametrize(
    ("entry", "lost"),
    [({}, True), ({"window": "2d"}, False), ({"half_life": "6h"}, False), ({"half_life": "9d"}, True)],
)
def test_time_is_lost_as_far_as_a_counter_reaches_back(tmp_path: Path, entry: dict[str, str], lost: bool) -> None:
    """Also if the counter is defined anew, so that its impressions cannot be compared."""
    schema = Schema.model_validate(COUNTED | {"counters": [{"of": ["user_id"], "labels": ["click"], **entry}]})
    late = HISTORY.slice(200)
    write_state(tmp_path / "b", schema, late, make_tables(text=True))
    new = Coverage.of_bundle(CounterFeatures.open(tmp_path / "b", schema))
    assert new is not None
    losses = [loss for loss in coverage(tmp_path / "a", HISTORY).losses(new) if loss.name == "user_id"]
    assert [loss.since is not None for loss in losses] == ([True] if lost else [])


def test_states_of_earlier_versions_are_compared_without_time(tmp_path: Path) -> None:
    old = coverage(tmp_path / "a", HISTORY)
    old = replace(old, clock=replace(old.clock, since=None))
    anew = draw_events(800, 1, text=True, end=NOW + 7 * DAY).slice(200)
    assert [loss for loss in old.losses(coverage(tmp_path / "b", anew)) if loss.since is not None] == []


@settings(max_examples=20)
@given(kept=st.lists(st.booleans(), min_size=40, max_size=40))
def test_loss_of_a_counter_without_window_is_the_number_of_missing_events(
    tmp_path_factory: pytest.TempPathFactory, kept: list[bool]
) -> None:
    folder, events = tmp_path_factory.mktemp("loss"), HISTORY.slice(0, 40)
    part = events.filter(pa.array([*kept[:-1], True]))  # the last one gives both the same time
    losses = coverage(folder / "a", events).losses(coverage(folder / "b", part))
    after = {loss.name: loss.after for loss in losses}
    assert after.get("user_id", 40) == len(part)
    assert coverage(folder / "c", part).losses(coverage(folder / "d", events)) == []


def publish_both(folder: Path, ranker: FrozenRanker) -> Path:
    for name, events in (("first", HISTORY), ("second", BOTH)):
        (folder / name).mkdir()
        publish(write_bundle(folder / name, ranker, events), folder / "repository")
    return folder / "repository"


def test_publish_rejects_counters_without_the_history(
    tmp_path: Path, ranker: FrozenRanker, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = tmp_path / "repository"
    (tmp_path / "first").mkdir()
    publish(write_bundle(tmp_path / "first", ranker, HISTORY), repo)
    (tmp_path / "poor").mkdir()
    poor = write_bundle(tmp_path / "poor", ranker, RECENT)
    assert main(["publish", str(poor), str(repo)]) == 3
    (message,) = capsys.readouterr().err.splitlines()
    assert f"{poor} has poorer counters than {repo}/counted/1" in message
    assert "user_id 20 instead of 400" in message
    assert "logs.path" in message
    assert "--allow-poorer-counters" in message
    assert repository.list_versions(repo, "counted") == [1]
    assert main(["publish", str(poor), str(repo), "--allow-poorer-counters"]) == 0
    assert "user_id 20 instead of 400" in capsys.readouterr().err
    assert repository.read_release(repo, "counted").version == 2


def test_publish_reports_a_small_loss(tmp_path: Path, ranker: FrozenRanker, capsys: pytest.CaptureFixture[str]) -> None:
    for name, events in (("first", HISTORY), ("second", HISTORY.slice(4))):
        (tmp_path / name).mkdir()
        publish(write_bundle(tmp_path / name, ranker, events), tmp_path / "repository")
    assert "user_id 396 instead of 400" in capsys.readouterr().err


def test_publish_while_another_version_is_pinned_only_reports(
    tmp_path: Path, ranker: FrozenRanker, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = publish_both(tmp_path, ranker)
    repository.write_release(repo, "counted", Release(version=2, pinned=True))
    (tmp_path / "poor").mkdir()
    assert publish(write_bundle(tmp_path / "poor", ranker, RECENT), repo) == ("counted", 3)
    assert "user_id 20 instead of 420" in capsys.readouterr().err


def test_publish_over_a_damaged_version_works(
    tmp_path: Path, ranker: FrozenRanker, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = publish_both(tmp_path, ranker)
    (repo / "counted" / "2" / "counters" / "meta.json").unlink()
    assert publish(tmp_path / "first" / "bundle", repo) == ("counted", 3)
    assert "the counters are not compared with those of the current version" in capsys.readouterr().err


def load(repo: Path, server: RedisServer, **options: Any) -> dict[str, Any]:
    return load_counters(repo, server.url, None, "ranker", **options)


def test_load_of_older_or_poorer_counters_needs_the_flag_and_keeps_the_store(
    tmp_path: Path, ranker: FrozenRanker, empty_redis: RedisServer
) -> None:
    repo = publish_both(tmp_path, ranker)
    load(repo, empty_redis)
    before = {key: empty_redis.client.dump(key) for key in empty_redis.client.scan_iter()}
    repository.write_release(repo, "counted", Release(version=1))
    with pytest.raises(
        QualityGateError, match=r"has counters until 2025-06-15T14:43:02Z, but .* those until 2025-06-17"
    ):
        load(repo, empty_redis)
    (tmp_path / "poor").mkdir()
    publish(write_bundle(tmp_path / "poor", ranker, RECENT), repo, allow_poorer_counters=True)
    with pytest.raises(QualityGateError, match="user_id 20 instead of 420"):
        load(repo, empty_redis)
    assert {key: empty_redis.client.dump(key) for key in empty_redis.client.scan_iter()} == before
    assert load(repo, empty_redis, allow_poorer_counters=True)["counters_as_of"].startswith("2025-06-17")


def test_load_after_impressions_were_applied_says_that_they_must_be_applied_again(
    tmp_path: Path, ranker: FrozenRanker, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = publish_both(tmp_path, ranker)
    load(repo, empty_redis)
    capsys.readouterr()
    later = draw_events(200, 8, text=True, end=NOW + 7 * DAY)
    pq.write_table(later, tmp_path / "later.parquet")
    store = ["--repository", str(repo), "--to", empty_redis.url]
    assert main(["counters", "apply", str(tmp_path / "later.parquet"), *store]) == 0
    applied = json.loads(capsys.readouterr().out)["applied"]
    assert applied > 100
    assert main(["counters", "load", str(repo), "--to", empty_redis.url]) == 0
    assert "go back from 2025-06-22T13:16:59Z to 2025-06-17" in capsys.readouterr().err


def test_rollback_says_what_the_counters_and_the_store_hold(
    tmp_path: Path, ranker: FrozenRanker, empty_redis: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = publish_both(tmp_path, ranker)
    load(repo, empty_redis)
    assert main(["release", str(repo), "counted", "--version", "1"]) == 0
    text = capsys.readouterr().err
    assert "the counters of version 1 count until 2025-06-15T14:43:02Z, those of version 2 until 2025-06-17" in text
    assert "user_id 400 instead of 420" in text
    assert "with a feature store: it keeps the counters that it has" in text
    main(["release", str(repo), "counted", "--version", "2"])
    capsys.readouterr()
    assert main(["release", str(repo), "counted", "--version", "1", "--to", empty_redis.url]) == 0
    text = capsys.readouterr().err
    assert f"{empty_redis.url} keeps counters until 2025-06-17" in text
    assert f"'ranker counters load {repo} --model counted --allow-poorer-counters'" in text


def test_rollback_works_without_the_store(
    tmp_path: Path, ranker: FrozenRanker, capsys: pytest.CaptureFixture[str]
) -> None:
    repo = publish_both(tmp_path, ranker)
    assert main(["release", str(repo), "counted", "--version", "1", "--to", "redis://127.0.0.1:1/0"]) == 0
    assert "the counters in the feature store are unknown" in capsys.readouterr().err
    assert repository.read_release(repo, "counted").version == 1
