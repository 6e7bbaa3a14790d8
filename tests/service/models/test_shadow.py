"""Shadow scoring: compares answered requests, and yields to ranking."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.engine.engine import Engine
from service.engine.errors import InvalidRequestError
from service.models.shadow import MAX_QUEUED_REQUESTS, ShadowRequest, ShadowScorer
from service.settings import Settings
from service.telemetry.stage_timer import StageTimer
from tests.service.models.conftest import Service
from tests.support.direct_ranking import ParsedRequest, parse
from tests.support.metrics import metrics_of
from tests.support.waiting import wait_until

TIMEOUT_SECONDS = 30.0
COUNT = 'ranker_shadow_requests_total{{model="feed",outcome="{}"}}'.format


@pytest.fixture
def service(repo: Path, serve: Callable[[Path], Service]) -> Service:
    """A service whose current version is 1 and whose shadow is 2."""
    service = serve(repo)
    service.release(shadow=2)
    return service


@pytest.fixture
def engine(service: Service) -> Iterator[Engine]:
    engine = Engine(500, service.metrics)
    yield engine
    engine.close()


@pytest.fixture
def shadows(service: Service, engine: Engine) -> ShadowScorer:
    return ShadowScorer(engine, service.metrics)


def parsed_request(**options: Any) -> ParsedRequest:
    body = {"user": {"id": "u3"}, "items": [{"id": f"v{i}"} for i in range(9)]}
    return parse(body | options)


async def queue_empty(shadows: ShadowScorer) -> None:
    """Wait until no queued request is left."""
    while shadows._task is not None and not shadows._task.done():
        await asyncio.sleep(0.001)


async def rank_and_submit(
    service: Service, engine: Engine, shadows: ShadowScorer, request: ParsedRequest
) -> ShadowRequest:
    """Rank a request with the current version and submit it to the shadow scorer."""
    routing = service.models.get("feed")
    assert routing.shadow is not None
    result = await engine.rank(routing.current, *request, StageTimer())
    shadow_request = ShadowRequest(routing.shadow, *request, result, "1")
    shadows.submit(shadow_request)
    return shadow_request


@pytest.mark.parametrize("options", [{}, {"top_n": 3, "explain": True}, {"tasks": ["like"]}])
async def test_shadow_records_score_differences_of_the_returned_candidates(
    service: Service, engine: Engine, shadows: ShadowScorer, options: dict[str, Any]
) -> None:
    request = parsed_request(**options)
    shadow_request = await rank_and_submit(service, engine, shadows, request)
    await queue_empty(shadows)
    shadow_result = await engine.rank(
        shadow_request.shadow, *parsed_request(tasks=options.get("tasks")), StageTimer(), counted=False
    )
    rows = [shadow_result.ids.index(item) for item in shadow_request.result.ids]
    assert service.metric(COUNT("scored")) == 1
    assert service.metric('ranker_rows_scored_total{model="feed",version="2"}') == 0  # only served batches count
    for column, task in enumerate(shadow_request.result.tasks):
        expected = np.abs(shadow_request.result.scores[:, column] - shadow_result.scores[rows, column]).mean()
        labels = f'{{model="feed",task="{task}"}}'
        assert service.metric(f"ranker_shadow_score_difference_sum{labels}") == pytest.approx(expected, rel=1e-4)
        assert expected > 0


async def test_shadow_drops_requests_while_the_engine_is_busy(
    service: Service, engine: Engine, shadows: ShadowScorer
) -> None:
    await rank_and_submit(service, engine, shadows, parsed_request())
    ranking = asyncio.create_task(engine.rank(service.models.get("feed").current, *parsed_request(), StageTimer()))
    await asyncio.gather(queue_empty(shadows), ranking)
    assert service.metric(COUNT("dropped")) == 1
    assert not service.metric(COUNT("scored")) > 0


async def test_shadow_drops_requests_above_its_queue_limit(
    service: Service, engine: Engine, shadows: ShadowScorer
) -> None:
    shadow_request = await rank_and_submit(service, engine, shadows, parsed_request())
    for _ in range(MAX_QUEUED_REQUESTS + 2):
        shadows.submit(shadow_request)
    assert service.metric(COUNT("dropped")) == 3
    await queue_empty(shadows)
    assert service.metric(COUNT("scored")) == MAX_QUEUED_REQUESTS


async def test_failing_shadow_is_logged_once_without_values(
    service: Service,
    engine: Engine,
    shadows: ShadowScorer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rank = engine.rank

    async def failing_rank(model: Any, *request: Any, **options: Any) -> Any:
        if model.version == "2":
            raise InvalidRequestError("items.price", "secret")
        return await rank(model, *request, **options)

    monkeypatch.setattr(engine, "rank", failing_rank)
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        await rank_and_submit(service, engine, shadows, parsed_request())
        await queue_empty(shadows)
    assert service.metric(COUNT("failed")) == 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == "shadow version 2 of 'feed' failed on a request that version 1 ranked: items.price"


async def test_close_drops_queued_requests(service: Service, engine: Engine, shadows: ShadowScorer) -> None:
    await rank_and_submit(service, engine, shadows, parsed_request())
    await shadows.close()
    assert service.metric(COUNT("scored")) != 1


def test_shadow_does_not_change_responses(repo: Path, request_body: dict[str, Any]) -> None:
    app = create_app(Settings(repository=repo, threads=1, poll_seconds=3600))
    with TestClient(app) as client:
        expected = client.post("/v1/rank", json=request_body).content
        client.put("/v2/repository/models/feed/release", json={"version": 1, "shadow": 2})
        client.post("/v1/models/feed/versions/1/rank", json=request_body)  # not compared: names its version
        for _ in range(3):
            assert client.post("/v1/rank", json=request_body).content == expected
        # Not compared: the version that answers is the shadow itself.
        assert client.post("/v1/models/feed/versions/2/rank", json=request_body).json()["version"] == "2"
        wait_until(lambda: sum(outcomes(client).values()) >= 3, timeout=TIMEOUT_SECONDS)
        assert sum(outcomes(client).values()) == 3
        assert outcomes(client)["scored"] >= 1


def outcomes(client: TestClient) -> dict[str, float]:
    """Return the number of shadow requests by outcome."""
    prefix = "ranker_shadow_requests_total,model=feed,outcome="
    values = metrics_of(client)
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
