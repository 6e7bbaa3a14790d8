"""A folder in object storage, with a real S3 server: complete or not there, verified, never mixed with another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ranking.artifacts import remote_folder
from ranking.artifacts.checksums import CHECKSUM_FILE, verify_files
from ranking.artifacts.object_store import ObjectStore
from ranking.artifacts.remote_folder import CLAIM, find_folder, pull_folder, push_folder
from ranking.errors import BundleError, OutputError


def make_folder(path: Path, content: bytes = b"weights") -> Path:
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.toml").write_bytes(b"[model]\n")
    (path / "checkpoints" / "best.safetensors").write_bytes(content)
    (path / "empty").write_bytes(b"")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "run")


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_pulled_folder_has_the_same_files(folder: Path, location: str, tmp_path: Path) -> None:
    assert find_folder(location) is None
    assert push_folder(folder, location) == 3
    assert find_folder(location) == {"config.toml", "checkpoints/best.safetensors", "empty"}
    assert pull_folder(location, tmp_path / "copy", with_checksums=False) == 3
    assert content_of(tmp_path / "copy") == content_of(folder)
    assert ObjectStore(location).read(CLAIM, 1000) is None


def test_pulled_folder_with_checksums_can_be_verified(folder: Path, location: str, tmp_path: Path) -> None:
    push_folder(folder, location)
    pull_folder(location, tmp_path / "copy", with_checksums=True)
    verify_files(tmp_path / "copy")
    assert push_folder(tmp_path / "copy", location) == 3, "its checksums do not count as a file"


def test_push_again_uploads_nothing(folder: Path, location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    push_folder(folder, location)
    monkeypatch.setattr(ObjectStore, "upload", None)
    assert push_folder(folder, location) == 3


def test_push_of_another_folder_is_rejected(folder: Path, location: str, tmp_path: Path) -> None:
    push_folder(folder, location)
    with pytest.raises(BundleError, match=f"^{location} holds another folder: name another location, or delete"):
        push_folder(make_folder(tmp_path / "other", b"other"), location)
    pull_folder(location, tmp_path / "copy", with_checksums=False)
    assert content_of(tmp_path / "copy") == content_of(folder)


@pytest.mark.parametrize("name", ["other.txt", "feed/current.json"])
def test_push_to_a_location_with_other_objects_is_rejected(folder: Path, location: str, name: str) -> None:
    ObjectStore(location).write(name, b"x")
    with pytest.raises(BundleError, match=f"^{location} holds other objects: name another location$"):
        push_folder(folder, location)


def test_push_that_claims_a_location_after_another_has_ended_does_not_replace_it(
    folder: Path, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, replace = make_folder(tmp_path / "other", b"other"), ObjectStore.replace

    def end_other_first(store: ObjectStore, path: str, *arguments: object) -> bool:
        monkeypatch.setattr(ObjectStore, "replace", replace)
        push_folder(other, location)
        return replace(store, path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectStore, "replace", end_other_first)
    with pytest.raises(BundleError, match="holds another folder"):
        push_folder(folder, location)
    pull_folder(location, tmp_path / "copy", with_checksums=False)
    assert content_of(tmp_path / "copy") == content_of(other)


class Killed(BaseException):
    """Ends a push without any of its error handling."""


def killed_push(folder: Path, location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Push as a command that is killed before it uploads the checksums."""

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "write", kill)
        with pytest.raises(Killed):
            push_folder(folder, location)


def test_interrupted_push_is_incomplete_until_it_is_repeated(
    folder: Path, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_push(folder, location, monkeypatch)
    assert find_folder(location) is None
    with pytest.raises(BundleError, match=f"^{location} does not exist, or its upload has not finished$"):
        pull_folder(location, tmp_path / "copy", with_checksums=False)
    with pytest.raises(BundleError, match=f"^{location} holds the unfinished upload of another folder"):
        push_folder(make_folder(tmp_path / "other", b"other"), location)
    assert push_folder(folder, location) == 3
    assert pull_folder(location, tmp_path / "copy", with_checksums=False) == 3


def test_two_folders_pushed_at_once_are_not_mixed(
    folder: Path, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, barrier, errors = make_folder(tmp_path / "other", b"other"), threading.Barrier(2), []
    is_empty = ObjectStore.is_empty

    def wait_for_the_other(store: ObjectStore) -> bool:
        result = is_empty(store)
        barrier.wait(60)
        return result

    def push(source: Path) -> None:
        try:
            push_folder(source, location)
        except BundleError as error:
            errors.append(str(error))

    monkeypatch.setattr(ObjectStore, "is_empty", wait_for_the_other)
    threads = [threading.Thread(target=push, args=(source,)) for source in (folder, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 1
    pull_folder(location, tmp_path / "copy", with_checksums=False)
    assert content_of(tmp_path / "copy") in (content_of(folder), content_of(other))


def _altered(store: ObjectStore) -> None:
    store.write("config.toml", b"altered")


def _missing(store: ObjectStore) -> None:
    store.delete("config.toml")


def _damaged_list(store: ObjectStore) -> None:
    store.write(CHECKSUM_FILE, b"damaged")


def _outside(store: ObjectStore) -> None:
    store.write(CHECKSUM_FILE, b"%s  ../outside\n" % (b"0" * 64))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_altered, "config.toml is damaged: its SHA-256 is not that of SHA256SUMS; delete the objects"),
        (_missing, "config.toml does not exist"),
        (_damaged_list, "SHA256SUMS is damaged"),
        (_outside, "SHA256SUMS is damaged"),
    ],
)
def test_damaged_folder_is_not_pulled(
    folder: Path, location: str, tmp_path: Path, damage: Callable[[ObjectStore], None], says: str
) -> None:
    push_folder(folder, location)
    damage(ObjectStore(location))
    with pytest.raises(BundleError) as caught:
        pull_folder(location, tmp_path / "copies" / "copy", with_checksums=False)
    assert str(caught.value).startswith(f"{location}/{says}")
    assert list(tmp_path.glob("copies/*")) == []


def test_pull_into_a_folder_with_files_is_rejected(folder: Path, location: str) -> None:
    push_folder(folder, location)
    before = content_of(folder)
    with pytest.raises(OutputError, match=str(folder)):
        pull_folder(location, folder, with_checksums=False)
    assert content_of(folder) == before


def test_upload_that_fails_leaves_the_folder_incomplete(
    folder: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(store: ObjectStore, file: Path, path: str) -> None:
        raise BundleError(f"{store.location}/{path} cannot be accessed")

    monkeypatch.setattr(remote_folder.ObjectStore, "upload", fail)
    with pytest.raises(BundleError, match="cannot be accessed"):
        push_folder(folder, location)
    assert find_folder(location) is None
