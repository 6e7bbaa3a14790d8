"""Tests of the generated requests against the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from pipelines.bench.requests import DISTINCT_REQUESTS, FORMS, Requests
from pipelines.jobs.publish import publish
from ranking.artifacts import bundle
from ranking.frozen.ranker import FrozenRanker
from service.app import create_app
from service.http.media_types import JSON
from service.protocol.messages import RankRequest
from service.settings import Settings


@pytest.fixture(scope="module")
def client(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    repository = tmp_path_factory.mktemp("repository") / "repository"
    publish(reference, repository)
    with TestClient(create_app(Settings(repository=repository))) as client:
        yield client


def test_all_forms_of_a_request_get_the_same_response(
    client: TestClient, ranker: FrozenRanker, reference: Path
) -> None:
    requests = Requests(ranker, reference)
    table = requests.candidates(30)
    responses = {}
    for form, write in FORMS.items():
        body = write(requests, table)
        response = client.post(
            "/v1/rank", content=body.data, headers={"Content-Type": body.content_type, "Accept": JSON}
        )
        assert response.status_code == 200, response.text
        responses[form] = response.json()["items"]
        assert len(responses[form]) == 30
        assert all(item["missing"] == [] for item in responses[form])
    first = {item["id"]: item["scores"] for item in responses["ids"]}
    for items in responses.values():
        for item in items:
            assert item["scores"] == pytest.approx(first[item["id"]], abs=1e-5)


def test_form_ids_contains_no_feature_that_is_looked_up(ranker: FrozenRanker, reference: Path) -> None:
    parsed = RankRequest.model_validate_json(Requests(ranker, reference).body("ids", 5).data)
    assert parsed.user.features == {}
    assert len(parsed.context) == 8
    assert parsed.items.features == {}  # type: ignore[union-attr]


def test_candidates_and_bodies_are_distinct(ranker: FrozenRanker, reference: Path) -> None:
    requests = Requests(ranker, reference)
    assert len(set(requests.item_ids(requests.max_candidates))) == requests.max_candidates == 300
    bodies = requests.bodies("ids", 10)
    assert len(set(bodies)) == DISTINCT_REQUESTS
    assert requests.bodies("ids", 10) is bodies


def test_features_without_a_table_come_from_golden_rows(bundle_without_tables: Path) -> None:
    ranker = bundle.load(bundle_without_tables)
    requests = Requests(ranker, bundle_without_tables)
    parsed = RankRequest.model_validate_json(requests.body("columns", 7).data)
    assert set(parsed.user.features) == set(ranker.schema.columns_of("user"))
    assert set(parsed.items.features) == set(ranker.schema.columns_of("item"))  # type: ignore[union-attr]
    by_id = RankRequest.model_validate_json(requests.body("ids", 7).data)
    assert set(by_id.user.features) == set(ranker.schema.columns_of("user"))
    assert len(requests.encoded(7)) == 7


@pytest.fixture
def bundle_without_tables(ranker: FrozenRanker, reference: Path, tmp_path: Path) -> Path:
    from dataclasses import replace

    rows = Requests(ranker, reference).candidates(20)
    bundle.write_bundle(replace(ranker, tables={}, stored=None), rows, tmp_path / "bundle")
    return tmp_path / "bundle"
