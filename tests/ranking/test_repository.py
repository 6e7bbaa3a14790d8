"""Versions of bundles on disk, and which of them is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranking import repository
from ranking.errors import BundleError


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
    assert repository.names(tmp_path) == ["feed", "shop"]


def test_an_empty_repository_has_no_names(tmp_path: Path) -> None:
    assert repository.names(tmp_path) == []


def test_a_missing_repository_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"missing: no such repository.*ranker publish"):
        repository.names(tmp_path / "missing")


def test_versions_are_numbers_in_ascending_order(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 10, 9, 1)
    assert repository.versions(tmp_path, "feed") == [1, 9, 10]


def test_drafts_and_files_are_no_versions(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, 2, current=2)
    for name in (".3-x1y2z3", "3.old", "3-copy", "latest"):
        (tmp_path / "feed" / name).mkdir()
    (tmp_path / "feed" / "4").write_text("x")
    assert repository.versions(tmp_path, "feed") == [1, 2]


def test_an_unknown_model_has_no_versions(tmp_path: Path) -> None:
    assert repository.versions(tmp_path, "feed") == []


def test_current_is_the_version_that_current_json_names(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1, 2, 3, current=2)
    assert repository.current(tmp_path, "feed") == 2


def test_a_model_without_a_current_version_says_how_to_get_one(tmp_path: Path) -> None:
    publish(tmp_path, "feed", 1)
    with pytest.raises(BundleError, match=r"current\.json cannot be read.*ranker publish"):
        repository.current(tmp_path, "feed")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"{}",
        b"3",
        b"[3]",
        b"null",
        b'{"version": "3"}',
        b'{"version": 3.0}',
        b'{"version": null}',
        b'{"version": true}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_current_json_is_named_with_what_it_should_read(tmp_path: Path, content: bytes) -> None:
    publish(tmp_path, "feed", 1)
    (tmp_path / "feed" / repository.CURRENT).write_bytes(content)
    with pytest.raises(BundleError, match=r'current\.json is damaged: it should read \{"version": N\}'):
        repository.current(tmp_path, "feed")


def test_a_versions_folder_lies_under_its_model(tmp_path: Path) -> None:
    assert repository.folder(tmp_path, "feed", 3) == tmp_path / "feed" / "3"


def test_a_published_bundle_is_found(request: pytest.FixtureRequest) -> None:
    published: Path = request.getfixturevalue("repository")
    assert repository.names(published) == ["feed"]
    assert repository.versions(published, "feed") == [1]
    assert repository.current(published, "feed") == 1
    assert (repository.folder(published, "feed", 1) / "manifest.json").is_file()
