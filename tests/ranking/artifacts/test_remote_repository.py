"""A repository in object storage and its copies, with a real S3 server and small stand-ins for bundles."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ranking.artifacts import remote_repository, repository
from ranking.artifacts.checksums import CHECKSUM_FILE, write_checksums
from ranking.artifacts.default_model import read_default_model, record_first_model, write_default_model
from ranking.artifacts.object_store import ObjectStore
from ranking.artifacts.release import CURRENT, FALLBACKS, Canary, Release
from ranking.artifacts.remote_repository import RETRY_SECONDS, STATE_FILE, RemoteRepository
from ranking.errors import BundleError, OutputError


@dataclass(frozen=True)
class Copy:
    """A folder and the repository in object storage."""

    folder: Path
    remote: RemoteRepository
    lines: list[str] = field(default_factory=list)

    def publish(self, version: int, name: str = "feed", content: str = "", **release: object) -> None:
        """Add a version whose files are small, and release it."""
        folder = self.folder / name / str(version)
        (folder / "tables").mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"version": version, "content": content}))
        (folder / "tables" / "user.npy").write_bytes(b"user" * 1000 + bytes([version]))
        write_checksums(folder)
        record_first_model(self.folder, name)
        self.release(name, version=version, **release)

    def release(self, name: str = "feed", **release: object) -> None:
        with repository.lock_model(self.folder, name):
            repository.write_release(self.folder, name, Release.model_validate(release))

    def push(self) -> None:
        self.remote.push(self.folder)

    def pull(self, **options: float) -> None:
        self.remote.pull(self.folder, **options)

    def versions(self, name: str = "feed") -> list[int]:
        return repository.list_versions(self.folder, name)

    def current(self, name: str = "feed") -> int:
        return repository.read_release(self.folder, name).version


@pytest.fixture
def copy_of(location: str, tmp_path: Path) -> Callable[[str], Copy]:
    """Function that returns the copy in a folder of this name."""

    def create(name: str) -> Copy:
        lines: list[str] = []
        return Copy(tmp_path / name, RemoteRepository(location, lines.append), lines)

    return create


@pytest.fixture
def store(location: str) -> ObjectStore:
    return ObjectStore(location)


@pytest.fixture
def source(copy_of: Callable[[str], Copy]) -> Copy:
    """A repository with versions 1 and 2, which is pushed."""
    source = copy_of("source")
    source.publish(1)
    source.publish(2)
    source.push()
    return source


@pytest.fixture
def copy(copy_of: Callable[[str], Copy], source: Copy) -> Copy:
    """An empty folder beside the source."""
    return copy_of("copy")


def after_each(monkeypatch: pytest.MonkeyPatch, operation: str, action: Callable[[], None]) -> None:
    """Do something after each upload or download of a file."""
    original = getattr(ObjectStore, operation)

    def act(self: ObjectStore, *where: object) -> None:
        original(self, *where)
        action()

    monkeypatch.setattr(ObjectStore, operation, act)


def files_of(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_pull_copies_versions_releases_fallbacks_and_default_model(source: Copy, copy: Copy) -> None:
    copy.pull()
    assert files_of(copy.folder) == files_of(source.folder)
    assert copy.lines[0].startswith(f"copied version 2 of feed from {copy.remote.location} (0.0 MB in ")
    assert copy.lines[1] == f'{copy.folder}/feed releases {{"version": 2}}'


def test_pull_and_push_without_changes_write_nothing(source: Copy, copy: Copy) -> None:
    copy.pull()
    before = {file: file.stat().st_mtime_ns for file in copy.folder.rglob("*") if file.is_file()}
    del copy.lines[:]
    copy.pull(keep_days=0)
    copy.push()
    assert {file: file.stat().st_mtime_ns for file in copy.folder.rglob("*") if file.is_file()} == before
    assert copy.lines == []


def test_pull_copies_canary_and_shadow(source: Copy, copy: Copy) -> None:
    source.publish(3)
    source.publish(4)
    source.release(version=4, canary=Canary(version=1, weight=0.5), shadow=2)
    source.push()
    copy.pull()
    assert copy.versions() == [1, 2, 3, 4]  # version 3 is a fallback
    assert repository.read_release(copy.folder, "feed") == repository.read_release(source.folder, "feed")


def test_pull_omits_versions_that_are_not_needed_unless_all_are_asked_for(source: Copy, copy: Copy) -> None:
    for version in (3, 4, 5, 6):
        source.publish(version)
    source.push()
    copy.pull()
    assert copy.versions() == [3, 4, 5, 6]
    copy.pull(every_version=True)
    assert copy.versions() == [1, 2, 3, 4, 5, 6]


def test_pull_with_prune_removes_versions_that_are_no_longer_needed(source: Copy, copy: Copy) -> None:
    copy.pull(every_version=True)
    for version in (3, 4, 5):
        source.publish(version)
    source.push()
    copy.pull(keep_days=0)
    assert copy.versions() == [2, 3, 4, 5]
    source.release(version=1)
    source.push()
    copy.pull(keep_days=0)
    assert copy.versions() == [1]


def test_push_deletes_versions_that_the_folder_removed(source: Copy, copy: Copy, store: ObjectStore) -> None:
    with repository.staging_dir(source.folder, "feed") as work:
        repository.move_folder(source.folder / "feed" / "1", work / "1")
    source.push()
    assert store.folders("feed") == ["2"]
    copy.pull(every_version=True)
    assert copy.versions() == [2]


def test_push_of_a_partial_copy_keeps_the_other_versions(source: Copy, copy: Copy, store: ObjectStore) -> None:
    for version in (3, 4, 5):
        source.publish(version)
    source.push()
    copy.pull()
    copy.release(version=3)
    copy.push()
    assert store.folders("feed") == ["1", "2", "3", "4", "5"]
    source.pull()
    assert source.current() == 3


def test_release_in_a_copy_reaches_the_source(source: Copy, copy: Copy) -> None:
    copy.pull()
    copy.release(version=1, pinned=True)
    copy.push()
    source.pull()
    assert repository.read_release(source.folder, "feed") == Release(version=1, pinned=True)


def test_push_after_another_repository_released_is_rejected(source: Copy, copy: Copy) -> None:
    copy.pull()
    copy.release(version=1)
    copy.push()
    source.publish(3)
    with pytest.raises(BundleError, match=r'/feed was released by another .*\(\{"version": 1\}\): run') as caught:
        source.push()
    assert f"run 'ranker pull {source.remote.location} {source.folder}', then push again" in str(caught.value)
    with pytest.raises(BundleError, match=r'released differently .*\(\{"version": 3\} and \{"version": 1\}\): \'rank'):
        source.pull()
    source.pull(overwrite=True)
    assert source.current() == 1
    source.release(version=3)
    source.push()
    copy.pull()
    assert copy.current() == 3


def test_publishing_does_not_wait_for_a_push(source: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    source.publish(3)
    upload = ObjectStore.upload

    def publish_first(self: ObjectStore, file: Path, path: str) -> None:
        monkeypatch.setattr(ObjectStore, "upload", upload)
        source.publish(4)
        upload(self, file, path)

    monkeypatch.setattr(ObjectStore, "upload", publish_first)
    source.push()
    assert source.current() == 4


def test_push_loses_against_a_release_in_the_meantime(
    source: Copy, copy: Copy, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.publish(3)
    after_each(monkeypatch, "upload", lambda: store.write(f"feed/{CURRENT}", b'{"version": 1}'))
    with pytest.raises(BundleError, match=r"/feed was released by another process in the meantime: run 'ranker pull"):
        source.push()
    copy.pull()
    assert copy.current() == 1


def test_first_push_loses_against_a_release_in_the_meantime(
    copy_of: Callable[[str], Copy], store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = copy_of("source")
    source.publish(1)
    after_each(monkeypatch, "upload", lambda: store.write(f"feed/{CURRENT}", b'{"version": 7}'))
    with pytest.raises(BundleError, match=r"in the meantime"):
        source.push()


def test_same_version_of_two_repositories_is_rejected(source: Copy, copy: Copy) -> None:
    copy.pull()
    copy.publish(3, content="of the copy")
    source.publish(3)
    source.push()
    for operation in (copy.push, copy.pull):
        with pytest.raises(BundleError, match=r"feed/3 are different versions of the same number: copy"):
            operation()
    shutil.rmtree(copy.folder / "feed" / "3")
    copy.pull(every_version=True)
    copy.publish(4, content="of the copy")
    copy.push()
    source.pull()
    assert files_of(source.folder) == files_of(copy.folder)


def test_two_repositories_that_upload_the_same_number_do_not_mix_files(
    source: Copy, copy: Copy, store: ObjectStore
) -> None:
    """The one that is later finds the manifest of the other, whose upload has not finished."""
    copy.pull()
    copy.publish(3, content="of the copy")
    source.publish(3)
    store.write("feed/3/manifest.json", (copy.folder / "feed/3/manifest.json").read_bytes())
    with pytest.raises(BundleError, match=r"/feed/3 was claimed by another repository, whose push has not fin"):
        source.push()
    copy.push()
    fresh = Copy(copy.folder.parent / "fresh", copy.remote)
    fresh.pull()
    assert files_of(fresh.folder / "feed" / "3") == files_of(copy.folder / "feed" / "3")


def test_interrupted_push_is_continued(source: Copy, copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    source.publish(3)
    upload = ObjectStore.upload

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ObjectStore, "upload", fail)
    with pytest.raises(KeyboardInterrupt):
        source.push()
    copy.pull(every_version=True)  # Version 3 is not complete.
    assert (copy.versions(), copy.current()) == ([1, 2], 2)
    monkeypatch.setattr(ObjectStore, "upload", upload)
    source.push()
    copy.pull()
    assert copy.current() == 3


def test_interrupted_pull_leaves_the_folder_as_it_was(
    source: Copy, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.pull()
    before = files_of(copy.folder)
    source.publish(3)
    source.push()
    download = ObjectStore.download

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ObjectStore, "download", fail)
    with pytest.raises(KeyboardInterrupt):
        copy.pull()
    assert files_of(copy.folder) == before
    monkeypatch.setattr(ObjectStore, "download", download)
    copy.pull()
    assert copy.current() == 3


def test_damaged_version_is_named_and_does_not_become_current(
    source: Copy, copy: Copy, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.pull()
    source.publish(3)
    source.push()
    good = store.read("feed/3/tables/user.npy", 10_000)
    assert good is not None
    store.write("feed/3/tables/user.npy", b"damaged")
    message = rf"^{copy.remote.location}/feed/3/tables/user\.npy was altered"
    with pytest.raises(BundleError, match=message):
        copy.pull()
    assert (copy.versions(), copy.current()) == ([1, 2], 2)
    store.write("feed/3/tables/user.npy", good[0])
    with pytest.raises(BundleError, match=message):  # Not downloaded again within a minute.
        copy.pull()
    later = time.monotonic() + RETRY_SECONDS
    monkeypatch.setattr(remote_repository, "monotonic", lambda: later)
    copy.pull()
    assert copy.current() == 3


def test_version_without_an_object_is_not_downloaded_at_each_pull(
    source: Copy, copy: Copy, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.pull()
    source.publish(3)
    source.push()
    store.delete("feed/3/tables/user.npy")
    downloads: list[str] = []
    download = ObjectStore.download

    def count(self: ObjectStore, path: str, file: Path) -> None:
        downloads.append(path)
        download(self, path, file)

    monkeypatch.setattr(ObjectStore, "download", count)
    now = time.monotonic()
    attempts = []
    for seconds in (0, 30, 61, 120, 182):  # The pause grows: 60 s, then 120 s.
        monkeypatch.setattr(remote_repository, "monotonic", lambda seconds=seconds: now + seconds)
        with pytest.raises(BundleError, match=rf"^{copy.remote.location}/feed/3/tables/user\.npy does not exist$"):
            copy.pull()
        attempts.append(downloads.count("feed/3/tables/user.npy"))
    assert attempts == [1, 1, 2, 2, 3]


def test_first_pull_of_a_damaged_version_copies_release_and_fallbacks(
    source: Copy, copy: Copy, store: ObjectStore
) -> None:
    """A service that starts then serves the fallback."""
    store.delete(f"feed/2/{CHECKSUM_FILE}")
    with pytest.raises(BundleError, match=r"/feed/2 does not exist, or its upload has not finished"):
        copy.pull()
    assert (copy.versions(), copy.current()) == ([1], 2)
    assert repository.read_fallbacks(copy.folder, "feed") == [1]


@pytest.mark.parametrize("path", ["/tmp/file", "../../file", "tables/../../file", "a\0", "a//b", "./a"])
def test_checksums_that_lead_out_of_the_folder_are_rejected(
    source: Copy, copy: Copy, store: ObjectStore, path: str
) -> None:
    store.write(f"feed/2/{CHECKSUM_FILE}", f"{'0' * 64}  {path}\n".encode())
    with pytest.raises(BundleError, match=rf"^{copy.remote.location}/feed/2/SHA256SUMS is damaged"):
        copy.pull()
    assert not (copy.folder / "feed" / "file").exists()


@pytest.mark.parametrize(("path", "content"), [(f"feed/{CURRENT}", b"{"), (f"feed/{FALLBACKS}", b'{"versions": 1}')])
def test_damaged_json_is_named_and_other_models_are_updated(
    source: Copy, copy: Copy, store: ObjectStore, path: str, content: bytes
) -> None:
    source.publish(1, name="shop")
    source.push()
    store.write(path, content)
    with pytest.raises(BundleError, match=rf"^{copy.remote.location}/{path}.*damaged"):
        copy.pull()
    assert copy.current("shop") == 1


def test_damaged_version_of_the_folder_is_not_pushed(source: Copy, store: ObjectStore) -> None:
    source.publish(3)
    (source.folder / "feed" / "3" / "tables" / "user.npy").write_bytes(b"damaged")
    with pytest.raises(BundleError, match=r"source/feed/3/tables/user\.npy was altered"):
        source.push()
    assert store.folders("feed") == ["1", "2"]


def test_damaged_current_json_of_the_folder_is_replaced(source: Copy, copy: Copy) -> None:
    copy.pull()
    (copy.folder / "feed" / CURRENT).write_text("{")
    copy.pull()
    assert copy.current() == 2


def test_release_that_was_not_pushed_yet_is_kept_by_a_pull(source: Copy, copy: Copy) -> None:
    """A push that failed must not prevent the next day from pulling before it trains."""
    source.publish(3)
    source.pull()
    source.pull(every_version=True)
    assert source.current() == 3
    source.push()
    copy.pull()
    assert copy.current() == 3


def test_push_keeps_versions_that_were_released_in_the_meantime(
    source: Copy, copy: Copy, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.release(version=2, pinned=True)
    source.push()
    source.publish(3, content="new")
    source.release(version=2, pinned=True)
    shutil.rmtree(source.folder / "feed" / "1")
    after_each(monkeypatch, "upload", lambda: store.write(f"feed/{CURRENT}", b'{"version": 1}'))
    source.push()
    copy.pull()
    assert copy.current() == 1


def test_push_of_a_release_whose_version_is_missing_is_rejected(source: Copy, store: ObjectStore) -> None:
    source.publish(3)
    shutil.rmtree(source.folder / "feed" / "3")
    with pytest.raises(BundleError, match=r"source/feed/3 is not a bundle"):
        source.push()
    assert store.read(f"feed/{CURRENT}", 99)[0] == b'{\n  "version": 2\n}\n'


def test_push_that_loses_leaves_the_fallbacks(source: Copy, copy: Copy, store: ObjectStore) -> None:
    copy.pull()
    source.publish(3)
    source.push()
    copy.release(version=1)
    with pytest.raises(BundleError, match=r"was released by another repository"):
        copy.push()
    assert json.loads(store.read(f"feed/{FALLBACKS}", 99)[0]) == {"versions": [2, 1]}


def test_copied_versions_are_kept_for_some_days(source: Copy, copy: Copy) -> None:
    copy.pull()
    source.release(version=1)
    source.push()
    copy.pull(keep_days=1)
    assert copy.versions() == [1, 2]
    os.utime(copy.folder / "feed" / "2", (time.time() - 90_000,) * 2)
    copy.pull(keep_days=1)
    assert copy.versions() == [1]


def test_default_model_that_was_changed_on_both_sides_is_rejected(source: Copy, copy: Copy) -> None:
    for name in ("shop", "news"):
        source.publish(1, name=name)
    source.push()
    copy.pull()
    write_default_model(copy.folder, "shop")
    copy.push()
    write_default_model(source.folder, "news")
    source.pull()
    assert read_default_model(source.folder) == "news"
    with pytest.raises(BundleError, match=r"another repository has changed the default model to shop: 'ranker pull"):
        source.push()
    source.pull(overwrite=True)
    assert read_default_model(source.folder) == "shop"


def test_default_model_that_cannot_be_copied_is_not_adopted(source: Copy, copy: Copy, store: ObjectStore) -> None:
    copy.pull()
    source.publish(1, name="shop")
    write_default_model(source.folder, "shop")
    source.push()
    store.write(f"shop/{CURRENT}", b"{")
    with pytest.raises(BundleError, match=rf"^{copy.remote.location}/shop/{CURRENT} is damaged: delete the object"):
        copy.pull()
    assert read_default_model(copy.folder) == "feed"


def test_unusable_folders_are_named(source: Copy, copy: Copy) -> None:
    (source.folder / "feed" / "2" / CHECKSUM_FILE).unlink()
    with pytest.raises(BundleError, match=r"source/feed/2 cannot be read \(No such file"):
        source.push()
    copy.folder.mkdir()
    (copy.folder / "feed").write_text("a file")
    with pytest.raises(OutputError, match=r"copy/feed"):
        copy.pull()


def test_release_in_the_folder_during_a_pull_is_kept(source: Copy, copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    copy.pull()
    source.publish(3)
    source.push()
    after_each(monkeypatch, "download", lambda: copy.release(version=1))
    with pytest.raises(BundleError, match=r"were released differently"):
        copy.pull()
    assert copy.current() == 1
    copy.pull(overwrite=True)
    assert copy.current() == 3


def test_killed_pull_of_several_models_is_continued(
    source: Copy, copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that was written but not recorded would be taken for a change in the folder."""
    source.publish(1, name="shop")
    source.push()
    killed = Copy(tmp_path / "killed", copy.remote)
    monkeypatch.setattr(RemoteRepository, "_pull_default", lambda *_: shutil.copytree(copy.folder, killed.folder))
    copy.pull()
    monkeypatch.undo()
    source.publish(3)
    source.push()
    killed.pull()
    assert killed.current() == 3


def test_version_that_was_deleted_from_the_folder_is_copied_again(source: Copy, copy: Copy) -> None:
    copy.pull()
    with repository.staging_dir(copy.folder, "feed") as work:
        repository.move_folder(copy.folder / "feed" / "2", work / "2")
    copy.pull()
    assert copy.versions() == [1, 2]


def test_push_restores_objects_that_were_deleted(source: Copy, copy: Copy, store: ObjectStore) -> None:
    for path in store.paths("feed"):
        store.delete(path)
    source.push()
    copy.pull(every_version=True)
    assert copy.versions() == [1, 2]


def test_default_model_follows_the_last_change(source: Copy, copy: Copy) -> None:
    source.publish(1, name="shop")
    source.push()
    copy.pull()
    assert read_default_model(copy.folder) == "feed"
    write_default_model(copy.folder, "shop")
    copy.push()
    source.push()  # It has not changed the default model, and keeps that of the copy.
    source.pull()
    assert read_default_model(source.folder) == "shop"


def test_folder_of_another_location_is_rejected(source: Copy, copy: Copy) -> None:
    other = RemoteRepository(f"{source.remote.location}/other", print)
    for operation in (other.push, other.pull):
        with pytest.raises(
            BundleError, match=rf"is a copy of {source.remote.location}: name another folder, or delete"
        ):
            operation(source.folder)
    (source.folder / STATE_FILE).unlink()
    other.push(source.folder)
    assert other.list_models() == ["feed"]


def test_damaged_state_is_named(source: Copy) -> None:
    (source.folder / STATE_FILE).write_text("{}")
    with pytest.raises(BundleError, match=r"\.remote\.json is damaged: delete it, then pull again"):
        source.push()
    (source.folder / STATE_FILE).unlink()
    source.pull()
    source.push()


def test_pull_of_an_empty_location_creates_an_empty_repository(copy_of: Callable[[str], Copy]) -> None:
    copy = copy_of("copy")
    copy.pull()
    assert repository.list_models(copy.folder) == []


def test_push_of_a_missing_folder_is_rejected(copy_of: Callable[[str], Copy]) -> None:
    with pytest.raises(BundleError, match=r"missing: no such repository"):
        copy_of("missing").push()


def test_processes_that_pull_the_same_folder_copy_each_version_once(source: Copy, copy: Copy, location: str) -> None:
    lines: list[str] = []
    pulls = [
        threading.Thread(target=RemoteRepository(location, lines.append).pull, args=(copy.folder,)) for _ in range(4)
    ]
    for pull in pulls:
        pull.start()
    for pull in pulls:
        pull.join()
    assert sorted(line.split(" from ")[0] for line in lines if line.startswith("copied")) == [
        "copied version 1 of feed",
        "copied version 2 of feed",
    ]


def test_folders_that_are_not_models_are_ignored(source: Copy, copy: Copy, store: ObjectStore) -> None:
    store.write(f".feed/{CURRENT}", b'{"version": 1}')
    store.write("draft/1/manifest.json", b"{}")
    copy.pull()
    assert repository.list_models(copy.folder) == ["feed"]
