"""Metrics of several processes: each exposes the totals of all; the folder may be full or removed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values
from prometheus_client.exposition import generate_latest

from ranking.errors import ConfigError
from service.telemetry.bulk_histogram import BulkHistogram
from service.telemetry.metrics import Metrics
from service.telemetry.shared_metrics import (
    FOLDER,
    INITIAL_BYTES,
    SHARED_MEMORY,
    SharedCollector,
    SharedValues,
    remove_metrics,
    shared_folder,
)
from service.telemetry.shared_metrics import shared_metrics as new_folder
from tests.support.http_client import post_json
from tests.support.metrics import samples
from tests.support.processes import ServiceProcess, cli_after, started_service
from tests.support.waiting import TIMEOUT_SECONDS

LIBRARY_CLASSES = values.ValueClass, values.MmapedDict


@contextmanager
def limited_file_size(limit: int) -> Iterator[None]:
    """No file of this process grows beyond a number of bytes, as on a full filesystem."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for shared metrics; the test restores prometheus_client's classes."""
    for name, library_class in zip(("ValueClass", "MmapedDict"), LIBRARY_CLASSES, strict=True):
        monkeypatch.setattr(values, name, library_class)
    folder = tmp_path / "metrics"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    return folder


@pytest.fixture
def store(folder: Path) -> SharedValues:
    """The store that metrics created in the test use."""
    store = SharedValues(folder)
    store.install()
    return store


def exposed(folder: Path) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(SharedCollector(folder))
    return samples(generate_latest(registry).decode())


def test_values_are_stored_in_files_without_holes(store: SharedValues, folder: Path) -> None:
    Counter("requests", "Requests.", registry=None).inc(3)
    (file,) = folder.iterdir()
    assert file.stat().st_blocks * 512 >= file.stat().st_size == INITIAL_BYTES
    assert exposed(folder) == {"requests_total": 3}
    assert store.unshared == 0


@pytest.mark.usefixtures("store")
def test_file_that_grows_has_no_holes_and_keeps_its_values(folder: Path) -> None:
    requests = Counter("requests", "Requests.", ["model"], registry=None)
    for number in range(1000):
        requests.labels(f"model {number}").inc(number)
    (file,) = folder.iterdir()
    assert file.stat().st_blocks * 512 >= file.stat().st_size > INITIAL_BYTES
    assert exposed(folder) == {f"requests_total,model=model {number}": number for number in range(1000)}


def test_values_without_room_are_counted_and_said_once(
    store: SharedValues, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = Counter("stored", "Stored before.", registry=None)
    with limited_file_size(INITIAL_BYTES - 1):
        Gauge("queue", "Queue.", registry=None, multiprocess_mode="livesum").set(5)
        Histogram("seconds", "Seconds.", buckets=[1, 2], registry=None).observe(0.5)
        stored.inc()
    assert exposed(folder) == {"stored_total": 1}
    assert {path.name.partition("_")[0] for path in folder.iterdir()} == {"counter"}
    assert store.unshared == 5
    assert caplog.messages == [
        f"metrics cannot be stored in {folder} (File too large): new ones are missing until a restart"
    ]


def test_label_that_no_longer_fits_leaves_the_stored_ones(store: SharedValues, folder: Path) -> None:
    requests = Counter("requests", "Requests.", ["model"], registry=None)
    with limited_file_size(INITIAL_BYTES):
        for number in range(1000):
            requests.labels(f"model {number}").inc()
    assert exposed(folder) == {f"requests_total,model=model {n}": 1 for n in range(1000 - store.unshared)}
    assert 100 < store.unshared < 900


def test_histogram_that_no_longer_fits_is_missing_as_a_whole(store: SharedValues, folder: Path) -> None:
    seconds = Histogram("seconds", "Seconds.", ["model"], buckets=range(10), registry=None)
    with limited_file_size(INITIAL_BYTES):
        for number in range(100):
            seconds.labels(f"model {number}").observe(5.0)
    values = exposed(folder)
    models = {name.partition("model=")[2] for name in values if "_sum" in name}
    assert 10 < len(models) < 90
    assert all(values[f"seconds_bucket,le=+Inf,model={model}"] == 1 for model in models)
    assert len(values) == len(models) * 13  # sum, count and 11 buckets


def test_process_in_a_removed_folder_counts_and_collects_nothing(store: SharedValues, folder: Path) -> None:
    requests = Counter("requests", "Requests.", registry=None)
    shutil.rmtree(folder)
    requests.inc()
    Gauge("queue", "Queue.", registry=None, multiprocess_mode="livesum").set(5)
    assert exposed(folder) == {}
    assert store.unshared == 1


def test_metrics_without_the_folder_tell_that_values_are_missing(folder: Path) -> None:
    folder.rmdir()
    metrics = Metrics()
    metrics.requests.labels("200", "feed").inc()
    exposition = samples(metrics.exposition().decode())
    assert exposition[f"ranker_unshared_metrics,pid={os.getpid()}"] > 100
    folder.mkdir()
    metrics = Metrics()
    missing = f"ranker_unshared_metrics,pid={os.getpid()}"
    assert samples(metrics.exposition().decode())[missing] == 0
    shutil.rmtree(folder)
    assert samples(metrics.exposition().decode())[missing] == 1
    assert not any(name.startswith("ranker_requests") for name in exposition)
    assert any(name.startswith("process_open_fds") for name in exposition)


@pytest.mark.usefixtures("store")
def test_process_with_the_id_of_a_terminated_one_continues_its_counts(folder: Path) -> None:
    Counter("requests", "Requests.", registry=None).inc(3)
    SharedValues(folder).install()
    Counter("requests", "Requests.", registry=None).inc()
    assert exposed(folder) == {"requests_total": 4}


def test_bulk_histogram_without_room_counts_what_it_cannot_store(tmp_path: Path) -> None:
    histogram = BulkHistogram("score", "Scores.", [0.5], tmp_path)

    def counts() -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(histogram)
        return samples(generate_latest(registry).decode())

    one = np.ones((1, 1), np.float32)
    histogram.observe("feed", ["click"], one)
    with limited_file_size(100):
        histogram.observe("feed", ["like"], one)
    histogram.observe("feed", ["click"], one)
    assert [name for name in counts() if "_count" in name] == ["score_count,model=feed,task=click"]
    assert not list(tmp_path.glob("*.draft"))
    assert counts()["score_count,model=feed,task=click"] == 1
    assert histogram.unshared == 2  # the new block repeats the tasks of the previous one
    histogram.observe("feed", ["share"], one)
    assert counts()["score_count,model=feed,task=share"] == 1
    (tmp_path / "score-1-0.npy").write_bytes(b"damaged")
    assert counts()["score_count,model=feed,task=click"] == 1


def test_shared_metrics_sets_the_folder_and_restores_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (FOLDER, "TMPDIR"):
        monkeypatch.delenv(variable, raising=False)
    before = values.ValueClass, values.MmapedDict
    assert shared_folder() is None
    with new_folder() as folder:
        assert shared_folder() == folder
        assert folder.is_dir()
        assert folder.parent == SHARED_MEMORY
    assert (shared_folder(), values.ValueClass, values.MmapedDict) == (None, *before)
    assert not folder.exists()


def test_shared_metrics_without_a_usable_folder_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with (
        pytest.raises(ConfigError, match=r"nowhere: no folder for metrics can be created .*: set TMPDIR"),
        new_folder(),
    ):
        pass


FILL_TMPFS = """
# Mount a small filesystem, fill it, and count in metrics until files would have to grow.
import ctypes, os, sys
from pathlib import Path

folder = Path(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 0x44000, None):
    sys.exit(77)
if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, f"size={sys.argv[2]}k".encode()):
    sys.exit(77)
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
from prometheus_client import Counter, values
from service.telemetry.shared_metrics import SharedValues

store = SharedValues(folder)
if sys.argv[3] == "allocated":
    store.install()
requests = Counter("requests", "Requests.", ["model"], registry=None)
for number in range(1500):
    requests.labels(f"model {number}").inc()
print(store.unshared)
"""


@pytest.mark.parametrize("size_kb", [64, *(pytest.param(size, marks=pytest.mark.nightly) for size in (16, 100))])
def test_values_in_a_full_tmpfs_do_not_end_the_process(tmp_path: Path, size_kb: int) -> None:
    def run(kind: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", FILL_TMPFS, str(tmp_path), str(size_kb), kind]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    result = run("allocated")
    if result.returncode == 77:
        pytest.skip("mounting a tmpfs is not permitted")
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 0
    assert run("not allocated").returncode in (-signal.SIGBUS, 1), "prometheus_client alone would do"


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("count", [0, 1])
def test_remove_metrics_keeps_what_a_process_has_counted(folder: Path, count: int) -> None:
    Counter("requests", "Requests.", registry=None).inc(count)
    Histogram("seconds", "Seconds.", registry=None)
    Gauge("queue", "Queue.", registry=None, multiprocess_mode="livesum").set(5)
    other, damaged = folder / f"counter_1{os.getpid()}.db", folder / f"histogram_2_{os.getpid()}.db"
    other.write_bytes(b"of another process")
    damaged.write_bytes(b"")
    remove_metrics(folder, os.getpid())
    kept = {folder / f"counter_{os.getpid()}.db"} if count else set()
    assert set(folder.iterdir()) == {other, damaged} | kept


def test_damaged_file_does_not_hide_the_others(store: SharedValues, folder: Path) -> None:
    Counter("requests", "Requests.", registry=None).inc()
    for name, content in (("counter_1.db", b""), ("counter_2.db", b"\xff" * 64), ("histogram_3.db", b"\x10\0\0\0")):
        (folder / name).write_bytes(content)
    assert exposed(folder) == {"requests_total": 1}


# Processes


def workers(service: ServiceProcess) -> list[int]:
    """Return the process ids of both workers once both have metrics, until then an empty list."""
    pids = [int(name.rpartition("=")[2]) for name in service.metrics() if name.startswith("process_open_fds,pid=")]
    return pids if len(pids) == 2 else []


def loaded_workers(service: ServiceProcess) -> int:
    """Return how many processes have loaded the model since the start."""
    return service.output().count("serving feed version 1")


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspend a process briefly, so that the other worker answers."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def service(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceProcess]:
    """A service of two workers whose metrics folder is in ``tmp_path``."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    patient = cli_after("from service.server import supervisor; supervisor.HANG_SECONDS = 600")
    with started_service(repository, python=patient, workers=2, threads=1) as service:
        service.wait_until(lambda: loaded_workers(service) == 2 and workers(service))
        yield service


@pytest.mark.system
def test_every_worker_exposes_the_totals_of_all_workers_including_killed_ones(
    service: ServiceProcess, request_body: dict[str, Any], tmp_path: Path
) -> None:
    """Protects the totals of counters against the end of a worker; starts three workers."""
    first, second = workers(service)
    for other in (first, second):
        with suspended(other):
            for _ in range(20):
                post_json(f"{service.url}/v1/rank", request_body)
    expected = {
        "ranker_requests_total,model=feed,status=200": 40,
        "ranker_request_seconds_count": 40,
        "ranker_stage_seconds_count,stage=forward": 40,
        "ranker_rows_scored_total,model=feed,version=1": 480,
        "ranker_score_count,model=feed,task=click": 480,
        "ranker_model_info,model=feed,role=current,version=1": 1,
        "ranker_requests_in_flight": 0,
        "ranker_queue_rows": 0,
    }
    # Telemetry is recorded after the response, so that a worker could be suspended before it.
    service.wait_until(lambda: service.metrics().items() >= expected.items())
    for other in (first, second):
        with suspended(other):
            assert service.metrics().items() >= expected.items()

    with suspended(second):  # the first worker receives a request whose body never arrives
        connection = service.connect()
        head = b"POST /v1/rank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        connection.sendall(head)
        service.wait_for_metric("ranker_requests_in_flight", 1)
    os.kill(first, signal.SIGKILL)
    service.wait_until(lambda: (pids := workers(service)) and first not in pids)
    service.wait_until(lambda: loaded_workers(service) == 3)
    connection.close()
    assert service.metrics().items() >= expected.items()
    post_json(f"{service.url}/v1/rank", request_body)
    service.wait_for_metric("ranker_requests_total,model=feed,status=200", 41)

    assert list(tmp_path.glob("ranker-metrics-*"))
    service.process.terminate()
    service.process.wait(TIMEOUT_SECONDS)
    assert not list(tmp_path.glob("ranker-metrics-*"))


@pytest.mark.system
def test_next_service_removes_the_metrics_folder_of_a_killed_one_and_keeps_those_of_living_ones(
    service: ServiceProcess, repository: Path, tmp_path: Path
) -> None:
    (used,) = tmp_path.glob("ranker-metrics-*")
    with started_service(repository, workers=2, threads=1) as killed:
        killed.wait_until(lambda: len(list(tmp_path.glob("ranker-metrics-*/*.db"))) > len(list(used.glob("*.db"))))
        (abandoned,) = set(tmp_path.glob("ranker-metrics-*")) - {used}
        killed.kill()
    with started_service(repository, workers=2, threads=1) as following:
        following.wait_until(lambda: not abandoned.exists())
    assert used.is_dir()
    assert workers(service)
