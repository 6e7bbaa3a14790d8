"""``ranker collect``: each file once, also after interruptions, and errors that say what to do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.main import main
from pipelines.loop.feedback_files import find_feedback_files, oldest_unfinished
from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.log_names import FEEDBACK
from tests.support.kafka_broker import KafkaBroker, kafka_broker
from tests.support.loop_folders import LoopFolders
from tests.support.ports import HOST, free_port
from tests.support.waiting import TIMEOUT_SECONDS, wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with kafka_broker() as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[str, bytes]]:
    """Three files of a served log: their names and contents."""
    folders = LoopFolders(tmp_path / "source")
    paths = [folders.serve({f"r{number}": (0, ["a", "b"])}) for number in range(3)]
    return [(path.name, path.read_bytes()) for path in paths]


def collected(folder: Path) -> list[tuple[str, bytes]]:
    return sorted((path.name, path.read_bytes()) for path in folder.iterdir())


def test_collect_writes_each_file_once(
    broker: KafkaBroker, files: list[tuple[str, bytes]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, out = broker.create_topic("once"), tmp_path / "out"
    command = ["collect", address, "--to", str(out), "--group", "once"]
    broker.send("once", *files[:2])
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == {"files": 2}
    assert collected(out) == files[:2]
    (out / files[0][0]).unlink()  # what is committed is not collected again
    broker.send("once", files[2])
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == {"files": 1}
    assert collected(out) == files[1:]


def collect_until_commit(address: KafkaAddress, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collect as a command that is killed before it commits an offset."""
    from pipelines.jobs import collect as job

    class Killed(BaseException):
        pass

    class KilledConsumer(job.Consumer):  # type: ignore[misc]
        def commit(self, *_: Any, **__: Any) -> None:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(job, "Consumer", KilledConsumer)
        with pytest.raises(Killed):
            job.collect(address, folder, "killed")


def test_collect_killed_between_write_and_commit_gives_no_duplicates(
    broker: KafkaBroker,
    files: list[tuple[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pipelines.jobs import collect as job

    address, out = KafkaAddress.parse(broker.create_topic("killed")), tmp_path / "out"
    broker.send("killed", *files)
    collect_until_commit(address, out, monkeypatch)
    assert collected(out) == files[:1]
    (out / files[0][0]).write_bytes(b"kept")  # as if it was rewritten by ranker forget
    assert job.collect(address, out, "killed") == 2
    assert collected(out) == [(files[0][0], b"kept"), *files[1:]]


@pytest.mark.system
def test_follow_waits_for_new_files_until_sigterm(
    broker: KafkaBroker, files: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    address, out = broker.create_topic("follow"), tmp_path / "out"
    command = [sys.executable, "-m", "pipelines.cli", "collect", address, "--to", str(out), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for number in range(3):
                broker.send("follow", files[number])
                path = out / files[number][0]  # appears by a rename
                wait_until(path.exists, f"{path.name} is collected")
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            process.kill()
    assert collected(out) == files
    assert process.returncode == 0
    assert json.loads(output) == {"files": 3}


@pytest.mark.parametrize("key", ["other.parquet", "served-../x.parquet", "", "served-1.parquet", "feedback-1.jsonl"])
def test_message_of_another_program_stops_with_its_position(
    broker: KafkaBroker,
    files: list[tuple[str, bytes]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    key: str,
) -> None:
    address, out = broker.create_topic(f"other-{abs(hash(key))}"), tmp_path / "out"
    value = b"not Parquet" if key.endswith(("1.parquet", "1.jsonl")) else files[1][1]
    broker.send(KafkaAddress.parse(address).topic, files[0], (key, value), files[2])
    for _ in range(2):  # the message is not skipped
        assert main(["collect", address, "--to", str(out), "--group", "g"]) == 1
        error = capsys.readouterr().err
        assert f"{address}, partition 0, offset 1: the message is neither a file of a served log nor feedback" in error
        assert "set the group's offset to 2" in error
        assert error.count("\n") == 1
        assert collected(out) == files[:1]


def test_server_that_cannot_be_reached_is_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = pytest.importorskip("pipelines.jobs.collect")
    monkeypatch.setattr(job, "TIMEOUT_SECONDS", 1.0)
    address = f"kafka://{HOST}:{free_port()}/served"
    assert main(["collect", address, "--to", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert f"{address}: cannot be reached" in error
    assert "check the address, the servers and the network" in error
    assert error.count("\n") == 1


def test_missing_topic_is_an_error_that_names_it(
    broker: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collect", f"kafka://{broker.server}/missing", "--to", str(tmp_path / "out")]) == 1
    assert "the cluster has no topic 'missing': create it" in capsys.readouterr().err


def test_invalid_address_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["collect", "kafka://broker/served", "--to", str(tmp_path)])
    assert caught.value.code == 2
    assert "write kafka://HOST:PORT" in capsys.readouterr().err


def test_missing_client_is_an_error_that_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, "pipelines.jobs.collect", raising=False)
    assert main(["collect", "kafka://broker:9092/served", "--to", str(tmp_path)]) == 1
    assert "pip install 'dselect-ranker[kafka]'" in capsys.readouterr().err


def lines_of(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def marks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.part"))


def feedback(*numbers: int) -> list[tuple[str, bytes]]:
    """Return messages of feedback with one line each."""
    return [(FEEDBACK.new("shop"), b'{"request_id": "r%d"}\n' % number) for number in numbers]


def test_feedback_is_merged_to_a_file_and_marked_as_complete(
    broker: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, out, start = broker.create_topic("feedback"), tmp_path / "out", datetime.now(UTC)
    command = ["collect", address, "--to", str(out)]
    broker.send("feedback", *feedback(*range(5)))
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == {"files": 1}
    (file,) = find_feedback_files(out)
    assert re.fullmatch(r"feedback-\d{8}T\d{6}Z-feedback-0-0-4\.jsonl", file.name)
    assert lines_of(out) == [b'{"request_id": "r%d"}' % number for number in range(5)]
    complete = oldest_unfinished(out)
    assert complete is not None
    assert start - timedelta(seconds=60) < complete < datetime.now(UTC)
    broker.send("feedback", *feedback(5))
    assert main(command) == 0
    assert len(lines_of(out)) == 6
    assert len(marks(out)) == 1


def test_feedback_collected_by_a_command_that_was_killed_before_the_commit_is_not_repeated(
    broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.jobs import collect as job

    address = KafkaAddress.parse(broker.create_topic("feedback-killed"))
    broker.send("feedback-killed", *feedback(0, 1, 2))
    collect_until_commit(address, tmp_path, monkeypatch)
    assert len(lines_of(tmp_path)) == 3
    (mark,) = marks(tmp_path)
    broker.send("feedback-killed", *feedback(3))
    assert job.collect(address, tmp_path, "killed") == 1
    assert lines_of(tmp_path) == [b'{"request_id": "r%d"}' % number for number in range(4)]
    assert mark < marks(tmp_path)[0]


def test_mark_advances_while_no_feedback_arrives_and_stays_while_the_server_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.jobs import collect as job

    monkeypatch.setattr(job, "FEEDBACK_SECONDS", 0.1)
    monkeypatch.setattr(job, "TIMEOUT_SECONDS", 1.0)
    stop, unknown, complete_until = threading.Event(), [], job._Collector._complete_until

    def counted(collector: Any) -> datetime | None:
        until = complete_until(collector)
        if until is None:
            unknown.append(True)
        return until

    monkeypatch.setattr(job._Collector, "_complete_until", counted)
    with kafka_broker() as broker, ThreadPoolExecutor(1) as pool:
        address = KafkaAddress.parse(broker.create_topic("idle"))
        broker.send("idle", *feedback(0))
        collection = pool.submit(job.collect, address, tmp_path, "idle", stop)
        try:
            wait_until(lambda: lines_of(tmp_path), "the feedback is collected")
            (first,) = marks(tmp_path)
            wait_until(lambda: len(marks(tmp_path)) == 1 and marks(tmp_path)[0] > first, "the mark advances")
            broker.stop()
            wait_until(lambda: unknown, "the end of the topic is not known")
            stopped, count = oldest_unfinished(tmp_path), len(unknown)
            wait_until(lambda: len(unknown) > count + 1, "the end of the topic is still not known")
            assert oldest_unfinished(tmp_path) == stopped
        finally:
            stop.set()
        assert collection.result(TIMEOUT_SECONDS) == 1


def test_mark_of_a_topic_with_added_partitions_does_not_advance(
    broker: KafkaBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipelines.jobs import collect as job

    class GrowingConsumer(job.Consumer):  # type: ignore[misc]
        calls = 0

        def list_topics(self, *arguments: Any, **options: Any) -> Any:
            metadata = super().list_topics(*arguments, **options)
            self.calls += 1
            if self.calls > 1:
                (topic,) = metadata.topics.values()
                topic.partitions[1] = topic.partitions[0]
            return metadata

    address = broker.create_topic("growing")
    broker.send("growing", *feedback(0))
    monkeypatch.setattr(job, "Consumer", GrowingConsumer)
    assert main(["collect", address, "--to", str(tmp_path)]) == 1
    assert f"{address}: has 2 partitions now; start the command again" in capsys.readouterr().err
    assert len(lines_of(tmp_path)) == 1
    assert oldest_unfinished(tmp_path) == datetime.fromtimestamp(0, UTC)


def test_feedback_before_a_message_of_another_program_is_written(broker: KafkaBroker, tmp_path: Path) -> None:
    address = broker.create_topic("feedback-other")
    broker.send("feedback-other", *feedback(0), ("other", b"content"))
    assert main(["collect", address, "--to", str(tmp_path)]) == 1
    assert len(lines_of(tmp_path)) == 1
    assert len(marks(tmp_path)) == 1
