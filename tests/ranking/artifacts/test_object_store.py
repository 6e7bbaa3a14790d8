"""Objects in object storage, with a real S3 server."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import moto.settings
import pytest

from ranking.artifacts import object_store
from ranking.artifacts.object_store import ObjectStore, check_location
from ranking.errors import BundleError, ConfigError


class Forbidden(BaseHTTPRequestHandler):
    """Rejects every request without a message."""

    def do_GET(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def forbidding_server() -> Iterator[str]:
    """Address of a server that rejects every request."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Forbidden)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def store(location: str) -> ObjectStore:
    return ObjectStore(location)


def test_read_returns_what_was_written(store: ObjectStore) -> None:
    store.write("a/b.json", b"{}")
    content = store.read("a/b.json", 2)
    assert content is not None
    assert content[0] == b"{}"


def test_read_of_missing_object_is_none(store: ObjectStore) -> None:
    assert store.read("a/b.json", 2) is None


def test_read_of_too_large_object_is_rejected(store: ObjectStore) -> None:
    store.write("a", b"123")
    with pytest.raises(BundleError, match=r"/models/a is larger than 2 bytes"):
        store.read("a", 2)


def test_replace_without_a_tag_creates_an_object(store: ObjectStore) -> None:
    assert store.replace("a", b"1", None)
    assert not store.replace("a", b"2", None)
    assert store.read("a", 9) == (b"1", store.read("a", 9)[1])


def test_replace_needs_the_tag_of_the_present_content(store: ObjectStore) -> None:
    store.write("a", b"1")
    _, tag = store.read("a", 9)
    assert store.replace("a", b"2", tag)
    assert not store.replace("a", b"3", tag)
    assert store.read("a", 9)[0] == b"2"


def test_replace_of_deleted_object_returns_false(store: ObjectStore) -> None:
    store.write("a", b"1")
    _, tag = store.read("a", 9)
    store.delete("a")
    assert not store.replace("a", b"2", tag)


def test_folders_and_paths_list_only_what_is_below_a_folder(store: ObjectStore) -> None:
    for path in ("feed/1/x", "feed/1/y/z", "feed/10/x", "feed/current.json", "shop/1/x"):
        store.write(path, b"1")
    assert store.folders() == ["feed", "shop"]
    assert store.folders("feed") == ["1", "10"]
    assert sorted(store.paths("feed/1")) == ["feed/1/x", "feed/1/y/z"]
    assert store.folders("none") == store.paths("none") == []


def test_large_file_is_uploaded_and_downloaded_in_parts(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(11_000_000)
    (tmp_path / "up").write_bytes(content)
    store.upload(tmp_path / "up", "file")
    monkeypatch.setattr(object_store, "CHUNK_BYTES", 3_000_000)
    store.download("file", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == content


def test_empty_file_is_uploaded_and_downloaded(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "up").touch()
    store.upload(tmp_path / "up", "file")
    store.download("file", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == b""


def test_download_of_missing_object_names_it(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=rf"^{re.escape(store.location)}/file does not exist$"):
        store.download("file", tmp_path / "down")


@pytest.mark.parametrize(
    "location",
    [
        "hdfs://a/b",
        "s3://",
        "s3:///b",
        "s3://key:secret@a/b",
        "s3://a?x=1",
        "s3://a/../b",
        "s3://a/b c",
        "s3://a\n",
        "",
    ],
)
def test_location_that_is_not_supported_is_rejected(location: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a location in object storage: write s3://BUCKET/PATH, gs://"):
        ObjectStore(location)


def test_location_loses_slashes_at_its_end() -> None:
    assert check_location("s3://a/b//") == "s3://a/b"


def test_missing_bucket_is_reported(location: str) -> None:
    missing = ObjectStore("s3://nowhere/models")
    for operation in (lambda: missing.folders(), lambda: missing.write("a", b"1")):
        with pytest.raises(BundleError) as caught:
            operation()
        assert re.fullmatch(
            r"s3://nowhere/models(/a)? cannot be accessed \(The specified bucket does not exist\); check the location, "
            r"the network and the credentials \(for S3: the AWS_\* variables\)",
            str(caught.value),
        )


def test_wrong_credentials_are_reported(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moto.settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)  # rejects all credentials from here on
    with pytest.raises(BundleError, match=r"cannot be accessed \(The AWS Access Key Id .* does not exist .*\); check"):
        store.folders()


def test_unreachable_endpoint_is_reported(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(object_store, "MAX_RETRIES", 0)
    with pytest.raises(
        BundleError, match=r"cannot be accessed \(.*127\.0\.0\.1:1.*\); check the location, the network"
    ):
        ObjectStore(location).folders()


def test_endpoint_without_a_scheme_is_reported(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:5000")
    with pytest.raises(ConfigError, match=r"^AWS_ENDPOINT_URL=127\.0\.0\.1:5000: an endpoint starts with http://"):
        ObjectStore(location)


def test_errors_hide_credentials_and_queries_and_name_the_status(
    location: str, forbidding_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", forbidding_server.replace("http://", "http://user:secret@"))
    monkeypatch.setattr(object_store, "MAX_RETRIES", 0)
    with pytest.raises(BundleError, match=r"127\.0\.0\.1:\d+/shop in .*: 403 Forbidden\); check") as caught:
        ObjectStore(location).folders()
    assert "secret" not in str(caught.value)
    assert "list-type" not in str(caught.value)


def test_missing_obstore_is_reported(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"needs obstore.*pip install 'dselect-ranker\[object-storage\]'"):
        ObjectStore(location)


def test_delete_of_missing_objects_deletes_the_others_on_every_storage(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google Cloud Storage and Azure report a missing object, and delete none of those after it."""
    import obstore

    store, delete = ObjectStore(location), obstore.delete

    def strict_delete(inner: Any, paths: str | list[str]) -> None:
        for path in [paths] if isinstance(paths, str) else paths:
            try:
                obstore.head(inner, path)
            except FileNotFoundError:
                raise FileNotFoundError(path) from None
            delete(inner, path)

    monkeypatch.setattr(obstore, "delete", strict_delete)
    for name in ("a", "c"):
        store.write(name, b"x")
    store.delete("a", "b", "c")
    store.delete("missing")
    assert store.is_empty()
