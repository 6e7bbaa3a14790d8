"""Values in files of a shared folder that is full, removed or damaged."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values
from prometheus_client.exposition import generate_latest

from service.telemetry.bulk_histogram import BulkHistogram
from service.telemetry.multiprocess import FOLDER, shared_metrics
from service.telemetry.shared_values import INITIAL_BYTES, SharedCollector, SharedValues
from tests.support.metrics import samples

PID = os.getpid()


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
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedValues:
    """The store that metrics created in the test use."""
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)  # restored after the test
    store = SharedValues(tmp_path / "metrics")
    store.install()
    return store


def exposed(store: SharedValues, folder: Path) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(SharedCollector(folder, store))
    return samples(generate_latest(registry).decode())


def test_values_are_stored_in_files_without_holes(store: SharedValues, tmp_path: Path) -> None:
    Counter("requests", "Requests.", registry=None).inc(3)
    (file,) = (tmp_path / "metrics").iterdir()
    assert file.stat().st_blocks * 512 >= file.stat().st_size == INITIAL_BYTES
    assert exposed(store, tmp_path / "metrics") == {"requests_total": 3}
    assert store.unshared == 0


def test_file_that_grows_has_no_holes_and_keeps_its_values(store: SharedValues, tmp_path: Path) -> None:
    requests = Counter("requests", "Requests.", ["model"], registry=None)
    for number in range(1000):
        requests.labels(f"model {number}").inc(number)
    (file,) = (tmp_path / "metrics").iterdir()
    assert file.stat().st_blocks * 512 >= file.stat().st_size > INITIAL_BYTES
    expected = {f"requests_total,model=model {number}": number for number in range(1000)}
    assert exposed(store, tmp_path / "metrics") == expected


def test_values_of_a_full_folder_are_exposed_with_the_process_id_and_stored_later(
    store: SharedValues, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "metrics"
    with limited_file_size(INITIAL_BYTES - 1):
        requests = Counter("requests", "Requests.", ["status"], registry=None)
        requests.labels("200").inc()
        requests.labels("404").inc()
        queue = Gauge("queue", "Queue.", registry=None, multiprocess_mode="livesum")
        queue.set(5)
        seconds = Histogram("seconds", "Seconds.", buckets=[1, 2], registry=None)
        seconds.observe(0.5)
        seconds.observe(1.5)
        assert list(folder.iterdir()) == []
        assert exposed(store, folder) == {
            f"requests_total,pid={PID},status=200": 1,
            f"requests_total,pid={PID},status=404": 1,
            f"queue,pid={PID}": 5,
            f"seconds_sum,pid={PID}": 2,
            f"seconds_count,pid={PID}": 2,
            f"seconds_bucket,le=1.0,pid={PID}": 1,
            f"seconds_bucket,le=2.0,pid={PID}": 2,
            f"seconds_bucket,le=+Inf,pid={PID}": 2,
        }
        assert store.unshared == 7
    requests.labels("200").inc()
    assert exposed(store, folder) == {
        "requests_total,status=200": 2,
        "requests_total,status=404": 1,
        "queue": 5,
        "seconds_sum": 2,
        "seconds_count": 2,
        "seconds_bucket,le=1.0": 1,
        "seconds_bucket,le=2.0": 2,
        "seconds_bucket,le=+Inf": 2,
    }
    assert store.unshared == 0
    warning, recovered = caplog.messages
    assert f"metrics cannot be stored in {folder} (File too large)" in warning
    assert recovered == f"metrics are stored in {folder} again"


def test_label_that_no_longer_fits_is_exposed_beside_the_stored_ones(store: SharedValues, tmp_path: Path) -> None:
    requests = Counter("requests", "Requests.", ["model"], registry=None)
    with limited_file_size(INITIAL_BYTES):
        for number in range(1000):
            requests.labels(f"model {number}").inc()
        counts = exposed(store, tmp_path / "metrics")
        assert len(counts) == 1000
        assert sum("pid" in name for name in counts) == store.unshared > 100
    assert set(exposed(store, tmp_path / "metrics")) == {f"requests_total,model=model {n}" for n in range(1000)}


def test_values_of_a_removed_folder_are_stored_in_a_new_one(store: SharedValues, tmp_path: Path) -> None:
    requests = Counter("requests", "Requests.", registry=None)
    requests.inc()
    shutil.rmtree(tmp_path / "metrics")
    requests.inc()
    (tmp_path / "metrics").touch()  # cannot be created again yet
    assert exposed(store, tmp_path / "metrics") == {f"requests_total,pid={PID}": 2}
    (tmp_path / "metrics").unlink()
    assert exposed(store, tmp_path / "metrics") == {"requests_total": 2}


def test_damaged_file_of_another_process_does_not_hide_the_others(store: SharedValues, tmp_path: Path) -> None:
    Counter("requests", "Requests.", registry=None).inc()
    for name, content in (("counter_1.db", b""), ("counter_2.db", b"\xff" * 64), ("histogram_3.db", b"\x10\0\0\0")):
        (tmp_path / "metrics" / name).write_bytes(content)
    assert exposed(store, tmp_path / "metrics") == {"requests_total": 1}


def test_process_with_the_id_of_a_terminated_one_continues_its_counts(store: SharedValues, tmp_path: Path) -> None:
    Counter("requests", "Requests.", registry=None).inc(3)
    Gauge("queue", "Queue.", registry=None, multiprocess_mode="livesum").set(5)
    SharedValues(tmp_path / "metrics").install()
    Counter("requests", "Requests.", registry=None).inc()
    Gauge("queue", "Queue.", registry=None, multiprocess_mode="livesum")
    assert exposed(store, tmp_path / "metrics") == {"requests_total": 4, "queue": 0}


def test_bulk_histogram_of_a_full_folder_is_exposed_with_the_process_id_and_stored_later(tmp_path: Path) -> None:
    histogram = BulkHistogram("score", "Scores.", [0.5], tmp_path)

    def counts() -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(histogram)
        return samples(generate_latest(registry).decode())

    one = np.ones((1, 1), np.float32)
    histogram.observe("feed", ["click"], one)
    with limited_file_size(100):
        histogram.observe("feed", ["like"], one)
        assert counts()["score_count,model=feed,task=click"] == 1
        assert counts()[f"score_count,model=feed,pid={PID},task=like"] == 1
        assert histogram.unshared == 2  # the new file repeats the tasks of the previous one
        histogram.observe("feed", ["click", "like"], np.ones((1, 2), np.float32))
    assert counts()["score_count,model=feed,task=click"] == 2
    assert counts()["score_count,model=feed,task=like"] == 2
    assert histogram.unshared == 0
    for path in tmp_path.iterdir():
        path.unlink()
    histogram.observe("feed", ["like"], one)
    assert counts()["score_count,model=feed,task=like"] == 3
    (tmp_path / "score-1-0.npy").write_bytes(b"damaged")
    assert counts()["score_count,model=feed,task=like"] == 3


def test_shared_metrics_without_a_usable_folder_warns_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with shared_metrics() as folder:
        assert os.environ[FOLDER] == str(folder)
    (message,) = caplog.messages
    assert message == f"the metrics folder {folder} cannot be created (No such file or directory)"


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
from prometheus_client import Counter
from service.telemetry.shared_values import SharedValues

store = SharedValues(folder)
if sys.argv[3] == "allocated":
    store.install()
else:
    from prometheus_client import values
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = values.MultiProcessValue()
requests = Counter("requests", "Requests.", ["model"], registry=None)
for number in range(1500):
    requests.labels(f"model {number}").inc()
print(store.unshared)
"""


@pytest.mark.parametrize("size_kb", [16, 64, 100])
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
