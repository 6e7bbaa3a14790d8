"""Ranking of a request without the engine."""

from __future__ import annotations

from ranking import FrozenRanker
from service.backends.select import select_backend
from service.engine.request_encoder import RequestEncoder
from service.engine.response import RankResult, prepare, sort_candidates
from service.engine.validation import ParsedRequest


def rank_alone(ranker: FrozenRanker, request: ParsedRequest) -> RankResult:
    """Rank a request as the service does, but without its queue and batches."""
    encoder = RequestEncoder(ranker)
    prepared = prepare(ranker, encoder, request)
    batch = encoder(prepared.request)
    (missing,) = encoder.missing(batch, prepared.request.counts)
    scores = select_backend(ranker, "torch").scores(batch, prepared.tasks)
    return sort_candidates(prepared, scores, missing)
