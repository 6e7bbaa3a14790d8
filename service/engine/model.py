"""A loaded version of a model."""

from __future__ import annotations

from dataclasses import dataclass

from ranking.frozen.ranker import FrozenRanker
from service.backends.base import Backend
from service.engine.request_encoder import RequestEncoder


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """One loaded version of a model. It is freed once it is replaced and its last request is answered.

    Attributes:
        name: name of the model.
        version: version of the model.
        ranker: loaded bundle.
        encoder: encoder of the model's requests.
        backend: backend that executes the frozen graph.
        load_seconds: seconds that loading, verifying and warming up took.
    """

    name: str
    version: str
    ranker: FrozenRanker
    encoder: RequestEncoder
    backend: Backend
    load_seconds: float
