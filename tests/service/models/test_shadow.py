"""A candidate version scores what others have answered: for comparison only, and only when there is time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from service.app import create_app
from service.engine.engine import Engine
from service.engine.errors import InvalidRequestError
from service.engine.validation import ParsedRequest
from service.models.shadow import WAITING, ShadowRequest, ShadowScorer
from service.protocol.messages import RankRequest
from service.settings import Settings
from service.telemetry.stage_timer import StageTimer
from tests.service.models.conftest import Service

SECONDS = 30.0
COUNT = 'ranker_shadow_requests_total{{model="feed",outcome="{}"}}'.format


@pytest.fixture
def service(repo: Path, serve: Callable[[Path], Service]) -> Service:
    """Version 1 answers, version 2 is its shadow."""
    found = serve(repo)
    found.release(shadow=2)
    return found


@pytest.fixture
def engine(service: Service) -> Iterator[Engine]:
    engine = Engine(500, service.metrics)
    yield engine
    engine.close()


def request(**options: Any) -> ParsedRequest:
    body = {"user": {"id": "u3"}, "items": [{"id": f"v{i}"} for i in range(9)]}
    return ParsedRequest.from_message(RankRequest.model_validate(body | options), {})


async def settled(shadows: ShadowScorer) -> None:
    """Waits until nothing is left to score."""
    while shadows._task is not None and not shadows._task.done():
        await asyncio.sleep(0.001)


async def shadow(service: Service, engine: Engine, shadows: ShadowScorer, asked: ParsedRequest) -> ShadowRequest:
    """Answers a request and offers it to the shadow."""
    lineup = service.models.get("feed")
    assert lineup.shadow is not None
    answered = ShadowRequest(lineup.shadow, asked, await engine.rank(lineup.current, asked, StageTimer()), "1")
    shadows.offer(answered)
    return answered


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, SECONDS))


@pytest.mark.parametrize("options", [{}, {"top_n": 3, "explain": True}, {"tasks": ["like"]}])
def test_differences_of_the_candidates_that_were_answered_are_metrics(
    service: Service, engine: Engine, options: dict[str, Any]
) -> None:
    async def test() -> None:
        shadows = ShadowScorer(engine, service.metrics)
        asked = request(**options)
        answered = await shadow(service, engine, shadows, asked)
        await settled(shadows)
        again = await engine.rank(answered.shadow, request(tasks=options.get("tasks")), StageTimer(), counted=False)
        rows = [again.ids.index(item) for item in answered.ranked.ids]
        assert service.metric(COUNT("scored")) == 1
        assert service.metric('ranker_rows_scored_total{model="feed",version="2"}') == 0  # nobody was answered by it
        for column, task in enumerate(answered.ranked.tasks):
            expected = np.abs(answered.ranked.scores[:, column] - again.scores[rows, column]).mean()
            labels = f'{{model="feed",task="{task}"}}'
            assert service.metric(f"ranker_shadow_score_difference_sum{labels}") == pytest.approx(expected, rel=1e-4)
            assert expected > 0

    run(test())


def test_nothing_is_scored_twice_while_requests_are_ranked(service: Service, engine: Engine) -> None:
    async def test() -> None:
        shadows = ShadowScorer(engine, service.metrics)
        await shadow(service, engine, shadows, request())
        ranking = asyncio.create_task(engine.rank(service.models.get("feed").current, request(), StageTimer()))
        await asyncio.gather(settled(shadows), ranking)
        assert service.metric(COUNT("dropped")) == 1
        assert not service.metric(COUNT("scored")) > 0

    run(test())


def test_few_requests_wait(service: Service, engine: Engine) -> None:
    async def test() -> None:
        shadows = ShadowScorer(engine, service.metrics)
        answered = await shadow(service, engine, shadows, request())
        for _ in range(WAITING + 2):
            shadows.offer(answered)
        assert service.metric(COUNT("dropped")) == 3
        await settled(shadows)
        assert service.metric(COUNT("scored")) == WAITING

    run(test())


def test_a_shadow_that_cannot_rank_is_told_once_and_without_values(
    service: Service, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rank = engine.rank

    async def refusing(served: Any, asked: ParsedRequest, stages: StageTimer, **how: Any) -> Any:
        if served.version == "2":
            raise unreadable("secret")
        return await rank(served, asked, stages, **how)

    async def test() -> None:
        monkeypatch.setattr(engine, "rank", refusing)
        shadows = ShadowScorer(engine, service.metrics)
        for _ in range(3):
            await shadow(service, engine, shadows, request())
            await settled(shadows)

    with caplog.at_level(logging.WARNING):
        run(test())
    assert service.metric(COUNT("failed")) == 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "the shadow, version 2 of 'feed', could not rank what version 1 did: items.price"


def unreadable(value: str) -> InvalidRequestError:
    return InvalidRequestError("items.price", value)


def test_what_waits_is_dropped_when_the_service_ends(service: Service, engine: Engine) -> None:
    async def test() -> None:
        shadows = ShadowScorer(engine, service.metrics)
        await shadow(service, engine, shadows, request())
        await shadows.close()
        assert service.metric(COUNT("scored")) != 1

    run(test())


def test_answers_are_those_of_the_version_that_they_name(repo: Path, request_body: dict[str, Any]) -> None:
    app = create_app(Settings(repository=repo, threads=1, poll_seconds=3600))
    with TestClient(app) as client:
        expected = client.post("/v1/rank", json=request_body).content
        client.put("/v2/repository/models/feed/release", json={"version": 1, "shadow": 2})
        client.post("/v1/models/feed/versions/1/rank", json=request_body)  # asked for by name: no comparison
        for _ in range(3):
            assert client.post("/v1/rank", json=request_body).content == expected
        both = {"version": 1, "shadow": 2, "canary": {"version": 2, "weight": 1.0}}
        client.put("/v2/repository/models/feed/release", json=both)
        assert client.post("/v1/rank", json=request_body).json()["version"] == "2"  # it would compare itself
        give_up = time.monotonic() + SECONDS
        while sum(outcomes(client).values()) < 3:
            assert time.monotonic() < give_up
        assert sum(outcomes(client).values()) == 3
        assert outcomes(client)["scored"] >= 1


def outcomes(client: TestClient) -> dict[str, float]:
    """Requests that the shadow was to score, by what became of it."""
    families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    samples = families["ranker_shadow_requests"].samples
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}
