"""``ranker collect`` from object storage: each object once, also after interruptions; errors that say what to do."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.main import main
from pipelines.jobs import collect_objects as job
from pipelines.loop.feedback_files import find_feedback_files, oldest_unfinished
from ranking.artifacts.log_names import FEEDBACK
from ranking.artifacts.object_store import ObjectLocation, ObjectStore
from ranking.errors import BundleError, LogError, OutputError
from tests.support.loop_folders import LoopFolders
from tests.support.ports import HOST, free_port
from tests.support.waiting import TIMEOUT_SECONDS, wait_until


class Killed(BaseException):
    """Ends a collection without any of its error handling."""


@pytest.fixture
def source(location: str) -> ObjectLocation:
    return ObjectLocation(location)


@pytest.fixture
def store(location: str) -> ObjectStore:
    return ObjectStore(location)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def put(store: ObjectStore, *objects: tuple[str, bytes]) -> None:
    for name, content in objects:
        store.write(name, content)


def served_files(folder: Path, count: int) -> list[tuple[str, bytes]]:
    """Return the names and contents of files of a served log."""
    folders = LoopFolders(folder / "source")
    paths = [folders.serve({f"r{number}": (0, ["a", "b"])}) for number in range(count)]
    return [(path.name, path.read_bytes()) for path in paths]


def feedback(*numbers: int) -> list[tuple[str, bytes]]:
    """Return objects of feedback with one line each, in the order of their names."""
    start = datetime(2026, 3, 1, 12, tzinfo=UTC)
    times = [start + timedelta(seconds=number) for number in numbers]
    names = [f"{FEEDBACK.start(time)}-{number:012x}.jsonl" for time, number in zip(times, numbers, strict=True)]
    return [(name, b'{"request_id": "r%d"}\n' % number) for name, number in zip(names, numbers, strict=True)]


def collected(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((path.name, path.read_bytes()) for path in folder.iterdir() if path.is_file())


def all_names(store: ObjectStore) -> list[str]:
    return store.names(lambda _: True, 1000)


def lines_of(folder: Path) -> list[bytes]:
    return [line for path in find_feedback_files(folder) for line in path.read_bytes().splitlines()]


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[None]:
    """End the collection when it calls a method."""

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, kill)
        with pytest.raises(Killed):
            yield


def test_collect_moves_the_files_of_a_served_log(
    source: ObjectLocation, store: ObjectStore, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = served_files(tmp_path, 3)
    put(store, *files, ("other.txt", b"x"), ("folder/served-1.parquet", b"x"))
    assert main(["collect", f"{source}/", "--to", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": 3}
    assert collected(out) == files
    assert all_names(store) == ["other.txt"], "objects of others stay"
    assert len(store.paths("folder")) == 1
    assert main(["collect", str(source), "--to", str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == {"files": 0}


def test_collect_keeps_a_file_that_an_interrupted_collection_wrote(
    source: ObjectLocation, store: ObjectStore, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = served_files(tmp_path, 2)
    put(store, *files)
    with killed_at(monkeypatch, ObjectStore, "delete"):
        job.collect_objects(source, out)
    assert collected(out) == files
    (out / files[0][0]).write_bytes(b"kept")  # as if it was rewritten by ranker forget
    assert job.collect_objects(source, out) == 0
    assert collected(out) == [(files[0][0], b"kept"), files[1]]
    assert all_names(store) == []


def test_collect_more_objects_than_one_listing(
    source: ObjectLocation, store: ObjectStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "MAX_LISTED", 7)
    monkeypatch.setattr(job, "THREADS", 2)
    monkeypatch.setattr(job, "DELETED", 3)
    put(store, *feedback(*range(20)))
    assert job.collect_objects(source, out) == 3
    assert lines_of(out) == [content.strip() for _, content in feedback(*range(20))]
    assert all_names(store) == []


def test_feedback_is_merged_to_a_file_and_marked_as_complete(
    source: ObjectLocation, store: ObjectStore, out: Path
) -> None:
    objects, start = feedback(*range(5)), datetime.now(UTC)
    put(store, *objects)
    assert job.collect_objects(source, out) == 1
    (file,) = find_feedback_files(out)
    assert file.read_bytes() == b"".join(content for _, content in objects)
    names = FEEDBACK.parse(file.name), FEEDBACK.parse(objects[0][0])
    assert names[0] == names[1], "the time is that of the first object"
    complete = oldest_unfinished(out)
    assert complete is not None
    assert start - job.LATE - timedelta(seconds=1) <= complete < datetime.now(UTC)
    assert [len(files) for _, _, files in os.walk(out)] == [2, 0], "only the file and the mark remain"
    put(store, *feedback(5))
    assert job.collect_objects(source, out) == 1
    assert len(lines_of(out)) == 6


def test_feedback_of_many_bytes_becomes_several_files(
    source: ObjectLocation, store: ObjectStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "MAX_BYTES", 50)
    put(store, *feedback(*range(7)))
    assert job.collect_objects(source, out) == 3
    assert len(lines_of(out)) == 7


@pytest.mark.parametrize(
    ("owner", "name", "written"),
    [
        pytest.param(job, "replace_file", 0, id="before the file"),
        pytest.param(ObjectStore, "delete", 3, id="before the objects are deleted"),
        pytest.param(Path, "unlink", 3, id="before the journal or the previous mark is removed"),
    ],
)
def test_feedback_collected_by_a_command_that_was_killed_is_neither_lost_nor_repeated(
    source: ObjectLocation,
    store: ObjectStore,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    written: int,
) -> None:
    put(store, *feedback(9))
    job.collect_objects(source, out)  # the mark exists
    put(store, *feedback(1, 2, 3))
    with killed_at(monkeypatch, owner, name):
        job.collect_objects(source, out)
    assert len(lines_of(out)) == 1 + written
    put(store, *feedback(0, 4))  # an older one was slower
    job.collect_objects(source, out)
    assert sorted(lines_of(out)) == [b'{"request_id": "r%d"}' % number for number in (*range(5), 9)]
    assert all_names(store) == []
    assert [len(files) for _, _, files in os.walk(out)][1:] == [0], "there is no journal"


def test_feedback_is_not_marked_as_complete_before_it_is_in_files(
    source: ObjectLocation, store: ObjectStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, *feedback(1))
    with killed_at(monkeypatch, job, "write_json"):
        job.collect_objects(source, out)
    assert oldest_unfinished(out) == datetime.fromtimestamp(0, UTC)


def test_follow_waits_for_new_objects_and_survives_errors(
    source: ObjectLocation,
    store: ObjectStore,
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(job, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(job, "FEEDBACK_SECONDS", 0.0)
    files, stop, failing, failed = served_files(tmp_path, 2), threading.Event(), threading.Event(), []
    names = ObjectStore.names

    def unreliable(self: ObjectStore, *arguments: Any) -> list[str]:
        if failing.is_set():
            failed.append(True)
            raise BundleError("s3://shop cannot be accessed (down)")
        return names(self, *arguments)

    monkeypatch.setattr(ObjectStore, "names", unreliable)
    with ThreadPoolExecutor(1) as pool:
        collection = pool.submit(job.collect_objects, source, out, stop)
        try:
            put(store, files[0])
            wait_until((out / files[0][0]).exists, "the first file is collected")
            failing.set()
            wait_until(lambda: len(failed) > 2, "the storage fails")
            failing.clear()
            put(store, files[1], *feedback(1))
            wait_until((out / files[1][0]).exists, "the second file is collected")
            wait_until(lambda: lines_of(out), "the feedback is collected")
        finally:
            stop.set()
        assert collection.result(TIMEOUT_SECONDS) == 3
    assert capsys.readouterr().err.count("s3://shop cannot be accessed (down); trying again") == 1


def test_follow_writes_feedback_in_files_of_a_minute_and_marks_it_only_then(
    source: ObjectLocation, store: ObjectStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as pool:
        (out / "state").mkdir(parents=True)
        collector = job._ObjectCollector(source, out, "source", out / "state" / "journal.json", pool)
        monkeypatch.setattr(collector, "_feedback_seconds", job.FEEDBACK_SECONDS)
        put(store, *feedback(1))
        collector._collect()
        complete = oldest_unfinished(out)
        put(store, *feedback(2))
        collector._collect()
        assert len(lines_of(out)) == 1
        assert oldest_unfinished(out) == complete
        monkeypatch.setattr(collector, "_next_feedback", 0.0)
        collector._collect()
        assert len(lines_of(out)) == 2


def test_server_that_cannot_be_reached_is_an_error_in_one_line(
    source: ObjectLocation, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ranking.artifacts.object_store.MAX_RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{free_port()}")
    assert main(["collect", str(source), "--to", str(out)]) == 1
    error = capsys.readouterr().err
    assert f"{source} cannot be accessed" in error
    assert "check the location, the network and the credentials" in error
    assert error.count("\n") == 1


def test_folder_that_cannot_be_written_is_an_error_and_keeps_the_objects(
    source: ObjectLocation, store: ObjectStore, out: Path
) -> None:
    put(store, *feedback(1))
    out.write_bytes(b"")
    with pytest.raises(OutputError, match=f"^{out}: cannot be written"):
        job.collect_objects(source, out)
    assert len(all_names(store)) == 1


def test_collect_ignores_many_objects_of_others(
    source: ObjectLocation, store: ObjectStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "MAX_LISTED", 3)
    put(store, *((f"a{number}", b"x") for number in range(10)), *feedback(*range(4)))
    job.collect_objects(source, out)
    assert len(lines_of(out)) == 4
    assert len(all_names(store)) == 10


def test_second_collection_of_a_location_into_a_folder_is_rejected(
    source: ObjectLocation, store: ObjectStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, *feedback(1))
    collect = job._ObjectCollector._collect

    def collect_twice(collector: Any) -> bool:
        monkeypatch.setattr(job._ObjectCollector, "_collect", collect)
        with pytest.raises(OutputError, match=f"^{out}: another 'ranker collect {source}' writes here: stop it first$"):
            job.collect_objects(source, out)
        return collect(collector)

    monkeypatch.setattr(job._ObjectCollector, "_collect", collect_twice)
    assert job.collect_objects(source, out) == 1


def test_two_locations_can_be_collected_into_one_folder(location: str, out: Path) -> None:
    """One whose name differs in a separator only, too."""
    sources = [ObjectLocation(f"{location}/{name}") for name in ("a-b", "a/b")]
    for number, source in enumerate(sources):
        put(ObjectStore(source.text), *feedback(number))
    for source in sources:
        job.collect_objects(source, out)
    assert len(lines_of(out)) == 2
    assert len([path for path in out.iterdir() if path.suffix == ".part"]) == 2


def test_follow_that_cannot_delete_writes_each_line_once(
    source: ObjectLocation, store: ObjectStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older objects that arrive meanwhile must not join those that are in a file already."""
    delete, calls, stop = ObjectStore.delete, [], threading.Event()

    def sometimes_denied(self: ObjectStore, *paths: str) -> None:
        calls.append(paths)
        if len(calls) in (2, 3):
            put(store, *feedback(10 - len(calls)))
            raise BundleError("access denied")
        delete(self, *paths)

    monkeypatch.setattr(job, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(job, "FEEDBACK_SECONDS", 0.0)
    monkeypatch.setattr(ObjectStore, "delete", sometimes_denied)
    put(store, *feedback(1))
    with ThreadPoolExecutor(1) as pool:
        collection = pool.submit(job.collect_objects, source, out, stop)
        try:
            wait_until(lambda: calls, "the first pass has ended")
            put(store, *feedback(10, 11, 12))
            wait_until(lambda: len(calls) >= 5 and not all_names(store), "all objects are collected")
        finally:
            stop.set()
        collection.result(TIMEOUT_SECONDS)
    assert sorted(lines_of(out)) == sorted(b'{"request_id": "r%d"}' % number for number in (1, 7, 8, 10, 11, 12))


def test_object_that_is_stored_again_after_it_was_collected_does_not_replace_a_file(
    source: ObjectLocation, store: ObjectStore, out: Path
) -> None:
    """A retry of the service whose first attempt succeeded: its line is repeated, and the others stay."""
    put(store, *feedback(1, 2, 3))
    job.collect_objects(source, out)
    put(store, *feedback(1, 4))
    job.collect_objects(source, out)
    assert sorted(set(lines_of(out))) == [b'{"request_id": "r%d"}' % number for number in (1, 2, 3, 4)]


def test_feedback_that_was_removed_from_its_file_does_not_return(
    source: ObjectLocation, store: ObjectStore, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, *feedback(1))
    with killed_at(monkeypatch, ObjectStore, "delete"):
        job.collect_objects(source, out)
    (file,) = find_feedback_files(out)
    file.unlink()  # as by ranker forget
    assert job.collect_objects(source, out) == 0
    assert lines_of(out) == []
    assert all_names(store) == []


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b'{"file": "x", "objects": 1, "written": true}'])
def test_damaged_journal_is_an_error_that_names_it(source: ObjectLocation, out: Path, content: bytes) -> None:
    job.collect_objects(source, out)
    (state,) = out.iterdir()
    (state / "journal.json").write_bytes(content)
    with pytest.raises(LogError, match=rf"^{state}/journal.json: is damaged \(.*\); delete it to continue"):
        job.collect_objects(source, out)


@pytest.mark.parametrize("source", ["served", "s3://", "s3://shop/../x", "ftp://host/x", "kafka://host/served"])
def test_invalid_source_is_a_usage_error(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["collect", source, "--to", str(tmp_path)])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert "kafka://HOST:PORT" in error or "s3://BUCKET/PATH" in error


def test_group_for_object_storage_is_a_usage_error(
    source: ObjectLocation, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", str(source), "--to", str(out), "--group", "g"]) == 2
    assert "--group is for Kafka only" in capsys.readouterr().err
