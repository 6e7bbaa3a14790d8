"""Commands that read and replace files of the same folders exclude each other."""

from __future__ import annotations

import errno
import fcntl
import threading
from pathlib import Path

import pytest

from pipelines.loop.folder_locks import lock_folder, lock_folders
from pipelines.loop.output import lock_log
from ranking.errors import OutputError
from tests.support.waiting import TIMEOUT_SECONDS, wait_until


def test_a_second_command_waits_for_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    order: list[str] = []

    def second() -> None:
        with lock_folders([tmp_path / "b"]):
            order.append("second")

    thread = threading.Thread(target=second)
    with lock_folders([tmp_path / "b", tmp_path / "a", tmp_path / "a", tmp_path / "missing"]):
        thread.start()
        wait_until(lambda: "waiting for another command" in capsys.readouterr().err)
        order.append("first")
    thread.join(TIMEOUT_SECONDS)
    assert order == ["first", "second"]


def test_commands_that_name_folders_in_another_order_do_not_wait_for_each_other_forever(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()

    def lock_often(order: list[Path]) -> None:
        for _ in range(50):
            with lock_folders(order):
                pass

    threads = [threading.Thread(target=lock_often, args=(order,)) for order in (folders, folders[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
        assert not thread.is_alive()


def test_a_file_stands_for_its_folder_and_a_link_for_its_target(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "part.parquet").touch()
    (tmp_path / "link").symlink_to("log")
    with (
        lock_folders([tmp_path / "log" / "part.parquet", tmp_path / "link"]),
        pytest.raises(OutputError, match="is busy"),
        lock_folder(tmp_path / "log", busy="is busy"),
    ):
        pass


def test_join_into_a_log_that_another_command_writes_is_an_error(tmp_path: Path) -> None:
    with (
        lock_log(tmp_path / "log"),
        pytest.raises(OutputError, match="another 'ranker join' or 'ranker forget' writes to it"),
        lock_log(tmp_path / "log"),
    ):
        pass
    with lock_log(tmp_path / "log"):
        pass


def test_filesystem_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with lock_folders([tmp_path]):
        assert "its filesystem has no locks: do not run" in capsys.readouterr().err
