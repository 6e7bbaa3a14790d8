"""Repository of bundles: ``REPOSITORY/NAME/VERSION/`` (1, 2, 3 …, immutable) and ``REPOSITORY/NAME/current.json``.

Readers need no lock: versions appear and disappear by one rename, and ``current.json`` is replaced atomically. Writers
of a model hold its lock.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ranking.artifacts.atomic_files import check_folder, fsync, os_error_text, write_json
from ranking.artifacts.release import CURRENT, Release, parse_release
from ranking.errors import BundleError, OutputError

LOCK_FILE = ".lock"
STAGING_PREFIX = ".work-"
"""Prefix of staging folders, which hold versions that are not published yet or are being removed."""


def list_models(repository: Path) -> list[str]:
    """Return the models that have a current version, sorted.

    Raises:
        BundleError: the repository does not exist.
    """
    if not repository.is_dir():
        raise BundleError(f"{repository}: no such repository; publish a bundle into it with 'ranker publish'")
    return sorted(file.parent.name for file in repository.glob(f"*/{CURRENT}"))


def list_versions(repository: Path, name: str) -> list[int]:
    """Return the published versions of a model, ascending."""
    folders = (repository / name).glob("[0-9]*")
    return sorted(int(folder.name) for folder in folders if folder.name.isdecimal() and folder.is_dir())


def bundle_folder(repository: Path, name: str, version: int) -> Path:
    """Return the folder of a version's bundle.

    Raises:
        BundleError: a link points outside the repository.
    """
    folder = repository / name / str(version)
    if not folder.resolve().is_relative_to(repository.resolve()):
        raise BundleError(f"{folder} is a link that leads out of the repository: replace it by the bundle itself")
    return folder


def read_release(repository: Path, name: str) -> Release:
    """Read the release of a model.

    Raises:
        BundleError: ``current.json`` does not exist or is damaged.
    """
    file = repository / name / CURRENT
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise BundleError(f"{file} does not exist: publish a bundle with 'ranker publish'") from None
    except OSError as error:
        raise BundleError(f"{file} cannot be read ({os_error_text(error)})") from None
    except (ValueError, RecursionError):  # The file is not JSON or not UTF-8.
        document = None
    return parse_release(document, str(file))


def write_release(repository: Path, name: str, release: Release) -> None:
    """Replace the release of a model atomically; the caller holds ``lock_model``.

    Raises:
        BundleError: a version of the release is not published.
        OutputError: ``current.json`` cannot be written.
    """
    published = list_versions(repository, name)
    for version in release.versions:
        if version not in published:
            raise BundleError(f"{repository}/{name} has no version {version}: it has {', '.join(map(str, published))}")
    write_json(release.to_json(), repository / name / CURRENT)


@contextmanager
def lock_model(repository: Path, name: str) -> Iterator[None]:
    """Exclude other writers of this model; the operating system releases the lock if this process dies.

    Raises:
        OutputError: the model's folder cannot be written.
    """
    with _locked(repository / name / LOCK_FILE):
        yield


@contextmanager
def staging_dir(repository: Path, name: str) -> Iterator[Path]:
    """Yield an empty temporary folder inside the model's folder, which is created if it does not exist.

    If this process dies, the next ``staging_dir`` removes the folder: a process locks its folder while it lives.

    Raises:
        OutputError: the repository cannot be written.
    """
    model = repository / name
    check_folder(model)
    try:
        model.mkdir(parents=True, exist_ok=True)
        fsync(repository)
    except OSError as error:
        raise OutputError(f"{model}: cannot be written ({os_error_text(error)})") from None
    with ExitStack() as stack:
        with lock_model(repository, name):
            for abandoned in model.glob(f"{STAGING_PREFIX}*"):
                _remove_if_abandoned(abandoned)
            staging = _create_staging(model)
            stack.callback(shutil.rmtree, staging, ignore_errors=True)
            stack.enter_context(_locked(staging / LOCK_FILE))
        yield staging


def _create_staging(model: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=model))
    except OSError as error:
        raise OutputError(f"{model}: cannot be written ({os_error_text(error)})") from None


def _remove_if_abandoned(staging: Path) -> None:
    try:
        with (staging / LOCK_FILE).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(staging, ignore_errors=True)
    except FileNotFoundError:  # Its process died before it created the lock or while it removed the folder.
        shutil.rmtree(staging, ignore_errors=True)
    except BlockingIOError:
        return  # Its process is alive.


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Wait for the lock on a file, which is created if it does not exist, and hold it."""
    try:
        lock = file.open("a+")  # Network filesystems lock only files that are open for writing.
    except OSError as error:
        raise OutputError(f"{file}: cannot be written ({os_error_text(error)})") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
