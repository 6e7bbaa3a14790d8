"""Counters and histories over HTTP: the same scores as ``ranker score`` and the library, in every format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

import ranking
from pipelines.cli.main import main
from pipelines.jobs.publish import publish
from ranking.artifacts import bundle
from service.app import create_app
from service.http.media_types import ARROW
from service.settings import Settings
from tests.support.arrow_streams import send, stream
from tests.support.counted_ranker import NOW, ZONE, draw_events, make_counted_ranker
from tests.support.rank_request import rank

TOLERANCE = 1e-6
TIME = "2025-06-15T16:06:40+00:00"
"""One hour after ``NOW``."""
USERS = [1, 5, 40, None]
"""Known users, an unknown one, and none."""
ITEMS = [0, 3, 7, 11, 19, 77]


@pytest.fixture(scope="module", params=[False, True], ids=["integers", "text"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A repository with a ranker with counters, and whether its ids are text."""
    text = bool(request.param)
    folder = tmp_path_factory.mktemp("served")
    ranker = make_counted_ranker(folder / "counters", text=text)
    bundle.write_bundle(ranker, ranker.complete(draw_events(16, 3, text=text)), folder / "bundle")
    publish(folder / "bundle", folder / "repository")
    return folder / "repository", text


@pytest.fixture(scope="module")
def client(served: tuple[Path, bool]) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(repository=served[0]))) as client:
        yield client


def ids(prefix: str, values: list[Any], *, text: bool) -> list[Any]:
    return [None if value is None else f"{prefix}{value}" if text else value for value in values]


def expected(repository: Path, table: pa.Table) -> np.ndarray[Any, Any]:
    """Scores of the library [candidates, tasks]."""
    scores = ranking.load(repository / "counted" / "1").score(table)
    return np.stack([scores[task].to_numpy() for task in scores.column_names if task != "score"], 1)


def log_rows(user: Any, items: list[Any], kind: pa.DataType) -> pa.Table:
    time = pa.array([NOW + 3_600_000_000] * len(items), pa.timestamp("us", ZONE))
    return pa.table(
        {"time": time, "user_id": pa.array([user] * len(items), kind), "item_id": items, "tab": ["home"] * len(items)}
    )


def scores_by_id(items: list[dict[str, Any]], order: list[Any]) -> np.ndarray[Any, Any]:
    by_id = {item["id"]: [item["scores"]["click"], item["scores"]["watch"]] for item in items}
    return np.array([by_id[item] for item in order])


def test_http_score_command_and_library_agree(served: tuple[Path, bool], client: TestClient, tmp_path: Path) -> None:
    repository, text = served
    items = ids("v", ITEMS, text=text)
    kind = pa.string() if text else pa.int64()
    for user in ids("u", USERS, text=text):
        table = log_rows(user, items, kind)
        library = expected(repository, table)
        options = {"user": {"id": user}, "context": {"tab": "home"}, "time": TIME}
        rows = rank(client, options | {"items": [{"id": item} for item in items]})
        columns = rank(client, options | {"items": {"id": items}})
        arrow = send(client, stream({"item_id": items}, options))
        for answer in (rows, columns, arrow):
            np.testing.assert_allclose(scores_by_id(answer["items"], items), library, rtol=0, atol=TOLERANCE)
            assert answer["counters_as_of"].startswith("2025-06-15T1")
        if user is not None:  # A log has no rows without a user.
            pq.write_table(table, tmp_path / "log.parquet")
            bundle_path, out = str(repository / "counted" / "1"), tmp_path / "scores.parquet"
            assert main(["score", bundle_path, "--logs", str(tmp_path / "log.parquet"), "--out", str(out)]) == 0
            scored = pq.read_table(out)
            command = np.stack([scored["click"].to_numpy(), scored["watch"].to_numpy()], 1)
            np.testing.assert_allclose(command, library, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("served", [False], ids=["integers"], indirect=True)
def test_integer_ids_and_their_decimal_text_are_the_same_ids(client: TestClient) -> None:
    options = {"context": {"tab": "home"}, "time": TIME}
    answers = [rank(client, options | {"user": {"id": kind(5)}, "items": [{"id": kind(3)}]}) for kind in (int, str)]
    assert answers[0]["items"][0]["scores"] == answers[1]["items"][0]["scores"]


def test_sent_values_replace_those_of_the_state(served: tuple[Path, bool], client: TestClient) -> None:
    repository, text = served
    items, (user,) = ids("v", ITEMS, text=text), ids("u", [1], text=text)
    sent: dict[str, Any] = {"user_id_count": 99.0, "clicked": items[:2]}
    body = {"user": {"id": user, "features": sent}, "context": {"tab": "home"}, "time": TIME}
    answer = rank(client, body | {"items": [{"id": item} for item in items]})
    table = log_rows(user, items, pa.string() if text else pa.int64())
    for name, value in sent.items():
        table = table.append_column(name, pa.array([value] * len(items)))
    np.testing.assert_allclose(
        scores_by_id(answer["items"], items), expected(repository, table), rtol=0, atol=TOLERANCE
    )


def test_missing_lists_neither_counters_nor_histories(served: tuple[Path, bool], client: TestClient) -> None:
    (item,) = ids("v", [77], text=served[1])
    answer = rank(client, {"items": [{"id": item}]})
    names = {"country", "items.id", "price", "tab", "tags", "user.id"}
    assert set(answer["items"][0]["missing"]) == names


def test_explanation_and_arrow_response_of_a_model_with_counters(served: tuple[Path, bool], client: TestClient) -> None:
    items = ids("v", ITEMS, text=served[1])
    options = {"explain": True, "time": TIME}
    table = send(client, stream({"item_id": items}, options), accept=ARROW)
    assert table.num_rows == len(items)
    assert b'"counters_as_of":"2025-06-15T1' in table.schema.metadata[b"response"]
    answer = rank(client, options | {"items": [{"id": item} for item in items]})
    assert answer["explain"]["experts_run"]


def test_time_defaults_to_now(served: tuple[Path, bool], client: TestClient) -> None:
    items = ids("v", ITEMS, text=served[1])
    body: dict[str, Any] = {"items": [{"id": item} for item in items]}
    now, later = rank(client, body), rank(client, body | {"time": TIME})
    score: Callable[[Any], Any] = lambda answer: scores_by_id(answer["items"], items)  # noqa: E731
    assert not np.allclose(score(now), score(later))
