"""Responses of other versions of the service."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from ranking.client import ServiceError
from ranking.client.results import parse_model, parse_models, parse_ranked_table, parse_ranking

SUMMARY: dict[str, Any] = {"request_id": "r", "model": "feed", "version": "1", "degraded": False}
EXPLAIN = {"experts_run": [3], "experts_total": 8, "tasks": {"click": {"3": 1.0}}, "baseline": {"click": 0.5}}


def test_parse_ranking_reads_contributions_and_ignores_unknown_fields() -> None:
    item = {"id": "v1", "score": 0.5, "scores": {"click": 0.5}, "missing": [], "new": 1}
    contributions = {"click": {"price": 0.25}}
    document = {
        **SUMMARY,
        "new": 1,
        "explain": {**EXPLAIN, "new": 1},
        "items": [item | {"contributions": contributions}],
    }
    ranking = parse_ranking(json.dumps(document).encode())
    assert ranking.items[0].contributions == contributions
    assert ranking.explanation is not None
    assert ranking.explanation.baseline == {"click": 0.5}
    assert ranking.explanation.no_contributions is None
    assert parse_ranking(json.dumps({**SUMMARY, "items": [item]}).encode()).items[0].contributions == {}


def test_parse_ranking_without_contributions_keeps_the_reason() -> None:
    explain = {name: value for name, value in EXPLAIN.items() if name != "baseline"}
    document = {**SUMMARY, "explain": explain | {"no_contributions": "per_example_gate"}, "items": []}
    ranking = parse_ranking(json.dumps(document).encode())
    assert ranking.explanation is not None
    assert ranking.explanation.baseline == {}
    assert ranking.explanation.no_contributions == "per_example_gate"


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"items": 1}', b'{"items": [1]}', b'{"models": [{}]}'])
def test_parse_of_another_document_raises(body: bytes) -> None:
    for parse in (parse_ranking, parse_models, parse_model, parse_ranked_table):
        with pytest.raises(ServiceError, match="the response"):
            parse(body)


def test_parse_ranked_table_without_summary_raises() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"id": pa.string()})):
        pass
    with pytest.raises(ServiceError, match="the response lacks fields of RankSummary"):
        parse_ranked_table(sink.getvalue().to_pybytes())
