"""Parsing and ranking of a request without the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ranking import FrozenRanker
from service.backends.select import select_backend
from service.engine.request import RawFeatures
from service.engine.request_encoder import RequestEncoder
from service.engine.response import RankResult, prepare, sort_candidates
from service.http.decode import item_columns
from service.protocol.messages import RankOptions, RankRequest

ParsedRequest = tuple[RankOptions, RawFeatures]


def parse(body: Mapping[str, Any]) -> ParsedRequest:
    """Parse a JSON request whose items have no features, or features in columns."""
    message = RankRequest.model_validate(body)
    return message, item_columns(message, {})


def rank_alone(ranker: FrozenRanker, request: ParsedRequest) -> RankResult:
    """Rank a request as the service does, but without its queue and batches."""
    encoder = RequestEncoder(ranker)
    prepared = prepare(ranker, encoder, *request)
    batch = encoder(prepared.request)
    (missing,) = encoder.missing(batch, prepared.request.counts)
    scores = select_backend(ranker, "torch").scores(batch, prepared.tasks)
    return sort_candidates(prepared, scores, missing)
