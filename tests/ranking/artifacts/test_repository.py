"""Versions, releases, locks and staging folders of a repository."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from ranking.artifacts import repository
from ranking.artifacts.release import Canary, Release
from ranking.errors import BundleError, OutputError


def publish(folder: Path, name: str, *versions: int, current: int | None = None) -> None:
    for version in versions:
        (folder / name / str(version)).mkdir(parents=True)
    if current is not None:
        (folder / name / repository.CURRENT).write_text(f'{{"version": {current}}}\n')


def write_current(folder: Path, content: bytes) -> None:
    (folder / "feed").mkdir()
    (folder / "feed" / repository.CURRENT).write_bytes(content)


def test_list_models_returns_models_with_a_current_version(tmp_path: Path) -> None:
    publish(tmp_path, "shop", 1, current=1)
    publish(tmp_path, "feed", 1, 2, current=1)
    publish(tmp_path, "draft", 1)
    (tmp_path / "notes.txt").write_text("x")
    assert repository.list_models(tmp_path) == ["feed", "shop"]


def test_list_models_ignores_folders_with_other_names(tmp_path: Path) -> None:
    for name in ("feed", "feed.old", ".feed"):
        publish(tmp_path, name, 1, current=1)
    assert repository.list_models(tmp_path) == ["feed"]


def test_list_models_of_empty_repository_is_empty(tmp_path: Path) -> None:
    assert repository.list_models(tmp_path) == []


def test_list_models_of_missing_repository_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"missing: no such repository.*ranker publish"):
        repository.list_models(tmp_path / "missing")


def test_list_versions_is_in_ascending_order(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 10, 9, 1)
    assert repository.list_versions(tmp_path, "feed") == [1, 9, 10]


def test_list_versions_ignores_drafts_and_files(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, 2, current=2)
    for name in (".3-x1y2z3", "3.old", "3-copy", "latest"):
        (tmp_path / "feed" / name).mkdir()
    (tmp_path / "feed" / "4").write_text("x")
    assert repository.list_versions(tmp_path, "feed") == [1, 2]


def test_list_versions_of_unknown_model_is_empty(tmp_path: Path) -> None:
    assert repository.list_versions(tmp_path, "feed") == []


def test_read_release_returns_the_current_version(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, 2, 3, current=2)
    assert repository.read_release(tmp_path, "feed").version == 2


def test_read_release_without_current_json_is_rejected(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1)
    with pytest.raises(BundleError, match=r"current\.json does not exist.*ranker publish"):
        repository.read_release(tmp_path, "feed")


@pytest.mark.parametrize("content", [b"", b"{", b"3", b"[3]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_read_release_damaged_file_is_rejected(tmp_path: Path, content: bytes) -> None:
    write_current(tmp_path, content)
    with pytest.raises(BundleError, match=r'current\.json is damaged: it should read \{"version": N\}'):
        repository.read_release(tmp_path, "feed")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "version: missing"),
        ('{"version": "3"}', r"version: must be a whole number \(got '3'\)"),
        ('{"version": 3.0}', r"version: must be a whole number \(got 3.0\)"),
        ('{"version": null}', "version: must be a whole number"),
        ('{"version": true}', r"version: must be a whole number \(got true\)"),
        ('{"version": 0}', "version: must be at least 1"),
        ('{"version": 9223372036854775808}', "version: must be less than"),
        ('{"version": 3, "pined": true}', "pined: unknown key"),
        ('{"version": 3, "pinned": 1}', "pinned: must be true or false"),
        ('{"version": 3, "canary": 4}', "canary: must be a table of keys and values"),
        ('{"version": 3, "canary": {"version": 4}}', "canary.weight: missing"),
        ('{"version": 3, "canary": {"version": 4, "weight": 10}}', r"canary.weight: must be at most 1 \(got 10\)"),
        ('{"version": 3, "canary": {"version": 4, "weight": NaN}}', "canary.weight: must be a finite number"),
        ('{"version": 3, "canary": {"version": 3, "weight": 0.1}}', "version 3 cannot be both .* remove the canary"),
        ('{"version": 3, "shadow": 3}', "version 3 cannot be both the current version and the shadow"),
    ],
)
def test_read_release_invalid_field_is_named(tmp_path: Path, content: str, reason: str) -> None:
    write_current(tmp_path, content.encode())
    with pytest.raises(BundleError, match=rf"current\.json: {reason}"):
        repository.read_release(tmp_path, "feed")


def test_read_release_folder_instead_of_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "feed" / repository.CURRENT).mkdir(parents=True)
    with pytest.raises(BundleError, match=r"current\.json cannot be read \(Is a directory\)"):
        repository.read_release(tmp_path, "feed")


def test_write_release_of_unpublished_version_is_rejected(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, 3, current=1)
    repository.write_release(tmp_path, "feed", Release(version=3, shadow=1))
    assert json.loads((tmp_path / "feed" / repository.CURRENT).read_text()) == {"version": 3, "shadow": 1}
    assert repository.read_release(tmp_path, "feed") == Release(version=3, shadow=1)
    with pytest.raises(BundleError, match=r"feed has no version 2: it has 1, 3"):
        repository.write_release(tmp_path, "feed", Release(version=3, canary=Canary(version=2, weight=0.5)))
    assert repository.read_release(tmp_path, "feed") == Release(version=3, shadow=1)


def test_lock_model_excludes_writers_of_the_same_model_only(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, current=1)
    publish(tmp_path, "shop", 1, current=1)
    order: list[str] = []

    def write(name: str) -> None:
        with repository.lock_model(tmp_path, name):
            order.append(name)

    writers = {name: threading.Thread(target=write, args=[name]) for name in ("feed", "shop")}
    with repository.lock_model(tmp_path, "feed"):
        for writer in writers.values():
            writer.start()
        writers["shop"].join(30)
        order.append("first")
    writers["feed"].join(30)
    assert order == ["shop", "first", "feed"]


def test_staging_dir_is_removed_after_success_and_failure(tmp_path: Path) -> None:
    with repository.staging_dir(tmp_path, "feed") as work:
        (work / "new").mkdir()
    with suppress(ZeroDivisionError), repository.staging_dir(tmp_path, "feed") as work:
        (work / "file").write_text("x")
        raise ZeroDivisionError
    assert [file.name for file in (tmp_path / "feed").iterdir()] == [repository.LOCK_FILE]


def test_staging_dir_removes_abandoned_folders_and_keeps_those_in_use(tmp_path: Path) -> None:
    abandoned = [tmp_path / "feed" / f".work-{name}" for name in ("no-lock", "free-lock")]
    for work in abandoned:
        (work / "new").mkdir(parents=True)
    (abandoned[1] / repository.LOCK_FILE).touch()
    with repository.staging_dir(tmp_path, "feed") as first, repository.staging_dir(tmp_path, "feed") as second:
        assert first.is_dir()
        assert first != second
        assert not any(work.exists() for work in abandoned)


def test_staging_dir_below_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(OutputError, match="file is a file, not a folder"),
        repository.staging_dir(tmp_path / "file", "feed"),
    ):
        pass


def test_bundle_folder_is_below_its_model(tmp_path: Path) -> None:
    assert repository.bundle_folder(tmp_path, "feed", 3) == tmp_path / "feed" / "3"


def test_published_bundle_is_listed(request: pytest.FixtureRequest) -> None:
    published: Path = request.getfixturevalue("repository")
    assert repository.list_models(published) == ["feed"]
    assert repository.list_versions(published, "feed") == [1]
    assert repository.read_release(published, "feed").version == 1
    assert (repository.bundle_folder(published, "feed", 1) / "manifest.json").is_file()


def test_fallbacks_are_earlier_and_older_versions_newest_first(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, 2, 3, 4, 5, 6, current=1)
    for version in (2, 3, 4, 6):
        repository.write_release(tmp_path, "feed", Release(version=version))
    assert repository.read_fallbacks(tmp_path, "feed") == [4, 3, 2]
    repository.write_release(tmp_path, "feed", Release(version=6, shadow=5))
    assert repository.read_fallbacks(tmp_path, "feed") == [4, 3, 2]
    repository.write_release(tmp_path, "feed", Release(version=3))
    assert repository.read_fallbacks(tmp_path, "feed") == [2]


def test_fallbacks_of_a_model_without_the_file_are_empty(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, 2, current=2)
    assert repository.read_fallbacks(tmp_path, "feed") == []


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"versions": [0]}', b'{"versions": "1"}'])
def test_damaged_fallbacks_are_rejected_and_rewritten(tmp_path: Path, content: bytes) -> None:
    publish(tmp_path, "feed", 1, 2, current=1)
    (tmp_path / "feed" / repository.FALLBACKS).write_bytes(content)
    with pytest.raises(BundleError, match=r"fallbacks\.json is damaged"):
        repository.read_fallbacks(tmp_path, "feed")
    repository.write_release(tmp_path, "feed", Release(version=2))
    assert repository.read_fallbacks(tmp_path, "feed") == [1]


def test_current_json_that_is_a_pipe_or_too_large_is_rejected(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, current=1)
    file = tmp_path / "feed" / repository.CURRENT
    file.write_bytes(b" " * (repository.MAX_JSON_BYTES + 1))
    with pytest.raises(BundleError, match=r"current\.json cannot be read \(it is larger than"):
        repository.read_release(tmp_path, "feed")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(BundleError, match=r"current\.json cannot be read \(it is a pipe or a device, not a file\)"):
        repository.read_release(tmp_path, "feed")


@pytest.mark.parametrize("name", ["", "..", "a/b", "größe", ".x"])
def test_model_name_with_other_characters_is_rejected(name: str) -> None:
    with pytest.raises(BundleError, match="use letters, digits"):
        repository.check_model_name(name)


def test_link_to_itself_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "feed").mkdir()
    for path in (tmp_path / "feed" / repository.CURRENT, tmp_path / "feed" / "1"):
        path.symlink_to(path.name)
    with pytest.raises(BundleError, match=r"current\.json cannot be read"):
        repository.read_release(tmp_path, "feed")
    with pytest.raises(BundleError, match="feed/1 cannot be read"):
        repository.bundle_folder(tmp_path, "feed", 1)
    assert repository.list_versions(tmp_path, "feed") == []
