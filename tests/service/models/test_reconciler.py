"""The reconciler follows current.json, and rejects versions that cannot be served."""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.jobs.publish import publish
from pipelines.jobs.release import change_release
from ranking.artifacts import checksums
from ranking.artifacts.atomic_files import files_in
from ranking.errors import BundleError
from service.models import reconciler
from service.models.reconciler import _freeze_objects
from tests.service.models.conftest import Service
from tests.support.open_files import open_files

Serve = Callable[..., Service]


def corrupt(file: Path) -> bytes:
    """Flip a bit in the middle of a file and return the original content."""
    content = file.read_bytes()
    middle = len(content) // 2
    file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    return content


def logged_errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_release_of_another_version_is_served(repo: Path, serve: Serve) -> None:
    service = serve(repo)
    for version in (2, 1, 2):
        service.release(version=version)
        assert service.roles == {"current": str(version)}


@pytest.mark.parametrize("role", ["canary", "shadow"])
def test_promoted_canary_or_shadow_is_not_loaded_again(repo: Path, serve: Serve, role: str) -> None:
    service = serve(repo)
    service.release(**{role: {"version": 2, "weight": 0.1} if role == "canary" else 2})
    before = getattr(service.models.get("feed"), role)
    assert service.roles == {"current": "1", role: "2"}
    service.release(version=2)
    assert service.roles == {"current": "2"}
    assert service.models.get("feed").current is before


def test_model_published_later_is_served(repo: Path, bundle: Path, serve: Serve) -> None:
    service = serve(repo)
    publish(bundle, repo, "shop")
    service.reconciler.poll()
    assert service.models.get("shop").current.version == "1"
    assert service.roles == {"current": "1"}


def test_model_whose_folder_is_removed_continues_to_be_served(repo: Path, bundle: Path, serve: Serve) -> None:
    publish(bundle, repo, "shop")
    service = serve(repo)
    shutil.rmtree(repo / "shop")
    service.reconciler.poll()
    assert service.models.get("shop").current.version == "1"


def test_model_info_metric_has_the_version_of_each_role(repo: Path, serve: Serve) -> None:
    service = serve(repo)
    service.release(canary={"version": 2, "weight": 0.1})
    info = 'ranker_model_info{{model="feed",role="{}",version="{}"}}'.format
    assert [service.metric(info("current", "1")), service.metric(info("canary", "2"))] == [1, 1]
    service.release(version=2)
    rows = [("current", "1"), ("canary", "2"), ("current", "2")]
    assert [service.metric(info(*row)) for row in rows] == [0, 0, 1]
    assert service.metric('ranker_model_load_seconds{model="feed"}') > 0


def test_corrupt_version_is_rejected_logged_and_counted_once(
    repo: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve(repo)
    corrupt(repo / "feed" / "2" / "weights.safetensors")
    service.release(version=2)
    for _ in range(3):
        service.reconciler.poll()
    assert service.roles == {"current": "1"}
    assert service.metric('ranker_model_load_failures_total{model="feed"}') == 1
    (message,) = logged_errors(caplog)
    assert message.startswith("rejected version 2 of 'feed': ")
    assert "weights.safetensors was altered" in message


def test_repaired_version_is_served_at_the_next_poll(repo: Path, serve: Serve) -> None:
    service = serve(repo)
    weights = repo / "feed" / "2" / "weights.safetensors"
    content = corrupt(weights)
    service.release(version=2)
    weights.write_bytes(content)
    service.reconciler.poll()
    assert service.roles == {"current": "2"}
    assert service.reconciler.rejected.reasons("feed") == {}


def test_released_version_without_folder_is_served_once_it_exists(repo: Path, serve: Serve) -> None:
    service = serve(repo)
    shutil.move(repo / "feed" / "2", repo / "elsewhere")
    (repo / "feed" / "current.json").write_text('{"version": 2}')
    service.reconciler.poll()
    assert service.roles == {"current": "1"}
    assert "2 does not exist" in service.reconciler.rejected.reasons("feed")[2]
    (repo / "elsewhere").rename(repo / "feed" / "2")
    service.reconciler.poll()
    assert service.roles == {"current": "2"}


def test_corrupt_canary_does_not_affect_the_other_roles(repo: Path, serve: Serve, bundle: Path) -> None:
    publish(bundle, repo)
    service = serve(repo)
    corrupt(repo / "feed" / "1" / "golden.parquet")
    service.release(version=3, canary={"version": 1, "weight": 0.5}, shadow=2)
    assert service.roles == {"current": "3", "shadow": "2"}
    assert service.models.get("feed").weight == 0.0


@pytest.mark.parametrize("content", ["{", '{"version": "2"}', '{"version": 2, "canary": 3}'])
def test_damaged_current_json_is_rejected_and_routing_is_unchanged(
    repo: Path, serve: Serve, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve(repo)
    (repo / "feed" / "current.json").write_text(content)
    for _ in range(3):
        service.reconciler.poll()
    assert service.roles == {"current": "1"}
    (message,) = logged_errors(caplog)
    assert message.startswith("rejected current.json of 'feed': ")
    (repo / "feed" / "current.json").write_text('{"version": 2}')
    service.reconciler.poll()
    assert service.roles == {"current": "2"}


def test_unexpected_load_failure_is_rejected_and_logged_with_traceback(
    repo: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve(repo)

    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("service.models.reconciler.load_model", fail)
    service.release(version=2)
    assert service.roles == {"current": "1"}
    assert service.reconciler.rejected.reasons("feed")[2] == "MemoryError"
    assert [record.exc_info is not None for record in caplog.records if record.levelno >= logging.ERROR] == [True]


def test_reload_retries_a_rejected_version(repo: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    service = serve(repo)
    with monkeypatch.context() as patch:
        patch.setattr("service.models.reconciler.load_model", lambda *_: (repo / "nothing").stat())
        service.release(version=2)
    service.reconciler.poll()
    assert service.roles == {"current": "1"}
    service.reconciler.reload("feed")
    assert service.roles == {"current": "2"}


def test_initial_load_with_one_corrupt_model_serves_the_others(repo: Path, bundle: Path, serve: Serve) -> None:
    publish(bundle, repo, "shop")
    corrupt(repo / "shop" / "1" / "manifest.json")
    service = serve(repo)
    assert service.roles == {"current": "1"}
    assert service.models.routing("shop") is None
    assert service.models.ready


def test_initial_load_without_a_servable_model_raises_bundle_error(repo: Path, serve: Serve) -> None:
    corrupt(repo / "feed" / "1" / "manifest.json")
    with pytest.raises(BundleError, match=r"manifest\.json was altered"):
        serve(repo)


def test_initial_load_without_the_default_model_raises_bundle_error(repo: Path, bundle: Path, serve: Serve) -> None:
    publish(bundle, repo, "shop")
    corrupt(repo / "shop" / "1" / "manifest.json")
    with pytest.raises(BundleError, match=r"shop.*manifest\.json was altered"):
        serve(repo, default_model="shop")
    assert serve(repo, default_model="feed").models.ready


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def table_copies() -> dict[str, str]:
    """Return the inode of each copy of a table that this process has in memory, and that of the copied file."""
    return dict(re.findall(r" (\d+) +/memfd:ranker-(\w+)-", Path("/proc/self/maps").read_text()))


@pytest.fixture
def copied_versions(repo: Path) -> Callable[[], set[str]]:
    """Return a function that returns the versions whose tables this process has in memory.

    Copies of earlier tests may remain, and the inode of their file may now be that of a file of ``repo``.
    """
    earlier = table_copies().keys()

    def versions() -> set[str]:
        names = {
            f"{file.stat().st_ino:x}": file.relative_to(repo / "feed").parts[0] for file in repo.glob("feed/*/*/*.npy")
        }
        files = {file for copy, file in table_copies().items() if copy not in earlier}
        return {names[file] for file in files & names.keys()}

    return versions


@pytest.mark.usefixtures("no_garbage_collection")
def test_retired_version_is_freed_after_its_last_request_without_garbage_collection(
    repo: Path, serve: Serve, copied_versions: Callable[[], set[str]]
) -> None:
    service = serve(repo)
    in_flight = service.models.get("feed").current
    old = weakref.ref(in_flight)
    service.release(version=2)
    assert copied_versions() == {"1", "2"}
    assert dict(service.reconciler.retired) == {("feed", 1): in_flight}
    del in_flight
    assert old() is None
    assert dict(service.reconciler.retired) == {}
    assert copied_versions() == {"2"}


@pytest.mark.usefixtures("no_garbage_collection")
def test_repeated_releases_do_not_leak_versions_or_files(
    repo: Path, serve: Serve, copied_versions: Callable[[], set[str]]
) -> None:
    service = serve(repo)
    models = []
    files = len(open_files(repo))
    for index in range(6):
        service.release(version=2 - index % 2)
        models.append(weakref.ref(service.models.get("feed").current))
    assert [model() is not None for model in models] == [False] * 5 + [True]
    assert copied_versions() == {"1"}
    assert len(open_files(repo)) == files


def test_frozen_version_in_a_reference_cycle_is_freed_after_it_is_replaced(
    repo: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "_freeze_objects", _freeze_objects)
    service = serve(repo)
    cycle: list[Any] = [service.models.get("feed").current]
    cycle.append(cycle)
    old = weakref.ref(cycle[0])
    gc.freeze()
    del cycle
    service.release(version=2)
    assert gc.get_freeze_count() > 0
    assert old() is not None
    service.release(version=1)
    assert old() is None


@pytest.mark.parametrize("options", [{"copy_tables": False}, {"workers": 2}])
def test_tables_are_mapped_from_their_files_without_copies(
    repo: Path, serve: Serve, options: dict[str, Any], copied_versions: Callable[[], set[str]]
) -> None:
    service = serve(repo, **options)
    assert service.roles == {"current": "1"}
    assert copied_versions() == set()
    assert f"{repo}/feed/1/items/rows.npy" in Path("/proc/self/maps").read_text()


def test_second_model_does_not_change_the_default_model(repo: Path, bundle: Path, serve: Serve) -> None:
    service = serve(repo)
    publish(bundle, repo, "shop")
    service.reconciler.poll()
    assert service.models.get().current.name == "feed"
    assert serve(repo).models.get().current.name == "feed"
    change_release(repo, "shop", {}, make_default=True)
    service.reconciler.poll()
    assert service.models.get().current.name == "shop"
    assert serve(repo, default_model="feed").models.get().current.name == "feed"


def test_repository_of_an_earlier_version_keeps_its_only_model_as_default(
    repo: Path, bundle: Path, serve: Serve
) -> None:
    (repo / "repository.json").unlink()
    service = serve(repo)
    assert service.models.get().current.name == "feed"
    publish(bundle, repo, "shop")
    service.reconciler.poll()
    assert service.models.get().current.name == "feed"


def test_default_model_is_unchanged_after_repository_json_is_removed(repo: Path, bundle: Path, serve: Serve) -> None:
    publish(bundle, repo, "shop")
    service = serve(repo)
    (repo / "repository.json").unlink()
    service.reconciler.poll()
    assert service.models.get().current.name == "feed"


@pytest.mark.parametrize("content", ["{", "pipe"])
def test_unusable_repository_json_is_logged_once_and_the_default_unchanged(
    repo: Path, bundle: Path, serve: Serve, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(bundle, repo, "shop")
    service = serve(repo)
    file = repo / "repository.json"
    file.unlink()
    if content == "pipe":
        os.mkfifo(file)
    else:
        file.write_text(content)
    for _ in range(3):
        service.reconciler.poll()
    assert service.models.get().current.name == "feed"
    (message,) = logged_errors(caplog)
    assert message.startswith("the default model is unchanged: ")


def test_default_model_that_cannot_be_served_makes_the_service_unready(
    repo: Path, bundle: Path, unloaded: Serve
) -> None:
    publish(bundle, repo, "shop")
    content = corrupt(repo / "feed" / "1" / "manifest.json")
    service = unloaded(repo)
    service.reconciler.poll()
    assert service.models.get("shop").current.version == "1"
    assert not service.models.ready
    (repo / "feed" / "1" / "manifest.json").write_bytes(content)
    service.reconciler.poll()
    assert service.models.ready


def test_time_of_the_last_read_advances_only_if_every_release_is_read(
    repo: Path, bundle: Path, unloaded: Serve
) -> None:
    publish(bundle, repo, "shop")
    service, sample = unloaded(repo), "ranker_repository_read_timestamp_seconds"
    assert service.metric(sample) == 0
    start = time.time()
    service.reconciler.poll()
    first = service.metric(sample)
    assert start <= first <= time.time()
    (repo / "shop" / "current.json").unlink()
    os.mkfifo(repo / "shop" / "current.json")
    service.reconciler.poll()
    assert service.metric(sample) == first
    (repo / "shop" / "current.json").unlink()
    service.reconciler.poll()
    assert service.metric(sample) > first


def test_pipe_in_place_of_a_bundle_file_is_rejected(repo: Path, serve: Serve) -> None:
    service = serve(repo)
    for file in files_in(repo / "feed" / "2"):
        content = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        (repo / "feed" / "current.json").write_text('{"version": 2}')
        service.reconciler.poll()
        assert service.roles == {"current": "1"}, file
        reason = service.reconciler.rejected.reasons("feed")[2]
        assert "a pipe" in reason or "it has no SHA256SUMS" in reason, (file, reason)
        file.unlink()
        file.write_bytes(content)
        service.release(version=1)
    service.release(version=2)
    assert service.roles == {"current": "2"}


def test_version_that_changes_while_it_is_loaded_is_rejected_and_then_served(
    repo: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, weights = serve(repo), repo / "feed" / "2" / "weights.safetensors"
    content = weights.read_bytes()

    def verify_and_change(folder: Path) -> None:
        checksums.verify_files(folder)
        weights.write_bytes(content[:-4] + b"\0\0\0\0")

    (repo / "feed" / "current.json").write_text('{"version": 2}')
    with monkeypatch.context() as patch:
        patch.setattr("ranking.artifacts.bundle.verify_files", verify_and_change)
        service.reconciler.poll()
    assert "was changed while it was read" in service.reconciler.rejected.reasons("feed")[2]
    weights.write_bytes(content)
    service.reconciler.poll()
    assert service.roles == {"current": "2"}
