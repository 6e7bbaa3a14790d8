"""The repository is looked at again and again, whatever it looks like."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.jobs.release import change_release
from ranking.errors import BundleError
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.models.watcher import Watcher
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.service.models.conftest import Service

SECONDS = 60.0


def until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < give_up, "it did not come to that"
        time.sleep(0.01)


def test_what_is_released_is_served_without_being_asked(repo: Path, serve: Callable[[Path], Service]) -> None:
    service = serve(repo)
    watcher = Watcher(service.reconciler, seconds=0.01)
    watcher.start()
    try:
        for version in (2, 1):
            change_release(repo, "feed", {"version": version})
            until(lambda expected=version: service.roles == {"current": str(expected)})
    finally:
        watcher.stop()
    change_release(repo, "feed", {"version": 2})
    time.sleep(0.1)
    assert service.roles == {"current": "1"}


def test_a_repository_that_is_away_for_a_while_is_told_once(
    repo: Path, serve: Callable[[Path], Service], caplog: pytest.LogCaptureFixture
) -> None:
    service = serve(repo)
    watcher = Watcher(service.reconciler, seconds=0.01)
    watcher.start()
    try:
        shutil.move(repo, repo.with_name("away"))
        until(lambda: "cannot be looked at" in caplog.text)
        time.sleep(0.1)
        assert service.roles == {"current": "1"}
        shutil.move(repo.with_name("away"), repo)
        change_release(repo, "feed", {"version": 2})
        until(lambda: service.roles == {"current": "2"})
    finally:
        watcher.stop()
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_who_finds_nothing_to_serve_gives_up_and_says_why(tmp_path: Path) -> None:
    given_up: list[Exception] = []
    models = ModelRegistry(None)
    reconciler = Reconciler(Settings(repository=tmp_path), models, Metrics())
    watcher = Watcher(reconciler, 0.01, given_up.append)
    watcher.start()
    until(lambda: bool(given_up))
    watcher.stop()
    assert isinstance(given_up[0], BundleError)
    assert "holds no published model" in str(given_up[0])
    assert not models.ready
