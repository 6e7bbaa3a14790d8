"""The watcher polls the repository in the background."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.jobs.release import change_release
from ranking.errors import BundleError
from service.models.reconciler import Reconciler, Watcher
from service.models.registry import ModelRegistry
from service.settings import Settings
from service.telemetry.metrics import Metrics
from tests.service.models.conftest import Service
from tests.support.waiting import wait_until


def test_watcher_serves_released_versions_until_it_is_stopped(repo: Path, serve: Callable[[Path], Service]) -> None:
    service = serve(repo)
    watcher = Watcher(service.reconciler, poll_seconds=0.01)
    watcher.start()
    try:
        for version in (2, 1):
            change_release(repo, "feed", {"version": version})
            expected = {"current": str(version)}
            wait_until(lambda expected=expected: service.roles == expected)
    finally:
        watcher.stop()
    change_release(repo, "feed", {"version": 2})
    time.sleep(0.1)
    assert service.roles == {"current": "1"}


def test_watcher_logs_an_unavailable_repository_once_and_recovers(
    repo: Path, serve: Callable[[Path], Service], caplog: pytest.LogCaptureFixture
) -> None:
    service = serve(repo)
    watcher = Watcher(service.reconciler, poll_seconds=0.01)
    watcher.start()
    try:
        shutil.move(repo, repo.with_name("away"))
        wait_until(lambda: "the repository cannot be read" in caplog.text)
        time.sleep(0.1)
        assert service.roles == {"current": "1"}
        shutil.move(repo.with_name("away"), repo)
        change_release(repo, "feed", {"version": 2})
        wait_until(lambda: service.roles == {"current": "2"})
    finally:
        watcher.stop()
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_watcher_without_a_servable_model_reports_the_startup_failure(tmp_path: Path) -> None:
    failures: list[Exception] = []
    models = ModelRegistry(None)
    reconciler = Reconciler(Settings(repository=tmp_path), models, Metrics())
    watcher = Watcher(reconciler, 0.01, failures.append)
    watcher.start()
    wait_until(lambda: failures)
    watcher.stop()
    assert isinstance(failures[0], BundleError)
    assert "holds no published model" in str(failures[0])
    assert not models.ready
