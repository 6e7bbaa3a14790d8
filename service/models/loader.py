"""Loading of published versions: verification, backend selection and warm-up."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np

from ranking.artifacts import bundle, repository
from ranking.artifacts.remote_repository import RemoteRepository
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.errors import BundleError
from ranking.frozen.ranker import FrozenRanker
from ranking.ids.npy import map_file
from ranking.schema import Owner
from service.backends.base import Backend
from service.backends.select import select_backend
from service.engine.model import LoadedModel
from service.engine.request import FeatureRequest, RawFeatures
from service.engine.request_encoder import RequestEncoder
from service.models.sealed_copy import copy_file
from service.settings import Settings

log = logging.getLogger("ranker.service")

OWNERS: tuple[Owner, ...] = ("user", "context", "item")


def check_repository(settings: Settings) -> None:
    """Check that the repository holds a model, and the default model of the settings.

    The service does not start otherwise. It does start if a version is damaged, because that may be repaired, and if a
    repository in object storage cannot be reached of which it has a copy.

    Raises:
        BundleError: the repository does not exist, holds no model, or lacks the default model.
        ConfigError: object storage is not supported by this installation.
    """
    remote, default = open_remote(settings), settings.default_model
    where, command = settings.remote or settings.repository, "publish" if remote is None else "push"
    names = repository.list_models(settings.repository) if remote is None else _list_remote(remote, settings.repository)
    if not names:
        raise BundleError(f"{where} holds no published model; publish one with 'ranker {command}'")
    if default is not None and default not in names:
        raise BundleError(f"{where} has no model '{default}': it has {', '.join(names)}")


def open_remote(settings: Settings) -> RemoteRepository | None:
    """Return the repository in object storage that the settings name, if any.

    Raises:
        ConfigError: object storage is not supported by this installation.
    """
    return None if settings.remote is None else RemoteRepository(settings.remote, lambda line: log.info("%s", line))


def _list_remote(remote: RemoteRepository, copy: Path) -> list[str]:
    try:
        return remote.list_models()
    except BundleError as error:
        copied = repository.list_models(copy) if copy.is_dir() else []
        if not copied:
            raise
        log.error("%s; serving the copy in %s", error, copy)
        return copied


def load_model(settings: Settings, name: str, version: int) -> LoadedModel:
    """Load a version, verify its checksums and golden rows, and warm it up.

    Raises:
        BundleError: the version cannot be served; the message gives the reason.
    """
    start = time.monotonic()
    folder = repository.bundle_folder(settings.repository, name, version)
    if not folder.is_dir():
        raise BundleError(f"{folder} does not exist: publish it, or release another version")
    ranker = bundle.read_bundle(folder, copy_file if settings.copies_tables else map_file)
    backend = select_backend(ranker, settings.backend, settings.threads)
    golden = verify_golden_scores(backend, ranker, folder)
    encoder = RequestEncoder(ranker)
    warm_up(ranker, encoder, backend, golden, settings.max_batch_rows)
    return LoadedModel(name, str(version), ranker, encoder, backend, time.monotonic() - start)


def warm_up(
    ranker: FrozenRanker, encoder: RequestEncoder, backend: Backend, golden: EncodedBatch, max_rows: int
) -> None:
    """Warm up a version (sessions, CUDA graphs, allocations) before it receives traffic.

    Scores batches of one request and of several requests, in sizes of powers of two up to the maximum, and the most
    likely sets of tasks.

    Args:
        ranker: ranker of the version.
        encoder: request encoder of the version.
        backend: backend that executes the version.
        golden: rows to score.
        max_rows: maximum number of rows per batch.
    """
    unknown = {owner: RawFeatures([None] * (max_rows if owner == "item" else 1), {}) for owner in OWNERS}
    encoder(FeatureRequest(unknown, [max_rows]))
    if not len(golden):
        return
    splitter = SharedItemSplitter(ranker.encoder)
    rows = golden.take(np.arange(max_rows) % len(golden))
    batch = splitter.split(rows, np.arange(max_rows))
    single = RequestBatch(batch.shared.take(np.zeros(1, np.int64)), batch.items, np.zeros_like(batch.request_index))
    tasks = tuple(sorted(ranker.schema.task_names))
    for size in [*(2**power for power in range((max_rows - 1).bit_length())), max_rows]:
        backend.scores(single.slice(0, size), tasks)
        backend.scores(splitter.split(rows.take(np.arange(size)), np.arange(size)), tasks)
    for subset in {tuple(sorted(ranker.objective)), *((task,) for task in tasks)} - {()}:
        backend.scores(single, subset)


def verify_golden_scores(backend: Backend, ranker: FrozenRanker, folder: Path) -> EncodedBatch:
    """Score the golden rows of a bundle and compare the scores.

    Returns:
        The golden rows, encoded.

    Raises:
        BundleError: the rows cannot be read, or a score differs by more than ``bundle.TOLERANCE``; names the task.
    """
    rows, expected = bundle.read_golden(folder, ranker.schema)
    with bundle.as_bundle_error(folder):
        inputs = ranker.encoder.encode(rows)
    batch = SharedItemSplitter(ranker.encoder).split(inputs, np.arange(rows.num_rows))
    scores = backend.scores(batch, ranker.schema.task_names)
    context = f"{folder}: golden rows score differently on {backend.name}"
    bundle.check_golden_scores(scores, expected, context, fix="; choose another backend")
    return inputs
