"""``ranker collect``: each file once, also after interruptions, and errors that say what to do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.main import main
from ranking.artifacts.kafka_address import KafkaAddress
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


def test_collect_killed_between_write_and_commit_gives_no_duplicates(
    broker: KafkaBroker,
    files: list[tuple[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pipelines.jobs import collect as job

    class Killed(BaseException):
        pass

    class KilledConsumer(job.Consumer):  # type: ignore[misc]
        def commit(self, *_: Any, **__: Any) -> None:
            raise Killed

    address, out = KafkaAddress.parse(broker.create_topic("killed")), tmp_path / "out"
    broker.send("killed", *files)
    with monkeypatch.context() as patch:
        patch.setattr(job, "Consumer", KilledConsumer)
        with pytest.raises(Killed):
            job.collect(address, out, "killed")
    assert collected(out) == files[:1]
    (out / files[0][0]).write_bytes(b"kept")  # as if it was rewritten by ranker forget
    assert job.collect(address, out, "killed") == 2
    assert collected(out) == [(files[0][0], b"kept"), *files[1:]]


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


@pytest.mark.parametrize("key", ["other.parquet", "served-../x.parquet", "", "served-1.parquet"])
def test_message_that_is_not_a_served_file_stops_with_its_position(
    broker: KafkaBroker,
    files: list[tuple[str, bytes]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    key: str,
) -> None:
    address, out = broker.create_topic(f"other-{abs(hash(key))}"), tmp_path / "out"
    value = b"not Parquet" if key == "served-1.parquet" else files[1][1]
    broker.send(KafkaAddress.parse(address).topic, files[0], (key, value), files[2])
    for _ in range(2):  # the message is not skipped
        assert main(["collect", address, "--to", str(out), "--group", "g"]) == 1
        error = capsys.readouterr().err
        assert f"{address}, partition 0, offset 1: the message is not a file of a served log" in error
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
