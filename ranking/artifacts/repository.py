"""Versions of bundles on disk: ``REPOSITORY/NAME/VERSION/`` (1, 2, 3 …, never changed) and ``NAME/current.json``.

Readers need no lock: a version appears and goes by one rename, and ``current.json`` is replaced. Writers take turns.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ranking.artifacts import release as releases
from ranking.artifacts.atomic_files import fsync, os_error_text, require_folder
from ranking.artifacts.release import CURRENT, Release
from ranking.errors import BundleError, OutputError

LOCK = ".lock"
WORK = ".work-"
"""Folders of work in progress beside the versions: what is not yet one, or no longer."""


def names(repository: Path) -> list[str]:
    """Models that have a current version, sorted.

    Raises:
        BundleError: no such folder.
    """
    if not repository.is_dir():
        raise BundleError(f"{repository}: no such repository; publish a bundle into it with 'ranker publish'")
    return sorted(file.parent.name for file in repository.glob(f"*/{CURRENT}"))


def versions(repository: Path, name: str) -> list[int]:
    """Published versions of a model, ascending."""
    folders = (repository / name).glob("[0-9]*")
    return sorted(int(folder.name) for folder in folders if folder.name.isdecimal() and folder.is_dir())


def folder(repository: Path, name: str, version: int) -> Path:
    """Where a version's bundle lies.

    Raises:
        BundleError: a link leads out of the repository.
    """
    found = repository / name / str(version)
    if not found.resolve().is_relative_to(repository.resolve()):
        raise BundleError(f"{found} leads out of the repository, by a link: put the bundle itself there")
    return found


def release(repository: Path, name: str) -> Release:
    """What is to be served of a model.

    Raises:
        BundleError: nothing is, or current.json is damaged.
    """
    return releases.read(repository / name)


def put_release(repository: Path, name: str, wanted: Release) -> None:
    """Makes this what is to be served of a model; the caller holds ``lock_model``.

    Raises:
        BundleError: a version is not published.
        OutputError: it cannot be written.
    """
    there = versions(repository, name)
    for version in wanted.versions:
        if version not in there:
            raise BundleError(f"{repository}/{name} has no version {version}: it has {', '.join(map(str, there))}")
    releases.write(wanted, repository / name)


@contextmanager
def lock_model(repository: Path, name: str) -> Iterator[None]:
    """Keeps other writers of this model waiting; the system lets them on if this process dies.

    Raises:
        OutputError: the model's folder cannot be written.
    """
    with _locked(repository / name / LOCK):
        yield


@contextmanager
def staging_dir(repository: Path, name: str) -> Iterator[Path]:
    """An empty folder on the model's filesystem, gone at the end; makes the model's folder if there is none.

    If this process dies the next workspace removes this one: each holds a lock as long as its process lives.

    Raises:
        OutputError: the repository cannot be written.
    """
    model = repository / name
    require_folder(model)
    try:
        model.mkdir(parents=True, exist_ok=True)
        fsync(repository)
    except OSError as error:
        raise OutputError(f"{model}: cannot be written ({os_error_text(error)})") from None
    with ExitStack() as stack:
        with lock_model(repository, name):
            for left in model.glob(f"{WORK}*"):
                _remove_unless_owned(left)
            work = _made(model)
            stack.callback(shutil.rmtree, work, ignore_errors=True)
            stack.enter_context(_locked(work / LOCK))
        yield work


def _made(model: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=WORK, dir=model))
    except OSError as error:
        raise OutputError(f"{model}: cannot be written ({os_error_text(error)})") from None


def _remove_unless_owned(work: Path) -> None:
    try:
        with (work / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(work, ignore_errors=True)
    except FileNotFoundError:  # it died before it had made the lock, or after it had removed it
        shutil.rmtree(work, ignore_errors=True)
    except BlockingIOError:
        return  # its process lives


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Waits for the lock on a file, which is made if it is not there, and holds it."""
    try:
        lock = file.open("a+")  # network filesystems lock only what may be written
    except OSError as error:
        raise OutputError(f"{file}: cannot be written ({os_error_text(error)})") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
