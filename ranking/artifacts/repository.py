"""Repository of bundles.

NAME/1/, NAME/2/ …    versions of a model, immutable bundles
NAME/current.json     versions that services load (``Release``)
NAME/fallbacks.json   versions to serve if these cannot be loaded (``Fallbacks``)
repository.json       default model, see ``default_model``

Readers need no lock: versions appear and disappear by one rename, and JSON files are replaced atomically. Writers of a
model hold its lock.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ranking.artifacts.atomic_files import check_folder, fsync, os_error_text, write_errors, write_json
from ranking.artifacts.release import CURRENT, FALLBACKS, Fallbacks, Release, parse_release
from ranking.errors import BundleError
from ranking.file_locks import FileLock
from ranking.regular_files import read_regular
from ranking.schema import MODEL_NAME

LOCK_FILE, COPY_LOCK_FILE = ".lock", ".remote.lock"
MAX_JSON_BYTES = 1024 * 1024
"""Maximum size of ``current.json`` and of the other JSON files."""
STAGING_PREFIX = ".work-"
"""Prefix of staging folders, which hold versions that are not published yet or are being removed."""


def list_models(repository: Path) -> list[str]:
    """Return the models that have a current version, sorted.

    Folders whose names are not names of models, such as the backup ``feed.old``, are ignored.

    Raises:
        BundleError: the repository does not exist or cannot be read.
    """
    with read_errors(repository):
        if not repository.is_dir():
            raise BundleError(f"{repository}: no such repository; publish a bundle into it with 'ranker publish'")
        names = (file.parent.name for file in repository.glob(f"*/{CURRENT}"))
        return sorted(name for name in names if re.fullmatch(MODEL_NAME, name))


def list_versions(repository: Path, name: str) -> list[int]:
    """Return the published versions of a model, ascending.

    Raises:
        BundleError: the model's folder cannot be read.
    """
    with read_errors(repository / name):
        folders = (repository / name).glob("[0-9]*")
        return sorted(int(folder.name) for folder in folders if folder.name.isdecimal() and folder.is_dir())


def bundle_folder(repository: Path, name: str, version: int) -> Path:
    """Return the folder of a version's bundle.

    Raises:
        BundleError: a link points outside the repository.
    """
    folder = repository / name / str(version)
    _check_inside(folder, repository, "the bundle itself")
    return folder


def check_model_name(name: str) -> None:
    """Check a name of a model, which is a folder name in the repository and a path segment in URLs.

    Raises:
        BundleError: it contains other characters than a name may have.
    """
    if not re.fullmatch(MODEL_NAME, name):
        raise BundleError(f"name '{name}': use letters, digits, '_' and '-', and start with a letter or a digit")


def read_release(repository: Path, name: str) -> Release:
    """Read the release of a model.

    Raises:
        BundleError: ``current.json`` does not exist or is damaged.
    """
    file = repository / name / CURRENT
    _check_inside(file, repository, "the file itself")
    try:
        document = read_json(file)
    except FileNotFoundError:
        raise BundleError(f"{file} does not exist: publish a bundle with 'ranker publish'") from None
    return parse_release(document, str(file))


def find_release(repository: Path, name: str) -> Release | None:
    """Return the release of a model; None if nothing is published.

    Raises:
        BundleError: ``current.json`` is damaged.
    """
    return read_release(repository, name) if (repository / name / CURRENT).exists() else None


def read_fallbacks(repository: Path, name: str) -> list[int]:
    """Return the published versions that may be served if the release cannot be loaded, newest first.

    Raises:
        BundleError: ``fallbacks.json`` is damaged.
    """
    fallbacks = stored_fallbacks(repository, name)
    published = list_versions(repository, name)
    return [version for version in fallbacks.versions if version in published]


def stored_fallbacks(repository: Path, name: str) -> Fallbacks:
    """Return the fallbacks of a model, whether or not they are still published.

    Raises:
        BundleError: ``fallbacks.json`` is damaged.
    """
    file = repository / name / FALLBACKS
    _check_inside(file, repository, "the file itself")
    try:
        return Fallbacks.model_validate(read_json(file))
    except FileNotFoundError:  # The model has had one version only, or is from an earlier version of this software.
        return Fallbacks()
    except ValidationError:
        raise BundleError(f"{file} is damaged: the next 'ranker publish' or 'ranker release' rewrites it") from None


def read_json(file: Path) -> Any:
    """Return the content of a small JSON file, or None if it is not JSON.

    Raises:
        FileNotFoundError: the file does not exist.
        BundleError: the file cannot be read, is not a regular file, or is too large.
    """
    try:
        return parse_json(read_regular(file, MAX_JSON_BYTES))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BundleError(f"{file} cannot be read ({os_error_text(error)})") from None


def parse_json(content: bytes) -> Any:
    """Return the content of a JSON file, or None if it is not JSON or not UTF-8."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def write_release(repository: Path, name: str, release: Release) -> None:
    """Replace the release of a model atomically; the caller holds ``lock_model``.

    The version that was current before becomes a fallback, see ``Fallbacks``.

    Raises:
        BundleError: a version of the release is not published, or has two roles.
        OutputError: ``current.json`` cannot be written.
    """
    check_published(repository, name, release)
    if release.canary is not None and release.canary.version == release.shadow:
        raise BundleError(f"version {release.shadow} cannot be both the canary and the shadow: remove one of them")
    _update_fallbacks(repository, name, release.version)
    write_json(release.to_json(), repository / name / CURRENT)


def check_published(repository: Path, name: str, release: Release) -> None:
    """Check that all versions of a release exist.

    Raises:
        BundleError: a version of the release is not published.
    """
    published = list_versions(repository, name)
    for version in release.versions:
        if version not in published:
            raise BundleError(f"{repository}/{name} has no version {version}: it has {', '.join(map(str, published))}")


def _update_fallbacks(repository: Path, name: str, version: int) -> None:
    previous, fallbacks = None, Fallbacks()
    with suppress(BundleError):  # The next version can be released although the previous files are damaged.
        previous = read_release(repository, name).version
    with suppress(BundleError):
        fallbacks = stored_fallbacks(repository, name)
    after = fallbacks.after_release(previous, version)
    file = repository / name / FALLBACKS
    if after.versions or os.path.lexists(file):
        write_json(after.model_dump(), file)


def lock_model(repository: Path, name: str) -> FileLock:
    """Exclude other writers of this model; the operating system releases the lock if this process dies.

    Raises:
        BundleError: the model's folder is a link that points outside the repository.
        OutputError: the model's folder cannot be written.
    """
    _check_inside(repository / name, repository, "the folder itself")
    return _locked(repository / name / LOCK_FILE)


def lock_repository(repository: Path) -> FileLock:
    """Exclude other writers of ``repository.json``.

    Raises:
        OutputError: the repository cannot be written.
    """
    return _locked(repository / LOCK_FILE)


def lock_copy(repository: Path) -> FileLock:
    """Exclude other processes that exchange files with object storage; publishing does not wait for them.

    Raises:
        OutputError: the repository cannot be written.
    """
    return _locked(repository / COPY_LOCK_FILE)


@contextmanager
def staging_dir(repository: Path, name: str) -> Iterator[Path]:
    """Yield an empty temporary folder inside the model's folder, which is created if it does not exist.

    If this process dies, the next ``staging_dir`` removes the folder: a process locks its folder while it lives.

    Raises:
        OutputError: the repository cannot be written.
    """
    model = repository / name
    check_folder(model)
    with write_errors(model):
        model.mkdir(parents=True, exist_ok=True)
        fsync(repository)
    with ExitStack() as stack:
        with lock_model(repository, name):
            for abandoned in model.glob(f"{STAGING_PREFIX}*"):
                _remove_if_abandoned(abandoned)
            staging = _create_staging(model)
            stack.callback(shutil.rmtree, staging, ignore_errors=True)
            stack.enter_context(_locked(staging / LOCK_FILE))
        yield staging


def move_folder(folder: Path, target: Path) -> None:
    """Move a folder of a repository by one rename: a draft becomes a version, or a version is removed.

    Raises:
        OutputError: the repository cannot be written.
    """
    with write_errors(target):
        folder.rename(target)
        fsync(target.parent)
        fsync(folder.parent)


def _create_staging(model: Path) -> Path:
    with write_errors(model):
        return Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=model))


def _remove_if_abandoned(staging: Path) -> None:
    try:
        with FileLock(staging / LOCK_FILE, wait=False):
            shutil.rmtree(staging, ignore_errors=True)
    except FileNotFoundError:  # Its process died before it created the lock or while it removed the folder.
        shutil.rmtree(staging, ignore_errors=True)
    except BlockingIOError:
        return  # Its process is alive.


def _check_inside(path: Path, repository: Path, replacement: str) -> None:
    with read_errors(path):
        is_inside = path.resolve().is_relative_to(repository.resolve())
    if not is_inside:
        raise BundleError(f"{path} is a link that leads out of the repository: replace it with {replacement}")


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Convert errors of the filesystem to BundleError."""
    try:
        yield
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({os_error_text(error)})") from None
    except RuntimeError:  # Path.resolve, before Python 3.13.
        raise BundleError(f"{path} cannot be read (a link leads to itself)") from None


def _locked(file: Path) -> FileLock:
    """Wait for the lock of a file, which is created if it does not exist."""
    with write_errors(file):
        return FileLock(file, create=True)
