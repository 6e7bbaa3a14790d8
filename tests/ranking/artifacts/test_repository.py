"""Versions of bundles on disk, and which of them is current."""

from __future__ import annotations

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


def test_names_are_the_models_that_have_a_current_version(tmp_path: Path) -> None:
    publish(tmp_path, "shop", 1, current=1)
    publish(tmp_path, "feed", 1, 2, current=1)
    publish(tmp_path, "draft", 1)
    (tmp_path / "notes.txt").write_text("x")
    assert repository.list_models(tmp_path) == ["feed", "shop"]


def test_an_empty_repository_has_no_names(tmp_path: Path) -> None:
    assert repository.list_models(tmp_path) == []


def test_a_missing_repository_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"missing: no such repository.*ranker publish"):
        repository.list_models(tmp_path / "missing")


def test_versions_are_numbers_in_ascending_order(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 10, 9, 1)
    assert repository.list_versions(tmp_path, "feed") == [1, 9, 10]


def test_drafts_and_files_are_no_versions(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, 2, current=2)
    for name in (".3-x1y2z3", "3.old", "3-copy", "latest"):
        (tmp_path / "feed" / name).mkdir()
    (tmp_path / "feed" / "4").write_text("x")
    assert repository.list_versions(tmp_path, "feed") == [1, 2]


def test_an_unknown_model_has_no_versions(tmp_path: Path) -> None:
    assert repository.list_versions(tmp_path, "feed") == []


def test_current_is_the_version_that_current_json_names(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, 2, 3, current=2)
    assert repository.read_release(tmp_path, "feed").version == 2


def test_a_model_without_a_current_version_says_how_to_get_one(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1)
    with pytest.raises(BundleError, match=r"current\.json is not there.*ranker publish"):
        repository.read_release(tmp_path, "feed")


def test_what_is_served_must_be_published(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, 3, current=1)
    repository.write_release(tmp_path, "feed", Release(version=3, shadow=1))
    assert repository.read_release(tmp_path, "feed") == Release(version=3, shadow=1)
    with pytest.raises(BundleError, match=r"feed has no version 2: it has 1, 3"):
        repository.write_release(tmp_path, "feed", Release(version=3, canary=Canary(version=2, weight=0.5)))
    assert repository.read_release(tmp_path, "feed") == Release(version=3, shadow=1)


def test_writers_of_a_model_take_turns_and_those_of_another_do_not_wait(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, current=1)
    publish(tmp_path, "shop", 1, current=1)
    order: list[str] = []

    def write(name: str) -> None:
        with repository.lock_model(tmp_path, name):
            order.append(name)

    others = {name: threading.Thread(target=write, args=[name]) for name in ("feed", "shop")}
    with repository.lock_model(tmp_path, "feed"):
        for other in others.values():
            other.start()
        others["shop"].join(30)
        order.append("first")
    others["feed"].join(30)
    assert order == ["shop", "first", "feed"]


class TestWorkspaces:
    def test_go_at_the_end_however_it_comes(self, tmp_path: Path) -> None:
        with repository.staging_dir(tmp_path, "feed") as work:
            (work / "new").mkdir()
        with suppress(ZeroDivisionError), repository.staging_dir(tmp_path, "feed") as work:
            (work / "file").write_text("x")
            raise ZeroDivisionError
        assert [file.name for file in (tmp_path / "feed").iterdir()] == [repository.LOCK_FILE]

    def test_of_the_dead_go_with_the_next_and_those_of_the_living_stay(self, tmp_path: Path) -> None:
        left = [tmp_path / "feed" / f".work-{name}" for name in ("no-lock", "free-lock")]
        for work in left:
            (work / "new").mkdir(parents=True)
        (left[1] / repository.LOCK_FILE).touch()
        with repository.staging_dir(tmp_path, "feed") as first, repository.staging_dir(tmp_path, "feed") as second:
            assert first.is_dir()
            assert first != second
            assert not any(work.exists() for work in left)

    def test_cannot_be_where_nothing_can_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with (
            pytest.raises(OutputError, match="file is a file, not a folder"),
            repository.staging_dir(tmp_path / "file", "feed"),
        ):
            pass


def test_a_versions_folder_lies_under_its_model(tmp_path: Path) -> None:
    assert repository.bundle_folder(tmp_path, "feed", 3) == tmp_path / "feed" / "3"


def test_a_published_bundle_is_found(request: pytest.FixtureRequest) -> None:
    published: Path = request.getfixturevalue("repository")
    assert repository.list_models(published) == ["feed"]
    assert repository.list_versions(published, "feed") == [1]
    assert repository.read_release(published, "feed").version == 1
    assert (repository.bundle_folder(published, "feed", 1) / "manifest.json").is_file()
