"""From a published version to one that can serve: verified, warm."""

from __future__ import annotations

import time

from ranking.artifacts import bundle, repository
from ranking.errors import BundleError
from service.backends.golden import require_golden
from service.backends.select import select_backend
from service.engine.model import LoadedModel
from service.engine.request_encoder import RequestEncoder
from service.models.warmup import warm_up
from service.settings import Settings


def required_models(settings: Settings) -> list[str]:
    """Models of which one at least must be served, or the service would have nothing to answer.

    Raises:
        BundleError: nothing is published, or not the default model.
    """
    path, default = settings.repository, settings.default_model
    names = repository.names(path)
    if not names:
        raise BundleError(f"{path} holds no published model; publish one with 'ranker publish'")
    if default is not None and default not in names:
        raise BundleError(f"{path} has no model '{default}': it has {', '.join(names)}")
    return names if default is None else [default]


def load(settings: Settings, name: str, version: int) -> LoadedModel:
    """Loads a version, verifies every byte and the golden rows, and warms it up.

    Raises:
        BundleError: it cannot be served; says why.
    """
    start = time.monotonic()
    folder = repository.folder(settings.repository, name, version)
    if not folder.is_dir():
        raise BundleError(f"{folder} is not there: publish it, or release another version")
    ranker = bundle.read(folder)
    runtime = select_backend(ranker, settings.backend, settings.threads, settings.precision)
    golden = require_golden(runtime, ranker, folder)
    encoder = RequestEncoder(ranker)
    warm_up(ranker, encoder, runtime, golden, settings.max_batch_rows)
    return LoadedModel(name, str(version), ranker, encoder, runtime, time.monotonic() - start)
