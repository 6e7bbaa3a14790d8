from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ranking
from pipelines.jobs.publish import publish
from pipelines.jobs.release import change_release
from ranking.artifacts import checksums
from ranking.artifacts import repository as repositories
from ranking.artifacts.release import Canary, Release
from ranking.errors import BundleError, OutputError
from tests.conftest import Once
from tests.pipelines.killed_ranker import KilledRanker, killed_ranker


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, temporary files included."""
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.fixture
def three(bundle: Path, once: Once, tmp_path: Path) -> Path:
    """A repository with versions 1 to 3 that a test may change."""

    def publish_three(folder: Path) -> None:
        for _ in range(3):
            publish(bundle, folder)

    return shutil.copytree(once("repository with three versions", publish_three), tmp_path / "three")


# Versions.


def test_versions_count_from_one(bundle: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    assert [publish(bundle, repository) for _ in range(3)] == [("feed", 1), ("feed", 2), ("feed", 3)]
    assert repositories.list_versions(repository, "feed") == [1, 2, 3]


def test_published_version_is_a_copy_of_the_bundle(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path / "repository")
    assert files(tmp_path / "repository" / "feed" / "1") == files(bundle)
    ranking.load(tmp_path / "repository" / "feed" / "1")


def test_published_version_becomes_current(bundle: Path, tmp_path: Path) -> None:
    for version in (1, 2):
        publish(bundle, tmp_path)
        assert json.loads((tmp_path / "feed" / "current.json").read_text()) == {"version": version}
        assert repositories.read_release(tmp_path, "feed").version == version


def test_publish_replaces_current_json_instead_of_rewriting_it(bundle: Path, tmp_path: Path) -> None:
    """A concurrent reader of current.json sees the old or the new content, never a part."""
    publish(bundle, tmp_path)
    old = tmp_path / "old.json"
    old.hardlink_to(tmp_path / "feed" / "current.json")
    publish(bundle, tmp_path)
    assert json.loads(old.read_text()) == {"version": 1}


def test_published_version_never_changes(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path)
    before = files(tmp_path / "feed" / "1")
    publish(bundle, tmp_path)
    assert files(tmp_path / "feed" / "1") == before


def test_next_version_follows_the_highest_after_a_rollback(bundle: Path, tmp_path: Path) -> None:
    for _ in range(2):
        publish(bundle, tmp_path)
    (tmp_path / "feed" / "current.json").write_text('{"version": 1}')  # rolled back
    assert publish(bundle, tmp_path) == ("feed", 3)


def test_next_version_follows_the_highest_after_a_removal(bundle: Path, three: Path) -> None:
    shutil.rmtree(three / "feed" / "2")
    assert publish(bundle, three) == ("feed", 4)


def test_publish_leaves_no_temporary_files(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"feed", "repository.json", ".lock"}
    assert {file.name for file in (tmp_path / "feed").iterdir()} == {".lock", "1", "current.json"}


# Names.


def test_model_name_defaults_to_the_name_in_the_bundle(bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path)
    publish(bundle, tmp_path, "trial-2")
    assert repositories.list_models(tmp_path) == ["feed", "trial-2"]
    assert repositories.list_versions(tmp_path, "trial-2") == [1]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../up", "a/b", "/etc", "a b", ".hidden", "-rf", "a\\b", "feed\n", "größe", "a\0b"]
)
def test_invalid_model_name_is_rejected(bundle: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError, match="use letters, digits, '_' and '-'"):
        publish(bundle, tmp_path / "repository", name)
    assert list(tmp_path.iterdir()) == []


# Invalid bundles.


@pytest.mark.parametrize("damage", ["altered", "removed", "added", "sums removed"])
def test_damaged_bundle_is_rejected_and_the_repository_unchanged(bundle: Path, tmp_path: Path, damage: str) -> None:
    repository, broken = tmp_path / "repository", tmp_path / "broken"
    publish(bundle, repository)
    before = files(repository)
    shutil.copytree(bundle, broken)
    weights = broken / "weights.safetensors"
    if damage == "altered":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    elif damage == "removed":
        weights.unlink()
    elif damage == "added":
        (broken / "run.py").write_text("print('hello')")
    else:
        (broken / "SHA256SUMS").unlink()
    with pytest.raises(BundleError) as caught:
        publish(broken, repository)
    assert str(broken) in str(caught.value)
    assert files(repository) == before


def test_missing_bundle_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"is not a bundle: .* make one with 'ranker freeze'"):
        publish(tmp_path / "nothing", tmp_path / "repository")
    assert list(tmp_path.iterdir()) == []


# Unwritable repositories.


def test_repository_that_is_a_file_is_rejected(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OutputError, match=f"{tmp_path}/file is a file, not a folder"):
        publish(bundle, tmp_path / "file")


def test_full_disk_leaves_the_repository_unchanged(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(bundle, tmp_path)
    before = files(tmp_path)
    copied = []

    def disk_full(source: str, target: str, **_: object) -> None:
        if len(copied) == 2:
            raise OSError(28, "No space left on device")
        copied.append(target)

    monkeypatch.setattr(shutil, "copyfile", disk_full)
    with pytest.raises(OutputError, match="cannot be written"):
        publish(bundle, tmp_path)
    assert files(tmp_path) == before


# Concurrent publishers.


def test_concurrent_publishers_get_different_versions(bundle: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        published = list(pool.map(lambda _: publish(bundle, tmp_path), range(4)))
    assert sorted(published) == [("feed", version) for version in (1, 2, 3, 4)]
    assert repositories.read_release(tmp_path, "feed").version == 4
    for version in (1, 2, 3, 4):
        assert files(tmp_path / "feed" / str(version)) == files(bundle)


def test_version_created_without_our_lock_is_not_overwritten(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = repositories.list_versions

    def meanwhile(repository: Path, name: str) -> list[int]:
        found = versions(repository, name)
        (tmp_path / "feed" / "1" / "theirs").mkdir(parents=True, exist_ok=True)
        return found

    monkeypatch.setattr(repositories, "list_versions", meanwhile)
    with pytest.raises(OutputError, match=r"feed/1: cannot be written \(Directory not empty\)"):
        publish(bundle, tmp_path)
    assert {file.name for file in (tmp_path / "feed").iterdir()} == {".lock", "1"}


# Pinned.


def test_pinned_version_stays_current(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(bundle, tmp_path)
    change_release(tmp_path, "feed", {"pinned": True})
    assert publish(bundle, tmp_path) == ("feed", 2)
    assert repositories.read_release(tmp_path, "feed") == Release(version=1, pinned=True)
    status = capsys.readouterr().err
    assert "feed is pinned to version 1: version 2 is published but is not the current version" in status
    assert f"'ranker release {tmp_path} feed --version 2' makes it current" in status


def test_publish_keeps_canary_and_shadow(bundle: Path, three: Path) -> None:
    canary = {"version": 2, "weight": 0.25}
    change_release(three, "feed", {"canary": canary, "shadow": 1})
    publish(bundle, three)
    expected = Release(version=4, canary=Canary.model_validate(canary), shadow=1)
    assert repositories.read_release(three, "feed") == expected


# Keep.


def test_keep_removes_the_oldest_versions(bundle: Path, three: Path) -> None:
    publish(bundle, three, keep=2)
    assert repositories.list_versions(three, "feed") == [3, 4]
    assert {f.name for f in (three / "feed").iterdir()} == {".lock", "3", "4", "current.json", "fallbacks.json"}
    assert repositories.read_fallbacks(three, "feed") == [3]


def test_keep_never_removes_served_versions(bundle: Path, three: Path) -> None:
    for _ in range(2):
        publish(bundle, three)
    release = {"version": 1, "pinned": True, "canary": {"version": 2, "weight": 0.0}, "shadow": 3}
    change_release(three, "feed", release)
    publish(bundle, three, keep=1)
    assert repositories.list_versions(three, "feed") == [1, 2, 3, 6]


def test_keep_removes_a_version_with_one_rename(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(bundle, tmp_path)
    remove, seen = shutil.rmtree, []

    def watched(folder: Path, **how: Any) -> None:
        seen.append((repositories.list_versions(tmp_path, "feed"), files(Path(folder) / "1")))
        remove(folder, **how)

    monkeypatch.setattr(shutil, "rmtree", watched)
    publish(bundle, tmp_path, keep=1)
    assert seen == [([2], files(bundle))]


class Killed(NamedTuple):
    """Copies of a repository, each left by a publication that was killed; read only.

    Attributes:
        first: the repository had no model.
        next: the repository had version 1.
    """

    first: list[Path]
    next: list[Path]


def killed_publications(
    bundle: Path, repository: Path | None, ranker: KilledRanker, name: str, changes: Iterable[int]
) -> None:
    """Copy a repository for each of these changes, and kill a publication into the copy before the change."""
    for change in changes:
        copy = ranker.folder / f"{name}-{change:03}"
        if repository is not None:
            shutil.copytree(repository, copy)
        if not ranker.run("publish", bundle, copy, change=change):
            shutil.rmtree(copy)
            return
        copy.mkdir(parents=True, exist_ok=True)
    raise AssertionError("the publication has more changes")


@pytest.fixture(
    scope="module", params=[pytest.param(8, marks=pytest.mark.system), pytest.param(1, marks=pytest.mark.nightly)]
)
def killed(bundle: Path, repository: Path, once: Once, request: pytest.FixtureRequest) -> Killed:
    """Repositories after killed publications; the first 120 changes are those of the copy of the bundle; read only."""

    def kill(folder: Path) -> None:
        with killed_ranker(folder, "pipelines.jobs.publish", "ranking.frozen.graph") as ranker:
            killed_publications(bundle, None, ranker, "first", range(1, 1_000, 30))
            changes = [*range(1, 120, 30), *range(120, 1_000, request.param)]
            killed_publications(bundle, repository, ranker, "next", changes)

    folder = once(f"publications killed at each change in {request.param}", kill)
    return Killed(sorted(folder.glob("first-*")), sorted(folder.glob("next-*")))


# Killed publications.


def test_killed_publication_leaves_the_old_version_and_no_partial_version(killed: Killed, repository: Path) -> None:
    """Protects a repository that services read."""
    for copy in killed.next:
        assert repositories.list_models(copy) == ["feed"]
        assert files(copy / "feed" / "1") == files(repository / "feed" / "1")
        for version in repositories.list_versions(copy, "feed"):
            checksums.verify_files(repositories.bundle_folder(copy, "feed", version))
    current = [repositories.read_release(copy, "feed").version for copy in killed.next]
    assert current == sorted(current)
    assert set(current) == {1, 2}


def test_killed_publication_does_not_block_the_next_one(bundle: Path, killed: Killed, tmp_path: Path) -> None:
    for left in killed.next[::3]:
        copy = shutil.copytree(left, tmp_path / left.name)
        name, version = publish(bundle, copy)
        assert (name, repositories.read_release(copy, name).version) == ("feed", version)
        ranking.load(repositories.bundle_folder(copy, name, version))
        versions = {str(published) for published in range(1, version + 1)}
        assert {file.name for file in (copy / name).iterdir()} == {*versions, "current.json", "fallbacks.json", ".lock"}


def test_killed_first_publication_leaves_no_model(bundle: Path, killed: Killed, tmp_path: Path) -> None:
    assert killed.first
    for left in killed.first:
        copy = shutil.copytree(left, tmp_path / left.name)
        assert repositories.list_models(copy) == []
        publish(bundle, copy)
        assert repositories.list_models(copy) == ["feed"]
        ranking.load(repositories.bundle_folder(copy, "feed", repositories.read_release(copy, "feed").version))
