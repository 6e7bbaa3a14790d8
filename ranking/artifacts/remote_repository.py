"""A repository in object storage, and its copies in folders.

It has the layout of ``repository``. Versions never change, and SHA256SUMS, which names the files of a version, is
uploaded last. ``current.json`` is replaced only if it is still the one that was read.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ranking.artifacts import repository
from ranking.artifacts.atomic_files import (
    atomic_directory,
    check_folder,
    encode_json,
    files_in,
    write_errors,
    write_json,
)
from ranking.artifacts.bundle import MANIFEST
from ranking.artifacts.checksums import CHECKSUM_FILE, MAX_BYTES, parse_checksums, verify_files
from ranking.artifacts.default_model import REPOSITORY_FILE, read_default_model
from ranking.artifacts.object_store import ObjectStore, Tag
from ranking.artifacts.release import CURRENT, FALLBACKS, Fallbacks, Release
from ranking.errors import BundleError, RankerError
from ranking.regular_files import read_regular
from ranking.schema import MODEL_NAME

T = TypeVar("T")

MAX_MANIFEST_BYTES = 1024**3
"""Maximum size of ``manifest.json``."""
STATE_FILE = ".remote.json"
"""Common state of a folder and the repository in object storage after the last pull or push."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 60.0, 900.0
"""Seconds until a version is downloaded again that could not be copied: at first, and after further failures.

The polls of a service are more frequent.
"""
SECONDS_PER_DAY = 86_400


class _ModelState(BaseModel):
    """Release and versions of a model that both sides had."""

    model_config = ConfigDict(extra="forbid")
    release: Release | None = None
    versions: set[int] = set()


class _State(BaseModel):
    """Content of ``STATE_FILE``: the location, and what both sides had."""

    model_config = ConfigDict(extra="forbid")
    location: str
    default_model: str | None = None
    models: dict[str, _ModelState] = {}
    _saved: str = ""

    def save(self, folder: Path) -> None:
        """Write the state to a folder if it has changed.

        Raises:
            OutputError: the file cannot be written.
        """
        text = self.model_dump_json()
        if text != self._saved:
            write_json(json.loads(text), folder / STATE_FILE)
            self._saved = text


class _Failure(NamedTuple):
    """Error of a download, seconds until the next one, and its time of the monotonic clock."""

    error: RankerError
    pause: float
    retry_time: float


class RemoteRepository:
    """A repository in object storage.

    Args:
        location: its location, such as ``s3://BUCKET/PATH``.
        report: function that receives a line of text for each change.

    Raises:
        ConfigError: the location is not valid, or obstore is not installed.
    """

    def __init__(self, location: str, report: Callable[[str], None]) -> None:
        self._store, self._report = ObjectStore(location), report
        self._failures: dict[tuple[str, int], _Failure] = {}

    @property
    def location(self) -> str:
        """The location."""
        return self._store.location

    def list_models(self) -> list[str]:
        """Return the models that have a release, sorted.

        Raises:
            BundleError: the location cannot be accessed.
        """
        return [name for name in self._model_folders() if self._read(f"{name}/{CURRENT}") is not None]

    def pull(
        self, folder: Path, *, every_version: bool = False, overwrite: bool = False, keep_days: float | None = None
    ) -> list[str]:
        """Update a folder: copy and verify the versions of each release and its fallbacks, then replace the release.

        A release is replaced only if all of its versions could be copied, or if the folder has no release yet. A
        release of the folder that was not pushed yet is kept. An error of one model does not prevent the update of the
        others.

        Args:
            folder: the folder, which is created if it does not exist.
            every_version: copy all other versions, too.
            overwrite: replace releases of the folder, too, that were changed there since the last pull or push.
            keep_days: days after which copied versions are removed that are neither released nor fallbacks; None: no
                version is removed.

        Returns:
            The models that have a release, sorted.

        Raises:
            BundleError: the location cannot be accessed, a version is damaged, or both sides have other releases than
                after the last pull or push.
            OutputError: the folder cannot be written.
        """
        check_folder(folder)
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        names: list[str] = []
        errors: list[RankerError] = []
        with self._state(folder) as state:
            for name in self._model_folders():
                model = state.models.get(name, _ModelState())
                try:
                    release = self._read_release(name)
                    if release is not None:
                        names.append(name)
                        state.models[name] = model
                        self._pull_model(folder, name, release[0], model, every_version, overwrite)
                        if keep_days is not None:
                            self._prune(folder, name, model, keep_days)
                except RankerError as error:
                    errors.append(error)
                state.save(folder)
            self._pull_default(folder, state, overwrite)
        if errors:
            raise errors[0]
        return names

    def push(self, folder: Path) -> None:
        """Upload the new versions of a folder, then its releases; delete the versions that the folder removed.

        Raises:
            BundleError: the location cannot be accessed, it has another release than after the last pull or push or
                another version of the same number, or a version of the folder is missing or damaged.
            OutputError: ``STATE_FILE`` cannot be written.
        """
        names = repository.list_models(folder)
        with self._state(folder) as state:
            for name in names:
                model = state.models.setdefault(name, _ModelState())
                self._push_model(folder, name, model)
                state.save(folder)
                self._delete_removed(folder, name, model)
            self._push_default(folder, state)

    def _pull_model(
        self, folder: Path, name: str, release: Release, state: _ModelState, every_version: bool, overwrite: bool
    ) -> None:
        fallbacks = self._read_fallbacks(name)
        is_ahead = not overwrite and self._is_ahead(folder, name, release, state)
        errors = self._pull_versions(folder, name, release.versions, state)
        if (not is_ahead and not errors) or _local_release(folder, name) is None:
            self._write_release(folder, name, release, fallbacks, state, overwrite)
        others = [*fallbacks.versions, *(self._list_versions(name) if every_version else [])]
        errors += self._pull_versions(folder, name, others, state, skip_missing=True)
        if errors:
            raise errors[0]

    def _pull_versions(
        self, folder: Path, name: str, versions: Iterable[int], state: _ModelState, *, skip_missing: bool = False
    ) -> list[RankerError]:
        """Copy those of these versions that the folder lacks; return the errors."""
        errors: list[RankerError] = []
        for version in dict.fromkeys(versions):
            try:
                self._pull_version(folder, name, version, state, skip_missing)
            except RankerError as error:
                errors.append(error)
        return errors

    def _pull_version(self, folder: Path, name: str, version: int, state: _ModelState, skip_missing: bool) -> None:
        target, where = repository.bundle_folder(folder, name, version), f"{name}/{version}"
        if target.is_dir() and version in state.versions:
            return
        checksums = self._read(f"{where}/{CHECKSUM_FILE}")
        if checksums is None:
            if skip_missing:
                return
            raise BundleError(f"{self.location}/{where} does not exist, or its upload has not finished")
        if target.is_dir():
            self._require_same(folder, where, checksums[0])
        else:
            self._download(folder, name, version, checksums[0])
        state.versions.add(version)

    def _download(self, folder: Path, name: str, version: int, checksums: bytes) -> None:
        start = monotonic()
        failure = self._failures.get((name, version))
        if failure is not None and start < failure.retry_time:
            raise failure.error
        try:
            size = self._download_now(folder, name, version, checksums)
        except RankerError as error:
            pause = RETRY_SECONDS if failure is None else min(2 * failure.pause, MAX_RETRY_SECONDS)
            self._failures[name, version] = _Failure(error, pause, monotonic() + pause)
            raise
        seconds = monotonic() - start
        self._report(
            f"copied version {version} of {name} from {self.location} ({size / 1e6:.1f} MB in {seconds:.1f} s)"
        )

    def _download_now(self, folder: Path, name: str, version: int, checksums: bytes) -> int:
        """Copy and verify a version; return its size in bytes."""
        where = f"{name}/{version}"
        with repository.staging_dir(folder, name) as work:
            with atomic_directory(work / "new") as draft:
                for file in parse_checksums(checksums, f"{self.location}/{where}"):
                    (draft / file).parent.mkdir(parents=True, exist_ok=True)
                    self._store.download(f"{where}/{file}", draft / file)
                (draft / CHECKSUM_FILE).write_bytes(checksums)
                size = sum(file.stat().st_size for file in files_in(draft))
                try:
                    verify_files(draft)
                except BundleError as error:
                    raise BundleError(str(error).replace(str(draft), f"{self.location}/{where}")) from None
            with repository.lock_model(folder, name):
                repository.move_folder(work / "new", repository.bundle_folder(folder, name, version))
        return size

    def _is_ahead(self, folder: Path, name: str, release: Release, state: _ModelState) -> bool:
        """Return whether only the folder has a new release.

        Raises:
            BundleError: both sides have.
        """
        ours = _local_release(folder, name)
        if ours is None or ours in (state.release, release):
            return False
        if release != state.release:
            raise BundleError(
                f"{folder}/{name} and {self.location}/{name} were released differently since the last pull or push "
                f"({_text(ours)} and {_text(release)}): 'ranker pull --overwrite' continues with the latter"
            )
        return True

    def _write_release(
        self, folder: Path, name: str, release: Release, fallbacks: Fallbacks, state: _ModelState, overwrite: bool
    ) -> None:
        """Replace the release of the folder, unless it is the same; an unchanged file tells readers to do nothing."""
        path = folder / name
        if _local_release(folder, name) != release or _readable(repository.stored_fallbacks, folder, name) != fallbacks:
            with write_errors(path):
                path.mkdir(exist_ok=True)
            with repository.lock_model(folder, name):
                if not overwrite and self._is_ahead(folder, name, release, state):  # Since the download began.
                    return
                write_json(fallbacks.model_dump(), path / FALLBACKS)
                write_json(release.to_json(), path / CURRENT)
            self._report(f"{path} releases {_text(release)}")
        state.release = release

    def _pull_default(self, folder: Path, state: _State, overwrite: bool) -> None:
        """Take over the default model, unless the folder has changed its own or lacks that model."""
        theirs, _ = self._read_default()
        unchanged = overwrite or _readable(read_default_model, folder) in (None, state.default_model)
        if theirs in (None, state.default_model) or not unchanged or theirs not in repository.list_models(folder):
            return
        with repository.lock_repository(folder):
            write_json({"default_model": theirs}, folder / REPOSITORY_FILE)
        state.default_model = theirs

    def _prune(self, folder: Path, name: str, state: _ModelState, keep_days: float) -> None:
        """Remove copied versions that are neither released nor fallbacks; processes keep what they have loaded."""
        release = repository.read_release(folder, name)
        needed = {*release.versions, *repository.read_fallbacks(folder, name)}
        for version in sorted(state.versions - needed):
            target = repository.bundle_folder(folder, name, version)
            if target.is_dir():
                if time.time() < target.stat().st_mtime + keep_days * SECONDS_PER_DAY:
                    continue
                with repository.staging_dir(folder, name) as work:
                    repository.move_folder(target, work / str(version))
                self._report(f"removed version {version} of {name} from {folder}")
            state.versions.discard(version)

    def _push_model(self, folder: Path, name: str, state: _ModelState) -> None:
        ours, remote = repository.read_release(folder, name), self._read_release(name)
        where = f"{self.location}/{name}"
        if remote is not None and remote[0] not in (ours, state.release):
            raise BundleError(
                f"{where} was released by another repository since the last pull or push ({_text(remote[0])}): "
                f"run 'ranker pull {self.location} {folder}', then push again"
            )
        local = set(repository.list_versions(folder, name))
        if remote is None:
            state.versions.clear()  # The objects may have been deleted.
        for version in sorted(local - state.versions | {*ours.versions}):
            self._push_version(folder, name, version)
            state.versions.add(version)
        if remote is None or remote[0] != ours:
            tag = None if remote is None else remote[1]
            if not self._store.replace(f"{name}/{CURRENT}", encode_json(ours.to_json()), tag):
                raise BundleError(
                    f"{where} was released by another process in the meantime: run 'ranker pull {self.location} "
                    f"{folder}', then push again"
                )
            self._report(f"{where} releases {_text(ours)}")
        state.release = ours
        fallbacks = Fallbacks(versions=tuple(repository.read_fallbacks(folder, name))).model_dump()
        if (folder / name / FALLBACKS).exists() and self._read_json(f"{name}/{FALLBACKS}") != fallbacks:
            self._store.write(f"{name}/{FALLBACKS}", encode_json(fallbacks))

    def _delete_removed(self, folder: Path, name: str, state: _ModelState) -> None:
        """Delete the versions that the folder has removed, unless they were released in the meantime."""
        removed = state.versions - set(repository.list_versions(folder, name))
        release = self._read_release(name) if removed else None
        if release is None:
            return
        for version in sorted(removed - {*release[0].versions, *self._read_fallbacks(name).versions}):
            where = f"{name}/{version}"
            self._store.delete(f"{where}/{CHECKSUM_FILE}")  # Without it, the version is no longer complete.
            for path in self._store.paths(where):
                self._store.delete(path)
            self._report(f"removed version {version} of {name} from {self.location}")
            state.versions.discard(version)

    def _push_version(self, folder: Path, name: str, version: int) -> None:
        source, where, start = repository.bundle_folder(folder, name, version), f"{name}/{version}", monotonic()
        known = self._read(f"{where}/{CHECKSUM_FILE}")
        if known is not None:
            if source.is_dir():
                self._require_same(folder, where, known[0])
            return
        verify_files(source)
        with repository.read_errors(source):
            manifest, checksums = read_regular(source / MANIFEST), read_regular(source / CHECKSUM_FILE)
            # Of two repositories that upload the same number, one creates this object.
            if not self._store.replace(f"{where}/{MANIFEST}", manifest, None):
                claimed = self._store.read(f"{where}/{MANIFEST}", MAX_MANIFEST_BYTES)
                if claimed is None or claimed[0] != manifest:
                    raise BundleError(
                        f"{self.location}/{where} was claimed by another repository, whose push has not finished: push "
                        "there again, or delete the objects in this folder"
                    )
            size = len(manifest)
            for path in parse_checksums(checksums, source).keys() - {MANIFEST}:
                self._store.upload(source / path, f"{where}/{path}")
                size += (source / path).stat().st_size
        self._store.write(f"{where}/{CHECKSUM_FILE}", checksums)
        seconds = monotonic() - start
        self._report(f"copied version {version} of {name} to {self.location} ({size / 1e6:.1f} MB in {seconds:.1f} s)")

    def _push_default(self, folder: Path, state: _State) -> None:
        ours, (theirs, tag) = read_default_model(folder), self._read_default()
        if ours is None or ours == state.default_model:
            return
        expected = theirs in (None, state.default_model, ours)
        if not expected or not self._store.replace(REPOSITORY_FILE, encode_json({"default_model": ours}), tag):
            raise BundleError(
                f"{self.location}: another repository has changed the default model to {theirs}: 'ranker pull "
                "--overwrite' continues with that"
            )
        state.default_model = ours

    def _require_same(self, folder: Path, where: str, checksums: bytes) -> None:
        """Raise BundleError if both sides have different versions with this number."""
        with repository.read_errors(folder / where):
            same = read_regular(folder / where / CHECKSUM_FILE, MAX_BYTES) == checksums
        if not same:
            raise BundleError(
                f"{folder}/{where} and {self.location}/{where} are different versions of the same number: copy the "
                f"bundle, delete {folder}/{where}, pull every version ('ranker pull --all'), and publish the copy again"
            )

    def _model_folders(self) -> list[str]:
        return [name for name in self._store.folders() if re.fullmatch(MODEL_NAME, name)]

    def _list_versions(self, name: str) -> list[int]:
        return sorted(int(folder) for folder in self._store.folders(name) if folder.isdecimal())

    def _read_release(self, name: str) -> tuple[Release, Tag] | None:
        content = self._read(f"{name}/{CURRENT}")
        if content is None:
            return None
        try:
            return Release.model_validate(repository.parse_json(content[0])), content[1]
        except ValidationError:
            where = f"{self.location}/{name}/{CURRENT}"
            raise BundleError(f"{where} is damaged: delete the object, then run 'ranker push' again") from None

    def _read_fallbacks(self, name: str) -> Fallbacks:
        document = self._read_json(f"{name}/{FALLBACKS}")
        try:
            return Fallbacks() if document is None else Fallbacks.model_validate(document)
        except ValidationError:
            raise BundleError(f"{self.location}/{name}/{FALLBACKS} is damaged: delete it and push again") from None

    def _read_default(self) -> tuple[str | None, Tag | None]:
        """Return the default model, or None if there is none or a damaged one, and the tag of its file, if any."""
        content = self._read(REPOSITORY_FILE)
        document = None if content is None else repository.parse_json(content[0])
        default = document.get("default_model") if isinstance(document, dict) else None
        return default if isinstance(default, str) else None, None if content is None else content[1]

    def _read_json(self, path: str) -> Any:
        """Return the content of a JSON object; None if it does not exist or is not JSON."""
        content = self._read(path)
        return None if content is None else repository.parse_json(content[0])

    def _read(self, path: str) -> tuple[bytes, Tag] | None:
        return self._store.read(path, MAX_BYTES)

    @contextmanager
    def _state(self, folder: Path) -> Iterator[_State]:
        """Yield the state of a folder, alone; it is written if it was changed, also after an error."""
        with repository.lock_copy(folder):
            state = self._read_state(folder)
            try:
                yield state
            finally:
                state.save(folder)

    def _read_state(self, folder: Path) -> _State:
        file = folder / STATE_FILE
        try:
            state = _State.model_validate(repository.read_json(file))
            state._saved = state.model_dump_json()
        except FileNotFoundError:
            return _State(location=self.location)
        except ValidationError:
            raise BundleError(f"{file} is damaged: delete it, then pull again") from None
        if state.location != self.location:
            raise BundleError(
                f"{folder} is a copy of {state.location}: name another folder, or delete {file} to continue with "
                f"{self.location}"
            )
        return state


def _readable(read: Callable[..., T], *where: Any) -> T | None:
    """Return what a function reads of a folder; None for a damaged file, which a pull replaces."""
    with suppress(BundleError):
        return read(*where)
    return None


def _local_release(folder: Path, name: str) -> Release | None:
    return _readable(repository.find_release, folder, name)


def _text(release: Release) -> str:
    """Return a release as text, such as ``{"version": 3}``."""
    return json.dumps(release.to_json())
