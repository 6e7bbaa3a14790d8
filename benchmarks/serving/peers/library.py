"""Score requests with the look-up, encoding and backend of this repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.serving.peers.protocol import Body, Scores, candidate_ids
from ranking.artifacts import bundle
from ranking.encoding.request_batch import RequestBatch
from ranking.schema import Owner
from service.backends.select import select_backend
from service.engine.request import FeatureRequest, RawFeatures
from service.engine.request_encoder import RequestEncoder


class Library:
    """Scores requests for one bundle; implements ``protocol.Scorer``. Does not validate requests.

    Args:
        folder: folder of the bundle.
    """

    def __init__(self, folder: Path) -> None:
        ranker = bundle.read_bundle(folder)
        self.tasks = ranker.schema.task_names
        self._encoder, self._backend = RequestEncoder(ranker), select_backend(ranker, "onnxruntime")

    def score(self, bodies: Sequence[Body]) -> list[Scores]:
        """Return the scores of each request; all requests are encoded and scored together."""
        requests = [_to_request(body) for body in bodies]
        batch: RequestBatch = self._encoder(FeatureRequest.concat(requests))
        scores = self._backend.scores(batch, self.tasks)
        return np.split(scores, np.cumsum([len(request) for request in requests])[:-1])


def _to_request(body: Body) -> FeatureRequest:
    ids, context = candidate_ids(body), {name: [value] for name, value in body["context"].items()}
    owners: dict[Owner, RawFeatures] = {
        "user": RawFeatures([body["user"]["id"]], {}),
        "context": RawFeatures([None], context),
    }
    return FeatureRequest({**owners, "item": RawFeatures(ids, {})}, [len(ids)])
