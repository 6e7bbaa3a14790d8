"""The watcher polls the repository in the background."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.jobs.publish import publish
from pipelines.jobs.release import change_release
from ranking.artifacts import repository
from service.models import watcher as watcher_module
from service.models.watcher import Watcher
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
    # The version or current.json is also rejected if the repository disappears during a poll.
    assert len([message for message in caplog.messages if "the repository cannot be read" in message]) == 1


def test_watcher_waits_for_a_model_that_can_be_served(
    repo: Path, bundle: Path, unloaded: Callable[[Path], Service]
) -> None:
    service = unloaded(repo.with_name("later"))
    watcher = Watcher(service.reconciler, 0.01)
    watcher.start()
    try:
        publish(bundle, repo.with_name("later"))
        wait_until(lambda: service.models.ready)
        assert service.roles == {"current": "1"}
    finally:
        watcher.stop()


def test_stop_does_not_wait_for_a_repository_that_hangs(
    repo: Path, serve: Callable[[Path], Service], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service, released, hangs = serve(repo), threading.Event(), threading.Event()
    list_models, other_threads = repository.list_models, threading.enumerate()

    def hang(path: Path) -> list[str]:
        if path != repo:  # Other tests of this process have services of their own.
            return list_models(path)
        hangs.set()
        released.wait()
        return []

    monkeypatch.setattr(repository, "list_models", hang)
    monkeypatch.setattr(watcher_module, "STOP_SECONDS", 0.05)
    watcher = Watcher(service.reconciler, 0.01)
    watcher.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "watcher" and thread not in other_threads]
    wait_until(hangs.is_set)
    watcher.stop()
    assert thread.is_alive()
    assert "the repository does not respond" in caplog.text
    released.set()
    wait_until(lambda: not thread.is_alive())
