"""One version of a model, loaded and ready to answer."""

from __future__ import annotations

from dataclasses import dataclass

from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Backend
from service.engine.request_encoder import RequestEncoder


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """One loaded version of a model. It is freed when it is replaced and its last request is answered.

    Attributes:
        name: of the model.
        version: of the model.
        ranker: the bundle.
        encoder: of its requests.
        runtime: what executes it.
        load_seconds: that loading, verifying and warming up took.
    """

    name: str
    version: str
    ranker: FrozenRanker
    encoder: RequestEncoder
    backend: Backend
    load_seconds: float
