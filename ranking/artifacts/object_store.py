"""Objects below a location in object storage, read and written with obstore."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from ranking.errors import BundleError, ConfigError, single_line

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore as Store

FORMS = "s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH"
CHUNK_BYTES = 8 * 1024 * 1024
"""Bytes of a file that one request downloads, so that a request takes seconds even if the file takes minutes."""
Tag: TypeAlias = "UpdateVersion"
"""Identifies a version of an object: entity tag, and generation on Google Cloud Storage."""

MAX_RETRIES, RETRY_SECONDS, CONNECT_SECONDS, REQUEST_SECONDS = 5, 30, 5, 120
"""Limits of the retries of a request, with growing pauses, and of the time to connect and for a whole request."""
HINT = "check the location, the network and the credentials (for S3: the AWS_* variables)"

_LOCATION = re.compile(r"(s3|gs|az)://[A-Za-z0-9._-]+(/(?!\.\.?(/|$))[A-Za-z0-9._=+,-]+)*/*")
_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ENDPOINT")


def check_location(location: str) -> str:
    """Return a location without slashes at its end.

    Raises:
        ValueError: it is not a location in object storage.
    """
    if not _LOCATION.fullmatch(location):
        raise ValueError(f"is not a location in object storage: write {FORMS}")
    return location.rstrip("/")


@dataclass(frozen=True)
class ObjectLocation:
    """A location in object storage, in settings that may also name something else.

    Attributes:
        text: ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH`` or ``az://CONTAINER/PATH``.
    """

    text: str

    @classmethod
    def parse(cls, text: str) -> ObjectLocation:
        """Check a location.

        Raises:
            ValueError: the text is not one.
        """
        try:
            return cls(check_location(text))
        except ValueError as error:
            raise ValueError(f"'{text}' {error}") from None

    def __str__(self) -> str:
        return self.text


class ObjectStore:
    """Objects below a location. Credentials, region and endpoint are those of the environment or of the machine.

    Args:
        location: ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH`` or ``az://CONTAINER/PATH``.
        max_seconds: maximum duration of a call that transfers a small object, with its retries.

    Attributes:
        location: the location, without slashes at its end.

    Raises:
        ConfigError: the location is not valid, or obstore is not installed.
    """

    def __init__(self, location: str, max_seconds: float = RETRY_SECONDS + REQUEST_SECONDS) -> None:
        try:
            from obstore.store import from_url
        except ModuleNotFoundError as error:
            hint = "pip install 'dselect-ranker[object-storage]'"
            raise ConfigError(f"{location} needs {error.name}: {hint}") from None
        try:
            self.location = check_location(location)
        except ValueError as error:
            raise ConfigError(f"{location} {error}") from None
        for name in _ENDPOINTS:  # obstore would panic.
            if not os.environ.get(name, "http://").startswith(("http://", "https://")):
                raise ConfigError(f"{name}={os.environ[name]}: an endpoint starts with http:// or https://")
        with self._errors(""):
            # The endpoint is the operator's choice, also one without TLS in the same network.
            retry_seconds = min(RETRY_SECONDS, max_seconds / 4)  # A request may begin until then.
            request_seconds = max_seconds - retry_seconds
            self._store: Store = from_url(
                self.location,
                client_options={
                    "allow_http": True,
                    "connect_timeout": timedelta(seconds=min(CONNECT_SECONDS, request_seconds)),
                    "timeout": timedelta(seconds=request_seconds),
                },
                retry_config={"max_retries": MAX_RETRIES, "retry_timeout": timedelta(seconds=retry_seconds)},
            )

    def folders(self, path: str = "") -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        from obstore import list_with_delimiter

        with self._errors(path):
            prefixes = list_with_delimiter(self._store, path)["common_prefixes"]
        return sorted(prefix.rpartition("/")[2] for prefix in prefixes)

    def read(self, path: str, max_bytes: int) -> tuple[bytes, Tag] | None:
        """Return the content and the tag of a small object; None if it does not exist.

        Raises:
            BundleError: it is larger than ``max_bytes``, or cannot be read.
        """
        from obstore import get

        try:
            with self._errors(path, FileNotFoundError):
                result = get(self._store, path)
                if result.meta["size"] > max_bytes:
                    raise BundleError(f"{self.location}/{path} is larger than {max_bytes:,} bytes")
                tag = {name: result.meta[name] for name in ("e_tag", "version") if result.meta[name] is not None}
                return bytes(result.bytes()), cast("Tag", tag)
        except FileNotFoundError:
            return None

    def replace(self, path: str, content: bytes, tag: Tag | None) -> bool:
        """Write a small object if it still has this tag, or does not exist (None); return whether it was written."""
        from obstore import put
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        changed = AlreadyExistsError, PreconditionError, FileNotFoundError
        try:
            with self._errors(path, *(changed[:2] if tag is None else changed)):
                put(self._store, path, content, mode=tag or "create", use_multipart=False)
        except changed:
            return False
        return True

    def write(self, path: str, content: bytes) -> None:
        """Write a small object."""
        from obstore import put

        with self._errors(path):
            put(self._store, path, content, use_multipart=False)

    def upload(self, file: Path, path: str) -> None:
        """Copy a file to an object."""
        from obstore import put

        with self._errors(path):
            put(self._store, path, file)

    def download(self, path: str, file: Path) -> None:
        """Copy an object to a file.

        Raises:
            BundleError: the object does not exist, or cannot be read.
            OSError: the file cannot be written.
        """
        from obstore import open_reader

        with file.open("wb") as target:
            try:
                with self._errors(path, FileNotFoundError):
                    reader = open_reader(self._store, path, buffer_size=CHUNK_BYTES)
            except FileNotFoundError:
                raise BundleError(f"{self.location}/{path} does not exist") from None
            while True:
                with self._errors(path):
                    chunk = reader.read(CHUNK_BYTES)
                if not len(chunk):
                    return
                target.write(chunk)

    def delete(self, *paths: str) -> None:
        """Delete objects, if they exist."""
        from obstore import delete

        try:
            with self._errors(paths[0] if len(paths) == 1 else "", FileNotFoundError):
                delete(self._store, list(paths) if len(paths) > 1 else paths[0])
        except FileNotFoundError:  # not on S3, where a missing object is deleted, too
            for path in paths if len(paths) > 1 else ():
                self.delete(path)

    def is_empty(self) -> bool:
        """Return whether the location and its folders have no objects."""
        from obstore import list as list_objects

        with self._errors(""):
            return not any(list_objects(self._store, chunk_size=1))

    def names(self, is_wanted: Callable[[str], bool], limit: int) -> list[str]:
        """Return the names of the first wanted objects in the location, sorted, without those in folders."""
        from obstore import list as list_objects

        names: list[str] = []
        with self._errors(""):
            for page in list_objects(self._store):
                names += [path for entry in page if "/" not in (path := entry["path"]) and is_wanted(path)]
                if len(names) >= limit:
                    break
        return sorted(names)[:limit]

    def paths(self, folder: str) -> list[str]:
        """Return the paths of all objects below a folder."""
        from obstore import list as list_objects

        with self._errors(folder):
            return [entry["path"] for page in list_objects(self._store, f"{folder}/") for entry in page]

    @contextmanager
    def _errors(self, path: str, *expected: type[Exception]) -> Iterator[None]:
        """Convert errors of the store to BundleError, except those that the caller expects."""
        from obstore.exceptions import BaseError

        try:
            yield
        except expected:
            raise
        except (BaseError, FileNotFoundError, PermissionError) as error:
            where = f"{self.location}/{path}".rstrip("/")
            raise BundleError(f"{where} cannot be accessed ({_reason(error)}); {HINT}") from None


def _reason(error: BaseException) -> str:
    """Return the reason of an error without debug output, and without credentials and queries of URLs."""
    text = single_line(Exception(str(error).split("Debug source:")[0]))
    if message := re.search(r"<Message>(.*?)</Message>", text):
        return message[1]
    text = re.sub(r"(https?://)[^/\s]*@", r"\1", text)
    text = re.sub(r"(https?://[^\s?]*)\?\S*", r"\1", text)
    start, _, answer = text.partition(" - Server returned")
    status = re.search(r"\d{3} [A-Z][A-Za-z ]*", answer)
    return f"{start}: {status[0].strip()}" if status else start
